"""Common subexpressions and dead records: fewer records, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import plait as pl
from plait.framework import functional as F
from plait.jit.layout import TensorLayout
from plait.jit.rewrite import simplify
from plait.jit.stage import stage


def test_equal_records_become_one() -> None:
    staged = stage(lambda x: F.exp(x * 2) + F.exp(x * 2))(TensorLayout("float32", ("T",)))
    names = [node.op.name for node in simplify(staged.graph).nodes]
    assert sorted(names) == ["add", "exp", "mul"]


def test_scalars_of_another_value_or_type_stay_apart() -> None:
    staged = stage(lambda x: x * 1.0 + x * 2.0 + x * -0.0 + x * 0.0)(TensorLayout("float32", ("T",)))
    assert [node.op.name for node in simplify(staged.graph).nodes].count("mul") == 4


def test_equal_results_keep_their_own_memory() -> None:
    double = pl.compile(lambda x: (x * 2, x * 2))(TensorLayout("float32", ("T",)))
    first, second = double(pl.ones((3,)))
    first[0] = 9
    assert second.numpy().tolist() == [2.0, 2.0, 2.0]


def test_reads_around_a_write_are_not_merged() -> None:
    def step(buffer: pl.Tensor) -> tuple[pl.Tensor, pl.Tensor]:
        before = buffer.sum()
        buffer[0] = 5.0
        return before, buffer.sum()

    buffer = pl.zeros((4,)).realize()
    before, after = pl.compile(step)(pl.BufferLayout("float32", (4,)))(buffer)
    assert (before.item(), after.item()) == (0.0, 5.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_expression_equals_eager(seed: int) -> None:
    draws = np.random.default_rng(seed)

    def build(x: pl.Tensor) -> pl.Tensor:
        values = [x, x + 1, F.softmax(x)]
        choose = np.random.default_rng(seed)
        for _ in range(20):
            a, b = (values[int(choose.integers(len(values)))] for _ in range(2))
            values.append([a * b, a - b, F.maximum(a, b), F.tanh(a)][int(choose.integers(4))])
        return values[-1] + values[-2]

    x = draws.standard_normal((3, 7)).astype(np.float32)
    compiled = pl.compile(build)(TensorLayout("float32", ("T", 7)))
    np.testing.assert_array_equal(compiled(pl.asarray(x)).numpy(), build(pl.asarray(x)).numpy())
