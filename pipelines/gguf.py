"""Reads GGUF files (versions 2 and 3) as bounds-checked views over a memory map.

Knows the container: metadata, tensor names, shapes, types and places. Does not know what a block holds.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import ml_dtypes
import numpy as np

from plait.framework.errors import FormatError, LoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_AXES = 4
MAX_NAME_BYTES = 65535
MAX_ARRAY_DEPTH = 4
DAMAGED = "the file is cut or damaged, fetch it again"
MIN_METADATA_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8


class GGMLType(NamedTuple):
    """How one tensor type is stored: `block_bytes` bytes hold `block_size` values; `dtype` is None for block types."""

    name: str
    block_size: int
    block_bytes: int
    dtype: np.dtype[Any] | None = None


def _plain(name: str, dtype: Any) -> GGMLType:
    natural = np.dtype(dtype).newbyteorder("<") if np.dtype(dtype).kind != "V" else np.dtype(dtype)
    return GGMLType(name, 1, natural.itemsize, natural)


GGML_TYPES: dict[int, GGMLType] = {
    0: _plain("F32", np.float32),
    1: _plain("F16", np.float16),
    2: GGMLType("Q4_0", 32, 18),
    3: GGMLType("Q4_1", 32, 20),
    6: GGMLType("Q5_0", 32, 22),
    7: GGMLType("Q5_1", 32, 24),
    8: GGMLType("Q8_0", 32, 34),
    9: GGMLType("Q8_1", 32, 40),
    10: GGMLType("Q2_K", 256, 84),
    11: GGMLType("Q3_K", 256, 110),
    12: GGMLType("Q4_K", 256, 144),
    13: GGMLType("Q5_K", 256, 176),
    14: GGMLType("Q6_K", 256, 210),
    15: GGMLType("Q8_K", 256, 292),
    16: GGMLType("IQ2_XXS", 256, 66),
    17: GGMLType("IQ2_XS", 256, 74),
    18: GGMLType("IQ3_XXS", 256, 98),
    19: GGMLType("IQ1_S", 256, 50),
    20: GGMLType("IQ4_NL", 32, 18),
    21: GGMLType("IQ3_S", 256, 110),
    22: GGMLType("IQ2_S", 256, 82),
    23: GGMLType("IQ4_XS", 256, 136),
    24: _plain("I8", np.int8),
    25: _plain("I16", np.int16),
    26: _plain("I32", np.int32),
    27: _plain("I64", np.int64),
    28: _plain("F64", np.float64),
    29: GGMLType("IQ1_M", 256, 56),
    30: _plain("BF16", ml_dtypes.bfloat16),
    34: GGMLType("TQ1_0", 256, 54),
    35: GGMLType("TQ2_0", 256, 66),
    39: GGMLType("MXFP4", 32, 17),
    40: GGMLType("NVFP4", 64, 36),
    41: GGMLType("Q1_0", 128, 18),
}

# Metadata value types: id -> (struct format, NumPy dtype of an array of them).
_SCALARS: dict[int, tuple[struct.Struct, np.dtype[Any]]] = {
    kind: (struct.Struct(layout), np.dtype(dtype))
    for kind, layout, dtype in (
        (0, "<B", "u1"), (1, "<b", "i1"), (2, "<H", "<u2"), (3, "<h", "<i2"), (4, "<I", "<u4"), (5, "<i", "<i4"),
        (6, "<f", "<f4"), (7, "<B", "u1"), (10, "<Q", "<u8"), (11, "<q", "<i8"), (12, "<d", "<f8"),
    )
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_MIN_ELEMENT_BYTES = {kind: dtype.itemsize for kind, (_, dtype) in _SCALARS.items()} | {_STRING: 8, _ARRAY: 12}
_U32, _U64 = _SCALARS[4][0], _SCALARS[10][0]


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of the file; `shape` is in NumPy order, so a weight is [rows, cols]."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    num_bytes: int
    buffer: mmap.mmap

    @property
    def type_name(self) -> str:
        return self.type.name

    @property
    def data(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a read-only view of the mapped bytes.

        Shapes: a plain type gives `shape` in its dtype; a block type gives uint8 `shape[:-1] + (row_bytes,)`.
        """
        raw = np.frombuffer(self.buffer, np.uint8, self.num_bytes, self.offset)
        if self.type.dtype is not None:
            return raw.view(self.type.dtype).reshape(self.shape)
        row_bytes = self.shape[-1] // self.type.block_size * self.type.block_bytes
        return raw.reshape(*self.shape[:-1], row_bytes)


