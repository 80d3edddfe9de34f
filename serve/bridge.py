"""The asyncio side of the engine process: starts it, submits to it, spreads its tokens over streams, restarts it once.

The only place where the event loop and the engine meet. Knows token ids; neither text nor HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from plait.framework import errors
from plait.framework.errors import EngineDied, FormatError, PlaitError, RequestError
from plait.pipelines.sampling import SamplingParams
from plait.serve.frames import (
    UP,
    Abort,
    Failed,
    FrameReader,
    ModelInfo,
    Progress,
    Ready,
    Refused,
    Step,
    Submit,
    TokenEvent,
    Up,
    encode,
)

log = logging.getLogger("plait.serve")

RESTART_WINDOW_S = 60.0  # a second death within it is the last
_LAST_WORDS_S = 5.0  # for a process whose socket has closed to end by itself
_KILLED_S = 5.0
_POLL_S = 0.02
_MAX_PATH_BYTES = 100  # what a Unix socket's address holds everywhere is 104


@dataclass(frozen=True)
class EngineSpec:
    """What to run: a model's name, options of `pipelines.core.Options` by name, and how many requests may wait."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    max_queue_size: int = 256


class Stream:
    """One request's tokens as they come, in lists of all that came since the last look. One reader."""

    def __init__(self, engine: Engine, number: int, request_id: str) -> None:
        self.request_id = request_id
        self._engine, self._number = engine, number
        self._events: list[TokenEvent] = []
        self._error: RequestError | None = None
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[list[TokenEvent]] | None = None

    def __aiter__(self) -> Stream:
        return self

    def __anext__(self) -> Awaitable[list[TokenEvent]]:
        """What has come, at least one token. A future and no coroutine: this runs for every token of every stream.

        Raises: RequestError when the engine refuses the request or dies; tokens that came before are given first.
        """
        self._reader = self._loop.create_future()
        self._give()
        return self._reader

    def _give(self) -> None:
        """Hand the waiting reader what there is."""
        reader = self._reader
        if reader is None or reader.done():
            return
        if self._events:
            reader.set_result(self._events)
            self._events = []
        elif self._is_over:
            reader.set_exception(StopAsyncIteration() if self._error is None else self._error)

    def close(self) -> None:
        """Tell the engine that nobody reads on; what was not read is gone. Again: nothing."""
        self._events, self._error = [], None
        if not self._is_over:
            self.end()
            self._engine.abort(self._number)

    def push(self, event: TokenEvent) -> None:
        """Add a token; called by the engine."""
        self._events.append(event)
        self._give()

    def end(self, error: RequestError | None = None) -> None:
        """Nothing more comes; called by the engine."""
        self._is_over, self._error = True, error
        self._give()


