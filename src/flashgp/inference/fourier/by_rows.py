"""Variances by the rows that are held, where the weights have no factor and these rows have one sooner, eq. (M-42).

    variance = k(x*, x*) - |L^-1 K_xs|^2,   L L' = K + S

Nothing is left out of K, so that the variance knows what rows tell of the tail.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.inference.exact.likelihood import DirectSettings, factorise_covariance
from flashgp.inference.prior import Prior
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.solvers.direct.cholesky import Factor

NUMBERS = 2**24  # of K_xs at once


@dataclass(frozen=True, eq=False)
class ByRows:
    """Fields: prior; x, the rows, (n, d), float64; factor, L."""

    prior: Prior
    x: Tensor
    factor: Factor

    @classmethod
    def of(cls, prior: Prior, x: Tensor, noise: Tensor) -> "ByRows":
        """Args: noise, of each row, (n,). Cost: n^3 / 3. Raises: NotPositiveDefiniteError."""
        kernel, x = prior.kernel, x.double().cpu()
        how = DirectSettings(TorchTiles(), jitter=0.0)
        problem = PairProblem(kernel.form, kernel.theta(), kernel.rows(x))
        return cls(prior, x, factorise_covariance(how, problem, noise.cpu()))

    def variance(self, x: Tensor) -> Tensor:
        """Of f at points (k, d), (k,), differentiable by them. Cost: n^2 for each point."""
        parts = x.double().split(max(1, NUMBERS // len(self.x)))
        return torch.cat(
            [self.prior.kernel(some).diagonal() - self._solved(some).square().sum(0) for some in parts]
            or [x.new_zeros(0).double()]
        ).clamp_min(0.0)

    def covariance(self, x: Tensor) -> Tensor:
        """Of f between points (k, d), (k, k), likewise."""
        solved = self._solved(x.double())
        return self.prior.kernel(x.double()).to_dense() - solved.mT @ solved

    def _solved(self, x: Tensor) -> Tensor:
        """L^-1 K_xs, (n, k)."""
        return self.factor.half_solve(self.prior.kernel(self.x, x).to_dense().double())
