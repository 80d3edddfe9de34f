"""The layouts that kernels want weights in, and how to get there from the bytes of a file. NumPy only, no LLVM.

A layout of 16 lanes stores 16 consecutive weight rows (output columns) side by side, so that one vector holds the same
column of 16 rows. Rows are padded to a multiple of 16 with zeros; the row count is an argument of the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.framework.blocks import BLOCK, block_format
from plait.framework.errors import ConfigError, ShapeError

Array = np.ndarray[Any, Any]
LANES = 16
CHUNK = 1 << 20  # bytes repacked at a time, so that the strided side stays in cache


@dataclass(frozen=True)
class Packing:
    """One layout: `pack(rows)` copies (N, row_bytes) uint8 or (N, K) float32 rows into a flat uint8 array."""

    name: str
    pack: Callable[[Array], Array]


@dataclass(frozen=True)
class BlockLayout:
    """Where the parts of one block of 16 rows by 32 columns stand, in bytes.

    16 float16 scales, 16 float16 minima if the format has them, then code dwords: dword (j, row) holds columns
    4j to 4j+3 of that row, one per byte; of 4-bit codes the low nibbles, whose high nibbles are columns 16+4j to 19+4j.
    8-bit codes have their sign bit flipped and are unsigned.
    """

    bits: int
    has_minimum: bool
    zero_point: int

    @property
    def codes_at(self) -> int:
        return 4 * LANES if self.has_minimum else 2 * LANES

    @property
    def dwords(self) -> int:
        """Dwords of codes per row and block."""
        return self.bits

    @property
    def size(self) -> int:
        return self.codes_at + self.dwords * 4 * LANES


def block_layout(format_name: str) -> BlockLayout:
    """The packed block of a weight format."""
    fmt = block_format(format_name)
    return BlockLayout(fmt.bits, fmt.has_minimum, fmt.zero_point)


def block_packing(format_name: str) -> str:
    """The packing id of a block-quantised weight."""
    return f"{format_name}/lane16/1"


FLOAT_PACKING = "f32/lane16/1"


def _file_block(layout: BlockLayout) -> np.dtype[Any]:
    """One block of one row as a file holds it."""
    minimum = [("minimum", "<u2")] if layout.has_minimum else []
    return np.dtype([("scale", "<u2"), *minimum, ("codes", "<u4", (layout.dwords,))])


def _lane_block(layout: BlockLayout) -> np.dtype[Any]:
    minimum = [("minimum", "<u2", (LANES,))] if layout.has_minimum else []
    return np.dtype([("scale", "<u2", (LANES,)), *minimum, ("codes", "<u4", (layout.dwords, LANES))])


def _fill(target: Array, rows: Array, layout: BlockLayout) -> None:
    """Copy whole groups: rows (groups, lanes, blocks) of file blocks into target (groups, blocks) of lane blocks."""
    lanes = rows.shape[1]
    codes = rows["codes"]
    if layout.bits == 8:
        codes = codes ^ np.uint32(0x80808080)
    target["codes"][..., :lanes] = codes.transpose(0, 2, 3, 1)
    for part in ("scale", "minimum")[: 1 + layout.has_minimum]:
        target[part][..., :lanes] = rows[part].transpose(0, 2, 1)


def _pack_blocks(format_name: str, raw: Array) -> Array:
    layout = block_layout(format_name)
    file_block, lane_block = _file_block(layout), _lane_block(layout)
    if raw.ndim != 2 or raw.dtype != np.uint8 or raw.shape[1] % file_block.itemsize:
        raise ShapeError(
            f"packing {format_name}: weight is {raw.dtype}{raw.shape}; expected uint8 (rows, a multiple of "
            f"{file_block.itemsize} bytes)."
        )
    rows = np.ascontiguousarray(raw).view(file_block)
    count, blocks = rows.shape
    groups, whole = -(-count // LANES), count // LANES
    packed = np.empty((groups, blocks), lane_block) if whole == groups else np.zeros((groups, blocks), lane_block)
    step = max(1, CHUNK // max(1, LANES * raw.shape[1]))
    for first in range(0, whole, step):
        last = min(first + step, whole)
        _fill(packed[first:last], rows[first * LANES : last * LANES].reshape(last - first, LANES, blocks), layout)
    if whole < groups:
        _fill(packed[whole:], rows[None, whole * LANES :], layout)
    return packed.reshape(-1).view(np.uint8)


def _pack_floats(rows: Array) -> Array:
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise ShapeError(
            f"packing {FLOAT_PACKING}: weight is {rows.dtype}{rows.shape}; expected float32 (rows, columns)."
        )
    count, columns = rows.shape
    groups, whole = -(-count // LANES), count // LANES
    packed = np.zeros((groups, columns, LANES), np.float32)
    packed[:whole] = rows[: whole * LANES].reshape(whole, LANES, columns).transpose(0, 2, 1)
    if whole < groups:
        packed[whole, :, : count - whole * LANES] = rows[whole * LANES :].T
    return packed.reshape(-1).view(np.uint8)


def _block_row(format_name: str) -> Packing:
    return Packing(block_packing(format_name), lambda raw: _pack_blocks(format_name, raw))


PACKINGS = {p.name: p for p in (*map(_block_row, ("q4_0", "q4_1", "q8_0")), Packing(FLOAT_PACKING, _pack_floats))}


def pack(packing: str, rows: Array) -> Array:
    """Repack a weight.

    Shapes: (N, row_bytes) uint8 or (N, K) float32 -> flat uint8 of `packed_bytes(packing, *rows.shape)`.
    Raises: ConfigError for an unknown packing, ShapeError for rows it does not take.
    """
    return _packing(packing).pack(rows)


def packed_bytes(packing: str, rows: int, columns: int) -> int:
    """Bytes that `pack` gives for an array of that shape."""
    groups = math.ceil(rows / LANES)
    if _packing(packing).name == FLOAT_PACKING:
        return groups * columns * LANES * 4
    format_name = packing.split("/")[0]
    return groups * (block_format(format_name).columns(columns) // BLOCK) * block_layout(format_name).size


def _packing(name: str) -> Packing:
    if name not in PACKINGS:
        raise ConfigError(f"packing: {name!r} is no layout plait packs weights in; known: {', '.join(PACKINGS)}.")
    return PACKINGS[name]
