"""Feed-forward blocks. Letters: T rows, E model size, F inner size."""

from __future__ import annotations

from collections.abc import Callable

from plait.framework import functional as F
from plait.framework.tensor import Tensor
from plait.nn.linear import Product
from plait.nn.module import Module

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, "tanh"),
    "relu": F.relu,
}


class GatedMLP(Module):
    """down(activation(gate(x)) * up(x)). Shapes: (T, E) -> (T, E). Source: arXiv 2002.05202."""

    def __init__(self, gate: Product, up: Product, down: Product, activation: str = "silu") -> None:
        self.gate, self.up, self.down = gate, up, down
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        if type(self.gate) is type(self.up):
            rows = self.gate.prepare(x)
            gate, up = self.gate.product(rows), self.up.product(rows)
        else:
            gate, up = self.gate(x), self.up(x)
        return self.down(ACTIVATIONS[self.activation](gate) * up)


class MLP(Module):
    """down(activation(up(x))). Shapes: (T, E) -> (T, E)."""

    def __init__(self, up: Product, down: Product, activation: str = "gelu") -> None:
        self.up, self.down = up, down
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(ACTIVATIONS[self.activation](self.up(x)))
