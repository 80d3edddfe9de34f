"""How each reduction accumulates: its state per lane, how states merge, and its value. Fixed order for every width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait.framework.dtype import DTYPES
from plait.framework.ops.reduce import limit
from plait.jit.builder import Builder, Value, vector
from plait.jit.expression import FLOATS, UNSIGNED, Typed, register_element

LANES = 16  # logical lanes of every accumulator, whatever the target's width


@dataclass(frozen=True)
class Reduction:
    """One reduction of one dtype. A state is a list of vectors of `lanes` lanes."""

    name: str
    dtype: str

    @property
    def state_dtypes(self) -> list[str]:
        """What memory holds a state as, per value."""
        if self.name.startswith("arg"):
            return [self.dtype, "int64"]
        return [self.dtype, "bool"] if self._is_float and self.name in ("max", "min") else [self.dtype]

    @property
    def restarts(self) -> bool:
        """Whether each chunk starts anew, so that long float sums keep their accuracy."""
        return self.name in ("sum", "prod")

    @property
    def _is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def _largest(self) -> bool:
        return self.name.endswith("max")

    @property
    def _first(self) -> Any:
        """Where accumulation starts: neutral for every number."""
        if self.name in ("sum", "any"):
            return 0
        if self.name in ("prod", "all"):
            return 1
        if self._is_float:
            return -float("inf") if self._largest else float("inf")
        return limit(DTYPES[self.dtype], "min" if self._largest else "max")

    def start(self, b: Builder, lanes: int) -> list[Value]:
        element = register_element(self.dtype)
        first = b.constant(vector(element, lanes), self._first)
        if self.name.startswith("arg"):
            return [first, b.constant(vector("i64", lanes), -1)]
        if self._is_float and self.name in ("max", "min"):
            return [first, b.constant(vector("i1", lanes), False)]
        return [first]

    def update(self, b: Builder, state: list[Value], x: Value, position: Value, mask: Value | None) -> list[Value]:
        """Take in one element per lane; `position` is its int64 index along the reduced axis, per lane."""
        if self.name.startswith("arg"):
            taken = [x, position]
            better = self._better(b, state, taken)
        elif len(state) == 2:
            chosen = b.fcmp("ogt" if self._largest else "olt", x, state[0])
            nan = b.fcmp("uno", x, x)
            if mask is not None:
                chosen, nan = b.band(chosen, mask), b.band(nan, mask)
            return [b.select(chosen, x, state[0]), b.bor(state[1], nan)]
        else:
            taken = [self._combine(b, state[0], x)]
            better = None
        if mask is not None:
            better = mask if better is None else b.band(better, mask)
        return taken if better is None else [b.select(better, t, s) for t, s in zip(taken, state, strict=True)]

    def merge(self, b: Builder, state: list[Value], later: list[Value]) -> list[Value]:
        """Two states, lane by lane."""
        if self.name.startswith("arg"):
            chosen = self._better(b, state, later)
            return [b.select(chosen, t, s) for t, s in zip(later, state, strict=True)]
        if len(state) == 2:
            chosen = b.fcmp("ogt" if self._largest else "olt", later[0], state[0])
            return [b.select(chosen, later[0], state[0]), b.bor(state[1], later[1])]
        return [self._combine(b, state[0], later[0])]

    def across(self, b: Builder, state: list[Value]) -> list[Value]:
        """All lanes into one: lane i with lane i + n/2, until one is left."""
        while state[0].lanes > 1:
            half = state[0].lanes // 2
            low, high = ([b.slice(v, start, half) for v in state] for start in (0, half))
            state = self.merge(b, low, high)
        return state

    def value(self, b: Builder, state: list[Value], count: Value) -> Typed:
        """The result per lane; `count` is how many elements were taken in."""
        empty = b.icmp("eq", count, 0)
        if self.name.startswith("arg"):
            return Typed(b.select(empty, b.constant(state[1].type, 0), state[1]), "int64")
        result = state[0]
        if len(state) == 2:
            result = b.select(state[1], b.constant(result.type, float("nan")), result)
            last = limit(DTYPES[self.dtype], "min" if self._largest else "max")
            result = b.select(empty, b.constant(result.type, last), result)
        return Typed(result, self.dtype)

    def _better(self, b: Builder, state: list[Value], other: list[Value]) -> Value:
        """Where the other element replaces the one held: larger, or NaN; of equals the one that came first."""
        (held, at), (x, position) = state, other
        if self._is_float:
            wins = b.fcmp("ogt" if self._largest else "olt", x, held)
            held_nan, nan = b.fcmp("uno", held, held), b.fcmp("uno", x, x)
            wins = b.bor(wins, b.band(nan, b.bnot(held_nan)))
            equal = b.bor(b.fcmp("oeq", x, held), b.band(nan, held_nan))
        else:
            predicate = ("u" if self.dtype in (*UNSIGNED, "bool") else "s") + ("gt" if self._largest else "lt")
            wins, equal = b.icmp(predicate, x, held), b.icmp("eq", x, held)
        sooner = b.icmp("ult", position, at)  # no element yet is -1, which is the largest unsigned number
        held_none = b.icmp("slt", at, 0)
        real = b.icmp("sge", position, 0)
        return b.band(real, b.bor(held_none, b.bor(wins, b.band(equal, sooner))))

    def _combine(self, b: Builder, x: Value, y: Value) -> Value:
        return getattr(b, self._operation())(x, y)  # type: ignore[no-any-return]

    def _operation(self) -> str:
        if self.name in ("any", "all") or self.dtype == "bool":
            return "bor" if self.name in ("any", "max") else "band"
        if self.name in ("sum", "prod"):
            return ("f" if self._is_float else "i") + ("add" if self.name == "sum" else "mul")
        return ("u" if self.dtype in UNSIGNED else "i") + self.name


def flatten(states: Sequence[Sequence[Value]]) -> list[Value]:
    """The values of all states, as a loop carries them."""
    return [value for state in states for value in state]


def split_like(flat: Sequence[Value], like: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """The inverse of flatten."""
    rest = iter(flat)
    return [[next(rest) for _ in state] for state in like]
