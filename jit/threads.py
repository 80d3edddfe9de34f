"""How many threads this process may use: the setting, else CPU affinity and the cgroup's quota."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

from plait.framework.config import config
from plait.framework.errors import ConfigError

MAX_THREADS = 1024


def default_threads() -> int:
    """PLAIT_THREADS when set, else min(CPUs of this process, its quota rounded up).

    Raises: ConfigError for a setting outside 1..1024.
    """
    if config.threads == 0:
        return _available()
    if not 1 <= config.threads <= MAX_THREADS:
        raise ConfigError(f"threads: {config.threads} is not possible; expected 1 to {MAX_THREADS}. Set PLAIT_THREADS.")
    return config.threads


@cache
def _available() -> int:
    """Asked for at every launch, read once: affinity and quota are those the process started with."""
    return max(1, min(usable_cpus(), quota_cpus() or MAX_THREADS, MAX_THREADS))


def usable_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_cpus(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """CPUs' worth of time the control groups allow, rounded up; None without a limit.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max), and cpu.cfs_quota_us of version 1.
    """
    limits = [limit for folder in _groups(root, membership) if (limit := _limit(folder)) is not None]
    return max(1, math.ceil(min(limits))) if limits else None


def _groups(root: Path, membership: Path) -> list[Path]:
    """This process's group and every group above it: the tightest limit holds."""
    folders = [root, root / "cpu"]
    for line in _read(membership).splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        base = root if not controllers else root / "cpu" if "cpu" in controllers.split(",") else None
        if base is not None:
            parts = [part for part in path.split("/") if part not in ("", "..")]
            folders += [base.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    return folders


def _limit(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    try:
        quota, period = float(words[0]), float(words[1])
    except (ValueError, IndexError):
        return None  # "max": no limit
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
