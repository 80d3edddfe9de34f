"""The verifier accepts what passes make and names what they must not make."""

from __future__ import annotations

import pytest

import plait as pl
from plait.framework.config import override
from plait.framework.errors import CompileError
from plait.framework.graph import Node
from plait.framework.ops.elementwise import ADD, EXP
from plait.jit.layout import TensorLayout
from plait.jit.stage import stage
from plait.jit.verify import verify, verify_graph


def test_traced_and_eager_programs_pass_under_check() -> None:
    with override(check=1):
        x = pl.arange(12, dtype="float32").reshape(3, 4)
        assert pl.softmax(x.T[::-1]).sum().item() == pytest.approx(4)
        double = pl.compile(lambda x: pl.rms_norm(x, x[0]) * 2)(TensorLayout("float32", ("T", 4)))
        assert double(pl.ones((2, 4))).shape == (2, 4)


def test_a_record_of_another_type_than_its_row_infers_is_named() -> None:
    x = pl.ones((3,)).node()
    wrong = Node(EXP, (x,), (), (4,), pl.float32)
    with pytest.raises(CompileError, match=r"some pass: exp\[4\].*float32\(3,\)"):
        verify([wrong], "some pass", [x])


def test_a_dropped_operand_is_named() -> None:
    staged = stage(lambda x: pl.exp(x) + 1)(TensorLayout("float32", ("T",)))
    staged.graph.nodes = [node for node in staged.graph.nodes if node.op is ADD]
    with pytest.raises(CompileError, match="simplify: add.*reads exp.*not computed before"):
        verify_graph(staged.graph, "simplify")
