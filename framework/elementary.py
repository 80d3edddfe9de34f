"""Elementwise functions beyond the everyday ones: complex parts, signs, divisors, closeness, NumPy's extras."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from plait.framework.conversion import asarray
from plait.framework.dtype import default_float
from plait.framework.functional import (
    abs,
    add,
    all,
    copysign,
    equal,
    exp2,
    isfinite,
    isinf,
    isnan,
    log2,
    logical_and,
    logical_or,
    multiply,
    sin,
    subtract,
    trunc,
    where,
)
from plait.framework.host import host, host_parts
from plait.framework.op import Op
from plait.framework.ops import elementwise as e
from plait.framework.ops import numbers as n
from plait.framework.ops.reduce import limit
from plait.framework.record import as_operand, binary, constant, operands, record
from plait.framework.tensor import Tensor


def inexact(x: Any) -> Tensor:
    """x as it is if floating or complex, else in the default float."""
    operand = as_operand(x, None)
    return operand.astype(default_float) if operand.dtype.kind in "biu" else operand


def _real_part(x: Any, op: Op) -> Tensor:
    operand = as_operand(x, None)
    return record(op, (operand,)) if operand.dtype.kind == "c" else operand.copy()


def real(x: Any) -> Tensor:
    """The real part."""
    return _real_part(x, n.REAL)


def imag(x: Any) -> Tensor:
    """The imaginary part; zeros for real numbers."""
    operand = as_operand(x, None)
    return record(n.IMAG, (operand,)) if operand.dtype.kind == "c" else multiply(operand, 0)


def conj(x: Any) -> Tensor:
    """The complex conjugate."""
    return _real_part(x, n.CONJ)


def angle(x: Any) -> Tensor:
    """The angle of a complex number, in radians."""
    operand = inexact(x)
    if operand.dtype.kind == "c":
        return record(n.ANGLE, (operand,))
    return where(isnan(operand), operand, where(signbit(operand), math.pi, 0.0).astype(operand.dtype))


def signbit(x: Any) -> Tensor:
    """Whether the sign bit is set, as for -0.0."""
    return record(n.SIGNBIT, (inexact(x),))


def nextafter(a: Any, b: Any) -> Tensor:
    """The number next to a in the direction of b."""
    return binary(n.NEXTAFTER, a, b, inexact=True)


def hypot(a: Any, b: Any) -> Tensor:
    """sqrt(a * a + b * b), without overflow on the way."""
    return binary(n.HYPOT, a, b, inexact=True)


def logaddexp(a: Any, b: Any) -> Tensor:
    """log(exp(a) + exp(b)), without overflow on the way."""
    return binary(n.LOGADDEXP, a, b, inexact=True)


def logaddexp2(a: Any, b: Any) -> Tensor:
    """log2(2**a + 2**b), without overflow on the way."""
    left, right = operands(inexact(a), inexact(b))
    high, low = binary(e.MAXIMUM, left, right), binary(e.MINIMUM, left, right)
    return where(equal(high, low), high + 1, high + log2(exp2(low - high) + 1))


def gcd(a: Any, b: Any) -> Tensor:
    """The greatest common divisor of integers."""
    return binary(n.GCD, a, b)


def lcm(a: Any, b: Any) -> Tensor:
    """The least common multiple of integers."""
    return binary(n.LCM, a, b)


def positive(x: Any) -> Tensor:
    """A copy of x."""
    return as_operand(x, None).copy()


def bitwise_invert(x: Any) -> Tensor:
    """~x."""
    return ~as_operand(x, None)


def bitwise_left_shift(a: Any, b: Any) -> Tensor:
    """a << b."""
    return binary(e.SHL, a, b)


def bitwise_right_shift(a: Any, b: Any) -> Tensor:
    """a >> b."""
    return binary(e.SHR, a, b)


def bitwise_count(x: Any) -> Tensor:
    """The number of set bits of |x|."""
    return host("bitwise_count", np.bitwise_count, asarray(x))


def fmod(a: Any, b: Any) -> Tensor:
    """a - trunc(a / b) * b, with the dividend's sign."""
    left, right = operands(a, b)
    rest = binary(e.MOD, abs(left), abs(right))
    return copysign(rest, left) if left.dtype.is_float else where(left < 0, -rest, rest)


def divmod(a: Any, b: Any) -> tuple[Tensor, Tensor]:  # noqa: A001
    """floor(a / b) and the remainder."""
    return binary(e.FLOORDIV, a, b), binary(e.MOD, a, b)


def modf(x: Any) -> tuple[Tensor, Tensor]:
    """The fractional and the whole part, each with the sign of x."""
    operand = inexact(x)
    whole = trunc(operand)
    rest = where(isinf(operand), constant(0.0, operand.dtype), operand - whole)
    return copysign(rest, operand), whole


def fmax(a: Any, b: Any) -> Tensor:
    """The larger of each pair; a number beats NaN."""
    left, right = operands(a, b)
    if not left.dtype.is_float:
        return binary(e.MAXIMUM, left, right)
    return where(isnan(left), right, where(isnan(right), left, binary(e.MAXIMUM, left, right)))


