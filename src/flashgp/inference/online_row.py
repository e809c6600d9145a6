"""One row more, the usual step of a stream: eq. (M-111) by the calls that it needs and no others.

A posterior of n rows takes one by a triangular solve, n^2 flops, and some n numbers. Up to a few thousand rows the
calls around it weigh as much, so that here they are NumPy's and BLAS's, on what the prior looked up once
(plain_prior.py). What is not that simple goes the general way (online.py), which gives the same numbers up to rounding.
"""

import math
import time
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Rows
from flashgp.foundations.workspace import Workspace
from flashgp.inference.learned import CHECKED_ROWS
from flashgp.inference.online_ending import LEAST, Looked, State, Table, ended
from flashgp.inference.plain_prior import TITLE, PlainPrior
from flashgp.inference.threads import quiet_openblas
from flashgp.pairwise.few import Array, RowArrays
from flashgp.solvers.panels import PanelFactor

if TYPE_CHECKING:
    from flashgp.inference.posterior import Posterior

__all__ = ["appended_row"]

F64 = torch.float64


def appended_row(post: "Posterior", x: Any, y: Any) -> "Posterior | None":
    """The posterior with one more row, as `Posterior.append`; None where `x`, `y` or the posterior ask for more care.

    Raises: NotPositiveDefiniteError as `append`.
    Cost: n^2 flops and some fifty calls.
    """
    started = time.perf_counter()
    prior, factor, z = post.plain_prior, post.factor, post.learned.whitened
    if prior is None or z is None or not isinstance(factor, PanelFactor) or factor.dtype != F64 or not _as_usual():
        return None
    given = _row(post, x, y)
    if given is None or not factor.takes_vectors:
        return None
    with quiet_openblas(), numpy.errstate(all="ignore"):  # what is not finite is refused by its pivot
        return _appended(post, prior, factor, z, *given, started)


def _as_usual() -> bool:
    """Whether torch is in none of the modes that change what tensors are."""
    return not (torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu"))


def _row(post: "Posterior", x: Any, y: Any) -> tuple[Tensor, Tensor] | None:
    """x (1, d) and y (1,) or (1, outputs) where they are finite and just like those before; None for all else."""
    row, target = _alike(x, post.x), _alike(y, post.y)
    if row is None or target is None:
        return None
    numbers = row.tolist()[0] + target.reshape(-1).tolist()  # a sum of some numbers, sooner than by a call
    return (row, target) if math.isfinite(sum(numbers)) else None


def _alike(value: Any, own: Tensor) -> Tensor | None:
    if type(value) is numpy.ndarray:
        if not (
            value.flags.writeable and value.flags.c_contiguous and value.dtype.kind == "f" and value.dtype.isnative
        ):
            return None
        value = torch.from_numpy(value)
    elif type(value) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(value) or value.is_neg():
        return None
    same = value.dtype == own.dtype and value.shape == (1, *own.shape[1:]) and value.device.type == "cpu"
    return value.detach() if same and not value.is_inference() else None


def _appended(
    post: "Posterior", prior: PlainPrior, factor: PanelFactor, z: Tensor, x: Tensor, y: Tensor, started: float
) -> "Posterior":
    workspace = Workspace()
    workspace.ran(TITLE)
    rows, jitter = post.rows, float(factor.jitter)
    new = prior.rows(x.numpy())
    cross = prior.covariance.block(new, RowArrays.of(rows))[0]
    noise = prior.noise + jitter if jitter else prior.noise
    corner = float(prior.covariance.diagonal(new)[0]) + float(noise)
    turn = post.learned.turn if post.learned.turn < len(cross) else 0
    entry = float(cross[turn])
    factor, root = factor.bordered_by(cross, corner, workspace)  # cross is L^-1 of it now
    own = post.residual.numpy()
    residual = y.numpy().reshape(1, -1) - prior.mean
    before = z.numpy()
    looked = _looked(post, factor.row(turn), cross, entry, before, own)
    whitened = _followed(before, (residual - cross @ before) / root)
    table = Table(None, _followed(own, residual), noise.expand(len(cross) + 1))
    longer = Rows(
        tuple(_followed(f.numpy(), more) for f, more in zip(rows.features, new.features, strict=True)),
        tuple(_followed(a.numpy(), more) for a, more in zip(rows.scalars, new.scalars, strict=True)),
        rows.count + 1, rows.batch, rows.place,
    )  # fmt: skip
    state = State(post.gp, torch.cat([post.x, x]), torch.cat([post.y, y]), longer, table, factor, whitened, appended=1)

    def covariance(some: Rows, others: Rows) -> Tensor:
        return prior.block(some, others, workspace)

    return ended(post, state, covariance, workspace, started, looked)


def _looked(post: "Posterior", row: Array, half: Array, entry: float, z: Array, residual: Array) -> Looked:
    """One row l of the factor beside the new one s, with which its covariance is `entry`, eq. (M-113).

    An append changes no row but adds one: l . s sees the errors of that, and l z those of the row itself.
    """
    stop = len(row)
    s, z, size, own = half[:stop], z[:stop], abs(row), residual[stop - 1]
    error = own - row @ z
    shares = abs(error) / numpy.maximum(size @ abs(z) + abs(own), LEAST)
    new = abs(entry - float(row @ s)) / max(float(size @ abs(s)), LEAST)
    drift = max(new, float(shares.max()))
    squares = float(numpy.vdot(residual, residual))
    found = None
    if squares > 0.0:  # of one row: the mean of the last sixteen
        found = len(residual) * float(error @ error) / squares
        known = post.report.relative_residual
        found = (found if known is None else known * known + (found - known * known) / CHECKED_ROWS) ** 0.5
    return Looked(drift if drift == drift else math.inf, found, stop)


def _followed(own: Array, more: Array) -> Tensor:
    return torch.from_numpy(numpy.concatenate([own, more]))
