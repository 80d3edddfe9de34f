"""Records over one iteration space as a straight-line program with strided loads. Knows no loop and no LLVM.

A record is evaluated in a frame: for each axis of the space, which axis of the record it walks, or -1. So a value that
is read broadcast or transposed is computed at the element that is read, never moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from plait.framework.dim import Size, product
from plait.framework.graph import CONST, Node
from plait.framework.op import Shape
from plait.framework.ops.elementwise import POW
from plait.framework.ops.movement import IOTA
from plait.framework.strides import contiguous_strides
from plait.jit.builder import REGISTER_TYPES, Builder
from plait.jit.expression import ExpressionBuilder
from plait.jit.kernel import Decline, Fused, Ref
from plait.jit.math import Unsupported
from plait.jit.target import host_target
from plait.jit.view import View, copied_view, resolve

Frame = tuple[int, ...]
Step = tuple[str, tuple[Ref, ...], tuple[Any, ...]]

EXPENSIVE = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid pow "
    "atan2 floordiv mod".split()
)


@dataclass(frozen=True, eq=False)
class Load:
    """A value per element: the base's memory at offset + strides, or that very number for a counting record."""

    base: Node
    offset: Size
    strides: tuple[Size, ...]
    counts: bool

    @property
    def dtype(self) -> str:
        return self.base.dtype.name


class Program:
    """Records turned into steps, in the order in which they are asked for."""

    def __init__(self, space: Shape, inside: Iterable[Node], reduced: tuple[int, ...] = ()) -> None:
        self.space = space
        self.reduced = reduced  # the axes of the space that reductions reduce
        self.inside = {id(node) for node in inside}
        self.loads: list[Load] = []
        self.scalars: list[tuple[Any, str]] = []
        self.steps: list[Step] = []
        self.dtypes: list[str] = []  # of each step's value
        self._loads: dict[Any, int] = {}
        self._scalars: dict[int, int] = {}
        self._values: dict[tuple[int, Frame], Ref] = {}

    def output(self, node: Node) -> Ref:
        """The value of a record that is kept; a movement record is kept as a copy."""
        view = copied_view(node) if node.op.family == "movement" and node.buffer is None else None
        if node.op is IOTA:
            view = resolve(node)
        if view is not None:
            return self._read(view, self._frame(view.shape))
        return self._value(node, self._frame(node.shape))

    def is_full(self, node: Node) -> bool:
        """Whether a kept record has the shape of the whole space, not of a reduction's result."""
        return _sizes(node.shape) == _sizes(self.space)

    def fused(self, outputs: Iterable[Ref]) -> Fused:
        """The program as hashable data."""
        inputs = tuple(load.dtype for load in self.loads)
        scalars = tuple(dtype for _, dtype in self.scalars)
        return Fused(inputs, scalars, tuple(self.steps), tuple(outputs))

    def _frame(self, shape: Shape) -> Frame:
        return outer_frame(shape, self.space, self.reduced)

    def _value(self, node: Node, frame: Frame) -> Ref:
        key = id(node), frame
        if key not in self._values:
            self._values[key] = self._compute(node, frame)
        return self._values[key]

    def _compute(self, node: Node, frame: Frame) -> Ref:
        if node.op.family == "reduce" and self.reduced:
            return self._reduce(node, frame)
        if node.op.family != "elementwise":
            raise Decline(f"{node.op.name}_is_not_elementwise")
        if node.op is POW and (short := self._short_power(node, frame)) is not None:
            return short
        operands = tuple(self._operand(src, node.shape, frame) for src in node.srcs)
        return self._step(node, node.op.name, operands, node.attrs)

    def _step(self, node: Node, name: str, operands: tuple[Ref, ...], attrs: tuple[Any, ...] = ()) -> Ref:
        self.steps.append((name, operands, attrs))
        self.dtypes.append(node.dtype.name)
        return "step", len(self.steps) - 1

    def _operand(self, src: Node, shape: Shape, frame: Frame) -> Ref:
        return self._read(resolve(src).broadcast(shape), frame)

    def _read(self, view: View, frame: Frame) -> Ref:
        base = view.base
        strides = tuple(view.strides[axis] if axis >= 0 else 0 for axis in frame)
        if base.op is CONST:
            return self._scalar(base)
        if id(base) in self.inside and base.op is not IOTA:
            return self._value(base, inner_frame(base.shape, view.offset, strides, self.space))
        return self._load(base, view.offset, strides, id(base) in self.inside)

    def _load(self, base: Node, offset: Size, strides: tuple[Size, ...], counts: bool) -> Ref:
        if base.dtype.name not in REGISTER_TYPES:
            raise Decline(f"dtype_{base.dtype.name}")
        key = id(base), offset, strides
        if key not in self._loads:
            self._loads[key] = len(self.loads)
            self.loads.append(Load(base, offset, strides, counts))
        return "in", self._loads[key]

    def _scalar(self, node: Node) -> Ref:
        if node.dtype.name not in REGISTER_TYPES:
            raise Decline(f"dtype_{node.dtype.name}")
        if id(node) not in self._scalars:
            self._scalars[id(node)] = len(self.scalars)
            self.scalars.append((_as_argument(node.attrs[0], node.dtype.kind), node.dtype.name))
        return "scalar", self._scalars[id(node)]

    def _short_power(self, node: Node, frame: Frame) -> Ref | None:
        """x ** -1, 0.5, 2, 3 without logarithms, as NumPy does it for scalars: exponents that are structure."""
        exponent = resolve(node.srcs[1]).base
        if exponent.op is not CONST or isinstance(exponent.attrs[0], complex):
            return None
        number, is_float = float(exponent.attrs[0]), node.dtype.kind == "f"
        if number not in ((-1.0, 0.5, 2.0, 3.0) if is_float else (2.0, 3.0)):
            return None
        x = self._operand(node.srcs[0], node.shape, frame)
        if number == -1.0:
            return self._step(node, "reciprocal", (x,))
        if number == 0.5:
            return self._step(node, "sqrt", (x,))
        square = self._step(node, "mul", (x, x))
        return square if number == 2.0 else self._step(node, "mul", (square, x))

    def _reduce(self, node: Node, frame: Frame) -> Ref:
        """The operand of a reduction is evaluated over the whole space, its reduced axes along the space's."""
        source = node.srcs[0].shape
        walked = reduced_frame(source, *node.attrs, frame, self.space, self.reduced)
        return self._step(node, node.op.name, (self._operand(node.srcs[0], source, walked),))


