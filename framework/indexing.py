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


def c_strides(shape: Shape) -> tuple[Size, ...]:
    """Element strides of a contiguous array."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def reshape_strides(shape: Shape, strides: tuple[Size, ...], new: Shape) -> tuple[Size, ...] | None:
    """Strides that show the same memory under another shape, or None where only a copy can: NumPy's rule."""
    if any(size == 0 for size in shape):
        return c_strides(new)
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[Size] = []
    taken = 0
    groups = _groups([size for size, _ in old], list(new))
    if groups is None:
        return None
    for first, last in groups:
        group = old[taken:first]
        if any(a[1] != b[1] * b[0] for a, b in zip(group, group[1:], strict=False)):
            return None
        step: Size = group[-1][1] if group else 1
        inner: list[Size] = []
        for size in reversed(new[len(result) : last]):
            inner.append(step)
            step = step * size
        result.extend(reversed(inner))
        taken = first
    return tuple(result)


def _groups(old: list[Size], new: list[Size]) -> list[tuple[int, int]] | None:
    """Ends (in old, in new) of the shortest runs of axes whose sizes multiply to the same number."""
    ends: list[tuple[int, int]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a: Size = 1
        b: Size = 1
        if i < len(old):
            a, i = old[i], i + 1
        if j < len(new):
            b, j = new[j], j + 1
        while a != b:
            if isinstance(a, int) and isinstance(b, int):
                grow_old = a < b
            else:
                grow_old = isinstance(b, Dim) and (isinstance(a, int) or len(str(a)) < len(str(b)))
            if grow_old and i < len(old):
                a, i = a * old[i], i + 1
            elif j < len(new):
                b, j = b * new[j], j + 1
            elif i < len(old):
                a, i = a * old[i], i + 1
            else:
                return None
        ends.append((i, j))
    return ends


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
