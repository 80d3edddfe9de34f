"""Rows over a ragged batch: several sequences of different lengths in one step, with as many rows as new tokens.

row_offsets (S + 1,) int32: sequence s owns rows row_offsets[s] to row_offsets[s + 1].
lengths (S,) int32: tokens of sequence s once this step is done; so row t of sequence s stands at position
lengths[s] - row_offsets[s + 1] + t.
page_table (S, P) int32: page_table[s, i] is the page that holds positions i * page_size to (i + 1) * page_size.
cache (pages, layers, 2, kv_heads, page_size * head_dim) float32: plane 0 holds keys as (head_dim, page_size), so that
neighbouring positions are neighbouring lanes; plane 1 holds values as (page_size, head_dim).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plait.framework.dtype import float32, int32
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.op import Attrs, Op, Spec, row

Array = np.ndarray[Any, Any]
TILE = 32  # attention merges tiles of so many positions, aligned at absolute positions; a page holds whole tiles


def locate(row_offsets: Array, lengths: Array) -> tuple[Array, Array]:
    """The sequence and the position of every row."""
    counts = np.diff(row_offsets)
    sequences = np.repeat(np.arange(len(lengths)), counts)
    rows = np.arange(row_offsets[-1])
    return sequences, lengths[sequences] - row_offsets[sequences + 1] + rows


def _require(op: Op, condition: bool, found: str, expected: str) -> None:
    if not condition:
        raise ShapeError(f"{op.name}: {found}; expected {expected}.")


def _require_ragged(op: Op, row_offsets: Spec, lengths: Spec) -> None:
    if row_offsets.dtype is not int32 or lengths.dtype is not int32:
        raise DTypeError(
            f"{op.name}: row_offsets and lengths are {row_offsets.dtype.name} and {lengths.dtype.name}, not int32."
        )
    fits = len(row_offsets.shape) == 1 and len(lengths.shape) == 1 and row_offsets.shape[0] == lengths.shape[0] + 1
    _require(op, fits, f"row_offsets {row_offsets.shape} with lengths {lengths.shape}", "(S + 1,) with (S,)")


def _rope_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    x, table, row_offsets, lengths = specs
    _require_ragged(op, row_offsets, lengths)
    head_dim = x.shape[-1] if len(x.shape) == 3 else None
    found = f"x {x.dtype.name}{x.shape} with table {table.dtype.name}{table.shape}"
    fits = x.dtype is float32 and table.dtype is float32 and len(table.shape) == 3 and head_dim is not None
    _require(op, fits, found, "float32 (T, heads, head_dim) with float32 (positions, rotary / 2, 2)")
    rotary = table.shape[1] * 2
    ok = isinstance(rotary, int) and isinstance(head_dim, int) and rotary <= head_dim
    _require(op, ok, found, f"a table of at most head_dim = {head_dim} rotated elements")
    return x


def _rope(x: Array, table: Array, row_offsets: Array, lengths: Array, *, attrs: Attrs, spec: Spec) -> Array:
    _, positions = locate(row_offsets, lengths)
    cos, sin = table[positions, None, :, 0], table[positions, None, :, 1]
    half = table.shape[1]
    out = np.array(x)
    first: Any
    second: Any
    if attrs[0]:
        first, second = np.s_[..., 0 : 2 * half : 2], np.s_[..., 1 : 2 * half : 2]
    else:
        first, second = np.s_[..., :half], np.s_[..., half : 2 * half]
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[second] * cos + x[first] * sin
    return out


ROPE = row(
    "rope",
    "ragged",
    infer=_rope_spec,
    numpy=_rope,
    attrs=("interleaved",),
    axes="thd,[p][d][c],[s],[s]->thd",
    ulp=4,
    doc="rotary embedding of (T, heads, head_dim) by each row's position; pairs are neighbours or halves. "
    "Source: arXiv 2104.09864",
)


def page_size(cache: Spec, head_dim: int) -> int:
    """Positions per page of a cache."""
    last = cache.shape[-1]
    assert isinstance(last, int)
    return last // head_dim


def _require_cache(op: Op, cache: Spec, heads: Any, head_dim: Any, layer: int) -> None:
    found = f"cache {cache.dtype.name}{cache.shape}, layer {layer}, kv heads {heads}, head_dim {head_dim}"
    fits = cache.dtype is float32 and len(cache.shape) == 5 and cache.shape[2] == 2 and cache.shape[3] == heads
    whole = fits and isinstance(cache.shape[4], int) and cache.shape[4] % (head_dim * TILE) == 0
    _require(
        op,
        whole,
        found,
        f"float32 (pages, layers, 2, kv_heads, page_size * head_dim) with page_size a multiple of {TILE}",
    )
    _require(op, not isinstance(cache.shape[1], int) or layer < cache.shape[1], found, "a layer the cache has")


def _kv_store_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    cache, keys, values, row_offsets, lengths, table = specs
    _require_ragged(op, row_offsets, lengths)
    found = f"keys {keys.dtype.name}{keys.shape}, values {values.dtype.name}{values.shape}"
    fits = keys.dtype is values.dtype is float32 and len(keys.shape) == 3 and keys.shape == values.shape
    _require(op, fits, found, "two float32 (T, kv_heads, head_dim)")
    _require_cache(op, cache, keys.shape[1], keys.shape[2], attrs[0])
    _require(op, table.dtype is int32 and len(table.shape) == 2, f"page_table {table.shape}", "int32 (S, P)")
    return cache


def _planes(cache: Array, layer: int, head_dim: int) -> tuple[Array, Array]:
    """Keys (pages, kv_heads, head_dim, page_size) and values (pages, kv_heads, page_size, head_dim): views."""
    pages, _, _, heads, last = cache.shape
    size = last // head_dim
    keys = cache[:, layer, 0].reshape(pages, heads, head_dim, size)
    return keys, cache[:, layer, 1].reshape(pages, heads, size, head_dim)


def _kv_store(
    cache: Array,
    keys: Array,
    values: Array,
    row_offsets: Array,
    lengths: Array,
    table: Array,
    *,
    attrs: Attrs,
    spec: Spec,
) -> Array:
    key_plane, value_plane = _planes(cache, attrs[0], keys.shape[-1])
    size = key_plane.shape[-1]
    sequences, positions = locate(row_offsets, lengths)
    pages = table[sequences, positions // size]
    key_plane[pages, :, :, positions % size] = keys
    value_plane[pages, :, positions % size, :] = values
    return cache


KV_STORE = row(
    "kv_store",
    "ragged",
    infer=_kv_store_spec,
    numpy=_kv_store,
    attrs=("layer",),
    axes="[p][l][c]h[d],th[d],th[d],[s],[s],[s][i]->[p][l][c]h[d]",
    in_place=True,
    doc="write each row's key and value (T, kv_heads, head_dim) where its position lives in the paged cache",
)


def _attention_spec(op: Op, specs: tuple[Spec, ...], attrs: Attrs) -> Spec:
    queries, cache, row_offsets, lengths, table = specs
    _require_ragged(op, row_offsets, lengths)
    found = f"queries {queries.dtype.name}{queries.shape} with cache {cache.dtype.name}{cache.shape}"
    _require(op, queries.dtype is float32 and len(queries.shape) == 3, found, "float32 queries (T, heads, head_dim)")
    heads, head_dim = queries.shape[1:]
    kv_heads = cache.shape[3] if len(cache.shape) == 5 else 0
    grouped = isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads == 0
    _require(op, grouped, found, "a number of heads that is a multiple of the cache's kv_heads")
    _require_cache(op, cache, kv_heads, head_dim, attrs[0])
    _require(op, table.dtype is int32 and len(table.shape) == 2, f"page_table {table.shape}", "int32 (S, P)")
    return Spec(queries.shape, float32)


def _attention(
    queries: Array, cache: Array, row_offsets: Array, lengths: Array, table: Array, *, attrs: Attrs, spec: Spec
) -> Array:
    layer, scale = attrs
    heads, head_dim = queries.shape[1:]
    key_plane, value_plane = _planes(cache, layer, head_dim)
    group = heads // key_plane.shape[1]
    out = np.zeros_like(queries)
    for s in range(len(lengths)):
        begin, end, length = row_offsets[s], row_offsets[s + 1], lengths[s]
        if begin == end:
            continue
        pages = table[s, : -(-length // key_plane.shape[-1])]
        keys = np.concatenate(key_plane[pages], axis=-1)[..., :length].repeat(group, axis=0)
        values = np.concatenate(value_plane[pages], axis=-2)[:, :length].repeat(group, axis=0)
        scores = np.einsum("thd,hdp->htp", queries[begin:end], keys) * np.float32(scale)
        future = np.arange(length)[None, :] > np.arange(length - (end - begin), length)[:, None]
        scores[:, future] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[begin:end] = np.einsum("htp,hpd->thd", weights, values)
    return out


PAGED_ATTENTION = row(
    "paged_attention",
    "ragged",
    infer=_attention_spec,
    numpy=_attention,
    attrs=("layer", "scale"),
    axes="thd,[p][l][c][h][d],[s],[s],[s][i]->thd",
    ulp=512,
    doc="causal attention of (T, heads, head_dim) queries over their own sequence's pages; head h reads kv head "
    "h // (heads // kv_heads)",
)
