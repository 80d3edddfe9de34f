"""plait: an eager tensor framework with a JIT and a module system, and the serving stack on top of it.

This file lists the public names and wires the JIT into the framework; it is the only one that imports sideways.
"""

from __future__ import annotations

import importlib as _importlib
import math as _math
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any
import sys as _sys
from pathlib import Path as _Path

from plait.framework import config as _config

try:
    _config.load_environment()
except ValueError as _error:
    # The command line answers a bad PLAIT_* variable with one line; its own code only runs after this import.
    if _sys.argv[:1] == ["-m"] and "plait" in _sys.orig_argv or _sys.argv[:1] and _Path(_sys.argv[0]).stem == "plait":
        _sys.exit(f"plait: {_error}")
    raise

from plait.framework import profiler, random, tree_utils  # noqa: E402
from plait.framework.creation import (  # noqa: E402
    arange,
    empty,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from plait.framework.device import Device  # noqa: E402
from plait.framework.dtype import (  # noqa: E402
    DType,
    bfloat16,
    bool_,
    complex128,
    complex64,
    float16,
    float32,
    float4_e2m1fn,
    float64,
    float6_e2m3fn,
    float6_e3m2fn,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    int16,
    int32,
    int64,
    int8,
    uint16,
    uint32,
    uint64,
    uint8,
)
from plait.framework.evaluate import evaluate  # noqa: E402
from plait.framework.functional import (  # noqa: E402
    abs,
    acos,
    acosh,
    add,
    all,
    any,
    argmax,
    argmin,
    argsort,
    asin,
    asinh,
    astype,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    broadcast_to,
    ceil,
    clip,
    concat,
    copysign,
    cos,
    cosh,
    cumsum,
    divide,
    equal,
    erf,
    exp,
    exp2,
    expand_dims,
    expm1,
    flip,
    floor,
    floor_divide,
    gelu,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    kv_store,
    layer_norm,
    less,
    less_equal,
    linear,
    log,
    log10,
    log1p,
    log2,
    log_softmax,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    max,
    maximum,
    mean,
    min,
    minimum,
    moveaxis,
    multiply,
    negative,
    not_equal,
    pad,
    paged_attention,
    permute_dims,
    pow,
    prod,
    qmatmul,
    qmatmul_int8,
    qtake,
    quantize_rows,
    reciprocal,
    relu,
    remainder,
    reshape,
    result_type,
    rms_norm,
    rope,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softmax,
    sort,
    split,
    sqrt,
    square,
    squeeze,
    stack,
    std,
    subtract,
    sum,
    swapaxes,
    take,
    tan,
    tanh,
    transpose,
    trunc,
    var,
    where,
)
from plait.framework.conversion import asarray, from_numpy  # noqa: E402
from plait.framework.record import matmul  # noqa: E402
from plait.framework.tensor import Tensor  # noqa: E402

from plait.framework.graph import Node as _Node  # noqa: E402
from plait.framework.realize import install_executor as _install_executor  # noqa: E402


_LAZY = {
    "BufferLayout": "plait.jit.layout",
    "TensorLayout": "plait.jit.layout",
    "compile": "plait.jit.compile",
    "stage": "plait.jit.stage",
}
_LAZY_MODULES = ("jit", "nn", "pipelines")

if _TYPE_CHECKING:
    from plait.jit.compile import compile  # noqa: A004
    from plait.jit.layout import BufferLayout, TensorLayout
    from plait.jit.stage import stage


def __getattr__(name: str) -> _Any:
    """What needs the compiler is imported when it is first asked for."""
    if name in _LAZY:
        value = getattr(_importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in _LAZY_MODULES:
        return _importlib.import_module(f"plait.{name}")
    raise AttributeError(f"plait has no {name!r}; see plait.__all__ for what it has.")


class _Deferred:
    """Brings the JIT in at the first record that runs, so that `import plait` does not pay for LLVM."""

    def execute(self, nodes: list[_Node], outputs: list[_Node]) -> None:
        from plait.jit.runner import runner

        _install_executor(runner)
        runner.execute(nodes, outputs)


_install_executor(_Deferred())

__version__ = "0.1.0"
pi, e, inf, nan, newaxis = _math.pi, _math.e, _math.inf, _math.nan, None

__all__ = [
    "BufferLayout",
    "Device",
    "TensorLayout",
    "compile",
    "stage",
    "Tensor",
    "arange",
    "asarray",
    "empty",
    "evaluate",
    "eye",
    "from_numpy",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "profiler",
    "random",
    "tree_utils",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
    "pi",
    "e",
    "inf",
    "nan",
    "newaxis",
    "DType",
    "bfloat16",
    "bool_",
    "complex128",
    "complex64",
    "float16",
    "float32",
    "float4_e2m1fn",
    "float64",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_to",
    "ceil",
    "clip",
    "concat",
    "copysign",
    "cos",
    "cosh",
    "cumsum",
    "divide",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "flip",
    "floor",
    "floor_divide",
    "gelu",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "kv_store",
    "layer_norm",
    "less",
    "less_equal",
    "linear",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "negative",
    "not_equal",
    "pad",
    "paged_attention",
    "permute_dims",
    "pow",
    "prod",
    "qmatmul",
    "qmatmul_int8",
    "qtake",
    "quantize_rows",
    "reciprocal",
    "relu",
    "remainder",
    "reshape",
    "result_type",
    "rms_norm",
    "rope",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "tan",
    "tanh",
    "transpose",
    "trunc",
    "var",
    "where",
]
