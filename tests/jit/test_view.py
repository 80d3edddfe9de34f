"""Movement records against NumPy's own views: the same base memory, offset and strides."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from plait.framework.dim import symbol
from plait.framework.dtype import float32
from plait.framework.graph import Node, input_node
from plait.framework.op import TABLE
from plait.framework.strides import contiguous_strides, merge_axes, reshape_strides
from plait.jit.view import View, is_copying_reshape, is_view, resolve
from tests.jit.launching import leaf, op


def view_array(view: View, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    size = array.itemsize
    flat = array.reshape(-1)
    strides = tuple(stride * size for stride in view.strides)
    return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)


def random_move(node: Node, array: np.ndarray[Any, Any], rng: random.Random) -> tuple[str, tuple[Any, ...]]:
    kind = rng.choice(["permute", "slice", "expand", "reshape"])
    if kind == "permute":
        axes = list(range(array.ndim))
        rng.shuffle(axes)
        return kind, (tuple(axes),)
    if kind == "slice":
        pairs, shape = [], []
        for size in array.shape:
            step = rng.choice([1, 1, 2, -1, -2])
            start = rng.randrange(size)
            pairs.append((start, step))
            shape.append(len(range(start, size if step > 0 else -1, step)))
        return kind, (tuple(pairs), tuple(shape))
    if kind == "expand":
        return kind, ((rng.choice([1, 2]), *(rng.choice([1, 3]) if size == 1 else size for size in array.shape)),)
    sizes = [1, *array.shape, 1]
    place = rng.randrange(len(sizes) - 1)
    sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
    return kind, (tuple(sizes),)


@pytest.mark.parametrize("seed", range(40))
def test_chains_of_moves_are_numpys_views(seed: int) -> None:
    rng = random.Random(seed)
    base = np.arange(4 * 6 * 2, dtype=np.float32).reshape(4, 6, 2)
    node, array = leaf(base), base
    for _ in range(5):
        kind, attrs = random_move(node, array, rng)
        moved = op(kind, node, attrs=attrs)
        row = TABLE[kind]
        result = row.numpy(array, attrs=attrs, spec=moved.spec)
        copied = kind == "reshape" and not np.shares_memory(result, array)
        assert is_copying_reshape(moved) == copied
        if copied:
            return
        node, array = moved, result
        assert is_view(node)
        found = resolve(node)
        assert found.base.op.name == "buffer" and found.shape == array.shape
        np.testing.assert_array_equal(view_array(found, base), array)


def test_a_reshape_without_strides_is_a_base() -> None:
    moved = op("permute", leaf(np.zeros((3, 4), np.float32)), attrs=((1, 0),))
    flat = op("reshape", moved, attrs=((12,),))
    again = op("reshape", flat, attrs=((2, 6),))
    assert is_copying_reshape(flat) and not is_view(flat)
    assert resolve(again).base is flat and is_view(again)


def test_symbolic_sizes_fold_by_equality() -> None:
    T = symbol("T")
    x = input_node(0, "x", False, (T, 576), float32)
    heads = op("reshape", x, attrs=((T, 9, 64),))
    assert resolve(heads).strides == (576, 64, 1)
    back = op("reshape", heads, attrs=((T, 576),))
    assert resolve(back).base is x and resolve(back).contiguous
    swapped = op("permute", heads, attrs=((1, 0, 2),))
    assert is_copying_reshape(op("reshape", swapped, attrs=((9 * T, 64),)))
    assert resolve(op("expand", x, attrs=((2, T, 576),))).strides == (0, 576, 1)


def test_as_strided_counts_from_the_storage() -> None:
    base = leaf(np.arange(12, dtype=np.float32))
    found = resolve(op("as_strided", base, attrs=(2, (2, 3), (5, 1))))
    assert (found.base, found.offset, found.strides) == (base, 2, (5, 1))


def test_merge_axes_needs_every_row_to_agree() -> None:
    assert merge_axes((2, 1, 3, 4), ((12, 7, 4, 1), (0, 7, 0, 0))) == ((24,), ((1,), (0,)))
    assert merge_axes((2, 3, 4), ((12, 4, 1), (0, 4, 1))) == ((2, 12), ((12, 1), (0, 1)))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_reshape_of_few_elements(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape)
    new = (array.size, 1)
    assert reshape_strides(shape, contiguous_strides(shape), new) is not None
