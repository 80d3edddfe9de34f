"""Runs `plait serve` as its users do, and looks at its processes from outside: who lives, what is open, what was said.

Linux only where it reads /proc. Every wait has a bound.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
MARK = "SERVER_PROCESS_MARK"
HOST = "127.0.0.1"
WAIT_S = 10.0  # what any condition gets on a busy machine; nothing here is expected to need a tenth of it


def eventually(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    """Return the condition's first true value; fail when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
    return value


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """One `plait serve`. As a context manager it leaves no process behind, whatever happened."""

    def __init__(
        self, *flags: str, model: str = "echo?delay_ms=10", key: str | None = None, is_awaited: bool = True
    ) -> None:
        self.port, self.mark = free_port(), uuid.uuid4().hex
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.folder = tempfile.TemporaryDirectory(prefix="plait-server-")
        self.log_path = Path(self.folder.name, "log")
        command: list[str] = [sys.executable, "-m", "plait", "serve", model, "--port", str(self.port), *flags]
        if setpriv := shutil.which("setpriv"):  # so that tests that are killed leave no server either
            command = [setpriv, "--pdeathsig", "KILL", *command]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", MARK: self.mark}
        with self.log_path.open("wb") as log:
            # A session of its own, so that a signal to the group reaches the server and not the tests.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        if is_awaited:
            self.wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in (self.process.pid, *self.pids()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(WAIT_S)
        eventually(lambda: not self.pids(), f"the end of processes {self.pids()}")
        self.folder.cleanup()

    # Processes

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def pids(self) -> list[int]:
        """Every living process that comes from this server, orphans too."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._is_ours(entry)]

    def _is_ours(self, entry: Path) -> bool:
        try:
            return f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, a zombie, or somebody else's
            return False

    def engine_pid(self) -> int | None:
        """The child that runs the model: of the children the one with the most memory, which loaded the compiler."""
        children = [pid for pid in self.pids() if pid != self.pid]
        return max(children, key=_resident_pages) if children else None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def interrupt_group(self) -> None:
        """What Ctrl-C on a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    def exit_code(self, seconds: float = WAIT_S) -> int:
        """Wait for the end; fail with the log when it does not come."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server is still up after {seconds:g} s. its log:\n{self.log}") from None

    # HTTP

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log}"
            return self.status("/ready") == 200

        eventually(is_ready, "ready", 30)

    def connect(self, timeout: float = WAIT_S) -> HTTPConnection:
        return HTTPConnection(HOST, self.port, timeout=timeout)

    def status(self, path: str) -> int | None:
        """The status of a GET, or None when nobody answers."""
        connection = self.connect(2)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        connection = self.connect()
        connection.request("GET", path, headers=self.headers)
        try:
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def complete(self, prompt: str = "a", **fields: Any) -> tuple[int, Any, dict[str, str]]:
        """One whole completion: status, body, headers."""
        connection, response = self.open(prompt, **fields)
        try:
            return response.status, json.loads(response.read()), dict(response.headers)
        finally:
            connection.close()

    def open(self, prompt: str = "a", **fields: Any) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a completion request and wait for the head of its answer."""
        connection = self.connect()
        self.send(connection, prompt, **fields)
        return connection, connection.getresponse()

    def send(self, connection: HTTPConnection, prompt: str, **fields: Any) -> None:
        body = {"model": self.model, "prompt": prompt, "max_tokens": 16, "temperature": 0} | fields
        connection.request(
            "POST", "/v1/completions", json.dumps(body), self.headers | {"Content-Type": "application/json"}
        )

    @property
    def model(self) -> str:
        if not hasattr(self, "_model"):
            self._model: str = self.get("/v1/models")["data"][0]["id"]
        return self._model

    def stream(self, prompt: str = "a", **fields: Any) -> EventStream:
        """A streamed completion whose first text has arrived."""
        return EventStream(*self.open(prompt, stream=True, **fields))


class EventStream:
    """The events of one answer, read one at a time."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        assert response.status == 200, response.read()
        self.connection, self.response = connection, response
        self.text, self.error, self.is_done, self.finish_reason = "", None, False, None
        self._events = self._read()
        while not self.text:
            next(self._events)

    def _read(self) -> Iterator[dict[str, Any]]:
        for line in self.response:
            if line.startswith(b"data: [DONE]"):
                self.is_done = True
            elif line.startswith(b"data: "):
                yield self._take(json.loads(line[6:]))

    def _take(self, event: dict[str, Any]) -> dict[str, Any]:
        self.error = event.get("error", self.error)
        for choice in event.get("choices", []):
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        return event

    def next(self) -> dict[str, Any]:
        return next(self._events)

    def read_rest(self) -> Self:
        """Read until the server ends the answer, properly or by cutting the connection."""
        try:
            for _ in self._events:
                pass
        except (HTTPException, ConnectionError):
            pass
        self.close()
        return self

    def close(self) -> None:
        """Leave, as a client that is no longer interested does."""
        self.response.close()
        self.connection.close()


def counting(prompt: str, tokens: int) -> str:
    """What echo answers to a prompt that ends in an ordinary character."""
    return "".join(f" {(prompt.encode()[-1] + k) % 1000}" for k in range(tokens))


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
