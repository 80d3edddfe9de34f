"""Symbolic dims: integers known only when a compiled function is called.

A Dim is a polynomial with integer coefficients over atoms; an atom is a name or the floor of a quotient that does not
divide exactly. Equal polynomials are equal dims; a dim that folds to a constant is a plain int, never a Dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True)
class FloorDiv:
    """An atom: floor(numerator / denominator)."""

    numerator: Size
    denominator: Size

    def __str__(self) -> str:
        return f"({self.numerator})//({self.denominator})"


Atom = str | FloorDiv
Monomial = tuple[Atom, ...]


class Dim:
    """A symbolic extent. It adds, subtracts, multiplies and floor-divides; it has no order and no integer value."""

    __slots__ = ("terms", "_hash")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = dict(terms)
        self._hash = hash(frozenset(self.terms.items()))

    def __add__(self, other: Size) -> Size:
        return _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        return _sum(self, other, -1)

    def __rsub__(self, other: Size) -> Size:
        return _sum(other, self, -1)

    def __neg__(self) -> Size:
        return _sum(0, self, -1)

    def __mul__(self, other: Size) -> Size:
        product: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in _terms(other).items():
                key = tuple(sorted(left + right, key=str))
                product[key] = product.get(key, 0) + a * b
        return _folded(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return _floor_divide(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return _floor_divide(other, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __index__(self) -> NoReturn:
        raise TypeError(f"dim: {self} is symbolic and has no integer value while tracing; compute with it instead.")

    __int__ = __bool__ = __index__

    def __str__(self) -> str:
        return " + ".join(_term_text(m, c) for m, c in sorted(self.terms.items(), key=str)) or "0"

    __repr__ = __str__


Size = int | Dim


def symbol(name: str) -> Dim:
    """A named dim. It equals only itself."""
    if not name.isidentifier():
        raise ValueError(f"dim: {name!r} is not an identifier; use a name such as 'batch'.")
    return Dim({(name,): 1})


def symbols_of(size: Size) -> set[str]:
    """The names a size depends on."""
    names: set[str] = set()
    for monomial in _terms(size):
        for atom in monomial:
            names |= {atom} if isinstance(atom, str) else symbols_of(atom.numerator) | symbols_of(atom.denominator)
    return names


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The integer a size takes for these values of its names."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, coefficient in size.terms.items():
        for atom in monomial:
            coefficient *= values[atom] if isinstance(atom, str) else _evaluate_floor(atom, values)
        total += coefficient
    return total


def product(sizes: tuple[Size, ...]) -> Size:
    """The number of elements of a shape."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def ceil_div(size: Size, by: int) -> Size:
    """The number of blocks of `by` that cover `size`."""
    return (size + (by - 1)) // by


def _evaluate_floor(atom: FloorDiv, values: Mapping[str, int]) -> int:
    return evaluate(atom.numerator, values) // evaluate(atom.denominator, values)


def _terms(size: Size) -> dict[Monomial, int]:
    return size.terms if isinstance(size, Dim) else ({(): int(size)} if size else {})


def _folded(terms: dict[Monomial, int]) -> Size:
    kept = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(kept)


def _sum(a: Size, b: Size, sign: int) -> Size:
    total = dict(_terms(a))
    for monomial, coefficient in _terms(b).items():
        total[monomial] = total.get(monomial, 0) + sign * coefficient
    return _folded(total)


def _floor_divide(a: Size, b: Size) -> Size:
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"dim: {a} // 0")
        if all(coefficient % b == 0 for coefficient in _terms(a).values()):
            return _folded({monomial: coefficient // b for monomial, coefficient in _terms(a).items()})
    elif (quotient := _exact_quotient(a, b)) is not None:
        return quotient
    return Dim({(FloorDiv(a, b),): 1})


def _exact_quotient(a: Size, b: Dim) -> Size | None:
    """a / b where b has one term that divides every term of a."""
    if len(b.terms) != 1:
        return 1 if a == b else None
    ((divisor, scale),) = b.terms.items()
    quotient: dict[Monomial, int] = {}
    for monomial, coefficient in _terms(a).items():
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % scale:
            return None
        quotient[tuple(rest)] = coefficient // scale
    return _folded(quotient)


def _term_text(monomial: Monomial, coefficient: int) -> str:
    names = [str(atom) for atom in monomial]
    return "*".join([str(coefficient), *names] if coefficient != 1 or not names else names)
