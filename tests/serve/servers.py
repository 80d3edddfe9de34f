"""Servers to test against: the application on a scripted engine in this process, and `plait serve` in another one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from plait.framework.errors import RequestError
from plait.pipelines.builtin import open_model
from plait.pipelines.model_files import ALIASES
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.tokenizer import Tokenizer
from plait.serve.answer import TextSide
from plait.serve.app import create_app
from plait.serve.listener import address, listen
from plait.serve.settings import ServeSettings

ROOT = Path(__file__).parents[2]
ECHO = Tokenizer.from_gguf(open_model("echo").metadata)
needs_model = pytest.mark.skipif(ALIASES["smollm2"].locate() is None, reason="the demo model is not installed")


@dataclass
class Event:
    token: int
    finish_reason: str | None = None


@dataclass
class Info:
    max_length: int = 512
    vocab_size: int = ECHO.vocab_size
    max_batch_size: int = 4


@dataclass(eq=False)
class Script:
    """What the scripted engine does with a prompt: tokens, each list one arrival, then an error if there is one.

    `gate` holds the answer after its first arrival until it is set.
    """

    arrivals: list[list[int]]
    ends: bool = True
    error: RequestError | None = None
    gate: asyncio.Event | None = None


def spelled(text: str, size: int = 1) -> list[list[int]]:
    """The bytes of a text as tokens, `size` to an arrival."""
    ids = list(text.encode())
    return [ids[i : i + size] for i in range(0, len(ids), size)]


@dataclass(eq=False)
class Stream:
    engine: Engine
    prompt: list[int]
    params: SamplingParams
    request_id: str
    closed: bool = False
    finished: bool = False

    async def __aiter__(self) -> AsyncIterator[list[Event]]:
        script = self.engine.script(self)
        sent, limit = 0, self.params.max_tokens or 1 << 30
        for index, ids in enumerate(script.arrivals):
            await asyncio.sleep(0)
            if index == 1 and script.gate is not None:
                await script.gate.wait()
            ids = ids[: limit - sent]
            sent += len(ids)
            events = [Event(token) for token in ids]
            if sent == limit:
                events[-1].finish_reason = "length"
            elif index == len(script.arrivals) - 1 and script.ends and script.error is None:
                events[-1].finish_reason = "stop"
            self.finished = events[-1].finish_reason is not None
            yield events
            if self.finished:
                return
        if script.error is not None:
            raise script.error

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.engine.running -= 1


@dataclass(eq=False)
class Engine:
    """The bridge's methods on scripts."""

    script: Callable[[Stream], Script]
    max_requests: int = 64
    state: str = "ready"
    progress: str = ""
    info: Info | None = field(default_factory=Info)
    running: int = 0
    waiting: int = 0
    streams: list[Stream] = field(default_factory=list)

    def submit(self, prompt: Sequence[int], params: SamplingParams, request_id: str) -> Stream:
        if self.running >= self.max_requests:
            raise RequestError("engine: full.", status=429, code="queue_full")
        self.running += 1
        self.streams.append(Stream(self, list(prompt), params, request_id))
        return self.streams[-1]


@dataclass
class Served:
    """A running application. `call` runs a function in its loop."""

    url: str
    engine: Engine
    app: Any
    loop: asyncio.AbstractEventLoop

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)


@contextlib.contextmanager
def serving(engine: Engine, **settings: Any) -> Iterator[Served]:
    """Serve a scripted engine from a thread of this process."""
    listener = listen("127.0.0.1", 0)
    started: list[Any] = []
    ready = threading.Event()

    async def main() -> None:
        stop = asyncio.Event()
        app = create_app(ServeSettings(**{"model": "echo"} | settings), engine, TextSide(ECHO))  # type: ignore[arg-type]
        app.config.TOUCHUP = False  # it rewrites Sanic's own classes, which works once per process
        await app._startup()  # type: ignore[no-untyped-call]
        http: Any = await app.create_server(sock=listener, return_asyncio_server=True)
        started.extend([app, asyncio.get_running_loop(), stop])
        ready.set()
        await stop.wait()
        http.close()
        for connection in list(http.connections):
            connection.abort()
        await asyncio.sleep(0.01)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    app, loop, stop = started
    try:
        yield Served(f"http://{address(listener)}", engine, app, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        listener.close()
    assert not thread.is_alive()


@dataclass
class ServeProcess:
    """`plait serve` in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str]

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def plait_serve(*arguments: str, timeout_s: float = 120) -> Iterator[ServeProcess]:
    """Start `plait serve` on a free port and wait for its banner."""
    command = [sys.executable, "-m", "plait", "serve", *arguments, "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
    )
    lines: list[str] = []
    found = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("  curl "):  # the banner's last line
                found.set()
        found.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert found.wait(timeout_s), lines
        urls = [match[1] for line in lines if (match := re.match(r"Server ready on (\S+)", line))]
        assert urls, "\n".join(lines)
        yield ServeProcess(process, urls[0], lines)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(10)
        if process.stdout is not None:
            process.stdout.close()
