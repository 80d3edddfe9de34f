"""The Llama family (Llama, SmolLM2, and what shares their GGUF architecture name), in data-flow order.

Letters: T rows of a step, S sequences, E model size, V vocabulary. Source: LLaMA, arXiv 2302.13971.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.framework import functional as F
from plait.framework.errors import FormatError
from plait.framework.tensor import Tensor
from plait.nn.attention import Attention
from plait.nn.kv_cache import CacheParams, PagedCacheValues
from plait.nn.linear import Product
from plait.nn.mlp import GatedMLP
from plait.nn.module import Module, ModuleList
from plait.nn.norm import RMSNorm
from plait.nn.rope import RotaryEmbedding
from plait.pipelines.registry import Blueprint, SupportedArchitecture
from plait.pipelines.weights import Sources, create_embedding, create_linear


@dataclass(frozen=True)
class LlamaConfig:
    """What the metadata says of a model."""

    vocab_size: int
    context_length: int
    num_layers: int
    dim: int
    inner_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_base: float
    rope_factor: float
    epsilon: float

    @classmethod
    def read(cls, metadata: Mapping[str, Any], types: Mapping[str, str]) -> LlamaConfig:
        """Read the `llama.*` fields.

        Raises: FormatError naming the field that is missing or impossible.
        """
        fields = _Fields(metadata)
        heads, dim = fields.count("attention.head_count"), fields.count("embedding_length")
        head_dim = fields.count("attention.key_length", dim // heads)
        tokens = metadata.get("tokenizer.ggml.tokens")
        if fields.get("rope.scaling.type", "none") not in ("none", "linear") or "rope_freqs.weight" in types:
            raise fields.error("rope.scaling.type", "only 'none' and 'linear' are supported")
        if fields.count("attention.value_length", head_dim) != head_dim:
            raise fields.error("attention.value_length", f"expected the key length {head_dim}")
        return cls(
            vocab_size=fields.count("vocab_size", len(tokens) if tokens is not None else None),
            context_length=fields.count("context_length"),
            num_layers=fields.count("block_count"),
            dim=dim,
            inner_dim=fields.count("feed_forward_length"),
            num_heads=heads,
            num_kv_heads=fields.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            rotary_dim=fields.count("rope.dimension_count", head_dim),
            rope_base=fields.number("rope.freq_base", 10000.0),
            rope_factor=fields.number("rope.scaling.factor", 1.0),
            epsilon=fields.number("attention.layer_norm_rms_epsilon"),
        )


class Block(Module):
    """One layer. Shapes: x (T, E) -> (T, E)."""

    def __init__(self, config: LlamaConfig, types: Mapping[str, str], mode: str, page_size: int, layer: int) -> None:
        stem = f"blk.{layer}."
        q_dim, kv_dim = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def linear(names: list[str], in_dim: int, out_dims: list[int], parallel: str) -> Any:
            return create_linear(types, [stem + name for name in names], in_dim, out_dims, mode=mode, parallel=parallel)

        self.attention_norm = RMSNorm(config.dim, config.epsilon)
        self.attention = Attention(
            linear(["attn_q", "attn_k", "attn_v"], config.dim, [q_dim, kv_dim, kv_dim], "column"),
            linear(["attn_output"], q_dim, [config.dim], "row"),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            layer=layer,
        )
        self.mlp_norm = RMSNorm(config.dim, config.epsilon)
        self.mlp = GatedMLP(
            linear(["ffn_gate"], config.dim, [config.inner_dim], "column"),
            linear(["ffn_up"], config.dim, [config.inner_dim], "column"),
            linear(["ffn_down"], config.inner_dim, [config.dim], "row"),
        )

    def forward(self, x: Tensor, cache: PagedCacheValues, rope: RotaryEmbedding) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cache, rope)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Llama(Module):
    """Tokens of a step to each sequence's next-token logits.

    Shapes: tokens (T,) int32, row_offsets (S + 1,), lengths (S,), page_table (S, P) int32, cache as its parameters say
    -> logits (S, V) float32 of each sequence's last row.
    """

    def __init__(self, config: LlamaConfig, types: Mapping[str, str], mode: str, page_size: int) -> None:
        self.config = config
        self.page_size = page_size
        self.embedding = create_embedding(types, "token_embd", config.vocab_size, config.dim)
        # GGUF files of this family have the rows of q and k in the order that rotates neighbours.
        self.rope = RotaryEmbedding(
            config.context_length,
            config.rotary_dim,
            config.rope_base,
            interleaved=True,
            scale=_linear(config.rope_factor),
        )
        self.layers: list[Block] = ModuleList(
            Block(config, types, mode, page_size, layer) for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.dim, config.epsilon)
        self.is_tied = "output.weight" not in types
        self.head: Product
        if not self.is_tied:
            self.head = create_linear(types, ["output"], config.dim, [config.vocab_size], mode=mode)
        else:
            self.head = self.embedding.tied_head(mode)

    @property
    def cache_params(self) -> CacheParams:
        config = self.config
        return CacheParams(config.num_layers, config.num_kv_heads, config.head_dim, self.page_size)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        return self.config.context_length

    def forward(
        self, tokens: Tensor, row_offsets: Tensor, lengths: Tensor, page_table: Tensor, cache: Tensor
    ) -> Tensor:
        step = PagedCacheValues(row_offsets, lengths, cache, page_table)
        x = self.embedding(tokens)  # (T, E)
        for layer in self.layers:
            x = layer(x, step, self.rope)
        logits: Tensor = self.head(self.norm(F.take(x, row_offsets[1:] - 1)))  # of the last rows, (S, V)
        return logits


def sources(model: Llama) -> Sources:
    """Which tensors fill which module."""
    named: dict[str, list[str]] = {"embedding": ["token_embd"], "norm": ["output_norm"], "rope": []}
    if not model.is_tied:
        named["head"] = ["output"]
    for layer in range(model.config.num_layers):
        for path, names in _BLOCK_SOURCES.items():
            named[f"layers.{layer}.{path}"] = [f"blk.{layer}.{name}" for name in names]
    return named


_BLOCK_SOURCES = {
    "attention_norm": ["attn_norm"],
    "attention.qkv": ["attn_q", "attn_k", "attn_v"],
    "attention.output": ["attn_output"],
    "mlp_norm": ["ffn_norm"],
    "mlp.gate": ["ffn_gate"],
    "mlp.up": ["ffn_up"],
    "mlp.down": ["ffn_down"],
}


def _linear(factor: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    return lambda frequencies: frequencies / factor


class _Fields:
    """The `llama.*` fields, each checked as it is read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata

    def get(self, field: str, default: Any = None) -> Any:
        return self.metadata.get(f"llama.{field}", default)

    def error(self, field: str, expected: str) -> FormatError:
        return FormatError(f"metadata 'llama.{field}': {self.get(field)!r}; {expected}.")

    def count(self, field: str, default: int | None = None) -> int:
        value = self.get(field, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise self.error(field, "expected an integer from 1 to 2147483647")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self.get(field, default)
        if not isinstance(value, float | int) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.error(field, "expected a positive number")
        return float(value)


def _build(blueprint: Blueprint) -> Llama:
    config = LlamaConfig.read(blueprint.metadata, blueprint.types)
    return Llama(config, blueprint.types, blueprint.mode, blueprint.page_size)


ARCHITECTURES = [SupportedArchitecture("llama", _build, sources)]
