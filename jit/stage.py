"""Tracing: run a function on symbolic tensors and keep the graph of what it recorded. Compiles nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from plait.framework import tree_utils
from plait.framework.dim import Dim, symbols_of
from plait.framework.dtype import int64
from plait.framework.errors import CompileError
from plait.framework.graph import CONST, INPUT, WEIGHT, Graph, Node, const, input_node, pending, weight_node
from plait.framework.op import Spec
from plait.framework.ops.elementwise import COPY
from plait.framework.realize import realize_nodes
from plait.framework.storage import Storage
from plait.framework.tensor import Tensor
from plait.framework.writes import tracing
from plait.jit.layout import BufferLayout, TensorLayout
from plait.jit.view import base_of


@dataclass(eq=False)
class StagedGraph:
    """A traced function: its graph and the trees that its arguments and results make.

    `forwarded` maps a result's position to the argument that it is: a buffer that was stored into and returned.
    """

    graph: Graph
    in_layouts: list[TensorLayout]
    in_names: list[str]
    in_tree: Any
    out_layouts: list[TensorLayout]
    out_tree: Any
    forwarded: dict[int, int] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)  # names of the positional ones, for messages

    @property
    def symbols(self) -> list[str]:
        """The names of the sizes known only at the call, sorted: the order of the native function's dims."""
        from_shapes = (tree_symbols(layout.shape) for layout in self.in_layouts)
        return sorted(set().union(*from_shapes))

    def __str__(self) -> str:
        return str(self.graph)

    __repr__ = __str__

    def to_dot(self) -> str:
        """The graph as Graphviz text."""
        return self.graph.to_dot()

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return self.graph.to_mermaid()


def tree_symbols(value: Any) -> set[str]:
    """The names in a shape or an attribute."""
    if isinstance(value, Dim):
        return symbols_of(value)
    return set().union(*map(tree_symbols, value)) if isinstance(value, tuple) else set()


def stage(fn: Callable[..., Any], *, name: str | None = None) -> Callable[..., StagedGraph]:
    """Trace a function: the returned callable takes fn's own arguments with each tensor replaced by its layout.

    Arguments that are no layouts are static: evaluated now, part of the signature.

    Raises: TypeError for a live tensor among the arguments or a result that is no tensor; whatever fn raises.
    Example:
        >>> stage(lambda x: x + 1)(TensorLayout("float32", ("T", 4))).out_layouts
        [TensorLayout(float32, ('T', 4))]
    """

    def staged(*args: Any, **kwargs: Any) -> StagedGraph:
        return trace(fn, args, kwargs, name)

    return staged


def external(name: str, layout: TensorLayout) -> Tensor:
    """A weight of the function being traced, bound by name when the compiled callable is first called."""
    return Tensor._of(weight_node(name, layout.shape, layout.dtype))


def trace(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None
) -> StagedGraph:
    """Run fn once on symbolic tensors."""
    layouts, in_tree = tree_utils.flatten((args, kwargs), leaf=(TensorLayout, Tensor))
    parameters = positional_parameters(fn)
    names = argument_names(parameters, tree_utils.paths((args, kwargs), leaf=(TensorLayout, Tensor)))
    for label, layout in zip(names, layouts, strict=True):
        if isinstance(layout, Tensor):
            raise TypeError(
                f"stage: argument {label!r} is a tensor; expected a layout such as TensorLayout(dtype, shape)."
            )
    inputs = [
        input_node(index, label, isinstance(layout, BufferLayout), layout.shape, layout.dtype)
        for index, (label, layout) in enumerate(zip(names, layouts, strict=True))
    ]
    tensors = [Tensor._of(node) for node in inputs]
    traced_args, traced_kwargs = tree_utils.unflatten(in_tree, tensors)
    start = const(0, int64).seq
    title = name or str(getattr(fn, "__name__", type(fn).__name__))
    with _undone_writes() as writes:
        results, out_tree = _results(fn(*traced_args, **traced_kwargs))
        stores = list(_stores(inputs, tensors))
        _refuse_captured(writes, inputs, start)
        graph, forwarded = _close(title, inputs, [tensor.node() for tensor in results], stores)
    out_layouts = [TensorLayout(node.dtype, node.shape) for node in graph.outputs]
    return StagedGraph(graph, layouts, names, in_tree, out_layouts, out_tree, forwarded, parameters)


@contextmanager
def _undone_writes() -> Iterator[list[tuple[Storage, Node]]]:
    """Let tensors that outlive the trace keep no symbolic version, whatever happens in it."""
    outer, tracing.writes = tracing.writes, []
    try:
        yield tracing.writes
    finally:
        for storage, before in reversed(tracing.writes):
            storage.version = before
        tracing.writes = outer


def _refuse_captured(writes: list[tuple[Storage, Node]], inputs: list[Node], start: int) -> None:
    """Raise CompileError when the function stores into a tensor that was there before it ran."""
    for _, before in writes:
        if before.seq < start and before.op is not WEIGHT and before not in inputs:
            raise CompileError(
                f"stage: the function stores into {before}, a tensor it closed over; a compiled call cannot do that. "
                f"Pass the tensor as an argument with a BufferLayout."
            )


