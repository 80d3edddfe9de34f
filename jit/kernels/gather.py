"""Kernels that take rows of a table by id, a unit per id: plain rows, and block-quantised rows dequantised.

Ids are trusted: an id outside its table reads memory that is not the table's. Whoever runs a kernel on ids from outside
checks them first.
"""

from __future__ import annotations

from plait.framework.dim import Size, product
from plait.framework.graph import Node
from plait.jit.builder import Builder, Value
from plait.jit.kernel import Decline, Kernel, Launch, Operand
from plait.jit.kernels.rows import rows_of, unit_rows, whole_base
from plait.jit.packing import block_layout
from plait.jit.target import Target

LANES = 16


def _row_number(b: Builder, ids: Value, offset: Value, step: Value, row: Value, id_type: str) -> Value:
    at = b.gep(id_type, ids, b.iadd(offset, b.imul(row, step)))
    return b.sext(b.load(id_type, at), "i64")


def _from_the_end(b: Builder, number: Value, size: Value) -> Value:
    """A negative id counts from the end."""
    return b.select(b.icmp("slt", number, 0), b.iadd(number, size), number)


def _take_text(target: Target, symbol: str, element: str, id_type: str) -> str:
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        table, ids, out = (b.slot(args, i) for i in range(3))
        width, offset, stride, id_offset, id_step, size = (b.slot(args, 3 + i, "i64") for i in range(6))

        def row(t: Value) -> None:
            number = _row_number(b, ids, id_offset, id_step, t, id_type)
            number = _from_the_end(b, number, size)
            source = b.gep(element, table, b.iadd(offset, b.imul(number, stride)))
            target_row = b.gep(element, out, b.imul(t, width))

            def some(i: Value, mask: Value | None) -> None:
                value = b.vload(b.gep(element, source, i), f"<{LANES} x {element}>", mask)
                b.vstore(value, b.gep(element, target_row, i), mask)

            b.vloop(0, width, LANES, some)

        b.loop(lo, hi, 1, row)
    return b.text()


_ID_TYPES = {"int32": "i32", "int64": "i64"}


def lower_take(node: Node) -> Launch:
    """Rows of a tensor along axis 0, a unit per id.

    Raises: Decline for another axis, ids that are no int32 or int64, elements of more than 8 bytes, or rows whose
    elements are not neighbours.
    """
    table, ids = node.srcs
    if node.attr("axis") != 0 or ids.dtype.name not in _ID_TYPES or table.dtype.itemsize > 8:
        raise Decline("take_layout")
    source, places = unit_rows(table, inner=len(table.shape) - 1), rows_of(ids, inner=len(ids.shape))
    element, id_type = f"i{8 * table.dtype.itemsize}", ids.dtype.name
    kernel = Kernel(
        "take",
        ("take", element, id_type),
        lambda target, symbol: _take_text(target, symbol, element, _ID_TYPES[id_type]),
    )
    return Launch(
        kernel,
        [Operand(source.base), Operand(places.base), Operand(node)],
        [node],
        ints=[source.width, source.offset, source.stride, places.offset, places.step, table.shape[0]],
        scalars=[],
        extent=product(ids.shape),
        grain=_grain(source.width * table.dtype.itemsize),
        unit="row",
        work_bytes=product(ids.shape) * source.width * 2 * table.dtype.itemsize,
    )


def _grain(row_bytes: Size) -> int:
    return max(1, 65536 // max(1, row_bytes)) if isinstance(row_bytes, int) else 8


def _qtake_text(target: Target, symbol: str, format_name: str, id_type: str) -> str:
    b = Builder(target)
    layout = block_layout(format_name)
    codes_at = 4 if layout.has_minimum else 2
    block_bytes = codes_at + 4 * layout.bits
    with b.function(symbol) as (args, lo, hi):
        table, ids, out = (b.slot(args, i) for i in range(3))
        columns, id_offset, id_step, size = (b.slot(args, 3 + i, "i64") for i in range(4))
        row_bytes = b.imul(b.lshr(columns, 5), block_bytes)

        def row(t: Value) -> None:
            number = _row_number(b, ids, id_offset, id_step, t, id_type)
            number = _from_the_end(b, number, size)
            source = b.gep("i8", table, b.imul(number, row_bytes))
            target_row = b.gep("float", out, b.imul(t, columns))

            def block(i: Value) -> None:
                at = b.gep("i8", source, b.imul(i, block_bytes))
                scale, minimum = _block_scales(b, at, layout.has_minimum, layout.zero_point)
                for part, codes in enumerate(_file_codes(b, b.gep("i8", at, codes_at), layout.bits)):
                    weights = b.fadd(b.fmul(b.sitofp(b.zext(codes, "i32"), "float"), scale), minimum)
                    b.store(weights, b.gep("float", target_row, b.iadd(b.shl(i, 5), LANES * part)), 4)

            b.loop(0, b.lshr(columns, 5), 1, block)

        b.loop(lo, hi, 1, row)
    return b.text()


def _block_scales(b: Builder, at: Value, has_minimum: bool, zero_point: int) -> tuple[Value, Value]:
    scale = b.splat(b.fpext(b.load("half", at, 1), "float"), LANES)
    if not has_minimum:
        return scale, b.fmul(scale, float(-zero_point))
    return scale, b.splat(b.fpext(b.load("half", b.gep("i8", at, 2), 1), "float"), LANES)


def _file_codes(b: Builder, at: Value, bits: int) -> list[Value]:
    """Columns 0 to 15 and 16 to 31 of a block as unsigned bytes."""
    first = b.load("<16 x i8>", at, 1)
    if bits == 4:
        return [b.band(first, 15), b.lshr(first, 4)]
    return [b.bxor(first, -128), b.bxor(b.load("<16 x i8>", b.gep("i8", at, LANES), 1), -128)]


def lower_qtake(node: Node) -> Launch:
    """Rows of a block-quantised table, dequantised, a unit per id."""
    table, ids = node.srcs
    if ids.dtype.name not in _ID_TYPES:
        raise Decline("take_layout")
    places = rows_of(ids, inner=len(ids.shape))
    format_name, id_type = node.attr("format"), ids.dtype.name
    kernel = Kernel(
        f"qtake_{format_name}",
        ("qtake", format_name, id_type),
        lambda target, symbol: _qtake_text(target, symbol, format_name, _ID_TYPES[id_type]),
    )
    columns = node.shape[-1]
    return Launch(
        kernel,
        [Operand(whole_base(table)), Operand(places.base), Operand(node)],
        [node],
        ints=[columns, places.offset, places.step, table.shape[0]],
        scalars=[],
        extent=product(ids.shape),
        grain=_grain(columns * 4),
        unit="row",
        work_bytes=product(ids.shape) * columns * 5,
    )
