"""Product kernels against the rows' NumPy meanings, and rows against themselves in other company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.framework.blocks import FORMATS, quantize_rows
from plait.framework.dim import evaluate, symbol
from plait.framework.dtype import uint8
from plait.framework.graph import INPUT, Node
from plait.jit.kernel import Decline, Fused, Launch, Operand
from plait.jit.kernels.product import ProductSpec, lower_product
from plait.jit.kernels.quantize import lower_quantize_rows
from plait.jit.target import host_target, virtual
from tests.jit.poisoned import leaf, machine_code, record, run, value
from tests.jit.test_packing import raw_rows

Array = np.ndarray[Any, Any]
TAILS = [*range(1, 34), 136, 258, 776]


def random_rows(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weight(format_name: str, rows: int, columns: int) -> Node:
    return leaf(raw_rows(np.random.default_rng(rows), format_name, rows, columns))


def block_product(format_name: str, x: Array, w: Node, int8: bool) -> tuple[Launch, Node]:
    """The launch and the record of a product with block-quantised weights."""
    spec = ProductSpec(format_name, int8=int8)
    left = leaf(quantize_rows(x) if int8 else x)
    result = record("qmatmul_int8" if int8 else "qmatmul", left, w, attrs=(format_name,))
    return lower_product(spec, left, [Operand(w, spec.packing)], [], result), result


def matmul(a: Node, b: Node) -> tuple[Launch, Node]:
    result = record("matmul", a, b)
    return lower_product(ProductSpec("rows"), a, [Operand(b)], [], result), result


def assert_close(found: Array, wanted: Array, depth: int) -> None:
    """Equal up to the rounding of `depth` sums of values of the size these tests use."""
    size = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=3e-7 * size * depth**0.5)


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("m", [0, 1, 2, 7, 13, 130])
def test_block_products_mean_what_numpy_says(format_name: str, int8: bool, m: int) -> None:
    launch, result = block_product(format_name, random_rows(m, 96), weight(format_name, 48, 96), int8)
    assert_close(run(launch), value(result), 96)


@pytest.mark.system(138)
@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "f32", "rows", "columns"])
def test_every_column_is_written_and_nothing_beyond(kind: str) -> None:
    for n in TAILS:
        x = random_rows(3, 64, seed=n)
        if kind in FORMATS:
            launch, result = block_product(kind, x, weight(kind, n, 64), int8=True)
        else:
            launch, result = float_product(kind, x, random_rows(n, 64, seed=n + 1))
        assert_close(run(launch), value(result), 64)


def float_product(kind: str, x: Array, w: Array) -> tuple[Launch, Node]:
    """x times the transpose of w (N, K), which the kernel gets packed, as rows (K, N), or as a transposed view."""
    left, packed = leaf(x), leaf(w)
    transposed = record("permute", packed, attrs=((1, 0),))
    if kind == "f32":
        result = record("matmul", left, transposed)
        spec = ProductSpec("f32")
        return lower_product(spec, left, [Operand(packed, spec.packing)], [], result), result
    return matmul(left, leaf(np.ascontiguousarray(w.T)) if kind == "rows" else transposed)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "exact q4_0", "exact q8_0", "f32", "rows", "columns"])
def test_a_row_does_not_depend_on_its_company(kind: str) -> None:
    x = random_rows(200, 320)
    name = kind.split()[-1]
    w = weight(name, 40, 320) if name in FORMATS else random_rows(40, 320, seed=1)

    def rows(first: int, last: int) -> Array:
        if isinstance(w, Node):
            return run(block_product(name, x[first:last], w, int8=name == kind)[0])
        return run(float_product(kind, x[first:last], w)[0])

    everything = rows(0, 200)
    for count in (*range(1, 10), 64):
        np.testing.assert_array_equal(rows(5, 5 + count), everything[5 : 5 + count])


@pytest.mark.parametrize("kind", ["q4_1", "rows"])
def test_units_may_be_cut_anywhere(kind: str) -> None:
    x = random_rows(150, 64)
    launch = (
        block_product(kind, x, weight(kind, 100, 64), int8=True)[0]
        if kind in FORMATS
        else float_product(kind, x, random_rows(100, 64))[0]
    )
    assert isinstance(launch.extent, int)
    cuts = [(i, i + 1) for i in reversed(range(launch.extent))]
    np.testing.assert_array_equal(run(launch, parts=cuts), run(launch))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3, 5, 7), (7, 9)),
        ((4, 5, 7), (4, 7, 20)),
        ((2, 1, 5, 7), (3, 7, 9)),
        ((1, 7), (2, 7, 17)),
        ((2, 3, 1, 7), (2, 1, 7, 65)),
        ((3, 0), (0, 4)),
    ],
)
def test_batches_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    launch, result = matmul(leaf(random_rows(*a)), leaf(random_rows(*b, seed=1)))
    assert_close(run(launch), value(result), 7)


def test_strided_operands() -> None:
    a = record("permute", leaf(random_rows(70, 6)), attrs=((1, 0),))
    b = record("slice", leaf(random_rows(300, 50, seed=1)), attrs=(((20, 4), (3, 2)), (70, 20)))
    launch, result = matmul(a, b)
    assert_close(run(launch), value(result), 70)


def epilogue_silu_mul() -> Fused:
    """silu(first) * second"""
    silu = (("sigmoid", (("in", 0),), ()), ("mul", (("in", 0), ("step", 0)), ()))
    return Fused(("float32",) * 2, (), (*silu, ("mul", (("step", 1), ("in", 1)), ())), (("step", 2),))


def fused(format_name: str, x: Node, weights: list[Node], epilogue: Fused, operands: list[Node], output: str) -> Launch:
    spec = ProductSpec(format_name, True, len(weights), epilogue, output)
    product = record("qmatmul_int8", x, weights[0], attrs=(format_name,))
    result = record("quantize_rows", product) if output == "quantized" else product
    return lower_product(spec, x, [Operand(w, spec.packing) for w in weights], operands, result)


@pytest.mark.parametrize("m", [1, 3, 129])
def test_siblings_meet_in_a_quantised_store(m: int) -> None:
    x = leaf(quantize_rows(random_rows(m, 96) / 16))
    weights = [weight("q4_1", 64, 96), leaf(raw_rows(np.random.default_rng(9), "q4_1", 64, 96))]
    kept = run(fused("q4_1", x, weights, epilogue_silu_mul(), [], "float"))
    gate, up = (value(record("qmatmul_int8", x, w, attrs=("q4_1",))) for w in weights)
    np.testing.assert_allclose(kept, gate / (1 + np.exp(-gate)) * up, rtol=1e-4, atol=1e-3)
    stored = run(fused("q4_1", x, weights, epilogue_silu_mul(), [], "quantized"))
    rows = leaf(kept)
    alone = run(lower_quantize_rows(record("quantize_rows", rows)))
    np.testing.assert_array_equal(stored, alone)
    np.testing.assert_array_equal(alone, quantize_rows(kept))


def test_epilogue_operands_of_every_pattern() -> None:
    x, w = leaf(quantize_rows(random_rows(5, 64))), weight("q8_0", 50, 64)
    arrays = [random_rows(5, 50), random_rows(50), random_rows(5, 1), random_rows(1, 1)]
    steps = tuple(("add", (("in", 0) if i == 0 else ("step", i - 1), ("in", i + 1)), ()) for i in range(4))
    steps += (("mul", (("step", 3), ("scalar", 0)), ()),)
    epilogue = Fused(("float32",) * 5, ("float32",), steps, (("step", 4),))
    spec = ProductSpec("q8_0", True, 1, epilogue)
    result = record("qmatmul_int8", x, w, attrs=("q8_0",))
    launch = lower_product(spec, x, [Operand(w, spec.packing)], [*map(leaf, arrays)], result, [(0.5, "float32")])
    wanted = value(result)
    for array in arrays:
        wanted = wanted + array
    assert_close(run(launch), wanted * np.float32(0.5), 64)


@pytest.mark.parametrize("columns", [32, 96, 1536])
def test_quantize_rows_gives_numpys_bits(columns: int) -> None:
    x = random_rows(9, columns)
    x[0, :32], x[1, :32], x[2, :32] = 0.0, 1e-30, np.arange(32) * 0.5 - 7.5
    x[3, 5] = 127.0
    table = leaf(np.concatenate([x, x], axis=1))
    view = record("slice", table, attrs=(((0, 1), (columns, 1)), (9, columns)))
    np.testing.assert_array_equal(run(lower_quantize_rows(record("quantize_rows", view))), quantize_rows(x))


def test_quantize_rows_of_a_tiny_block_is_zero_and_of_nan_stays_nan() -> None:
    x = np.full((2, 32), 1e-40, np.float32)
    x[1, 3] = np.nan
    found = run(lower_quantize_rows(record("quantize_rows", leaf(x))))
    assert not found[0, :32].any()
    assert np.isnan(found[1, 32:].view(np.float32)).all()


@pytest.mark.parametrize("march", ["haswell", "x86-64-v4"])
@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "exact q4_1", "rows"])
def test_other_x86_code_gives_the_same_bits(march: str, kind: str) -> None:
    if not host_target().has_avx512:
        pytest.skip(f"the host cannot run code for {march}")
    name, x = kind.split()[-1], random_rows(11, 96)
    if name in FORMATS:
        launch, _ = block_product(name, x, weight(name, 33, 96), int8=name == kind)
    else:
        launch, _ = float_product(kind, x, random_rows(33, 96))
    np.testing.assert_array_equal(run(launch, virtual(march)), run(launch))


def test_code_for_plain_x86_gives_the_same_integers() -> None:
    """Without fused multiply-add the float sums may differ in the last places; the integer dots may not."""
    launch, result = block_product("q8_0", random_rows(5, 96), weight("q8_0", 33, 96), int8=True)
    assert_close(run(launch, virtual("x86-64-v2")), value(result), 96)


def test_integer_dots_do_not_saturate() -> None:
    """All codes and activations at their largest: two products of 8 bits pass 16 bits."""
    raw = np.zeros((16, 34), np.uint8)
    raw[:, 1], raw[:, 2:] = 0x3C, 0x7F
    x = leaf(quantize_rows(np.full((1, 32), 127.0, np.float32)))
    w = leaf(raw)
    result = record("qmatmul_int8", x, w, attrs=("q8_0",))
    launch = lower_product(ProductSpec("q8_0", True), x, [Operand(w, "q8_0/lane16/1")], [], result)
    for target in (host_target(), virtual("haswell"), virtual("x86-64-v2")):
        np.testing.assert_array_equal(run(launch, target), np.full((1, 16), 127.0 * 127 * 32, np.float32))


@pytest.mark.parametrize("march", ["haswell", "x86-64-v2", "neoverse-n1"])
@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "exact q4_0", "rows"])
def test_kernels_compile_for_other_machines_without_library_calls(march: str, kind: str) -> None:
    name = kind.split()[-1]
    if name in FORMATS:
        launch, _ = block_product(name, random_rows(1, 64), weight(name, 17, 64), int8=name == kind)
    else:
        launch, _ = float_product(kind, random_rows(1, 64), random_rows(17, 64))
    text = machine_code(launch.kernel, virtual(march))
    calls = [line for line in text.splitlines() if "call" in line.split()[:1] or line.split()[:1] == ["bl"]]
    assert all(launch.kernel.symbol in line for line in calls), calls


def test_uneven_rows_are_declined() -> None:
    x = record("slice", leaf(random_rows(4, 6, 32)), attrs=(((0, 1), (0, 1), (0, 1)), (4, 5, 32)))
    w = weight("q4_0", 16, 32)
    result = record("qmatmul", x, w, attrs=("q4_0",))
    with pytest.raises(Decline):
        lower_product(ProductSpec("q4_0"), x, [Operand(w, "q4_0/lane16/1")], [], result)


@pytest.mark.parametrize(("n", "k"), [(100, 300), (64, 128), (16, 15), (70, 129)])
def test_a_right_operand_may_lie_in_any_way(n: int, k: int) -> None:
    x, w = random_rows(5, k), random_rows(n, k, seed=1)
    wanted = run(float_product("f32", x, w)[0])
    twice = np.repeat(w, 2, axis=1)
    every_other = record("permute", record("slice", leaf(twice), attrs=(((0, 1), (0, 2)), (n, k))), attrs=((1, 0),))
    for kind in ("rows", "columns"):
        np.testing.assert_array_equal(run(float_product(kind, x, w)[0]), wanted)
    np.testing.assert_array_equal(run(matmul(leaf(x), every_other)[0]), wanted)


def test_rows_may_be_symbolic() -> None:
    """The launch of T rows and of 7 rows are the same kernel, with T in its extent and its ints."""
    t, w = symbol("T"), weight("q4_1", 48, 64)
    spec = ProductSpec("q4_1", int8=True)
    x = Node(INPUT, (), (0, "x", False), (t, 80), uint8)
    result = record("qmatmul_int8", x, w, attrs=("q4_1",))
    launch = lower_product(spec, x, [Operand(w, spec.packing)], [], result)
    fixed, _ = block_product("q4_1", random_rows(7, 64), w, int8=True)
    assert launch.kernel.key == fixed.kernel.key
    assert [evaluate(size, {"T": 7}) for size in launch.ints] == fixed.ints
    assert evaluate(launch.extent, {"T": 7}) == fixed.extent
    assert evaluate(launch.extent, {"T": 0}) == 0
