"""Records and graphs: pure data, readable text, no execution.

A Node is one record: a row of the op table applied to other nodes. A node with a buffer is realised and has no
operands. Every node carries its program order in `seq`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plait.framework.buffer import Buffer
from plait.framework.config import config
from plait.framework.dim import Size, product
from plait.framework.dtype import DType
from plait.framework.op import Attrs, Op, Shape, Spec, row

_sequence = itertools.count()
SYMBOLIC = (
    1 << 30
)  # the depth of inputs and weights; whatever depends on them is at least as deep and cannot be realised


_ROOT = str(Path(__file__).absolute().parents[1])  # plait/framework/graph.py -> plait
_OURS = (f"{_ROOT}{os.sep}", "<plait ")
_USERS = tuple(f"{_ROOT}{os.sep}{name}{os.sep}" for name in ("pipelines", "serve"))  # they use tensors as a user does


def user_line() -> str | None:
    """file:line of the innermost caller that is not the framework, the JIT or a layer."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) or name.startswith(_USERS):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def at_line(node: Node) -> str:
    """The words " at file:line" for messages; empty when the record keeps no line."""
    line = getattr(node, "line", None)  # what native code returns is made without the constructor
    return f" at {line}" if line else ""


class Node:
    """One record. `buffer` is set once it is realised; then `srcs` is empty.

    `line` is the user's, kept while PLAIT_TRACEBACKS or PLAIT_NAN is on.
    """

    __slots__ = ("op", "srcs", "attrs", "shape", "dtype", "buffer", "depth", "seq", "line", "__weakref__")

    def __init__(
        self,
        op: Op,
        srcs: tuple[Node, ...],
        attrs: Attrs,
        shape: Shape,
        dtype: DType,
        buffer: Buffer | None = None,
        depth: int = 0,
    ) -> None:
        self.op = op
        self.srcs = srcs
        self.attrs = attrs
        self.shape = shape
        self.dtype = dtype
        self.buffer = buffer
        self.depth = depth
        self.seq = next(_sequence)
        self.line = user_line() if config.lines else None

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)

    @property
    def size(self) -> Size:
        return product(self.shape)

    def attr(self, name: str) -> Any:
        """One attribute by the name its row gives it."""
        return self.attrs[self.op.attrs.index(name)]

    def array(self) -> np.ndarray[Any, Any]:
        """The realised value, sharing memory."""
        assert self.buffer is not None, f"{self} is not realised"
        return self.buffer.array(self.dtype, self.shape)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{self.op.name}{list(self.shape)}:{self.dtype.name}"


def _leaf(name: str, doc: str, *attrs: str) -> Op:
    return row(name, "leaf", infer=_no_infer, numpy=_no_numpy, attrs=attrs, doc=doc)


def _no_infer(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    raise AssertionError(f"{op.name} is a leaf")


def _no_numpy(*arguments: Any) -> Any:
    raise AssertionError("a leaf has its value already")


BUFFER = _leaf("buffer", "a realised value")
CONST = _leaf("const", "a scalar known when it was recorded", "value")
INPUT = _leaf(
    "input", "an argument of a staged graph; mutable ones may be written in place", "index", "name", "mutable"
)
WEIGHT = _leaf("weight", "a value bound by name when the compiled graph is first called", "name")


def input_node(index: int, name: str, mutable: bool, shape: Shape, dtype: DType) -> Node:
    """An argument of a staged graph."""
    return Node(INPUT, (), (index, name, mutable), shape, dtype, None, SYMBOLIC)


def weight_node(name: str, shape: Shape, dtype: DType) -> Node:
    """A value that a compiled graph binds by name."""
    return Node(WEIGHT, (), (name,), shape, dtype, None, SYMBOLIC)


def const(value: Any, dtype: DType) -> Node:
    """A scalar. Its value is an argument of the kernels that use it, not part of their structure."""
    return Node(CONST, (), (value,), (), dtype)


def realized(buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Node:
    """A node that already has its value."""
    return Node(BUFFER, (), (), shape, dtype, buffer)


def pending(outputs: Iterable[Node]) -> list[Node]:
    """Every node without a value that `outputs` need, leaves left out, in program order. Does not recurse."""
    seen: set[int] = set()
    order: list[Node] = []
    stack = [node for node in outputs]
    while stack:
        node = stack.pop()
        if node.buffer is not None or node.op.family == "leaf" or id(node) in seen:
            continue
        seen.add(id(node))
        order.append(node)
        stack.extend(node.srcs)
    order.sort(key=_seq)
    return order


def _seq(node: Node) -> int:
    return node.seq


@dataclass(eq=False)
class Graph:
    """A staged function: its leaves, its records in program order, its results and the buffers it stores into.

    `stores` pairs a mutable input with the last version written to it. `constants` are realised values that the
    traced function closed over.
    """

    name: str
    inputs: list[Node]
    weights: list[Node]
    nodes: list[Node]
    outputs: list[Node]
    stores: list[tuple[Node, Node]] = field(default_factory=list)

    @property
    def constants(self) -> list[Node]:
        found = {id(src): src for node in self.nodes for src in node.srcs if src.buffer is not None}
        found |= {id(node): node for node in self.outputs if node.buffer is not None}
        return list(found.values())

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def to_dot(self) -> str:
        """The graph as Graphviz text."""
        from plait.framework.drawing import to_dot  # draws what this file defines

        return to_dot(self)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        from plait.framework.drawing import to_mermaid

        return to_mermaid(self)


def _lines(graph: Graph) -> Iterator[str]:
    names = {id(node): f"%{i}" for i, node in enumerate([*graph.inputs, *graph.weights, *graph.nodes])}

    def operand(node: Node) -> str:
        if node.op is CONST:
            return f"{node.attrs[0]!r}:{node.dtype.name}"
        if node.buffer is not None:
            return f"constant {_type(node)}"
        return names[id(node)]

    yield f"graph @{graph.name} {{"
    for node in graph.inputs:
        kind = "buffer" if node.attr("mutable") else "input"
        yield f"  {names[id(node)]} = {kind} {node.attr('name')!r} {_type(node)}"
    for node in graph.weights:
        yield f"  {names[id(node)]} = weight {node.attr('name')!r} {_type(node)}"
    for node in graph.nodes:
        attrs = ", ".join(f"{name}={value!r}" for name, value in zip(node.op.attrs, node.attrs, strict=True))
        text = ", ".join([*(operand(src) for src in node.srcs), *([attrs] if attrs else [])])
        comment = f"  # {node.line}" if node.line else ""
        yield f"  {names[id(node)]} = {node.op.name}({text}) {_type(node)}{comment}"
    for target, version in graph.stores:
        yield f"  store {names[id(target)]} <- {operand(version)}"
    yield f"  return {', '.join(operand(node) for node in graph.outputs)}"
    yield "}"


def _type(node: Node) -> str:
    return f"{node.dtype.name}[{', '.join(map(str, node.shape))}]"
