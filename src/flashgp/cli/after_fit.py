"""Work of a command after its fit: scores, likelihood and figures, within the rest of its time limit.

The fit leaves time for it, by the plan. What would still end too late is done for fewer rows, or left out, and a note
says so. Does not do: writing the model, which always happens.
"""

from dataclasses import dataclass, field

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, StopReason, of_kind
from flashgp.inference import plan as plans
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.importance import ImportanceSettings
from flashgp.inference.predict.shares import ShareSettings
from flashgp.inference.settings import TimeSettings
from flashgp.planner.plan import FACTORED
from flashgp.table_model.preparation import PreparedTable

from .options import FitArguments


@dataclass(frozen=True)
class AfterFit:
    """Settings of the work after a fit: its time, and what may be left out.

    Args:
        max_share: of the time left before the fit, that is kept for what follows it.
        page_seconds: of a report, which imports matplotlib.
        left_out: leave-one-out from a factor, in times that conditioning takes.
        evidence: a likelihood without a factor, in times that the solve of the weights took.
        min_scored: rows that are scored at least, or none.
        interrupt_seconds: of all of it once Ctrl-C has ended the fit.
        time: how far work may pass the limit.
    """

    max_share: float = 0.25
    page_seconds: float = 3.0
    left_out: float = 2.0
    evidence: float = 0.5
    min_scored: int = 64
    interrupt_seconds: float = 1.0
    time: TimeSettings = field(default_factory=TimeSettings)

    def reserved(self, options: FitArguments, prepared: PreparedTable, deadline: Deadline) -> float:
        """Seconds that the fit leaves; 0 without a limit."""
        if deadline.limit is None:
            return 0.0
        plan = prepared.exact_plan
        seconds = 0.0 if options.report is None else self.page_seconds
        if plan is None:
            seconds += importance_seconds(prepared, prepared.count)
            return min(seconds, self.max_share * max(0.0, deadline.left))
        if prepared.held_out is not None:
            seconds += plans.plan(
                prepared.gp, plan.n, plan.d, n_test=len(prepared.held_out[1]), distinct=plan.distinct,
                device=plan.device, conditioned=plan.route,
            ).seconds  # fmt: skip
        seconds += importance_seconds(prepared, plan.n)
        if plan.route not in FACTORED:
            seconds += self.evidence * plan.seconds
        elif prepared.held_out is None:
            seconds += self.left_out * plan.seconds
        return min(seconds, self.max_share * max(0.0, deadline.left))

    def scored(self, posterior: Posterior, count: int, deadline: Deadline) -> int:
        """Number of rows, of `count`, that can still be predicted with their variances; 0 for too few to tell, and
        where each takes a solve like that of the weights, which the time limit ended."""
        ended = of_kind(posterior.report.events, EventKind.SOLVE_ENDED)
        if posterior.state.by_solves and any(event.fields["reason"] == StopReason.TIME for event in ended):
            return 0
        rows = count
        while self.time.late(deadline, posterior.predict_seconds(rows)):
            rows //= 2
            if rows < self.min_scored:
                return 0
        return rows

    def has_time_for_left_out(self, posterior: Posterior, deadline: Deadline) -> bool:
        """True if leave-one-out fits into the time left. Of few rows it always does: it takes some milliseconds,
        however long a busy machine took to condition."""
        few, given = posterior.count <= self.time.min_rows, posterior.can("leave_out") is None  # by a pass over them
        conditioned = self.left_out * (posterior.report.seconds or 0.0)
        return few or not self.time.late(deadline, posterior.predict_seconds(posterior.count) if given else conditioned)

    def has_time_for_importance(self, prepared: PreparedTable, rows: int, deadline: Deadline) -> bool:
        """True if the importance of inputs fits into the time left, for a posterior of so many rows."""
        return not self.time.late(deadline, importance_seconds(prepared, rows))

    def has_time_for_evidence(self, posterior: Posterior, deadline: Deadline) -> bool:
        by_solves = posterior.state.by_solves
        return not by_solves or not self.time.late(deadline, self.evidence * (posterior.report.seconds or 0.0))


AFTER_FIT = AfterFit()


def importance_seconds(prepared: PreparedTable, rows: int) -> float:
    """Seconds of the importance of all inputs and of their shares of the variance for a posterior of so many rows, by
    the plan of the predictions that they take."""
    settings, inputs = ImportanceSettings(), len(prepared.names)
    held, permutations, parts = settings.sizes(rows, inputs)
    others = min(settings.others, max(1, rows - held // parts))
    points = held * permutations * (1 + inputs) // parts
    device = prepared.plan.device
    known, means = min(settings.others, rows), ShareSettings().evaluations(inputs)
    shares = plans.plan(prepared.gp, known, inputs, n_test=means, variance=False, device=device).seconds
    return parts * plans.plan(prepared.gp, others, inputs, n_test=points, device=device).seconds + shares
