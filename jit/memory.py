"""The memory plan of a compiled graph: which values share memory, by liveness over its steps. Sizes stay symbolic.

A value is a node and its in-place versions. A slot is memory for values whose lifetimes do not overlap; it is as large
as the largest of them, which only the call knows. Slots stand one behind the other in the call's arena.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from plait.framework.dim import Size, evaluate, symbols_of
from plait.framework.errors import CompileError
from plait.framework.graph import Node
from plait.jit.kernel import HostCall, Launch, Step
from plait.jit.view import base_of

ALIGN = 64
_GUESSES = (1, 16, 512)  # what every symbol is taken to be when slots are compared


@dataclass(eq=False)
class Slot:
    """Memory for one value at a time."""

    sizes: list[Size] = field(default_factory=list)  # distinct, in bytes
    free_after: int = -1  # the last step that uses its tenant

    def bytes(self, values: Mapping[str, int]) -> int:
        return max(evaluate(size, values) for size in self.sizes)


@dataclass(eq=False)
class MemoryPlan:
    """`slot_of` gives each temporary value its slot, by the id of its owner."""

    slots: list[Slot]
    slot_of: dict[int, int]
    lifetimes: dict[int, tuple[int, int]]
    owners: dict[int, Node]

    def offsets(self, values: Mapping[str, int]) -> list[int]:
        """Where the slots start, and behind the last one the size of the arena: what the native entry computes."""
        starts = [0]
        for slot in self.slots:
            starts.append(starts[-1] + -(-slot.bytes(values) // ALIGN) * ALIGN)
        return starts


def owner(node: Node) -> Node:
    """The node whose memory a value lives in: through views, and through in-place records to the first version."""
    while node.op.family != "leaf" and node.buffer is None:
        base = base_of(node)
        if base is node and not node.op.in_place:
            return node
        node = base if base is not node else node.srcs[0]
    return node


def num_bytes(node: Node) -> Size:
    size: Size = node.size * node.dtype.itemsize
    return size


def reads(step: Step) -> list[Node]:
    """The nodes whose memory a step touches, results included."""
    if isinstance(step, HostCall):
        return [*step.node.srcs, step.node]
    return [*(value.node for kind, value in step.slots() if kind == "operand"), *step.results]


def results(step: Step) -> list[Node]:
    return [step.node] if isinstance(step, HostCall) else step.results


def lifetimes(steps: Sequence[Step]) -> tuple[dict[int, tuple[int, int]], dict[int, Node]]:
    """First and last step of every value that a step computes, by the id of its owner; and the owners."""
    spans: dict[int, tuple[int, int]] = {}
    owners: dict[int, Node] = {}
    for position, step in enumerate(steps):
        for node in results(step):
            value = owner(node)
            if value.op.family != "leaf" and value.buffer is None and id(value) not in spans:
                spans[id(value)], owners[id(value)] = (position, position), value
        for node in reads(step):
            value = owner(node)
            if id(value) in spans:
                spans[id(value)] = spans[id(value)][0], position
            elif value.op.family != "leaf" and value.buffer is None:
                raise CompileError(f"memory: step {position} reads {value}, which no earlier step computes.")
    return spans, owners


def plan(steps: Sequence[Step], outputs: Iterable[Node]) -> MemoryPlan:
    """Give every value that is neither leaf nor output a slot."""
    check_order(steps)
    spans, owners = lifetimes(steps)
    kept = {id(owner(node)) for node in outputs}
    slots: list[Slot] = []
    slot_of: dict[int, int] = {}
    for key, (birth, death) in sorted(spans.items(), key=lambda item: item[1][0]):
        if key in kept:
            continue
        size = num_bytes(owners[key])
        chosen = _best(slots, size, birth)
        if chosen is None:
            chosen = len(slots)
            slots.append(Slot())
        slot_of[key] = chosen
        slot = slots[chosen]
        slot.free_after = death
        if size not in slot.sizes:
            slot.sizes.append(size)
    return MemoryPlan(slots, slot_of, spans, owners)


def _best(slots: list[Slot], size: Size, birth: int) -> int | None:
    """The free slot that grows least and, of those, wastes least; None when there is none."""
    free = [index for index, slot in enumerate(slots) if slot.free_after < birth]
    return min(free, key=lambda index: _fit(slots[index], size), default=None)


def _fit(slot: Slot, size: Size) -> tuple[float, float]:
    growth = waste = 0.0
    for guess in _GUESSES:
        have = max(_guess(other, guess) for other in slot.sizes)
        need = _guess(size, guess)
        growth += max(0, need - have) / guess
        waste += max(0, have - need) / guess
    return growth, waste


@cache
def _guess(size: Size, value: int) -> int:
    return evaluate(size, dict.fromkeys(symbols_of(size), value))


def check_order(steps: Sequence[Step]) -> None:
    """Raise CompileError when a step reads a version that an earlier step has overwritten."""
    overwritten: dict[int, int] = {}
    for position, step in enumerate(steps):
        for node in reads(step):
            base = base_of(node)
            if id(base) in overwritten and not _is_base_of_own(base, results(step)):
                name = step.kernel.name if isinstance(step, Launch) else step.node.op.name
                writer = overwritten[id(base)]
                raise CompileError(f"memory: step {position} ({name}) reads {base} after step {writer} wrote over it.")
        for node in results(step):
            if node.op.in_place:
                overwritten[id(base_of(node.srcs[0]))] = position


def _is_base_of_own(base: Node, made: Sequence[Node]) -> bool:
    """Whether an operand is only the memory that this step's own in-place result names."""
    return any(node.op.in_place and owner(node) is owner(base) for node in made)
