"""What a legal list of records is; checked between passes when PLAIT_CHECK is 1."""

from __future__ import annotations

from collections.abc import Iterable

from plait.framework.errors import CompileError
from plait.framework.graph import Graph, Node


def verify_graph(graph: Graph, after: str) -> None:
    """Check a staged graph after a pass.

    Raises: CompileError naming the pass and the record.
    """
    verify(graph.nodes, after, [*graph.inputs, *graph.weights])
    known = {id(node) for node in (*graph.inputs, *graph.weights, *graph.nodes)}
    for node in (*graph.outputs, *(version for _, version in graph.stores)):
        if id(node) not in known and node.buffer is None:
            raise CompileError(f"{after}: result {node} is not computed; a pass dropped a record that is needed.")


def verify(nodes: list[Node], after: str, leaves: Iterable[Node] = ()) -> None:
    """Check that operands come before their readers and that every record has the type its row infers.

    Raises: CompileError naming the pass and the record.
    """
    known = {id(node) for node in leaves}
    for node in nodes:
        for src in node.srcs:
            if src.buffer is None and src.op.family != "leaf" and id(src) not in known:
                raise CompileError(f"{after}: {node} reads {src}, which is not computed before it.")
        spec = node.op.infer(node.op, tuple(src.spec for src in node.srcs), node.attrs)
        if (spec.shape, spec.dtype) != (node.shape, node.dtype):
            raise CompileError(f"{after}: {node} has another type than its row infers, {spec.dtype.name}{spec.shape}.")
        known.add(id(node))
