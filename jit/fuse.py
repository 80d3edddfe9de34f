"""Records into kernels: which records share one, by named rules, and why others do not, by named refusals.

A record joins the group of its consumers when all of them are in one group and each reads it element for element (or
row value for row). Groups run where their last record stood in program order, so that reads never pass writes.

Rules:    elementwise, reduce_into, producer_of_reduce, product_epilogue, quantized_store, chained_rows
Refusals: several_groups, kept_by_a_holder, reads_before_a_write, kernel_is_full, other_elements, no_lowering
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from plait.framework.config import config
from plait.framework.dim import Size, product
from plait.framework.graph import Node
from plait.framework.op import Shape
from plait.framework.ops import product as p
from plait.framework.ops import ragged
from plait.jit.chain import chain
from plait.jit.group import Group
from plait.jit.kernel import Decline, HostCall, Launch, Step
from plait.jit.kernels.program import can_join
from plait.jit.lower import lower
from plait.jit.view import View, base_of, is_view, resolve

MAX_RECORDS = 32
_PRODUCTS = (p.QMATMUL, p.QMATMUL_INT8, p.MATMUL)
_FUSABLE = ("elementwise", "create")


class Fuser:
    """Groups the pending records of one program."""

    def __init__(self, nodes: list[Node], outputs: Iterable[Node], kept: Callable[[Node], bool]) -> None:
        self.wanted = {id(node) for node in outputs}
        self.nodes = [node for node in nodes if id(node) in self.wanted or not is_view(node)]
        self.pending = {id(node): node for node in self.nodes}
        self.kept = kept
        self.group_of: dict[int, Group] = {}
        self.readers: dict[int, list[Node]] = {}
        self.written: dict[int, int] = {}
        for node in self.nodes:
            for src in node.srcs:
                self.readers.setdefault(id(base_of(src)), []).append(node)
            if node.op.in_place:
                self.written.setdefault(id(base_of(node.srcs[0])), node.seq)

    def groups(self) -> list[Group]:
        """All groups, in an order in which they can run."""
        for node in reversed(self.nodes):
            if not self._join(node):
                self._start(node)
        found = {id(group): group for group in self.group_of.values()}
        return sorted(found.values(), key=lambda group: group.seq)

    def _start(self, node: Node) -> None:
        kind, space = "single", node.shape
        reduced: tuple[int, ...] = ()
        if node.op.family in _FUSABLE or node.op.family == "movement":
            kind = "map"
        elif node.op.family == "reduce":
            kind, space, reduced = self._reduction(node)
        elif node.op in _PRODUCTS:
            kind = "product"
        self.group_of[id(node)] = Group(kind, space, [node], [node], reduced, None, node.seq)

    def _reduction(self, node: Node) -> tuple[str, Shape, tuple[int, ...]]:
        shape, axes = node.srcs[0].shape, node.attr("axes")
        return ("row" if is_trailing(axes, len(shape)) else "column"), shape, axes

    def _join(self, node: Node) -> bool:
        """Whether the record moved into its consumers' group."""
        readers = self.readers.get(id(node), [])
        if not readers or id(node) in self.wanted:
            return False
        group = self.group_of[id(readers[0])]
        refusal = self._refusal(node, readers, group)
        if refusal:
            group.refusals.append(f"{node.op.name}: {refusal}")
            return False
        if node.op is p.QUANTIZE_ROWS:
            return False
        self._add(node, group)
        return True

    def _refusal(self, node: Node, readers: list[Node], group: Group) -> str | None:
        if any(self.group_of[id(reader)] is not group for reader in readers):
            return "several_groups"
        if self.kept(node):
            return "kept_by_a_holder"
        if len(group.nodes) >= MAX_RECORDS:
            return "kernel_is_full"
        if self._reads_before_write(node, group.seq):
            return "reads_before_a_write"
        return self._misfit(node, readers, group)

    def _reads_before_write(self, node: Node, run_at: int) -> bool:
        for src in node.srcs:
            write = self.written.get(id(base_of(src)))
            if write is not None and node.seq < write < run_at:
                return True
        return False

    def _misfit(self, node: Node, readers: list[Node], group: Group) -> str | None:
        """Why the record's elements do not line up with the group's iteration."""
        views = [resolve(src) for reader in readers for src in reader.srcs if base_of(src) is node]
        if self._quantized_store(node, readers, group, views):
            return None
        if node.op in _PRODUCTS:
            return self._product_misfit(node, group, views)
        if node.op.family == "reduce":
            return self._reduce_misfit(node, group, views)
        if node.op.family not in _FUSABLE or group.kind == "single":
            return "no_lowering"
        if group.kind == "product":
            fits = all(is_identity(view, node) for view in views) and node.shape == group.space
            fits = fits and not any(reader.op in _PRODUCTS for reader in readers)  # an operand is needed whole
            return None if fits else "other_elements"
        if group.kind == "map":
            fits = all(can_join(reader, node) for reader in readers) or self._follows_a_reduction(node, group, views)
            return None if fits else "other_elements"
        return None if all(self._lines_up(view, node, group) for view in views) else "other_elements"

    def _follows_a_reduction(self, node: Node, group: Group, views: list[View]) -> bool:
        """Whether an expression of row values comes from a reduction of the group's space, which will join after it."""
        source = node
        while source.op.family == "elementwise":
            above = [src for src in map(base_of, source.srcs) if self._may_join(src, node) or src.op.family == "reduce"]
            if not above:
                return False
            source = max(above, key=lambda src: src.seq)
        if source.op.family != "reduce" or id(source) not in self.pending:
            return False
        _, space, reduced = self._reduction(source)
        return space == group.space and all(_row_value(view, node, space, reduced) for view in views)

    def _quantized_store(self, node: Node, readers: list[Node], group: Group, views: list[View]) -> bool:
        """quantize_rows takes its only producer with it when that one ends a product or an attention kernel."""
        alone = len(readers) == 1 and readers[0].op is p.QUANTIZE_ROWS and group.nodes == [readers[0]]
        return alone and self._stores_quantized(node) and all(same_elements(view, node) for view in views)

    def _stores_quantized(self, node: Node) -> bool:
        """Whether a record is attention, or ends an expression that takes a block-quantised product with it."""
        if node.op is ragged.PAGED_ATTENTION:
            return True
        inside, candidates = {id(node)}, [node]
        while candidates:
            member = max(candidates, key=lambda candidate: candidate.seq)
            candidates = [other for other in candidates if other is not member]
            readers = self.readers.get(id(member), [])
            if member is not node and not all(id(reader) in inside for reader in readers):
                continue
            if member.op in (p.QMATMUL, p.QMATMUL_INT8):
                return True
            if member.op.family == "elementwise":
                inside.add(id(member))
                candidates += [src for src in map(base_of, member.srcs) if self._may_join(src, node)]
        return False

    def _may_join(self, src: Node, node: Node) -> bool:
        free = id(src) in self.pending and id(src) not in self.wanted and not self.kept(src)
        return free and src.shape == node.shape

    def _product_misfit(self, node: Node, group: Group, views: list[View]) -> str | None:
        if group.kind not in ("map", "product") or node.shape != group.space or node.dtype.name != "float32":
            return "no_lowering" if group.kind not in ("map", "product") else "other_elements"
        siblings = [other for other in group.nodes if other.op in _PRODUCTS]
        alike = all(
            other.op is node.op
            and base_of(other.srcs[0]) is base_of(node.srcs[0])
            and other.attrs == node.attrs
            and other.srcs[1].shape == node.srcs[1].shape
            for other in siblings
        )
        if siblings and (node.op is p.MATMUL or not alike):
            return "no_lowering"
        after = [member for member in group.nodes if member.op.family == "elementwise"]
        if any(member.dtype.name not in ("float32", "bool") for member in after):
            return "no_lowering"
        return None if all(is_identity(view, node) for view in views) else "other_elements"

    def _reduce_misfit(self, node: Node, group: Group, views: list[View]) -> str | None:
        kind, space, reduced = self._reduction(node)
        if group.kind not in ("map", kind):
            return "no_lowering"
        if group.kind == kind:
            fits = group.space == space and group.reduced == reduced
        else:
            rows = tuple(1 if axis in reduced else size for axis, size in enumerate(space))
            dropped = tuple(size for axis, size in enumerate(space) if axis not in reduced)
            fits = group.space in (space, rows, dropped)
        if not fits:
            return "other_elements"
        return None if all(_row_value(view, node, space, reduced) for view in views) else "other_elements"

    def _lines_up(self, view: View, node: Node, group: Group) -> bool:
        if node.shape == group.space:
            return is_identity(view, node)
        if group.kind in ("row", "column"):
            return _is_row_shape(node.shape, group.space, group.reduced) and _row_value(
                view, node, group.space, group.reduced
            )
        return False

    def _add(self, node: Node, group: Group) -> None:
        if group.nodes[0].op is p.QUANTIZE_ROWS and len(group.nodes) == 1:
            group.quantized = group.nodes[0]
            group.kind = "product" if node.op in _PRODUCTS else ("map" if node.op.family == "elementwise" else "single")
            group.space = node.shape
        elif node.op in _PRODUCTS:
            group.kind = "product"
        elif node.op.family == "reduce" and group.kind == "map":
            group.kind, group.space, group.reduced = self._reduction(node)
        group.nodes.append(node)
        self.group_of[id(node)] = group


