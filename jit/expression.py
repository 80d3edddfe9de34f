"""Scalar expressions over plait dtypes: what each elementwise row means in registers. Knows no tensor and no loop.

A `Typed` is a register with its dtype name. float16 and bfloat16 live in registers as the float32 of the same value and
are rounded back after every op, so that fusion never changes bits. bool is i1 in registers, one byte in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from plait.jit import math
from plait.jit.builder import REGISTER_TYPES, Builder, Value, type_bits, vector
from plait.jit.math import Unsupported

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_HALVES = ("float16", "bfloat16")


class Typed(NamedTuple):
    """A register and the plait dtype of what it holds."""

    value: Value
    dtype: str


Term = Typed | int | float | bool


def register_element(dtype: str) -> str:
    """The scalar LLVM type a dtype computes in.

    Raises: Unsupported for complex and storage dtypes.
    """
    if dtype not in REGISTER_TYPES:
        raise Unsupported(f"dtype {dtype}")
    return "float" if dtype in _HALVES else REGISTER_TYPES[dtype]


def memory_element(dtype: str) -> str:
    """The scalar LLVM type a dtype has in memory.

    Raises: Unsupported for complex and storage dtypes.
    """
    return "i8" if dtype == "bool" else "i16" if dtype == "bfloat16" else register_element_or_half(dtype)


def register_element_or_half(dtype: str) -> str:
    return "half" if dtype == "float16" else register_element(dtype)


class ExpressionBuilder:
    """Emits elementwise rows through a Builder, `lanes` elements at a time.

    Raises: Unsupported from any method that has no code for the dtype it is given.
    """

    def __init__(self, builder: Builder, lanes: int) -> None:
        self.b = builder
        self.lanes = lanes

    # ---- values in and out ------------------------------------------------------------------------------------------

    def load(self, dtype: str, pointer: Value, mask: Value | None = None) -> Typed:
        """Consecutive elements from memory."""
        return self.from_memory(dtype, self.b.vload(pointer, vector(memory_element(dtype), self.lanes), mask))

    def load_splat(self, dtype: str, pointer: Value) -> Typed:
        """One element from memory, in every lane."""
        return self.from_memory(dtype, self.b.splat(self.b.load(memory_element(dtype), pointer), self.lanes))

    def gather(self, dtype: str, pointers: Value, mask: Value | None = None) -> Typed:
        """One element from each address."""
        return self.from_memory(dtype, self.b.gather(memory_element(dtype), pointers, mask))

    def store(self, x: Typed, pointer: Value, mask: Value | None = None) -> None:
        """Consecutive elements to memory."""
        self.b.vstore(self.to_memory(x), pointer, mask)

    def scatter(self, x: Typed, pointers: Value, mask: Value | None = None) -> None:
        self.b.scatter(self.to_memory(x), pointers, mask)

    def from_memory(self, dtype: str, value: Value) -> Typed:
        """A loaded value in the form that ops take."""
        if dtype == "bool":
            value = self.b.icmp("ne", value, 0)
        elif dtype == "float16":
            value = self.b.fpext(value, "float")
        elif dtype == "bfloat16":
            value = self.b.bf16_to_f32(value)
        return Typed(value, dtype)

    def to_memory(self, x: Typed) -> Value:
        """The inverse of from_memory, exact: every op has rounded already."""
        if x.dtype == "bool":
            return self.b.zext(x.value, "i8")
        if x.dtype == "float16":
            return self.b.fptrunc(x.value, "half")
        return self.b.f32_to_bf16(x.value) if x.dtype == "bfloat16" else x.value

    def from_slot(self, dtype: str, args: Value, number: int) -> Typed:
        """A scalar argument of a launch, in every lane: float slots hold the bits of a double, others an int64."""
        element = register_element(dtype)
        if dtype in FLOATS:
            wide = Typed(self.b.slot(args, number, "double"), "float64")
            scalar = self._cast(wide, dtype).value
        else:
            wide_int = self.b.slot(args, number, "i64")
            scalar = self.b.icmp("ne", wide_int, 0) if dtype == "bool" else self.b.resize(wide_int, element)
        return Typed(self.b.splat(scalar, self.lanes), dtype)

    def const(self, dtype: Any, number: Any) -> Typed:
        """A constant of a dtype (a name or a DType), rounded to it."""
        name = _dtype_name(dtype)
        if name in _HALVES:
            number = float(math.round_number(name, number))
        return Typed(self.b.constant(vector(register_element(name), self.lanes), number), name)

    # ---- shapes of operations ---------------------------------------------------------------------------------------

    def _terms(self, *terms: Term) -> list[Typed]:
        """Operands of one dtype; a Python number takes the dtype of the first Typed."""
        dtype = next(term.dtype for term in terms if isinstance(term, Typed))
        typed = [term if isinstance(term, Typed) else self.const(dtype, term) for term in terms]
        assert all(term.dtype == dtype for term in typed), f"operands have dtypes {[term.dtype for term in typed]}"
        return typed

    def _rounded(self, dtype: str, value: Value) -> Typed:
        if dtype == "float16":
            value = self.b.fpext(self.b.fptrunc(value, "half"), "float")
        elif dtype == "bfloat16":
            value = self.b.bf16_to_f32(self.b.f32_to_bf16(value))
        return Typed(value, dtype)

    def _arithmetic(self, name: str, of_float: Callable[..., Value], of_int: Callable[..., Value], *terms: Term) -> Typed:
        typed = self._terms(*terms)
        dtype = typed[0].dtype
        values = [term.value for term in typed]
        if dtype in FLOATS:
            return self._rounded(dtype, of_float(*values))
        if dtype == "bool":
            raise Unsupported(f"{name} of bool")
        return Typed(of_int(*values), dtype)

    def _float_only(self, name: str, x: Typed) -> Value:
        if x.dtype not in FLOATS:
            raise Unsupported(f"{name} of {x.dtype}")
        return x.value

    def _function(self, name: str, *terms: Term) -> Typed:
        typed = self._terms(*terms)
        dtype = typed[0].dtype
        if dtype not in FLOATS:
            raise Unsupported(f"{name} of {dtype}")
        return self._rounded(dtype, math.apply(name, self.b, *(term.value for term in typed)))

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

    # ---- conversion -------------------------------------------------------------------------------------------------

    def cast(self, x: Typed, dtype: Any) -> Typed:
        """To another dtype (a name or a DType). Float to integer truncates, saturates, and gives 0 for NaN."""
        name = _dtype_name(dtype)
        register_element(name)
        return x if name == x.dtype else self._cast(x, name)

    def _cast(self, x: Typed, dtype: str) -> Typed:
        if x.dtype in FLOATS:
            return self._cast_float(x, dtype)
        value, element, b = x.value, register_element(dtype), self.b
        if dtype in FLOATS:
            convert = b.sitofp if x.dtype in SIGNED else b.uitofp
            return self._rounded(dtype, convert(value, element))
        if dtype == "bool":
            return Typed(b.icmp("ne", value, 0), dtype)
        return Typed(b.resize(value, element, x.dtype in SIGNED), dtype)

    def _cast_float(self, x: Typed, dtype: str) -> Typed:
        b, value, element = self.b, x.value, register_element(dtype)
        if dtype == "bool":
            return Typed(b.fcmp("une", value, 0.0), dtype)
        if dtype in SIGNED:
            return Typed(b.fptosi_sat(value, element), dtype)
        if dtype in UNSIGNED:
            return Typed(b.fptoui_sat(value, element), dtype)
        if dtype == "float16":  # rounded once, also from double
            return Typed(b.fpext(b.fptrunc(value, "half"), "float"), dtype)
        resized = b.fpext(value, element) if element == "double" else b.fptrunc(value, element)
        return self._rounded(dtype, resized)


def _dtype_name(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) else str(dtype.name)
