"""Arithmetic on typed LLVM values: integers, floats, comparisons, conversions. No operation carries fast-math flags.

An operation takes its type from its operands, so each works on scalars and vectors alike.
"""

from __future__ import annotations

from plait.jit.ir import Operand, Value, Writer, type_bits, type_suffix, vector


class Arithmetic(Writer):
    """What one value is made of others by. Python numbers are constants of the other operand's type."""

    # ---- integers and bits (any integer type, vectors too) ----------------------------------------------------------

    def iadd(self, a: Operand, b: Operand) -> Value:
        return self._binary("add", a, b)

    def isub(self, a: Operand, b: Operand) -> Value:
        return self._binary("sub", a, b)

    def imul(self, a: Operand, b: Operand) -> Value:
        return self._binary("mul", a, b)

    def idiv(self, a: Operand, b: Operand) -> Value:
        """Signed, towards zero; undefined for 0 and for the overflow."""
        return self._binary("sdiv", a, b)

    def irem(self, a: Operand, b: Operand) -> Value:
        """Signed, with the sign of the dividend; undefined for 0 and for the overflow."""
        return self._binary("srem", a, b)

    def udiv(self, a: Operand, b: Operand) -> Value:
        return self._binary("udiv", a, b)

    def urem(self, a: Operand, b: Operand) -> Value:
        return self._binary("urem", a, b)

    def _extreme(self, name: str, a: Operand, b: Operand) -> Value:
        x, y = self._pair(a, b)
        return self.intrinsic(f"llvm.{name}.{type_suffix(x.type)}", x.type, x, y)

    def imin(self, a: Operand, b: Operand) -> Value:
        return self._extreme("smin", a, b)

    def imax(self, a: Operand, b: Operand) -> Value:
        return self._extreme("smax", a, b)

    def umin(self, a: Operand, b: Operand) -> Value:
        return self._extreme("umin", a, b)

    def umax(self, a: Operand, b: Operand) -> Value:
        return self._extreme("umax", a, b)

    def ineg(self, x: Value) -> Value:
        return self.isub(self.constant(x.type, 0), x)

    def band(self, a: Operand, b: Operand) -> Value:
        return self._binary("and", a, b)

    def bor(self, a: Operand, b: Operand) -> Value:
        return self._binary("or", a, b)

    def bxor(self, a: Operand, b: Operand) -> Value:
        return self._binary("xor", a, b)

    def bnot(self, x: Value) -> Value:
        return self.bxor(x, self.constant(x.type, -1))

    def shl(self, a: Operand, b: Operand) -> Value:
        """Undefined for a count of the width or more, as are lshr and ashr."""
        return self._binary("shl", a, b)

    def lshr(self, a: Operand, b: Operand) -> Value:
        return self._binary("lshr", a, b)

    def ashr(self, a: Operand, b: Operand) -> Value:
        return self._binary("ashr", a, b)

    # ---- floats -----------------------------------------------------------------------------------------------------

    def fadd(self, a: Operand, b: Operand) -> Value:
        return self._binary("fadd", a, b)

    def fsub(self, a: Operand, b: Operand) -> Value:
        return self._binary("fsub", a, b)

    def fmul(self, a: Operand, b: Operand) -> Value:
        return self._binary("fmul", a, b)

    def fdiv(self, a: Operand, b: Operand) -> Value:
        return self._binary("fdiv", a, b)

    def fneg(self, x: Value) -> Value:
        return self._emit(x.type, f"fneg {x}")

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """a * b + c, rounded once where the target has the instruction, twice where it has not (no call to libm)."""
        like = next(operand for operand in (a, b, c) if isinstance(operand, Value))
        x, y, z = (v if isinstance(v, Value) else self.constant(like.type, v) for v in (a, b, c))
        assert x.type == y.type == z.type, f"fma of {x}, {y}, {z}"
        if not self.target.has_fma:
            return self.fadd(self.fmul(x, y), z)
        return self.intrinsic(f"llvm.fma.{type_suffix(x.type)}", x.type, x, y, z)

    def fmax(self, a: Operand, b: Operand) -> Value:
        """NumPy's maximum: NaN if either is NaN; the first of two equal zeros."""
        return self._float_extreme("ogt", a, b)

    def fmin(self, a: Operand, b: Operand) -> Value:
        """NumPy's minimum: NaN if either is NaN; the first of two equal zeros."""
        return self._float_extreme("olt", a, b)

    def _float_extreme(self, predicate: str, a: Operand, b: Operand) -> Value:
        x, y = self._pair(a, b)
        best = self.select(self.fcmp(predicate, y, x), y, x)
        return self.select(self.fcmp("uno", y, y), y, best)

    def sqrt(self, x: Value) -> Value:
        return self._unary("sqrt", x)

    def fabs(self, x: Value) -> Value:
        return self._unary("fabs", x)

    def floor(self, x: Value) -> Value:
        return self._round("floor", x)

    def ceil(self, x: Value) -> Value:
        return self._round("ceil", x)

    def trunc(self, x: Value) -> Value:
        return self._round("trunc", x)

    def round_even(self, x: Value) -> Value:
        return self._round("roundeven", x)

    def _round(self, name: str, x: Value) -> Value:
        if self.target.has_round:
            return self._unary(name, x)
        magic = float(2**23 if x.element == "float" else 2**52)  # from here on every float is an integer
        size = self.fabs(x)
        near = self.fsub(self.fadd(size, magic), magic)
        if name != "roundeven":
            low = self.select(self.fcmp("ogt", near, size), self.fsub(near, 1.0), near)
            up = self.select(self.fcmp("olt", low, size), self.fadd(low, 1.0), low)
            away = self.fcmp("ogt", x, 0.0) if name == "ceil" else self.fcmp("olt", x, 0.0)
            near = low if name == "trunc" else self.select(away, up, low)
        small = self.fcmp("olt", size, magic)
        return self.select(small, self.copysign(near, x), x)

    def copysign(self, size: Operand, sign: Operand) -> Value:
        x, y = self._pair(size, sign)
        return self.intrinsic(f"llvm.copysign.{type_suffix(x.type)}", x.type, x, y)

    def ldexp(self, x: Value, exponent: Value) -> Value:
        """x * 2^exponent, rounded once, for x near 1 and |exponent| up to twice the type's range."""
        if self.target.has_ldexp and x.element == "float":
            return self.intrinsic(f"llvm.ldexp.{type_suffix(x.type)}.{type_suffix(exponent.type)}", x.type, x, exponent)
        half = self.ashr(exponent, 1)
        for part in (half, self.isub(exponent, half)):
            x = self.fmul(x, self.power_of_two(part, x.element))
        return x

    def power_of_two(self, exponent: Value, element: str) -> Value:
        """2^exponent for exponents of normal numbers; `exponent` is i32 for float and i64 for double."""
        mantissa, bias = (23, 127) if element == "float" else (52, 1023)
        return self.bitcast(self.shl(self.iadd(exponent, bias), mantissa), element)

    # ---- comparisons and choice -------------------------------------------------------------------------------------

    def icmp(self, predicate: str, a: Operand, b: Operand) -> Value:
        """predicate: eq ne slt sle sgt sge ult ule ugt uge."""
        x, y = self._pair(a, b)
        return self._emit(vector("i1", x.lanes), f"icmp {predicate} {x}, {y.name}")

    def fcmp(self, predicate: str, a: Operand, b: Operand) -> Value:
        """predicate: oeq one olt ole ogt oge ord, une uno ult ule ugt uge."""
        x, y = self._pair(a, b)
        return self._emit(vector("i1", x.lanes), f"fcmp {predicate} {x}, {y.name}")

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """a where the condition holds; a scalar condition chooses a whole vector."""
        x, y = self._pair(a, b)
        return self._emit(x.type, f"select {condition}, {x}, {y}")

    # ---- conversions; `element` is the new scalar type, lanes stay --------------------------------------------------

    def _convert(self, op: str, x: Value, element: str) -> Value:
        type = vector(element, x.lanes)
        return x if type == x.type else self._emit(type, f"{op} {x} to {type}")

    def fpext(self, x: Value, element: str) -> Value:
        if x.element == "half" and not self.target.has_half:
            return self.fpext(self._half_to_float(x), element)
        return self._convert("fpext", x, element)

    def fptrunc(self, x: Value, element: str) -> Value:
        """Round to nearest even, once also from double to half."""
        if element == "half" and x.element == "double":
            return self.fptrunc(self.double_to_odd_float(x), "half")
        if element == "half" and not self.target.has_half:
            return self._float_to_half(x)
        return self._convert("fptrunc", x, element)

    def sitofp(self, x: Value, element: str) -> Value:
        return self._convert("sitofp", x, element)

    def uitofp(self, x: Value, element: str) -> Value:
        return self._convert("uitofp", x, element)

    def fptosi_sat(self, x: Value, element: str) -> Value:
        """Towards zero, saturating; NaN gives 0."""
        type = vector(element, x.lanes)
        return self.intrinsic(f"llvm.fptosi.sat.{type_suffix(type)}.{type_suffix(x.type)}", type, x)

    def fptoui_sat(self, x: Value, element: str) -> Value:
        """Towards zero, saturating; NaN gives 0."""
        type = vector(element, x.lanes)
        return self.intrinsic(f"llvm.fptoui.sat.{type_suffix(type)}.{type_suffix(x.type)}", type, x)

    def zext(self, x: Value, element: str) -> Value:
        return self._convert("zext", x, element)

    def sext(self, x: Value, element: str) -> Value:
        return self._convert("sext", x, element)

    def itrunc(self, x: Value, element: str) -> Value:
        return self._convert("trunc", x, element)

    def resize(self, x: Value, element: str, signed: bool = True) -> Value:
        """An integer of another width: extended by its sign or by zeros, or cut."""
        if type_bits(element) <= type_bits(x.element):
            return self.itrunc(x, element)
        return self.sext(x, element) if signed else self.zext(x, element)

    def bitcast(self, x: Value, element: str) -> Value:
        """The same bits as elements of another type; the number of lanes follows from the sizes."""
        lanes = x.lanes * type_bits(x.element) // type_bits(element)
        type = vector(element, lanes)
        return x if type == x.type else self._emit(type, f"bitcast {x} to {type}")

    def ptr_to_int(self, x: Value) -> Value:
        return self._convert("ptrtoint", x, "i64")

    def int_to_ptr(self, x: Value) -> Value:
        return self._convert("inttoptr", x, "ptr")

    def bf16_to_f32(self, x: Value) -> Value:
        """i16 bits of bfloat16 -> float."""
        return self.bitcast(self.shl(self.zext(x, "i32"), 16), "float")

    def f32_to_bf16(self, x: Value) -> Value:
        """float -> i16 bits of bfloat16: nearest even, NaNs quiet."""
        bits = self.bitcast(x, "i32")
        odd = self.band(self.lshr(bits, 16), 1)
        rounded = self.lshr(self.iadd(self.iadd(bits, odd), 0x7FFF), 16)
        quiet = self.bor(self.lshr(bits, 16), 0x40)
        return self.itrunc(self.select(self.fcmp("uno", x, x), quiet, rounded), "i16")

    def double_to_odd_float(self, x: Value) -> Value:
        """double -> float rounded to odd, so that a further rounding to 16 bits is right."""
        near = self._convert("fptrunc", x, "float")
        back = self.fpext(near, "double")
        bits = self.bitcast(near, "i32")
        away = self.zext(self.fcmp("ogt", self.fabs(back), self.fabs(x)), "i32")
        inexact = self.zext(self.fcmp("one", back, x), "i32")
        return self.bitcast(self.bor(self.isub(bits, away), inexact), "float")

    def _half_to_float(self, x: Value) -> Value:
        bits = self.zext(self.bitcast(x, "i16"), "i32")
        size = self.shl(self.band(bits, 0x7FFF), 13)
        scaled = self.bitcast(self.fmul(self.bitcast(size, "float"), 2.0**112), "i32")
        special = self.icmp("uge", size, 0x7C00 << 13)
        quiet = self.select(self.icmp("ugt", size, 0x7C00 << 13), self.constant(size.type, 0x400000), 0)
        whole = self.select(special, self.bor(self.bor(size, 0x7F800000), quiet), scaled)
        return self.bitcast(self.bor(whole, self.shl(self.band(bits, 0x8000), 16)), "float")

    def _float_to_half(self, x: Value) -> Value:
        bits = self.bitcast(x, "i32")
        sign = self.band(self.lshr(bits, 16), 0x8000)
        size = self.band(bits, 0x7FFFFFFF)
        odd = self.band(self.lshr(size, 13), 1)
        normal = self.lshr(self.iadd(self.iadd(self.isub(size, 112 << 23), 0xFFF), odd), 13)
        # 0.5 has the spacing of half's subnormals, so the addition rounds to one.
        shifted = self.bitcast(self.fadd(self.bitcast(size, "float"), 0.5), "i32")
        small = self.isub(shifted, 0x3F000000)
        body = self.select(self.icmp("ult", size, 113 << 23), small, normal)
        body = self.select(self.icmp("uge", size, 0x477FF000), self.constant(size.type, 0x7C00), body)
        quiet = self.bor(self.band(self.lshr(size, 13), 0x3FF), 0x7E00)
        body = self.select(self.icmp("ugt", size, 0x7F800000), quiet, body)
        return self.bitcast(self.itrunc(self.bor(body, sign), "i16"), "half")
