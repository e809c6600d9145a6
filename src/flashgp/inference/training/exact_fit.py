"""A fit by exact inference: exact gradients of few rows, then of all, or estimated ones where rows are many."""

import time
from dataclasses import replace
from typing import Any

import torch

from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.choice import Choice, offer_event, with_offers
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.evidence import log_evidence
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.exact.mixture import MixtureState
from flashgp.inference.gathered import agreed_plan
from flashgp.inference.missing_cells import check_observed
from flashgp.inference.plan import check_plan, planned_device, rows_on_time
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.predict.plan import prices_event
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.training.fit import EngineFit, Fitted, beside_a_constant, fitted_by, problem_of, report_answer
from flashgp.inference.training.history import Recorder, power_law
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.options import FitOptions
from flashgp.inference.training.stochastic_objective import EstimateOptions
from flashgp.inference.training.train import Trained, train
from flashgp.inference.training.uncertainty import Uncertainty, obstacle, refuse
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Plan, allowed_bytes


class ExactFit(EngineFit[Any]):
    """See `EngineFit`; outputs with noise of their own each by their own rows."""

    again = "gp.condition(x, y)"

    def __init__(self, prior: Prior, data: Data, options: FitOptions) -> None:
        self.options, self.data, self.searchers, self.interrupts = options, data, options.run.group, []
        self.prior = prior = prior.released()
        self.plan: Plan = agreed_plan(_plan(prior, data, options), options.run.group)
        plan = self.plan
        if data.cells is not None:
            check_observed(prior, data.cells)
            if plan.training != "exact":
                raise DomainError(
                    f"`y` must have all cells where gradients of {data.count:,} rows are estimated, got missing ones; "
                    "fit a model for each output, or fewer rows"
                )
        if plan.training != "exact" and not prior.likelihood.has_sites:
            raise DomainError(
                "`plan` must have training='exact' where sites are found by iteration, as those of "
                f'{prior.likelihood.name}, got {plan.training!r}; leave it out, or pass approximation="full_scale"'
            )
        # Of the exact gradient's factor; estimated gradients round their products only.
        single = plan.training == "exact" and plan.route == "refined" and prior.likelihood.has_sites
        dtype = torch.float32 if single else torch.float64
        workspace = Workspace(allowed_bytes(max(plan.training_bytes, plan.peak_bytes)), deadline=options.run.deadline)
        target = planned_device(plan, options.run.device, data.x)
        direct = DirectSettings(TorchTiles(), dtype, options.jitter, workspace=workspace)
        self.problem = problem_of(prior, data, target, direct, options)
        self.mark = (plan.dtype, plan.training)
        self.no_draws = obstacle(self.problem, data, exact=plan.training == "exact")
        refuse(self.no_draws, options.uncertainty)

    def expect(self, recorder: Recorder) -> None:
        power = 3 if self.plan.training == "exact" else 2
        seconds = self.likelihoods * self.plan.fit_step_seconds
        recorder.expect(power_law(seconds, self.problem.rows, power), power)
        for event in _offers(self.prior, self.plan, self.options):
            recorder.note(event)

    def search(self, recorder: Recorder) -> Trained:
        plan, options, estimate = self.plan, self.options, None
        if plan.training != "exact" and options.jitter is None and not self.data.is_batch:  # of one system as it is
            estimate = EstimateOptions(
                stored=plan.training == "stored", run=replace(options.run, deadline=recorder.deadline),
                factor_passes=plan.training_factor_passes or None, rank=plan.training_rank,
            )  # fmt: skip
        return train(self.problem, options, recorder, estimate)

    def answer(self, trained: Trained, recorder: Recorder, report: Report) -> Any:
        prior, data, cut = self.with_sites(self.data, trained)
        whole = self.data.cells is None and data.count == self.data.count
        settings = self.conditioning(
            plan=self.plan if whole else None, jitter=self.options.jitter,
            float32_factor=not trained.rough_factors,
            interrupted=self.interrupt, cores=recorder.free_cores,
        )  # fmt: skip
        state = condition(prior, data, settings)
        state.report.events[:0] = cut
        events: list[Event] = []
        if not data.is_batch and state.evidence_known:
            state, events = beside_a_constant(
                self, trained, state, lambda one: float(log_evidence(one)), lambda: condition(prior, data, settings),
                self.data.y,
            )  # fmt: skip
        report.events += self.interrupts[:1]
        report_answer(report, recorder, state, self)
        prices = prices_event(state) if self.options.run.group.size == 1 else None
        report.events += [*([] if prices is None else [prices]), *events]
        if self.options.uncertainty is None:
            return state
        mixture, told = self._mixture(trained, recorder.worth(self.problem.rows), self.options.uncertainty)
        report.events.append(told)
        report.seconds = time.perf_counter() - recorder.began - (report.compile_seconds or 0.0)
        return state if mixture is None else mixture

    def _mixture(self, trained: Trained, evaluations: float, method: str) -> tuple[MixtureState | None, Event]:
        """The posterior over draws of the hyperparameters, and what the report says of it. Args: evaluations, of all
        rows that the search was worth."""
        if self.no_draws is not None:
            return None, Event(EventKind.HYPERPARAMETERS_FIXED, reason=self.no_draws)
        assert isinstance(trained.objective, LogJoint)
        run, settings = self.options.run, self.options.settings.uncertainty
        how = Uncertainty(method, run.seed, evaluations, run.deadline.left, settings)
        conditioning = self.conditioning(jitter=self.options.jitter)
        return how.mixture(self.result, self.data, trained.objective, trained.theta, conditioning)

    @property
    def conditionings(self) -> int:
        return 1 if self.problem.sites is None else self.options.settings.sites.conditionings

    def rows_on_time(self) -> int:
        run, settings = self.options.run, self.options.settings
        return rows_on_time(
            self.prior, self.plan, run.deadline, settings.time, deterministic=run.deterministic,
            slowdown=self.conditionings,
        )  # fmt: skip


