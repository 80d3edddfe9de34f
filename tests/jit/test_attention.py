"""Paged attention against its NumPy meaning on random ragged batches, and rows against themselves in other batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from plait.framework.blocks import quantize_rows
from plait.framework.graph import Node
from plait.jit.kernel import Decline
from plait.jit.kernels.attention import lower_attention
from plait.jit.target import host_target, virtual
from tests.jit.poisoned import leaf, machine_code, record, run, value

Array = np.ndarray[Any, Any]


@dataclass
class Batch:
    """Sequences as (tokens of this step, tokens in all), each with pages of its own in a cache of NaN elsewhere."""

    spans: list[tuple[int, int]]
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    page_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        pages = [-(-length // self.page_size) for _, length in self.spans]
        order = iter(rng.permutation(sum(pages) + 2))
        self.table = np.zeros((len(self.spans), max([1, *pages])), np.int32)
        shape = (sum(pages) + 2, 2, 2, self.kv_heads, self.page_size * self.head_dim)
        self.cache = np.full(shape, np.nan, np.float32)
        for s, (_, length) in enumerate(self.spans):
            for i in range(pages[s]):
                self.table[s, i] = next(order)
                self._fill(rng, self.table[s, i], min(self.page_size, length - i * self.page_size))
        self.offsets = np.cumsum([0, *(count for count, _ in self.spans)]).astype(np.int32)
        self.lengths = np.array([length for _, length in self.spans], np.int32)
        self.queries = rng.normal(size=(self.offsets[-1], self.heads, self.head_dim)).astype(np.float32)

    def _fill(self, rng: np.random.Generator, page: int, count: int) -> None:
        keys = self.cache[page, 1, 0].reshape(self.kv_heads, self.head_dim, self.page_size)
        values = self.cache[page, 1, 1].reshape(self.kv_heads, self.page_size, self.head_dim)
        keys[..., :count] = rng.normal(size=(self.kv_heads, self.head_dim, count))
        values[:, :count] = rng.normal(size=(self.kv_heads, count, self.head_dim))

    def node(self, first: int = 0, last: int | None = None, queries: Node | None = None) -> Node:
        """The record for sequences first to last."""
        chosen = slice(first, last)
        offsets = self.offsets[first : None if last is None else last + 1]
        source = queries or leaf(self.queries[offsets[0] : offsets[-1]])
        arrays = [self.cache, offsets - offsets[0], self.lengths[chosen], self.table[chosen]]
        scale = float(np.float32(self.head_dim**-0.5))
        return record("paged_attention", source, *map(leaf, arrays), attrs=(1, scale))


MIXED = [(1, 1), (1, 33), (5, 5), (0, 40), (40, 100), (1, 64), (3, 65)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"),
    [(6, 2, 32, 32), (9, 3, 64, 32), (4, 4, 16, 64), (16, 1, 80, 32), (7, 1, 8, 32), (14, 2, 128, 96)],
)
def test_attention_means_what_numpy_says(heads: int, kv_heads: int, head_dim: int, page_size: int) -> None:
    node = Batch(MIXED, heads, kv_heads, head_dim, page_size).node()
    np.testing.assert_allclose(run(lower_attention(node)), value(node), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (8, 1)])
def test_a_row_has_the_same_bits_in_any_batch(heads: int, kv_heads: int) -> None:
    batch = Batch(MIXED, heads, kv_heads)
    everything = run(lower_attention(batch.node()))
    for s in range(len(MIXED)):
        rows = everything[batch.offsets[s] : batch.offsets[s + 1]]
        np.testing.assert_array_equal(run(lower_attention(batch.node(s, s + 1))), rows)


@pytest.mark.parametrize("chunk", [1, 7, 32, 50])
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(chunk: int) -> None:
    batch = Batch([(100, 100)])
    whole = run(lower_attention(batch.node()))
    for first in range(0, 100, chunk):
        last = min(first + chunk, 100)
        arrays = [batch.cache, np.array([0, last - first], np.int32), np.array([last], np.int32), batch.table]
        attrs = (1, float(np.float32(batch.head_dim**-0.5)))
        part = record("paged_attention", leaf(batch.queries[first:last]), *map(leaf, arrays), attrs=attrs)
        np.testing.assert_array_equal(run(lower_attention(part)), whole[first:last])


def test_units_may_be_cut_anywhere() -> None:
    launch = lower_attention(Batch(MIXED).node())
    assert isinstance(launch.extent, int)
    np.testing.assert_array_equal(run(launch, parts=[(i, i + 1) for i in reversed(range(launch.extent))]), run(launch))


@pytest.mark.parametrize("head_dim", [32, 64])
def test_a_quantised_store_has_the_bits_of_quantize_rows(head_dim: int) -> None:
    node = Batch(MIXED, head_dim=head_dim).node()
    flat = record("reshape", node, attrs=((node.shape[0], 6 * head_dim),))
    stored = run(lower_attention(node, quantized=record("quantize_rows", flat)))
    rows = run(lower_attention(node)).reshape(-1, 6 * head_dim)
    np.testing.assert_array_equal(stored, quantize_rows(rows))


def test_queries_may_be_a_slice_of_a_wider_product() -> None:
    batch = Batch(MIXED)
    tokens, width = int(batch.offsets[-1]), 6 * 32
    wide = np.full((tokens, width + 128), 7, np.float32)
    wide[:, 64 : 64 + width] = batch.queries.reshape(tokens, width)
    part = record("slice", leaf(wide), attrs=(((0, 1), (64, 1)), (tokens, width)))
    queries = record("reshape", part, attrs=((tokens, 6, 32),))
    np.testing.assert_array_equal(run(lower_attention(batch.node(queries=queries))), run(lower_attention(batch.node())))


def test_rows_after_the_last_sequence_are_zero() -> None:
    batch = Batch([(2, 9)])
    padded = leaf(np.concatenate([batch.queries, batch.queries]))
    found = run(lower_attention(batch.node(queries=padded)))
    np.testing.assert_array_equal(found[:2], run(lower_attention(batch.node())))
    assert not found[2:].any()


def test_large_scores_neither_overflow_nor_lose_the_winner() -> None:
    batch = Batch([(1, 70)])
    batch.queries *= 300
    np.testing.assert_allclose(run(lower_attention(batch.node())), value(batch.node()), rtol=2e-4, atol=1e-4)


def test_haswell_code_gives_the_same_bits() -> None:
    if not host_target().has_avx512:
        pytest.skip("the host's own code is no wider than haswell's")
    launch = lower_attention(Batch(MIXED).node())
    np.testing.assert_array_equal(run(launch, virtual("haswell")), run(launch))


@pytest.mark.parametrize("march", ["haswell", "x86-64-v2", "neoverse-n1"])
def test_attention_compiles_for_other_machines(march: str) -> None:
    launch = lower_attention(Batch([(1, 1)]).node())
    assert launch.kernel.symbol in machine_code(launch.kernel, virtual(march))


def test_a_quantised_store_of_narrow_heads_is_declined() -> None:
    node = Batch([(1, 1)], heads=4, head_dim=16).node()
    flat = record("reshape", node, attrs=((1, 64),))
    with pytest.raises(Decline):
        lower_attention(node, quantized=record("quantize_rows", flat))
