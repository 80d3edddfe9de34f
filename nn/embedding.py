"""Token embeddings, plain and block-quantised, and the head that shares their table.

Letters: V tokens, E model size.
"""

from __future__ import annotations

from typing import Any

from plait.framework import functional as F
from plait.framework import random
from plait.framework.blocks import block_format
from plait.framework.creation import zeros
from plait.framework.sharding import NamedMapping
from plait.framework.tensor import Tensor
from plait.nn.linear import Linear, QuantizedLinear
from plait.nn.module import Module


class Embedding(Module):
    """Rows of a table. Shapes: ids (...) integers, weight (V, E) -> (..., E)."""

    def __init__(self, vocab_size: int, dim: int, *, dtype: Any = "float32") -> None:
        self.weight = random.normal((vocab_size, dim), dtype=dtype)

    @property
    def local_mappings(self) -> dict[str, NamedMapping]:
        return {"weight": NamedMapping(spec=(None, None))}

    def forward(self, ids: Tensor) -> Tensor:
        return F.take(self.weight, ids, axis=0)

    def tied_head(self, mode: str = "exact") -> Linear:
        """A head whose weight is this table: one buffer under two names. It computes in float32, whatever the mode."""
        vocab_size, dim = self.weight.shape
        head = Linear.__new__(Linear)
        head.weight, head.bias, head.parallel = self.weight, None, None
        assert (head.out_dim, head.in_dim) == (vocab_size, dim)
        return head


class QuantizedEmbedding(Module):
    """Rows of a block-quantised table, dequantised.

    Shapes: ids (...), weight (V, row_bytes) uint8 -> (..., E) float32.
    """

    def __init__(self, format: str, vocab_size: int, dim: int) -> None:  # noqa: A002
        self.format = format
        self.weight = zeros((vocab_size, block_format(format).row_bytes(dim)), dtype="uint8")

    @property
    def local_mappings(self) -> dict[str, NamedMapping]:
        return {"weight": NamedMapping(spec=(None, None))}

    def forward(self, ids: Tensor) -> Tensor:
        return F.qtake(self.weight, ids, self.format)

    def tied_head(self, mode: str = "exact") -> QuantizedLinear:
        """A head whose weight is this table: one buffer under two names."""
        vocab_size, row_bytes = self.weight.shape
        head = QuantizedLinear(self.format, block_format(self.format).columns(row_bytes), vocab_size, mode)
        head.weight = self.weight
        return head
