"""Learning online without a float64 factor: the weights are solved for again, from the old ones.

The old weights, with zeros for new rows, are off by about sqrt(k) in the norm that ends a solve, for k rows that come,
where zeros are off by about sqrt(n): a third of the digits are there. What solves keep is carried over too. A partial
Cholesky preconditioner by eqs. (M-115) and (M-116), stored tiles with a border (M-117), a float32 factor by (M-111)
and (M-112), of which float64 solves see no rounding.

Where a solve takes clearly more iterations than one that was prepared for its rows, it is prepared anew and goes on
from there; the report says so. The goal is that of conditioning: a mean within the tolerance, by a bound.
"""

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp.foundations.errors import MemoryBudgetError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.form import Rows
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.solve import OF_THE_WEIGHTS, mean_goal, record
from flashgp.inference.solves import PreparedOnce, Solves, iterative_method
from flashgp.inference.state import UPDATE, State, UpdateState
from flashgp.inference.system import CovarianceSystem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import OperatorOptions
from flashgp.operators.stored import BorderedTiles
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.products import stored_bytes
from flashgp.solvers.direct.cholesky import TriangularFactor
from flashgp.solvers.growing.panels import PanelFactor
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.iterative.contract import Limits, Solution
from flashgp.solvers.preconditioners.candidate import Compared, vecchia
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.low_rank_update import MOST_RANK_GROWTH, carried

__all__ = ["Change", "Updated", "updated_by_solves"]

F64, F32 = torch.float64, torch.float32
# Events of the posterior before, which an update makes untrue.
OF_THE_OLD = OF_THE_WEIGHTS | {EventKind.LOG_DETERMINANT, EventKind.LIKELIHOOD_UNCERTAIN, EventKind.TILES_NOT_STORED}
ENDED_EARLY = (StopReason.TIME, StopReason.INTERRUPT, StopReason.CALLBACK)
CLEARLY_MORE = 1.5  # times the iterations of a solve that was prepared for its rows; a warm start takes fewer
LEAST_LIMIT = 10  # iterations that no preparation is thrown away for: it takes as long
FOREIGN_SHARE = 0.5  # of the rows, that a preconditioner may never have seen: beyond, it holds as much memory twice
BORDER_SHARE = 1 / 16  # of the rows, that may be no rows of stored tiles: their border is copied in every update
PIVOT_SHARE = 0.25  # of a new row's noise: its pivot is more than the noise, and what is less is rounding


@dataclass(frozen=True, eq=False)
class Change:
    """Rows that are computed with, after the update.

    Fields: rows; residual (u', p); noise (u',); kept, of the rows before, those that stay, None for all; added
    (kept,), by how much their noise grows, None for nothing.
    """

    rows: Rows
    residual: Tensor
    noise: Tensor
    kept: Tensor | None
    added: Tensor | None

    def staying(self, before: int) -> int:
        """How many of the rows before stay; they come first."""
        return before if self.kept is None else len(self.kept)


@dataclass(frozen=True, eq=False)
class Updated:
    """What the new posterior is made of."""

    factor: TriangularFactor | None
    weights: Tensor
    solves: Solves
    report: Report
    learned: UpdateState


