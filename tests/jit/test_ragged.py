"""Row kernels over ragged batches and tables against their NumPy meanings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.framework.graph import Node
from plait.jit.kernel import Decline
from plait.jit.kernels.gather import lower_qtake, lower_take
from plait.jit.kernels.ragged import lower_kv_store, lower_rope
from plait.jit.target import virtual
from tests.jit.poisoned import leaf, machine_code, record, run, value
from tests.jit.test_packing import raw_rows

Array = np.ndarray[Any, Any]
SPANS = [(3, 3), (0, 5), (1, 40), (6, 70), (1, 1)]
OFFSETS = np.cumsum([0, *(count for count, _ in SPANS)]).astype(np.int32)
LENGTHS = np.array([length for _, length in SPANS], np.int32)
TOKENS = int(OFFSETS[-1])


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sliced(array: Array) -> Node:
    """The array as (T, heads, head_dim) inside wider rows."""
    tokens, heads, head_dim = array.shape
    wide = np.full((tokens, heads * head_dim + 48), 9, np.float32)
    wide[:, 16 : 16 + heads * head_dim] = array.reshape(tokens, -1)
    part = record("slice", leaf(wide), attrs=(((0, 1), (16, 1)), (tokens, heads * head_dim)))
    return record("reshape", part, attrs=(array.shape,))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (80, 32), (12, 12), (6, 4), (128, 96)])
def test_rope_means_what_numpy_says(head_dim: int, rotary: int, interleaved: bool) -> None:
    x, table = floats(TOKENS, 3, head_dim), floats(80, rotary // 2, 2, seed=1)
    node = record("rope", sliced(x), leaf(table), leaf(OFFSETS), leaf(LENGTHS), attrs=(interleaved,))
    np.testing.assert_allclose(run(lower_rope(node)), value(node), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("head_dim", "page_size"), [(64, 32), (24, 64)])
def test_kv_store_writes_each_position_and_nothing_else(head_dim: int, page_size: int) -> None:
    keys, values = floats(TOKENS, 2, head_dim), floats(TOKENS, 2, head_dim, seed=1)
    cache = floats(14, 3, 2, 2, page_size * head_dim, seed=2)
    table = np.random.default_rng(3).permutation(14)[: len(SPANS) * 2].reshape(len(SPANS), 2).astype(np.int32)
    table = np.concatenate([table, table[:, :1]], axis=1)

    def store(target: Array, source: Any) -> Node:
        rest = map(leaf, (OFFSETS, LENGTHS, table))
        return record("kv_store", leaf(target), source(keys), source(values), *rest, attrs=(1,))

    wanted = value(store(cache, leaf))
    np.testing.assert_array_equal(run(lower_kv_store(store(cache, sliced))), wanted)
    assert (wanted != cache).sum() == 2 * keys.size


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "uint8", "complex64"])
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
def test_take_copies_rows(dtype: str, id_type: Any) -> None:
    table = (floats(10, 3, 7) * 5).astype(dtype)
    ids = np.array([[9, 0, 4], [4, -1, 1]], id_type)
    node = record("take", leaf(table), leaf(ids), attrs=(0,))
    np.testing.assert_array_equal(run(lower_take(node)), table[ids])


def test_take_from_a_strided_table_and_with_strided_ids() -> None:
    table, ids = floats(20, 40), np.arange(8, dtype=np.int32)
    rows = record("slice", leaf(table), attrs=(((1, 2), (3, 1)), (9, 33)))
    every_other = record("slice", leaf(ids), attrs=(((7, -2),), (4,)))
    node = record("take", rows, every_other, attrs=(0,))
    np.testing.assert_array_equal(run(lower_take(node)), table[1:19:2, 3:36][[7, 5, 3, 1]])


@pytest.mark.parametrize("format_name", ["q4_0", "q4_1", "q8_0"])
def test_qtake_gives_the_exact_weights(format_name: str) -> None:
    table = raw_rows(np.random.default_rng(4), format_name, 30, 96)
    ids = np.array([29, 0, 7, 7, -2], np.int64)
    node = record("qtake", leaf(table), leaf(ids), attrs=(format_name,))
    np.testing.assert_array_equal(run(lower_qtake(node)), value(node))


def test_take_along_another_axis_is_declined() -> None:
    node = record("take", leaf(floats(4, 5)), leaf(np.zeros(2, np.int64)), attrs=(1,))
    with pytest.raises(Decline):
        lower_take(node)


@pytest.mark.parametrize("march", ["haswell", "x86-64-v2", "neoverse-n1"])
def test_row_kernels_compile_for_other_machines(march: str) -> None:
    x, table = leaf(floats(TOKENS, 3, 20)), leaf(floats(80, 5, 2))
    rope = record("rope", x, table, leaf(OFFSETS), leaf(LENGTHS), attrs=(True,))
    weights = leaf(raw_rows(np.random.default_rng(4), "q4_1", 3, 32))
    rows = record("qtake", weights, leaf(np.zeros(1, np.int32)), attrs=("q4_1",))
    for launch in (lower_rope(rope), lower_qtake(rows)):
        assert launch.kernel.symbol in machine_code(launch.kernel, virtual(march))
