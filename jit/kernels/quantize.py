"""Rows to int8 codes with scales: one piece of code for whoever stores a quantised row, and the standalone kernel.

The row layout and its meaning are `plait.framework.blocks.quantize_rows`. A scale too small to have a finite inverse
gives codes of 0.
"""

from __future__ import annotations

from plait.framework.graph import Node
from plait.jit.builder import Builder, Value
from plait.jit.kernel import Kernel, Launch, Operand
from plait.jit.kernels.rows import unit_rows
from plait.jit.target import Target

LANES = 16
ROUNDING = 12582912.0  # 1.5 * 2**23: in the sum, the low bits are the integer nearest to a small float, ties to even


def quantize_block(b: Builder, low: Value, high: Value) -> tuple[Value, Value, Value, Value]:
    """32 float32 values in two vectors -> their codes (two <16 x i8>), the scale and the scaled sum of the codes."""
    parts = (low, high)
    top, bottom = b.reduce("fmax", list(parts)), b.reduce("fmin", list(parts))
    scale = b.fadd(b.fmax(b.fdiv(top, 127.0), b.fdiv(bottom, -128.0)), 0.0)  # the sum turns -0 into 0
    inverse = b.fdiv(b.constant("float", 1.0), scale)
    finite = b.fcmp("olt", inverse, float("inf"))
    factor = b.splat(b.select(finite, inverse, b.constant("float", 0.0)), LANES)
    shifted = [b.bitcast(b.fadd(b.fmul(part, factor), ROUNDING), "i32") for part in parts]
    codes = [b.itrunc(part, "i8") for part in shifted]
    total = b.reduce("iadd", [b.sext(part, "i32") for part in codes])
    return codes[0], codes[1], scale, b.fmul(scale, b.sitofp(total, "float"))


def store_quantized(b: Builder, low: Value, high: Value, row: Value, columns: Value, column: Value) -> None:
    """Store columns `column` to `column + 31` of the quantised row of `columns` values that starts at `row`."""
    first, second, scale, total = quantize_block(b, low, high)
    at = b.gep("i8", row, column)
    b.store(first, at, 1)
    b.store(second, b.gep("i8", at, LANES), 1)
    block = b.lshr(column, 3)
    scales = b.gep("i8", row, columns)
    b.store(scale, b.gep("i8", scales, block), 4)
    b.store(total, b.gep("i8", b.gep("i8", scales, b.lshr(columns, 3)), block), 4)


def _emit(target: Target, symbol: str) -> str:
    b = Builder(target)
    with b.function(symbol) as (args, lo, hi):
        x, out = b.slot(args, 0), b.slot(args, 1)
        columns, offset, stride = (b.slot(args, 2 + i, "i64") for i in range(3))
        start = b.gep("float", x, offset)

        def row(r: Value) -> None:
            source = b.gep("float", start, b.imul(r, stride))
            bytes_per_row = b.iadd(columns, b.lshr(columns, 2))
            target_row = b.gep("i8", out, b.imul(r, bytes_per_row))

            def block(column: Value) -> None:
                at = b.gep("float", source, column)
                low, high = (b.load("<16 x float>", b.gep("float", at, i), 4) for i in (0, LANES))
                store_quantized(b, low, high, target_row, columns, column)

            b.loop(0, columns, 32, block)

        b.loop(lo, hi, 1, row)
    return b.text()


KERNEL = Kernel("quantize_rows", ("quantize_rows",), _emit)


def lower_quantize_rows(node: Node) -> Launch:
    """float32 rows to quantised rows, a unit per row."""
    rows = unit_rows(node.srcs[0])
    return Launch(
        KERNEL,
        [Operand(rows.base), Operand(node)],
        [node],
        ints=[rows.width, rows.offset, rows.stride],
        scalars=[],
        extent=rows.count,
        grain=4,
        unit="row",
        work_bytes=rows.count * (rows.width * 4 + node.shape[-1]),
        work_flops=rows.count * rows.width * 4,
    )
