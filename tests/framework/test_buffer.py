"""Buffers are aligned, recycled only when nobody sees them, and give their memory back."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import plait as pl
from plait.framework.buffer import _KEEP_BYTES, Buffer, _Pool, _size_class, from_array, pool


@given(st.integers(0, 1 << 22))
def test_every_size_is_aligned_and_large_enough(num_bytes: int) -> None:
    buffer = Buffer(num_bytes)
    assert buffer.address % 64 == 0
    assert buffer.num_bytes == num_bytes
    assert num_bytes <= _size_class(num_bytes) <= max(64, num_bytes + max(64, num_bytes // 8))


@pytest.mark.parametrize("size", [1, 3, 17, 1000, 100_003])
def test_copied_and_filled_tensors_are_aligned(size: int) -> None:
    assert pl.asarray(np.arange(size, dtype=np.float32), copy=True).numpy().ctypes.data % 64 == 0
    assert pl.asarray(list(range(size))).numpy().ctypes.data % 64 == 0


def test_a_freed_block_is_used_again() -> None:
    first = Buffer(12_345)
    address = first.address
    del first
    assert Buffer(12_340).address == address


def test_live_bytes_return_to_where_they_were() -> None:
    gc.collect()
    before = pool.live_bytes
    buffer = Buffer(400_000)
    assert pool.live_bytes >= before + 400_000
    del buffer
    assert pool.live_bytes == before


def test_the_last_reference_frees_a_tensors_memory(jit: int) -> None:
    x = (pl.ones((1000, 100)) * 2).realize()
    y = x + 1
    buffer = x.node().buffer
    assert buffer is not None
    alive = weakref.ref(buffer)
    del buffer, x
    assert alive() is not None  # y still needs it
    y.realize()
    assert alive() is None


def test_memory_seen_from_outside_is_not_recycled() -> None:
    array = (pl.ones((321, 7)) * 3).numpy()  # the tensor is gone already
    others = [(pl.ones((321, 7)) * value).realize() for value in range(20)]
    assert len(others) == 20
    assert (array == 3).all()


def test_a_borrowed_array_lives_as_long_as_its_tensor() -> None:
    class Owner(np.ndarray):  # type: ignore[type-arg]
        pass

    array = np.arange(6.0).view(Owner)
    alive = weakref.ref(array)
    buffer = Buffer.borrow(array)
    del array
    gc.collect()
    assert alive() is not None
    del buffer
    gc.collect()
    assert alive() is None


def test_the_pool_keeps_at_most_its_budget() -> None:
    small = _Pool()
    size = _KEEP_BYTES // 4
    blocks = [np.empty(0, np.uint8) for _ in range(6)]
    small.live_bytes = 6 * size
    for block in blocks:
        small.give(size, block)
    assert small.free_bytes <= _KEEP_BYTES
    assert small.live_bytes == 0
    small.trim()
    assert small.free_bytes == 0 and not small.free


def test_an_impossible_size_leaves_the_counts_alone() -> None:
    before = pool.live_bytes
    with pytest.raises((MemoryError, ValueError)):
        Buffer(1 << 62)
    gc.collect()
    assert pool.live_bytes == before


def test_from_array_copies_in_c_order() -> None:
    source = np.arange(6, dtype=np.int16).reshape(2, 3).T
    buffer = from_array(source, pl.int16)
    source[:] = 0
    assert buffer.array(pl.int16, (3, 2)).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_read_only_memory_stays_read_only() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    assert not Buffer.borrow(array).array(pl.int64, (3,)).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        pl.from_numpy(array)[0] = 1
