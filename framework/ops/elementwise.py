"""Elementwise rows: one result element from the same element of each operand.

All operands of a row share one dtype (the function that records it casts them first), except `select` and `cast`.
float16 and bfloat16 compute in float32 and round after every op, in every executor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from plait.framework.dim import Size
from plait.framework.dtype import DType, bool_
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.op import Attrs, Op, Shape, Spec, row

Array = np.ndarray[Any, Any]
Meaning = Callable[..., Any]


def broadcast_shapes(where: str, shapes: tuple[Shape, ...]) -> Shape:
    """The common shape: trailing axes align, each pair is equal or one of them is 1.

    Raises: ShapeError naming both shapes.
    """
    first = shapes[0]
    for shape in shapes[1:]:
        if shape != first:
            break
    else:
        return first
    result = first
    for shape in shapes[1:]:
        result = _broadcast_pair(where, result, shape)
    return result


def _broadcast_pair(where: str, a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    left: Shape = (1,) * (rank - len(a)) + a
    right: Shape = (1,) * (rank - len(b)) + b
    return tuple(_broadcast_size(where, x, y, a, b) for x, y in zip(left, right, strict=True))


def _broadcast_size(where: str, x: Size, y: Size, a: Shape, b: Shape) -> Size:
    if x == y or y == 1:
        return x
    if x == 1:
        return y
    raise ShapeError(
        f"{where}: shapes {a} and {b} do not broadcast; aligned from the right, each pair of sizes must be equal or "
        f"contain a 1. Reshape or transpose one of them."
    )


def _require_kind(op: Op, dtype: DType, kinds: str) -> None:
    if dtype.kind not in kinds:
        words = {"b": "bool", "i": "signed", "u": "unsigned", "f": "float", "c": "complex"}
        wanted = ", ".join(words[kind] for kind in kinds)
        raise DTypeError(f"{op.name}: dtype {dtype.name} is not supported; expected {wanted}. Convert it with astype.")


def _infer(kinds: str, result: DType | None = None) -> Callable[[Op, tuple[Spec, ...], Attrs], Spec]:
    def infer(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
        dtype = specs[0].dtype
        if dtype.kind not in kinds:
            _require_kind(op, dtype, kinds)
        shape = specs[0].shape if len(specs) == 1 else broadcast_shapes(op.name, tuple(spec.shape for spec in specs))
        return Spec(shape, result or dtype)

    return infer


def _quiet(function: Meaning) -> Meaning:
    """Run in float32 for the 16-bit floats, with NumPy's warnings off, and give back the result dtype."""

    def meaning(*arrays: Array, attrs: Attrs, spec: Spec) -> Array:
        if spec.dtype.itemsize == 2 and spec.dtype.kind == "f" or _is_half(arrays[0]):
            arrays = tuple(array.astype(np.float32) if _is_half(array) else array for array in arrays)
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays)).astype(spec.dtype.numpy, copy=False)

    return meaning


def _is_half(array: Array) -> bool:
    return array.dtype.itemsize == 2 and array.dtype.kind not in "iu"


def floor_divide(a: Array, b: Array) -> Array:
    """NumPy's floor division; for integers x // 0 is 0 and the overflow INT_MIN // -1 wraps."""
    return (
        np.floor_divide(a, b)
        if a.dtype.kind == "f"
        else np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b)))
    )


def remainder(a: Array, b: Array) -> Array:
    """NumPy's remainder (sign of the divisor); for integers x % 0 is 0."""
    return np.remainder(a, b) if a.dtype.kind == "f" else np.where(b == 0, 0, np.remainder(a, np.where(b == 0, 1, b)))


def convert(array: Array, dtype: DType) -> Array:
    """Cast as plait casts: float to integer truncates, saturates, and gives 0 for NaN."""
    if array.dtype.kind == "c" and dtype.kind not in "cb":
        array = array.real
    if dtype.kind in "iu" and array.dtype.kind not in "biu":
        return _saturate(array, dtype)
    with np.errstate(all="ignore"):
        return array.astype(dtype.numpy, copy=False)


