"""Elementary functions of float64 vectors as polynomials over the builder. Float32 uses the rarer ones, rounded.

Each takes (builder, x) and gives a value of x's type; no table of libm is called. Errors are at most 4 units in the
last place. Coefficients are interpolations at Chebyshev nodes, computed with 60 digits.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.jit.builder import Builder, Value

INF, NAN = float("inf"), float("nan")
LN2 = 0.6931471805599453
PI, HALF_PI = 3.141592653589793, 1.5707963267948966
LN2_HI, LN2_LO = 0.6931471803691238, 1.9082149292705877e-10  # the high part has 32 bits: its multiples are exact
_MAGIC, _MAGIC_BITS = 6755399441055744.0, 0x4338000000000000  # 1.5 * 2^52: adding it rounds to an integer
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD

# (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2
_EXP = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326141, 0.0013888888888883752, 0.00019841269874800493,
    2.4801587325533363e-05, 2.7557255425746435e-06, 2.7557273661348637e-07, 2.510520637395701e-08,
    2.0914679376583935e-09,
)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2, for arguments between sqrt(1/2) and sqrt(2)
_LOG = (
    0.6666666666666666, 0.4000000000000089, 0.28571428570795937, 0.22222222393451754, 0.18181795454619548,
    0.15386249783145214, 0.13268503447792365, 0.1308944373626974,
)  # fmt: skip
# (atan x - x) / x^3 in x^2, |x| <= tan(pi / 8)
_ATAN = (
    -0.3333333333333333, 0.19999999999999804, -0.14285714285659828, 0.11111111105155447, -0.09090908753500877,
    0.07692296375032143, -0.06666424885738255, 0.05878928997834775, -0.05230454270650244, 0.04551593220626549,
    -0.034570561981427744, 0.016285756855221028,
)  # fmt: skip
# (asin x - x) / x^3 in x^2, |x| <= 1/2
_ASIN = (
    0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247, 0.02237217294214989,
    0.017352392720869973, 0.013971212973552933, 0.011479177415184906, 0.01032281435018578, 0.005457506718640358,
    0.01740087944269402, -0.014851887071247204, 0.028757851367421566,
)  # fmt: skip
# erf x / x - 1 in x^2, |x| <= 0.9
_ERF = (
    0.1283791670955126, -0.37612638903183754, 0.11283791670955096, -0.026866170645123175, 0.005223977625329381,
    -0.000854832701406499, 0.00012055332480022833, -1.4925632358297934e-05, 1.6461671430378674e-06,
    -1.6358334666893945e-07, 1.4720659164474152e-08, -1.1638625850686258e-09, 6.465492363623431e-11,
)  # fmt: skip
# e^(x^2) erfc x in (x - 2) / (x + 2), 0.9 <= x <= 6
_ERFCX = (
    0.25539567631050575, -0.4271858474139584, 0.2416581942424664, -0.0789785810157319, 0.003732892404337058,
    0.006997461739181278, -0.000847143251483513, -0.0009819770256663735, 4.355561927697722e-05, 0.0001743611375849534,
    2.7525195511634126e-05, -2.75793240439899e-05, -1.396547180698929e-05, 1.3865104937865925e-06,
    3.777974496959228e-06, 1.2144085888752959e-06, -5.246272700139359e-07, -5.08952947318653e-07, 6.355550190752026e-08,
)  # fmt: skip


def poly(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
    total = b.constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = b.fma(total, x, coefficient)
    return total


def clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    """Keep x within bounds; NaN stays."""
    x = b.select(b.fcmp("olt", x, low), b.constant(x.type, low), x)
    return b.select(b.fcmp("ogt", x, high), b.constant(x.type, high), x)


def _exp_of(b: Builder, r: Value, shifted: Value) -> Value:
    """e^r times 2^n, where `shifted` is n + 1.5 * 2^52."""
    p = b.fadd(b.fma(b.fmul(r, r), poly(b, r, _EXP), r), 1.0)
    return b.ldexp(p, b.isub(b.bitcast(shifted, "i64"), _MAGIC_BITS))


def exp(b: Builder, x: Value) -> Value:
    x = clamp(b, x, -746.0, 710.0)
    shifted = b.fma(x, 1 / LN2, _MAGIC)
    n = b.fsub(shifted, _MAGIC)
    r = b.fma(n, -LN2_LO, b.fma(n, -LN2_HI, x))
    return _exp_of(b, r, shifted)


def exp2(b: Builder, x: Value) -> Value:
    x = clamp(b, x, -1076.0, 1025.0)
    shifted = b.fadd(x, _MAGIC)
    r = b.fmul(b.fsub(x, b.fsub(shifted, _MAGIC)), LN2)
    return _exp_of(b, r, shifted)


def expm1(b: Builder, x: Value) -> Value:
    near = b.fma(b.fmul(x, x), poly(b, x, _EXP), x)
    far = b.fsub(exp(b, x), 1.0)
    return b.copysign(b.select(b.fcmp("olt", b.fabs(x), 0.34), near, far), x)


def _log_parts(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x = 2^k (1 + f): k, f, and log(1 + f) - f."""
    tiny = b.fcmp("olt", x, 2.0**-1022)
    bits = b.bitcast(b.select(tiny, b.fmul(x, 2.0**54), x), "i64")
    k = b.ashr(b.isub(bits, _SQRT_HALF_BITS), 52)
    f = b.fsub(b.bitcast(b.isub(bits, b.shl(k, 52)), "double"), 1.0)
    exponent = b.sitofp(b.itrunc(k, "i32"), "double")
    exponent = b.select(tiny, b.fsub(exponent, 54.0), exponent)
    s = b.fdiv(f, b.fadd(f, 2.0))
    z = b.fmul(s, s)
    half_square = b.fmul(b.fmul(f, f), 0.5)
    rest = b.fsub(b.fmul(s, b.fma(z, poly(b, z, _LOG), half_square)), half_square)
    return exponent, f, rest


