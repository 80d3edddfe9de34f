"""Tensor: NumPy's methods and operators, one line each, over recording, writing and converting."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from plait.framework import indexing, printing
from plait.framework.conversion import asarray, rebuild
from plait.framework.device import Device, as_device
from plait.framework.dim import Dim, product
from plait.framework.dtype import (
    accumulator,
    as_dtype,
    default_float,
)
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.indexing import Axis, flat_args, normalize_axes, resolve_shape
from plait.framework.methods import Methods
from plait.framework.ops import elementwise as e
from plait.framework.ops import movement as m
from plait.framework.ops import numbers as n
from plait.framework.ops import reduce as r
from plait.framework.record import (
    arg_reduce,
    as_operand,
    binary,
    bitwise,
    matmul,
    record,
    reduce,
)
from plait.framework.storage import Stored
from plait.framework.strides import reshape_strides
from plait.framework.writes import assigned, drop_leading_ones, fancy_get, fancy_set, write_node

Array = np.ndarray[Any, Any]
Scalar = bool | int | float | complex

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3, "s": 4}


class Tensor(Methods):
    """An n-dimensional array. Behaves as NumPy's; computes when a value is observed.

    Example:
        >>> import plait as pl
        >>> (pl.arange(3) * 2).numpy().tolist()
        [0, 2, 4]
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __new__(cls, data: Any, dtype: Any = None, device: Device | str | None = None) -> Tensor:
        return asarray(data, dtype=dtype, device=device, copy=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (np.array(self._host()).tobytes(), self.dtype.name, self.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.copy()

    def __repr__(self) -> str:
        return printing.text(self, "Tensor")

    def __str__(self) -> str:
        return printing.text(self, "")

    @property
    def T(self) -> Tensor:
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        if self.ndim < 2:
            raise ShapeError(f"mT: shape {self.shape} has fewer than two axes; reshape it to at least 2-D.")
        return self.transpose(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    @property
    def real(self) -> Tensor:
        return record(n.REAL, (self,)) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Tensor:
        return record(n.IMAG, (self,)) if self.dtype.kind == "c" else self * 0

    def conj(self) -> Tensor:
        return record(n.CONJ, (self,)) if self.dtype.kind == "c" else self

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module with the functions on tensors.

        Raises: ValueError for a version of the standard that is not followed.
        """
        if api_version is not None and api_version not in API_VERSIONS:
            raise ValueError(f"__array_namespace__: version {api_version!r}; expected one of {API_VERSIONS}.")
        return importlib.import_module("plait")

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in C order under another shape; one size may be -1. A view where strides allow it."""
        new = resolve_shape(self.shape, flat_args(shape))
        offset, strides = self._layout()
        moved = reshape_strides(self.shape, strides, new)
        if moved is None:
            return record(m.RESHAPE, (self,), (new,))
        return self._view(m.RESHAPE, (new,), new, offset, moved)

    def transpose(self, *axes: Any) -> Tensor:
        """Permute the axes; without arguments reverse them. A view."""
        order = flat_args(axes) or tuple(reversed(range(self.ndim)))
        order = normalize_axes("transpose", order, self.ndim)
        if len(order) != self.ndim:
            raise ShapeError(f"transpose: axes {order} for shape {self.shape}; name each of the {self.ndim} axes once.")
        offset, strides = self._layout()
        shape = tuple(self.shape[axis] for axis in order)
        return self._view(m.PERMUTE, (order,), shape, offset, tuple(strides[axis] for axis in order))

    permute = transpose

    def broadcast_to(self, shape: Any) -> Tensor:
        """A read-only view with size-1 and missing leading axes repeated."""
        new = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        new = tuple([size if type(size) is int or isinstance(size, Dim) else size.__index__() for size in new])
        if e.broadcast_shapes("broadcast_to", (self.shape, new)) != new:
            raise ShapeError(f"broadcast_to: shape {self.shape} does not broadcast to {new}.")
        lead = len(new) - self.ndim
        source = self.reshape((1,) * lead + self.shape) if lead else self
        offset, strides = source._layout()
        kept = tuple(
            0 if old == 1 and size != 1 else stride
            for old, size, stride in zip(source.shape, new, strides, strict=True)
        )
        return source._view(m.EXPAND, (new,), new, offset, kept)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Drop axes of size 1: the named ones, or all."""
        axes = tuple(i for i, size in enumerate(self.shape) if size == 1)
        if axis is not None:
            axes = normalize_axes("squeeze", axis, self.ndim)
            if any(self.shape[i] != 1 for i in axes):
                raise ShapeError(f"squeeze: axes {axes} of shape {self.shape} are not all of size 1.")
        return self.reshape(tuple(size for i, size in enumerate(self.shape) if i not in axes))

    def expand_dims(self, axis: Axis = 0) -> Tensor:
        """Insert axes of size 1 at the given places of the result."""
        count = self.ndim + (1 if isinstance(axis, int) else len(axis or ()))
        axes = normalize_axes("expand_dims", axis, count)
        sizes = iter(self.shape)
        return self.reshape(tuple(1 if i in axes else next(sizes) for i in range(count)))

    def flatten(self) -> Tensor:
        """A one-dimensional copy."""
        return self.reshape(-1).copy()

    def ravel(self) -> Tensor:
        return self.reshape(-1)

    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """Convert. Float to integer truncates and saturates, NaN gives 0; narrowing floats rounds to nearest even."""
        target = as_dtype(dtype)
        if target is self.dtype:
            return self.copy() if copy else self
        return record(e.CAST, (self,), (target,))

    def copy(self) -> Tensor:
        """The same values in fresh memory."""
        return record(e.COPY, (self,))

    def to(self, device: Device | str) -> Tensor:
        """Move to a device; the same tensor when nothing moves."""
        as_device(device)
        return self

    def to_device(self, device: Device | str, /, *, stream: Any = None) -> Tensor:
        """Move to a device; the same tensor when nothing moves."""
        if stream is not None:
            raise ValueError(f"to_device: stream={stream!r}; the host has no streams, leave it out.")
        return self.to(device)

    def fill(self, value: Scalar) -> None:
        """Set every element."""
        self[...] = value

    def __getitem__(self, key: Any) -> Tensor:
        if not indexing.is_basic(key):
            return fancy_get(self, key)
        view = self._basic_view(key)
        entries = key if isinstance(key, tuple) else (key,)
        is_element = not view.shape and len(entries) == self.ndim and Ellipsis not in entries
        return view.copy() if is_element else view  # as NumPy: one element is a value, not a view

    def _basic_view(self, key: Any) -> Tensor:
        index = indexing.basic_index(key, self.shape)
        offset, strides = self._layout()
        for (start, _), stride in zip(index.starts_steps, strides, strict=True):
            offset = offset + start * stride
        moved = tuple(step * stride for (_, step), stride in zip(index.starts_steps, strides, strict=True))
        view = self._view(m.SLICE, (index.starts_steps, index.sliced), index.sliced, offset, moved)
        if index.result == index.sliced:
            return view
        shown = reshape_strides(index.sliced, moved, index.result)
        assert shown is not None, "dropping and adding size-1 axes never copies"
        return view._view(m.RESHAPE, (index.result,), index.result, offset, shown)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not indexing.is_basic(key):
            fancy_set(self, key, value)
        else:
            self._basic_view(key)._write(value)

    def _write(self, value: Any) -> None:
        if self._is_broadcast():
            raise ValueError(f"write: a broadcast view of shape {self.shape} is read-only; copy() it first.")
        source = assigned(as_operand(value, self.dtype), self.dtype)
        if source.shape != self.shape:
            source = drop_leading_ones(source, self.ndim).broadcast_to(self.shape)
        offset, strides = self._layout()
        write_node(self, m.WRITE, (source,), (offset, self.shape, strides))

    def __add__(self, other: Any) -> Tensor:
        return binary(e.ADD, self, other)

    def __radd__(self, other: Any) -> Tensor:
        return binary(e.ADD, other, self)

    def __sub__(self, other: Any) -> Tensor:
        return binary(e.SUB, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return binary(e.SUB, other, self)

    def __mul__(self, other: Any) -> Tensor:
        return binary(e.MUL, self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return binary(e.MUL, other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return binary(e.DIV, self, other, inexact=True)

    def __rtruediv__(self, other: Any) -> Tensor:
        return binary(e.DIV, other, self, inexact=True)

    def __floordiv__(self, other: Any) -> Tensor:
        return binary(e.FLOORDIV, self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return binary(e.FLOORDIV, other, self)

    def __mod__(self, other: Any) -> Tensor:
        return binary(e.MOD, self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return binary(e.MOD, other, self)

    def __pow__(self, other: Any) -> Tensor:
        return binary(e.POW, self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return binary(e.POW, other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __matmul__(self, other: Any) -> Tensor:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return matmul(as_operand(other, self.dtype), self)

    def __neg__(self) -> Tensor:
        return record(e.NEG, (self,))

    def __pos__(self) -> Tensor:
        return self.copy()

    def __abs__(self) -> Tensor:
        return record(n.MODULUS if self.dtype.kind == "c" else e.ABS, (self,))

    def __invert__(self) -> Tensor:
        return record(e.LOGICAL_NOT if self.dtype.kind == "b" else e.BIT_NOT, (self,))

    def __and__(self, other: Any) -> Tensor:
        return bitwise(e.BIT_AND, self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Tensor:
        return bitwise(e.BIT_OR, self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Tensor:
        return bitwise(e.BIT_XOR, self, other)

    __rxor__ = __xor__

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __lshift__(self, other: Any) -> Tensor:
        return binary(e.SHL, self, other)

    def __rshift__(self, other: Any) -> Tensor:
        return binary(e.SHR, self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return binary(e.SHL, other, self)

    def __rrshift__(self, other: Any) -> Tensor:
        return binary(e.SHR, other, self)

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        return binary(e.EQ, self, other)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        return binary(e.NE, self, other)

    def __lt__(self, other: Any) -> Tensor:
        return binary(e.LT, self, other)

    def __le__(self, other: Any) -> Tensor:
        return binary(e.LE, self, other)

    def __gt__(self, other: Any) -> Tensor:
        return binary(e.GT, self, other)

    def __ge__(self, other: Any) -> Tensor:
        return binary(e.GE, self, other)

    def _update(self, result: Tensor) -> Tensor:
        if result.shape != self.shape:
            raise ShapeError(
                f"in-place: the result has shape {result.shape}, the target {self.shape}; use out of place."
            )
        if CATEGORY[result.dtype.kind] > CATEGORY[self.dtype.kind]:
            raise DTypeError(
                f"in-place: a {result.dtype.name} result does not fit {self.dtype.name}; use out of place."
            )
        self._write(result)
        return self

    def __iadd__(self, other: Any) -> Tensor:
        return self._update(self + other)

    def __isub__(self, other: Any) -> Tensor:
        return self._update(self - other)

    def __imul__(self, other: Any) -> Tensor:
        return self._update(self * other)

    def __itruediv__(self, other: Any) -> Tensor:
        return self._update(self / other)

    def __ifloordiv__(self, other: Any) -> Tensor:
        return self._update(self // other)

    def __imod__(self, other: Any) -> Tensor:
        return self._update(self % other)

    def __ipow__(self, other: Any) -> Tensor:
        return self._update(self**other)

    def __iand__(self, other: Any) -> Tensor:
        return self._update(self & other)

    def __ior__(self, other: Any) -> Tensor:
        return self._update(self | other)

    def __ixor__(self, other: Any) -> Tensor:
        return self._update(self ^ other)

    def __ilshift__(self, other: Any) -> Tensor:
        return self._update(self << other)

    def __irshift__(self, other: Any) -> Tensor:
        return self._update(self >> other)

    def __imatmul__(self, other: Any) -> Tensor:
        return self._update(self @ other)

    def sum(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        return reduce(r.SUM, self, axis, keepdims, dtype)

    def prod(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        return reduce(r.PROD, self, axis, keepdims, dtype)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return reduce(r.MAX, self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return reduce(r.MIN, self, axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return reduce(r.ANY, self, axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return reduce(r.ALL, self, axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return arg_reduce(r.ARGMAX, self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return arg_reduce(r.ARGMIN, self, axis, keepdims)

    def mean(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        """The mean; of integers in the default float dtype. Over an empty axis NaN, 0 for an integer dtype."""
        axes = normalize_axes("mean", axis, self.ndim)
        count = product(tuple(self.shape[i] for i in axes))
        kind = self.dtype if self.dtype.kind in "fc" else default_float
        if dtype is not None and as_dtype(dtype).is_integral:
            return self.sum(axis, dtype, keepdims) // (count or 1)
        total = self.astype(accumulator(kind), copy=False).sum(axis, keepdims=keepdims) / count
        return total.astype(dtype or kind, copy=False)


Stored._tensor = Tensor
