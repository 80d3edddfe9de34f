"""Products whose lanes are output columns: panels of 16 columns, tiles of rows, an epilogue, a float or quantised
store.

A unit is a block of 16 output columns (32 where the result is quantised, 64 where the right operand is walked as it
lies) times a group of up to 128 rows, so that the block's weights and the group's activations both stay in cache. Sums
wait in scratch until every sibling weight has its own; then the epilogue runs per row. What a row gets depends on that
row and the weights only (see tiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from plait.jit.builder import Builder, Value
from plait.jit.expression import ExpressionBuilder, Typed, memory_element
from plait.jit.kernel import Fused
from plait.jit.kernels.quantize import store_quantized
from plait.jit.kernels.tiles import (
    DEPTH,
    LANES,
    PANELS,
    Tile,
    codes_tile,
    define_panel_copy,
    define_tiles,
    float_tile,
    int8_tile,
)
from plait.jit.packing import FLOAT_PACKING, block_layout, block_packing
from plait.jit.target import Target

GROUP = 128  # rows of a unit
F32 = "<16 x float>"
INTS = ("m", "n", "k", "x_offset", "x_stride", "x_step")


@dataclass(frozen=True)
class ProductSpec:
    """What a product kernel computes.

    weight    block format name, "f32" for packed float32 rows (N, K), or "rows" for a float32 right operand (K, N)
    int8      the activations are rows of quantize_rows
    siblings  number of weights of equal N that share the activations
    epilogue  its first inputs are the siblings' sums, the others the epilogue operands in order; one output
    output    "float" or "quantized": rows of quantize_rows of the N columns, N a multiple of 32
    """

    weight: str
    int8: bool = False
    siblings: int = 1
    epilogue: Fused | None = None
    output: str = "float"

    @property
    def packing(self) -> str | None:
        """The packing id its weights must have."""
        return {"rows": None, "f32": FLOAT_PACKING}.get(self.weight, block_packing(self.weight))

    @property
    def columns(self) -> int:
        """Output columns of a unit."""
        if self.weight == "rows":
            return PANELS * LANES
        return 2 * LANES if self.output == "quantized" else LANES


@dataclass(frozen=True)
class Layout:
    """What else shapes the code: which strides are 1, the axes of the batch, the epilogue operands' patterns.

    w_unit is the axis of a walked right operand whose stride is 1: "n", "k", or "" for neither."""

    x_unit: bool
    w_unit: str
    batch: int
    patterns: tuple[str, ...]
    tail: bool

    def ints(self, spec: ProductSpec) -> list[str]:
        """Names of the launch's ints, in order."""
        names = list(INTS)
        if spec.weight == "rows":
            names += [f"{name}{s}" for s in range(spec.siblings) for name in ("w_offset", "k_stride", "n_stride")]
        names += [f"{name}{i}" for i in range(len(self.patterns)) for name in ("at", "row_stride")]
        names += [f"batch_{name}{axis}" for axis in range(self.batch) for name in ("size", "x", "w")]
        return names


