"""The coverage table of a small suite of its own, with and without workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SUITE = """
import pytest

@pytest.mark.system(42)
def test_passes(): pass

@pytest.mark.system(42)
@pytest.mark.parametrize("n", [1, 2])
def test_sometimes(n):
    if n == 2: pytest.skip("not here")

@pytest.mark.system(7)
@pytest.mark.case("S14")
def test_fails(): assert False

@pytest.mark.case("S3")
def test_breaks_on_the_way_out(request):
    request.addfinalizer(lambda: 1 / 0)

@pytest.mark.case("N6")
@pytest.mark.skip(reason="no device")
def test_skipped(): pass

@pytest.mark.case("T1")
@pytest.mark.xfail(reason="known")
def test_known_to_fail(): assert False

def test_unmarked(): pass
"""

ROWS = {
    "7": [0, 1, 0],
    "42": [2, 0, 1],
    "N6": [0, 0, 1],
    "S3": [0, 1, 0],
    "S14": [0, 1, 0],
    "T1": [0, 0, 1],
}


def run_suite(folder: Path, text: str, *options: str) -> str:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    system(number): x\n    case(id): x\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.coverage_table", "--coverage-table", *options, str(folder)]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, env={**environment, "PYTHONPATH": str(ROOT)}
    )
    return run.stdout + run.stderr


def table_of(output: str) -> dict[str, list[int]]:
    lines = output.partition("coverage table")[2].splitlines()[2:]
    words = [line.split() for line in lines if "test_it.py::" in line and not line.startswith(("FAILED", "ERROR"))]
    return {row[0]: [int(count) for count in row[1:4]] for row in words}


@pytest.mark.parametrize("options", [("-p", "no:xdist"), ("-n", "2")])
def test_a_skipped_or_expected_failure_never_counts_as_a_pass(tmp_path: Path, options: tuple[str, ...]) -> None:
    output = run_suite(tmp_path, SUITE, *options)
    assert list(table_of(output).items()) == list(ROWS.items())
    assert "test_sometimes (x2)" in output
    assert "6 checks, 0 of them with every test passed" in output
    assert "test_unmarked" not in output.partition("coverage table")[2]


def test_a_marker_with_the_wrong_kind_of_name_is_an_error(tmp_path: Path) -> None:
    output = run_suite(tmp_path, 'import pytest\n@pytest.mark.system("42")\ndef test_a(): pass\n')
    assert "test_it.py::test_a: marker system('42',); expected one or more of type int" in output
