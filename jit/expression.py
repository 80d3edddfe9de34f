"""Scalar expressions over plait dtypes: what each elementwise row means in registers. Knows no tensor and no loop."""

from __future__ import annotations

from collections.abc import Callable

from plait.jit import math
from plait.jit.builder import Value, type_bits
from plait.jit.math import Unsupported
from plait.jit.typed import (
    FLOATS,
    SIGNED,
    UNSIGNED,
    Term,
    Typed,
    TypedValues,
    memory_element,
    register_element,
)

__all__ = ["FLOATS", "SIGNED", "UNSIGNED", "ExpressionBuilder", "Term", "Typed", "memory_element", "register_element"]


class ExpressionBuilder(TypedValues):
    """Emits elementwise rows through a Builder, `lanes` elements at a time.

    Raises: Unsupported from any method that has no code for the dtype it is given.
    """

    # ---- arithmetic -------------------------------------------------------------------------------------------------

    def add(self, x: Term, y: Term) -> Typed:
        return self._arithmetic("add", self.b.fadd, self.b.iadd, x, y)

    def sub(self, x: Term, y: Term) -> Typed:
        return self._arithmetic("sub", self.b.fsub, self.b.isub, x, y)

    def mul(self, x: Term, y: Term) -> Typed:
        return self._arithmetic("mul", self.b.fmul, self.b.imul, x, y)

    def div(self, x: Term, y: Term) -> Typed:
        a, c = self._terms(x, y)
        return self._rounded(a.dtype, self.b.fdiv(self._float_only("div", a), c.value))

    def fma(self, x: Term, y: Term, z: Term) -> Typed:
        a, c, d = self._terms(x, y, z)
        return self._rounded(a.dtype, self.b.fma(self._float_only("fma", a), c.value, d.value))

    def neg(self, x: Typed) -> Typed:
        return self._arithmetic("neg", self.b.fneg, self.b.ineg, x)

    def abs(self, x: Typed) -> Typed:
        if x.dtype in FLOATS:
            return Typed(self.b.fabs(x.value), x.dtype)
        if x.dtype in UNSIGNED or x.dtype == "bool":
            return x
        return Typed(self.b.select(self.b.icmp("slt", x.value, 0), self.b.ineg(x.value), x.value), x.dtype)

    def sign(self, x: Typed) -> Typed:
        zero, one = self.const(x.dtype, 0), self.const(x.dtype, 1)
        kept = x if x.dtype in FLOATS else zero  # NaN stays
        result = self.select(self.eq(x, zero), zero, kept)
        if x.dtype not in UNSIGNED:
            result = self.select(self.lt(x, zero), self.const(x.dtype, -1), result)
        return self.select(self.gt(x, zero), one, result)

    def reciprocal(self, x: Typed) -> Typed:
        return self.div(1, x)

    def rsqrt(self, x: Typed) -> Typed:
        """1 / sqrt, both at register precision."""
        root = self.b.sqrt(self._float_only("rsqrt", x))
        return self._rounded(x.dtype, self.b.fdiv(1.0, root))

    def sqrt(self, x: Typed) -> Typed:
        return self._rounded(x.dtype, self.b.sqrt(self._float_only("sqrt", x)))

    def floor(self, x: Typed) -> Typed:
        return Typed(self.b.floor(self._float_only("floor", x)), x.dtype)

    def ceil(self, x: Typed) -> Typed:
        return Typed(self.b.ceil(self._float_only("ceil", x)), x.dtype)

    def trunc(self, x: Typed) -> Typed:
        return Typed(self.b.trunc(self._float_only("trunc", x)), x.dtype)

    def round(self, x: Typed) -> Typed:
        """To the nearest integer, ties to even."""
        return Typed(self.b.round_even(self._float_only("round", x)), x.dtype)

    def copysign(self, x: Term, y: Term) -> Typed:
        a, c = self._terms(x, y)
        return Typed(self.b.copysign(self._float_only("copysign", a), c.value), a.dtype)

    def maximum(self, x: Term, y: Term) -> Typed:
        return self._extreme("max", self.b.bor, *self._terms(x, y))

    def minimum(self, x: Term, y: Term) -> Typed:
        return self._extreme("min", self.b.band, *self._terms(x, y))

    def _extreme(self, name: str, of_bool: Callable[[Value, Value], Value], x: Typed, y: Typed) -> Typed:
        if x.dtype == "bool":
            return Typed(of_bool(x.value, y.value), "bool")
        prefix = "f" if x.dtype in FLOATS else "u" if x.dtype in UNSIGNED else "i"
        return Typed(getattr(self.b, prefix + name)(x.value, y.value), x.dtype)

    # ---- division with remainder ------------------------------------------------------------------------------------

    def floordiv(self, x: Term, y: Term) -> Typed:
        """Floors. Integers: x // 0 is 0 and INT_MIN // -1 wraps. Floats: as NumPy."""
        return self._divided(0, *self._terms(x, y))

    def mod(self, x: Term, y: Term) -> Typed:
        """The remainder with the sign of the divisor. Integers: x % 0 is 0. Floats: as NumPy."""
        return self._divided(1, *self._terms(x, y))

    def _divided(self, which: int, x: Typed, y: Typed) -> Typed:
        if x.dtype == "bool":
            raise Unsupported("floordiv of bool")
        if x.dtype in FLOATS:
            return self._rounded(x.dtype, math.float_divmod(self.b, x.value, y.value)[which])
        divide = self._divide_unsigned if x.dtype in UNSIGNED else self._divide_signed
        none = self.b.icmp("eq", y.value, 0)
        results = divide(x.value, y.value, none)
        return Typed(self.b.select(none, self.b.constant(x.value.type, 0), results[which]), x.dtype)

    def _divide_unsigned(self, x: Value, y: Value, none: Value) -> tuple[Value, Value]:
        divisor = self.b.select(none, self.b.constant(y.type, 1), y)
        quotient = self.b.udiv(x, divisor)
        return quotient, self.b.isub(x, self.b.imul(quotient, divisor))

    def _divide_signed(self, x: Value, y: Value, none: Value) -> tuple[Value, Value]:
        b = self.b
        lowest = -(1 << (type_bits(x.element) - 1))
        overflow = b.band(b.icmp("eq", x, lowest), b.icmp("eq", y, -1))
        divisor = b.select(b.bor(none, overflow), b.constant(y.type, 1), y)  # INT_MIN / 1 is what wrapping gives
        quotient = b.idiv(x, divisor)
        rest = b.isub(x, b.imul(quotient, divisor))
        below = b.band(b.icmp("ne", rest, 0), b.icmp("slt", b.bxor(rest, divisor), 0))
        floored = b.select(below, b.isub(quotient, 1), quotient)
        return floored, b.select(below, b.iadd(rest, divisor), rest)

    def pow(self, x: Term, y: Term) -> Typed:
        """Floats, and unsigned integers with wrapping.

        Raises: Unsupported for signed integers, where a negative exponent is an error of the caller.
        """
        a, c = self._terms(x, y)
        if a.dtype in FLOATS:
            return self._function("pow", a, c)
        if a.dtype not in UNSIGNED:
            raise Unsupported(f"pow of {a.dtype}: a negative exponent is an error of the caller")
        return Typed(self._unsigned_power(a.value, c.value), a.dtype)

    def _unsigned_power(self, x: Value, y: Value) -> Value:
        b = self.b

        def square(result: Value, base: Value, rest: Value) -> list[Value]:
            taken = b.icmp("ne", b.band(rest, 1), 0)
            return [b.select(taken, b.imul(result, base), result), b.imul(base, base), b.lshr(rest, 1)]

        one = b.constant(x.type, 1)
        return b.while_([one, x, y], lambda result, base, rest: b.any_lane(b.icmp("ne", rest, 0)), square)[0]

    # ---- functions --------------------------------------------------------------------------------------------------

    def exp(self, x: Typed) -> Typed:
        return self._function("exp", x)

    def exp2(self, x: Typed) -> Typed:
        return self._function("exp2", x)

    def expm1(self, x: Typed) -> Typed:
        return self._function("expm1", x)

    def log(self, x: Typed) -> Typed:
        return self._function("log", x)

    def log2(self, x: Typed) -> Typed:
        return self._function("log2", x)

    def log10(self, x: Typed) -> Typed:
        return self._function("log10", x)

    def log1p(self, x: Typed) -> Typed:
        return self._function("log1p", x)

    def tanh(self, x: Typed) -> Typed:
        return self._function("tanh", x)

    def erf(self, x: Typed) -> Typed:
        return self._function("erf", x)

    def sigmoid(self, x: Typed) -> Typed:
        return self._function("sigmoid", x)

    def sin(self, x: Typed) -> Typed:
        return self._function("sin", x)

    def cos(self, x: Typed) -> Typed:
        return self._function("cos", x)

    def tan(self, x: Typed) -> Typed:
        return self._function("tan", x)

    def asin(self, x: Typed) -> Typed:
        return self._function("asin", x)

    def acos(self, x: Typed) -> Typed:
        return self._function("acos", x)

    def atan(self, x: Typed) -> Typed:
        return self._function("atan", x)

    def atan2(self, y: Term, x: Term) -> Typed:
        return self._function("atan2", y, x)

    def sinh(self, x: Typed) -> Typed:
        return self._function("sinh", x)

    def cosh(self, x: Typed) -> Typed:
        return self._function("cosh", x)

    def asinh(self, x: Typed) -> Typed:
        return self._function("asinh", x)

    def acosh(self, x: Typed) -> Typed:
        return self._function("acosh", x)

    def atanh(self, x: Typed) -> Typed:
        return self._function("atanh", x)

    # ---- comparison, logic, bits ------------------------------------------------------------------------------------

    def _compare(self, of_float: str, of_int: str, x: Term, y: Term) -> Typed:
        a, c = self._terms(x, y)
        if a.dtype in FLOATS:
            return Typed(self.b.fcmp(of_float, a.value, c.value), "bool")
        sign = "" if of_int in ("eq", "ne") else "s" if a.dtype in SIGNED else "u"
        return Typed(self.b.icmp(sign + of_int, a.value, c.value), "bool")

    def eq(self, x: Term, y: Term) -> Typed:
        return self._compare("oeq", "eq", x, y)

    def ne(self, x: Term, y: Term) -> Typed:
        return self._compare("une", "ne", x, y)

    def lt(self, x: Term, y: Term) -> Typed:
        return self._compare("olt", "lt", x, y)

    def le(self, x: Term, y: Term) -> Typed:
        return self._compare("ole", "le", x, y)

    def gt(self, x: Term, y: Term) -> Typed:
        return self._compare("ogt", "gt", x, y)

    def ge(self, x: Term, y: Term) -> Typed:
        return self._compare("oge", "ge", x, y)

    def isnan(self, x: Typed) -> Typed:
        value = self._float_only("isnan", x)
        return Typed(self.b.fcmp("uno", value, value), "bool")

    def isinf(self, x: Typed) -> Typed:
        return Typed(self.b.fcmp("oeq", self.b.fabs(self._float_only("isinf", x)), float("inf")), "bool")

    def isfinite(self, x: Typed) -> Typed:
        return Typed(self.b.fcmp("olt", self.b.fabs(self._float_only("isfinite", x)), float("inf")), "bool")

    def select(self, condition: Typed, x: Term, y: Term) -> Typed:
        a, c = self._terms(x, y)
        return Typed(self.b.select(condition.value, a.value, c.value), a.dtype)

    def _bitwise(self, name: str, op: Callable[[Value, Value], Value], x: Term, y: Term) -> Typed:
        a, c = self._terms(x, y)
        if a.dtype in FLOATS:
            raise Unsupported(f"{name} of {a.dtype}")
        return Typed(op(a.value, c.value), a.dtype)

    def logical_and(self, x: Typed, y: Typed) -> Typed:
        return self._bitwise("logical_and", self.b.band, self.cast(x, "bool"), self.cast(y, "bool"))

    def logical_or(self, x: Typed, y: Typed) -> Typed:
        return self._bitwise("logical_or", self.b.bor, self.cast(x, "bool"), self.cast(y, "bool"))

    def logical_xor(self, x: Typed, y: Typed) -> Typed:
        return self._bitwise("logical_xor", self.b.bxor, self.cast(x, "bool"), self.cast(y, "bool"))

    def logical_not(self, x: Typed) -> Typed:
        return Typed(self.b.bnot(self.cast(x, "bool").value), "bool")

    def bit_and(self, x: Term, y: Term) -> Typed:
        return self._bitwise("bit_and", self.b.band, x, y)

    def bit_or(self, x: Term, y: Term) -> Typed:
        return self._bitwise("bit_or", self.b.bor, x, y)

    def bit_xor(self, x: Term, y: Term) -> Typed:
        return self._bitwise("bit_xor", self.b.bxor, x, y)

    def bit_not(self, x: Typed) -> Typed:
        if x.dtype in FLOATS:
            raise Unsupported(f"bit_not of {x.dtype}")
        return Typed(self.b.bnot(x.value), x.dtype)

    def shl(self, x: Term, y: Term) -> Typed:
        """A count outside the width shifts everything out, as in NumPy."""
        return self._shift("shl", self.b.shl, *self._terms(x, y))

    def shr(self, x: Term, y: Term) -> Typed:
        """Copies the sign of signed integers. A count outside the width shifts everything out, as in NumPy."""
        a, c = self._terms(x, y)
        return self._shift("shr", self.b.ashr if a.dtype in SIGNED else self.b.lshr, a, c)

    def _shift(self, name: str, op: Callable[[Value, Value], Value], x: Typed, y: Typed) -> Typed:
        if x.dtype in FLOATS or x.dtype == "bool":
            raise Unsupported(f"{name} of {x.dtype}")
        bits = type_bits(x.value.element)
        inside = self.b.icmp("ult", y.value, bits)
        if name == "shr" and x.dtype in SIGNED:
            last = self.b.constant(y.value.type, bits - 1)
            return Typed(op(x.value, self.b.select(inside, y.value, last)), x.dtype)
        zero = self.b.constant(x.value.type, 0)
        shifted = op(x.value, self.b.select(inside, y.value, zero))
        return Typed(self.b.select(inside, shifted, zero), x.dtype)