def fit_exact(prior: Prior, data: Data, options: FitOptions) -> Fitted[Any]:
    """See `flashgp.fit`."""
    return fitted_by(ExactFit, prior, data, options)


def _plan(prior: Prior, data: Data, options: FitOptions) -> Plan:
    """The plan given, checked, or made. Raises: ShapeError without rows; MemoryBudgetError if training does not fit."""
    x, rows, plan = data.x, data.count, options.plan
    if plan is not None:
        device = planned_device(plan, options.run.device, x)
        check_plan(plan, prior, x, device, data.distinct, ConditionSettings(options.run, jitter=options.jitter))
    if rows == 0:
        raise ShapeError(
            f"`x` must have at least one row to fit, got shape {tuple(x.shape)}; condition on no rows instead"
        )
    if plan is None:
        asked = options.planning(
            device=x.device if options.run.device is None else options.run.device, dtype=options.run.dtype,
            solver=options.solver,
            factored=options.jitter is not None or data.is_batch or not prior.likelihood.has_sites,
        )  # fmt: skip
        plan = Choice(prior, data.counts, asked).exact()
    if plan.training_bytes > plan.available_bytes:
        error = MemoryBudgetError(
            f"fitting {rows:,} rows needs {readable_bytes(plan.training_bytes)} with "
            f"{readable_bytes(plan.available_bytes)} available; pass a larger memory=, or condition with given "
            f"hyperparameters, which needs {readable_bytes(plan.peak_bytes)}",
            needed_bytes=plan.training_bytes,
            available_bytes=plan.available_bytes,
        )
        raise with_offers(error, _approximations(prior, plan, options), training=True)
    return plan


def _approximations(prior: Prior, plan: Plan, options: FitOptions) -> tuple[Plan, ...]:
    """The approximations that would fit in place of an exact plan."""
    models = max(1, plan.batch // max(1, prior.kernel.batch_shape.numel()))
    asked = options.planning(memory=plan.available_bytes, device=torch.device(plan.device))
    rows = RowCounts(plan.n, plan.d, plan.distinct, models)
    return Choice(prior, rows, asked, options.run.deadline.limit).offered()


def _offers(prior: Prior, plan: Plan, options: FitOptions) -> list[Event]:
    """Events with the time of approximations, where an exact fit takes longer than its limit."""
    limit = options.run.deadline.limit
    if limit is None or plan.fit_seconds <= limit:
        return []
    plans = _approximations(prior, plan, options)
    quicker = tuple(one for one in plans if one.fit_seconds < plan.fit_seconds)
    return [offer_event(plan, quicker, limit)] if quicker else []
