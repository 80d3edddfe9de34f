"""What is told about a step that ran by itself, eager or compiled: its line, its span, and memory it left unwritten."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from plait.framework import profiler
from plait.framework.buffer import POISON, Buffer
from plait.framework.config import config
from plait.framework.dim import Size, evaluate
from plait.framework.errors import CompileError
from plait.framework.graph import Node, at_line
from plait.jit.kernel import HostCall, Step, step_name, step_node

Sizes = Mapping[str, int]


def ran(step: Step, start: float, seconds: float, sizes: Sizes) -> None:
    """Tell whoever listens that a step ran."""
    node, name = step_node(step), step_name(step)
    shape = _concrete(node.shape if node is not None else (), sizes)
    amounts = (0, 0) if isinstance(step, HostCall) else (step.work_bytes, step.work_flops)
    moved, work = _concrete(amounts, sizes)
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
