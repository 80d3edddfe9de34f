"""The builder's control flow, lanes and conversions, run as native code and compared with NumPy."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from plait.framework.dtype import DType, bfloat16, float16, float32, float64
from plait.framework.errors import CompileError
from plait.jit.builder import Builder, Value, literal, split_type, vector
from plait.jit.compile_ir import compile_ir, exported_symbols, undefined_symbols
from plait.jit.expression import ExpressionBuilder, Typed
from plait.jit.target import VIRTUAL_CPUS, Target, host_target, virtual
from tests.jit.native import run_expression, run_text

HOST = host_target()
Array = np.ndarray[Any, Any]


def runnable(march: str) -> Target:
    """A smaller machine of this one's kind: its code runs here."""
    target = virtual(march)
    if target.triple.split("-")[0] != HOST.triple.split("-")[0] or target.width > HOST.width:
        pytest.skip(f"code for {march} does not run on {HOST.cpu}")
    return target


def address(array: Array) -> int:
    return array.ctypes.data


def test_types_split_into_lanes_and_element() -> None:
    assert split_type("<16 x float>") == (16, "float")
    assert split_type("i64") == (1, "i64")
    assert vector("double", 1) == "double"


@pytest.mark.parametrize("number", [0.1, -0.0, float("inf"), 1e-45, 3.4e38])
def test_a_float_constant_is_exact(number: float) -> None:
    text = literal("float", number)
    assert struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0] == np.float32(number)


def test_integer_constants_wrap_to_their_width() -> None:
    assert literal("i8", 255) == "-1"
    assert literal("i64", 2**63) == str(-(2**63))


def reduction_text(target: Target, lanes: int, op: str) -> str:
    b = Builder(target)
    with b.function("k") as (args, _lo, _hi):
        source, out = b.slot(args, 0), b.slot(args, 1)
        parts = [b.vload(b.gep("float", source, at), vector("float", lanes)) for at in range(0, 16, lanes)]
        b.store(b.reduce(op, parts), out)
    return b.text()


@pytest.mark.parametrize("op", ["fadd", "fmul", "fmax"])
def test_a_reduction_has_the_same_bits_whatever_the_width(op: str) -> None:
    source = np.random.default_rng(0).normal(size=16).astype(np.float32) * np.float32(3)
    results = set()
    for lanes in (16, 8, 4, 2, 1):
        out = np.zeros(1, np.float32)
        run_text(reduction_text(HOST, lanes, op), "k", 1, address(source), address(out))
        results.add(out.tobytes())
    assert len(results) == 1
    tree = source
    while tree.size > 1:
        first, second = np.split(tree, 2)
        tree = {"fadd": np.add, "fmul": np.multiply, "fmax": np.maximum}[op](first, second)
    assert results == {tree.tobytes()}


def test_loops_carry_values_and_branches_choose() -> None:
    b = Builder(HOST)
    with b.function("k") as (args, lo, hi):
        out = b.slot(args, 0)

        def body(i: Value, total: Value) -> list[Value]:
            odd = b.icmp("eq", b.irem(i, 2), 1)
            return b.if_(odd, lambda: [b.iadd(total, i)], lambda: [b.isub(total, 1)])

        (total,) = b.loop(lo, hi, 1, body, [b.index(100)])
        b.store(total, out)
    result = np.zeros(1, np.int64)
    run_text(b.text(), "k", 11, address(result))
    assert result[0] == 100 + (1 + 3 + 5 + 7 + 9) - 6


def test_a_branch_may_return_early() -> None:
    b = Builder(HOST)
    with b.function("k") as (args, _lo, hi):
        b.if_(b.icmp("eq", hi, 3), lambda: b.ret())
        b.store(b.index(7), b.slot(args, 0))
    result = np.zeros(2, np.int64)
    run_text(b.text(), "k", 3, address(result))
    run_text(b.text(), "k", 4, address(result) + 8)
    assert result.tolist() == [0, 7]


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_a_masked_tail_touches_nothing_outside(lanes: int) -> None:
    b = Builder(HOST)
    with b.function("k") as (args, lo, hi):
        source, out = b.slot(args, 0), b.slot(args, 1)

        def body(i: Value, mask: Value | None, total: Value) -> list[Value]:
            x = b.vload(b.gep("float", source, i), vector("float", lanes), mask)
            b.vstore(b.fmul(x, 2.0), b.gep("float", out, i), mask)
            return [b.fadd(total, x)]

        (total,) = b.vloop(lo, hi, lanes, body, [b.constant(vector("float", lanes), 0.0)])
        b.store(b.reduce("fadd", [total]), b.slot(args, 2))
    for size in (0, 1, 15, 16, 17, 37):
        x, y, sums = np.arange(40, dtype=np.float32), np.full(40, -1, np.float32), np.zeros(1, np.float32)
        run_text(b.text(), "k", size, address(x), address(y), address(sums))
        assert np.array_equal(y[:size], 2 * x[:size]) and (y[size:] == -1).all()
        assert sums[0] == x[:size].sum()


