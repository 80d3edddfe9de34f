"""Modules and layers. A model is made of these; nothing here launches a kernel."""

from plait.nn.attention import Attention
from plait.nn.embedding import Embedding, QuantizedEmbedding
from plait.nn.kv_cache import CacheParams, PagedCacheValues, RaggedBatch
from plait.nn.linear import JoinedLinear, Linear, QuantizedLinear
from plait.nn.mlp import MLP, GatedMLP
from plait.nn.module import Module, ModuleList, Sequential
from plait.nn.norm import LayerNorm, RMSNorm
from plait.nn.rope import RotaryEmbedding

__all__ = [
    "Attention",
    "CacheParams",
    "Embedding",
    "GatedMLP",
    "JoinedLinear",
    "LayerNorm",
    "Linear",
    "MLP",
    "Module",
    "ModuleList",
    "PagedCacheValues",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "RMSNorm",
    "RaggedBatch",
    "RotaryEmbedding",
    "Sequential",
]
