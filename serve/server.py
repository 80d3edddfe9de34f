"""One server from its socket to its exit code: listen at once, start the engine, serve, drain.

Sanic's own runner is not used: it tears down in an order that cuts streams, and a second signal hangs it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from plait.pipelines.builtin import open_model
from plait.pipelines.tokenizer import Tokenizer
from plait.serve.answer import TextSide
from plait.serve.app import Serving, create_app
from plait.serve.bridge import Engine, EngineSpec
from plait.serve.listener import BACKLOG, address
from plait.serve.settings import ServeSettings

log = logging.getLogger("plait.serve")

ENGINE_GRACE_S = 5.0
CUT_GRACE_S = 1.0  # what a cut request gets to send its error
EXIT_FORCED = 130


def run(settings: ServeSettings, listener: socket.socket) -> int:
    """Serve until a signal or the engine's end; return the exit code: 0 drained, 1 engine failed, 130 forced.

    Raises: PlaitError when the model cannot be loaded.
    """
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Server(settings, listener).run())


class _Server:
    def __init__(self, settings: ServeSettings, listener: socket.socket) -> None:
        self.settings, self.listener = settings, listener
        self.start = time.perf_counter()
        spec = EngineSpec(model=settings.model, options=dict(settings.options), max_queue_size=settings.max_queue_size)
        self.engine = Engine(spec)
        self.app = create_app(settings, self.engine)
        self.serving: Serving = self.app.ctx.serving
        self.stopping, self.forced = asyncio.Event(), asyncio.Event()

    async def run(self) -> int:
        with self._signals():
            http = await self._listen()
            try:
                code = await _first(self._load_and_watch(), _value_after(self.stopping, 0))
                await self._drain(http)
                return EXIT_FORCED if self.forced.is_set() else code
            finally:
                await self._stop(http)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        """The first signal drains, the second ends at once."""
        if self.stopping.is_set():
            log.warning("%s again: not waiting for %d requests", number.name, len(self.serving.active))
            self.forced.set()
            return
        self.serving.draining = True
        log.info(
            "%s: draining %d requests, for at most %g s; once more to end now",
            number.name,
            len(self.serving.active),
            self.settings.drain_timeout_s,
        )
        self.stopping.set()

    async def _listen(self) -> Any:
        # NOTE: before the listener, or a connection that waits already meets a router that is not built.
        application: Any = self.app
        await application._startup()
        http: Any = await application.create_server(sock=self.listener, backlog=BACKLOG, return_asyncio_server=True)
        self._phase("listening on %s", address(self.listener))
        return http

    async def _load_and_watch(self) -> int:
        """Bring the engine up and stay until it has failed for good; its exit code."""
        await self.engine.start()
        self._phase("engine process started")
        loading = asyncio.create_task(self.engine.wait_ready())
        reporting = asyncio.create_task(self._report_progress())
        try:
            tokenizer = await asyncio.to_thread(_load_tokenizer, self.settings.model)
            self._phase("tokenizer loaded, %d tokens", tokenizer.vocab_size)
            await loading
        finally:
            await _cancel(reporting, loading)
        self.serving.text = TextSide(tokenizer)
        self._announce()
        await self.engine.wait_failed()
        log.error("the engine died again; giving up")
        return 1

    async def _report_progress(self) -> None:
        said = ""
        while True:
            stage = self.engine.progress.partition(" ")[0]
            if stage and stage != said:
                said = stage
                self._phase("%s ...", stage)
            await asyncio.sleep(0.05)

    def _announce(self) -> None:
        info = self.engine.info
        assert info is not None
        # What start-up has made stays; collections need not look at it while tokens pass.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)  # a token makes a handful of objects that reference counts free
        self._phase(
            "ready: %s, context %d, batch %d, queue %d",
            self.settings.served_name,
            info.max_length,
            info.max_batch_size,
            self.settings.max_queue_size,
        )
        url = f"http://{address(self.listener)}"
        print(f"Server ready on {url}\n  {curl_line(url, self.settings)}", flush=True)

    async def _drain(self, http: Any) -> None:
        """Let the running requests finish, then cut the rest; new ones are refused meanwhile."""
        self.serving.draining = True
        left = asyncio.wait_for(self.serving.idle.wait(), self.settings.drain_timeout_s)
        try:
            await _first(left, self.forced.wait())
        except TimeoutError:
            log.warning("drain timeout: cutting %d requests", len(self.serving.active))
        if self.serving.active and not self.forced.is_set():
            self.serving.cut()
            await asyncio.wait([asyncio.create_task(self.serving.idle.wait())], timeout=CUT_GRACE_S)

    async def _stop(self, http: Any) -> None:
        http.server.close()
        # A response that is complete may still be on its way out of the buffer: close, and abort only the rest.
        for connection in list(http.connections):
            connection.close_if_idle()
        if not self.forced.is_set():
            await _until(lambda: not http.connections, CUT_GRACE_S)
        for connection in list(http.connections):
            connection.abort()
        await self.engine.stop(0 if self.forced.is_set() else ENGINE_GRACE_S)
        self._phase("stopped")

    def _phase(self, what: str, *values: object) -> None:
        log.info(f"%7.2f s  {what}", time.perf_counter() - self.start, *values)


def _load_tokenizer(model: str) -> Tokenizer:
    return Tokenizer.from_gguf(open_model(model).metadata)


async def _first(*waits: Coroutine[Any, Any, Any]) -> Any:
    """The result of whichever ends first; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        await _cancel(*tasks)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _value_after(event: asyncio.Event, value: int) -> int:
    await event.wait()
    return value


async def _until(is_true: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def curl_line(url: str, settings: ServeSettings) -> str:
    """A command to try the server with."""
    key = "-H 'Authorization: Bearer ...' " if settings.api_keys else ""
    body = f'{{"model": "{settings.served_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{body}'"


def log_to_stderr() -> None:
    """One line for each thing that happens."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    plait_log = logging.getLogger("plait")
    plait_log.addHandler(handler)
    plait_log.setLevel(logging.INFO)
    logging.getLogger("sanic").setLevel(logging.ERROR)
