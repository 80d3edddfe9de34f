"""Grouped-query attention over a paged cache. Letters: T rows, H heads, K kv heads, D head size, E model size."""

from __future__ import annotations

from plait.framework.tensor import Tensor
from plait.nn.kv_cache import PagedCacheValues
from plait.nn.linear import Product
from plait.nn.module import Module
from plait.nn.rope import RotaryEmbedding


class Attention(Module):
    """One stacked product for queries, keys and values; rotate; store; attend; one product back.

    `qkv` maps (T, E) to (T, (H + 2 K) * D), `output` maps (T, H * D) to (T, E).
    """

    def __init__(
        self,
        qkv: Product,
        output: Product,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        layer: int,
        scale: float | None = None,
    ) -> None:
        self.qkv, self.output = qkv, output
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.layer, self.scale = layer, scale

    def forward(self, x: Tensor, cache: PagedCacheValues, rope: RotaryEmbedding | None = None) -> Tensor:
        heads = self.qkv(x).reshape(x.shape[0], self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        split = self.num_heads + self.num_kv_heads
        queries, keys, values = heads[:, : self.num_heads], heads[:, self.num_heads : split], heads[:, split:]
        if rope is not None:
            queries, keys = rope(queries, cache), rope(keys, cache)
        cache.store(keys, values, self.layer)
        attended = cache.attend(queries, self.layer, self.scale)  # (T, H, D)
        return self.output(attended.reshape(x.shape[0], self.num_heads * self.head_dim))
