"""What the Array API lets a library ask: dtypes and their limits, casts, devices, capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from plait.framework.conversion import asarray, from_numpy
from plait.framework.device import CPU, Device, as_device
from plait.framework.dtype import DTYPES, DType, as_dtype, default_complex, default_float, default_int, promote
from plait.framework.errors import DTypeError
from plait.framework.tensor import Tensor

KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}
STANDARD = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class FInfo:
    """Limits of a floating dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IInfo:
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(value: Any) -> DType:
    return value.dtype if isinstance(value, Tensor) else as_dtype(getattr(value, "dtype", value))


def finfo(type: Any, /) -> FInfo:  # noqa: A002
    """Limits of a floating dtype, or of an array's; of a complex dtype those of its parts.

    Raises: DTypeError for a dtype that is not floating.
    """
    dtype = _dtype_of(type)
    if dtype.kind == "c":
        dtype = as_dtype("float32" if dtype.bits == 64 else "float64")
    if dtype.kind not in "fs":
        raise DTypeError(f"finfo: dtype {dtype.name} is not floating; use iinfo.")
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    eps, top, low, normal = (float(v) for v in (info.eps, info.max, info.min, info.smallest_normal))
    return FInfo(dtype.bits, eps, top, low, normal, dtype)


def iinfo(type: Any, /) -> IInfo:  # noqa: A002
    """Limits of an integer dtype, or of an array's.

    Raises: DTypeError for a dtype that is no integer.
    """
    dtype = _dtype_of(type)
    if not dtype.is_integral:
        raise DTypeError(f"iinfo: dtype {dtype.name} is no integer; use finfo.")
    info = np.iinfo(dtype.numpy)
    return IInfo(dtype.bits, int(info.max), int(info.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a name of the standard, a dtype, or a tuple of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, part) for part in kind)
    given = as_dtype(dtype)
    if isinstance(kind, str) and kind in KINDS:
        return given.kind in KINDS[kind]
    if isinstance(kind, str) and kind not in DTYPES:
        raise ValueError(f"isdtype: kind {kind!r}; expected a dtype or one of {', '.join(KINDS)}.")
    return given is as_dtype(kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion takes a dtype, or an array's, to another one."""
    target = as_dtype(to)
    try:
        return promote(_dtype_of(from_), target) is target
    except DTypeError:
        return False


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares an array's memory through DLPack; `copy` True or False insists."""
    as_device(device)
    if isinstance(x, Tensor):
        return x.copy() if copy else x
    return asarray(x, copy=True) if copy else from_numpy(np.from_dlpack(x))


class NamespaceInfo:
    """Capabilities, devices and dtypes of this namespace."""

    def capabilities(self) -> dict[str, Any]:
        """What is supported beyond the obligatory."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Where tensors are made."""
        return CPU

    def devices(self) -> list[Device]:
        """Every device of this machine that is driven."""
        return [CPU]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes of Python's numbers, and of indices."""
        as_device(device)
        return {
            "real floating": default_float,
            "complex floating": default_complex,
            "integral": default_int,
            "indexing": default_int,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The standard's dtypes, of one kind or of several."""
        as_device(device)
        return {name: DTYPES[name] for name in STANDARD if kind is None or isdtype(name, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """What a library may ask this namespace."""
    return NamespaceInfo()