@dataclass(frozen=True)
class GGUFFile:
    """An opened GGUF file: the metadata and the tensors, in file order.

    Metadata values are int, float, bool and str; an array of strings is a list, one of numbers a read-only NumPy view.
    """

    path: Path
    version: int
    alignment: int
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map the file and check every length, count, offset and type in its header against the file's size.

        Raises: LoadError if there is no such file; FormatError naming file, field, value and bound if it is not sound.
        """
        cursor = _Cursor(Path(path), _map(Path(path)))
        version, num_tensors, num_metadata = _read_preamble(cursor)
        metadata = _read_metadata(cursor, num_metadata)
        alignment = _alignment(cursor, metadata)
        headers = _read_tensor_headers(cursor, num_tensors)
        data_start = -(-cursor.position // alignment) * alignment
        tensors = {header.name: _place(cursor, header, data_start, alignment) for header in headers}
        return cls(cursor.path, version, alignment, metadata, tensors)


class _Cursor:
    """A position in the mapped file; every read is checked against the file's end first."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path, self.buffer, self.size, self.position = path, buffer, len(buffer), 0

    @property
    def remaining(self) -> int:
        return self.size - self.position

    @property
    def _left(self) -> str:
        return f"{self.remaining} of the file's {self.size} bytes are left. {DAMAGED}"

    def fail(self, field: str, found: str) -> NoReturn:
        raise FormatError(f"{self.path}: {field}: {found}")

    def skip(self, num_bytes: int, field: str) -> int:
        """Return the position before moving past `num_bytes`."""
        if num_bytes > self.remaining:
            self.fail(field, f"needs {num_bytes} bytes at byte {self.position}; {self._left}.")
        start = self.position
        self.position += num_bytes
        return start

    def number(self, layout: struct.Struct, field: str) -> Any:
        return layout.unpack_from(self.buffer, self.skip(layout.size, field))[0]

    def count(self, field: str, min_bytes: int) -> int:
        """Read a count of things that take at least `min_bytes` each."""
        count = int(self.number(_U64, field))
        if count * min_bytes > self.remaining:
            self.fail(field, f"{count}; at most {self.remaining // min_bytes} fit: {self._left}.")
        return count

    def string(self, field: str, max_bytes: int | None = None) -> str:
        length = self.count(f"{field} length", 1)
        if max_bytes is not None and length > max_bytes:
            self.fail(f"{field} length", f"{length} bytes; at most {max_bytes} are allowed.")
        start = self.skip(length, field)
        return self.text(start, start + length, field)

    def text(self, start: int, end: int, field: str) -> str:
        try:
            return str(self.buffer[start:end], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(field, f"byte {start + error.start} is not UTF-8 ({error.reason}); strings must be UTF-8.")


def _map(path: Path) -> mmap.mmap:
    try:
        # NOTE: a FIFO would block in open(), so its kind is looked at first.
        if not stat.S_ISREG(path.stat().st_mode):
            raise FormatError(f"{path}: not a regular file; expected a GGUF file.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24:
                raise FormatError(f"{path}: the file has {size} bytes; a GGUF header takes 24.")
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error.strerror}); expected a GGUF file.") from None


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.buffer[cursor.skip(4, "magic") : 4]
    if magic != MAGIC:
        cursor.fail("magic", f"{magic!r}; expected {MAGIC!r}. this is not a GGUF file.")
    version = cursor.number(_U32, "version")
    if version not in VERSIONS:
        swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big")
        hint = " the file is big-endian." if swapped in VERSIONS else ""
        cursor.fail("version", f"{version}; expected one of {VERSIONS}.{hint} convert it again with a current tool.")
    num_tensors = cursor.count("tensor count", MIN_TENSOR_BYTES)
    num_metadata = cursor.count("metadata count", MIN_METADATA_BYTES)
    return version, num_tensors, num_metadata


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"metadata key {index}", MAX_NAME_BYTES)
        if key in metadata:
            cursor.fail(f"metadata {key!r}", "stands twice in the file; keys must be unique.")
        metadata[key] = _read_value(cursor, cursor.number(_U32, f"metadata {key!r} type"), f"metadata {key!r}", 0)
    return metadata


def _read_value(cursor: _Cursor, kind: int, field: str, depth: int) -> Any:
    if kind == _STRING:
        return cursor.string(field)
    if kind == _ARRAY:
        return _read_array(cursor, field, depth)
    if kind not in _SCALARS:
        cursor.fail(f"{field} type", f"{kind}; expected a value type from 0 to 12.")
    value = cursor.number(_SCALARS[kind][0], field)
    return _as_bool(cursor, value, field) if kind == _BOOL else value


def _as_bool(cursor: _Cursor, value: int, field: str) -> bool:
    if value > 1:
        cursor.fail(field, f"{value}; a boolean must be 0 or 1.")
    return value == 1


