"""Options of a fit: its documented arguments, and the settings that tune it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flashgp.foundations.checks import check_device, check_dtype, check_jitter
from flashgp.foundations.errors import DomainError
from flashgp.inference.run import DEFAULT_RUN, Run
from flashgp.inference.settings import ConditionSettings, TimeSettings
from flashgp.inference.sites import SiteSettings
from flashgp.inference.training.history import Progress
from flashgp.inference.training.objective import LogJoint, Objective, Problem
from flashgp.inference.training.settings import SampleSettings, SearchSettings, StochasticSettings
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint, EstimateOptions
from flashgp.inference.training.uncertainty import METHODS, UncertaintySettings
from flashgp.planner.fit_stages import StageSettings
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings

_UNCERTAINTY = f"None or one of {', '.join(map(repr, METHODS))}"


@dataclass(frozen=True)
class FitSettings:
    """Settings that tune a fit beside its documented keywords.

    Args:
        search: of starts and L-BFGS-B.
        stochastic: of many rows.
        objective: made from a `Problem`; minimised by L-BFGS-B.
        estimated: estimates its gradients where rows are many, made from a `Problem`, settings and `EstimateOptions`.
            None for that of `LogJoint`; another objective needs one there.
        time: how a time limit is kept.
        seconds_between_writes: of the checkpoint.
        sample: of rows whose passes take longer than the time limit.
        sites: of a likelihood whose sites are found by iteration.
        uncertainty: of draws of the hyperparameters.
    """

    search: SearchSettings = field(default_factory=SearchSettings)
    stochastic: StochasticSettings = field(default_factory=StochasticSettings)
    objective: Callable[[Problem], Objective] = LogJoint
    estimated: Callable[[Problem, StochasticSettings, EstimateOptions], EstimatedLogJoint] | None = None
    time: TimeSettings = field(default_factory=TimeSettings)
    seconds_between_writes: float = 1.0
    sample: SampleSettings = field(default_factory=SampleSettings)
    sites: SiteSettings = field(default_factory=SiteSettings)
    uncertainty: UncertaintySettings = field(default_factory=UncertaintySettings)

    def estimated_gradients(self, problem: Problem, options: EstimateOptions) -> EstimatedLogJoint:
        """The objective of many rows. Raises: DomainError where `objective` is another one and none is given."""
        if self.estimated is None and self.objective is not LogJoint:
            raise DomainError(
                "`settings` must have `estimated` beside another `objective` where gradients are estimated, as the "
                f"plan says for {problem.rows:,} rows, got None; pass it, or a plan with training='exact'"
            )
        return (self.estimated or EstimatedLogJoint)(problem, self.stochastic, options)


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `flashgp.fit` beside prior and data, those of the call as `run`, with a solver as `GP.condition`.

    Raises: DomainError for values of the wrong kind.
    """

    starts: int | None = None
    initial: str = "data"
    priors: str = "weak"
    max_iterations: int = 200
    run: Run = DEFAULT_RUN
    plan: Plan | None = None
    jitter: float | None = None
    checkpoint: str | Path | None = None
    progress: Callable[[Progress], None] | None = None
    settings: FitSettings = field(default_factory=FitSettings)
    solver: str | None = None
    uncertainty: str | None = None

    @property
    def stages(self) -> StageSettings:
        """Settings of the stages of the search."""
        search, stochastic = self.settings.search, self.settings.stochastic
        starts = 1 if self.starts is None and self.initial == "given" else self.starts
        return StageSettings(
            starts, search.default_starts, search.start_rows, stochastic.stage_ratio, stochastic.first_rows,
            stochastic.part_ratio, stochastic.max_parameters, stochastic.draws_per_parameter, stochastic.min_draws,
        )  # fmt: skip

    def by_sites(self) -> "FitOptions":
        """The options where sites are found by iteration: one start from fewer rows, as the prior (M-290) leaves one
        optimum, and fewer draws of the Fisher information, which it has a part in."""
        search, stochastic, sites = self.settings.search, self.settings.stochastic, self.settings.sites
        search = replace(search, start_rows=min(search.start_rows, sites.start_rows))
        stochastic = replace(
            stochastic, stage_ratio=max(stochastic.stage_ratio, sites.stage_ratio),
            draws_per_parameter=min(stochastic.draws_per_parameter, sites.draws_per_parameter),
        )  # fmt: skip
        starts = 1 if self.starts is None else self.starts
        return replace(self, starts=starts, settings=replace(self.settings, search=search, stochastic=stochastic))

    @property
    def alike(self) -> dict[str, object]:
        """Arguments that must be alike on all ranks, by name."""
        plan = self.plan
        return self.run.alike | {
            "starts": self.starts, "initial": self.initial, "priors": self.priors, "jitter": self.jitter,
            "max_iterations": self.max_iterations, "solver": self.solver, "checkpoint": self.checkpoint is not None,
            "plan": None if plan is None else f"{plan.route}, {plan.training}",
        }  # fmt: skip

    def conditioning(self, **more: Any) -> ConditionSettings:
        """The settings of the posterior. Args: more, fields of `ConditionSettings`."""
        run = replace(self.run, dtype=None, memory=None if more.get("plan") is not None else self.run.memory)
        return ConditionSettings(run, time=self.settings.time, **more)

    def planning(self, **more: Any) -> PlanSettings:
        """Options that plans have to keep to. Args: more, fields of `PlanSettings`."""
        return self.run.planning(**{"stages": self.stages, "whole": self.checkpoint is not None} | more)

    def __post_init__(self) -> None:
        check_device(self.run.device)
        check_dtype(self.run.dtype)
        check_jitter(self.jitter)

        def whole(value: Any, smallest: int) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and value >= smallest

        def positive(value: Any) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and value > 0

        def one_of(value: Any, *names: str) -> bool:
            return isinstance(value, str) and value in names

        for name, holds, wanted in (
            ("starts", self.starts is None or whole(self.starts, 1), "None or a positive integer"),
            ("initial", one_of(self.initial, "data", "given"), "'data' or 'given'"),
            ("priors", one_of(self.priors, "weak", "sparse", "given"), "'weak', 'sparse' or 'given'"),
            ("max_iterations", whole(self.max_iterations, 1), "a positive integer"),
            ("tolerance", positive(self.run.tolerance), "positive, in standard deviations of an observation"),
            ("uncertainty", self.uncertainty is None or one_of(self.uncertainty, *METHODS), _UNCERTAINTY),
            ("seed", whole(self.run.seed, 0), "0 or a positive integer"),
            ("progress", self.progress is None or callable(self.progress), "a function, None for a bar, or False"),
        ):
            if not holds:
                given = (vars(self) | vars(self.run))[name]
                raise DomainError(f"`{name}` must be {wanted}, got {given!r}; leave it out for the default")
