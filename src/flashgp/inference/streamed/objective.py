"""The log joint with the collapsed bound in place of the likelihood: two passes over rows that are read."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline, TimeUp
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.transforms import vector_jacobian
from flashgp.inference.prior import Prior
from flashgp.inference.sites import SiteSettings, from_prior
from flashgp.inference.streamed.bound import BlockInputs, BoundSums, StreamedBound, shape_of
from flashgp.inference.streamed.rows import blocks_on_time, inputs_of
from flashgp.inference.streamed.steps import InducingValues, settled_pass
from flashgp.inference.training.gradient_search import evaluated_over
from flashgp.inference.training.objective import Array, Evaluation, LinearLogJoint, Problem
from flashgp.processes.gradient_shares import sum_together
from flashgp.processes.group import ALONE
from flashgp.sources.survey import Block, Survey

F64 = torch.float64

BLOCK_NUMBERS = 2**21  # of one buffer of a block: 16 MiB
MIN_BLOCK = 256  # rows, below which calls weigh as much as arithmetic


def block_rows(inducing: int, matrices: int = 1) -> int:
    """Rows of a block, for which there are so many numbers of each covariance matrix."""
    return max(MIN_BLOCK, BLOCK_NUMBERS // max(1, inducing * matrices))


def blocks_of(survey: Survey, prior: Prior, inducing: int, deadline: Deadline) -> Iterator[Block]:
    """`blocks_on_time`, of as many rows as so many inducing points leave room for."""
    return blocks_on_time(survey, block_rows(inducing, prior.factors), deadline)


@torch.no_grad()
def first_values(
    bound: StreamedBound, survey: Survey, points: Tensor, settings: SiteSettings, deadline: Deadline
) -> InducingValues:
    """q(u) that passes over all rows begin with: what the sample says where it stands for them, (M-360), which is as
    near as a part of its size is; that of the prior where most of the rows are in the sample, or without time.

    Cost: some ten passes over the sample.
    """
    prior, start = bound.prior, InducingValues.of_prior(bound.basis, bound.floor, shape_of(bound.prior))
    sample = survey.of_sample
    if survey.count < settings.sample_ratio * sample.count:
        return start
    few = StreamedBound(
        prior, prior.kernel.rows(points).detach(), sample.count, bound.workspace, times=survey.count / sample.count
    )

    def sums_at(values: InducingValues) -> BoundSums:
        blocks = blocks_of(sample, prior, len(points), deadline)
        return few.sums(inputs_of(prior, blocks, points.device, values=values))

    found = start.sums
    with contextlib.suppress(ConvergenceError, NotPositiveDefiniteError, TimeUp):
        found = settled_pass(prior.likelihood, start, sums_at, -math.inf, settings.search, settings, ALONE).sums
    # Another rank may have ended otherwise.
    count = int(survey.group.number_of_first(found.count))
    gram, projected = (survey.group.from_first(t) for t in (found.gram, found.projected))
    return dataclasses.replace(start, sums=dataclasses.replace(found, count=count, gram=gram, projected=projected))


class StreamedLogJoint(LinearLogJoint):
    """Minus the log joint with the lower bound (M-160), with its gradient, eqs. (M-162) and (M-163).

    Args:
        problem: of the sample of the rows, whose priors and parameters are taken.
        survey: the rows.
        points: inducing points (m, d), which stay.
        stand_for: rows that those of the survey are a random part of: each counts as often, (M-240); None for itself.
        deadline: of a pass; that of the group where its ranks go through the same rows.
        prior: of the rows of the survey, with the problem's parameters; None for that of the problem.
    Cost: two passes over the rows (bound.py), and one for each step of iterated sites (steps.py).
    """

    def __init__(
        self,
        problem: Problem,
        survey: Survey,
        points: Tensor,
        stand_for: int | None = None,
        deadline: Deadline = NO_DEADLINE,
        prior: Prior | None = None,
    ) -> None:
        super().__init__(problem)
        self._prior = prior or problem.prior
        self.survey, self.points, self.rows = survey, points, stand_for or survey.count
        self._deadline = deadline
        self._sums: BoundSums | None = None
        self._best: tuple[float, Array, BoundSums] | None = None
        self._value = math.inf  # of the bound at those: sums that have not settled are no bound
        self._values: InducingValues | None = None  # that sites of the last evaluation are made from

    @property
    def cost_rows(self) -> int:
        return self.survey.count

    def __call__(self, theta: Array) -> Evaluation:
        evaluation = evaluated_over(self.survey.group, lambda: super(StreamedLogJoint, self).__call__(theta))
        assert evaluation.value is not None
        assert self._sums is not None
        if self._best is None or evaluation.value < self._best[0]:
            self._best = evaluation.value, theta.copy(), self._sums
        return evaluation

    def sums_at(self, theta: Array) -> BoundSums | None:
        """Sums of the best evaluation, if it was at this vector: its posterior needs no other pass."""
        if self._best is None or not numpy.array_equal(self._best[1], theta):
            return None
        return self._best[2]

    def settled(self, tolerance: float | None = None, deadline: Deadline = NO_DEADLINE) -> None:
        """None: a pass makes sites."""
        return

    def bound(self) -> tuple[StreamedBound, BoundSums]:
        """Bound and sums at the parameters that the prior has: the first pass, or as many as sites take."""
        problem, survey = self.problem, self.survey
        with torch.no_grad():
            points = self._prior.kernel.rows(self.points).detach()
            times = self.rows / survey.count
            bound = StreamedBound(
                self._prior, points, survey.count, problem.direct.workspace, survey.group, times=times
            )
            if problem.sites is None:
                return bound, self._sums_at(bound, None)
            start = self._start(bound)
            least = self._of_prior() if start.sums.count else -math.inf  # of the prior itself
            found = settled_pass(
                self._prior.likelihood, start, lambda q: self._sums_at(bound, q), least,
                problem.sites.settings.search, problem.sites.settings, survey.group,
            )  # fmt: skip
            problem.sites.steps.append(found.steps)
            self._values, self._value = found.before, found.value
        return bound, found.sums

    def _start(self, bound: StreamedBound) -> InducingValues:
        """q(u) of the last evaluation, or to begin with."""
        if self._values is None:
            sites = self.problem.sites
            assert sites is not None
            return first_values(bound, self.survey, self.points, sites.settings, self._deadline)
        return dataclasses.replace(self._values, basis=bound.basis, floor=bound.floor)

    def _of_prior(self) -> float:
        """The bound at the q(u) of the prior, estimated by the sample."""
        problem = self.problem
        found = from_prior(problem.prior, problem.x, problem.y.double()).value
        assert found is not None
        return self.survey.group.number_of_first(found * self.rows / problem.rows)

    def _sums_at(self, bound: StreamedBound, values: InducingValues | None) -> BoundSums:
        return bound.sums(inputs_of(self._prior, self._blocks(), self.points.device, values=values))

    def _by_autograd(self) -> tuple[float, Array]:
        prior = self._prior
        bound, sums = self.bound()
        self._sums = sums
        tensors, total = self.parameters.tensors, numpy.zeros(self.parameters.size)
        taped: list[BlockInputs] = []

        def blocks() -> Iterator[BlockInputs]:
            made = inputs_of(prior, self._blocks(), self.points.device, values=self._values)
            while True:
                with torch.enable_grad():
                    block = next(made, None)
                if block is None:
                    return
                taped.append(block)
                yield block.detached()

        with torch.no_grad():
            for of_block in bound.gradients(blocks(), sums):
                residual, rows, noise, log_scale, _ = taped.pop()
                pairs: list[tuple[Tensor, Tensor | None]] = [(residual, of_block.residual), (noise, of_block.noise)]
                pairs += zip(rows.tensors, of_block.rows, strict=True)
                if log_scale is not None:
                    pairs.append((log_scale, torch.full_like(log_scale, bound.times)))
                followed = [(t, slope) for t, slope in pairs if t.requires_grad and slope is not None]
                if followed:
                    total = total + self.parameters.flat(vector_jacobian(followed, tensors))
        with torch.enable_grad():
            points = prior.kernel.rows(self.points)
            theta = [t.to(self.points.device) for t in prior.kernel.theta()]
            inputs = (*points.tensors, *theta)
            slopes: tuple[Tensor | None, ...] = (*bound.by_points, *bound.by_theta)
            if self.survey.group.size > 1:
                total, slopes = self._over_ranks(total, inputs, slopes)
            extra, rest = self.pull(inputs, slopes)
        return min(sums.lower, self._value) + extra, total + rest

    def _over_ranks(
        self, total: Array, inputs: Sequence[Tensor], slopes: Sequence[Tensor | None]
    ) -> tuple[Array, tuple[Tensor | None, ...]]:
        """Sums over ranks of the shares of a gradient, (M-220): by the flat vector, and by inputs that all have."""
        device = self.points.device
        shares = [torch.zeros_like(t, dtype=F64) if s is None else s for t, s in zip(inputs, slopes, strict=True)]
        of_rows, *sums = sum_together(self.survey.group, [torch.from_numpy(total).to(device), *shares])
        return of_rows.numpy(force=True), tuple(sums)

    def log_scale(self) -> None:
        """None: the bound has it, of all rows."""
        return

    def _blocks(self) -> Iterator[Block]:
        return blocks_of(self.survey, self._prior, len(self.points), self._deadline)
