"""The log joint with the likelihood of Fourier series: after one pass over the rows an evaluation does not see them.

With B of (M-432), b its solution, a = E* (K + S)^-1 r and G = diag(I - B^-1), for rows of one noise s, eq. (M-436):

    d L / d c_j = |a_j|^2 / 2 - G_j / (2 c_j)
    d L / d s   = (r' (K + S)^-1 r - sum c |a|^2) / (2 s) - (n - sum G) / (2 s)
    d L / d m   = a_0                                                               (a constant mean)

Rows whose noise differs, or whose mean is not constant, take a pass for each evaluation: with d of each row what a
parameter adds to its noise, eq. (M-443),

    d L / d p   = (|r - E W b|^2 in d / s^2 - sum d / s + tr B^-1 W E* (d / s^2) E W) / 2

The spectrum is an FFT of values of the covariance function, so that autograd carries dL/dc to its parameters. Without a
factor G and log|B| are estimates, by vectors that stay while parameters move.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline, TimeUp
from flashgp.foundations.transforms import vector_jacobian
from flashgp.inference.fourier.grid import PIECE
from flashgp.inference.fourier.grids import Series, coordinates_of
from flashgp.inference.fourier.planned import passes_of
from flashgp.inference.fourier.spectrum import coefficients, left_out
from flashgp.inference.fourier.state import FourierSettings
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.rows import prior_of_rows
from flashgp.inference.training.gradient_search import evaluated_over
from flashgp.inference.training.objective import Array, Estimate, Evaluation, LinearLogJoint, Problem
from flashgp.inference.training.settings import StochasticSettings
from flashgp.means import Constant, Zero
from flashgp.sources.survey import Survey

F64 = torch.float64
ERROR = 1e-2  # of a solve in a search in the norm of B, for the root of the rows: as (M-106)


class SeriesLogJoint(LinearLogJoint):
    """Minus the log joint on a grid of frequencies, of sums over rows.

    Args: problem, whose priors and parameters are taken; grid; settings; seed, of probes; deadline, of solves.
    Fields: paced, told once, without a factor, the seconds of an evaluation by those of its first solve.
    """

    paced: Callable[[float], None] | None = None

    def __init__(
        self, problem: Problem, grid: Series, settings: FourierSettings, seed: int, deadline: Deadline = NO_DEADLINE
    ) -> None:
        super().__init__(problem)
        self.grid, self.settings, self._seed, self._deadline = grid, settings, seed, deadline
        self._start: Tensor | None = None  # weights of the last evaluation, times W

    @property
    def factored(self) -> bool:
        return bool(coordinates_of(self.grid, self.settings.solves.dense))

    @property
    def estimate(self) -> Estimate | None:
        """Of gradients by probes; None where there is a factor."""
        if self.factored:
            return None
        probes = self.settings.solves.probes_of(self.grid.size)
        return Estimate(self.parameters.size / (2.0 * probes), StochasticSettings().negligible_gain * self.rows)

    def weights(self, spectrum: Tensor, sums: FourierSums) -> WeightPosterior:
        """Of the posterior, from those of the last evaluation."""
        system = sums.system(spectrum, self.settings.solves, self._deadline.own)
        start = self._start
        told = None if system.dense else self.paced
        if told is not None:
            system.precondition(torch.zeros_like(sums.projected))  # what is made once
        began = time.perf_counter()
        if start is not None and not system.dense:
            start = start / system.root.clamp_min(torch.finfo(F64).tiny)
            start = torch.where(system.root > 0.0, start, 0.0)
        found = WeightPosterior.of(sums, system, ERROR * self.rows**0.5, start)
        self._start = system.root * found.solution.value
        if told is not None:
            self.paced = None
            solves = 1.0 + self.settings.solves.probes_of(self.grid.size) / len(sums.squares)
            told((time.perf_counter() - began) * solves)
        return found

    def pull(self, inputs: Sequence[Tensor], slopes: Sequence[Tensor | None], *more: Any, **how: Any) -> Any:
        """See `LogJoint.pull`: the weights' slopes are on the CPU, the parameters where the caller has them."""
        moved = [None if by is None else by.to(one.device) for one, by in zip(inputs, slopes, strict=True)]
        return super().pull(inputs, moved, *more, **how)

    def slopes(
        self, weights: WeightPosterior, others: Sequence[FourierSums] = ()
    ) -> tuple[float, Tensor, Tensor, list[float]]:
        """The log likelihood, its slopes by the spectrum, and what `log_determinant` has. Raises: TimeUp."""
        system, spectrum = weights.system, weights.system.spectrum
        logs, shares, traces = system.log_determinant(self._seed, [self.grid.gram(other.entries) for other in others])
        if not system.dense and self._deadline.passed():  # solves of a rank ended where they were
            raise TimeUp
        known = spectrum > torch.finfo(F64).tiny
        per = torch.where(known, shares / spectrum, system.gram.diagonal)
        by_spectrum = 0.5 * (self._powers(weights) - len(weights.dual) * per) * self.grid.multiplicity
        return weights.log_likelihood(logs), by_spectrum, shares, traces

    def _powers(self, weights: WeightPosterior) -> Tensor:
        """|a_j|^2 of all outputs, (*shape)."""
        dual = weights.dual
        return (dual.real.square() + dual.imag.square()).sum(0)


