"""Shapes, orders, joins and cuts beyond the basic ones. Most are views or compositions of views."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait.framework import functional as f
from plait.framework.conversion import asarray
from plait.framework.creation import arange
from plait.framework.dim import product
from plait.framework.dtype import promote
from plait.framework.errors import DTypeError, IndexingError, ShapeError
from plait.framework.host import host
from plait.framework.indexing import Axis, normalize_axes
from plait.framework.op import Shape
from plait.framework.ops.elementwise import broadcast_shapes as _broadcast
from plait.framework.tensor import Tensor


def broadcast_shapes(*shapes: Any) -> Shape:
    """The common shape of several.

    Raises: ShapeError naming two that do not fit.
    """
    given = tuple((shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes)
    return _broadcast("broadcast_shapes", given) if given else ()


def broadcast_arrays(*tensors: Any) -> list[Tensor]:
    """The arrays broadcast to their common shape. Read-only views."""
    given = [asarray(tensor) for tensor in tensors]
    shape = broadcast_shapes(*(tensor.shape for tensor in given))
    return [tensor.broadcast_to(shape) for tensor in given]


def matrix_transpose(x: Any) -> Tensor:
    """The last two axes swapped. A view."""
    return asarray(x).mT


def unstack(x: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which is dropped. Views."""
    tensor = asarray(x)
    (place,) = normalize_axes("unstack", axis, tensor.ndim)
    return tuple(tensor[(slice(None),) * place + (i,)] for i in range(tensor.shape[place]))


def roll(x: Any, shift: int | Sequence[int], axis: Axis = None) -> Tensor:
    """Elements shifted along axes; what leaves at one end enters at the other."""
    tensor = asarray(x)
    if axis is None:
        flat = tensor.reshape(-1)
        for step in (shift,) if isinstance(shift, int) else shift:
            flat = _roll_one(flat, step, 0)
        return flat.reshape(tensor.shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes; give one shift, or one per axis.")
    for step, place in zip(shifts, axes, strict=True):
        tensor = _roll_one(tensor, step, *normalize_axes("roll", place, tensor.ndim))
    return tensor.copy()


def _roll_one(x: Tensor, shift: int, axis: int) -> Tensor:
    size = x.shape[axis]
    cut = -shift % size if size else 0
    if not cut:
        return x
    lead = (slice(None),) * axis
    return f.concat([x[(*lead, slice(cut, None))], x[(*lead, slice(None, cut))]], axis)


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Tensor:
    """Each element several times: one count for all, or one per element along the axis."""
    tensor = asarray(x)
    if axis is None:
        tensor, axis = tensor.reshape(-1), 0
    (place,) = normalize_axes("repeat", axis, tensor.ndim)
    size = tensor.shape[place]
    counts = asarray(repeats)
    if not counts.dtype.is_integral:
        raise DTypeError(f"repeat: counts are {counts.dtype.name}; expected integers. Convert them with astype.")
    if counts.ndim > 1 or counts.ndim == 1 and counts.shape[0] not in (1, size):
        raise ShapeError(f"repeat: {counts.shape} counts for axis {place} of {size}; give one, or one per element.")
    if counts.size == 1:
        return _repeat_evenly(tensor, builtins.int(counts), place)
    host_counts = counts._host()
    if host_counts.size and host_counts.min() < 0:
        raise ShapeError(f"repeat: a count is {host_counts.min()}; counts are 0 or more.")
    return f.take(tensor, asarray(np.repeat(np.arange(size), host_counts)), place)


def _repeat_evenly(x: Tensor, count: int, axis: int) -> Tensor:
    if count < 0:
        raise ShapeError(f"repeat: a count is {count}; counts are 0 or more.")
    shape = x.shape
    wide = x.expand_dims(axis + 1).broadcast_to((*shape[: axis + 1], count, *shape[axis + 1 :]))
    return wide.reshape((*shape[:axis], shape[axis] * count, *shape[axis + 1 :])).copy()


def tile(x: Any, reps: int | Sequence[int]) -> Tensor:
    """The array laid out several times along each axis."""
    tensor = asarray(x)
    counts = (reps,) if isinstance(reps, int) else tuple(reps)
    rank = builtins.max(len(counts), tensor.ndim)
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - tensor.ndim) + tuple(tensor.shape)
    apart = tensor.reshape(tuple(size for pair in shape for size in (1, pair)))
    wide = apart.broadcast_to(tuple(size for pair in zip(counts, shape, strict=True) for size in pair))
    return wide.reshape(tuple(count * size for count, size in zip(counts, shape, strict=True))).copy()


