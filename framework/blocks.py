"""Block-quantised weight formats: bytes per block and their exact NumPy meaning. Rows are the last axis, in file order.

Source: the GGUF block layouts (Q4_0, Q4_1, Q8_0), described in the format's specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.framework.errors import ConfigError

Array = np.ndarray[Any, Any]
BLOCK = 32


@dataclass(frozen=True)
class BlockFormat:
    """One format: a weight of a block is `scale * code + minimum`, codes unsigned.

    `parts(rows)` splits raw bytes (..., row_bytes) into codes (..., blocks, 32) uint8, scales and minima
    (..., blocks) float32.
    """

    name: str
    block_bytes: int
    bits: int
    has_minimum: bool
    zero_point: int
    parts: Callable[[Array], tuple[Array, Array, Array]]

    def columns(self, row_bytes: int) -> int:
        """Weights in a row of so many bytes."""
        return row_bytes // self.block_bytes * BLOCK

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of so many weights."""
        return columns // BLOCK * self.block_bytes

    def dequantize(self, raw: Array) -> Array:
        """Raw rows (..., row_bytes) uint8 -> (..., columns) float32."""
        codes, scales, minima = self.parts(raw)
        weights = codes.astype(np.float32) * scales[..., None] + minima[..., None]
        return weights.reshape(*raw.shape[:-1], self.columns(raw.shape[-1]))


def _blocks(raw: Array, block_bytes: int) -> Array:
    return np.ascontiguousarray(raw).reshape(*raw.shape[:-1], raw.shape[-1] // block_bytes, block_bytes)


def _half(blocks: Array, at: int) -> Array:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(packed: Array) -> Array:
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _q4_0(raw: Array) -> tuple[Array, Array, Array]:
    blocks = _blocks(raw, 18)
    scale = _half(blocks, 0)
    return _nibbles(blocks[..., 2:]), scale, -8 * scale


def _q4_1(raw: Array) -> tuple[Array, Array, Array]:
    blocks = _blocks(raw, 20)
    return _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(raw: Array) -> tuple[Array, Array, Array]:
    blocks = _blocks(raw, 34)
    scale = _half(blocks, 0)
    return blocks[..., 2:] ^ 128, scale, -128 * scale


FORMATS = {
    f.name: f
    for f in (
        BlockFormat("q4_0", 18, 4, False, 8, _q4_0),
        BlockFormat("q4_1", 20, 4, True, 0, _q4_1),
        BlockFormat("q8_0", 34, 8, False, 128, _q8_0),
    )
}


def block_format(name: str) -> BlockFormat:
    """Look a format up.

    Raises: ConfigError naming the known ones.
    """
    if name not in FORMATS:
        raise ConfigError(f"blocks: {name!r} is not a block format plait computes with; known: {', '.join(FORMATS)}.")
    return FORMATS[name]


def quantize_rows(x: Array) -> Array:
    """float32 rows (..., K) -> uint8 rows (..., K + K / 4): K int8 codes, then per 32 columns a float32 scale, then
    per 32 columns the float32 product of that scale and the sum of its codes. The scale is the smallest that keeps
    codes within -128 and 127; codes round half to even."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    scale = np.maximum(blocks.max(axis=-1) / np.float32(127), blocks.min(axis=-1) / np.float32(-128))
    scale = scale + np.float32(0)  # -0 becomes 0
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / scale
        inverse = np.where(inverse < np.inf, inverse, np.float32(0))  # rows too small to have one become zeros
        codes = np.nan_to_num(np.rint(blocks * inverse[..., None]), nan=0, posinf=0, neginf=0).astype(np.int8)
    sums = scale * codes.sum(axis=-1, dtype=np.int32).astype(np.float32)
    flat = codes.reshape(*x.shape).view(np.uint8)
    return np.concatenate([flat, scale.view(np.uint8), sums.view(np.uint8)], axis=-1)


def split_quantized(rows: Array) -> tuple[Array, Array, Array]:
    """The three parts of `quantize_rows`: codes (..., blocks, 32) int8, scales and sums (..., blocks) float32."""
    columns = rows.shape[-1] * 4 // 5
    rows = np.ascontiguousarray(rows)
    codes = np.ascontiguousarray(rows[..., :columns]).view(np.int8).reshape(*rows.shape[:-1], columns // BLOCK, BLOCK)
    middle = columns + columns // 8
    scales = np.ascontiguousarray(rows[..., columns:middle]).view(np.float32)
    return codes, scales, np.ascontiguousarray(rows[..., middle:]).view(np.float32)
