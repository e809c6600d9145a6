"""Posterior of a group: `gp.condition(x, y, group=)` and what it answers, the same on every rank.

Every rank has all rows of x and y, and the factor where there is one: each answers for itself then, nothing is sent.
Without a factor what solves take is shared: all ranks call the same methods in the same order, points and options are
compared before work begins, and an error on one rank is raised by all of them. Reading a property sends nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind
from flashgp.foundations.report import Report
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.evidence import evidence_is_known
from flashgp.inference.exact_plan import conditioning_plan
from flashgp.inference.gathered import (
    agreed_memory,
    agreed_plan,
    gathered,
    of_this_rank,
    own_rows_of_interrupted,
    shared_event,
    tensor_mark,
)
from flashgp.inference.output_states import AnyState, OutputStates
from flashgp.inference.plan_settings import PlanSettings, chosen_device
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.exact_predictor import Waiting, predict
from flashgp.inference.predict.importance import Importance
from flashgp.inference.predict.leave_one_out import LeaveOneOut
from flashgp.inference.predict.paths import Paths
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.predictor import Predictor, Variance
from flashgp.inference.predict.progress import ToldProgress
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.training.fit import Fitted, fit_prior
from flashgp.inference.training.options import FitOptions
from flashgp.planner.products import ProductPlan
from flashgp.processes.agreement import deadline_of
from flashgp.processes.group import ALONE, Group


class GroupPosterior(Posterior):
    """A posterior that the ranks of a group have in common. Made by `gp.condition` and `fgp.fit` with `group=`.

    All of `Posterior`, but for learning online; fields as there: x, y and weights are those of all rows, in the order
    of the ranks. `fgp.save` on rank 0 writes a file that one process loads. Methods that need all ranks say so below;
    those of a prediction without a factor (`covariance`, `sample`, `joint_log_prob`) are among them.

    Fields: group.
    """

    def __init__(self, state: AnyState, units: str = "") -> None:
        super().__init__(state, units)
        self.group: Group = state.settings.group

    def in_units(self, units: str) -> "GroupPosterior":
        return GroupPosterior(self.state, units)

    @property
    def by_output(self) -> "tuple[Posterior, ...]":
        parts = self.state.parts if isinstance(self.state, OutputStates) else ()
        return tuple(GroupPosterior(part, self.units) for part in parts)

    def predict(
        self,
        x_test: Any,
        *,
        variance: str | None = "auto",
        plan: ProductPlan | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
        time_limit: float | None = None,
        progress: ToldProgress = None,
    ) -> Prediction:
        """See `Posterior.predict`. Without a factor all ranks call it, and mean and variance are computed within.

        Args: variance, also None: the mean alone, which is quicker without a factor.
        """
        with self._asked("predict") as group:
            if group.size > 1:
                points = check_points(x_test, "x_test", like=self.state.x)
                options = f"{variance=} {deterministic=} {time_limit=} gradients={torch.is_grad_enabled()}"
                group.compare(x_test=tensor_mark(points), options=options)
            prediction = predict(
                self.state, x_test, variance=variance or "auto", plan=plan, memory=memory, deterministic=deterministic,
                waiting=Waiting(time_limit, progress), group=group,
            )  # fmt: skip
            if group.size > 1:
                prediction = prediction.asking(lambda predictor: _Together(predictor, group, variance is not None))
                _ = prediction.mean, variance and prediction.variance  # kept, while all ranks are here
            return prediction

    def paths(self, count: int, *, features: int = 2048, seed: int | None = None) -> Paths:
        """See `Posterior.paths`. All ranks call it: without a seed they take rank 0's, and get the same functions."""
        with self.group.together(asked="paths") as group:
            if seed is None:  # one draw for all ranks, of rank 0's generator
                seed = int(group.from_first(torch.randint(2**62, ())))
            group.compare(count=count, features=features, seed=seed)
            return super().paths(count, features=features, seed=seed)

    def log_marginal_likelihood(self) -> Float64[Tensor, "*batch"]:
        if evidence_is_known(self.state):  # to every rank, of which one may print it
            return super().log_marginal_likelihood()
        with self.group.together(asked="log_marginal_likelihood") as group:
            return group.from_first(super().log_marginal_likelihood())

    def leave_one_out(self) -> LeaveOneOut:
        with self._asked("leave_one_out"):
            return super().leave_one_out()

    def importance(self, *arguments: Any, **options: Any) -> Importance:
        with self._asked("importance"):
            return super().importance(*arguments, **options)

    @contextmanager
    def _asked(self, method: str) -> Iterator[Group]:
        """The ranks that a method needs: none but this one where it has a factor that no shared solves correct."""
        parts = self.state.parts if isinstance(self.state, OutputStates) else (self.state,)
        if all(part.factor is not None and part.solves is None for part in parts):
            yield ALONE
            return
        with self.group.together(asked=method) as group:
            yield group

    def _of(self, state: AnyState) -> "GroupPosterior":
        return self if state is self.state else GroupPosterior(state, self.units)


