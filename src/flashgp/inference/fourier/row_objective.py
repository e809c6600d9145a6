"""The log joint by Fourier series of rows that are held, each with noise of its own: a pass in each evaluation.

With s of the sites, t the tail, s' = s + t, f and v mean and variance of the series at the rows, w = (r - f) / s', eq.
(M-449):

    q(f_i)        = N(targets_i - s_i w_i, s_i t / s'_i + (s_i / s'_i)^2 v_i)
    d L / d s'_i  = (w_i^2 - 1 / s'_i + v_i / s'_i^2) / 2,   d L / d r_i = -w_i

and by the spectrum (M-436). A step of iterated sites is a pass, a factor, and two transforms of all rows.
"""

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import TimeUp
from flashgp.inference.fourier.objective import SeriesLogJoint
from flashgp.inference.fourier.spectrum import coefficients, left_out
from flashgp.inference.fourier.state import variance_at
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import prior_variance, within
from flashgp.inference.training.objective import Array

F64 = torch.float64
SLACK = 1e-2  # nats a row, where variances are by windows or draws


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows by a series. Fields: weights; noise, s', (n,); dual, w, (n, p); spread, v, (n,)."""

    weights: WeightPosterior
    noise: Tensor
    dual: Tensor
    spread: Tensor


class FourierRowLogJoint(SeriesLogJoint):
    """Minus the log joint of the rows of a problem, with its gradient."""

    _known: tuple[Array, Tensor, Tensor] | None = None  # parameters, the spectrum and the tail there

    @property
    def bound_slack(self) -> float:
        return 0.0 if self.factored else SLACK

    @torch.no_grad()
    def marginals(self) -> tuple[float | None, Marginals]:
        """See `LogJoint.marginals`; of a value only where there is a factor."""
        problem, theta = self.problem, self.parameters.values()
        if self._known is None or not numpy.array_equal(self._known[0], theta):
            self._known = theta, *self._spectrum()
        _, spectrum, tail = self._known
        sites = problem.with_sites.sites(problem.y)
        found = self._at(spectrum, sites.variance + tail, problem.prior.residual(problem.x, sites.targets))
        share = sites.variance / found.noise
        variance = share * tail + share.square() * found.spread
        system = found.weights.system
        value = found.weights.log_likelihood(system.log_of_factor) if system.dense else None
        mean = sites.targets - sites.variance * found.dual[:, 0]
        return value, Marginals(mean, within(variance, sites.variance, prior_variance(problem.prior, problem.x)))

    def _by_autograd(self) -> tuple[float | None, Array]:
        problem, held = self.problem, self.problem.sites
        with torch.enable_grad():
            spectrum, tail = self._spectrum()
            sites = problem.with_sites.sites(problem.y)
            noise = (sites.variance + tail).expand(len(problem.x))
            residual = problem.prior.residual(problem.x, sites.targets)
            beyond = [] if held is None else [held.beyond(problem.prior, problem.y)]
        with torch.no_grad():
            found = self._at(spectrum.detach(), noise.detach(), residual.detach())
            value, by_spectrum, _, _ = self.slopes(found.weights)
            alone = 1.0 / found.noise - found.spread / found.noise.square()
            by_noise = 0.5 * (found.dual.square() - alone.unsqueeze(-1)).sum(-1)
        with torch.enable_grad():
            extra, gradient = self.pull((spectrum, noise, residual), (by_spectrum, by_noise, -found.dual), beyond)
        return value + extra, gradient

    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """c and the tail, differentiable."""
        kernel, d = self.problem.prior.kernel, self.problem.x.shape[-1]
        spectrum = coefficients(kernel, self.grid, d)
        return spectrum, left_out(kernel, self.grid, spectrum, d)

    def _at(self, spectrum: Tensor, noise: Tensor, residual: Tensor) -> _Rows:
        """Raises: TimeUp."""
        x = self.problem.x
        sums = FourierSums.of(self.grid, [(x, residual, noise)], residual.shape[-1])
        weights = self.weights(spectrum, sums)
        if self._deadline.passed():
            raise TimeUp
        below = self.grid.forward(x, weights.system.root * weights.solution.value).mT
        spread = variance_at(weights, self.problem.prior.kernel, x, noise, self.settings, self._seed)
        return _Rows(weights, noise, (residual - below) / noise.unsqueeze(-1), spread)