class Engine:
    """The engine process as the event loop sees it.

    state     "loading", "ready" or "dead"; dead until a restarted one is ready
    progress  how far loading has come, such as "compiling 7/10"
    info      what the engine can take, once it was ready
    running   requests in the engine's batch
    waiting   requests that are admitted and not in the batch
    """

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.state, self.progress = "loading", ""
        self.info: ModelInfo | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.running = 0
        self._numbers = itertools.count()
        self._streams: dict[int, Stream] = {}
        self._leaving: set[int] = set()  # closed, and the engine has not said yet that their place is free
        self._channel: _Channel | None = None
        self._failure: PlaitError | None = None
        self._settled, self._failed = asyncio.Event(), asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._grace_s = _LAST_WORDS_S

    @property
    def waiting(self) -> int:
        return max(0, self.num_admitted - self.running)

    @property
    def num_admitted(self) -> int:
        return len(self._streams) + len(self._leaving)

    async def start(self) -> None:
        """Start the process; returns at once, `state` and `progress` tell how it goes."""
        self._life = asyncio.create_task(self._live())

    async def wait_ready(self) -> None:
        """Wait until requests are taken.

        Raises: LoadError, FormatError, ConfigError and their kin when the model cannot be loaded; EngineDied.
        """
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_failed(self) -> None:
        """Wait until the engine is dead for good."""
        await self._failed.wait()

    def submit(self, prompt: Sequence[int], params: SamplingParams, request_id: str) -> Stream:
        """Hand a request to the engine; close the stream when done with it.

        Raises: RequestError 429 when the queue is full, 503 when the engine is not ready.
        """
        channel = self._check_ready()
        number = next(self._numbers)
        try:
            frame = encode(Submit(number, list(prompt), params))
        except FormatError:
            message = f"prompt: {len(prompt)} tokens are too many to hand to the engine. shorten it."
            raise RequestError(message, param="prompt", code="context_length_exceeded") from None
        stream = self._streams[number] = Stream(self, number, request_id)
        channel.write(frame)
        return stream

    def abort(self, number: int) -> None:
        """Drop a request; called by its stream."""
        if self._streams.pop(number, None) is not None and self._channel is not None:
            self._leaving.add(number)
            self._channel.write(encode(Abort(number)))

    async def stop(self, grace_s: float) -> None:
        """End the process: hang up, give it some time, kill it. Open streams raise RequestError 503."""
        self._grace_s = grace_s
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        self._end_streams(RequestError("engine: stopped; ask again.", status=503, code="draining"))
        self._fail(EngineDied("engine: stopped."))

    def _check_ready(self) -> _Channel:
        if self.state == "dead":
            raise RequestError("engine: died and is being restarted; try again.", status=503, code="engine_dead")
        if self.info is None or self._channel is None or self.state != "ready":
            raise RequestError(f"engine: not ready ({self.progress or self.state}); try again.", status=503)
        places = self.info.max_batch_size + self.spec.max_queue_size
        if self.num_admitted >= places:
            raise RequestError(
                f"engine: {self.num_admitted} requests run or wait; expected fewer than {places}. try again.",
                status=429,
                code="queue_full",
            )
        return self._channel

    # Life

    async def _live(self) -> None:
        """One process after another, until there is no use in a further one."""
        loop = asyncio.get_running_loop()
        last_death_s = -math.inf
        try:
            while self._failure is None:
                cause = await self._run_process()
                self._on_death(cause)
                if self._failure is None and loop.time() - last_death_s < RESTART_WINDOW_S:
                    self._fail(EngineDied(f"engine: {cause}, for the second time within {RESTART_WINDOW_S:g} s."))
                last_death_s = loop.time()
        except Exception as error:
            log.exception("the engine cannot be run")
            self._fail(EngineDied(f"engine: could not be started: {error}."))

    async def _run_process(self) -> str:
        """Run one process from start to end, and say how it ended."""
        with _socket_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
            path = os.path.join(folder, "engine")
            listener.setblocking(False)
            listener.bind(path)
            listener.listen(1)
            process = self.process = _spawn(path, self.spec)
            try:
                peer = await _accept(listener, process)
            except BaseException:
                await _end(process, 0)
                raise
        # The folder is gone by now: nothing is left of it even if this process is killed.
        if peer is None:
            return _describe_exit(process)
        return await self._talk(peer, process)

    async def _talk(self, peer: socket.socket, process: subprocess.Popen[bytes]) -> str:
        channel = _Channel(self._receive)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=peer)
            self._channel = channel
            await channel.closed.wait()
        finally:
            self._channel = None
            channel.abort()
            await _end(process, self._grace_s)
        return channel.fault or _describe_exit(process)

    def _on_death(self, cause: str) -> None:
        self.state, self.progress = "dead", "restarting"
        if self._failure is None:
            self._settled.clear()
            log.error("engine process %s", cause)
        self._end_streams(RequestError(f"engine: {cause}; ask again.", status=503, code="engine_dead"))

    def _fail(self, failure: PlaitError) -> None:
        self._failure = self._failure or failure
        self.state = "dead"
        self._settled.set()
        self._failed.set()

    def _end_streams(self, error: RequestError) -> None:
        streams, self._streams = self._streams, {}
        self._leaving.clear()
        self.running = 0
        for stream in streams.values():
            stream.end(error)

    # Messages

    def _receive(self, message: Up) -> None:
        _HANDLERS[type(message)](self, message)

    def _on_progress(self, message: Progress) -> None:
        count = f" {message.done}/{message.total}" if message.total else ""
        self.progress = message.stage + count

    def _on_ready(self, message: Ready) -> None:
        self.info, self.state, self.progress = message.info, "ready", ""
        self._settled.set()

    def _on_failed(self, message: Failed) -> None:
        """The same error here as there; waiting for another process would not help."""
        kind = getattr(errors, message.kind, None)
        is_ours = isinstance(kind, type) and issubclass(kind, PlaitError)
        error = kind(message.message) if is_ours and kind else PlaitError(f"{message.kind}: {message.message}")
        self._fail(cast(PlaitError, error))

    def _on_step(self, message: Step) -> None:
        self.running = message.num_running
        self._leaving.difference_update(message.dropped)
        for event in message.tokens:
            stream = self._streams.get(event.number)
            if stream is None:
                continue  # closed while this was under way
            stream.push(event)
            if event.finish_reason is not None:
                del self._streams[event.number]
                stream.end()

    def _on_refused(self, message: Refused) -> None:
        stream = self._streams.pop(message.number, None)
        if stream is not None:
            error = RequestError(message.message, status=message.status, param=message.param, code=message.code)
            stream.end(error)