class _Together(Predictor):
    """A predictor whose errors all ranks share. Args: predictor, of every rank; group; varies, else the mean alone."""

    def __init__(self, predictor: Predictor, group: Group, varies: bool) -> None:
        self._predictor, self._group, self._varies = predictor, group, varies
        self.deterministic, self.differentiable = predictor.deterministic, predictor.differentiable
        self.separate = predictor.separate

    @property
    def report(self) -> Report:  # type: ignore[override]
        return self._predictor.report

    def mean(self, x: Tensor) -> Tensor:
        with self._group.together(asked="predict"):
            return self._predictor.mean(x)

    def variance(self, x: Tensor) -> Variance:
        if not self._varies:
            raise DomainError(
                "`variance` must be asked for while all ranks are there, got predict(variance=None), the mean; call "
                'predict(x_test, variance="auto") on every rank'
            )
        with self._group.together(asked="predict"):
            return self._predictor.variance(x)

    def covariance(self, x: Tensor) -> Tensor:
        with self._group.together(asked="covariance"):
            return self._predictor.covariance(x)

    def paths(self, count: int, features: int, seed: int | None) -> Any:
        with self._group.together(asked="paths"):
            return self._predictor.paths(count, features, seed)

    def rounding(self, x: Tensor) -> Tensor:
        return self._predictor.rounding(x)

    def forget(self) -> None:
        self._predictor.forget()


def condition_group(prior: Prior, data: Data, settings: ConditionSettings) -> GroupPosterior:
    """`GP.condition` with a group of several ranks. Raises: as it, the same error on every rank."""
    with settings.solve.group.together() as group:
        before = group.bytes_sent
        if settings.differentiable:
            raise DomainError(
                "`differentiable` keeps a graph through all rows on one process, got it beside group=; "
                "gp.log_marginal_likelihood(x, y, group=) has gradients by parameters, x and y"
            )
        table = gathered(prior, data, group, **_asked(settings))
        data = Data(table.prior, table.x.detach(), table.y.detach())
        plan = settings.plan
        if plan is None:
            wanted = PlanSettings(
                agreed_memory(settings.memory, data.x.device, group), chosen_device(settings.device, data.x),
                settings.dtype, solver=settings.solver, deterministic=settings.solve.deterministic,
                factored=settings.jitter is not None, ranks=group.size,
            )  # fmt: skip
            plan = conditioning_plan(data.prior, data.counts, wanted)
        plan = agreed_plan(plan, group)
        deadline = deadline_of(group, settings.deadline)
        settings = replace(settings, plan=plan, memory=None, device=plan.device, deadline=deadline)
        state = condition(data.prior, data, settings)
        state.report.events.append(shared_event(group, before, table.shares, plan.shared))
        return GroupPosterior(agreed_state(state, group))


def fit_group(prior: Prior, data: Data, options: FitOptions) -> Fitted[AnyState]:
    """`fgp.fit` with a group of several ranks. Raises: as it, the same error on every rank.

    Few rows are fitted by every rank alike; all rows by factors of every rank, or by estimated gradients that are
    shared. Every evaluation is rank 0's.
    """
    with options.group.together() as group:
        before = group.bytes_sent
        table = gathered(prior, data, group, **_fit_asked(options))
        memory = options.memory if options.plan is not None else agreed_memory(options.memory, table.x.device, group)
        options = replace(options, memory=memory, deadline=deadline_of(group, options.deadline))
        with own_rows_of_interrupted(table.shares, group):
            fitted = fit_prior(table.prior, Data(table.prior, table.x.detach(), table.y.detach()), options)
        agreed_state(fitted.state, group)
        planned = fitted.report.plan.shared
        fitted.report.events.append(shared_event(group, before, table.shares, planned, fitting=True))
        return replace(fitted, prior=of_this_rank(fitted.prior, table.shares, group))


def agreed_state(state: AnyState, group: Group) -> AnyState:
    """The state, which must have come about in the same way on every rank. Raises: RankMismatchError."""
    kinds = sorted({event.kind.name for event in state.report.events if event.kind is not EventKind.CORES_TAKEN})
    group.compare(route=state.report.route, jitter=state.report.jitter is not None, events=kinds)
    return state


def _asked(settings: ConditionSettings) -> dict[str, object]:
    """What all ranks must have asked for."""
    solve, plan = settings.solve, settings.plan
    return {
        "approximation": None,
        "solver": settings.solver, "tolerance": solve.tolerance, "seed": solve.seed, "memory": settings.memory,
        "deterministic": solve.deterministic, "dtype": settings.dtype, "jitter": settings.jitter,
        "plan": None if plan is None else plan.route, "progress": settings.progress is not None,
        "time_limit": settings.deadline.limit,
    }  # fmt: skip


def _fit_asked(options: FitOptions) -> dict[str, object]:
    """The same of a fit."""
    plan = options.plan
    return {
        "approximation": None,
        "starts": options.starts, "initial": options.initial, "priors": options.priors, "seed": options.seed,
        "max_iterations": options.max_iterations, "memory": options.memory, "dtype": options.dtype,
        "tolerance": options.tolerance, "jitter": options.jitter, "deterministic": options.deterministic,
        "solver": options.solver, "plan": None if plan is None else f"{plan.route}, {plan.training}",
        "checkpoint": options.checkpoint is not None, "time_limit": options.deadline.limit,
    }  # fmt: skip
