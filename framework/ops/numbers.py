"""Rows on the parts of numbers: complex halves, signs, neighbours. They have no scalar expression: NumPy runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plait.framework.dtype import DType, bool_, complex64, complex128, float32, float64
from plait.framework.errors import DTypeError
from plait.framework.op import Attrs, Op, Spec, row
from plait.framework.ops.elementwise import broadcast_shapes

Array = np.ndarray[Any, Any]
_HALF_OF = {complex64: float32, complex128: float64}


def _keep(dtype: DType) -> DType:
    return dtype


def _half(dtype: DType) -> DType:
    """The dtype of one part of a complex number."""
    return _HALF_OF.get(dtype, dtype)


def _bool(dtype: DType) -> DType:
    return bool_


def _row(
    name: str, kinds: str, function: Callable[..., Any], result: Callable[[DType], DType] = _keep, axes: str = "*->*"
) -> Op:
    def infer(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
        dtype = specs[0].dtype
        if dtype.kind not in kinds:
            raise DTypeError(f"{name}: dtype {dtype.name} is not supported. Convert it with astype.")
        return Spec(broadcast_shapes(name, tuple(spec.shape for spec in specs)), result(dtype))

    def meaning(*arrays: Array, attrs: Attrs, spec: Spec) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays)).astype(spec.dtype.numpy, copy=False)

    return row(name, "host", infer=infer, numpy=meaning, axes=axes)


_PAIR = "*,*->*"
REAL = _row("real", "c", np.real, _half)
IMAG = _row("imag", "c", np.imag, _half)
MODULUS = _row("modulus", "c", np.abs, _half)
ANGLE = _row("angle", "c", np.angle, _half)
CONJ = _row("conj", "c", np.conj)
SIGNBIT = _row("signbit", "f", np.signbit, _bool)
NEXTAFTER = _row("nextafter", "f", np.nextafter, axes=_PAIR)
HYPOT = _row("hypot", "f", np.hypot, axes=_PAIR)
LOGADDEXP = _row("logaddexp", "f", np.logaddexp, axes=_PAIR)
GCD = _row("gcd", "iu", np.gcd, axes=_PAIR)
LCM = _row("lcm", "iu", np.lcm, axes=_PAIR)
