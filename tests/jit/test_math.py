"""Accuracy of the elementary functions over a spread of bit patterns, against wider arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plait.framework.dtype import DType, float32, float64
from plait.jit.math import FUNCTIONS
from plait.jit.target import host_target, virtual
from tests.jit.native import run_expression
from tests.jit.test_builder import runnable

Array = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


ORACLES = {
    **{
        name: getattr(np, name)
        for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan")
    },
    **{name: getattr(np, name) for name in ("sinh", "cosh", "tanh")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "erf": lambda x: _erf(x.astype(np.float64)).astype(x.dtype),
    "sigmoid": _sigmoid,
}
FLOAT32_ULP = {"exp": 1.0, "log": 1.0, "tanh": 1.5, "erf": 2.5, "sigmoid": 2.5}
WIDER = {"float32": np.float64, "float64": np.longdouble}


def patterns(dtype: DType, count: int) -> Array:
    rng = np.random.default_rng(3)
    bits = (
        rng.integers(0, 2**dtype.bits, count, dtype=np.uint64, endpoint=False)
        if dtype.bits < 64
        else rng.integers(0, 2**64, count, dtype=np.uint64)
    )
    near = np.concatenate([rng.normal(size=count) * 3, rng.uniform(-1.2, 1.2, count)])
    tiny = np.finfo(dtype.numpy).smallest_subnormal
    edge = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 88.7, -103.9, 709.7, tiny, -tiny])
    with np.errstate(all="ignore"):
        return np.concatenate([bits.astype(f"u{dtype.itemsize}").view(dtype.numpy), near.astype(dtype.numpy),
                               edge.astype(dtype.numpy)])  # fmt: skip


def errors(got: Array, wide: Array) -> Array:
    """Units in the last place of the rounded oracle; infinite where NaN, infinity or sign differ."""
    with np.errstate(all="ignore"):
        rounded = wide.astype(got.dtype)
        distance = np.abs(got.astype(wide.dtype) - wide) / np.spacing(np.abs(rounded)).astype(wide.dtype)
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    equal = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    signs = np.isnan(rounded) | (np.signbit(got) == np.signbit(rounded))
    return np.where(special, np.where(equal, 0, np.inf), np.where(signs, distance, np.inf)).astype(np.float64)


@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ORACLES)
def test_a_function_is_accurate_everywhere(name: str, dtype: DType) -> None:
    x = patterns(dtype, 60000)
    got = run_expression(lambda e, v: getattr(e, name)(v), [x], [dtype], dtype)
    with np.errstate(all="ignore"):
        found = errors(got, ORACLES[name](x.astype(WIDER[dtype.name])))
    allowed = FLOAT32_ULP.get(name, 1.0) if dtype is float32 else 4.0
    worst = int(np.argmax(found))
    assert found[worst] <= allowed, f"{name}({x[worst]!r}) = {got[worst]!r}: {found[worst]} ulp"


@pytest.mark.parametrize("march", ["haswell", "x86-64-v2"])
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid", "sin", "log2", "expm1"])
def test_a_function_is_accurate_on_smaller_machines(name: str, march: str) -> None:
    x = patterns(float32, 20000)
    got = run_expression(lambda e, v: getattr(e, name)(v), [x], [float32], float32, runnable(march))
    with np.errstate(all="ignore"):
        found = errors(got, ORACLES[name](x.astype(np.float64)))
    # Without a fused multiply-add each step of a polynomial rounds twice.
    assert found.max() <= FLOAT32_ULP.get(name, 1.0) + (0.5 if march == "x86-64-v2" else 0)


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sin"])
def test_the_width_does_not_change_a_bit(name: str) -> None:
    x = patterns(float32, 3000)
    results = {
        run_expression(lambda e, v: getattr(e, name)(v), [x], [float32], float32, lanes=lanes).tobytes()
        for lanes in (1, 4, 8, 16)
    }
    assert len(results) == 1


SPECIAL = np.array(
    [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e38, 1e-40, 2**24, 7.5], np.float32
)


@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_functions_of_two_values_match_on_every_pair_of_specials(name: str) -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([np.repeat(SPECIAL, SPECIAL.size), np.exp(rng.normal(0, 3, 20000)).astype(np.float32)])
    y = np.concatenate([np.tile(SPECIAL, SPECIAL.size), rng.normal(0, 8, 20000).astype(np.float32)])
    got = run_expression(lambda e, a, b: getattr(e, name)(a, b), [x, y], [float32] * 2, float32)
    oracle = np.power if name == "pow" else np.arctan2
    with np.errstate(all="ignore"):
        assert errors(got, oracle(x.astype(np.float64), y.astype(np.float64))).max() <= 1


@pytest.mark.parametrize("name", ["floordiv", "mod"])
def test_float_division_with_remainder_has_numpys_bits(name: str) -> None:
    bits = np.random.default_rng(5).integers(0, 2**32, (2, 20000), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([np.repeat(SPECIAL, SPECIAL.size), bits[0]])
    y = np.concatenate([np.tile(SPECIAL, SPECIAL.size), bits[1]])
    got = run_expression(lambda e, a, b: getattr(e, name)(a, b), [x, y], [float32] * 2, float32)
    with np.errstate(all="ignore"):
        expected = (np.floor_divide if name == "floordiv" else np.remainder)(x, y)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(expected[~np.isnan(got)]))


@pytest.mark.parametrize("x", [1e22, 2.0**1000, 5319372648326541.416707296656673541083813475031793921822105998164685])
def test_angles_are_reduced_exactly_however_large(x: float) -> None:
    # The last one is among the doubles closest to a multiple of pi/2.
    got = run_expression(lambda e, v: e.sin(v), [np.full(4, x)], [float64], float64)
    assert got == pytest.approx([math.sin(x)] * 4, rel=4e-16, abs=0)


def test_every_function_has_an_oracle() -> None:
    assert set(FUNCTIONS["float"]) == set(ORACLES) | {"pow", "atan2"}
    assert host_target().triple and virtual("haswell").has_fma
