"""What stands for a tensor when a function is staged: dtype, shape and device, with names for sizes known later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from plait.framework.device import Device, as_device
from plait.framework.dim import Dim, Size, symbol
from plait.framework.dtype import DType, as_dtype
from plait.framework.errors import ShapeError

DimLike = int | str | Dim


@dataclass(frozen=True, init=False, repr=False)
class TensorLayout:
    """A tensor that the staged function reads. A size may be a name: it equals only itself, and may be 1.

    Example:
        >>> TensorLayout("float32", ("T", 576))
        TensorLayout(float32, ('T', 576))
    """

    dtype: DType
    shape: tuple[Size, ...]
    device: Device

    def __init__(self, dtype: Any, shape: DimLike | Iterable[DimLike], device: Device | str | None = None) -> None:
        sizes = (shape,) if isinstance(shape, int | str | Dim) else tuple(shape)
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "shape", tuple(_size(size, sizes) for size in sizes))
        object.__setattr__(self, "device", as_device(device))

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        sizes = [repr(size) if isinstance(size, int) else repr(str(size)) for size in self.shape]
        shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        device = "" if self.device.kind == "cpu" else f", {str(self.device)!r}"
        return f"{type(self).__name__}({self.dtype.name}, {shape}{device})"


class BufferLayout(TensorLayout):
    """A tensor that the staged function also stores into: the caller's memory changes when the callable runs."""


def _size(value: Any, shape: tuple[Any, ...]) -> Size:
    if isinstance(value, Dim):
        return value
    if isinstance(value, str):
        return symbol(value)
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 0:
        raise ShapeError(
            f"layout: size {value!r} in shape {shape!r}; expected an integer of 0 or more, or a name such as 'T'."
        )
    return int(value.__index__())
