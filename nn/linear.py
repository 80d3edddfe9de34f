"""Products with a weight: plain, block-quantised, and several joined. Shape letters: K inputs, N outputs.

A layer says how its weight lies on the mesh axis "tp"; it never sees a mesh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from plait.framework import functional as F
from plait.framework import random
from plait.framework.blocks import BLOCK, block_format
from plait.framework.creation import zeros
from plait.framework.errors import ConfigError, ShapeError
from plait.framework.sharding import NamedMapping
from plait.framework.tensor import Tensor
from plait.nn.module import Module

TP = "tp"
# How the axes (outputs, inputs) of a weight lie on the mesh.
PARALLEL: dict[str | None, tuple[str | None, str | None]] = {
    "column": (TP, None),
    "row": (None, TP),
    None: (None, None),
}
MODES = ("exact", "int8")


class Product(Protocol):
    """What a block asks of its products. Products that share their input share `prepare`."""

    def prepare(self, x: Tensor) -> Tensor: ...

    def product(self, prepared: Tensor) -> Tensor: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class Linear(Module):
    """x @ weight.T + bias.

    Shapes: x (..., K), weight (N, K), bias (N,) -> (..., N).
    """

    def __init__(
        self, in_dim: int, out_dim: int, bias: bool = True, *, dtype: Any = "float32", parallel: str | None = None
    ) -> None:
        self.weight = random.normal((out_dim, in_dim), 0.0, 1 / math.sqrt(max(in_dim, 1)), dtype=dtype)
        self.bias = zeros((out_dim,), dtype=dtype) if bias else None
        self.parallel = _parallel(parallel)

    @property
    def in_dim(self) -> int:
        return int(self.weight.shape[1])

    @property
    def out_dim(self) -> int:
        return int(self.weight.shape[0])

    @property
    def local_mappings(self) -> dict[str, NamedMapping]:
        spec = PARALLEL[self.parallel]
        mappings = {"weight": NamedMapping(spec=spec)}
        return mappings if self.bias is None else mappings | {"bias": NamedMapping(spec=spec[:1])}

    def prepare(self, x: Tensor) -> Tensor:
        """The input as `product` takes it."""
        return x

    def product(self, prepared: Tensor) -> Tensor:
        return F.linear(prepared, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class QuantizedLinear(Module):
    """x @ dequantised(weight).T with the weight kept as the raw block rows of its file.

    `mode` "exact" computes in float32; "int8" quantises x to 32-value blocks and takes exact integer dots.
    Shapes: x (..., K) float32, weight (N, row_bytes) uint8 -> (..., N) float32.
    Raises: ConfigError for an unknown format or mode, ShapeError for a K that is no multiple of 32.
    """

    def __init__(
        self,
        format: str,
        in_dim: int,
        out_dim: int,
        mode: str = "exact",
        *,
        parallel: str | None = None,  # noqa: A002
    ) -> None:
        block = block_format(format)
        if in_dim % BLOCK:
            raise ShapeError(f"quantized linear: {in_dim} inputs; {format} needs a multiple of {BLOCK}.")
        self.format = format
        self.mode = checked_mode(mode)
        self.parallel = _parallel(parallel)
        self.weight = zeros((out_dim, block.row_bytes(in_dim)), dtype="uint8")

    @property
    def in_dim(self) -> int:
        return block_format(self.format).columns(int(self.weight.shape[1]))

    @property
    def out_dim(self) -> int:
        return int(self.weight.shape[0])

    @property
    def local_mappings(self) -> dict[str, NamedMapping]:
        return {"weight": NamedMapping(spec=PARALLEL[self.parallel])}

    def prepare(self, x: Tensor) -> Tensor:
        """The input as `product` takes it: quantised in mode "int8"."""
        return F.quantize_rows(x) if self.mode == "int8" else x

    def product(self, prepared: Tensor) -> Tensor:
        multiply = F.qmatmul_int8 if self.mode == "int8" else F.qmatmul
        return multiply(prepared, self.weight, self.format)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.prepare(x))


class JoinedLinear(Module):
    """Several products of one input side by side, for weights that cannot be stacked because their formats differ.

    Shapes: x (..., K) -> (..., N1 + N2 + ...).
    """

    def __init__(self, parts: Sequence[Product]) -> None:
        self.parts = list(parts)

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def product(self, prepared: Tensor) -> Tensor:
        return F.concat([part(prepared) for part in self.parts], axis=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


def checked_mode(mode: str) -> str:
    """The mode, if it is one.

    Raises: ConfigError naming the known ones.
    """
    if mode not in MODES:
        raise ConfigError(f"activation mode: {mode!r} is not one; expected {' or '.join(map(repr, MODES))}.")
    return mode


def _parallel(parallel: str | None) -> str | None:
    if parallel not in PARALLEL:
        raise ConfigError(f"linear: parallel={parallel!r}; expected 'column', 'row' or None.")
    return parallel