@lru_cache(4096)
def outer_frame(shape: Shape, space: Shape, reduced: tuple[int, ...]) -> Frame:
    """The frame of a shape that equals the space, or the space without its reduced axes, axes of size 1 apart.

    Raises: Decline.
    """
    walked = list(range(len(space)))
    if _sizes(shape) != _sizes(space):
        walked = [k for k in walked if k not in reduced]
    if _sizes(shape) != _sizes(tuple(space[k] for k in walked)):
        raise Decline("outputs_differ_in_shape")
    axes = iter([axis for axis, size in enumerate(shape) if size != 1])
    return tuple(next(axes) if k in walked and size != 1 else -1 for k, size in enumerate(space))


@lru_cache(4096)
def reduced_frame(
    source: Shape, axes: tuple[int, ...], keepdims: bool, frame: Frame, space: Shape, reduced: tuple[int, ...]
) -> Frame:
    """The frame of a reduction's operand, from the frame of its result.

    Raises: Decline unless it reduces just the axes of the space that are reduced.
    """
    kept = [axis for axis in range(len(source)) if keepdims or axis not in axes]
    walked = [kept[axis] if axis >= 0 else -1 for axis in frame]
    rest = [axis for axis in sorted(axes) if source[axis] != 1]
    for k in reduced:
        if walked[k] >= 0 or (space[k] != 1 and not (rest and source[rest[0]] == space[k])):
            raise Decline("reduces_other_axes")
        walked[k] = rest.pop(0) if space[k] != 1 else -1
    if rest or any(axis < 0 and size != 1 for axis, size in zip(walked, space, strict=True)):
        raise Decline("reduces_other_axes")
    return tuple(walked)


@lru_cache(4096)
def inner_frame(shape: Shape, offset: Size, strides: tuple[Size, ...], space: Shape) -> Frame:
    """How the axes of the space walk a record of a shape that is read with these strides.

    Raises: Decline unless each axis of the record is walked whole, by one axis of the space.
    """
    left = {axis: stride for axis, stride in enumerate(contiguous_strides(shape)) if shape[axis] != 1}
    frame: list[int] = []
    for size, stride in zip(space, strides, strict=True):
        found = -1
        if size != 1 and stride != 0:
            found = next((axis for axis, own in left.items() if own == stride and shape[axis] == size), -2)
            if found == -2:
                raise Decline("moved_between_records")
            del left[found]
        frame.append(found)
    if offset != 0 or left:
        raise Decline("moved_between_records")
    return tuple(frame)


def can_join(consumer: Node, producer: Node) -> bool:
    """Whether `producer` may be computed inside an elementwise `consumer`, element by element.

    A broadcast value with a transcendental in it is left to a kernel of its own, and so is what a copying reshape
    reads: its elements line up in memory order only.
    """
    if consumer.op.family == "movement":
        return False
    fits, spread = _reads(consumer, producer)
    return fits and producer.op.family in ("elementwise", "create") and not (spread and not _is_light(producer, 4))


def _sizes(shape: Shape) -> list[Size]:
    return [size for size in shape if size != 1]


def _reads(consumer: Node, producer: Node) -> tuple[bool, bool]:
    spread = False
    for src in consumer.srcs:
        view = resolve(src)
        if view.base is not producer or producer.op is IOTA:
            continue
        view = view.broadcast(consumer.shape)
        try:
            inner_frame(producer.shape, view.offset, view.strides, view.shape)
        except Decline:
            return False, spread
        spread = spread or product(view.shape) != product(producer.shape)
    return True, spread


def _is_light(node: Node, depth: int) -> bool:
    if node.buffer is not None or node.op.family != "elementwise":
        return True
    if node.op.name in EXPENSIVE or depth == 0:
        return False
    return all(_is_light(resolve(src).base, depth - 1) for src in node.srcs)


def _as_argument(value: Any, kind: str) -> Any:
    if kind == "f":
        return float(value)
    return bool(value) if kind == "b" else (int(value) + 2**63) % 2**64 - 2**63


@cache
def require_code(fused: Fused) -> None:
    """Raises: Decline when an expression has no code for its dtypes."""
    b = Builder(host_target())
    with b.function("trial"):
        x = ExpressionBuilder(b, 1)
        try:
            fused.emit(x, [x.const(dtype, 0) for dtype in fused.inputs], [x.const(d, 0) for d in fused.scalars])
        except Unsupported as refusal:
            raise Decline(f"no_expression: {refusal.reason}") from None


def program_name(steps: Iterable[Step]) -> str:
    """What the kernel is called where people read it."""
    return "_".join(name for name, _, _ in steps) or "copy"