def _log_edges(b: Builder, x: Value, y: Value) -> Value:
    y = b.select(b.fcmp("oeq", x, INF), b.constant(x.type, INF), y)
    y = b.select(b.fcmp("oeq", x, 0.0), b.constant(x.type, -INF), y)
    return b.select(b.fcmp("oge", x, 0.0), y, b.constant(x.type, NAN))


def log(b: Builder, x: Value) -> Value:
    k, f, rest = _log_parts(b, x)
    return _log_edges(b, x, b.fma(k, LN2_HI, b.fadd(f, b.fma(k, LN2_LO, rest))))


def log2(b: Builder, x: Value) -> Value:
    """Exact for powers of two."""
    k, f, rest = _log_parts(b, x)
    # 1 / ln 2 = 1.4426... in two parts, so that the error of the product does not show near x = 1.
    high = b.fadd(f, rest)
    low = b.fadd(b.fsub(f, high), rest)
    scaled = b.fma(high, 2.0355273740931033e-17, b.fmul(low, 1 / LN2))
    return _log_edges(b, x, b.fadd(b.fma(high, 1 / LN2, scaled), k))


def log10(b: Builder, x: Value) -> Value:
    k, f, rest = _log_parts(b, x)
    high = b.fadd(f, rest)
    low = b.fadd(b.fsub(f, high), rest)
    small = b.fma(high, 1.098319650216765e-17, b.fmul(low, 0.4342944819032518))
    small = b.fma(k, 2.8363394551044964e-14, small)
    return _log_edges(b, x, b.fma(k, 0.30102999566395283, b.fma(high, 0.4342944819032518, small)))


def log1p(b: Builder, x: Value) -> Value:
    u = b.fadd(x, 1.0)
    lost = b.fdiv(b.fsub(x, b.fsub(u, 1.0)), u)
    y = b.fadd(log(b, u), b.select(b.fcmp("olt", b.fabs(lost), 1.0), lost, b.constant(x.type, 0.0)))
    return b.select(b.fcmp("oeq", x, 0.0), x, y)


def tanh(b: Builder, x: Value) -> Value:
    e = expm1(b, b.fmul(clamp(b, b.fabs(x), 0.0, 20.0), 2.0))
    return b.copysign(b.fdiv(e, b.fadd(e, 2.0)), x)


def sigmoid(b: Builder, x: Value) -> Value:
    e = exp(b, b.fneg(b.fabs(x)))
    top = b.select(b.fcmp("olt", x, 0.0), e, b.constant(x.type, 1.0))
    return b.fdiv(top, b.fadd(e, 1.0))


def sinh(b: Builder, x: Value) -> Value:
    a = b.fabs(x)
    e = expm1(b, a)
    near = b.fmul(b.fadd(e, b.fdiv(e, b.fadd(e, 1.0))), 0.5)
    h = exp(b, b.fmul(a, 0.5))
    return b.copysign(b.select(b.fcmp("ogt", a, 40.0), b.fmul(b.fmul(h, 0.5), h), near), x)


def cosh(b: Builder, x: Value) -> Value:
    a = b.fabs(x)
    h = exp(b, b.fmul(a, 0.5))
    e = b.fmul(h, h)
    near = b.fmul(b.fadd(e, b.fdiv(1.0, e)), 0.5)
    return b.select(b.fcmp("ogt", a, 40.0), b.fmul(b.fmul(h, 0.5), h), near)


