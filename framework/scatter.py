"""Gathering and scattering by index tensors: copies with some elements replaced, added to, or gathered."""

from __future__ import annotations

from typing import Any

import numpy as np

from plait.framework import functional as f
from plait.framework.conversion import asarray
from plait.framework.creation import arange
from plait.framework.errors import DTypeError, IndexingError, ShapeError
from plait.framework.graph import SYMBOLIC
from plait.framework.host import host
from plait.framework.indexing import normalize_axes
from plait.framework.record import operands
from plait.framework.tensor import Tensor


def gather(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """x[indices] along one axis."""
    return f.take(x, indices, axis)


def gather_nd(x: Any, indices: Any, batch_dims: int = 0) -> Tensor:
    """The slices that rows of indices name. Shapes: indices (..., k) -> (..., *x.shape[batch_dims + k:])."""
    tensor, ids = asarray(x), _ids("gather_nd", indices)
    depth = ids.shape[-1]
    if batch_dims + depth > tensor.ndim or ids.shape[:batch_dims] != tensor.shape[:batch_dims]:
        raise ShapeError(f"gather_nd: indices {ids.shape} for {tensor.shape} with {batch_dims} batch axes.")
    key: list[Any] = []
    for axis in range(batch_dims):
        grid = np.arange(tensor.shape[axis])
        key.append(grid.reshape((-1,) + (1,) * (ids.ndim - 2 - axis)))
    return tensor[(*key, *(ids[..., i] for i in range(depth)))]


def _ids(where: str, indices: Any) -> Tensor:
    ids = asarray(indices)
    if not ids.dtype.is_integral:
        raise DTypeError(f"{where}: indices are {ids.dtype.name}; expected integers. Convert them with astype.")
    return ids


def _at(x: Any, values: Any, *ids: Any, name: str, axis: int | None) -> Any:
    """NumPy's unbuffered update: elements that are named twice are updated twice."""
    result = np.array(x)
    key: list[Any] = list(ids)
    if axis is not None:
        key = [
            ids[0] if i == axis else np.arange(size).reshape([-1 if i == j else 1 for j in range(x.ndim)])
            for i, size in enumerate(ids[0].shape)
        ]
    if name == "set":
        result[tuple(key)] = values
    else:
        getattr(np, name).at(result, tuple(key), values)
    return result


def _along(where: str, name: str, x: Any, updates: Any, indices: Any, axis: int) -> Tensor:
    tensor, values = operands(asarray(x), asarray(updates))
    ids = _ids(where, indices)
    (place,) = normalize_axes(where, axis, tensor.ndim)
    if ids.shape != values.shape or ids.ndim != tensor.ndim:
        raise ShapeError(f"{where}: indices {ids.shape} and updates {values.shape} for {tensor.shape}; sizes differ.")
    _in_bounds(where, ids, tensor.shape[place])
    return host(where, _at, tensor, values, ids, name=name, axis=place)


def _in_bounds(where: str, ids: Tensor, size: int) -> None:
    if ids.node().depth >= SYMBOLIC:
        return  # a compiled graph trusts its caller
    host_ids = ids._host()
    if host_ids.size and (host_ids.min() < -size or host_ids.max() >= size):
        raise IndexingError(f"{where}: indices reach {host_ids.min()} .. {host_ids.max()}; the axis has {size}.")


def scatter(x: Any, updates: Any, indices: Any, axis: int = -1) -> Tensor:
    """A copy with updates in the places along an axis that indices name; the last one wins."""
    return _along("scatter", "set", x, updates, indices, axis)


def scatter_add(x: Any, updates: Any, indices: Any, axis: int = -1) -> Tensor:
    """A copy with updates added in the places along an axis that indices name."""
    return _along("scatter_add", "add", x, updates, indices, axis)


def scatter_max(x: Any, updates: Any, indices: Any, axis: int = -1) -> Tensor:
    """A copy with the larger of element and updates in the places along an axis that indices name."""
    return _along("scatter_max", "maximum", x, updates, indices, axis)


def scatter_min(x: Any, updates: Any, indices: Any, axis: int = -1) -> Tensor:
    """A copy with the smaller of element and updates in the places along an axis that indices name."""
    return _along("scatter_min", "minimum", x, updates, indices, axis)


def scatter_mul(x: Any, updates: Any, indices: Any, axis: int = -1) -> Tensor:
    """A copy with elements multiplied by updates in the places along an axis that indices name."""
    return _along("scatter_mul", "multiply", x, updates, indices, axis)


def _nd(where: str, name: str, x: Any, updates: Any, indices: Any) -> Tensor:
    tensor, values = operands(asarray(x), asarray(updates))
    ids = _ids(where, indices)
    depth = ids.shape[-1]
    if depth > tensor.ndim or values.shape != (*ids.shape[:-1], *tensor.shape[depth:]):
        raise ShapeError(f"{where}: indices {ids.shape} and updates {values.shape} do not fit {tensor.shape}.")
    columns = [ids[..., i] for i in range(depth)]
    for column, size in zip(columns, tensor.shape, strict=False):
        _in_bounds(where, column, size)
    return host(where, _at, tensor, values, *columns, name=name, axis=None)


def scatter_nd(x: Any, updates: Any, indices: Any) -> Tensor:
    """A copy with updates in the slices that rows of indices name; the last one wins."""
    return _nd("scatter_nd", "set", x, updates, indices)


def scatter_nd_add(x: Any, updates: Any, indices: Any) -> Tensor:
    """A copy with updates added to the slices that rows of indices name."""
    return _nd("scatter_nd_add", "add", x, updates, indices)


def scatter_nd_max(x: Any, updates: Any, indices: Any) -> Tensor:
    """A copy with the larger of slice and updates where rows of indices point."""
    return _nd("scatter_nd_max", "maximum", x, updates, indices)


def scatter_nd_min(x: Any, updates: Any, indices: Any) -> Tensor:
    """A copy with the smaller of slice and updates where rows of indices point."""
    return _nd("scatter_nd_min", "minimum", x, updates, indices)


def scatter_nd_mul(x: Any, updates: Any, indices: Any) -> Tensor:
    """A copy with the slices that rows of indices name multiplied by updates."""
    return _nd("scatter_nd_mul", "multiply", x, updates, indices)


def masked_scatter(x: Any, mask: Any, updates: Any) -> Tensor:
    """A copy whose elements under the mask are the updates, in order.

    Raises: ShapeError when there are fewer updates than elements under the mask.
    """
    tensor, values = operands(asarray(x), asarray(updates))
    under = asarray(mask).broadcast_to(tensor.shape)
    count = int(under.sum())
    if values.size < count:
        raise ShapeError(f"masked_scatter: {values.size} updates for {count} elements under the mask.")
    result = tensor.copy()
    result[under.copy()] = values.reshape(-1)[:count]
    return result


def ix_(*vectors: Any) -> tuple[Tensor, ...]:
    """Index arrays that select the rows, columns, ... that the vectors name."""
    given = [asarray(vector) for vector in vectors]
    return tuple(v.reshape(tuple(-1 if i == place else 1 for i in range(len(given)))) for place, v in enumerate(given))


def diag_indices(n: int, ndim: int = 2) -> tuple[Tensor, ...]:
    """The indices of a main diagonal."""
    return (arange(n),) * ndim


def fill_diagonal(x: Tensor, value: Any) -> None:
    """Write a value on the main diagonal, in place."""
    rows = np.arange(min(x.shape))
    x[(rows,) * x.ndim] = value


def put(x: Tensor, indices: Any, values: Any) -> None:
    """Write values at flat indices, in place; values repeat as needed."""
    ids = asarray(indices)._host().reshape(-1)
    source = np.resize(asarray(values)._host(), ids.shape)
    try:
        x[np.unravel_index(np.where(ids < 0, ids + x.size, ids), x.shape)] = source
    except ValueError as error:
        raise IndexingError(f"put: {error} (shape {x.shape}).") from None


def putmask(x: Tensor, mask: Any, values: Any) -> None:
    """Write values where a mask holds, in place; they repeat as needed."""
    source = np.resize(asarray(values)._host(), x.shape)
    x[...] = f.where(mask, asarray(source).astype(x.dtype), x)
