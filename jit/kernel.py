"""What the compiler passes hand to each other: fused expressions, kernels, launches. Plain data, no LLVM.

Every kernel is one native function `void k(ptr args, i64 lo, i64 hi)`. `args` points at 8-byte slots: first one
pointer per operand, then the launch's ints as i64, then its scalars as i64 or as the bits of a double. `lo` and `hi`
cut the launch's units; a unit is computed the same way whoever computes it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.framework.dim import Size
from plait.framework.graph import Node
from plait.framework.op import TABLE
from plait.jit.target import Target

Ref = tuple[str, int]  # ("in", i) | ("scalar", i) | ("step", i)


@dataclass(frozen=True)
class Fused:
    """A fused elementwise expression: a straight-line program over the op table's scalar expressions.

    inputs   dtype name of each value loaded per element
    scalars  dtype name of each value that is an argument of the launch
    steps    (op name, operand refs, attrs) in order; elementwise rows only
    outputs  refs of the values the kernel keeps
    """

    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    steps: tuple[tuple[str, tuple[Ref, ...], tuple[Any, ...]], ...]
    outputs: tuple[Ref, ...]

    def emit(self, builder: Any, inputs: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
        """Emit the program through an ExpressionBuilder; returns the values of `outputs`."""
        values: dict[str, list[Any]] = {"in": list(inputs), "scalar": list(scalars), "step": []}
        for name, refs, attrs in self.steps:
            operands = [values[kind][index] for kind, index in refs]
            expr = TABLE[name].expr
            assert expr is not None, f"{name} is no elementwise row"
            values["step"].append(expr(builder, *operands, *attrs))
        return [values[kind][index] for kind, index in self.outputs]


@dataclass(frozen=True)
class Kernel:
    """A structure and its emitter. Equal keys are the same code.

    name     op names joined, such as "mul_add_sum": what PLAIT_DEBUG, profiles and errors print
    key      everything that shapes the code, as plain hashable data; extents, strides and scalars are not in it
    emit     (target, symbol) -> LLVM module text that defines `void @symbol(ptr, i64, i64)`; helpers it defines are
             `internal` and carry `symbol` as a prefix, so that texts can be put in one module
    """

    name: str
    key: tuple[Any, ...]
    emit: Callable[[Target, str], str] = field(compare=False)

    @property
    def symbol(self) -> str:
        """A legal, stable LLVM name."""
        digest = hashlib.sha256(repr(self.key).encode()).hexdigest()[:16]
        readable = "".join(c if c.isalnum() else "_" for c in self.name)[:60]
        return f"k_{readable}_{digest}"


@dataclass(frozen=True, eq=False)
class Operand:
    """A pointer argument: the start of a node's storage, or of a repacked copy of a weight.

    packing  None, or the id of the layout the kernel reads, such as "q4_1/lane16/1"; only bound values have one
    """

    node: Node
    packing: str | None = None


@dataclass(eq=False)
class Launch:
    """One kernel with its arguments. Sizes may be symbolic.

    operands      pointers, in the kernel's order (results included)
    results       the nodes this launch computes, each in fresh memory unless its row is in place
    ints, scalars further arguments, in the kernel's order; a scalar is a Python bool, int or float with its dtype name
    extent        number of units; the launch covers 0 .. extent
    grain         units one thread takes at a time (roughly 4 to 20 us of work); at most this many units run serially
    unit          what a unit is: "row" units of equal extent may be chained into one launch
    work_bytes    bytes read and written, work_flops arithmetic: for PLAIT_DEBUG=2
    """

    kernel: Kernel
    operands: list[Operand]
    results: list[Node]
    ints: list[Size]
    scalars: list[tuple[Any, str]]
    extent: Size
    grain: int
    unit: str = "block"
    work_bytes: Size = 0
    work_flops: Size = 0
    parts: list[Launch] | None = None  # a chained launch: its arguments are its parts' blocks, one after the other

    def slots(self) -> list[tuple[str, Any]]:
        """The argument block in order: ("operand", Operand), ("int", Size) or ("scalar", (value, dtype name))."""
        if self.parts:
            return [slot for part in self.parts for slot in part.slots()]
        return [
            *(("operand", operand) for operand in self.operands),
            *(("int", size) for size in self.ints),
            *(("scalar", scalar) for scalar in self.scalars),
        ]


def slot_value(kind: str, value: Any) -> int:
    """One 8-byte argument of a concrete launch as the integer that has its bits."""
    if kind == "operand":
        assert value.node.buffer is not None, f"{value.node} is not realised"
        return int(value.node.buffer.address)
    if kind == "int":
        return int(value)
    number, dtype = value
    return int(struct.unpack("<q", struct.pack("<d", number))[0]) if "float" in dtype else int(number)


@dataclass(eq=False)
class HostCall:
    """A record that no kernel computes: NumPy runs it through its row. `reason` says why."""

    node: Node
    reason: str


Step = Launch | HostCall


def step_name(step: Step) -> str:
    """A kernel's name, or "host:<op>"."""
    return f"host:{step.node.op.name}" if isinstance(step, HostCall) else step.kernel.name


def step_node(step: Step) -> Node | None:
    """The record that stands for a step: its first result."""
    if isinstance(step, HostCall):
        return step.node
    return step.results[0] if step.results else None


class Decline(Exception):
    """Raised by a lowering before any effect when it has no code for what it was asked; `reason` names the rule."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
