"""Predictions of inducing points that have read all rows, eq. (M-165).

    mean(x)       = m(x) + a(x)^T w
    cov(x, x')    = k(x, x') - a^T a' + a^T M^-1 a'

A function of the point alone; memory and time do not depend on the number of training rows.
"""

import time
from functools import partial

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import EVENT
from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.inference.extent import check_answer
from flashgp.inference.full_scale.factor import FLOOR, rounding_of
from flashgp.inference.predict.exact_predictor import OutputPredictor
from flashgp.inference.predict.paths import Paths, repeated_mean
from flashgp.inference.predict.predictor import Predictor, Variance, check_joint
from flashgp.inference.predict.prior_draws import PriorDraws, draw_seed, prior_draws
from flashgp.inference.streamed.objective import block_rows
from flashgp.inference.streamed.state import StreamedState
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem

F64 = torch.float64


class StreamedPredictor(Predictor):
    """Predictor of a state at points. A new one for every prediction: its report is of that."""

    def __init__(self, state: StreamedState, *, deterministic: bool) -> None:
        self._state, self.deterministic = state, deterministic
        self.report = Report(
            route=state.report.route, device=str(state.inducing.device), dtype="float64",
            events=[EVENT] if deterministic else [],
        )  # fmt: skip

    @entered(lambda self, x: self.deterministic)
    def mean(self, x: Tensor) -> Tensor:
        began = time.perf_counter()
        with torch.set_grad_enabled(self.wants_graph(x)):
            found = [self._state.prior.mean_at(part) + self._basis(part) @ self._state.sums.weights
                     for part in self._parts(x)]  # fmt: skip
            value = torch.cat(found)
        check_answer(value, "x_test")
        self._took(began)
        return value

    @entered(lambda self, x: self.deterministic)
    def variance(self, x: Tensor) -> Variance:
        began, outputs = time.perf_counter(), self._state.sums.projected.shape[-1]
        with torch.set_grad_enabled(self.wants_graph(x)):
            value = torch.cat([self._variance(part) for part in self._parts(x)])
        check_answer(value.unsqueeze(-1), "x_test")
        self._took(began)
        return Variance(value.unsqueeze(-1).expand(*value.shape, outputs))

    @entered(lambda self, x: self.deterministic)
    def covariance(self, x: Tensor) -> Tensor:
        n = x.shape[-2]
        check_joint(n, 8 * n * (3 * n + 2 * self._state.function.rank), x.device)
        with torch.set_grad_enabled(self.wants_graph(x)):
            basis = self._basis(x)
            half = self._half(basis)
            joint = self._prior(x).to_dense() - basis @ basis.mT + half @ half.mT
            return 0.5 * (joint + joint.mT)

    def rounding(self, x: Tensor) -> Tensor:
        """Rounding of the prior's entries, which the covariance is a difference of."""
        return rounding_of(self._state.function, self._state.prior.kernel.rows(x), len(x))

    def paths(self, count: int, features: int, seed: int | None) -> Paths:
        return draw_paths(self._state, count, features, seed)

    # -- work ------------------------------------------------------------------------------------------------------
    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(block_rows(self._state.function.rank))

    def _basis(self, x: Tensor) -> Tensor:
        return self._state.function.taped(self._state.prior.kernel.rows(x))

    def _half(self, basis: Tensor) -> Tensor:
        """L_M^-1 a, as rows."""
        return torch.linalg.solve_triangular(self._state.sums.inner.mT, basis, upper=True, left=False)

    def _prior(self, x: Tensor) -> CovarianceOperator:
        function, rows = self._state.function, self._state.prior.kernel.rows(x)
        return CovarianceOperator(PairProblem(function.form, function.theta, rows), F64)

    def _variance(self, x: Tensor) -> Tensor:
        basis = self._basis(x)
        left = (self._prior(x).diagonal() - basis.square().sum(-1)).clamp_min(0.0)
        return left + self._half(basis).square().sum(-1)

    def _took(self, began: float) -> None:
        self.report.seconds = (self.report.seconds or 0.0) + time.perf_counter() - began


@entered(lambda state, *_, **__: state.run.deterministic)
@torch.no_grad()
def draw_paths(state: StreamedState, count: int, features: int, seed: int | None) -> Paths:
    """See `Posterior.paths`: f = m + f0 + a^T (u - L_zz^-1 (f0(Z) + noise)) with u ~ N(w, M^-1), eq. (M-166).

    Cost: m^2 t flops for t functions; then (features + m) t of each point.
    """
    if state.parts:
        return Paths.of_outputs(state, draw_paths, count, features, seed)
    began = time.perf_counter()
    count = check_count(count, "count", 0)
    generator = torch.Generator().manual_seed(draw_seed(seed))
    function, device, p = state.function, state.inducing.device, state.sums.projected.shape[-1]
    sample = state.sample.x.to(device)
    prior = prior_draws(state.prior, sample, torch.Size(), count * p, features, generator, state.ranks)
    report = Report(route=state.report.route, device=str(device), dtype="float64")
    if prior.error is not None:
        report.events.append(prior.event)

    def normal() -> Tensor:
        return torch.randn(function.rank, count * p, generator=generator, dtype=F64).to(device)

    inner, points = state.sums.inner, state.inducing.to(F64)
    drawn = prior(points) + floor_of(state, function.points) ** 0.5 * normal()
    spread = torch.linalg.solve_triangular(inner.mT, normal(), upper=True)
    values = state.sums.weights.repeat(1, count) + spread
    weights = values - torch.linalg.solve_triangular(function.lower, drawn, upper=False)
    report.seconds = time.perf_counter() - began
    return Paths(state, prior, partial(_values, state, prior, weights), count, report)


def _values(state: StreamedState, prior: PriorDraws, weights: Tensor, x: Tensor) -> Tensor:
    """m + f0 + a^T weights, (n_test, t)."""
    values = prior(x) + state.function.taped(state.prior.kernel.rows(x)) @ weights
    return values + repeated_mean(state.prior.mean_at(x), values.shape[-1])


def predictor(state: StreamedState, *, deterministic: bool) -> Predictor:
    """Predictor of a state, or of that of each output."""
    if not state.parts:
        return StreamedPredictor(state, deterministic=deterministic)
    each = [StreamedPredictor(part, deterministic=deterministic) for part in state.parts]
    return OutputPredictor(each, partial(draw_paths, state))


def floor_of(state: StreamedState, points: Rows) -> float:
    """The variance of the noise with which inducing values are seen, (M-148)."""
    function = state.function
    diagonal = CovarianceOperator(PairProblem(function.form, function.theta, points), F64).diagonal()
    return FLOOR * float(diagonal.mean())
