"""Launches remembered for a batch of records of the same structure, shapes and scalars: the eager executor's short cut.

A plan is kept once every group of a batch ran natively. It changes nothing about what runs, only how it is found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from plait.framework.buffer import Buffer
from plait.framework.graph import Node
from plait.jit.kernel import Launch, slot_value
from plait.jit.pool import shared_pool

MAX_PLANS = 1024
Batch = list[Node]  # the leaves in the order of their first use, then the pending records


@dataclass
class Call:
    """One launch: its argument block with holes for addresses, and what it computes."""

    address: int
    extent: int
    grain: int
    slots: list[int]
    holes: list[tuple[int, int]]  # (slot, place in the batch)
    results: list[tuple[int, int]]  # (place in the batch, bytes)

    def run(self, batch: Batch) -> None:
        for place, num_bytes in self.results:
            batch[place].buffer = Buffer(num_bytes)
        slots = self.slots.copy()
        for slot, place in self.holes:
            slots[slot] = batch[place].buffer.address  # type: ignore[union-attr]
        shared_pool().launch(self.address, 0, self.extent, self.grain, *slots)


def structure(nodes: list[Node], held: set[int]) -> tuple[Hashable, Batch]:
    """What a batch's launches depend on, and the batch in the order that plans count in.

    Scalars are part of it: another value finds its launches anew (and the same kernels).
    """
    places: dict[int, int] = {}
    batch: Batch = []
    leaves: list[Hashable] = []
    for node in nodes:
        for src in node.srcs:
            if id(src) not in places and (src.buffer is not None or src.op.family == "leaf"):
                places[id(src)] = len(batch)
                batch.append(src)
                leaves.append((src.shape, src.dtype, None if src.buffer is not None else _exactly(src.attrs)))
    records: list[Hashable] = []
    for node in nodes:
        operands = tuple([places[id(src)] for src in node.srcs])
        records.append((node.op, node.shape, node.dtype, node.attrs, operands, id(node) in held))
        places[id(node)] = len(batch)
        batch.append(node)
    return (tuple(leaves), tuple(records)), batch


def _exactly(attrs: tuple[Hashable, ...]) -> Hashable:
    """A scalar as a key of its bits: 0.0 and -0.0 are equal and give different results, and so are 1, 1.0 and True."""
    value = attrs[0]
    return (type(value), attrs) if value and type(value) is not complex else repr(attrs)


class Plans:
    """The plans of this process, the least recently used dropped first."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Hashable, list[Call]] = OrderedDict()

    def find(self, key: Hashable) -> list[Call] | None:
        try:
            plan = self._plans.get(key)
        except TypeError:  # an attribute that cannot be hashed, such as a slice
            return None
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def keep(self, key: Hashable, batch: Batch, ran: list[tuple[Launch, int]]) -> None:
        """Remember what ran for a batch, unless an attribute of it cannot be hashed."""
        places = {id(node): place for place, node in enumerate(batch)}
        plan = [_call(launch, address, places) for launch, address in ran]
        try:
            self._plans[key] = plan
        except TypeError:
            return
        while len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)


def _call(launch: Launch, address: int, places: dict[int, int]) -> Call:
    slots: list[int] = []
    holes: list[tuple[int, int]] = []
    for kind, value in launch.slots():
        if kind == "operand":
            holes.append((len(slots), places[id(value.node)]))
        slots.append(0 if kind == "operand" else slot_value(kind, value))
    results = [(places[id(node)], int(node.size) * node.dtype.itemsize) for node in launch.results]
    return Call(address, int(launch.extent), launch.grain, slots, holes, results)
