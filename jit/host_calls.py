"""Records that run in Python inside or instead of native code: host calls, and whole graphs under PLAIT_JIT=0."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.framework.buffer import from_array
from plait.framework.graph import CONST, INPUT, Graph, Node, realized
from plait.framework.interpreter import bind_shape, compute, constant
from plait.framework.tensor import Tensor
from plait.jit.memory import owner
from plait.jit.program import Program

Array = np.ndarray[Any, Any]
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def address_array(address: int, node: Node, sizes: Mapping[str, int]) -> Array:
    """A node's memory as an array. The caller keeps the memory alive."""
    shape = bind_shape(node.shape, sizes)
    count = int(np.prod(shape, dtype=np.int64)) * node.dtype.itemsize
    if count == 0:
        return np.empty(shape, node.dtype.numpy)
    block = (ctypes.c_uint8 * count).from_address(address)
    array: Array = np.ctypeslib.as_array(block).view(node.dtype.numpy).reshape(shape)
    return array


class HostCalls:
    """The callback of one compiled graph. An exception is kept for the thread whose call it ends."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.errors: dict[int, BaseException] = {}
        self._callback = _CALLBACK(self._run)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def take_error(self) -> BaseException | None:
        return self.errors.pop(threading.get_ident(), None)

    def _run(self, index: int, block: int, dims: int) -> int:
        try:
            step, nodes = self.program.host_calls[index]
            values = (ctypes.c_int64 * len(self.program.symbols)).from_address(dims) if self.program.symbols else ()
            sizes = dict(zip(self.program.symbols, values, strict=True))
            addresses = (ctypes.c_int64 * len(nodes)).from_address(block)
            arrays = [address_array(address, node, sizes) for address, node in zip(addresses, nodes, strict=True)]
            known = {id(node): array for node, array in zip(nodes[:-1], arrays[:-1], strict=True)}
            value = compute(step.node, [_value(src, known, sizes) for src in step.node.srcs], sizes)
            if not (step.node.op.in_place and value.ctypes.data == arrays[-1].ctypes.data):
                arrays[-1][...] = value
            return 0
        except BaseException as error:  # noqa: BLE001  # it goes on in Python once the native function has returned
            self.errors[threading.get_ident()] = error
            return 1


def _value(node: Node, known: Mapping[int, Array], sizes: Mapping[str, int]) -> Array:
    """A node's value from arrays of the bases under its views."""
    if id(node) in known:
        return known[id(node)]
    if node.op is CONST or node.buffer is not None:
        return constant(node)
    return compute(node, [_value(src, known, sizes) for src in node.srcs], sizes)


def interpret(
    graph: Graph, outputs: list[Node], arguments: list[Array], weights: Mapping[str, Any], sizes: Mapping[str, int]
) -> list[Tensor]:
    """Run a graph record by record; mutable arguments are written in place."""
    known = {id(node): array for node, array in zip(graph.inputs, arguments, strict=True)}
    named = {node.attr("name"): weights[node.attr("name")]._host() for node in graph.weights}
    for node in graph.nodes:
        operands = [_operand(src, known, named) for src in node.srcs]
        if node.op.in_place and owner(node).op is not INPUT and not node.srcs[0].op.in_place:
            operands[0] = np.array(operands[0], order="C")  # a row may have handed on the memory of its own operand
        known[id(node)] = compute(node, operands, sizes)
    results = [_operand(node, known, named) for node in outputs]
    return [
        Tensor._of(realized(from_array(value, node.dtype), value.shape, node.dtype))
        for value, node in zip(results, outputs, strict=True)
    ]


def _operand(node: Node, known: Mapping[int, Array], named: Mapping[str, Array]) -> Array:
    if id(node) in known:
        return known[id(node)]
    return named[node.attr("name")] if node.op.name == "weight" else constant(node)
