"""Rotary position embedding: the table of angles, and the layer that applies it to a ragged batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plait.framework import functional as F
from plait.framework.conversion import from_numpy
from plait.framework.errors import ShapeError
from plait.framework.tensor import Tensor
from plait.nn.kv_cache import RaggedBatch
from plait.nn.module import Module

Floats = np.ndarray[Any, np.dtype[Any]]


def rope_table(
    num_positions: int, rotary_dim: int, base: float = 10000.0, scale: Callable[[Floats], Floats] | None = None
) -> Floats:
    """Cosines and sines of every position, computed in float64.

    `scale` maps the frequencies (rotary_dim / 2,) to those a long-context variant uses.
    Shapes: -> (num_positions, rotary_dim / 2, 2) float32. Source: RoFormer, arXiv 2104.09864, section 3.2.2.
    """
    if rotary_dim % 2:
        raise ShapeError(f"rope: {rotary_dim} rotated elements; expected an even number.")
    frequencies = base ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * (scale(frequencies) if scale else frequencies)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


class RotaryEmbedding(Module):
    """Rotates the first `rotary_dim` elements of each head by its row's position.

    `interleaved` pairs neighbours, else halves. Shapes: x (T, heads, head_dim) -> the same.
    """

    def __init__(
        self,
        num_positions: int,
        rotary_dim: int,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        scale: Callable[[Floats], Floats] | None = None,
    ) -> None:
        self.table = from_numpy(rope_table(num_positions, rotary_dim, base, scale))
        self.interleaved = interleaved

    def forward(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        return F.rope(x, self.table, batch.row_offsets, batch.lengths, self.interleaved)
