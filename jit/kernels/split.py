"""Few long rows on many threads: chunks of a row in one launch, their states merged in order in a second one.

The bits are those of the row skeleton: it merges the same chunks in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.framework.dtype import DTYPES
from plait.framework.graph import Node
from plait.framework.ops.elementwise import COPY
from plait.jit.builder import Builder, Value
from plait.jit.expression import ExpressionBuilder, Typed, memory_element
from plait.jit.kernel import Decline, Kernel, Launch, Operand
from plait.jit.kernels.loops import UNIT_NS, nanoseconds, pointers, with_work
from plait.jit.kernels.passes import Passes, PassKey
from plait.jit.kernels.program import program_name
from plait.jit.kernels.reductions import LANES, Reduction, flatten, split_like
from plait.jit.kernels.row import CHUNK, RowBody, plan_rows
from plait.jit.target import Target

FEW_ROWS = 16
LONG_ROW = 1 << 18


def lower_split_rows(outputs: Sequence[Node], inside: Sequence[Node]) -> list[Launch]:
    """Two launches that compute `outputs`; the first one's results are the chunks' states, for the second one only.

    Raises: Decline unless rows are few, long, of known size, and passed over once without results of full shape.
    """
    plan = plan_rows(outputs, inside)
    rows, cols, key = plan.rows, plan.cols, plan.key
    if not isinstance(rows, int) or not isinstance(cols, int) or rows > FEW_ROWS or cols < LONG_ROW:
        raise Decline("rows_are_many_or_short")
    if Passes(key).count != 1 or any(result.full for result in key.results):
        raise Decline("row_needs_two_passes")
    chunks = -(-cols // CHUNK)
    states = [
        Node(COPY, (), (), (rows, chunks, LANES), DTYPES[dtype])
        for kind in reductions_of(key)
        for dtype in kind.state_dtypes
    ]
    name, program, reads = program_name(plan.program.steps), plan.program, pointers(plan.program, ())
    first = Launch(
        Kernel(f"{name}_chunks", ("row_chunks", key), lambda target, symbol: emit_chunks(key, target, symbol)),
        [*reads, *map(Operand, states)],
        states,
        plan.ints,
        program.scalars,
        rows * chunks,
        max(1, int(UNIT_NS / (20 + nanoseconds(program) * CHUNK))),
    )
    second = Launch(
        Kernel(f"{name}_merge", ("row_merge", key), lambda target, symbol: emit_merge(key, target, symbol)),
        [*pointers(program, outputs), *map(Operand, states)],
        list(outputs),
        plan.ints,
        program.scalars,
        rows,
        1,
    )
    return [with_work(first, program, rows * cols), second]


def reductions_of(key: PassKey) -> list[Reduction]:
    """The reductions of the only pass."""
    passes = Passes(key)
    return [Reduction(key.steps[s][0], passes.operand_dtype(s)) for s in passes.reductions(0)]


def emit_chunks(key: PassKey, target: Target, symbol: str) -> str:
    """The module of the first kernel: a unit is a chunk of a row."""
    b, kinds = Builder(target), reductions_of(key)
    starts = [kind.start(b, LANES) for kind in kinds]
    dtypes = [dtype for kind in kinds for dtype in kind.state_dtypes]
    with b.function(symbol) as (args, lo, hi):
        body = RowBody(b, replace(key, results=(), stash=()), args, len(dtypes))
        chunks = _chunks(b, body)

        def unit(number: Value) -> None:
            body.start(b.udiv(number, chunks))
            begin = b.imul(b.urem(number, chunks), CHUNK)
            stop = b.imin(b.iadd(begin, CHUNK), body.cols)
            ends = b.vloop(begin, stop, LANES, body.taker(0, kinds), flatten(starts))
            for value, dtype, pointer in zip(ends, dtypes, body.extra, strict=True):
                place = b.gep(memory_element(dtype), pointer, b.imul(number, LANES))
                ExpressionBuilder(b, LANES).store(Typed(value, dtype), place)

        b.loop(lo, hi, 1, unit)
    return b.text()


def emit_merge(key: PassKey, target: Target, symbol: str) -> str:
    """The module of the second kernel: a unit is a row."""
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        body = _Merge(b, key, args, sum(len(kind.state_dtypes) for kind in reductions_of(key)))

        def unit(row: Value) -> None:
            body.at = row
            body.row(row)

        b.loop(lo, hi, 1, unit)
    return b.text()


def _chunks(b: Builder, body: RowBody) -> Value:
    return b.udiv(b.iadd(body.cols, CHUNK - 1), CHUNK)


class _Merge(RowBody):
    """A row whose only pass reads the states of its chunks."""

    at: Value

    def totals(self, number: int, kinds: Sequence[Reduction]) -> list[list[Value]]:
        b, x = self.b, self.x[LANES]
        starts = [kind.start(b, LANES) for kind in kinds]
        dtypes = [dtype for kind in kinds for dtype in kind.state_dtypes]
        chunks = _chunks(b, self)
        first = b.imul(self.at, chunks)

        def merge(chunk: Value, *flat: Value) -> list[Value]:
            place = b.imul(b.iadd(first, chunk), LANES)
            loaded = [
                x.load(dtype, b.gep(memory_element(dtype), pointer, place)).value
                for dtype, pointer in zip(dtypes, self.extra, strict=True)
            ]
            pairs = zip(kinds, split_like(flat, starts), split_like(loaded, starts), strict=True)
            return flatten([kind.merge(b, total, later) for kind, total, later in pairs])

        return split_like(b.loop(0, chunks, 1, merge, flatten(starts)), starts)
