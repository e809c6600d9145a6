"""Numbers with a bound of what float64 may make of them: running error analysis.

Each operation carries |computed - exact| <= eps * error along, to first order and with the one product that matters.
Source: Higham (2002), Accuracy and stability of numerical algorithms, section 3.3.
"""

from typing import Any

import numpy

LD = numpy.longdouble  # 64 bits of mantissa on x86; where it is float64, values carry an error of their bound's size
EPS = float(numpy.finfo(numpy.float64).eps)
TINY = float(numpy.finfo(numpy.float64).tiny)  # eps TINY is what an underflow loses


class Rounded:
    """value, a long double array; error, in units of eps, of the same shape."""

    __array_ufunc__ = None

    def __init__(self, value: Any, error: Any = 0.0) -> None:
        self.value = numpy.asarray(value, LD)
        error = numpy.asarray(error, LD)
        self.error = error if error.shape == self.value.shape else numpy.broadcast_to(error, self.value.shape)

    def __add__(self, other: Any) -> "Rounded":
        other = rounded(other)
        value = self.value + other.value
        return Rounded(value, self.error + other.error + abs(value))

    def __sub__(self, other: Any) -> "Rounded":
        return self + -rounded(other)

    def __neg__(self) -> "Rounded":
        return Rounded(-self.value, self.error)

    def __mul__(self, other: Any) -> "Rounded":
        a, b = self, rounded(other)
        value = a.value * b.value
        error = abs(a.value) * b.error + abs(b.value) * a.error + EPS * a.error * b.error
        return Rounded(value, error + abs(value) + TINY)

    def __truediv__(self, other: Any) -> "Rounded":
        b = rounded(other)
        value = self.value / b.value
        return Rounded(value, (self.error + abs(value) * b.error) / abs(b.value) + abs(value) + TINY)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> "Rounded":
        return rounded(other) - self

    def __rtruediv__(self, other: Any) -> "Rounded":
        return rounded(other) / self

    def __getitem__(self, index: Any) -> "Rounded":
        return Rounded(self.value[index], self.error[index])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def T(self) -> "Rounded":
        return Rounded(self.value.T, self.error.T)

    def sum(self, axis: int = -1) -> "Rounded":
        count = max(self.shape[axis] - 1, 0)
        return Rounded(self.value.sum(axis), self.error.sum(axis) + count * abs(self.value).sum(axis))

    def exp(self) -> "Rounded":
        value = numpy.exp(self.value)
        return Rounded(value, value * (numpy.expm1(numpy.minimum(EPS * self.error, 700.0)) / EPS + 1.0) + TINY)

    def log(self) -> "Rounded":
        return Rounded(numpy.log(self.value), self.error / abs(self.value) + abs(numpy.log(self.value)))

    def sqrt(self) -> "Rounded":
        value = numpy.sqrt(self.value)
        at_zero = numpy.sqrt(self.error / EPS)
        smooth = self.error / (2 * numpy.where(value > 0, value, 1.0))
        return Rounded(value, numpy.where(value > 0, numpy.minimum(smooth, at_zero), at_zero) + value)

    def sin(self) -> "Rounded":
        return Rounded(numpy.sin(self.value), numpy.minimum(self.error, 2.0 / EPS) + 1.0)

    def cos(self) -> "Rounded":
        return Rounded(numpy.cos(self.value), numpy.minimum(self.error, 2.0 / EPS) + 1.0)

    def abs(self) -> "Rounded":
        return Rounded(abs(self.value), self.error)

    def minimum(self, other: "Rounded") -> "Rounded":
        return Rounded(numpy.minimum(self.value, other.value), numpy.maximum(self.error, other.error))

    def power(self, exponent: int) -> "Rounded":
        out = self
        for _ in range(exponent - 1):
            out = out * self
        return out

    def widened(self, error: Any) -> "Rounded":
        """With more room, in units of eps."""
        return Rounded(self.value, self.error + error)


def rounded(value: Any) -> Rounded:
    return value if isinstance(value, Rounded) else Rounded(value)


def stacked(parts: list[Rounded], axis: int = 0) -> Rounded:
    """Several side by side; of none an empty one."""
    if not parts:
        return Rounded(numpy.zeros(0))
    return Rounded(numpy.stack([p.value for p in parts], axis), numpy.stack([p.error for p in parts], axis))
