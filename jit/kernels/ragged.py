"""Kernels over ragged batches, a unit per row: rope and kv_store; and how a row finds its sequence.

Page numbers and positions are trusted: whoever fills a page table or sizes a rope table answers for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.framework.dim import Size
from plait.framework.graph import Node
from plait.framework.ops.ragged import page_size
from plait.jit.builder import Builder, Value
from plait.jit.kernel import Decline, Kernel, Launch, Operand
from plait.jit.kernels.rows import rows_of, unit_rows, whole_base
from plait.jit.target import Target

LANES = 16
F32 = "<16 x float>"


# ---- where a row stands ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RaggedArguments:
    """The operands and ints every ragged kernel gets after its own: row_offsets, lengths, and the page table if any."""

    operands: list[Operand]
    ints: list[Size]

    @classmethod
    def of(cls, row_offsets: Node, lengths: Node, page_table: Node | None = None) -> RaggedArguments:
        operands = [Operand(whole_base(row_offsets)), Operand(whole_base(lengths))]
        ints: list[Size] = [lengths.shape[0]]
        if page_table is not None:
            table = rows_of(page_table)
            if table.step != 1:
                raise Decline("rows_layout")
            operands.append(Operand(table.base))
            ints += [table.offset, table.stride]
        return cls(operands, ints)


@dataclass(eq=False)
class Place:
    """A row's sequence and position. `covered` is false for rows after the last sequence; they stand at position 0."""

    sequence: Value
    position: Value
    covered: Value


class RaggedBatch:
    """The registers of a ragged batch inside a kernel. `slot` and `int_slot` are its first operand and int."""

    def __init__(self, b: Builder, symbol: str, args: Value, slot: int, int_slot: int, paged: bool) -> None:
        self.b, self.symbol = b, symbol
        self.row_offsets, self.lengths = b.slot(args, slot), b.slot(args, slot + 1)
        self.sequences = b.slot(args, int_slot, "i64")
        self.table = self.table_stride = None
        if paged:
            offset = b.slot(args, int_slot + 1, "i64")
            self.table = b.gep("i32", b.slot(args, slot + 2), offset)
            self.table_stride = b.slot(args, int_slot + 2, "i64")

    def _int32(self, pointer: Value, index: Value) -> Value:
        return self.b.sext(self.b.load("i32", self.b.gep("i32", pointer, index)), "i64")

    def place(self, row: Value) -> Place:
        """Find a row: the last sequence that starts at or before it (empty ones come before the one that owns it)."""
        b = self.b

        def halve(low: Value, high: Value) -> list[Value]:
            middle = b.lshr(b.iadd(low, high), 1)
            starts = b.icmp("sle", self._int32(self.row_offsets, middle), row)
            return [b.select(starts, middle, low), b.select(starts, high, middle)]

        def apart(low: Value, high: Value) -> Value:
            return b.icmp("slt", b.iadd(low, 1), high)

        (sequence, _) = b.while_([b.index(0), self.sequences], apart, halve)
        end = self._int32(self.row_offsets, b.iadd(sequence, 1))
        length = self._int32(self.lengths, sequence)
        covered = b.icmp("slt", row, end)
        return Place(sequence, b.select(covered, b.iadd(b.isub(length, end), row), 0), covered)

    def page(self, sequence: Value, index: Value) -> Value:
        """The page that holds the sequence's `index`-th run of positions."""
        assert self.table is not None and self.table_stride is not None
        return self._int32(self.table, self.b.iadd(self.b.imul(sequence, self.table_stride), index))


# ---- rope -----------------------------------------------------------------------------------------------------------


