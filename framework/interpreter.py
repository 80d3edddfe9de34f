"""The reference executor: every record by its row's NumPy meaning, one by one. The oracle of every compiler test."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.framework.buffer import Buffer, from_array
from plait.framework.dim import Size, evaluate
from plait.framework.graph import CONST, Node
from plait.framework.op import Attrs, Spec

Array = np.ndarray[Any, Any]


def bind_attrs(value: Any, sizes: Mapping[str, int]) -> Any:
    """Attributes with every symbolic size replaced by its value."""
    if isinstance(value, tuple):
        return tuple(bind_attrs(item, sizes) for item in value)
    return evaluate(value, sizes) if hasattr(value, "terms") else value


def bind_shape(shape: tuple[Size, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with every symbolic size replaced by its value."""
    return tuple(evaluate(size, sizes) for size in shape)


def compute(node: Node, operands: list[Array], sizes: Mapping[str, int]) -> Array:
    """One record on NumPy arrays."""
    attrs: Attrs = bind_attrs(node.attrs, sizes) if sizes else node.attrs
    shape = bind_shape(node.shape, sizes) if sizes else node.shape
    return np.asarray(node.op.numpy(*operands, attrs=attrs, spec=Spec(shape, node.dtype)))


def constant(node: Node) -> Array:
    """The value of a leaf that needs no execution."""
    if node.op is CONST:
        return np.asarray(node.attrs[0]).astype(node.dtype.numpy)
    return node.array()


class Interpreter:
    """Executes pending records with NumPy."""

    def execute(self, nodes: list[Node], outputs: list[Node]) -> None:
        """Give every node of `outputs` a buffer. `nodes` holds all pending records they need, in program order."""
        uses = Counter(id(src) for node in nodes for src in node.srcs)
        wanted = {id(node) for node in outputs}
        values: dict[int, Array] = {}
        for node in nodes:
            operands = [values[id(src)] if id(src) in values else constant(src) for src in node.srcs]
            if node.op.in_place:
                operands[0] = writable_base(node, operands[0], id(node.srcs[0]) in wanted)
            value = compute(node, operands, {})
            for src in node.srcs:
                uses[id(src)] -= 1
                if not uses[id(src)]:
                    values.pop(id(src), None)
            if id(node) in wanted or node.op.in_place:
                node.buffer = own(node, value)
                value = node.array()
            if uses[id(node)]:
                values[id(node)] = value


def writable_base(node: Node, value: Array, wanted: bool) -> Array:
    """The array an in-place row may write: the old version's own memory when nobody else can still read it.

    The holders that do not count are `node.srcs`, this frame's `base`, the argument of getrefcount and, for a version
    that was pending in this batch, the batch's list.
    """
    base = node.srcs[0]
    idle = 3 if base.op.family == "leaf" or not base.srcs else 4
    mine = base.buffer is not None and base.buffer.writable and not wanted and sys.getrefcount(base) <= idle
    return value if mine else np.array(value)


def own(node: Node, value: Array) -> Buffer:
    """A buffer for a computed value: the base's own for an in-place row, a copy for a view, else the array itself."""
    if node.op.in_place:
        base = node.srcs[0].buffer
        if base is not None and value.ctypes.data == base.address:
            return base
    fresh = value.flags.c_contiguous and value.flags.owndata and value.flags.aligned
    if fresh and value.nbytes and node.op.family != "movement":
        return Buffer.borrow(value)
    return from_array(value, node.dtype)
