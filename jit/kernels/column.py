"""The column skeleton: reductions over leading or middle axes, with the elementwise records around them.

Vectors lie along the last axis, which is kept; the reduced rows stream through them in order. Sums start anew each
CHUNK rows, the chunks being added in order: the bits depend on the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from plait.framework.dim import Size, ceil_div, product
from plait.framework.graph import Node
from plait.framework.op import Shape
from plait.framework.strides import merge_axes
from plait.jit.builder import REGISTER_TYPES, Builder, Value
from plait.jit.expression import ExpressionBuilder, Typed, memory_element
from plait.jit.kernel import Decline, Kernel, Launch, Ref
from plait.jit.kernels.loops import (
    UNIT_NS,
    LoadPlan,
    LoadReader,
    ignore,
    nanoseconds,
    pointers,
    stride_class,
    unflatten,
    with_work,
)
from plait.jit.kernels.passes import (
    Evaluator,
    Passes,
    PassKey,
    Result,
    choose_stash,
    loads_needed,
    reduction_space,
    require_expressions,
)
from plait.jit.kernels.program import Load, Program, program_name
from plait.jit.kernels.reductions import LANES, Reduction, flatten, split_like
from plait.jit.kernels.row import lower_row
from plait.jit.target import Target

BLOCK = 128  # columns that one unit covers
CHUNK = 256  # rows after which the accumulators of sums start anew


def lower_column(outputs: Sequence[Node], inside: Sequence[Node]) -> Launch:
    """One launch that computes `outputs`; reductions that leave no axis after them go to the row skeleton.

    Raises: Decline.
    """
    shape, axes = reduction_space(inside)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    before = [axis for axis in kept if axis < axes[-1]] if axes else kept
    after = kept[len(before) :]
    if product(tuple(shape[axis] for axis in after)) == 1 or not axes:
        return lower_row(outputs, inside)
    order = (*before, *axes, *after)
    program = Program(tuple(shape[axis] for axis in order), inside, tuple(range(len(before), len(before) + len(axes))))
    results = tuple(_result(program, node, order == tuple(range(len(shape)))) for node in outputs)
    require_expressions(program)
    layout = _Layout(program, len(before), len(axes))
    if any(result.full for result in results) and not layout.whole:
        raise Decline("outputs_in_another_order")
    dtypes = tuple(dtype for _, dtype in program.scalars)
    ranks = len(layout.outer), len(layout.reduced)
    key = PassKey(layout.plans, dtypes, tuple(program.steps), tuple(program.dtypes), results, *ranks)
    key = replace(key, stash=choose_stash(key))
    kernel = Kernel(program_name(program.steps), ("column", key), lambda t, symbol: emit_column(key, t, symbol))
    extent = product(layout.outer) * ceil_div(layout.cols, BLOCK)
    grain = _grain(program, product(layout.reduced))
    launch = Launch(kernel, pointers(program, outputs), list(outputs), layout.ints, program.scalars, extent, grain)
    return with_work(launch, program, product(shape))


def _result(program: Program, node: Node, in_order: bool) -> Result:
    if node.dtype.name not in REGISTER_TYPES:
        raise Decline(f"dtype_{node.dtype.name}")
    full = program.is_full(node) and node.op.family != "reduce"
    if full and not in_order:
        raise Decline("outputs_in_another_order")
    return Result(program.output(node), node.dtype.name, full)


class _Layout:
    """The kernel's axes: outer, reduced, columns. `whole`: all kept axes after the reduced ones are columns."""

    def __init__(self, program: Program, before: int, reduced: int) -> None:
        space, rows = program.space, [load.strides for load in program.loads]
        after = before + reduced
        lead, lead_strides = merge_axes(space[:before], tuple(row[:before] for row in rows))
        tail, tail_strides = merge_axes(space[after:], tuple(row[after:] for row in rows))
        inner, inner_strides = merge_axes(space[before:after], tuple(row[before:after] for row in rows))
        if 0 in tail:
            tail, tail_strides = (0,), ((1,),) * len(rows)
        self.outer: Shape = (*lead, *tail[:-1])
        self.cols: Size = tail[-1]
        self.reduced: Shape = inner
        self.whole = len(tail) == 1
        parts = list(zip(program.loads, lead_strides, tail_strides, inner_strides, strict=True))
        self.plans = tuple(_plan(load, last, steps) for load, _, last, steps in parts)
        self.ints: list[Size] = [*self.outer, *inner, product(inner), self.cols, ceil_div(self.cols, BLOCK)]
        for load, first, last, steps in parts:
            self.ints += [load.offset, *first, *last[:-1], *steps]
            self.ints += last[-1:] if stride_class(last[-1]) == "n" else []


