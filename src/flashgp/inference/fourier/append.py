"""More rows for Fourier series: their sums add up, and a solve goes on from the weights there were, eq. (M-439).

Where iteration finds sites, those of new rows settle together beside those of the rows before, which stay, (M-444).
"""

import time
from dataclasses import replace
from typing import Any

import torch

from flashgp.foundations.contexts import entered
from flashgp.inference.base_state import UPDATE
from flashgp.inference.fourier.condition import goal_of
from flashgp.inference.fourier.passes import SeriesValues
from flashgp.inference.fourier.predictor import FourierPredictor
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.site_methods import method_of
from flashgp.inference.sites import Found, SiteSettings, prior_mean, settle_rows
from flashgp.inference.streamed.append import check_alike, new_rows
from flashgp.inference.streamed.rows import numbers_to_likelihood
from flashgp.likelihoods import Sites
from flashgp.likelihoods.held_sites import HeldSites
from flashgp.sources.source import Held
from flashgp.sources.survey import Block, checked, joined


@entered(lambda state, *_, **__: state.run.deterministic)
@torch.no_grad()
def append(state: FourierState, x: Any, y: Any, row_variance: Any, row_weight: Any, **numbers: Any) -> FourierState:
    """See `Posterior.append`. Raises: DomainError for rows outside the box, where functions repeat.

    Cost: a transform of the rows, and a solve from the weights before; with sites by iteration some of both, and a
    factor for each.
    """
    began, prior = time.perf_counter(), state.prior
    given = {"row_variance": row_variance, "row_weight": row_weight} | numbers
    source = new_rows(state, x, y, {name: each for name, each in given.items() if each is not None})
    blocks = [block for _, block in checked(source, prior.outputs, state.sample.x.shape[-1]) if len(block.x)]
    for block in blocks:
        check_alike(state.sample.numbers.keys() - HeldSites.NAMES, block)
        FourierPredictor(state, deterministic=False).check(block.x, "x")
    if not blocks:
        return state
    online = state.online.counted(sum(len(block.x) for block in blocks), 0)
    if prior.likelihood.underlying.has_sites:
        sums, start = state.weights.sums, state.weights
        for block in blocks:
            own = state.prior_of(block)
            sites = own.sites(block.y)
            sums = sums.added(block.x, own.residual(block.x, sites.targets), sites.variance.double() + state.tail)
        system = replace(start.system, gram=state.grid.gram(sums.entries))
        weights = WeightPosterior.of(sums, system, goal_of(sums, state.run), start.solution.value)
    else:
        values, block = _with_sites(state, joined(blocks))
        weights, blocks = values.weights, [block]
        if weights.system.dense:
            online = replace(online, moved=online.moved + values.divergence(state.values))
    held = None
    if state.held is not None and y is not None:
        before = Block(state.held.x, state.held.y, state.held.numbers)
        held = Held(*joined([before, *blocks]))
        held.x, held.y = held.x.to(before.x), held.y.to(before.y)
    prior = prior if held is None else numbers_to_likelihood(prior, held)
    events = [event for event in state.report.events if event.stage != UPDATE]
    report = replace(
        state.report, iterations=weights.solution.iterations, seconds=time.perf_counter() - began,
        events=[*events, online.event],
    )  # fmt: skip
    found = replace(state, prior=prior, weights=weights, held=held, online=online, report=report, drawn=None)
    report.error_bound = found.error_bound()
    return found


def _with_sites(state: FourierState, rows: Block) -> tuple[SeriesValues, Block]:
    """q of the weights with new rows, whose sites have settled, and these rows with their sites, if they are kept.
    Raises: ConvergenceError."""
    likelihood, kept = state.prior.likelihood, state.prior.likelihood.has_sites
    likelihood = likelihood.underlying.with_rows(**rows.numbers)
    if not kept and "variational" in likelihood.methods:  # as those of passes
        likelihood = likelihood.by_method("variational")
    own, x, y = state.prior.with_likelihood(likelihood), rows.x, rows.y.double()
    likelihood.check_targets(y, state.count)
    method, before, mean = method_of(likelihood), state.values, prior_mean(own, x)

    def joined_by(sites: Sites, beyond: float = 0.0) -> FourierSums:
        residual = (sites.targets - mean).unsqueeze(-1)
        return before.sums.added(x, residual, sites.variance + state.tail, beyond)

    def evaluate(sites: Sites) -> Found[SeriesValues]:
        values = before.having(joined_by(sites))
        at = values.marginals(own, x, sites)
        system = values.weights.system
        density = values.weights.log_likelihood(system.log_of_factor) if system.dense else None
        return Found(sites, at, method.aim(likelihood, y, at, sites, mean, density), values)

    settings = SiteSettings()
    first, _ = replace(before, new=True).sites(own, x, y)
    found, _, _ = settle_rows(likelihood, y, evaluate(first), evaluate, settings.posterior_of(len(y)), settings)
    beside = method.excess(likelihood, y, found.at, found.sites)
    if not kept:
        return before.having(joined_by(found.sites, float(beside.sum()))), rows
    numbers = HeldSites(likelihood, found.sites, beside).row_tensors
    return before.having(joined_by(found.sites)), Block(rows.x, rows.y, dict(sorted(numbers.items())))
