"""The builder that every emitter uses: lanes, memory and loops over both, on top of arithmetic and control flow.

It knows the target, no dtype rules and no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plait.jit.arithmetic import Arithmetic
from plait.jit.ir import REGISTER_TYPES, Index, Operand, Value, literal, split_type, type_bits, type_suffix, vector

__all__ = ["REGISTER_TYPES", "Builder", "Index", "Operand", "Value", "literal", "split_type", "type_bits", "vector"]


class Builder(Arithmetic):
    """Writes one module. `width` is the target's float32 lanes; callers decide the lanes of each vector."""

    # ---- lanes ------------------------------------------------------------------------------------------------------

    def splat(self, x: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1:
            return x
        type = vector(x.type, lanes)
        first = self._emit(type, f"insertelement {type} poison, {x}, i64 0")
        return self._emit(type, f"shufflevector {first}, {type} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, x: Value, lane: Index) -> Value:
        if x.lanes == 1:
            return x
        return self._emit(x.element, f"extractelement {x}, {self.index(lane)}")

    def insert(self, x: Value, scalar: Value, lane: Index) -> Value:
        if x.lanes == 1:
            return scalar
        return self._emit(x.type, f"insertelement {x}, {scalar}, {self.index(lane)}")

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """Lanes of a and b (numbered on from a's) in the given order; one lane gives a scalar."""
        if len(lanes) == 1:
            source = a if lanes[0] < a.lanes else b
            assert source is not None
            return self.extract(source, lanes[0] % a.lanes)
        second = f"{b}" if b is not None else f"{a.type} poison"
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        return self._emit(vector(a.element, len(lanes)), f"shufflevector {a}, {second}, <{len(lanes)} x i32> <{order}>")

    def slice(self, x: Value, start: int, count: int) -> Value:
        """`count` neighbouring lanes."""
        return x if count == x.lanes else self.shuffle(x, None, range(start, start + count))

    def concat(self, values: Sequence[Value]) -> Value:
        """One vector of all lanes, in order."""
        items = list(values)
        while len(items) > 1:
            items = [self._join(items[i], items[i + 1]) for i in range(0, len(items), 2)]
        return items[0]

    def _join(self, a: Value, b: Value) -> Value:
        if a.lanes > 1:
            return self.shuffle(a, b, range(2 * a.lanes))
        type = vector(a.type, 2)
        first = self._emit(type, f"insertelement {type} poison, {a}, i64 0")
        return self.insert(first, b, 1)

    def mask(self, count: Index, lanes: int) -> Value:
        """True in the first `count` (int64) lanes."""
        number = self.index(count)
        if lanes == 1:
            return self.icmp("sgt", number, 0)
        bounded = self.itrunc(self.imin(number, lanes), "i32")
        return self.icmp("slt", self.iota(lanes, "i32"), self.splat(bounded, lanes))

    def any_lane(self, condition: Value) -> Value:
        """A scalar i1: whether it holds in some lane."""
        if condition.lanes == 1:
            return condition
        return self.intrinsic(f"llvm.vector.reduce.or.{type_suffix(condition.type)}", "i1", condition)

    def fold(self, combine: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
        """One scalar from all lanes of the values, in a fixed order.

        The lanes count on through the values and are combined half with half: lane i with lane i + n/2, until one is
        left. So 16 logical lanes give the same bits as one vector of 16, two of 8, four of 4 or 16 scalars.
        """
        items = list(values)
        while len(items) > 1:
            half = len(items) // 2
            items = [combine(items[i], items[i + half]) for i in range(half)]
        (value,) = items
        while value.lanes > 1:
            half = value.lanes // 2
            value = combine(self.slice(value, 0, half), self.slice(value, half, half))
        return value

    def reduce(self, op: str, values: Sequence[Value]) -> Value:
        """`fold` with an operation named as the method: fadd fmul fmax fmin iadd imul imin imax umin umax band bor."""
        return self.fold(getattr(self, op), values)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def gep(self, element: str, pointer: Value, index: Index | Value) -> Value:
        """The address of element `index`; a vector of indices gives a vector of addresses."""
        position = self.index(index)
        return self._emit(vector("ptr", position.lanes), f"getelementptr {element}, {pointer}, {position}")

    def alloca(self, type: str, count: int = 1, align: int = 64) -> Value:
        """Stack memory, placed at the function's start whatever block asks for it."""
        name = self._fresh()
        self._open[-1].entry.append(f"  {name} = alloca {type}, i64 {count}, align {align}")
        return Value(name, "ptr")

    def _align(self, type: str, align: int | None) -> int:
        return align if align is not None else max(1, type_bits(split_type(type)[1]) // 8)

    def load(self, type: str, pointer: Value, align: int | None = None) -> Value:
        """Load a scalar or vector; aligned to its element unless told otherwise."""
        return self._emit(type, f"load {type}, {pointer}, align {self._align(type, align)}")

    def store(self, value: Value, pointer: Value, align: int | None = None) -> None:
        self.raw(f"store {value}, {pointer}, align {self._align(value.type, align)}")

    def vload(self, pointer: Value, type: str, mask: Value | None = None, align: int | None = None) -> Value:
        """Load consecutive elements; lanes outside the mask are 0 and not touched."""
        if mask is None:
            return self.load(type, pointer, align)
        zero = self.constant(type, 0)
        if mask.lanes == 1:
            return self.if_(mask, lambda: [self.load(type, pointer, align)], lambda: [zero])[0]
        alignment = Value(str(self._align(type, align)), "i32")
        name = f"llvm.masked.load.{type_suffix(type)}.p0"
        self.declare(type, name, ["ptr", "i32", mask.type, type])
        return self._emit(type, f"call {type} @{name}({pointer}, {alignment}, {mask}, {zero})")

    def vstore(self, value: Value, pointer: Value, mask: Value | None = None, align: int | None = None) -> None:
        """Store consecutive elements; memory outside the mask is not touched."""
        if mask is None:
            return self.store(value, pointer, align)
        if mask.lanes == 1:
            self.if_(mask, lambda: self.store(value, pointer, align))
            return None
        alignment = Value(str(self._align(value.type, align)), "i32")
        name = f"llvm.masked.store.{type_suffix(value.type)}.p0"
        self.declare("void", name, [value.type, "ptr", "i32", mask.type])
        self.raw(f"call void @{name}({value}, {pointer}, {alignment}, {mask})")

    def gather(self, element: str, pointers: Value, mask: Value | None = None) -> Value:
        """Load one element per address; lanes outside the mask are 0 and not touched."""
        lanes = pointers.lanes
        type = vector(element, lanes)
        if lanes == 1:
            return self.vload(pointers, type, mask)
        chosen = mask or self.constant(vector("i1", lanes), True)
        alignment = Value(str(self._align(type, None)), "i32")
        name = f"llvm.masked.gather.{type_suffix(type)}.{type_suffix(pointers.type)}"
        self.declare(type, name, [pointers.type, "i32", chosen.type, type])
        zero = self.constant(type, 0)
        return self._emit(type, f"call {type} @{name}({pointers}, {alignment}, {chosen}, {zero})")

    def scatter(self, value: Value, pointers: Value, mask: Value | None = None) -> None:
        """Store one element per address; of equal addresses the last lane wins."""
        if pointers.lanes == 1:
            return self.vstore(value, pointers, mask)
        chosen = mask or self.constant(vector("i1", pointers.lanes), True)
        alignment = Value(str(self._align(value.type, None)), "i32")
        name = f"llvm.masked.scatter.{type_suffix(value.type)}.{type_suffix(pointers.type)}"
        self.declare("void", name, [value.type, pointers.type, "i32", chosen.type])
        self.raw(f"call void @{name}({value}, {pointers}, {alignment}, {chosen})")
        return None

    def prefetch(self, pointer: Value) -> None:
        """Ask for a cache line that will be read."""
        flags = [Value("0", "i32"), Value("3", "i32"), Value("1", "i32")]
        self.intrinsic("llvm.prefetch.p0", "void", pointer, *flags)

    def slot(self, args: Value, number: int, type: str = "ptr") -> Value:
        """Argument `number` of a kernel's block: an 8-byte slot holding a ptr, i64 or double."""
        return self.load(type, self.gep("i64", args, number), 8)

    # ---- byte dot products ------------------------------------------------------------------------------------------

    def dot4(self, total: Value, unsigned: Value, signed: Value) -> Value:
        """total + sum of 4 products per lane: total <n x i32>, unsigned and signed <4n x i8> (u8 and i8).

        Exact for 7-bit and 8-bit unsigned codes alike.
        """
        lanes = total.lanes
        if self.target.has_vnni and lanes == 16:
            u, s = self.bitcast(unsigned, "i32"), self.bitcast(signed, "i32")
            return self.intrinsic("llvm.x86.avx512.vpdpbusd.512", total.type, total, u, s)
        product = self.imul(self.sext(self.zext(unsigned, "i16"), "i32"), self.sext(signed, "i32"))
        for start in range(4):
            total = self.iadd(total, self.shuffle(product, None, range(start, 4 * lanes, 4)))
        return total

    # ---- loops over lanes --------------------------------------------------------------------------------------------

    def vloop(
        self,
        lo: Index,
        hi: Index,
        lanes: int,
        body: Callable[..., Any],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """body(i, mask, *carried) over lo..hi in steps of `lanes`: mask None, then at most once with a mask."""
        start, stop = self.index(lo), self.index(hi)
        whole = self.band(self.isub(stop, start), -lanes) if lanes > 1 else self.isub(stop, start)
        edge = self.iadd(start, whole)
        values = self.loop(start, edge, lanes, lambda i, *rest: body(i, None, *rest), carried)
        if lanes == 1:
            return values

        def tail() -> Any:
            return body(edge, self.mask(self.isub(stop, edge), lanes), *values)

        return self.if_(self.icmp("slt", edge, stop), tail, lambda: list(values))
