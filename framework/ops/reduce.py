"""Reductions over some axes, scans and sorts along one. 16-bit floats are cast to float32 before they come here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from plait.framework.dtype import DType, bool_, int64
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.op import Attrs, Op, Spec, row

Array = np.ndarray[Any, Any]


def _infer(kinds: str, result: DType | None = None) -> Callable[[Op, tuple[Spec, ...], Attrs], Spec]:
    def infer(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
        (spec,), (axes, keepdims) = specs, attrs
        if spec.dtype.kind not in kinds:
            raise DTypeError(f"{op.name}: dtype {spec.dtype.name} has no {op.name}; convert it with astype.")
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(spec.shape))
        if not keepdims:
            shape = tuple(size for axis, size in enumerate(spec.shape) if axis not in axes)
        return Spec(shape, result or spec.dtype)

    return infer


def limit(dtype: DType, which: str) -> Any:
    """The smallest ("min") or largest ("max") value of a dtype; infinities for floats are not used."""
    if dtype.kind == "b":
        return which == "max"
    if dtype.is_integral:
        return getattr(np.iinfo(dtype.numpy), which)
    return float(getattr(ml_dtypes.finfo(dtype.numpy), which))  # type: ignore[no-untyped-call]


def _fold(name: str) -> Callable[..., Array]:
    def meaning(x: Array, *, attrs: Attrs, spec: Spec) -> Array:
        axes, keepdims = attrs
        return np.asarray(getattr(np, name)(x, axis=axes, keepdims=keepdims)).astype(spec.dtype.numpy, copy=False)

    return meaning


def _extreme(name: str, identity: str) -> Callable[..., Array]:
    def meaning(x: Array, *, attrs: Attrs, spec: Spec) -> Array:
        axes, keepdims = attrs
        if any(x.shape[axis] == 0 for axis in axes):
            return np.full(spec.shape, limit(spec.dtype, identity), spec.dtype.numpy)
        return np.asarray(getattr(np, name)(x, axis=axes, keepdims=keepdims))

    return meaning


def _arg(name: str) -> Callable[..., Array]:
    def meaning(x: Array, *, attrs: Attrs, spec: Spec) -> Array:
        (axis,), keepdims = attrs
        if x.shape[axis] == 0:
            return np.zeros(spec.shape, np.int64)
        return np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))

    return meaning


def _reduction(name: str, kinds: str, numpy: Callable[..., Array], ulp: float = 0.0, result: DType | None = None) -> Op:
    attrs = ("axes", "keepdims")
    return row(name, "reduce", infer=_infer(kinds, result), numpy=numpy, attrs=attrs, ulp=ulp, axes="*a->*")


SUM = _reduction("sum", "iufc", _fold("sum"), 64)
PROD = _reduction("prod", "iufc", _fold("prod"), 64)
MAX = _reduction("max", "biuf", _extreme("max", "min"))
MIN = _reduction("min", "biuf", _extreme("min", "max"))
ANY = _reduction("any", "b", _fold("any"), result=bool_)
ALL = _reduction("all", "b", _fold("all"), result=bool_)
ARGMAX = _reduction("argmax", "biuf", _arg("argmax"), result=int64)
ARGMIN = _reduction("argmin", "biuf", _arg("argmin"), result=int64)


def _infer_same(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    if not specs[0].shape:
        raise ShapeError(f"{op.name}: a 0-d array has no axis to work along; reshape it to (1,) first.")
    return specs[0]


def _infer_indices(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    return Spec(_infer_same(op, specs, attrs).shape, int64)


CUMSUM = row(
    "cumsum",
    "scan",
    infer=_infer_same,
    numpy=lambda x, *, attrs, spec: np.cumsum(x, axis=attrs[0], dtype=x.dtype),
    attrs=("axis",),
    axes="*[a]->*[a]",
    ulp=64,
)
CUMPROD = row(
    "cumprod",
    "scan",
    infer=_infer_same,
    numpy=lambda x, *, attrs, spec: np.cumprod(x, axis=attrs[0], dtype=x.dtype),
    attrs=("axis",),
    axes="*[a]->*[a]",
    ulp=64,
)
SORT = row(
    "sort",
    "scan",
    infer=_infer_same,
    numpy=lambda x, *, attrs, spec: np.sort(x, axis=attrs[0], kind="stable"),
    attrs=("axis",),
    axes="*[a]->*[a]",
)
ARGSORT = row(
    "argsort",
    "scan",
    infer=_infer_indices,
    numpy=lambda x, *, attrs, spec: np.argsort(x, axis=attrs[0], kind="stable"),
    attrs=("axis",),
    axes="*[a]->*[a]",
)
