"""Gathering and scattering by index tensors against NumPy's unbuffered updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plait as pl

RNG = np.random.default_rng(11)
UPDATES = {"": None, "_add": np.add, "_max": np.maximum, "_min": np.minimum, "_mul": np.multiply}


def _updated(x: Any, key: Any, values: Any, ufunc: Any) -> Any:
    result = x.copy()
    if ufunc is None:
        result[key] = values
    else:
        ufunc.at(result, key, values)
    return result


@pytest.mark.parametrize("suffix", UPDATES)
@given(rows=st.integers(1, 5), columns=st.integers(1, 4), axis=st.sampled_from([0, 1, -1]), data=st.data())
@settings(max_examples=15, deadline=None)
def test_scatter_updates_every_named_place(suffix: str, rows: int, columns: int, axis: int, data: Any) -> None:
    x = RNG.integers(-9, 9, (rows, columns))
    size = x.shape[axis]
    ids = RNG.integers(-size, size, x.shape)  # places may be named twice
    values = np.full(x.shape, 3) if suffix == "" else RNG.integers(-3, 4, x.shape)
    key = [np.arange(rows)[:, None], np.arange(columns)]
    key[axis] = ids
    found = getattr(pl, "scatter" + suffix)(pl.asarray(x), pl.asarray(values), pl.asarray(ids), axis)
    np.testing.assert_array_equal(found.numpy(), _updated(x, tuple(key), values, UPDATES[suffix]))


@pytest.mark.parametrize("suffix", UPDATES)
def test_scatter_nd_updates_slices(suffix: str) -> None:
    x, ids = RNG.integers(-9, 9, (4, 3, 2)), np.array([[1], [3], [0]])
    values = RNG.integers(-3, 4, (3, 3, 2))
    found = getattr(pl, "scatter_nd" + suffix)(pl.asarray(x), pl.asarray(values), pl.asarray(ids))
    np.testing.assert_array_equal(found.numpy(), _updated(x, (ids[:, 0],), values, UPDATES[suffix]))


def test_gather_nd_with_and_without_batch_axes() -> None:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    ids = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(pl.gather_nd(pl.asarray(x), pl.asarray(ids)).numpy(), x[[0, 1], [2, 1]])
    found = pl.gather_nd(pl.asarray(x), pl.asarray([[2], [0]]), batch_dims=1)
    np.testing.assert_array_equal(found.numpy(), x[[0, 1], [2, 0]])
    np.testing.assert_array_equal(pl.gather(pl.asarray(x), [1, 0], axis=1).numpy(), x[:, [1, 0]])


def test_masked_scatter_takes_updates_in_order() -> None:
    x = pl.asarray([[1, 2], [3, 4]])
    found = pl.masked_scatter(x, pl.asarray([[True, False], [True, True]]), pl.asarray([7, 8, 9, 10]))
    assert found.tolist() == [[7, 2], [8, 9]] and x.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="masked_scatter: 1 updates for 4 elements"):
        pl.masked_scatter(x, pl.asarray(True), pl.asarray([7]))


def test_band_part_keeps_a_band() -> None:
    x = RNG.normal(size=(2, 4, 5))
    for lower, upper in [(1, 0), (0, 2), (None, 1), (2, None), (None, None)]:
        kept = np.triu(x, -9 if lower is None else -lower)
        kept = np.tril(kept, 9 if upper is None else upper)
        np.testing.assert_array_equal(pl.band_part(pl.asarray(x), lower, upper).numpy(), kept)
        np.testing.assert_array_equal(pl.band_part(pl.asarray(x), lower, upper, exclude=True).numpy(), x - kept)


def test_group_norm_normalises_each_group() -> None:
    x = RNG.normal(3, 2, (2, 6, 5)).astype(np.float32)
    gamma, beta = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    grouped = x.reshape(2, 3, 10)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    expected = normal.reshape(x.shape) * gamma[:, None] + beta[:, None]
    found = pl.group_norm(pl.asarray(x), pl.asarray(gamma), pl.asarray(beta), 3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_writes_in_place() -> None:
    x, y = np.arange(12).reshape(3, 4), pl.asarray(np.arange(12).reshape(3, 4), copy=True)
    np.put(x, [1, -1, 5], [7, 8])
    pl.put(y, [1, -1, 5], [7, 8])
    np.testing.assert_array_equal(y.numpy(), x)
    np.putmask(x, x > 6, [-1, -2, -3])
    pl.putmask(y, y > 6, [-1, -2, -3])
    np.testing.assert_array_equal(y.numpy(), x)
    np.fill_diagonal(x, 99)
    pl.fill_diagonal(y, 99)
    np.testing.assert_array_equal(y.numpy(), x)


def test_smaller_functions_equal_numpys() -> None:
    x = RNG.normal(size=(3, 4))
    t = pl.asarray(x)
    np.testing.assert_allclose(pl.polyval([1.0, -2.0, 3.0], t).numpy(), np.polyval([1, -2, 3], x), rtol=1e-6)
    np.testing.assert_allclose(pl.matvec(t, t[0]).numpy(), np.matvec(x, x[0]))
    np.testing.assert_allclose(pl.vecmat(t[:, 0], t).numpy(), np.vecmat(x[:, 0], x))
    np.testing.assert_array_equal(t[pl.ix_([0, 2], [1, 3])].numpy(), x[np.ix_([0, 2], [1, 3])])
    np.testing.assert_array_equal(pl.apply_along_axis(pl.sort, 0, t).numpy(), np.apply_along_axis(np.sort, 0, x))
    np.testing.assert_allclose(
        pl.apply_along_axis(lambda v: v.sum(), 1, t).numpy(), np.apply_along_axis(lambda v: v.sum(), 1, x)
    )


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: pl.scatter(pl.ones(3), pl.ones(1), pl.asarray([3])), IndexError, "scatter: indices reach 3 .. 3"),
        (lambda: pl.scatter(pl.ones(3), pl.ones(2), pl.asarray([1])), ValueError, "scatter: indices"),
        (lambda: pl.scatter_nd(pl.ones(3), pl.ones(2), pl.asarray([[1]])), ValueError, "scatter_nd: indices"),
        (lambda: pl.gather_nd(pl.ones(3), pl.ones((1, 1))), TypeError, "gather_nd: indices are float32"),
        (lambda: pl.put(pl.ones(3), [5], 1), IndexError, "put: index 5 is out of bounds"),
    ],
)
def test_errors_name_the_function_and_what_was_found(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
