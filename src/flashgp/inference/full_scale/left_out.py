"""Leave-one-out of a full-scale posterior, and an estimate of what the approximation loses.

The training density is Gaussian with the precision Q = W^T (I - B M^-1 B^T) W, so leaving a row out is as exact in that
model as in any, eqs. (M-39) and (M-40). What it loses is the divergence from the exact model, eq. (M-156): by how much
the conditional variances of a block fall with more neighbours.
"""

import dataclasses

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.inference.full_scale.factor import FullScaleFactor
from flashgp.inference.full_scale.state import FullScaleState, Lost
from flashgp.inference.plan_settings import RowCounts, conditioning_problem
from flashgp.inference.predict.leave_one_out import LeaveOneOut, left_out_moments, of_observations
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import cavity, prior_variance, within
from flashgp.planner.approximate import ApproximateWork
from flashgp.planner.full_scale_price import FullScalePrice
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings
from flashgp.solvers.preconditioners.near_rows import (
    Neighbourhoods,
    nearest_earlier_rows,
    nearest_of_all_earlier_rows,
)
from flashgp.solvers.settings import FullScaleSettings

MORE = 8  # times as many neighbours stand for all of them
BLOCKS = 32  # that are looked at


@entered(lambda state: state.run.deterministic)
@torch.no_grad()
def leave_one_out(state: FullScaleState) -> LeaveOneOut:
    """See `Posterior.leave_one_out`. Cost: as a pass, and n m^2 flops; 8 n m bytes."""
    if not state.prior.likelihood.underlying.has_sites:
        without = cavities(state)
        return of_observations(state.prior.likelihood, without.mean, without.variance, state.y, state.result_dtype)
    precision, weights = state.precision()
    outputs = state.prior.outputs
    y = state.prior.sites(state.y).targets.to(torch.float64)
    y = y if outputs is not None else y.unsqueeze(-1)
    parts = left_out_moments(precision, weights, y, state.replicates)
    shaped = (part if outputs is not None else part.squeeze(-1) for part in parts)
    return LeaveOneOut(*(part.to(state.result_dtype) for part in shaped))


@torch.no_grad()
def cavities(state: FullScaleState) -> Marginals:
    """q(f) of each row without its own site, from marginals that are positive whatever the neighbours, (M-272).

    Cost: a first pass."""
    factor = dataclasses.replace(state.passes, near=state.layout.around(state.near_points))
    below, variance = factor.marginals([state.sums])
    sites, own = state.prior.sites(state.y), prior_variance(state.prior, state.points)
    at = Marginals(sites.targets - below, within(variance, sites.variance, own))
    return cavity(at, sites, own)


@torch.no_grad()
def lost(state: FullScaleState) -> Lost:
    """Nats a row of divergence from the exact model, eq. (M-156), from blocks evenly through their order.

    Kept by the state. Cost: a factor of 8 times the neighbours for each of up to 32 blocks, once.
    """
    if (known := state.__dict__.get("lost")) is None:
        known = state.__dict__["lost"] = dataclasses.replace(_lost(state), seconds=_seconds_of_more(state))
    found: Lost = known
    return found


def _seconds_of_more(state: FullScaleState) -> float:
    """Seconds of a fit with twice the neighbours, by the state's plan, or one that is made here: for a state that came
    from a file, or that rows have joined."""
    plan = state.report.plan
    if not isinstance(plan, Plan) or plan.inducing != state.sizes.inducing:
        n, d = state.x.shape
        settings = PlanSettings(device=state.x.device, deterministic=state.run.deterministic)
        problem = conditioning_problem(state.prior, RowCounts(n, d, state.distinct), settings)
        price = FullScalePrice(problem, settings.rates, state.x.device, state.sizes, ApproximateWork())
        plan = price.plan("full_scale", settings)
    return plan.more_seconds


def _lost(state: FullScaleState) -> Lost:
    near, settings = state.layout.near, FullScaleSettings(state.sizes.block, MORE * max(state.sizes.neighbours, 16))
    count = len(near.blocks)
    if not count:
        return Lost(0.0, 0.0, 0)
    settings = dataclasses.replace(settings, candidates=max(settings.candidates, 4 * settings.neighbours))
    points, conditioned = state.near_points, state.layout.conditioned
    chosen = torch.linspace(0, count - 1, min(BLOCKS, count)).round().long().unique().to(points.device)
    early, late = chosen[chosen < len(conditioned)], chosen[chosen >= len(conditioned)]
    first = state.distinct - state.online.appended
    more = padded(
        nearest_earlier_rows(points, conditioned, settings, of=early),
        nearest_of_all_earlier_rows(points, near.blocks, late, settings.neighbours, first),
    )
    few = Neighbourhoods(near.blocks[chosen], near.neighbours[chosen])
    many = Neighbourhoods(near.blocks[chosen], more)
    sizes = (few.blocks >= 0).sum(1)
    with_few, with_many = (_log_variances(state, one) for one in (few, many))
    each = 0.5 * (with_few - with_many) / sizes
    total = float(0.5 * (with_few - with_many).sum() / sizes.sum())
    error = float(each.std() / len(each) ** 0.5) if len(each) > 1 else 0.0
    return Lost(max(0.0, total), error, int(sizes.sum()))


def padded(one: Tensor, other: Tensor) -> Tensor:
    """Rows of positions below each other, -1 where there are none."""
    width = max(one.shape[1], other.shape[1])
    return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1]), value=-1) for t in (one, other)])


def _log_variances(state: FullScaleState, near: Neighbourhoods) -> Tensor:
    """log|C_22 C_22^T| of each block given its neighbours, (s,)."""
    factor: FullScaleFactor = dataclasses.replace(state.passes, near=near)
    found = []
    for (part,), _ in factor.parts(taped=False):
        found.append(part.log_determinants)
    return torch.cat(found)
