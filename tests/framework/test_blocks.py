"""Block formats dequantise as the GGUF reference does; quantised rows keep their bounds."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import plait as pl
from plait.framework import blocks
from plait.framework.errors import ConfigError

Array = np.ndarray[Any, Any]
TYPES = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def _raw(name: str, rows: int = 7, columns: int = 96) -> Array:
    weights = np.random.default_rng(3).normal(size=(rows, columns)).astype(np.float32)
    weights[2] = 0
    return np.ascontiguousarray(quants.quantize(weights, TYPES[name])).view(np.uint8)


@pytest.mark.parametrize("name", TYPES)
def test_every_format_is_compared_and_has_the_references_sizes(name: str) -> None:
    assert set(TYPES) == set(blocks.FORMATS)
    block_size, type_size = gguf.GGML_QUANT_SIZES[TYPES[name]]
    block = blocks.block_format(name)
    assert (blocks.BLOCK, block.block_bytes) == (block_size, type_size)
    assert block.row_bytes(96) == 3 * type_size
    assert block.columns(3 * type_size) == 96


@pytest.mark.parametrize("name", TYPES)
def test_dequantisation_equals_the_reference(name: str) -> None:
    raw = _raw(name)
    expected = quants.dequantize(raw, TYPES[name])
    found = blocks.block_format(name).dequantize(raw)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=0 if name == "q8_0" else 2e-7)


@pytest.mark.parametrize("name", TYPES)
def test_any_bytes_dequantise_as_the_reference(name: str) -> None:
    """Whatever codes a file holds; the scales are kept finite."""
    block = blocks.block_format(name)
    raw = np.random.default_rng(1).integers(0, 256, (5, 4, block.block_bytes)).astype(np.uint8)
    raw[..., :4] = np.array([0.37, -1.25], np.float16).view(np.uint8)
    raw = raw.reshape(5, -1)
    expected = quants.dequantize(raw, TYPES[name])
    np.testing.assert_allclose(block.dequantize(raw), expected, rtol=1e-6, atol=1e-6)


def test_an_unknown_format_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="'q5_k'.*q4_0, q4_1, q8_0"):
        blocks.block_format("q5_k")


ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.sampled_from([32, 64])),
    elements=st.one_of(st.just(0.0), st.floats(2.0**-60, 1e4, width=32), st.floats(-1e4, -(2.0**-60), width=32)),
)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_quantised_rows_are_within_half_a_step(x: Array) -> None:
    codes, scales, sums = blocks.split_quantized(blocks.quantize_rows(x))
    columns = x.reshape(*x.shape[:-1], -1, 32)
    step = scales[..., None].astype(np.float64)
    assert (np.abs(codes * step - columns) <= step * 0.5001 + 1e-30).all()
    smallest = np.maximum(columns.max(-1) / 127, columns.min(-1) / -128)  # that keeps every code in int8
    np.testing.assert_allclose(scales, smallest, rtol=1e-6)
    exact = scales.astype(np.float64) * codes.astype(np.int64).sum(-1)
    np.testing.assert_allclose(sums, exact, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_a_rows_codes_do_not_depend_on_its_neighbours(x: Array) -> None:
    together = blocks.quantize_rows(x)
    for row in range(len(x)):
        np.testing.assert_array_equal(together[row], blocks.quantize_rows(x[row : row + 1])[0])


def test_a_row_of_zeros_has_codes_and_scale_zero(jit: int) -> None:
    rows = pl.quantize_rows(pl.zeros((2, 32)))
    assert rows.shape == (2, 40)
    assert rows.numpy().any() == np.False_


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_both_executors_quantise_alike(rows: int, jit: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 64)).astype(np.float32)
    x[0, :3] = [0.5, 1.5, 2.5]
    x[-1, 32:] = 1e-40  # too small for an inverse scale
    np.testing.assert_array_equal(pl.quantize_rows(pl.asarray(x)).numpy(), blocks.quantize_rows(x))


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", TYPES)
def test_quantised_products_are_close_to_the_dense_ones(name: str, rows: int, jit: int) -> None:
    raw = _raw(name, rows=48, columns=128)
    dense = quants.dequantize(raw, TYPES[name]).astype(np.float64)
    x = np.random.default_rng(2).normal(size=(rows, 128)).astype(np.float32)
    exact = pl.qmatmul(pl.asarray(x), pl.asarray(raw), name).numpy()
    np.testing.assert_allclose(exact, x @ dense.T, rtol=1e-4, atol=1e-4)
    quantized = pl.quantize_rows(pl.asarray(x))
    codes, scales, _ = blocks.split_quantized(quantized.numpy())
    rounded = (codes * scales[..., None].astype(np.float64)).reshape(rows, 128)
    found = pl.qmatmul_int8(quantized, pl.asarray(raw), name).numpy()
    np.testing.assert_allclose(found, rounded @ dense.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TYPES)
def test_rows_of_a_quantised_table(name: str, jit: int) -> None:
    raw = _raw(name)
    found = pl.qtake(pl.asarray(raw), pl.asarray([[6, 0], [2, -1]], dtype="int32"), name)
    assert found.shape == (2, 2, 96)
    expected = quants.dequantize(raw, TYPES[name])[[[6, 0], [2, 6]]]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_shapes_that_do_not_fit_are_named() -> None:
    raw = pl.asarray(_raw("q4_1"))
    with pytest.raises(ValueError, match=r"float32\(2, 64\).*96 columns"):
        pl.qmatmul(pl.ones((2, 64)), raw, "q4_1")
    with pytest.raises(ValueError, match="60 bytes.*34"):
        pl.qmatmul(pl.ones((2, 96)), raw, "q8_0")
    with pytest.raises(ValueError, match=r"quantize_rows.*\(2, 33\)"):
        pl.quantize_rows(pl.ones((2, 33)))
