"""Rewrites of a staged graph that keep every bit: common subexpressions and dead records. Program order stays."""

from __future__ import annotations

from typing import Any

from plait.framework.graph import CONST, Graph, Node


def simplify(graph: Graph) -> Graph:
    """The same graph with each record computed once, and only if something needs it."""
    return _live(_common(graph))


def _key(node: Node, srcs: tuple[Node, ...]) -> Any:
    return node.op.name, tuple(_leaf_key(src) for src in srcs), node.attrs, node.shape, node.dtype.name


def _leaf_key(node: Node) -> Any:
    return ("const", type(node.attrs[0]), repr(node.attrs[0]), node.dtype.name) if node.op is CONST else id(node)


def _common(graph: Graph) -> Graph:
    """Equal records of equal operands become one. In-place records never merge; every result keeps its own memory."""
    pinned = {id(node) for node in graph.outputs} | {id(version) for _, version in graph.stores}
    replaced: dict[int, Node] = {}
    known: dict[Any, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        srcs = tuple(replaced.get(id(src), src) for src in node.srcs)
        key = _key(node, srcs)
        if key in known and not node.op.in_place and id(node) not in pinned:
            replaced[id(node)] = known[key]
            continue
        fresh = Node(node.op, srcs, node.attrs, node.shape, node.dtype, None, node.depth)
        fresh.line = node.line
        replaced[id(node)] = known[key] = fresh
        nodes.append(fresh)

    def now(node: Node) -> Node:
        return replaced.get(id(node), node)

    stores = [(target, now(version)) for target, version in graph.stores]
    return Graph(graph.name, graph.inputs, graph.weights, nodes, [now(node) for node in graph.outputs], stores)


def _live(graph: Graph) -> Graph:
    needed = {id(node) for node in graph.outputs} | {id(version) for _, version in graph.stores}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if id(node) in needed:
            kept.append(node)
            needed.update(id(src) for src in node.srcs)
    kept.reverse()
    return Graph(graph.name, graph.inputs, graph.weights, kept, graph.outputs, graph.stores)
