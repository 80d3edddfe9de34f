"""What the Array API lets a library ask, and what libraries do with the answers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import plait as pl


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_finfo_gives_the_formats_limits(name: str) -> None:
    info, expected = pl.finfo(getattr(pl, name)), ml_dtypes.finfo(getattr(ml_dtypes, name, name))
    assert (info.bits, info.eps, info.max, info.min) == (
        expected.bits,
        float(expected.eps),
        float(expected.max),
        float(expected.min),
    )
    assert info.smallest_normal == float(expected.smallest_normal)


@pytest.mark.parametrize("name", ["int8", "uint16", "int32", "int64", "uint64"])
def test_iinfo_gives_the_limits(name: str) -> None:
    info, expected = pl.iinfo(pl.zeros(2, dtype=name)), np.iinfo(name)
    assert (info.bits, info.max, info.min) == (expected.bits, expected.max, expected.min)


def test_limits_of_complex_dtypes_are_those_of_their_parts() -> None:
    assert pl.finfo(pl.complex128) == pl.finfo(pl.float64)
    with pytest.raises(TypeError, match="finfo: dtype int8 is not floating"):
        pl.finfo(pl.int8)
    with pytest.raises(TypeError, match="iinfo: dtype bool"):
        pl.iinfo(pl.bool)


@pytest.mark.parametrize(
    ("dtype", "kinds"),
    [
        ("bool", {"bool"}),
        ("int16", {"signed integer", "integral", "numeric"}),
        ("uint8", {"unsigned integer", "integral", "numeric"}),
        ("bfloat16", {"real floating", "numeric"}),
        ("complex64", {"complex floating", "numeric"}),
    ],
)
def test_isdtype_by_kind(dtype: str, kinds: set[str]) -> None:
    names = (
        *("bool", "signed integer", "unsigned integer", "integral"),
        *("real floating", "complex floating", "numeric"),
    )
    assert {name for name in names if pl.isdtype(getattr(pl, dtype), name)} == kinds
    assert pl.isdtype(getattr(pl, dtype), (pl.float64, getattr(pl, dtype)))
    with pytest.raises(ValueError, match="isdtype: kind 'whole'"):
        pl.isdtype(pl.int8, "whole")


def test_can_cast_follows_promotion() -> None:
    assert pl.can_cast(pl.int8, pl.int16) and pl.can_cast(pl.ones(1), pl.float64)
    assert not pl.can_cast(pl.int16, pl.int8) and not pl.can_cast(pl.uint64, pl.int64)


def test_the_namespace_describes_itself() -> None:
    x = pl.ones(2)
    assert x.__array_namespace__() is pl and x.__array_namespace__(api_version="2024.12") is pl
    with pytest.raises(ValueError, match="version '1999.01'"):
        x.__array_namespace__(api_version="1999.01")
    info = pl.__array_namespace_info__()
    assert info.default_device() == x.device and info.devices() == [x.device]
    assert info.default_dtypes()["real floating"] is pl.ones(1).dtype
    assert info.default_dtypes()["integral"] is pl.asarray(1).dtype
    assert set(info.dtypes(kind=("bool", "signed integer"))) == {"bool", "int8", "int16", "int32", "int64"}
    assert pl.__array_api_version__ == "2024.12"


def test_dlpack_shares_or_copies_as_asked() -> None:
    source = np.arange(4.0)
    shared, private = pl.from_dlpack(source), pl.from_dlpack(source, copy=True)
    source[0] = 9
    assert shared.tolist()[0] == 9 and private.tolist()[0] == 0
    assert np.from_dlpack(shared).ctypes.data == source.ctypes.data
    assert np.from_dlpack(shared, copy=True).ctypes.data != source.ctypes.data


def test_to_device_takes_the_host_only() -> None:
    x = pl.ones(2)
    assert x.to_device(x.device) is x
    with pytest.raises(ValueError, match="to_device: stream=1"):
        x.to_device("cpu", stream=1)


def test_parts_of_complex_tensors() -> None:
    x = pl.asarray([1 + 2j, -3j])
    assert x.real.tolist() == [1, 0] and x.imag.tolist() == [2, -3] and x.real.dtype is pl.float32
    assert x.conj().tolist() == [1 - 2j, 3j]
    assert abs(pl.asarray([3 + 4j])).tolist() == [5.0]
    y = pl.ones(2)
    assert y.real is y and y.imag.tolist() == [0, 0]


LIKE: list[tuple[Any, Any]] = [
    (lambda: pl.linspace(0, 1, 5, endpoint=False), np.linspace(0, 1, 5, endpoint=False)),
    (lambda: pl.linspace(1j, 2, 3), np.linspace(1j, 2, 3)),
    (lambda: pl.eye(2, 4, k=1), np.eye(2, 4, 1)),
    (lambda: pl.empty_like(pl.ones((2, 3))), np.zeros((2, 3))),
    (lambda: pl.fromfunction(lambda i, j: i + 2 * j, (2, 3)), np.fromfunction(lambda i, j: i + 2 * j, (2, 3))),
    (lambda: pl.fromiter((i * i for i in range(4)), pl.int32), np.array([0, 1, 4, 9])),
]


@pytest.mark.parametrize(("call", "expected"), LIKE)
def test_creation(call: Any, expected: Any) -> None:
    np.testing.assert_allclose(call().numpy(), expected, rtol=1e-6)
