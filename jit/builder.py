"""Typed LLVM IR as text: values, vectors, control flow, functions. Knows the target, no dtype rules and no tensors.

A value is a name and an LLVM type; an operation takes its type from its operands, so each works on scalars and vectors
alike. No operation carries fast-math flags. bfloat16 is an i16, bool is an i1 in registers and an i8 in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from plait.jit.target import Target

REGISTER_TYPES = {
    "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32", "uint32": "i32",
    "int64": "i64", "uint64": "i64", "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double",
}  # fmt: skip
_BITS = {"half": 16, "float": 32, "double": 64, "ptr": 64}
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}
_FLOATS = ("half", "float", "double")


@cache
def split_type(text: str) -> tuple[int, str]:
    """`<16 x float>` -> (16, "float"); a scalar has 1 lane."""
    if not text.startswith("<"):
        return 1, text
    lanes, element = text[1:-1].split(" x ")
    return int(lanes), element


def vector(element: str, lanes: int) -> str:
    """The type of `lanes` elements; the element itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def type_bits(element: str) -> int:
    """Bits of a scalar type."""
    return _BITS[element] if element in _BITS else int(element[1:])


@cache
def _suffix(text: str) -> str:
    lanes, element = split_type(text)
    return ("" if lanes == 1 else f"v{lanes}") + _SUFFIX.get(element, element)


class Value(NamedTuple):
    """An operand: a register, a constant or a global, with its LLVM type."""

    name: str
    type: str

    @property
    def lanes(self) -> int:
        return split_type(self.type)[0]

    @property
    def element(self) -> str:
        return split_type(self.type)[1]

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


Index = Value | int
Operand = Value | int | float | bool


def literal(element: str, number: Any) -> str:
    """The exact text of a constant of a scalar type."""
    if element == "half":
        return f"0xH{np.float16(number).view(np.uint16):04X}"
    if element in ("float", "double"):
        exact = float(np.float32(number)) if element == "float" else float(number)
        return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"
    if element == "i1":
        return "true" if number else "false"
    bits = type_bits(element)
    wrapped = int(number) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


@dataclass
class _Function:
    """The function being written."""

    name: str
    header: str
    entry: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    block: str = "entry"
    closed: bool = False


