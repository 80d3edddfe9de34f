"""Runs expressions as native code on NumPy arrays, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait.framework.dtype import DType
from plait.jit.builder import Builder, Value
from plait.jit.compile_ir import compile_ir, load_object
from plait.jit.expression import ExpressionBuilder, Typed, memory_element
from plait.jit.pool import shared_pool
from plait.jit.target import Target, host_target

Array = np.ndarray[Any, Any]


def expression_text(
    target: Target, lanes: int, dtypes: Sequence[str], result: str, expression: Callable[..., Typed]
) -> str:
    """A kernel over arrays: inputs in slots 0.., the result in the last."""
    b = Builder(target)
    with b.function("k") as (args, lo, hi):
        pointers = [b.slot(args, number) for number in range(len(dtypes) + 1)]
        e = ExpressionBuilder(b, lanes)

        def body(i: Value, mask: Value | None) -> None:
            pairs = zip(dtypes, pointers, strict=False)
            inputs = [e.load(dtype, b.gep(memory_element(dtype), pointer, i), mask) for dtype, pointer in pairs]
            e.store(expression(e, *inputs), b.gep(memory_element(result), pointers[-1], i), mask)

        b.vloop(lo, hi, lanes, body)
    return b.text()


def run_text(text: str, symbol: str, units: int, *slots: int, target: Target | None = None) -> None:
    """Compile, load and run a kernel over 0..units on this thread."""
    library = load_object(compile_ir(symbol, text, target or host_target()), [symbol])
    shared_pool().launch(library.symbol(symbol), 0, units, 1 << 40, *slots)
    library.close()


def run_expression(
    expression: Callable[..., Typed],
    arrays: Sequence[Array],
    dtypes: Sequence[DType],
    result: DType,
    target: Target | None = None,
    lanes: int | None = None,
) -> Array:
    """The expression of equally long arrays."""
    target = target or host_target()
    names = [dtype.name for dtype in dtypes]
    text = expression_text(target, lanes or target.width, names, result.name, expression)
    out = np.zeros(arrays[0].size, result.numpy)
    kept = [np.ascontiguousarray(array) for array in arrays]
    run_text(text, "k", out.size, *(array.ctypes.data for array in kept), out.ctypes.data, target=target)
    return out
