"""The reference executor: every record by its row's NumPy meaning, one by one. The oracle of every compiler test."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.framework import profiler
from plait.framework.buffer import Buffer, from_array
from plait.framework.config import config
from plait.framework.dim import Size, evaluate
from plait.framework.errors import NaNError
from plait.framework.graph import CONST, Node, at_line
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
    had_nan = config.nan and any(map(has_nan, node.srcs, operands))  # before an in-place row writes over one
    value = np.asarray(node.op.numpy(*operands, attrs=attrs, spec=Spec(shape, node.dtype)))
    if config.nan and not had_nan and has_nan(node, value):
        raise NaNError(f"nan: {_made_nan(node, operands, value)}")
    return value


def has_nan(node: Node, value: Array) -> bool:
    """Whether a record's value holds a NaN."""
    return node.dtype.kind in "fc" and bool(np.isnan(value).any())


def _made_nan(node: Node, operands: list[Array], value: Array) -> str:
    place = tuple(map(int, np.argwhere(np.isnan(value))[0]))
    where = at_line(node) or ", recorded before PLAIT_NAN or PLAIT_TRACEBACKS was on"
    shapes = ", ".join(f"{src.op.name}{list(array.shape)}" for src, array in zip(node.srcs, operands, strict=True))
    return f"{node} made a NaN at element {place} of operands without one ({shapes or 'it has none'}){where}."


def constant(node: Node) -> Array:
    """The value of a leaf that needs no execution."""
    if node.op is CONST:
        return np.asarray(node.attrs[0]).astype(node.dtype.numpy)
    return node.array()


class Interpreter:
    """Executes pending records with NumPy."""

    def execute(self, nodes: list[Node], outputs: list[Node]) -> None:
        """Give every node of `outputs` a buffer. `nodes` holds all pending records they need, in program order."""
        held = held_outside(nodes, outputs)
        uses = Counter(id(src) for node in nodes for src in node.srcs)
        wanted = {id(node) for node in outputs}
        values: dict[int, Array] = {}
        for node in nodes:
            operands = [values[id(src)] if id(src) in values else constant(src) for src in node.srcs]
            if node.op.in_place:
                operands[0] = writable_base(node.srcs[0], operands[0], held)
            start = profiler.clock() if config.measured else 0.0
            value = compute(node, operands, {})
            if config.measured:
                profiler.add("host", node.op.name, start, profiler.clock() - start, shape=list(value.shape))
            for src in node.srcs:
                uses[id(src)] -= 1
                if not uses[id(src)]:
                    values.pop(id(src), None)
            if id(node) in wanted or node.op.in_place:
                node.buffer = own(node, value)
                value = node.array()
            if uses[id(node)]:
                values[id(node)] = value


def _idle_count() -> int:
    """What getrefcount says of an object that a container and a local hold: whether the argument counts as a third
    reference depends on the interpreter (it stopped in Python 3.14)."""
    (held,) = [object()]
    container = [held]
    count = sys.getrefcount(held)
    del container
    return count


IDLE = _idle_count()


def held_outside(nodes: list[Node], outputs: list[Node]) -> set[int]:
    """Ids of pending and realised nodes of a batch that something outside it can still read, outputs included.

    A reference that is neither another record of the batch, nor the batch's list, nor this frame, is a holder.
    """
    uses = Counter(id(src) for node in nodes for src in node.srcs)
    held = {id(node) for node in outputs}
    for node in nodes:
        if sys.getrefcount(node) > uses[id(node)] + IDLE:
            held.add(id(node))
        for src in node.srcs:
            if src.buffer is not None and sys.getrefcount(src) > uses[id(src)] + IDLE - 1:  # no list holds it
                held.add(id(src))
    return held


def writable_base(base: Node, value: Array, held: set[int]) -> Array:
    """The array an in-place row may write: the old version's own memory when nobody else can still read it."""
    mine = base.buffer is not None and base.buffer.writable and id(base) not in held
    return value if mine else np.array(value, order="C")  # rows that write count elements in C order


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