class Builder:
    """Writes one module. `width` is the target's float32 lanes; callers decide the lanes of each vector."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.width = target.width
        self._count = 0
        self._open: list[_Function] = []
        self._declared: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._functions: list[str] = []
        self._made: dict[Any, Any] = {}

    # ---- text -------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole module."""
        assert not self._open, "a function is still open"
        return "\n".join([*self._declared.values(), *self._globals.values(), *self._functions]) + "\n"

    def _fresh(self, prefix: str = "%t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def raw(self, line: str) -> None:
        """Write one line as it stands."""
        self._open[-1].lines.append(f"  {line}")

    def _emit(self, type: str, text: str) -> Value:
        name = self._fresh()
        self._open[-1].lines.append(f"  {name} = {text}")
        return Value(name, type)

    def comment(self, text: str) -> None:
        self.raw(f"; {text}")

    @contextmanager
    def function(
        self,
        name: str,
        params: Sequence[tuple[str, str]] = (("ptr", "args"), ("i64", "lo"), ("i64", "hi")),
        attrs: str = "",
        *,
        result: str = "void",
        internal: bool = False,
    ) -> Iterator[tuple[Value, ...]]:
        """Define a function; the block gets its parameters. Definitions may nest. A void function returns by itself."""
        values = tuple(Value(f"%{parameter}", type) for type, parameter in params)
        width = '"prefer-vector-width"="512"' if self.target.has_avx512 else ""
        linkage = "internal " if internal else ""
        arguments = ", ".join(map(str, values))
        # -0.0 and NaN payloads survive, and memcpy is never called behind our back.
        words = f'nounwind "no-builtins" {width} {attrs}'
        made = _Function(name, f"define {linkage}{result} @{name}({arguments}) {words} {{")
        self._open.append(made)
        yield values
        self._open.pop()
        if not made.closed:
            assert result == "void", f"{name} must return a {result}"
            made.lines.append("  ret void")
        self._functions.append("\n".join([made.header, "entry:", *made.entry, *made.lines, "}"]))

    def helper(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once per module: for helper functions and tables."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def unique(self, name: str) -> str:
        """A name for a helper or table, under that of the function being written."""
        return self._open[0].name + "." + name

    def ret(self, value: Value | None = None) -> None:
        """Return. Nothing may follow in this block."""
        self.raw(f"ret {value}" if value is not None else "ret void")
        self._open[-1].closed = True

    def declare(self, result: str, name: str, types: Sequence[str]) -> None:
        """Declare an external function once."""
        self._declared.setdefault(name, f"declare {result} @{name}({', '.join(types)})")

    def call(self, result: str, callee: str | Value, *arguments: Value) -> Value | None:
        """Call a function of this module by name, or through a pointer; None for void."""
        name = callee.name if isinstance(callee, Value) else f"@{callee}"
        text = f"call {result} {name}({', '.join(map(str, arguments))})"
        if result == "void":
            self.raw(text)
            return None
        return self._emit(result, text)

    def intrinsic(self, name: str, result: str, *arguments: Value) -> Value:
        """Call an LLVM intrinsic by its full name, declaring it."""
        self.declare(result, name, [argument.type for argument in arguments])
        value = self.call(result, name, *arguments)
        return value if value is not None else Value("", "void")

    def global_table(self, element: str, numbers: Sequence[Any], name: str) -> Value:
        """A constant array in the module; give names that are unique per kernel."""
        body = ", ".join(f"{element} {literal(element, number)}" for number in numbers)
        array = f"[{len(numbers)} x {element}] [{body}]"
        self._globals.setdefault(name, f"@{name} = internal constant {array}, align 64")
        return Value(f"@{name}", "ptr")

    # ---- constants --------------------------------------------------------------------------------------------------

    def const(self, dtype: str, number: Any, lanes: int = 1) -> Value:
        """A constant of a plait dtype, exact."""
        if dtype == "bfloat16":
            number = int(np.asarray(number, ml_dtypes.bfloat16).view(np.uint16))
        return self.constant(vector(REGISTER_TYPES[dtype], lanes), number)

    def constant(self, type: str, number: Any) -> Value:
        """A constant of an LLVM type, the same in every lane."""
        lanes, element = split_type(type)
        if element == "ptr":
            return Value("null" if lanes == 1 else "zeroinitializer", type)
        text = literal(element, number)
        return Value(text if lanes == 1 else f"splat ({element} {text})", type)

    def constants(self, element: str, numbers: Sequence[Any]) -> Value:
        """A vector constant with a number per lane."""
        if len(numbers) == 1:
            return self.constant(element, numbers[0])
        body = ", ".join(f"{element} {literal(element, number)}" for number in numbers)
        return Value(f"<{body}>", vector(element, len(numbers)))

    def iota(self, lanes: int, element: str = "i64") -> Value:
        """0, 1, 2, ... per lane."""
        return self.constants(element, range(lanes))

    def index(self, value: Index) -> Value:
        """An int64: a Value as it is, a Python int as a constant."""
        return value if isinstance(value, Value) else Value(str(value), "i64")

    def _pair(self, a: Operand, b: Operand) -> tuple[Value, Value]:
        """Two operands of one type; a Python number takes the other's type, two of them are int64."""
        if not isinstance(a, Value):
            a = self.constant(b.type if isinstance(b, Value) else "i64", a)
        if not isinstance(b, Value):
            b = self.constant(a.type, b)
        assert a.type == b.type, f"operands are {a} and {b}"
        return a, b

    def _binary(self, op: str, a: Operand, b: Operand) -> Value:
        x, y = self._pair(a, b)
        return self._emit(x.type, f"{op} {x}, {y.name}")

    def _unary(self, name: str, x: Value) -> Value:
        return self.intrinsic(f"llvm.{name}.{_suffix(x.type)}", x.type, x)

    # ---- integers and bits (any integer type, vectors too) ----------------------------------------------------------

    def iadd(self, a: Operand, b: Operand) -> Value:
        return self._binary("add", a, b)

    def isub(self, a: Operand, b: Operand) -> Value:
        return self._binary("sub", a, b)

    def imul(self, a: Operand, b: Operand) -> Value:
        return self._binary("mul", a, b)

    def idiv(self, a: Operand, b: Operand) -> Value:
        """Signed, towards zero; undefined for 0 and for the overflow."""
        return self._binary("sdiv", a, b)

    def irem(self, a: Operand, b: Operand) -> Value:
        """Signed, with the sign of the dividend; undefined for 0 and for the overflow."""
        return self._binary("srem", a, b)

    def udiv(self, a: Operand, b: Operand) -> Value:
        return self._binary("udiv", a, b)

    def urem(self, a: Operand, b: Operand) -> Value:
        return self._binary("urem", a, b)

    def _extreme(self, name: str, a: Operand, b: Operand) -> Value:
        x, y = self._pair(a, b)
        return self.intrinsic(f"llvm.{name}.{_suffix(x.type)}", x.type, x, y)

    def imin(self, a: Operand, b: Operand) -> Value:
        return self._extreme("smin", a, b)

    def imax(self, a: Operand, b: Operand) -> Value:
        return self._extreme("smax", a, b)

    def umin(self, a: Operand, b: Operand) -> Value:
        return self._extreme("umin", a, b)

    def umax(self, a: Operand, b: Operand) -> Value:
        return self._extreme("umax", a, b)

    def ineg(self, x: Value) -> Value:
        return self.isub(self.constant(x.type, 0), x)

    def band(self, a: Operand, b: Operand) -> Value:
        return self._binary("and", a, b)

    def bor(self, a: Operand, b: Operand) -> Value:
        return self._binary("or", a, b)

    def bxor(self, a: Operand, b: Operand) -> Value:
        return self._binary("xor", a, b)

    def bnot(self, x: Value) -> Value:
        return self.bxor(x, self.constant(x.type, -1))

    def shl(self, a: Operand, b: Operand) -> Value:
        """Undefined for a count of the width or more, as are lshr and ashr."""
        return self._binary("shl", a, b)

    def lshr(self, a: Operand, b: Operand) -> Value:
        return self._binary("lshr", a, b)

    def ashr(self, a: Operand, b: Operand) -> Value:
        return self._binary("ashr", a, b)

    # ---- floats -----------------------------------------------------------------------------------------------------

    def fadd(self, a: Operand, b: Operand) -> Value:
        return self._binary("fadd", a, b)

    def fsub(self, a: Operand, b: Operand) -> Value:
        return self._binary("fsub", a, b)

    def fmul(self, a: Operand, b: Operand) -> Value:
        return self._binary("fmul", a, b)

    def fdiv(self, a: Operand, b: Operand) -> Value:
        return self._binary("fdiv", a, b)

    def fneg(self, x: Value) -> Value:
        return self._emit(x.type, f"fneg {x}")

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """a * b + c, rounded once where the target has the instruction, twice where it has not (no call to libm)."""
        like = next(operand for operand in (a, b, c) if isinstance(operand, Value))
        x, y, z = (v if isinstance(v, Value) else self.constant(like.type, v) for v in (a, b, c))
        assert x.type == y.type == z.type, f"fma of {x}, {y}, {z}"
        if not self.target.has_fma:
            return self.fadd(self.fmul(x, y), z)
        return self.intrinsic(f"llvm.fma.{_suffix(x.type)}", x.type, x, y, z)

    def fmax(self, a: Operand, b: Operand) -> Value:
        """NumPy's maximum: NaN if either is NaN; the first of two equal zeros."""
        return self._float_extreme("ogt", a, b)

    def fmin(self, a: Operand, b: Operand) -> Value:
        """NumPy's minimum: NaN if either is NaN; the first of two equal zeros."""
        return self._float_extreme("olt", a, b)

    def _float_extreme(self, predicate: str, a: Operand, b: Operand) -> Value:
        x, y = self._pair(a, b)
        best = self.select(self.fcmp(predicate, y, x), y, x)
        return self.select(self.fcmp("uno", y, y), y, best)

    def sqrt(self, x: Value) -> Value:
        return self._unary("sqrt", x)

    def fabs(self, x: Value) -> Value:
        return self._unary("fabs", x)

    def floor(self, x: Value) -> Value:
        return self._round("floor", x)

    def ceil(self, x: Value) -> Value:
        return self._round("ceil", x)

    def trunc(self, x: Value) -> Value:
        return self._round("trunc", x)

    def round_even(self, x: Value) -> Value:
        return self._round("roundeven", x)

    def _round(self, name: str, x: Value) -> Value:
        if self.target.has_round:
            return self._unary(name, x)
        magic = float(2**23 if x.element == "float" else 2**52)  # from here on every float is an integer
        size = self.fabs(x)
        near = self.fsub(self.fadd(size, magic), magic)
        if name != "roundeven":
            low = self.select(self.fcmp("ogt", near, size), self.fsub(near, 1.0), near)
            up = self.select(self.fcmp("olt", low, size), self.fadd(low, 1.0), low)
            away = self.fcmp("ogt", x, 0.0) if name == "ceil" else self.fcmp("olt", x, 0.0)
            near = low if name == "trunc" else self.select(away, up, low)
        small = self.fcmp("olt", size, magic)
        return self.select(small, self.copysign(near, x), x)

    def copysign(self, size: Operand, sign: Operand) -> Value:
        x, y = self._pair(size, sign)
        return self.intrinsic(f"llvm.copysign.{_suffix(x.type)}", x.type, x, y)

    def ldexp(self, x: Value, exponent: Value) -> Value:
        """x * 2^exponent, rounded once, for x near 1 and |exponent| up to twice the type's range."""
        if self.target.has_ldexp and x.element == "float":
            return self.intrinsic(f"llvm.ldexp.{_suffix(x.type)}.{_suffix(exponent.type)}", x.type, x, exponent)
        half = self.ashr(exponent, 1)
        for part in (half, self.isub(exponent, half)):
            x = self.fmul(x, self.power_of_two(part, x.element))
        return x

    def power_of_two(self, exponent: Value, element: str) -> Value:
        """2^exponent for exponents of normal numbers; `exponent` is i32 for float and i64 for double."""
        mantissa, bias = (23, 127) if element == "float" else (52, 1023)
        return self.bitcast(self.shl(self.iadd(exponent, bias), mantissa), element)

    # ---- comparisons and choice -------------------------------------------------------------------------------------

    def icmp(self, predicate: str, a: Operand, b: Operand) -> Value:
        """predicate: eq ne slt sle sgt sge ult ule ugt uge."""
        x, y = self._pair(a, b)
        return self._emit(vector("i1", x.lanes), f"icmp {predicate} {x}, {y.name}")

    def fcmp(self, predicate: str, a: Operand, b: Operand) -> Value:
        """predicate: oeq one olt ole ogt oge ord, une uno ult ule ugt uge."""
        x, y = self._pair(a, b)
        return self._emit(vector("i1", x.lanes), f"fcmp {predicate} {x}, {y.name}")

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """a where the condition holds; a scalar condition chooses a whole vector."""
        x, y = self._pair(a, b)
        return self._emit(x.type, f"select {condition}, {x}, {y}")

    # ---- conversions; `element` is the new scalar type, lanes stay --------------------------------------------------

    def _convert(self, op: str, x: Value, element: str) -> Value:
        type = vector(element, x.lanes)
        return x if type == x.type else self._emit(type, f"{op} {x} to {type}")

    def fpext(self, x: Value, element: str) -> Value:
        if x.element == "half" and not self.target.has_half:
            return self.fpext(self._half_to_float(x), element)
        return self._convert("fpext", x, element)

    def fptrunc(self, x: Value, element: str) -> Value:
        """Round to nearest even, once also from double to half."""
        if element == "half" and x.element == "double":
            return self.fptrunc(self.double_to_odd_float(x), "half")
        if element == "half" and not self.target.has_half:
            return self._float_to_half(x)
        return self._convert("fptrunc", x, element)

    def sitofp(self, x: Value, element: str) -> Value:
        return self._convert("sitofp", x, element)

    def uitofp(self, x: Value, element: str) -> Value:
        return self._convert("uitofp", x, element)

    def fptosi_sat(self, x: Value, element: str) -> Value:
        """Towards zero, saturating; NaN gives 0."""
        type = vector(element, x.lanes)
        return self.intrinsic(f"llvm.fptosi.sat.{_suffix(type)}.{_suffix(x.type)}", type, x)

    def fptoui_sat(self, x: Value, element: str) -> Value:
        """Towards zero, saturating; NaN gives 0."""
        type = vector(element, x.lanes)
        return self.intrinsic(f"llvm.fptoui.sat.{_suffix(type)}.{_suffix(x.type)}", type, x)

    def zext(self, x: Value, element: str) -> Value:
        return self._convert("zext", x, element)

    def sext(self, x: Value, element: str) -> Value:
        return self._convert("sext", x, element)

    def itrunc(self, x: Value, element: str) -> Value:
        return self._convert("trunc", x, element)

    def resize(self, x: Value, element: str, signed: bool = True) -> Value:
        """An integer of another width: extended by its sign or by zeros, or cut."""
        if type_bits(element) <= type_bits(x.element):
            return self.itrunc(x, element)
        return self.sext(x, element) if signed else self.zext(x, element)

    def bitcast(self, x: Value, element: str) -> Value:
        """The same bits as elements of another type; the number of lanes follows from the sizes."""
        lanes = x.lanes * type_bits(x.element) // type_bits(element)
        type = vector(element, lanes)
        return x if type == x.type else self._emit(type, f"bitcast {x} to {type}")

    def ptr_to_int(self, x: Value) -> Value:
        return self._convert("ptrtoint", x, "i64")

    def int_to_ptr(self, x: Value) -> Value:
        return self._convert("inttoptr", x, "ptr")

    def bf16_to_f32(self, x: Value) -> Value:
        """i16 bits of bfloat16 -> float."""
        return self.bitcast(self.shl(self.zext(x, "i32"), 16), "float")

    def f32_to_bf16(self, x: Value) -> Value:
        """float -> i16 bits of bfloat16: nearest even, NaNs quiet."""
        bits = self.bitcast(x, "i32")
        odd = self.band(self.lshr(bits, 16), 1)
        rounded = self.lshr(self.iadd(self.iadd(bits, odd), 0x7FFF), 16)
        quiet = self.bor(self.lshr(bits, 16), 0x40)
        return self.itrunc(self.select(self.fcmp("uno", x, x), quiet, rounded), "i16")

    def double_to_odd_float(self, x: Value) -> Value:
        """double -> float rounded to odd, so that a further rounding to 16 bits is right."""
        near = self._convert("fptrunc", x, "float")
        back = self.fpext(near, "double")
        bits = self.bitcast(near, "i32")
        away = self.zext(self.fcmp("ogt", self.fabs(back), self.fabs(x)), "i32")
        inexact = self.zext(self.fcmp("one", back, x), "i32")
        return self.bitcast(self.bor(self.isub(bits, away), inexact), "float")

    def _half_to_float(self, x: Value) -> Value:
        bits = self.zext(self.bitcast(x, "i16"), "i32")
        size = self.shl(self.band(bits, 0x7FFF), 13)
        scaled = self.bitcast(self.fmul(self.bitcast(size, "float"), 2.0**112), "i32")
        special = self.icmp("uge", size, 0x7C00 << 13)
        quiet = self.select(self.icmp("ugt", size, 0x7C00 << 13), self.constant(size.type, 0x400000), 0)
        whole = self.select(special, self.bor(self.bor(size, 0x7F800000), quiet), scaled)
        return self.bitcast(self.bor(whole, self.shl(self.band(bits, 0x8000), 16)), "float")

    def _float_to_half(self, x: Value) -> Value:
        bits = self.bitcast(x, "i32")
        sign = self.band(self.lshr(bits, 16), 0x8000)
        size = self.band(bits, 0x7FFFFFFF)
        odd = self.band(self.lshr(size, 13), 1)
        normal = self.lshr(self.iadd(self.iadd(self.isub(size, 112 << 23), 0xFFF), odd), 13)
        # 0.5 has the spacing of half's subnormals, so the addition rounds to one.
        shifted = self.bitcast(self.fadd(self.bitcast(size, "float"), 0.5), "i32")
        small = self.isub(shifted, 0x3F000000)
        body = self.select(self.icmp("ult", size, 113 << 23), small, normal)
        body = self.select(self.icmp("uge", size, 0x477FF000), self.constant(size.type, 0x7C00), body)
        quiet = self.bor(self.band(self.lshr(size, 13), 0x3FF), 0x7E00)
        body = self.select(self.icmp("ugt", size, 0x7F800000), quiet, body)
        return self.bitcast(self.itrunc(self.bor(body, sign), "i16"), "half")

    # ---- lanes ------------------------------------------------------------------------------------------------------

    def splat(self, x: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1:
            return x
        type = vector(x.type, lanes)
        first = self._emit(type, f"insertelement {type} poison, {x}, i64 0")
        return self._emit(type, f"shufflevector {first}, {type} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, x: Value, lane: Index) -> Value:
        if x.lanes == 1:
            return x
        return self._emit(x.element, f"extractelement {x}, {self.index(lane)}")

    def insert(self, x: Value, scalar: Value, lane: Index) -> Value:
        if x.lanes == 1:
            return scalar
        return self._emit(x.type, f"insertelement {x}, {scalar}, {self.index(lane)}")

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """Lanes of a and b (numbered on from a's) in the given order; one lane gives a scalar."""
        if len(lanes) == 1:
            source = a if lanes[0] < a.lanes else b
            assert source is not None
            return self.extract(source, lanes[0] % a.lanes)
        second = f"{b}" if b is not None else f"{a.type} poison"
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        return self._emit(vector(a.element, len(lanes)), f"shufflevector {a}, {second}, <{len(lanes)} x i32> <{order}>")

    def slice(self, x: Value, start: int, count: int) -> Value:
        """`count` neighbouring lanes."""
        return x if count == x.lanes else self.shuffle(x, None, range(start, start + count))

    def concat(self, values: Sequence[Value]) -> Value:
        """One vector of all lanes, in order."""
        items = list(values)
        while len(items) > 1:
            items = [self._join(items[i], items[i + 1]) for i in range(0, len(items), 2)]
        return items[0]

    def _join(self, a: Value, b: Value) -> Value:
        if a.lanes > 1:
            return self.shuffle(a, b, range(2 * a.lanes))
        type = vector(a.type, 2)
        first = self._emit(type, f"insertelement {type} poison, {a}, i64 0")
        return self.insert(first, b, 1)

    def mask(self, count: Index, lanes: int) -> Value:
        """True in the first `count` (int64) lanes."""
        number = self.index(count)
        if lanes == 1:
            return self.icmp("sgt", number, 0)
        bounded = self.itrunc(self.imin(number, lanes), "i32")
        return self.icmp("slt", self.iota(lanes, "i32"), self.splat(bounded, lanes))

    def any_lane(self, condition: Value) -> Value:
        """A scalar i1: whether it holds in some lane."""
        if condition.lanes == 1:
            return condition
        return self.intrinsic(f"llvm.vector.reduce.or.{_suffix(condition.type)}", "i1", condition)

    def fold(self, combine: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
        """One scalar from all lanes of the values, in a fixed order.

        The lanes count on through the values and are combined half with half: lane i with lane i + n/2, until one is
        left. So 16 logical lanes give the same bits as one vector of 16, two of 8, four of 4 or 16 scalars.
        """
        items = list(values)
        while len(items) > 1:
            half = len(items) // 2
            items = [combine(items[i], items[i + half]) for i in range(half)]
        (value,) = items
        while value.lanes > 1:
            half = value.lanes // 2
            value = combine(self.slice(value, 0, half), self.slice(value, half, half))
        return value

    def reduce(self, op: str, values: Sequence[Value]) -> Value:
        """`fold` with an operation named as the method: fadd fmul fmax fmin iadd imul imin imax umin umax band bor."""
        return self.fold(getattr(self, op), values)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def gep(self, element: str, pointer: Value, index: Index | Value) -> Value:
        """The address of element `index`; a vector of indices gives a vector of addresses."""
        position = self.index(index)
        return self._emit(vector("ptr", position.lanes), f"getelementptr {element}, {pointer}, {position}")

    def alloca(self, type: str, count: int = 1, align: int = 64) -> Value:
        """Stack memory, placed at the function's start whatever block asks for it."""
        name = self._fresh()
        self._open[-1].entry.append(f"  {name} = alloca {type}, i64 {count}, align {align}")
        return Value(name, "ptr")

    def _align(self, type: str, align: int | None) -> int:
        return align if align is not None else max(1, type_bits(split_type(type)[1]) // 8)

    def load(self, type: str, pointer: Value, align: int | None = None) -> Value:
        """Load a scalar or vector; aligned to its element unless told otherwise."""
        return self._emit(type, f"load {type}, {pointer}, align {self._align(type, align)}")

    def store(self, value: Value, pointer: Value, align: int | None = None) -> None:
        self.raw(f"store {value}, {pointer}, align {self._align(value.type, align)}")

    def vload(self, pointer: Value, type: str, mask: Value | None = None, align: int | None = None) -> Value:
        """Load consecutive elements; lanes outside the mask are 0 and not touched."""
        if mask is None:
            return self.load(type, pointer, align)
        zero = self.constant(type, 0)
        if mask.lanes == 1:
            return self.if_(mask, lambda: [self.load(type, pointer, align)], lambda: [zero])[0]
        alignment = Value(str(self._align(type, align)), "i32")
        name = f"llvm.masked.load.{_suffix(type)}.p0"
        self.declare(type, name, ["ptr", "i32", mask.type, type])
        return self._emit(type, f"call {type} @{name}({pointer}, {alignment}, {mask}, {zero})")

    def vstore(self, value: Value, pointer: Value, mask: Value | None = None, align: int | None = None) -> None:
        """Store consecutive elements; memory outside the mask is not touched."""
        if mask is None:
            return self.store(value, pointer, align)
        if mask.lanes == 1:
            self.if_(mask, lambda: self.store(value, pointer, align))
            return None
        alignment = Value(str(self._align(value.type, align)), "i32")
        name = f"llvm.masked.store.{_suffix(value.type)}.p0"
        self.declare("void", name, [value.type, "ptr", "i32", mask.type])
        self.raw(f"call void @{name}({value}, {pointer}, {alignment}, {mask})")

    def gather(self, element: str, pointers: Value, mask: Value | None = None) -> Value:
        """Load one element per address; lanes outside the mask are 0 and not touched."""
        lanes = pointers.lanes
        type = vector(element, lanes)
        if lanes == 1:
            return self.vload(pointers, type, mask)
        chosen = mask or self.constant(vector("i1", lanes), True)
        alignment = Value(str(self._align(type, None)), "i32")
        name = f"llvm.masked.gather.{_suffix(type)}.{_suffix(pointers.type)}"
        self.declare(type, name, [pointers.type, "i32", chosen.type, type])
        zero = self.constant(type, 0)
        return self._emit(type, f"call {type} @{name}({pointers}, {alignment}, {chosen}, {zero})")

    def scatter(self, value: Value, pointers: Value, mask: Value | None = None) -> None:
        """Store one element per address; of equal addresses the last lane wins."""
        if pointers.lanes == 1:
            return self.vstore(value, pointers, mask)
        chosen = mask or self.constant(vector("i1", pointers.lanes), True)
        alignment = Value(str(self._align(value.type, None)), "i32")
        name = f"llvm.masked.scatter.{_suffix(value.type)}.{_suffix(pointers.type)}"
        self.declare("void", name, [value.type, pointers.type, "i32", chosen.type])
        self.raw(f"call void @{name}({value}, {pointers}, {alignment}, {chosen})")
        return None

    def prefetch(self, pointer: Value) -> None:
        """Ask for a cache line that will be read."""
        flags = [Value("0", "i32"), Value("3", "i32"), Value("1", "i32")]
        self.intrinsic("llvm.prefetch.p0", "void", pointer, *flags)

    def slot(self, args: Value, number: int, type: str = "ptr") -> Value:
        """Argument `number` of a kernel's block: an 8-byte slot holding a ptr, i64 or double."""
        return self.load(type, self.gep("i64", args, number), 8)

    # ---- byte dot products ------------------------------------------------------------------------------------------

    def dot4(self, total: Value, unsigned: Value, signed: Value) -> Value:
        """total + sum of 4 products per lane: total <n x i32>, unsigned and signed <4n x i8> (u8 and i8).

        Exact for 7-bit and 8-bit unsigned codes alike.
        """
        lanes = total.lanes
        if self.target.has_vnni and lanes == 16:
            u, s = self.bitcast(unsigned, "i32"), self.bitcast(signed, "i32")
            return self.intrinsic("llvm.x86.avx512.vpdpbusd.512", total.type, total, u, s)
        product = self.imul(self.sext(self.zext(unsigned, "i16"), "i32"), self.sext(signed, "i32"))
        for start in range(4):
            total = self.iadd(total, self.shuffle(product, None, range(start, 4 * lanes, 4)))
        return total

    # ---- control flow -----------------------------------------------------------------------------------------------

    def _label(self) -> str:
        return self._fresh("L")

    def _start(self, label: str) -> None:
        made = self._open[-1]
        made.lines.append(f"{label}:")
        made.block, made.closed = label, False

    def _branch(self, label: str) -> None:
        if not self._open[-1].closed:
            self.raw(f"br label %{label}")

    def if_(
        self, condition: Value, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None
    ) -> list[Value]:
        """Run one branch. Branches may return lists of Values of equal types; the result is the chosen ones."""
        yes, no, end = self._label(), self._label(), self._label()
        self.raw(f"br {condition}, label %{yes}, label %{no}")
        ends = []
        for label, body in ((yes, then), (no, otherwise)):
            self._start(label)
            values = (body() if body is not None else None) or []
            if not self._open[-1].closed:
                ends.append((values, self._open[-1].block))
            self._branch(end)
        self._start(end)
        if not ends:
            self.raw("unreachable")
            self._open[-1].closed = True
            return []
        count = len(ends[0][0])
        assert all(len(values) == count for values, _ in ends), "branches must return the same values"
        return [self._phi(count_of, ends) for count_of in range(count)]

    def _phi(self, position: int, ends: Sequence[tuple[Sequence[Value], str]]) -> Value:
        sources = ", ".join(f"[{values[position].name}, %{block}]" for values, block in ends)
        type = ends[0][0][position].type
        return self._emit(type, f"phi {type} {sources}")

    def while_(
        self,
        carried: Sequence[Value],
        condition: Callable[..., Value],
        body: Callable[..., Sequence[Value]],
    ) -> list[Value]:
        """While condition(*carried) holds, carried = body(*carried). Returns the last carried values."""
        head, inside, end = self._label(), self._label(), self._label()
        before = self._open[-1].block
        self._branch(head)
        self._start(head)
        lines = self._open[-1].lines
        place = len(lines)
        phis = [Value(self._fresh(), value.type) for value in carried]
        lines.extend([""] * len(phis))
        test = condition(*phis)
        self.raw(f"br {test}, label %{inside}, label %{end}")
        self._start(inside)
        following = list(body(*phis) or [])
        assert [v.type for v in following] == [v.type for v in carried], "a loop must carry on the same types"
        latch = self._open[-1].block
        self._branch(head)
        for number, (phi, first, then) in enumerate(zip(phis, carried, following, strict=True)):
            sources = f"[{first.name}, %{before}], [{then.name}, %{latch}]"
            lines[place + number] = f"  {phi.name} = phi {phi.type} {sources}"
        self._start(end)
        return phis

    def loop(
        self,
        lo: Index,
        hi: Index,
        step: Index,
        body: Callable[..., Any],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """for i in range(lo, hi, step), step > 0: carried = body(i, *carried). Returns the last carried values."""
        stop, stride = self.index(hi), self.index(step)

        def around(i: Value, *values: Value) -> list[Value]:
            following = list(body(i, *values) or [])
            return [self._emit("i64", f"add nsw {i}, {stride.name}"), *following]

        return self.while_([self.index(lo), *carried], lambda i, *_: self.icmp("slt", i, stop), around)[1:]

    def vloop(
        self,
        lo: Index,
        hi: Index,
        lanes: int,
        body: Callable[..., Any],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """body(i, mask, *carried) over lo..hi in steps of `lanes`: mask None, then at most once with a mask."""
        start, stop = self.index(lo), self.index(hi)
        whole = self.band(self.isub(stop, start), -lanes) if lanes > 1 else self.isub(stop, start)
        edge = self.iadd(start, whole)
        values = self.loop(start, edge, lanes, lambda i, *rest: body(i, None, *rest), carried)
        if lanes == 1:
            return values

        def tail() -> Any:
            return body(edge, self.mask(self.isub(stop, edge), lanes), *values)

        return self.if_(self.icmp("slt", edge, stop), tail, lambda: list(values))
