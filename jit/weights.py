"""Weights of a compiled graph: bound by name to the addresses its kernels read, repacked where a kernel wants that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from plait.framework.buffer import Buffer, from_array
from plait.framework.dtype import uint8
from plait.framework.errors import LoadError, ShapeError
from plait.framework.graph import Node
from plait.framework.tensor import Tensor
from plait.jit.packing import pack
from plait.jit.program import Bound
from plait.jit.signature import ArgumentTypeError

# One packed copy per weight and layout, whoever binds it, for as long as the weight lives.
_packed: WeakKeyDictionary[Buffer, dict[str, Buffer]] = WeakKeyDictionary()


class Binding:
    """The table of addresses that a native entry reads. It keeps the memory alive."""

    def __init__(self, bound: list[Bound], weights: Mapping[str, Any], is_fresh: bool = False) -> None:
        self.buffers = [_memory(word, weights, is_fresh) for word in bound]
        self.table = Buffer(8 * max(1, len(bound)))
        self.address = self.table.address
        np.asarray(self.table).view(np.int64)[: len(bound)] = [buffer.address for buffer in self.buffers]


def check_weights(graph_name: str, wanted: list[Node], weights: Mapping[str, Any]) -> None:
    """Every weight is there, with the shape and dtype it was traced with.

    Raises: LoadError for a missing name, ShapeError or a DTypeError that is a ValueError for one that does not fit.
    """
    for node in wanted:
        name = node.attr("name")
        if name not in weights:
            near = ", ".join(list(weights)[:5]) or "none"
            raise LoadError(
                f"{graph_name}: weight {name!r} is missing; given: {near}{', ...' if len(weights) > 5 else ''}."
            )
        found = weights[name]
        if tuple(found.shape) != node.shape:
            raise ShapeError(f"{graph_name}: weight {name!r} has shape {tuple(found.shape)}; expected {node.shape}.")
        if found.dtype is not node.dtype:
            raise ArgumentTypeError(f"{graph_name}: weight {name!r} is {found.dtype.name}; expected {node.dtype.name}.")


def contiguous_buffer(tensor: Tensor) -> Buffer:
    """The memory of a tensor's value in C order: its own where possible, else a copy."""
    if tensor._parent is None:
        tensor.realize()
        if (buffer := tensor.node().buffer) is not None:
            return buffer
    buffer = tensor.copy().realize().node().buffer
    assert buffer is not None
    return buffer


def _memory(word: Bound, weights: Mapping[str, Any], is_fresh: bool) -> Buffer:
    node, name = word.node, word.name
    if name is not None:
        buffer = contiguous_buffer(weights[name])
    else:
        assert node.buffer is not None
        buffer = node.buffer
    if word.packing is None:
        return buffer
    kept = _packed.setdefault(buffer, {})
    if is_fresh or word.packing not in kept:
        raw = buffer.array(node.dtype, node.shape)  # type: ignore[arg-type]
        kept[word.packing] = from_array(pack(word.packing, raw), uint8)
    return kept[word.packing]
