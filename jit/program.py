"""The native entry of a compiled graph: `i32 g(ptr rt, ptr args, ptr dims)` as LLVM text, from steps and a memory plan.

The entry fills one table of 8-byte words (argument addresses, bound weights, slot addresses, sizes, numbers) and then
walks a constant table of launches whose arguments are places in it: 250 launches cost as much text as their tables.
Status: 0 done, 1 the arena is too small, 2 a size divides by zero, 3 a host call failed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.framework.dim import Atom, Dim, FloorDiv, Monomial, Size
from plait.framework.dtype import DTYPES
from plait.framework.errors import CompileError
from plait.framework.graph import CONST, INPUT, WEIGHT, Node
from plait.jit.builder import Builder, Value
from plait.jit.kernel import HostCall, Kernel, Launch, Step
from plait.jit.memory import ALIGN, MemoryPlan, owner, plan
from plait.jit.stage import StagedGraph
from plait.jit.target import Target
from plait.jit.view import base_of

# Words of the runtime block `rt`, one per call in flight.
RT = {
    name: index
    for index, name in enumerate(
        ("next", "pool", "pool_run", "host", "arena", "capacity", "needed", "failed", "bound", "begin", "end", "status")
    )
}
RT_WORDS = 16  # what follows them belongs to the caller
DONE, ARENA_TOO_SMALL, DIVISION_BY_ZERO, HOST_CALL_FAILED = range(4)

Place = tuple[str, int]  # (kind of word, number within the kind)
_KINDS = ("input", "output", "bound", "slot", "size", "number", "real")
_STEP_WORDS = 6  # kernel, first place, count, extent, grain, host call or -1


@dataclass(frozen=True)
class Bound:
    """A word filled when weights are bound: a weight by name or a constant, as it is or repacked."""

    node: Node
    packing: str | None

    @property
    def name(self) -> str | None:
        return str(self.node.attr("name")) if self.node.op is WEIGHT else None


@dataclass(eq=False)
class Program:
    """All tables of one entry."""

    symbols: list[str]
    num_inputs: int
    outputs: list[Node]
    steps: list[Step]
    plan: MemoryPlan
    bound: list[Bound] = field(default_factory=list)
    sizes: dict[Size, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    reals: dict[Size, int] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    rows: list[tuple[int, list[Place], Place, Place, int]] = field(default_factory=list)
    host_calls: list[tuple[HostCall, list[Node]]] = field(default_factory=list)

    @property
    def counts(self) -> list[int]:
        """Words of each kind, in the order of the table."""
        return [
            self.num_inputs, len(self.outputs), len(self.bound), len(self.plan.slots), len(self.sizes),
            len(self.numbers), len(self.reals),
        ]  # fmt: skip

    def position(self, place: Place) -> int:
        """Where a place stands in the table of words."""
        kind = _KINDS.index(place[0])
        return sum(self.counts[:kind]) + place[1]


def build(staged: StagedGraph, steps: list[Step]) -> Program:
    """Lay out every launch's arguments."""
    outputs = [node for i, node in enumerate(staged.graph.outputs) if i not in staged.forwarded]
    program = Program(staged.symbols, len(staged.graph.inputs), outputs, steps, plan(steps, outputs))
    homes = {id(owner(node)): ("output", index) for index, node in enumerate(outputs)}
    seen: dict[tuple[int | str, str | None], int] = {}
    for step in steps:
        if isinstance(step, Launch):
            _add_launch(program, step, homes, seen)
        else:
            _add_host_call(program, step, homes, seen)
    return program


def _add_launch(program: Program, step: Launch, homes: dict[int, Place], seen: dict[Any, int]) -> None:
    places: list[Place] = []
    for kind, value in step.slots():
        if kind == "operand":
            places.append(_home(program, value.node, value.packing, homes, seen))
        else:
            places.append(_size_place(program, value) if kind == "int" else _scalar_place(program, *value))
    symbol = step.kernel.symbol
    program.kernels.setdefault(symbol, step.kernel)
    number = list(program.kernels).index(symbol)
    extent, grain = _size_place(program, step.extent), _size_place(program, step.grain)
    program.rows.append((number, places, extent, grain, -1))


def _add_host_call(program: Program, step: HostCall, homes: dict[int, Place], seen: dict[Any, int]) -> None:
    bases = [base_of(src) for src in step.node.srcs]
    nodes = [base for base in bases if base.op is not CONST] + [step.node]
    places = [_home(program, node, None, homes, seen) for node in nodes]
    one = _size_place(program, 1)
    program.rows.append((0, places, one, one, len(program.host_calls)))
    program.host_calls.append((step, nodes))


def _home(program: Program, node: Node, packing: str | None, homes: dict[int, Place], seen: dict[Any, int]) -> Place:
    """The word that holds the address of a node's memory."""
    value = owner(node)
    if value.op is INPUT:
        return "input", value.attr("index")
    if id(value) in homes:
        return homes[id(value)]
    if value.op is WEIGHT or value.buffer is not None:
        key = (value.attr("name") if value.op is WEIGHT else id(value), packing)
        if key not in seen:
            seen[key] = len(program.bound)
            program.bound.append(Bound(value, packing))
        return "bound", seen[key]
    if id(value) not in program.plan.slot_of:
        raise CompileError(f"program: {value} is an operand of a kernel and has no memory.")
    return "slot", program.plan.slot_of[id(value)]


