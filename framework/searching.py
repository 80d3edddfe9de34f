"""Sorting, searching, counting and sets. Functions whose result's shape depends on values read them at the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from plait.framework import functional as f
from plait.framework.conversion import asarray
from plait.framework.dtype import int64
from plait.framework.errors import DTypeError, IndexingError, ShapeError
from plait.framework.host import host, host_parts
from plait.framework.indexing import Axis, normalize_axes
from plait.framework.manipulation import promoted
from plait.framework.tensor import Tensor


class UniqueAll(NamedTuple):
    """Values, the index of each one's first appearance, the place of each element among the values, and counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Values, and how often each appears."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Values, and the place of each element among them."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Any) -> UniqueAll:
    """Distinct values with indices, inverse and counts; every NaN is a value of its own."""
    return UniqueAll(*host_parts("unique_all", _unique_all, asarray(x), by_value=True))


def _unique_all(x: Any) -> tuple[Any, ...]:
    return tuple(np.unique_all(x))


def unique_counts(x: Any) -> UniqueCounts:
    """Distinct values with counts; every NaN is a value of its own."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any) -> UniqueInverse:
    """Distinct values, and the place of each element among them; every NaN is a value of its own."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any) -> Tensor:
    """Distinct values, sorted; every NaN is a value of its own."""
    return unique_all(x).values


def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """Distinct values, sorted, NaN once; with indices, inverse and counts where asked for."""
    flags = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    parts = host_parts("unique", np.unique, asarray(x), by_value=True, axis=axis, **flags)
    return parts if len(parts) > 1 else parts[0]


def nonzero(x: Any) -> tuple[Tensor, ...]:
    """The indices of the elements that are not zero, one array per axis.

    Raises: ShapeError for a 0-d array.
    """
    tensor = asarray(x)
    if not tensor.ndim:
        raise ShapeError("nonzero: a 0-d array has no indices; reshape it to (1,) first.")
    parts: tuple[Tensor, ...] = host_parts("nonzero", np.nonzero, tensor, by_value=True)
    return parts


def flatnonzero(x: Any) -> Tensor:
    """The flat indices of the elements that are not zero."""
    return nonzero(asarray(x).reshape(-1))[0]


def argwhere(x: Any) -> Tensor:
    """The indices of the elements that are not zero, one row per element."""
    return host("argwhere", np.argwhere, asarray(x), by_value=True)


