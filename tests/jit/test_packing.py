"""Packed weights against the block formats' own NumPy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.framework.blocks import FORMATS, block_format
from plait.framework.errors import ConfigError, ShapeError
from plait.jit.packing import FLOAT_PACKING, LANES, block_layout, block_packing, pack, packed_bytes


def raw_rows(rng: np.random.Generator, format_name: str, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Random blocks with finite scales."""
    fmt = block_format(format_name)
    blocks = rng.integers(0, 256, (rows, columns // 32, fmt.block_bytes), dtype=np.uint8)
    for at in range(0, 4 if fmt.has_minimum else 2, 2):
        values = rng.normal(size=blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = values.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return blocks.reshape(rows, -1)


def unpacked(format_name: str, packed: np.ndarray[Any, Any], rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Read the documented layout back, one part at a time."""
    layout = block_layout(format_name)
    blocks = packed.reshape(-1, columns // 32, layout.size)
    scale = blocks[..., :32].copy().view(np.float16).astype(np.float32)
    minimum = blocks[..., 32:64].copy().view(np.float16).astype(np.float32)
    if not layout.has_minimum:
        minimum = -layout.zero_point * scale
    codes = blocks[..., layout.codes_at :].reshape(*blocks.shape[:2], layout.dwords, LANES, 4)
    if layout.bits == 4:
        codes = np.concatenate([codes & 15, codes >> 4], axis=2)
    by_row = codes.transpose(0, 3, 1, 2, 4).astype(np.float32).reshape(-1, LANES, columns // 32, 32)
    weights = by_row * scale.transpose(0, 2, 1)[..., None] + minimum.transpose(0, 2, 1)[..., None]
    flat: np.ndarray[Any, Any] = weights.reshape(-1, columns)
    assert not flat[rows:].any()
    return flat[:rows]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 4096])
def test_packed_blocks_hold_the_weights(format_name: str, rows: int) -> None:
    raw = raw_rows(np.random.default_rng(rows), format_name, rows, 96)
    packed = pack(block_packing(format_name), raw)
    assert packed.size == packed_bytes(block_packing(format_name), *raw.shape)
    np.testing.assert_array_equal(unpacked(format_name, packed, rows, 96), FORMATS[format_name].dequantize(raw))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (16, 5), (35, 96)])
def test_packed_floats_are_transposed_panels(rows: int, columns: int) -> None:
    weight = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    packed = pack(FLOAT_PACKING, weight)
    assert packed.size == packed_bytes(FLOAT_PACKING, rows, columns)
    panels = packed.view(np.float32).reshape(-1, columns, LANES).transpose(0, 2, 1).reshape(-1, columns)
    np.testing.assert_array_equal(panels[:rows], weight)
    assert not panels[rows:].any()


def test_wrong_weights_and_names_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"multiple of 20"):
        pack("q4_1/lane16/1", np.zeros((4, 18), np.uint8))
    with pytest.raises(ShapeError, match=r"float32 \(rows, columns\)"):
        pack(FLOAT_PACKING, np.zeros((4, 18)))
    with pytest.raises(ConfigError, match=r"q5_9.*q4_0/lane16/1"):
        pack("q5_9/lane16/1", np.zeros((4, 18), np.uint8))