def _saturate(array: Array, dtype: DType) -> Array:
    wide = np.trunc(np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    limits = np.iinfo(dtype.numpy)
    low, high = wide <= float(limits.min), wide >= float(limits.max)
    inside = np.where(low | high, 0.0, wide).astype(dtype.numpy)
    return np.where(low, dtype.numpy.type(limits.min), np.where(high, dtype.numpy.type(limits.max), inside))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _expm1(z: Array) -> Array:
    """NumPy's for reals; for complex numbers with the standard's values at infinities, where NumPy gives NaN."""
    if z.dtype.kind != "c":
        return np.asarray(np.expm1(z))
    x, y = z.real, z.imag
    lost, flat = np.isinf(x) & ~np.isfinite(y), y == 0
    real = np.expm1(x) * np.cos(y) - 2 * np.sin(y / 2) ** 2
    result = np.empty_like(z)
    result.real = np.where(flat, np.expm1(x) + 0.0, np.where(lost, np.expm1(x), real))
    result.imag = np.where(flat, y, np.where(lost & (x < 0), 0, np.exp(x) * np.sin(y)))
    return result


def _sign(x: Array) -> Array:
    return np.sign(x)


def _shift_left(a: Array, b: Array) -> Array:
    return np.left_shift(a, b)


_erf = np.vectorize(math.erf, otypes=[np.float64])

_FLOAT, _NUMBER, _REAL, _INTEGER, _ANY = "f", "iufc", "biuf", "biu", "biufc"
_INEXACT = "fc"


def _unary(name: str, kinds: str, function: Meaning, ulp: float = 0.0, result: DType | None = None) -> Op:
    def expr(b: Any, x: Any) -> Any:
        return getattr(b, name)(x)

    return row(
        name, "elementwise", infer=_infer(kinds, result), numpy=_quiet(function), expr=expr, ulp=ulp, axes="*->*"
    )


def _binary(name: str, kinds: str, function: Meaning, ulp: float = 0.0, result: DType | None = None) -> Op:
    def expr(b: Any, x: Any, y: Any) -> Any:
        return getattr(b, name)(x, y)

    return row(
        name, "elementwise", infer=_infer(kinds, result), numpy=_quiet(function), expr=expr, ulp=ulp, axes="*,*->*"
    )


NEG = _unary("neg", _NUMBER, np.negative)
ABS = _unary("abs", "iuf", np.abs)
SIGN = _unary("sign", _NUMBER, _sign)
SQRT = _unary("sqrt", _INEXACT, np.sqrt)
RSQRT = _unary("rsqrt", _FLOAT, lambda x: 1 / np.sqrt(x), 2)
RECIPROCAL = _unary("reciprocal", _INEXACT, lambda x: 1 / x)
EXP = _unary("exp", _INEXACT, np.exp, 4)
EXP2 = _unary("exp2", _INEXACT, np.exp2, 4)
EXPM1 = _unary("expm1", _INEXACT, _expm1, 4)
LOG = _unary("log", _INEXACT, np.log, 4)
LOG2 = _unary("log2", _INEXACT, np.log2, 4)
LOG10 = _unary("log10", _INEXACT, np.log10, 4)
LOG1P = _unary("log1p", _INEXACT, np.log1p, 4)
SIN = _unary("sin", _INEXACT, np.sin, 4)
COS = _unary("cos", _INEXACT, np.cos, 4)
TAN = _unary("tan", _INEXACT, np.tan, 8)
ASIN = _unary("asin", _INEXACT, np.arcsin, 4)
ACOS = _unary("acos", _INEXACT, np.arccos, 4)
ATAN = _unary("atan", _INEXACT, np.arctan, 4)
SINH = _unary("sinh", _INEXACT, np.sinh, 8)
COSH = _unary("cosh", _INEXACT, np.cosh, 8)
TANH = _unary("tanh", _INEXACT, np.tanh, 4)
ASINH = _unary("asinh", _INEXACT, np.arcsinh, 8)
ACOSH = _unary("acosh", _INEXACT, np.arccosh, 8)
ATANH = _unary("atanh", _INEXACT, np.arctanh, 8)
ERF = _unary("erf", _FLOAT, lambda x: _erf(x) if x.size else x, 4)
SIGMOID = _unary("sigmoid", _FLOAT, _sigmoid, 6)
FLOOR = _unary("floor", _FLOAT, np.floor)
CEIL = _unary("ceil", _FLOAT, np.ceil)
TRUNC = _unary("trunc", _FLOAT, np.trunc)
ROUND = _unary("round", _INEXACT, np.rint)
BIT_NOT = _unary("bit_not", "iu", np.invert)
LOGICAL_NOT = _unary("logical_not", "b", np.logical_not)
ISNAN = _unary("isnan", _INEXACT, np.isnan, result=bool_)
ISINF = _unary("isinf", _INEXACT, np.isinf, result=bool_)
ISFINITE = _unary("isfinite", _INEXACT, np.isfinite, result=bool_)

ADD = _binary("add", _NUMBER, np.add)
SUB = _binary("sub", _NUMBER, np.subtract)
MUL = _binary("mul", _NUMBER, np.multiply)
DIV = _binary("div", _INEXACT, np.divide)
FLOORDIV = _binary("floordiv", "iuf", floor_divide)
MOD = _binary("mod", "iuf", remainder)
POW = _binary("pow", _NUMBER, np.power, 8)
ATAN2 = _binary("atan2", _FLOAT, np.arctan2, 4)
MAXIMUM = _binary("maximum", _REAL, np.maximum)
MINIMUM = _binary("minimum", _REAL, np.minimum)
COPYSIGN = _binary("copysign", _FLOAT, np.copysign)
EQ = _binary("eq", _ANY, np.equal, result=bool_)
NE = _binary("ne", _ANY, np.not_equal, result=bool_)
LT = _binary("lt", _REAL, np.less, result=bool_)
LE = _binary("le", _REAL, np.less_equal, result=bool_)
GT = _binary("gt", _REAL, np.greater, result=bool_)
GE = _binary("ge", _REAL, np.greater_equal, result=bool_)
LOGICAL_AND = _binary("logical_and", "b", np.logical_and)
LOGICAL_OR = _binary("logical_or", "b", np.logical_or)
LOGICAL_XOR = _binary("logical_xor", "b", np.logical_xor)
BIT_AND = _binary("bit_and", "iu", np.bitwise_and)
BIT_OR = _binary("bit_or", "iu", np.bitwise_or)
BIT_XOR = _binary("bit_xor", "iu", np.bitwise_xor)
SHL = _binary("shl", "iu", _shift_left)
SHR = _binary("shr", "iu", np.right_shift)


def _infer_cast(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    return Spec(specs[0].shape, attrs[0])


def _cast(array: Array, *, attrs: Attrs, spec: Spec) -> Array:
    return convert(array, spec.dtype)


CAST = row(
    "cast",
    "elementwise",
    infer=_infer_cast,
    numpy=_cast,
    expr=lambda b, x, dtype: b.cast(x, dtype),
    attrs=("dtype",),
    axes="*->*",
    doc="float to integer truncates, saturates, NaN gives 0; narrowing floats round to nearest even",
)


def _infer_copy(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    return specs[0]


COPY = row(
    "copy",
    "elementwise",
    infer=_infer_copy,
    numpy=lambda x, *, attrs, spec: np.array(x, order="C"),
    expr=lambda b, x: x,
    axes="*->*",
    doc="the same values in fresh, contiguous memory",
)


def _infer_select(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    _require_kind(op, specs[0].dtype, "b")
    if specs[1].dtype is not specs[2].dtype:
        raise DTypeError(f"select: branches are {specs[1].dtype.name} and {specs[2].dtype.name}; they must be equal.")
    return Spec(broadcast_shapes(op.name, tuple(spec.shape for spec in specs)), specs[1].dtype)


SELECT = row(
    "select",
    "elementwise",
    infer=_infer_select,
    numpy=lambda c, x, y, *, attrs, spec: np.asarray(np.where(c, x, y)).astype(spec.dtype.numpy, copy=False),
    expr=lambda b, c, x, y: b.select(c, x, y),
    axes="*,*,*->*",
)
