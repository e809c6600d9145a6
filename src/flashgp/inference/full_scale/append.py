"""More rows for a full-scale posterior: blocks at the end, whose neighbours are among all earlier rows, eq. (M-176).

Blocks that are there already do not change: later ones condition on them. Inducing points and parameters stay.
"""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind
from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximation import NEIGHBOURS, PREDICTING
from flashgp.inference.base_state import UPDATE
from flashgp.inference.extent import check_extent
from flashgp.inference.full_scale.condition import layout_events
from flashgp.inference.full_scale.factor import FullScaleFactor
from flashgp.inference.full_scale.layout import Layout, scaled_points
from flashgp.inference.full_scale.left_out import padded
from flashgp.inference.full_scale.state import FullScaleState, Tables
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates, join
from flashgp.planner.plan import Sizes
from flashgp.solvers.growing.shared_rows import SharedRows
from flashgp.solvers.preconditioners.near_rows import (
    Neighbourhoods,
    blocks_of_near_rows,
    nearest_earlier_rows,
    nearest_of_all_earlier_rows,
)
from flashgp.solvers.settings import FullScaleSettings


@dataclass(frozen=True, eq=False)
class _More:
    """Terms of k new rows: residual (k, p), noise (k or 1,), features."""

    residual: Tensor
    noise: Tensor
    rows: Rows


@entered(lambda state, *_: state.run.deterministic)
@torch.no_grad()
def append(state: FullScaleState, x: Tensor, y: Tensor, row_variance: Any, row_weight: Any) -> FullScaleState:
    """See `Posterior.append`, of one covariance matrix. Args: x (k, d) and y (k[, outputs]), checked."""
    began = time.perf_counter()
    if not len(x):
        return state
    if not state.count:
        raise DomainError(
            "`append` needs an approximate posterior that has rows, which its inducing points are among, got one of "
            "none; condition on the first rows"
        )
    prior, more = _more(state, x, y, row_variance, row_weight)
    before = state.tables or _tables(state)
    given = before.given.followed_by([x.to(state.x.dtype), y.to(state.y.dtype)])
    x_all, y_all = given.tensors
    replicates = _replicates(state, prior, x_all, y_all)
    workspace = Workspace()
    function = dataclasses.replace(state.function, workspace=workspace)
    points = scaled_points(state.prior, more.rows, x)
    distinct = before.distinct.followed_by([more.residual, function(more.rows), points, *more.rows.tensors])
    residual, basis, points, *tensors = distinct.tensors
    rows = dataclasses.replace(state.rows.rebuilt(tensors), count=distinct.count)
    noise = _noise(state, more, distinct.count)
    near, sizes = _new_blocks(state, points)
    factor = FullScaleFactor(
        prior.kernel.form, state.theta, rows, near, residual, noise, function, basis, workspace, state.floor
    )
    sums = factor.sums_after(state.sums, compiled=not state.run.deterministic)
    sets = _followed(before.sets, near)
    layout = Layout(
        state.layout.inducing, Neighbourhoods(*sets.tensors), sizes, state.layout.appended + len(near.blocks)
    )
    online, report = state.online.counted(len(x), 0), state.report
    ours = (EventKind.FULL_SCALE, EventKind.FEWER_NEIGHBOURS)
    kept = [event for event in report.events if event.stage != UPDATE and event.kind not in ours]
    report = Report(
        route=report.route, backend=workspace.backend, device=report.device, dtype=report.dtype,
        peak_bytes=workspace.peak_bytes, seconds=time.perf_counter() - began,
        events=[*kept, *layout_events(layout, [sums]), online.event],
    )  # fmt: skip
    after = FullScaleState(
        prior, x_all, y_all, layout, rows, residual, noise, state.theta, state.function, sums, report, replicates,
        state.run, online, Tables(given, distinct, sets),
    )  # fmt: skip
    after.__dict__.update(basis=basis, near_points=points, floor=state.floor)
    if after.sizes == state.sizes and (known := state.__dict__.get("near_enough")) is not None:
        after.__dict__["near_enough"] = known
    return after


