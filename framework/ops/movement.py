"""Movement, indexing and write rows. A movement row's NumPy meaning is a view; the JIT folds it into strides of loads.

Shapes, offsets and steps reach these rows already normalised (no negative axes, no -1 sizes).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from plait.framework.dim import Size
from plait.framework.op import Attrs, Op, Spec, row

Array = np.ndarray[Any, Any]


def _infer_to_shape(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    return Spec(attrs[0], specs[0].dtype)


RESHAPE = row(
    "reshape",
    "movement",
    infer=_infer_to_shape,
    numpy=lambda x, *, attrs, spec: x.reshape(spec.shape),
    attrs=("shape",),
    doc="the same elements in C order; sizes multiply to the same count",
)
EXPAND = row(
    "expand",
    "movement",
    infer=_infer_to_shape,
    numpy=lambda x, *, attrs, spec: np.broadcast_to(x, spec.shape),
    attrs=("shape",),
    doc="broadcast to a shape; read-only",
)
PERMUTE = row(
    "permute",
    "movement",
    infer=lambda op, specs, attrs: Spec(tuple(specs[0].shape[axis] for axis in attrs[0]), specs[0].dtype),
    numpy=lambda x, *, attrs, spec: x.transpose(attrs[0]),
    attrs=("axes",),
)


def _slice(x: Array, *, attrs: Attrs, spec: Spec) -> Array:
    index = []
    for (start, step), size in zip(attrs[0], spec.shape, strict=True):
        stop = start + step * size
        index.append(slice(start, None if stop < 0 else stop, step))
    return np.asarray(x[tuple(index)])


SLICE = row(
    "slice",
    "movement",
    infer=lambda op, specs, attrs: Spec(attrs[1], specs[0].dtype),
    numpy=_slice,
    attrs=("starts_steps", "shape"),
    doc="per axis (start, step) and the resulting size; steps may be negative",
)


def _concat_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    axis = attrs[0]
    total: Size = 0
    for spec in specs:
        total = total + spec.shape[axis]
    shape = specs[0].shape
    return Spec((*shape[:axis], total, *shape[axis + 1 :]), specs[0].dtype)


CONCAT = row(
    "concat",
    "index",
    infer=_concat_spec,
    numpy=lambda *arrays, attrs, spec: np.concatenate(arrays, axis=attrs[0]),
    attrs=("axis",),
)


def _pad_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    sizes = tuple(before + size + after for (before, after), size in zip(attrs[0], specs[0].shape, strict=True))
    return Spec(sizes, specs[0].dtype)


PAD = row(
    "pad",
    "index",
    infer=_pad_spec,
    numpy=lambda x, *, attrs, spec: np.pad(x, attrs[0], constant_values=attrs[1]),
    attrs=("widths", "value"),
)


def _take_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    axis = attrs[0]
    shape = specs[0].shape
    return Spec((*shape[:axis], *specs[1].shape, *shape[axis + 1 :]), specs[0].dtype)


TAKE = row(
    "take",
    "index",
    infer=_take_spec,
    numpy=lambda x, ids, *, attrs, spec: np.take(x, ids, axis=attrs[0]),
    attrs=("axis",),
    axes="[v]*,i->i*",
    doc="x[ids] along one axis; an id outside the axis is an error of the caller in a compiled graph",
)


def _fancy_key(template: tuple[Any, ...], arrays: tuple[Array, ...]) -> tuple[Any, ...]:
    supply = iter(arrays)
    return tuple(next(supply) if entry == "array" else entry for entry in template)


FANCY_GET = row(
    "fancy_get",
    "index",
    infer=lambda op, specs, attrs: Spec(attrs[1], specs[0].dtype),
    numpy=lambda x, *arrays, attrs, spec: np.array(x[_fancy_key(attrs[0], arrays)]),
    attrs=("template", "shape"),
    doc="NumPy's integer-array and boolean indexing; the index operands are realised before it is recorded",
)


def _fancy_set(x: Array, value: Array, *arrays: Array, attrs: Attrs, spec: Spec) -> Array:
    offset, shape, strides, template = attrs
    view = strided(x, offset, shape, strides)
    view[_fancy_key(template, arrays)] = value
    return x


FANCY_SET = row(
    "fancy_set",
    "write",
    infer=lambda op, specs, attrs: specs[0],
    numpy=_fancy_set,
    attrs=("offset", "shape", "strides", "template"),
    in_place=True,
)


def strided(x: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of the flat elements of a contiguous array: offset and strides count elements."""
    flat = x.reshape(-1)
    return as_strided(flat[offset:], shape, tuple(stride * x.itemsize for stride in strides))


def _write(x: Array, value: Array, *, attrs: Attrs, spec: Spec) -> Array:
    offset, shape, strides = attrs
    strided(x, offset, shape, strides)[...] = value
    return x


WRITE = row(
    "write",
    "write",
    infer=lambda op, specs, attrs: specs[0],
    numpy=_write,
    attrs=("offset", "shape", "strides"),
    in_place=True,
    doc="store a value into a strided view of a storage; the result is the storage's next version",
)


def _iota_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    return Spec((attrs[0],), attrs[1])


IOTA = row(
    "iota",
    "create",
    infer=_iota_spec,
    numpy=lambda *, attrs, spec: np.arange(attrs[0]).astype(attrs[1].numpy),
    attrs=("size", "dtype"),
    doc="0, 1, 2, ... size - 1",
)


AS_STRIDED = row(
    "as_strided",
    "movement",
    infer=lambda op, specs, attrs: Spec(attrs[1], specs[0].dtype),
    numpy=lambda x, *, attrs, spec: strided(x, *attrs),
    attrs=("offset", "shape", "strides"),
    doc="a view of the flat elements of a storage: offset and strides count elements",
)
