"""Every elementwise row, every dtype it takes: native code against the row's NumPy meaning; every target compiles."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import plait.framework.ops.elementwise  # noqa: F401  fills the table
from plait.framework.dtype import ARITHMETIC_DTYPES, DType, bool_, float32, float64, int8, int32, int64, uint8, uint32
from plait.framework.errors import DTypeError
from plait.framework.op import TABLE, Op, Spec
from plait.jit.math import Unsupported
from tests.jit.native import run_expression

ROWS = [op for op in TABLE.values() if op.family == "elementwise" and op.expr is not None]
SPECIAL = {"cast", "select", "copy"}
UNARY_ARITY = {op.name: op.axes.split("->")[0].count("*") for op in ROWS}
DECLINED = {
    *(("pow", name) for name in ("int8", "int16", "int32", "int64", "float64")),
    *((name, "float64") for name in ("floordiv", "mod")),
}
Array = np.ndarray[Any, Any]


def values(dtype: DType, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, 999).astype(bool)
    if dtype.is_integral:
        limits = np.iinfo(dtype.numpy)
        wide = rng.integers(limits.min, limits.max, 600, dtype=dtype.numpy, endpoint=True)
        small = rng.integers(-9 if dtype.kind == "i" else 0, 10, 399).astype(dtype.numpy)
        edge = np.array([limits.min, limits.max, 0, 1], dtype.numpy)
        return np.concatenate([wide, small, np.repeat(edge, 4) if seed % 2 else np.tile(edge, 4)])
    edge = np.array([0.0, -0.0, 1, -1, 0.5, 2, 3, np.inf, -np.inf, np.nan])
    grid = np.repeat(edge, 10) if seed % 2 else np.tile(edge, 10)
    wide = np.exp(rng.normal(size=300) * 6)
    numbers = np.concatenate([rng.normal(size=700) * 3, rng.uniform(-1, 1, 300), wide, grid])
    with np.errstate(all="ignore"):
        return numbers.astype(dtype.numpy)


def ulps(got: Array, expected: Array, dtype: DType) -> Array:
    """Distance in units of the last place of the expected value; NaN equals NaN."""
    wide, want = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(want) & np.isfinite(wide)
    kinds = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126), "float64": (52, -1022)}
    mantissa, lowest = kinds[dtype.name]
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(np.where(want == 0, 1e-300, want)))), lowest)
        distance = np.abs(wide - want) / np.exp2(exponent - mantissa)
    agree = (wide == want) | (np.isnan(wide) & np.isnan(want))
    return np.where(finite, distance, np.where(agree, 0.0, np.inf))


def cases() -> list[Any]:
    found = []
    for op in ROWS:
        for dtype in ARITHMETIC_DTYPES:
            if op.name in SPECIAL or dtype.kind == "c":
                continue
            try:
                spec = op.infer(op, (Spec((4,), dtype),) * UNARY_ARITY[op.name], ())
            except DTypeError:
                continue
            found.append(pytest.param(op, dtype, spec.dtype, id=f"{op.name}-{dtype.name}"))
    return found


@pytest.mark.parametrize(("op", "dtype", "result"), cases())
def test_a_row_means_what_numpy_means(op: Op, dtype: DType, result: DType) -> None:
    arrays = [values(dtype, seed) for seed in range(UNARY_ARITY[op.name])]
    assert op.expr is not None
    if (op.name, dtype.name) in DECLINED:
        with pytest.raises(Unsupported):
            run_expression(op.expr, arrays, [dtype] * len(arrays), result)
        return
    got = run_expression(op.expr, arrays, [dtype] * len(arrays), result)
    with np.errstate(all="ignore"):
        expected = op.numpy(*arrays, attrs=(), spec=Spec(arrays[0].shape, result))
    if result.kind != "f":
        assert np.array_equal(got, expected)
        return
    if op.name == "sigmoid":  # the row's meaning overflows for large negative numbers, ours does not
        far = arrays[0].astype(np.float64) < -80
        got, expected = np.where(far, 0, got), np.where(far, 0, expected)
    allowed = op.ulp if dtype.itemsize > 2 else min(op.ulp, 1)
    assert ulps(got, expected, result).max() <= allowed


@pytest.mark.parametrize("source", [d for d in ARITHMETIC_DTYPES if d.kind != "c"], ids=lambda d: d.name)
@pytest.mark.parametrize("result", [d for d in ARITHMETIC_DTYPES if d.kind != "c"], ids=lambda d: d.name)
def test_a_cast_truncates_saturates_and_wraps_as_the_row_says(source: DType, result: DType) -> None:
    op = TABLE["cast"]
    assert op.expr is not None
    x = values(source, 1)
    if source.is_float:
        edges = np.array([127.5, 255.9, -128.9, 2.0**31, 2.0**63, -1e30, 1e30, 0.99])
        with np.errstate(all="ignore"):
            x = np.concatenate([x, edges.astype(source.numpy)])
    got = run_expression(lambda e, v: op.expr(e, v, result), [x], [source], result)  # type: ignore[misc]
    with np.errstate(all="ignore"):
        expected = op.numpy(x, attrs=(result,), spec=Spec(x.shape, result))
    if result.is_float:
        assert ulps(got, expected, result).max() == 0
    else:
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", [bool_, int8, uint8, float32, float64], ids=lambda d: d.name)
def test_select_chooses_by_lane(dtype: DType) -> None:
    x, y = values(dtype, 0), values(dtype, 1)
    condition = np.arange(x.size) % 3 == 0
    got = run_expression(lambda e, c, a, b: e.select(c, a, b), [condition, x, y], [bool_, dtype, dtype], dtype)
    assert np.array_equal(got, np.where(condition, x, y), equal_nan=dtype.is_float)


@pytest.mark.parametrize("dtype", [int32, int64, uint32], ids=lambda d: d.name)
def test_integer_division_by_zero_is_zero_and_the_overflow_wraps(dtype: DType) -> None:
    lowest = np.iinfo(dtype.numpy).min
    x = np.array([7, lowest, 7, lowest], dtype.numpy)
    y = np.array([0, 0, 2, -1 if dtype.kind == "i" else 1], dtype.numpy)
    quotient = run_expression(lambda e, a, b: e.floordiv(a, b), [x, y], [dtype, dtype], dtype)
    rest = run_expression(lambda e, a, b: e.mod(a, b), [x, y], [dtype, dtype], dtype)
    assert quotient.tolist() == [0, 0, 3, lowest]
    assert rest.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_sixteen_bit_floats_round_after_every_op(name: str) -> None:
    dtype = next(d for d in ARITHMETIC_DTYPES if d.name == name)
    x, y = values(dtype, 2), values(dtype, 3)
    got = run_expression(lambda e, a, b: e.mul(e.add(a, b), e.sub(a, b)), [x, y], [dtype, dtype], dtype)
    with np.errstate(all="ignore"):
        total = (x.astype(np.float32) + y.astype(np.float32)).astype(dtype.numpy).astype(np.float32)
        gap = (x.astype(np.float32) - y.astype(np.float32)).astype(dtype.numpy).astype(np.float32)
        assert ulps(got, (total * gap).astype(dtype.numpy), dtype).max() == 0


def test_a_row_is_declined_by_name_for_complex_numbers() -> None:
    with pytest.raises(Unsupported, match="complex64"):
        run_expression(lambda e, x: e.add(x, e.const("complex64", 1)), [np.zeros(4, np.float32)], [float32], float32)


COMPILE_ALL = """
import sys
import plait.framework.ops.elementwise
from plait.framework.dtype import ARITHMETIC_DTYPES
from plait.framework.errors import DTypeError
from plait.framework.op import TABLE, Spec
from plait.jit.builder import Builder
from plait.jit.compile_ir import compile_ir, undefined_symbols
from plait.jit.expression import ExpressionBuilder, memory_element
from plait.jit.math import Unsupported
from plait.jit.target import virtual
target = virtual(sys.argv[1])
count = 0
for dtype in ARITHMETIC_DTYPES:
    b = Builder(target)
    if dtype.kind == "c":
        continue
    e = ExpressionBuilder(b, target.width)
    with b.function("k") as (args, lo, hi):
        mask = b.mask(hi, e.lanes)
        x, y = (e.load(dtype.name, b.slot(args, i), mask) for i in range(2))
        out = b.slot(args, 2)
        for op in TABLE.values():
            if op.family != "elementwise" or op.expr is None or op.name in ("cast", "select", "copy"):
                continue
            operands = (x, y)[: op.axes.split("->")[0].count("*")]
            try:
                op.infer(op, tuple(Spec((4,), dtype) for _ in operands), ())
                value = op.expr(e, *operands)
            except (DTypeError, Unsupported):
                continue
            e.store(value, out, mask)
            count += 1
        for other in ARITHMETIC_DTYPES:
            if other.kind != "c":
                e.store(e.select(e.gt(x, y), e.cast(x, other), e.cast(y, other)), out, mask)
        e.store(e.fma(x, y, x), out) if dtype.kind == "f" else None
        e.scatter(e.gather(dtype.name, b.gep(memory_element(dtype.name), out, b.iota(e.lanes))),
                  b.gep(memory_element(dtype.name), out, b.iota(e.lanes)))
        total = b.constant("<16 x i32>", 0)
        codes = b.vload(out, "<64 x i8>")
        b.vstore(b.dot4(total, codes, codes), out)
        b.prefetch(out)
    assert undefined_symbols(compile_ir("k", b.text(), target)) == set()
print(count)
"""


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v2", "haswell", "x86-64-v4", "neoverse-n1"])
def test_every_row_compiles_for_every_target_without_a_call(march: str) -> None:
    # In a process of its own: what LLVM cannot select ends the process.
    done = subprocess.run([sys.executable, "-c", COMPILE_ALL, march], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 250
