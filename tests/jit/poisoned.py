"""Run one launch on NumPy arrays, compiled for any target the host can run, with guarded memory around its result."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from plait.framework.buffer import Buffer
from plait.framework.dtype import as_dtype
from plait.framework.graph import Node, realized
from plait.framework.op import TABLE
from plait.jit.compile_ir import Library, assembly, compile_ir, load_object
from plait.jit.kernel import Kernel, Launch, Operand
from plait.jit.packing import pack
from plait.jit.target import Target, host_target

Array = np.ndarray[Any, Any]
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
GUARD = 64  # bytes on either side of a result that must stay as they were


def machine_code(kernel: Kernel, target: Target) -> str:
    """Machine code as text, to see that a target takes it and what it calls."""
    return assembly(kernel.name, kernel.emit(target, kernel.symbol), target)


_libraries: list[Library] = []


@cache
def native(kernel: Kernel, target: Target) -> Any:
    """The kernel as a callable of this process."""
    data = compile_ir(kernel.name, kernel.emit(target, kernel.symbol), target)
    _libraries.append(load_object(data, [kernel.symbol]))
    return SIGNATURE(_libraries[-1].symbol(kernel.symbol))


def leaf(array: Array) -> Node:
    """A realised node that holds a copy of the array."""
    node = realized(Buffer(array.nbytes), array.shape, as_dtype(array.dtype))
    node.array()[...] = array
    return node


def record(name: str, *sources: Node, attrs: tuple[Any, ...] = ()) -> Node:
    """A record of a row of the op table."""
    op = TABLE[name]
    spec = op.infer(op, tuple(source.spec for source in sources), attrs)
    return Node(op, sources, attrs, spec.shape, spec.dtype)


def value(node: Node) -> Array:
    """What the rows' NumPy meanings give for a record."""
    if node.buffer is not None:
        return node.array()
    arrays = [value(source) for source in node.srcs]
    return np.asarray(node.op.numpy(*arrays, attrs=node.attrs, spec=node.spec))


def run(launch: Launch, target: Target | None = None, parts: Sequence[tuple[int, int]] | None = None) -> Array:
    """The launch's result in fresh, guarded memory; an in-place one is the memory of its operand as it then is.

    `parts` are the (lo, hi) calls to make, all units if None.
    """
    output = launch.results[0]
    size = int(np.prod(output.shape)) * output.dtype.itemsize  # type: ignore[arg-type]
    memory = np.full(size + 2 * GUARD + 64, 0xA5, np.uint8)
    first = GUARD + -(memory.ctypes.data + GUARD) % 64
    packed: list[Array] = []
    slots = [_pointer(operand, output, memory.ctypes.data + first, packed) for operand in launch.operands]
    block = struct.pack(f"<{len(slots) + len(launch.ints)}q", *slots, *launch.ints)
    for number, dtype in launch.scalars:
        block += struct.pack("<d", number) if as_dtype(dtype).kind == "f" else struct.pack("<q", number)
    function = native(launch.kernel, target or host_target())
    arguments = ctypes.create_string_buffer(block)
    for lo, hi in [(0, launch.extent)] if parts is None else parts:
        function(ctypes.addressof(arguments), lo, hi)
    if output.op.in_place:
        return launch.operands[0].node.array()
    assert (memory[:first] == 0xA5).all() and (memory[first + size :] == 0xA5).all(), "wrote beside the result"
    found: Array = memory[first : first + size].view(output.dtype.numpy).reshape(output.shape)  # type: ignore[arg-type]
    return found


def _pointer(operand: Operand, output: Node, address: int, packed: list[Array]) -> int:
    if operand.node is output:
        return address
    array = operand.node.array()
    if operand.packing is not None:
        array = pack(operand.packing, array)
        packed.append(array)
    return int(array.ctypes.data)
