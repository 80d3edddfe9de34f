"""The host row: a NumPy function applied whole to its operands, where there is no kernel and no composition of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plait.framework.dtype import as_dtype
from plait.framework.errors import ShapeError
from plait.framework.op import Attrs, Op, Spec, row

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def call(function: Function, arrays: tuple[Array, ...], options: tuple[tuple[str, Any], ...]) -> tuple[Array, ...]:
    """The function's results as a tuple of arrays: 16-bit floats compute in float32 and are rounded at the end."""
    halves = [array.dtype for array in arrays if _is_half(array)]
    wide = tuple(array.astype(np.float32) if _is_half(array) else array for array in arrays)
    with np.errstate(all="ignore"):
        value = function(*wide, **dict(options))
    results = tuple(np.asarray(item) for item in (value if isinstance(value, tuple | list) else (value,)))
    if halves and len(set(halves)) == 1:
        return tuple(item.astype(halves[0]) if item.dtype == np.float32 else item for item in results)
    return results


def _is_half(array: Array) -> bool:
    return array.dtype.itemsize == 2 and array.dtype.kind not in "iu"


def _infer(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    return Spec(attrs[3], attrs[4])


def _meaning(*arrays: Array, attrs: Attrs, spec: Spec) -> Array:
    function, options, part = attrs[:3]
    return np.asarray(call(function, arrays, options)[part]).astype(spec.dtype.numpy, copy=False)


HOST = row(
    "host",
    "host",
    infer=_infer,
    numpy=_meaning,
    attrs=("function", "options", "part", "shape", "dtype"),
    doc="result number `part` of function(*operands, **options)",
)


def probe(where: str, function: Function, specs: tuple[Spec, ...], options: tuple[tuple[str, Any], ...]) -> list[Spec]:
    """Shapes and dtypes of a function's results, found by calling it on made-up values of the operands' shapes.

    Raises: ShapeError for a symbolic size, which cannot be made up.
    """
    if not all(isinstance(size, int) for spec in specs for size in spec.shape):
        shapes = ", ".join(str(spec.shape) for spec in specs)
        raise ShapeError(f"{where}: shapes {shapes} have symbolic sizes; it runs on the host, which needs fixed sizes.")
    results = call(function, tuple(_made_up(spec) for spec in specs), options)
    return [Spec(result.shape, as_dtype(result.dtype)) for result in results]


def _made_up(spec: Spec) -> Array:
    """Values that no function refuses: a dominant diagonal is invertible, and positive definite where it must be."""
    shape = tuple(int(size) for size in spec.shape)
    values = np.ones(shape)
    if len(shape) >= 2 and shape[-1] == shape[-2]:
        values = values + 2 * shape[-1] * np.eye(shape[-1])
    return values.astype(spec.dtype.numpy)
