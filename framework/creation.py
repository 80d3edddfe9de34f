"""Tensors from shapes and ranges."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from plait.framework.conversion import asarray, from_numpy, private_copy
from plait.framework.device import as_device
from plait.framework.dim import Dim, Size
from plait.framework.dtype import as_dtype, default_complex, default_float, default_int, scalar_dtype
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


def full(shape: Shape, fill_value: Scalar, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor filled with one value."""
    as_device(device)
    kind = as_dtype(dtype) if dtype is not None else scalar_dtype(fill_value, None)
    return constant(fill_value, kind).broadcast_to(_shape("full", shape)).copy()


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of zeros, float32 by default."""
    return full(shape, 0, dtype=dtype or default_float, device=device)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ones, float32 by default."""
    return full(shape, 1, dtype=dtype or default_float, device=device)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor whose values do not matter; they are zeros."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Any, fill_value: Scalar, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A filled tensor with the shape and dtype of another."""
    like = asarray(x)
    return full(like.shape, fill_value, dtype=dtype or like.dtype, device=device)


def zeros_like(x: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros with the shape and dtype of another tensor."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones with the shape and dtype of another tensor."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor with the shape and dtype of another, whose values do not matter; they are zeros."""
    return zeros_like(x, dtype=dtype, device=device)


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


def linspace(
    start: complex, stop: complex, /, num: int = 50, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """`num` evenly spaced values from start to stop."""
    as_device(device)
    natural = default_complex if isinstance(start, complex) or isinstance(stop, complex) else default_float
    kind = as_dtype(dtype) if dtype is not None else natural
    return private_copy(e.convert(np.linspace(start, stop, num, endpoint=endpoint), kind))


def logspace(start: float, stop: float, num: int = 50, *, base: float = 10.0, dtype: Any = None) -> Tensor:
    """`num` values from base**start to base**stop, evenly spaced in their logarithm."""
    return private_copy(e.convert(np.logspace(start, stop, num, base=base), as_dtype(dtype or default_float)))


def geomspace(start: float, stop: float, num: int = 50, *, dtype: Any = None) -> Tensor:
    """`num` values from start to stop, each a constant multiple of the last."""
    return private_copy(e.convert(np.geomspace(start, stop, num), as_dtype(dtype or default_float)))


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on the k-th diagonal."""
    as_device(device)
    i = arange(n_rows).expand_dims(1)
    j = arange(n_cols if n_cols is not None else n_rows).expand_dims(0)
    off = max(-n_rows, min(k, int(j.shape[1])))  # a diagonal outside the matrix may have any number
    return (j - i == off).astype(dtype or default_float)


def identity(n: int, *, dtype: Any = None) -> Tensor:
    """A square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype)


def tri(n_rows: int, n_cols: int | None = None, k: int = 0, *, dtype: Any = None) -> Tensor:
    """Ones on and below the k-th diagonal."""
    return tril(ones((n_rows, n_rows if n_cols is None else n_cols), dtype=dtype), k=k)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, ...]:
    """The indices of a lower triangle."""
    return tuple(private_copy(part) for part in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, ...]:
    """The indices of an upper triangle."""
    return tuple(private_copy(part) for part in np.triu_indices(n, k, m))


def indices(shape: Sequence[int], *, dtype: Any = None) -> Tensor:
    """Each element's own index, one array per axis, stacked."""
    return private_copy(np.indices(tuple(shape)).astype(as_dtype(dtype or default_int).numpy))


def vander(x: Any, n: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of a vector's elements as columns, falling by default."""
    column = asarray(x).expand_dims(1)
    powers = arange(column.shape[0] if n is None else n)
    return column ** (powers if increasing else powers[::-1]).astype(column.dtype)


def fromfunction(function: Callable[..., Any], shape: Sequence[int], *, dtype: Any = None) -> Tensor:
    """A function of each axis's index arrays."""
    return asarray(function(*indices(shape, dtype=dtype or default_float)))


def fromiter(values: Iterable[Any], dtype: Any, count: int = -1) -> Tensor:
    """A vector of an iterator's values."""
    return private_copy(np.fromiter(values, as_dtype(dtype).numpy, count))


def window(name: str, n: int, *, dtype: Any = None) -> Tensor:
    """A window of n samples: "bartlett", "blackman", "hamming" or "hanning"."""
    if name not in ("bartlett", "blackman", "hamming", "hanning"):
        raise ValueError(f"window: {name!r}; expected 'bartlett', 'blackman', 'hamming' or 'hanning'.")
    return private_copy(getattr(np, name)(n).astype(as_dtype(dtype or default_float).numpy))


def tril(x: Any, k: int = 0) -> Tensor:
    """The lower triangle of the last two axes; zeros elsewhere."""
    return _triangle(asarray(x), k, lower=True)


def triu(x: Any, k: int = 0) -> Tensor:
    """The upper triangle of the last two axes; zeros elsewhere."""
    return _triangle(asarray(x), k, lower=False)


def _triangle(x: Tensor, k: int, lower: bool) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"triangle: shape {x.shape} has fewer than two axes; reshape it to at least 2-D.")
    i = arange(x.shape[-2]).expand_dims(1)
    j = arange(x.shape[-1]).expand_dims(0)
    keep = j - i <= k if lower else j - i >= k
    shape = x.shape
    return record(e.SELECT, (keep.broadcast_to(shape), x, constant(0, x.dtype).broadcast_to(shape)))
