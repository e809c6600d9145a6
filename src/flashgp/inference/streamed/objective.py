"""The log joint with the collapsed bound in place of the likelihood: two passes over rows that are read."""

from collections.abc import Iterator

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.form import Rows
from flashgp.foundations.lazy_import import load_autograd
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.bound import BoundSums, StreamedBound
from flashgp.inference.training.objective import Array, LogJoint, Problem
from flashgp.sources.survey import Survey

__all__ = ["StreamedLogJoint", "block_rows", "inputs_of", "noise_of"]

BLOCK_NUMBERS = 2**21  # of one buffer of a block: 16 MiB
MIN_BLOCK = 256  # rows, below which calls weigh as much as arithmetic


def block_rows(inducing: int) -> int:
    """Rows of a block."""
    return max(MIN_BLOCK, BLOCK_NUMBERS // max(1, inducing))


def noise_of(prior: Prior, y: Tensor) -> Tensor:
    """The one noise variance of every row, (1,); y, (n,) or (n, outputs), some of them. Raises: DomainError."""
    variance = prior.sites(y).variance
    if variance.numel() != 1:
        raise DomainError(
            f"`likelihood` must have one noise variance for all rows that are read, got one of shape "
            f"{tuple(variance.shape)} from {prior.likelihood.name}; hold the rows, and leave out the approximation"
        )
    return variance


def inputs_of(prior: Prior, x: Tensor, y: Tensor, device: torch.device) -> tuple[Tensor, Rows]:
    """The residual, (b, p), and the features of some rows."""
    x, y = x.to(device), y.to(device)
    return prior.residual(x, prior.sites(y).targets), prior.kernel.rows(x)


class StreamedLogJoint(LogJoint):
    """Minus the log joint with the lower bound (M-160), with its gradient, eqs. (M-162) and (M-163).

    Args:
        problem: of the sample of the rows, whose priors and parameters are taken.
        survey: the rows.
        points: inducing points (m, d), which stay.
    Cost: two passes over the rows; (bound.py).
    """

    def __init__(self, problem: Problem, survey: Survey, points: Tensor) -> None:
        super().__init__(problem)
        load_autograd()
        self._small = None
        self.survey, self.points, self.rows = survey, points, survey.count

    @property
    def cost_power(self) -> int:
        return 1

    def bound(self) -> tuple[StreamedBound, BoundSums]:
        """At the parameters that the prior has: the first pass."""
        prior = self.problem.prior
        with torch.no_grad():
            noise = float(noise_of(prior, self.problem.y))
            points = prior.kernel.rows(self.points).detach()
            bound = StreamedBound(prior, points, noise, self.survey.count, self.problem.direct.workspace)
            sums = bound.sums(inputs_of(prior, x, y, self.points.device) for x, y in self._blocks())
        return bound, sums

    def _by_autograd(self) -> tuple[float, Array]:
        prior = self.problem.prior
        bound, sums = self.bound()
        tensors, total = self.parameters.tensors, numpy.zeros(self.parameters.size)
        taped: list[tuple[Tensor, Rows]] = []

        def blocks() -> Iterator[tuple[Tensor, Rows]]:
            for x, y in self._blocks():
                with torch.enable_grad():
                    taped.append(inputs_of(prior, x, y, self.points.device))
                yield taped[-1][0].detach(), taped[-1][1].detach()

        with torch.no_grad():
            for slopes in bound.gradients(blocks(), sums):
                residual, rows = taped.pop()
                pairs = [(residual, slopes.residual), *zip(rows.tensors, slopes.rows, strict=True)]
                outputs = [(t, slope) for t, slope in pairs if t.requires_grad and slope is not None]
                if outputs:
                    found, grads = zip(*outputs, strict=True)
                    parts = torch.autograd.grad(found, tensors, grads, allow_unused=True)
                    total = total + self.parameters.flat(parts)
        with torch.enable_grad():
            noise, points = noise_of(prior, self.problem.y), prior.kernel.rows(self.points)
            theta = [t.to(self.points.device) for t in prior.kernel.theta()]
            by_noise = torch.full_like(noise, bound.by_noise)
            extra, rest = self.pull((noise, *points.tensors, *theta), (by_noise, *bound.by_points, *bound.by_theta))
        return sums.lower + extra, total + rest

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.survey.blocks(block_rows(len(self.points)))
