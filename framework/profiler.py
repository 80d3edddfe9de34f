"""Where the time goes: everything that runs inside `trace(path)`, as a Chrome trace. Knows spans, not who reports them.

Open the file in Perfetto or chrome://tracing. Outside `trace` whoever could report tests one flag.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from pathlib import Path
from typing import Any

from plait.framework.config import config
from plait.framework.errors import ConfigError

clock = time.perf_counter  # what starts are measured with


class _Recorder:
    """The spans of one trace, from every thread."""

    def __init__(self) -> None:
        self.start = clock()
        self.events: list[dict[str, Any]] = []  # appending is atomic
        self.threads: dict[int, str] = {}

    def add(self, kind: str, name: str, start: float, seconds: float, about: dict[str, Any]) -> None:
        thread = threading.get_native_id()
        self.threads.setdefault(thread, threading.current_thread().name)
        event = {"ph": "X", "cat": kind, "name": name, "pid": os.getpid(), "tid": thread}
        self.events.append(event | {"ts": (start - self.start) * 1e6, "dur": seconds * 1e6, "args": about})

    def document(self) -> dict[str, Any]:
        names = [
            {"ph": "M", "name": "thread_name", "pid": os.getpid(), "tid": thread, "args": {"name": name}}
            for thread, name in self.threads.items()
        ]
        spans = sorted(self.events, key=lambda event: (event["tid"], event["ts"], -event["dur"]))
        return {"displayTimeUnit": "ms", "traceEvents": [*names, *spans]}


_active: _Recorder | None = None
_lock = threading.Lock()


def add(kind: str, name: str, start: float, seconds: float, /, **about: Any) -> None:
    """Report one span: kind is kernel, host, compile, graph, realize, engine or scope; start is read from `clock`."""
    recorder = _active
    if recorder is not None:
        recorder.add(kind, name, start, seconds, about)


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write what runs inside the block as Chrome-trace JSON: kernels, host calls, compiles, realize, engine steps.

    Launches of compiled graphs run one by one for it. The file is written at the end, also after an error.

    Raises: ConfigError when a trace is under way; FileNotFoundError at the start when the folder is not there.
    """
    target = Path(path).absolute()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"trace: the folder of {target} does not exist; create it first.")
    recorder = _begin(target)
    try:
        yield
    finally:
        _end()
        _write(target, json.dumps(recorder.document()))


def _begin(target: Path) -> _Recorder:
    global _active
    with _lock:
        if _active is not None:
            raise ConfigError(
                f"trace: {target} is to begin while another runs; expected one at a time. End that first."
            )
        _active = _Recorder()
        config.measured = True
        return _active


def _end() -> None:
    global _active
    with _lock:
        _active = None
        config.measured = False


def _write(target: Path, text: str) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


class _Scope(ContextDecorator):
    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self.starts: list[float] = []

    def _recreate_cm(self) -> _Scope:  # a decorated function may run on several threads
        return _Scope(self.kind, self.name)

    def __enter__(self) -> _Scope:
        self.starts.append(clock())
        return self

    def __exit__(self, *_: object) -> None:
        start = self.starts.pop()
        if _active is not None:
            add(self.kind, self.name, start, clock() - start)


def profile_scope(name: str, kind: str = "scope") -> _Scope:
    """Name a stretch of code in the trace: `with profile_scope("layer 3"): ...`, or as a decorator."""
    return _Scope(kind, name)
