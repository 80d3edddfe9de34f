"""When records run: the one seam between what to compute and who computes it."""

from __future__ import annotations

import threading
from typing import Protocol

from plait.framework import profiler
from plait.framework.config import config
from plait.framework.graph import SYMBOLIC, Node, at_line, pending
from plait.framework.interpreter import Interpreter

MAX_DEPTH = 256  # a chain of so many pending records is run: long loops stay flat in memory


class Executor(Protocol):
    """Whoever can give pending records their buffers."""

    def execute(self, nodes: list[Node], outputs: list[Node]) -> None:
        """Give every node of `outputs` a buffer; `nodes` are all pending records they need, in program order."""


_interpreter = Interpreter()
_installed: Executor = _interpreter
_lock = threading.RLock()


def install_executor(executor: Executor) -> None:
    """Let another executor run records from now on."""
    global _installed
    _installed = executor


def realize_nodes(outputs: list[Node]) -> None:
    """Give every output a buffer; then drop its operands, so that memory follows the last reader.

    Raises: TypeError when an output depends on an argument of a function that is being traced.
    """
    wanted = [node for node in outputs if node.buffer is None]
    if not wanted:
        return
    for node in wanted:
        if node.depth >= SYMBOLIC:
            raise TypeError(
                f"realize: {node}{at_line(node)} has no value while its function is traced; move the code that "
                f"needs the number (print, item, bool, numpy) out of the traced function."
            )
    with _lock:
        wanted = [node for node in wanted if node.buffer is None]
        nodes = pending(wanted)
        executor = _installed if config.jit and not config.nan else _interpreter
        if config.measured:
            _measured(executor, nodes, wanted)
        else:
            executor.execute(nodes, wanted)
        for node in nodes:
            if node.buffer is not None:
                node.srcs = ()
                node.depth = 0


def _measured(executor: Executor, nodes: list[Node], outputs: list[Node]) -> None:
    """The same, as a span of the running trace."""
    start = profiler.clock()
    executor.execute(nodes, outputs)
    profiler.add("realize", "realize", start, profiler.clock() - start, records=len(nodes), results=len(outputs))
