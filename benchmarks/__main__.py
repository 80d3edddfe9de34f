"""`python -m benchmarks [--only llm|tensor|http] [--json FILE]`: tables under the machine's own figures."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.report import Row, print_probes, write_json

NAMES = ("tensor", "llm", "http")


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", choices=NAMES, help="run this one alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args()
    print_probes()
    rows: list[Row] = []
    for name in [options.only] if options.only else NAMES:
        rows += importlib.import_module(f"benchmarks.{name}").run()
    print()
    print_probes()
    if options.json:
        write_json(options.json, rows)


if __name__ == "__main__":
    main()
