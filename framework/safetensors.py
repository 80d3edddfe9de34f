"""Safetensors files as NumPy arrays: read through a memory map, written atomically, ties kept. Knows no Tensor.

A file is 8 bytes (the header's length, little endian), a JSON header and the tensors' bytes without holes. A tensor
that stands under several names is stored once; metadata `plait.tie.<alias>` = `<name>` names the others.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import mmap
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from plait.framework import dtype as dt
from plait.framework.errors import DTypeError, FormatError, IndexingError, LoadError

Array = np.ndarray[Any, Any]

DTYPE_OF_NAME = {
    "BOOL": dt.bool_,
    **{f"I{dtype.bits}": dtype for dtype in (dt.int8, dt.int16, dt.int32, dt.int64)},
    **{f"U{dtype.bits}": dtype for dtype in (dt.uint8, dt.uint16, dt.uint32, dt.uint64)},
    **{f"F{dtype.bits}": dtype for dtype in (dt.float16, dt.float32, dt.float64)},
    "BF16": dt.bfloat16,
    "C64": dt.complex64,
    "F8_E4M3": dt.float8_e4m3fn,
    "F8_E5M2": dt.float8_e5m2,
    "F8_E4M3FNUZ": dt.float8_e4m3fnuz,
    "F8_E5M2FNUZ": dt.float8_e5m2fnuz,
    "F8_E8M0": dt.float8_e8m0fnu,
}
NAME_OF_DTYPE = {dtype: name for name, dtype in DTYPE_OF_NAME.items()}

TIE = "plait.tie."
METADATA = "__metadata__"
LENGTH_BYTES = 8
MAX_HEADER = 100_000_000  # the reference reader's limit
MAX_NDIM, MAX_COUNT = 64, 2**63 - 1  # NumPy's limits
ALIGNMENT = 64  # the tensors' bytes start at a multiple of it, so that views are aligned


class Entry(NamedTuple):
    """Where one tensor lies: its dtype, its shape, and its bytes counted from the end of the header."""

    dtype: dt.DType
    shape: tuple[int, ...]
    start: int
    stop: int


class Reader:
    """One open file. Arrays it gives are read-only views of the map, which lives as long as one of them.

    Raises: FormatError for a file that is not sound; OSError for one that cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._map = _map(self.path)
        header, self._data = _read_header(self.path, self._map)
        self._raw_metadata = _check_metadata(self.path, header.pop(METADATA, {}))
        size = len(self._map) - self._data
        self.entries = {name: _entry(self.path, name, fields, size) for name, fields in header.items()}
        _check_tiling(self.path, self.entries, size)
        self.ties = _check_ties(self.path, self._raw_metadata, self.entries)

    @property
    def names(self) -> list[str]:
        """Every tensor name, also the tied ones."""
        return [*self.entries, *self.ties]

    @property
    def metadata(self) -> dict[str, str]:
        """The file's own metadata; ties are told by `ties`."""
        return {key: value for key, value in self._raw_metadata.items() if not key.startswith(TIE)}

    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in self.ties

    def entry(self, name: str) -> Entry:
        """Dtype, shape and place of a tensor.

        Raises: LoadError when the file has no tensor of that name.
        """
        found = self.entries.get(self.ties.get(name, name))
        if found is None:
            raise LoadError(f"{self.path}: no tensor {name!r}; it has {_listed(self.names)}.")
        return found

    def tensor(self, name: str) -> Array:
        """A whole tensor as a read-only view of the file.

        Raises: LoadError when the file has no tensor of that name.
        """
        entry = self.entry(name)
        if entry.start == entry.stop:  # NumPy refuses an offset at the very end of a buffer
            array: Array = np.empty(entry.shape, entry.dtype.numpy)
            array.flags.writeable = False
            return array
        return np.ndarray(entry.shape, entry.dtype.numpy, self._map, self._data + entry.start)

    def slice(self, name: str, index: Sequence[slice]) -> Array:
        """A part of a tensor as a read-only view; no other byte of the tensor is read. Axes left out are whole.

        Raises: LoadError for an unknown name; IndexingError for too many slices, or one outside its axis.
        """
        shape = self.entry(name).shape
        if len(index) > len(shape):
            raise IndexingError(f"{self.path}: tensor {name!r}: {len(index)} slices; expected at most {len(shape)}.")
        for axis, (piece, size) in enumerate(zip(index, shape, strict=False)):
            if not isinstance(piece, slice):
                raise IndexingError(f"{self.path}: tensor {name!r}, axis {axis}: {piece!r}; expected a slice.")
            if any(bound is not None and not -size <= bound <= size for bound in (piece.start, piece.stop)):
                raise IndexingError(f"{self.path}: tensor {name!r}, axis {axis}: {piece} is outside its size {size}.")
        return self.tensor(name)[tuple(index)]


