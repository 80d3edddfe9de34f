"""Random draws: counter-based, so that element i of a draw depends on the key and the counter only.

Source: Philox, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), as NumPy's bit generator has it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from plait.framework.config import config
from plait.framework.conversion import from_numpy
from plait.framework.dtype import as_dtype, default_float
from plait.framework.tensor import Tensor

Shape = int | Sequence[int]


class Generator:
    """A stream of draws with a key. Equal seeds give equal streams."""

    def __init__(self, seed: int | None = None) -> None:
        self._lock = threading.Lock()
        self._draws = np.random.Generator(np.random.Philox(seed))

    def uniform(self, shape: Shape = (), low: float = 0.0, high: float = 1.0, *, dtype: Any = None) -> Tensor:
        """Values in [low, high)."""
        with self._lock:
            values = self._draws.random(shape, np.float32)
        return self._as(values * np.float32(high - low) + np.float32(low), dtype)

    def normal(self, shape: Shape = (), mean: float = 0.0, std: float = 1.0, *, dtype: Any = None) -> Tensor:
        """Normally distributed values."""
        with self._lock:
            values = self._draws.standard_normal(shape, np.float32)
        return self._as(values * np.float32(std) + np.float32(mean), dtype)

    def integers(self, low: int, high: int, shape: Shape = (), *, dtype: Any = "int64") -> Tensor:
        """Integers in [low, high)."""
        with self._lock:
            values = self._draws.integers(low, high, shape)
        return self._as(values, dtype)

    def _as(self, values: Any, dtype: Any) -> Tensor:
        kind = as_dtype(dtype) if dtype is not None else default_float
        return from_numpy(np.asarray(values)).astype(kind)


_default = Generator(config.seed)


def set_seed(seed: int) -> None:
    """Restart the default generator."""
    global _default
    _default = Generator(seed)


def uniform(shape: Shape = (), low: float = 0.0, high: float = 1.0, *, dtype: Any = None) -> Tensor:
    """Values in [low, high) from the default generator."""
    return _default.uniform(shape, low, high, dtype=dtype)


def normal(shape: Shape = (), mean: float = 0.0, std: float = 1.0, *, dtype: Any = None) -> Tensor:
    """Normally distributed values from the default generator."""
    return _default.normal(shape, mean, std, dtype=dtype)


def integers(low: int, high: int, shape: Shape = (), *, dtype: Any = "int64") -> Tensor:
    """Integers in [low, high) from the default generator."""
    return _default.integers(low, high, shape, dtype=dtype)
