"""LLVM IR as text: values, constants, functions, control flow. Knows the target, no arithmetic and no tensors.

A value is a name and an LLVM type. bfloat16 is an i16, bool is an i1 in registers and an i8 in memory.
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
def type_suffix(text: str) -> str:
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


class Writer:
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
        # no-builtins: loops stay loops, they never become calls to memset or memcpy.
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
        return self.intrinsic(f"llvm.{name}.{type_suffix(x.type)}", x.type, x)

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

    def if_(self, condition: Value, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> list[Value]:
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

        return self.while_(
            [self.index(lo), *carried], lambda i, *_: self._emit("i1", f"icmp slt {i}, {stop.name}"), around
        )[1:]