def _rope_text(target: Target, symbol: str, heads: int, head_dim: int, half: int, interleaved: bool) -> str:
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        x, table, out = b.slot(args, 0), b.slot(args, 1), b.slot(args, 4)
        batch = RaggedBatch(b, symbol, args, 2, 5, paged=False)
        offset, stride = b.slot(args, 6, "i64"), b.slot(args, 7, "i64")

        def row(t: Value) -> None:
            place = batch.place(t)
            source = b.gep("float", x, b.iadd(offset, b.imul(t, stride)))
            target_row = b.gep("float", out, b.imul(t, heads * head_dim))
            angles = b.gep("float", table, b.imul(place.position, 2 * half))

            def head(h: Value) -> None:
                at = b.imul(h, head_dim)
                _rotate(b, b.gep("float", source, at), b.gep("float", target_row, at), angles, half, interleaved)
                if head_dim > 2 * half:
                    _copy_floats(b, b.gep("float", source, at), b.gep("float", target_row, at), 2 * half, head_dim)

            b.loop(0, heads, 1, head)

        b.loop(lo, hi, 1, row)
    return b.text()


def _rotate(b: Builder, source: Value, target: Value, angles: Value, half: int, interleaved: bool) -> None:
    """first * cos - second * sin, second * cos + first * sin; the table holds cos and sin side by side."""

    def pairs(i: Value, mask: Value | None) -> None:
        cos, sin = _load_pairs(b, b.gep("float", angles, b.shl(i, 1)), mask)
        if interleaved:
            first, second = _load_pairs(b, b.gep("float", source, b.shl(i, 1)), mask)
        else:
            first, second = (b.vload(b.gep("float", source, b.iadd(i, at)), F32, mask) for at in (0, half))
        new_first = b.fsub(b.fmul(first, cos), b.fmul(second, sin))
        new_second = b.fadd(b.fmul(second, cos), b.fmul(first, sin))
        if interleaved:
            _store_pairs(b, new_first, new_second, b.gep("float", target, b.shl(i, 1)), mask)
            return
        b.vstore(new_first, b.gep("float", target, i), mask)
        b.vstore(new_second, b.gep("float", target, b.iadd(i, half)), mask)

    b.vloop(0, half, LANES, pairs)


