"""The inner loops of products: a panel of 16 output columns times a tile of rows, whatever the panel is made of.

A tile function is `void f(ptr panel, ptr x, i64 x_stride, i64 x_step, i64 k, ptr sums)`: `x` is the tile's first row,
rows are `x_stride` bytes apart, `sums` holds 16 float32 per row. Each sum is the same sequence of operations whatever
the number of rows in the tile:

  int8    per block of 32 columns, ascending:
          sum = fma(float(dot) * x_scale, scale, sum); sum = fma(minimum, x_sum, sum)
  codes   weight = fma(code, scale, minimum), exact; low nibbles (even bytes of 8-bit codes) feed one chain of
          fma(weight, x, chain), high nibbles (odd bytes) another; per block, dword and byte ascending; sum = low + high
  float   sum = fma(weight, x, sum), k ascending, added to what `sums` held
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.jit.builder import Builder, Value
from plait.jit.packing import BlockLayout

LANES = 16
F32, I32 = "<16 x float>", "<16 x i32>"
AHEAD = 4096  # bytes of weights asked for ahead of their use
DEPTH = 128  # rows of a right operand that are copied into panels at a time
PANELS = 4  # side by side, so that each row gives whole cache lines
ROWS_AHEAD = 12
PARAMETERS = (("ptr", "panel"), ("ptr", "x"), ("i64", "x_stride"), ("i64", "x_step"), ("i64", "k"), ("ptr", "sums"))

# Rows per tile, most first: as many as the registers hold. The last must be 1.
TILES = {16: (8, 4, 2, 1), 8: (4, 2, 1), 4: (2, 1), 1: (1,)}

Tile = Callable[[Builder, int, Sequence[Value]], None]


def define_tiles(b: Builder, symbol: str, tile: Tile) -> list[tuple[int, str]]:
    """Define a function per tile size of the target; returns (rows, name), most rows first."""
    made = []
    for rows in TILES[b.width]:
        name = f"{symbol}_tile{rows}"
        with b.function(name, PARAMETERS, "noinline", internal=True) as values:
            tile(b, rows, values)
        made.append((rows, name))
    return made


def _row_pointers(b: Builder, count: int, x: Value, stride: Value) -> list[Value]:
    pointers = [x]
    for _ in range(count - 1):
        pointers.append(b.gep("i8", pointers[-1], stride))
    return pointers


def _sum_pointer(b: Builder, sums: Value, row: int) -> Value:
    return b.gep("i8", sums, row * 4 * LANES)


def _scales(b: Builder, layout: BlockLayout, at: Value) -> tuple[Value, Value]:
    """The scales and minima of 16 rows."""
    scale = b.fpext(b.load("<16 x half>", at, 2), "float")
    if not layout.has_minimum:
        return scale, b.fmul(scale, float(-layout.zero_point))
    return scale, b.fpext(b.load("<16 x half>", b.gep("i8", at, 2 * LANES), 2), "float")


def _prefetch(b: Builder, layout: BlockLayout, at: Value) -> None:
    for line in range(0, layout.size, 64):
        b.prefetch(b.gep("i8", at, AHEAD + line))


def _dot4(b: Builder, bits: int, total: Value, codes: Value, activations: Value) -> Value:
    """Four products per lane, exact.

    Without VNNI, AVX2's pmaddubsw adds two products and saturates at 16 bits. Pairs of 7-bit codes cannot reach that,
    so the eighth bit goes apart.
    """
    if not b.target.triple.startswith("x86") or b.width < 8 or b.target.has_vnni:
        return b.dot4(total, codes, activations)
    if bits == 4:
        return b.iadd(total, _products_avx2(b, codes, activations))
    low = _products_avx2(b, b.band(codes, 127), activations)
    high = _products_avx2(b, b.lshr(codes, 7), activations)
    return b.iadd(b.iadd(total, low), b.shl(high, 7))


def _products_avx2(b: Builder, codes: Value, activations: Value) -> Value:
    return b.concat([_pairs_avx2(b, codes, activations, first) for first in (0, 32)])


def _pairs_avx2(b: Builder, codes: Value, activations: Value, first: int) -> Value:
    left, right = b.slice(codes, first, 32), b.slice(activations, first, 32)
    words = b.intrinsic("llvm.x86.avx2.pmadd.ub.sw", "<16 x i16>", left, right)
    return b.intrinsic("llvm.x86.avx2.pmadd.wd", "<8 x i32>", words, b.constant("<16 x i16>", 1))


def _codes(b: Builder, layout: BlockLayout, at: Value) -> list[Value]:
    """Eight vectors of 64 unsigned bytes: vector j holds columns 4j to 4j+3 of 16 rows."""
    first = b.gep("i8", at, layout.codes_at)
    loaded = [b.load("<64 x i8>", b.gep("i8", first, 64 * j), 1) for j in range(layout.dwords)]
    if layout.bits == 8:
        return loaded
    return [b.band(v, 15) for v in loaded] + [b.lshr(v, 4) for v in loaded]


def int8_tile(layout: BlockLayout) -> Tile:
    """Block-quantised weights times rows of quantize_rows."""

    def tile(b: Builder, rows: int, values: Sequence[Value]) -> None:
        panel, x, stride, _, k, sums = values
        pointers = _row_pointers(b, rows, x, stride)
        quarter = b.lshr(k, 3)

        def dot(codes: list[Value], pointer: Value) -> Value:
            chains = [b.constant(I32, 0) for _ in range(2 if rows == 1 else 1)]
            for j, code in enumerate(codes):
                four = b.splat(b.load("i32", b.gep("i8", pointer, 4 * j), 4), LANES)
                c = j % len(chains)
                chains[c] = _dot4(b, layout.bits, chains[c], code, b.bitcast(four, "i8"))
            return chains[0] if rows > 1 else b.iadd(*chains)

        def block(i: Value, *accumulators: Value) -> list[Value]:
            at = b.gep("i8", panel, b.imul(i, layout.size))
            _prefetch(b, layout, at)
            scale, minimum = _scales(b, layout, at)
            codes = _codes(b, layout, at)
            column = b.shl(i, 5)
            scale_at = b.iadd(k, b.shl(i, 2))
            sum_at = b.iadd(scale_at, quarter)
            following = []
            for pointer, acc in zip(pointers, accumulators, strict=True):
                products = b.sitofp(dot(codes, b.gep("i8", pointer, column)), "float")
                x_scale = b.splat(b.load("float", b.gep("i8", pointer, scale_at), 4), LANES)
                x_sum = b.splat(b.load("float", b.gep("i8", pointer, sum_at), 4), LANES)
                acc = b.fma(b.fmul(products, x_scale), scale, acc)
                following.append(b.fma(minimum, x_sum, acc))
            return following

        zero = b.constant(F32, 0.0)
        for row, acc in enumerate(b.loop(0, b.lshr(k, 5), 1, block, [zero] * rows)):
            b.store(acc, _sum_pointer(b, sums, row), 64)

    return tile


def codes_tile(layout: BlockLayout) -> Tile:
    """Block-quantised weights times float32 rows."""
    fields = 8 if layout.bits == 4 else 4

    def tile(b: Builder, rows: int, values: Sequence[Value]) -> None:
        panel, x, stride, _, k, sums = values
        pointers = _row_pointers(b, rows, x, stride)

        def weight(dword: Value, field: int, scale: Value, minimum: Value) -> Value:
            shifted = b.lshr(dword, field * layout.bits) if field else dword
            code = b.band(shifted, (1 << layout.bits) - 1)
            return b.fma(b.sitofp(code, "float"), scale, minimum)

        def block(i: Value, *chains: Value) -> list[Value]:
            at = b.gep("i8", panel, b.imul(i, layout.size))
            _prefetch(b, layout, at)
            scale, minimum = _scales(b, layout, at)
            codes = b.gep("i8", at, layout.codes_at)

            def dword(j: Value, *chains: Value) -> list[Value]:
                loaded = b.load(I32, b.gep("i8", codes, b.shl(j, 6)), 1)
                column = b.iadd(b.shl(i, 7), b.shl(j, 4))
                chain = list(chains)
                for field in range(fields):
                    w = weight(loaded, field, scale, minimum)
                    byte, high = (field // 2, field % 2) if fields == 8 else (field, field % 2)
                    place = 4 * byte + (64 * high if fields == 8 else 0)
                    for row, pointer in enumerate(pointers):
                        value = b.load("float", b.gep("i8", b.gep("i8", pointer, column), place), 4)
                        at_chain = 2 * row + high
                        chain[at_chain] = b.fma(w, b.splat(value, LANES), chain[at_chain])
                return chain

            return b.loop(0, layout.dwords, 1, dword, chains)

        zero = b.constant(F32, 0.0)
        chains = b.loop(0, b.lshr(k, 5), 1, block, [zero] * (2 * rows))
        for row in range(rows):
            b.store(b.fadd(chains[2 * row], chains[2 * row + 1]), _sum_pointer(b, sums, row), 64)

    return tile


def float_tile(unit_step: bool) -> Tile:
    """A float32 panel [k][16] times float32 rows; `x_step` is the bytes between a row's elements if not 4."""

    def tile(b: Builder, rows: int, values: Sequence[Value]) -> None:
        panel, x, stride, step, k, sums = values
        pointers = _row_pointers(b, rows, x, stride)

        def column(i: Value, *accumulators: Value) -> list[Value]:
            at = b.gep("i8", panel, b.shl(i, 6))
            b.prefetch(b.gep("i8", at, AHEAD))
            weight = b.load(F32, at, 4)
            place = b.shl(i, 2) if unit_step else b.imul(i, step)
            following = []
            for pointer, acc in zip(pointers, accumulators, strict=True):
                value = b.load("float", b.gep("i8", pointer, place), 4)
                following.append(b.fma(weight, b.splat(value, LANES), acc))
            return following

        first = [b.load(F32, _sum_pointer(b, sums, row), 64) for row in range(rows)]
        for row, acc in enumerate(b.loop(0, k, 1, column, first)):
            b.store(acc, _sum_pointer(b, sums, row), 64)

    return tile


