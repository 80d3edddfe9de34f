"""Product records to launches: how operands lie, which kernel walks them, how the work is cut into units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait.framework.dim import Size, ceil_div, product
from plait.framework.graph import Node
from plait.framework.op import Shape
from plait.framework.strides import merge_axes
from plait.jit.kernel import Decline, Kernel, Launch, Operand
from plait.jit.kernels.product_code import GROUP, Layout, ProductSpec, emit_product
from plait.jit.kernels.rows import Rows, rows_of
from plait.jit.kernels.tiles import LANES
from plait.jit.packing import block_layout
from plait.jit.view import resolve

__all__ = ["ProductSpec", "lower_product", "product_kernel"]

Scalars = Sequence[tuple[Any, str]]


@dataclass(eq=False)
class _Arguments:
    """What a launch passes besides its layout: the right operands' pointers, ints by name, the batch."""

    x: Rows
    weights: list[Operand]
    ints: dict[str, Size]
    batch: tuple[Size, ...] = ()
    w_unit: str = ""


def lower_product(
    spec: ProductSpec, x: Node, weights: list[Operand], operands: list[Node], result: Node, scalars: Scalars = ()
) -> Launch:
    """One launch for a product with everything fused into it.

    x is the left operand as its row has it, `weights` are Operands of spec.packing; of weight "rows" (one sibling) the
    node is the right operand of matmul, any view. `operands` broadcast against the product and feed the epilogue after
    the siblings' sums; `scalars` are the epilogue's (value, dtype name). `result` gets fresh memory.

    Raises: Decline("product_layout") for strides the kernel does not walk.
    """
    n: Size = result.shape[-1] * 4 // 5 if spec.output == "quantized" else result.shape[-1]
    found = _matrices(x, weights[0].node) if spec.weight == "rows" else _Arguments(rows_of(x), weights, {})
    if found.x.step != 1 and spec.weight not in ("rows", "f32"):
        raise Decline("product_layout")
    if spec.output == "quantized" and (not isinstance(n, int) or n % 32):
        raise Decline("product_layout")
    if spec.epilogue is not None and found.batch:
        raise Decline("product_layout")
    placed = [_place(node, (*result.shape[:-1], n)) for node in operands]
    layout = Layout(
        x_unit=found.x.step == 1,
        w_unit=found.w_unit,
        batch=len(found.batch),
        patterns=tuple(pattern for pattern, _, _, _ in placed),
        tail=not isinstance(n, int) or n % spec.columns != 0,
    )
    m, k = found.x.count, found.x.width * 4 // 5 if spec.int8 else found.x.width
    ints = {"m": m, "n": n, "k": k, "x_offset": found.x.offset, "x_stride": found.x.stride, "x_step": found.x.step}
    for i, (_, _, at, stride) in enumerate(placed):
        ints |= {f"at{i}": at, f"row_stride{i}": stride}
    ints |= found.ints
    return Launch(
        product_kernel(spec, layout),
        [Operand(found.x.base), *found.weights, *(Operand(base) for _, base, _, _ in placed), Operand(result)],
        [result],
        ints=[ints[name] for name in layout.ints(spec)],
        scalars=list(scalars),
        extent=product(found.batch) * ceil_div(m, GROUP) * ceil_div(n, spec.columns),
        grain=_grain(spec, m, k),
        work_bytes=_bytes(spec, n, k) + product(found.batch) * m * (k * (1 if spec.int8 else 4) + n * 4),
        work_flops=product(found.batch) * m * n * k * 2 * spec.siblings,
    )


def product_kernel(spec: ProductSpec, layout: Layout) -> Kernel:
    """The kernel of a structure."""
    kind = f"{'qmatmul_int8' if spec.int8 else 'qmatmul'}_{spec.weight}"
    parts = ["matmul" if spec.weight in ("rows", "f32") else kind]
    parts += [f"x{spec.siblings}"] if spec.siblings > 1 else []
    parts += [name for name, _, _ in spec.epilogue.steps] if spec.epilogue else []
    parts += ["quantize_rows"] if spec.output == "quantized" else []
    key = ("product", spec, layout)
    return Kernel("_".join(parts), key, lambda target, symbol: emit_product(target, symbol, spec, layout))


def _bytes_per_value(spec: ProductSpec) -> float:
    return 4.0 if spec.weight in ("rows", "f32") else block_layout(spec.weight).size / (32 * LANES)


def _bytes(spec: ProductSpec, n: Size, k: Size) -> Size:
    return n * k * spec.siblings * int(64 * _bytes_per_value(spec)) // 64


def _grain(spec: ProductSpec, m: Size, k: Size) -> int:
    """Units of about 5 us: 64 KB of weights for few rows, 4 million operations for many."""
    depth = k if isinstance(k, int) else 1024
    values = max(1, depth) * spec.columns * spec.siblings
    rows = min(m, GROUP) if isinstance(m, int) else 1
    return max(1, min(int(65536 / (values * _bytes_per_value(spec))), int(2_000_000 / (values * max(1, rows)))))


def _matrices(x: Node, right: Node) -> _Arguments:
    """The operands of a matmul: batch axes that the right operand lacks become rows."""
    left, other = resolve(x), resolve(right)
    lead = max(len(left.shape), len(other.shape)) - 2
    batch = tuple(_wider(left.shape, other.shape, lead - axis) for axis in range(lead))
    left, other = left.broadcast((*batch, *left.shape[-2:])), other.broadcast((*batch, *other.shape[-2:]))
    space = (*batch, left.shape[-2])
    sizes, (x_steps, w_steps) = merge_axes(space, (left.strides[:-1], (*other.strides[:-2], 0)))
    rows: Size = 1
    stride: Size = left.shape[-1]
    if sizes and w_steps[-1] == 0:
        rows, stride = sizes[-1], x_steps[-1]
        sizes, x_steps, w_steps = sizes[:-1], x_steps[:-1], w_steps[:-1]
    k_stride, n_stride = other.strides[-2:]
    ints: dict[str, Size] = {"w_offset0": other.offset, "k_stride0": k_stride, "n_stride0": n_stride}
    for axis, (size, at_x, at_w) in enumerate(zip(sizes, x_steps, w_steps, strict=True)):
        ints |= {f"batch_size{axis}": size, f"batch_x{axis}": at_x, f"batch_w{axis}": at_w}
    unit = "n" if n_stride == 1 or other.shape[-1] == 1 else "k" if k_stride == 1 else ""
    found = Rows(left.base, left.offset, rows, stride, left.shape[-1], left.strides[-1])
    return _Arguments(found, [Operand(other.base)], ints, sizes, unit)


def _wider(a: Shape, b: Shape, from_right: int) -> Size:
    """The broadcast size of a batch axis, counted from the last batch axis (1) leftwards."""
    sizes = [shape[-2 - from_right] for shape in (a, b) if len(shape) >= 2 + from_right]
    return next((size for size in sizes if size != 1), 1)


def _place(node: Node, shape: Shape) -> tuple[str, Node, Size, Size]:
    """How an epilogue operand lies over the product: pattern, base, offset, row stride."""
    view = resolve(node).broadcast(shape)
    _, (steps,) = merge_axes(shape[:-1], (view.strides[:-1],))
    along, down = view.strides[-1] if shape[-1] != 1 else 0, steps[0] if steps else 0
    if len(steps) > 1 or along not in (0, 1):
        raise Decline("product_layout")
    pattern = {(True, True): "full", (False, True): "row", (True, False): "column", (False, False): "one"}
    return pattern[down != 0, along == 1], view.base, view.offset, down
