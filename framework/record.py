"""Recording: the only door through which results are made. Shape and dtype errors are raised here, at the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from plait.framework.conversion import asarray
from plait.framework.dim import Dim
from plait.framework.dtype import (
    DType,
    accumulator,
    as_dtype,
    default_float,
    default_int,
    promote,
    scalar_dtype,
)
from plait.framework.errors import ShapeError
from plait.framework.graph import SYMBOLIC, Node, const
from plait.framework.indexing import Axis, normalize_axes
from plait.framework.op import Attrs, Op, Spec
from plait.framework.ops import elementwise as e
from plait.framework.ops import product as p
from plait.framework.ops import reduce as r
from plait.framework.realize import MAX_DEPTH, realize_nodes
from plait.framework.storage import is_tensor, wrap

if TYPE_CHECKING:
    from plait.framework.tensor import Tensor

Array = np.ndarray[Any, Any]
Scalar = bool | int | float | complex


def record(op: Op, tensors: tuple[Tensor, ...], attrs: Attrs = ()) -> Tensor:
    """Record one row. The only door through which results are made. Shape and dtype errors are raised here."""
    nodes = tuple([tensor.node() for tensor in tensors])
    spec = op.infer(op, cast(tuple[Spec, ...], nodes), attrs)  # a node has a spec's shape and dtype
    depth = 1
    exposed = False
    for tensor in tensors:
        storage = tensor._storage if tensor._parent is None else tensor._root()
        if storage is not None and storage.exposed:
            exposed = True
    for node in nodes:
        if node.depth >= depth:
            depth = node.depth + 1
    result = Node(op, nodes, attrs, spec.shape, spec.dtype, None, depth)
    node = result  # the loop's last operand is no holder
    if (exposed or depth > MAX_DEPTH) and depth < SYMBOLIC:
        realize_nodes([result])
    return wrap(result)


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
    return wrap(const(value, dtype))


def as_operand(value: Any, beside: DType | None) -> Tensor:
    if is_tensor(value):
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
    if is_tensor(a) and is_tensor(b) and a.dtype is b.dtype:
        return a, b
    left = as_operand(a, b.dtype if is_tensor(b) else None)
    right = as_operand(b, left.dtype)
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
    tensor = as_operand(x, None)
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
