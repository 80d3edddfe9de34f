"""The row skeleton: reductions over the last axes with the elementwise records around them, all passes in one kernel.

Every reduction has 16 logical lanes (element j goes to lane j % 16) and starts anew each CHUNK elements, lanes of the
chunks being added in order: the bits depend on the row alone, not on the target's width, the threads or the fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from plait.framework.dim import Size, product
from plait.framework.graph import Node
from plait.framework.op import Shape
from plait.framework.strides import merge_axes
from plait.jit.builder import REGISTER_TYPES, Builder, Value
from plait.jit.expression import ExpressionBuilder, Typed, memory_element
from plait.jit.kernel import Decline, Kernel, Launch, Ref
from plait.jit.kernels.loops import (
    UNIT_NS,
    LoadReader,
    Stream,
    load_ints,
    load_plan,
    nanoseconds,
    pointers,
    span,
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
from plait.jit.kernels.program import Program, program_name
from plait.jit.kernels.reductions import LANES, Reduction, flatten, split_like
from plait.jit.target import Target

CHUNK = 4096  # elements after which the accumulators of sums start anew


@dataclass(eq=False)
class RowPlan:
    """What a row kernel is made of. `ints` are its arguments; `rows` and `cols` count."""

    program: Program
    key: PassKey
    ints: list[Size]
    rows: Size
    cols: Size


def lower_row(outputs: Sequence[Node], inside: Sequence[Node]) -> Launch:
    """One launch that computes `outputs`; its unit is a row: one result of each reduction.

    Raises: Decline.
    """
    plan = plan_rows(outputs, inside)
    key, program = plan.key, plan.program
    kernel = Kernel(program_name(program.steps), ("row", key), lambda target, symbol: emit_row(key, target, symbol))
    operands, grain = pointers(program, outputs), _grain(program, plan.cols)
    launch = Launch(kernel, operands, list(outputs), plan.ints, program.scalars, plan.rows, grain, "row")
    return with_work(launch, program, plan.rows * plan.cols)


def plan_rows(outputs: Sequence[Node], inside: Sequence[Node]) -> RowPlan:
    """Raises: Decline."""
    shape, axes = reduction_space(inside)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    space = tuple(shape[axis] for axis in (*kept, *axes))
    program = Program(space, inside, tuple(range(len(kept), len(shape))))
    trailing = axes == tuple(range(len(kept), len(shape)))
    results = tuple(_result(program, node, trailing) for node in outputs)
    require_expressions(program)
    rows, cols = _sides(space, len(kept), program)
    plans = tuple(load_plan(load, inner) for load, inner in zip(program.loads, cols.strides, strict=True))
    dtypes = tuple(dtype for _, dtype in program.scalars)
    ranks = len(rows.sizes), len(cols.sizes)
    key = PassKey(plans, dtypes, tuple(program.steps), tuple(program.dtypes), results, *ranks)
    ints: list[Size] = [*rows.sizes, product(cols.sizes), *cols.sizes]
    for load, outer, inner in zip(program.loads, rows.strides, cols.strides, strict=True):
        ints.extend(load_ints(load, outer, inner))
    key = replace(key, stash=choose_stash(key))
    return RowPlan(program, key, ints, product(space[: len(kept)]), product(cols.sizes))


def _result(program: Program, node: Node, trailing: bool) -> Result:
    if node.dtype.name not in REGISTER_TYPES:
        raise Decline(f"dtype_{node.dtype.name}")
    full = program.is_full(node) and node.op.family != "reduce"
    if full and not trailing:
        raise Decline("outputs_in_another_order")
    return Result(program.output(node), node.dtype.name, full)


class _Side:
    """Some axes of the space, merged, with each load's strides along them."""

    def __init__(self, sizes: Shape, strides: Sequence[tuple[Size, ...]]) -> None:
        self.sizes, self.strides = sizes, strides


def _sides(space: Shape, kept: int, program: Program) -> tuple[_Side, _Side]:
    """Rows, merged as far as all loads agree; columns, one axis for each load that walks them as one."""
    every = [load.strides for load in program.loads]
    rows, row_strides = merge_axes(space[:kept], tuple(strides[:kept] for strides in every))
    cols = tuple(size for size in space[kept:] if size != 1)
    inner: list[tuple[Size, ...]] = []
    for strides in every:
        walked = tuple(stride for stride, size in zip(strides[kept:], space[kept:], strict=True) if size != 1)
        merged, (steps,) = merge_axes(cols, (walked,))
        inner.append(steps if len(merged) == 1 else walked)
    if not cols or 0 in cols:
        moves = [not cols or any(stride != 0 for stride in strides[kept:]) for strides in every]
        return _Side(rows, row_strides), _Side((product(cols),), [(int(moved),) for moved in moves])
    return _Side(rows, row_strides), _Side(cols, inner)


def _grain(program: Program, cols: Size) -> int:
    count = cols if isinstance(cols, int) else 1024
    return max(1, int(UNIT_NS / (20 + nanoseconds(program) * count)))


def emit_row(key: PassKey, target: Target, symbol: str) -> str:
    """The kernel's module."""
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        kernel = RowBody(b, key, args)
        b.loop(lo, hi, 1, kernel.row)
    return b.text()


