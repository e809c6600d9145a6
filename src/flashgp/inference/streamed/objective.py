"""The log joint with the collapsed bound in place of the likelihood: two passes over rows that are read."""

from collections.abc import Iterable, Iterator

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.lazy_import import load_autograd
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.bound import Block, BoundSums, StreamedBound
from flashgp.inference.training.objective import Array, LogJoint, Problem
from flashgp.sources.survey import Survey

__all__ = ["StreamedLogJoint", "block_rows", "blocks_of", "noise_of", "reference_noise"]

BLOCK_NUMBERS = 2**21  # of one buffer of a block: 16 MiB
MIN_BLOCK = 256  # rows, below which calls weigh as much as arithmetic


def block_rows(inducing: int) -> int:
    """Rows of a block."""
    return max(MIN_BLOCK, BLOCK_NUMBERS // max(1, inducing))


def noise_of(prior: Prior, y: Tensor) -> Tensor:
    """The one noise variance of every row, (1,); y, (n,) or (n, outputs), some of them. Raises: DomainError."""
    if not shares_noise(prior, y):
        raise DomainError(
            f"`likelihood` must have one noise variance for all rows, got one of each from {prior.likelihood.name}; "
            'condition on rows that are held with approximation="sparse", or leave out the approximation'
        )
    return prior.sites(y).variance


def reference_noise(prior: Prior, y: Tensor) -> Tensor:
    """The same; 1 where rows have noise of their own."""
    return prior.sites(y).variance if shares_noise(prior, y) else torch.ones(1, dtype=torch.float64, device=y.device)


def shares_noise(prior: Prior, y: Tensor) -> bool:
    """Whether the sites of all rows have one variance: those of two rows alike tell."""
    return prior.likelihood.rows_alike and prior.sites(y[:1].repeat_interleave(2, 0)).variance.numel() == 1


def blocks_of(
    prior: Prior, tables: Iterable[tuple[Tensor, Tensor]], device: torch.device, first: int = 0
) -> Iterator[Block]:
    """Sites and features of tables (x, y), one after the other. Args: first, the number of their first row, for
    likelihoods that know rows one by one."""
    for x, y in tables:
        of_rows = prior
        if not prior.likelihood.rows_alike:
            index = torch.arange(first, first + len(x), device=device)
            of_rows = prior.with_likelihood(prior.likelihood.rows(index))
        first += len(x)
        x, y = x.to(device), y.to(device)
        sites = of_rows.sites(y)
        variance = None if shares_noise(prior, y) else sites.variance.expand(len(x))
        yield Block(prior.residual(x, sites.targets), prior.kernel.rows(x), variance, sites.log_scale)


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
            noise = float(reference_noise(prior, self.problem.y))
            points = prior.kernel.rows(self.points).detach()
            bound = StreamedBound(prior, points, noise, self.survey.count, self.problem.direct.workspace)
            sums = bound.sums(blocks_of(prior, self._tables(), self.points.device))
        return bound, sums

    def _by_autograd(self) -> tuple[float, Array]:
        prior = self.problem.prior
        bound, sums = self.bound()
        tensors, total = self.parameters.tensors, numpy.zeros(self.parameters.size)
        taped: list[Block] = []

        def blocks() -> Iterator[Block]:
            made = blocks_of(prior, self._tables(), self.points.device)
            while True:
                with torch.enable_grad():
                    block = next(made, None)
                if block is None:
                    return
                taped.append(block)
                yield block.detached()

        with torch.no_grad():
            for slopes in bound.gradients(blocks(), sums):
                block = taped.pop()
                pairs = [(block.residual, slopes.residual), *zip(block.rows.tensors, slopes.rows, strict=True)]
                pairs += [(t, slope) for t, slope in ((block.variance, slopes.variance),) if t is not None]
                if block.log_scale is not None:
                    pairs.append((block.log_scale, torch.ones_like(block.log_scale)))
                outputs = [(t, slope) for t, slope in pairs if t.requires_grad and slope is not None]
                if outputs:
                    found, grads = zip(*outputs, strict=True)
                    parts = torch.autograd.grad(found, tensors, grads, allow_unused=True)
                    total = total + self.parameters.flat(parts)
        with torch.enable_grad():
            noise, points = reference_noise(prior, self.problem.y), prior.kernel.rows(self.points)
            theta = [t.to(self.points.device) for t in prior.kernel.theta()]
            by_noise = torch.full_like(noise, bound.by_noise)
            extra, rest = self.pull((noise, *points.tensors, *theta), (by_noise, *bound.by_points, *bound.by_theta))
        return sums.lower + extra, total + rest

    def log_scale(self) -> None:
        """None: the bound has it, of all rows."""
        return

    def _tables(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.survey.blocks(block_rows(len(self.points)))