def load(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Every tensor of a file as a read-only view; tied names hold the same array.

    Raises: FormatError for a file that is not sound.
    """
    reader = Reader(path)
    tensors = {name: reader.tensor(name) for name in reader.entries}
    return tensors | {alias: tensors[name] for alias, name in reader.ties.items()}


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata that a file was saved with.

    Raises: FormatError for a file that is not sound.
    """
    return Reader(path).metadata


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays, or whatever `numpy.asarray` reads, to a file: all of it, or the path stays as it was.

    Raises: DTypeError for a dtype the format lacks; FormatError for a name or metadata it cannot hold.
    """
    arrays = {name: _storable(name, value) for name, value in tensors.items()}
    ties = _find_ties(arrays)
    stored = sorted((name for name in arrays if name not in ties), key=lambda name: (-arrays[name].itemsize, name))
    notes = _own_metadata(metadata or {}) | {TIE + alias: name for alias, name in ties.items()}
    header = _header({name: arrays[name] for name in stored}, notes)
    _write_atomically(Path(path), [header, *(_bytes(arrays[name]) for name in stored)])


# Reading


def _fail(path: Path, what: str) -> NoReturn:
    raise FormatError(f"{path}: {what} The file is damaged or no safetensors file; fetch or save it again.")


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < LENGTH_BYTES:
            _fail(path, f"size is {size} bytes; expected at least {LENGTH_BYTES}, the header's length.")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors' bytes start."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    limit = min(MAX_HEADER, len(data) - LENGTH_BYTES)
    if length > limit:
        _fail(path, f"header length is {length}; expected at most {limit}.")
    try:
        text = data[LENGTH_BYTES : LENGTH_BYTES + length].decode("utf-8")
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _fail(path, f"header of {length} bytes: {error}; expected a JSON object in UTF-8.")
    if not text.startswith("{") or not isinstance(header, dict):
        _fail(path, f"header starts with {text[:1]!r}; expected '{{'.")
    return header, LENGTH_BYTES + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {_short(key)} stands twice")
        found[key] = value
    return found


def _check_metadata(path: Path, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or any(not isinstance(value, str) for value in found.values()):
        _fail(path, f"{METADATA} is {_short(found)}; expected an object of strings.")
    return found


def _entry(path: Path, name: str, fields: Any, size: int) -> Entry:
    where = f"tensor {name!r}:"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        _fail(path, f"{where} entry is {_short(fields)}; expected dtype, shape and data_offsets.")
    dtype = DTYPE_OF_NAME.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        known = ", ".join(DTYPE_OF_NAME)
        raise FormatError(f"{path}: {where} dtype is {_short(fields['dtype'])}; expected one of {known}.")
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not _are_counts(shape) or len(shape) > MAX_NDIM:
        _fail(path, f"{where} shape is {_short(shape)}; expected at most {MAX_NDIM} integers from 0 to {MAX_COUNT}.")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        _fail(path, f"{where} data_offsets is {_short(offsets)}; expected 0 <= start <= stop <= {size}.")
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        _fail(path, f"{where} data_offsets is {offsets}; expected {needed} bytes for {fields['dtype']}{shape}.")
    if math.prod(filter(None, shape)) * dtype.itemsize > MAX_COUNT:  # no bytes, yet more than NumPy counts
        _fail(path, f"{where} shape is {_short(shape)}; expected sizes of a product up to {MAX_COUNT}.")
    return Entry(dtype, tuple(shape), *offsets)


def _are_counts(found: Any) -> bool:
    return isinstance(found, list) and all(type(value) is int and 0 <= value <= MAX_COUNT for value in found)


def _check_tiling(path: Path, entries: Mapping[str, Entry], size: int) -> None:
    end, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            kind = "overlap" if entry.start < end else "leave a hole"
            after = f"the end of {before!r}" if before else "the end of the header"
            _fail(path, f"tensor {name!r}: data_offsets start at {entry.start} and {kind}; expected {end}, {after}.")
        end, before = entry.stop, name
    if end != size:
        _fail(path, f"{size} bytes follow the header; expected {end}, the end of the last tensor.")


def _check_ties(path: Path, notes: Mapping[str, str], entries: Mapping[str, Entry]) -> dict[str, str]:
    ties = {key.removeprefix(TIE): name for key, name in notes.items() if key.startswith(TIE)}
    for alias, name in ties.items():
        if name not in entries:
            _fail(path, f"{METADATA} {TIE + alias!r} is {name!r}; expected a stored tensor.")
        if alias in entries:
            _fail(path, f"{METADATA} {TIE + alias!r} ties {alias!r}; expected a name that is not stored itself.")
    return ties


def _short(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 100 else text[:97] + "..."


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"


# Writing


def _storable(name: str, value: Any) -> Array:
    array = np.asarray(value)
    if not isinstance(name, str) or name == METADATA:
        raise FormatError(f"safetensors.save: a tensor is named {name!r}; expected a string other than {METADATA!r}.")
    try:
        known = dt.as_dtype(array.dtype) in NAME_OF_DTYPE
    except DTypeError:
        known = False
    if not known:
        names = ", ".join(dtype.name for dtype in NAME_OF_DTYPE)
        raise DTypeError(f"safetensors.save: tensor {name!r} is {array.dtype}; expected one of {names}. cast it first.")
    return array


def _find_ties(arrays: Mapping[str, Array]) -> dict[str, str]:
    """Names whose array is another name's array: the same bytes read the same way. Empty arrays are never tied."""
    first: dict[tuple[Any, ...], str] = {}
    ties = {}
    for name, array in arrays.items():
        key = (array.ctypes.data, array.dtype, array.shape, array.strides)
        if array.size and first.setdefault(key, name) != name:
            ties[name] = first[key]
    return ties


def _own_metadata(notes: Mapping[str, str]) -> dict[str, str]:
    for key, value in notes.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise FormatError(f"safetensors.save: metadata {key!r} is {value!r}; expected strings. Use json.dumps.")
        if key.startswith(TIE):
            raise FormatError(f"safetensors.save: metadata key {key!r}; expected none that starts with {TIE!r}.")
    return dict(notes)


def _header(arrays: Mapping[str, Array], notes: Mapping[str, str]) -> bytes:
    """Length and JSON, padded with spaces as the format allows."""
    header: dict[str, Any] = {METADATA: dict(notes)} if notes else {}
    start = 0
    for name, array in arrays.items():
        stop = start + array.nbytes
        dtype = NAME_OF_DTYPE[dt.as_dtype(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(len(text) + LENGTH_BYTES) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise FormatError(f"safetensors.save: header of {len(text)} bytes; expected at most {MAX_HEADER}.")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _bytes(array: Array) -> Array:
    """The array's bytes in C order, little endian; a view where they lie so already."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C").reshape(-1).view(np.uint8)


def _write_atomically(path: Path, chunks: Iterable[Any]) -> None:
    target = Path(os.path.realpath(path))  # a link stays one
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            _write_all(file, chunks)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _write_all(file: BinaryIO, chunks: Iterable[Any]) -> None:
    for chunk in chunks:
        file.write(chunk)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
