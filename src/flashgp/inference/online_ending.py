"""How an update of a float64 factor ends: a look at the factor, what was learned, the report, the new posterior.

Every few updates some rows of L L^T and of L z are held against K and r, taking turns:

    |L L^T - K|_ij / (|L| |L|^T)_ij  and  |r - L z|_i / (|L| |z| + |r|)_i                              (M-113)

Where they show more than rounding, the factor is made anew.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.gp import GP
from flashgp.inference.learned import ONLINE
from flashgp.inference.likelihood_gradient import DirectSettings, factorise_covariance
from flashgp.inference.online_window import whitened_by
from flashgp.inference.replicates import Replicates
from flashgp.pairwise.torch_tiles import TorchTiles
from flashgp.solvers.panels import PanelFactor
from flashgp.solvers.window import WindowFactor

if TYPE_CHECKING:
    from flashgp.inference.posterior import Posterior

__all__ = ["State", "Table", "ended"]

F64 = torch.float64
DRIFT = 100.0  # times sqrt(n) eps: a backward error beyond it is not that of a fresh factor


@dataclass(frozen=True, eq=False)
class Table:
    """What is computed with after the update.

    Fields: replicates; residual (u', p); noise with the jitter (u',); kept, of the rows computed with before, those
    that stay, None for all; added (kept,), by how much their noise grows, None for nothing; leading, how many left
    where they were the first and the others are what they were, None for others.
    """

    replicates: Replicates | None
    residual: Tensor
    noise: Tensor
    kept: Tensor | None = None
    added: Tensor | None = None
    leading: int | None = 0


@dataclass(frozen=True, eq=False)
class State:
    """What an update has made. Fields: gp, x, y and rows of the posterior to be; table; factor; whitened, L^-1 of its
    residual, None where the factor has it; appended, dropped, how many rows came and went; known, the rows in the
    factor of a window, else None."""

    gp: GP
    x: Tensor
    y: Tensor
    rows: Rows
    table: Table
    factor: PanelFactor | WindowFactor
    whitened: Tensor | None
    appended: int = 0
    dropped: int = 0
    known: Rows | None = None


def ended(
    post: "Posterior",
    state: State,
    covariance: Callable[[Rows, Rows], Tensor],
    workspace: Workspace,
    started: float,
) -> "Posterior":
    """The posterior after an update of `post`, looked at where it is time for that."""
    before, table, rows, factor, whitened = post.report, state.table, state.rows, state.factor, state.whitened
    learned, known = post.learned, state.known
    relative, checked = before.relative_residual, learned.looked_at(rows.count)
    anew = False
    if checked is not None:
        own = covariance(*[rows.part(checked.start, checked.stop)] * 2)
        z = whitened_by(factor, whitened)
        assert z is not None
        drift, relative = _drift(own, checked, factor, z, table)
        anew = not drift <= DRIFT * rows.count**0.5 * torch.finfo(F64).eps
    if anew and checked is not None:
        gp, known = state.gp, None
        table = replace(table, noise=table.noise - factor.jitter)
        settings = DirectSettings(
            TorchTiles(), F64, None, repair=lambda: gp.repairable(state.x, state.y), workspace=workspace
        )
        factor = PanelFactor.of(factorise_covariance(settings, gp.kernel.form, post.theta, rows, table.noise))
        table = replace(table, noise=table.noise + factor.jitter)
        whitened = factor.half_solve(table.residual)
        relative = _drift(own, checked, factor, whitened, table)[1]
    learned = replace(
        learned, appended=learned.appended + state.appended, dropped=learned.dropped + state.dropped,
        refactorised=learned.refactorised + anew, whitened=whitened,
        updates=learned.updates + 1 if checked is None else 0, turn=learned.turn if checked is None else checked.stop,
        known=known,
    )  # fmt: skip
    report = Report(
        route=before.route, backend=workspace.backend, device=before.device, dtype=before.dtype,
        relative_residual=relative, jitter=float(factor.jitter) or None, peak_bytes=workspace.peak_bytes,
        plan=before.plan, events=[*(event for event in before.events if not event.startswith(ONLINE)), learned.event],
    )  # fmt: skip
    report.seconds = time.perf_counter() - started
    after = type(post)(
        state.gp, state.x, state.y, rows, post.theta, factor, None, table.residual, report,
        replicates=table.replicates, choice=post.choice, learned=learned,
    )  # fmt: skip
    if state.gp is post.gp and table.replicates is post.replicates:
        after.take_prior(post)
    return after


def _drift(
    own: Tensor, checked: slice, factor: PanelFactor | WindowFactor, whitened: Tensor, table: Table
) -> tuple[float, float | None]:
    """How far the factor is from the matrix, and L z from the residual, in some rows, eq. (M-113).

    Args: own: K of the checked rows, (c, c); checked: which they are; whitened: z, (n, p).
    Returns: the largest backward error of these rows, and an estimate of |r - L z| / |r| over all.
    """
    lower, z = _at_hand(factor.some_rows(checked.start, checked.stop)), _at_hand(whitened)
    matrix, residual, noise = (_at_hand(t) for t in (own, table.residual, table.noise))
    z, size, rows = z[: lower.shape[1]], abs(lower), range(len(own))
    product = lower @ lower.T
    product[rows, rows] -= noise[checked]
    least = torch.finfo(F64).tiny  # rows without anything in common are 0 of 0 off
    wrong = float((abs(matrix - product) / (size @ size.T).clip(least)).max())
    error, bound = residual[checked] - lower @ z, size @ abs(z) + abs(residual[checked])
    wrong = max(wrong, float((abs(error) / bound.clip(least)).max()), key=_nan_last)
    whole = _norm(residual)
    share = (len(residual) / len(matrix)) ** 0.5 / whole if whole > 0.0 else None
    return wrong, None if share is None else _norm(error) * share


def _at_hand(tensor: Tensor) -> Any:
    """For a dozen calls on few numbers: NumPy's start sooner, where it reaches them."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _norm(values: Any) -> float:
    return float((values * values).sum()) ** 0.5


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value
