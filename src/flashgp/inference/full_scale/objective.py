"""The log joint with the likelihood of the full-scale model in place of the exact one: linear in the rows."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.form import Rows
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor, Sums, gradients
from flashgp.inference.full_scale.layout import Layout, scaled_points
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import Found, of_first, prior_variance, within
from flashgp.inference.training.objective import Array, Evaluation, LinearLogJoint, Problem
from flashgp.processes.group import ALONE, Group
from flashgp.solvers.preconditioners.near_rows import Neighbourhoods


@dataclasses.dataclass(frozen=True, eq=False)
class _Passed:
    """A first pass at the parameters of an evaluation. Fields: factor, of which A serves for other sites; each, sums;
    residual, noise, that they are of."""

    factor: FullScaleFactor
    each: list[Sums]
    residual: Tensor
    noise: Tensor

    def is_of(self, residual: Tensor, noise: Tensor) -> bool:
        return torch.equal(self.residual, residual) and torch.equal(self.noise, noise)


class FullScaleLogJoint(LinearLogJoint):
    """Minus the log joint of the full-scale model, eq. (M-148), with its gradient, eqs. (M-149) and (M-150).

    Args:
        problem: rows, prior and starts.
        layout: inducing points, blocks and neighbours, which stay.
        group: whose ranks share the blocks; seed, of their order.
    Cost: two passes over the blocks (factor.py); for each step of iterated sites two first ones.
    """

    def __init__(self, problem: Problem, layout: Layout, group: Group = ALONE, seed: int = 0) -> None:
        super().__init__(problem)
        self.layout, self.group, self.seed = layout, group, seed
        self._passed: _Passed | None = None
        self._keeps = False  # the last pass
        self._settled: tuple[Array, Tensor, Found[None]] | None = None  # parameters, targets of the sites there

    bound_slack = 1e-2

    @torch.no_grad()
    def log_likelihood(self) -> float:
        """log p(y) of the full-scale model at the parameters that the prior has now, nats, without priors."""
        found = self.settled()
        if found is not None and found.value is not None:
            return found.value
        residual, noise, rows, theta = self.likelihood_inputs()
        each = self._factor(rows, theta, residual, noise).sums_of_each()
        return sum(sums.log_likelihood(residual.shape[-2]) for sums in each)

    def settled(self, tolerance: float | None = None, deadline: Deadline = NO_DEADLINE) -> Found[None] | None:
        """See `LogJoint.settled`; at the parameters and sites of the last time there is nothing to find."""
        sites, theta = self.problem.sites, self.parameters.values()
        if sites is None:
            return None
        known = self._settled if tolerance is None else None
        if known is not None and known[1] is sites.held.targets and numpy.array_equal(known[0], theta):
            return known[2]
        with self._keeping():
            found = super().settled(tolerance, deadline)
        assert found is not None
        self._settled = theta, sites.held.targets, found
        return found

    def __call__(self, theta: Array) -> Evaluation:
        with self._keeping():
            return super().__call__(theta)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Context in which the parameters stay, so that A and a pass are kept."""
        outer, self._keeps = self._keeps, True
        try:
            yield
        finally:
            self._keeps = outer
            self._passed = self._passed if outer else None

    @cached_property
    def _around(self) -> Neighbourhoods:
        """Neighbours as (M-272) has them, which stay."""
        problem = self.problem
        return self.layout.around(scaled_points(problem.prior, problem.prior.kernel.rows(problem.x), problem.x))

    @torch.no_grad()
    def marginals(self) -> tuple[float, Marginals]:
        """See `LogJoint.marginals`; by (M-272)."""
        residual, noise, rows, theta = self.likelihood_inputs()
        factor = self._factor(rows, theta, residual, noise)
        each = factor.sums_of_each()
        self._passed = _Passed(factor, each, residual, noise) if self._keeps else None
        around = dataclasses.replace(factor, near=self._around)
        if self.group.size > 1:  # other rows of a rank
            every = rows.part(0, residual.shape[-2])
            around = FullScaleFactor.of(factor.function, every, self._around, residual, noise, self.group, self.seed)
        below, variance = around.marginals(each)
        problem = self.problem
        targets, own = problem.with_sites.sites(problem.y).targets, prior_variance(problem.prior, problem.x)
        value = sum(sums.log_likelihood(len(own)) for sums in each)
        return value, of_first(Marginals(targets - below, within(variance, noise, own)), self.group)

    def likelihood_inputs(self) -> tuple[Tensor, Tensor, Rows, list[Tensor]]:
        """Inputs as of the exact likelihood, with the inducing points as rows behind the others."""
        residual, noise, rows, theta = super().likelihood_inputs()
        return residual, noise, rows.followed_by(self.problem.prior.kernel.rows(self.layout.inducing)), theta

    def likelihood(
        self, rows: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[float | None, list[Tensor | None]]:
        """See `LogJoint.likelihood`; outputs with noise of their own share what does not depend on it."""
        residual, noise, *rest = tensors
        split = len(rows.tensors)
        rows, theta = rows.rebuilt(rest[:split]), rest[split:]
        with torch.no_grad():
            passed = self._passed
            if passed is None or not passed.is_of(residual, noise):
                factor = self._factor(rows, theta, residual, noise)
                passed = _Passed(factor, factor.sums_of_each(), residual, noise)
            factor, each = passed.factor, passed.each
            found = gradients(factor, each)
        by_rows = [
            None if one is None or two is None else torch.cat([one, two])
            for one, two in zip(found.rows, found.points, strict=True)
        ]
        value = sum(sums.log_likelihood(residual.shape[-2]) for sums in each)
        return value, [found.residual, found.noise, *by_rows, *found.theta]

    def _factor(self, rows: Rows, theta: Sequence[Tensor], residual: Tensor, noise: Tensor) -> FullScaleFactor:
        """Args: rows, the inducing points behind the others."""
        n, prior = residual.shape[-2], self.problem.prior
        if self._passed is not None and self.group.size == 1:
            return dataclasses.replace(self._passed.factor, residual=residual, noise=noise)
        points, workspace = rows.part(n, rows.count), self.problem.direct.workspace
        function = Basis.of(prior.kernel.form, theta, points, workspace)
        return FullScaleFactor.of(function, rows.part(0, n), self.layout.near, residual, noise, self.group, self.seed)
