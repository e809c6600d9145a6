"""Sites of rows that pass by, by Fourier series: made from q of the weights in each pass, (M-453), (M-454), (M-456).

With f and v mean and variance of the series at a row under q, t the tail and s its site's variance, s' = s + t:

    q(f_i) = N(f_i + (targets_i - f_i) t / s'_i, s_i t / s'_i + (s_i / s'_i)^2 v_i)

The site depends on that and it on the site, row by row. A step is one in the sums over rows, so that nothing is kept of
a row, read or of another rank. The weights have a factor.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.fourier.grids import Series
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.fourier.system import SolveSettings, WeightSystem
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import Marginals, Variational
from flashgp.inference.sites import LEAST_NOISE, SiteSettings, first_sites, local_sites, prior_mean, prior_variance
from flashgp.inference.streamed.rows import blocks_on_time, prior_of_rows
from flashgp.inference.streamed.steps import Pass, settled_pass
from flashgp.likelihoods import Sites
from flashgp.processes.group import ALONE
from flashgp.sources.survey import Block, Survey

PIECE = 2**18  # rows whose sites are made at once
SOLVED = 1e-3  # error of a mean in standard deviations of f, where there is no factor
ROUNDS = 40  # of a row's site and its own marginal, each of which leaves t / s' of the error or less
EXACT = 1e-4  # of a log variance, and of a mean in standard deviations: e of it changes the bound by about e^2 / 4


@dataclass(frozen=True, eq=False)
class SeriesValues:
    """q of the weights. Fields: sums whose B and mean it has; spectrum and tail of the grid; settings; new, whether
    rows are such that it has not seen; known, weights that were made before, else None."""

    sums: FourierSums
    spectrum: Tensor
    tail: float
    settings: SolveSettings
    new: bool = False
    known: WeightPosterior | None = None

    @classmethod
    def of_prior(cls, grid: Series, spectrum: Tensor, tail: float, settings: SolveSettings) -> "SeriesValues":
        return cls(FourierSums.none(grid, 1), spectrum, tail, settings)

    def none(self, *, new: bool = False) -> "SeriesValues":
        return replace(self.having(FourierSums.none(self.sums.grid, 1)), new=new)

    def having(self, sums: FourierSums) -> "SeriesValues":
        """q of the weights under these sums."""
        return replace(self, sums=sums, new=False, known=None)

    def of(self, sums: "SeriesValues") -> "SeriesValues":
        """What a pass leads to, as it is: with the matrix that its bound has made."""
        return sums

    def towards(self, sums: "SeriesValues", share: float) -> "SeriesValues":
        return sums if share == 1.0 else self.having(self.sums.towards(sums.sums, share))

    @property
    def count(self) -> int:
        return self.sums.count

    @cached_property
    def system(self) -> WeightSystem:
        return self.sums.system(self.spectrum, self.settings) if self.known is None else self.known.system

    @cached_property
    def weights(self) -> WeightPosterior:
        return self.known or WeightPosterior.of(self.sums, self.system, SOLVED)

    def bound(self, sums: "SeriesValues") -> float:
        """(M-454), nats. Args: sums, of the sites that were made from here."""
        b, system, found, other = self.weights.solution.value, self.system, sums.sums, sums.system
        squares = found.squares - found.grid.dot(b, 2.0 * system.root * found.projected - other(b))
        logs = system.log_of_factor + found.logs + found.count * LOG_2PI
        return -0.5 * float(squares.sum() + system.trace(other) + logs)

    def divergence(self, other: "SeriesValues") -> float:
        """KL(self || other), nats."""
        own, its = self.weights, other.weights
        apart = own.solution.value - its.solution.value
        squares = float(self.sums.grid.dot(apart, its.system(apart)).sum())
        logs = own.system.log_of_factor - its.system.log_of_factor
        return 0.5 * (own.system.trace(its.system) + logs + squares)

    def series(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the series at points, (n,) each."""
        if not self.sums.count:
            none = x.new_zeros(len(x), dtype=torch.float64)
            return none, none + float(self.sums.grid.total(self.spectrum))
        system = self.weights.system
        mean = self.sums.grid.forward(x, system.root * self.weights.solution.value)[0]
        return mean, system.inverse_variance_at(x.cpu()).to(x.device)

    def marginals(self, prior: Prior, x: Tensor, sites: Sites) -> Marginals:
        """q(f) of rows under their sites, which q has seen."""
        series, spread = self.series(x)
        return self._under(sites, prior_mean(prior, x) + series, spread)

    def _under(self, sites: Sites, mean: Tensor, spread: Tensor) -> Marginals:
        share = sites.variance / (sites.variance + self.tail)
        return Marginals(torch.lerp(sites.targets, mean, share), share * self.tail + share.square() * spread)

    @torch.no_grad()
    def sites(self, prior: Prior, x: Tensor, y: Tensor) -> tuple[Sites, Marginals]:
        """Sites of some rows, and q(f) under them. Cost: two transforms, and some expectations under the likelihood for
        each row."""
        likelihood, tail = prior.likelihood, self.tail
        series, spread = self.series(x)
        mean, floor = prior_mean(prior, x) + series, LEAST_NOISE * prior_variance(prior, x)

        def at(sites: Sites) -> Marginals:
            return self._under(sites, mean, spread)

        def floored(sites: Sites) -> Sites:
            return replace(sites, variance=torch.maximum(sites.variance, floor))

        if self.new:
            none = not self.sums.count
            before = Marginals(mean, spread + tail)
            sites = first_sites(prior, x, y, SiteSettings()) if none else local_sites(likelihood, y, before)[0]
            return floored(sites), at(floored(sites))
        found = Marginals(mean, spread + tail)
        for _ in range(ROUNDS):
            sites = floored(likelihood.sites_at(y, found.mean, found.variance, None))
            before, found = found, at(sites)
            moved = (found.variance / before.variance).log().abs() + (
                found.mean - before.mean
            ).abs() / found.variance.sqrt()
            if not bool((moved > EXACT).any()):
                break
        return sites, found


