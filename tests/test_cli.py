"""The command line as its users run it: output, exit codes, one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import plait
from plait.pipelines.model_files import ALIASES

ROOT = Path(__file__).parents[1]


def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plait", *arguments]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | environment
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=variables, timeout=240, cwd=ROOT)


needs_model = pytest.mark.skipif(ALIASES["smollm2"].locate() is None, reason="the demo model is not installed")


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == plait.__version__
    shown = run("--help")
    assert shown.returncode == 0 and all(verb in shown.stdout for verb in ("run", "generate", "doctor", "models"))
    flags = run("run", "--help").stdout
    for flag in (
        "--prompt",
        "-p",
        "--threads",
        "--max-length",
        "--temperature",
        "--seed",
        "--max-tokens",
        "--top-k",
        "--raw",
    ):
        assert flag in flags


def test_help_loads_no_compiler() -> None:
    code = (
        "import sys\nfrom plait.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "loaded = {'llvmlite', 'numba', 'tokenizers', 'jinja2', 'sanic'} & {m.split('.')[0] for m in sys.modules}\n"
        "print(sorted(loaded), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert done.stderr.strip() == "[]"


@needs_model
@pytest.mark.slow
def test_run_streams_the_answer_and_closes_with_timings() -> None:
    done = run("run", "smollm2", "-p", "Name three rivers.", "--max-tokens", "8", "--max-length", "128")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    closing = done.stderr.strip().splitlines()[-1]
    assert all(
        word in closing
        for word in ("load ", "compile ", "first token ", "8 new tokens (length)", "prefill ", "decode ")
    )


@needs_model
@pytest.mark.slow
def test_run_without_a_prompt_answers_line_by_line() -> None:
    done = run("run", "smollm2", "--max-tokens", "4", "--max-length", "256", stdin="Hello\n\nAnd you?\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("first token") == 2


@needs_model
@pytest.mark.slow
@pytest.mark.system(5)
def test_generate_prints_the_text_alone_and_repeats_with_a_seed() -> None:
    arguments = ("generate", "smollm2", "-p", "The capital of France is", "--max-length", "64")
    done = run(*arguments, "--max-tokens", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris.")
    drawn = [run(*arguments, "--max-tokens", "6", "--temperature", "0.9", "--seed", "3").stdout for _ in range(2)]
    assert drawn[0] == drawn[1] != ""
    stopped = run(*arguments, "--max-tokens", "9", "--stop", ".")
    assert stopped.stdout == " Paris\n"


def test_doctor_and_models_say_what_is_here(tmp_path: Path) -> None:
    done = run("doctor", PLAIT_DEBUG="1", PLAIT_CACHE=str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
    for word in (
        f"plait {plait.__version__}",
        "PLAIT_DEBUG = 1",
        "float32 lanes",
        "by affinity",
        "compile cache",
        "models",
    ):
        assert word in done.stdout
    assert not (tmp_path / "none").exists()
    assert "smollm2" in run("models").stdout


def test_doctor_compiles_each_skeleton_and_fails_when_it_cannot() -> None:
    done = run("doctor", "--compile")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[1:]
    assert len(lines) > 10 and all(" ms  pass (" in line for line in lines)
    refused = run("doctor", "--compile", PLAIT_COMPILE="0")
    assert refused.returncode == 1
    assert all("FAIL: cache: kernel" in line for line in refused.stdout.splitlines()[1:])


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (("run", "smolm2", "-p", "x"), {}, "did you mean smollm2"),
        (("run", "/nowhere/x.gguf", "-p", "x"), {}, "/nowhere/x.gguf"),
        (("run", "smollm2", "-p", "x", "--threads", "0"), {}, "threads: 0"),
        (("run", "smollm2", "-p", "x", "--temperature", "9"), {}, "temperature: 9"),
        (("doctor",), {"PLAIT_NO_SUCH": "1"}, "PLAIT_NO_SUCH"),
        (("doctor",), {"PLAIT_THREADS": "many"}, "PLAIT_THREADS"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(
    arguments: tuple[str, ...], environment: dict[str, str], words: str
) -> None:
    done = run(*arguments, **environment)
    assert done.returncode == 1 and done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]
    assert len(errors) == 1 and words in errors[0], done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("dance",),
        ("run",),
        ("run", "smollm2", "--no-such-flag"),
        ("run", "smollm2", "--max-tokens", "few"),
        ("generate", "smollm2"),
    ],
)
def test_usage_errors_are_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "plait --help" in done.stderr


@pytest.mark.case("N14")
@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 64, b"\x00" * 5000])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    done = run("generate", str(path), "-p", "x")
    errors = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]
    assert done.returncode == 1 and len(errors) == 1 and str(path) in errors[0]


@needs_model
@pytest.mark.slow
@pytest.mark.system(41)
def test_a_prompt_over_the_context_is_one_line_with_both_numbers() -> None:
    done = run("generate", "smollm2", "-p", "word " * 100, "--max-length", "40")
    assert done.returncode == 1
    assert "100 tokens" in done.stderr.splitlines()[-1] or "101 tokens" in done.stderr.splitlines()[-1]
    assert "40" in done.stderr.splitlines()[-1]


@needs_model
@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_one_line() -> None:
    done = run(
        "generate", "smollm2", "-p", "Hi", "--max-tokens", "2", "--max-length", "64", PLAIT_CACHE="/proc/nowhere"
    )
    assert done.returncode == 0, done.stderr
    assert sum("cache" in line for line in done.stderr.splitlines()) == 1