def _size_place(program: Program, size: Size) -> Place:
    if isinstance(size, Dim):
        return "size", program.sizes.setdefault(size, len(program.sizes))
    return _number_place(program, int(size))


def _number_place(program: Program, number: int) -> Place:
    wrapped = (number + (1 << 63)) % (1 << 64) - (1 << 63)
    return "number", program.numbers.setdefault(wrapped, len(program.numbers))


def _scalar_place(program: Program, value: Any, dtype: str) -> Place:
    """Floats travel as the bits of a double, everything else as an i64."""
    if not DTYPES[dtype].is_float:
        return _size_place(program, value)
    if isinstance(value, Dim):
        return "real", program.reals.setdefault(value, len(program.reals))
    return _number_place(program, struct.unpack("<q", struct.pack("<d", value))[0])


# ---- text -----------------------------------------------------------------------------------------------------------


class Sizes:
    """Emits size expressions, each part once."""

    def __init__(self, builder: Builder, symbols: Sequence[str], dims: Value) -> None:
        self.b = builder
        self.values: dict[Any, Value] = {
            name: builder.load("i64", builder.gep("i64", dims, index)) for index, name in enumerate(symbols)
        }
        self.divisor_is_zero = Value("false", "i1")

    def size(self, size: Size) -> Value:
        if not isinstance(size, Dim):
            return self.b.constant("i64", size)
        if size not in self.values:
            total: Value | None = None
            for monomial, coefficient in sorted(size.terms.items(), key=str):
                term = self._term(monomial, coefficient)
                total = term if total is None else self.b.iadd(total, term)
            assert total is not None
            self.values[size] = total
        return self.values[size]

    def _term(self, monomial: Monomial, coefficient: int) -> Value:
        if monomial not in self.values:
            product = self.b.constant("i64", 1)
            for number, atom in enumerate(monomial):
                value = self._atom(atom)
                product = value if number == 0 else self.b.imul(product, value)
            self.values[monomial] = product
        value = self.values[monomial]
        return value if coefficient == 1 else self.b.imul(value, coefficient)

    def _atom(self, atom: Atom) -> Value:
        if atom not in self.values:
            assert isinstance(atom, FloorDiv), f"{atom!r} is no symbol of this graph"
            self.values[atom] = self._floor(self.size(atom.numerator), self.size(atom.denominator))
        return self.values[atom]

    def _floor(self, numerator: Value, denominator: Value) -> Value:
        b = self.b
        zero = b.icmp("eq", denominator, 0)
        self.divisor_is_zero = b.bor(self.divisor_is_zero, zero)
        divisor = b.select(zero, b.constant("i64", 1), denominator)
        quotient, rest = b.idiv(numerator, divisor), b.irem(numerator, divisor)
        inexact = b.icmp("ne", rest, 0)
        below = b.band(inexact, b.icmp("slt", b.bxor(rest, divisor), 0))
        return b.isub(quotient, b.zext(below, "i64"))


def emit(program: Program, target: Target, symbol: str) -> str:
    """The module that defines the entry; the kernels are external symbols."""
    b = Builder(target)
    tables = _tables(program, b, symbol)
    with b.function(symbol, (("ptr", "rt"), ("ptr", "args"), ("ptr", "dims")), result="i32") as (rt, args, dims):
        total = sum(program.counts)
        words = b.alloca("i64", max(1, total))
        _copy(b, words, 0, args, program.num_inputs + len(program.outputs))
        _copy(b, words, program.position(("bound", 0)), _load(b, rt, "bound", "ptr"), len(program.bound))
        _copy(b, words, program.position(("number", 0)), Value(f"@{symbol}_numbers", "ptr"), len(program.numbers))
        sizes = Sizes(b, program.symbols, dims)
        _store_sizes(program, b, sizes, words)
        needed = _place_slots(program, b, sizes, words, rt)
        b.store(needed, b.gep("i64", rt, RT["needed"]))
        small = b.icmp("sgt", needed, _load(b, rt, "capacity"))
        early = b.select(small, b.constant("i32", ARENA_TOO_SMALL), b.constant("i32", DONE))
        early = b.select(sizes.divisor_is_zero, b.constant("i32", DIVISION_BY_ZERO), early)
        (status,) = b.if_(
            b.icmp("ne", early, 0), lambda: [early], lambda: [_run_steps(program, b, symbol, rt, words, dims)]
        )
        b.ret(status)
    return b.text() + tables


def _load(b: Builder, rt: Value, name: str, type: str = "i64") -> Value:
    return b.load(type, b.gep("i64", rt, RT[name]), 8)


def _copy(b: Builder, words: Value, start: int, source: Value, count: int) -> None:
    if count:
        target = b.gep("i64", words, start)
        b.loop(0, count, 1, lambda i: b.store(b.load("i64", b.gep("i64", source, i), 8), b.gep("i64", target, i), 8))


