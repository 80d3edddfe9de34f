"""What attention layers need to know of a step: which rows belong to which sequence, and where the cache has them.

Values only; the pages are dealt out by whoever drives the model. Letters: S sequences, P pages per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plait.framework import functional as F
from plait.framework.dim import symbol
from plait.framework.ops.ragged import TILE
from plait.framework.tensor import Tensor
from plait.jit.layout import BufferLayout, TensorLayout


@dataclass(frozen=True)
class RaggedBatch:
    """Rows of several sequences in one step.

    Shapes: row_offsets (S + 1,) int32, lengths (S,) int32: tokens of each sequence once the step is done.
    """

    row_offsets: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class PagedCacheValues(RaggedBatch):
    """A ragged batch with its paged cache.

    Shapes: cache (pages, layers, 2, kv_heads, page_size * head_dim) float32, page_table (S, P) int32.
    """

    cache: Tensor
    page_table: Tensor

    def store(self, keys: Tensor, values: Tensor, layer: int) -> None:
        """Write the step's keys and values (T, kv_heads, head_dim), in place."""
        F.kv_store(self.cache, keys, values, self.row_offsets, self.lengths, self.page_table, layer)

    def attend(self, queries: Tensor, layer: int, scale: float | None = None) -> Tensor:
        """Causal attention of each row over its own sequence. Shapes: (T, heads, head_dim) -> the same."""
        return F.paged_attention(queries, self.cache, self.row_offsets, self.lengths, self.page_table, layer, scale)


@dataclass(frozen=True)
class CacheParams:
    """The shape of a model's paged cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int = TILE

    def shape(self, num_pages: Any) -> tuple[Any, ...]:
        """The cache tensor's shape for so many pages."""
        return num_pages, self.num_layers, 2, self.num_kv_heads, self.page_size * self.head_dim

    @property
    def page_bytes(self) -> int:
        return self.num_layers * 2 * self.num_kv_heads * self.page_size * self.head_dim * 4

    def layouts(self) -> tuple[Any, ...]:
        """Layouts of a step's arguments: tokens, row_offsets, lengths, page_table, cache."""
        return (
            TensorLayout("int32", ("T",)),
            TensorLayout("int32", (symbol("S") + 1,)),
            TensorLayout("int32", ("S",)),
            TensorLayout("int32", ("S", "P")),
            BufferLayout("float32", self.shape("pages")),
        )
