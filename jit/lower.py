"""Groups into launches: which skeleton computes which kind of group. One table row per kind and per single record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plait.framework.graph import BUFFER, CONST, WEIGHT, Node
from plait.framework.ops import product as p
from plait.jit.group import Group
from plait.jit.kernel import Decline, Fused, Launch, Operand, Ref
from plait.jit.kernels.product import ProductSpec, lower_product
from plait.jit.kernels.skeletons import SKELETONS
from plait.jit.kernels.table import LOWERINGS
from plait.jit.packing import FLOAT_PACKING
from plait.jit.view import base_of, resolve


def lower(group: Group) -> Launch:
    """The launch of a group.

    Raises: Decline when there is no code for it.
    """
    if group.quantized is not None and group.kind != "product":
        return _quantized_single(group)
    return _KINDS[group.kind](group)


def _skeleton(group: Group) -> Launch:
    return SKELETONS[group.kind](group.outputs, sorted(group.nodes, key=lambda node: node.seq))


def _single(group: Group) -> Launch:
    (node,) = group.nodes
    if node.op.name not in LOWERINGS:
        raise Decline(f"no_lowering_of_{node.op.name}")
    return LOWERINGS[node.op.name](node)


def _quantized_single(group: Group) -> Launch:
    """An attention record whose rows are stored quantised."""
    quantize, *rest = group.nodes
    if len(rest) != 1 or rest[0].op.name not in LOWERINGS:
        raise Decline("nothing_stores_quantized")
    return LOWERINGS[rest[0].op.name](rest[0], quantized=quantize)


def _product(group: Group) -> Launch:
    products = sorted((node for node in group.nodes if node.op.family == "product"), key=lambda node: node.seq)
    first = products[0]
    expression = [node for node in group.nodes if node.op.family == "elementwise"]
    epilogue, operands, scalars = _epilogue(products, sorted(expression, key=lambda node: node.seq), group)
    weight, operand = _WEIGHTS[first.op.name](first)
    spec = ProductSpec(
        weight=weight,
        int8=first.op is p.QMATMUL_INT8,
        siblings=len(products),
        epilogue=epilogue,
        output="quantized" if group.quantized is not None else "float",
    )
    weights = [operand, *(_WEIGHTS[node.op.name](node)[1] for node in products[1:])]
    return lower_product(spec, first.srcs[0], weights, operands, group.outputs[0], scalars)


def _epilogue(
    products: list[Node], expression: list[Node], group: Group
) -> tuple[Fused | None, list[Node], list[tuple[Any, str]]]:
    """The elementwise records after a product: its inputs are the products, then whatever else they read."""
    if not expression:
        return None, [], []
    refs: dict[int, Ref] = {id(node): ("in", i) for i, node in enumerate(products)}
    operands: list[Node] = []
    scalars: list[tuple[Any, str]] = []

    def ref(src: Node) -> Ref:
        base = base_of(src)
        if id(base) in refs:
            return refs[id(base)]
        if base.op is CONST:
            scalars.append((base.attrs[0], base.dtype.name))
            refs[id(base)] = "scalar", len(scalars) - 1
            return refs[id(base)]
        if id(src) not in refs:
            operands.append(src)
            refs[id(src)] = "in", len(products) + len(operands) - 1
        return refs[id(src)]

    steps = []
    for node in expression:
        steps.append((node.op.name, tuple(ref(src) for src in node.srcs), node.attrs))
        refs[id(node)] = "step", len(steps) - 1
    inputs = tuple(node.dtype.name for node in (*products, *operands))
    kinds = tuple(dtype for _, dtype in scalars)
    last: Ref = "step", len(steps) - 1
    return Fused(inputs, kinds, tuple(steps), (last,)), operands, scalars


def _is_bound(node: Node) -> bool:
    """Whether a value is known before the graph runs, so that it can be repacked once."""
    return node.op is WEIGHT or node.op is BUFFER


def _quantized_weight(node: Node) -> tuple[str, Operand]:
    weight = resolve(node.srcs[1])
    if not _is_bound(weight.base) or not weight.contiguous or weight.base.op is BUFFER:
        raise Decline("weight_is_not_bound_by_name")
    name = node.attr("format")
    return name, Operand(weight.base, ProductSpec(name).packing)


def _matmul_weight(node: Node) -> tuple[str, Operand]:
    """A transposed weight is packed; any other right operand is walked as it lies."""
    if node.dtype.name != "float32":
        raise Decline(f"matmul_of_{node.dtype.name}")
    right = resolve(node.srcs[1])
    base = right.base
    transposed = len(right.shape) == 2 and base.shape == (right.shape[1], right.shape[0]) and right.strides[0] == 1
    if base.op is WEIGHT and transposed and right.offset == 0 and right.strides[1] == right.shape[0]:
        return "f32", Operand(base, FLOAT_PACKING)
    return "rows", Operand(node.srcs[1])


_WEIGHTS: dict[str, Callable[[Node], tuple[str, Operand]]] = {
    "qmatmul": _quantized_weight,
    "qmatmul_int8": _quantized_weight,
    "matmul": _matmul_weight,
}

_KINDS: dict[str, Callable[[Group], Launch]] = {
    **dict.fromkeys(SKELETONS, _skeleton),
    "product": _product,
    "single": _single,
}
