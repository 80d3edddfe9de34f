"""What an index means: NumPy's basic indexing as (start, step) per axis, and strides of views. Knows no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.framework.dim import Dim, Size, product
from plait.framework.errors import IndexingError, ShapeError
from plait.framework.op import Shape

StartStep = tuple[Size, int]
Axis = int | Sequence[int] | None


@dataclass(frozen=True)
class BasicIndex:
    """A basic index, normalised: one (start, step) and size per axis, then the shape after dropping and adding axes."""

    starts_steps: tuple[StartStep, ...]
    sliced: Shape
    result: Shape


def is_basic(key: Any) -> bool:
    """Whether every entry is an int, a slice, None or Ellipsis."""
    entries = key if isinstance(key, tuple) else (key,)
    return all(_is_basic_entry(entry) for entry in entries)


def _is_basic_entry(entry: Any) -> bool:
    if entry is None or entry is Ellipsis or isinstance(entry, slice | Dim):
        return True
    if isinstance(entry, np.integer):
        return True
    return not isinstance(entry, bool) and hasattr(entry, "__index__") and not hasattr(entry, "shape")


def expand_ellipsis(entries: tuple[Any, ...], rank: int, used: int) -> list[Any]:
    """Replace the Ellipsis (or the missing tail) by full slices; `used` axes are consumed by the other entries."""
    if sum(entry is Ellipsis for entry in entries) > 1:
        raise IndexingError("index: more than one Ellipsis ('...') was given; use one.")
    if used > rank:
        raise IndexingError(f"index: {used} indices for an array of rank {rank}; give at most {rank}.")
    fill = [slice(None)] * (rank - used)
    for place, entry in enumerate(entries):
        if entry is Ellipsis:
            return [*entries[:place], *fill, *entries[place + 1 :]]
    return [*entries, *fill]


def basic_index(key: Any, shape: Shape) -> BasicIndex:
    """Normalise a basic index.

    Raises: IndexingError for too many indices, an integer outside its axis, or a zero step.
    """
    entries = key if isinstance(key, tuple) else (key,)
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    starts: list[StartStep] = []
    sliced: list[Size] = []
    result: list[Size] = []
    for entry in expand_ellipsis(entries, len(shape), used):
        if entry is None:
            result.append(1)
            continue
        size = shape[len(starts)]
        start, step, count, keep = _axis(entry, size, len(starts), shape)
        starts.append((start, step))
        sliced.append(count)
        if keep:
            result.append(count)
    return BasicIndex(tuple(starts), tuple(sliced), tuple(result))


def _axis(entry: Any, size: Size, axis: int, shape: Shape) -> tuple[Size, int, Size, bool]:
    if isinstance(entry, slice):
        return (*_slice(entry, size), True)
    index = entry if isinstance(entry, Dim) else entry.__index__()
    if isinstance(size, int) and isinstance(index, int):
        if not -size <= index < size:
            raise IndexingError(
                f"index: {index} is outside axis {axis} of shape {shape}; expected {-size} to {size - 1}."
            )
        return index % size, 1, 1, False
    return (size + index if isinstance(index, int) and index < 0 else index), 1, 1, False


def _slice(entry: slice, size: Size) -> tuple[Size, int, Size]:
    if isinstance(size, int) and not any(isinstance(bound, Dim) for bound in (entry.start, entry.stop)):
        try:
            start, stop, step = entry.indices(size)
        except ValueError:
            raise IndexingError("index: a slice step of 0; use a step other than 0.") from None
        count = len(range(start, stop, step))
        return (start if count else 0), step, count
    return _symbolic_slice(entry, size)


def _symbolic_slice(entry: slice, size: Size) -> tuple[Size, int, Size]:
    step = 1 if entry.step is None else entry.step
    if step == -1 and entry.start is None and entry.stop is None:
        return size - 1, -1, size
    if step < 1:
        raise ShapeError(
            f"index: a step of {step} on the symbolic axis {size}; only positive steps and [::-1] are known."
        )
    start = _bound(entry.start, 0, size)
    return start, step, (_bound(entry.stop, size, size) - start + (step - 1)) // step


def _bound(value: Any, default: Size, size: Size) -> Size:
    if value is None:
        return default
    return size + value if isinstance(value, int) and value < 0 else value


def normalize_axes(where: str, axis: Axis, rank: int) -> tuple[int, ...]:
    """Axes as non-negative, distinct ints; None is all of them.

    Raises: IndexingError for an axis outside the rank, ShapeError for one named twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    for index in given:
        if not -rank <= index < rank:
            raise IndexingError(f"{where}: axis {index} for an array of rank {rank}; expected {-rank} to {rank - 1}.")
    axes = tuple(index % rank for index in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{where}: axes {given} name one axis twice; name each axis once.")
    return axes


def resolve_shape(old: Shape, new: tuple[Any, ...]) -> Shape:
    """A requested shape with its -1 filled in.

    Raises: ShapeError when the element counts differ or cannot be inferred.
    """
    total = product(old)
    known = product(tuple(size for size in new if not (isinstance(size, int) and size == -1)))
    holes = sum(isinstance(size, int) and size == -1 for size in new)
    if holes > 1 or any(isinstance(size, int) and size < -1 for size in new):
        raise ShapeError(f"reshape: {new} for shape {old}; at most one size may be -1, the others are 0 or more.")
    if holes and known == 0:
        raise ShapeError(f"reshape: {new} for shape {old}; a -1 beside a 0 cannot be inferred.")
    if holes:
        fill = total // known
        if fill * known != total:
            raise ShapeError(f"reshape: {old} has {total} elements; {new} needs a multiple of {known}.")
        return tuple(fill if isinstance(size, int) and size == -1 else size for size in new)
    if known != total:
        raise ShapeError(f"reshape: {old} has {total} elements; {new} has {known}.")
    return tuple(new)


def flat_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(args) == 1 and isinstance(args[0], Sequence):
        args = tuple(args[0])
    return tuple(arg if isinstance(arg, Dim) else arg.__index__() for arg in args if arg is not None)
