"""Periods in scattered data: the least-squares periodogram, eq. (M-247), and the frequencies that it leads to, (M-249).

    P(f) = share of the weighted sum of squares about a polynomial that a cosine and a sine at f explain beside it

A trend therefore has no power of its own, and a period longer than the range of x has what it explains beyond one. Sums
over rows at evenly spaced frequencies are fast Fourier transforms, eq. (M-248), wherever the rows lie. Pure functions
of numbers: what a peak means for a model, its evidence says (inference/training/period_starts.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

OVERSAMPLING = 5  # frequencies in one over the range of x: between two of them phases move by a tenth of a turn at most
MAX_FREQUENCIES = 2**16
CLOSE_GAPS = 0.25  # rows closer than all but this share of gaps tell the highest frequency
WIDTH = 8  # cells to each side that a row is spread over: sums to 1e-8 of the sum of absolute values
DEGENERATE = 1e-6  # squared length left beside the trend, of 1, below which a direction tells nothing
Transform = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Periodogram:
    """Fields: frequencies, (F,), evenly spaced, cycles per unit of x; power, (F,), 0 to 1, eq. (M-247)."""

    frequencies: Tensor
    power: Tensor


def periodogram(
    x: Tensor,
    residual: Tensor,
    weights: Tensor | None = None,
    *,
    degree: int = 1,
    highest: float | None = None,
    frequencies: int | None = None,
) -> Periodogram:
    """The power of each frequency, eq. (M-247): the share of squares that a sinusoid explains beside a polynomial.

    Args:
        x: positions, (n,), in any order and unevenly spaced, any unit.
        residual: what may repeat, (n,), such as targets or what a model leaves of them.
        weights: relative precisions of the rows, (n,), not negative; None for equal ones.
        degree: of the polynomial that is fitted beside: 0 a constant, 1 a trend as well.
        highest: frequency; by default `highest_frequency` of x.
        frequencies: how many, from one step to the highest; by default five in one over the range of x, at most 65,536.
    Returns: a Periodogram; without any frequency where x has one value, with no power where residual has none.
    Cost: O(n + F log F).
    Source: Zechmeister & Kürster (2009), The generalised Lomb-Scargle periodogram; Press & Rybicki (1989) for the sums.

    Example:
        >>> from flashgp.kernels.periodogram import periodogram
        >>> x = 10 * torch.rand(80, dtype=torch.float64)
        >>> found = periodogram(x, 3 * x + torch.sin(2 * torch.pi * x / 1.7))
        >>> period = 1 / found.frequencies[found.power.argmax()]
        >>> bool((period - 1.7).abs() < 0.1)
        True
    """
    x, residual, weights = _checked(x, residual, weights)
    span = float(x.max() - x.min()) if len(x) else 0.0
    if not span > 0.0:  # nothing repeats
        grid = torch.zeros(frequencies or 0, dtype=torch.float64)
        return Periodogram(grid, grid.clone())
    step, count = _usual_grid(x, span, highest)
    if frequencies is not None:
        step, count = (highest_frequency(x) if highest is None else highest) / frequencies, frequencies
    grid = step * torch.arange(1, count + 1, dtype=torch.float64)
    return Periodogram(grid, _even_fits(x, weights, degree, step, count).power(residual))


def strongest_frequencies(
    x: Tensor,
    residual: Tensor,
    weights: Tensor | None = None,
    *,
    count: int = 8,
    degree: int = 1,
    log_prior: Callable[[Tensor], Tensor] | None = None,
) -> Periodogram:
    """The frequencies that explain most, one after the other, each beside those before it, eq. (M-249).

    What has been found is fitted and taken away, so that its side lobes, or slow changes that are much larger, hide
    nothing. Two frequencies are about one over the range of x apart at least.

    Args:
        x, residual, weights, degree: as of `periodogram`.
        count: of frequencies, fewer where x tells fewer apart.
        log_prior: log density of frequencies (F,), nats, up to a constant, -inf for those that are none.
    Returns: a Periodogram in the order of discovery; power is the share of what was left that each explains.
    Cost: that of `count` periodograms.
    """
    x, residual, weights = _checked(x, residual, weights)
    span = float(x.max() - x.min()) if len(x) else 0.0
    found: list[float] = []
    shares: list[float] = []
    if span > 0.0:
        step, size = _usual_grid(x, span, None)
        fits, left = _even_fits(x, weights, degree, step, size), residual
        grid = step * torch.arange(1, size + 1, dtype=torch.float64)
        prior = torch.zeros(size, dtype=torch.float64) if log_prior is None else log_prior(grid)
        while len(found) < count:
            power = fits.power(left)
            log_posterior = prior - 0.5 * len(x) * (1.0 - power).clamp_min(torch.finfo(torch.float64).eps).log()
            log_posterior[power == 0.0] = -math.inf
            for frequency in found:
                log_posterior[(grid - frequency).abs() < 1.0 / span] = -math.inf
            best = int(log_posterior.argmax())
            if float(log_posterior[best]) == -math.inf:
                break
            found.append(step * (best + 1 + _top(power, best)))
            shares.append(float(power[best]))
            left = _beside(x, residual, weights, degree, found)
    return Periodogram(torch.tensor(found, dtype=torch.float64), torch.tensor(shares, dtype=torch.float64))


def highest_frequency(x: Tensor) -> float:
    """Half a cycle in the lower quartile of the gaps of x, (n,): the Nyquist frequency of an even grid."""
    gaps = x.double().unique().diff()
    return 0.5 / float(gaps.quantile(CLOSE_GAPS)) if 0 < len(gaps) < 2**24 else 0.0


class SinusoidFits:
    """Least squares by a cosine and a sine at each of many frequencies, beside polynomials, eq. (M-247).

    Args:
        transform: from values (t, n) and 1 or 2 to their sums with e^(-2 pi i f . x), at once or twice the
            frequencies, complex, (t, F).
        x: positions, (n, d), about 0 and of size 1; weights, (n,), which sum to 1; degree, of the polynomials.
    """

    def __init__(self, transform: Transform, x: Tensor, weights: Tensor, degree: int) -> None:
        self.transform, self.weights, self.basis = transform, weights, _polynomials(x, weights, degree)
        beside, twice = transform(weights * self.basis, 1), transform(weights[None], 2)[0]
        # Gram matrix of cosine and sine beside the polynomials; its axes are those of Lomb's time shift.
        cc = 0.5 * (1.0 + twice.real) - beside.real.square().sum(0)
        ss = 0.5 * (1.0 - twice.real) - beside.imag.square().sum(0)
        cs = -0.5 * twice.imag + (beside.real * beside.imag).sum(0)
        middle, radius = 0.5 * (cc + ss), torch.hypot(0.5 * (cc - ss), cs)
        self.turn = torch.polar(torch.ones_like(radius), 0.5 * torch.atan2(2.0 * cs, cc - ss))
        self.along, self.across = (
            torch.where(length > DEGENERATE, 1.0 / length.clamp_min(DEGENERATE), 0.0)
            for length in (middle + radius, middle - radius)
        )

    def power(self, residual: Tensor) -> Tensor:
        """The share of squares of a residual, (n,), that each frequency explains, (F,)."""
        left = residual - self.basis.T @ (self.basis @ (self.weights * residual))
        squares, of_all = (float((self.weights * r.square()).sum()) for r in (left, residual))
        if not squares > len(left) * torch.finfo(torch.float64).eps ** 2 * of_all:
            return torch.zeros_like(self.along)
        turned = self.transform((self.weights * left)[None], 1)[0] * self.turn
        return ((turned.real.square() * self.along + turned.imag.square() * self.across) / squares).clamp(0.0, 1.0)


def _even_fits(x: Tensor, weights: Tensor, degree: int, step: float, count: int) -> SinusoidFits:
    """Fits of the frequencies step, 2 step, ..., count step."""
    turns, middle = (x - x.min()) * step, 0.5 * (x.min() + x.max())
    return SinusoidFits(
        lambda values, times: _fourier_sums(turns * times, values, count),
        ((x - middle) / (x.max() - middle))[:, None],
        weights,
        degree,
    )


def _usual_grid(x: Tensor, span: float, highest: float | None) -> tuple[float, int]:
    """(step, count) of the frequencies of positions with that range."""
    highest = highest_frequency(x) if highest is None else highest
    return min(highest, 1.0 / (OVERSAMPLING * span)), max(1, min(MAX_FREQUENCIES, round(OVERSAMPLING * span * highest)))


def _checked(x: Tensor, residual: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments as float64 on the CPU, with weights that sum to 1."""
    x, residual = (t.detach().to("cpu", torch.float64) for t in (x, residual))
    weights = torch.ones_like(x) if weights is None else weights.detach().to("cpu", torch.float64)
    return x, residual, weights / weights.sum()


