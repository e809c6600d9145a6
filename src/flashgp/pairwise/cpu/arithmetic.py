"""Elementary functions that vectorise: what generated CPU code calls instead of libm. Imported only with numba.

    2^t = 2^round(t) * (1 + f p(f)), f = t - round(t) in [-1/2, 1/2]                             (M-65)
    log(1 + x) by log u = e log 2 + 2 (s + s^3/3 + ...), s = (m - 1)/(m + 1), u = m 2^e          (M-66)
    cos x, sin x by reduction to [-pi/4, pi/4] in three parts of pi/2, then Taylor               (M-67)

p interpolates at Chebyshev nodes; relative errors: 2^t 2e-7 (float32), 4e-16 (float64). Rounding to an integer adds
and subtracts 1.5 * 2^23 (2^52), which reassociation would undo: these functions allow contraction only, the loops
that call them allow everything (`FAST`). From 2^-126 (2^-1022) down exp2 is 0: a covariance that small would turn
every product into a subnormal number, and those cost a hundred cycles each.
"""

import math
from typing import Any

import numpy
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

FAST = {"reassoc", "nnan", "ninf", "nsz", "arcp", "contract"}
_STRICT: Any = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
F32, F64 = numpy.float32, numpy.float64


def _attribute(text: str) -> Any:
    @intrinsic
    def mark(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # llvmlite checks names against a list without string attributes; LLVM itself ignores what it does not know.
            set.add(builder.function.attributes, text)
            return context.get_dummy_value()

        return types.void(), generate

    return mark


# LLVM prefers 256 bits on processors of which early models slowed down at 512; the pair loops are quicker with them.
wide_vectors = _attribute('"prefer-vector-width"="512"')
# A loop inlined into a long function is checked against all of its arrays for overlap, and then not vectorised.
on_its_own = _attribute("noinline")


def _bits(integer: Any, floating: Any) -> Any:
    @intrinsic
    def convert(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.IntType(integer.bitwidth))

        return integer(floating), generate

    return convert


def _number(integer: Any, floating: Any, llvm: Any) -> Any:
    @intrinsic
    def convert(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], llvm)

        return floating(integer), generate

    return convert


_bits32, _bits64 = _bits(types.int32, types.float32), _bits(types.int64, types.float64)
_number32 = _number(types.int32, types.float32, ir.FloatType())
_number64 = _number(types.int64, types.float64, ir.DoubleType())

# 2^f = 1 + f p(f)
_P32 = tuple(map(F32, (0.6931471805599451, 0.24022349038020382, 0.05550381013796587, 0.009666368515384905,
                       0.0013381302537268545)))  # fmt: skip
_P64 = (0.6931471805599452, 0.24022650695910128, 0.055504108664808136, 0.009618129107601374, 0.0013333558150707804,
        0.00015403530445676984, 1.5252729542421524e-05, 1.3215441291517314e-06, 1.0179773767427082e-07,
        7.0726820777372935e-09, 4.218907912316755e-10)  # fmt: skip
_M32, _LOW32, _HIGH32, _SHIFT32 = F32(1.5 * 2**23), F32(-126.0), F32(127.999), numpy.int32(23)
_M64, _LOW64, _HIGH64, _SHIFT64 = 1.5 * 2.0**52, -1022.0, 1023.999, numpy.int64(52)
_ONE32, _ZERO32 = F32(1.0), F32(0.0)


@njit(**_STRICT)
def exp2_32(t: Any) -> Any:
    s = min(t, _HIGH32)
    z = s + _M32
    f = s - (z - _M32)
    p = (((_P32[4] * f + _P32[3]) * f + _P32[2]) * f + _P32[1]) * f + _P32[0]
    value = _number32(_bits32(p * f + _ONE32) + (_bits32(z) << _SHIFT32))
    return value if t > _LOW32 else _ZERO32


@njit(**_STRICT)
def exp2_64(t: Any) -> Any:
    s = min(t, _HIGH64)
    z = s + _M64
    f = s - (z - _M64)
    p = (((_P64[10] * f + _P64[9]) * f + _P64[8]) * f + _P64[7]) * f + _P64[6]
    p = ((((p * f + _P64[5]) * f + _P64[4]) * f + _P64[3]) * f + _P64[2]) * f + _P64[1]
    value = _number64(_bits64((p * f + _P64[0]) * f + 1.0) + (_bits64(z) << _SHIFT64))
    return value if t > _LOW64 else 0.0


_LN2_32, _SQRT_HALF32, _TWO32 = F32(math.log(2.0)), F32(math.sqrt(0.5)), F32(2.0)
_L32 = tuple(F32(1.0 / k) for k in (3, 5, 7, 9))
_MANTISSA32, _HALF_BITS32, _BIAS32 = numpy.int32(0x007FFFFF), numpy.int32(0x3F000000), numpy.int32(126)
_L64 = tuple(1.0 / k for k in range(3, 25, 2))
_LN2_64, _SQRT_HALF64 = math.log(2.0), math.sqrt(0.5)
_MANTISSA64, _HALF_BITS64, _BIAS64 = numpy.int64(2**52 - 1), numpy.int64(0x3FE0000000000000), numpy.int64(1022)


