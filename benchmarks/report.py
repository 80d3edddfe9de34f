"""Rows, tables, alternating rounds and the two probes of the machine. Knows no benchmark by name."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROUNDS = 5
# A peer's threads may spin for 200 ms after their work; the other side must not pay for that.
SETTLE_S = 0.3
# One token of SmolLM2-135M reads this much: the probe sees the same caches as the model does.
READ_PROBE_BYTES = 96_400_000
GEMM_PROBE_EXTENT = 1024

Side = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is plait's speed over the peer's: above 1 plait is faster, whatever the unit."""

    name: str
    plait: float
    peer: float | None
    ratio: float | None
    unit: str
    peer_name: str
    goal: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """A goal counts only against the fastest build of the peer: any note on the row keeps it from counting."""
        if self.ratio is None or self.note:
            return self.note or "not measured"
        if self.goal is None:
            return ""
        return f"goal {self.goal:g}x: {'met' if self.ratio >= self.goal else 'missed'}"


def rate_row(name: str, plait: float, peer: float | None, unit: str, peer_name: str, **more: object) -> Row:
    """Compare two rates, of which the larger is better."""
    ratio = plait / peer if peer else None
    return Row(name, plait, peer, ratio, unit, peer_name, **more)  # type: ignore[arg-type]


def time_row(name: str, plait: float, peer: float | None, unit: str, peer_name: str, **more: object) -> Row:
    """Compare two times, of which the smaller is better."""
    ratio = peer / plait if peer else None
    return Row(name, plait, peer, ratio, unit, peer_name, **more)  # type: ignore[arg-type]


def alternate(sides: Sequence[Side], rounds: int = ROUNDS) -> list[float]:
    """Measure the sides in turn, so that a change of the machine's mood meets all of them; return each one's median.

    Each side runs once before it counts.
    """
    for side in sides:
        side()
    samples: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, samples, strict=True):
            time.sleep(SETTLE_S)
            found.append(side())
    return [statistics.median(found) for found in samples]


def num_threads() -> int:
    """Return the cores that this process may use; every side gets as many threads."""
    return len(os.sched_getaffinity(0))


def print_rows(title: str, rows: Sequence[Row], lines: Sequence[str] = ()) -> None:
    """Print a table with what there is to know about the sides above it."""
    print(f"\n{title}")
    for line in lines:
        print(f"  {line}")
    print(f"  {'':<30}{'plait':>12}{'peer':>12}{'ratio':>8}  {'unit':<7}{'peer':<11}")
    for row in rows:
        peer = "-" if row.peer is None else f"{row.peer:.1f}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        print(f"  {row.name:<30}{row.plait:>12.1f}{peer:>12}{ratio:>8}  {row.unit:<7}{row.peer_name:<11}{row.verdict}")


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as a JSON list, in one piece or not at all."""
    records = [{**vars(row), "verdict": row.verdict} for row in rows]
    with tempfile.NamedTemporaryFile("w", dir=path.absolute().parent, suffix=".tmp", delete=False) as file:
        json.dump(records, file, indent=1)
    os.replace(file.name, path)


def read_probe() -> float:
    """Return GB/s of reading a model-sized buffer with every thread, at its best: what a decode step can reach."""
    words = np.ones(READ_PROBE_BYTES // 8, dtype=np.int64)
    parts = np.array_split(words, num_threads())
    with ThreadPoolExecutor(len(parts)) as threads:
        seconds = _best(lambda: list(threads.map(np.add.reduce, parts)))
    return words.nbytes / seconds / 1e9


def gemm_probe() -> float:
    """Return GFLOP/s of NumPy's float32 matrix product, at its best."""
    n = GEMM_PROBE_EXTENT
    a = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
    return 2 * n**3 / _best(lambda: a @ a) / 1e9


def _best(work: Callable[[], object], rounds: int = 12) -> float:
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def print_probes() -> None:
    """Print the two figures that say how fast the machine is at the moment."""
    print(
        f"machine: {num_threads()} threads, load {os.getloadavg()[0]:.1f}; "
        f"read probe {read_probe():.1f} GB/s over {READ_PROBE_BYTES / 1e6:.0f} MB; "
        f"GEMM probe {gemm_probe():.0f} GFLOP/s, NumPy float32 {GEMM_PROBE_EXTENT}^3"
    )
