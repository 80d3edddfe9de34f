"""The write record: a value, or one number, into a strided view of memory that already stands. A unit per inner run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plait.framework.dim import Size, product
from plait.framework.graph import CONST, Node
from plait.framework.strides import merge_axes
from plait.jit.builder import REGISTER_TYPES, Builder, Value
from plait.jit.expression import ExpressionBuilder, memory_element
from plait.jit.kernel import Decline, Kernel, Launch, Operand
from plait.jit.target import Target
from plait.jit.view import resolve


@dataclass(frozen=True)
class _Key:
    """What shapes the code: the dtype, the number of merged axes, unit inner strides, whether a number is stored."""

    dtype: str
    rank: int
    walks: tuple[bool, bool]  # the source's and the target's inner stride is 1
    fills: bool


def _text(target: Target, symbol: str, key: _Key) -> str:
    b = Builder(target)
    lanes = target.width if all(key.walks) else 1
    x = ExpressionBuilder(b, lanes)
    element = memory_element(key.dtype)
    with b.function(symbol) as (args, lo, hi):
        pointers = 1 if key.fills else 2
        source, out = b.slot(args, 0), b.slot(args, pointers - 1)
        numbers = [b.slot(args, pointers + i, "i64") for i in range(2 + 3 * key.rank)]
        offsets, sizes = numbers[:2], numbers[2 : 2 + key.rank]
        strides = numbers[2 + key.rank : 2 + 2 * key.rank], numbers[2 + 2 * key.rank :]
        number = x.from_slot(key.dtype, args, pointers + len(numbers)) if key.fills else None

        def run(unit: Value) -> None:
            starts = list(offsets)
            for axis in reversed(range(key.rank - 1)):
                place, unit = b.urem(unit, sizes[axis]), b.udiv(unit, sizes[axis])
                starts = [b.iadd(at, b.imul(place, side[axis])) for at, side in zip(starts, strides, strict=True)]

            def some(i: Value, mask: Value | None) -> None:
                at = [b.iadd(start, b.imul(i, side[-1])) for start, side in zip(starts, strides, strict=True)]
                value = number or x.load(key.dtype, b.gep(element, source, at[0]), mask)
                x.store(value, b.gep(element, out, at[1]), mask)

            b.vloop(0, sizes[-1], lanes, some)

        b.loop(lo, hi, 1, run)
    return b.text()


def lower_write(node: Node) -> Launch:
    """Store where the old version stands.

    Raises: Decline for dtypes without code, and for a value that lies in the memory it is written to.
    """
    base, value = node.srcs
    offset, shape, strides = node.attrs
    view = resolve(value).broadcast(shape)
    if node.dtype.name not in REGISTER_TYPES:
        raise Decline(f"dtype_{node.dtype.name}")
    if _memory(view.base) is _memory(base):
        raise Decline("write_reads_its_own_memory")
    sizes, (read, written) = merge_axes(shape, [view.strides, strides])
    sizes, read, written = sizes or (1,), read or (1,), written or (1,)
    fills = view.base.op is CONST
    key = _Key(node.dtype.name, len(sizes), (fills or read[-1] == 1, written[-1] == 1), fills)
    scalars: list[tuple[Any, str]] = [(view.base.attrs[0], node.dtype.name)] if fills else []
    return Launch(
        Kernel("write", ("write", key), lambda target, symbol: _text(target, symbol, key)),
        [*([] if fills else [Operand(view.base)]), Operand(_target(base))],
        [node],
        ints=[view.offset, offset, *sizes, *read, *written],
        scalars=scalars,
        extent=product(sizes[:-1]),
        grain=_grain(sizes[-1]),
        work_bytes=product(shape) * node.dtype.itemsize * (1 if fills else 2),
    )


def _target(base: Node) -> Node:
    view = resolve(base)
    if not view.contiguous:
        raise Decline("write_into_a_view")
    return view.base


def _memory(node: Node) -> Node:
    """The first version of the memory a node lives in."""
    node = resolve(node).base
    while node.op.in_place and node.srcs:
        node = resolve(node.srcs[0]).base
    return node


def _grain(run: Size) -> int:
    return max(1, 32768 // max(1, run)) if isinstance(run, int) else 16