def _tables(state: FullScaleState) -> Tables:
    """Tables of a state that nothing was appended to."""
    near = state.layout.near
    distinct = (state.residual, state.basis, state.near_points, *state.rows.tensors)
    return Tables(SharedRows([state.x, state.y]), SharedRows(distinct), SharedRows([near.blocks, near.neighbours]))


def _more(state: FullScaleState, x: Tensor, y: Tensor, row_variance: Any, row_weight: Any) -> tuple[Prior, _More]:
    """The prior of all rows, and the new ones. Raises: ShapeError, DomainError for variances that do not fit
    or x too large to square."""
    prior, n, k = state.prior, state.count, len(x)
    of_rows = prior
    if not (prior.likelihood.rows_alike and row_variance is None and row_weight is None):
        prior = prior.with_likelihood(prior.likelihood.extended(n, k, row_variance, row_weight))
        of_rows = prior.with_likelihood(prior.likelihood.rows(torch.arange(n, n + k)))
    residual, noise, rows, _ = of_rows.likelihood_inputs(x, y)
    check_extent(prior.kernel.form, rows, "x")
    return prior, _More(residual, noise, rows)


def _replicates(state: FullScaleState, prior: Prior, x: Tensor, y: Tensor) -> Replicates | None:
    """Replicates of joined rows with the new ones behind them: each is a row of its own."""
    if state.replicates is None:
        return None
    u = state.distinct
    new = torch.arange(u, u + len(x) - state.count, device=x.device)
    return join(prior, x, y, torch.cat([state.replicates.group, new]))


def _noise(state: FullScaleState, more: _More, count: int) -> Tensor:
    """Noise of all rows, (u or 1,)."""
    if len(state.noise) == len(more.noise) == 1 and torch.equal(state.noise, more.noise):
        return state.noise
    u = state.distinct
    return torch.cat([state.noise.expand(u), more.noise.expand(count - u)])


def _new_blocks(state: FullScaleState, points: Tensor) -> tuple[Neighbourhoods, Sizes]:
    """The rows behind the first u of all points (u + k, d), in blocks that are as wide as those before.

    Of k rows beside u, blocks have the share k / u of the rows of those, one row at least. Cost: u k distances.
    """
    u, before, sizes = state.distinct, state.layout.near, _sizes(state, len(points))
    k, width = len(points) - u, max(1, before.block)
    size = max(1, min(width, width * k // u))
    if size == 1:
        blocks = torch.arange(u, u + k, device=points.device).unsqueeze(1)
    else:
        blocks = blocks_of_near_rows(points[u:], size, state.run.seed)
        blocks = torch.where(blocks >= 0, blocks + u, -1)
    blocks = torch.nn.functional.pad(blocks, (0, width - blocks.shape[1]), value=-1)
    whole = torch.cat([before.blocks, blocks])
    asked = torch.arange(len(before.blocks), len(whole), device=points.device)
    if k >= u and not state.layout.appended:
        settings = FullScaleSettings(width, sizes.neighbours)
        return Neighbourhoods(blocks, nearest_earlier_rows(points, whole, settings, of=asked)), sizes
    return Neighbourhoods(blocks, nearest_of_all_earlier_rows(points, whole, asked, sizes.neighbours, u)), sizes


def _sizes(state: FullScaleState, n: int) -> Sizes:
    """Sizes asked for; those of "auto" where they were cut to the few rows that there were."""
    sizes, first = state.sizes, state.distinct - state.online.appended
    neighbours, predicting = sizes.neighbours, sizes.predicting
    if neighbours >= first:
        neighbours = max(neighbours, min(NEIGHBOURS, n))
    if predicting >= first:
        predicting = max(predicting, min(PREDICTING, n))
    return dataclasses.replace(sizes, neighbours=neighbours, predicting=predicting)


def _followed(sets: SharedRows, near: Neighbourhoods) -> SharedRows:
    """Blocks and neighbours, then others; where these have more neighbours, in tables as wide."""
    blocks, neighbours = sets.tensors
    if near.neighbours.shape[1] > neighbours.shape[1]:
        both = padded(neighbours, near.neighbours)
        return SharedRows([torch.cat([blocks, near.blocks]), both])
    wide = padded(neighbours[:0], near.neighbours)
    return sets.followed_by([near.blocks, wide])
