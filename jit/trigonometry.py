"""sin, cos and tan of float64 vectors, right for every argument however large.

Arguments below 2^20 are reduced with pi/2 in three parts. Larger ones, and those that come out close to a multiple of
pi/2, go lane by lane through 192 bits of 2/pi. Source: Payne and Hanek, Radian reduction for trigonometric functions,
SIGNUM Newsletter 18 (1983).
"""

from __future__ import annotations

from plait.jit.builder import Builder, Value, vector
from plait.jit.math64 import INF, NAN, poly

_MAGIC = 6755399441055744.0  # 1.5 * 2^52
# pi/2 in parts of 33, 33 and 53 bits; multiples of the first two by n < 2^20 are exact
_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
# (sin r - r) / r^3 and (cos r - 1 + r^2 / 2) / r^4 in r^2, |r| <= pi / 4
_SIN = (
    -0.16666666666666666, 0.008333333333333331, -0.00019841269841264821, 2.7557319219150783e-06,
    -2.5052106167335705e-08, 1.6058521349954986e-10, -7.586094789672621e-13,
)  # fmt: skip
_COS = (
    0.041666666666666664, -0.0013888888888888887, 2.480158730158451e-05, -2.755731922129809e-07,
    2.0876755754879594e-09, -1.1470455178216906e-11, 4.745537017319258e-14,
)  # fmt: skip
# The binary digits of 2/pi after 128 zeros, 64 to a word.
_TWO_OVER_PI = (
    0, 0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0,
    0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4,
    0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB, 0xF0CFBC209AF4361D,
)  # fmt: skip


def _exact_reduction(b: Builder) -> str:
    """Define `i64 f(double x, ptr r)`: the number of quarter turns, and the rest in radians, of a finite x."""
    name = b.unique("reduce_angle")
    table = b.global_table("i64", _TWO_OVER_PI, b.unique("two_over_pi"))
    params = (("double", "x"), ("ptr", "rest"))
    with b.function(name, params, "noinline", result="i64", internal=True) as (x, rest):
        bits = b.bitcast(x, "i64")
        exponent = b.isub(b.band(b.lshr(bits, 52), 0x7FF), 1075)
        mantissa = b.bor(b.band(bits, (1 << 52) - 1), 1 << 52)
        turns, angle = _turns(b, mantissa, b.iadd(exponent, 126), table)
        negative = b.fcmp("olt", x, 0.0)
        b.store(b.select(negative, b.fneg(angle), angle), rest)
        b.ret(b.select(negative, b.ineg(turns), turns))
    return name


def _turns(b: Builder, mantissa: Value, start: Value, table: Value) -> tuple[Value, Value]:
    """mantissa times 2/pi from binary digit `start` on, modulo 4: whole part and the rest times pi/2."""
    word, shift = b.lshr(start, 6), b.band(start, 63)
    digits = [b.load("i64", b.gep("i64", table, b.iadd(word, i))) for i in range(4)]
    high, middle, low = (b.intrinsic("llvm.fshl.i64", "i64", digits[i], digits[i + 1], shift) for i in range(3))
    wide = b.zext(mantissa, "i128")
    product = b.iadd(b.imul(wide, b.zext(middle, "i128")), b.lshr(b.imul(wide, b.zext(low, "i128")), 64))
    product = b.iadd(product, b.shl(b.zext(b.imul(mantissa, high), "i128"), 64))
    whole = b.itrunc(b.lshr(product, 126), "i64")
    part = b.shl(product, 2)  # signed: rounds the whole part to nearest
    down = b.icmp("slt", part, 0)
    size = b.select(down, b.isub(b.constant("i128", 0), part), part)
    top = b.fmul(b.uitofp(b.itrunc(b.lshr(size, 64), "i64"), "double"), 2.0**-64)
    turn = b.fadd(top, b.fmul(b.uitofp(b.itrunc(size, "i64"), "double"), 2.0**-128))
    angle = b.fmul(turn, 1.5707963267948966)
    return b.iadd(whole, b.zext(down, "i64")), b.select(down, b.fneg(angle), angle)


def _reduced(b: Builder, x: Value) -> tuple[Value, Value]:
    """Quarter turns (int64, right in the last 2 bits) and the rest, for every finite lane."""
    shifted = b.fma(x, 0.6366197723675814, _MAGIC)
    n = b.fsub(shifted, _MAGIC)
    rest = x
    for part in _PARTS:
        rest = b.fma(n, -part, rest)
    size = b.fabs(x)
    far = b.fcmp("oge", size, 2.0**20)
    close = b.band(b.fcmp("olt", b.fabs(rest), 2.0**-20), b.fcmp("one", n, 0.0))
    hard = b.band(b.bor(far, close), b.fcmp("olt", size, INF))
    turns = b.bitcast(shifted, "i64")
    name = b.helper("reduce_angle", lambda: _exact_reduction(b))
    found = b.if_(b.any_lane(hard), lambda: _by_lane(b, name, x, hard, turns, rest), lambda: [turns, rest])
    return found[0], found[1]


def _by_lane(b: Builder, name: str, x: Value, hard: Value, turns: Value, rest: Value) -> list[Value]:
    lanes = x.lanes
    angles, counts, rests = (b.alloca(element, lanes) for element in ("double", "i64", "double"))
    b.store(b.select(hard, x, b.constant(x.type, 2.0**20)), angles)

    def one(lane: Value) -> None:
        angle = b.load("double", b.gep("double", angles, lane))
        count = b.call("i64", name, angle, b.gep("double", rests, lane))
        assert count is not None
        b.store(count, b.gep("i64", counts, lane))

    b.loop(0, lanes, 1, one)
    exact_turns, exact_rest = b.load(vector("i64", lanes), counts), b.load(vector("double", lanes), rests)
    return [b.select(hard, exact_turns, turns), b.select(hard, exact_rest, rest)]


def _sin_cos(b: Builder, rest: Value) -> tuple[Value, Value]:
    z = b.fmul(rest, rest)
    sine = b.fma(b.fmul(rest, z), poly(b, z, _SIN), rest)
    half = b.fmul(z, 0.5)
    w = b.fsub(1.0, half)
    lost = b.fsub(b.fsub(1.0, w), half)
    return sine, b.fadd(w, b.fma(b.fmul(z, z), poly(b, z, _COS), lost))


def _wave(b: Builder, x: Value, ahead: int) -> Value:
    turns, rest = _reduced(b, x)
    sine, cosine = _sin_cos(b, rest)
    quarter = b.iadd(turns, ahead)
    y = b.select(b.icmp("ne", b.band(quarter, 1), 0), cosine, sine)
    y = b.select(b.icmp("ne", b.band(quarter, 2), 0), b.fneg(y), y)
    return b.select(b.fcmp("olt", b.fabs(x), INF), y, b.constant(x.type, NAN))


def sin(b: Builder, x: Value) -> Value:
    return b.select(b.fcmp("oeq", x, 0.0), x, _wave(b, x, 0))


def cos(b: Builder, x: Value) -> Value:
    return _wave(b, x, 1)


def tan(b: Builder, x: Value) -> Value:
    turns, rest = _reduced(b, x)
    sine, cosine = _sin_cos(b, rest)
    odd = b.icmp("ne", b.band(turns, 1), 0)
    y = b.fdiv(b.select(odd, b.fneg(cosine), sine), b.select(odd, sine, cosine))
    y = b.select(b.fcmp("olt", b.fabs(x), INF), y, b.constant(x.type, NAN))
    return b.select(b.fcmp("oeq", x, 0.0), x, y)
