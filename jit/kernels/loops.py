"""Loops and operand addressing that the skeletons share: argument slots, spans of lanes, strided loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from plait.framework.dim import Size
from plait.framework.graph import Node
from plait.jit.builder import Builder, Index, Value
from plait.jit.expression import ExpressionBuilder, Typed, memory_element
from plait.jit.kernel import Launch, Operand
from plait.jit.kernels.program import EXPENSIVE, Load, Program
from plait.jit.target import Target

UNIT_NS = 8000.0  # what one thread should take at a time


def lanes_for(target: Target, itemsizes: Iterable[int]) -> int:
    """Elements per step, so that the widest dtype fills a register."""
    return max(1, target.width * 4 // max(itemsizes, default=4))


def span(b: Builder, lanes: int, lo: Index, hi: Index, body: Callable[[int, Value, Value | None], Any]) -> None:
    """body(lanes, i, mask) over lo..hi; the rest is masked where masks are cheap, else element by element."""
    if b.target.has_avx512 or lanes == 1:
        b.vloop(lo, hi, lanes, lambda i, mask: ignore(body(lanes, i, mask)))
        return
    start, stop = b.index(lo), b.index(hi)
    edge = b.iadd(start, b.band(b.isub(stop, start), -lanes))
    b.loop(start, edge, lanes, lambda i: ignore(body(lanes, i, None)))
    b.loop(edge, stop, 1, lambda i: ignore(body(1, i, None)))


def ignore(_: Any) -> None:
    """Loop bodies that carry nothing."""


def stride_class(stride: Size) -> str:
    """What a kernel's structure says about an innermost stride: "1", "0" or "n"."""
    return str(stride) if stride == 0 or stride == 1 else "n"


@dataclass(frozen=True)
class LoadPlan:
    """A load as the kernel's structure knows it.

    walk   how vectors walk it: "1", "0", "n" for any stride, "g" for several axes, "h" for several whose last is dense
    still  it does not move along the axes that the kernel reduces
    """

    dtype: str
    walk: str
    counts: bool
    still: bool = False


@dataclass(eq=False)
class Stream:
    """One load inside a kernel at an outer position; `start` is a pointer, or a number where the load counts."""

    plan: LoadPlan
    start: Value
    strides: list[Value]  # along the inner axes, where the structure leaves them open
    sizes: list[Value]  # of the inner axes, for walk "g"

    def at(self, x: ExpressionBuilder, i: Value, mask: Value | None) -> Typed:
        """The elements from inner position i on."""
        b, plan = x.b, self.plan
        if plan.counts:
            numbers = b.iadd(self._offsets(b, i, x.lanes), b.splat(self.start, x.lanes))
            return x.cast(Typed(numbers, "int64"), plan.dtype)
        element = memory_element(plan.dtype)
        if plan.walk == "0":
            return x.load_splat(plan.dtype, self.start)
        if plan.walk == "1":
            return x.load(plan.dtype, b.gep(element, self.start, i), mask)
        if plan.walk in "gh" and mask is None and x.lanes > 1:
            return self._within_last_axis(x, i)
        return x.gather(plan.dtype, b.gep(element, self.start, self._offsets(b, i, x.lanes)), mask)

    def _offsets(self, b: Builder, i: Value, lanes: int) -> Value:
        positions = i if lanes == 1 else b.iadd(b.splat(i, lanes), b.iota(lanes))
        if self.plan.walk in "gh":
            return self._general(b, positions)
        if self.plan.walk == "0":
            return b.constant(positions.type, 0)
        return positions if self.plan.walk == "1" else b.imul(positions, b.splat(self.strides[0], lanes))

    def _within_last_axis(self, x: ExpressionBuilder, i: Value) -> Typed:
        """Most vectors do not leave the last axis: one division for all lanes instead of one each."""
        b, dtype, last = x.b, self.plan.dtype, self.sizes[-1]
        element = memory_element(dtype)

        def inside() -> list[Value]:
            first = b.gep(element, self.start, self._general(b, i))
            if self.plan.walk == "h":
                return [x.load(dtype, first).value]
            steps = b.imul(b.iota(x.lanes), b.splat(self.strides[-1], x.lanes))
            return [x.gather(dtype, b.gep(element, first, steps)).value]

        def across() -> list[Value]:
            return [x.gather(dtype, b.gep(element, self.start, self._offsets(b, i, x.lanes))).value]

        fits = b.icmp("sle", b.iadd(b.urem(i, last), x.lanes), last)
        return Typed(b.if_(fits, inside, across)[0], dtype)

    def _general(self, b: Builder, flat: Value) -> Value:
        total = b.constant(flat.type, 0)
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            size, stride = b.splat(size, flat.lanes), b.splat(stride, flat.lanes)
            total = b.iadd(total, b.imul(b.urem(flat, size), stride))
            flat = b.udiv(flat, size)
        return total


