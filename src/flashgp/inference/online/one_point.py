"""One row more, the usual step of a stream: eq. (M-111) by the calls that it needs and no others.

A posterior of n rows takes one by a triangular solve, n^2 flops, and some n numbers. Up to a few thousand rows the
calls around it weigh as much, so that here they are NumPy's and BLAS's, on what the prior looked up once
(numpy_prior.py). What is not that simple goes the general way (update.py), which gives the same numbers up to rounding.
"""

import math
import time
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.form import Rows
from flashgp.foundations.workspace import Workspace
from flashgp.inference.numpy_prior import TITLE, NumpyPrior, plain_array
from flashgp.inference.online.finish_update import FactorCheck, Table, Update, finish_update
from flashgp.inference.state import State
from flashgp.inference.threads import quiet_openblas
from flashgp.pairwise.numpy_pairs import Array, RowArrays
from flashgp.solvers.growing.panels import PanelFactor

F64 = torch.float64
MIN_NORM = 2.0**-500


@entered()
def appended_row(state: State, x: Any, y: Any) -> State | None:
    """The posterior with one more row, as `Posterior.append`; None where `x`, `y` or the posterior ask for more care.

    Raises: NotPositiveDefiniteError as `append`.
    Cost: n^2 flops and some fifty calls.
    """
    started = time.perf_counter()
    prior, factor = state.numpy_prior, state.factor
    if prior is None or factor is None or state.run.group.size > 1:
        return None
    given, panels = _row(state, x, y), PanelFactor.of(factor)
    if given is None or panels.dtype != F64 or not panels.takes_vectors:
        return None
    z = state.whitened_residual
    if z is None:  # the first row after conditioning: kept, since others may be joined to the same posterior
        z = state.cache.whitened = panels.half_solve(state.residual)
    with quiet_openblas(), numpy.errstate(all="ignore"):  # what is not finite is refused by its pivot
        return _appended(state, prior, panels, z, *given, started)


def _row(state: State, x: Any, y: Any) -> tuple[Array, Array] | None:
    """x (1, d) and y (1,) or (1, outputs) where they are finite and just like those before; None for all else."""
    row, target = plain_array(x), plain_array(y)
    if row is None or target is None:
        return None
    for given, before in ((row, state.x.numpy()), (target, state.y.numpy())):
        if given.dtype != before.dtype or given.shape != (1, *before.shape[1:]):
            return None
    total = sum(row[0].tolist()) + sum(target.ravel().tolist())  # of some numbers, sooner than by a call
    return (row, target) if math.isfinite(total) else None


def _appended(
    state: State, prior: NumpyPrior, factor: PanelFactor, z: Tensor, x: Array, y: Array, started: float
) -> State:
    workspace = Workspace()
    workspace.ran(TITLE)
    rows, jitter = state.rows, float(factor.jitter)
    new = prior.rows(x)
    cross = prior.covariance.block(new, RowArrays.of(rows))[0]
    noise = prior.noise + jitter if jitter else prior.noise
    corner = prior.covariance.corner(new) + float(noise)
    turn = state.online.turn if state.online.turn < len(cross) else 0
    entry = float(cross[turn])
    factor, root = factor.bordered_by(cross, corner, workspace)  # cross is L^-1 of it now
    residuals = state.residual.numpy()
    residual = y.reshape(1, -1) - prior.mean
    before = z.numpy()
    check = _checked(state, factor.row(turn), cross, entry, before, residuals)
    whitened = _followed(before, (residual - cross @ before) / root)
    table = Table(None, _followed(residuals, residual), noise.expand(len(cross) + 1))
    longer = Rows(
        tuple(_followed(f.numpy(), more) for f, more in zip(rows.features, new.features, strict=True)),
        tuple(_followed(a.numpy(), more) for a, more in zip(rows.scalars, new.scalars, strict=True)),
        rows.count + 1, rows.batch, rows.place,
    )  # fmt: skip
    x_all, y_all = _followed(state.x.numpy(), x), _followed(state.y.numpy(), y)
    update = Update(state.prior, x_all, y_all, longer, table, factor, whitened, appended=1)

    def covariance(some: Rows, others: Rows) -> Tensor:
        return prior.block(some, others, workspace)

    return finish_update(state, update, covariance, workspace, started, check)


def _checked(state: State, row: Array, half: Array, entry: float, z: Array, residual: Array) -> FactorCheck:
    """One row l of the factor beside the new one s, with which its covariance is `entry`, eq. (M-113).

    An append changes no row but adds one: l . s sees the errors of that, and l z those of the row itself. Norms stand
    for their sizes, which takes half the calls.
    """
    stop = len(row)
    s, z = half[:stop], z[:stop]
    errors, entries = (residual[stop - 1] - row @ z).tolist(), residual[stop - 1].tolist()
    length = _norm(float(numpy.vdot(row, row)))
    drift = abs(entry - float(row @ s)) / (length * _norm(float(numpy.vdot(s, s))))
    for error, target, squared in zip(errors, entries, numpy.einsum("ij,ij->j", z, z).tolist(), strict=True):
        share = abs(error) / (length * _norm(squared) + abs(target))
        drift = max(drift, share if math.isfinite(share) else math.inf)  # max forgets what is no number
    squares = float(numpy.vdot(residual, residual))
    relative = None
    if squares > 0.0:  # of one row: the mean of the last sixteen
        relative = len(residual) * sum(error * error for error in errors) / squares
        if (known := state.report.relative_residual) is not None:
            relative = known * known + (relative - known * known) / state.run.online.checked_rows
        relative = relative**0.5
    return FactorCheck(drift if math.isfinite(drift) else math.inf, relative, stop)


def _norm(squared: float) -> float:
    """Root of a squared norm, at least MIN_NORM; squares of negligible numbers may be zero."""
    return max(squared**0.5, MIN_NORM)


def _followed(before: Array, more: Array) -> Tensor:
    return torch.from_numpy(numpy.concatenate([before, more]))