def define_panel_copy(b: Builder, symbol: str, unit: str) -> str:
    """Define `void f(ptr right, i64 k_stride, i64 n_stride, i64 k, i64 columns, ptr panels)`: copy k rows of up to 64
    columns of a matrix (strides in elements) into panels [4][DEPTH][16]. Columns past the last are 0.

    `unit` names the axis whose stride is 1: "n", "k", or "" for neither."""
    name = f"{symbol}_panel"
    sizes = [("i64", size) for size in ("k_stride", "n_stride", "k", "columns")]
    parameters = [("ptr", "right"), *sizes, ("ptr", "panels")]
    with b.function(name, parameters, "noinline", internal=True) as (right, k_stride, n_stride, k, columns, panel):
        if unit == "n":
            _copy_neighbours(b, right, k_stride, k, columns, panel)
        else:
            _copy_strided(b, right, k_stride, n_stride, k, columns, panel, transpose=unit == "k")
    return name


def _copy_neighbours(b: Builder, right: Value, k_stride: Value, k: Value, columns: Value, panels: Value) -> None:
    def rows(masks: Sequence[Value | None]) -> None:
        def row(i: Value) -> None:
            source = b.gep("float", right, b.imul(i, k_stride))
            ahead = b.gep("float", right, b.imul(b.iadd(i, ROWS_AHEAD), k_stride))
            for panel, mask in enumerate(masks):
                b.prefetch(b.gep("float", ahead, panel * LANES))
                value = b.vload(b.gep("float", source, panel * LANES), F32, mask, 4)
                b.store(value, b.gep(F32, panels, b.iadd(i, panel * DEPTH)), 64)

        b.loop(0, k, 1, row)

    masks = [b.mask(b.isub(columns, panel * LANES), LANES) for panel in range(PANELS)]
    b.if_(b.icmp("sge", columns, PANELS * LANES), lambda: rows([None] * PANELS), lambda: rows(masks))


