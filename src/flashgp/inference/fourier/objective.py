"""The log joint with the likelihood of Fourier series: after one pass over the rows an evaluation does not see them.

With B of (M-432), b its solution, a = E* (K + S)^-1 r and G = diag(I - B^-1), for rows of one noise s, eq. (M-436):

    d L / d c_j = |a_j|^2 / 2 - G_j / (2 c_j)
    d L / d s   = (r' (K + S)^-1 r - sum c |a|^2) / (2 s) - (n - sum G) / (2 s)
    d L / d m   = a_0                                                               (a constant mean)

The spectrum is an FFT of values of the covariance function, so that autograd carries dL/dc to its parameters. Without a
factor G and log|B| are estimates, by vectors that stay while parameters move.
"""

from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline, TimeUp
from flashgp.inference.fourier.domain_basis import factored
from flashgp.inference.fourier.grid import PIECE, Grid
from flashgp.inference.fourier.spectrum import coefficients, differentiable_variance
from flashgp.inference.fourier.state import FourierSettings
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.training.objective import Array, Estimate, LogJoint, Problem
from flashgp.inference.training.settings import StochasticSettings
from flashgp.sources.survey import Survey

F64 = torch.float64
ERROR = 1e-2  # of a solve in a search in the norm of B, for the root of the rows: as (M-106)


class FourierLogJoint(LogJoint):
    """Minus the log joint of the rows of a survey on a grid, with its gradient.

    Args: problem, of the sample of the rows, whose priors and parameters are taken; offset, taken off the targets.
    """

    keeps_covariance = False

    def __init__(
        self, problem: Problem, survey: Survey, grid: Grid, settings: FourierSettings, seed: int,
        deadline: Deadline = NO_DEADLINE,
    ) -> None:  # fmt: skip
        super().__init__(problem)
        self._small = None
        self.grid, self.rows, self.settings, self._seed = grid, survey.count, settings, seed
        self._deadline, self._width = deadline, survey.width
        self._start: Tensor | None = None  # weights of the last evaluation, times W
        self._offset = survey.y_moments.mean.cpu()
        one = torch.ones(1, dtype=F64)

        blocks = (
            (block.x, block.y.reshape(len(block.y), -1).double() - self._offset, one) for block in survey.blocks(PIECE)
        )
        with torch.no_grad():
            self._unit = FourierSums.of(grid, blocks, len(self._offset))

    @property
    def cost_power(self) -> int:
        return 1

    @property
    def estimate(self) -> Estimate | None:
        """Of gradients by probes; None where there is a factor."""
        if factored(self.grid, self.settings.solves.dense):
            return None
        probes = self.settings.solves.probes_of(self.grid.size)
        return Estimate(self.parameters.size / (2.0 * probes), StochasticSettings().negligible_gain * self.rows)

    def _by_autograd(self) -> tuple[float | None, Array]:
        prior, outputs = self.problem.prior, len(self._offset)
        with torch.enable_grad():
            spectrum = coefficients(prior.kernel, self.grid, self._width)
            left = differentiable_variance(prior.kernel, self._width) - self.grid.total(spectrum)
            noise = prior.sites(self.problem.y[:1]).variance.reshape(-1)[0] + left.clamp_min(0.0)
            mean = prior.mean_at(self.problem.x[:1])[0].expand(outputs)
        with torch.no_grad():
            value, slopes = self._value(spectrum.detach(), float(noise), mean.detach().cpu())
        with torch.enable_grad():
            extra, gradient = self.pull((spectrum, noise, mean), slopes)
        return value + extra, gradient

    def _value(self, spectrum: Tensor, noise: float, mean: Tensor) -> tuple[float, list[Tensor | None]]:
        grid, outputs = self.grid, len(self._offset)
        sums = self._unit.scaled(noise, mean - self._offset)
        system = sums.system(spectrum, self.settings.solves, self._deadline)
        start = self._start
        if start is not None and not system.dense:
            start = start / system.root.clamp_min(torch.finfo(F64).tiny)
            start = torch.where(system.root > 0.0, start, 0.0)
        weights = WeightPosterior.of(sums, system, ERROR * self.rows**0.5, start)
        self._start = system.root * weights.solution.value
        logs, shares = system.log_determinant(self._seed)
        if not system.dense and self._deadline.passed():  # solves ended where they were
            raise TimeUp
        dual = weights.dual
        powers = (dual.real.square() + dual.imag.square()).sum(0)
        known = spectrum > torch.finfo(F64).tiny
        per = torch.where(known, shares / spectrum, system.toeplitz.diagonal)
        by_spectrum = 0.5 * (powers - outputs * per) * grid.multiplicity
        quadratic = float(weights.quadratic.sum())
        explained = float(grid.total(spectrum * powers))
        trace = self.rows - float(grid.total(shares))
        by_noise = torch.tensor(0.5 * (quadratic - explained - outputs * trace) / noise, dtype=F64)
        zero: Any = (slice(None), *grid.orders[:-1], 0)
        by_mean = dual[zero].real
        return weights.log_likelihood(logs), [by_spectrum, by_noise, by_mean]