class RowBody:
    """The body of a row kernel. `lines` holds the line values known so far, as scalars.

    `extra` pointers lie between the results and the ints.
    """

    def __init__(self, b: Builder, key: PassKey, args: Value, extra: int = 0) -> None:
        self.b, self.key, self.passes = b, key, Passes(key)
        self.stash = dict(key.stash)
        reads = sum(not plan.counts for plan in key.inputs)
        self.results = [b.slot(args, reads + k) for k in range(len(key.results))]
        first = reads + len(key.results)
        self.extra = [b.slot(args, first + k) for k in range(extra)]
        first += extra
        self.sizes = [b.slot(args, first + k, "i64") for k in range(key.outer)]
        self.cols = b.slot(args, first + key.outer, "i64")
        inner = [b.slot(args, first + key.outer + 1 + k, "i64") for k in range(key.inner)]
        self.loads = LoadReader(b, args, key.inputs, first + key.outer + 1 + key.inner, key.outer, inner)
        self.x = {lanes: ExpressionBuilder(b, lanes) for lanes in (1, LANES)}
        self.scalars: dict[Ref, Typed] = {
            ("scalar", k): self.x[1].from_slot(name, args, self.loads.next_slot + k)
            for k, name in enumerate(key.scalars)
        }
        self.lines: dict[Ref, Typed] = {}
        self.streams: list[Stream] = []
        self.targets: list[Value] = []

    def row(self, row: Value) -> None:
        """Everything for one row."""
        self.start(row)
        for number in range(self.passes.count):
            self._pass(number)
            self._line_steps(number + 1)
        for result, target in zip(self.key.results, self.targets, strict=True):
            if not result.full:
                self.x[1].store(self.lines[result.ref], target)

    def start(self, row: Value) -> None:
        """Point at a row, and compute the line values that need no pass."""
        b = self.b
        self.streams = self.loads.streams(unflatten(b, row, self.sizes))
        self.targets = [
            b.gep(memory_element(r.dtype), pointer, b.imul(row, self.cols) if r.full else row)
            for r, pointer in zip(self.key.results, self.results, strict=True)
        ]
        self.lines = dict(self.scalars)
        for k, plan in enumerate(self.key.inputs):
            if plan.still:
                self.lines["in", k] = self.streams[k].at(self.x[1], b.index(0), None)
        self._line_steps(0)

    def _line_steps(self, number: int) -> None:
        for step in self.passes.line_steps(number):
            Evaluator(self.x[1], self.key.steps, self.lines).value(("step", step))

    def _spread(self, lanes: int) -> dict[Ref, Typed]:
        """The line values in every lane."""
        return {ref: Typed(self.b.splat(line.value, lanes), line.dtype) for ref, line in self.lines.items()}

    def _pass(self, number: int) -> None:
        reductions = self.passes.reductions(number)
        if not reductions:
            if self.passes.stores(number):
                span(self.b, LANES, 0, self.cols, self.block(number))
            return
        kinds = [Reduction(self.key.steps[s][0], self.passes.operand_dtype(s)) for s in reductions]
        for kind, step, state in zip(kinds, reductions, self.totals(number, kinds), strict=True):
            self.lines["step", step] = kind.value(self.b, kind.across(self.b, state), self.cols)

    def block(self, number: int) -> Callable[[int, Value, Value | None], Evaluator]:
        """Emits what a pass does to one block of columns: read back, evaluate, store, stash."""
        spread = {lanes: self._spread(lanes) for lanes in self.x}
        earlier = self.passes.needed_before(number, self.stash)
        needed = self.passes.needed(number, self.stash)
        loads = loads_needed(self.passes, number, self.stash)

        def block(lanes: int, i: Value, mask: Value | None) -> Evaluator:
            b, x = self.b, self.x[lanes]
            known = dict(spread[lanes])
            for k in loads:
                known["in", k] = self.streams[k].at(x, i, mask)
            for step, place in self.stash.items():
                if step in earlier and step in needed:
                    dtype = self.key.results[place].dtype
                    known["step", step] = x.load(dtype, b.gep(memory_element(dtype), self.targets[place], i), mask)
            values = Evaluator(x, self.key.steps, known)
            for place in self.passes.stores(number):
                self._store(x, values.value(self.key.results[place].ref), place, i, mask)
            for step, place in self.stash.items():
                if step in needed and step not in earlier:
                    self._store(x, values.value(("step", step)), place, i, mask)
            return values

        return block

    def _store(self, x: ExpressionBuilder, value: Typed, place: int, i: Value, mask: Value | None) -> None:
        x.store(value, self.b.gep(memory_element(value.dtype), self.targets[place], i), mask)

    def taker(self, number: int, kinds: Sequence[Reduction]) -> Callable[..., list[Value]]:
        """Emits how the states take in one block of columns."""
        b, block = self.b, self.block(number)
        steps = self.passes.reductions(number)
        starts = [kind.start(b, LANES) for kind in kinds]

        def take(i: Value, mask: Value | None, *flat: Value) -> list[Value]:
            values = block(LANES, i, mask)
            positions = b.iadd(b.splat(i, LANES), b.iota(LANES))
            made = [
                kind.update(b, state, values.value(self.key.steps[s][1][0]).value, positions, mask)
                for kind, s, state in zip(kinds, steps, split_like(flat, starts), strict=True)
            ]
            return flatten(made)

        return take

    def totals(self, number: int, kinds: Sequence[Reduction]) -> list[list[Value]]:
        """The lanes of every reduction of a pass over the whole row."""
        b, take = self.b, self.taker(number, kinds)
        starts = [kind.start(b, LANES) for kind in kinds]

        def chunk(first: Value, *flat: Value) -> list[Value]:
            totals = split_like(flat, starts)
            begin = [s if kind.restarts else t for kind, s, t in zip(kinds, starts, totals, strict=True)]
            stop = b.imin(b.iadd(first, CHUNK), self.cols)
            ends = split_like(b.vloop(first, stop, LANES, take, flatten(begin)), starts)
            merged = [
                kind.merge(b, total, end) if kind.restarts else end
                for kind, total, end in zip(kinds, totals, ends, strict=True)
            ]
            return flatten(merged)

        return split_like(b.loop(0, self.cols, CHUNK, chunk, flatten(starts)), starts)
