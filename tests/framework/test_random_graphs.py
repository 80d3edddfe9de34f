"""Random graphs: fusing changes no bit, and both executors agree with float64 NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import plait as pl
from plait.framework.config import override

Array = np.ndarray[Any, Any]
SHAPES = [(5, 37), (1, 37), (5, 1), (37,), (), (5, 37), (5, 37)]


def _unary(rng: random.Random) -> Callable[[Any, Any], Any]:
    return rng.choice(
        [
            lambda p, x: p.tanh(x),
            lambda p, x: -x,
            lambda p, x: p.exp(p.minimum(x, 1.0)),
            lambda p, x: p.sqrt(p.abs(x) + 0.25),
            lambda p, x: x * 0.5 + 1.25,
            lambda p, x: p.where(x > 0, x, x * 0.125),
            lambda p, x: p.sin(x),
            lambda p, x: p.floor(x * 4.0) * 0.25,
        ]
    )


def _movement(rng: random.Random) -> Callable[[Any, Any], Any]:
    return rng.choice(
        [
            lambda p, x: p.flip(x),
            lambda p, x: x[..., ::-1] if x.ndim else x,
            lambda p, x: p.broadcast_to(x, (5, 37)),
            lambda p, x: x.T.reshape(x.shape),
            lambda p, x: x[1:2] if x.ndim and x.shape[0] > 1 else x,
        ]
    )


def _reduction(rng: random.Random) -> Callable[[Any, Any], Any]:
    return rng.choice(
        [
            lambda p, x: p.sum(x, axis=-1, keepdims=True) * 0.125 if x.ndim else x,
            lambda p, x: p.max(x, axis=0, keepdims=True) if x.ndim else x,
            lambda p, x: x - p.mean(x, axis=-1, keepdims=True) if x.ndim else x,
            lambda p, x: p.min(x),
        ]
    )


def _binary(rng: random.Random) -> Callable[[Any, Any, Any], Any]:
    return rng.choice(
        [
            lambda p, x, y: x + y,
            lambda p, x, y: x - y,
            lambda p, x, y: x * p.tanh(y),
            lambda p, x, y: x / (p.abs(y) + 1.0),
            lambda p, x, y: p.maximum(x, y),
            lambda p, x, y: p.where(x < y, x, y * 0.5),
        ]
    )


def _graph(seed: int, p: Any, leaves: list[Any]) -> list[Any]:
    """The same random program for plait and for NumPy: its choices depend on the seed and on shapes only."""
    rng = random.Random(seed)
    values = list(leaves)
    for _ in range(rng.randrange(4, 14)):
        kind = rng.random()
        x, y = rng.choice(values), rng.choice(values)
        if kind < 0.35:
            values.append(_unary(rng)(p, x))
        elif kind < 0.7:
            function = _binary(rng)
            try:
                np.broadcast_shapes(x.shape, y.shape)
            except ValueError:
                continue
            values.append(function(p, x, y))
        elif kind < 0.85:
            function = _movement(rng)
            try:
                values.append(function(p, x))
            except ValueError:  # what cannot be broadcast, in either library
                continue
        else:
            values.append(_reduction(rng)(p, x))
    chosen = rng.sample(values[len(leaves) :], min(2, len(values) - len(leaves)))
    return [*chosen, values[-1]]


def _leaves(seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=shape), np.float32) for shape in SHAPES]


def _run(seed: int, jit: int, dtype: str = "float32") -> list[Array]:
    with override(jit=jit):
        leaves = [pl.asarray(leaf).astype(dtype).realize() for leaf in _leaves(seed)]
        return [np.array(output.numpy()) for output in _graph(seed, pl, leaves)]


def _bits(array: Array) -> list[int]:
    return list(array.tobytes())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("block", range(4))
def test_fused_kernels_give_the_bits_of_single_ones(block: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.jit.runner import runner

    monkeypatch.setattr("plait.jit.runner.IEEE_FIXED", frozenset())
    monkeypatch.setattr("plait.jit.runner.THIRD_SIGHT", 1 << 60)
    kernels = [0, 0]
    for seed in range(block * 15, block * 15 + 15):
        results = []
        for fused, threshold in enumerate((1 << 60, -1)):
            monkeypatch.setattr("plait.jit.runner.AT_ONCE_BYTES", threshold)
            before = runner.counters.kernels
            results.append(_run(seed, 1, dtype))
            kernels[fused] += runner.counters.kernels - before
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(_bits(one), _bits(other), err_msg=f"seed {seed}")
    assert kernels[1] < kernels[0], "nothing was fused"


@pytest.mark.parametrize("jit", [0, 1])
def test_random_graphs_equal_numpys(jit: int) -> None:
    for seed in range(100, 160):
        with np.errstate(all="ignore"):
            expected = _graph(seed, np, [leaf.astype(np.float64) for leaf in _leaves(seed)])
        for found, wanted in zip(_run(seed, jit), expected, strict=True):
            assert found.shape == np.shape(wanted), f"seed {seed}"
            steps = np.abs(found - wanted) > 1e-4 * (1 + np.abs(wanted))
            assert steps.mean() < 0.05 if steps.size > 20 else not steps.any(), f"seed {seed}"  # a floor may fall apart
