"""`plait serve` and `plait run --url` as users run them: usage errors, busy ports, start, stop."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import plait
from plait.serve.client import Client
from tests.serve.servers import ROOT, Engine, Script, ServeProcess, plait_serve, serving, spelled


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-m", "plait", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=60, cwd=ROOT, stdin=subprocess.DEVNULL
    )


@pytest.mark.case("C01")
@pytest.mark.system(1, 3)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--model"),
        (("echo", "--model", "echo"), "--model"),
        (("echo", "--port", "70000"), "70000"),
        (("echo", "--port", "-1"), "-1"),
        (("echo", "--port", "http"), "http"),
        (("echo", "--host", "nope.invalid", "--insecure"), "nope.invalid"),
        (("echo", "--host", "nope"), "nope"),
        (("echo", "--host", "0.0.0.0"), "--insecure"),
        (("echo", "--max-queue-size", "-1"), "-1"),
        (("echo", "--drain-timeout", "-1"), "-1"),
        (("echo", "--api-key", ""), "api_key"),
        (("echo", "--no-such-flag"), "no-such-flag"),
    ],
)
def test_usage_errors_are_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = run("serve", *arguments)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr


@pytest.mark.case("C01")
def test_a_busy_port_is_told_before_the_model_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cache = tmp_path / "cache"
        start = time.monotonic()
        done = run("serve", str(tmp_path / "missing.gguf"), "--port", str(port), PLAIT_CACHE=str(cache))
        assert time.monotonic() - start < 30  # measured 0.4 s; the bound only catches a model that was loaded
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and f"127.0.0.1:{port}" in done.stderr and "--port" in done.stderr
    assert not cache.exists()


def test_a_model_that_is_missing_or_damaged_is_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "broken.gguf"
    damaged.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 64)
    for model in (str(tmp_path / "missing.gguf"), str(damaged)):
        done = run("serve", model, "--port", "0")
        assert done.returncode == 1 and "Server ready" not in done.stdout
        assert model in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.case("C01")
@pytest.mark.system(2, 86)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_port_0_is_printed_and_a_signal_ends_with_0(number: signal.Signals) -> None:
    with plait_serve("echo") as served:
        port = int(served.url.rpartition(":")[2])
        assert port > 0
        assert any(line.strip().startswith(f"curl {served.url}/v1/chat/completions") for line in served.lines)
        assert httpx.get(served.url + "/ready").status_code == 200
        assert httpx.get(served.url + "/version").json() == {"version": plait.__version__}
        with Client(served.url) as client:
            assert "".join(client.chat("3")) == " three two one"
        assert served.stop(number) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(served.url + "/health")


@pytest.mark.slow
def test_the_banners_curl_line_works(echo: ServeProcess) -> None:
    (line,) = [line.strip() for line in echo.lines if line.strip().startswith("curl ")]
    command = [*shlex.split(line), "--silent"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert '"object":"chat.completion"' in done.stdout, done.stdout + done.stderr


def test_run_asks_a_server() -> None:
    with serving(Engine(lambda stream: Script([*spelled("You said "), stream.prompt])), api_keys=("k",)) as served:
        done = run("run", "--url", served.url, "--api-key", "k", "-p", "Hi")
        assert (done.returncode, done.stdout) == (0, "You said Hi\n"), done.stderr
        raw = run("run", "echo", "--url", served.url, "--api-key", "k", "-p", "Hi", "--raw", "--max-tokens", "5")
        assert raw.stdout == "You s\n"
        denied = run("run", "--url", served.url, "-p", "Hi")
        assert denied.returncode == 1 and "key" in denied.stderr and len(denied.stderr.splitlines()) == 1
        other = run("run", "gpt", "--url", served.url, "--api-key", "k", "-p", "Hi")
        assert other.returncode == 1 and "'gpt'" in other.stderr


def test_run_without_a_model_is_a_usage_error() -> None:
    done = run("run", "-p", "Hi")
    assert done.returncode == 2 and "--url" in done.stderr
