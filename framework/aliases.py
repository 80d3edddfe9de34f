"""NumPy's other names for functions that have one already, and functions that are another with fixed arguments."""

from __future__ import annotations

from typing import Any

from plait.framework import elementary as el
from plait.framework import functional as f
from plait.framework import linalg as la
from plait.framework import manipulation as mp
from plait.framework.conversion import asarray
from plait.framework.creation import window
from plait.framework.tensor import Tensor

absolute = f.abs
amax, amin = f.max, f.min
arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh = f.acos, f.acosh, f.asin, f.asinh, f.atan, f.atan2, f.atanh
around = f.round
bitwise_not = invert = el.bitwise_invert
left_shift, right_shift = el.bitwise_left_shift, el.bitwise_right_shift
concatenate = f.concat
conjugate = el.conj
degrees, radians = el.rad2deg, el.deg2rad
mod = f.remainder
power = f.pow
true_divide = f.divide
permute = f.permute_dims


def array(data: Any, dtype: Any = None, *, copy: bool = True) -> Tensor:
    """A tensor that holds a copy of the data."""
    return asarray(data, dtype=dtype, copy=copy or None)


def copy(x: Any) -> Tensor:
    """The same values in fresh memory."""
    return asarray(x, copy=True)


def asanyarray(data: Any, dtype: Any = None) -> Tensor:
    """A tensor, sharing memory where possible."""
    return asarray(data, dtype=dtype)


def ascontiguousarray(data: Any, dtype: Any = None) -> Tensor:
    """A tensor of the data in C order."""
    return asarray(data, dtype=dtype).copy()


def ndim(x: Any) -> int:
    """The number of axes."""
    return asarray(x).ndim


def shape(x: Any) -> tuple[int, ...]:
    """The sizes of the axes."""
    sizes: tuple[int, ...] = asarray(x).shape
    return sizes


def size(x: Any, axis: int | None = None) -> int:
    """The number of elements, or the size of an axis."""
    tensor = asarray(x)
    return tensor.size if axis is None else int(tensor.shape[axis])


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    """The sum of the diagonal of two axes."""
    return mp.diagonal(x, offset, axis1, axis2).sum(-1, dtype)


def outer(a: Any, b: Any) -> Tensor:
    """All products of the elements of two flattened arrays."""
    return la.outer(asarray(a).reshape(-1), asarray(b).reshape(-1))


def cross(a: Any, b: Any, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along an axis."""
    return la.cross(a, b, axis=axis)


def tensordot(a: Any, b: Any, axes: Any = 2) -> Tensor:
    """Sums of products over the last axes of a and the first of b, or over listed pairs of axes."""
    return la.tensordot(a, b, axes=axes)


def bartlett(n: int) -> Tensor:
    """The triangular window of n samples that ends in zeros."""
    return window("bartlett", n)


def blackman(n: int) -> Tensor:
    """The Blackman window of n samples."""
    return window("blackman", n)


def hamming(n: int) -> Tensor:
    """The Hamming window of n samples."""
    return window("hamming", n)


def hanning(n: int) -> Tensor:
    """The Hann window of n samples."""
    return window("hanning", n)
