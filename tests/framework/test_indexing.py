"""Basic, integer-array and boolean indexing read and write as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import plait as pl
from plait.framework.errors import IndexingError

Array = np.ndarray[Any, Any]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
few = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _pair(shape: tuple[int, ...]) -> tuple[Array, pl.Tensor]:
    array = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    return array, pl.asarray(array, copy=True)


def _tensors(key: Any) -> Any:
    """The same key with its arrays as tensors."""
    if isinstance(key, tuple):
        return tuple(_tensors(entry) for entry in key)
    return pl.asarray(key) if isinstance(key, np.ndarray) else key


def _same(tensor: pl.Tensor, array: Any) -> None:
    expected = np.asarray(array)
    assert tensor.shape == expected.shape
    np.testing.assert_array_equal(np.array(tensor.tolist(), np.int64).reshape(expected.shape), expected)


@st.composite
def _basic(draw: Any) -> tuple[tuple[int, ...], Any]:
    shape = draw(SHAPES)
    return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))


@st.composite
def _integers(draw: Any) -> tuple[tuple[int, ...], Any]:
    """One to three integer arrays (negative entries too) among slices and integers."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
    common = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3))
    key: list[Any] = []
    for size in shape:
        kind = draw(st.sampled_from(["array", "slice", "int"]))
        if kind == "array":
            key.append(draw(hnp.arrays(np.int64, common, elements=st.integers(-size, size - 1))))
        elif kind == "int":
            key.append(draw(st.integers(-size, size - 1)))
        else:
            key.append(draw(st.slices(size)))
    return shape, tuple(key)


@st.composite
def _booleans(draw: Any) -> tuple[tuple[int, ...], Any]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    used = draw(st.integers(1, len(shape)))
    start = draw(st.integers(0, len(shape) - used))
    mask = draw(hnp.arrays(np.bool_, shape[start : start + used]))
    return shape, (*(slice(None),) * start, mask)


ANY_KEY = st.one_of(_basic(), _integers(), _booleans())