def asinh(b: Builder, x: Value) -> Value:
    a = b.fabs(x)
    square = b.fmul(a, a)
    near = log1p(b, b.fadd(a, b.fdiv(square, b.fadd(b.sqrt(b.fadd(square, 1.0)), 1.0))))
    far = b.fadd(log(b, a), LN2)
    return b.copysign(b.select(b.fcmp("ogt", a, 2.0**28), far, near), x)


def acosh(b: Builder, x: Value) -> Value:
    t = b.fsub(x, 1.0)
    near = log1p(b, b.fadd(t, b.sqrt(b.fma(t, t, b.fmul(t, 2.0)))))
    y = b.select(b.fcmp("ogt", x, 2.0**28), b.fadd(log(b, x), LN2), near)
    return b.select(b.fcmp("oge", x, 1.0), y, b.constant(x.type, NAN))


def atanh(b: Builder, x: Value) -> Value:
    a = b.fabs(x)
    y = b.fmul(log1p(b, b.fdiv(b.fmul(a, 2.0), b.fsub(1.0, a))), 0.5)
    return b.copysign(y, x)


def erf(b: Builder, x: Value) -> Value:
    square = b.fmul(x, x)
    near = b.fma(x, poly(b, square, _ERF), x)
    a = clamp(b, b.fabs(x), 0.0, 6.0)
    t = b.fdiv(b.fsub(a, 2.0), b.fadd(a, 2.0))
    tail = b.fmul(exp(b, b.fneg(b.fmul(a, a))), poly(b, t, _ERFCX))
    return b.copysign(b.select(b.fcmp("olt", b.fabs(x), 0.9), near, b.fsub(1.0, tail)), x)


def atan(b: Builder, x: Value) -> Value:
    a = b.fabs(x)
    large, middle = b.fcmp("ogt", a, 2.414213562373095), b.fcmp("ogt", a, 0.41421356237309503)
    top = b.select(large, b.constant(x.type, -1.0), b.select(middle, b.fsub(a, 1.0), a))
    bottom = b.select(large, a, b.select(middle, b.fadd(a, 1.0), b.constant(x.type, 1.0)))
    t = b.fdiv(top, bottom)
    z = b.fmul(t, t)
    y = b.fma(b.fmul(t, z), poly(b, z, _ATAN), t)
    base = b.select(large, b.constant(x.type, HALF_PI), b.select(middle, b.constant(x.type, HALF_PI / 2), 0.0))
    base_low = b.select(large, b.constant(x.type, 6.123233995736766e-17), 0.0)
    base_low = b.select(b.band(middle, b.bnot(large)), b.constant(x.type, 3.061616997868383e-17), base_low)
    return b.copysign(b.fadd(base, b.fadd(y, base_low)), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    top, bottom = b.fabs(y), b.fabs(x)
    ratio = b.fdiv(top, bottom)
    ratio = b.select(b.fcmp("oeq", top, 0.0), b.constant(x.type, 0.0), ratio)
    both = b.band(b.fcmp("oeq", top, INF), b.fcmp("oeq", bottom, INF))
    angle = atan(b, b.select(both, b.constant(x.type, 1.0), ratio))
    behind = b.fadd(b.fsub(PI, angle), 1.2246467991473532e-16)
    left = b.icmp("slt", b.bitcast(x, "i64"), 0)
    signed = b.copysign(b.select(left, behind, angle), y)
    return b.select(b.fcmp("uno", x, y), b.fadd(x, y), signed)


def _asin_near(b: Builder, x: Value) -> Value:
    z = b.fmul(x, x)
    return b.fma(b.fmul(x, z), poly(b, z, _ASIN), x)


def _asin_parts(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """|x|, whether it is at most 1/2, and asin of |x| or of sqrt((1 - |x|) / 2)."""
    a = b.fabs(x)
    small = b.fcmp("ole", a, 0.5)
    root = b.sqrt(b.fmul(b.fsub(1.0, a), 0.5))
    return a, small, _asin_near(b, b.select(small, a, root))


def asin(b: Builder, x: Value) -> Value:
    _, small, y = _asin_parts(b, x)
    far = b.fsub(HALF_PI, b.fsub(b.fmul(y, 2.0), 6.123233995736766e-17))
    return b.copysign(b.select(small, y, far), x)


def acos(b: Builder, x: Value) -> Value:
    _, small, y = _asin_parts(b, x)
    negative = b.fcmp("olt", x, 0.0)
    near = b.fsub(HALF_PI, b.fsub(b.copysign(y, x), 6.123233995736766e-17))
    double = b.fmul(y, 2.0)
    far = b.select(negative, b.fsub(PI, b.fsub(double, 1.2246467991473532e-16)), double)
    return b.select(small, near, far)
