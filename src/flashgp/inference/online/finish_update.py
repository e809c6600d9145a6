"""End of an update of a float64 factor: the factor is checked, then come counts, report and the new state.

Some rows of L L^T and of L z are compared with K and r, taking turns:

    |L L^T - K|_ij / (|L| |L|^T)_ij  and  |r - L z|_i / (|L| |z| + |r|)_i                              (M-113)

Every update checks four rows among themselves, on an accelerator every fourth sixteen; one that only appends a row
checks one row beside the new one (one_point.py). Where the error is more than rounding, the factor is made again.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.base_state import UPDATE, UpdateState
from flashgp.inference.exact.likelihood import DirectSettings, factorise_covariance
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates
from flashgp.inference.run import OnlineSettings
from flashgp.inference.state import State
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.solvers.growing.panels import PanelFactor

F64 = torch.float64


@dataclass(frozen=True, eq=False)
class Table:
    """Distinct rows as they are computed with after the update.

    Fields: replicates; residual (u', p); noise with the jitter (u',); kept, of the rows computed with before, those
    that stay, None for all; added (kept,), by how much their noise grows, None for nothing.
    """

    replicates: Replicates | None
    residual: Tensor
    noise: Tensor
    kept: Tensor | None = None
    added: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Update:
    """Result of an update.

    Fields: prior, x, y and rows of the state to be; table; factor; whitened, L^-1 of its residual; appended, dropped,
    how many rows came and went.
    """

    prior: Prior
    x: Tensor
    y: Tensor
    rows: Rows
    table: Table
    factor: PanelFactor
    whitened: Tensor
    appended: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class FactorCheck:
    """Result of a check of some rows.

    Fields: drift, the largest backward error; relative, an estimate of |r - L z| / |r| over all rows, None where r is
    zero; turn, the row that is checked next.
    """

    drift: float
    relative: float | None
    turn: int


def finish_update(
    state: State,
    update: Update,
    covariance: Callable[[Rows, Rows], Tensor],
    workspace: Workspace,
    started: float,
    check: FactorCheck | None = None,
) -> State:
    """The state after an update of `state`, whose factor is checked where it is time for that.

    Args: covariance, of two sets of rows; started, by `time.perf_counter`; check, of the update itself.
    """
    before, online, n, settings = state.report, state.online, update.rows.count, state.run.online
    if check is None and (rows := _rows_to_check(online, n, update.x.device, settings)) is not None:
        check = _checked(update, rows, covariance)
    drifted = check is not None and not check.drift <= settings.max_drift * n**0.5 * torch.finfo(F64).eps
    if drifted:
        update = _refactorised(state, update, workspace)
        check = _checked(update, slice(0, min(settings.checked_rows, n)), covariance)
    online = replace(
        online, appended=online.appended + update.appended, dropped=online.dropped + update.dropped,
        refactorised=online.refactorised + drifted,
        updates=online.updates + 1 if check is None else 0, turn=online.turn if check is None else check.turn,
    )  # fmt: skip
    report = Report(
        route=before.route, backend=workspace.backend, device=before.device, dtype=before.dtype,
        relative_residual=before.relative_residual if check is None else check.relative,
        jitter=float(update.factor.jitter) or None, peak_bytes=workspace.peak_bytes, plan=before.plan,
        events=[*(event for event in before.events if event.stage != UPDATE), online.event],
    )  # fmt: skip
    report.seconds = time.perf_counter() - started
    after = State(
        update.prior, update.x, update.y, update.rows, state.theta, update.table.residual, update.factor, report,
        whitened=update.whitened, replicates=update.table.replicates, run=state.run, online=online,
    )  # fmt: skip
    if update.prior is state.prior and update.table.replicates is state.replicates:
        after.cache.numpy_prior = state.cache.numpy_prior
    return after


def _rows_to_check(online: UpdateState, count: int, device: torch.device, settings: OnlineSettings) -> slice | None:
    """The rows, of so many, that this update checks; None where it does not."""
    every, rows = settings.check_every, settings.checked_rows
    if device.type == "cpu":
        every, rows = 1, rows // every
    if online.updates + 1 < every:
        return None
    start = online.turn if online.turn < count else 0
    return slice(start, min(start + rows, count))


def _refactorised(state: State, update: Update, workspace: Workspace) -> Update:
    """The update with a fresh factor of the same rows."""
    prior, table = update.prior, update.table
    noise = table.noise - update.factor.jitter
    settings = DirectSettings(
        TorchTiles(), F64, None, repair=lambda: prior.repairable(update.x, update.y), workspace=workspace
    )
    problem = PairProblem(prior.kernel.form, state.theta, update.rows)
    factor = PanelFactor.of(factorise_covariance(settings, problem, noise))
    table = replace(table, noise=noise + factor.jitter)
    return replace(update, table=table, factor=factor, whitened=factor.half_solve(table.residual))


def _checked(update: Update, rows: slice, covariance: Callable[[Rows, Rows], Tensor]) -> FactorCheck:
    """Backward errors of the factor, and of L z against the residual, in some rows, eq. (M-113)."""
    some = update.rows.part(rows.start, rows.stop)
    lower, matrix = _arrays(update.factor.some_rows(rows.start, rows.stop), covariance(some, some))
    residual, noise, z = _arrays(update.table.residual, update.table.noise, update.whitened)
    with numpy.errstate(all="ignore"):  # what is not finite counts as drift
        product, diagonal = lower @ lower.T, range(len(lower))
        product[diagonal, diagonal] -= noise[rows]
        size, z = abs(lower), z[: lower.shape[1]]
        drift = _backward_error(matrix - product, size @ size.T)
        error = residual[rows] - lower @ z
        drift = max(drift, _backward_error(error, size @ abs(z) + abs(residual[rows])))
    return FactorCheck(drift, _relative_residual(error, residual), rows.stop)


def _backward_error(wrong: Any, size: Any) -> float:
    """The largest share that entries are of what they were computed from: 0 of 0 is nothing, NaN is beyond all."""
    share = float((abs(wrong) / size.clip(torch.finfo(F64).tiny)).max())
    return math.inf if math.isnan(share) else share


def _relative_residual(error: Any, residual: Any) -> float | None:
    """An estimate of |r - L z| / |r| from some rows of r - L z."""
    with numpy.errstate(over="ignore"):
        whole = float((residual * residual).sum())
    if whole == math.inf:  # squares beyond float64
        unit = float(abs(residual).max())
        return _relative_residual(error / unit, residual / unit) if unit < math.inf else math.inf
    return (len(residual) / len(error) * float((error * error).sum()) / whole) ** 0.5 if whole > 0.0 else None


def _arrays(*tensors: Tensor) -> list[Any]:
    """The tensors as NumPy arrays, whose calls on few numbers start sooner, where it reaches them."""
    return [tensor.numpy() if tensor.device.type == "cpu" else tensor for tensor in tensors]