_HANDLERS: dict[type[Up], Callable[[Engine, Any], None]] = {
    Progress: Engine._on_progress,
    Ready: Engine._on_ready,
    Failed: Engine._on_failed,
    Step: Engine._on_step,
    Refused: Engine._on_refused,
}


class _Channel(asyncio.Protocol):
    """The bridge's end of the socket. Writing never waits; admission bounds what can be unsent."""

    def __init__(self, receive: Callable[[Up], None]) -> None:
        self.closed = asyncio.Event()
        self.fault: str | None = None
        self._receive = receive
        self._reader = FrameReader(UP)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.fault is not None:
            return
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except FormatError as error:
            self.fault = f"sent what is no message ({error})"
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@contextmanager
def _socket_folder() -> Iterator[str]:
    """A folder that only this user can enter, with a name short enough for a socket's address."""
    is_long = len(os.fsencode(tempfile.gettempdir())) > _MAX_PATH_BYTES - 40
    with tempfile.TemporaryDirectory(prefix="plait-engine-", dir="/tmp" if is_long else None) as folder:
        yield folder


def _spawn(path: str, spec: EngineSpec) -> subprocess.Popen[bytes]:
    """Start the process with this process's settings. A program of its own, so no lock or thread comes along."""
    words = json.dumps({"model": spec.model, "options": dict(spec.options)})
    # -P: a file that happens to lie in the current folder is no module.
    command = [sys.executable, "-P", "-m", "plait.serve.engine_process", path, str(os.getpid()), words]
    # A group of its own: Ctrl-C on the terminal means the server, which then drains.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_environment(), process_group=0)


def _environment() -> dict[str, str]:
    """This process's, with a path to this very plait where it is not installed."""
    home, environment = Path(__file__).absolute().parents[2], dict(os.environ)
    if home.name not in ("site-packages", "dist-packages"):
        others = filter(None, [environment.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join([str(home), *others])
    return environment


async def _accept(listener: socket.socket, process: subprocess.Popen[bytes]) -> socket.socket | None:
    """The process's connection, or None when it ends without one."""
    loop, has_come = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, has_come.set)
    try:
        while not has_come.is_set() and process.poll() is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(has_come.wait(), _POLL_S)
        # Also after its end: it may have come, said why it cannot go on, and ended between two looks.
        return listener.accept()[0]
    except BlockingIOError:
        return None
    finally:
        loop.remove_reader(listener)


async def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Wait for a process that has been hung up on; kill it when its time is over, or when this is cancelled."""
    try:
        deadline = asyncio.get_running_loop().time() + grace_s
        while process.poll() is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(_KILLED_S)


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
