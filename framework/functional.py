"""Functions on tensors: NumPy's names, and what transformers need. Each records rows; most compose a few."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from plait.framework.conversion import asarray
from plait.framework.device import as_device
from plait.framework.dim import product
from plait.framework.dtype import DType, accumulator, as_dtype, bool_, default_float, promote, scalar_dtype
from plait.framework.errors import DTypeError, IndexingError, ShapeError
from plait.framework.graph import SYMBOLIC
from plait.framework.indexing import Axis, normalize_axes
from plait.framework.op import Op
from plait.framework.ops import elementwise as e
from plait.framework.ops import movement as m
from plait.framework.ops import numbers as n
from plait.framework.ops import product as p
from plait.framework.ops import ragged
from plait.framework.ops import reduce as r
from plait.framework.record import as_operand, binary, bitwise, matmul, operands, record, unary
from plait.framework.storage import is_tensor
from plait.framework.tensor import Tensor
from plait.framework.writes import write_node


def abs(x: Any) -> Tensor:  # noqa: A001
    """Absolute value; the modulus of complex numbers."""
    operand = as_operand(x, None)
    return record(n.MODULUS, (operand,)) if operand.dtype.kind == "c" else unary(e.ABS, operand)


def negative(x: Any) -> Tensor:
    """-x."""
    return unary(e.NEG, x)


def sign(x: Any) -> Tensor:
    """-1, 0 or 1."""
    return unary(e.SIGN, x)


def exp(x: Any) -> Tensor:
    """e to the power x."""
    return unary(e.EXP, x)


def exp2(x: Any) -> Tensor:
    """2 to the power x."""
    return unary(e.EXP2, x)


def expm1(x: Any) -> Tensor:
    """exp(x) - 1, exact near 0."""
    return unary(e.EXPM1, x)


def log(x: Any) -> Tensor:
    """Natural logarithm."""
    return unary(e.LOG, x)


def log2(x: Any) -> Tensor:
    """Logarithm to base 2."""
    return unary(e.LOG2, x)


def log10(x: Any) -> Tensor:
    """Logarithm to base 10."""
    return unary(e.LOG10, x)


def log1p(x: Any) -> Tensor:
    """log(1 + x), exact near 0."""
    return unary(e.LOG1P, x)


def sqrt(x: Any) -> Tensor:
    """Square root."""
    return unary(e.SQRT, x)


def rsqrt(x: Any) -> Tensor:
    """1 / sqrt(x)."""
    return unary(e.RSQRT, x)


def reciprocal(x: Any) -> Tensor:
    """1 / x."""
    return unary(e.RECIPROCAL, x)


def square(x: Any) -> Tensor:
    """x * x."""
    operand = as_operand(x, None)
    return binary(e.MUL, operand, operand)


def sin(x: Any) -> Tensor:
    """Sine."""
    return unary(e.SIN, x)


def cos(x: Any) -> Tensor:
    """Cosine."""
    return unary(e.COS, x)


def tan(x: Any) -> Tensor:
    """Tangent."""
    return unary(e.TAN, x)


def asin(x: Any) -> Tensor:
    """Inverse sine."""
    return unary(e.ASIN, x)


def acos(x: Any) -> Tensor:
    """Inverse cosine."""
    return unary(e.ACOS, x)


def atan(x: Any) -> Tensor:
    """Inverse tangent."""
    return unary(e.ATAN, x)


def sinh(x: Any) -> Tensor:
    """Hyperbolic sine."""
    return unary(e.SINH, x)


def cosh(x: Any) -> Tensor:
    """Hyperbolic cosine."""
    return unary(e.COSH, x)


def tanh(x: Any) -> Tensor:
    """Hyperbolic tangent."""
    return unary(e.TANH, x)


def asinh(x: Any) -> Tensor:
    """Inverse hyperbolic sine."""
    return unary(e.ASINH, x)


def acosh(x: Any) -> Tensor:
    """Inverse hyperbolic cosine."""
    return unary(e.ACOSH, x)


def atanh(x: Any) -> Tensor:
    """Inverse hyperbolic tangent."""
    return unary(e.ATANH, x)


def erf(x: Any) -> Tensor:
    """The error function."""
    return unary(e.ERF, x)


def sigmoid(x: Any) -> Tensor:
    """1 / (1 + exp(-x))."""
    return unary(e.SIGMOID, x)


def floor(x: Any) -> Tensor:
    """Round towards minus infinity; integers stay as they are."""
    return _rounding(e.FLOOR, x)


def ceil(x: Any) -> Tensor:
    """Round towards infinity; integers stay as they are."""
    return _rounding(e.CEIL, x)


def trunc(x: Any) -> Tensor:
    """Round towards zero; integers stay as they are."""
    return _rounding(e.TRUNC, x)


def round(x: Any, decimals: int = 0) -> Tensor:  # noqa: A001
    """Round to a number of decimals, halves to even; integers stay as they are."""
    if decimals == 0:
        return _rounding(e.ROUND, x)
    operand, scale = as_operand(x, None), 10.0 ** builtins.abs(decimals)
    if operand.dtype.is_integral:
        return operand.copy() if decimals > 0 else (round(operand / scale) * scale).astype(operand.dtype)
    return round(operand * scale) / scale if decimals > 0 else round(operand / scale) * scale


def _rounding(op: Op, x: Any) -> Tensor:
    operand = as_operand(x, None)
    return operand.copy() if operand.dtype.is_integral else record(op, (operand,))


def isnan(x: Any) -> Tensor:
    """Where x is NaN."""
    return unary(e.ISNAN, x)


def isinf(x: Any) -> Tensor:
    """Where x is an infinity."""
    return unary(e.ISINF, x)


def isfinite(x: Any) -> Tensor:
    """Where x is neither NaN nor an infinity."""
    return unary(e.ISFINITE, x)


def add(a: Any, b: Any) -> Tensor:
    """a + b."""
    return binary(e.ADD, a, b)


def subtract(a: Any, b: Any) -> Tensor:
    """a - b."""
    return binary(e.SUB, a, b)


def multiply(a: Any, b: Any) -> Tensor:
    """a * b."""
    return binary(e.MUL, a, b)


def divide(a: Any, b: Any) -> Tensor:
    """a / b; integers give the default float."""
    return binary(e.DIV, a, b, inexact=True)


def floor_divide(a: Any, b: Any) -> Tensor:
    """floor(a / b); integers stay integers and x // 0 is 0."""
    return binary(e.FLOORDIV, a, b)


