"""Writes, and indexing with arrays: the next version of a storage, or at once where the outside shares the memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from plait.framework.conversion import asarray
from plait.framework.dtype import (
    DType,
)
from plait.framework.errors import DTypeError, IndexingError
from plait.framework.graph import SYMBOLIC, Node
from plait.framework.op import Attrs, Op
from plait.framework.ops import elementwise as e
from plait.framework.ops import movement as m
from plait.framework.realize import MAX_DEPTH, realize_nodes
from plait.framework.record import (
    as_operand,
    record,
)
from plait.framework.storage import Storage, is_tensor

if TYPE_CHECKING:
    from plait.framework.tensor import Tensor

Array = np.ndarray[Any, Any]
Scalar = bool | int | float | complex


class _Tracing(threading.local):
    """Storages that a function being traced wrote symbolic values into, with their versions before, on this thread."""

    writes: list[tuple[Storage, Node]] | None = None


tracing = _Tracing()


def write_node(target: Tensor, op: Op, values: tuple[Tensor, ...], attrs: Attrs) -> None:
    storage = target._root()
    nodes = tuple(value.node() for value in values)
    depth = max([storage.version.depth, *(node.depth for node in nodes)]) + 1
    if storage.exposed and depth < SYMBOLIC:
        _write_now(storage, op, values, attrs)
        return
    base = storage.version
    if depth >= SYMBOLIC and tracing.writes is not None:
        tracing.writes.append((storage, base))
    storage.version = Node(op, (base, *nodes), attrs, base.shape, base.dtype, None, depth)
    shared = any([value._is_exposed() for value in values])  # what is written could change before it is read
    if (shared or depth > MAX_DEPTH) and depth < SYMBOLIC:
        del base, nodes
        realize_nodes([storage.version])


def _write_now(storage: Storage, op: Op, values: tuple[Tensor, ...], attrs: Attrs) -> None:
    """Write to shared memory at once. NumPy's assignment copes with a value that overlaps its target."""
    node = storage.version
    assert node.buffer is not None
    if not node.buffer.writable:
        raise ValueError("write: the tensor shares read-only memory; copy() it first.")
    hosts = [_current(value) for value in values]
    op.numpy(node.array(), *hosts, attrs=attrs, spec=node.spec)


def _current(value: Tensor) -> Array:
    """A value's array, overlapping memory included. Scalars need no kernel."""
    node = value.node()
    if value._parent is None and node.op.name == "const":
        return np.asarray(node.attrs[0]).astype(value.dtype.numpy)
    if value._parent is not None and value._root().version.op.name == "const":
        return np.broadcast_to(np.asarray(value._root().version.attrs[0]).astype(value.dtype.numpy), value.shape)
    return value._host()


def assigned(source: Tensor, dtype: DType) -> Tensor:
    """A value as the dtype it is stored in."""
    if source.dtype.kind == "c" and dtype.kind != "c":
        raise DTypeError(f"write: a complex value does not fit {dtype.name}; take real or imag parts, or use astype.")
    return source.astype(dtype, copy=False)


def drop_leading_ones(source: Tensor, rank: int) -> Tensor:
    """NumPy's assignment ignores extra leading axes of size 1."""
    extra = source.ndim - rank
    if extra > 0 and all(size == 1 for size in source.shape[:extra]):
        return source.reshape(source.shape[extra:])
    return source


def _fancy_parts(x: Tensor, key: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
    """An index with arrays: a template whose "array" entries stand for the returned index tensors, all checked."""
    template: list[Any] = []
    arrays: list[Tensor] = []
    for entry in key if isinstance(key, tuple) else (key,):
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            template.append(entry)
            continue
        index = entry if is_tensor(entry) else asarray(np.asarray(entry, dtype=np.int64 if _is_empty(entry) else None))
        if index.dtype.kind not in "biu":
            raise IndexingError(
                f"index: a {index.dtype.name} array; expected integers or bools. Convert it with astype."
            )
        template.append("array")
        arrays.append(index)
    return tuple(template), arrays


def _is_empty(entry: Any) -> bool:
    return isinstance(entry, list | tuple) and not entry


def _selection(x: Tensor, key: Any) -> tuple[tuple[Any, ...], list[Tensor], tuple[int, ...]]:
    """An index with arrays, and the shape it selects.

    Raises: IndexingError for an index outside its axis.
    """
    template, arrays = _fancy_parts(x, key)
    probe = np.broadcast_to(np.empty((), np.bool_), x.shape)
    try:
        shape = probe[m._fancy_key(template, tuple(array._host() for array in arrays))].shape
    except IndexError as error:
        raise IndexingError(f"index: shape {x.shape}: {error}.") from None
    return template, arrays, shape


def fancy_get(x: Tensor, key: Any) -> Tensor:
    """x[key] where an entry of the key is an array."""
    template, arrays, shape = _selection(x, key)
    return record(m.FANCY_GET, (x, *arrays), (template, shape))


def fancy_set(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value where an entry of the key is an array."""
    template, arrays, shape = _selection(x, key)
    if x._is_broadcast():
        raise ValueError(f"write: a broadcast view of shape {x.shape} is read-only; copy() it first.")
    source = assigned(as_operand(value, x.dtype), x.dtype)
    e.broadcast_shapes("index assignment", (drop_leading_ones(source, len(shape)).shape, shape))
    offset, strides = x._layout()
    write_node(x, m.FANCY_SET, (source, *arrays), (offset, x.shape, strides, template))
