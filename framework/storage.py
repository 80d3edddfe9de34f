"""Storages with versions, and the part of a tensor that knows where its values live. Records nothing.

A fresh result is its own storage. A view keeps its parent and the movement row that made it, and derives its record
from the parent's current version, so a write through any view is seen by all. A storage that the outside shares
(NumPy, DLPack) is exposed: whatever reads it runs before the call returns, and writes to it happen at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeGuard

import numpy as np

from plait.framework.device import CPU, Device
from plait.framework.dim import Size, product
from plait.framework.dtype import DType
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.graph import SYMBOLIC, Node, realized
from plait.framework.interpreter import IDLE
from plait.framework.op import Attrs, Op, Shape
from plait.framework.ops import movement as m
from plait.framework.realize import realize_nodes
from plait.framework.strides import contiguous_strides

if TYPE_CHECKING:
    from plait.framework.tensor import Tensor

Array = np.ndarray[Any, Any]
MAX_VIEWS = 64  # a chain of so many views is replaced by one


class Storage:
    """Memory with versions. `version` is the record of its current contents."""

    __slots__ = ("version", "exposed")

    def __init__(self, version: Node) -> None:
        self.version = version
        self.exposed = False


class Stored:
    """What a tensor is before it can do arithmetic: a value in a storage, seen through a view, read when needed."""

    _tensor: ClassVar[type[Tensor]]  # set by tensor.py, whose class every record is wrapped in
    __slots__ = (
        "_node",
        "_storage",
        "_parent",
        "_row",
        "_attrs",
        "_offset",
        "_strides",
        "_level",
        "shape",
        "dtype",
        "__weakref__",
    )
    __array_ufunc__ = None
    __hash__ = object.__hash__
    _node: Node | None
    _storage: Storage | None
    _parent: Stored | None
    _row: Op
    _attrs: Attrs
    _offset: Size
    _strides: tuple[Size, ...]
    shape: Any  # tuple of int; entries are Dims only while a function is traced
    dtype: DType

    @classmethod
    def _of(cls, node: Node) -> Self:
        """The tensor whose value is a record's."""
        self = object.__new__(cls)
        self._node = node
        self._storage = None
        self._parent = None
        self.shape = node.shape
        self.dtype = node.dtype
        return self

    def _view(self, op: Op, attrs: Attrs, shape: Shape, offset: Size, strides: tuple[Size, ...]) -> Self:
        view = object.__new__(type(self))
        view._node = None
        view._storage = None
        view._parent = self
        view._row, view._attrs = op, attrs
        view._offset, view._strides = offset, strides
        view.shape = shape
        view.dtype = self.dtype
        view._level = 1 if self._parent is None else self._level + 1
        if view._level > MAX_VIEWS:
            view._shorten()
        return view

    def _shorten(self) -> None:
        """Hang a view at the end of a long chain on the storage itself, unless it must stay read-only or symbolic."""
        root = self
        while root._parent is not None:
            root = root._parent
        if not self._is_broadcast() and root.node().depth < SYMBOLIC:
            self._parent, self._level = root, 1
            self._row, self._attrs = m.AS_STRIDED, (self._offset, self.shape, self._strides)

    def node(self) -> Node:
        """The record of the current value."""
        if self._parent is not None:
            parent = self._parent.node()
            return Node(self._row, (parent,), self._attrs, self.shape, self.dtype, None, parent.depth)
        if self._storage is not None:
            return self._storage.version
        assert self._node is not None
        return self._node

    def _root(self) -> Storage:
        tensor = self
        while tensor._parent is not None:
            tensor = tensor._parent
        if tensor._storage is None:
            assert tensor._node is not None
            tensor._storage = Storage(tensor._node)
            tensor._node = None
        return tensor._storage

    def _layout(self) -> tuple[Size, tuple[Size, ...]]:
        """Element offset and strides within the storage."""
        if self._parent is None:
            return 0, contiguous_strides(self.shape)
        return self._offset, self._strides

    def _is_exposed(self) -> bool:
        if self._parent is None:
            return self._storage is not None and self._storage.exposed
        return self._root().exposed

    def _replace(self, version: Node) -> None:
        """Make a record the storage's next version."""
        self._root().version = version

    def realize(self) -> Self:
        """Compute the value now."""
        root = self._root().version if self._parent is not None else self.node()
        realize_nodes([root])
        return self

    def numpy(self) -> Array:
        """The value as a NumPy array that shares memory: writes on either side are seen by the other."""
        storage = self._root()
        expose(storage)
        flat = storage.version.array()
        if self._parent is None:
            return flat
        offset, strides = self._layout()
        view = m.strided(flat, offset, self.shape, strides)  # type: ignore[arg-type]
        if self._is_broadcast():
            view.flags.writeable = False
        return view

    def _is_broadcast(self) -> bool:
        tensor: Stored | None = self
        while tensor is not None and tensor._parent is not None:
            if tensor._row is m.EXPAND:
                return True
            tensor = tensor._parent
        return False

    def _host(self) -> Array:
        """The value for reading only, without exposing the storage."""
        node = self._root().version
        realize_nodes([node])
        if self._parent is None:
            return node.array()
        offset, strides = self._layout()
        return m.strided(node.array(), offset, self.shape, strides)  # type: ignore[arg-type]

    def item(self) -> Any:
        """The only element as a Python scalar.

        Raises: ShapeError unless there is exactly one element.
        """
        if self.size != 1:
            raise ShapeError(f"item: shape {self.shape} holds {self.size} elements; item needs exactly one.")
        return self._host().reshape(-1)[0].item()

    def tolist(self) -> Any:
        """Nested lists of Python scalars."""
        return self._host().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = np.array(self._host()) if copy else self.numpy()
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ValueError(f"__array__: {self.dtype.name} as {dtype} needs a copy, and copy=False forbids it.")
        return array.astype(dtype)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        options: dict[str, Any] = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __bool__(self) -> bool:
        return bool(self._single("bool"))

    def __int__(self) -> int:
        return int(self._single("int"))

    def __float__(self) -> float:
        return float(self._single("float"))

    def __complex__(self) -> complex:
        return complex(self._single("complex"))

    def __index__(self) -> int:
        if not self.dtype.is_integral:
            raise DTypeError(f"index: a {self.dtype.name} tensor is no integer; convert it with astype.")
        return int(self._single("index"))

    def _single(self, where: str) -> Any:
        if self.size != 1:
            raise ShapeError(f"{where}: shape {self.shape} holds {self.size} elements; a scalar needs exactly one.")
        return self.item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return product(self.shape)  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> Device:
        return CPU

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: a 0-d tensor has no length; use size.")
        return int(self.shape[0])


def expose(storage: Storage) -> None:
    """Share a storage with the outside. Pending records that read its version keep their own copy of the values.

    Holders that do not count: `storage.version` and the local `node`.
    """
    node = storage.version
    if not storage.exposed:
        realize_nodes([node])
        buffer = node.buffer
        assert buffer is not None
        if sys.getrefcount(node) > IDLE or not buffer.writable and node.op.family != "leaf":
            storage.version = realized(buffer.copy(), node.shape, node.dtype)  # type: ignore[arg-type]
        storage.exposed = True


def wrap(node: Node) -> Tensor:
    """The tensor whose value is a record's."""
    return Stored._tensor._of(node)


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor."""
    return isinstance(value, Stored)
