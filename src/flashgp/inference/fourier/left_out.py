"""Leave-one-out by Fourier series: each row predicted without what it says, eq. (M-438).

    mean_-i = y_i - (r_i - f_i) / (1 - v_i / s_i),   variance_-i = s_i / (1 - v_i / s_i)

with f_i and v_i mean and variance of the series at x_i. Without a factor v_i are sampled.
"""

from dataclasses import replace
from typing import Any

import torch

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.fourier.predictor import FourierPredictor
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.online.update import checked_rows
from flashgp.inference.predict.leave_one_out import LeaveOneOut, of_observations
from flashgp.likelihoods.held_sites import HeldSites
from flashgp.sources.source import Held
from flashgp.sources.survey import Block

LEAST = 1e-6  # of a row's noise that the others leave


@entered(lambda state, *_: state.run.deterministic)
@torch.no_grad()
def leave_one_out(state: FourierState, whole: FourierState | None = None) -> LeaveOneOut:
    """Training rows, each predicted from all the others. Args: whole, the state of all rows, where this one holds some
    of them. Cost: two transforms of the rows, or more with draws."""
    rows, deterministic = state.of_rows("leave_one_out"), state.run.deterministic
    predictor = FourierPredictor(whole or state, deterministic=deterministic)
    variance, sites = state.variance_of(rows).unsqueeze(-1), state.prior.sites(rows.y)
    left = variance * state.representer_weights
    spread, variance = predictor.variance(rows.x).value, variance - state.tail + predictor.unknown
    kept = (1.0 - (spread - predictor.unknown).clamp_min(0.0) / variance).clamp_min(LEAST)
    error = left / kept
    total, shape = (variance / kept).expand_as(error), rows.y.shape
    mean = sites.targets.double().reshape(error.shape) - error
    likelihood = state.prior.likelihood
    if not likelihood.underlying.has_sites:
        noise = sites.variance.reshape(error.shape)
        return of_observations(
            likelihood, mean.reshape(shape), (total - noise).reshape(shape), rows.y, state.result_dtype
        )
    found = mean, total, -0.5 * (error.square() / total + total.log() + LOG_2PI)
    return LeaveOneOut(*(t.reshape(shape).to(state.result_dtype) for t in found))


def leave_out(state: FourierState, x: Any, y: Any, **numbers: Any) -> LeaveOneOut:
    """Training rows given once more, each predicted from all the others. Raises: DomainError, ShapeError."""
    likelihood = state.prior.likelihood
    if likelihood.has_sites and not likelihood.underlying.has_sites:
        raise DomainError(
            f"`leave_out` needs sites that are observations or found in passes, got those of {likelihood.name}, kept "
            "with their rows; take posterior.leave_one_out()"
        )
    prior = state.prior.with_likelihood(likelihood.with_rows())
    rows = Held(*checked_rows(prior, x, y, state.like), likelihood.read(numbers, ""))
    return of_rows(state, Block(rows.x, rows.y, rows.numbers))


def of_rows(state: FourierState, rows: Block) -> LeaveOneOut:
    """Some of the rows that a state has seen, as `leave_out`; with the sites that passes find for them."""
    prior, likelihood, numbers = state.prior, state.prior.likelihood.with_rows(), rows.numbers
    if not likelihood.has_sites:
        likelihood = likelihood.with_rows(**numbers)
        sites, _ = state.values.sites(prior.with_likelihood(likelihood), rows.x, rows.y.double())
        likelihood = HeldSites(likelihood, sites)
        numbers = likelihood.row_tensors
    prior = prior.with_likelihood(likelihood)
    return leave_one_out(replace(state, prior=prior, held=Held(rows.x, rows.y, numbers)), state)
