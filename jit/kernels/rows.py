"""How a kernel that works on rows finds them in an operand: leading axes that step evenly are one axis of rows."""

from __future__ import annotations

from dataclasses import dataclass

from plait.framework.dim import Size, product
from plait.framework.graph import Node
from plait.framework.op import Shape
from plait.framework.strides import merge_axes
from plait.jit.kernel import Decline
from plait.jit.view import resolve


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of an operand: row r, element i is at base + offset + r * stride + i * step, in elements."""

    base: Node
    offset: Size
    count: Size
    stride: Size
    width: Size
    step: Size


def _one_axis(shape: Shape, strides: tuple[Size, ...], alone: Size) -> Size:
    """The stride of the axes merged into one; `alone` where there is a single element."""
    _, (steps,) = merge_axes(shape, (strides,))
    if len(steps) > 1:
        raise Decline("rows_layout")
    return steps[0] if steps else alone


def rows_of(node: Node, inner: int = 1) -> Rows:
    """The operand as rows over its leading axes; the last `inner` axes are one row.

    Raises: Decline("rows_layout") where either part does not step evenly.
    """
    view = resolve(node)
    split = len(view.shape) - inner
    count, width = product(view.shape[:split]), product(view.shape[split:])
    stride = _one_axis(view.shape[:split], view.strides[:split], width)
    return Rows(view.base, view.offset, count, stride, width, _one_axis(view.shape[split:], view.strides[split:], 1))


def unit_rows(node: Node, inner: int = 1) -> Rows:
    """`rows_of` whose elements are neighbours in memory.

    Raises: Decline("rows_layout").
    """
    rows = rows_of(node, inner)
    if rows.step != 1:
        raise Decline("rows_layout")
    return rows


def whole_base(node: Node) -> Node:
    """The base of an operand that kernels read from its first element in C order.

    Raises: Decline("rows_layout") where it is a slice or permuted.
    """
    view = resolve(node)
    if not view.contiguous:
        raise Decline("rows_layout")
    return view.base
