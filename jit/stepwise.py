"""Launches run one by one: their times, lines and spans, and a look at what they stored. For PLAIT_DEBUG=2 and up,
PLAIT_SYNC, PLAIT_POISON and traces; a steady call of a compiled graph does not come here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.framework import profiler
from plait.framework.buffer import POISON, Buffer
from plait.framework.config import config
from plait.framework.dim import Size, evaluate
from plait.framework.errors import CompileError
from plait.framework.graph import Node, at_line
from plait.jit.entry import call_natively
from plait.jit.kernel import HostCall, Step
from plait.jit.memory import num_bytes
from plait.jit.native import Native, step_name, step_node
from plait.jit.program import ARENA_TOO_SMALL

Sizes = Mapping[str, int]


def run_stepwise(native: Native, bound_address: int, addresses: list[int], dims: list[int], sizes: Sizes) -> list[Any]:
    """The buffers of the results, one entry into native code per step."""
    began = profiler.clock()
    outputs = native.program.outputs
    buffers = [Buffer(evaluate(num_bytes(node), sizes)) for node in outputs]
    arguments = [*addresses, *(buffer.address for buffer in buffers)]
    frame = native.new_frame()
    frame.set("bound", bound_address)
    for number, step in enumerate(native.steps):
        frame.set("begin", number)
        frame.set("end", number + 1)
        start = profiler.clock()
        status = call_natively(native.entry, frame, arguments, dims)
        if status == ARENA_TOO_SMALL:
            frame.grow(frame["needed"])
            start = profiler.clock()
            status = call_natively(native.entry, frame, arguments, dims)
        frame.set("status", status)
        if status:
            native.mend(frame)
        ran(step, start, profiler.clock() - start, sizes)
        for node, buffer in zip(outputs, buffers, strict=True):
            if config.poison and node in _results(step):
                refuse_poison(native.name, step, node, buffer)
    del native.frames[frame.address]
    profiler.add("graph", native.name, began, profiler.clock() - began, **sizes)
    return buffers


def _results(step: Step) -> list[Node]:
    return [step.node] if isinstance(step, HostCall) else step.results


def ran(step: Step, start: float, seconds: float, sizes: Sizes) -> None:
    """Tell whoever listens that a step ran."""
    node, name = step_node(step), step_name(step)
    shape = _concrete(node.shape if node is not None else (), sizes)
    moved, work = (
        (0, 0) if isinstance(step, HostCall) else _concrete((step.work_bytes, step.work_flops), sizes)
    )  # fmt: skip
    if config.debug >= 2:
        seconds = max(seconds, 1e-9)
        rates = f"{moved / seconds / 1e9:8.2f} GB/s {work / seconds / 1e9:8.2f} GFLOP/s"
        print(f"kernel {name:48} {shape!s:20} {seconds * 1e3:9.3f} ms {rates}", file=sys.stderr)
    if config.measured:
        kind = "host" if isinstance(step, HostCall) else "kernel"
        line = {"line": node.line} if node is not None and getattr(node, "line", None) else {}
        profiler.add(kind, name, start, seconds, shape=list(shape), bytes=moved, flops=work, **line)


def _concrete(values: tuple[Size, ...], sizes: Sizes) -> tuple[int, ...]:
    return tuple(evaluate(value, sizes) for value in values)


def refuse_poison(where: str, step: Step, node: Node, buffer: Buffer) -> None:
    """Raise CompileError when a fresh result shows the NaN that PLAIT_POISON fills memory with."""
    if node.op.in_place or node.dtype.kind != "f" or node.dtype.itemsize < 2:
        return
    values = np.asarray(buffer).reshape(-1, node.dtype.itemsize)
    bad = np.flatnonzero((values == POISON).all(axis=1))
    if len(bad):
        raise CompileError(
            f"{where}: kernel {step_name(step)} left {len(bad)} of {len(values)} elements of {node}{at_line(node)} "
            f"unwritten, or read memory that nothing wrote; the first is element {bad[0]}. This is a bug in plait, "
            f"unless an operand holds a NaN of all ones."
        )
