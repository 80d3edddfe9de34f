"""Every reduction, scan, sort and product in both executors, per dtype, axis and layout, against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import plait as pl
from plait.framework.op import TABLE
from tests.framework.compare import Array, assert_close, is_half, numpy_dtype, value_of

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
REAL = ("bool", *INTEGERS, *FLOATS)
AXES: tuple[Any, ...] = (None, 0, 1, -1, (0, 2), (1, 2), ())
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "strided": lambda x: x[:, ::2],
    "reversed": lambda x: x[::-1, :, ::-1],
    "transposed": lambda x: x.transpose(2, 0, 1),
    "column": lambda x: x[:, 1:2],
}


class Row(NamedTuple):
    oracle: Callable[..., Any]
    dtypes: tuple[str, ...]


ROWS = {
    "sum": Row(np.sum, REAL),
    "prod": Row(np.prod, REAL),
    "max": Row(np.max, REAL),
    "min": Row(np.min, REAL),
    "any": Row(np.any, ("bool", "int32", "float32")),
    "all": Row(np.all, ("bool", "int32", "float32")),
}
ARG_ROWS = {"argmax": Row(np.argmax, REAL), "argmin": Row(np.argmin, REAL)}


def _values(dtype: str, shape: tuple[int, ...] = (3, 4, 37)) -> Array:
    rng = np.random.default_rng(7)
    if dtype == "bool":
        return rng.random(shape) < 0.9
    if dtype in INTEGERS:
        return rng.integers(0, 5, shape).astype(dtype)
    return (1 + rng.random(shape) * 0.25).astype(numpy_dtype(dtype))


def _result(name: str, dtype: str) -> Any:
    """The result dtype: sums of integers are wide, any and all are bool, the rest keep theirs."""
    if name in ("any", "all"):
        return np.dtype(bool)
    if name in ("sum", "prod") and dtype not in FLOATS:
        return np.dtype("uint64" if dtype.startswith("u") else "int64")
    return numpy_dtype(dtype)


def _expected(name: str, array: Array, axis: Any, keepdims: bool) -> Array:
    wide = array.astype(np.float64) if is_half(array) or array.dtype.kind == "f" else array
    kind = _result(name, "bool" if array.dtype == bool else array.dtype.name)
    options = {"dtype": kind} if kind.kind in "iu" and name in ("sum", "prod") else {}
    with np.errstate(all="ignore"):
        return np.asarray(ROWS[name].oracle(wide, axis=axis, keepdims=keepdims, **options)).astype(kind)


def _call(name: str, x: pl.Tensor, axis: Any, keepdims: bool) -> Array:
    return value_of(getattr(pl, name)(x, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, row in ROWS.items() for dtype in row.dtypes])
def test_reductions(name: str, dtype: str, jit: int) -> None:
    array = _values(dtype)
    tensor = pl.asarray(array, copy=True)
    ulp = min(TABLE[name].ulp, 1.0) if dtype in FLOATS[:2] else TABLE[name].ulp
    layouts = LAYOUTS if dtype in ("float32", "int64") else {"contiguous": LAYOUTS["contiguous"]}
    for layout, view in layouts.items():
        for axis in AXES:
            found = _call(name, view(tensor), axis, axis == 0)
            assert_close(found, _expected(name, view(array), axis, axis == 0), ulp, f"{name} {dtype} {layout} {axis}")


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, row in ARG_ROWS.items() for dtype in row.dtypes])
def test_arg_reductions_take_the_first_of_equals(name: str, dtype: str, jit: int) -> None:
    array = _values(dtype)
    array[:, :, ::2] = array[:, :, :1]  # many ties
    tensor = pl.asarray(array, copy=True)
    for layout in ("contiguous", "reversed", "transposed"):
        for axis in (None, 0, 1, 2):
            x, a = LAYOUTS[layout](tensor), LAYOUTS[layout](array)
            wide = a.astype(np.float32) if is_half(a) else a
            expected = np.asarray(ARG_ROWS[name].oracle(wide, axis=axis, keepdims=axis == 1))
            found = _call(name, x, axis, axis == 1)
            assert_close(found, expected, 0, f"{name} {dtype} {layout} {axis}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_wins_and_its_first_place_is_named(dtype: str, jit: int) -> None:
    array = _values(dtype, (4, 70))
    array[1, 50] = array[1, 9] = math.nan
    array[2, 3] = math.inf
    x = pl.asarray(array, copy=True)
    wide = array.astype(np.float32)
    for name in ("max", "min", "argmax", "argmin"):
        for axis in (None, 0, 1):
            expected = getattr(np, name)(wide, axis=axis)
            np.testing.assert_array_equal(_call(name, x, axis, False).astype(np.float32), expected)
    assert x.argmax(axis=1).tolist()[1] == 9
    assert math.isnan(x.sum().item())


LOWEST = {"float32": float(np.finfo(np.float32).min), "int8": -128, "uint8": 0, "int64": -(2**63), "bool": False}
HIGHEST = {"float32": float(np.finfo(np.float32).max), "int8": 127, "uint8": 255, "int64": 2**63 - 1, "bool": True}


@pytest.mark.system(115)
@pytest.mark.case("T03")
@pytest.mark.parametrize("dtype", LOWEST)
def test_identities_over_an_empty_axis(dtype: str, jit: int) -> None:
    x = pl.zeros((2, 0, 3), dtype=dtype)
    assert x.sum(axis=1).tolist() == [[0, 0, 0]] * 2
    assert x.prod(axis=1).tolist() == [[1, 1, 1]] * 2
    assert x.max(axis=1).tolist() == [[LOWEST[dtype]] * 3] * 2
    assert x.min(axis=1, keepdims=True).tolist() == [[[HIGHEST[dtype]] * 3]] * 2
    assert x.argmax(axis=1).tolist() == x.argmin(axis=1).tolist() == [[0, 0, 0]] * 2
    assert x.max().item() == LOWEST[dtype]
    assert x.argmax().item() == 0
    assert pl.all(x, axis=1).tolist() == [[True] * 3] * 2
    assert pl.any(x, axis=1).tolist() == [[False] * 3] * 2


@pytest.mark.system(115)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_identities_over_an_empty_axis_of_other_floats(dtype: str, jit: int) -> None:
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    x = pl.zeros((0, 2), dtype=dtype)
    assert x.max(axis=0).tolist() == [float(info.min)] * 2
    assert x.min(axis=0).tolist() == [float(info.max)] * 2
    assert x.sum(axis=0).tolist() == [0.0, 0.0]
    assert np.isnan(np.array(x.mean(axis=0).tolist())).all()


@pytest.mark.system(115)
def test_the_mean_of_nothing_is_nan_and_0_as_an_integer(jit: int) -> None:
    for dtype in ("float32", "int32"):
        mean = pl.zeros((2, 0), dtype=dtype).mean(axis=1)
        assert mean.dtype is pl.float32
        assert np.isnan(mean.numpy()).all()
    assert pl.zeros((2, 0)).mean(axis=1, dtype=int).tolist() == [0, 0]


@pytest.mark.case("T03")
def test_zero_size_arrays_whose_reduced_axis_is_not_empty(jit: int) -> None:
    assert pl.zeros((0, 4)).max(axis=1).shape == (0,)
    assert pl.zeros((0, 4)).max(axis=1).numpy().dtype == np.float32
    assert pl.zeros((2, 0)).max(axis=0).shape == (0,)
    arg = pl.zeros((2, 0)).argmax(axis=0)
    assert arg.shape == (0,) and arg.dtype.is_integral and arg.tolist() == []
    assert pl.zeros((0, 4)).sum(axis=0).tolist() == [0.0] * 4
    assert pl.zeros((0, 4)).prod(axis=0).tolist() == [1.0] * 4
    assert (pl.ones((4, 0)) @ pl.ones((0, 5))).tolist() == [[0.0] * 5] * 4
    assert (pl.zeros((0, 256)) + pl.ones((1, 256))).numpy().shape == (0, 256)
    with pytest.raises(ValueError, match="broadcast"):
        pl.zeros((0, 2)) + pl.zeros((3, 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_accumulate_in_float32(dtype: str, jit: int) -> None:
    x = pl.ones((5000,), dtype=dtype)
    assert x.sum().item() == pl.asarray([5000.0]).astype(dtype).item()
    assert x.mean().item() == 1.0
    cumulative = pl.cumsum(pl.ones((600,), dtype=dtype)).tolist()
    assert cumulative[-1] == pl.asarray([600.0]).astype(dtype).item()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 4095, 70_001])
def test_long_sums_stay_close_to_the_exact_sum(size: int, jit: int) -> None:
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    bound = 1e-6 * float(np.abs(x).sum()) + 1e-9
    assert abs(pl.asarray(x).sum().item() - math.fsum(x.tolist())) <= bound
    assert abs(pl.asarray(np.stack([x, x])).sum(axis=1).tolist()[1] - math.fsum(x.tolist())) <= bound


def test_sums_take_a_dtype_and_wrap_in_it(jit: int) -> None:
    x = pl.asarray([200, 100], dtype="uint8")
    assert x.sum().item() == 300
    assert x.sum().dtype is pl.uint64
    assert x.sum(dtype="uint8").item() == 44
    assert pl.asarray([0.5, 0.5]).sum(dtype="float64").dtype is pl.float64


@pytest.mark.parametrize("correction", [0, 1])
def test_variance_and_deviation(correction: int, jit: int) -> None:
    x = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    for axis in (None, 0, 1):
        found = pl.var(pl.asarray(x), axis, correction).numpy()
        np.testing.assert_allclose(found, np.var(x, axis=axis, ddof=correction), rtol=1e-5)
        found = pl.std(pl.asarray(x), axis, correction, keepdims=True).numpy()
        np.testing.assert_allclose(found, np.std(x, axis=axis, ddof=correction, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_cumulative_sums(dtype: str, axis: int | None, jit: int) -> None:
    array = _values(dtype, (5, 7))
    found = value_of(pl.cumsum(pl.asarray(array), axis))
    kind = _result("sum", dtype)
    wide = array.astype(np.float64 if dtype in FLOATS else kind)
    assert_close(found, np.cumsum(wide, axis=axis).astype(kind), 1 if dtype in FLOATS[:2] else 64)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("axis", [0, -1])
def test_sorts_are_stable_with_nan_last(dtype: str, axis: int, jit: int) -> None:
    array = _values(dtype, (6, 9))
    array[:, 3] = array[:, 1]
    if dtype in FLOATS:
        array[2, 4] = math.nan
    wide = array.astype(np.float32) if is_half(array) else array
    x = pl.asarray(array, copy=True)
    found = value_of(pl.sort(x, axis))
    np.testing.assert_array_equal(found.astype(wide.dtype), np.sort(wide, axis=axis, kind="stable"))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(pl.argsort(x, axis).numpy(), np.argsort(wide, axis=axis, kind="stable"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.sum(axis=2), "sum: axis 2 for an array of rank 2; expected -2 to 1"),
        (lambda x: x.max(axis=(0, 0)), "name one axis twice"),
        (lambda x: x.argmax(axis=-3), "argmax: axis -3"),
        (lambda x: pl.sort(pl.asarray(1.0)), "sort: axis -1 for an array of rank 0|0-d"),
        (lambda x: x.astype("complex64").max(), "max: dtype complex64"),
    ],
)
def test_errors_come_at_the_call(call: Callable[[pl.Tensor], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        call(pl.ones((2, 3)))


@pytest.mark.case("T28")
@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed", "broadcast"])
def test_products_and_reductions_of_views(layout: str, jit: int) -> None:
    rng = np.random.default_rng(3)
    for k in range(2, 10):
        x, w = rng.normal(size=(2 * k, 6)).astype(np.float32), rng.normal(size=(k, 5)).astype(np.float32)
        views: dict[str, Callable[[Any], Any]] = {
            "transposed": lambda a, k=k: a.reshape(6, 2 * k).T[:k],
            "strided": lambda a: a[::2],
            "reversed": lambda a: a[::-2],
            "broadcast": lambda a, k=k: a[:1],
        }
        array, tensor = views[layout](x), views[layout](pl.asarray(x))
        if layout == "broadcast":
            array, tensor = np.broadcast_to(array, (k, 6)), tensor.broadcast_to((k, 6))
        product = array.T.astype(np.float64) @ w
        fused = (tensor.T[:, :, None] * pl.asarray(w)[None]).sum(1)
        np.testing.assert_allclose(fused.numpy(), product, atol=1e-5)
        np.testing.assert_allclose((tensor.T @ pl.asarray(w)).numpy(), product, atol=1e-5)
        np.testing.assert_allclose(tensor.sum(0).numpy(), array.sum(0), atol=1e-5)


@pytest.mark.case("T28")
def test_a_transposed_operand_of_a_product(jit: int) -> None:
    a = pl.asarray([[1.5, -2, 0.25], [-0.5, 3, 4]])
    assert (a.T @ pl.ones((2, 2))).tolist() == [[1, 1], [1, 1], [4.25, 4.25]]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize(
    ("left", "right"), [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (6, 4, 2))]
)
def test_matmul(dtype: str, left: tuple[int, ...], right: tuple[int, ...], jit: int) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 6, shape).astype(numpy_dtype(dtype)) for shape in (left, right))
    found = pl.asarray(a) @ pl.asarray(b)
    wide = np.complex128 if dtype == "complex64" else np.float64
    expected = np.matmul(a.astype(wide), b.astype(wide)).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(found.numpy().astype(wide), expected.astype(wide))
    assert found.dtype.name == dtype


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((4, 8), (6, 3), r"matmul: shapes \(4, 8\) and \(6, 3\) do not fit"),
        ((4, 8), (6,), r"\(4, 8\) and \(6,\)"),
        ((), (3,), "0-d"),
        ((2, 3, 4), (3, 4, 5), r"\(2,\) and \(3,\) do not broadcast"),
    ],
)
def test_matmul_errors_name_both_shapes(left: tuple[int, ...], right: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pl.ones(left) @ pl.ones(right)
