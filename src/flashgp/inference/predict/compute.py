"""Predictions of a state that has all training rows: mean, variance, covariance and paths at points.

    mean     = m(x*) + K_sx K^-1 (y - m(x))                        (M-41)
    variance = k(x*, x*) - |L^-1 K_xs|^2                            (M-42)

The work goes strip by strip over the points: never n x n_test numbers at once, never n_test x n_test unless a joint
covariance is asked for.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_points, promotions
from flashgp.foundations.contexts import autocast_disabled
from flashgp.foundations.determinism import EVENT, contiguous_copy, deterministic_where, deterministically
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.numpy_prior import TITLE
from flashgp.inference.plan import (
    PlanSettings,
    PredictionQuestion,
    RowCounts,
    check_prediction_plan,
    prediction_plan,
)
from flashgp.inference.predict.few_points import FewPoints
from flashgp.inference.predict.paths import Paths, draw_paths
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.predictor import Predictor, Variance
from flashgp.inference.predict.pricing import passes_of_solves, price_of, route_of_variances
from flashgp.inference.predict.variance_samples import probes_of
from flashgp.inference.predict.variance_solves import FLOOR, SHARE, Explained, explained, explained_jointly, strips
from flashgp.inference.solves import Solves
from flashgp.inference.state import State
from flashgp.inference.threads import ONE_THREAD_ROWS, one_thread
from flashgp.kernels.warped import autocast_events
from flashgp.means import evaluate_mean
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import MIN_PLANNED_PAIRS
from flashgp.pairwise.problem import PairProblem
from flashgp.planner.plan import allowed_bytes
from flashgp.planner.products import ProductPlan
from flashgp.planner.variances import (
    CORRECTION_SECONDS,
    DEFAULT_VARIANCES,
    SAMPLES,
    VarianceSettings,
    check_variance,
    strip_points,
)

__all__ = ["ExactPredictor", "PredictOptions", "predict"]

log = logging.getLogger("flashgp.predict")

KEPT_NUMBERS = 2**17  # of K_sx kept between mean and variance: 1 MiB
FEW_POINTS = 16  # up to which memory is the limit: a second thread only makes each operation wait for it
SAMPLE = 16  # points at which they are checked otherwise
_INSTEAD = {"solves": "corrected", "samples": "sampled"}


@dataclass(frozen=True)
class PredictOptions:
    """How a prediction is computed.

    Args:
        variance: "auto", "exact" or "sampled".
        planner: makes the plan of the mean, or of the variance too; None for few points.
        deterministic: the same bits whatever the number of threads.
        correction_seconds: up to which variances of a float32 factor are corrected by solves without a look.
        max_error: of a variance relative to itself, that a float32 factor may leave beyond that.
        max_sampled_error: the same where samples, not solves, would take its place: a quarter of their standard error
            without control, (M-97), since at other points the factor's error may be larger.
        variances: when samples take the place of exact solves, and the strips.
        unchecked_bytes: of a joint covariance, below which the free memory is not asked for.
        far_below_zero: times n eps k(x, x); a computed variance below minus this is not rounding.
    """

    variance: str = "auto"
    planner: Callable[[bool | str], ProductPlan] | None = None
    deterministic: bool = False
    correction_seconds: float = CORRECTION_SECONDS
    max_error: float = SHARE
    max_sampled_error: float = 0.25 * math.sqrt(2.0 / SAMPLES)
    variances: VarianceSettings = DEFAULT_VARIANCES
    unchecked_bytes: int = 2**28
    far_below_zero: float = 100.0


class ExactPredictor(Predictor):
    """What a state says of points. A new one for every prediction: it keeps what mean and variance share."""

    def __init__(self, state: State, options: PredictOptions) -> None:
        self._state, self._options = state, options
        self.deterministic, self.differentiable = options.deterministic, state.differentiable
        self._x = state.x  # until points are given
        self._mean: Tensor | None = None
        self._variance: Tensor | None = None
        self._sampled: tuple[Tensor, ...] | None = None  # standard error, lower and upper of sampled variances
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
            error_bound=condition.error_bound, jitter=condition.jitter, seconds=0.0,
            events=[EVENT] if self.deterministic else [],
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
        return Variance(self._variance, *(self._sampled or ()))

    @autocast_disabled
    @deterministic_where(lambda self, x: self.deterministic)
    def covariance(self, x: Tensor) -> Tensor:
        n, state = self._moved_to(x)._x.shape[-2], self._state
        needed = self._joint_bytes()
        if needed > self._options.unchecked_bytes and needed > (free := available_bytes(x.device)):
            raise MemoryBudgetError(
                f"`x_test` has {n:,} points, whose joint covariance needs {readable_bytes(needed)} with "
                f"{readable_bytes(free)} free; ask for fewer points, or for .variance, which needs no matrix",
                needed_bytes=needed,
                available_bytes=free,
            )
        with torch.set_grad_enabled(self.wants_graph(x)):
            joint = self._latent_joint()
            return joint.expand(*broadcast_batch(joint.shape[:-2], state.batch_shape), n, n)

    def rounding(self, x: Tensor) -> Tensor:
        """That of the prior's entries, which the covariance is a difference of."""
        state = self._state
        with torch.no_grad():
            problem = PairProblem(state.prior.kernel.form, state.theta, state.prior.kernel.rows(x))
            prior = CovarianceOperator(problem, torch.float64).diagonal().mean(-1)
        dtype = torch.float64 if state.factor is None else state.factor.dtype  # what a sample's jitter may hide
        return (state.distinct + x.shape[-2]) * torch.finfo(dtype).eps * prior.detach()

    def paths(self, count: int, features: int, seed: int | None) -> Paths:
        return draw_paths(self._state, count, features, seed)

    def forget(self) -> None:
        self._mean = self._variance = self._sampled = self._rows = self._cross = self._solved_cross = None
        self._few = None

    # -- work ------------------------------------------------------------------------------------------------------
    def _moved_to(self, x: Tensor) -> "ExactPredictor":
        if x is not self._x:
            self.forget()
            self._x = x
        return self

    @autocast_disabled
    @deterministic_where(lambda self, *_, **__: self.deterministic)
    def _compute(self, variance: bool) -> None:
        started = time.perf_counter()
        state, workspace = self._state, self._workspace
        if self._of_few_points(variance):
            self.report.seconds = (self.report.seconds or 0.0) + time.perf_counter() - started
            self.report.backend = TITLE
            return
        plan = None
        if self._options.planner is not None:
            plan = self._options.planner(self._asked_now() if variance or self._variance is not None else False)
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
            # A graph that is kept would be gone for the variance after a backward pass from the mean.
            self._rows = rows if points <= FEW_POINTS and not self.wants_graph(self._x) else None
            if self._mean is None:
                self._mean = workspace.adopt(self._latent_mean(rows, plan))
                self.report.error_bound = self._error_bound(rows)
            if variance:
                self._variance = workspace.adopt(self._latent_variance(rows)).expand(self._mean.shape)
                if self._sampled is not None:
                    self._sampled = tuple(part.expand(self._mean.shape) for part in self._sampled)
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
        if variance:
            prior, explained = self._few.variance()
            self._variance = self._difference(prior, explained, torch.float64).expand(self._mean.shape)
        return True

    def _latent_mean(self, rows: Rows, plan: ProductPlan | None) -> Tensor:
        state = self._state
        prior = evaluate_mean(state.prior.mean, self._x, state.prior.outputs)
        prior = prior if state.prior.outputs is not None else prior.unsqueeze(-1)
        if not state.count:
            batch = broadcast_batch(prior.shape[:-2], state.batch_shape, rows.batch_shape)
            return prior.expand(*batch, self._x.shape[-2], state.residual.shape[-1])
        cross = state.covariance_to(rows, torch.float64, self._workspace, plan)
        if cross.shape.numel() > KEPT_NUMBERS or self.wants_graph(self._x):
            return prior + cross @ state.representer_weights
        self._cross = cross.to_dense()  # a few points: the variance will want the same numbers
        few = self._x.shape[:-1].numel() <= FEW_POINTS and not self.wants_graph(self._x)
        z = state.whitened_for_mean if few else None
        if z is None:
            return prior + self._cross @ state.representer_weights
        assert state.factor is not None
        self._solved_cross = state.factor.half_solve(self._cross.mT)  # as quick as the weights, and the variance's too
        return prior + self._solved_cross.mT @ z

    @property
    def _bound_moves(self) -> bool:
        """Whether k(x, x) is not the same everywhere, and with it the bound of the error."""
        form = self._state.prior.kernel.form
        return bool({"product", "opaque"} & {*form.statistics} or form.scalar_count)

    def _error_bound(self, rows: Rows) -> float | None:
        """Eq. (M-37) at these points: where k(x*, x*) is not the same everywhere, the bound grows with its root."""
        state = self._state
        bound, form = state.report.error_bound, state.prior.kernel.form
        if bound is None or not rows.count or not self._bound_moves:
            return bound
        here, there = (
            float(CovarianceOperator(PairProblem(form, state.theta, r), torch.float64).diagonal().detach().max())
            for r in (rows, state.rows)
        )
        return bound * math.sqrt(max(1.0, here / there)) if there > 0.0 else bound

    def _latent_variance(self, rows: Rows) -> Tensor:
        state = self._state
        form, theta = state.prior.kernel.form, state.theta
        prior = CovarianceOperator(PairProblem(form, theta, rows), torch.float64).diagonal()
        batch = broadcast_batch(prior.shape[:-1], state.batch_shape)
        if not state.count:
            return prior.expand(*batch, rows.count).unsqueeze(-1)
        if not rows.count:
            return prior.expand(*batch, 0).unsqueeze(-1)
        solves = state.solves
        sampled = self._options.variance == "sampled"
        if self._x.dim() > 2 and (solves is not None or sampled):  # one system: its points in one row
            flat = ExactPredictor(state, replace(self._options, planner=None))
            flat._x, flat._workspace, flat._limit = self._x.flatten(0, -2), self._workspace, self._limit
            found = flat._latent_variance(state.prior.kernel.rows(flat._x))
            self.report.events += flat.report.events
            if flat._sampled is not None:
                self._sampled = tuple(part.reshape(*self._x.shape[:-1], 1) for part in flat._sampled)
            return found.reshape(*self._x.shape[:-1], 1)
        if sampled:
            return self._from_samples(prior)
        way = "factor" if solves is None else self._way(rows.count)
        if solves is not None and self._solved(solves, rows, prior, way):
            if way == "samples":
                return self._from_samples(prior)
            explained, dtype = self._explained_by_solves(solves, rows, prior), torch.float64
        else:
            assert state.factor is not None
            explained, dtype = self._explained_by_factor(rows, batch), state.factor.dtype
        return self._difference(prior, explained, dtype)

    def _difference(self, prior: Tensor, explained: Tensor, dtype: torch.dtype) -> Tensor:
        """The variance that is left, (*batch, n_test, 1); dtype: of what the explained one was computed in."""
        variance = prior - explained
        rounding = self._options.far_below_zero * self._state.distinct * torch.finfo(dtype).eps
        inside = torch._C._functorch.is_functorch_wrapped_tensor(variance)  # torch.func: vmap has no numbers to look at
        if not inside and variance.numel() and float((variance + rounding * prior).detach().min()) < 0.0:
            worst = float(variance.detach().min())
            self.report.events.append(Event(EventKind.VARIANCE_NEGATIVE, worst=worst))
            warn(
                f"a computed variance was {worst:.2e}: the covariance matrix is too ill-conditioned for {dtype}; "
                "the value is given as 0. Use float64, or more noise"
            )
        return variance.clamp_min(0.0).unsqueeze(-1)

    def _explained_by_factor(self, rows: Rows, batch: torch.Size) -> Tensor:
        step = strip_points(self._state.distinct, batch.numel(), self._room, self._options.variances.strip_bytes)
        parts = [self._explained(rows.part(start, start + step)) for start in range(0, max(1, rows.count), step)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    # -- by solves: no factor, or one in float32 ------------------------------------------------------------------
    def _solved(self, solves: Solves, rows: Rows, prior: Tensor, way: str) -> bool:
        """Whether variances come from solves: without a factor; with one in float32 where that is cheap, or where
        a sample of the points shows that the factor's rounding matters. way: what takes the factor's place then."""
        if self._state.factor is None:
            return True
        count = rows.count
        price = price_of(self._state, count, "exact", self.deterministic, self._options.variances)
        if price.seconds <= self._options.correction_seconds:
            return True
        index = torch.linspace(0, count - 1, min(SAMPLE, count)).round().long().to(rows.device)
        with torch.no_grad():
            some, prior = rows.take(index), prior.detach()[index]
            exact = prior - explained(solves, self._cross_to(some), prior).value
            rounded = prior - self._explained(some)
        largest = self._options.max_error
        error = float(((rounded - exact).abs() / exact.clamp_min(torch.finfo(exact.dtype).tiny)).max())
        gives_way = not error <= (
            largest if way == "solves" else self._options.max_sampled_error
        )  # also where it is no number
        event = Event(
            EventKind.VARIANCE_BY_FACTOR,
            error=error, points=len(index), instead=_INSTEAD[way] if gives_way else None,
        )  # fmt: skip
        self.report.events.append(event)
        if error > largest and not gives_way and not self._state.cache.warned_rounded_variance:
            self._state.cache.warned_rounded_variance = True
            warn(
                f"{event} At others it may be more; exact solves at {count:,} points would take about "
                f'{readable_seconds(price.seconds)}. predict(x, variance="exact") takes them, "sampled" samples'
            )
        return gives_way

    def _asked_now(self) -> str:
        """Gradients are those of exact variances, whatever is the quickest."""
        return "exact" if self._options.variance == "auto" and self.wants_graph(self._x) else self._options.variance

    def _way(self, count: int) -> str:
        """Exact solves at so many points, or samples where those take too long, eq. (M-107)."""
        return price_of(self._state, count, self._asked_now(), self.deterministic, self._options.variances).way

    def _from_samples(self, prior: Tensor) -> Tensor:
        """Eq. (M-97), from probes that the posterior keeps."""
        state = self._state
        if self.wants_graph(self._x):
            raise DomainError(
                '`variance` must be "auto" or "exact" where gradients are wanted, got "sampled", which has none; '
                "leave it out"
            )
        counted = (
            contextlib.nullcontext() if state.solves is None else state.solves.charged_to(self._workspace, self._limit)
        )
        with counted:
            probes = probes_of(state)
            found = probes(self._x)
        self._sampled = tuple(part.unsqueeze(-1) for part in (found.standard_error, found.lower, found.upper))
        least = FLOOR * prior.clamp_min(torch.finfo(prior.dtype).tiny)
        share = float((found.standard_error / torch.maximum(found.variance, least)).max())
        samples = probes.noisy.shape[1]
        event = Event(EventKind.VARIANCE_BY_SAMPLES, samples=samples, share=share)
        self.report.events.append(event)
        log.info("%s", event)
        if self._options.variance == "auto" and not state.cache.warned_sampled_variance:
            state.cache.warned_sampled_variance = True
            exact = price_of(state, len(prior), "exact", self.deterministic, self._options.variances).seconds
            warn(
                f"{event} Exact solves at {len(prior):,} points would take about {readable_seconds(exact)}. "
                'predict(x, variance="exact") takes them; a factor, with a larger memory= of condition, would be quick'
            )
        return found.variance.unsqueeze(-1)

    def _explained_by_solves(self, solves: Solves, rows: Rows, prior: Tensor) -> Tensor:
        """Exact solves, so many points at a time."""
        with solves.charged_to(self._workspace, self._limit):
            parts = [
                explained(solves, self._cross_to(rows.part(start, stop)), prior[start:stop])
                for start, stop in strips(rows.count)
            ]
        found = Explained(torch.cat([part.value for part in parts]), torch.cat([part.error for part in parts]))
        self._note_shortfall(found, prior.detach(), found.value.detach())
        return found.value

    def _note_shortfall(self, found: Explained, prior: Tensor, value: Tensor) -> None:
        """How far variances by solves may be off: an event, and a warning where that is more than it should be."""
        share = float((found.error / (prior - value - found.error).clamp_min(FLOOR * prior)).max())
        self.report.events.append(Event(EventKind.VARIANCE_BY_SOLVES, share=share))
        if share > SHARE:
            warn(
                f"a variance may be too large by {share:.1e} of itself: the solves ended before it was certain to "
                f"{SHARE:g}; more noise, or dtype=torch.float64, would make it so"
            )

    def _cross_to(self, rows: Rows) -> Tensor:
        """K(x, x_*), (n, m), float64."""
        return self._state.covariance_to(rows, torch.float64, self._workspace).to_dense().mT

    def _half(self, rows: Rows) -> Tensor:
        """L^-1 K_xs, (*batch, n, n_test), for a strip of test rows."""
        if self._solved_cross is not None and self._solved_cross.shape[-1] == rows.count:
            return self._solved_cross
        factor = self._state.factor
        assert factor is not None
        # Rows of K_sx are contiguous, so its transpose is what LAPACK wants: no copy.
        dtype = factor.dtype
        if self._cross is not None and self._cross.dtype == dtype and self._cross.shape[-2] == rows.count:
            return factor.half_solve(self._cross.mT)
        cross = self._state.covariance_to(rows, dtype, self._workspace).to_dense()
        return self._workspace.adopt(factor.half_solve(cross.mT))

    def _explained(self, rows: Rows) -> Tensor:
        return self._half(rows).square().sum(-2, dtype=torch.float64)

    def _joint_bytes(self) -> int:
        """At the peak: matrices of the points, and their covariances with the training rows, solved and multiplied."""
        state, n = self._state, self._x.shape[-2]
        members = broadcast_batch(self._x.shape[:-2], state.batch_shape).numel()
        if state.solves is None:
            return 8 * members * (3 * n * n + 2 * n * state.distinct)
        return 8 * ((members + 3) * n * n + 3 * n * state.distinct)  # one member after the other

    def _latent_joint(self) -> Tensor:
        state, n = self._state, self._x.shape[-2]
        solves = state.solves
        if solves is not None and self._x.dim() > 2:  # one system: one member after the other
            exact = replace(self._options, variance="exact", planner=None)
            members = [ExactPredictor(state, exact)._moved_to(member) for member in self._x.flatten(0, -3)]
            joint = torch.empty((len(members), n, n), dtype=torch.float64, device=self._x.device)
            for i, member in enumerate(members):
                joint[i] = member._latent_joint()
                self.report.events += [event for event in member.report.events if event not in self.report.events]
            return joint.unflatten(0, self._x.shape[:-2])
        rows = state.prior.kernel.rows(self._x)
        joint = CovarianceOperator(PairProblem(state.prior.kernel.form, state.theta, rows), torch.float64).to_dense()
        if solves is not None and n and self._solved(solves, rows, joint.detach().diagonal(), "solves"):
            prior = joint.detach().diagonal()
            found = explained_jointly(solves, self._cross_to(rows), prior)
            self._note_shortfall(found, prior, found.value.detach().diagonal())
            return joint - found.value
        if state.count and n:
            step = strip_points(state.distinct, room=self._room, strip_bytes=self._options.variances.strip_bytes)
            halves = [self._half(rows.part(s, s + step)).double() for s in range(0, n, step)]
            half = halves[0] if len(halves) == 1 else torch.cat(halves, dim=-1)
            joint = joint - half.mT @ half
        return joint


def predict(
    state: State,
    x_test: Any,
    *,
    variance: str,
    plan: ProductPlan | None,
    memory: str | int | None,
    deterministic: bool,
) -> Prediction:
    """See `Posterior.predict`."""
    deterministic = deterministic or state.settings.deterministic
    promoted = [*promotions(x_test=x_test), *autocast_events(state.prior.kernel)]
    x_test = check_points(x_test, "x_test", like=state.x)
    with deterministically(deterministic):
        x_test = contiguous_copy(x_test)
    try:
        broadcast_batch(x_test.shape[:-2], state.batch_shape)
    except RuntimeError:
        raise ShapeError(
            f"`x_test` has batch shape {tuple(x_test.shape[:-2])}, which does not broadcast with the model's "
            f"{tuple(state.batch_shape)}; give it the same leading dimensions, or none"
        ) from None
    planner = _planner(state, x_test, plan, memory, deterministic)
    options = PredictOptions(check_variance(variance), planner, deterministic)
    prediction = Prediction(ExactPredictor(state, options), x_test, state.prior.likelihood, state.prior.outputs)
    prediction.report.events += promoted
    return prediction


def _planner(
    state: State, x_test: Tensor, plan: ProductPlan | None, memory: str | int | None, deterministic: bool
) -> Callable[[bool | str], ProductPlan] | None:
    """What makes the plan of a prediction, with its variance or without; None where no plan is worth its time."""
    n_test, d = x_test.shape[-2:]
    if plan is None and memory is None and (not state.count or n_test * state.distinct < MIN_PLANNED_PAIRS):
        return None
    prior = state.prior
    members = broadcast_batch(x_test.shape[:-2], state.batch_shape).numel()
    if plan is not None:
        check_prediction_plan(plan, (n_test, state.distinct, prior.outputs or 1, members), memory, x_test.device)
        return lambda variance: plan
    rows = RowCounts(state.distinct, d, batch=max(1, members // prior.kernel.batch_shape.numel()))
    settings = PlanSettings(memory, x_test.device, deterministic=deterministic)

    def planned(variance: bool | str) -> ProductPlan:
        question = PredictionQuestion(n_test, variance, route_of_variances(state), passes_of_solves(state))
        return prediction_plan(prior, rows, question, settings)

    return planned
