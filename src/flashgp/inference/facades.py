"""The posterior, as users see it, of a state of any kind: exact, full-scale, or of inducing points."""

from dataclasses import replace

import torch

from flashgp.inference.approximate_posterior import ApproximatePosterior
from flashgp.inference.approximation import Approximation, refuse_exact
from flashgp.inference.data import Data, held
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.restore import with_prior as exact_with_prior
from flashgp.inference.full_scale.condition import condition as condition_full_scale
from flashgp.inference.full_scale.restore import with_prior as full_scale_with_prior
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.group_posterior import GroupPosterior, condition_group
from flashgp.inference.output_states import AnyState
from flashgp.inference.over_ranks import check_alike, decided_for
from flashgp.inference.plan_settings import PlanSettings
from flashgp.inference.posterior import Posterior
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.condition import condition as condition_streamed
from flashgp.inference.streamed.restore import with_prior as streamed_with_prior
from flashgp.inference.streamed.state import StreamedState
from flashgp.inference.streamed_posterior import StreamedPosterior
from flashgp.sources.source import RowSource


def posterior_of(state: "AnyState | FullScaleState | StreamedState", units: str = "") -> Posterior:
    """The facade of a state of any kind."""
    if isinstance(state, StreamedState):
        return StreamedPosterior(state, units)
    if isinstance(state, FullScaleState):
        return ApproximatePosterior(state, units)
    return GroupPosterior(state, units) if state.settings.group.size > 1 else Posterior(state, units)


def posterior_of_read(
    prior: Prior, rows: RowSource, settings: ConditionSettings, approximation: Approximation
) -> StreamedPosterior:
    """`GP.condition` on rows that are read, with its arguments as values. Raises: as it."""
    return StreamedPosterior(condition_streamed(prior, rows, approximation, settings))


def posterior_given(
    prior: Prior, data: Data, settings: ConditionSettings, approximation: Approximation | None = None
) -> Posterior:
    """`GP.condition` on rows that are held, with its arguments as values. Raises: as it."""
    event, solve, deadline = None, settings.solve, settings.deadline
    if approximation is not None and approximation.kind == "auto":
        refuse_exact(
            solver=settings.solver, plan=settings.plan, jitter=settings.jitter, differentiable=settings.differentiable,
            dtype=None if settings.dtype == torch.float64 else settings.dtype,
        )  # fmt: skip
        check_alike(
            solve.group, prior, approximation, solve.seed, deadline, neighbours=approximation.neighbours,
            memory=settings.memory, dtype=settings.dtype, deterministic=solve.deterministic,
        )  # fmt: skip
        wanted = PlanSettings(settings.memory, settings.device, settings.dtype, deterministic=solve.deterministic)
        approximation, _, event = decided_for(
            solve.group, prior, data, approximation, wanted, deadline.limit, training=False
        )
        if approximation is not None:  # nothing iterates, so that there are no steps to tell of
            settings = replace(settings, progress=None)
    alone = solve.group.size == 1  # other ranks may have rows
    if alone and approximation is not None and approximation.kind == "sparse" and not data.count:
        approximation.points_of(data.x.shape[-1])  # which may be refused
        approximation = None  # of no rows there is nothing to approximate: the posterior is the prior
    if approximation is None:
        found = Posterior(condition(prior, data, settings)) if alone else condition_group(prior, data, settings)
    elif approximation.kind == "sparse":
        found = posterior_of_read(prior, held(data), settings, approximation)
    else:
        found = ApproximatePosterior(condition_full_scale(prior, data, approximation, settings))
    if event is not None:
        found.report.events.insert(0, event)
    return found


def with_prior(posterior: Posterior, prior: Prior) -> Posterior:
    """The same answers under a prior whose likelihood gives the same covariance matrix and residual."""
    if isinstance(posterior, StreamedPosterior):
        return StreamedPosterior(streamed_with_prior(posterior.state, prior), posterior.units)
    if isinstance(posterior, ApproximatePosterior):
        return ApproximatePosterior(full_scale_with_prior(posterior.state, prior), posterior.units)
    return Posterior(exact_with_prior(posterior.state, prior), posterior.units)