@njit(**_STRICT)
def log1p_32(x: Any) -> Any:
    u = _ONE32 + x
    lost = (x - (u - _ONE32)) / u
    e = F32((_bits32(u) >> _SHIFT32) - _BIAS32)
    m = _number32((_bits32(u) & _MANTISSA32) | _HALF_BITS32)
    low = m < _SQRT_HALF32
    e = e - _ONE32 if low else e
    m = m + m if low else m
    s = (m - _ONE32) / (m + _ONE32)
    w = s * s
    p = ((_L32[3] * w + _L32[2]) * w + _L32[1]) * w + _L32[0]
    return e * _LN2_32 + (_TWO32 * s + (_TWO32 * s * w * p + lost))


@njit(**_STRICT)
def log1p_64(x: Any) -> Any:
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u
    e = F64((_bits64(u) >> _SHIFT64) - _BIAS64)
    m = _number64((_bits64(u) & _MANTISSA64) | _HALF_BITS64)
    low = m < _SQRT_HALF64
    e = e - 1.0 if low else e
    m = m + m if low else m
    s = (m - 1.0) / (m + 1.0)
    w = s * s
    p = ((((_L64[10] * w + _L64[9]) * w + _L64[8]) * w + _L64[7]) * w + _L64[6]) * w + _L64[5]
    p = ((((p * w + _L64[4]) * w + _L64[3]) * w + _L64[2]) * w + _L64[1]) * w + _L64[0]
    return e * _LN2_64 + (2.0 * s + (2.0 * s * w * p + lost))


def _halves(value: float, bits: int) -> tuple[float, float, float]:
    """A number as a sum of three, the first two with so few digits that small multiples of them are exact."""
    scale = 2.0**bits
    first = math.floor(value * scale) / scale
    second = math.floor((value - first) * scale * scale) / (scale * scale)
    return first, second, value - first - second


_PIO2_32 = tuple(map(F32, _halves(math.pi / 2, 8)))
_PIO2_64 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)  # 33 + 33 + 53 bits of pi/2
_INV32, _INV64 = F32(2.0 / math.pi), 2.0 / math.pi
_S32 = tuple(F32((-1) ** k / math.factorial(2 * k + 1)) for k in range(1, 6))
_C32 = tuple(F32((-1) ** k / math.factorial(2 * k)) for k in range(1, 7))
_S64 = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9))
_C64 = tuple((-1) ** k / math.factorial(2 * k) for k in range(1, 10))


@njit(**_STRICT)
def _turn_32(x: Any, quarter: Any) -> Any:
    z = x * _INV32 + _M32
    n = z - _M32
    q = _bits32(z) + quarter
    f = ((x - n * _PIO2_32[0]) - n * _PIO2_32[1]) - n * _PIO2_32[2]
    w = f * f
    s = f + f * w * ((((_S32[4] * w + _S32[3]) * w + _S32[2]) * w + _S32[1]) * w + _S32[0])
    c = ((((_C32[5] * w + _C32[4]) * w + _C32[3]) * w + _C32[2]) * w + _C32[1]) * w + _C32[0]
    c = _ONE32 + w * c
    value = c if q & numpy.int32(1) else s
    return -value if q & numpy.int32(2) else value


@njit(**_STRICT)
def _turn_64(x: Any, quarter: Any) -> Any:
    z = x * _INV64 + _M64
    n = z - _M64
    q = _bits64(z) + quarter
    f = ((x - n * _PIO2_64[0]) - n * _PIO2_64[1]) - n * _PIO2_64[2]
    w = f * f
    s = (((_S64[7] * w + _S64[6]) * w + _S64[5]) * w + _S64[4]) * w + _S64[3]
    s = f + f * w * (((s * w + _S64[2]) * w + _S64[1]) * w + _S64[0])
    c = ((((_C64[8] * w + _C64[7]) * w + _C64[6]) * w + _C64[5]) * w + _C64[4]) * w + _C64[3]
    c = 1.0 + w * (((c * w + _C64[2]) * w + _C64[1]) * w + _C64[0])
    value = c if q & 1 else s
    return -value if q & 2 else value


@njit(**_STRICT)
def sin_32(x: Any) -> Any:
    return _turn_32(x, numpy.int32(0))


@njit(**_STRICT)
def cos_32(x: Any) -> Any:
    return _turn_32(x, numpy.int32(1))


@njit(**_STRICT)
def sin_64(x: Any) -> Any:
    return _turn_64(x, 0)


@njit(**_STRICT)
def cos_64(x: Any) -> Any:
    return _turn_64(x, 1)


FUNCTIONS = {
    "float32": {"exp2": exp2_32, "log1p": log1p_32, "cos": cos_32, "sin": sin_32},
    "float64": {"exp2": exp2_64, "log1p": log1p_64, "cos": cos_64, "sin": sin_64},
}
