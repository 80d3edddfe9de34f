"""Distances between results and oracles in units of the last place, and the layouts every operand is tried in."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import plait as pl

Array = np.ndarray[Any, Any]


def numpy_dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def is_half(array: Array) -> bool:
    return array.dtype.itemsize == 2 and array.dtype.kind not in "iu"


def spacing(values: Array) -> Array:
    """The distance to the next value of the dtype, in float64."""
    if values.dtype == np.dtype(ml_dtypes.bfloat16):
        magnitude = np.maximum(np.abs(values.astype(np.float64)), 2.0**-126)
        return np.asarray(np.exp2(np.floor(np.log2(magnitude)) - 7))
    tiny = np.finfo(values.dtype).tiny
    return np.asarray(np.spacing(np.maximum(np.abs(values), tiny)).astype(np.float64))


def assert_close(found: Array, expected: Array, ulp: float, where: str = "") -> None:
    """Equal within `ulp` units of the last place; NaN, infinities and (for 0 ulp) the sign of zero must agree."""
    assert found.shape == expected.shape, where
    assert found.dtype == expected.dtype, where
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected, err_msg=where)
        return
    with np.errstate(all="ignore"):
        wide, goal = found.astype(np.float64), expected.astype(np.float64)
        special = ~np.isfinite(goal) | ~np.isfinite(wide)
        distance = np.where(special, 0, np.abs(wide - goal)) / spacing(
            np.where(special, 0, expected).astype(expected.dtype)
        )
    overflow = np.isinf(goal) ^ np.isinf(wide)  # one step beyond the largest value is an infinity
    special &= ~(overflow & (ulp > 0) & ~np.isnan(wide) & ~np.isnan(goal))
    np.testing.assert_array_equal(wide[special], goal[special], err_msg=where)
    worst = distance.max(initial=0.0)
    at = np.unravel_index(int(distance.argmax()), distance.shape) if distance.size else ()
    assert worst <= ulp, f"{where}: {worst} ulp at {at}: {wide[at]!r} for {goal[at]!r}"
    if ulp == 0:
        zeros = goal == 0
        np.testing.assert_array_equal(np.signbit(wide[zeros]), np.signbit(goal[zeros]), err_msg=f"{where}: signed zero")


def layouts(values: Array) -> dict[str, tuple[pl.Tensor, Array]]:
    """The same numbers as tensors and arrays of different strides."""
    flat = values.reshape(-1)
    count = flat.size // 4 * 4
    table = flat[:count].reshape(4, -1)
    return {
        "contiguous": _view(flat, lambda x: x),
        "strided": _view(np.repeat(flat, 2), lambda x: x[::2]),
        "reversed": _view(table, lambda x: x[::-1, ::-1]),
        "transposed": _view(table, lambda x: x.T),
        "column": _view(table, lambda x: x[:, 1:2]),
        "zero-size": _view(table, lambda x: x[:0]),
        "0-d": _view(table, lambda x: x[1:2, 1].reshape(())),
    }


def _view(base: Array, view: Any) -> tuple[pl.Tensor, Array]:
    return view(pl.asarray(base, copy=True)), view(base)


def value_of(tensor: pl.Tensor) -> Array:
    return np.array(tensor.numpy())
