"""The host row: a NumPy function applied whole to its operands, where there is no kernel and no composition of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plait.framework.dim import Size, evaluate, symbols_of
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

    Symbolic sizes are tried with several numbers; a result's size is the expression that fits all of them.

    Raises: ShapeError for a result whose size is no known expression of the operands' sizes.
    """
    names = sorted(set().union(*(symbols_of(size) for spec in specs for size in spec.shape)))
    tries = [dict(zip(names, numbers, strict=False)) for numbers in _TRIED] if names else [{}]
    if len(names) > len(_TRIED[0]):
        raise ShapeError(f"{where}: {len(names)} symbolic sizes; it runs on the host, which takes {len(_TRIED[0])}.")
    results = [call(function, tuple(_made_up(spec, sizes) for spec in specs), options) for sizes in tries]
    found = []
    for parts in zip(*results, strict=True):
        sizes = zip(*(part.shape for part in parts), strict=True)
        shape = tuple(_expression(where, given, specs, tries) for given in sizes)
        found.append(Spec(shape, as_dtype(parts[0].dtype)))
    return found


_TRIED = ((5, 7, 11, 13), (17, 23, 29, 37), (19, 12, 8, 3))  # rising and falling, or min(m, n) would look like m


def _expression(
    where: str, given: tuple[int, ...], specs: tuple[Spec, ...], tries: Sequence[Mapping[str, int]]
) -> Size:
    """The expression of the operands' sizes that has the given values in the tries."""
    if len(set(given)) == 1:
        return given[0]
    sizes = [size for spec in specs for size in spec.shape]
    for candidate in [*sizes, *(size // 2 + 1 for size in sizes), *((size - 1) * 2 for size in sizes)]:
        if tuple(evaluate(candidate, values) for values in tries) == given:
            return candidate
    shapes = ", ".join(str(spec.shape) for spec in specs)
    raise ShapeError(f"{where}: the result's sizes do not follow from the symbolic shapes {shapes}; give fixed sizes.")


def _made_up(spec: Spec, sizes: Mapping[str, int]) -> Array:
    """Values that no function refuses: a dominant diagonal is invertible, and positive definite where it must be."""
    shape = tuple(evaluate(size, sizes) for size in spec.shape)
    values = np.ones(shape)
    if len(shape) >= 2 and shape[-1] == shape[-2]:
        values = values + 2 * shape[-1] * np.eye(shape[-1])
    return values.astype(spec.dtype.numpy)