def _copy_strided(
    b: Builder, right: Value, k_stride: Value, n_stride: Value, k: Value, columns: Value, panels: Value, transpose: bool
) -> None:
    def panel(number: Value) -> None:
        first = b.shl(number, 4)
        source = b.gep("float", right, b.imul(first, n_stride))
        target = b.gep(F32, panels, b.imul(number, DEPTH))
        width = b.imin(b.isub(columns, first), LANES)

        def scalars(start: Value) -> None:
            _copy_scalars(b, source, k_stride, n_stride, start, k, width, target)

        def square(i: Value) -> None:
            _copy_square(b, b.gep("float", source, i), n_stride, b.gep(F32, target, i))

        def squares() -> None:
            whole = b.band(k, -LANES)
            b.loop(0, whole, LANES, square)
            scalars(whole)

        def edge() -> None:
            b.loop(0, DEPTH, 1, lambda i: b.store(b.constant(F32, 0.0), b.gep(F32, target, i), 64))
            scalars(b.index(0))

        full = squares if transpose else lambda: scalars(b.index(0))
        b.if_(b.icmp("eq", width, LANES), full, edge)

    b.loop(0, b.imin(b.lshr(b.iadd(columns, LANES - 1), 4), PANELS), 1, panel)


def _copy_scalars(
    b: Builder, source: Value, k_stride: Value, n_stride: Value, start: Value, k: Value, width: Value, target: Value
) -> None:
    def column(n: Value) -> None:
        read, write = b.gep("float", source, b.imul(n, n_stride)), b.gep("float", target, n)

        def element(i: Value) -> None:
            b.store(b.load("float", b.gep("float", read, b.imul(i, k_stride))), b.gep(F32, write, i), 4)

        b.loop(start, k, 1, element)

    b.loop(0, width, 1, column)


def _copy_square(b: Builder, source: Value, n_stride: Value, target: Value) -> None:
    """Transpose 16 columns of 16 neighbouring elements."""
    square = [b.load(F32, b.gep("float", source, b.imul(n_stride, n)), 4) for n in range(LANES)]
    for distance in (8, 4, 2, 1):
        low = [lane if not lane & distance else lane - distance + LANES for lane in range(LANES)]
        high = [lane + distance if not lane & distance else lane + LANES for lane in range(LANES)]
        for i in (i for i in range(LANES) if not i & distance):
            first, second = square[i], square[i + distance]
            square[i], square[i + distance] = b.shuffle(first, second, low), b.shuffle(first, second, high)
    for i, row in enumerate(square):
        b.store(row, b.gep(F32, target, i), 64)
