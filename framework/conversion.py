"""Tensors from what others hold: NumPy and DLPack arrays, shared where possible, and nested Python sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from plait.framework.buffer import Buffer, from_array
from plait.framework.device import as_device
from plait.framework.dtype import (
    DType,
    as_dtype,
    default_float,
    default_int,
)
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.graph import realized
from plait.framework.ops import elementwise as e
from plait.framework.ops import movement as m
from plait.framework.storage import is_tensor, wrap

if TYPE_CHECKING:
    from plait.framework.tensor import Tensor

Array = np.ndarray[Any, Any]
Scalar = bool | int | float | complex


def from_numpy(array: Array) -> Tensor:
    """A tensor that shares a NumPy array's memory where it can: both sides see each other's writes.

    A non-contiguous array is shared through its base's strides when it has one in C order; otherwise it is copied.
    """
    if not array.flags.c_contiguous or not array.flags.aligned or not array.dtype.isnative:
        if array.flags.f_contiguous and array.flags.aligned and array.dtype.isnative:
            return from_numpy(array.T).transpose()
        return _share_strided(array)
    dtype = as_dtype(array.dtype)
    tensor = wrap(realized(Buffer.borrow(array), array.shape, dtype))
    tensor._root().exposed = True
    return tensor


def _share_strided(array: Array) -> Tensor:
    base = array.base
    fits = isinstance(base, np.ndarray) and base.dtype == array.dtype and base.flags.c_contiguous and base.flags.aligned
    if not fits or not array.dtype.isnative or not array.size:
        return from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    assert isinstance(base, np.ndarray)
    root = from_numpy(base)
    item = array.itemsize
    strides = tuple(stride // item for stride in array.strides)
    offset = (array.ctypes.data - base.ctypes.data) // item
    if any(stride % item for stride in array.strides) or 0 in strides:
        return from_numpy(np.array(array, order="C"))
    return root._view(m.AS_STRIDED, (offset, array.shape, strides), array.shape, offset, strides)


def asarray(data: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of nested sequences, scalars, NumPy arrays, DLPack arrays or tensors.

    Python floats give float32, ints int64. `copy=None` shares memory where possible, False insists on it.

    Raises: ShapeError for ragged nesting, DTypeError for objects that are no numbers.
    """
    as_device(device)
    target = None if dtype is None else as_dtype(dtype)
    if is_tensor(data):
        tensor = data
    elif isinstance(data, np.ndarray | np.generic):
        private = copy or isinstance(data, np.generic)
        tensor = private_copy(data) if private else from_numpy(data)  # type: ignore[arg-type]
    elif hasattr(data, "__dlpack__"):
        shared = np.from_dlpack(data)
        tensor = private_copy(shared) if copy else from_numpy(shared)
    else:
        return _from_python(data, target)
    if target is not None and target is not tensor.dtype:
        if copy is False:
            raise ValueError(f"asarray: {tensor.dtype.name} to {target.name} needs a copy, and copy=False forbids it.")
        return tensor.astype(target)
    return tensor.copy() if copy and is_tensor(data) else tensor


def private_copy(array: Array | np.generic) -> Tensor:
    """A tensor that holds a copy of an array in memory nobody else sees."""
    dtype = as_dtype(array.dtype)
    return wrap(realized(from_array(np.asarray(array), dtype), array.shape, dtype))


def _from_python(data: Any, target: DType | None) -> Tensor:
    data = _plain(data)
    try:
        array = np.array(data)
    except ValueError as error:
        raise ShapeError(f"asarray: nested sequences are ragged ({error}); give every row the same length.") from None
    except OverflowError as error:
        raise OverflowError(f"asarray: {error}; integers must fit int64 or uint64.") from None
    if array.dtype.kind not in "biufc":
        raise DTypeError(
            f"asarray: elements of type {_element_type(data)} are no numbers; expected bool, int, float, complex."
        )
    natural = {"f": default_float, "i": default_int, "b": as_dtype("bool"), "u": as_dtype("uint64")}
    dtype = target or (natural[array.dtype.kind] if array.dtype.kind in natural else as_dtype("complex64"))
    if not array.size and target is None:
        dtype = default_float
    if dtype.is_integral and array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype.numpy)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise OverflowError(
                f"asarray: values reach {array.min()} .. {array.max()}; {dtype.name} holds {limits.min} to "
                f"{limits.max}. Give a wider dtype."
            )
    return wrap(realized(from_array(e.convert(array, dtype), dtype), array.shape, dtype))


def _plain(data: Any) -> Any:
    """Tensors inside nested sequences become NumPy scalars and arrays."""
    if isinstance(data, list | tuple):
        return [_plain(item) for item in data]
    return data._host() if is_tensor(data) else data


def _element_type(data: Any) -> str:
    while isinstance(data, list) and data:
        data = data[0]
    return type(data).__name__


def rebuild(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return asarray(np.frombuffer(data, as_dtype(dtype).numpy).reshape(shape), copy=True)
