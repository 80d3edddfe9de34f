"""The column skeleton against the rows' NumPy meaning: leading and middle axes, with records fused around them."""

from __future__ import annotations

import numpy as np
import pytest

from plait.framework.dim import symbol
from plait.framework.dtype import float32
from plait.framework.graph import Node, input_node
from plait.jit.compile_ir import compile_ir
from plait.jit.kernel import Launch
from plait.jit.kernels.column import lower_column
from plait.jit.kernels.skeletons import lower_group
from plait.jit.target import virtual
from tests.jit.launching import Array, assert_within, expected, leaf, op, pending_of, run, scalar

REDUCTIONS = ["sum", "prod", "max", "min", "argmax", "argmin"]


def positive(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return rng.uniform(0.9, 1.1, shape).astype(dtype)
    return rng.integers(0, 7, shape).astype(dtype)


def check(*outputs: Node, ulp: float = 64.0) -> Launch:
    launch = lower_group("column", outputs, pending_of(*outputs))
    for node, found in zip(outputs, run(launch, cuts=(0.5,)), strict=True):
        assert_within(found, expected(node), ulp)
    return launch


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint32", "int64"])
def test_leading_and_middle_axes(name: str, dtype: str) -> None:
    for cols in (2, 16, 150, 300):
        x = leaf(positive((3, 20, cols), dtype, seed=cols))
        for axes in ((0,), (1,), (0, 1)):
            if len(axes) == 1 or not name.startswith("arg"):
                launch = check(op(name, x, attrs=(axes, axes == (1,))))
                assert launch.kernel.key[0] == "column"


@pytest.mark.parametrize("name", REDUCTIONS)
def test_empty_axes_and_zero_sizes(name: str) -> None:
    check(op(name, leaf(np.zeros((0, 5), np.float32)), attrs=((0,), False)))
    check(op(name, leaf(np.zeros((4, 0), np.float32)), attrs=((0,), False)))
    check(op(name, leaf(np.zeros((2, 0, 3), np.int16)), attrs=((1,), True)))


@pytest.mark.parametrize("name", ["max", "argmin"])
def test_nan_and_ties(name: str) -> None:
    table = np.zeros((9, 4), np.float32)
    table[[3, 6], 0] = np.nan
    table[[8, 2], 1] = 4
    table[[7, 5], 2] = -4
    check(op(name, leaf(table), attrs=((0,), False)), ulp=0)


@pytest.mark.parametrize("name", ["any", "all"])
def test_booleans(name: str) -> None:
    check(op(name, leaf(np.array([[0, 1, 1], [0, 0, 1]], bool)), attrs=((0,), False)))


def test_producers_and_followers_in_one_kernel() -> None:
    x, w = leaf(positive((40, 70))), leaf(positive((70,)))
    total = op("sum", op("mul", op("exp", x), w), attrs=((0,), False))
    launch = check(op("mul", total, scalar(0.025, "float32")))
    assert launch.kernel.name == "exp_mul_sum_mul"


def test_softmax_over_a_middle_axis_is_one_kernel() -> None:
    x = leaf(np.random.default_rng(0).standard_normal((2, 30, 40)).astype(np.float32))
    weights = op("exp", op("sub", x, op("max", x, attrs=((1,), True))))
    launch = check(op("div", weights, op("sum", weights, attrs=((1,), True))))
    assert len(launch.kernel.key[1].stash) == 1


def test_any_layout() -> None:
    axes = ((0,), False)
    check(op("sum", op("permute", leaf(positive((37, 20))), attrs=((1, 0),)), attrs=axes))
    check(op("max", op("slice", leaf(positive((9, 80))), attrs=(((8, -2), (70, -3)), (4, 20))), attrs=axes))
    check(op("sum", op("expand", leaf(positive((20,))), attrs=((4, 20),)), attrs=axes))
    check(op("sum", op("permute", leaf(positive((4, 5, 6, 7))), attrs=((2, 0, 3, 1),)), attrs=((0, 2), False)))


def test_long_float_sums_stay_accurate() -> None:
    array = np.random.default_rng(1).uniform(0, 1, (20000, 3)).astype(np.float32)
    y = op("sum", leaf(array), attrs=((0,), False))
    (found,) = run(lower_column([y], [y]))
    np.testing.assert_allclose(found, array.sum(0, dtype=np.float64), rtol=2e-6)


def test_fusion_keeps_every_bit() -> None:
    x = leaf(np.random.default_rng(3).standard_normal((600, 50)).astype(np.float32))
    square = op("mul", x, x)
    fused = op("sum", square, attrs=((0,), False))
    alone = op("sum", leaf(expected(square)), attrs=((0,), False))
    assert np.array_equal(run(lower_column([fused], pending_of(fused)))[0], run(lower_column([alone], [alone]))[0])


def test_symbolic_rows_share_the_kernel() -> None:
    x = input_node(0, "x", False, (symbol("T"), 48), float32)
    y = op("sum", x, attrs=((0,), False))
    launch = lower_column([y], [y])
    array = positive((7, 48))
    (found,) = run(launch, {"T": 7}, {id(x): array})
    np.testing.assert_allclose(found, array.sum(0), rtol=1e-6)
    concrete = op("sum", leaf(array), attrs=((0,), False))
    assert lower_column([concrete], [concrete]).kernel == launch.kernel


@pytest.mark.parametrize("march", ["haswell", "x86-64-v2", "neoverse-n1"])
def test_the_text_compiles_for_other_machines(march: str) -> None:
    target = virtual(march)
    for name in ("sum", "argmax", "max"):
        y = op(name, leaf(positive((4, 40))), attrs=((0,), False))
        kernel = lower_column([y], [y]).kernel
        assert compile_ir(kernel.name, kernel.emit(target, kernel.symbol), target)
