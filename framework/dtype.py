"""The dtype table: names, NumPy meanings and the promotion rules. Knows no tensor.

Promotion follows the Array API 2024.12 tables where they define a result; elsewhere int or bool with float takes the
float's width, float16 with bfloat16 gives float32, and uint64 with a signed integer is an error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from plait.framework.errors import DTypeError

PyScalar = bool | int | float | complex


class DType:
    """One element type. Instances are singletons; compare them with `is` or `==`."""

    __slots__ = ("name", "kind", "itemsize", "numpy", "bits")

    def __init__(self, name: str, kind: str, numpy: Any, bits: int) -> None:
        self.name = name
        self.kind = kind  # b bool, i signed, u unsigned, f float, c complex, s storage only
        self.numpy: np.dtype[Any] = np.dtype(numpy)
        self.itemsize: int = self.numpy.itemsize
        self.bits = bits

    def __repr__(self) -> str:
        return f"plait.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integral(self) -> bool:
        return self.kind in "iu"


bool_ = DType("bool", "b", np.bool_, 8)
int8 = DType("int8", "i", np.int8, 8)
int16 = DType("int16", "i", np.int16, 16)
int32 = DType("int32", "i", np.int32, 32)
int64 = DType("int64", "i", np.int64, 64)
uint8 = DType("uint8", "u", np.uint8, 8)
uint16 = DType("uint16", "u", np.uint16, 16)
uint32 = DType("uint32", "u", np.uint32, 32)
uint64 = DType("uint64", "u", np.uint64, 64)
float16 = DType("float16", "f", np.float16, 16)
bfloat16 = DType("bfloat16", "f", ml_dtypes.bfloat16, 16)
float32 = DType("float32", "f", np.float32, 32)
float64 = DType("float64", "f", np.float64, 64)
complex64 = DType("complex64", "c", np.complex64, 64)
complex128 = DType("complex128", "c", np.complex128, 128)
STORAGE_DTYPES = tuple(
    DType(name, "s", getattr(ml_dtypes, name), bits)
    for name, bits in (
        ("float8_e4m3fn", 8),
        ("float8_e4m3fnuz", 8),
        ("float8_e5m2", 8),
        ("float8_e5m2fnuz", 8),
        ("float8_e8m0fnu", 8),
        ("float4_e2m1fn", 4),
        ("float6_e2m3fn", 6),
        ("float6_e3m2fn", 6),
    )
)
float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu = STORAGE_DTYPES[:5]
float4_e2m1fn, float6_e2m3fn, float6_e3m2fn = STORAGE_DTYPES[5:]

ARITHMETIC_DTYPES = (
    *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64, complex64, complex128),
)
DTYPES = {dtype.name: dtype for dtype in (*ARITHMETIC_DTYPES, *STORAGE_DTYPES)}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}
_BY_PYTHON = {bool: bool_, int: int64, float: float32, complex: complex64}

default_int, default_float, default_complex = int64, float32, complex64


def as_dtype(value: Any) -> DType:
    """Read a dtype from a DType, a name, a NumPy dtype or one of `bool`, `int`, `float`, `complex`.

    Raises: DTypeError when it names no dtype plait has.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in DTYPES:
        return DTYPES[value]
    if isinstance(value, type) and value in _BY_PYTHON:
        return _BY_PYTHON[value]
    try:
        return _BY_NUMPY[np.dtype(value).newbyteorder("=")]
    except (TypeError, KeyError):
        raise DTypeError(f"dtype: {value!r} is not a plait dtype; known: {', '.join(DTYPES)}.") from None


_SIGNED = {8: int8, 16: int16, 32: int32, 64: int64}
_RANK = {float16: 1, bfloat16: 1, float32: 2, float64: 3, complex64: 2, complex128: 3}
_FLOAT_OF_RANK = {2: float32, 3: float64}
_COMPLEX_OF_RANK = {1: complex64, 2: complex64, 3: complex128}


@cache
def promote(a: DType, b: DType) -> DType:
    """The common dtype of two arrays.

    Raises: DTypeError for uint64 with a signed integer, and for storage dtypes unless both are the same.
    """
    if a is b:
        return a
    if "s" in (a.kind, b.kind):
        raise DTypeError(f"promote: {a.name} and {b.name} have no common dtype; convert one with astype.")
    if a.kind in "fc" or b.kind in "fc":
        return _promote_inexact(a, b)
    return _promote_exact(a, b)


def _promote_inexact(a: DType, b: DType) -> DType:
    floats = [dtype for dtype in (a, b) if dtype.kind in "fc"]
    if len(floats) == 1:
        return floats[0]
    rank = max(_RANK[a], _RANK[b])
    if "c" in (a.kind, b.kind):
        return _COMPLEX_OF_RANK[rank]
    if rank == 1:
        return float32  # float16 with bfloat16: neither holds the other
    return _FLOAT_OF_RANK[rank]


def _promote_exact(a: DType, b: DType) -> DType:
    if a.kind == "b":
        return b
    if b.kind == "b":
        return a
    if a.kind == b.kind:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    bits = max(signed.bits, unsigned.bits * 2)
    if bits > 64:
        raise DTypeError(f"promote: {a.name} and {b.name} have no common integer dtype; convert one with astype.")
    return _SIGNED[bits]


def scalar_dtype(value: PyScalar, other: DType | None) -> DType:
    """The dtype a Python scalar takes beside an array of dtype `other`: scalars are weak.

    Raises: DTypeError when the array's dtype cannot hold that kind of scalar.
    """
    kind: type = type(value)
    if kind not in _BY_PYTHON:
        kind = next(base for base in _BY_PYTHON if isinstance(value, base))
    if other is None:
        return _BY_PYTHON[kind]
    if kind is bool or other.kind == "c":
        return other
    if kind is int:
        return default_int if other.kind == "b" else other
    if kind is float:
        return other if other.kind == "f" else default_float
    return _COMPLEX_OF_RANK[_RANK.get(other, 2)]


def accumulator(dtype: DType) -> DType:
    """The dtype a reduction accumulates in: float32 for the 16-bit floats, else the dtype itself."""
    return float32 if dtype in (float16, bfloat16) else dtype
