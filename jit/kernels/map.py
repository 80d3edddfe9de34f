"""The map skeleton: elementwise records over one space in one pass. Operands are strided, results contiguous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.framework.dim import Size, ceil_div, product
from plait.framework.dtype import DTYPES
from plait.framework.graph import Node
from plait.framework.op import Shape
from plait.framework.strides import contiguous_strides, merge_axes
from plait.jit.builder import REGISTER_TYPES, Builder, Value
from plait.jit.expression import ExpressionBuilder, Typed, memory_element
from plait.jit.kernel import Decline, Fused, Kernel, Launch
from plait.jit.kernels.loops import (
    UNIT_NS,
    LoadPlan,
    LoadReader,
    lanes_for,
    load_ints,
    load_plan,
    nanoseconds,
    pointers,
    span,
    unflatten,
    with_work,
)
from plait.jit.kernels.program import Program, program_name, require_code
from plait.jit.target import Target
from plait.jit.view import copied_view, is_copying_reshape

BLOCK = 1024  # elements of the innermost axis that one unit covers
STRIP = 16  # rows that share the cache lines of operands that are walked across


@dataclass(frozen=True)
class MapKey:
    """The structure of a map kernel."""

    fused: Fused
    rank: int
    loads: tuple[LoadPlan, ...]
    results: tuple[str, ...]  # dtype names

    @property
    def strip(self) -> int:
        """Rows of one unit."""
        across = any(plan.walk == "n" and not plan.counts for plan in self.loads)
        return STRIP if across and self.rank > 1 else 1


def lower_map(outputs: Sequence[Node], inside: Sequence[Node]) -> Launch:
    """One launch that computes `outputs`; `inside` are the records computed in registers on the way, outputs included.

    Raises: Decline.
    """
    space = copied_view(outputs[0]).shape if is_copying_reshape(outputs[0]) else outputs[0].shape
    for node in outputs:
        if node.dtype.name not in REGISTER_TYPES:
            raise Decline(f"dtype_{node.dtype.name}")
    program = Program(space, inside)
    refs = [program.output(node) for node in outputs]
    fused = program.fused(refs)
    require_code(fused)
    sizes, strides = _merged(space, program)
    plans = tuple(load_plan(load, row[-1:]) for load, row in zip(program.loads, strides, strict=True))
    key = MapKey(fused, len(sizes), plans, tuple(node.dtype.name for node in outputs))
    rows = product(sizes[:-1])
    ints: list[Size] = [*sizes, rows, ceil_div(sizes[-1], BLOCK)]
    for load, row in zip(program.loads, strides, strict=True):
        ints.extend(load_ints(load, row[:-1], row[-1:]))
    kernel = Kernel(program_name(program.steps), ("map", key), lambda target, symbol: emit_map(key, target, symbol))
    extent = ceil_div(rows, key.strip) * ceil_div(sizes[-1], BLOCK)
    grain = _grain(program, sizes[-1], key.strip)
    launch = Launch(kernel, pointers(program, outputs), list(outputs), ints, program.scalars, extent, grain)
    return with_work(launch, program, product(sizes))


def _merged(space: Shape, program: Program) -> tuple[Shape, tuple[tuple[Size, ...], ...]]:
    """Sizes and each load's strides after merging; a space of one element is one contiguous axis."""
    rows = [load.strides for load in program.loads]
    if 0 in space:
        return (0,), ((1,),) * len(rows)
    sizes, merged = merge_axes(space, (contiguous_strides(space), *rows))
    return (sizes, merged[1:]) if sizes else ((1,), ((1,),) * len(rows))


def _grain(program: Program, inner: Size, strip: int) -> int:
    elements = strip * min(inner, BLOCK) if isinstance(inner, int) else strip * BLOCK
    return max(1, int(UNIT_NS / (20 + nanoseconds(program) * elements)))


def emit_map(key: MapKey, target: Target, symbol: str) -> str:
    """The kernel's module."""
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        _Map(b, key, args).run(lo, hi)
    return b.text()


class _Map:
    """The body of a map kernel."""

    def __init__(self, b: Builder, key: MapKey, args: Value) -> None:
        self.b, self.key = b, key
        reads = sum(not plan.counts for plan in key.loads)
        first = reads + len(key.results)
        self.results = [b.slot(args, reads + k) for k in range(len(key.results))]
        self.sizes = [b.slot(args, first + k, "i64") for k in range(key.rank)]
        self.rows = b.slot(args, first + key.rank, "i64")
        self.blocks = b.slot(args, first + key.rank + 1, "i64")
        self.loads = LoadReader(b, args, key.loads, first + key.rank + 2, key.rank - 1)
        names = (*key.fused.inputs, *key.results)
        self.lanes = lanes_for(b.target, (DTYPES[name].itemsize for name in names))
        self.x = {lanes: ExpressionBuilder(b, lanes) for lanes in {1, self.lanes}}
        self.scalars = {
            lanes: [x.from_slot(name, args, self.loads.next_slot + k) for k, name in enumerate(key.fused.scalars)]
            for lanes, x in self.x.items()
        }

    def run(self, lo: Value, hi: Value) -> None:
        b = self.b
        if self.key.rank == 1:
            body = self._body(b.index(0))
            span(b, self.lanes, b.imul(lo, BLOCK), b.imin(b.imul(hi, BLOCK), self.sizes[0]), body)
            return
        b.loop(lo, hi, 1, self._unit)

    def _unit(self, unit: Value) -> None:
        b = self.b
        row, block = b.imul(b.udiv(unit, self.blocks), self.key.strip), b.urem(unit, self.blocks)
        start = b.imul(block, BLOCK)
        stop = b.imin(b.iadd(start, BLOCK), self.sizes[-1])
        if self.key.strip == 1:
            span(b, self.lanes, start, stop, self._body(row))
            return
        last = b.imin(b.iadd(row, self.key.strip), self.rows)

        def down(lanes: int, i: Value, mask: Value | None) -> None:
            b.loop(row, last, 1, lambda r: self._body(r)(lanes, i, mask))

        span(b, self.lanes, start, stop, down)

    def _body(self, row: Value) -> Callable[[int, Value, Value | None], None]:
        """Emits one row's elements from a position on."""
        b = self.b
        streams = self.loads.streams(unflatten(b, row, self.sizes[:-1]))
        first = b.imul(row, self.sizes[-1])
        targets = [
            b.gep(memory_element(name), pointer, first)
            for name, pointer in zip(self.key.results, self.results, strict=True)
        ]

        def body(lanes: int, i: Value, mask: Value | None) -> None:
            x = self.x[lanes]
            inputs: list[Typed] = [stream.at(x, i, mask) for stream in streams]
            values = self.key.fused.emit(x, inputs, self.scalars[lanes])
            for value, pointer in zip(values, targets, strict=True):
                x.store(value, b.gep(memory_element(value.dtype), pointer, i), mask)

        return body