@few
@given(ANY_KEY)
def test_reading_equals_numpys(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array, tensor = _pair(shape)
    _same(tensor[_tensors(key)], array[key])


@few
@given(ANY_KEY)
def test_reading_through_a_view_equals_numpys(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array, tensor = _pair(shape[::-1])
    _same(tensor.T[_tensors(key)], array.T[key])


@few
@given(ANY_KEY, st.data())
def test_assignment_equals_numpys(case: tuple[tuple[int, ...], Any], data: st.DataObject) -> None:
    shape, key = case
    array, tensor = _pair(shape)
    target = np.shape(array[key])
    value = -1 - np.arange(int(np.prod(target))).reshape(target)
    if data.draw(st.booleans()):
        value = value[..., :1] if value.ndim and value.shape[-1] else np.array(-7)
    array[key] = value
    tensor[_tensors(key)] = pl.asarray(value)
    _same(tensor, array)


@few
@given(ANY_KEY)
def test_assignment_of_a_scalar_through_a_reversed_view(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array, tensor = _pair(shape[::-1])
    array.T[key] = 99
    tensor.T[_tensors(key)] = 99
    _same(tensor, array)


@few
@given(_basic())
def test_basic_indexing_views_as_numpy_does(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array, tensor = _pair(shape)
    seen, view = array[key], tensor[key]
    if isinstance(seen, np.ndarray) and seen.size:
        seen[...] = -5
        view[...] = -5
    _same(tensor, array)


@given(_integers())
def test_lists_and_numpy_arrays_index_as_tensors_do(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array, tensor = _pair(shape)
    lists = tuple(entry.tolist() if isinstance(entry, np.ndarray) else entry for entry in key)
    _same(tensor[key], array[key])
    _same(tensor[lists], array[lists])


@pytest.mark.case("T05")
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (np.s_[2:0:-1], [9, 8]),
        (np.s_[3:1:-1], [10, 9]),
        (np.s_[:1:-1], [10, 9]),
        (np.s_[1::-1], [8, 7]),
        (np.s_[::-2], [10, 8]),
        (np.s_[10:-10:-1], [10, 9, 8, 7]),
        (np.s_[0:4:-1], []),
    ],
)
def test_negative_steps(key: slice, expected: list[int], jit: int) -> None:
    tensor = pl.asarray([7, 8, 9, 10])
    assert tensor[key].tolist() == expected
    assert (tensor[key] + 0).tolist() == expected
    array = np.array([7, 8, 9, 10])
    array[key] = np.arange(len(expected))
    tensor[key] = pl.arange(len(expected))
    assert tensor.tolist() == array.tolist()


@pytest.mark.case("T05")
def test_negative_stops_and_steps_over_longer_axes() -> None:
    assert pl.arange(12)[11:0:-4].tolist() == [11, 7, 3]
    assert pl.ones((6, 8))[1:-2, 3].shape == (3,)


def test_numpy_integers_index_as_python_ints() -> None:
    array, tensor = _pair((3, 4))
    view = tensor[np.int64(1)]
    view[np.int32(-1)] = 50
    array[1, -1] = 50
    _same(tensor, array)


def test_an_element_is_a_value_not_a_view() -> None:
    _, tensor = _pair((2, 2))
    element = tensor[1, 1]
    tensor[1, 1] = 70
    assert element.item() == 3
    row = tensor[1, ...]
    tensor[1, 0] = 60
    assert row.tolist() == [60, 70]


def test_a_fancy_read_is_a_copy() -> None:
    _, tensor = _pair((4,))
    picked = tensor[pl.asarray([0, 1])]
    tensor[0] = 70
    assert picked.tolist() == [0, 1]


def test_the_last_of_repeated_targets_wins() -> None:
    tensor = pl.zeros((3,), dtype="int64")
    tensor[[0, 0, 2, 0]] = pl.asarray([1, 2, 3, 4])
    assert tensor.tolist() == [4, 0, 3]


def test_in_place_arithmetic_on_a_selection() -> None:
    array, tensor = _pair((3, 4))
    array[1:, ::2] *= 3
    tensor[1:, ::2] *= 3
    array[array > 8] -= 100
    tensor[tensor > 8] -= 100
    array[[0, 2], 1] += 5
    tensor[[0, 2], 1] += 5
    _same(tensor, array)


def test_the_key_is_read_when_the_index_is_taken() -> None:
    tensor, key = pl.arange(5), pl.asarray([0, 1])
    picked = tensor[key]
    key[...] = 4
    assert picked.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (5, r"index: 5 is outside axis 0 of shape \(2, 3\); expected -2 to 1"),
        ((0, -4), "-4 is outside axis 1"),
        ((0, 0, 0), "3 indices for an array of rank 2"),
        ((Ellipsis, Ellipsis), "more than one Ellipsis"),
        (np.s_[::0], "step of 0"),
        ([2], "out of bounds"),
        (([0], [0], [0]), "too many indices"),
        (([0, 1], [0, 1, 2]), "broadcast"),
        (np.zeros((2, 2), bool), "boolean index did not match"),
        ([0.5], "float"),
    ],
)
def test_wrong_keys_raise_at_the_call_for_reading_and_writing(key: Any, message: str) -> None:
    tensor = pl.zeros((2, 3))
    with pytest.raises(IndexingError, match=message):
        tensor[key]
    with pytest.raises(IndexError, match=message):
        tensor[key] = 1
    assert tensor.tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("key", [np.s_[0], np.s_[:, 1:], [0, 1]])
def test_a_value_that_does_not_fit_names_both_shapes(key: Any) -> None:
    tensor = pl.zeros((2, 3))
    with pytest.raises(ValueError, match=r"\(7,\)"):
        tensor[key] = pl.ones((7,))
    assert tensor.sum().item() == 0


@few
@given(st.data())
def test_take_equals_numpys(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    shapes, entries = hnp.array_shapes(min_dims=0, max_dims=2), st.integers(-size, size - 1)
    ids = data.draw(hnp.arrays(np.int32, shapes, elements=entries))
    array, tensor = _pair(shape)
    _same(pl.take(tensor, pl.asarray(ids), axis), np.take(array, ids, axis))


def test_take_outside_the_axis_is_an_error_at_the_call() -> None:
    with pytest.raises(IndexError, match=r"take: indices reach 0 .. 3; the axis has 3 entries"):
        pl.take(pl.arange(3), [0, 3])


@pytest.mark.system(120)
@few
@given(st.data())
def test_slices_and_concatenation_of_odd_sizes_keep_every_byte(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["bool", "int8", "uint8", "int16", "float16", "float32", "int64"]))
    rows, axis = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 1))
    parts, twins = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(0, 37))
        start, step = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([1, 2, 3, -1]))
        shape = (size + 6, rows) if axis == 0 else (rows, size + 6)
        whole = (np.arange(size * rows + 6 * rows) % 251).astype(np.float64).reshape(shape).astype(dtype)
        key = slice(start, None, step)
        full = (key, slice(None)) if axis == 0 else (slice(None), key)
        parts.append(pl.asarray(whole)[full])
        twins.append(whole[full])
    found = pl.concat(parts, axis=axis)
    expected = np.concatenate(twins, axis=axis)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal((found[::-1, 1:]).copy().numpy(), expected[::-1, 1:])


def test_the_empty_key_of_a_0d_tensor_is_a_value_and_the_ellipsis_a_view() -> None:
    tensor = pl.asarray(1.0)
    value, view = tensor[()], tensor[...]
    tensor[()] = 5
    assert (value.item(), view.item()) == (1.0, 5.0)