def count_nonzero(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements over axes are not zero."""
    return f.sum(f.not_equal(x, 0), axis, int64, keepdims)


def searchsorted(sorted_values: Any, values: Any, side: str = "left", sorter: Any = None) -> Tensor:
    """Where values would have to be inserted to keep order: before ("left") or after ("right") equal ones."""
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side={side!r}; expected 'left' or 'right'.")
    given = [asarray(sorted_values), asarray(values)] + ([] if sorter is None else [asarray(sorter)])
    if given[0].ndim != 1:
        raise ShapeError(f"searchsorted: the sorted array has shape {given[0].shape}; expected one axis.")
    given[:2] = promoted(given[:2])
    return host("searchsorted", _searchsorted, *given, side=side)


def _searchsorted(x: Any, values: Any, sorter: Any = None, side: Any = "left") -> Any:
    return np.searchsorted(x, values, side, sorter)


def digitize(x: Any, bins: Any, right: bool = False) -> Tensor:
    """The bin of each value; bins rise or fall."""
    return host("digitize", np.digitize, asarray(x), asarray(bins), right=right)


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """The element along an axis that each index names; the other axes broadcast."""
    tensor, ids = asarray(x), asarray(indices)
    key, _ = _along(tensor, ids, axis, "take_along_axis")
    return tensor[key]


def put_along_axis(x: Tensor, indices: Any, values: Any, axis: int = -1) -> None:
    """Write values at the element along an axis that each index names, in place."""
    key, _ = _along(x, asarray(indices), axis, "put_along_axis")
    x[key] = values


def _along(x: Tensor, ids: Tensor, axis: int, where: str) -> tuple[tuple[Any, ...], int]:
    if not ids.dtype.is_integral:
        raise DTypeError(f"{where}: indices are {ids.dtype.name}; expected integers. Convert them with astype.")
    if ids.ndim != x.ndim:
        raise IndexingError(f"{where}: indices of shape {ids.shape} for {x.shape}; both need the same rank.")
    (place,) = normalize_axes(where, axis, x.ndim)
    grid: list[Any] = []
    for i, size in enumerate(x.shape):
        shape = tuple(-1 if i == j else 1 for j in range(x.ndim))
        grid.append(ids if i == place else np.arange(size).reshape(shape))
    return tuple(grid), place


def lexsort(keys: Sequence[Any], axis: int = -1) -> Tensor:
    """The indices that sort by several keys, the last one first."""
    return host("lexsort", _lexsort, f.stack([asarray(key) for key in keys]), axis=axis)


def _lexsort(keys: Any, axis: int) -> Any:
    return np.lexsort(tuple(keys), axis)


def partition(x: Any, kth: int, axis: int = -1) -> Tensor:
    """With the kth element in its sorted place, smaller ones before it, larger ones after."""
    return f.sort(x, axis)


def argpartition(x: Any, kth: int, axis: int = -1) -> Tensor:
    """The indices that partition around the kth element."""
    return f.argsort(x, axis)


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest along an axis, largest first, and their indices."""
    tensor = asarray(x)
    (place,) = normalize_axes("top_k", axis, tensor.ndim)
    if not 0 <= k <= tensor.shape[place]:
        raise ShapeError(f"top_k: k={k} for axis {place} of {tensor.shape}; expected 0 to {tensor.shape[place]}.")
    ids = f.argsort(tensor, place, descending=True)[(slice(None),) * place + (slice(None, k),)].copy()
    return take_along_axis(tensor, ids, place), ids


def bottom_k(x: Any, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k smallest along an axis, smallest first, and their indices."""
    tensor = asarray(x)
    (place,) = normalize_axes("bottom_k", axis, tensor.ndim)
    if not 0 <= k <= tensor.shape[place]:
        raise ShapeError(f"bottom_k: k={k} for axis {place} of {tensor.shape}; expected 0 to {tensor.shape[place]}.")
    ids = f.argsort(tensor, place)[(slice(None),) * place + (slice(None, k),)].copy()
    return take_along_axis(tensor, ids, place), ids


def extract(condition: Any, x: Any) -> Tensor:
    """The elements where a condition holds, flattened."""
    return asarray(x).reshape(-1)[asarray(condition).reshape(-1) != 0]


def compress(condition: Any, x: Any, axis: int | None = None) -> Tensor:
    """The slices along an axis where a condition holds."""
    tensor = asarray(x).reshape(-1) if axis is None else asarray(x)
    return f.take(tensor, flatnonzero(condition), axis or 0)


def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Tensor:
    """The choice of the first condition that holds, elementwise; else the default."""
    if len(conditions) != len(choices):
        raise ShapeError(f"select: {len(conditions)} conditions and {len(choices)} choices; give as many of each.")
    result: Any = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = f.where(condition, choice, result)
    return asarray(result)


def choose(index: Any, choices: Sequence[Any]) -> Tensor:
    """The element of the array that each index names."""
    ids = asarray(index)
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(choices):
        raise IndexingError(f"choose: indices reach {int(ids.min())} .. {int(ids.max())} of {len(choices)} choices.")
    return select([ids == i for i in range(len(choices))], promoted(choices))


def isin(x: Any, values: Any, invert: bool = False) -> Tensor:
    """Where an element is among the values."""
    tensor, others = promoted([x, values])
    return host("isin", np.isin, tensor, others, invert=invert)


def intersect1d(a: Any, b: Any) -> Tensor:
    """The sorted distinct values that both arrays hold."""
    return host("intersect1d", np.intersect1d, *promoted([a, b]), by_value=True)


def union1d(a: Any, b: Any) -> Tensor:
    """The sorted distinct values that either array holds."""
    return host("union1d", np.union1d, *promoted([a, b]), by_value=True)


def setdiff1d(a: Any, b: Any) -> Tensor:
    """The sorted distinct values of a that b does not hold."""
    return host("setdiff1d", np.setdiff1d, *promoted([a, b]), by_value=True)


def setxor1d(a: Any, b: Any) -> Tensor:
    """The sorted distinct values that exactly one array holds."""
    return host("setxor1d", np.setxor1d, *promoted([a, b]), by_value=True)


def unravel_index(indices: Any, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Flat indices as one index array per axis."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    parts: tuple[Tensor, ...] = host_parts("unravel_index", np.unravel_index, asarray(indices), shape=sizes)
    return parts


def ravel_multi_index(indices: Sequence[Any], shape: Sequence[int], mode: str = "raise") -> Tensor:
    """One index array per axis as flat indices."""
    arrays = [asarray(index) for index in indices]
    return host("ravel_multi_index", _ravel_multi_index, *arrays, shape=tuple(shape), mode=mode)


def _ravel_multi_index(*arrays: Any, shape: Any, mode: Any) -> Any:
    return np.ravel_multi_index(arrays, shape, mode)
