"""Programs with reductions in them: which pass over the reduced axis computes what. Plain data, no LLVM.

A value is full when it varies along the reduced axes, else it is a line value: one per result of a reduction. Line
values of level p are known before pass p; a reduction in pass p gives a line value of level p + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from plait.framework.graph import Node
from plait.framework.op import TABLE, Shape
from plait.jit.builder import REGISTER_TYPES
from plait.jit.expression import ExpressionBuilder, Typed
from plait.jit.kernel import Decline, Fused, Ref
from plait.jit.kernels.loops import LoadPlan
from plait.jit.kernels.program import EXPENSIVE, Program, Step, require_code

Dtypes = tuple[str, ...]
ROW_REDUCTIONS = frozenset("sum prod max min any all argmax argmin".split())


@dataclass(frozen=True)
class Result:
    """A value that is kept: `full` tells whether its memory has an element for each element of the space."""

    ref: Ref
    dtype: str
    full: bool


@dataclass(frozen=True)
class PassKey:
    """The structure of a kernel with reductions.

    stash   (step, place in results) of values that a later pass reads back from a result's memory
    """

    inputs: tuple[LoadPlan, ...]
    scalars: tuple[str, ...]
    steps: tuple[Step, ...]
    dtypes: tuple[str, ...]
    results: tuple[Result, ...]
    outer: int
    inner: int
    stash: tuple[tuple[int, int], ...] = ()


def is_reduction(step: Step) -> bool:
    return step[0] in ROW_REDUCTIONS


@dataclass(eq=False)
class Passes:
    """What the structure says about levels and passes."""

    key: PassKey
    full: list[bool] = field(default_factory=list)
    level: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, refs, _ in self.key.steps:
            level = max((self.level_of(ref) for ref in refs), default=0)
            reduces = name in ROW_REDUCTIONS
            self.level.append(level + 1 if reduces else level)
            self.full.append(not reduces and any(self.is_full(ref) for ref in refs))

    def level_of(self, ref: Ref) -> int:
        return self.level[ref[1]] if ref[0] == "step" else 0

    def is_full(self, ref: Ref) -> bool:
        kind, index = ref
        if kind == "in":
            return not self.key.inputs[index].still
        return kind == "step" and self.full[index]

    def operand_dtype(self, step: int) -> str:
        """Of the value that a reduction reduces."""
        kind, index = self.key.steps[step][1][0]
        if kind == "step":
            return self.key.dtypes[index]
        return self.key.inputs[index].dtype if kind == "in" else self.key.scalars[index]

    def reductions(self, number: int) -> list[int]:
        """Steps that reduce in a pass."""
        return [s for s, step in enumerate(self.key.steps) if is_reduction(step) and self.level[s] == number + 1]

    def stores(self, number: int) -> list[int]:
        """Full results that a pass writes."""
        return [k for k, r in enumerate(self.key.results) if r.full and self.level_of(r.ref) == number]

    def line_steps(self, number: int) -> list[int]:
        """Elementwise steps over line values that become known before a pass."""
        steps = enumerate(self.key.steps)
        return [s for s, step in steps if not self.full[s] and not is_reduction(step) and self.level[s] == number]

    @property
    def count(self) -> int:
        """Passes over the reduced axes; line values may still have this level afterwards."""
        numbers = [self.level[s] for s, step in enumerate(self.key.steps) if is_reduction(step)]
        numbers += [self.level_of(r.ref) + 1 for r in self.key.results if r.full]
        return max(numbers, default=0)

    def roots(self, number: int) -> list[Ref]:
        reduced = [self.key.steps[s][1][0] for s in self.reductions(number)]
        return reduced + [self.key.results[k].ref for k in self.stores(number)]

    def needed(self, number: int, cut: Iterable[int] = ()) -> set[int]:
        """Full steps that a pass evaluates; those in `cut` are read back if an earlier pass evaluated them."""
        found: set[int] = set()
        stack = [ref for ref in self.roots(number) if self.is_full(ref)]
        while stack:
            kind, index = stack.pop()
            if kind != "step" or index in found:
                continue
            found.add(index)
            if index in cut and index in self.needed_before(number, cut):
                continue
            stack.extend(ref for ref in self.key.steps[index][1] if self.is_full(ref))
        return found

    def needed_before(self, number: int, cut: Iterable[int]) -> set[int]:
        return {step for earlier in range(number) for step in self.needed(earlier, cut)}


@cache
def choose_stash(key: PassKey) -> tuple[tuple[int, int], ...]:
    """Costly values of an early pass that a later one needs, in the memory of a result written no sooner than that."""
    passes = Passes(key)
    chosen: dict[int, int] = {}
    for step in reversed(range(len(passes.key.steps))):
        if passes.key.steps[step][0] not in EXPENSIVE or not passes.full[step]:
            continue
        users = [number for number in range(passes.count) if step in passes.needed(number, chosen)]
        if len(users) < 2:
            continue
        for place, result in enumerate(passes.key.results):
            free = result.full and place not in chosen.values() and result.dtype == passes.key.dtypes[step]
            if free and passes.level_of(result.ref) >= users[-1]:
                chosen[step] = place
                break
    return tuple(sorted(chosen.items()))


def require_expressions(program: Program) -> None:
    """Raises: Decline when a step has no code for its dtypes."""
    inputs, scalars = tuple(load.dtype for load in program.loads), tuple(dtype for _, dtype in program.scalars)
    _require(inputs, scalars, tuple(program.dtypes), tuple(program.steps))


@cache
def _require(inputs: Dtypes, scalars: Dtypes, results: Dtypes, steps: tuple[Step, ...]) -> None:
    kinds = {"in": inputs, "scalar": scalars, "step": results}
    for name, refs, attrs in steps:
        dtypes = tuple(kinds[kind][index] for kind, index in refs)
        if name in ROW_REDUCTIONS:
            if dtypes[0] in ("float16", "bfloat16") or dtypes[0] not in REGISTER_TYPES:
                raise Decline(f"{name}_of_{dtypes[0]}")
            continue
        operands: tuple[Ref, ...] = tuple(("in", k) for k in range(len(dtypes)))
        require_code(Fused(dtypes, (), ((name, operands, attrs),), (("step", 0),)))


def loads_needed(passes: Passes, number: int, stash: Mapping[int, int]) -> list[int]:
    """Moving loads of a pass: what its roots and the steps it evaluates itself read."""
    earlier = passes.needed_before(number, stash)
    refs = list(passes.roots(number))
    for step in passes.needed(number, stash):
        if not (step in stash and step in earlier):
            refs.extend(passes.key.steps[step][1])
    return sorted({index for kind, index in refs if kind == "in" and passes.is_full((kind, index))})


class Evaluator:
    """Values of refs in one place of a kernel: known ones as given, others from their operands."""

    def __init__(self, x: ExpressionBuilder, steps: Sequence[Step], known: dict[Ref, Typed]) -> None:
        self.x, self.steps, self.known = x, steps, known

    def value(self, ref: Ref) -> Typed:
        if ref not in self.known:
            name, refs, attrs = self.steps[ref[1]]
            expr = TABLE[name].expr
            assert expr is not None and ref[0] == "step"
            self.known[ref] = expr(self.x, *(self.value(operand) for operand in refs), *attrs)
        return self.known[ref]


def reduction_space(inside: Iterable[Node]) -> tuple[Shape, tuple[int, ...]]:
    """The shape and the axes that the group's reductions reduce.

    Raises: Decline without a reduction, or when they differ.
    """
    reductions = [node for node in inside if node.op.family == "reduce"]
    if not reductions:
        raise Decline("no_reduction")
    first = reductions[0]
    if any(node.op.name not in ROW_REDUCTIONS for node in reductions):
        raise Decline("reduction_unknown")
    return first.srcs[0].shape, tuple(sorted(first.attr("axes")))