def updated_by_solves(post: State, change: Change, learned: UpdateState) -> Updated | None:
    """The weights of the rows there are now, to the tolerance of conditioning.

    Args: learned: counts of the rows so far, with this update.
    Returns: None where a float32 factor does not go on to these rows, so that all has to be conditioned again.
    Raises: NotPositiveDefiniteError for a row that repeats another without noise, or whose covariances overflow.
    Cost: passes over the pairs, fewer than conditioning takes; what is carried over O(n k + r^3) for a rank r, or, in
        a float32 factor, n^2 flops for each row.
    """
    began = time.perf_counter()
    old, workspace, n = post.solves, Workspace(), post.distinct
    assert old is not None
    staying, count = change.staying(n), change.rows.count
    # K of the new rows with all, which everything below begins with.
    border = TorchTiles().block(
        PairProblem(post.prior.kernel.form, post.theta, change.rows.part(staying, count), change.rows), dtype=F64,
        workspace=workspace,
    ).expand(count - staying, count)  # fmt: skip
    _refuse_overflow(border)
    events: list[Event] = []
    system = _system(post, old, change, border, workspace, events)
    _refuse_repeats(system, border, staying)
    before = post.representer_weights if change.kept is None else post.representer_weights[change.kept]
    start = torch.cat([before, before.new_zeros(count - staying, before.shape[1])])
    factor: TriangularFactor | None = None
    if post.factor is not None:
        try:
            factor = _factor(post, change, border, workspace)
        except NotPositiveDefiniteError:
            return None
        solves = Solves.refining(system, factor, old.seed, reflected=learned.dropped > 0)
        limited = True
    else:
        found = _carried_over(post, old, change, border, system)
        limited = found is not None
        solves = found or Solves(system, iterative_method(post.plan), old.seed)
    usual = learned.usual_iterations
    if usual is None and not any(_ended_early(event) for event in post.report.events):
        usual = post.report.iterations
    if _vecchia_was_kept(old):
        usual = None  # it was of another preconditioner than the one that is carried over
    stopping = mean_goal(system, post.settings.tolerance)
    solution: Solution | None = None
    anew = not limited
    if limited:
        limits = Limits()
        if usual is not None:
            limits = Limits(iterations=max(LEAST_LIMIT, math.ceil(CLEARLY_MORE * usual)))
        solution = solves.solve(change.residual, stopping.goal, start=start, limits=limits)
        anew = solution.stopped.another_method_may_help
        if anew and factor is not None:
            return None
        if anew:
            limited = solution.stopped is StopReason.ITERATIONS
            events.append(
                Event(
                    EventKind.PREPARED_ANEW,
                    kept=_prepared(post),
                    iterations=solution.iterations,
                    reason=solution.stopped,
                    usual=usual if limited else None,
                )
            )
            solves = Solves(system, iterative_method(post.plan), old.seed)
    if anew:
        last = solves.solve(change.residual, stopping.goal, start=start if solution is None else solution.value)
        usual = max(usual or 0, last.iterations)
        solution = last if solution is None else _together(solution, last)
    assert solution is not None
    usual = solution.iterations if usual is None else usual
    report = Report(
        route=post.report.route, backend=workspace.backend, device=post.report.device, dtype=post.report.dtype,
        jitter=post.report.jitter, plan=post.report.plan,
    )  # fmt: skip
    record(report, solution, stopping, None)
    seconds = time.perf_counter() - began
    said = {"iterations": solution.iterations, "seconds": seconds, "bound": report.error_bound}
    learned = replace(
        learned, refactorised=learned.refactorised + anew, usual_iterations=usual, made=_prepared(post),
        last=tuple(said.items()),
    )  # fmt: skip
    report.events = [
        *(event for event in post.report.events if event.stage != UPDATE and event.kind not in OF_THE_OLD),
        learned.event, *(event.during(UPDATE) for event in (*events, *report.events)),
    ]  # fmt: skip
    report.peak_bytes, report.seconds = workspace.peak_bytes, seconds
    return Updated(factor, solution.value, solves, report, learned)


def _ended_early(event: Event) -> bool:
    """Whether time or the caller ended the solve of conditioning."""
    return event.kind is EventKind.SOLVE_ENDED and not event.stage and event.fields["reason"] in ENDED_EARLY


def _prepared(post: State) -> str:
    return "the factor" if post.factor is not None else "the preconditioner"


def _together(first: Solution, last: Solution) -> Solution:
    return replace(
        last, iterations=first.iterations + last.iterations, passes=first.passes + last.passes,
        seconds=first.seconds + last.seconds, events=[*first.events, *last.events],
    )  # fmt: skip


# -- the system -----------------------------------------------------------------------------------------------------
def _system(
    post: State, old: Solves, change: Change, border: Tensor, workspace: Workspace, events: list[Event]
) -> CovarianceSystem:
    """A of the rows there are now; on the stored tiles of the old one while few rows are foreign to them."""
    options = OperatorOptions(deterministic=post.settings.deterministic)
    operator = CovarianceOperator(PairProblem(post.prior.kernel.form, post.theta, change.rows), F64, workspace, options)
    if not old.system.stored:
        return CovarianceSystem(operator, change.noise)
    tiles = old.system.tiles_of(change.kept, border.to(F32))
    assert isinstance(tiles, BorderedTiles)
    if tiles.strange <= BORDER_SHARE * change.rows.count:
        return CovarianceSystem(operator, change.noise, tiles=tiles)
    del tiles
    needed, free = stored_bytes(change.rows.count), available_bytes(change.noise.device)
    if needed <= free:
        try:
            system = CovarianceSystem(operator, change.noise, stored=True)
        except MemoryBudgetError:
            pass
        else:
            events.append(Event(EventKind.TILES_STORED_ANEW))
            return system
    events.append(Event(EventKind.TILES_NOT_STORED, needed=needed, free=free))
    return CovarianceSystem(operator, change.noise)


def _refuse_overflow(border: Tensor) -> None:
    """Raises: NotPositiveDefiniteError for a new row whose covariances are not finite."""
    wrong = ~border.isfinite()
    if not bool(wrong.any()):
        return
    row = int(wrong.sum(1).argmax())  # others are wrong with that one only
    raise NotPositiveDefiniteError(
        f"the covariance matrix with the new rows must be finite, but that of new row {row} is not: numbers of its x "
        "are too large to square. Correct them, or leave it out",
        smallest_pivot=float("nan"),
        indices=[(row,)],
    )


