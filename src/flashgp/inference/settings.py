"""How conditioning and solves were asked for, as values that are passed down."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.inference.approximation import refuse_exact
from flashgp.inference.threads import FreeCores
from flashgp.planner.plan import FACTORED, Plan
from flashgp.planner.variances import STRIP_BYTES
from flashgp.processes.group import ALONE, Group
from flashgp.solvers.contract import Step


@dataclass(frozen=True)
class OnlineSettings:
    """How updates of a float64 factor go, and predictions at a few points.

    Fields:
        numpy_pairs: of a block, up to which NumPy evaluates its covariances where the prior allows it (numpy_prior.py):
            the calls weigh as much as the arithmetic. 0 for never.
        few_rows: that come or go at once, up to which memory is the limit and a second thread only makes others wait.
        checked_rows: of the factor that are checked in so many updates, (M-113).
        check_every: updates in which so many rows are checked: a few in each, so that all take as long; on an
            accelerator, which would be waited for, all of them in every so many updates.
        max_drift: times sqrt(n) eps, a backward error beyond which the factor is made again.
        strip_bytes: of covariances alive at once, of predictions of fantasies.
    """

    numpy_pairs: int = 2**14
    few_rows: int = 16
    checked_rows: int = 16
    check_every: int = 4
    max_drift: float = 100.0
    strip_bytes: int = STRIP_BYTES


@dataclass(frozen=True)
class SolveSettings:
    """How solves go, beside the plan; a state keeps it for what it answers later.

    Fields: seed of a method's draws; deterministic, whether all answers have the same bits whatever the number of
    threads (foundations/determinism.py); tolerance of the mean, in standard deviations of an observation; online, of
    updates; group, of ranks that share the work of solves.
    """

    seed: int = 0
    deterministic: bool = False
    tolerance: float = 1e-3
    online: OnlineSettings = OnlineSettings()
    group: Group = ALONE


@dataclass(frozen=True)
class TimeSettings:
    """How a time limit is kept where a posterior of all rows would take too long.

    Args:
        min_rows: of a posterior, whatever the time and the plan: they take some milliseconds.
        max_share: of the time left that a posterior of all rows may take, by its plan, so that a search leaves it as
            much.
        part_share: what a search leaves of it otherwise, to iterations that end with the time, or to a posterior of as
            many rows as can be had.
        min_solve: of the planned seconds of an iterative solve, without which none begins.
        solve_share: of the time left after which a solve has to have its residual below `max_residual`: above, the mean
            of a quarter of the rows is the better one (decision 23).
        max_residual: relative.
        grace_share, grace_seconds: of the limit, and beside: by which planned work may pass it.
        negligible_seconds: of work that is done however late it is.
        growth: of the numbers of rows that are priced, one after the other.
    """

    min_rows: int = 400
    max_share: float = 0.75
    part_share: float = 0.5
    min_solve: float = 0.1
    solve_share: float = 0.75
    max_residual: float = 0.1
    grace_share: float = 0.1
    grace_seconds: float = 1.0
    negligible_seconds: float = 0.1
    growth: float = 1.25

    def reserved(self, plan: Plan, left: float) -> float:
        """Seconds that a search leaves to the posterior of a plan."""
        if plan.route in FACTORED and plan.seconds <= self.max_share * left:
            return plan.seconds
        return min(plan.seconds, self.part_share * max(0.0, left))

    def late(self, deadline: Deadline, seconds: float) -> bool:
        """Whether work of so many seconds that begins now would end too long after the deadline.

        Negligible work asks too: ranks of a group, each with seconds of its own, ask at the same places.
        """
        grace = 0.0 if deadline.limit is None else self.grace_share * deadline.limit + self.grace_seconds
        return deadline.passed(seconds - grace if seconds > self.negligible_seconds else -math.inf)


@dataclass(frozen=True)
class ConditionSettings:
    """What `GP.condition` is asked for beside prior and data; the fields are its arguments, deadline its time limit.

    Fields: interrupted is called when Ctrl-C ends an iterative solve, whose best weights the state then has, labelled;
    without it, and in a factorisation or preparation, Ctrl-C is raised. float32_factor is False where float32 factors
    are known to fail, or to need many corrections, so that none is made if a float64 one fits. cores, by default all,
    are the free ones of the fit that this belongs to; with a deadline they are looked for.
    """

    solve: SolveSettings = SolveSettings()
    solver: str | None = None
    deadline: Deadline = NO_DEADLINE
    memory: str | int | None = None
    plan: Plan | None = None
    progress: Callable[[Step], bool | None] | None = None
    interrupted: Callable[[], None] | None = None
    device: str | torch.device | None = None
    dtype: torch.dtype | None = None
    jitter: float | None = None
    differentiable: bool = False
    float32_factor: bool = True
    time: TimeSettings = TimeSettings()
    cores: FreeCores | None = None

    @property
    def alike(self) -> dict[str, object]:
        """What ranks must have asked for alike, by name."""
        solve, plan = self.solve, self.plan
        return {
            "solver": self.solver, "tolerance": solve.tolerance, "seed": solve.seed, "memory": self.memory,
            "deterministic": solve.deterministic, "dtype": self.dtype, "jitter": self.jitter,
            "plan": None if plan is None else plan.route, "progress": self.progress is not None,
            "time_limit": self.deadline.limit,
        }  # fmt: skip

    def of_approximation(self) -> None:
        """Raises: DomainError for settings of exact inference beside an approximation."""
        refuse_exact(
            solver=self.solver, plan=self.plan, jitter=self.jitter, differentiable=self.differentiable,
            progress=self.progress, dtype=None if self.dtype == torch.float64 else self.dtype,
        )  # fmt: skip
