"""Normalisation along the last axis. Parameters are replicated on every mesh."""

from __future__ import annotations

from typing import Any

from plait.framework import functional as F
from plait.framework.creation import ones, zeros
from plait.framework.sharding import NamedMapping
from plait.framework.tensor import Tensor
from plait.nn.module import Module


class RMSNorm(Module):
    """x / sqrt(mean(x * x) + epsilon) * weight. Shapes: (..., E) -> (..., E). Source: arXiv 1910.07467."""

    def __init__(self, dim: int, epsilon: float = 1e-6, *, weight_offset: float = 0.0, dtype: Any = "float32") -> None:
        self.weight = ones((dim,), dtype=dtype)
        self.epsilon = epsilon
        self.weight_offset = weight_offset

    @property
    def local_mappings(self) -> dict[str, NamedMapping]:
        return {"weight": NamedMapping(spec=(None,))}

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight, self.epsilon, self.weight_offset)


class LayerNorm(Module):
    """(x - mean) / sqrt(var + epsilon) * weight + bias. Shapes: (..., E) -> (..., E). Source: arXiv 1607.06450."""

    def __init__(self, dim: int, epsilon: float = 1e-5, *, bias: bool = True, dtype: Any = "float32") -> None:
        self.weight = ones((dim,), dtype=dtype)
        self.bias = zeros((dim,), dtype=dtype) if bias else None
        self.epsilon = epsilon

    @property
    def local_mappings(self) -> dict[str, NamedMapping]:
        names = ["weight"] if self.bias is None else ["weight", "bias"]
        return {name: NamedMapping(spec=(None,)) for name in names}

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias, self.epsilon)