def fmin(a: Any, b: Any) -> Tensor:
    """The smaller of each pair; a number beats NaN."""
    left, right = operands(a, b)
    if not left.dtype.is_float:
        return binary(e.MINIMUM, left, right)
    return where(isnan(left), right, where(isnan(right), left, binary(e.MINIMUM, left, right)))


def fabs(x: Any) -> Tensor:
    """Absolute value as a float."""
    return abs(inexact(x))


def fix(x: Any) -> Tensor:
    """Round towards zero."""
    return trunc(x)


def float_power(a: Any, b: Any) -> Tensor:
    """a to the power b, in float at least."""
    return binary(e.POW, inexact(a), inexact(b))


def cbrt(x: Any) -> Tensor:
    """Cube root, of negative numbers too."""
    return host("cbrt", np.cbrt, inexact(x))


def deg2rad(x: Any) -> Tensor:
    """Degrees to radians."""
    return inexact(x) * (math.pi / 180)


def rad2deg(x: Any) -> Tensor:
    """Radians to degrees."""
    return inexact(x) * (180 / math.pi)


def sinc(x: Any) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""
    operand = inexact(x) * math.pi
    return where(operand == 0, 1.0, sin(operand) / where(operand == 0, 1.0, operand))


def heaviside(x: Any, at_zero: Any) -> Tensor:
    """0 below zero, 1 above, `at_zero` at zero."""
    left, right = operands(inexact(x), inexact(at_zero))
    step = where(left == 0, right, (left > 0).astype(left.dtype))
    return where(isnan(left), left, step)


def ldexp(x: Any, exponent: Any) -> Tensor:
    """x times 2 to an integer power."""
    return host("ldexp", np.ldexp, inexact(x), asarray(exponent).astype("int32"))


def i0(x: Any) -> Tensor:
    """The modified Bessel function of order 0."""
    operand = inexact(x)
    return host("i0", np.i0, operand).astype(operand.dtype)


def isposinf(x: Any) -> Tensor:
    """Where x is plus infinity."""
    return logical_and(isinf(x), asarray(x) > 0)


def isneginf(x: Any) -> Tensor:
    """Where x is minus infinity."""
    return logical_and(isinf(x), asarray(x) < 0)


def isreal(x: Any) -> Tensor:
    """Where the imaginary part is zero."""
    return imag(x) == 0


def iscomplex(x: Any) -> Tensor:
    """Where the imaginary part is not zero."""
    return imag(x) != 0


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex."""
    return asarray(x).dtype.kind == "c"


def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


def isscalar(x: Any) -> bool:
    """Whether x is a Python or NumPy scalar, no array."""
    return isinstance(x, builtins.bool | int | float | complex | np.generic)


def nan_to_num(
    x: Any, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced by numbers: zero and the dtype's limits by default. Always a copy."""
    operand = asarray(x)
    if not operand.dtype.is_float:
        return operand.copy()
    top = limit(operand.dtype, "max")
    high, low = top if posinf is None else posinf, -top if neginf is None else neginf
    finite = where(isinf(operand), where(operand > 0, high, low).astype(operand.dtype), operand)
    return where(isnan(operand), constant(nan, operand.dtype), finite)


def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Where |a - b| <= atol + rtol * |b|; equal infinities are close."""
    left, right = operands(inexact(a), inexact(b))
    near = abs(subtract(left, right)) <= add(multiply(abs(right), rtol), atol)
    result = where(isfinite(right), near, False)
    result = logical_or(result, equal(left, right))
    return logical_or(result, logical_and(isnan(left), isnan(right))) if equal_nan else result


def allclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all pairs are close."""
    return bool(all(isclose(a, b, rtol, atol, equal_nan)))


def array_equal(a: Any, b: Any, equal_nan: bool = False) -> bool:
    """Whether shapes are the same and all elements equal."""
    left, right = asarray(a), asarray(b)
    if left.shape != right.shape:
        return False
    same = equal(left, right)
    if equal_nan and left.dtype.kind in "fc" and right.dtype.kind in "fc":
        same = logical_or(same, logical_and(isnan(left), isnan(right)))
    return bool(all(same))


def array_equiv(a: Any, b: Any) -> bool:
    """Whether all elements are equal once broadcast."""
    try:
        return bool(all(equal(asarray(a), asarray(b))))
    except ValueError:
        return False


def rint(x: Any) -> Tensor:
    """Round to the nearest integer, halves to even."""
    operand = inexact(x)
    return record(e.ROUND, (operand,))


def spacing(x: Any) -> Tensor:
    """The distance to the next number away from zero."""
    return host("spacing", np.spacing, inexact(x))


def unwrap(x: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Tensor:
    """Angles with jumps of more than half a period taken out."""
    operand = inexact(x)
    return host("unwrap", np.unwrap, operand, discont=discont, axis=axis, period=period).astype(operand.dtype)


def frexp(x: Any) -> tuple[Tensor, Tensor]:
    """Mantissa in [0.5, 1) and integer exponent."""
    mantissa, exponent = host_parts("frexp", np.frexp, inexact(x))
    return mantissa, exponent


def polyval(coefficients: Any, x: Any) -> Tensor:
    """A polynomial at x; the coefficient of the highest power comes first."""
    result = multiply(x, 0)
    for coefficient in asarray(coefficients):
        result = result * x + coefficient
    return result
