"""Movement records folded into offset and strides over a base. Knows no kernel.

A base is a record that has, or will have, its own contiguous memory: a leaf, any computed record, or a reshape that
strides cannot express. Such a reshape is a base itself: whoever reads it needs it computed, as a copy of its source.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from plait.framework.dim import Size
from plait.framework.graph import Node
from plait.framework.op import Shape
from plait.framework.strides import broadcast_strides, contiguous_strides, reshape_strides


class View(NamedTuple):
    """Elements of a base: offset and strides count elements of the base's contiguous memory."""

    base: Node
    offset: Size
    shape: Shape
    strides: tuple[Size, ...]

    @property
    def contiguous(self) -> bool:
        """C order from the base's first element on; the strides of axes of size 1 do not matter."""
        wanted = zip(self.shape, self.strides, contiguous_strides(self.shape), strict=True)
        return self.offset == 0 and (0 in self.shape or all(n == 1 or a == b for n, a, b in wanted))

    def reshaped(self, shape: Shape) -> View | None:
        """The same elements in another shape; None when strides cannot express it."""
        strides = reshape_strides(self.shape, self.strides, shape)
        return None if strides is None else View(self.base, self.offset, shape, strides)

    def broadcast(self, shape: Shape) -> View:
        """Axes align from the right; an axis of size 1 that widens gets stride 0."""
        if shape == self.shape:
            return self
        return View(self.base, self.offset, shape, broadcast_strides(self.shape, self.strides, shape))


def _reshape(view: View, attrs: tuple[Any, ...]) -> View | None:
    return view.reshaped(attrs[0])


def _expand(view: View, attrs: tuple[Any, ...]) -> View:
    return view.broadcast(attrs[0])


def _permute(view: View, attrs: tuple[Any, ...]) -> View:
    shape, strides = (tuple(items[axis] for axis in attrs[0]) for items in (view.shape, view.strides))
    return View(view.base, view.offset, shape, strides)


def _slice(view: View, attrs: tuple[Any, ...]) -> View:
    starts_steps, shape = attrs
    offset = view.offset
    for (start, _), stride in zip(starts_steps, view.strides, strict=True):
        offset = offset + stride * start
    strides = tuple(stride * step for (_, step), stride in zip(starts_steps, view.strides, strict=True))
    return View(view.base, offset, shape, strides)


def _as_strided(view: View, attrs: tuple[Any, ...]) -> View | None:
    offset, shape, strides = attrs
    return View(view.base, view.offset + offset, shape, strides) if view._replace(offset=0).contiguous else None


_FOLD = {
    "reshape": _reshape,
    "expand": _expand,
    "permute": _permute,
    "slice": _slice,
    "as_strided": _as_strided,
}


def whole(node: Node) -> View:
    """All of a base, in C order."""
    return View(node, 0, node.shape, contiguous_strides(node.shape))


def resolve(node: Node) -> View:
    """Follow movement records down to a base."""
    chain: list[Node] = []
    while node.buffer is None and node.op.name in _FOLD:
        chain.append(node)
        node = node.srcs[0]
    view = whole(node)
    for moved in reversed(chain):
        folded = _FOLD[moved.op.name](view, moved.attrs)
        view = whole(moved) if folded is None else folded
    return view


def base_of(node: Node) -> Node:
    """The record whose memory a record's elements lie in; the record itself unless it is a view."""
    return node if node.buffer is not None or node.op.name not in _FOLD else resolve(node).base


def is_view(node: Node) -> bool:
    """Whether a record is pure movement over another record's memory, so that nothing computes it."""
    return node.buffer is None and node.op.name in _FOLD and base_of(node) is not node


def is_copying_reshape(node: Node) -> bool:
    """Whether a record is a movement that strides cannot express: it must be computed, by copying its source."""
    return node.buffer is None and node.op.name in _FOLD and base_of(node) is node


def copied_view(node: Node) -> View:
    """What fills a movement record's own memory: its elements in C order, a copying reshape's in its source's shape."""
    return resolve(node.srcs[0]) if is_copying_reshape(node) else resolve(node)
