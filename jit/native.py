"""The native side of one compiled graph: its code, its frames, and tensors made over what it computed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from plait.framework.buffer import Buffer
from plait.framework.config import config
from plait.framework.errors import CompileError
from plait.framework.graph import BUFFER, Node, at_line
from plait.framework.tensor import Tensor
from plait.jit import cache
from plait.jit.compile_ir import Library, load_objects
from plait.jit.entry import Frame, Gate, entry_function
from plait.jit.fuse import schedule
from plait.jit.host_calls import HostCalls
from plait.jit.kernel import HostCall, Step, step_name, step_node
from plait.jit.program import ARENA_TOO_SMALL, DIVISION_BY_ZERO, Program, build, emit
from plait.jit.rewrite import simplify
from plait.jit.stage import StagedGraph
from plait.jit.target import host_target
from plait.jit.verify import verify_graph

_ENTRY = "plait_entry"
Progress = Callable[[int, int], None]


class _Wrapped(Tensor):
    """A tensor made without a builtin call; it turns into a plain Tensor at once."""

    __slots__ = ()
    __new__ = object.__new__  # type: ignore[assignment]


class _Value(Node):
    """A realised record made without a builtin call. It has no place in program order: it is never pending."""

    __slots__ = ()

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> None:
        self.op, self.srcs, self.attrs = BUFFER, (), ()
        self.shape, self.dtype, self.buffer = shape, dtype, buffer
        self.depth = self.seq = 0


class _Memory(Buffer):
    """Memory that native code made for one result."""

    __slots__ = ()

    def __init__(self, block: Any, address: int, num_bytes: int) -> None:
        self._size_class = 0
        self._block = block
        self.address, self.num_bytes, self.writable = address, num_bytes, True


def wrap(block: Any, address: int, num_bytes: int, shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A tensor over memory that only it holds."""
    tensor: Tensor = _Wrapped()
    tensor.__class__ = Tensor
    tensor._node = _Value(_Memory(block, address, num_bytes), shape, dtype)
    tensor._storage = tensor._parent = None
    tensor.shape, tensor.dtype = shape, dtype
    return tensor


class Native:
    """The code of one staged graph: its steps, its memory plan, its library and its free frames."""

    def __init__(self, staged: StagedGraph, strict: bool, progress: Progress | None = None) -> None:
        graph = simplify(staged.graph)
        if config.check:
            verify_graph(staged.graph, "trace")
            verify_graph(graph, "simplify")
        staged = replace(staged, graph=graph)
        if config.debug >= 4:
            print(graph, file=sys.stderr)
        wanted = [*graph.outputs, *(version for _, version in graph.stores)]
        self.steps: list[Step] = schedule(graph.nodes, wanted)
        if strict:
            refuse_host_calls(graph.name, self.steps)
        self.program: Program = build(staged, self.steps)
        self.library = _link(graph.name, self.program, progress)
        self.entry = self.library.symbol(_ENTRY)
        self.num_results = len(self.program.outputs)
        self.gate = Gate(self.entry, len(graph.inputs), self.num_results, len(staged.symbols), len(self.steps))
        self.host_calls = HostCalls(self.program)
        self.frames: dict[int, Frame] = {}
        self.name = graph.name
        _live.add(self)

    def new_frame(self) -> Frame:
        frame = Frame(self.gate.num_words, self.host_calls.address)
        self.frames[frame.address] = frame
        return frame

    def retry(self, answer: int, *vector: int) -> Any:
        """Go on after `enter` gave no results: find a frame, grow its arena, or raise."""
        while not isinstance(answer, tuple):
            frame = self.frames[answer] if answer else self.new_frame()
            if answer:
                self.mend(frame)
            answer = entry_function()(self.gate.address, frame.address, *vector)
        return answer

    def mend(self, frame: Frame) -> None:
        status = frame["status"]
        if status == ARENA_TOO_SMALL:
            frame.grow(frame["needed"])
            return
        del self.frames[frame.address]
        if status == DIVISION_BY_ZERO:
            raise CompileError(f"{self.name}: a size of the graph divides by a size that is 0 in this call.")
        step = self.steps[frame["failed"]]
        where = f"step {frame['failed']} ({step_name(step).removeprefix('host:')})"
        node = step_node(step)
        line = at_line(node) if node is not None else ""
        raise CompileError(f"{self.name}: {where} failed{line}.") from self.host_calls.take_error()

    def forget_frames(self) -> None:
        """After a fork: what ran elsewhere does not run here."""
        self.gate.forget_frames()
        self.frames = {}


_live: WeakSet[Native] = WeakSet()


def _after_fork_in_child() -> None:
    for native in list(_live):
        native.forget_frames()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def refuse_host_calls(name: str, steps: list[Step]) -> None:
    """Raise CompileError when a step is no kernel."""
    calls = [f"{step.node}{at_line(step.node)} ({step.reason})" for step in steps if isinstance(step, HostCall)]
    if calls:
        raise CompileError(f"compile: {name} needs host calls and strict=True refuses them: {', '.join(calls)}.")


def _link(name: str, program: Program, progress: Progress | None) -> Library:
    """Every distinct kernel's object and the entry's, in one library."""
    target = host_target()
    objects = []
    total = len(program.kernels) + 1
    for number, (symbol, kernel) in enumerate(program.kernels.items()):
        objects.append(cache.get_object(kernel.name, kernel.emit(target, symbol), target))
        if progress is not None:
            progress(number + 1, total)
    entry = cache.get_object(f"graph {name}", emit(program, target, _ENTRY), target)
    library = load_objects([entry, *objects], [_ENTRY])
    if progress is not None:
        progress(total, total)
    return library
