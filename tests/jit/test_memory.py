"""The memory plan: no two values that live at once overlap, whatever the symbols turn out to be."""

from __future__ import annotations

import random
from typing import Any

import pytest

from plait.framework.dim import Size, ceil_div, evaluate, symbol
from plait.framework.dtype import float32, int32, uint8
from plait.framework.errors import CompileError
from plait.framework.graph import Node, input_node
from plait.framework.op import TABLE
from plait.jit.kernel import HostCall, Kernel, Launch, Operand
from plait.jit.memory import ALIGN, MemoryPlan, num_bytes, owner, plan

T, S = symbol("T"), symbol("S")
SIZES: list[Size] = [T, S, T * 576, T * S, S + 1, ceil_div(T, 32) * 40, 7, 4096]


def launch(operands: list[Node], made: list[Node]) -> Launch:
    kernel = Kernel("none", ("none",), lambda target, name: "")
    return Launch(kernel, [Operand(node) for node in [*operands, *made]], made, [], [], 1, 1)


def value(size: Size, *srcs: Node, dtype: Any = float32) -> Node:
    return Node(TABLE["add"], srcs, (), (size,), dtype)


def random_program(rng: random.Random) -> tuple[list[Any], list[Node]]:
    """Steps that each read some earlier values and make one or two, a few of them in place."""
    argument = input_node(0, "x", False, (T,), float32)
    known: list[Node] = [argument]
    newest: dict[int, Node] = {}
    steps: list[Any] = []
    for _ in range(rng.randrange(2, 30)):
        reads = [rng.choice(known[-6:]) for _ in range(rng.randrange(1, 4))]
        reads = [newest.get(id(owner(node)), node) for node in reads]
        base = reads[0]
        if rng.random() < 0.2 and base is not argument:
            made = [Node(TABLE["write"], (base, *reads[1:]), (0, (1,), (1,)), base.shape, base.dtype)]
            newest[id(owner(base))] = made[0]
        else:
            dtype = rng.choice([float32, int32, uint8])
            made = [value(rng.choice(SIZES), *reads, dtype=dtype) for _ in range(rng.randrange(1, 3))]
        known += made
        steps.append(HostCall(made[0], "test") if len(made) == 1 and rng.random() < 0.3 else launch(reads, made))
    outputs = [
        node for node in rng.sample(known[1:], min(2, len(known) - 1)) if newest.get(id(owner(node)), node) is node
    ]
    return steps, outputs


def spans(steps: list[Any]) -> dict[int, tuple[int, int]]:
    """First and last touch of every owner, found by brute force."""
    found: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(steps):
        touched = [*step.node.srcs, step.node] if isinstance(step, HostCall) else [o.node for o in step.operands]
        for node in touched:
            first, _ = found.get(id(owner(node)), (position, position))
            found[id(owner(node))] = first, position
    return found


def places(made: MemoryPlan, sizes: dict[str, int]) -> dict[int, tuple[int, int]]:
    """First and last byte of every temporary value."""
    starts = made.offsets(sizes)
    return {
        key: (starts[slot], starts[slot] + evaluate(num_bytes(made.owners[key]), sizes))
        for key, slot in made.slot_of.items()
    }


@pytest.mark.parametrize("seed", range(60))
def test_values_that_live_at_once_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    steps, outputs = random_program(rng)
    made, living = plan(steps, outputs), spans(steps)
    for _ in range(4):
        sizes = {"T": rng.choice([0, 1, 2, 31, 513]), "S": rng.choice([0, 1, 3, 64])}
        where = places(made, sizes)
        assert all(start % ALIGN == 0 for start, _ in where.values())
        assert all(end <= made.offsets(sizes)[-1] for _, end in where.values())
        for a in where:
            for b in where:
                at_once = living[a][0] <= living[b][1] and living[b][0] <= living[a][1]
                apart = where[a][1] <= where[b][0] or where[b][1] <= where[a][0]
                assert a == b or not at_once or apart


@pytest.mark.parametrize("seed", range(20))
def test_results_have_no_slot(seed: int) -> None:
    steps, outputs = random_program(random.Random(seed))
    assert not {id(owner(node)) for node in outputs} & plan(steps, outputs).slot_of.keys()


def test_a_long_chain_needs_two_slots() -> None:
    node = input_node(0, "x", False, (T,), float32)
    steps = []
    for _ in range(50):
        following = value(T, node)
        steps.append(launch([node], [following]))
        node = following
    made = plan(steps, [node])
    assert len(made.slots) == 2
    assert made.offsets({"T": 1000})[-1] == 2 * (4000 + 32)


def test_an_in_place_version_shares_its_slot_and_extends_its_life() -> None:
    x = input_node(0, "x", False, (T,), float32)
    base = value(T, x)
    written = Node(TABLE["write"], (base, x), (0, (1,), (1,)), base.shape, float32)
    other = value(T, x)
    last = value(T, written, other)
    steps = [launch([x], [base]), launch([x, base], [written]), launch([x], [other]), launch([written, other], [last])]
    made = plan(steps, [last])
    assert set(made.slot_of) == {id(base), id(other)}
    assert made.slot_of[id(base)] != made.slot_of[id(other)]


def test_reading_a_version_after_it_was_overwritten_is_refused() -> None:
    x = input_node(0, "x", False, (T,), float32)
    base = value(T, x)
    written = Node(TABLE["write"], (base, x), (0, (1,), (1,)), base.shape, float32)
    late = value(T, base)
    with pytest.raises(CompileError, match="after step 1 wrote over it"):
        plan([launch([x], [base]), launch([x, base], [written]), launch([base], [late])], [late])


def test_a_read_before_its_value_is_made_is_refused() -> None:
    missing = value(T)
    with pytest.raises(CompileError, match="no earlier step computes"):
        plan([launch([missing], [value(T, missing)])], [])
