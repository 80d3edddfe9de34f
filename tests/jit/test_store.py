"""Writes into views inside compiled graphs: native, and equal to NumPy's assignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import plait as pl

KEYS: list[Any] = [
    np.s_[:],
    np.s_[1],
    np.s_[:, 2],
    np.s_[::-1, 1:5],
    np.s_[1:3, ::2, 3],
    np.s_[..., -1],
    np.s_[0:0],
    np.s_[2, 3, 4],
]
DTYPES = ["float32", "float64", "int8", "int16", "int64", "uint8", "bool", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("kind", ["number", "value", "broadcast"])
def test_a_store_is_one_native_launch_and_equals_numpys(dtype: str, key: Any, kind: str) -> None:
    start = np.arange(3 * 6 * 5).reshape(3, 6, 5)
    kept = start.astype(pl.zeros((), dtype=dtype).dtype.numpy)
    shape = kept[key].shape
    value = {
        "number": np.asarray(1),
        "value": np.arange(int(np.prod(shape))).reshape(shape) % 2,
        "broadcast": (np.arange(shape[-1]) % 2 if shape else np.asarray(0)),
    }[kind]
    value = np.asarray(value.astype(kept.dtype))
    buffer = pl.from_numpy(kept.copy())

    def store(buffer: pl.Tensor, value: pl.Tensor) -> pl.Tensor:
        buffer[key] = 1 if kind == "number" else value
        return value

    layouts = pl.BufferLayout(dtype, kept.shape), pl.TensorLayout(dtype, value.shape)
    compiled = pl.compile(store, strict=True)(*layouts)
    compiled(buffer, pl.from_numpy(value))
    kept[key] = 1 if kind == "number" else value
    np.testing.assert_array_equal(buffer.numpy().view(np.uint8), kept.view(np.uint8))


def test_symbolic_rows_are_stored() -> None:
    def store(buffer: pl.Tensor, value: pl.Tensor) -> None:
        buffer[:, 4:8] = value * 2

    compiled = pl.compile(store, strict=True)(
        pl.BufferLayout("float32", ("T", 12)), pl.TensorLayout("float32", ("T", 4))
    )
    for rows in (0, 1, 7):
        buffer = pl.zeros((rows, 12)).realize()
        compiled(buffer, pl.ones((rows, 4)))
        assert buffer.numpy().sum() == rows * 8 and buffer.numpy()[:, 4:8].sum() == rows * 8


def test_a_value_that_overlaps_its_target_is_left_to_numpy() -> None:
    def shift(buffer: pl.Tensor) -> None:
        buffer[1:] = buffer[:-1]

    compiled = pl.compile(shift)(pl.BufferLayout("int64", (6,)))
    buffer = pl.arange(6).copy().realize()
    compiled(buffer)
    assert buffer.numpy().tolist() == [0, 0, 1, 2, 3, 4]
