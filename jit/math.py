"""placeholder"""
from __future__ import annotations
from typing import Any
import numpy as np, ml_dtypes
from plait.jit.builder import Builder, Value
class Unsupported(Exception):
    """Raised before any effect by an expression that has no code for what it was asked; `reason` says what."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
def round_number(name: str, number: Any) -> Any:
    return np.float16(number) if name == "float16" else ml_dtypes.bfloat16(number)
def apply(name: str, b: Builder, *x: Value) -> Value:
    raise Unsupported(name)
def float_divmod(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    raise Unsupported("x")