def positional_parameters(fn: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters, where it tells them."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def argument_names(positional: list[str], paths: Iterable[str]) -> list[str]:
    """What the user calls each leaf of (args, kwargs): the parameter's name, then the path inside it."""
    return [_argument_name(positional, path) for path in paths]


def _argument_name(positional: list[str], path: str) -> str:
    side, _, rest = path.partition(".")
    if side == "1":
        return rest
    number, dot, inside = rest.partition(".")
    index = int(number)
    return (positional[index] if index < len(positional) else str(index)) + dot + inside


def _results(value: Any) -> tuple[list[Tensor], Any]:
    leaves, tree = tree_utils.flatten(value, leaf=Tensor)
    for static in _statics(tree):
        if not (static is None and value is None):
            raise TypeError(f"stage: the function returned {static!r}; every result must be a Tensor, in any nesting.")
    return leaves, tree


def _statics(tree: Any) -> Iterator[Any]:
    if tree.kind == "static":
        yield tree.meta
    for child in tree.children:
        yield from _statics(child)


def _stores(inputs: list[Node], tensors: list[Tensor]) -> Iterator[tuple[Node, Node]]:
    """Arguments whose storage has a new version.

    Raises: TypeError when the argument is not a BufferLayout.
    """
    for node, tensor in zip(inputs, tensors, strict=True):
        version = tensor._root().version
        if version is node:
            continue
        if not node.attr("mutable"):
            raise TypeError(
                f"stage: the function stores into argument {node.attr('name')!r}, whose layout is a TensorLayout; "
                f"give it as a BufferLayout, or store into a copy() of it."
            )
        yield node, version


def _close(
    name: str, inputs: list[Node], results: list[Node], stores: list[tuple[Node, Node]]
) -> tuple[Graph, dict[int, int]]:
    """Fold constants, settle in-place writes, give every result memory of its own, drop dead nodes."""
    written = {id(version): node.attr("index") for node, version in stores}
    unwritten = {id(node): node.attr("index") for node in inputs if node.attr("mutable")}
    forwarded = {
        i: (unwritten | written)[id(node)] for i, node in enumerate(results) if id(node) in unwritten | written
    }
    wanted = [*results, *(version for _, version in stores)]
    _fold_constants(pending(wanted), results)
    _settle_writes(pending(wanted), [node for i, node in enumerate(results) if i not in forwarded])
    outputs: list[Node] = []
    for position, node in enumerate(results):
        outputs.append(node if position in forwarded else _owned(node, outputs))
    nodes = pending([*outputs, *(version for _, version in stores)])
    return Graph(name, inputs, _weights(nodes), nodes, outputs, stores), forwarded


def _weights(nodes: list[Node]) -> list[Node]:
    """The weights in the order of their first use, each name once.

    Raises: CompileError when two weights of one name differ.
    """
    found: dict[str, Node] = {}
    for node in nodes:
        for src in node.srcs:
            if src.op is not WEIGHT:
                continue
            first = found.setdefault(src.attr("name"), src)
            if first.spec != src.spec:
                raise CompileError(
                    f"stage: weight {src.attr('name')!r} is both {first} and {src}; one name is one weight."
                )
    return list(found.values())


def _owned(node: Node, taken: list[Node]) -> Node:
    """A result in memory of its own: a view, a leaf and a result given twice are copied."""
    fresh = node.buffer is None and node.op.family != "leaf" and base_of(node) is node
    return node if fresh and node not in taken else _copy(node)


def _copy(node: Node) -> Node:
    spec: Spec = node.spec
    return Node(COPY, (node,), (), spec.shape, spec.dtype, None, node.depth + 1)


def _fold_constants(nodes: list[Node], results: list[Node]) -> None:
    """Compute now what depends on no argument, weight or symbolic size. Broadcast scalars stay scalars, and the
    memory that a later record writes in place stays the graph's own."""
    concrete = {id(node) for node in nodes if _is_concrete(node)}
    for node in nodes:
        if id(node) in concrete and not all(_is_known(src) or id(src) in concrete for src in node.srcs):
            concrete.discard(id(node))
    users = [node for node in nodes if id(node) not in concrete]
    bases = {id(node.srcs[0]) for node in users if node.op.in_place}
    edge = [base_of(src) for node in users for src in node.srcs] + [base_of(node) for node in results]
    realize_nodes([node for node in edge if id(node) in concrete and id(node) not in bases])


def _is_concrete(node: Node) -> bool:
    return not tree_symbols(node.shape) and not tree_symbols(node.attrs)


def _is_known(node: Node) -> bool:
    return node.buffer is not None or node.op is CONST


def _settle_writes(nodes: list[Node], results: list[Node]) -> None:
    """Let every in-place record write memory that only it may change.

    A constant, a view and a version that is read again later are copied first; an argument's old version cannot be.
    """
    last_read: dict[int, int] = {}
    for position, node in enumerate(nodes):
        for number, src in enumerate(node.srcs):
            if base_of(node) is node and not (node.op.in_place and number == 0):
                last_read[id(base_of(src))] = position
    last_read |= {id(base_of(node)): len(nodes) for node in results}
    written: set[int] = set()
    for position, node in enumerate(nodes):
        if node.op.in_place:
            base = base_of(node.srcs[0])
            _settle_write(node, last_read.get(id(base), -1) > position or id(base) in written)
            written.add(id(base))


def _settle_write(node: Node, is_read_later: bool) -> None:
    base = base_of(node.srcs[0])
    if base.op is WEIGHT:
        raise CompileError(
            f"stage: {node} stores into weight {base.attr('name')!r}; weights are read-only, copy() it first."
        )
    if is_read_later and _argument_of(base) is not None:
        name = _argument_of(base)
        raise CompileError(
            f"stage: an older value of argument {name!r} is read after {node.op.name} stored into it; "
            f"copy() what is needed before the store."
        )
    if is_read_later or base.buffer is not None or base.op is CONST or base is not node.srcs[0]:
        twin = _copy(node.srcs[0])
        twin.seq = node.seq - 0.5  # type: ignore[assignment]  # after whatever made the base, just before the write
        node.srcs = (twin, *node.srcs[1:])


def _argument_of(node: Node) -> str | None:
    """The argument whose memory a version lives in."""
    while node.op.in_place:
        node = node.srcs[0]
    return str(node.attr("name")) if node.op is INPUT else None