@pytest.mark.parametrize("lanes", [1, 8])
def test_gather_and_scatter_reach_strided_elements(lanes: int) -> None:
    b = Builder(HOST)
    with b.function("k") as (args, _lo, hi):
        source, out = b.slot(args, 0), b.slot(args, 1)
        for start in range(0, 8, lanes):
            places = b.imul(b.iadd(b.iota(lanes), start), 3)
            mask = b.icmp("slt", b.iadd(b.iota(lanes), start), b.splat(hi, lanes))
            b.scatter(b.gather("i32", b.gep("i32", source, places), mask), b.gep("i32", out, places), mask)
    x, y = np.arange(24, dtype=np.int32) + 1, np.zeros(24, np.int32)
    run_text(b.text(), "k", 6, address(x), address(y))
    expected = np.zeros(24, np.int32)
    expected[0:18:3] = x[0:18:3]
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("march", ["host", "haswell", "x86-64-v2"])
def test_byte_dot_products_are_exact(march: str) -> None:
    target = HOST if march == "host" else runnable(march)
    b = Builder(target)
    with b.function("k") as (args, _lo, _hi):
        u, s, total = (b.vload(b.slot(args, i), t) for i, t in enumerate(("<64 x i8>", "<64 x i8>", "<16 x i32>")))
        b.vstore(b.dot4(total, u, s), b.slot(args, 2))
    rng = np.random.default_rng(1)
    u8, s8 = rng.integers(0, 256, 64).astype(np.uint8), rng.integers(-128, 128, 64).astype(np.int8)
    start = rng.integers(-1000, 1000, 16).astype(np.int32)
    result = start.copy()
    run_text(b.text(), "k", 1, address(u8), address(s8), address(result), target=target)
    assert np.array_equal(result, start + (u8.astype(int) * s8).reshape(16, 4).sum(1))


def test_helpers_and_tables_are_internal_and_named_after_their_kernel() -> None:
    b = Builder(HOST)
    with b.function("kernel") as (args, _lo, _hi):
        ExpressionBuilder(b, 4).sin(Typed(b.vload(b.slot(args, 0), "<4 x float>"), "float32"))
    text = b.text()
    assert exported_symbols(text) == ["kernel"]
    assert "@kernel.reduce_angle" in text and "@kernel.two_over_pi = internal" in text


# ---- conversions: every target's path gives NumPy's bits ------------------------------------------------------------

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-8, -6e-8, 5.96e-8, 65504, 65519.9, 65520, 1 + 2**-11, 3.39e38, 1e-45]


def sample(dtype: type) -> Array:
    rng = np.random.default_rng(2)
    width = np.dtype(dtype).itemsize * 8
    bits = rng.integers(0, 2**width, 20000, dtype=np.uint64).astype(f"u{width // 8}")
    with np.errstate(all="ignore"):
        near = np.concatenate([SPECIAL, rng.normal(size=5000), np.exp(rng.normal(size=5000) * 10)])
        return np.concatenate([bits.view(dtype), near.astype(dtype)])


def same(got: Array, expected: Array) -> bool:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        nan = np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    unsigned = f"u{got.itemsize}"
    return bool(((got.view(unsigned) == expected.view(unsigned)) | nan).all())


@pytest.mark.parametrize("march", ["host", "haswell", "x86-64-v2", "x86-64"])
@pytest.mark.parametrize("source", [float64, float32, float16, bfloat16])
@pytest.mark.parametrize("result", [float64, float32, float16, bfloat16])
def test_casts_between_floats_round_as_numpy_does(source: DType, result: DType, march: str) -> None:
    target = HOST if march == "host" else runnable(march)
    x = sample(source.numpy.type)
    got = run_expression(lambda e, v: e.cast(v, result), [x], [source], result, target)
    with np.errstate(all="ignore"):
        assert same(got, x.astype(result.numpy))


def test_a_nan_rounded_to_bfloat16_is_quiet() -> None:
    x = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    got = run_expression(lambda e, v: e.cast(v, bfloat16), [x], [float32], bfloat16)
    assert np.isnan(got.astype(np.float32)).all() and (got.view(np.uint16) & 0x40).all()


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("march", ["host", "x86-64"])
def test_rounding_to_integers_keeps_signs_and_specials(name: str, dtype: DType, march: str) -> None:
    target = HOST if march == "host" else runnable(march)
    x = np.concatenate([sample(dtype.numpy.type), np.arange(-8, 8, 0.25).astype(dtype.numpy)])
    got = run_expression(lambda e, v: getattr(e, name)(v), [x], [dtype], dtype, target)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}[name](x)
    assert same(got, expected)


# ---- compiling ------------------------------------------------------------------------------------------------------


def test_invalid_text_is_an_error_and_not_the_end_of_the_process() -> None:
    with pytest.raises(CompileError, match="is not valid LLVM IR"):
        compile_ir("broken", "define void @f( {", HOST)


def test_a_call_that_the_text_did_not_declare_is_an_error() -> None:
    text = (
        "declare float @llvm.sin.f32(float)\n"
        "define void @f(ptr %p) {\n %x = load float, ptr %p\n %y = call float @llvm.sin.f32(float %x)\n"
        " store float %y, ptr %p\n ret void\n}\n"
    )
    with pytest.raises(CompileError, match="would call sinf"):
        compile_ir("f", text, HOST)


def test_an_unknown_cpu_names_the_known_ones() -> None:
    with pytest.raises(CompileError, match="'i386'.*haswell"):
        virtual("i386")


@pytest.mark.parametrize("march", VIRTUAL_CPUS)
def test_widths_follow_the_instruction_set(march: str) -> None:
    widths = {"x86-64": 4, "x86-64-v2": 4, "x86-64-v3": 8, "haswell": 8, "x86-64-v4": 16, "znver4": 16}
    assert virtual(march).width == widths.get(march, 4)


def test_undefined_symbols_are_read_from_an_object() -> None:
    text = "declare void @elsewhere()\ndefine void @f() {\n call void @elsewhere()\n ret void\n}\n"
    assert undefined_symbols(compile_ir("f", text, virtual("haswell"))) == {"elsewhere"}