def is_trailing(axes: tuple[int, ...], rank: int) -> bool:
    """Whether the axes are the last ones."""
    return tuple(sorted(axes)) == tuple(range(rank - len(axes), rank))


def is_identity(view: View, node: Node) -> bool:
    """Whether a view shows a node's own shape, element for element, size-1 axes apart."""
    return _drop_ones(view.shape) == _drop_ones(node.shape) and same_elements(view, node)


def same_elements(view: View, node: Node) -> bool:
    """Whether a view walks a contiguous node from first to last element."""
    if isinstance(view.offset, int) and view.offset == 0 and product(view.shape) == product(node.shape):
        return _is_contiguous(view.shape, view.strides)
    return False


def _is_contiguous(shape: Shape, strides: tuple[Size, ...]) -> bool:
    step: Size = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step = step * size
    return True


def _drop_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _is_row_shape(shape: Shape, space: Shape, reduced: tuple[int, ...]) -> bool:
    kept = tuple(size for axis, size in enumerate(space) if axis not in reduced)
    ones = tuple(1 if axis in reduced else size for axis, size in enumerate(space))
    return shape in (kept, ones)


def _row_value(view: View, node: Node, space: Shape, reduced: tuple[int, ...]) -> bool:
    """Whether a view reads a row value as such, or spread along the reduced axes."""
    if not _is_row_shape(node.shape, space, reduced):
        return False
    if same_elements(view, node):
        return _is_row_shape(view.shape, space, reduced)
    if view.shape != space or not (isinstance(view.offset, int) and view.offset == 0):
        return False
    if any(view.strides[axis] != 0 and space[axis] != 1 for axis in reduced):
        return False
    lead = [axis for axis in range(len(space)) if axis not in reduced]
    return _is_contiguous(tuple(space[axis] for axis in lead), tuple(view.strides[axis] for axis in lead))