def load_plan(load: Load, inner: Sequence[Size]) -> LoadPlan:
    """`inner` are the strides along the inner axes: one where they merge."""
    walk = stride_class(inner[0]) if len(inner) == 1 else "h" if inner[-1] == 1 else "g"
    return LoadPlan(load.dtype, walk, load.counts, walk == "0")


def load_ints(load: Load, outer: Sequence[Size], inner: Sequence[Size]) -> list[Size]:
    """A load's int arguments: offset, outer strides, and the inner ones where the structure leaves them open."""
    fixed = len(inner) == 1 and stride_class(inner[0]) != "n"
    return [load.offset, *outer, *([] if fixed else inner)]


class LoadReader:
    """Reads the int arguments of all loads once, and makes streams for an outer position."""

    def __init__(
        self, b: Builder, args: Value, plans: Sequence[LoadPlan], first: int, outer: int, inner: Sequence[Value] = ()
    ) -> None:
        self.b, self.plans, self.inner = b, plans, list(inner)
        self.rows: list[tuple[Value | None, list[Value], list[Value]]] = []
        self.next_slot = first
        pointers = iter(range(len(plans)))
        for plan in plans:
            base = None if plan.counts else b.slot(args, next(pointers))
            numbers = self._ints(args, outer + 1)
            open_strides = {"n": 1, "g": len(self.inner), "h": len(self.inner)}.get(plan.walk, 0)
            self.rows.append((base, numbers, self._ints(args, open_strides)))

    def _ints(self, args: Value, count: int) -> list[Value]:
        first = self.next_slot
        self.next_slot += count
        return [self.b.slot(args, first + k, "i64") for k in range(count)]

    def streams(self, position: Sequence[Value]) -> list[Stream]:
        """Every load at an outer position."""
        made: list[Stream] = []
        for plan, (base, (offset, *strides), inner) in zip(self.plans, self.rows, strict=True):
            start = offset
            for index, stride in zip(position, strides, strict=True):
                start = self.b.iadd(start, self.b.imul(index, stride))
            if base is not None:
                start = self.b.gep(memory_element(plan.dtype), base, start)
            made.append(Stream(plan, start, inner, self.inner))
        return made


def unflatten(b: Builder, flat: Value, sizes: Sequence[Value]) -> list[Value]:
    """The position of a flat index in C order; the first size is not needed."""
    position: list[Value] = []
    for size in reversed(sizes[1:]):
        position.append(b.urem(flat, size))
        flat = b.udiv(flat, size)
    return [flat, *reversed(position)] if sizes else []


def pointers(program: Program, outputs: Sequence[Node]) -> list[Operand]:
    """Operands in slot order: loads from memory, then results."""
    return [Operand(load.base) for load in program.loads if not load.counts] + [Operand(node) for node in outputs]


def nanoseconds(program: Program) -> float:
    """A guess of the time one element takes."""
    heavy = sum(name in EXPENSIVE for name, _, _ in program.steps)
    strided = sum(bool(load.strides) and stride_class(load.strides[-1]) == "n" for load in program.loads)
    return 0.02 + 0.015 * len(program.steps) + 0.02 * len(program.loads) + 0.25 * heavy + 0.7 * strided


def with_work(launch: Launch, program: Program, elements: Size) -> Launch:
    """Fill in what PLAIT_DEBUG=2 prints."""
    moved = sum(load.base.dtype.itemsize for load in program.loads if not load.counts)
    moved += sum(node.dtype.itemsize for node in launch.results)
    launch.work_bytes = elements * moved
    launch.work_flops = elements * len(program.steps)
    return launch
