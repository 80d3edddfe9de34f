"""Grouping by named rules; refusals name their reason."""

from __future__ import annotations

import pathlib
import re

import pytest

import plait as pl
from plait.framework import functional as F
from plait.framework.dim import symbol
from plait.framework.graph import Node, input_node, pending, weight_node
from plait.framework.tensor import Tensor
from plait.jit.fuse import Fuser, schedule
from plait.jit.group import Group
from plait.jit.kernel import Launch

T = symbol("T")


def _input(index: int, *shape: object, dtype: str = "float32") -> Tensor:
    return Tensor._of(input_node(index, f"x{index}", False, shape, pl.framework.dtype.as_dtype(dtype)))


def _groups(*results: Tensor) -> list[Group]:
    outputs = [result.node() for result in results]
    return Fuser(pending(outputs), outputs, lambda node: False).groups()


def _launches(*results: Tensor) -> list[str]:
    outputs = [result.node() for result in results]
    steps = schedule(pending(outputs), outputs)
    assert all(isinstance(step, Launch) for step in steps), steps
    return [step.kernel.name for step in steps if isinstance(step, Launch)]


def test_a_residual_joins_its_product() -> None:
    x, w, r = _input(0, T, 64), _input(1, 64, 32), _input(2, T, 32)
    assert _launches(F.matmul(x, w) + r) == ["matmul_add"]


def test_two_products_of_one_activation_meet_in_one_kernel() -> None:
    x = _input(0, T, 64)
    gate, up = (Tensor._of(weight_node(name, (96, 40), pl.uint8)) for name in ("gate", "up"))
    result = F.silu(F.qmatmul(x, gate, "q4_1")) * F.qmatmul(x, up, "q4_1")
    (name,) = _launches(result)
    assert name.startswith("qmatmul_q4_1_x2")


def test_norm_and_quantisation_are_one_launch_over_rows() -> None:
    x, w = _input(0, T, 64), _input(1, 64)
    assert len(_launches(F.quantize_rows(F.rms_norm(x, w, 1e-5)))) == 1


def test_several_readers_in_several_groups_are_refused_by_name() -> None:
    x = _input(0, T, 64)
    shared = x * 2
    groups = _groups(shared.sum(0), shared.sum(1) * 3)
    assert any("several_groups" in refusal for group in groups for refusal in group.refusals)


def test_a_read_does_not_pass_a_later_write() -> None:
    node = input_node(0, "buffer", True, (8,), pl.float32)
    buffer = Tensor._of(node)
    before = buffer * 2
    buffer[...] = 1.0
    result = before + 3
    outputs = [result.node(), buffer.node()]
    groups = Fuser(pending(outputs), outputs, lambda node: False).groups()
    (add,) = [group for group in groups if any(member.op.name == "add" for member in group.nodes)]
    assert add.refusals == ["mul: reads_before_a_write"]


def test_a_kernel_holds_at_most_32_records() -> None:
    x = _input(0, T)
    for _ in range(80):
        x = x * 1.5 + 1.0
    assert all(len(group.nodes) <= 32 for group in _groups(x))


def test_no_file_of_the_jit_names_a_model() -> None:
    root = pathlib.Path(pl.__file__).parent / "jit"
    names = re.compile(r"llama|smollm|gemma|qwen|mistral|bert|gpt|phi-?3", re.IGNORECASE)
    found = [
        f"{path.name}: {line}"
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if names.search(line)
    ]
    assert not found


def test_nothing_outside_the_jit_launches_a_kernel() -> None:
    root = pathlib.Path(pl.__file__).parent
    forbidden = re.compile(r"shared_pool\(\)|\.launch\(|run_address|jit\.(pool|trampoline|cache|kernels)")
    allowed = {"doctor.py", "cli.py"}
    found = [
        f"{folder}/{path.name}: {line.strip()}"
        for folder in ("framework", "nn", "pipelines", "serve")
        for path in (root / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if forbidden.search(line) and path.name not in allowed
    ]
    assert not found


@pytest.mark.parametrize("depth", [1, 40])
def test_every_record_is_in_exactly_one_group(depth: int) -> None:
    x, w = _input(0, T, 64), _input(1, 64)
    for _ in range(depth):
        x = F.rms_norm(x, w, 1e-5) + x
    groups = _groups(x)
    members = [id(node) for group in groups for node in group.nodes]
    assert len(members) == len(set(members))
    nodes: list[Node] = [node for group in groups for node in group.nodes]
    assert all(node.op.family != "movement" for node in nodes)
