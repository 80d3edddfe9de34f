"""Paged causal attention: tiles of 32 positions aligned at absolute positions, ascending, merged by an online softmax.

One query head of one row keeps its largest score, 16 partial sums of weights and its accumulator. A tile gives 32
scores (lanes are positions, fma over the head's elements in order), then accumulator = fma(weight, value, accumulator)
position by position. Rows that share a sequence and heads that share a kv head go through a tile together; what each of
them computes is the same as alone, so a row's bits depend on its query and its sequence's cache only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.framework.dim import Size, ceil_div
from plait.framework.graph import Node
from plait.framework.ops.ragged import TILE, page_size
from plait.jit.builder import Builder, Value
from plait.jit.expression import ExpressionBuilder, Typed
from plait.jit.kernel import Decline, Kernel, Launch, Operand
from plait.jit.kernels.quantize import store_quantized
from plait.jit.kernels.ragged import Place, RaggedArguments, RaggedBatch
from plait.jit.kernels.rows import unit_rows, whole_base
from plait.jit.target import Target

LANES = 16
F32 = "<16 x float>"
TOGETHER = 6  # query heads that go through a tile together, at most
VECTORS = 4  # accumulator vectors of a head that are in registers at a time
WORST = float("-inf")


@dataclass(frozen=True)
class AttentionSpec:
    """What shapes the code. `group` query heads read one kv head."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    quantized: bool

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def heads_together(self) -> int:
        """Heads of one row in a unit: the largest divisor of the group that fits."""
        return max(n for n in range(1, TOGETHER + 1) if self.group % n == 0)

    @property
    def rows_together(self) -> int:
        return max(1, TOGETHER // self.heads_together)

    @property
    def vectors(self) -> int:
        """Vectors of an accumulator; the last may be partly used."""
        return -(-self.head_dim // LANES)

    @property
    def splits(self) -> int:
        """Units per row block: kv heads, each in parts of heads_together."""
        return self.heads // self.heads_together


class _State:
    """Scratch of the query heads of a unit, each: query, accumulator, 16 sums, largest score, 32 weights."""

    def __init__(self, b: Builder, spec: AttentionSpec) -> None:
        self.b, self.width = b, spec.vectors * LANES
        self.size = 2 * self.width + 2 * LANES + TILE

    def part(self, base: Value, head: int, name: str) -> Value:
        offsets = {
            "query": 0,
            "sum": self.width,
            "total": 2 * self.width,
            "largest": 2 * self.width + LANES,
            "weights": 2 * self.width + 2 * LANES,
        }
        return self.b.gep("float", base, head * self.size + offsets[name])


class _Writer:
    """One kernel's text."""

    def __init__(self, target: Target, symbol: str, spec: AttentionSpec) -> None:
        self.b = b = Builder(target)
        self.spec, self.state = spec, _State(b, spec)
        self.expressions = ExpressionBuilder(b, LANES)
        self.one_row = self._define_tile(f"{symbol}_row", spec.heads_together, masked=True)
        self.many_rows = ""
        if spec.rows_together > 1:
            self.many_rows = self._define_tile(f"{symbol}_rows", spec.heads_together * spec.rows_together, masked=False)
        with b.function(symbol) as (args, lo, hi):
            self._read(args, symbol)
            b.loop(lo, hi, 1, self._unit)

    def _read(self, args: Value, symbol: str) -> None:
        b = self.b
        self.queries, self.cache = b.slot(args, 0), b.slot(args, 1)
        self.batch = RaggedBatch(b, symbol, args, 2, 6, paged=True)
        self.out = b.slot(args, 5)
        names = ("rows", "offset", "stride", "layers", "layer")
        self.ints = {name: b.slot(args, 9 + i, "i64") for i, name in enumerate(names)}
        self.scale = self.expressions.from_slot("float32", args, 9 + len(names)).value
        heads = self.spec.heads_together * self.spec.rows_together
        self.scratch = b.alloca("float", heads * self.state.size)

    # ---- one tile ---------------------------------------------------------------------------------------------------

    def _define_tile(self, name: str, heads: int, masked: bool) -> str:
        """Define `void f(ptr keys, ptr values, ptr state, i64 count)`: merge a tile into the state of `heads` heads.
        Masked, only the first `count` positions exist; else all do and `count` is 32."""
        parameters = [("ptr", "keys"), ("ptr", "values"), ("ptr", "state"), ("i64", "count")]
        with self.b.function(name, parameters, "noinline", internal=True) as (keys, values, state, count):
            scores = self._scores(keys, state, heads)
            masks = self._masks(count) if masked else [None, None]
            shrinks = [self._weigh(state, head, scores[2 * head : 2 * head + 2], masks) for head in range(heads)]
            for first in range(0, self.spec.vectors, VECTORS):
                self._accumulate(values, state, count, shrinks, range(first, min(first + VECTORS, self.spec.vectors)))
        return name

    def _masks(self, count: Value) -> list[Value | None]:
        return [self.b.mask(self.b.isub(count, at), LANES) for at in (0, LANES)]

    def _scores(self, keys: Value, state: Value, heads: int) -> list[Value]:
        """Two vectors per head: the dot products of its query with 32 keys."""
        b = self.b
        queries = [self.state.part(state, head, "query") for head in range(heads)]

        def element(d: Value, *sums: Value) -> list[Value]:
            at = b.gep("float", keys, b.imul(d, self.spec.page_size))
            halves = [b.load(F32, b.gep("float", at, i), 4) for i in (0, LANES)]
            following = []
            for head, query in enumerate(queries):
                value = b.splat(b.load("float", b.gep("float", query, d)), LANES)
                following += [b.fma(halves[i], value, sums[2 * head + i]) for i in range(2)]
            return following

        return b.loop(0, self.spec.head_dim, 1, element, [b.constant(F32, 0.0)] * (2 * heads))

    def _weigh(self, state: Value, head: int, scores: list[Value], masks: Sequence[Value | None]) -> Value:
        """Turn scores into weights in the state; returns the factor that earlier sums shrink by."""
        b = self.b
        worst, zero = b.constant(F32, WORST), b.constant(F32, 0.0)
        seen = [s if m is None else b.select(m, s, worst) for s, m in zip(scores, masks, strict=True)]
        largest_at, total_at = self.state.part(state, head, "largest"), self.state.part(state, head, "total")
        before = b.load(F32, largest_at, 64)
        largest = self._larger(before, b.splat(b.fold(self._larger, seen), LANES))
        shrink = self._exp(b.fsub(before, largest))
        weights = [self._exp(b.fsub(score, largest)) for score in seen]
        weights = [w if m is None else b.select(m, w, zero) for w, m in zip(weights, masks, strict=True)]
        b.store(b.fma(b.load(F32, total_at, 64), shrink, b.fadd(*weights)), total_at, 64)
        b.store(largest, largest_at, 64)
        for i, weight in enumerate(weights):
            b.store(weight, b.gep("float", self.state.part(state, head, "weights"), i * LANES), 64)
        return shrink

    def _larger(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.fcmp("ogt", x, y), x, y)

    def _exp(self, x: Value) -> Value:
        return self.expressions.exp(Typed(x, "float32")).value

    def _accumulate(self, values: Value, state: Value, count: Value, shrinks: list[Value], vectors: range) -> None:
        """sums = sums * shrink, then fma(weight, value, sums) position by position, for some vectors of every head."""
        b, heads = self.b, range(len(shrinks))
        starts = [self.state.part(state, head, "sum") for head in heads]
        places = [(head, v, b.gep("float", starts[head], v * LANES)) for head in heads for v in vectors]
        sums = [b.fmul(b.load(F32, at, 64), shrinks[head]) for head, _, at in places]
        weights = [self.state.part(state, head, "weights") for head in heads]

        def position(p: Value, *sums: Value) -> list[Value]:
            at = b.gep("float", values, b.imul(p, self.spec.head_dim))
            loaded = {v: self._load_part(at, v) for v in vectors}
            each = [b.splat(b.load("float", b.gep("float", weight, p)), LANES) for weight in weights]
            return [b.fma(each[head], loaded[v], acc) for (head, v, _), acc in zip(places, sums, strict=True)]

        for (_, _, at), acc in zip(places, b.loop(0, count, 1, position, sums), strict=True):
            b.store(acc, at, 64)

    def _load_part(self, at: Value, vector: int) -> Value:
        """Vector `vector` of a row of head_dim floats; lanes past the end are 0."""
        lanes = min(LANES, self.spec.head_dim - vector * LANES)
        mask = self.b.constants("i1", [lane < lanes for lane in range(LANES)]) if lanes < LANES else None
        return self.b.vload(self.b.gep("float", at, vector * LANES), F32, mask)

    # ---- one unit ---------------------------------------------------------------------------------------------------

    def _unit(self, unit: Value) -> None:
        """Some rows (neighbours) and some heads that read one kv head. Row blocks count fastest."""
        b, spec = self.b, self.spec
        blocks = b.udiv(b.iadd(self.ints["rows"], spec.rows_together - 1), spec.rows_together)
        block, split = b.urem(unit, blocks), b.udiv(unit, blocks)
        first = b.imul(block, spec.rows_together)
        count = b.imin(b.isub(self.ints["rows"], first), spec.rows_together)
        head = b.imul(split, spec.heads_together)
        kv_head = b.udiv(head, spec.group)
        b.loop(0, count, 1, lambda r: self._start(self._state_of(r), b.iadd(first, r), head))
        places = [self.batch.place(first), self.batch.place(b.iadd(first, b.isub(count, 1)))]
        shared = self._shared_tiles(count, places, kv_head)

        def row(r: Value) -> None:
            place = self.batch.place(b.iadd(first, r))
            tiles = b.udiv(b.iadd(place.position, TILE), TILE)
            last = b.select(place.covered, tiles, 0)
            state = self._state_of(r)
            b.loop(shared, last, 1, lambda tile: self._merge(self.one_row, state, place, kv_head, tile))
            self._finish(state, b.iadd(first, r), head, place)

        b.loop(0, count, 1, row)

    def _state_of(self, row: Value) -> Value:
        return self.b.gep("float", self.scratch, self.b.imul(row, self.spec.heads_together * self.state.size))

    def _shared_tiles(self, count: Value, places: list[Place], kv_head: Value) -> Value:
        """Merge the tiles that all rows of a full block see whole, if one sequence owns them; returns how many."""
        b = self.b
        if not self.many_rows:
            return b.index(0)
        first, last = places
        together = b.band(b.icmp("eq", count, self.spec.rows_together), b.icmp("eq", first.sequence, last.sequence))
        together = b.band(together, last.covered)
        tiles = b.select(together, b.udiv(b.iadd(first.position, 1), TILE), 0)
        b.loop(0, tiles, 1, lambda tile: self._merge(self.many_rows, self.scratch, first, kv_head, tile))
        return tiles

    def _start(self, state: Value, row: Value, head: Value) -> None:
        """Scaled queries, empty sums."""
        b, spec = self.b, self.spec
        source = b.gep("float", self.queries, b.iadd(self.ints["offset"], b.imul(row, self.ints["stride"])))
        for h in range(spec.heads_together):
            query = b.gep("float", source, b.imul(b.iadd(head, h), spec.head_dim))
            for v in range(spec.vectors):
                scaled = b.fmul(self._load_part(query, v), self.scale)
                b.store(scaled, b.gep("float", self.state.part(state, h, "query"), v * LANES), 64)
                b.store(b.constant(F32, 0.0), b.gep("float", self.state.part(state, h, "sum"), v * LANES), 64)
            b.store(b.constant(F32, 0.0), self.state.part(state, h, "total"), 64)
            b.store(b.constant(F32, WORST), self.state.part(state, h, "largest"), 64)

    def _merge(self, function: str, state: Value, place: Place, kv_head: Value, tile: Value) -> None:
        b, spec = self.b, self.spec
        start = b.shl(tile, TILE.bit_length() - 1)
        page = self.batch.page(place.sequence, b.udiv(start, spec.page_size))
        inside = b.urem(start, spec.page_size)
        plane = b.imul(b.iadd(b.imul(page, self.ints["layers"]), self.ints["layer"]), 2 * spec.kv_heads)
        block = spec.page_size * spec.head_dim
        keys = b.gep("float", self.cache, b.imul(b.iadd(plane, kv_head), block))
        values = b.gep("float", b.gep("float", keys, spec.kv_heads * block), b.imul(inside, spec.head_dim))
        count = b.imin(b.isub(b.iadd(place.position, 1), start), TILE)
        b.call("void", function, b.gep("float", keys, inside), values, state, count)

    def _finish(self, state: Value, row: Value, head: Value, place: Place) -> None:
        """accumulator / total; rows that no sequence owns are 0."""
        b, spec = self.b, self.spec
        columns = spec.heads * spec.head_dim
        for h in range(spec.heads_together):
            total = b.reduce("fadd", [b.load(F32, self.state.part(state, h, "total"), 64)])
            divisor = b.splat(b.select(place.covered, total, b.constant("float", 1.0)), LANES)
            sums = self.state.part(state, h, "sum")
            parts = [b.fdiv(b.load(F32, b.gep("float", sums, v * LANES), 64), divisor) for v in range(spec.vectors)]
            column = b.imul(b.iadd(head, h), spec.head_dim)
            if spec.quantized:
                target = b.gep("i8", self.out, b.imul(row, columns + columns // 4))
                for v in range(0, spec.vectors, 2):
                    store_quantized(b, parts[v], parts[v + 1], target, b.index(columns), b.iadd(column, v * LANES))
                continue
            target = b.gep("float", self.out, b.iadd(b.imul(row, columns), column))
            for v, part in enumerate(parts):
                lanes = min(LANES, spec.head_dim - v * LANES)
                mask = b.constants("i1", [lane < lanes for lane in range(LANES)]) if lanes < LANES else None
                b.vstore(part, b.gep("float", target, v * LANES), mask)


def lower_attention(node: Node, quantized: Node | None = None) -> Launch:
    """Paged attention; `quantized` is the quantize_rows record of the (T, heads * head_dim) rows to store instead.

    Raises: Decline for queries whose heads are not neighbours, or a quantised store of heads that are not 32n wide.
    """
    queries, cache, row_offsets, lengths, table = node.srcs
    rows = unit_rows(queries, inner=2)
    ragged = RaggedArguments.of(row_offsets, lengths, table)
    heads, head_dim = queries.shape[1:]
    kv_heads = cache.shape[3]
    if not (isinstance(heads, int) and isinstance(head_dim, int) and isinstance(kv_heads, int)):
        raise Decline("symbolic_head")
    if quantized is not None and head_dim % 32:
        raise Decline("quantized_store_of_other_heads")
    spec = AttentionSpec(heads, kv_heads, head_dim, page_size(cache.spec, head_dim), quantized is not None)
    result = node if quantized is None else quantized
    name = "paged_attention" + ("_quantize_rows" if quantized is not None else "")
    kernel = Kernel(name, ("paged_attention", spec), lambda target, symbol: _Writer(target, symbol, spec).b.text())
    ints: list[Size] = [rows.count, rows.offset, rows.stride, cache.shape[1], node.attr("layer")]
    return Launch(
        kernel,
        [Operand(rows.base), Operand(whole_base(cache)), *ragged.operands, Operand(result)],
        [result],
        ints=[*ragged.ints, *ints],
        scalars=[(float(node.attr("scale")), "float32")],
        extent=ceil_div(rows.count, spec.rows_together) * spec.splits,
        grain=2,
        work_bytes=rows.count * heads * head_dim * 8,
        work_flops=rows.count * heads * head_dim * 4 * TILE,
    )