def _doubled(b: Builder, mask: Value) -> tuple[Value, Value]:
    """The mask of 16 pairs as masks of the two vectors that hold them."""
    return (
        b.shuffle(mask, None, [lane // 2 for lane in range(LANES)]),
        b.shuffle(mask, None, [LANES // 2 + lane // 2 for lane in range(LANES)]),
    )


def _load_pairs(b: Builder, pointer: Value, mask: Value | None) -> tuple[Value, Value]:
    masks = (None, None) if mask is None else _doubled(b, mask)
    low, high = (b.vload(b.gep("float", pointer, i * LANES), F32, masks[i]) for i in range(2))
    return b.shuffle(low, high, range(0, 2 * LANES, 2)), b.shuffle(low, high, range(1, 2 * LANES, 2))


def _store_pairs(b: Builder, first: Value, second: Value, pointer: Value, mask: Value | None) -> None:
    masks = (None, None) if mask is None else _doubled(b, mask)
    for i in range(2):
        lanes = [lane // 2 + 8 * i + LANES * (lane % 2) for lane in range(LANES)]
        b.vstore(b.shuffle(first, second, lanes), b.gep("float", pointer, i * LANES), masks[i])


def _copy_floats(b: Builder, source: Value, target: Value, first: int, last: int) -> None:
    def some(i: Value, mask: Value | None) -> None:
        b.vstore(b.vload(b.gep("float", source, i), F32, mask), b.gep("float", target, i), mask)

    b.vloop(first, last, LANES, some)


def lower_rope(node: Node) -> Launch:
    """Rotary embedding, a unit per token."""
    x, table, row_offsets, lengths = node.srcs
    rows = unit_rows(x, inner=2)
    ragged = RaggedArguments.of(row_offsets, lengths)
    heads, head_dim, half = x.shape[1], x.shape[2], table.shape[1]
    if not isinstance(heads, int) or not isinstance(head_dim, int) or not isinstance(half, int):
        raise Decline("symbolic_head")
    interleaved = bool(node.attr("interleaved"))
    kernel = Kernel(
        "rope",
        ("rope", heads, head_dim, half, interleaved),
        lambda target, symbol: _rope_text(target, symbol, heads, head_dim, half, interleaved),
    )
    return Launch(
        kernel,
        [Operand(rows.base), Operand(whole_base(table)), *ragged.operands, Operand(node)],
        [node],
        ints=[*ragged.ints, rows.offset, rows.stride],
        scalars=[],
        extent=rows.count,
        grain=max(1, 32768 // max(1, heads * head_dim)),
        unit="row",
        work_bytes=rows.count * heads * head_dim * 8,
        work_flops=rows.count * heads * half * 6,
    )


# ---- kv_store -------------------------------------------------------------------------------------------------------


def _kv_store_text(target: Target, symbol: str, heads: int, head_dim: int, size: int) -> str:
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        cache, keys, values = (b.slot(args, i) for i in range(3))
        batch = RaggedBatch(b, symbol, args, 3, 6, paged=True)
        layers, layer, k_offset, k_stride, v_offset, v_stride = (b.slot(args, 9 + i, "i64") for i in range(6))

        def row(t: Value) -> None:
            place = batch.place(t)
            b.if_(place.covered, lambda: store(t, place))

        def store(t: Value, place: Place) -> None:
            page = batch.page(place.sequence, b.udiv(place.position, size))
            inside = b.urem(place.position, size)
            plane = b.imul(b.iadd(b.imul(page, layers), layer), 2 * heads * size * head_dim)
            key_row = b.gep("float", keys, b.iadd(k_offset, b.imul(t, k_stride)))
            value_row = b.gep("float", values, b.iadd(v_offset, b.imul(t, v_stride)))

            def head(h: Value) -> None:
                at, block = b.imul(h, head_dim), b.iadd(plane, b.imul(h, size * head_dim))
                key_at = b.gep("float", cache, b.iadd(block, inside))
                value_block = b.iadd(block, heads * size * head_dim)
                value_at = b.gep("float", cache, b.iadd(value_block, b.imul(inside, head_dim)))
                source = b.gep("float", key_row, at)

                def element(d: Value) -> None:
                    b.store(b.load("float", b.gep("float", source, d)), b.gep("float", key_at, b.imul(d, size)))

                b.loop(0, head_dim, 1, element)
                _copy_floats(b, b.gep("float", value_row, at), value_at, 0, head_dim)

            b.loop(0, heads, 1, head)

        b.loop(lo, hi, 1, row)
    return b.text()


def lower_kv_store(node: Node) -> Launch:
    """Keys and values into the paged cache where it stands, a unit per token."""
    cache, keys, values, row_offsets, lengths, table = node.srcs
    key_rows, value_rows = unit_rows(keys, inner=2), unit_rows(values, inner=2)
    ragged = RaggedArguments.of(row_offsets, lengths, table)
    heads, head_dim = keys.shape[1:]
    if not isinstance(heads, int) or not isinstance(head_dim, int):
        raise Decline("symbolic_head")
    size = page_size(cache.spec, head_dim)
    kernel = Kernel(
        "kv_store",
        ("kv_store", heads, head_dim, size),
        lambda target, symbol: _kv_store_text(target, symbol, heads, head_dim, size),
    )
    ints = [cache.shape[1], node.attr("layer"), key_rows.offset, key_rows.stride, value_rows.offset, value_rows.stride]
    return Launch(
        kernel,
        [Operand(whole_base(cache)), Operand(key_rows.base), Operand(value_rows.base), *ragged.operands],
        [node],
        ints=[*ragged.ints, *ints],
        scalars=[],
        extent=key_rows.count,
        grain=max(1, 16384 // max(1, heads * head_dim)),
        unit="row",
        work_bytes=key_rows.count * heads * head_dim * 16,
    )
