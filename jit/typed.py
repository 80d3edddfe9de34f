"""Registers with plait dtypes: from memory, to memory, constants, conversions. Knows no tensor and no loop.

A `Typed` is a register with its dtype name. float16 and bfloat16 live in registers as the float32 of the same value and
are rounded back after every op, so that fusion never changes bits. bool is i1 in registers, one byte in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from plait.jit import math
from plait.jit.builder import REGISTER_TYPES, Builder, Value, vector
from plait.jit.math import Unsupported

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_HALVES = ("float16", "bfloat16")


class Typed(NamedTuple):
    """A register and the plait dtype of what it holds."""

    value: Value
    dtype: str


Term = Typed | int | float | bool


def register_element(dtype: str) -> str:
    """The scalar LLVM type a dtype computes in.

    Raises: Unsupported for complex and storage dtypes.
    """
    if dtype not in REGISTER_TYPES:
        raise Unsupported(f"dtype {dtype}")
    return "float" if dtype in _HALVES else REGISTER_TYPES[dtype]


def memory_element(dtype: str) -> str:
    """The scalar LLVM type a dtype has in memory.

    Raises: Unsupported for complex and storage dtypes.
    """
    return "i8" if dtype == "bool" else "i16" if dtype == "bfloat16" else _element_or_half(dtype)


def _element_or_half(dtype: str) -> str:
    return "half" if dtype == "float16" else register_element(dtype)


class TypedValues:
    """Loads, stores and converts through a Builder, `lanes` elements at a time.

    Raises: Unsupported from any method that has no code for the dtype it is given.
    """

    def __init__(self, builder: Builder, lanes: int) -> None:
        self.b = builder
        self.lanes = lanes

    # ---- values in and out ------------------------------------------------------------------------------------------

    def load(self, dtype: str, pointer: Value, mask: Value | None = None) -> Typed:
        """Consecutive elements from memory."""
        return self.from_memory(dtype, self.b.vload(pointer, vector(memory_element(dtype), self.lanes), mask))

    def load_splat(self, dtype: str, pointer: Value) -> Typed:
        """One element from memory, in every lane."""
        return self.from_memory(dtype, self.b.splat(self.b.load(memory_element(dtype), pointer), self.lanes))

    def gather(self, dtype: str, pointers: Value, mask: Value | None = None) -> Typed:
        """One element from each address."""
        return self.from_memory(dtype, self.b.gather(memory_element(dtype), pointers, mask))

    def store(self, x: Typed, pointer: Value, mask: Value | None = None) -> None:
        """Consecutive elements to memory."""
        self.b.vstore(self.to_memory(x), pointer, mask)

    def scatter(self, x: Typed, pointers: Value, mask: Value | None = None) -> None:
        self.b.scatter(self.to_memory(x), pointers, mask)

    def from_memory(self, dtype: str, value: Value) -> Typed:
        """A loaded value in the form that ops take."""
        if dtype == "bool":
            value = self.b.icmp("ne", value, 0)
        elif dtype == "float16":
            value = self.b.fpext(value, "float")
        elif dtype == "bfloat16":
            value = self.b.bf16_to_f32(value)
        return Typed(value, dtype)

    def to_memory(self, x: Typed) -> Value:
        """The inverse of from_memory, exact: every op has rounded already."""
        if x.dtype == "bool":
            return self.b.zext(x.value, "i8")
        if x.dtype == "float16":
            return self.b.fptrunc(x.value, "half")
        return self.b.f32_to_bf16(x.value) if x.dtype == "bfloat16" else x.value

    def from_slot(self, dtype: str, args: Value, number: int) -> Typed:
        """A scalar argument of a launch, in every lane: float slots hold the bits of a double, others an int64."""
        element = register_element(dtype)
        if dtype in FLOATS:
            wide = Typed(self.b.slot(args, number, "double"), "float64")
            scalar = self._cast(wide, dtype).value
        else:
            wide_int = self.b.slot(args, number, "i64")
            scalar = self.b.icmp("ne", wide_int, 0) if dtype == "bool" else self.b.resize(wide_int, element)
        return Typed(self.b.splat(scalar, self.lanes), dtype)

    def const(self, dtype: Any, number: Any) -> Typed:
        """A constant of a dtype (a name or a DType), rounded to it."""
        name = _dtype_name(dtype)
        if name in _HALVES:
            number = float(math.round_number(name, number))
        return Typed(self.b.constant(vector(register_element(name), self.lanes), number), name)

    # ---- shapes of operations ---------------------------------------------------------------------------------------

    def _terms(self, *terms: Term) -> list[Typed]:
        """Operands of one dtype; a Python number takes the dtype of the first Typed."""
        dtype = next(term.dtype for term in terms if isinstance(term, Typed))
        typed = [term if isinstance(term, Typed) else self.const(dtype, term) for term in terms]
        assert all(term.dtype == dtype for term in typed), f"operands have dtypes {[term.dtype for term in typed]}"
        return typed

    def _rounded(self, dtype: str, value: Value) -> Typed:
        if dtype == "float16":
            value = self.b.fpext(self.b.fptrunc(value, "half"), "float")
        elif dtype == "bfloat16":
            value = self.b.bf16_to_f32(self.b.f32_to_bf16(value))
        return Typed(value, dtype)

    def _arithmetic(
        self, name: str, of_float: Callable[..., Value], of_int: Callable[..., Value], *terms: Term
    ) -> Typed:
        typed = self._terms(*terms)
        dtype = typed[0].dtype
        values = [term.value for term in typed]
        if dtype in FLOATS:
            return self._rounded(dtype, of_float(*values))
        if dtype == "bool":
            raise Unsupported(f"{name} of bool")
        return Typed(of_int(*values), dtype)

    def _float_only(self, name: str, x: Typed) -> Value:
        if x.dtype not in FLOATS:
            raise Unsupported(f"{name} of {x.dtype}")
        return x.value

    def _function(self, name: str, *terms: Term) -> Typed:
        typed = self._terms(*terms)
        dtype = typed[0].dtype
        if dtype not in FLOATS:
            raise Unsupported(f"{name} of {dtype}")
        return self._rounded(dtype, math.apply(name, self.b, *(term.value for term in typed)))

    # ---- conversion -------------------------------------------------------------------------------------------------

    def cast(self, x: Typed, dtype: Any) -> Typed:
        """To another dtype (a name or a DType). Float to integer truncates, saturates, and gives 0 for NaN."""
        name = _dtype_name(dtype)
        register_element(name)
        return x if name == x.dtype else self._cast(x, name)

    def _cast(self, x: Typed, dtype: str) -> Typed:
        if x.dtype in FLOATS:
            return self._cast_float(x, dtype)
        value, element, b = x.value, register_element(dtype), self.b
        if dtype in FLOATS:
            convert = b.sitofp if x.dtype in SIGNED else b.uitofp
            return self._rounded(dtype, convert(value, element))
        if dtype == "bool":
            return Typed(b.icmp("ne", value, 0), dtype)
        return Typed(b.resize(value, element, x.dtype in SIGNED), dtype)

    def _cast_float(self, x: Typed, dtype: str) -> Typed:
        b, value, element = self.b, x.value, register_element(dtype)
        if dtype == "bool":
            return Typed(b.fcmp("une", value, 0.0), dtype)
        if dtype in SIGNED:
            return Typed(b.fptosi_sat(value, element), dtype)
        if dtype in UNSIGNED:
            return Typed(b.fptoui_sat(value, element), dtype)
        if dtype == "float16":  # rounded once, also from double
            return Typed(b.fpext(b.fptrunc(value, "half"), "float"), dtype)
        resized = b.fpext(value, element) if element == "double" else b.fptrunc(value, element)
        return self._rounded(dtype, resized)


def _dtype_name(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) else str(dtype.name)
