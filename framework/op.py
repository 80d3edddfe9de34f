"""One row of the op table: what an op means, for whoever reads it (interpreter, JIT, sharding, gradients, docs)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from plait.framework.dim import Size
from plait.framework.dtype import DType

Shape = tuple[Size, ...]
Attrs = tuple[Any, ...]


class Spec(NamedTuple):
    """Shape and dtype of a value."""

    shape: Shape
    dtype: DType


@dataclass(frozen=True, eq=False)
class Op:
    """One row.

    family   which skeleton computes it: elementwise, reduce, movement, create, index, write, product, ragged, row,
             leaf, scan, host (NumPy only)
    infer    (op, operand specs, attrs) -> result spec; raises ShapeError or DTypeError
    numpy    NumPy meaning: (*arrays, attrs, result spec) -> array. For a movement row it returns a view.
    expr     scalar expression over a builder: (b, *values) -> value (elementwise rows)
    axes     axis map, one term per operand and one for the result, e.g. "*mk,*kn->*mn": equal letters are the same
             axis; a letter absent from the result is reduced; "*" stands for leading axes that broadcast; an axis in
             [brackets] is needed whole
    attrs    names of the attributes, in order
    in_place operand 0 is a storage version and the result is its next version, written where it stands
    ulp      largest distance between two executors, in units of the last place of the result
    """

    name: str
    family: str
    infer: Callable[[Op, tuple[Spec, ...], Attrs], Spec]
    numpy: Callable[..., Any]
    expr: Callable[..., Any] | None = None
    axes: str = ""
    attrs: tuple[str, ...] = ()
    in_place: bool = False
    ulp: float = 0.0
    doc: str = ""

    def __repr__(self) -> str:
        return self.name


TABLE: dict[str, Op] = {}


def row(name: str, family: str, **columns: Any) -> Op:
    """Add a row to the table."""
    if name in TABLE:
        raise ValueError(f"op table: {name!r} has a row already.")
    TABLE[name] = op = Op(name, family, **columns)
    return op