def sites_of(
    prior: Prior, survey: Survey, values: SeriesValues, deadline: Deadline
) -> Iterator[tuple[Prior, Block, Sites, Marginals]]:
    """The rows of a pass with the sites that q has for them. Raises: TimeUp."""
    first = 0
    for block in blocks_on_time(survey, PIECE, deadline):
        of_rows, y = prior_of_rows(prior, block), block.y.double()
        of_rows.likelihood.check_targets(y, first)
        first += len(y)
        yield of_rows, block, *values.sites(of_rows, block.x, y)


@torch.no_grad()
def sums_at(
    prior: Prior, survey: Survey, grid: Series, tail: float, values: SeriesValues, deadline: Deadline
) -> FourierSums:
    """Sums of a pass on a grid, which may be another than that of q. Raises: TimeUp."""

    def inputs() -> Iterator[tuple[Any, ...]]:
        for of_rows, block, sites, at in sites_of(prior, survey, values, deadline):
            beyond = Variational().excess(of_rows.likelihood, block.y.double(), at, sites).sum()
            yield block.x, prior.residual(block.x, sites.targets), sites.variance + tail, float(beyond)

    return FourierSums.of(grid, inputs(), 1, survey.group)


@torch.no_grad()
def settled(
    prior: Prior, survey: Survey, none: SeriesValues, start: SeriesValues | None, tolerance: float,
    settings: SiteSettings, deadline: Deadline,
) -> Pass[SeriesValues]:  # fmt: skip
    """The pass whose sums are a whole step from a q that has settled.

    Args: none, q of the prior on the grid; start, q to begin with, of any grid; None for what the sample says.
    Raises: ConvergenceError, TimeUp.
    """

    def pass_over(rows: Survey, times: float = 1.0) -> Callable[[SeriesValues], SeriesValues]:
        def over(values: SeriesValues) -> SeriesValues:
            sums = sums_at(prior, rows, none.sums.grid, none.tail, values, deadline)
            return none.having(sums if times == 1.0 else sums.times(times))

        return over

    over = pass_over(survey)
    if start is None:
        start = _of_sample(prior, survey, none, pass_over, settings)
    elif start.sums.grid != none.sums.grid:
        start = over(start)
    return settled_pass(prior.likelihood, start, over, -math.inf, tolerance, settings, survey.group)


def _of_sample(
    prior: Prior, survey: Survey, none: SeriesValues, pass_over: Callable[[Survey, float], Any], settings: SiteSettings
) -> SeriesValues:
    """q to begin with: what the sample says where it stands for all rows, as (M-360); where most rows are in it, or
    without time, of rows by themselves."""
    sample = survey.of_sample
    times = survey.count / sample.count
    over = pass_over(sample, times)
    start: SeriesValues = over(none.none(new=True))
    if times < settings.sample_ratio:
        return start
    with contextlib.suppress(ConvergenceError, NotPositiveDefiniteError, TimeUp):
        start = settled_pass(prior.likelihood, start, over, -math.inf, settings.search, settings, ALONE).sums
    sums, group = start.sums, survey.group
    if group.size == 1:
        return start
    entries, projected = (  # another rank may have ended otherwise
        torch.view_as_complex(group.from_first(torch.view_as_real(t))) if t.is_complex() else group.from_first(t)
        for t in (sums.entries, sums.projected)
    )
    return none.having(replace(sums, entries=entries, projected=projected))
