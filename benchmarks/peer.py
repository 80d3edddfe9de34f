"""A peer in its own environment: a worker script that answers one JSON line per round.

Knows how to find, start, ask and stop it. A peer that is not there is one sentence, never an error.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START_TIMEOUT_S = 120.0


class PeerMissing(Exception):
    """Why a peer cannot be measured, in one line."""


def peers_folder() -> Path:
    """Return the folder of the peers' environments: $PEERS, else .peers beside the sources."""
    return Path(os.environ.get("PEERS") or HERE.parent / ".peers").absolute()


class Peer:
    """One running worker: `environment` names its venv, `script` the worker in benchmarks/peers."""

    def __init__(self, environment: str, script: str, arguments: Sequence[str]) -> None:
        self.name = environment
        python = peers_folder() / environment / "bin" / "python"
        if not python.exists():
            raise PeerMissing(f"{environment}: no environment at {python.parent.parent}; `make peers` builds it")
        self.process = subprocess.Popen(
            [str(python), str(HERE / "peers" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")},
        )
        self.description = self._answer()

    def ask(self, line: str) -> dict[str, Any]:
        """Run one round and return what the worker measured."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            words = self.process.communicate()[1].strip().splitlines() or ["no message"]
            raise PeerMissing(f"{self.name}: its worker ended with status {self.process.returncode}: {words[-1]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let the worker end by itself: its input ends."""
        self.process.communicate()
