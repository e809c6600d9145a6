"""Solves with A = K + noise that stop on the answer: how conditioning gets its weights without a float64 factor.

A posterior's mean is certain to a tolerance in standard deviations of an observation, whichever method ran. By (M-76)
the mean is off by at most sqrt(k_**) |e|_A, so a solve ends once a bound of |e|_A is below

    tolerance * noise_sd / sqrt(max k(x, x)),

with noise_sd the smallest standard deviation of an observation's noise. Without noise no bound is known, and the
relative residual decides. Conjugate gradients answer, preconditioned by a factor of A where one is at hand.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, FlashGPWarning, MemoryBudgetError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.system import CovarianceSystem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import Orders
from flashgp.planner.plan import Plan
from flashgp.solvers.direct.cholesky import TriangularFactor
from flashgp.solvers.direct.cholesky_solver import CholeskyPreconditioner
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients, PreparedConjugateGradients
from flashgp.solvers.iterative.contract import NO_LIMITS, Goal, Limits, Prepared, Solution, Solver, Step, System
from flashgp.solvers.iterative.lanczos import LogDeterminant, log_determinant

__all__ = [
    "OF_THE_WEIGHTS",
    "PreparedOnce",
    "SolverChoice",
    "Solves",
    "Stopping",
    "iterative_method",
    "limits_of",
    "mean_goal",
    "record",
    "unfinished",
]

F64 = torch.float64
RELATIVE_FLOOR = 1e-13  # a residual that small is as good as float64 gives, whatever its bound says
PROBE_SEED = 2**32  # added to a seed for the draws of probes
# Events of one solve of the weights, which a later one makes untrue.
OF_THE_WEIGHTS = frozenset(
    {
        EventKind.SOLVED, EventKind.SOLVE_ENDED, EventKind.ROUNDING_REACHED, EventKind.PRECONDITIONER_COMPARED,
        EventKind.PRECONDITIONER_UNDECIDED, EventKind.PRECONDITIONER_REFUSED,
    }
)  # fmt: skip
FACTOR_WINDOW = 50  # iterations within which a solve with a factor must halve its residual


@dataclass(frozen=True)
class Stopping:
    """What ends the solve of the weights, and what that means for the mean.

    Fields: goal; largest, the root of max k(x, x), which makes a bound of the mean of one of |e|_A; asked, the bound
    of the mean that was asked for, in units of y (0 without noise).
    """

    goal: Goal
    largest: float
    asked: float


def mean_goal(system: CovarianceSystem, tolerance: float) -> Stopping:
    """For a mean within `tolerance` standard deviations of an observation, by (M-76)."""
    largest = math.sqrt(float(system.diagonal().max()))
    asked = tolerance * math.sqrt(float(system.noise.min()))
    return Stopping(Goal(RELATIVE_FLOOR, asked / largest if largest > 0.0 else 0.0), largest, asked)


def limits_of(
    time_limit: float | None,
    began: float,
    progress: Callable[[Step], bool | None] | None,
    interrupted: Callable[[], None] | None,
) -> Limits:
    """Raises: DomainError for a time limit that is none."""
    if time_limit is None:
        return Limits(callback=progress, interrupted=interrupted)
    if not isinstance(time_limit, int | float) or not time_limit >= 0:
        raise DomainError(f"`time_limit` must be 0 or more seconds, got {time_limit!r}; leave it out for none")
    return Limits(deadline=began + time_limit, callback=progress, interrupted=interrupted)


@dataclass(frozen=True)
class SolverChoice:
    """How solves were asked for, beside the plan: the seed of a method's draws, whether all that a posterior answers
    has to be deterministic (foundations/determinism.py), and the tolerance of the mean, in standard deviations of an
    observation."""

    seed: int = 0
    deterministic: bool = False
    tolerance: float = 1e-3


DEFAULT_CHOICE = SolverChoice()


class PreparedOnce(Solver):
    """A method whose preparation is kept for later solves, or is at hand."""

    def __init__(self, solver: Solver | None, name: str, ready: Prepared | None = None) -> None:
        self.solver, self.name, self.ready = solver, name, ready

    def prepare(self, system: System, *, seed: int = 0) -> Prepared:
        if self.ready is None:
            assert self.solver is not None
            self.ready = self.solver.prepare(system, seed=seed)
        return self.ready


class Solves:
    """A^-1 of the training rows.

    Fields: system; method, prepared once; seed of its draws; anchors, the pivots of a preconditioner that was carried
    over from other rows (online/iterative.py), None where they are rows of the system.
    """

    def __init__(self, system: CovarianceSystem, method: PreparedOnce, seed: int, anchors: Rows | None = None) -> None:
        self.system, self.method, self.seed, self.anchors = system, method, seed, anchors

    @classmethod
    def of(
        cls,
        plan: Plan | None,
        form: Form,
        theta: Sequence[Tensor],
        rows: Rows,
        noise: Tensor,
        *,
        factor: TriangularFactor | None = None,
        choice: SolverChoice = DEFAULT_CHOICE,
        workspace: Workspace | None = None,
        reflected: bool = False,
    ) -> "Solves":
        """As a plan says: on the tiles it stores or computes again, or with the factor it made; reflected: as
        CholeskyPreconditioner."""
        orders = Orders(deterministic=choice.deterministic)
        operator = CovarianceOperator(form, theta, rows, None, F64, workspace, orders)
        system = CovarianceSystem(operator, noise, stored=plan is not None and plan.route == "stored")
        if factor is not None:
            return cls.refining(system, factor, choice.seed, reflected=reflected)
        return cls(system, iterative_method(plan), choice.seed)

    @classmethod
    def refining(
        cls, system: CovarianceSystem, factor: TriangularFactor, seed: int, *, reflected: bool = False
    ) -> "Solves":
        """With a factor at hand; reflected: as CholeskyPreconditioner."""
        preconditioner = CholeskyPreconditioner(factor, system, reflected=reflected)
        ready = PreparedConjugateGradients(system, preconditioner, name="refinement", first=F64, window=FACTOR_WINDOW)
        return cls(system, PreparedOnce(None, "refinement", ready), seed)

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """A^-1 rhs for rhs (n, t), float64. Raises: as `Solver.prepare` and `Prepared.solve`."""
        return self.prepared().solve(rhs, goal, start=start, limits=limits)

    def prepared(self) -> Prepared:
        """The method, prepared if it is not. Raises: as `Solver.prepare`."""
        return self.method.prepare(self.system, seed=self.seed)

    @contextlib.contextmanager
    def charged_to(self, workspace: Workspace, limit: int | None) -> Iterator[None]:
        """While the block runs, buffers of solves are held to a limit, beside those of a workspace, and in its peak.

        What the method keeps is the posterior's, and made before.
        """
        own = self.system.workspace
        with contextlib.suppress(MemoryBudgetError, NotPositiveDefiniteError):  # raised again when solving
            self.prepared()
        before, peak, budget = own.live_bytes, own.peak_bytes, own.budget_bytes
        own.peak_bytes = before
        own.budget_bytes = budget if limit is None else before + max(0, limit - workspace.live_bytes)
        try:
            yield
        finally:
            workspace.peak_bytes = max(workspace.peak_bytes, workspace.live_bytes + own.peak_bytes - before)
            own.peak_bytes, own.budget_bytes = max(peak, own.peak_bytes), budget

    def log_determinant(self) -> LogDeterminant:
        """log|A|, eq. (M-99), with the factor, or the preconditioner of conjugate gradients, prepared if it is not."""
        method = self.prepared()
        assert isinstance(method, PreparedConjugateGradients)
        # Probes have a stream of their own: the pivots were drawn from that of the seed itself.
        return log_determinant(self.system, method.preconditioner, seed=self.seed + PROBE_SEED)


def iterative_method(plan: Plan | None) -> PreparedOnce:
    """Conjugate gradients with the preconditioner's rank of a plan."""
    solver = ConjugateGradients(None if plan is None else plan.rank)
    return PreparedOnce(solver, solver.name)


