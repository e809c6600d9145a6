"""More rows for Fourier series: their sums add up, and a solve goes on from the weights there were, eq. (M-439)."""

import time
from dataclasses import replace
from typing import Any

import torch

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError
from flashgp.inference.base_state import UPDATE
from flashgp.inference.fourier.condition import goal_of
from flashgp.inference.fourier.predictor import FourierPredictor
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.fourier.sums import WeightPosterior
from flashgp.inference.online.update import checked_rows
from flashgp.inference.streamed.rows import named, numbers_to_likelihood
from flashgp.sources.source import Held, source_of
from flashgp.sources.survey import Block, checked, joined


@entered(lambda state, *_, **__: state.run.deterministic)
@torch.no_grad()
def append(state: FourierState, x: Any, y: Any, row_variance: Any, row_weight: Any) -> FourierState:
    """See `Posterior.append`. Raises: DomainError for rows outside the box, where functions repeat.

    Cost: a transform of the rows, and a solve from the weights before.
    """
    began, prior = time.perf_counter(), state.prior
    if row_weight is not None:
        raise DomainError(
            "`row_weight` is not known of rows that join Fourier series, got one; leave it out, or give row_variance"
        )
    if y is None:
        source = named(source_of(x), prior)
    else:
        new = checked_rows(prior, x, y, state.like)
        given = {} if row_variance is None else {"row_variance": row_variance}
        source = Held(new[0].clone(), new[1].clone(), prior.likelihood.read(given, ""))
    sums, sample = state.weights.sums, state.sample
    knows = bool(sample.numbers)
    blocks = []
    for _, block in checked(source, prior.outputs, state.sample.x.shape[-1]):
        if block.numbers.keys() != sample.numbers.keys() and len(block.x):
            raise DomainError(
                f"`row_variance` must be given with new rows as with those before, got {'none' if knows else 'some'}; "
                "give zeros for none"
            )
        FourierPredictor(state, deterministic=False).check(block.x, "x")
        own = state.prior_of(block)
        sites = own.sites(block.y)
        sums = sums.added(block.x, own.residual(block.x, sites.targets), sites.variance.double() + state.tail)
        blocks.append(block)
    if sums.count == state.count:
        return state
    system = replace(state.weights.system, gram=state.grid.gram(sums.entries))
    weights = WeightPosterior.of(sums, system, goal_of(sums, state.run), state.weights.solution.value)
    held = None
    if state.held is not None and y is not None:
        before = Block(state.held.x, state.held.y, state.held.numbers)
        held = Held(*joined([before, *blocks]))
        held.x, held.y = held.x.to(before.x), held.y.to(before.y)
    prior = prior if held is None else numbers_to_likelihood(prior, held)
    online = state.online.counted(sums.count - state.count, 0)
    events = [event for event in state.report.events if event.stage != UPDATE]
    spread = (state.noise_of_rows + state.tail) / sums.count
    report = replace(
        state.report, iterations=weights.solution.iterations, error_bound=weights.error * spread**0.5,
        seconds=time.perf_counter() - began, events=[*events, online.event],
    )  # fmt: skip
    return replace(
        state, prior=prior, weights=weights, held=held, online=online, report=report, drawn=None,
        sample=sample if held is not None else state.sample,
    )  # fmt: skip
