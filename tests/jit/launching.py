"""Runs one launch through ctypes, unit by unit if asked: what the kernel tests share."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plait.framework.buffer import Buffer, from_array
from plait.framework.dim import evaluate
from plait.framework.dtype import DType, as_dtype
from plait.framework.graph import Node, const, realized
from plait.framework.interpreter import compute, constant
from plait.framework.op import TABLE, Spec
from plait.jit import cache
from plait.jit.kernel import Launch
from plait.jit.target import host_target, virtual
from plait.jit.view import base_of

Array = np.ndarray[Any, Any]


def leaf(array: Array) -> Node:
    """A realised record with a copy of the array's values."""
    dtype = as_dtype(array.dtype)
    return realized(from_array(array, dtype), array.shape, dtype)


def op(name: str, *srcs: Node, attrs: tuple[Any, ...] = ()) -> Node:
    """A pending record."""
    row = TABLE[name]
    spec: Spec = row.infer(row, tuple(src.spec for src in srcs), attrs)
    return Node(row, srcs, attrs, spec.shape, spec.dtype)


def scalar(value: Any, dtype: Any) -> Node:
    return const(value, dtype if isinstance(dtype, DType) else as_dtype(dtype))


def expected(node: Node) -> Array:
    """The value by the rows' NumPy meaning."""
    if node.buffer is not None or node.op.family == "leaf":
        return constant(node)
    return compute(node, [expected(src) for src in node.srcs], {})


def _slot(kind: str, value: Any, addresses: Mapping[int, int], sizes: Mapping[str, int]) -> bytes:
    if kind == "operand":
        return struct.pack("<q", addresses[id(value.node)])
    if kind == "int":
        return struct.pack("<q", evaluate(value, sizes))
    number, dtype = value
    return struct.pack("<d", number) if "float" in dtype else struct.pack("<q", int(number))


def run(
    launch: Launch,
    sizes: Mapping[str, int] | None = None,
    arrays: Mapping[int, Array] | None = None,
    cuts: Sequence[float] = (),
    march: str | None = None,
) -> list[Array]:
    """The results. `cuts` split the units at these fractions, and the parts run last to first.

    `march` compiles for that machine instead of this one, which must be able to run its code.
    """
    sizes = sizes or {}
    buffers: dict[int, Buffer] = {}
    for node in launch.results:
        shape = tuple(evaluate(size, sizes) for size in node.shape)
        buffers[id(node)] = Buffer(int(np.prod(shape)) * node.dtype.itemsize)
    addresses = {key: buffer.address for key, buffer in buffers.items()}
    for operand in launch.operands:
        if id(operand.node) not in addresses:
            given = (arrays or {}).get(id(operand.node))
            assert given is not None or operand.node.buffer is not None, f"{operand.node} has no memory"
            addresses[id(operand.node)] = given.ctypes.data if given is not None else operand.node.buffer.address
    block = b"".join(_slot(kind, value, addresses, sizes) for kind, value in launch.slots())
    target = virtual(march) if march else host_target()
    library = cache.get(launch.kernel.name, launch.kernel.emit(target, launch.kernel.symbol), target)
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)(
        library.symbol(launch.kernel.symbol)
    )
    extent = evaluate(launch.extent, sizes)
    edges = [0, *(int(extent * cut) for cut in cuts), extent]
    for lo, hi in reversed(list(zip(edges, edges[1:], strict=False))):
        if lo < hi:
            function(block, lo, hi)
    return [
        buffers[id(node)].array(node.dtype, tuple(evaluate(size, sizes) for size in node.shape)).copy()
        for node in launch.results
    ]


def pending_of(*outputs: Node) -> list[Node]:
    """Every pending record that the outputs need, views left out."""
    found: dict[int, Node] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node.buffer is not None or node.op.family == "leaf" or id(node) in found:
            continue
        if base_of(node) is node or any(node is output for output in outputs):
            found[id(node)] = node
        stack.extend(node.srcs)
    return sorted(found.values(), key=lambda node: node.seq)


def assert_within(found: Array, wanted: Array, ulp: float) -> None:
    """Equal but for `ulp` units of the last place of the wanted value."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    wide, exact = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(exact))
    np.testing.assert_array_equal(np.where(np.isinf(exact), wide, 0), np.where(np.isinf(exact), exact, 0))
    finite = np.isfinite(exact)
    away = np.abs(wide[finite] - exact[finite]) / spacing_of(wanted)[finite]
    assert not away.size or away.max() <= ulp, f"off by {away.max()} ulp"


def spacing_of(array: Array) -> Array:
    """The distance to the next number, as float64."""
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.abs(np.spacing(array)).astype(np.float64)
    exponent = np.floor(np.log2(np.maximum(np.abs(array.astype(np.float64)), 2.0**-126)))
    return np.asarray(2.0 ** (exponent - 7))
