"""The map skeleton against the rows' NumPy meaning, over dtypes, layouts and shapes; and how few kernels it makes."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

from plait.framework.dim import symbol
from plait.framework.dtype import DTYPES, DType, float32
from plait.framework.graph import Node, input_node
from plait.framework.op import TABLE
from plait.jit.compile_ir import compile_ir
from plait.jit.kernel import Decline
from plait.jit.kernels.map import lower_map
from plait.jit.kernels.program import can_join
from plait.jit.target import virtual
from tests.jit.launching import Array, assert_within, expected, leaf, op, pending_of, run, scalar

REAL = [name for name in DTYPES if DTYPES[name].kind in "biuf"]
CROSS = ["haswell", "x86-64-v2", "neoverse-n1"]


def numbers(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype.numpy)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def check(output: Node, ulp: float = 0.0, cuts: tuple[float, ...] = (0.3, 0.8)) -> None:
    (found,) = run(lower_map([output], pending_of(output)), cuts=cuts)
    assert_within(found, expected(output), ulp)


def layouts(dtype: DType) -> dict[str, Node]:
    """One (4, 6) operand each, walked differently."""
    return {
        "contiguous": leaf(numbers(dtype, (4, 6))),
        "transposed": op("permute", leaf(numbers(dtype, (6, 4))), attrs=((1, 0),)),
        "strided": op("slice", leaf(numbers(dtype, (9, 20))), attrs=(((1, 2), (3, 3)), (4, 6))),
        "reversed": op("slice", leaf(numbers(dtype, (4, 6))), attrs=(((3, -1), (5, -1)), (4, 6))),
        "row": op("expand", leaf(numbers(dtype, (6,))), attrs=((4, 6),)),
        "column": op("expand", leaf(numbers(dtype, (4, 1))), attrs=((4, 6),)),
        "one": op("expand", leaf(numbers(dtype, (1,))), attrs=((4, 6),)),
    }


@pytest.mark.parametrize("name", REAL)
def test_every_layout_of_every_dtype(name: str) -> None:
    dtype = DTYPES[name]
    other = leaf(numbers(dtype, (4, 6), seed=7))
    combine = "logical_xor" if dtype.kind == "b" else "add"
    for operand in layouts(dtype).values():
        check(op(combine, operand, other))
        check(op(combine, other, operand))


SHAPES = [(), (1,), (0,), (17,), (1025,), (3, 0), (5, 33), (2, 3, 7), (2, 1, 3, 5), (2, 2, 2, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_rank_with_a_broadcast(shape: tuple[int, ...]) -> None:
    x, y = leaf(numbers(float32, shape)), leaf(numbers(float32, shape[-1:]))
    check(op("sub", op("mul", x, y), scalar(0.5, "float32")))


@pytest.mark.parametrize("seed", range(20))
def test_permuted_operands_of_any_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(2, 6)))
    axes = tuple(int(a) for a in rng.permutation(len(shape)))
    moved = op("permute", leaf(numbers(float32, shape, seed)), attrs=(axes,))
    still = leaf(numbers(float32, moved.shape, seed + 1))  # type: ignore[arg-type]
    check(op("add", moved, still))


def test_outputs_share_loads_and_steps() -> None:
    x = leaf(numbers(float32, (40,)))
    square = op("mul", x, x)
    plus = op("add", square, x)
    launch = lower_map([square, plus], [square, plus])
    assert len(launch.operands) == 3
    for node, found in zip((square, plus), run(launch), strict=True):
        assert_within(found, expected(node), 0)


def test_views_are_kept_as_copies() -> None:
    x = leaf(numbers(float32, (6, 5)))
    moved = op("permute", op("mul", x, x), attrs=((1, 0),))
    check(moved)
    flat = op("reshape", op("permute", x, attrs=((1, 0),)), attrs=((30,),))
    check(flat)


def test_a_transposed_producer_is_computed_where_it_is_read() -> None:
    x, y = leaf(numbers(float32, (6, 5))), leaf(numbers(float32, (5, 6)))
    inner = op("mul", x, x)
    outer = op("add", op("permute", inner, attrs=((1, 0),)), y)
    assert can_join(outer, inner)
    check(outer)
    halved = op("add", op("slice", inner, attrs=(((0, 2), (0, 1)), (3, 5))), leaf(numbers(float32, (3, 5))))
    assert not can_join(halved, inner)
    with pytest.raises(Decline, match="moved_between_records"):
        lower_map([halved], pending_of(halved))


def test_counting_records_need_no_memory() -> None:
    count = op("iota", attrs=(37, float32))
    y = op("mul", op("slice", count, attrs=(((36, -2),), (19,))), scalar(0.25, "float32"))
    launch = lower_map([y], pending_of(y))
    assert [operand.node for operand in launch.operands] == [y]
    check(y)
    check(count)


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 2.0, 3.0])
def test_short_powers_keep_the_rows_special_values(exponent: float) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.5, -2.5, 1e30, 1e-30], np.float32)
    power = op("pow", leaf(special), scalar(exponent, "float32"))
    launch = lower_map([power], [power])
    assert "pow" not in launch.kernel.name
    (found,) = run(launch)
    wanted = expected(power)
    assert_within(found, wanted, TABLE["pow"].ulp)
    numbers_only = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[numbers_only], np.signbit(wanted)[numbers_only])


def test_integer_scalars_wrap_as_the_row_does() -> None:
    x = leaf(numbers(DTYPES["uint64"], (9,)))
    check(op("add", x, scalar(2**63 + 5, "uint64")))


def test_one_expression_over_many_shapes_and_scalars_makes_few_kernels() -> None:
    rng = np.random.default_rng(3)
    keys = set()
    for k in range(200):
        shape = tuple(int(n) for n in rng.integers(1, 9, 1 + k % 4))
        x, bias = leaf(numbers(float32, shape)), leaf(numbers(float32, shape[-1:]))
        y = op("add", op("mul", x, scalar(float(k % 50), "float32")), bias)
        keys.add(lower_map([y], pending_of(y)).kernel.key)
    assert len(keys) <= 4, keys


def test_symbolic_sizes_share_the_kernel_of_concrete_ones() -> None:
    T = symbol("T")
    x, w = input_node(0, "x", False, (T, 6), float32), leaf(numbers(float32, (6,)))
    y = op("mul", x, w)
    launch = lower_map([y], [y])
    array = numbers(float32, (5, 6))
    (found,) = run(launch, {"T": 5}, {id(x): array})
    np.testing.assert_array_equal(found, array * w.array())
    concrete = op("mul", leaf(array), w)
    assert lower_map([concrete], [concrete]).kernel == launch.kernel


def test_what_has_no_code_declines() -> None:
    z = leaf(np.ones(3, np.complex64))
    with pytest.raises(Decline, match="complex64"):
        y = op("add", z, z)
        lower_map([y], [y])


@pytest.mark.parametrize("march", CROSS)
def test_the_text_compiles_for_other_machines(march: str) -> None:
    target = virtual(march)
    for name in ("float32", "bfloat16", "int8", "bool"):
        operands = layouts(DTYPES[name])
        combine = "logical_xor" if name == "bool" else "add"
        y = op(combine, op(combine, operands["contiguous"], operands["transposed"]), operands["row"])
        kernel = lower_map([y], pending_of(y)).kernel
        assert compile_ir(kernel.name, kernel.emit(target, kernel.symbol), target)


NARROW = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs code for older x86 machines")


@NARROW
@pytest.mark.parametrize("march", ["haswell", "x86-64-v2", "x86-64"])
def test_narrow_machines_give_the_same_bits(march: str) -> None:
    for name in REAL:
        combine = "logical_xor" if name == "bool" else "add"
        operands = layouts(DTYPES[name])
        y = op(combine, op(combine, operands["contiguous"], operands["transposed"]), operands["reversed"])
        launch = lower_map([y], pending_of(y))
        (found,) = run(launch, march=march)
        assert_within(found, expected(y), 0)


# NumPy runs these.
INTERPRETED = [(name, "float64") for name in ("pow", "mod", "floordiv")] + [("pow", "int32"), ("pow", "int64")]
ROWS = [row for row in TABLE.values() if row.family == "elementwise"]
ELEMENTWISE: list[Any] = [row for row in ROWS if row.name not in ("cast", "copy")]


@pytest.mark.parametrize("row", ELEMENTWISE, ids=str)
def test_every_row_within_its_bound(row: Any) -> None:
    tried = 0
    for name in ("float32", "float64", "float16", "bfloat16", "int32", "uint8", "int64", "bool"):
        dtype = DTYPES[name]
        operands = [leaf(_operand(row.name, dtype, k)) for k in range(row.axes.count("*") - 1)]
        if row.name == "select":
            operands[0] = leaf(numbers(DTYPES["bool"], (50,)))
        try:
            y = op(row.name, *operands)
        except TypeError:
            continue
        tried += 1
        if (row.name, name) in INTERPRETED:
            with pytest.raises(Decline, match=row.name):
                lower_map([y], [y])
            continue
        check(y, _bound(row, dtype))
    assert tried


def _operand(name: str, dtype: DType, seed: int) -> Array:
    array = numbers(dtype, (50,), seed)
    if name in ("shl", "shr") and seed:
        return np.asarray(np.abs(array.astype(np.int64)) % dtype.bits).astype(dtype.numpy)
    if name == "pow":
        small = np.abs(array.astype(np.float64)) % 4 + (0 if dtype.kind != "f" else 0.25)
        return small.astype(dtype.numpy)
    if name in ("acosh",):
        return (np.abs(array.astype(np.float64)) + 1.01).astype(dtype.numpy)
    if name in ("log", "log2", "log10", "sqrt", "rsqrt", "log1p"):
        return np.abs(array)
    if name in ("asin", "acos", "atanh"):
        return (array.astype(np.float64) % 1 * 0.9).astype(dtype.numpy)
    return array


def _bound(row: Any, dtype: DType) -> float:
    """Rounding to 16 bits of two float32 values a few units apart may differ by one."""
    return min(row.ulp, 1.0) if dtype.itemsize == 2 and dtype.kind == "f" else float(row.ulp)