def _polynomials(x: Tensor, weights: Tensor, degree: int) -> Tensor:
    """Powers of the columns of x up to a degree, (terms, n), orthonormal by the weights."""
    columns = [torch.ones(len(x), 1, dtype=torch.float64), *(x**power for power in range(1, degree + 1))]
    root = weights.sqrt()[:, None]
    q, r = torch.linalg.qr(root * torch.cat(columns, 1))
    told = r.diagonal().abs() > DEGENERATE  # a column that the others say already
    return torch.where(weights > 0.0, q[:, told].T / root.T.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def _fourier_sums(turns: Tensor, values: Tensor, count: int) -> Tensor:
    """sum_i v_i e^(-2 pi i k u_i) for k = 1 to count, (t, count), of values (t, n) at positions u (n,), eq. (M-248).

    Every row is spread over the cells of a grid by a Gaussian, whose transform is divided out.
    Source: Greengard & Lee (2004), Accelerating the nonuniform fast Fourier transform.
    """
    modes = 2 * count + 1
    cells = max(4 * WIDTH, 2 ** math.ceil(math.log2(2 * modes)))
    ratio = cells / modes
    spread = math.pi * WIDTH / (modes * modes * ratio * (ratio - 0.5))
    at = turns.remainder(1.0) * cells
    near = at.floor()
    offsets = torch.arange(1 - WIDTH, WIDTH + 1, dtype=torch.float64)
    distance = (2.0 * math.pi / cells) * (near[:, None] + offsets - at[:, None])
    share = (-distance.square() / (4.0 * spread)).exp()
    index = (near[:, None] + offsets).long().remainder(cells).reshape(-1)
    grid = torch.stack([torch.bincount(index, (share * v[:, None]).reshape(-1), cells) for v in values])
    k = torch.arange(1, count + 1, dtype=torch.float64)
    scale = math.sqrt(math.pi / spread) / cells * (k.square() * spread).exp()
    return torch.fft.rfft(grid)[:, 1 : count + 1] * scale


def _top(power: Tensor, best: int) -> float:
    """Position of a peak between frequencies, in steps: the top of the parabola through its three powers."""
    if not 0 < best < len(power) - 1:
        return 0.0
    low, middle, high = power[best - 1 : best + 2].tolist()
    bend = low - 2.0 * middle + high
    return max(-0.5, min(0.5, 0.5 * (low - high) / bend)) if bend < 0.0 else 0.0


def _beside(x: Tensor, residual: Tensor, weights: Tensor, degree: int, frequencies: list[float]) -> Tensor:
    """Residual of a weighted least-squares fit of a polynomial and sinusoids."""
    centred = x - 0.5 * (x.min() + x.max())
    angle = 2.0 * math.pi * centred[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    powers = [(centred / centred.abs().max())[:, None] ** power for power in range(degree + 1)]
    columns, root = torch.cat([*powers, angle.cos(), angle.sin()], 1), weights.sqrt()[:, None]
    found = torch.linalg.lstsq(root * columns, root * residual[:, None], driver="gelsd").solution
    return residual - (columns @ found)[:, 0]
