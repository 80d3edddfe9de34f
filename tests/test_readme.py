"""The README's own words: its Python runs, and its commands are the ones that CI runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PRINTED: tuple[list[str], ...] = ([], ["(3, 10)", "(1, 10)"], [])


def test_every_python_block_is_run() -> None:
    assert len(BLOCKS) == len(PRINTED)


@pytest.mark.parametrize("index", range(len(PRINTED)))
def test_the_block_runs_and_prints_what_it_says(index: int, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(BLOCKS[index], f"README block {index + 1}", "exec"), names)
    printed = capsys.readouterr().out
    assert printed
    for line in PRINTED[index]:
        assert line in printed.splitlines()


def test_ci_runs_the_readme_commands() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)) <= targets
    assert re.search(r"^make test", README, re.MULTILINE)
    assert [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make")] == [
        "make check",
        "make test",
    ]
