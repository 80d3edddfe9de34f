"""The native entry: sizes computed as Python computes them, and many launches in little text."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest

from plait.framework.dim import Dim, Size, evaluate, symbol
from plait.jit import cache
from plait.jit.builder import Builder
from plait.jit.program import Sizes
from plait.jit.target import host_target

NAMES = ("P", "S", "T")


def random_size(rng: random.Random, depth: int = 3) -> Size:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*map(symbol, NAMES), rng.randrange(-9, 10)])
    a, b = random_size(rng, depth - 1), random_size(rng, depth - 1)
    kind = rng.randrange(4)
    if kind == 3:
        divisor: Size = rng.choice([2, 3, 32, -5, symbol("S") * 2 + 1])
        return a // divisor
    return (a + b, a - b, a * b)[kind]


def native(sizes: list[Dim]) -> Any:
    """`void sizes(ptr dims, ptr out)`; out ends with whether a divisor was zero."""
    b = Builder(host_target())
    with b.function("sizes", (("ptr", "dims"), ("ptr", "out"))) as (dims, out):
        values = Sizes(b, NAMES, dims)
        for index, size in enumerate(sizes):
            b.store(values.size(size), b.gep("i64", out, index))
        b.store(b.zext(values.divisor_is_zero, "i64"), b.gep("i64", out, len(sizes)))
    return cache.get("sizes", b.text(), host_target())


def test_native_sizes_are_pythons() -> None:
    rng = random.Random(5)
    sizes = [size for _ in range(120) if isinstance(size := random_size(rng), Dim)]
    library = native(sizes)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.symbol("sizes"))
    out = (ctypes.c_int64 * (len(sizes) + 1))()
    for _ in range(50):
        values = {name: rng.choice([0, 1, 2, 5, 31, 64, 1000]) for name in NAMES}
        function((ctypes.c_int64 * 3)(*values.values()), out)
        assert list(out) == [*(evaluate(size, values) for size in sizes), 0]


def test_a_divisor_of_zero_is_told_and_does_not_trap() -> None:
    size = symbol("T") // symbol("S")
    assert isinstance(size, Dim)
    library = native([size])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.symbol("sizes"))
    out = (ctypes.c_int64 * 2)()
    function((ctypes.c_int64 * 3)(1, 0, 7), out)
    assert out[1] == 1
    with pytest.raises(ZeroDivisionError):
        evaluate(size, {"T": 7, "S": 0})
