"""Records print as readable text and are walked without recursion, in program order."""

from __future__ import annotations

import numpy as np

import plait as pl
from plait.framework.buffer import from_array
from plait.framework.dim import symbol
from plait.framework.dtype import float32, int32
from plait.framework.graph import Graph, Node, const, input_node, pending, realized, weight_node
from plait.framework.op import TABLE
from plait.framework.ops import elementwise as e
from plait.framework.ops import movement as m
from plait.framework.ops import product as p
from plait.framework.ops import reduce as r


def test_a_graph_prints_one_line_per_record() -> None:
    T = symbol("T")
    x = input_node(0, "x", False, (T, 4), float32)
    cache = input_node(1, "cache", True, (8,), float32)
    w = weight_node("layer.weight", (4, 3), float32)
    one = realized(from_array(np.ones((4,), np.float32), float32), (4,), float32)
    scaled = Node(e.MUL, (x, const(2.5, float32)), (), (T, 4), float32)
    shifted = Node(e.ADD, (scaled, one), (), (T, 4), float32)
    product = Node(p.MATMUL, (shifted, w), (), (T, 3), float32)
    total = Node(r.SUM, (product,), ((0,), False), (3,), float32)
    written = Node(m.WRITE, (cache, total), (1, (3,), (2,)), (8,), float32)
    graph = Graph("step", [x, cache], [w], [scaled, shifted, product, total, written], [total], [(cache, written)])
    assert str(graph) == (
        "graph @step {\n"
        "  %0 = input 'x' float32[T, 4]\n"
        "  %1 = buffer 'cache' float32[8]\n"
        "  %2 = weight 'layer.weight' float32[4, 3]\n"
        "  %3 = mul(%0, 2.5:float32) float32[T, 4]\n"
        "  %4 = add(%3, constant float32[4]) float32[T, 4]\n"
        "  %5 = matmul(%4, %2) float32[T, 3]\n"
        "  %6 = sum(%5, axes=(0,), keepdims=False) float32[3]\n"
        "  %7 = write(%1, %6, offset=1, shape=(3,), strides=(2,)) float32[8]\n"
        "  store %1 <- %7\n"
        "  return %6\n"
        "}"
    )
    assert graph.constants == [one]


def test_pending_is_in_program_order_and_stops_at_values() -> None:
    a = pl.asarray([1.0])
    b = a + 1
    c = b * 2
    d = b - c
    assert [node.op.name for node in pending([d.node()])] == ["add", "mul", "sub"]
    b.realize()
    assert [node.op.name for node in pending([d.node(), c.node()])] == ["mul", "sub"]
    assert pending([a.node()]) == []


def test_pending_does_not_recurse() -> None:
    node = Node(e.NEG, (const(1.0, float32),), (), (), float32)
    for _ in range(5000):
        node = Node(e.NEG, (node,), (), (), float32)
    assert len(pending([node])) == 5001


def test_a_realised_record_drops_its_operands() -> None:
    x = pl.asarray([1.0]) + 1
    node = x.node()
    assert len(node.srcs) == 2
    x.realize()
    assert node.srcs == () and node.depth == 0
    assert node.array().tolist() == [2.0]


def test_attributes_have_the_names_their_row_gives() -> None:
    node = Node(r.SUM, (const(1, int32),), ((0, 1), True), (1, 1), int32)
    assert node.attr("axes") == (0, 1) and node.attr("keepdims") is True
    assert repr(node) == "sum[1, 1]:int32"
    assert node.size == 1


def test_every_row_says_what_it_is() -> None:
    families = {
        "elementwise",
        "reduce",
        "movement",
        "create",
        "index",
        "write",
        "product",
        "ragged",
        "row",
        "leaf",
        "scan",
        "host",
    }
    for name, op in TABLE.items():
        assert op.name == name
        assert op.family in families
        if op.family == "elementwise":
            assert op.expr is not None and op.axes, name
        if op.in_place:
            assert op.axes or op.family == "write", name
