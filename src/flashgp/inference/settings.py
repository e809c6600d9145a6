"""Settings of conditioning and solves, as values that are passed down."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashgp.foundations.deadline import Deadline
from flashgp.inference.approximation import refuse_exact
from flashgp.inference.run import DEFAULT_RUN, Run
from flashgp.inference.threads import FreeCores
from flashgp.planner.plan import FACTORED, Plan
from flashgp.solvers.contract import Step


@dataclass(frozen=True)
class TimeSettings:
    """Settings of a time limit where a posterior of all rows would take too long.

    Args:
        min_rows: of a posterior, whatever the time and the plan: they take some milliseconds.
        max_share: of the time left that a posterior of all rows may take, by its plan, so that a search leaves it as
            much.
        part_share: what a search leaves of it otherwise, to iterations that end with the time, or to a posterior of as
            many rows as can be had.
        posterior_share, least_share: what a search by full scale leaves to its posterior at most, and at least until
            the pace of the first rows is known.
        parts: times the price of a posterior by full scale that it takes with the parts of the rows tried first.
        min_solve: of the planned seconds of an iterative solve, without which none begins.
        solve_share: of the time left after which a solve has to have its residual below `max_residual`: above, the mean
            of a quarter of the rows is the better one (decision 23).
        max_residual: relative.
        grace_share, grace_seconds: of the limit, and beside: by which planned work may pass it.
        interrupt_seconds: of the posterior of one process once Ctrl-C has ended its search.
        negligible_seconds: of work that is done however late it is.
        growth: of the numbers of rows that are priced, one after the other.
    """

    min_rows: int = 400
    max_share: float = 0.75
    part_share: float = 0.5
    posterior_share: float = 0.4
    least_share: float = 0.2
    parts: float = 1.25
    min_solve: float = 0.1
    solve_share: float = 0.75
    max_residual: float = 0.1
    grace_share: float = 0.1
    grace_seconds: float = 1.0
    interrupt_seconds: float = 1.0
    negligible_seconds: float = 0.1
    growth: float = 1.25

    def reserved(self, plan: Plan, left: float, times: float = 1.0) -> float:
        """Seconds that a search leaves to the posterior of a plan, which takes so many times as long."""
        seconds = times * plan.seconds
        if plan.route in FACTORED and seconds <= self.max_share * left:
            return seconds
        return min(seconds, self.part_share * max(0.0, left))

    def late(self, deadline: Deadline, seconds: float) -> bool:
        """True if work of so many seconds that begins now would end too long after the deadline.

        Negligible work asks too: ranks of a group, each with seconds of its own, ask at the same places.
        """
        deadline = self.with_grace(deadline)
        return deadline.passed(seconds if seconds > self.negligible_seconds else -math.inf)

    def with_grace(self, deadline: Deadline) -> Deadline:
        """The deadline of work that is worth passing it a little."""
        return deadline.before(-self.grace_share * (deadline.limit or 0.0) - self.grace_seconds)


@dataclass(frozen=True)
class ConditionSettings:
    """Arguments of `GP.condition` beside prior and data.

    Fields: interrupted is called when Ctrl-C ends an iterative solve, whose best weights the state then has, labelled;
    without it, and in a factorisation or preparation, Ctrl-C is raised. float32_factor is False where float32 factors
    are known to fail, or to need many corrections, so that none is made if a float64 one fits. cores, by default all,
    are the free ones of the fit that this belongs to; with a deadline they are looked for.
    """

    run: Run = DEFAULT_RUN
    solver: str | None = None
    plan: Plan | None = None
    progress: Callable[[Step], bool | None] | None = None
    interrupted: Callable[[], None] | None = None
    jitter: float | None = None
    differentiable: bool = False
    float32_factor: bool = True
    time: TimeSettings = TimeSettings()
    cores: FreeCores | None = None

    @property
    def alike(self) -> dict[str, object]:
        """Arguments that must be alike on all ranks, by name."""
        return self.run.alike | {
            "solver": self.solver, "jitter": self.jitter, "plan": None if self.plan is None else self.plan.route,
            "progress": self.progress is not None,
        }  # fmt: skip

    def of_approximation(self) -> None:
        """Raises: DomainError for settings of exact inference beside an approximation."""
        refuse_exact(
            solver=self.solver, plan=self.plan, jitter=self.jitter, differentiable=self.differentiable,
            progress=self.progress, dtype=None if self.run.dtype == torch.float64 else self.run.dtype,
        )  # fmt: skip
