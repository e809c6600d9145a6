"""The posterior, as users see it, of a state of any kind: exact, full-scale, or of inducing points."""

from flashgp.inference.approximate_posterior import ApproximatePosterior
from flashgp.inference.exact.restore import with_prior as exact_with_prior
from flashgp.inference.full_scale.restore import with_prior as full_scale_with_prior
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.group_posterior import GroupPosterior
from flashgp.inference.output_states import AnyState
from flashgp.inference.posterior import Posterior
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.restore import with_prior as streamed_with_prior
from flashgp.inference.streamed.state import StreamedState
from flashgp.inference.streamed_posterior import StreamedPosterior


def posterior_of(state: "AnyState | FullScaleState | StreamedState", units: str = "") -> Posterior:
    """The facade of a state of any kind."""
    if isinstance(state, StreamedState):
        return StreamedPosterior(state, units)
    if isinstance(state, FullScaleState):
        return ApproximatePosterior(state, units)
    return GroupPosterior(state, units) if state.settings.group.size > 1 else Posterior(state, units)


def with_prior(posterior: Posterior, prior: Prior) -> Posterior:
    """The same answers under a prior whose likelihood gives the same covariance matrix and residual."""
    if isinstance(posterior, StreamedPosterior):
        return StreamedPosterior(streamed_with_prior(posterior.state, prior), posterior.units)
    if isinstance(posterior, ApproximatePosterior):
        return ApproximatePosterior(full_scale_with_prior(posterior.state, prior), posterior.units)
    return Posterior(exact_with_prior(posterior.state, prior), posterior.units)
