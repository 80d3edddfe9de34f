"""Fourier transforms, computed by NumPy on the host in the precision of their operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait.framework.conversion import asarray, private_copy
from plait.framework.dtype import as_dtype, bfloat16, default_float, float16, float32
from plait.framework.elementary import inexact as _inexact
from plait.framework.errors import DTypeError
from plait.framework.host import host as _host
from plait.framework.tensor import Tensor

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]
Axes = Sequence[int] | None


def _transform(function: Callable[..., Any], x: Any, real: bool, **options: Any) -> Tensor:
    tensor = _inexact(x)
    if tensor.dtype in (float16, bfloat16):
        tensor = tensor.astype(float32)
    if real and tensor.dtype.kind == "c":
        raise DTypeError(f"{function.__name__}: dtype {tensor.dtype.name}; expected real numbers. Use fft.")
    fixed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return _host(function.__name__, function, tensor, **fixed)


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The discrete Fourier transform along an axis."""
    return _transform(np.fft.fft, x, False, n=n, axis=axis, norm=norm)


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of fft."""
    return _transform(np.fft.ifft, x, False, n=n, axis=axis, norm=norm)


def fftn(x: Any, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The discrete Fourier transform along several axes, all by default."""
    return _transform(np.fft.fftn, x, False, **_several(x, s, axes), norm=norm)


def ifftn(x: Any, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of fftn."""
    return _transform(np.fft.ifftn, x, False, **_several(x, s, axes), norm=norm)


def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The transform of real numbers: the half with frequencies of 0 and more."""
    return _transform(np.fft.rfft, x, True, n=n, axis=axis, norm=norm)


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of rfft; n is the length of the result, even by default."""
    return _transform(np.fft.irfft, x, False, n=n, axis=axis, norm=norm)


def rfftn(x: Any, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """rfft along the last of several axes, fft along the others."""
    return _transform(np.fft.rfftn, x, True, **_several(x, s, axes), norm=norm)


def irfftn(x: Any, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of rfftn."""
    return _transform(np.fft.irfftn, x, False, **_several(x, s, axes), norm=norm)


def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The real transform of numbers with Hermitian symmetry."""
    return _transform(np.fft.hfft, x, False, n=n, axis=axis, norm=norm)


def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of hfft."""
    return _transform(np.fft.ihfft, x, True, n=n, axis=axis, norm=norm)


def fft2(x: Any, /, *, s: Axes = None, axes: Sequence[int] = (-2, -1), norm: str = "backward") -> Tensor:
    """fftn along the last two axes."""
    return fftn(x, s=s, axes=axes, norm=norm)


def ifft2(x: Any, /, *, s: Axes = None, axes: Sequence[int] = (-2, -1), norm: str = "backward") -> Tensor:
    """ifftn along the last two axes."""
    return ifftn(x, s=s, axes=axes, norm=norm)


def rfft2(x: Any, /, *, s: Axes = None, axes: Sequence[int] = (-2, -1), norm: str = "backward") -> Tensor:
    """rfftn along the last two axes."""
    return rfftn(x, s=s, axes=axes, norm=norm)


def irfft2(x: Any, /, *, s: Axes = None, axes: Sequence[int] = (-2, -1), norm: str = "backward") -> Tensor:
    """irfftn along the last two axes."""
    return irfftn(x, s=s, axes=axes, norm=norm)


def _several(x: Any, s: Axes, axes: Axes) -> dict[str, Any]:
    """NumPy wants axes beside s; the default is the last ones."""
    chosen = tuple(range(-len(s), 0)) if s is not None and axes is None else axes
    return {"s": None if s is None else tuple(s), "axes": None if chosen is None else tuple(chosen)}


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of fft's results, in cycles per unit of the spacing d."""
    return _frequencies(np.fft.fftfreq, n, d, dtype)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of rfft's results, in cycles per unit of the spacing d."""
    return _frequencies(np.fft.rfftfreq, n, d, dtype)


def _frequencies(function: Callable[..., Any], n: int, d: float, dtype: Any) -> Tensor:
    kind = default_float if dtype is None else as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"{function.__name__}: dtype {kind.name}; expected a floating one.")
    return private_copy(function(n, d).astype(kind.numpy))


def fftshift(x: Any, /, *, axes: Any = None) -> Tensor:
    """With the frequency 0 in the middle."""
    return _host("fftshift", np.fft.fftshift, asarray(x), axes=_fixed(axes))


def ifftshift(x: Any, /, *, axes: Any = None) -> Tensor:
    """The inverse of fftshift."""
    return _host("ifftshift", np.fft.ifftshift, asarray(x), axes=_fixed(axes))


def _fixed(axes: Any) -> Any:
    return axes if axes is None or isinstance(axes, int) else tuple(axes)
