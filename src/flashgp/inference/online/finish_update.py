"""How an update of a float64 factor ends: a look at the factor, what was learned, the report, the new posterior.

Some rows of L L^T and of L z are held against K and r, taking turns:

    |L L^T - K|_ij / (|L| |L|^T)_ij  and  |r - L z|_i / (|L| |z| + |r|)_i                              (M-113)

Every update looks at four rows among themselves, on an accelerator every fourth at sixteen; one that only appends a
row, at one row beside the new one (one_point.py). Where they show more than rounding, the factor is made anew.
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
from flashgp.inference.exact.likelihood import DirectSettings, factorise_covariance
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates
from flashgp.inference.state import UPDATE, State, UpdateState
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.solvers.growing.panels import PanelFactor

__all__ = ["LEAST", "Looked", "Outcome", "Table", "ended"]

F64 = torch.float64
LEAST = torch.finfo(F64).tiny
# Rows of the factor and of L z that are checked in every so many updates: a few in each, so that all steps take the
# same; where a device would be waited for, more of them and seldom.
CHECKED_ROWS, CHECK_EVERY = 16, 4
DRIFT = 100.0  # times sqrt(n) eps: a backward error beyond it is not that of a fresh factor


@dataclass(frozen=True, eq=False)
class Table:
    """What is computed with after the update.

    Fields: replicates; residual (u', p); noise with the jitter (u',); kept, of the rows computed with before, those
    that stay, None for all; added (kept,), by how much their noise grows, None for nothing.
    """

    replicates: Replicates | None
    residual: Tensor
    noise: Tensor
    kept: Tensor | None = None
    added: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an update has made. Fields: prior, x, y and rows of the state to be; table; factor; whitened, L^-1 of its
    residual; appended, dropped, how many rows came and went."""

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
class Looked:
    """What a look at some rows found. Fields: drift, the largest backward error; relative, an estimate of
    |r - L z| / |r| over all rows, None where r is zero; turn, the row that is looked at next."""

    drift: float
    relative: float | None
    turn: int


def ended(
    post: State,
    state: Outcome,
    covariance: Callable[[Rows, Rows], Tensor],
    workspace: Workspace,
    started: float,
    looked: Looked | None = None,
) -> State:
    """The posterior after an update of `post`, looked at where it is time for that, or where the update has not."""
    before, learned, n = post.report, post.online, state.rows.count
    if looked is None and (checked := _checked_rows(learned, n, state.x.device)) is not None:
        looked = _looked(state, checked, covariance)
    anew = looked is not None and not looked.drift <= DRIFT * n**0.5 * torch.finfo(F64).eps
    if looked is not None and anew:
        state = _made_anew(post, state, workspace)
        looked = _looked(state, slice(0, min(CHECKED_ROWS, n)), covariance)
    learned = replace(
        learned, appended=learned.appended + state.appended, dropped=learned.dropped + state.dropped,
        refactorised=learned.refactorised + anew,
        updates=learned.updates + 1 if looked is None else 0, turn=learned.turn if looked is None else looked.turn,
    )  # fmt: skip
    report = Report(
        route=before.route, backend=workspace.backend, device=before.device, dtype=before.dtype,
        relative_residual=before.relative_residual if looked is None else looked.relative,
        jitter=float(state.factor.jitter) or None, peak_bytes=workspace.peak_bytes, plan=before.plan,
        events=[*(event for event in before.events if event.stage != UPDATE), learned.event],
    )  # fmt: skip
    report.seconds = time.perf_counter() - started
    after = State(
        state.prior, state.x, state.y, state.rows, post.theta, state.table.residual, state.factor, report,
        whitened=state.whitened, replicates=state.table.replicates, settings=post.settings, online=learned,
    )  # fmt: skip
    if state.prior is post.prior and state.table.replicates is post.replicates:
        after.cache.numpy_prior = post.cache.numpy_prior
    return after


def _checked_rows(online: UpdateState, count: int, device: torch.device) -> slice | None:
    """The rows, of so many, that this update checks; None where it does not."""
    every, rows = (1, CHECKED_ROWS // CHECK_EVERY) if device.type == "cpu" else (CHECK_EVERY, CHECKED_ROWS)
    if online.updates + 1 < every:
        return None
    start = online.turn if online.turn < count else 0
    return slice(start, min(start + rows, count))


def _made_anew(post: State, state: Outcome, workspace: Workspace) -> Outcome:
    """With a fresh factor of the same rows."""
    prior, table = state.prior, state.table
    noise = table.noise - state.factor.jitter
    settings = DirectSettings(
        TorchTiles(), F64, None, repair=lambda: prior.repairable(state.x, state.y), workspace=workspace
    )
    factor = PanelFactor.of(factorise_covariance(settings, prior.kernel.form, post.theta, state.rows, noise))
    table = replace(table, noise=noise + factor.jitter)
    return replace(state, table=table, factor=factor, whitened=factor.half_solve(table.residual))


def _looked(state: Outcome, checked: slice, covariance: Callable[[Rows, Rows], Tensor]) -> Looked:
    """How far the factor is from the matrix, and L z from the residual, in some rows, eq. (M-113)."""
    some = state.rows.part(checked.start, checked.stop)
    lower, matrix = _at_hand(state.factor.some_rows(checked.start, checked.stop)), _at_hand(covariance(some, some))
    residual, noise, z = (_at_hand(t) for t in (state.table.residual, state.table.noise, state.whitened))
    with numpy.errstate(all="ignore"):  # what is not finite counts as drift
        product, rows = lower @ lower.T, range(len(lower))
        product[rows, rows] -= noise[checked]
        size, z = abs(lower), z[: lower.shape[1]]
        wrong = _backward_error(matrix - product, size @ size.T)
        error = residual[checked] - lower @ z
        wrong = max(wrong, _backward_error(error, size @ abs(z) + abs(residual[checked])))
    return Looked(wrong, _relative_residual(error, residual), checked.stop)


def _backward_error(wrong: Any, size: Any) -> float:
    """The largest share that entries are of what they were computed from: 0 of 0 is nothing, NaN is beyond all."""
    share = float((abs(wrong) / size.clip(LEAST)).max())
    return math.inf if math.isnan(share) else share


def _relative_residual(error: Any, residual: Any) -> float | None:
    """An estimate of |r - L z| / |r| from some rows of r - L z."""
    whole = float((residual * residual).sum())
    return (len(residual) / len(error) * float((error * error).sum()) / whole) ** 0.5 if whole > 0.0 else None


def _at_hand(tensor: Tensor) -> Any:
    """For a dozen calls on few numbers: NumPy's start sooner, where it reaches them."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor
