"""Learning online without a float64 factor: the weights are solved for again, from the old ones.

The old weights, with zeros for new rows, are off by about sqrt(k) in the norm that ends a solve, for k rows that come,
where zeros are off by about sqrt(n): a third of the digits are there. The preconditioner and stored tiles are made for
the rows there are now; a float32 factor is updated by (M-111) and (M-112), of which float64 solves see no rounding.
The goal is that of conditioning: a mean within the tolerance, by a bound.
"""

import time
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import EventKind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.base_state import UPDATE
from flashgp.inference.exact.solve import OF_THE_WEIGHTS, mean_goal, record
from flashgp.inference.online.finish_update import Table
from flashgp.inference.state import State
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.solvers.growing.panels import PanelFactor

F64 = torch.float64
# Events of the state before, which an update makes untrue.
OF_THE_OLD = OF_THE_WEIGHTS | {EventKind.LOG_DETERMINANT, EventKind.LIKELIHOOD_UNCERTAIN, EventKind.TILES_NOT_STORED}
PIVOT_SHARE = 0.25  # of a new row's noise: its pivot is more than the noise, and what is less is rounding


def solved_again(state: State, after: State, table: Table) -> State | None:
    """The state after an update, with its weights to the tolerance of conditioning.

    Args:
        state: before the update.
        after: the rows there are now, without factor and weights, and with an empty report.
        table: of the rows that are computed with.
    Returns: None where all has to be conditioned again, which may take a float64 factor: a float32 factor does not
        serve these rows, or the solve stagnated.
    Raises: NotPositiveDefiniteError for a row that repeats another without noise, or whose covariances overflow.
    Cost: passes over the pairs, fewer than conditioning takes, and its preconditioner; a float32 factor n^2 flops for
        each row in place of that.
    """
    began, workspace = time.perf_counter(), Workspace()
    form, count = after.prior.kernel.form, after.distinct
    new = after.rows.part(state.distinct if table.kept is None else len(table.kept), count)
    border = TorchTiles().block(PairProblem(form, after.theta, new, after.rows), dtype=F64, workspace=workspace)
    border = border.expand(new.count, count)  # K of the new rows with all
    _refuse_overflow(border)
    _refuse_repeats(after, border)
    if state.factor is not None:
        try:
            after = replace(after, factor=_factor(state, table, border, workspace))
        except NotPositiveDefiniteError:
            return None
    before = state.representer_weights if table.kept is None else state.representer_weights[table.kept]
    start = torch.cat([before, before.new_zeros(new.count, before.shape[1])])
    solves, report = after.solves, after.report
    assert solves is not None
    stopping = mean_goal(solves.system, after.run.tolerance)
    solution = solves.solve(table.residual, stopping.goal, start=start)
    if solution.stopped.another_method_may_help:
        return None
    record(report, solution, stopping, None)
    counted, usual = solves.system.workspace, after.online.usual_iterations
    report.backend, report.peak_bytes = counted.backend, max(counted.peak_bytes, workspace.peak_bytes)
    report.seconds = time.perf_counter() - began
    online = replace(
        after.online,
        usual_iterations=max((state.report.iterations if usual is None else usual) or 0, solution.iterations),
        last=(("iterations", solution.iterations), ("seconds", report.seconds), ("bound", report.error_bound)),
    )
    report.events = [
        *(event for event in state.report.events if event.stage != UPDATE and event.kind not in OF_THE_OLD),
        online.event, *(event.during(UPDATE) for event in report.events),
    ]  # fmt: skip
    return replace(after, weights=solution.value, solver=solves, online=online)


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


def _refuse_repeats(after: State, border: Tensor) -> None:
    """Raises: NotPositiveDefiniteError for a new row without noise at no distance from another without noise."""
    count = after.distinct
    noise, staying = after.noise.expand(count), count - len(border)
    bare = (noise[staying:] == 0).nonzero()[:, 0]
    if not len(bare):
        return
    diagonal = after.prior_covariance(after.rows).diagonal()
    variance = diagonal[staying + bare].unsqueeze(-1)
    # |phi - phi'|^2 of the points in the kernel's own space; a pivot that small would be rounding.
    apart = variance + diagonal - 2.0 * border[bare]
    same = (apart <= count * torch.finfo(F64).eps * (variance + diagonal)) & (noise == 0)
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


def _factor(state: State, table: Table, border: Tensor, workspace: Workspace) -> PanelFactor:
    """The float32 factor after the update, eqs. (M-111) and (M-112). Raises: NotPositiveDefiniteError."""
    assert state.factor is not None
    factor, appended = PanelFactor.of(state.factor), len(border)
    if table.kept is not None:
        factor, _ = factor.part(
            table.kept, table.added, spare=appended, compiled=not state.run.deterministic, workspace=workspace
        )
    if not appended:
        return factor
    staying = factor.count
    noise = table.noise[staying:]
    corner = border[:, staying:].clone()
    corner.diagonal().add_(noise + factor.jitter.double())
    smallest = (PIVOT_SHARE * noise).to(factor.dtype)
    return factor.bordered(border[:, :staying], corner.to(factor.dtype), workspace, smallest=smallest)[0]