def _plan(load: Load, last: tuple[Size, ...], steps: tuple[Size, ...]) -> LoadPlan:
    return LoadPlan(load.dtype, stride_class(last[-1]), load.counts, all(step == 0 for step in steps))


def _grain(program: Program, rows: Size) -> int:
    count = rows if isinstance(rows, int) else 64
    return max(1, int(UNIT_NS / (20 + nanoseconds(program) * count * BLOCK)))


def emit_column(key: PassKey, target: Target, symbol: str) -> str:
    """The kernel's module."""
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        kernel = _Column(b, key, args)
        b.loop(lo, hi, 1, kernel.unit)
    return b.text()


class _Column:
    """The body of a column kernel. Line values are vectors along the columns, one set per vector of the block."""

    def __init__(self, b: Builder, key: PassKey, args: Value) -> None:
        self.b, self.key, self.passes = b, key, Passes(key)
        self.stash = dict(key.stash)
        reads = sum(not plan.counts for plan in key.inputs)
        self.results = [b.slot(args, reads + k) for k in range(len(key.results))]
        first = reads + len(key.results)
        ints = [b.slot(args, first + k, "i64") for k in range(key.outer + key.inner + 3)]
        self.outer, self.inner = ints[: key.outer], ints[key.outer : key.outer + key.inner]
        self.rows, self.cols, self.blocks = ints[key.outer + key.inner :]
        self.loads = LoadReader(b, args, key.inputs, first + len(ints), key.outer + key.inner)
        self.x = ExpressionBuilder(b, LANES)
        self.scalars: dict[Ref, Typed] = {
            ("scalar", k): self.x.from_slot(name, args, self.loads.next_slot + k) for k, name in enumerate(key.scalars)
        }
        self.at: list[Value] = []
        self.flat = b.index(0)
        self.columns: list[Value] = []
        self.mask: Value | None = None
        self.lines: list[dict[Ref, Typed]] = []

    def unit(self, unit: Value) -> None:
        """One block of columns at one outer position: wide strips, then single vectors with a mask."""
        b = self.b
        self.flat = b.udiv(unit, self.blocks)
        self.at = unflatten(b, self.flat, self.outer)
        start = b.imul(b.urem(unit, self.blocks), BLOCK)
        stop = b.imin(b.iadd(start, BLOCK), self.cols)
        wide = LANES * (8 if b.target.has_avx512 else 2)
        edge = b.iadd(start, b.band(b.isub(stop, start), -wide))
        b.loop(start, edge, wide, lambda c: self._strip(c, wide // LANES, None))
        b.loop(edge, stop, LANES, lambda c: self._strip(c, 1, b.mask(b.isub(stop, c), LANES)))

    def _strip(self, column: Value, vectors: int, mask: Value | None) -> None:
        b = self.b
        self.columns = [b.iadd(column, k * LANES) for k in range(vectors)]
        self.mask = mask
        self.lines = [dict(self.scalars) for _ in range(vectors)]
        self._load_lines()
        count = self.passes.count
        for number in range(count + 1):
            for lines in self.lines:
                for step in self.passes.line_steps(number):
                    Evaluator(self.x, self.key.steps, lines).value(("step", step))
            if number < count:
                self._pass(number)
        for place, result in enumerate(self.key.results):
            for lines, c in zip(self.lines, self.columns, strict=True):
                if not result.full:
                    index = b.iadd(b.imul(self.flat, self.cols), c)
                    self.x.store(lines[result.ref], self._target(place, index), mask)

    def _target(self, place: int, index: Value) -> Value:
        return self.b.gep(memory_element(self.key.results[place].dtype), self.results[place], index)

    def _load_lines(self) -> None:
        if not any(plan.still for plan in self.key.inputs):
            return
        streams = self.loads.streams([*self.at, *(self.b.index(0) for _ in self.inner)])
        for k, plan in enumerate(self.key.inputs):
            if plan.still:
                for lines, c in zip(self.lines, self.columns, strict=True):
                    lines["in", k] = streams[k].at(self.x, c, self.mask)

    def _pass(self, number: int) -> None:
        reductions = self.passes.reductions(number)
        row = self._row(number)
        if not reductions:
            if self.passes.stores(number):
                self.b.loop(0, self.rows, 1, lambda r: ignore(row(r)))
            return
        kinds = [Reduction(self.key.steps[s][0], self.passes.operand_dtype(s)) for s in reductions]
        for kind, step, states in zip(kinds, reductions, self._accumulate(kinds, reductions, row), strict=True):
            for lines, state in zip(self.lines, states, strict=True):
                lines["step", step] = kind.value(self.b, state, self.rows)

    def _row(self, number: int) -> Callable[[Value], list[Evaluator]]:
        """Emits what a pass does to one row of the strip: read back, evaluate, store, stash."""
        earlier = self.passes.needed_before(number, self.stash)
        needed = self.passes.needed(number, self.stash)
        loads = loads_needed(self.passes, number, self.stash)
        back = {step: place for step, place in self.stash.items() if step in needed and step in earlier}
        keep = {step: place for step, place in self.stash.items() if step in needed and step not in earlier}
        stores: list[tuple[Ref, int]] = [(self.key.results[place].ref, place) for place in self.passes.stores(number)]
        stores += [(("step", step), place) for step, place in keep.items()]

        def row(r: Value) -> list[Evaluator]:
            b, x = self.b, self.x
            streams = self.loads.streams([*self.at, *unflatten(b, r, self.inner)])
            first = b.imul(b.iadd(b.imul(self.flat, self.rows), r), self.cols)
            made: list[Evaluator] = []
            for lines, c in zip(self.lines, self.columns, strict=True):
                known = dict(lines)
                known.update({("in", k): streams[k].at(x, c, self.mask) for k in loads})
                index = b.iadd(first, c)
                for step, place in back.items():
                    known["step", step] = x.load(self.key.results[place].dtype, self._target(place, index), self.mask)
                values = Evaluator(x, self.key.steps, known)
                for ref, place in stores:
                    x.store(values.value(ref), self._target(place, index), self.mask)
                made.append(values)
            return made

        return row

    def _accumulate(
        self, kinds: list[Reduction], steps: list[int], row: Callable[[Value], list[Evaluator]]
    ) -> list[list[list[Value]]]:
        """Per reduction, per vector of the strip, the state over all rows."""
        b, vectors = self.b, len(self.columns)
        every = [kind for kind in kinds for _ in range(vectors)]
        starts = [kind.start(b, LANES) for kind in every]

        def take(r: Value, *flat: Value) -> list[Value]:
            values, position = row(r), b.splat(r, LANES)
            taken = [values[v].value(self.key.steps[s][1][0]).value for s in steps for v in range(vectors)]
            states = split_like(flat, starts)
            made = [kind.update(b, s, x, position, None) for kind, s, x in zip(every, states, taken, strict=True)]
            return flatten(made)

        def chunk(first: Value, *flat: Value) -> list[Value]:
            totals = split_like(flat, starts)
            begin = [s if kind.restarts else t for kind, s, t in zip(every, starts, totals, strict=True)]
            stop = b.imin(b.iadd(first, CHUNK), self.rows)
            ends = split_like(b.loop(first, stop, 1, take, flatten(begin)), starts)
            merged = [
                kind.merge(b, total, end) if kind.restarts else end
                for kind, total, end in zip(every, totals, ends, strict=True)
            ]
            return flatten(merged)

        ends = split_like(b.loop(0, self.rows, CHUNK, chunk, flatten(starts)), starts)
        return [ends[k * vectors : (k + 1) * vectors] for k in range(len(kinds))]
