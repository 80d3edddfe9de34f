"""What HTTP costs: processor time of the HTTP process per chunk that it streams, with the model that costs nothing.

The served process is measured from outside; the engine and the reader of the streams are other processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row, print_rows, time_row

STREAMS = 64
TOKENS = 400
ROUNDS = 3
DELAY_MS = 10  # of a step, so that each token travels alone, as those of a model do
LIMIT_US = 30.0
START_S = 60.0
ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def _server() -> Iterator[tuple[int, int]]:
    """A server on a free port: its process id and the port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "plait", "serve", f"echo?delay_ms={DELAY_MS}", "--port", str(port)]
    command += ["--max-batch-size", str(STREAMS)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait_ready(process, port)
        yield process.pid, port
    finally:
        _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/ready", timeout=2):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise RuntimeError(f"plait serve: not ready within {START_S:.0f} s (exit code {process.poll()}); run it by hand.")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def processor_seconds(pid: int) -> tuple[float, float]:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * _TICK_S, int(fields[12]) * _TICK_S


async def _stream(port: int, model: str) -> int:
    """Stream one answer and return how many chunks of text it came in."""
    body = json.dumps({
        "model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": TOKENS, "stream": True,
    })  # fmt: skip
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write((head + body).encode())
    answer = await reader.read()
    writer.close()
    if b"data: [DONE]" not in answer:
        raise RuntimeError(f"plait serve: the stream broke off after {answer[-300:]!r}; expected [DONE] at its end.")
    return answer.count(b'"content":" ')


async def _all_streams(port: int, model: str) -> int:
    return sum(await asyncio.gather(*(_stream(port, model) for _ in range(STREAMS))))


@dataclass(frozen=True)
class Round:
    """What one round of all streams took; microseconds are processor time per chunk."""

    chunks: int
    seconds: float
    user_us: float
    system_us: float

    @property
    def total_us(self) -> float:
        return self.user_us + self.system_us


def _measure(pid: int, port: int, model: str) -> Round:
    before, start = processor_seconds(pid), time.perf_counter()
    chunks = asyncio.run(_all_streams(port, model))
    seconds, after = time.perf_counter() - start, processor_seconds(pid)
    user_us, system_us = ((now - then) / chunks * 1e6 for now, then in zip(after, before, strict=True))
    return Round(chunks, seconds, user_us, system_us)


def run() -> list[Row]:
    """Measure, print the table with the middle round and return its row."""
    with _server() as (pid, port):
        with urllib.request.urlopen(f"http://{HOST}:{port}/v1/models", timeout=10) as response:
            model = json.load(response)["data"][0]["id"]
        asyncio.run(_stream(port, model))
        rounds = sorted((_measure(pid, port, model) for _ in range(ROUNDS)), key=lambda each: each.total_us)
    middle = rounds[ROUNDS // 2]
    row = time_row("HTTP, processor per chunk", middle.total_us, LIMIT_US, "us", "limit", goal=1.0)
    lines = [
        f"{STREAMS} streams of {TOKENS} tokens: {middle.chunks} chunks, {middle.chunks / middle.seconds:.0f} a second",
        f"per chunk {middle.user_us:.1f} us of its own and {middle.system_us:.1f} us of the system's; "
        f"the rounds {', '.join(f'{each.total_us:.1f}' for each in rounds)} us",
    ]
    print_rows("serving, model echo", [row], lines)
    return [row]
