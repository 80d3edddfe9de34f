"""Tensors from shapes and ranges."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from plait.framework.conversion import from_numpy
from plait.framework.device import as_device
from plait.framework.dim import Dim, Size
from plait.framework.dtype import as_dtype, default_float, default_int, scalar_dtype
from plait.framework.errors import ShapeError
from plait.framework.ops import elementwise as e
from plait.framework.ops import movement as m
from plait.framework.record import Scalar, constant, record
from plait.framework.tensor import Tensor

Shape = int | Sequence[Any]


def _shape(where: str, shape: Shape) -> tuple[Size, ...]:
    given = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    sizes = tuple(size if isinstance(size, Dim) else operator.index(size) for size in given)
    total = 1
    for size in sizes:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"{where}: shape {sizes} has a negative size; sizes are 0 or more.")
        total *= size if isinstance(size, int) else 1
    if total > 1 << 46:
        raise MemoryError(f"{where}: shape {sizes} has {total} elements; that does not fit in memory.")
    return sizes


def full(shape: Shape, value: Scalar, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor filled with one value."""
    as_device(device)
    kind = as_dtype(dtype) if dtype is not None else scalar_dtype(value, None)
    return constant(value, kind).broadcast_to(_shape("full", shape)).copy()


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of zeros, float32 by default."""
    return full(shape, 0, dtype=dtype or default_float, device=device)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ones, float32 by default."""
    return full(shape, 1, dtype=dtype or default_float, device=device)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor whose values do not matter; they are zeros."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Tensor, value: Scalar, *, dtype: Any = None) -> Tensor:
    """A filled tensor with the shape and dtype of another."""
    return full(x.shape, value, dtype=dtype or x.dtype)


def zeros_like(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Zeros with the shape and dtype of another tensor."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Ones with the shape and dtype of another tensor."""
    return full_like(x, 1, dtype=dtype)


def arange(
    start: float, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Evenly spaced values in [start, stop). Integers give int64, floats float32."""
    as_device(device)
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ShapeError(f"arange: a step of 0 from {start} to {stop}; use a step other than 0.")
    floating = any(isinstance(value, float) for value in (start, stop, step))
    kind = as_dtype(dtype) if dtype is not None else (default_float if floating else default_int)
    count = max(0, math.ceil((stop - start) / step))
    if kind.is_float or not floating:
        inside = kind if kind.kind in "iu" and start >= 0 and step > 0 else (default_int if kind.kind in "iu" else kind)
        steps = record(m.IOTA, (), (count, inside))
        if (start, step) == (0, 1):
            return steps.astype(kind, copy=False)
        if not kind.is_float:
            return (steps * step + start).astype(kind, copy=False)
    return from_numpy(np.arange(start, stop, step).astype(kind.numpy)).copy()


def linspace(start: float, stop: float, num: int, *, dtype: Any = None, endpoint: bool = True) -> Tensor:
    """`num` evenly spaced values from start to stop."""
    kind = as_dtype(dtype) if dtype is not None else default_float
    return from_numpy(np.linspace(start, stop, num, endpoint=endpoint).astype(kind.numpy)).copy()


def eye(rows: int, columns: int | None = None, *, k: int = 0, dtype: Any = None) -> Tensor:
    """Ones on the k-th diagonal."""
    i = arange(rows).expand_dims(1)
    j = arange(columns if columns is not None else rows).expand_dims(0)
    return (j - i == k).astype(dtype or default_float)


def tril(x: Tensor, k: int = 0) -> Tensor:
    """The lower triangle of the last two axes; zeros elsewhere."""
    return _triangle(x, k, lower=True)


def triu(x: Tensor, k: int = 0) -> Tensor:
    """The upper triangle of the last two axes; zeros elsewhere."""
    return _triangle(x, k, lower=False)


def _triangle(x: Tensor, k: int, lower: bool) -> Tensor:
    i = arange(x.shape[-2]).expand_dims(1)
    j = arange(x.shape[-1]).expand_dims(0)
    keep = j - i <= k if lower else j - i >= k
    shape = x.shape
    return record(e.SELECT, (keep.broadcast_to(shape), x, constant(0, x.dtype).broadcast_to(shape)))