def meshgrid(*tensors: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> list[Tensor]:
    """Coordinate arrays from one-dimensional ones. `indexing` "xy" swaps the first two axes, "ij" does not."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing={indexing!r}; expected 'xy' or 'ij'.")
    given = [asarray(tensor).reshape(-1) for tensor in tensors]
    places = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        places[:2] = 1, 0
    spread = [
        x.reshape(tuple(x.shape[0] if axis == place else 1 for axis in range(len(given))))
        for x, place in zip(given, places, strict=True)
    ]
    grids = spread if sparse else broadcast_arrays(*spread)
    return [grid.copy() for grid in grids] if copy else list(grids)


def atleast_1d(*tensors: Any) -> Any:
    """Arrays with at least one axis."""
    return _atleast(tensors, lambda x: x.reshape(1) if x.ndim == 0 else x)


def atleast_2d(*tensors: Any) -> Any:
    """Arrays with at least two axes; new ones come first."""
    return _atleast(tensors, lambda x: x.reshape((1,) * (2 - x.ndim) + tuple(x.shape)) if x.ndim < 2 else x)


def atleast_3d(*tensors: Any) -> Any:
    """Arrays with at least three axes; a vector stands in the middle one."""
    shapes = {0: (1, 1, 1), 1: (1, -1, 1)}
    return _atleast(
        tensors, lambda x: x.expand_dims(2) if x.ndim == 2 else x.reshape(shapes[x.ndim]) if x.ndim < 2 else x
    )


def _atleast(tensors: tuple[Any, ...], change: Any) -> Any:
    changed = [change(asarray(tensor)) for tensor in tensors]
    return changed[0] if len(changed) == 1 else tuple(changed)


def _all(change: Any, tensors: Sequence[Any]) -> list[Tensor]:
    return [change(tensor) for tensor in tensors]


def vstack(tensors: Sequence[Any]) -> Tensor:
    """Join along the first axis; vectors are rows."""
    return f.concat(_all(atleast_2d, tensors), 0)


def hstack(tensors: Sequence[Any]) -> Tensor:
    """Join along the second axis; vectors along their only one."""
    parts = _all(atleast_1d, tensors)
    return f.concat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def dstack(tensors: Sequence[Any]) -> Tensor:
    """Join along the third axis."""
    return f.concat(_all(atleast_3d, tensors), 2)


def column_stack(tensors: Sequence[Any]) -> Tensor:
    """Join along the second axis; vectors are columns."""
    return f.concat([x.reshape((-1, 1)) if x.ndim < 2 else x for x in map(asarray, tensors)], 1)


def block(arrays: Any) -> Tensor:
    """An array of nested lists of blocks: the innermost lists join along the last axis."""

    def depth(item: Any) -> int:
        return 1 + depth(item[0]) if isinstance(item, list) else 0

    def join(item: Any, level: int) -> Tensor:
        if not isinstance(item, list):
            x = asarray(item)
            return x.reshape((1,) * (rank - x.ndim) + tuple(x.shape)) if x.ndim < rank else x
        return f.concat([join(inner, level + 1) for inner in item], level - levels)

    def ranks(item: Any) -> int:
        return builtins.max(map(ranks, item)) if isinstance(item, list) else asarray(item).ndim

    levels = depth(arrays)
    rank = builtins.max(levels, ranks(arrays))
    return join(arrays, 0)


def array_split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut into a number of pieces of nearly equal size, or before the listed indices. Views."""
    tensor = asarray(x)
    (place,) = normalize_axes("array_split", axis, tensor.ndim)
    size = tensor.shape[place]
    if isinstance(sections, int):
        if sections < 1:
            raise ShapeError(f"array_split: {sections} sections; expected 1 or more.")
        each, extra = builtins.divmod(size, sections)
        bounds = [i * each + builtins.min(i, extra) for i in range(sections + 1)]
    else:
        bounds = [0, *sections, size]
    lead = (slice(None),) * place
    return [tensor[(*lead, slice(start, stop))] for start, stop in zip(bounds, bounds[1:], strict=False)]


def _equal_split(where: str, x: Any, sections: int | Sequence[int], axis: int) -> list[Tensor]:
    tensor = asarray(x)
    (place,) = normalize_axes(where, axis, tensor.ndim)
    if isinstance(sections, int) and tensor.shape[place] % sections:
        raise ShapeError(f"{where}: axis {place} of {tensor.shape} is no multiple of {sections}; use array_split.")
    return array_split(tensor, sections, place)


def hsplit(x: Any, sections: int | Sequence[int]) -> list[Tensor]:
    """Cut along the second axis, a vector along its only one. Views."""
    return _equal_split("hsplit", x, sections, 0 if asarray(x).ndim == 1 else 1)


def vsplit(x: Any, sections: int | Sequence[int]) -> list[Tensor]:
    """Cut along the first axis. Views."""
    return _equal_split("vsplit", x, sections, 0)


def dsplit(x: Any, sections: int | Sequence[int]) -> list[Tensor]:
    """Cut along the third axis. Views."""
    return _equal_split("dsplit", x, sections, 2)


def flipud(x: Any) -> Tensor:
    """Reverse the first axis. A view."""
    return f.flip(x, 0)


def fliplr(x: Any) -> Tensor:
    """Reverse the second axis. A view."""
    return f.flip(x, 1)


def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate by k quarter turns from the first axis towards the second. A view."""
    tensor = asarray(x)
    first, second = normalize_axes("rot90", axes, tensor.ndim)
    turns = k % 4
    if turns == 2:
        return f.flip(tensor, (first, second))
    if turns == 1:
        return f.swapaxes(f.flip(tensor, second), first, second)
    return f.flip(f.swapaxes(tensor, first, second), second) if turns == 3 else tensor


def rollaxis(x: Any, axis: int, start: int = 0) -> Tensor:
    """Move an axis to stand before another. A view."""
    tensor = asarray(x)
    (source,) = normalize_axes("rollaxis", axis, tensor.ndim)
    goal = start + tensor.ndim if start < 0 else start
    return f.moveaxis(tensor, source, goal - 1 if goal > source else goal)


def ravel(x: Any) -> Tensor:
    """One-dimensional, in C order."""
    return asarray(x).reshape(-1)


def append(x: Any, values: Any, axis: int | None = None) -> Tensor:
    """Join values at the end, flattened when axis is None."""
    return f.concat([x, values], axis)


def delete(x: Any, index: Any, axis: int | None = None) -> Tensor:
    """Without the entries at an index, a slice or a list of indices along an axis."""
    tensor = ravel(x) if axis is None else asarray(x)
    (place,) = normalize_axes("delete", axis or 0, tensor.ndim)
    keep = np.ones(tensor.shape[place], np.bool_)
    try:
        keep[asarray(index).numpy() if not isinstance(index, slice) else index] = False
    except IndexError as error:
        raise IndexingError(f"delete: shape {tensor.shape}: {error}.") from None
    return f.take(tensor, asarray(np.flatnonzero(keep)), place)


def insert(x: Any, index: Any, values: Any, axis: int | None = None) -> Tensor:
    """With values inserted before an index, or before several."""
    tensor, added = asarray(x), asarray(values)
    places = index if isinstance(index, int | slice) else tuple(asarray(index)._host().reshape(-1).tolist())
    return host("insert", _insert, tensor, added.astype(tensor.dtype), places=places, axis=axis)


def _insert(x: Any, values: Any, places: Any, axis: int | None) -> Any:
    return np.insert(x, list(places) if isinstance(places, tuple) else places, values, axis)


def resize(x: Any, shape: int | Sequence[int]) -> Tensor:
    """The elements in C order in another shape, repeated as often as needed."""
    flat = ravel(x)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    total = builtins.int(product(sizes))
    if not flat.size:
        return f.broadcast_to(asarray(0).astype(flat.dtype), sizes).copy()
    return tile(flat, -(-total // flat.size))[:total].reshape(sizes)


def trim_zeros(x: Any, trim: str = "fb") -> Tensor:
    """A vector without the zeros at its front ("f"), back ("b") or both."""
    tensor = asarray(x)
    places = np.flatnonzero(tensor._host())
    first = places[0] if places.size else tensor.shape[0]
    last = places[-1] + 1 if places.size else tensor.shape[0]
    return tensor[builtins.int(first) if "f" in trim else 0 : builtins.int(last) if "b" in trim else None]


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The entries (i, i + offset) of two axes, as a new last axis."""
    tensor = asarray(x)
    if tensor.ndim < 2:
        raise ShapeError(f"diagonal: shape {tensor.shape} has fewer than two axes; diag makes a matrix of a vector.")
    first, second = normalize_axes("diagonal", (axis1, axis2), tensor.ndim)
    matrix = f.moveaxis(tensor, (first, second), (-2, -1))
    rows, columns = matrix.shape[-2:]
    count = builtins.max(0, builtins.min(rows + builtins.min(offset, 0), columns - builtins.max(offset, 0)))
    i = np.arange(count)
    return matrix[..., i - builtins.min(offset, 0), i + builtins.max(offset, 0)]


def diag(x: Any, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix, or a matrix with a vector on its k-th diagonal."""
    tensor = asarray(x)
    if tensor.ndim == 2:
        return diagonal(tensor, k)
    if tensor.ndim != 1:
        raise ShapeError(f"diag: shape {tensor.shape}; expected a vector or a matrix.")
    size = tensor.shape[0] + builtins.abs(k)
    columns = arange(size)
    place = columns.expand_dims(1) + k == columns
    padded = f.pad(tensor, ((builtins.max(k, 0), builtins.max(-k, 0)),))
    zero = asarray(0).astype(tensor.dtype)
    return f.where(place, padded.broadcast_to((size, size)), zero)


def diagflat(x: Any, k: int = 0) -> Tensor:
    """A matrix with the flattened elements on its k-th diagonal."""
    return diag(ravel(x), k)


def promoted(tensors: Sequence[Any]) -> list[Tensor]:
    """Arrays in their common dtype."""
    given = [asarray(tensor) for tensor in tensors]
    dtype = given[0].dtype
    for tensor in given[1:]:
        dtype = promote(dtype, tensor.dtype)
    return [tensor.astype(dtype, copy=False) for tensor in given]


def sliding_window_view(x: Any, window: int | Sequence[int], axis: Axis = None) -> Tensor:
    """All windows of a size along axes; the windows' axes come last."""
    tensor = asarray(x)
    size = window if isinstance(window, int) else tuple(window)
    return host("sliding_window_view", np.lib.stride_tricks.sliding_window_view, tensor, window_shape=size, axis=axis)


def apply_along_axis(function: Callable[[Tensor], Any], axis: int, x: Any) -> Tensor:
    """A function of each vector along an axis."""
    tensor = f.moveaxis(x, axis, -1)
    lead = tensor.shape[:-1]
    rows = [asarray(function(row)) for row in tensor.reshape((-1, tensor.shape[-1]))]
    if not rows:
        raise ShapeError(f"apply_along_axis: shape {tensor.shape} holds no vectors; give at least one.")
    joined = f.stack(rows).reshape((*lead, *rows[0].shape))
    (place,) = normalize_axes("apply_along_axis", axis, tensor.ndim)
    source = tuple(range(len(lead), joined.ndim))
    return f.moveaxis(joined, source, tuple(place + i for i in range(len(source))))


def band_part(x: Any, num_lower: int | None = None, num_upper: int | None = None, exclude: bool = False) -> Tensor:
    """The band of matrices within num_lower diagonals below and num_upper above the main one; None is all of them."""
    tensor = asarray(x)
    if tensor.ndim < 2:
        raise ShapeError(f"band_part: shape {tensor.shape} has fewer than two axes; reshape it to at least 2-D.")
    i, j = arange(tensor.shape[-2]).expand_dims(1), arange(tensor.shape[-1])
    below = f.logical_or(i - j <= num_lower, num_lower < 0) if num_lower is not None else i - j >= -tensor.shape[-1]
    above = f.logical_or(j - i <= num_upper, num_upper < 0) if num_upper is not None else j - i >= -tensor.shape[-2]
    keep = f.logical_and(below, above)
    return f.where(f.logical_not(keep) if exclude else keep, tensor, asarray(0).astype(tensor.dtype))
