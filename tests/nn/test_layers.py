"""Layers against NumPy and against the published meaning of block formats."""

from __future__ import annotations

import numpy as np
import pytest

import plait as pl
from plait import nn
from plait.framework.blocks import block_format
from plait.framework.errors import ConfigError, ShapeError
from plait.nn.rope import rope_table

RNG = np.random.default_rng(3)


def tensor(array: np.ndarray) -> pl.Tensor:
    return pl.from_numpy(np.ascontiguousarray(array))


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def random_rows(format_name: str, rows: int, columns: int) -> np.ndarray:
    """Raw block rows with sensible scales."""
    block = block_format(format_name)
    raw = RNG.integers(0, 256, (rows, columns // 32, block.block_bytes), dtype=np.uint8)
    for at in range(0, 4 if block.has_minimum else 2, 2):
        halves = RNG.uniform(0.01, 0.1, (rows, columns // 32, 1)).astype(np.float16)
        raw[..., at : at + 2] = halves.view(np.uint8)
    return raw.reshape(rows, -1)


def test_linear_is_a_product_with_the_transpose_plus_bias() -> None:
    layer = nn.Linear(5, 3)
    weight, bias, x = floats(3, 5), floats(3), floats(2, 4, 5)
    layer.load_state_dict({"weight": weight, "bias": bias})
    np.testing.assert_allclose(layer(tensor(x)).numpy(), x @ weight.T + bias, rtol=1e-5, atol=1e-6)
    assert (layer.in_dim, layer.out_dim) == (5, 3)


@pytest.mark.parametrize("format_name", ["q4_0", "q4_1", "q8_0"])
def test_quantized_linear_in_exact_mode_is_the_product_with_the_dequantised_weight(format_name: str) -> None:
    layer = nn.QuantizedLinear(format_name, 64, 5)
    raw, x = random_rows(format_name, 5, 64), floats(3, 64)
    layer.load_state_dict({"weight": raw})
    expected = x @ block_format(format_name).dequantize(raw).T
    np.testing.assert_allclose(layer(tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert (layer.in_dim, layer.out_dim) == (64, 5)


@pytest.mark.parametrize("format_name", ["q4_0", "q4_1", "q8_0"])
def test_quantized_linear_in_int8_mode_is_as_close_as_eight_bits_allow(format_name: str) -> None:
    layer = nn.QuantizedLinear(format_name, 64, 5, "int8")
    raw, x = random_rows(format_name, 5, 64), floats(3, 64)
    layer.load_state_dict({"weight": raw})
    weight = block_format(format_name).dequantize(raw)
    # A code is off by at most half a step, and a step is a block's largest magnitude / 127.
    step = np.abs(x.reshape(3, 2, 32)).max(-1).repeat(32, -1) / 127
    bound = (step / 2) @ np.abs(weight).T
    assert (np.abs(layer(tensor(x)).numpy() - x @ weight.T) <= bound + 1e-4).all()


def test_joined_linear_is_its_parts_side_by_side() -> None:
    parts = [nn.Linear(4, 2, bias=False), nn.Linear(4, 3, bias=False)]
    x = tensor(floats(2, 4))
    expected = np.concatenate([part(x).numpy() for part in parts], axis=-1)
    np.testing.assert_array_equal(nn.JoinedLinear(parts)(x).numpy(), expected)


@pytest.mark.parametrize("format_name", ["q4_0", "q4_1", "q8_0"])
def test_quantized_embedding_gives_dequantised_rows_and_shares_its_table_with_a_head(format_name: str) -> None:
    layer = nn.QuantizedEmbedding(format_name, 9, 32)
    raw = random_rows(format_name, 9, 32)
    layer.load_state_dict({"weight": raw})
    ids = np.array([[8, 0], [3, 3]], np.int32)
    rows = block_format(format_name).dequantize(raw)
    np.testing.assert_array_equal(layer(tensor(ids)).numpy(), rows[ids])
    head = layer.tied_head()
    assert head.weight is layer.weight
    x = floats(2, 32)
    np.testing.assert_allclose(head(tensor(x)).numpy(), x @ rows.T, rtol=1e-4, atol=1e-4)


def test_norms_follow_their_definitions() -> None:
    x, weight, bias = floats(3, 8), floats(8), floats(8)
    rms = nn.RMSNorm(8, 1e-5)
    rms.load_state_dict({"weight": weight})
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(rms(tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)

    layer = nn.LayerNorm(8, 1e-5)
    layer.load_state_dict({"weight": weight, "bias": bias})
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(layer(tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert nn.LayerNorm(8, bias=False).bias is None


def test_rope_table_is_accurate_at_far_positions() -> None:
    table = rope_table(100_000, 8, 10000.0)
    angle = 99_999 * 10000.0 ** (-np.array([0, 2, 4, 6]) / 8)
    np.testing.assert_array_equal(table[-1, :, 0], np.cos(angle).astype(np.float32))
    np.testing.assert_array_equal(table[-1, :, 1], np.sin(angle).astype(np.float32))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_embedding_turns_pairs_as_complex_numbers(interleaved: bool) -> None:
    heads, dim, rows = 2, 8, 5
    rope = nn.RotaryEmbedding(32, dim, 100.0, interleaved=interleaved)
    x = floats(rows, heads, dim)
    # Two sequences: rows 0 to 2 stand at positions 4 to 6, rows 3 and 4 at 0 and 1.
    batch = nn.RaggedBatch(tensor(np.array([0, 3, 5], np.int32)), tensor(np.array([7, 2], np.int32)))
    positions = np.array([4, 5, 6, 0, 1])
    turn = np.exp(1j * positions[:, None] * 100.0 ** (-np.arange(0, dim, 2) / dim))[:, None, :]
    pairs = x.reshape(rows, heads, dim // 2, 2) if interleaved else x.reshape(rows, heads, 2, dim // 2).swapaxes(-1, -2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
    back = np.stack([turned.real, turned.imag], -1)
    expected = (back if interleaved else back.swapaxes(-1, -2)).reshape(x.shape)
    np.testing.assert_allclose(rope(tensor(x), batch).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_gated_mlp_and_mlp_follow_their_formulas() -> None:
    gate, up, down = (nn.Linear(4, 6, False), nn.Linear(4, 6, False), nn.Linear(6, 4, False))
    x = floats(3, 4)
    w = [np.asarray(layer.weight.numpy(), np.float64) for layer in (gate, up, down)]
    g = x @ w[0].T
    expected = (g / (1 + np.exp(-g)) * (x @ w[1].T)) @ w[2].T
    np.testing.assert_allclose(nn.GatedMLP(gate, up, down)(tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    expected = np.maximum(x @ w[1].T, 0) @ w[2].T
    np.testing.assert_allclose(nn.MLP(up, down, "relu")(tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_attention_over_pages_equals_dense_causal_attention() -> None:
    heads, kv_heads, dim, rows = 4, 2, 8, 40
    width = heads * dim
    layer = nn.Attention(
        nn.Linear(16, (heads + 2 * kv_heads) * dim, False), nn.Linear(width, 16, False),
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, layer=1,
    )  # fmt: skip
    params = nn.CacheParams(2, kv_heads, dim)
    x = floats(rows, 16)
    qkv = (x.astype(np.float64) @ np.asarray(layer.qkv.weight.numpy()).T).reshape(rows, heads + 2 * kv_heads, dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads].repeat(2, 1), qkv[:, heads + kv_heads :].repeat(2, 1)
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(dim)
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("hts,shd->thd", weights, v).reshape(rows, width) @ np.asarray(layer.output.weight.numpy()).T

    cache = pl.zeros(params.shape(3))
    pages = tensor(np.array([[2, 0]], np.int32))
    found = []
    for start, end in ((0, 33), (33, 34), (34, 40)):  # a prompt, one token, another chunk
        offsets, lengths = np.array([0, end - start], np.int32), np.array([end], np.int32)
        step = nn.PagedCacheValues(tensor(offsets), tensor(lengths), cache, pages)
        found.append(np.array(layer(tensor(x[start:end]), step).numpy()))
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-5)


def test_impossible_layers_are_refused_with_both_values() -> None:
    with pytest.raises(ShapeError, match="33 inputs.*32"):
        nn.QuantizedLinear("q4_1", 33, 4)
    with pytest.raises(ConfigError, match="'int4'.*'exact' or 'int8'"):
        nn.QuantizedLinear("q4_1", 32, 4, "int4")
    with pytest.raises(ConfigError, match="q3_x"):
        nn.QuantizedLinear("q3_x", 32, 4)
    with pytest.raises(ConfigError, match="'diagonal'"):
        nn.Linear(2, 2, parallel="diagonal")
