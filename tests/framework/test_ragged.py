"""Rotary embedding, the paged cache and attention over a ragged batch, against dense float64 references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import plait as pl

Array = np.ndarray[Any, Any]
KV_HEADS, HEADS, HEAD_DIM, PAGE, LAYERS, PAGES = 2, 4, 16, 32, 2, 12
CACHE = (PAGES, LAYERS, 2, KV_HEADS, PAGE * HEAD_DIM)


class Batch(NamedTuple):
    """One step: new tokens per sequence, tokens per sequence after it, pages per sequence."""

    counts: list[int]
    lengths: list[int]
    page_table: list[list[int]]

    @property
    def offsets(self) -> list[int]:
        return [sum(self.counts[:s]) for s in range(len(self.counts) + 1)]

    def tensors(self) -> tuple[pl.Tensor, pl.Tensor, pl.Tensor]:
        row_offsets, lengths = (pl.asarray(values, dtype="int32") for values in (self.offsets, self.lengths))
        return row_offsets, lengths, pl.asarray(self.page_table, dtype="int32")

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """(row, sequence, position) of every row."""
        for s, (count, length) in enumerate(zip(self.counts, self.lengths, strict=True)):
            for t in range(count):
                yield self.offsets[s] + t, s, length - count + t


BATCHES = {
    "one prompt": Batch([5], [5], [[3, 0, 0]]),
    "decode": Batch([1, 1, 1], [1, 40, 70], [[7, 0, 0], [1, 2, 0], [4, 11, 5]]),
    "mixed": Batch([1, 33, 2, 0], [33, 33, 66, 9], [[0, 9, 0], [1, 2, 0], [10, 8, 3], [6, 0, 0]]),
    "page edge": Batch([32, 1], [64, 64], [[2, 3, 0], [5, 4, 0]]),
}


def _random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _angles(positions: int, rotary: int) -> tuple[Array, Array]:
    """Angles in float64, and the table of cosines and sines in float32."""
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, rotary, 2) / rotary)
    return angles, np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


@pytest.mark.parametrize("rotary", [HEAD_DIM, HEAD_DIM // 2])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_rope_turns_each_pair_by_its_positions_angle(name: str, interleaved: bool, rotary: int, jit: int) -> None:
    batch = BATCHES[name]
    angles, table = _angles(128, rotary)
    x = _random(batch.offsets[-1], HEADS, HEAD_DIM)
    row_offsets, lengths, _ = batch.tensors()
    found = pl.rope(pl.asarray(x), pl.asarray(table), row_offsets, lengths, interleaved).numpy()
    expected = x.astype(np.complex128).real.copy()
    for row, _, position in batch.rows():
        for pair in range(rotary // 2):
            first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotary // 2)
            turned = (x[row, :, first] + 1j * x[row, :, second]) * np.exp(1j * angles[position, pair])
            expected[row, :, first], expected[row, :, second] = turned.real, turned.imag
    np.testing.assert_allclose(found, expected, atol=2e-6)


class Dense:
    """The cache as plain lists: for every sequence its keys and values by position, in float64."""

    def __init__(self, batch: Batch) -> None:
        longest = max(batch.lengths)
        self.keys = _random(len(batch.lengths), longest, KV_HEADS, HEAD_DIM, seed=1)
        self.values = _random(len(batch.lengths), longest, KV_HEADS, HEAD_DIM, seed=2)

    def paged(self, batch: Batch, layer: int, upto: str) -> Array:
        """The paged form of what is stored: every position, or those before this step ("old")."""
        cache = np.full(CACHE, 7.0, np.float32)  # what other sequences left behind
        for s, length in enumerate(batch.lengths):
            end = length if upto == "all" else length - batch.counts[s]
            for position in range(end):
                page, slot = batch.page_table[s][position // PAGE], position % PAGE
                cache[page, layer, 0].reshape(KV_HEADS, HEAD_DIM, PAGE)[:, :, slot] = self.keys[s, position]
                cache[page, layer, 1].reshape(KV_HEADS, PAGE, HEAD_DIM)[:, slot] = self.values[s, position]
        return cache

    def attention(self, queries: Array, batch: Batch, scale: float) -> Array:
        """Softmax of scaled scores over the positions up to each row's own, in float64."""
        out = np.zeros(queries.shape)
        for row, s, position in batch.rows():
            for head in range(HEADS):
                keys = self.keys[s, : position + 1, head // (HEADS // KV_HEADS)].astype(np.float64)
                values = self.values[s, : position + 1, head // (HEADS // KV_HEADS)].astype(np.float64)
                scores = keys @ queries[row, head].astype(np.float64) * scale
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ values
        return out


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", BATCHES)
def test_kv_store_puts_every_row_where_its_position_lives(name: str, layer: int, jit: int) -> None:
    batch = BATCHES[name]
    dense = Dense(batch)
    cache = pl.asarray(dense.paged(batch, layer, "old"), copy=True)
    rows = list(batch.rows())
    keys = np.array([dense.keys[s, position] for _, s, position in rows])
    values = np.array([dense.values[s, position] for _, s, position in rows])
    pl.kv_store(cache, pl.asarray(keys), pl.asarray(values), *batch.tensors(), layer)
    np.testing.assert_array_equal(cache.numpy(), dense.paged(batch, layer, "all"))


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("name", BATCHES)
def test_attention_equals_the_dense_reference(name: str, scale: float | None, jit: int) -> None:
    batch = BATCHES[name]
    dense = Dense(batch)
    cache = pl.asarray(dense.paged(batch, 1, "all"))
    queries = _random(batch.offsets[-1], HEADS, HEAD_DIM, seed=3)
    found = pl.paged_attention(pl.asarray(queries), cache, *batch.tensors(), 1, scale).numpy()
    expected = dense.attention(queries, batch, scale or 1 / math.sqrt(HEAD_DIM))
    np.testing.assert_allclose(found, expected, atol=3e-6)


def test_a_prompt_in_pieces_attends_as_the_whole_prompt(jit: int) -> None:
    whole = Batch([70], [70], [[3, 1, 2]])
    dense = Dense(whole)
    cache = pl.asarray(dense.paged(whole, 0, "all"))
    queries = _random(70, HEADS, HEAD_DIM, seed=3)
    together = pl.paged_attention(pl.asarray(queries), cache, *whole.tensors(), 0).numpy()
    for start, end in ((0, 1), (1, 33), (33, 70)):
        piece = Batch([end - start], [end], whole.page_table)
        part = pl.paged_attention(pl.asarray(queries[start:end]), cache, *piece.tensors(), 0).numpy()
        np.testing.assert_allclose(part, together[start:end], atol=1e-6)


def test_a_store_is_seen_by_later_reads_and_not_by_earlier_ones(jit: int) -> None:
    batch = BATCHES["one prompt"]
    cache = pl.zeros(CACHE)
    before = cache.sum()
    ones = pl.ones((5, KV_HEADS, HEAD_DIM))
    pl.kv_store(cache, ones, ones, *batch.tensors(), 0)
    assert cache.sum().item() == 2 * 5 * KV_HEADS * HEAD_DIM
    assert before.item() == 0


def _replaced(**changes: Any) -> dict[str, Any]:
    batch = BATCHES["one prompt"]
    row_offsets, lengths, table = batch.tensors()
    rows = pl.ones((5, KV_HEADS, HEAD_DIM))
    arguments = {"cache": pl.zeros(CACHE), "keys": rows, "values": rows, "row_offsets": row_offsets}
    return arguments | {"lengths": lengths, "page_table": table, "layer": 0} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 2}, "a layer the cache has"),
        ({"keys": pl.ones((5, 3, HEAD_DIM))}, "two float32"),
        ({"cache": pl.zeros((PAGES, LAYERS, 2, KV_HEADS, 5))}, "page_size a multiple of 32"),
        ({"lengths": pl.asarray([5], dtype="int64")}, "not int32"),
        ({"row_offsets": pl.asarray([0], dtype="int32")}, r"\(1,\) with lengths \(1,\)"),
        ({"page_table": pl.asarray([0], dtype="int32")}, r"int32 \(S, P\)"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changes: dict[str, Any], message: str) -> None:
    arguments = _replaced(**changes)
    with pytest.raises((ValueError, TypeError), match=message):
        pl.kv_store(**arguments)
    assert arguments["cache"].sum().item() == 0


def test_a_view_is_no_cache() -> None:
    with pytest.raises(ValueError, match="view"):
        pl.kv_store(**_replaced(cache=pl.zeros((2, *CACHE))[0]))
