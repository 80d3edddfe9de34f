"""Every elementwise row in both executors, per dtype and layout, against NumPy within the row's bound."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import plait as pl
from plait.framework.op import TABLE
from plait.framework.ops import elementwise
from tests.framework.compare import Array, assert_close, is_half, layouts, numpy_dtype, value_of

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIGNED = INTEGERS[:4]
NUMBERS = INTEGERS + FLOATS
REAL = ("bool", *NUMBERS)
WIDELY_TRIED = ("float32", "int32")  # the dtypes that are tried in every layout


class Row(NamedTuple):
    """How a row is called, what it means on wide arrays, and the dtypes it takes."""

    call: Callable[..., Any]
    oracle: Callable[..., Any]
    dtypes: tuple[str, ...]


def _floor_divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.floor_divide(a, b)
    return np.where(b == 0, 0, _wrapped(a, lambda x, y: x // y, b)).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    return (
        np.remainder(a, b)
        if a.dtype.kind == "f"
        else np.where(b == 0, 0, _wrapped(a, lambda x, y: x % y, b)).astype(a.dtype)
    )


def _wrapped(a: Array, function: Callable[[int, int], int], b: Array) -> Array:
    """Exact Python integers, then the low bits."""
    bits = a.dtype.itemsize * 8
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    pairs = np.broadcast(a, b)
    for place, (x, y) in enumerate(pairs):
        value = function(int(x), int(y) or 1) & ((1 << bits) - 1)
        signed = a.dtype.kind == "i" and value >> (bits - 1)
        out.reshape(-1)[place] = value - (1 << bits) if signed else value
    return out


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x.astype(np.float64)


UNARY = {
    "neg": Row(operator.neg, np.negative, NUMBERS),
    "abs": Row(abs, np.abs, NUMBERS),
    "sign": Row(pl.sign, np.sign, NUMBERS),
    "sqrt": Row(pl.sqrt, np.sqrt, FLOATS),
    "rsqrt": Row(pl.rsqrt, lambda x: 1 / np.sqrt(x), FLOATS),
    "reciprocal": Row(pl.reciprocal, lambda x: 1 / x, FLOATS),
    "exp": Row(pl.exp, np.exp, FLOATS),
    "exp2": Row(pl.exp2, np.exp2, FLOATS),
    "expm1": Row(pl.expm1, np.expm1, FLOATS),
    "log": Row(pl.log, np.log, FLOATS),
    "log2": Row(pl.log2, np.log2, FLOATS),
    "log10": Row(pl.log10, np.log10, FLOATS),
    "log1p": Row(pl.log1p, np.log1p, FLOATS),
    "sin": Row(pl.sin, np.sin, FLOATS),
    "cos": Row(pl.cos, np.cos, FLOATS),
    "tan": Row(pl.tan, np.tan, FLOATS),
    "asin": Row(pl.asin, np.arcsin, FLOATS),
    "acos": Row(pl.acos, np.arccos, FLOATS),
    "atan": Row(pl.atan, np.arctan, FLOATS),
    "sinh": Row(pl.sinh, np.sinh, FLOATS),
    "cosh": Row(pl.cosh, np.cosh, FLOATS),
    "tanh": Row(pl.tanh, np.tanh, FLOATS),
    "asinh": Row(pl.asinh, np.arcsinh, FLOATS),
    "acosh": Row(pl.acosh, np.arccosh, FLOATS),
    "atanh": Row(pl.atanh, np.arctanh, FLOATS),
    "erf": Row(pl.erf, _erf, FLOATS),
    "sigmoid": Row(pl.sigmoid, lambda x: 1 / (1 + np.exp(-x)), FLOATS),
    "floor": Row(pl.floor, np.floor, FLOATS),
    "ceil": Row(pl.ceil, np.ceil, FLOATS),
    "trunc": Row(pl.trunc, np.trunc, FLOATS),
    "round": Row(pl.round, np.rint, FLOATS),
    "bit_not": Row(operator.invert, np.invert, INTEGERS),
    "logical_not": Row(pl.logical_not, np.logical_not, ("bool",)),
    "isnan": Row(pl.isnan, np.isnan, FLOATS),
    "isinf": Row(pl.isinf, np.isinf, FLOATS),
    "isfinite": Row(pl.isfinite, np.isfinite, FLOATS),
    "copy": Row(lambda x: x.copy(), lambda x: x, REAL),
}
BINARY = {
    "add": Row(operator.add, np.add, NUMBERS),
    "sub": Row(operator.sub, np.subtract, NUMBERS),
    "mul": Row(operator.mul, np.multiply, NUMBERS),
    "div": Row(operator.truediv, np.divide, FLOATS),
    "floordiv": Row(operator.floordiv, _floor_divide, NUMBERS),
    "mod": Row(operator.mod, _remainder, NUMBERS),
    "pow": Row(operator.pow, np.power, FLOATS),
    "atan2": Row(pl.atan2, np.arctan2, FLOATS),
    "maximum": Row(pl.maximum, np.maximum, REAL),
    "minimum": Row(pl.minimum, np.minimum, REAL),
    "copysign": Row(pl.copysign, np.copysign, FLOATS),
    "eq": Row(operator.eq, np.equal, REAL),
    "ne": Row(operator.ne, np.not_equal, REAL),
    "lt": Row(operator.lt, np.less, REAL),
    "le": Row(operator.le, np.less_equal, REAL),
    "gt": Row(operator.gt, np.greater, REAL),
    "ge": Row(operator.ge, np.greater_equal, REAL),
    "logical_and": Row(pl.logical_and, np.logical_and, ("bool",)),
    "logical_or": Row(pl.logical_or, np.logical_or, ("bool",)),
    "logical_xor": Row(pl.logical_xor, np.logical_xor, ("bool",)),
    "bit_and": Row(operator.and_, np.bitwise_and, INTEGERS),
    "bit_or": Row(operator.or_, np.bitwise_or, INTEGERS),
    "bit_xor": Row(operator.xor, np.bitwise_xor, INTEGERS),
    "shl": Row(operator.lshift, np.left_shift, INTEGERS),
    "shr": Row(operator.rshift, np.right_shift, INTEGERS),
}
ELSEWHERE = {"cast", "select"}  # their own tests follow


def test_every_elementwise_row_is_tried() -> None:
    rows = {name for name, op in TABLE.items() if op.family == "elementwise"}
    assert rows == set(UNARY) | set(BINARY) | ELSEWHERE


def _values(dtype: str, seed: int, scale: float = 3.0) -> Array:
    """Numbers of every size, with the special ones first."""
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, 36).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(kind)
        special = [info.min, info.max, info.max - 1, 0, 1, 2, 3, 7, info.min + 1, (-1) % (info.max + 1) or 1]
        if info.min:
            special += [-1, -2, -7]
        rest = rng.integers(info.min, info.max, 36 - len(special), dtype=kind, endpoint=True)
        values = np.concatenate([np.array(special, kind), rest])
        return rng.permutation(values)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 2.0, -2.5]
    ordinary = np.concatenate([rng.normal(0, scale, 17), rng.normal(0, 1e-3, 4), rng.normal(0, 40, 4)])
    return rng.permutation(np.concatenate([special, ordinary])).astype(kind)


def _expected(row: Row, operands: tuple[Array, ...], result: Any, exact: bool) -> Array:
    """The oracle in float64 where a function is rounded once, in float32 where a 16-bit row is exact."""
    first = operands[0]
    with np.errstate(all="ignore"):
        if is_half(first) or first.dtype.kind == "f":
            wide = np.float32 if exact and is_half(first) else first.dtype if exact else np.float64
            operands = tuple(array.astype(wide) for array in operands)
        return np.asarray(row.oracle(*operands)).astype(result)


def _check(
    name: str, row: Row, dtype: str, tensors: tuple[pl.Tensor, ...], arrays: tuple[Array, ...], where: str
) -> None:
    op = TABLE[name]
    found = row.call(*tensors)
    kind = bool if found.dtype is pl.bool_ else numpy_dtype(dtype)
    ulp = min(op.ulp, 1.0) if dtype in FLOATS[:2] else op.ulp
    assert_close(value_of(found), _expected(row, arrays, kind, op.ulp == 0), ulp, f"{name} {dtype} {where}")


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, row in UNARY.items() for dtype in row.dtypes])
def test_unary(name: str, dtype: str, jit: int) -> None:
    tried = layouts(_values(dtype, 1))
    chosen = tried if dtype in WIDELY_TRIED else ("contiguous", "zero-size")
    for layout in chosen:
        tensor, array = tried[layout]
        _check(name, UNARY[name], dtype, (tensor,), (array,), layout)


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, row in BINARY.items() for dtype in row.dtypes])
def test_binary(name: str, dtype: str, jit: int) -> None:
    left, right = layouts(_values(dtype, 1)), layouts(_operand(name, dtype))
    pairs = [("contiguous", "contiguous")]
    if dtype in WIDELY_TRIED:
        pairs += [("strided", "contiguous"), ("reversed", "column"), ("transposed", "0-d"), ("zero-size", "zero-size")]
    for a, b in pairs:
        (x, u), (y, v) = left[a], right[b]
        _check(name, BINARY[name], dtype, (x, y), (u, v), f"{a} with {b}")


def _operand(name: str, dtype: str) -> Array:
    """The second operand: shift counts run past the width, everything else is as the first."""
    if name in ("shl", "shr"):
        bits = numpy_dtype(dtype).itemsize * 8
        return (np.arange(36) % (bits + 2)).astype(numpy_dtype(dtype))
    return _values(dtype, 2)


@pytest.mark.parametrize("dtype", REAL)
def test_select(dtype: str, jit: int) -> None:
    condition, x, y = _values("bool", 3), _values(dtype, 1), _values(dtype, 2)
    found = pl.where(pl.asarray(condition), pl.asarray(x), pl.asarray(y)[:1])
    assert_close(value_of(found), np.where(condition, x, y[:1]), 0)


@pytest.mark.parametrize("target", REAL)
@pytest.mark.parametrize("source", REAL)
def test_cast(source: str, target: str, jit: int) -> None:
    values = _values(source, 4, scale=300.0)
    found = value_of(pl.asarray(values).astype(target))
    assert_close(found, _cast(values, numpy_dtype(target)), 0, f"{source} -> {target}")


def _cast(values: Array, target: Any) -> Array:
    """Python's integers as the oracle of float -> int, ml_dtypes and NumPy of the rest."""
    if target.kind not in "iu" or values.dtype.kind in "biu":
        with np.errstate(all="ignore"):
            return values.astype(target)
    info = np.iinfo(target)
    wide = values.astype(np.float64)
    whole = [0 if math.isnan(x) else (info.max if x > 0 else info.min) if math.isinf(x) else int(x) for x in wide]
    return np.array([min(max(x, info.min), info.max) for x in whole], dtype=target)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_float_to_integer_saturates_at_the_limits(dtype: str, target: str, jit: int) -> None:
    info = np.iinfo(target)
    around = [info.min, info.max, info.max // 2]
    near = np.array([*around, *(np.nextafter(np.array(around, dtype), np.array(math.inf, dtype)))], dtype)
    near = np.concatenate([near, -near, [0.9, -0.9, 1e30, -1e30]]).astype(dtype)
    assert_close(value_of(pl.asarray(near).astype(target)), _cast(near, np.dtype(target)), 0)


@pytest.mark.case("T11")
def test_narrowing_to_bfloat16_rounds_to_nearest_even(jit: int) -> None:
    values = [0.7031, 2.718281828, 263, 265, 1.00390625, 1.01171875, 3.4e38]
    found = pl.asarray(values).astype("bfloat16").astype("float32").tolist()
    assert found == [0.703125, 2.71875, 264, 264, 1.0, 1.015625, math.inf]


@pytest.mark.case("T11")
def test_narrowing_keeps_a_nan_a_nan_and_overflows_to_infinity(jit: int) -> None:
    bits = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0x7F7FFFFF, 0xFF7FFFFF], np.uint32)
    narrow = pl.asarray(bits.view(np.float32)).astype("bfloat16").numpy()
    assert np.isnan(narrow[:3].astype(np.float32)).all()
    assert narrow[3:].view(np.uint16).tolist() == [0x7F80, 0xFF80]


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_every_half_pattern_converts_as_ml_dtypes(name: str, jit: int) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(name))
    wide = pl.asarray(every).astype("float32").numpy()
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    with np.errstate(all="ignore"):
        middle = np.nextafter(wide, np.float32(0)) * np.float32(1.001)
        expected = middle.astype(numpy_dtype(name))
    found = pl.asarray(middle).astype(name).numpy()
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.case("T07")
def test_integer_division_is_exact(jit: int) -> None:
    b = np.arange(1, 301, dtype=np.int32)[:, None]
    k = np.arange(1, 301, dtype=np.int32)[None]
    product = pl.asarray(b) * pl.asarray(k)
    assert (product // pl.asarray(b) == pl.asarray(k)).all().item()
    assert (product % pl.asarray(b) == 0).all().item()
    big = pl.asarray([154, 16777217, 2147483647], dtype="int32")
    assert (big // pl.asarray([77, 1, 3], dtype="int32")).tolist() == [2, 16777217, 715827882]
    assert (big[:1] % 77).tolist() == [0]


@pytest.mark.parametrize("dtype", SIGNED)
def test_the_two_integer_divisions_without_an_answer(dtype: str, jit: int) -> None:
    low = int(np.iinfo(dtype).min)
    x = pl.asarray([5, -5, low, low], dtype=dtype)
    y = pl.asarray([0, 0, -1, 0], dtype=dtype)
    assert (x // y).tolist() == [0, 0, low, 0]
    assert (x % y).tolist() == [0, 0, 0, 0]


def test_comparisons_with_nan_are_ieee(jit: int) -> None:
    nan, one = pl.asarray([math.nan, math.nan, 1.0]), pl.asarray([math.nan, 1.0, math.nan])
    for compare in (operator.eq, operator.lt, operator.le, operator.gt, operator.ge):
        assert compare(nan, one).tolist() == [False] * 3
    assert (nan != one).tolist() == [True] * 3
    assert (pl.asarray([0.0]) == pl.asarray([-0.0])).tolist() == [True]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_passes_through_maximum_and_minimum(dtype: str, jit: int) -> None:
    x, y = pl.asarray([math.nan, 1.0, 2.0], dtype=dtype), pl.asarray([1.0, math.nan, 3.0], dtype=dtype)
    assert np.isnan(value_of(pl.maximum(x, y)).astype(np.float32)).tolist() == [True, True, False]
    assert np.isnan(value_of(pl.minimum(x, y)).astype(np.float32)).tolist() == [True, True, False]


def test_a_negative_zero_scalar_is_not_its_twin(jit: int) -> None:
    x = pl.asarray([1.0, 2.0])
    for _ in range(4):
        assert np.signbit((x * 0.0).numpy()).tolist() == [False, False]
        assert np.signbit((x * -0.0).numpy()).tolist() == [True, True]


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int32", "int64"])
def test_integer_powers(dtype: str, jit: int) -> None:
    base, exponent = np.array([0, 1, 2, 3, 7, 10], dtype), np.array([0, 5, 3, 4, 2, 1], dtype)
    found = pl.asarray(base) ** pl.asarray(exponent)
    assert_close(value_of(found), base**exponent, 0)


@pytest.mark.parametrize("exponent", [-1, 0, 0.5, 1, 2, 3, 2.5])
def test_scalar_exponents(exponent: float, jit: int) -> None:
    x = np.array([0.5, 1.0, 2.0, 9.0, 100.0], np.float32)
    assert_close(value_of(pl.asarray(x) ** exponent), (x.astype(np.float64) ** exponent).astype(np.float32), 8)


def test_chains_round_after_every_16_bit_operation(jit: int) -> None:
    rng = np.random.default_rng(0)
    for kind in (ml_dtypes.bfloat16, np.float16):
        a, b, c = (rng.normal(size=200).astype(kind) for _ in range(3))
        found = pl.asarray(a) * pl.asarray(b) + pl.asarray(c)
        step = (a.astype(np.float32) * b.astype(np.float32)).astype(kind)
        expected = (step.astype(np.float32) + c.astype(np.float32)).astype(kind)
        assert_close(value_of(found), expected, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pl.ones((2, 3)) + pl.ones((4, 3)), r"add: shapes \(2, 3\) and \(4, 3\) do not broadcast"),
        (lambda: pl.zeros((0, 2)) + pl.zeros((3, 2)), r"\(0, 2\) and \(3, 2\)"),
        (lambda: pl.floor(pl.asarray([1j])), "floor: dtype complex64"),
        (lambda: ~pl.ones(2), "bit_not: dtype float32"),
        (lambda: -pl.asarray([True]), "neg: dtype bool"),
        (lambda: pl.ones(2) & pl.ones(2), "bit_and: dtype float32"),
        (lambda: pl.asarray([1j]) < 1, "lt: dtype complex64"),
    ],
)
def test_errors_come_at_the_call_and_name_what_was_found(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_arithmetic(dtype: str, jit: int) -> None:
    rng = np.random.default_rng(0)
    a, b = ((rng.normal(size=9) + 1j * rng.normal(size=9)).astype(dtype) for _ in range(2))
    x, y = pl.asarray(a), pl.asarray(b)
    for function in (operator.add, operator.sub, operator.mul, operator.truediv):
        np.testing.assert_allclose(function(x, y).numpy(), function(a, b), rtol=1e-6)
    np.testing.assert_allclose(pl.exp(x).numpy(), np.exp(a), rtol=1e-6)
    np.testing.assert_array_equal((x == x).numpy(), [True] * 9)


def test_the_table_names_its_bounds() -> None:
    exact = {name for name in (*UNARY, *BINARY) if TABLE[name].ulp == 0}
    assert {"add", "mul", "div", "sqrt", "floor", "eq"} <= exact
    assert elementwise.EXP.ulp > 0
