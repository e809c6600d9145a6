"""Distributions of new observations where f is uncertain: mixtures of what a likelihood says given f, eq. (M-279)."""

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.normal import standard_quantile
from flashgp.likelihoods.base import PredictiveDistribution
from flashgp.likelihoods.quadrature import Analytic, Unimodal, expectation, log_expectation, peak

ROUNDS = 200
SPREAD = 2.0  # of a step of a distribution function in f, in widths
EARLIEST = 0.25  # count at whose mode in f the step of a distribution function is looked for
NEAR = 1e-11  # of a quantile, on its line, relative above 1


class Given(Protocol):
    """What a likelihood says given f; numbers of rows by name."""

    discrete: bool
    log_concave: bool

    @property
    def strip(self) -> float | None: ...

    def log_prob(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor: ...

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor: ...

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor: ...

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor: ...

    def from_line(self, z: Tensor, **numbers: Tensor) -> Tensor: ...

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor: ...


class Mixture(PredictiveDistribution):
    """Observations of f ~ N(mean, variance), each on its own. Numbers of rows by name.

    Moments are in closed form where the likelihood has one; densities are right however small they are, and quantiles
    are those of the distribution function.

    Example:
        >>> y = fgp.likelihoods.Poisson().predictive(torch.zeros(1), torch.ones(1))
        >>> y.mean, y.quantile(0.9)
        (tensor([1.6487], dtype=torch.float64), tensor([4.], dtype=torch.float64))
    """

    def __init__(
        self, given: Given, mean: Float[Tensor, "..."], variance: Float[Tensor, "..."], **numbers: Tensor
    ) -> None:
        self._given, self._names = given, tuple(numbers)
        self._f, self._variance, *self._rows = torch.broadcast_tensors(
            mean.double(), variance.double(), *(t.double() for t in numbers.values())
        )

    def _named(self, rows: tuple[Tensor, ...] | list[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._names, rows, strict=True))

    @cached_property
    def mean(self) -> Float64[Tensor, "..."]:  # type: ignore[override]
        return self._given.observation_mean(self._f, self._variance, **self._named(self._rows))

    @cached_property
    def variance(self) -> Float64[Tensor, "..."]:  # type: ignore[override]
        return self._given.observation_variance(self._f, self._variance, **self._named(self._rows))

    def log_prob(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        given = self._given
        of_f = Unimodal(given.strip, given.log_concave)
        return log_expectation(self._density, self._f, self._variance, of_f, y, *self._rows)

    def _density(self, f: Tensor, y: Tensor, *rows: Tensor) -> Tensor:
        return self._given.log_prob(y, f, **self._named(rows))

    def cdf(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """P(observation <= y), without gradients."""
        with torch.no_grad():
            return self.probability_below(y)

    def probability_below(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """`cdf`, with gradients where the likelihood's has them."""
        return self._below(y, lambda f, mean, variance: torch.ones_like(f))

    def _below(self, y: Tensor, times: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Float64[Tensor, "..."]:
        """E P(observation <= y | f) times a function of f and its moments. It rises where log p(y | f) has its mode."""
        y = y.double()
        between = (y + 0.5).clamp_min(EARLIEST)
        step = peak(self._density, self._f, self._variance, between if self._given.discrete else y, *self._rows)
        width = step.deviation.clamp_max(torch.inf if self._given.strip is None else self._given.strip)
        width = width.nan_to_num(nan=1.0)  # of y at the end of what is observed, which has no step
        where = Analytic(width, step.mode.nan_to_num(), SPREAD * width)

        def below(f: Tensor, y: Tensor, mean: Tensor, variance: Tensor, *rows: Tensor) -> Tensor:
            return self._given.cdf(y, f, **self._named(rows)) * times(f, mean, variance)

        return expectation(below, self._f, self._variance, where, y, self._f, self._variance, *self._rows)

    def quantile(self, q: float) -> Float64[Tensor, "..."]:
        """The q-quantile, differentiable in the moments of f; of counts, which jump, the smallest that is not exceeded
        with a probability of q."""
        numbers = self._named(self._rows)
        start = self._f.detach() + standard_quantile(q) * self._variance.detach().sqrt()
        z = increasing_root(lambda z: self.cdf(self._given.from_line(z, **numbers)) - q, start)
        y = self._given.from_line(z, **numbers)
        if not self._given.discrete:
            return self._following(y)
        whole = y.round()
        count = torch.where((y - whole).abs() < 1e-8 * (1.0 + whole.abs()), whole, y.ceil())
        return count.clamp_min(0.0) + 0.0  # not -0

    def inside(self, y: Tensor, level: float) -> Tensor:
        """As of every distribution, by its distribution function, without a search for quantiles."""
        tail = 0.5 * (1.0 - level)
        if not self._given.discrete:
            below = self.cdf(y)
            return (tail <= below) & (below <= 1.0 - tail)
        before = torch.where(y > 0.0, self.cdf((y - 1.0).clamp_min(0.0)), torch.zeros_like(y, dtype=torch.float64))
        return (tail <= self.cdf(y)) & (before < 1.0 - tail)

    def _following(self, y: Tensor) -> Tensor:
        """A quantile that moves with the moments of f as its distribution function does."""
        if not (self._f.requires_grad or self._variance.requires_grad):
            return y
        with torch.no_grad():
            by_mean = self._below(y, lambda f, mean, variance: (f - mean) / variance)
            by_variance = self._below(y, lambda f, m, v: 0.5 * ((f - m).square() / v - 1.0) / v)
        moved = by_mean * (self._f - self._f.detach()) + by_variance * (self._variance - self._variance.detach())
        return y - moved / self.log_prob(y).exp().detach()

    def sample(self, generator: torch.Generator) -> Float64[Tensor, "..."]:
        noise = torch.randn(self._f.shape, generator=generator, dtype=torch.float64, device=self._f.device)
        f = self._f + self._variance.sqrt() * noise
        return self._given.draw(f, generator, **self._named(self._rows))


@torch.no_grad()
def increasing_root(function: Callable[[Tensor], Tensor], start: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Where an increasing function is 0, entry by entry: ends by doubled steps, then between them.

    Source: Oliveira & Takahashi (2020), An enhancement of the bisection method average performance.

    Raises: ConvergenceError where it does not change its sign.
    """
    low = high = start
    at_low = at_high = function(start)
    step = torch.ones_like(start)
    for _ in range(ROUNDS):
        down, up = at_low > 0.0, at_high < 0.0
        if not bool((down | up).any()):
            break
        tried = torch.where(down, low - step, high + step)
        value, step = function(tried), 2.0 * step
        low, at_low, high, at_high = (
            torch.where(down, tried, torch.where(up, high, low)),
            torch.where(down, value, torch.where(up, at_high, at_low)),
            torch.where(up, tried, torch.where(down, low, high)),
            torch.where(up, value, torch.where(down, at_low, at_high)),
        )
    first = high - low
    rounds = (first / NEAR).log2().ceil() + 1.0
    for _ in range(ROUNDS):
        width = high - low
        if bool((width <= NEAR * (1.0 + low.abs())).all()):
            return 0.5 * (low + high)
        middle, secant = 0.5 * (low + high), low + width * (at_low / (at_low - at_high)).nan_to_num(nan=0.5)
        towards = (middle - secant).sign()
        beyond = (0.2 * width.square() / first.clamp_min(NEAR)).maximum(0.4 * NEAR * (1.0 + low.abs()))
        shift = beyond.minimum((middle - secant).abs())
        most = (NEAR * rounds.exp2() - 0.5 * width).clamp_min(0.0)  # from the middle: as many rounds as bisection
        tried = middle + (secant + towards * shift - middle).clamp(-most, most)
        value, rounds = function(tried), rounds - 1.0
        below = value < 0.0
        low, at_low = torch.where(below, tried, low), torch.where(below, value, at_low)
        high, at_high = torch.where(below, high, tried), torch.where(below, at_high, value)
    raise ConvergenceError(
        f"`q` has no quantile that {ROUNDS} steps find; ask for another one", iterations=ROUNDS,
        residual=float((high - low).max()), tolerance=NEAR,
    )  # fmt: skip
