"""Predictions of a state that has all training rows: mean, variance, covariance and paths at points.

    mean     = m(x*) + K_sx K^-1 (y - m(x))                        (M-41)
    variance = k(x*, x*) - |L^-1 K_xs|^2                            (M-42)

The work goes strip by strip over the points: never n x n_test numbers at once, never n_test x n_test unless a joint
covariance is asked for.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import promotions
from flashgp.foundations.contexts import entered
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.determinism import EVENT, contiguous_copy, deterministically
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.extent import check_answer, check_extent
from flashgp.inference.numpy_prior import TITLE
from flashgp.inference.output_states import AnyState, joined_report
from flashgp.inference.predict.few_points import FewPoints
from flashgp.inference.predict.paths import Paths, draw_paths
from flashgp.inference.predict.plan import Wanted, planners_of
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.predictor import Predictor, Variance, check_joint
from flashgp.inference.predict.variance import PosteriorVariance, PredictOptions
from flashgp.inference.state import State
from flashgp.inference.threads import ONE_THREAD_ROWS, one_thread
from flashgp.kernels.warped import autocast_events
from flashgp.operators.covariance import CovarianceOperator
from flashgp.planner.plan import allowed_bytes
from flashgp.planner.products import ProductPlan
from flashgp.planner.variances import VarianceSettings, check_variance
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares


class OutputPredictor(Predictor):
    """Predictor of the state of every output.

    Args: each, the predictor of every output, of one prediction; draw, paths of all outputs.
    """

    separate = True

    def __init__(self, each: Sequence[Predictor], draw: Callable[[int, int, int | None], Paths]) -> None:
        self._each, self._draw = each, draw
        self.deterministic, self.differentiable = each[0].deterministic, each[0].differentiable
        self.report = Report()
        self._fill_report()

    def mean(self, x: Tensor) -> Tensor:
        mean = torch.cat([one.mean(x) for one in self._each], dim=-1)
        self._fill_report()
        return mean

    def variance(self, x: Tensor) -> Variance:
        variance = Variance.beside([one.variance(x) for one in self._each])
        self._fill_report()
        return variance

    def covariance(self, x: Tensor) -> Tensor:
        joint = torch.stack([one.covariance(x) for one in self._each], dim=-3)
        self._fill_report()
        return joint

    def rounding(self, x: Tensor) -> Tensor:
        return torch.stack([one.rounding(x) for one in self._each], dim=-1)

    def paths(self, count: int, features: int, seed: int | None) -> Paths:
        return self._draw(count, features, seed)

    @property
    def quick(self) -> bool:
        return all(one.quick for one in self._each)

    def aside(self) -> "OutputPredictor":
        return OutputPredictor([one.aside() for one in self._each], self._draw)

    def forget(self) -> None:
        for one in self._each:
            one.forget()

    def _fill_report(self) -> None:
        """Fill the report from the work on each output so far; events that others have put there stay."""
        reports = [one.report for one in self._each]
        joined, beside = joined_report(reports), self.report.events
        predicted = [report.predicted_seconds for report in reports if report.predicted_seconds is not None]
        joined.predicted_seconds = sum(predicted) if predicted else None
        joined.events += [event for event in beside if event not in joined.events]
        for one in fields(Report):
            setattr(self.report, one.name, getattr(joined, one.name))


KEPT_NUMBERS = 2**17  # of K_sx kept between mean and variance: 1 MiB
FEW_POINTS = 16  # up to which memory is the limit: a second thread only makes each operation wait for it


class ExactPredictor(Predictor):
    """Predictor of a state at points. A new one for every prediction: it keeps what mean and variance share."""

    def __init__(self, state: State, options: PredictOptions) -> None:
        self._state, self._options = state, options
        self.deterministic, self.differentiable = options.run.deterministic, state.differentiable
        self._x = state.x  # until points are given
        self._mean: Tensor | None = None
        self._variance: Variance | None = None
        self._joint_dtype = torch.float64  # of the computation of the last joint covariance
        self._limit: int | None = None  # bytes that solves may take
        self._room = 0  # bytes, for wider strips than the least
        self._rows: Rows | None = None  # of a few points, from the mean to the variance; likewise K_sx
        self._cross: Tensor | None = None
        self._solved_cross: Tensor | None = None  # L^-1 K_xs, likewise
        self._few: FewPoints | None = None  # what takes the place of all three where points and prior are simple
        self._workspace = Workspace()
        condition = state.report
        self.report = Report(
            route=condition.route, device=str(state.x.device), dtype=condition.dtype,
            error_bound=condition.error_bound, jitter=condition.jitter,
            events=[*([EVENT] if self.deterministic else []), *of_kind(condition.events, EventKind.ROUNDED)],
        )  # fmt: skip

    # -- what predictions ask --------------------------------------------------------------------------------------
    def mean(self, x: Tensor) -> Tensor:
        self._moved_to(x)
        if self._mean is None:
            self._compute(variance=False)
        assert self._mean is not None
        return self._mean

    def variance(self, x: Tensor) -> Variance:
        self._moved_to(x)
        if self._variance is None:
            self._compute(variance=True)
        assert self._variance is not None
        return self._variance

    @entered(lambda self, x: self.deterministic)
    def covariance(self, x: Tensor) -> Tensor:
        n, state = self._moved_to(x)._x.shape[-2], self._state
        check_joint(n, self._joint_bytes(), x.device, self._options.unchecked_bytes)
        with torch.set_grad_enabled(self.wants_graph(x)):
            joint, self._joint_dtype = self._variances().joint(self._state.prior.kernel.rows(self._x))
            return joint.expand(*broadcast_batch(joint.shape[:-2], state.batch_shape), n, n)

    def rounding(self, x: Tensor) -> Tensor:
        """Rounding of the prior's entries, which the last covariance is a difference of, in the dtype that it was
        computed in."""
        state = self._state
        with torch.no_grad():
            prior = state.prior_covariance(state.prior.kernel.rows(x)).diagonal().mean(-1)
        return (state.distinct + x.shape[-2]) * torch.finfo(self._joint_dtype).eps * prior.detach()

    def paths(self, count: int, features: int, seed: int | None) -> Paths:
        return draw_paths(self._state, count, features, seed)

    @property
    def quick(self) -> bool:
        return not self._state.by_solves and self._options.variance != "sampled"

    def forget(self) -> None:
        self._mean = self._variance = self._rows = self._cross = self._solved_cross = None
        self._few = None

    # -- work ------------------------------------------------------------------------------------------------------
    def _moved_to(self, x: Tensor) -> "ExactPredictor":
        if x is not self._x:
            self.forget()
            self._x = self._workspace.adopt(x)
        return self

    @entered(lambda self, *_, **__: self.deterministic)
    def _compute(self, variance: bool) -> None:
        started = time.perf_counter()
        state, workspace = self._state, self._workspace
        if self._of_few_points(variance):
            self.report.seconds = (self.report.seconds or 0.0) + time.perf_counter() - started
            self.report.backend = TITLE
            return
        plan = None
        if self._options.planner is not None:
            plan = self._options.planner(self._variances().asked if variance or self._variance is not None else False)
        if plan is not None:
            report = self.report
            self._limit = max(plan.available_bytes, allowed_bytes(plan.peak_bytes))
            self._room = 0 if self.deterministic else plan.available_bytes
            report.plan, report.predicted_bytes, report.predicted_seconds = plan, plan.peak_bytes, plan.seconds
        compiled = workspace.compile_seconds
        points = self._x.shape[:-1].numel()
        alone = points if points <= FEW_POINTS and not self._x.is_cuda else ONE_THREAD_ROWS + 1
        with one_thread(alone), torch.set_grad_enabled(self.wants_graph(self._x)):
            rows = self._rows or state.prior.kernel.rows(self._x)
            if self._mean is None:
                check_extent(state.prior.kernel.form, rows, "x_test")
                if self._bound_moves:
                    check_answer(state.prior_covariance(rows).diagonal().unsqueeze(-1), "x_test")
            # A graph that is kept would be gone for the variance after a backward pass from the mean.
            self._rows = rows if points <= FEW_POINTS and not self.wants_graph(self._x) else None
            if self._mean is None:
                self._mean = workspace.adopt(self._latent_mean(rows, plan))
                self.report.error_bound = self._error_bound(rows)
            if variance:
                shape = self._mean.shape
                self._variance = self._variances().marginal(rows).mapped(lambda part: part.expand(shape))
                workspace.adopt(self._variance.value)
            check_answer(self._mean, "x_test")
        elapsed = time.perf_counter() - started - (workspace.compile_seconds - compiled)
        self.report.seconds = (self.report.seconds or 0.0) + elapsed
        self.report.compile_seconds = workspace.compile_seconds or None
        self.report.backend = workspace.backend
        self.report.peak_bytes = workspace.peak_bytes
        self.report.events += [event for event in workspace.events if event not in self.report.events]

    def _of_few_points(self, variance: bool) -> bool:
        """The mean, and the variance if asked for, by the few calls that they need; False where that is not all."""
        if self._few is None:
            state = self._state
            simple = self._options.planner is None and self._options.variance != "sampled" and not self.deterministic
            if not (simple and state.float64_factor is not None and 0 < len(self._x) <= FEW_POINTS):
                return False
            if self.wants_graph(self._x) or (self._bound_moves and state.report.error_bound is not None):
                return False
            self._few = FewPoints.of(state, self._x.detach())
            if self._few is None:
                return False
        if self._mean is None:
            self._mean = self._few.mean()
            check_answer(self._mean, "x_test")
        if variance:
            prior, explained = self._few.variance()
            left = self._variances().left(prior, explained, torch.float64)
            self._variance = Variance(left.expand(self._mean.shape))
            check_answer(self._variance.value, "x_test")
        return True

    def _variances(self) -> PosteriorVariance:
        return PosteriorVariance(
            self._state, self._options, self._x, self.wants_graph(self._x), self.report, self._workspace,
            self._limit, self._room, self._cross, self._solved_cross,
        )  # fmt: skip

    def _latent_mean(self, rows: Rows, plan: ProductPlan | None) -> Tensor:
        state = self._state
        prior = state.prior.mean_at(self._x)
        if not state.count:
            batch = broadcast_batch(prior.shape[:-2], state.batch_shape, rows.batch_shape)
            return prior.expand(*batch, self._x.shape[-2], state.residual.shape[-1])
        cross = state.covariance_to(rows, torch.float64, self._workspace, plan)
        if cross.shape.numel() > KEPT_NUMBERS or self.wants_graph(self._x):
            return prior + self._times_weights(cross, rows, plan)
        self._cross = cross.to_dense()  # a few points: the variance will want the same numbers
        few = self._x.shape[:-1].numel() <= FEW_POINTS and not self.wants_graph(self._x)
        z = state.whitened_for_mean if few else None
        if z is None:
            return prior + self._cross @ state.representer_weights
        assert state.factor is not None
        self._solved_cross = state.factor.half_solve(self._cross.mT)  # as quick as the weights, and the variance's too
        return prior + self._solved_cross.mT @ z

    def _times_weights(self, cross: CovarianceOperator, rows: Rows, plan: ProductPlan | None) -> Tensor:
        """K_sx K^-1 (y - m(x)); each rank of a group evaluates its part of the points, and these are gathered."""
        state, group = self._state, self._options.run.group
        if group.size == 1 or rows.count < group.size or self.wants_graph(self._x):
            return cross @ state.representer_weights
        shares = Shares.even(rows.count, group.size)
        here = shares.slice(group.rank)
        if plan is not None:
            plan = replace(plan, n=here.stop - here.start, seconds=plan.seconds / group.size)
        own = state.covariance_to(rows.part(here.start, here.stop), torch.float64, self._workspace, plan)
        return group.gather_rows(own @ state.representer_weights, shares)

    @property
    def _bound_moves(self) -> bool:
        """True if k(x, x), and with it the bound of the error, differs from point to point."""
        form = self._state.prior.kernel.form
        return bool({"product", "opaque"} & {*form.statistics} or form.scalar_count)

    def _error_bound(self, rows: Rows) -> float | None:
        """Eq. (M-37) at these points: where k(x*, x*) is not the same everywhere, the bound grows with its root."""
        state = self._state
        bound = state.report.error_bound
        if bound is None or not rows.count or not self._bound_moves:
            return bound
        here, there = (float(state.prior_covariance(some).diagonal().detach().max()) for some in (rows, state.rows))
        return bound * math.sqrt(max(1.0, here / there)) if there > 0.0 else bound

    def _joint_bytes(self) -> int:
        """Peak bytes: matrices of the points, and their covariances with the training rows, solved and multiplied."""
        state, n = self._state, self._x.shape[-2]
        members = broadcast_batch(self._x.shape[:-2], state.batch_shape).numel()
        if state.solves is None:
            return 8 * members * (3 * n * n + 2 * n * state.distinct)
        return 8 * ((members + 3) * n * n + 3 * n * state.distinct)  # one member after the other


def predict(state: AnyState, x_test: Any, wanted: Wanted, group: Group = ALONE) -> Prediction:
    """See `Posterior.predict`. Args: group, whose ranks all ask for what they want of the prediction."""
    time_limit, deterministic = wanted.time_limit, wanted.deterministic or state.run.deterministic
    Deadline.after(time_limit)  # refuses what is no number of seconds
    promoted = [*promotions(x_test=x_test), *autocast_events(state.prior.kernel)]
    x_test = state.checked_points(x_test, "x_test")
    # Read when something is asked for, which may be where gradients are wanted, although they are not here.
    with deterministically(deterministic), torch.set_grad_enabled(torch.is_grad_enabled() or x_test.requires_grad):
        x_test = contiguous_copy(x_test) if deterministic else x_test.clone()
    variance = check_variance(wanted.variance)
    if time_limit is not None:
        time_limit /= len(state.parts)  # one output after the other
    planners = planners_of(state, x_test, wanted._replace(deterministic=deterministic, time_limit=time_limit))
    run = replace(state.run, deterministic=deterministic, group=group)
    variances = VarianceSettings(time_limit=time_limit)
    options = (PredictOptions(variance, one, run, variances=variances, progress=wanted.progress) for one in planners)
    each = [ExactPredictor(part, one) for part, one in zip(state.parts, options, strict=True)]
    predictor = OutputPredictor(each, partial(draw_paths, state)) if state.prior.separate else each[0]
    prediction = Prediction(predictor, x_test, state.prior.likelihood, state.prior.outputs)
    prediction.report.events += promoted
    return prediction
