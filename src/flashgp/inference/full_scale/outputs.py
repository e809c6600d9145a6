"""Answers of full-scale posteriors, of one covariance matrix or of one for each output: those of each, stacked."""

from dataclasses import replace
from typing import Any

import torch

from flashgp.foundations.checks import check_targets
from flashgp.foundations.events import EventKind
from flashgp.inference.base_state import UPDATE
from flashgp.inference.full_scale import append, left_out
from flashgp.inference.full_scale.output_states import AnyFullScale, FullScaleOutputs
from flashgp.inference.full_scale.predictor import FullScalePredictor, draw_paths
from flashgp.inference.full_scale.state import FullScaleState, Lost
from flashgp.inference.online.update import checked_rows
from flashgp.inference.predict.exact_predictor import OutputPredictor
from flashgp.inference.predict.leave_one_out import LeaveOneOut, of_observations
from flashgp.inference.predict.paths import Paths
from flashgp.inference.predict.predictor import Predictor


def predictor(state: AnyFullScale, *, deterministic: bool) -> Predictor:
    """Predictor of a state."""
    if isinstance(state, FullScaleState):
        return FullScalePredictor(state, deterministic=deterministic)
    each = [FullScalePredictor(part, deterministic=deterministic) for part in state.parts]
    return OutputPredictor(each, lambda count, features, seed: paths(state, count, features, seed))


def paths(state: AnyFullScale, count: int, features: int, seed: int | None) -> Paths:
    """See `Posterior.paths`; outputs are independent."""
    if isinstance(state, FullScaleState):
        return draw_paths(state, count, features, seed)
    return Paths.of_outputs(state, draw_paths, count, features, seed)


def leave_one_out(state: AnyFullScale) -> LeaveOneOut:
    """See `Posterior.leave_one_out`."""
    if isinstance(state, FullScaleState):
        return left_out.leave_one_out(state)
    if not state.prior.likelihood.underlying.has_sites:
        each = [left_out.cavities(part) for part in state.parts]
        mean, variance = (torch.stack([getattr(one, name) for one in each], -1) for name in ("mean", "variance"))
        return of_observations(state.prior.likelihood, mean, variance, state.y, state.result_dtype)
    found = [left_out.leave_one_out(part) for part in state.parts]
    return LeaveOneOut(
        *(torch.stack([getattr(one, name) for one in found], -1) for name in ("mean", "variance", "log_prob"))
    )


def lost(state: AnyFullScale) -> Lost:
    """See `Posterior.lost`: of outputs the sum over them."""
    if isinstance(state, FullScaleState):
        return left_out.lost(state)
    known: Lost | None = state.__dict__.get("lost")
    if known is None:
        each = [left_out.lost(part) for part in state.parts]
        errors = torch.tensor([one.standard_error for one in each])
        nats, error = sum(one.nats for one in each), float(errors.square().sum().sqrt())
        known = state.__dict__["lost"] = Lost(nats, error, each[0].rows, each[0].seconds)
    return known


def appended(state: AnyFullScale, x: Any, y: Any, row_variance: Any, row_weight: Any) -> AnyFullScale:
    """See `Posterior.append`."""
    x, y = checked_rows(state.prior, x, y, state.like)
    if isinstance(state, FullScaleState):
        return append.append(state, x, y, row_variance, row_weight)
    if not len(x):
        return state
    check_targets(y, "y", x, state.prior.outputs)  # missing cells
    parts = tuple(
        append.append(part, x, y[:, j].contiguous(), row_variance, row_weight) for j, part in enumerate(state.parts)
    )
    likelihood = state.prior.likelihood
    if not (likelihood.rows_alike and row_variance is None and row_weight is None):
        likelihood = likelihood.extended(state.count, len(x), row_variance, row_weight)
    table = parts[0].x, torch.cat([state.y, y.to(state.y.dtype)])
    kept = [event for event in state.report.events if event.stage != UPDATE and event.kind != EventKind.FULL_SCALE]
    events = [event for event in parts[0].report.events if event not in kept]
    report = replace(parts[0].report, events=[*kept, *events])
    return FullScaleOutputs(state.prior.with_likelihood(likelihood), *table, parts, report)
