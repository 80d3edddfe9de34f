"""Elementary functions over the builder: which exists for float32 and float64, and the float32 ones of their own.

The common float32 functions are float32 polynomials; the rarer ones are the float64 function of the same value,
rounded. Accuracy in units of the last place: exp, log 1, tanh 1.5, erf and sigmoid 2.5, the rest 1 (float64: 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from plait.jit import math64, trigonometry
from plait.jit.builder import Builder, Value
from plait.jit.math64 import INF, NAN, clamp, poly

_MAGIC, _MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 * 2^23: adding it rounds to an integer
_LN2_HI, _LN2_LO = 0.693145751953125, 1.4286068203094172e-06  # the high part has 16 bits

# (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2
_EXP = (0.5, 0.16666576266288757, 0.04166655242443085, 0.00836323294788599, 0.0013926250394433737)
# (log(1 + f) - f + f^2 / 2) / f^3 between sqrt(1/2) - 1 and sqrt(2) - 1
_LOG = (
    0.3333333134651184, -0.2499999701976776, 0.20000715553760529, -0.1666780263185501, 0.14249058067798615,
    -0.12425687164068222, 0.11685419827699661, -0.11479733884334564, 0.06971611827611923,
)  # fmt: skip
# (tanh x - x) / x^3 in x^2, |x| <= 0.625
_TANH = (-0.333333283662796, 0.1333276778459549, -0.05385060980916023, 0.02099575474858284, -0.006094641517847776)
# erf x / x in x^2, |x| <= 1
_ERF = (
    1.1283791065216064, -0.3761262595653534, 0.11283594369888306, -0.02685421146452427, 0.005189087241888046,
    -0.000801686430349946, 7.875874871388078e-05,
)  # fmt: skip
# log(erfc x), 0.97 <= x <= 4
_LOG_ERFC = (
    0.0003218123165424913, -1.1302409172058105, -0.6318123936653137, -0.1100936308503151, 0.026429150253534317,
    -0.004762502387166023, 0.0005974394152872264, -4.613435157807544e-05, 1.6410485841333866e-06,
)  # fmt: skip


class Unsupported(Exception):
    """Raised before any effect by an expression that has no code for what it was asked; `reason` says what."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def round_number(dtype: str, number: Any) -> float:
    """A Python number rounded to float16 or bfloat16."""
    return float(np.float16(number) if dtype == "float16" else ml_dtypes.bfloat16(number))


def exp(b: Builder, x: Value) -> Value:
    x = clamp(b, x, -104.0, 89.0)
    shifted = b.fma(x, 1.4426950408889634, _MAGIC)
    n = b.fsub(shifted, _MAGIC)
    r = b.fma(n, -_LN2_LO, b.fma(n, -_LN2_HI, x))
    p = poly(b, r, (1.0, 1.0, *_EXP))
    return b.ldexp(p, b.isub(b.bitcast(shifted, "i32"), _MAGIC_BITS))


def log(b: Builder, x: Value) -> Value:
    tiny = b.fcmp("olt", x, 2.0**-126)
    bits = b.bitcast(b.select(tiny, b.fmul(x, 2.0**23), x), "i32")
    k = b.ashr(b.isub(bits, 0x3F3504F3), 23)
    f = b.fsub(b.bitcast(b.isub(bits, b.shl(k, 23)), "float"), 1.0)
    exponent = b.sitofp(k, "float")
    exponent = b.select(tiny, b.fsub(exponent, 23.0), exponent)
    square = b.fmul(f, f)
    y = b.fmul(b.fmul(square, f), poly(b, f, _LOG))
    y = b.fma(square, -0.5, b.fma(exponent, _LN2_LO, y))
    y = b.fma(exponent, _LN2_HI, b.fadd(f, y))
    y = b.select(b.fcmp("oeq", x, INF), b.constant(x.type, INF), y)
    y = b.select(b.fcmp("oeq", x, 0.0), b.constant(x.type, -INF), y)
    return b.select(b.fcmp("oge", x, 0.0), y, b.constant(x.type, NAN))


def tanh(b: Builder, x: Value) -> Value:
    size, square = b.fabs(x), b.fmul(x, x)
    near = b.fma(b.fmul(square, x), poly(b, square, _TANH), x)
    e = exp(b, b.fmul(clamp(b, size, 0.0, 10.0), 2.0))
    far = b.fsub(1.0, b.fdiv(2.0, b.fadd(e, 1.0)))
    return b.copysign(b.select(b.fcmp("olt", size, 0.625), near, far), x)


def erf(b: Builder, x: Value) -> Value:
    size, square = b.fabs(x), b.fmul(x, x)
    near = b.fmul(x, poly(b, square, _ERF))
    far = b.fsub(1.0, exp(b, poly(b, clamp(b, size, 0.0, 4.0), _LOG_ERFC)))
    return b.copysign(b.select(b.fcmp("olt", size, 1.0), near, far), x)


def sigmoid(b: Builder, x: Value) -> Value:
    e = exp(b, b.fneg(b.fabs(x)))
    top = b.select(b.fcmp("olt", x, 0.0), e, b.constant(x.type, 1.0))
    return b.fdiv(top, b.fadd(e, 1.0))


