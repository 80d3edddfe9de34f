"""A compiled graph's launches one by one: for PLAIT_DEBUG=2 and up, PLAIT_SYNC, PLAIT_POISON and traces."""

from __future__ import annotations

from plait.framework import profiler
from plait.framework.buffer import Buffer
from plait.framework.config import config
from plait.framework.dim import evaluate
from plait.framework.graph import Node
from plait.jit.entry import Frame, call_natively
from plait.jit.kernel import HostCall, Step
from plait.jit.memory import num_bytes
from plait.jit.native import Native
from plait.jit.program import ARENA_TOO_SMALL
from plait.jit.watch import Sizes, ran, refuse_poison


def run_stepwise(
    native: Native, bound_address: int, addresses: list[int], dims: list[int], sizes: Sizes
) -> list[Buffer]:
    """The buffers of the results, one entry into native code per step."""
    began = profiler.clock()
    buffers = [Buffer(evaluate(num_bytes(node), sizes)) for node in native.program.outputs]
    arguments = [*addresses, *(buffer.address for buffer in buffers)]
    frame = native.new_frame()
    frame.set("bound", bound_address)
    try:
        _run_steps(native, frame, arguments, dims, sizes, buffers)
    finally:
        native.frames.pop(frame.address, None)
    profiler.add("graph", native.name, began, profiler.clock() - began, **sizes)
    return buffers


def _run_steps(
    native: Native, frame: Frame, arguments: list[int], dims: list[int], sizes: Sizes, buffers: list[Buffer]
) -> None:
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
        for node, buffer in zip(native.program.outputs, buffers, strict=True):
            if config.poison and node in _results(step):
                refuse_poison(native.name, step, node, buffer)


def _results(step: Step) -> list[Node]:
    return [step.node] if isinstance(step, HostCall) else step.results
