"""Strides of views, counted in elements: C order, broadcasting, merging axes, reshaping without a copy. No tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from plait.framework.dim import Size, product
from plait.framework.op import Shape

_remembered = lru_cache(4096)  # shapes repeat: what depends on them alone is worked out once


@_remembered
def broadcast_strides(old: Shape, strides: tuple[Size, ...], new: Shape) -> tuple[Size, ...]:
    """Axes align from the right; an axis that widens stands still."""
    lead = len(new) - len(old)
    kept = zip(old, strides, new[lead:], strict=True)
    return (0,) * lead + tuple(0 if before == 1 and after != 1 else step for before, step, after in kept)


@_remembered
def contiguous_strides(shape: Shape) -> tuple[Size, ...]:
    """The strides of C order; as in NumPy an axis of size 0 counts as 1."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def merge_axes(shape: Shape, strides: Iterable[tuple[Size, ...]]) -> tuple[Shape, tuple[tuple[Size, ...], ...]]:
    """Drop axes of size 1 and merge neighbours that every row of `strides` walks as one; symbols merge by equality."""
    return _merged(tuple(shape), tuple(strides))


@_remembered
def _merged(shape: Shape, strides: tuple[tuple[Size, ...], ...]) -> tuple[Shape, tuple[tuple[Size, ...], ...]]:
    kept = [axis for axis, size in enumerate(shape) if size != 1]
    sizes: list[Size] = []
    steps: list[list[Size]] = [[] for _ in strides]
    for axis in kept:
        size = shape[axis]
        if sizes and all(row[-1] == all_[axis] * size for row, all_ in zip(steps, strides, strict=True)):
            sizes[-1] = sizes[-1] * size
            for row, all_ in zip(steps, strides, strict=True):
                row[-1] = all_[axis]
            continue
        sizes.append(size)
        for row, all_ in zip(steps, strides, strict=True):
            row.append(all_[axis])
    return tuple(sizes), tuple(tuple(row) for row in steps)


@_remembered
def reshape_strides(old: Shape, strides: tuple[Size, ...], new: Shape) -> tuple[Size, ...] | None:
    """NumPy's rule for a reshape without a copy: each run of new axes must cover one mergeable run of old axes."""
    if 0 in old or 0 in new:
        return contiguous_strides(new)
    sizes, (steps,) = merge_axes(old, (strides,))
    found: list[Size] = []
    rest = list(new)
    for size, step in zip(sizes, steps, strict=True):
        run: list[Size] = []
        while product(tuple(run)) != size or not run:
            if not rest:
                return None
            run.append(rest.pop(0))
        found.extend(stride * step for stride in contiguous_strides(tuple(run)))
    if any(size != 1 for size in rest):
        return None
    return (*found, *(0 for _ in rest))
