"""A Matern covariance function as a part that few frequencies hold and one of near pairs alone, eqs. (M-457), (M-458).

    k(r) = far(r) + near(r),   near(r) = (r - m(r)) odd(r) / r,   near(r) = 0 from a radius on

odd is the part of k that is odd in r: all that is not smooth where rows meet. m is |r| after a convolution with a
window of that radius, which leaves |r| as it is beyond. Source: Ewald (1921) for the splitting; Kaiser & Kuo (1966) for
the window.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from flashgp.inference.fourier.grid import Grid, fast_length
from flashgp.inference.fourier.spectrum import series
from flashgp.kernels.base import Constant, Kernel, Product, Scaled
from flashgp.kernels.matern import Matern

F64 = torch.float64
NODES = 60  # of quadrature
SERIES = 16  # terms of odd, where it cancels
DEGREES = (14, 22, 30)  # of a polynomial for near
# Times exp(decay radius - band) |near|, by nu: what far leaves out beyond its frequencies, found for many radii.
MARGINS = {0.5: 20.0, 1.5: 50.0, 2.5: 1e4}
LEAST_BAND, LEAST_FADE = 6.0, 4.0


def matern_of(kernel: Kernel) -> Matern | None:
    """The Matern function that a covariance function is a multiple of; None for others."""
    inner = [k for k in kernel.modules() if isinstance(k, Kernel)]
    found = [k for k in inner if isinstance(k, Matern)]
    if len(found) != 1 or not all(isinstance(k, Scaled | Product | Constant | Matern) for k in inner):
        return None
    return found[0]


@dataclass(frozen=True)
class Split:
    """Fields: nu; variance; radius, in units of lengthscales; band, of the window: its transform falls by exp(-band)
    up to the angular frequency band / radius."""

    nu: float
    variance: float
    radius: float
    band: float

    @classmethod
    def of(cls, nu: float, variance: float, radius: float, error: float) -> "Split":
        """One whose frequencies leave out no more than an error, for each pair."""
        found = cls(nu, variance, radius, 30.0)
        for _ in range(2):
            left = math.log(MARGINS[nu] * found.largest / error) + found.decay * radius
            band = max(LEAST_BAND, left)
            found = cls(nu, variance, radius, band)
        return found

    @property
    def highest(self) -> float:
        """Angular frequency up to which far has any."""
        return self.band / self.radius

    @property
    def decay(self) -> float:
        """a of exp(-a r)."""
        return math.sqrt(2.0 * self.nu)

    def far(self, r: Tensor) -> Tensor:
        """Of distances in units of lengthscales, any shape."""
        return self.whole(r) - self.near(r)

    def whole(self, r: Tensor) -> Tensor:
        """k itself."""
        t = self.decay * r
        polynomial = {0.5: torch.ones_like(t), 1.5: 1.0 + t, 2.5: 1.0 + t + t.square() / 3.0}[self.nu]
        return self.variance * polynomial * torch.exp(-t)

    def near(self, r: Tensor) -> Tensor:
        found = torch.zeros_like(r)
        inside = r < self.radius
        found[inside] = self._near(r[inside])
        return found

    def _near(self, r: Tensor) -> Tensor:
        """Within the radius. Cost: that of quadrature for each number."""
        blocks = [-2.0 * self._moment(part) * self._odd(part) for part in r.split(2**16)]
        return self.variance * torch.cat(blocks) if blocks else r

    def _moment(self, r: Tensor) -> Tensor:
        """(m(r) - r) / 2 = int_r^radius (u - r) w(u) du of the window w, positive."""
        points, weights = _legendre()
        half = 0.5 * (self.radius - r).unsqueeze(-1)
        u = r.unsqueeze(-1) + half * (points + 1.0)
        whole = self.radius * (weights * _window(0.5 * (points + 1.0), self.band)).sum()
        return (half * weights * (u - r.unsqueeze(-1)) * _window(u / self.radius, self.band)).sum(-1) / whole

    def _odd(self, r: Tensor) -> Tensor:
        """odd(r) / r of unit variance, (k(r) - k(-r)) / 2 r."""
        t = self.decay * r
        small, total, powers = t < 1.5, torch.zeros_like(t), torch.ones_like(t)
        for k in range(SERIES):  # of t^(2 k + 1) in odd, over t
            whole, less = math.factorial(2 * k), math.factorial(2 * k + 1)
            third = 1.0 / (3.0 * math.factorial(2 * k - 1)) if k else 0.0
            entry = {0.5: -1.0 / less, 1.5: 1.0 / whole - 1.0 / less, 2.5: 1.0 / whole - 1.0 / less - third}[self.nu]
            total, powers = total + entry * powers, powers * t.square()
        sinh, cosh = torch.sinh(t), t * torch.cosh(t)
        closed = {0.5: -sinh, 1.5: cosh - sinh, 2.5: cosh - (1.0 + t.square() / 3.0) * sinh}[self.nu]
        return self.decay * torch.where(small, total, closed / torch.where(small, 1.0, t))

    @cached_property
    def largest(self) -> float:
        """Of |near|, about."""
        return float(self._near(torch.linspace(0.0, 0.999 * self.radius, 200, dtype=F64)).abs().max())

    def polynomial(self, error: float) -> tuple[numpy.ndarray, float]:
        """Coefficients c_k of near(r) = sum_k c_k t^k, t = 2 r / radius - 1, of the least degree that errs by no more,
        or of the last one; and how much it errs."""
        nodes = torch.cos(torch.pi * (torch.arange(160, dtype=F64) + 0.5) / 160)
        check = torch.linspace(-1.0, 1.0, 2001, dtype=F64)
        values, known = (self._near(0.5 * self.radius * (t + 1.0)).numpy() for t in (nodes, check))
        for degree in DEGREES:
            found = chebyshev.cheb2poly(chebyshev.chebfit(nodes.numpy(), values, degree))
            off = float(numpy.abs(numpy.polynomial.polynomial.polyval(check.numpy(), found) - known).max())
            if off <= error:
                break
        return found, off


def split_grid(
    split: Split, columns: tuple[int, ...], corners: tuple[Tensor, Tensor], scales: Tensor, error: float
) -> Grid:
    """The grid of far for rows between two corners (d,), (M-458). Args: scales, lengthscales of the columns; error, of
    a pair.

    Functions repeat either after what k takes to fall below the error, or after twice the range, between which k fades.
    """
    low, high = (one[list(columns)] for one in corners)
    steps = torch.logspace(-3.0, 5.0, 4000, dtype=F64)
    reach = float(steps[min(int((split.whole(steps) > error).sum()), len(steps) - 1)])
    lengths, orders, ranges = [], [], ((high - low) / scales).clamp_min(split.radius).tolist()
    for wide in ranges:
        there = float(split.whole(torch.tensor(wide, dtype=F64)))
        faded = 2.0 * max(LEAST_FADE, math.log(max(1.0, there / error))) / split.highest
        lengths.append(wide + reach if reach < wide else 2.0 * wide + faded)
        orders.append(max(1, math.ceil(split.highest * lengths[-1] / (2.0 * math.pi))))
    units = scales.tolist()
    centre = tuple((0.5 * (low + high)).tolist())
    long, near = (tuple(a * b for a, b in zip(one, units, strict=True)) for one in (lengths, ranges))
    return Grid(columns, centre, long, tuple(orders), near)


def split_coefficients(split: Split, grid: Grid, scales: Tensor) -> Tensor:
    """Fourier coefficients of far, a half of the grid's shape. Cost: 8 M / 4 values in three columns."""
    counts = [fast_length(2 * m + 2) for m in grid.orders]
    units = scales.tolist()
    axes = []
    for length, wide, count, unit in zip(grid.lengths, grid.reach, counts, units, strict=True):
        lags, room = torch.arange(count // 2 + 1, dtype=F64) * (length / count), length - 2.0 * wide
        each = []
        for moved in (lags, length - lags):
            kept = (
                fade((moved - wide) / room, 0.5 * split.highest * room / unit) if room > 0.0 else torch.ones_like(lags)
            )
            each.append((moved / unit, kept))
        axes.append(each)
    shape = tuple(len(each[0][0]) for each in axes)
    total = torch.zeros(shape, dtype=F64)
    for chosen in itertools.product(*axes):
        squares, weights = torch.zeros(shape, dtype=F64), torch.ones(shape, dtype=F64)
        for axis, (lags, kept) in enumerate(chosen):
            view = [-1 if k == axis else 1 for k in range(len(shape))]
            squares, weights = squares + lags.square().view(view), weights * kept.view(view)
        some = weights > 0.0
        total[some] += weights[some] * split.far(squares[some].sqrt())
    return series(total, grid, counts, even=True)


def fade(t: Tensor, band: float) -> Tensor:
    """1 up to 0 and 0 from 1 on, the integral of the window between."""
    points, weights = _legendre()
    x = 2.0 * t.clamp(0.0, 1.0) - 1.0
    half = 0.5 * (1.0 - x).unsqueeze(-1)
    above = (half * weights * _window(x.unsqueeze(-1) + half * (points + 1.0), band)).sum(-1)
    return above / (weights * _window(points, band)).sum()


def _window(t: Tensor, band: float) -> Tensor:
    """I0(band sqrt(1 - t^2)), Kaiser and Bessel's, over its largest value but for a constant."""
    z = band * (1.0 - t.square()).clamp_min(0.0).sqrt()
    return torch.special.i0e(z) * torch.exp(z - band)


@cache
def _legendre() -> tuple[Tensor, Tensor]:
    points, weights = numpy.polynomial.legendre.leggauss(NODES)
    return torch.from_numpy(points), torch.from_numpy(weights)
