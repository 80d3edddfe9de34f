"""Pages of the key-value cache: who has which, and how many there are. Never looks into one."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plait.framework.conversion import from_numpy
from plait.framework.errors import ConfigError
from plait.framework.tensor import Tensor
from plait.nn.kv_cache import CacheParams

MEMORY_SHARE = 0.25  # of the smaller of the cgroup's limit and the free memory
_CGROUPS = Path("/sys/fs/cgroup")
_MEMINFO = "/proc/meminfo"
_UNKNOWN_BYTES = 4 << 30  # taken where the system does not tell


class PagePool:
    """Pages by number. The page given back last is dealt out first, so little memory is ever touched."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._taken = bytearray(num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def can_allocate(self, count: int) -> bool:
        """Whether so many pages are free."""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take pages."""
        assert self.can_allocate(count), f"{count} pages asked, {self.num_free} free"
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._taken[page] = 1
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back."""
        for page in reversed(pages):
            assert self._taken[page], f"page {page} is free already"
            self._taken[page] = 0
            self._free.append(page)


def page_table(tables: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The pages of several sequences as one array, short rows filled with page 0. Shapes: -> (S, P) int32."""
    width = max(map(len, tables), default=0)
    table = np.zeros((len(tables), width), np.int32)
    for row, pages in zip(table, tables, strict=True):
        row[: len(pages)] = pages
    return table


def num_pages_for(params: CacheParams, max_batch_size: int, max_length: int, memory_bytes: int) -> int:
    """Pages of the pool: enough for a full batch of full length, or what a share of the memory holds.

    Raises: ConfigError when not even one sequence of `max_length` fits; the message has both numbers.
    """
    per_sequence = -(-max_length // params.page_size)
    affordable = int(memory_bytes * MEMORY_SHARE) // params.page_bytes
    if affordable < per_sequence:
        raise ConfigError(
            f"max_length: {max_length} tokens need {per_sequence * params.page_bytes >> 20} MiB of cache; a quarter of "
            f"the memory here is {int(memory_bytes * MEMORY_SHARE) >> 20} MiB. give a max_length of at most "
            f"{affordable * params.page_size}."
        )
    return min(max_batch_size * per_sequence, affordable)


def create_cache(params: CacheParams, num_pages: int) -> Tensor:
    """The cache tensor in fresh memory that the system maps as pages are first written."""
    shape = params.shape(num_pages)
    memory = mmap.mmap(-1, num_pages * params.page_bytes)
    return from_numpy(np.frombuffer(memory, np.float32).reshape(shape))


def memory_bytes() -> int:
    """The smaller of the cgroup's memory limit and the memory that is free now."""
    limits = [_read_int(path) for path in _limit_files()]
    return min(value for value in (*limits, _free_memory()) if value is not None)


def _limit_files() -> list[Path]:
    """Where the limits of this process's group and of every group above it stand, in both versions of cgroups."""
    files = [_CGROUPS / "memory.max", _CGROUPS / "memory/memory.limit_in_bytes"]
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            parts = [part for part in line[3:].split("/") if part not in ("", "..")]
            files += [_CGROUPS.joinpath(*parts[: n + 1], "memory.max") for n in range(len(parts))]
    return files


def _read_int(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _free_memory() -> int:
    fields = dict(line.split(":", 1) for line in _read(_MEMINFO).splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else _UNKNOWN_BYTES
