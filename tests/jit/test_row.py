"""The row skeleton against the rows' NumPy meaning; reductions keep their bits whatever is fused around them."""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import pytest

from plait.framework.dim import symbol
from plait.framework.dtype import DTYPES, float32
from plait.framework.graph import Node, input_node
from plait.jit.compile_ir import compile_ir
from plait.jit.kernel import Decline, Launch
from plait.jit.kernels.column import lower_column
from plait.jit.kernels.row import lower_row
from plait.jit.kernels.skeletons import Lowering
from plait.jit.kernels.split import lower_split_rows
from plait.jit.target import virtual
from tests.jit.launching import Array, assert_within, expected, leaf, op, pending_of, run, scalar

REDUCTIONS = ["sum", "prod", "max", "min", "argmax", "argmin"]
NUMERIC = [name for name in DTYPES if DTYPES[name].kind in "iuf" and name not in ("float16", "bfloat16")]
LAST = ((1,), True)


def positive(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    """Numbers whose sums lose nothing to cancellation and whose products stay finite."""
    rng = np.random.default_rng(seed)
    if DTYPES[dtype].kind == "f":
        return rng.uniform(0.9, 1.1, shape).astype(dtype)
    return rng.integers(0, 7, shape).astype(dtype)


def check(*outputs: Node, ulp: float = 64.0) -> Launch:
    launch = lower_row(outputs, pending_of(*outputs))
    for node, found in zip(outputs, run(launch, cuts=(0.4, 0.7)), strict=True):
        assert_within(found, expected(node), ulp)
    return launch


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", NUMERIC)
def test_every_reduction_of_every_dtype(name: str, dtype: str) -> None:
    for cols in (1, 5, 16, 37):
        x = leaf(positive((3, cols), dtype, seed=cols))
        for keepdims in (True, False):
            check(op(name, x, attrs=((1,), keepdims)))


@pytest.mark.parametrize("name", ["any", "all", "max", "min", "argmax"])
def test_booleans(name: str) -> None:
    rows = np.array([[0, 0, 0], [0, 1, 0], [1, 1, 1]], bool)
    check(op(name, leaf(rows), attrs=((1,), False)))
    check(op(name, leaf(np.zeros((2, 0), bool)), attrs=((1,), False)))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int16", "uint64"])
def test_identities_of_empty_rows(name: str, dtype: str) -> None:
    x = leaf(np.zeros((3, 0), dtype))
    y = op(name, x, attrs=((1,), False))
    check(op("add", y, leaf(np.ones(3, y.dtype.numpy))))
    check(op(name, leaf(np.zeros((0, 4), dtype)), attrs=((1,), True)))


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_nan_wins_and_ties_take_the_first(name: str) -> None:
    rows = np.zeros((6, 40), np.float32)
    rows[0, [7, 30]] = np.nan
    rows[1, [33, 2]] = 5
    rows[2, [39, 18]] = -5
    rows[3, :] = -np.inf
    rows[4, :] = np.inf
    rows[5, [39, 3]] = np.nan, np.inf
    check(op(name, leaf(rows), attrs=((1,), False)), ulp=0)


@pytest.mark.parametrize("name", ["sum", "max", "argmin"])
def test_any_layout(name: str) -> None:
    axes = ((1,), False)
    check(op(name, op("permute", leaf(positive((37, 5))), attrs=((1, 0),)), attrs=axes))
    check(op(name, op("slice", leaf(positive((9, 80))), attrs=(((8, -2), (70, -3)), (4, 20))), attrs=axes))
    check(op(name, op("expand", leaf(positive((20,))), attrs=((4, 20),)), attrs=axes))
    check(op(name, op("expand", leaf(positive((4, 1))), attrs=((4, 20),)), attrs=axes))


def test_several_axes_walked_across() -> None:
    x = op("permute", leaf(positive((5, 4, 3, 2))), attrs=((3, 1, 2, 0),))
    check(op("sum", x, attrs=((2, 3), False)))
    check(op("max", x, attrs=((0, 1, 2, 3), False)), ulp=0)
    check(op("sum", leaf(positive((4, 3, 5))), attrs=((0, 2), False)))
    check(op("sum", leaf(positive((3, 2, 70))), attrs=((0, 2), False)))
    check(op("max", op("permute", leaf(positive((50, 3, 4))), attrs=((1, 2, 0),)), attrs=((0, 2), False)), ulp=0)


def test_bits_do_not_depend_on_the_layout() -> None:
    array = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    straight = op("sum", leaf(array), attrs=((0, 1), False))
    turned = op("sum", op("permute", leaf(np.ascontiguousarray(array.T)), attrs=((1, 0),)), attrs=((0, 1), False))
    assert run(lower_row([straight], [straight]))[0] == run(lower_row([turned], [turned]))[0]


def softmax(x: Node) -> Node:
    weights = op("exp", op("sub", x, op("max", x, attrs=LAST)))
    return op("div", weights, op("sum", weights, attrs=LAST))


def log_softmax(x: Node) -> Node:
    shifted = op("sub", x, op("max", x, attrs=LAST))
    return op("sub", shifted, op("log", op("sum", op("exp", shifted), attrs=LAST)))


def _mean(x: Node) -> Node:
    return op("div", op("sum", x, attrs=LAST), scalar(float(x.shape[1]), "float32"))  # type: ignore[arg-type]


def rms_norm(x: Node) -> Node:
    scale = op("rsqrt", op("add", _mean(op("mul", x, x)), scalar(1e-6, "float32")))
    return op("mul", op("mul", x, scale), leaf(positive((x.shape[1],), seed=9)))  # type: ignore[arg-type]


def variance(x: Node) -> Node:
    centred = op("sub", x, _mean(x))
    return _mean(op("mul", centred, centred))


def layer_norm(x: Node) -> Node:
    centred = op("sub", x, _mean(x))
    scale = op("rsqrt", op("add", _mean(op("mul", centred, centred)), scalar(1e-5, "float32")))
    return op("add", op("mul", op("mul", centred, scale), leaf(positive((x.shape[1],)))), scalar(3.0, "float32"))  # type: ignore[arg-type]


COMPOSITES = [softmax, log_softmax, rms_norm, variance, layer_norm]


@pytest.mark.parametrize("composite", COMPOSITES)
@pytest.mark.parametrize("cols", [1, 16, 100, 5000])
def test_composites_are_one_kernel(composite: Callable[[Node], Node], cols: int) -> None:
    if cols == 1 and composite in (variance, layer_norm, log_softmax):
        return
    x = leaf(np.random.default_rng(cols).standard_normal((5, cols)).astype(np.float32) * 3)
    launch = check(composite(x), ulp=2000)
    assert launch.unit == "row" and launch.extent == 5


def test_softmax_evaluates_exp_once_per_element() -> None:
    y = softmax(leaf(positive((2, 50))))
    assert lower_row([y], pending_of(y)).kernel.key[1].stash == ((2, 0),)


@pytest.mark.parametrize("composite", COMPOSITES)
def test_fusion_keeps_every_bit(composite: Callable[[Node], Node]) -> None:
    """Each record in a kernel of its own gives the bits of one kernel for all."""
    x = leaf(np.random.default_rng(2).standard_normal((3, 5000)).astype(np.float32))
    whole = composite(x)
    (fused,) = run(lower_row([whole], pending_of(whole)))
    assert np.array_equal(fused, one_by_one(whole))


def one_by_one(node: Node) -> Array:
    from plait.jit.kernels.map import lower_map

    values: dict[int, Node] = {}

    def realised(src: Node) -> Node:
        if src.op.family == "leaf":
            return src
        if id(src) not in values:
            alone = Node(src.op, tuple(realised(s) for s in src.srcs), src.attrs, src.shape, src.dtype)
            lowering = lower_row if src.op.family == "reduce" else lower_map
            values[id(src)] = leaf(run(lowering([alone], [alone]))[0])
        return values[id(src)]

    return realised(node).array()


def test_bits_of_a_row_are_its_own() -> None:
    array = np.random.default_rng(2).standard_normal((7, 300)).astype(np.float32)
    whole, part = softmax(leaf(array)), softmax(leaf(array[4:5]))
    (found,), (alone,) = run(lower_row([whole], pending_of(whole))), run(lower_row([part], pending_of(part)))
    assert np.array_equal(found[4:5], alone)


def test_row_and_full_outputs_together() -> None:
    x = leaf(positive((4, 50)))
    total = op("sum", x, attrs=((1,), False))
    scaled = op("div", x, op("reshape", total, attrs=((4, 1),)))
    most = op("argmax", scaled, attrs=LAST)
    check(scaled, total, most)


def test_casts_around_a_reduction() -> None:
    half = leaf(positive((3, 70)).astype(np.float16))
    wide = op("cast", half, attrs=(float32,))
    check(op("cast", op("sum", wide, attrs=LAST), attrs=(DTYPES["float16"],)), ulp=1)
    with pytest.raises(Decline, match="sum_of_float16"):
        narrow = op("sum", half, attrs=LAST)
        lower_row([narrow], [narrow])


@pytest.mark.parametrize("name", ["sum", "max", "argmin"])
@pytest.mark.parametrize("shape", [(1, 2**18 + 4099), (3, 2**18)])
def test_split_rows_have_the_bits_of_whole_rows(name: str, shape: tuple[int, int]) -> None:
    array = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    array[0, 70000] = array[0, 200000] = -9
    total = op(name, op("neg", leaf(array)), attrs=LAST)
    y = op("add", total, scalar(2, total.dtype))
    inside = pending_of(y)
    first, second = lower_split_rows([y], inside)
    states = dict(zip(map(id, first.results), run(first, cuts=(0.3, 0.6)), strict=True))
    assert np.array_equal(run(second, arrays=states)[0], run(lower_row([y], inside))[0])


def test_short_rows_are_not_split() -> None:
    y = op("sum", leaf(positive((4, 100))), attrs=LAST)
    with pytest.raises(Decline, match="rows_are_many_or_short"):
        lower_split_rows([y], [y])


def test_symbolic_rows_share_the_kernel() -> None:
    T = symbol("T")
    x = input_node(0, "x", False, (T, 48), float32)
    y = softmax(x)
    launch = lower_row([y], pending_of(y))
    array = positive((5, 48))
    (found,) = run(launch, {"T": 5}, {id(x): array})
    concrete = softmax(leaf(array))
    assert_within(found, expected(concrete), 64)
    assert lower_row([concrete], pending_of(concrete)).kernel == launch.kernel


def test_other_axes_decline() -> None:
    x = leaf(positive((8, 8)))
    across = op("reshape", op("sum", x, attrs=((1,), False)), attrs=((1, 8),))
    y = op("sum", op("sub", x, across), attrs=((1,), False))
    with pytest.raises(Decline):
        lower_row([y], pending_of(y))


@pytest.mark.parametrize("march", ["haswell", "x86-64-v2", "neoverse-n1"])
def test_the_text_compiles_for_other_machines(march: str) -> None:
    target = virtual(march)
    for composite in (softmax, layer_norm):
        y = composite(leaf(positive((2, 40))))
        kernel = lower_row([y], pending_of(y)).kernel
        assert compile_ir(kernel.name, kernel.emit(target, kernel.symbol), target)
    for name in ("argmax", "min"):
        y = op(name, leaf(positive((2, 40))), attrs=LAST)
        kernel = lower_row([y], [y]).kernel
        assert compile_ir(kernel.name, kernel.emit(target, kernel.symbol), target)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs code for older x86 machines")
@pytest.mark.parametrize("march", ["haswell", "x86-64-v2"])
@pytest.mark.parametrize("lowering", [lower_row, lower_column])
def test_reductions_have_the_same_bits_on_narrow_machines(march: str, lowering: Lowering) -> None:
    x = leaf(np.random.default_rng(5).standard_normal((300, 70)).astype(np.float32))
    axes = ((1,), False) if lowering is lower_row else ((0,), False)
    for name in REDUCTIONS:
        y = op(name, x, attrs=axes)
        launch = lowering([y], [y])
        assert np.array_equal(run(launch)[0], run(launch, march=march)[0]), name