def _read_array(cursor: _Cursor, field: str, depth: int) -> Any:
    kind = cursor.number(_U32, f"{field} element type")
    if kind not in _MIN_ELEMENT_BYTES:
        cursor.fail(f"{field} element type", f"{kind}; expected a value type from 0 to 12.")
    if depth == MAX_ARRAY_DEPTH:
        cursor.fail(field, f"arrays nested more than {MAX_ARRAY_DEPTH} deep are not supported.")
    count = cursor.count(f"{field} count", _MIN_ELEMENT_BYTES[kind])
    if kind == _STRING:
        return _read_strings(cursor, count, field)
    if kind == _ARRAY:
        return [_read_array(cursor, f"{field}[{index}]", depth + 1) for index in range(count)]
    return _read_numbers(cursor, kind, count, field)


def _read_strings(cursor: _Cursor, count: int, field: str) -> list[str]:
    """Read many strings; written flat because vocabularies hold hundreds of thousands."""
    buffer, size, position, unpack = cursor.buffer, cursor.size, cursor.position, _U64.unpack_from
    strings: list[str] = []
    for index in range(count):
        start = position + 8
        end = start + unpack(buffer, position)[0] if start <= size else start
        try:
            strings.append(str(buffer[start:end], "utf-8"))
        except UnicodeDecodeError:
            end = size + 1
        if end > size:
            cursor.position = position
            cursor.string(f"{field}[{index}]")  # reads it again, slowly, and says what is wrong
        position = end
    cursor.position = position
    return strings


def _read_numbers(cursor: _Cursor, kind: int, count: int, field: str) -> np.ndarray[Any, np.dtype[Any]]:
    dtype = _SCALARS[kind][1]
    values = np.frombuffer(cursor.buffer, dtype, count, cursor.skip(count * dtype.itemsize, field))
    if kind != _BOOL:
        return values
    if count and values.max() > 1:
        cursor.fail(field, f"{int(values.max())}; a boolean must be 0 or 1.")
    return values.view(np.bool_)


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or value <= 0 or value & (value - 1) or value > cursor.size:
        cursor.fail("metadata 'general.alignment'", f"{value!r}; expected a power of two up to the size {cursor.size}.")
    return value


class _Header(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int


def _read_tensor_headers(cursor: _Cursor, count: int) -> list[_Header]:
    seen: dict[str, _Header] = {}
    for index in range(count):
        header = _read_tensor_header(cursor, index)
        if header.name in seen:
            cursor.fail(f"tensor {header.name!r}", "stands twice in the file; names must be unique.")
        seen[header.name] = header
    return list(seen.values())


def _read_tensor_header(cursor: _Cursor, index: int) -> _Header:
    name = cursor.string(f"tensor {index} name", MAX_NAME_BYTES)
    field = f"tensor {name!r}"
    num_axes = cursor.number(_U32, f"{field} axis count")
    if num_axes > MAX_AXES:
        cursor.fail(f"{field} axis count", f"{num_axes}; at most {MAX_AXES} are allowed.")
    sizes = [int(cursor.number(_U64, f"{field} sizes")) for _ in range(num_axes)]
    type_id = cursor.number(_U32, f"{field} type")
    if type_id not in GGML_TYPES:
        known = ", ".join(f"{known_id} {kind.name}" for known_id, kind in GGML_TYPES.items())
        cursor.fail(f"{field} type", f"{type_id}; expected one of {known}.")
    offset = int(cursor.number(_U64, f"{field} offset"))
    return _Header(name, tuple(reversed(sizes)), GGML_TYPES[type_id], offset)


def _place(cursor: _Cursor, header: _Header, data_start: int, alignment: int) -> GGUFTensor:
    """Check that the tensor lies inside the file. Python integers do not wrap, so neither do the products."""
    fail: Callable[[str], NoReturn] = partial(cursor.fail, f"tensor {header.name!r}")
    width = header.shape[-1] if header.shape else 1
    if width % header.type.block_size:
        fail(f"{width} columns; {header.type.name} needs a multiple of {header.type.block_size}.")
    num_bytes = math.prod(header.shape) // header.type.block_size * header.type.block_bytes
    if header.offset % alignment:
        fail(f"offset {header.offset}; expected a multiple of the alignment {alignment}.")
    space = max(cursor.size - data_start, 0)
    if header.offset + num_bytes > space:
        fail(f"{header.type.name} {list(header.shape)} takes {num_bytes} bytes at offset {header.offset}; "
             f"the file of {cursor.size} bytes holds {space} bytes of tensor data. {DAMAGED}.")  # fmt: skip
    return GGUFTensor(header.name, header.shape, header.type, data_start + header.offset, num_bytes, cursor.buffer)
