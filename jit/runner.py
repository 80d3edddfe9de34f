"""The eager executor: pending records -> groups -> kernels. Results never depend on when a compile lands.

First sight runs a group record by record, in kernels of one record; what IEEE fixes may run in NumPy. A fused structure
is compiled at its third sight on one background thread, at once where the work exceeds 20 ms.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.framework import profiler
from plait.framework.buffer import Buffer
from plait.framework.config import config
from plait.framework.graph import CONST, Graph, Node
from plait.framework.interpreter import compute, constant, held_outside, own, writable_base
from plait.framework.op import TABLE
from plait.framework.op import Op as Row
from plait.jit import cache
from plait.jit.fuse import Fuser, report_group, single_group
from plait.jit.group import Group
from plait.jit.kernel import Decline, HostCall, Kernel, Launch, slot_value
from plait.jit.lower import lower
from plait.jit.plan import Plans, structure
from plait.jit.pool import shared_pool
from plait.jit.target import host_target
from plait.jit.verify import verify
from plait.jit.view import base_of
from plait.jit.watch import ran, refuse_poison

Array = np.ndarray[Any, Any]
THIRD_SIGHT = 3
AT_ONCE_BYTES = 100 << 20  # work over about 20 ms is compiled for at once
_IEEE = (
    "add sub mul div neg abs sqrt floordiv mod maximum minimum floor ceil trunc round copysign sign reciprocal "
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not bit_and bit_or bit_xor bit_not shl shr "
    "select cast copy isnan isinf isfinite iota reshape expand permute slice as_strided"
)
IEEE_FIXED: set[Row] = {TABLE[name] for name in _IEEE.split() if name in TABLE}


@dataclass
class Counters:
    """What ran, for tests and PLAIT_DEBUG."""

    kernels: int = 0
    host_records: int = 0


@dataclass
class _Entry:
    """One structure: how often it was seen, and its code once it is there."""

    sights: int = 0
    future: Future[int] | None = None
    address: int = 0


class Runner:
    """Executes pending records through kernels, falling back to NumPy where no kernel exists."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._entries: dict[Any, _Entry] = {}
        self._libraries: dict[int, Any] = {}
        self._background: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._plans = Plans()
        self._ran: list[tuple[Launch, int]] = []
        os.register_at_fork(after_in_child=self._after_fork)

    def execute(self, nodes: list[Node], outputs: list[Node]) -> None:
        """Give every node of `outputs` a buffer. `nodes` holds all pending records they need, in program order."""
        held = held_outside(nodes, outputs)
        if config.check:
            verify(nodes, "record")
        key, batch = structure(nodes, held)
        plan = None if config.stepwise else self._plans.find(key)
        if plan is not None:
            for call in plan:
                call.run(batch)
            self.counters.kernels += len(plan)
            return
        held |= {id(base_of(node)) for node in nodes if id(node) in held}
        self._ran, before = [], self.counters.host_records
        if config.debug >= 4:
            print(Graph("eager", [], [], nodes, outputs), file=sys.stderr)
        fused = True
        for group in Fuser(nodes, outputs, lambda node: id(node) in held).groups():
            fused &= self._run_group(group, held)
        if fused and self.counters.host_records == before:
            self._plans.keep(key, batch, self._ran)
        self._ran = []  # a launch holds its operands' memory

    def wait(self) -> None:
        """Wait for every background compile."""
        for entry in list(self._entries.values()):
            if entry.future is not None:
                entry.address = entry.future.result()

    def _run_group(self, group: Group, held: set[int]) -> bool:
        """Run a group; whether it ran as it will from now on, rather than record by record until its code is there."""
        try:
            launch = None if group.nodes[0].op.in_place else lower(group)
            report_group(group, Decline("written_in_place") if launch is None else None)
        except Decline as decline:
            launch = None
            report_group(group, decline)
        if launch is not None and (address := self._code(group, launch)):
            self._launch(launch, address)
            return True
        if len(group.nodes) == 1:
            self._host(group.nodes[0], held)
        else:
            for node in sorted(group.nodes, key=lambda node: node.seq):
                self._run_group(single_group(node), held)
        return launch is None

    def _code(self, group: Group, launch: Launch) -> int:
        """The address of the group's kernel, or 0 while it should run record by record."""
        entry = self._entries.setdefault(launch.kernel.key, _Entry())
        if entry.address:
            return entry.address
        entry.sights += 1
        if entry.future is not None:
            entry.address = entry.future.result() if entry.future.done() else 0
            return entry.address
        single = len(group.nodes) == 1
        size = launch.work_bytes
        if (isinstance(size, int) and size > AT_ONCE_BYTES) or (single and group.nodes[0].op not in IEEE_FIXED):
            entry.address = self._compile(launch.kernel)
        elif entry.sights >= THIRD_SIGHT:
            entry.future = self._executor().submit(self._compile, launch.kernel)
        return entry.address

    def _compile(self, kernel: Kernel) -> int:
        target = host_target()
        library = cache.get(kernel.name, kernel.emit(target, kernel.symbol), target)
        address: int = library.symbol(kernel.symbol)
        with self._lock:
            self._libraries[address] = library
        return address

    def _executor(self) -> ThreadPoolExecutor:
        if self._background is None:
            self._background = ThreadPoolExecutor(1, thread_name_prefix="plait-compile")
        return self._background

    def _after_fork(self) -> None:
        """The child has no compile thread; what was under way is compiled again."""
        self._background = None
        self._lock = threading.Lock()
        for entry in self._entries.values():
            if entry.future is not None and not entry.address:
                entry.future, entry.sights = None, 0

    def _launch(self, launch: Launch, address: int) -> None:
        for node in launch.results:
            node.buffer = Buffer(int(node.size) * node.dtype.itemsize)
        slots = [slot_value(kind, value) for kind, value in launch.slots()]
        start = profiler.clock() if config.stepwise else 0.0
        shared_pool().launch(address, 0, launch.extent, launch.grain, *slots)
        self.counters.kernels += 1
        self._ran.append((launch, address))
        if config.stepwise:
            ran(launch, start, profiler.clock() - start, {})
        if config.poison:
            _refuse_unwritten(launch)

    def _host(self, node: Node, held: set[int]) -> None:
        """One record by its NumPy meaning."""
        operands = [self._array(src) for src in node.srcs]
        if node.op.in_place:
            operands[0] = writable_base(node.srcs[0], operands[0], held)
        start = profiler.clock() if config.stepwise else 0.0
        node.buffer = own(node, compute(node, operands, {}))
        self.counters.host_records += 1
        if config.stepwise:
            ran(HostCall(node, "eager"), start, profiler.clock() - start, {})

    def _array(self, node: Node) -> Array:
        """The value of a realised node, or of a view over one."""
        if node.buffer is not None or node.op is CONST:
            return constant(node)
        source = node.srcs[0]
        return compute(node, [self._array(source)], {})


def _refuse_unwritten(launch: Launch) -> None:
    """Under PLAIT_POISON: a result that shows the poison is none."""
    for node in launch.results:
        buffer, node.buffer = node.buffer, None
        assert buffer is not None
        refuse_poison("realize", launch, node, buffer)
        node.buffer = buffer


runner = Runner()
