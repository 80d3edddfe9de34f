"""The engine process: loads and compiles a model, then steps it and answers over one Unix socket until that closes.

Started by the bridge as `python -m plait.serve.engine_process SOCKET PARENT_PID SPEC`. Knows token ids, neither text
nor HTTP. It never outlives its parent and never waits for it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from plait.framework.errors import FormatError, PlaitError, RequestError
from plait.pipelines.engine import EngineCore, Event, Request
from plait.serve.frames import (
    DOWN,
    Abort,
    Down,
    Failed,
    FrameReader,
    Message,
    ModelInfo,
    Progress,
    Ready,
    Refused,
    Step,
    Submit,
    TokenEvent,
    encode,
)

_RECEIVE_BYTES = 1 << 18
_WATCH_MS = 250


class Channel:
    """The engine's end of the socket. Sending never waits: what does not fit is kept.

    What is kept is bounded by the requests that the bridge admitted: a peer that does not read submits nothing new.
    """

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self.is_open = True
        self._peer, self._reader, self._unsent = peer, FrameReader(DOWN), bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(peer, selectors.EVENT_READ)

    def send(self, message: Message) -> None:
        self._unsent += encode(message)
        self._flush()

    def poll(self, timeout_s: float | None) -> list[Down]:
        """What has come; waits for something when there is nothing. None: without end.

        Raises: FormatError when what came is no message.
        """
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._peer).events != wanted:
            self._selector.modify(self._peer, wanted)
        events = self._selector.select(timeout_s)
        self._flush()
        return self._receive() if any(mask & selectors.EVENT_READ for _, mask in events) else []

    def drain(self, timeout_s: float) -> None:
        """Give the peer some time to take what is unsent."""
        self._peer.settimeout(timeout_s)
        try:
            self._peer.sendall(self._unsent)
        except OSError:
            self.is_open = False

    def close(self) -> None:
        self.is_open = False
        self._selector.close()
        self._peer.close()

    def _flush(self) -> None:
        try:
            while self._unsent and self.is_open:
                del self._unsent[: self._peer.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.is_open = False

    def _receive(self) -> list[Down]:
        try:
            data = self._peer.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        self.is_open = self.is_open and bool(data)
        return list(self._reader.feed(data))


class EngineLoop:
    """Steps a core for as long as its channel is open, and takes messages between steps."""

    def __init__(self, core: EngineCore, channel: Channel) -> None:
        self.core, self.channel = core, channel
        self._dropped: list[int] = []
        self._num_reported = 0

    def run(self) -> None:
        """Raises: FormatError when the peer sends what is no message."""
        while self.channel.is_open:
            self.turn()

    def turn(self) -> None:
        """Take what has come, waiting for it when there is nothing to compute; then one step, and what it gave."""
        for message in self.channel.poll(0 if self.core.has_work else None):
            _HANDLERS[type(message)](self, message)
        events = self._step() if self.core.has_work else []
        if events or self._dropped or self._num_reported != len(self.core.scheduler.running):
            self._report(events)

    def submit(self, message: Submit) -> None:
        try:
            self.core.add(Request(str(message.number), message.prompt, message.params))
        except RequestError as error:
            self._refuse(message.number, error)

    def abort(self, message: Abort) -> None:
        # Whether it still was here or not: the bridge holds its place until it hears this.
        self.core.abort(str(message.number))
        self._dropped.append(message.number)

    def _step(self) -> list[Event]:
        """One step. An error that plait raises on purpose ends the requests of that step; any other one the process."""
        try:
            return self.core.step()
        except PlaitError as error:
            print(f"plait: engine: a step failed: {error}", file=sys.stderr, flush=True)
            refusal = RequestError(f"engine: the step failed: {error}", status=500)
            for sequence in list(self.core.scheduler.running):
                self.core.abort(sequence.request_id)
                self._refuse(int(sequence.request_id), refusal)
            return []

    def _refuse(self, number: int, error: RequestError) -> None:
        self.channel.send(Refused(number, str(error), error.status, error.param, error.code))

    def _report(self, events: list[Event]) -> None:
        tokens = [TokenEvent(int(event.request_id), event.token, event.finish_reason) for event in events]
        self._num_reported = len(self.core.scheduler.running)
        self.channel.send(Step(tokens, self._dropped, self._num_reported))
        self._dropped = []


_HANDLERS: dict[type[Down], Callable[[EngineLoop, Any], None]] = {Submit: EngineLoop.submit, Abort: EngineLoop.abort}


def main(socket_path: str, parent_pid: int, model: str, options: Mapping[str, Any]) -> int:
    """Serve one model to whoever listens at `socket_path`; return the exit code."""
    # The parent decides when this ends: Ctrl-C and a supervisor's SIGTERM reach every process, and it has to drain.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        try:
            peer.connect(socket_path)
        except OSError:
            _remove_folder(socket_path)
            return 1
        threading.Thread(target=_watch, args=(peer, parent_pid), daemon=True).start()
        channel = Channel(peer)
        try:
            core = _load(channel, model, options)
            if core is None:
                return 1
            EngineLoop(core, channel).run()
        except FormatError as error:
            print(f"plait: engine: {error}", file=sys.stderr, flush=True)
            return 1
        finally:
            channel.close()
    return 0


def _remove_folder(socket_path: str) -> None:
    """Tidy up for a parent that was killed while this process started: nobody listens, so nobody else will."""
    with suppress(OSError):
        os.unlink(socket_path)
        os.rmdir(os.path.dirname(socket_path))


def _watch(peer: socket.socket, parent_pid: int) -> None:
    """End the process with its parent, or when the parent hangs up, whatever else goes on: compiling takes a while."""
    poll = select.poll()
    poll.register(peer, 0)  # nothing but hang-ups
    while os.getppid() == parent_pid and not poll.poll(_WATCH_MS):
        pass
    os._exit(0)


def _load(channel: Channel, model: str, options: Mapping[str, Any]) -> EngineCore | None:
    """The core of a model, or None when that fails for a reason that will not go away."""
    from plait.pipelines.core import build_core, options_from  # after the connection: this loads the compiler

    def note(stage: str, done: int, total: int) -> None:
        channel.send(Progress(stage, done, total))

    try:
        core = build_core(model, options_from(options), note)
    except (PlaitError, OSError, TypeError, MemoryError) as error:
        channel.send(Failed(type(error).__name__, str(error)))
        channel.drain(1.0)
        return None
    info = ModelInfo(core.max_length, core.runner.vocab_size, core.scheduler.max_batch_size)
    channel.send(Ready(info))
    return core


if __name__ == "__main__":
    spec = json.loads(sys.argv[3])
    sys.exit(main(sys.argv[1], int(sys.argv[2]), spec["model"], spec["options"]))