def schedule(
    nodes: list[Node], outputs: Iterable[Node], kept: Callable[[Node], bool] = lambda node: False
) -> list[Step]:
    """Kernel launches and host calls that compute `outputs`, in order.

    `nodes` are the pending records in program order; `kept(node)` says whether something outside still wants a record.
    """
    lowered: list[Lowered] = []
    for group in Fuser(nodes, outputs, kept).groups():
        lowered.extend(lower_group(group))
    return chain_rows(lowered)


Lowered = tuple[Step, list[Node]]  # a step and the records it computes


def lower_group(group: Group) -> list[Lowered]:
    """The steps of one group; record by record when no kernel serves the whole."""
    try:
        launch = lower(group)
    except Decline as decline:
        report_group(group, decline)
        if len(group.nodes) > 1:
            return lower_singly(group)
        return [(HostCall(group.nodes[0], decline.reason), group.nodes)]
    report_group(group)
    return [(launch, group.nodes)]


def report_group(group: Group, decline: Decline | None = None) -> None:
    """The line that PLAIT_DEBUG=3 prints: what became of a group, and which rules refused more."""
    if config.debug >= 3:
        refused = f"; refused {', '.join(group.refusals)}" if group.refusals else ""
        became = f"is one {group.kind} kernel" if decline is None else f"declined: {decline.reason}"
        print(f"fuse: {group.name} {became}{refused}", file=sys.stderr)


def lower_singly(group: Group) -> list[Lowered]:
    """Every record of a group in a kernel of its own."""
    steps: list[Lowered] = []
    for node in sorted(group.nodes, key=lambda node: node.seq):
        steps.extend(lower_group(single_group(node)))
    return steps


def single_group(node: Node) -> Group:
    """A group of one record."""
    (group,) = Fuser([node], [node], lambda _: False).groups()
    return group


def chain_rows(lowered: list[Lowered]) -> list[Step]:
    """Consecutive launches over the same rows, each row of which needs only that row, become one launch."""
    result: list[Step] = []
    for step, nodes in lowered:
        last = result[-1] if result else None
        if isinstance(last, Launch) and isinstance(step, Launch) and _can_chain(last, step, nodes):
            result[-1] = chain(last, step)
        else:
            result.append(step)
    return result


_ROW_OPERANDS = {ragged.ROPE: (0,), ragged.KV_STORE: (1, 2), p.QUANTIZE_ROWS: (0,)}


def _can_chain(first: Launch, second: Launch, nodes: list[Node]) -> bool:
    if first.unit != "row" or second.unit != "row" or first.extent != second.extent:
        return False
    made = {id(node) for node in first.results}
    return all(
        id(base_of(src)) not in made or (_by_rows(node, place) and _row_local(resolve(src), second.extent))
        for node in nodes
        for place, src in enumerate(node.srcs)
    )


def _by_rows(node: Node, place: int) -> bool:
    """Whether row i of a record needs only row i of this operand."""
    return node.op.family in ("elementwise", "reduce") or place in _ROW_OPERANDS.get(node.op, ())


def _row_local(view: View, rows: Size) -> bool:
    """Whether row i of a view lies in row i of its base."""
    base = view.base
    if not base.shape or not view.shape or base.shape[0] != rows or view.shape[0] != rows:
        return False
    row = product(base.shape[1:])
    return view.strides[0] == row and isinstance(view.offset, int) and isinstance(row, int) and 0 <= view.offset < row