def _refuse_repeats(system: CovarianceSystem, border: Tensor, staying: int) -> None:
    """Raises: NotPositiveDefiniteError for a new row without noise at no distance from another without noise."""
    noise = system.noise
    bare = (noise[staying:] == 0).nonzero()[:, 0]
    if not len(bare):
        return
    diagonal, count = system.diagonal(), len(noise)
    own = diagonal[staying + bare].unsqueeze(-1)
    # |phi - phi'|^2 of the points in the kernel's own space; a pivot that small would be rounding.
    apart = own + diagonal - 2.0 * border[bare]
    same = (apart <= count * torch.finfo(F64).eps * (own + diagonal)) & (noise == 0)
    same[torch.arange(len(bare)), staying + bare] = False
    wrong = same.any(1).nonzero()[:, 0]
    if len(wrong):
        row = int(bare[wrong[0]])
        raise NotPositiveDefiniteError(
            f"the covariance matrix with the new rows must be positive definite, but new row {row} repeats another one "
            "without noise. Give it noise (noise_variance, row_variance=), or leave it out",
            smallest_pivot=float(apart[wrong[0]].min()),
            indices=[(row,)],
        )


# -- what is carried over -------------------------------------------------------------------------------------------
def _factor(post: State, change: Change, border: Tensor, workspace: Workspace) -> PanelFactor:
    """The float32 factor after the update, eqs. (M-111) and (M-112). Raises: NotPositiveDefiniteError."""
    assert post.factor is not None
    factor, appended = PanelFactor.of(post.factor), len(border)
    if change.kept is not None:
        factor, _ = factor.part(
            change.kept, change.added, spare=appended, compiled=not post.settings.deterministic, workspace=workspace
        )
    if not appended:
        return factor
    staying = factor.count
    noise = change.noise[staying:]
    corner = border[:, staying:].clone()
    corner.diagonal().add_(noise + factor.jitter.double())
    least = (PIVOT_SHARE * noise).to(factor.dtype)
    return factor.bordered(border[:, :staying], corner.to(factor.dtype), workspace, least=least)[0]


def _carried_over(post: State, old: Solves, change: Change, border: Tensor, system: CovarianceSystem) -> Solves | None:
    """Conjugate gradients with their preconditioner carried over; None where there is none that could be."""
    ready = old.method.ready
    staying, device = change.staying(post.distinct), change.noise.device
    grown = torch.zeros(staying, dtype=torch.bool, device=device) if change.added is None else change.added > 0
    low = ready.preconditioner.bounding if isinstance(ready, PreparedConjugateGradients) else None
    if not (isinstance(ready, PreparedConjugateGradients) and isinstance(low, LowRank)):
        return None
    anchors = post.rows.take(low.pivots) if old.anchors is None else old.anchors
    found = _low_rank(post, low, anchors, change, grown, border, system)
    if found is None:
        return None
    low, anchors = found
    candidate = vecchia(system, old.seed, ready.settings)
    preconditioner = low if candidate is None else Compared(low, candidate)
    ready = PreparedConjugateGradients(system, preconditioner, ready.settings, name=ready.name)
    return Solves(system, PreparedOnce(None, ready.name, ready), old.seed, anchors)


def _vecchia_was_kept(old: Solves) -> bool:
    ready = old.method.ready
    preconditioner = ready.preconditioner if isinstance(ready, PreparedConjugateGradients) else None
    return isinstance(preconditioner, Compared) and preconditioner.candidate.outcome == "kept"


def _low_rank(
    post: State,
    low: LowRank,
    anchors: Rows,
    change: Change,
    grown: Tensor,
    border: Tensor,
    system: CovarianceSystem,
) -> tuple[LowRank, Rows] | None:
    """The preconditioner and its pivots after the update; None where most rows are foreign to it, or it is worn."""
    staying, count = len(grown), change.rows.count
    place = (~grown).nonzero()[:, 0]
    stay = place if change.kept is None else change.kept[place]
    fresh = torch.cat([grown.nonzero()[:, 0], torch.arange(staying, count, device=grown.device)])
    if low.basis.foreign + len(fresh) > FOREIGN_SHARE * count or low.rank > count:
        return None
    form = post.prior.kernel.form
    cross = TorchTiles().block(PairProblem(form, post.theta, change.rows.take(fresh), anchors), dtype=F64)
    diagonal = system.diagonal()[fresh]
    made_with = low.basis.base.shape[1]
    found = carried(
        low, stay, place, fresh, cross.expand(len(fresh), anchors.count), diagonal, change.noise,
        lambda index: system.columns(index, F64), int(MOST_RANK_GROWTH * made_with),
    )  # fmt: skip
    if found is None:
        return None
    low, pivots = found
    return low, anchors.followed_by(change.rows.take(pivots))