class _Writer:
    """One kernel's text. Names follow Layout.ints."""

    def __init__(self, target: Target, symbol: str, spec: ProductSpec, layout: Layout) -> None:
        self.b = Builder(target)
        self.spec, self.layout = spec, layout
        self.parts = spec.columns // LANES
        self.tiles = define_tiles(self.b, symbol, _tile(spec, layout))
        self.copy = define_panel_copy(self.b, symbol, layout.w_unit) if spec.weight == "rows" else ""
        with self.b.function(symbol) as (args, lo, hi):
            self._read(args)
            self.b.loop(lo, hi, 1, self._unit)

    def _read(self, args: Value) -> None:
        """Every argument into a register."""
        b, spec = self.b, self.spec
        count = 2 + spec.siblings + len(self.layout.patterns)
        pointers = [b.slot(args, i) for i in range(count)]
        self.x, self.weights, self.out = pointers[0], pointers[1 : 1 + spec.siblings], pointers[-1]
        self.operands = pointers[1 + spec.siblings : -1]
        names = self.layout.ints(spec)
        self.ints = {name: b.slot(args, count + i, "i64") for i, name in enumerate(names)}
        self.expressions = ExpressionBuilder(b, LANES)
        dtypes = spec.epilogue.scalars if spec.epilogue else ()
        first = count + len(names)
        self.scalars = [self.expressions.from_slot(dtype, args, first + i) for i, dtype in enumerate(dtypes)]
        element = "i8" if spec.int8 else "float"
        self.x = b.gep(element, self.x, self.ints["x_offset"])
        width = 1 if spec.int8 else 4
        self.x_stride, self.x_step = (b.imul(self.ints[name], width) for name in ("x_stride", "x_step"))
        self.scratch = b.alloca(F32, GROUP * spec.siblings * self.parts)
        self.panels = b.alloca(F32, PANELS * DEPTH) if spec.weight == "rows" else None

    def _unit(self, unit: Value) -> None:
        b, ints = self.b, self.ints
        blocks = b.udiv(b.iadd(ints["n"], self.spec.columns - 1), self.spec.columns)
        block, rest = b.urem(unit, blocks), b.udiv(unit, blocks)
        groups = b.udiv(b.iadd(ints["m"], GROUP - 1), GROUP)
        batch = b.udiv(rest, groups) if self.layout.batch else None
        first = b.imul(b.urem(rest, groups) if self.layout.batch else rest, GROUP)
        rows = b.imin(b.isub(ints["m"], first), GROUP)
        x = b.gep("i8", self.x, b.imul(first, self.x_stride))
        shift = b.index(0)
        if batch is not None:
            x_shift, shift = self._batch_shift(batch)
            x = b.gep("float", x, x_shift)
            first = b.iadd(first, b.imul(batch, ints["m"]))
        column = b.imul(block, self.spec.columns)
        for sibling in range(self.spec.siblings):
            if self.panels is None:
                self._packed_sums(sibling, column, x, rows)
            else:
                self._walked_sums(sibling, column, x, rows, shift, self.panels)
        b.loop(0, rows, 1, lambda row: self._finish(row, b.iadd(first, row), column))

    def _batch_shift(self, batch: Value) -> tuple[Value, Value]:
        """Elements from the first matrix of each side to this one's."""
        b, x, w = self.b, self.b.index(0), self.b.index(0)
        for axis in reversed(range(self.layout.batch)):
            size = self.ints[f"batch_size{axis}"]
            at, batch = b.urem(batch, size), b.udiv(batch, size)
            x = b.iadd(x, b.imul(at, self.ints[f"batch_x{axis}"]))
            w = b.iadd(w, b.imul(at, self.ints[f"batch_w{axis}"]))
        return x, w

    def _scratch(self, sibling: int, part: int) -> Value:
        return self.b.gep(F32, self.scratch, (sibling * self.parts + part) * GROUP)

    def _clear(self, sums: Value, rows: Value) -> None:
        b = self.b
        b.loop(0, rows, 1, lambda row: b.store(b.constant(F32, 0.0), b.gep(F32, sums, row), 64))

    def _packed_sums(self, sibling: int, column: Value, x: Value, rows: Value) -> None:
        """Fill the scratch of one sibling with the sums of every row, its weights packed."""
        b, first = self.b, self.b.lshr(column, 4)
        for part in range(self.parts):
            sums = self._scratch(sibling, part)
            if self.spec.weight == "f32":
                self._clear(sums, rows)
            panel = b.gep("i8", self.weights[sibling], b.imul(b.iadd(first, part), self._panel_bytes()))
            self._sweep(panel, x, self.ints["k"], rows, sums)

    def _walked_sums(self, sibling: int, column: Value, x: Value, rows: Value, shift: Value, panels: Value) -> None:
        """The same for a right operand in any layout, copied into panels slab by slab."""
        b, k, ints = self.b, self.ints["k"], self.ints
        w_offset, k_stride, n_stride = (ints[f"{name}{sibling}"] for name in ("w_offset", "k_stride", "n_stride"))
        corner = b.gep("float", self.weights[sibling], b.iadd(b.iadd(w_offset, shift), b.imul(column, n_stride)))
        columns = b.isub(ints["n"], column)
        for part in range(self.parts):
            self._clear(self._scratch(sibling, part), rows)

        def slab(start: Value) -> None:
            depth = b.imin(b.isub(k, start), DEPTH)
            right = b.gep("float", corner, b.imul(start, k_stride))
            b.call("void", self.copy, right, k_stride, n_stride, depth, columns, panels)
            left = b.gep("i8", x, b.imul(start, self.x_step))
            for part in range(self.parts):
                panel, sums = b.gep(F32, panels, part * DEPTH), self._scratch(sibling, part)
                b.if_(b.icmp("sgt", columns, part * LANES), partial(self._sweep, panel, left, depth, rows, sums))

        b.loop(0, k, DEPTH, slab)

    def _panel_bytes(self) -> Value:
        b, k = self.b, self.ints["k"]
        if self.spec.weight == "f32":
            return b.shl(k, 6)
        return b.imul(b.lshr(k, 5), block_layout(self.spec.weight).size)

    def _sweep(self, panel: Value, x: Value, k: Value, rows: Value, sums: Value) -> None:
        """Every row through the tile functions, the largest first."""
        b, done = self.b, self.b.index(0)
        for size, name in self.tiles:

            def tile(row: Value, name: str = name) -> None:
                at = b.gep("i8", x, b.imul(row, self.x_stride))
                b.call("void", name, panel, at, self.x_stride, self.x_step, k, b.gep(F32, sums, row))

            end = b.iadd(done, b.band(b.isub(rows, done), -size))
            b.loop(done, end, size, tile)
            done = end

    def _finish(self, local: Value, row: Value, column: Value) -> None:
        """The epilogue and the store of one row of the unit; `row` counts over the batch, `local` in the scratch."""
        b, n = self.b, self.ints["n"]
        if self.spec.output == "quantized":
            low, high = (self._value(local, row, b.iadd(column, h * LANES), h, None) for h in range(2))
            bytes_per_row = b.iadd(n, b.lshr(n, 2))
            store_quantized(b, low.value, high.value, b.gep("i8", self.out, b.imul(row, bytes_per_row)), n, column)
            return

        for part in range(self.parts):
            self._store_part(local, row, b.iadd(column, part * LANES), part)

    def _store_part(self, local: Value, row: Value, column: Value, part: int) -> None:
        b, n = self.b, self.ints["n"]

        def store(mask: Value | None) -> None:
            value = self._value(local, row, column, part, mask)
            at = b.gep(memory_element(value.dtype), self.out, b.iadd(b.imul(row, n), column))
            self.expressions.store(value, at, mask)

        def edge() -> None:
            b.if_(b.icmp("sgt", left, 0), lambda: store(b.mask(left, LANES)))

        if not self.layout.tail:
            return store(None)
        left = b.isub(n, column)
        b.if_(b.icmp("sge", left, LANES), lambda: store(None), edge)
        return None

    def _value(self, local: Value, row: Value, column: Value, part: int, mask: Value | None) -> Typed:
        b, epilogue = self.b, self.spec.epilogue
        sums = [
            Typed(b.load(F32, b.gep(F32, self._scratch(s, part), local), 64), "float32")
            for s in range(self.spec.siblings)
        ]
        if epilogue is None:
            return sums[0]
        loaded = [self._operand(i, row, column, mask) for i in range(len(self.layout.patterns))]
        (value,) = epilogue.emit(self.expressions, [*sums, *loaded], self.scalars)
        assert isinstance(value, Typed)
        return value

    def _operand(self, index: int, row: Value, column: Value, mask: Value | None) -> Typed:
        assert self.spec.epilogue is not None
        dtype = self.spec.epilogue.inputs[self.spec.siblings + index]
        pattern, at = self.layout.patterns[index], self.ints[f"at{index}"]
        if pattern in ("full", "column"):
            at = self.b.iadd(at, self.b.imul(row, self.ints[f"row_stride{index}"]))
        if pattern in ("full", "row"):
            at = self.b.iadd(at, column)
        pointer = self.b.gep(memory_element(dtype), self.operands[index], at)
        if pattern in ("full", "row"):
            return self.expressions.load(dtype, pointer, mask)
        return self.expressions.load_splat(dtype, pointer)


def _tile(spec: ProductSpec, layout: Layout) -> Tile:
    if spec.weight in ("rows", "f32"):
        return float_tile(layout.x_unit)
    return (int8_tile if spec.int8 else codes_tile)(block_layout(spec.weight))


def emit_product(target: Target, symbol: str, spec: ProductSpec, layout: Layout) -> str:
    return _Writer(target, symbol, spec, layout).b.text()