def remainder(a: Any, b: Any) -> Tensor:
    """a - floor(a / b) * b, with the divisor's sign; integer x % 0 is 0."""
    return binary(e.MOD, a, b)


def pow(a: Any, b: Any) -> Tensor:  # noqa: A001
    """a to the power b."""
    return binary(e.POW, a, b)


def maximum(a: Any, b: Any) -> Tensor:
    """The larger of each pair; NaN propagates."""
    return binary(e.MAXIMUM, a, b)


def minimum(a: Any, b: Any) -> Tensor:
    """The smaller of each pair; NaN propagates."""
    return binary(e.MINIMUM, a, b)


def atan2(a: Any, b: Any) -> Tensor:
    """The angle of the point (b, a)."""
    return binary(e.ATAN2, a, b, inexact=True)


def copysign(a: Any, b: Any) -> Tensor:
    """The magnitude of a with the sign of b."""
    return binary(e.COPYSIGN, a, b, inexact=True)


def equal(a: Any, b: Any) -> Tensor:
    """a == b."""
    return binary(e.EQ, a, b)


def not_equal(a: Any, b: Any) -> Tensor:
    """a != b."""
    return binary(e.NE, a, b)


def less(a: Any, b: Any) -> Tensor:
    """a < b; False beside NaN."""
    return binary(e.LT, a, b)


def less_equal(a: Any, b: Any) -> Tensor:
    """a <= b; False beside NaN."""
    return binary(e.LE, a, b)


def greater(a: Any, b: Any) -> Tensor:
    """a > b; False beside NaN."""
    return binary(e.GT, a, b)


def greater_equal(a: Any, b: Any) -> Tensor:
    """a >= b; False beside NaN."""
    return binary(e.GE, a, b)


def logical_and(a: Any, b: Any) -> Tensor:
    """Both are true."""
    return _logical(e.LOGICAL_AND, a, b)


def logical_or(a: Any, b: Any) -> Tensor:
    """Either is true."""
    return _logical(e.LOGICAL_OR, a, b)


def logical_xor(a: Any, b: Any) -> Tensor:
    """Exactly one is true."""
    return _logical(e.LOGICAL_XOR, a, b)