# -- what a report says ----------------------------------------------------------------------------------------------
def unfinished(solution: Solution) -> bool:
    """Whether another method may do better: not where time or the caller ended it."""
    return solution.stopped.another_method_may_help


def record(report: Report, solution: Solution, stopping: Stopping, time_limit: float | None) -> None:
    """What the solve of the weights reached; where that is less than was asked, a warning."""
    report.iterations = solution.iterations
    report.relative_residual = float(solution.relative_residual.max())
    bound = stopping.largest * float(solution.energy_bound.max())
    report.error_bound = bound if math.isfinite(bound) else None
    report.events += solution.events
    report.events.append(Event(EventKind.SOLVED, iterations=solution.iterations, passes=solution.passes))
    reached = {"bound": report.error_bound, "asked": stopping.asked}
    if solution.stopped is StopReason.GOAL:
        if report.error_bound is not None and report.error_bound > 1.001 * stopping.asked:
            report.events.append(Event(EventKind.ROUNDING_REACHED, **reached))
        return
    event = Event(
        EventKind.SOLVE_ENDED,
        reason=solution.stopped, residual=report.relative_residual, time_limit=time_limit, **reached,
    )  # fmt: skip
    report.events.append(event)
    warnings.warn(f"{event} {solution.stopped.advice}", FlashGPWarning, stacklevel=6)