def pow(b: Builder, x: Value, y: Value) -> Value:
    """float32 power by way of float64 logarithms, with C's special cases."""
    base, exponent = b.fpext(x, "double"), b.fpext(y, "double")
    one = b.constant(base.type, 1.0)
    size = b.fabs(base)
    result = math64.exp2(b, b.fmul(exponent, math64.log2(b, size)))
    whole = b.fcmp("oeq", b.floor(exponent), exponent)
    half = b.fmul(exponent, 0.5)
    odd = b.band(whole, b.fcmp("une", b.floor(half), half))
    negative = b.icmp("slt", b.bitcast(x, "i32"), 0)
    result = b.select(b.band(negative, odd), b.fneg(result), result)
    outside = b.band(b.fcmp("olt", base, 0.0), b.fcmp("ogt", base, -INF))
    result = b.select(b.band(outside, b.bnot(whole)), b.constant(base.type, NAN), result)
    result = b.select(b.band(b.fcmp("oeq", size, one), b.fcmp("oeq", b.fabs(exponent), INF)), one, result)
    result = b.select(b.bor(b.fcmp("oeq", base, one), b.fcmp("oeq", exponent, 0.0)), one, result)
    return b.fptrunc(result, "float")


def float_divmod(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """NumPy's floor_divide and remainder of float32.

    Raises: Unsupported for float64, whose exact remainder needs a wider type.
    """
    if x.element != "float":
        raise Unsupported("floordiv and mod of float64")
    rest = b.fptrunc(_exact_remainder(b, b.fpext(x, "double"), b.fpext(y, "double")), "float")
    zero, one = b.constant(x.type, 0.0), b.constant(x.type, 1.0)
    quotient = b.fdiv(b.fsub(x, rest), y)
    crossed = b.band(b.fcmp("one", rest, zero), b.bxor(b.fcmp("olt", y, zero), b.fcmp("olt", rest, zero)))
    mod = b.select(crossed, b.fadd(rest, y), rest)
    mod = b.select(b.fcmp("oeq", rest, zero), b.copysign(zero, y), mod)
    quotient = b.select(crossed, b.fsub(quotient, one), quotient)
    floored = b.floor(quotient)
    floored = b.select(b.fcmp("ogt", b.fsub(quotient, floored), 0.5), b.fadd(floored, one), floored)
    floored = b.select(b.fcmp("oeq", quotient, zero), b.copysign(zero, b.fdiv(x, y)), floored)
    by_zero = b.fcmp("oeq", y, zero)
    return b.select(by_zero, b.fdiv(x, y), floored), b.select(by_zero, b.constant(x.type, NAN), mod)


def _exact_remainder(b: Builder, x: Value, y: Value) -> Value:
    """C's fmod of float32 values held as float64.

    Each step subtracts the leading 24 bits of the quotient: their product with the 24 bits of y is exact, and so is the
    difference, which is 2^22 times smaller. 13 steps cover the range of float32.
    """
    size, divisor = b.fabs(x), b.fabs(y)
    valid = b.band(b.fcmp("olt", size, INF), b.fcmp("ogt", divisor, 0.0))
    start = b.select(valid, size, b.constant(x.type, 0.0))

    def step(rest: Value) -> list[Value]:
        more = b.fcmp("oge", rest, divisor)
        bits = b.band(b.bitcast(b.fdiv(rest, divisor), "i64"), -(1 << 29))
        left, left_of_less = (
            b.fsub(rest, b.fmul(b.trunc(b.bitcast(b.isub(bits, less), "double")), divisor)) for less in (0, 1 << 29)
        )
        left = b.select(b.fcmp("olt", left, 0.0), left_of_less, left)  # the quotient was rounded up
        return [b.select(more, left, rest)]

    def again(rest: Value) -> Value:
        return b.any_lane(b.fcmp("oge", rest, divisor))

    (rest,) = b.while_([start], again, step)
    return b.copysign(b.select(valid, rest, b.constant(x.type, NAN)), x)


def _through_double(function: Callable[..., Value]) -> Callable[..., Value]:
    def rounded(b: Builder, *values: Value) -> Value:
        return b.fptrunc(function(b, *(b.fpext(value, "double") for value in values)), "float")

    return rounded


_DOUBLE: dict[str, Callable[..., Value]] = {
    name: getattr(math64, name)
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "sinh", "cosh", "asinh", "acosh"),
        *("atanh", "erf", "atan", "atan2", "asin", "acos"),
    )
}
_DOUBLE.update({name: getattr(trigonometry, name) for name in ("sin", "cos", "tan")})
_OWN: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "pow": pow,
}
FUNCTIONS: dict[str, dict[str, Callable[..., Value]]] = {
    "float": {name: _through_double(function) for name, function in _DOUBLE.items()} | _OWN,
    "double": _DOUBLE,
}


def apply(name: str, b: Builder, *values: Value) -> Value:
    """Emit a function by its name.

    Raises: Unsupported when there is none for the operands' type.
    """
    function = FUNCTIONS.get(values[0].element, {}).get(name)
    if function is None:
        raise Unsupported(f"{name} of {values[0].element}")
    return function(b, *values)