class FourierLogJoint(SeriesLogJoint):
    """Minus the log joint of the rows of a survey, of all ranks, on a grid, with its gradient.

    Args: problem, of the sample of the rows; prior, of the rows, which shares its parameters; deadline, of all ranks;
        others as above.
    """

    def __init__(
        self, problem: Problem, prior: Prior, survey: Survey, grid: Series, settings: FourierSettings, seed: int,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:  # fmt: skip
        super().__init__(problem, grid, settings, seed, deadline)
        self.rows, self._width, self._prior, self._survey = survey.count, survey.width, prior, survey
        self._offset = survey.y_moments.mean.cpu()
        self._unit: FourierSums | None = None
        if passes_of(prior, alike=not survey.sample.numbers):
            return
        one = torch.ones(1, dtype=F64)
        blocks = (
            (block.x, block.y.reshape(len(block.y), -1).double() - self._offset, one) for block in survey.blocks(PIECE)
        )
        with torch.no_grad():
            self._unit = FourierSums.of(grid, blocks, len(self._offset), survey.group)

    def __call__(self, theta: Array) -> Evaluation:
        return evaluated_over(self._survey.group, lambda: super(FourierLogJoint, self).__call__(theta))

    def _by_autograd(self) -> tuple[float | None, Array]:
        with torch.enable_grad():
            spectrum = coefficients(self._prior.kernel, self.grid, self._width)
            left = left_out(self._prior.kernel, self.grid, spectrum, self._width)
        if self._unit is None:
            return self._by_passes(spectrum, left)
        prior, outputs = self.problem.prior, len(self._offset)
        with torch.enable_grad():
            noise = prior.sites(self.problem.y[:1]).variance.reshape(-1)[0] + left
            mean = prior.mean_at(self.problem.x[:1])[0].expand(outputs)
        with torch.no_grad():
            sums = self._unit.scaled(float(noise), mean.detach().cpu() - self._offset)
            weights = self.weights(spectrum.detach(), sums)
            value, by_spectrum, shares, _ = self.slopes(weights)
            explained = float(self.grid.total(spectrum * self._powers(weights)))
            trace = self.rows - float(self.grid.total(shares))
            by_noise = 0.5 * (float(weights.quadratic.sum()) - explained - outputs * trace) / float(noise)
            slopes = [by_spectrum, torch.tensor(by_noise, dtype=F64), weights.dual[self.grid.zero].real]
        with torch.enable_grad():
            extra, gradient = self.pull((spectrum, noise, mean), slopes)
        return value + extra, gradient

    # -- rows that are not alike -----------------------------------------------------------------------------------
    def _by_passes(self, spectrum: Tensor, left: Tensor) -> tuple[float, Array]:
        """A pass for the sums, of noise and of what changes it, eq. (M-443), and one for the mean, if it moves."""
        grid, outputs = self.grid, len(self._offset)
        with torch.no_grad():
            sums, *others = (FourierSums.none(grid, outputs) for _ in range(3))
            totals, group = torch.zeros(2, dtype=F64), self._survey.group
            noise = prior_of_rows(self._prior, self._survey.sample).likelihood.linear_noise()
            moving = None if noise is None else noise.parameter
            for of_rows, x, residual, variance in self._blocks(float(left.detach())):
                sums, noise = sums.added(x, residual, variance), of_rows.likelihood.linear_noise()
                scale = torch.ones_like(variance)
                if noise is not None and noise.parameter is not None and noise.scale is not None:
                    scale = noise.scale.to(variance)
                for k, share in enumerate((torch.ones_like(variance), scale)):
                    others[k] = others[k].added(x, residual, variance.square() / share)
                    totals[k] += (share / variance).expand(len(x)).sum()
            sums, *others = (each.over(group) for each in (sums, *others))
            weights = self.weights(spectrum.detach(), sums)
            value, by_spectrum, _, traces = self.slopes(weights, others)
            mean = weights.system.root * weights.solution.value
            slopes = [
                0.5 * (float(self._left(other, mean)) - outputs * (total - trace))
                for other, total, trace in zip(others, group.sum(totals).tolist(), traces, strict=True)
            ]
        one_mean = isinstance(self._prior.mean, Constant | Zero)
        with torch.enable_grad():
            inputs, by = [spectrum, left], [by_spectrum, torch.tensor(slopes[0], dtype=F64)]
            if one_mean:
                inputs = [*inputs, self._prior.mean_at(self.problem.x[:1])[0].expand(outputs)]
                by = [*by, weights.dual[grid.zero].real]
            if moving is not None:
                inputs, by = [*inputs, moving.value], [*by, torch.tensor(slopes[1], dtype=F64)]
            extra, gradient = self.pull(inputs, by)
        moves = not one_mean and any(one.requires_grad for one in self._prior.mean.parameters())
        return value + extra, gradient + self._by_mean(mean, float(left.detach())) if moves else gradient

    def _left(self, sums: FourierSums, mean: Tensor) -> Tensor:
        """|r - E u|^2 in the precisions of sums, of all outputs. Args: mean, u, (p, *shape)."""
        product = self.grid.gram(sums.entries)(mean)
        return (sums.squares + self.grid.dot(mean, product - 2.0 * sums.projected)).sum()

    def _blocks(self, left: float, *, again: bool = False) -> Iterator[tuple[Prior, Tensor, Tensor, Tensor]]:
        """The prior of some rows, their x, residual and variance, one block after the other. Args: again, whether an
        evaluation has gone through them."""
        for block in self._survey.blocks(PIECE):
            of_rows = prior_of_rows(self._prior, block)
            sites = of_rows.sites(block.y)
            yield of_rows, block.x, self._prior.residual(block.x, sites.targets), sites.variance.double() + left

    def _by_mean(self, mean: Tensor, left: float) -> Array:
        """Slopes by parameters of the prior mean, from a = (r - E u) / s. Args: mean, u, (p, *shape)."""
        found = numpy.zeros(self.parameters.size)
        for _, x, residual, variance in self._blocks(left, again=True):
            with torch.no_grad():
                dual = (residual - self.grid.forward(x, mean).mT) / variance.unsqueeze(-1)
            with torch.enable_grad():
                at = self._prior.mean_at(x)
                found = found + self.parameters.flat(vector_jacobian([(at, dual)], self.parameters.tensors))
        return self._survey.group.sum(torch.from_numpy(found)).numpy()
