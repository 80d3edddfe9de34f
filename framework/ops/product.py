"""Products: matmul, and products with block-quantised weights whose rows stay as their file holds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from plait.framework import blocks
from plait.framework.dtype import float32, uint8
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.op import Attrs, Op, Spec, row
from plait.framework.ops.elementwise import broadcast_shapes

Array = np.ndarray[Any, Any]


def _matmul_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    a, b = specs
    if a.dtype.kind not in "iufc":
        raise DTypeError(f"matmul: dtype {a.dtype.name} has no product; convert it with astype.")
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit; the last axis of the first must equal the "
            f"second-to-last axis of the second. Transpose or reshape one of them."
        )
    batch = broadcast_shapes(op.name, (a.shape[:-2], b.shape[:-2]))
    return Spec((*batch, a.shape[-2], b.shape[-1]), a.dtype)


def _matmul(a: Array, b: Array, *, attrs: Attrs, spec: Spec) -> Array:
    if a.dtype.itemsize == 2 and a.dtype.kind not in "iu":
        return np.asarray(np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(spec.dtype.numpy))
    return np.asarray(np.matmul(a, b))


MATMUL = row("matmul", "product", infer=_matmul_spec, numpy=_matmul, axes="*mk,*kn->*mn", ulp=256)


def _columns(op: Op, weight: Spec, attrs: Attrs) -> int:
    row_bytes = weight.shape[-1]
    block = blocks.block_format(attrs[0])
    if weight.dtype is not uint8 or len(weight.shape) != 2 or not isinstance(row_bytes, int):
        raise ShapeError(f"{op.name}: weight is {weight.dtype.name}{weight.shape}; expected uint8 (rows, row_bytes).")
    if row_bytes % block.block_bytes:
        raise ShapeError(f"{op.name}: rows of {row_bytes} bytes are no multiple of {block.name}'s {block.block_bytes}.")
    return block.columns(row_bytes)


def _qmatmul_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    x, weight = specs
    columns = _columns(op, weight, attrs)
    if x.dtype is not float32 or not x.shape or x.shape[-1] != columns:
        raise ShapeError(
            f"{op.name}: operand {x.dtype.name}{x.shape} does not fit a {attrs[0]} weight of {columns} columns; "
            f"expected float32 (..., {columns})."
        )
    return Spec((*x.shape[:-1], weight.shape[0]), float32)


def _qmatmul(x: Array, weight: Array, *, attrs: Attrs, spec: Spec) -> Array:
    return np.asarray(x @ blocks.block_format(attrs[0]).dequantize(weight).T)


QMATMUL = row(
    "qmatmul",
    "product",
    infer=_qmatmul_spec,
    numpy=_qmatmul,
    attrs=("format",),
    axes="*k,n[k]->*n",
    ulp=256,
    doc="float32 rows times the transpose of block-quantised rows, float32 throughout",
)


def _quantize_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    (x,) = specs
    columns = x.shape[-1] if x.shape else 0
    if x.dtype is not float32 or not isinstance(columns, int) or columns % blocks.BLOCK:
        raise ShapeError(
            f"quantize_rows: operand is {x.dtype.name}{x.shape}; expected float32 with a last axis of 32n."
        )
    return Spec((*x.shape[:-1], columns + columns // 4), uint8)


QUANTIZE_ROWS = row(
    "quantize_rows",
    "row",
    infer=_quantize_spec,
    numpy=lambda x, *, attrs, spec: blocks.quantize_rows(x),
    axes="*[k]->*[k]",
    doc="float32 rows to int8 codes with a float32 scale and a float32 scaled sum per 32 columns",
)


def _qmatmul_int8_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    x, weight = specs
    columns = _columns(op, weight, attrs)
    if x.dtype is not uint8 or not x.shape or x.shape[-1] != columns + columns // 4:
        raise ShapeError(
            f"{op.name}: operand {x.dtype.name}{x.shape} does not fit a {attrs[0]} weight of {columns} columns; "
            f"expected what quantize_rows gives for {columns} columns."
        )
    return Spec((*x.shape[:-1], weight.shape[0]), float32)


def _qmatmul_int8(x: Array, weight: Array, *, attrs: Attrs, spec: Spec) -> Array:
    codes, scales, sums = blocks.split_quantized(x)
    weight_codes, weight_scales, minima = blocks.block_format(attrs[0]).parts(weight)
    total = np.zeros(spec.shape, np.float32)
    for block in range(scales.shape[-1]):
        dot = codes[..., block, :].astype(np.float32) @ weight_codes[:, block].astype(np.float32).T
        total += dot * scales[..., block, None] * weight_scales[:, block]
        total += sums[..., block, None] * minima[:, block]
    return total


QMATMUL_INT8 = row(
    "qmatmul_int8",
    "product",
    infer=_qmatmul_int8_spec,
    numpy=_qmatmul_int8,
    attrs=("format",),
    axes="*[k],n[k]->*n",
    ulp=256,
    doc="rows of quantize_rows times block-quantised rows: exact integer dots, float32 block sums in ascending order",
)


def _qtake_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    weight, ids = specs
    return Spec((*ids.shape, _columns(op, weight, attrs)), float32)


QTAKE = row(
    "qtake",
    "index",
    infer=_qtake_spec,
    numpy=lambda weight, ids, *, attrs, spec: blocks.block_format(attrs[0]).dequantize(weight[ids]),
    attrs=("format",),
    axes="[v]k,*->*k",
    doc="rows of a block-quantised table, dequantised",
)