def _store_sizes(program: Program, b: Builder, sizes: Sizes, words: Value) -> None:
    for size, number in program.sizes.items():
        b.store(sizes.size(size), b.gep("i64", words, program.position(("size", number))), 8)
    for size, number in program.reals.items():
        place = b.gep("i64", words, program.position(("real", number)))
        b.store(b.bitcast(b.sitofp(sizes.size(size), "double"), "i64"), place, 8)


def _place_slots(program: Program, b: Builder, sizes: Sizes, words: Value, rt: Value) -> Value:
    """Store the slots' addresses: a prefix sum of their sizes. Returns the bytes of the arena."""
    arena = _load(b, rt, "arena")
    offset = b.constant("i64", 0)
    for number, slot in enumerate(program.plan.slots):
        b.store(b.iadd(arena, offset), b.gep("i64", words, program.position(("slot", number))), 8)
        largest = sizes.size(slot.sizes[0])
        for size in slot.sizes[1:]:
            largest = b.imax(largest, sizes.size(size))
        offset = b.iadd(offset, b.band(b.iadd(largest, ALIGN - 1), -ALIGN))
    return offset


def _run_steps(program: Program, b: Builder, symbol: str, rt: Value, words: Value, dims: Value) -> Value:
    block = b.alloca("i64", max([1, *(len(row[1]) for row in program.rows)]))
    last = b.imin(_load(b, rt, "end"), len(program.rows))

    def step(i: Value, status: Value) -> list[Value]:
        record = b.gep("i32", Value(f"@{symbol}_steps", "ptr"), b.imul(i, _STEP_WORDS))
        fields = [b.load("i32", b.gep("i32", record, number)) for number in range(_STEP_WORDS)]
        first, count, host = b.sext(fields[1], "i64"), b.sext(fields[2], "i64"), b.sext(fields[5], "i64")
        places = b.gep("i32", Value(f"@{symbol}_places", "ptr"), first)

        def fill(j: Value) -> None:
            place = b.sext(b.load("i32", b.gep("i32", places, j)), "i64")
            b.store(b.load("i64", b.gep("i64", words, place), 8), b.gep("i64", block, j), 8)

        b.loop(0, count, 1, fill)
        extent, grain = (b.load("i64", b.gep("i64", words, b.sext(x, "i64")), 8) for x in fields[3:5])
        kernel_at = b.gep("ptr", Value(f"@{symbol}_kernels", "ptr"), b.sext(fields[0], "i64"))

        def launch() -> list[Value]:
            _launch(b, rt, b.load("ptr", kernel_at, 8), block, extent, grain)
            return [b.constant("i32", DONE)]

        def call_host() -> list[Value]:
            failed = b.call("i32", _load(b, rt, "host", "ptr"), host, block, dims)
            assert failed is not None
            b.store(i, b.gep("i64", rt, RT["failed"]), 8)
            return [b.select(b.icmp("ne", failed, 0), b.constant("i32", HOST_CALL_FAILED), b.constant("i32", DONE))]

        (following,) = b.if_(b.icmp("slt", host, 0), launch, call_host)
        return [b.iadd(i, 1), following]

    def goes_on(i: Value, status: Value) -> Value:
        return b.band(b.icmp("slt", i, last), b.icmp("eq", status, DONE))

    return b.while_([_load(b, rt, "begin"), b.constant("i32", DONE)], goes_on, step)[1]


def _launch(b: Builder, rt: Value, kernel: Value, block: Value, extent: Value, grain: Value) -> None:
    zero = b.constant("i64", 0)

    def parallel() -> None:
        b.call("void", _load(b, rt, "pool_run", "ptr"), _load(b, rt, "pool", "ptr"), kernel, block, zero, extent, grain)

    def alone() -> None:
        b.if_(b.icmp("sgt", extent, 0), lambda: b.call("void", kernel, block, zero, extent) and None)

    b.if_(b.icmp("sgt", extent, grain), parallel, alone)


def _tables(program: Program, b: Builder, symbol: str) -> str:
    places: list[int] = []
    steps: list[int] = []
    for kernel, row, extent, grain, host in program.rows:
        steps += [kernel, len(places), len(row), program.position(extent), program.position(grain), host]
        places += [program.position(place) for place in row]
    lines = [
        _table(f"{symbol}_{name}", "i32", map(str, values)) for name, values in (("steps", steps), ("places", places))
    ]
    lines.append(_table(f"{symbol}_numbers", "i64", map(str, program.numbers)))
    lines.append(_table(f"{symbol}_kernels", "ptr", (f"@{name}" for name in program.kernels)))
    for name in program.kernels:
        lines.append(f"declare void @{name}(ptr, i64, i64)")
    return "\n".join(lines) + "\n"


def _table(name: str, element: str, values: Any) -> str:
    items = [f"{element} {value}" for value in values]
    body = f"[{', '.join(items)}]" if items else "zeroinitializer"
    return f"@{name} = internal constant [{len(items)} x {element}] {body}, align 8"
