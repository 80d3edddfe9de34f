"""Counted bytes in host memory: 64-byte aligned, recycled by size class, shared with NumPy without copies."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from plait.framework.config import config
from plait.framework.dtype import DType

_ALIGN = 64
_KEEP_BYTES = 256 << 20
_PAGE = 4096
POISON = 0xFF  # repeated, a NaN of every float dtype that arithmetic does not make but hands on


class _Pool:
    """Free blocks by size class. Blocks above the kept budget go back to the system."""

    def __init__(self) -> None:
        self.free: dict[int, list[np.ndarray[Any, Any]]] = {}
        self.free_bytes = 0
        self.live_bytes = 0
        self.peak_bytes = 0
        self.lock = threading.RLock()  # a collection under the lock may free another buffer

    def take(self, size_class: int) -> np.ndarray[Any, Any]:
        with self.lock:
            blocks = self.free.get(size_class)
            if blocks:
                self.free_bytes -= size_class
                self._count(size_class)
                return blocks.pop()
        block = _aligned_block(size_class)  # may raise MemoryError: nothing is counted yet
        with self.lock:
            self._count(size_class)
        return block

    def _count(self, size_class: int) -> None:
        self.live_bytes += size_class
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def give(self, size_class: int, block: np.ndarray[Any, Any]) -> None:
        with self.lock:
            self.live_bytes -= size_class
            if self.free_bytes + size_class <= max(_KEEP_BYTES, self.peak_bytes // 10):
                self.free_bytes += size_class
                self.free.setdefault(size_class, []).append(block)

    def trim(self) -> None:
        with self.lock:
            self.free.clear()
            self.free_bytes = 0


pool = _Pool()


def _size_class(num_bytes: int) -> int:
    """Powers of two in eighths: at most 12.5 % is wasted."""
    if num_bytes <= _ALIGN:
        return _ALIGN
    step = max(_ALIGN, 1 << (num_bytes - 1).bit_length() - 4)
    return -(-num_bytes // step) * step


def _aligned_block(num_bytes: int) -> np.ndarray[Any, Any]:
    raw = np.empty(num_bytes + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + num_bytes]


class Buffer:
    """Bytes at a fixed address, owned or borrowed from a NumPy array that stays alive with it."""

    __slots__ = ("address", "num_bytes", "writable", "_block", "_size_class", "__weakref__")

    def __init__(self, num_bytes: int) -> None:
        self._size_class = 0  # what __del__ gives back should the next line fail
        self._block = pool.take(_size_class(num_bytes))
        self._size_class = len(self._block)
        self.address: int = self._block.ctypes.data
        self.num_bytes = num_bytes
        self.writable = True
        if config.poison:
            self._block[:] = POISON

    @classmethod
    def borrow(cls, array: np.ndarray[Any, Any]) -> Buffer:
        """Share the memory of a C-contiguous array."""
        self = cls.__new__(cls)
        self._size_class = 0
        self._block = array
        self.address = array.ctypes.data
        self.num_bytes = array.nbytes
        self.writable = bool(array.flags.writeable)
        return self

    def __del__(self) -> None:
        if self._size_class:
            pool.give(self._size_class, self._block)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "data": (self.address, not self.writable),
            "shape": (self.num_bytes,),
            "typestr": "|u1",
        }

    def array(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The contents as a NumPy array that shares the memory and keeps this buffer alive."""
        return np.asarray(self).view(dtype.numpy).reshape(shape)

    def copy(self) -> Buffer:
        """A private copy."""
        twin = Buffer(self.num_bytes)
        ctypes.memmove(twin.address, self.address, self.num_bytes)
        return twin

    def __repr__(self) -> str:
        return f"Buffer({self.num_bytes} bytes at {self.address:#x})"


def from_array(array: np.ndarray[Any, Any], dtype: DType) -> Buffer:
    """A buffer that holds a copy of the array's values in C order."""
    buffer = Buffer(array.size * dtype.itemsize)
    buffer.array(dtype, array.shape)[...] = array
    return buffer
