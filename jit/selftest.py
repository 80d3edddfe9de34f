"""One kernel of each skeleton, compiled for this machine, run, and compared with the rows' NumPy meanings.

Knows which skeletons there are; reads no cache and leaves nothing in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.framework import functional as f
from plait.framework.blocks import block_format
from plait.framework.config import override
from plait.framework.conversion import from_numpy
from plait.framework.errors import PlaitError
from plait.framework.record import matmul
from plait.framework.tensor import Tensor
from plait.jit.compiled import CompiledCallable
from plait.jit.layout import BufferLayout, TensorLayout
from plait.jit.stage import external, stage

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One kernel to try.

    covers   the kinds of group and the rows with lowerings of their own that it goes through
    stored   numbers of the arguments that it stores into
    weights  bound by name
    """

    name: str
    covers: tuple[str, ...]
    function: Callable[..., Any]
    arguments: tuple[Array, ...]
    stored: tuple[int, ...] = ()
    weights: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a case. `problem` is empty when it passed; `difference` is the largest one, absolute."""

    name: str
    kernels: list[str]
    compile_ms: float
    run_ms: float
    difference: float
    problem: str = ""


TOLERANCE = 1e-4  # relative to the largest value: tells a wrong kernel from another order of summing


def selftest() -> Iterator[Outcome]:
    """Try every case in turn."""
    for case in cases():
        yield attempt(case)


def attempt(case: Case) -> Outcome:
    """Compile, run and compare one case."""
    try:
        return _attempt(case)
    except PlaitError as error:
        return Outcome(case.name, [], 0.0, 0.0, 0.0, str(error))


def _attempt(case: Case) -> Outcome:
    with override(cache="0", jit=1, nan=0):
        start = time.perf_counter()
        compiled = CompiledCallable(stage(case.function, name=case.name)(*_layouts(case)), _weights(case), strict=True)
        ready = time.perf_counter()
        found = _run(compiled, case)
        end = time.perf_counter()
    with override(jit=0):
        wanted = _run(compiled, case)
    times = (ready - start) * 1e3, (end - ready) * 1e3
    difference, problem = 0.0, ""
    for one, other in zip(found, wanted, strict=True):
        distance = float(np.abs(one.astype(np.float64) - other).max())
        difference = max(difference, distance)
        if not distance <= TOLERANCE * max(1.0, float(np.abs(other.astype(np.float64)).max())):
            problem = f"differs from NumPy by {distance:.3g}"
    return Outcome(case.name, compiled.launches, *times, difference, problem)


def _weights(case: Case) -> dict[str, Tensor]:
    return {name: from_numpy(array) for name, array in case.weights.items()}


def _layouts(case: Case) -> list[TensorLayout]:
    return [
        (BufferLayout if number in case.stored else TensorLayout)(array.dtype, array.shape)
        for number, array in enumerate(case.arguments)
    ]


def _run(compiled: CompiledCallable, case: Case) -> list[Array]:
    """The result, if there is one, and the arguments that were stored into."""
    tensors = [from_numpy(array.copy()) for array in case.arguments]
    result = compiled(*tensors)
    seen = [*([result] if isinstance(result, Tensor) else []), *(tensors[number] for number in case.stored)]
    return [tensor.numpy().copy() for tensor in seen]


# What there is to try

_HEADS, _HEAD_DIM, _PAGE = 2, 32, 32
_COLUMNS, _ROWS = 64, 48


def cases() -> list[Case]:
    """One case per skeleton, on fixed random numbers."""
    draws = np.random.default_rng(20)
    x = draws.normal(size=(9, _COLUMNS)).astype(np.float32)
    row = draws.normal(size=_COLUMNS).astype(np.float32)
    return [
        Case("map", ("map",), lambda x, w: f.gelu(x * w) + 1, (x, row)),
        Case("row", ("row",), lambda x, w: f.softmax(f.rms_norm(x, w)), (x, row)),
        Case("column", ("column",), lambda x: f.exp(x).sum(0), (x,)),
        Case("take", ("take",), lambda x, ids: f.take(x, ids), (x, np.array([8, 0, 3], np.int32))),
        Case("quantize", ("quantize_rows",), f.quantize_rows, (x,)),
        Case("store", ("write",), _store, (x.copy(), row), (0,)),
        *_products(draws, x),
        *_ragged(draws),
    ]


def _store(x: Tensor, row: Tensor) -> None:
    x[2:7, ::2] = row[::2]


def _products(draws: np.random.Generator, x: Array) -> Iterator[Case]:
    right = draws.normal(size=(_COLUMNS, _ROWS)).astype(np.float32)
    yield Case("product f32", ("product",), lambda x, w: f.relu(matmul(x, w)), (x, right))
    transposed = {"w": np.ascontiguousarray(right.T)}
    layout = TensorLayout("float32", (_ROWS, _COLUMNS))
    yield Case("product packed", ("product",), lambda x: matmul(x, external("w", layout).T), (x,), (), transposed)
    raw = _blocks(draws, "q4_1")
    table = TensorLayout("uint8", raw.shape)
    weights = {"w": raw}
    for name, function in (
        ("product q4_1", lambda x: f.qmatmul(x, external("w", table), "q4_1")),
        ("product int8", lambda x: f.qmatmul_int8(f.quantize_rows(x), external("w", table), "q4_1")),
    ):
        yield Case(name, ("product",), function, (x,), (), weights)
    ids = np.array([5, 0, 47], np.int32)
    yield Case("table", ("qtake",), lambda ids: f.qtake(external("w", table), ids, "q4_1"), (ids,), (), weights)


def _blocks(draws: np.random.Generator, name: str) -> Array:
    """Random rows of a block format with finite scales."""
    blocks = draws.integers(0, 256, (_ROWS, _COLUMNS // 32, block_format(name).block_bytes), dtype=np.uint8)
    scales = draws.normal(size=(_ROWS, _COLUMNS // 32, 2)).astype(np.float16)
    blocks[..., :4] = scales.view(np.uint8)
    return blocks.reshape(_ROWS, -1)


def _ragged(draws: np.random.Generator) -> Iterator[Case]:
    """Three sequences of 3, 1 and 5 new tokens, over pages of 32 positions."""
    offsets = np.array([0, 3, 4, 9], np.int32)
    lengths = np.array([3, 40, 32], np.int32)
    pages = np.array([[4, 0], [1, 3], [2, 0]], np.int32)
    tokens = draws.normal(size=(9, _HEADS, _HEAD_DIM)).astype(np.float32)
    angles = draws.normal(size=(64, _HEAD_DIM // 2, 2)).astype(np.float32)
    cache = draws.normal(size=(5, 1, 2, _HEADS, _PAGE * _HEAD_DIM)).astype(np.float32)
    place = (offsets, lengths)
    yield Case("rope", ("rope",), lambda x, t, o, n: f.rope(x, t, o, n, False), (tokens, angles, *place))
    yield Case("cache store", ("kv_store",), _store_cache, (cache, tokens, tokens * 2, *place, pages), (0,))
    yield Case("attention", ("paged_attention",), _attend, (tokens, cache, *place, pages))


def _store_cache(cache: Tensor, keys: Tensor, values: Tensor, offsets: Tensor, lengths: Tensor, pages: Tensor) -> None:
    f.kv_store(cache, keys, values, offsets, lengths, pages, 0)


def _attend(queries: Tensor, cache: Tensor, offsets: Tensor, lengths: Tensor, pages: Tensor) -> Tensor:
    return f.paged_attention(queries, cache, offsets, lengths, pages, 0)