def logical_not(x: Any) -> Tensor:
    """Not true."""
    return record(e.LOGICAL_NOT, (_truth(x),))


def _logical(op: Op, a: Any, b: Any) -> Tensor:
    return record(op, (_truth(a), _truth(b)))


def _truth(x: Any) -> Tensor:
    operand = as_operand(x, None)
    return operand if operand.dtype is bool_ else operand != 0


def bitwise_and(a: Any, b: Any) -> Tensor:
    """a & b."""
    return bitwise(e.BIT_AND, a, b)


def bitwise_or(a: Any, b: Any) -> Tensor:
    """a | b."""
    return bitwise(e.BIT_OR, a, b)


def bitwise_xor(a: Any, b: Any) -> Tensor:
    """a ^ b."""
    return bitwise(e.BIT_XOR, a, b)


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """x where the condition holds, else y; x and y promote, all three broadcast."""
    left, right = operands(x, y)
    return record(e.SELECT, (_truth(condition), left, right))


def clip(x: Any, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    """x limited to [min, max]; either bound may be None."""
    result = asarray(x)
    if min is None and max is None:
        return result.copy()
    if min is not None:
        result = maximum(result, min)
    return minimum(result, max) if max is not None else result


# Reductions


def sum(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """The sum over axes."""
    return asarray(x).sum(axis, dtype, keepdims)


def prod(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product over axes."""
    return asarray(x).prod(axis, dtype, keepdims)


def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """The largest over axes; NaN propagates; over an empty axis the dtype's minimum."""
    return asarray(x).max(axis, keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """The smallest over axes; NaN propagates; over an empty axis the dtype's maximum."""
    return asarray(x).min(axis, keepdims)


def mean(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean over axes."""
    return asarray(x).mean(axis, dtype, keepdims)


def var(x: Any, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The variance over axes; `correction` is subtracted from the count."""
    tensor = asarray(x)
    tensor = tensor if tensor.dtype.kind in "fc" else tensor.astype(default_float)
    axes = normalize_axes("var", axis, tensor.ndim)
    count: Any = product(tuple(tensor.shape[i] for i in axes))
    centred = tensor - tensor.mean(axis, keepdims=True)
    total: Tensor = (centred * centred).sum(axis, keepdims=keepdims)
    return divide(total, count - correction)


def std(x: Any, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes."""
    return sqrt(var(x, axis, correction, keepdims))


def any(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Whether any element over axes is true."""
    return _truth(x).any(axis, keepdims)


def all(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Whether every element over axes is true."""
    return _truth(x).all(axis, keepdims)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element, or of the first NaN."""
    return asarray(x).argmax(axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element, or of the first NaN."""
    return asarray(x).argmin(axis, keepdims)


def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running sums along an axis; of the flattened array when it is None."""
    return _along(r.CUMSUM, x if dtype is None else asarray(x).astype(dtype, copy=False), axis)


def sort(x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """Sorted along an axis, stable, NaN last (first when descending)."""
    result = _along(r.SORT, x, axis)
    return flip(result, axis).copy() if descending else result


def argsort(x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort along an axis, stable in both directions."""
    if not descending:
        return _along(r.ARGSORT, x, axis)
    tensor = asarray(x)
    (place,) = normalize_axes("argsort", axis, tensor.ndim)
    backward = flip(_along(r.ARGSORT, flip(tensor, place), place), place)
    return subtract(tensor.shape[place] - 1, backward)  # equal elements keep their order


def _along(op: Op, x: Any, axis: int | None) -> Tensor:
    tensor = asarray(x)
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    if op is r.CUMSUM and tensor.dtype.kind in "biu":
        tensor = tensor.astype("uint64" if tensor.dtype.kind == "u" else "int64", copy=False)
    wide = tensor.astype(accumulator(tensor.dtype), copy=False)
    result = record(op, (wide,), normalize_axes(op.name, axis, tensor.ndim))
    return result if op is r.ARGSORT else result.astype(tensor.dtype, copy=False)


# Shape


def reshape(x: Any, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements in C order under another shape; a view where strides allow it, unless `copy`.

    Raises: ShapeError where copy=False asks for a view and strides do not allow it.
    """
    result = asarray(x).reshape(shape)
    if copy is False and is_tensor(x) and result._root() is not x._root():
        raise ShapeError(f"reshape: {x.shape} to {result.shape} needs a copy, and copy=False forbids it.")
    return result.copy() if copy else result


def broadcast_to(x: Any, shape: Any) -> Tensor:
    """A read-only view with axes of size 1 repeated."""
    return asarray(x).broadcast_to(shape)


def permute_dims(x: Any, axes: Sequence[int]) -> Tensor:
    """Permute the axes."""
    return asarray(x).transpose(axes)


def transpose(x: Any, axes: Sequence[int] | None = None) -> Tensor:
    """Permute the axes; reverse them by default."""
    return asarray(x).transpose(*(axes or ()))


def swapaxes(x: Any, a: int, b: int) -> Tensor:
    """Exchange two axes."""
    tensor = asarray(x)
    order = list(range(tensor.ndim))
    (first,), (second,) = normalize_axes("swapaxes", a, tensor.ndim), normalize_axes("swapaxes", b, tensor.ndim)
    order[first], order[second] = order[second], order[first]
    return tensor.transpose(order)


def moveaxis(x: Any, source: Axis, destination: Axis) -> Tensor:
    """Move axes to other places; the rest keep their order."""
    tensor = asarray(x)
    came, goes = normalize_axes("moveaxis", source, tensor.ndim), normalize_axes("moveaxis", destination, tensor.ndim)
    order = [axis for axis in range(tensor.ndim) if axis not in came]
    for place, axis in sorted(zip(goes, came, strict=True)):
        order.insert(place, axis)
    return tensor.transpose(order)


def squeeze(x: Any, axis: Axis = None) -> Tensor:
    """Drop axes of size 1."""
    return asarray(x).squeeze(axis)


def expand_dims(x: Any, axis: Axis = 0) -> Tensor:
    """Insert axes of size 1."""
    return asarray(x).expand_dims(axis)


def flip(x: Any, axis: Axis = None) -> Tensor:
    """Reverse the order along axes. A view."""
    tensor = asarray(x)
    axes = normalize_axes("flip", axis, tensor.ndim)
    return tensor[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(tensor.ndim))]


def concat(tensors: Sequence[Any], axis: int | None = 0) -> Tensor:
    """Join along an axis; axis None joins the flattened arrays.

    Raises: ShapeError when ranks or other sizes differ.
    """
    parts = [asarray(tensor) for tensor in tensors]
    if not parts:
        raise ShapeError("concat: no arrays were given; give at least one.")
    if axis is None:
        parts, axis = [part.reshape(-1) for part in parts], 0
    (place,) = normalize_axes("concat", axis, parts[0].ndim)
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = promote(dtype, part.dtype)
        same = part.ndim == parts[0].ndim and part.shape[:place] + part.shape[place + 1 :] == (
            parts[0].shape[:place] + parts[0].shape[place + 1 :]
        )
        if not same:
            raise ShapeError(f"concat: shapes {parts[0].shape} and {part.shape} differ outside axis {place}.")
    return record(m.CONCAT, tuple(part.astype(dtype, copy=False) for part in parts), (place,))


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Join along a new axis."""
    return concat([asarray(tensor).expand_dims(axis) for tensor in tensors], axis)


def split(x: Any, sizes: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut into pieces along an axis: of one size (the last may be smaller), or of the listed sizes. Views."""
    tensor = asarray(x)
    (place,) = normalize_axes("split", axis, tensor.ndim)
    total = tensor.shape[place]
    if isinstance(sizes, int):
        sizes = [builtins.min(sizes, total - start) for start in range(0, total, sizes)]
    if builtins.sum(sizes) != total:
        raise ShapeError(f"split: sizes {list(sizes)} add up to {builtins.sum(sizes)}; axis {place} has {total}.")
    pieces, start = [], 0
    for size in sizes:
        pieces.append(tensor[(slice(None),) * place + (slice(start, start + size),)])
        start += size
    return pieces


def pad(x: Any, widths: Any, value: Any = 0, *, mode: str = "constant") -> Tensor:
    """Surround each axis: `widths` is (before, after) per axis, one pair for all, or one int. `mode` as in NumPy."""
    tensor = asarray(x)
    if isinstance(widths, int):
        widths = ((widths, widths),) * tensor.ndim
    elif isinstance(widths[0], int):
        widths = (tuple(widths),) * tensor.ndim
    pairs = tuple(tuple(pair) for pair in widths)
    if len(pairs) != tensor.ndim or builtins.any(isinstance(n, int) and n < 0 for pair in pairs for n in pair):
        raise ShapeError(f"pad: widths {pairs} for shape {tensor.shape}; give each axis a pair of sizes of 0 or more.")
    if mode == "constant":
        return record(m.PAD, (tensor,), (pairs, value))
    for axis, (before, after) in enumerate(pairs):  # every other mode repeats elements that are there
        if before or after:
            source = np.pad(np.arange(tensor.shape[axis]), (before, after), mode=_pad_mode(mode))
            tensor = take(tensor, asarray(source), axis)
    return tensor


def _pad_mode(mode: str) -> Any:
    modes = ("edge", "reflect", "symmetric", "wrap")
    if mode not in modes:
        raise ValueError(f"pad: mode={mode!r}; expected 'constant', {', '.join(map(repr, modes))}.")
    return mode


def take(x: Any, indices: Any, axis: int = 0) -> Tensor:
    """x[indices] along one axis. Negative indices count from the end.

    Raises: IndexingError for an index outside the axis (eagerly; a compiled graph trusts its caller).
    """
    tensor, ids = asarray(x), asarray(indices)
    (place,) = normalize_axes("take", axis, tensor.ndim)
    return record(m.TAKE, (tensor, _checked_ids("take", ids, tensor.shape[place])), (place,))


def _checked_ids(where: str, ids: Tensor, size: Any) -> Tensor:
    if not ids.dtype.is_integral:
        raise DTypeError(f"{where}: indices are {ids.dtype.name}; expected integers. Convert them with astype.")
    if ids.node().depth >= SYMBOLIC:
        return ids
    host = ids._host()
    if host.size and (host.min() < -size or host.max() >= size):
        raise IndexingError(f"{where}: indices reach {host.min()} .. {host.max()}; the axis has {size} entries.")
    return where_negative(ids, size) if host.size and host.min() < 0 else ids


def where_negative(ids: Tensor, size: int) -> Tensor:
    """Indices from the end turned into indices from the start."""
    return where(ids < 0, ids + size, ids)


# Neural network functions


def relu(x: Any) -> Tensor:
    """max(x, 0)."""
    return maximum(x, 0)


def silu(x: Any) -> Tensor:
    """x * sigmoid(x). Source: arXiv 1702.03118."""
    operand = as_operand(x, None)
    return operand * sigmoid(operand)


def gelu(x: Any, approximate: str = "none") -> Tensor:
    """x * Phi(x). `approximate`: "none" through erf, "tanh", or "quick" (x * sigmoid(1.702 x)).

    Source: arXiv 1606.08415.

    The tanh form is computed as x * sigmoid(2u), which is the same function without its cancellation.
    """
    operand = as_operand(x, None)
    if approximate == "none":
        return operand * 0.5 * (erf(operand * math.sqrt(0.5)) + 1)
    if approximate == "tanh":
        scale = 2 * math.sqrt(2 / math.pi)
        return operand * sigmoid(operand * (operand * operand * (scale * 0.044715) + scale))
    if approximate == "quick":
        return operand * sigmoid(operand * 1.702)
    raise ValueError(f"gelu: approximate={approximate!r}; expected 'none', 'tanh' or 'quick'.")


def softmax(x: Any, axis: int = -1) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) along an axis."""
    tensor = asarray(x)
    weights = exp(tensor - tensor.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """log(softmax(x)), computed without the quotient."""
    tensor = asarray(x)
    shifted = tensor - tensor.max(axis, keepdims=True)
    return shifted - log(exp(shifted).sum(axis, keepdims=True))


logsoftmax = log_softmax


def rms_norm(x: Tensor, weight: Tensor, epsilon: float = 1e-6, weight_offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x * x) + epsilon) * (weight + weight_offset) along the last axis. Source: arXiv 1910.07467."""
    scale = rsqrt((x * x).mean(-1, keepdims=True) + epsilon)
    gain = weight + weight_offset if weight_offset else weight
    return x * scale * gain


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * gamma + beta along the last axis. Source: arXiv 1607.06450."""
    centred = x - x.mean(-1, keepdims=True)
    scale = rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    result = centred * scale * gamma
    return result if beta is None else result + beta


def group_norm(x: Any, gamma: Any, beta: Any, num_groups: int, epsilon: float = 1e-5) -> Tensor:
    """Channels normalised in groups. Shapes: x (N, C, ...), gamma and beta (C,). Source: arXiv 1803.08494."""
    tensor = asarray(x)
    channels = tensor.shape[1]
    if channels % num_groups:
        raise ShapeError(f"group_norm: {channels} channels are no multiple of {num_groups} groups.")
    grouped = tensor.reshape((tensor.shape[0], num_groups, product(tensor.shape[1:]) // num_groups))
    centred = grouped - grouped.mean(-1, keepdims=True)
    scale = rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    lines = (1, channels) + (1,) * (tensor.ndim - 2)
    return (centred * scale).reshape(tensor.shape) * asarray(gamma).reshape(lines) + asarray(beta).reshape(lines)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. Shapes: x (..., K), weight (N, K), bias (N,) -> (..., N)."""
    result = matmul(x, weight.T)
    return result if bias is None else result + bias


def qmatmul(x: Tensor, weight: Tensor, format: str) -> Tensor:  # noqa: A002
    """x times the transpose of block-quantised rows, in float32.

    Shapes: x (..., K) float32, weight (N, row_bytes) uint8 -> (..., N) float32.
    """
    return record(p.QMATMUL, (x, weight), (format,))


def quantize_rows(x: Tensor) -> Tensor:
    """Rows as int8 codes with a scale per 32 columns. Shapes: (..., K) float32 -> (..., K + K / 4) uint8."""
    return record(p.QUANTIZE_ROWS, (x,))


def qmatmul_int8(x: Tensor, weight: Tensor, format: str) -> Tensor:  # noqa: A002
    """Rows of `quantize_rows` times the transpose of block-quantised rows: exact integer dots per block.

    Shapes: x (..., K + K / 4) uint8, weight (N, row_bytes) uint8 -> (..., N) float32.
    """
    return record(p.QMATMUL_INT8, (x, weight), (format,))


def qtake(weight: Tensor, ids: Tensor, format: str) -> Tensor:  # noqa: A002
    """Rows of a block-quantised table. Shapes: weight (V, row_bytes) uint8, ids (...) -> (..., K) float32."""
    return record(p.QTAKE, (weight, _checked_ids("qtake", ids, weight.shape[0])), (format,))


def rope(x: Tensor, table: Tensor, row_offsets: Tensor, lengths: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of a ragged batch.

    Shapes: x (T, heads, head_dim), table (positions, rotary / 2, 2) of cosines and sines -> x's shape.
    """
    return record(ragged.ROPE, (x, table, row_offsets, lengths), (interleaved,))


def kv_store(
    cache: Tensor, keys: Tensor, values: Tensor, row_offsets: Tensor, lengths: Tensor, page_table: Tensor, layer: int
) -> None:
    """Write a step's keys and values (T, kv_heads, head_dim) into a paged cache, in place."""
    if cache._parent is not None:
        raise ValueError("kv_store: the cache is a view; pass the whole cache tensor.")
    tensors = (keys, values, row_offsets, lengths, page_table)
    specs = tuple(tensor.node().spec for tensor in (cache, *tensors))
    ragged.KV_STORE.infer(ragged.KV_STORE, specs, (layer,))
    write_node(cache, ragged.KV_STORE, tensors, (layer,))


def paged_attention(
    queries: Tensor,
    cache: Tensor,
    row_offsets: Tensor,
    lengths: Tensor,
    page_table: Tensor,
    layer: int,
    scale: float | None = None,
) -> Tensor:
    """Causal attention of a ragged batch over its paged cache.

    Shapes: queries (T, heads, head_dim) -> the same. `scale` defaults to 1 / sqrt(head_dim).
    """
    factor = scale if scale is not None else 1 / math.sqrt(queries.shape[-1])
    return record(ragged.PAGED_ATTENTION, (queries, cache, row_offsets, lengths, page_table), (layer, factor))


def result_type(*values: Any) -> DType:
    """The dtype that the values promote to."""
    dtype: DType | None = None
    for weak in (False, True):  # arrays first: scalars follow them
        for value in values:
            if _is_weak(value) is weak:
                other = scalar_dtype(value, dtype) if weak else as_dtype(getattr(value, "dtype", value))
                dtype = other if dtype is None else promote(dtype, other)
    if dtype is None:
        raise DTypeError("result_type: no values were given; give at least one.")
    return dtype


def _is_weak(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex) and not hasattr(value, "dtype")


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Convert to a dtype."""
    as_device(device)
    return asarray(x).astype(dtype, copy)
