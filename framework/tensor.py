"""Tensor: a view of a versioned storage. Operations record; values appear when somebody looks.

A fresh result is its own storage. A view keeps its parent and the movement row that made it, and derives its record
from the parent's current version, so a write through any view is seen by all. A storage that the outside shares
(NumPy, DLPack) is exposed: whatever reads it runs before the call returns, and writes to it happen at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from plait.framework import indexing, printing
from plait.framework.buffer import Buffer, from_array
from plait.framework.device import CPU, Device, as_device
from plait.framework.dim import Dim, Size, product
from plait.framework.dtype import (
    DType,
    accumulator,
    as_dtype,
    default_float,
    default_int,
    promote,
    scalar_dtype,
)
from plait.framework.errors import DTypeError, IndexingError, ShapeError
from plait.framework.graph import SYMBOLIC, Node, const, realized
from plait.framework.op import Attrs, Op, Shape, Spec
from plait.framework.ops import elementwise as e
from plait.framework.ops import movement as m
from plait.framework.ops import product as p
from plait.framework.ops import reduce as r
from plait.framework.realize import MAX_DEPTH, realize_nodes

Array = np.ndarray[Any, Any]
Axis = int | Sequence[int] | None
Scalar = bool | int | float | complex


MAX_VIEWS = 64  # a chain of so many views is replaced by one


class Storage:
    """Memory with versions. `version` is the record of its current contents."""

    __slots__ = ("version", "exposed")

    def __init__(self, version: Node) -> None:
        self.version = version
        self.exposed = False


class Tensor:
    """An n-dimensional array. Behaves as NumPy's; computes when a value is observed.

    Example:
        >>> import plait as pl
        >>> (pl.arange(3) * 2).numpy().tolist()
        [0, 2, 4]
    """

    __slots__ = (
        "_node",
        "_storage",
        "_parent",
        "_row",
        "_attrs",
        "_offset",
        "_strides",
        "_level",
        "shape",
        "dtype",
        "__weakref__",
    )
    __array_ufunc__ = None
    __hash__ = object.__hash__

    _node: Node | None
    _storage: Storage | None
    _parent: Tensor | None
    _row: Op
    _attrs: Attrs
    _offset: Size
    _strides: tuple[Size, ...]
    shape: Any  # tuple of int; entries are Dims only while a function is traced
    dtype: DType

    def __new__(cls, data: Any, dtype: Any = None, device: Device | str | None = None) -> Tensor:
        return asarray(data, dtype=dtype, device=device, copy=True)

    # Records

    @classmethod
    def _of(cls, node: Node) -> Tensor:
        """The tensor whose value is a record's."""
        self = object.__new__(cls)
        self._node = node
        self._storage = None
        self._parent = None
        self.shape = node.shape
        self.dtype = node.dtype
        return self

    def _view(self, op: Op, attrs: Attrs, shape: Shape, offset: Size, strides: tuple[Size, ...]) -> Tensor:
        view = object.__new__(Tensor)
        view._node = None
        view._storage = None
        view._parent = self
        view._row, view._attrs = op, attrs
        view._offset, view._strides = offset, strides
        view.shape = shape
        view.dtype = self.dtype
        view._level = 1 if self._parent is None else self._level + 1
        if view._level > MAX_VIEWS:
            view._shorten()
        return view

    def _shorten(self) -> None:
        """Hang a view at the end of a long chain on the storage itself, unless it must stay read-only or symbolic."""
        root = self
        while root._parent is not None:
            root = root._parent
        if not self._is_broadcast() and root.node().depth < SYMBOLIC:
            self._parent, self._level = root, 1
            self._row, self._attrs = m.AS_STRIDED, (self._offset, self.shape, self._strides)

    def node(self) -> Node:
        """The record of the current value."""
        if self._parent is not None:
            parent = self._parent.node()
            return Node(self._row, (parent,), self._attrs, self.shape, self.dtype, None, parent.depth)
        if self._storage is not None:
            return self._storage.version
        assert self._node is not None
        return self._node

    def _root(self) -> Storage:
        tensor = self
        while tensor._parent is not None:
            tensor = tensor._parent
        if tensor._storage is None:
            assert tensor._node is not None
            tensor._storage = Storage(tensor._node)
            tensor._node = None
        return tensor._storage

    def _layout(self) -> tuple[Size, tuple[Size, ...]]:
        """Element offset and strides within the storage."""
        if self._parent is None:
            return 0, indexing.c_strides(self.shape)
        return self._offset, self._strides

    def _is_exposed(self) -> bool:
        if self._parent is None:
            return self._storage is not None and self._storage.exposed
        return self._root().exposed

    def _replace(self, version: Node) -> None:
        """Make a record the storage's next version."""
        self._root().version = version

    # Values

    def realize(self) -> Tensor:
        """Compute the value now."""
        root = self._root().version if self._parent is not None else self.node()
        realize_nodes([root])
        return self

    def numpy(self) -> Array:
        """The value as a NumPy array that shares memory: writes on either side are seen by the other."""
        storage = self._root()
        _expose(storage)
        flat = storage.version.array()
        if self._parent is None:
            return flat
        offset, strides = self._layout()
        view = m.strided(flat, offset, self.shape, strides)  # type: ignore[arg-type]
        if self._is_broadcast():
            view.flags.writeable = False
        return view

    def _is_broadcast(self) -> bool:
        tensor: Tensor | None = self
        while tensor is not None and tensor._parent is not None:
            if tensor._row is m.EXPAND:
                return True
            tensor = tensor._parent
        return False

    def _host(self) -> Array:
        """The value for reading only, without exposing the storage."""
        node = self._root().version
        realize_nodes([node])
        if self._parent is None:
            return node.array()
        offset, strides = self._layout()
        return m.strided(node.array(), offset, self.shape, strides)  # type: ignore[arg-type]

    def item(self) -> Any:
        """The only element as a Python scalar.

        Raises: ShapeError unless there is exactly one element.
        """
        if self.size != 1:
            raise ShapeError(f"item: shape {self.shape} holds {self.size} elements; item needs exactly one.")
        return self._host().reshape(-1)[0].item()

    def tolist(self) -> Any:
        """Nested lists of Python scalars."""
        return self._host().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = np.array(self._host()) if copy else self.numpy()
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ValueError(f"__array__: {self.dtype.name} as {dtype} needs a copy, and copy=False forbids it.")
        return array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __bool__(self) -> bool:
        return bool(self._single("bool"))

    def __int__(self) -> int:
        return int(self._single("int"))

    def __float__(self) -> float:
        return float(self._single("float"))

    def __complex__(self) -> complex:
        return complex(self._single("complex"))

    def __index__(self) -> int:
        if not self.dtype.is_integral:
            raise DTypeError(f"index: a {self.dtype.name} tensor is no integer; convert it with astype.")
        return int(self._single("index"))

    def _single(self, where: str) -> Any:
        if self.size != 1:
            raise ShapeError(f"{where}: shape {self.shape} holds {self.size} elements; a scalar needs exactly one.")
        return self.item()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (np.array(self._host()).tobytes(), self.dtype.name, self.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.copy()

    def __repr__(self) -> str:
        return printing.text(self, "Tensor")

    def __str__(self) -> str:
        return printing.text(self, "")

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    # Shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return product(self.shape)  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> Device:
        return CPU

    @property
    def T(self) -> Tensor:
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        if self.ndim < 2:
            raise ShapeError(f"mT: shape {self.shape} has fewer than two axes; reshape it to at least 2-D.")
        return self.transpose(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: a 0-d tensor has no length; use size.")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in C order under another shape; one size may be -1. A view where strides allow it."""
        new = resolve_shape(self.shape, _flat_args(shape))
        if new == self.shape:
            new = self.shape
        offset, strides = self._layout()
        moved = indexing.reshape_strides(self.shape, strides, new)
        if moved is None:
            return record(m.RESHAPE, (self,), (new,))
        return self._view(m.RESHAPE, (new,), new, offset, moved)

    def transpose(self, *axes: Any) -> Tensor:
        """Permute the axes; without arguments reverse them. A view."""
        order = _flat_args(axes) or tuple(reversed(range(self.ndim)))
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

    # Values changed or converted

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

    def fill(self, value: Scalar) -> None:
        """Set every element."""
        self[...] = value

    # Indexing

    def __getitem__(self, key: Any) -> Tensor:
        if not indexing.is_basic(key):
            return _fancy_get(self, key)
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
        shown = indexing.reshape_strides(index.sliced, moved, index.result)
        assert shown is not None, "dropping and adding size-1 axes never copies"
        return view._view(m.RESHAPE, (index.result,), index.result, offset, shown)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not indexing.is_basic(key):
            _fancy_set(self, key, value)
        else:
            self._basic_view(key)._write(value)

    def _write(self, value: Any) -> None:
        if self._is_broadcast():
            raise ValueError(f"write: a broadcast view of shape {self.shape} is read-only; copy() it first.")
        source = _assigned(_as_operand(value, self.dtype), self.dtype)
        if source.shape != self.shape:
            source = _drop_leading_ones(source, self.ndim).broadcast_to(self.shape)
        offset, strides = self._layout()
        _write_node(self, m.WRITE, (source,), (offset, self.shape, strides))

    # Operators

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
        return matmul(_as_operand(other, self.dtype), self)

    def __neg__(self) -> Tensor:
        return record(e.NEG, (self,))

    def __pos__(self) -> Tensor:
        return self.copy()

    def __abs__(self) -> Tensor:
        return record(e.ABS, (self,))

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
        if _CATEGORY[result.dtype.kind] > _CATEGORY[self.dtype.kind]:
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

    # Reductions

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


_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3, "s": 4}


def record(op: Op, tensors: tuple[Tensor, ...], attrs: Attrs = ()) -> Tensor:
    """Record one row. The only door through which results are made. Shape and dtype errors are raised here."""
    nodes = tuple(tensor.node() for tensor in tensors)
    spec = op.infer(op, tuple([Spec(node.shape, node.dtype) for node in nodes]), attrs)
    depth = 1
    exposed = False
    for tensor, node in zip(tensors, nodes, strict=True):
        if node.depth >= depth:
            depth = node.depth + 1
        exposed = exposed or tensor._is_exposed()
    result = Node(op, nodes, attrs, spec.shape, spec.dtype, None, depth)
    node = result  # the loop's last operand is no holder
    if (exposed or depth > MAX_DEPTH) and depth < SYMBOLIC:
        realize_nodes([result])
    return Tensor._of(result)


def constant(value: Scalar, dtype: DType) -> Tensor:
    """A scalar operand. Its value is an argument of the kernels that read it.

    Raises: DTypeError for an integer outside the dtype.
    """
    if dtype.is_integral and type(value) is int:
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= value <= limits.max:
            raise OverflowError(
                f"scalar: {value} does not fit {dtype.name} ({limits.min} to {limits.max}); use a wider dtype."
            )
    return Tensor._of(const(value, dtype))


def _as_operand(value: Any, beside: DType | None) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Scalar) and not isinstance(value, np.generic):
        return constant(value, scalar_dtype(value, beside))
    if isinstance(value, Dim):
        raise TypeError(
            f"operand: the symbolic size {value} cannot be used as a value here; it is known only at the call."
        )
    return asarray(value)


