"""Pages: dealt once, given back, never lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.framework.errors import ConfigError
from plait.nn.kv_cache import CacheParams
from plait.pipelines.kv_cache import PagePool, create_cache, memory_bytes, num_pages_for, page_table

PARAMS = CacheParams(num_layers=2, num_kv_heads=3, head_dim=4, page_size=32)


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_no_page_is_dealt_twice_or_lost(num_pages: int, actions: list[tuple[bool, int]]) -> None:
    pool, held = PagePool(num_pages), []
    for is_allocation, number in actions:
        if is_allocation and pool.can_allocate(number):
            held.append(pool.allocate(number))
        elif not is_allocation and held:
            pool.free(held.pop(number % len(held)))
        taken = [page for pages in held for page in pages]
        assert len(set(taken)) == len(taken) and all(0 <= page < num_pages for page in taken)
        assert pool.num_free == num_pages - len(taken)
        assert pool.can_allocate(pool.num_free) and not pool.can_allocate(pool.num_free + 1)
    for pages in held:
        pool.free(pages)
    assert sorted(pool.allocate(num_pages)) == list(range(num_pages))


def test_a_page_cannot_be_freed_twice() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.free(pages)
    with pytest.raises(AssertionError, match="free already"):
        pool.free(pages)


def test_few_pages_are_ever_touched() -> None:
    pool = PagePool(1000)
    for _ in range(50):
        pool.free(pool.allocate(3))
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_page_table_is_rectangular() -> None:
    table = page_table([[5, 6, 7], [], [9]])
    assert table.dtype == np.int32 and table.tolist() == [[5, 6, 7], [0, 0, 0], [9, 0, 0]]


def test_the_pool_is_a_full_batch_or_a_quarter_of_the_memory() -> None:
    assert PARAMS.page_bytes == 2 * 2 * 3 * 32 * 4 * 4
    assert num_pages_for(PARAMS, 4, 65, 1 << 40) == 4 * 3
    assert num_pages_for(PARAMS, 4, 65, 4 * 5 * PARAMS.page_bytes) == 5


def test_a_pool_too_small_for_one_sequence_names_the_largest_length() -> None:
    with pytest.raises(ConfigError, match="max_length: 1000 tokens.*at most 160"):
        num_pages_for(PARAMS, 4, 1000, 4 * 5 * PARAMS.page_bytes)


def test_the_cache_has_the_asked_shape_and_is_writable_zeros() -> None:
    cache = create_cache(PARAMS, 5)
    assert cache.shape == (5, 2, 2, 3, 128)
    array = cache.numpy()
    assert array.flags.writeable and not array.any()


def test_memory_is_measured() -> None:
    assert 1 << 20 < memory_bytes() < 1 << 50
