"""Promotion follows the Array API tables and plait's own rules beyond them; dtypes are named, pickled singletons."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import plait as pl
from plait.framework.dtype import ARITHMETIC_DTYPES, DTYPES, STORAGE_DTYPES, as_dtype, promote, scalar_dtype
from plait.framework.errors import DTypeError

# The Array API 2024.12 tables, row by row, as the standard prints them.
SIGNED = """
     i1 i2 i4 i8
i1   i1 i2 i4 i8
i2   i2 i2 i4 i8
i4   i4 i4 i4 i8
i8   i8 i8 i8 i8
"""
UNSIGNED = """
     u1 u2 u4 u8
u1   u1 u2 u4 u8
u2   u2 u2 u4 u8
u4   u4 u4 u4 u8
u8   u8 u8 u8 u8
"""
MIXED = """
     u1 u2 u4
i1   i2 i4 i8
i2   i2 i4 i8
i4   i4 i4 i8
i8   i8 i8 i8
"""
INEXACT = """
     f4 f8 c8 c16
f4   f4 f8 c8 c16
f8   f8 f8 c16 c16
c8   c8 c16 c8 c16
c16  c16 c16 c16 c16
"""


def _cells() -> list[tuple[str, str, str]]:
    cells = []
    for table in (SIGNED, UNSIGNED, MIXED, INEXACT):
        head, *rows = [line.split() for line in table.strip().splitlines()]
        for name, *results in rows:
            cells += [(name, column, result) for column, result in zip(head, results, strict=True)]
    return cells


def _dtype(short: str) -> Any:
    return as_dtype(np.dtype(short))


@pytest.mark.parametrize(("a", "b", "result"), _cells())
def test_promotion_is_the_array_api_table(a: str, b: str, result: str) -> None:
    assert promote(_dtype(a), _dtype(b)) is _dtype(result)
    assert promote(_dtype(b), _dtype(a)) is _dtype(result)


def test_bool_with_bool_is_bool_and_yields_to_every_other_dtype() -> None:
    for dtype in ARITHMETIC_DTYPES:
        assert promote(pl.bool_, dtype) is dtype
        assert promote(dtype, pl.bool_) is dtype


@pytest.mark.parametrize("float_name", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("int_name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_an_integer_beside_a_float_takes_the_floats_width(int_name: str, float_name: str) -> None:
    assert promote(as_dtype(int_name), as_dtype(float_name)).name == float_name


def test_the_16_bit_floats_meet_in_float32() -> None:
    assert promote(pl.float16, pl.bfloat16) is pl.float32
    for half in (pl.float16, pl.bfloat16):
        for wide in (pl.float32, pl.float64, pl.complex64, pl.complex128):
            assert promote(half, wide) is wide


@pytest.mark.parametrize("signed", ["int8", "int16", "int32", "int64"])
def test_uint64_with_a_signed_integer_names_both(signed: str) -> None:
    with pytest.raises(DTypeError, match=f"uint64.*{signed}|{signed}.*uint64"):
        promote(pl.uint64, as_dtype(signed))
    with pytest.raises(TypeError, match="astype"):
        pl.asarray([1], dtype="uint64") + pl.asarray([1], dtype=signed)


@pytest.mark.parametrize("dtype", STORAGE_DTYPES, ids=lambda dtype: dtype.name)
def test_storage_dtypes_convert_and_refuse_arithmetic(dtype: Any) -> None:
    values = np.array([0.5, 1.0, 2.0, 3.9], np.float32)
    stored = pl.asarray(values).astype(dtype)
    expected = values.astype(getattr(ml_dtypes, dtype.name))
    assert stored.dtype is dtype
    np.testing.assert_array_equal(stored.astype("float32").numpy(), expected.astype(np.float32))
    with pytest.raises(TypeError, match="astype"):
        stored + stored
    with pytest.raises(TypeError, match="astype"):
        stored + pl.asarray(values)


SCALARS = [
    (True, "bool", "bool"),
    (True, "int8", "int8"),
    (True, "float16", "float16"),
    (3, "bool", "int64"),
    (3, "uint8", "uint8"),
    (3, "bfloat16", "bfloat16"),
    (3, "complex64", "complex64"),
    (1.5, "bool", "float32"),
    (1.5, "int64", "float32"),
    (1.5, "float16", "float16"),
    (1.5, "bfloat16", "bfloat16"),
    (1.5, "float64", "float64"),
    (1.5, "complex128", "complex128"),
    (1j, "int32", "complex64"),
    (1j, "float32", "complex64"),
    (1j, "float64", "complex128"),
]


@pytest.mark.parametrize(("value", "array", "result"), SCALARS)
def test_python_scalars_are_weak(value: Any, array: str, result: str) -> None:
    assert scalar_dtype(value, as_dtype(array)).name == result


def test_subclasses_of_int_and_float_are_weak_too() -> None:
    import enum

    class Level(enum.IntEnum):
        HIGH = 3

    class Metres(float):
        pass

    assert (pl.asarray([1], dtype="int8") + Level.HIGH).dtype is pl.int8
    assert (pl.asarray([1.0], dtype="float16") * Metres(2.0)).dtype is pl.float16


def test_a_numpy_scalar_is_an_array_not_a_weak_scalar() -> None:
    assert (pl.asarray([1.0]) + np.float64(1)).dtype is pl.float64
    assert (pl.asarray([1], dtype="int8") + np.int32(1)).dtype is pl.int32


def test_an_integer_scalar_outside_the_dtype_is_refused() -> None:
    with pytest.raises(OverflowError, match="300.*uint8"):
        pl.asarray([1], dtype="uint8") + 300


def test_integer_division_and_mean_give_the_default_float() -> None:
    x = pl.asarray([1, 2], dtype="int8")
    assert (x / x).dtype is pl.float32
    assert x.mean().dtype is pl.float32
    assert (x / 2).dtype is pl.float32


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_singletons_under_every_spelling(name: str) -> None:
    dtype = DTYPES[name]
    assert as_dtype(name) is dtype
    assert as_dtype(dtype) is dtype
    assert as_dtype(dtype.numpy) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert dtype.itemsize == dtype.numpy.itemsize


@pytest.mark.parametrize(("kind", "name"), [(bool, "bool"), (int, "int64"), (float, "float32"), (complex, "complex64")])
def test_python_types_name_the_default_dtypes(kind: type, name: str) -> None:
    assert as_dtype(kind).name == name


@pytest.mark.parametrize("value", ["float128", "object", object, "S3", 3])
def test_an_unknown_dtype_lists_the_known(value: Any) -> None:
    with pytest.raises(TypeError, match="known: .*float32"):
        as_dtype(value)


def test_result_type_takes_tensors_dtypes_and_scalars() -> None:
    assert pl.result_type(pl.ones(2), pl.float64) is pl.float64
    assert pl.result_type(pl.asarray([1], dtype="int8"), 1.5) is pl.float32
    assert pl.result_type(pl.asarray([1], dtype="int8"), 1) is pl.int8