def operands(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands of one dtype: scalars are weak, arrays are promoted."""
    left = _as_operand(a, b.dtype if isinstance(b, Tensor) else None)
    right = _as_operand(b, left.dtype)
    if left.dtype is right.dtype:
        return left, right
    common = promote(left.dtype, right.dtype)
    return left.astype(common, copy=False), right.astype(common, copy=False)


def binary(op: Op, a: Any, b: Any, inexact: bool = False) -> Tensor:
    """Record a row of two operands; `inexact` rows turn integers into the default float first."""
    left, right = operands(a, b)
    if inexact and left.dtype.kind in "biu":
        left, right = left.astype(default_float), right.astype(default_float)
    return record(op, (left, right))


_LOGICAL = {e.BIT_AND: e.LOGICAL_AND, e.BIT_OR: e.LOGICAL_OR, e.BIT_XOR: e.LOGICAL_XOR}


def bitwise(op: Op, a: Any, b: Any) -> Tensor:
    """Record a bitwise row; on bool the logical row of the same name."""
    left, right = operands(a, b)
    return record(_LOGICAL[op] if left.dtype.kind == "b" else op, (left, right))


def unary(op: Op, x: Any) -> Tensor:
    """Record a row of one operand; a float-only row turns integers into the default float first."""
    tensor = _as_operand(x, None)
    if tensor.dtype.kind in "biu" and op not in _INTEGER_UNARY:
        tensor = tensor.astype(default_float)
    return record(op, (tensor,))


_INTEGER_UNARY = {e.NEG, e.ABS, e.SIGN, e.BIT_NOT, e.LOGICAL_NOT, e.COPY}


def matmul(a: Any, b: Any) -> Tensor:
    """The matrix product, with NumPy's rules for one-dimensional operands.

    Raises: ShapeError with both shapes.
    """
    left, right = operands(a, b)
    if not left.shape or not right.shape:
        raise ShapeError(f"matmul: shapes {left.shape} and {right.shape}; a 0-d operand has no product, use *.")
    drop = [axis for axis, x in ((-2, left), (-1, right)) if x.ndim == 1]
    first = left.expand_dims(0) if left.ndim == 1 else left
    second = right.expand_dims(1) if right.ndim == 1 else right
    if first.shape[-1] != second.shape[-2]:
        raise ShapeError(
            f"matmul: shapes {left.shape} and {right.shape} do not fit; the last axis of the first ({first.shape[-1]}) "
            f"must equal the {'only' if right.ndim == 1 else 'second-to-last'} axis of the second ({second.shape[-2]})."
        )
    result = record(p.MATMUL, (first, second))
    return result.squeeze(tuple(drop)) if drop else result


def reduce(op: Op, x: Tensor, axis: Axis, keepdims: bool, dtype: Any = None) -> Tensor:
    """Record a reduction. Sums of integers and bools accumulate in the default integer, 16-bit floats in float32."""
    axes = normalize_axes(op.name, axis, x.ndim)
    target = as_dtype(dtype) if dtype is not None else _reduced_dtype(op, x.dtype)
    inside = accumulator(target)
    result = record(op, (x.astype(inside, copy=False),), (axes, bool(keepdims)))
    if inside is not target and op in _LIMITS and any(isinstance(x.shape[i], int) and x.shape[i] == 0 for i in axes):
        return constant(r.limit(target, _LIMITS[op]), target).broadcast_to(result.shape).copy()  # not float32's limit
    return result.astype(target, copy=False)


_LIMITS = {r.MAX: "min", r.MIN: "max"}


def _reduced_dtype(op: Op, dtype: DType) -> DType:
    if op in (r.ANY, r.ALL):
        return as_dtype("bool")
    if op in (r.SUM, r.PROD) and dtype.kind in "biu":
        return as_dtype("uint64") if dtype.kind == "u" else default_int
    return dtype


def arg_reduce(op: Op, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    """Record argmax or argmin; axis None works on the flattened array."""
    if axis is None:
        flat = arg_reduce(op, x.reshape(-1), 0, False)
        return flat.reshape((1,) * x.ndim) if keepdims else flat
    axes = normalize_axes(op.name, axis, x.ndim)
    return record(op, (x.astype(accumulator(x.dtype), copy=False),), (axes, bool(keepdims)))


def normalize_axes(where: str, axis: Axis, rank: int) -> tuple[int, ...]:
    """Axes as non-negative, distinct ints; None is all of them.

    Raises: IndexingError for an axis outside the rank, ShapeError for one named twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    for index in given:
        if not -rank <= index < rank:
            raise IndexingError(f"{where}: axis {index} for an array of rank {rank}; expected {-rank} to {rank - 1}.")
    axes = tuple(index % rank for index in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{where}: axes {given} name one axis twice; name each axis once.")
    return axes


def resolve_shape(old: Shape, new: tuple[Any, ...]) -> Shape:
    """A requested shape with its -1 filled in.

    Raises: ShapeError when the element counts differ or cannot be inferred.
    """
    total = product(old)
    known = product(tuple(size for size in new if not (isinstance(size, int) and size == -1)))
    holes = sum(isinstance(size, int) and size == -1 for size in new)
    if holes > 1 or any(isinstance(size, int) and size < -1 for size in new):
        raise ShapeError(f"reshape: {new} for shape {old}; at most one size may be -1, the others are 0 or more.")
    if holes and known == 0:
        raise ShapeError(f"reshape: {new} for shape {old}; a -1 beside a 0 cannot be inferred.")
    if holes:
        fill = total // known
        if fill * known != total:
            raise ShapeError(f"reshape: {old} has {total} elements; {new} needs a multiple of {known}.")
        return tuple(fill if isinstance(size, int) and size == -1 else size for size in new)
    if known != total:
        raise ShapeError(f"reshape: {old} has {total} elements; {new} has {known}.")
    return tuple(new)


def _flat_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(args) == 1 and isinstance(args[0], Sequence):
        args = tuple(args[0])
    return tuple(arg if isinstance(arg, Dim) else arg.__index__() for arg in args if arg is not None)


def _assigned(source: Tensor, dtype: DType) -> Tensor:
    """A value as the dtype it is stored in."""
    if source.dtype.kind == "c" and dtype.kind != "c":
        raise DTypeError(f"write: a complex value does not fit {dtype.name}; take real or imag parts, or use astype.")
    return source.astype(dtype, copy=False)


def _drop_leading_ones(source: Tensor, rank: int) -> Tensor:
    """NumPy's assignment ignores extra leading axes of size 1."""
    extra = source.ndim - rank
    if extra > 0 and all(size == 1 for size in source.shape[:extra]):
        return source.reshape(source.shape[extra:])
    return source


def _expose(storage: Storage) -> None:
    """Share a storage with the outside. Pending records that read its version keep their own copy of the values.

    Holders that do not count: `storage.version`, the local `node` and the argument of getrefcount.
    """
    node = storage.version
    if not storage.exposed:
        realize_nodes([node])
        buffer = node.buffer
        assert buffer is not None
        if sys.getrefcount(node) > 3 or not buffer.writable and node.op.family != "leaf":
            storage.version = realized(buffer.copy(), node.shape, node.dtype)  # type: ignore[arg-type]
        storage.exposed = True


class _Tracing(threading.local):
    """Storages that a function being traced wrote symbolic values into, with their versions before, on this thread."""

    writes: list[tuple[Storage, Node]] | None = None


tracing = _Tracing()


def _write_node(target: Tensor, op: Op, values: tuple[Tensor, ...], attrs: Attrs) -> None:
    storage = target._root()
    nodes = tuple(value.node() for value in values)
    depth = max([storage.version.depth, *(node.depth for node in nodes)]) + 1
    if storage.exposed and depth < SYMBOLIC:
        _write_now(storage, op, values, attrs)
        return
    base = storage.version
    if depth >= SYMBOLIC and tracing.writes is not None:
        tracing.writes.append((storage, base))
    storage.version = Node(op, (base, *nodes), attrs, base.shape, base.dtype, None, depth)
    shared = any([value._is_exposed() for value in values])  # what is written could change before it is read
    if (shared or depth > MAX_DEPTH) and depth < SYMBOLIC:
        del base, nodes
        realize_nodes([storage.version])


def _write_now(storage: Storage, op: Op, values: tuple[Tensor, ...], attrs: Attrs) -> None:
    """Write to shared memory at once. NumPy's assignment copes with a value that overlaps its target."""
    node = storage.version
    assert node.buffer is not None
    if not node.buffer.writable:
        raise ValueError("write: the tensor shares read-only memory; copy() it first.")
    hosts = [_current(value) for value in values]
    op.numpy(node.array(), *hosts, attrs=attrs, spec=node.spec)


def _current(value: Tensor) -> Array:
    """A value's array, overlapping memory included. Scalars need no kernel."""
    node = value.node()
    if value._parent is None and node.op.name == "const":
        return np.asarray(node.attrs[0]).astype(value.dtype.numpy)
    if value._parent is not None and value._root().version.op.name == "const":
        return np.broadcast_to(np.asarray(value._root().version.attrs[0]).astype(value.dtype.numpy), value.shape)
    return value._host()


def _fancy_parts(x: Tensor, key: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
    """An index with arrays: a template whose "array" entries stand for the returned index tensors, all checked."""
    template: list[Any] = []
    arrays: list[Tensor] = []
    for entry in key if isinstance(key, tuple) else (key,):
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            template.append(entry)
            continue
        index = (
            entry
            if isinstance(entry, Tensor)
            else asarray(np.asarray(entry, dtype=np.int64 if _is_empty(entry) else None))
        )
        if index.dtype.kind not in "biu":
            raise IndexingError(
                f"index: a {index.dtype.name} array; expected integers or bools. Convert it with astype."
            )
        template.append("array")
        arrays.append(index)
    return tuple(template), arrays


def _is_empty(entry: Any) -> bool:
    return isinstance(entry, list | tuple) and not entry


def _fancy_get(x: Tensor, key: Any) -> Tensor:
    template, arrays = _fancy_parts(x, key)
    hosts = tuple(array._host() for array in arrays)
    probe = np.broadcast_to(np.empty((), np.bool_), x.shape)
    try:
        shape = probe[m._fancy_key(template, hosts)].shape
    except IndexError as error:
        raise IndexingError(f"index: shape {x.shape}: {error}.") from None
    return record(m.FANCY_GET, (x, *arrays), (template, shape))


def _fancy_set(x: Tensor, key: Any, value: Any) -> None:
    template, arrays = _fancy_parts(x, key)
    hosts = tuple(array._host() for array in arrays)
    probe = np.broadcast_to(np.empty((), np.bool_), x.shape)
    try:
        shape = probe[m._fancy_key(template, hosts)].shape
    except IndexError as error:
        raise IndexingError(f"index: shape {x.shape}: {error}.") from None
    if x._is_broadcast():
        raise ValueError(f"write: a broadcast view of shape {x.shape} is read-only; copy() it first.")
    source = _assigned(_as_operand(value, x.dtype), x.dtype)
    e.broadcast_shapes("index assignment", (_drop_leading_ones(source, len(shape)).shape, shape))
    offset, strides = x._layout()
    _write_node(x, m.FANCY_SET, (source, *arrays), (offset, x.shape, strides, template))


def _rebuild(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return asarray(np.frombuffer(data, as_dtype(dtype).numpy).reshape(shape), copy=True)


def from_numpy(array: Array) -> Tensor:
    """A tensor that shares a NumPy array's memory where it can: both sides see each other's writes.

    A non-contiguous array is shared through its base's strides when it has one in C order; otherwise it is copied.
    """
    if not array.flags.c_contiguous or not array.flags.aligned or not array.dtype.isnative:
        if array.flags.f_contiguous and array.flags.aligned and array.dtype.isnative:
            return from_numpy(array.T).transpose()
        return _share_strided(array)
    dtype = as_dtype(array.dtype)
    tensor = Tensor._of(realized(Buffer.borrow(array), array.shape, dtype))
    tensor._root().exposed = True
    return tensor


def _share_strided(array: Array) -> Tensor:
    base = array.base
    fits = isinstance(base, np.ndarray) and base.dtype == array.dtype and base.flags.c_contiguous and base.flags.aligned
    if not fits or not array.dtype.isnative or not array.size:
        return from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    assert isinstance(base, np.ndarray)
    root = from_numpy(base)
    item = array.itemsize
    strides = tuple(stride // item for stride in array.strides)
    offset = (array.ctypes.data - base.ctypes.data) // item
    if any(stride % item for stride in array.strides) or 0 in strides:
        return from_numpy(np.array(array, order="C"))
    return root._view(m.AS_STRIDED, (offset, array.shape, strides), array.shape, offset, strides)


def asarray(data: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of nested sequences, scalars, NumPy arrays, DLPack arrays or tensors.

    Python floats give float32, ints int64. `copy=None` shares memory where possible, False insists on it.

    Raises: ShapeError for ragged nesting, DTypeError for objects that are no numbers.
    """
    as_device(device)
    target = None if dtype is None else as_dtype(dtype)
    if isinstance(data, Tensor):
        tensor = data
    elif isinstance(data, np.ndarray | np.generic):
        private = copy or isinstance(data, np.generic)
        tensor = _private(data) if private else from_numpy(data)  # type: ignore[arg-type]
    elif hasattr(data, "__dlpack__"):
        shared = np.from_dlpack(data)
        tensor = _private(shared) if copy else from_numpy(shared)
    else:
        return _from_python(data, target)
    if target is not None and target is not tensor.dtype:
        if copy is False:
            raise ValueError(f"asarray: {tensor.dtype.name} to {target.name} needs a copy, and copy=False forbids it.")
        return tensor.astype(target)
    return tensor.copy() if copy and isinstance(data, Tensor) else tensor


def _private(array: Array | np.generic) -> Tensor:
    """A tensor that holds a copy of an array in memory nobody else sees."""
    dtype = as_dtype(array.dtype)
    return Tensor._of(realized(from_array(np.asarray(array), dtype), array.shape, dtype))


def _from_python(data: Any, target: DType | None) -> Tensor:
    data = _plain(data)
    try:
        array = np.array(data)
    except ValueError as error:
        raise ShapeError(f"asarray: nested sequences are ragged ({error}); give every row the same length.") from None
    except OverflowError as error:
        raise OverflowError(f"asarray: {error}; integers must fit int64 or uint64.") from None
    if array.dtype.kind not in "biufc":
        raise DTypeError(
            f"asarray: elements of type {_element_type(data)} are no numbers; expected bool, int, float, complex."
        )
    natural = {"f": default_float, "i": default_int, "b": as_dtype("bool"), "u": as_dtype("uint64")}
    dtype = target or (natural[array.dtype.kind] if array.dtype.kind in natural else as_dtype("complex64"))
    if not array.size and target is None:
        dtype = default_float
    if dtype.is_integral and array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype.numpy)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise OverflowError(
                f"asarray: values reach {array.min()} .. {array.max()}; {dtype.name} holds {limits.min} to "
                f"{limits.max}. Give a wider dtype."
            )
    return Tensor._of(realized(from_array(e.convert(array, dtype), dtype), array.shape, dtype))


def _plain(data: Any) -> Any:
    """Tensors inside nested sequences become NumPy scalars and arrays."""
    if isinstance(data, list | tuple):
        return [_plain(item) for item in data]
    return data._host() if isinstance(data, Tensor) else data


def _element_type(data: Any) -> str:
    while isinstance(data, list) and data:
        data = data[0]
    return type(data).__name__
