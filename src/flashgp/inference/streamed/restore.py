"""States of inducing points from numbers that are at hand, as of a model file, or under a prior that says the same."""

from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.factor import Basis
from flashgp.inference.prior import Prior
from flashgp.inference.settings import SolveSettings
from flashgp.inference.streamed.bound import BoundSums
from flashgp.inference.streamed.state import StreamedState
from flashgp.sources.source import Held
from flashgp.sources.survey import Block


@torch.no_grad()
def restore(
    prior: Prior,
    inducing: Tensor,
    sums: BoundSums,
    sample: Block,
    held: Held | None,
    report: Report,
    settings: SolveSettings,
) -> StreamedState:
    """A state from what was computed before; the factor of the inducing points is computed again.

    Args: prior, held.
    Raises: NotPositiveDefiniteError for inducing points or sums without a factor.
    """
    theta = tuple(t.detach().to(inducing.device) for t in prior.kernel.theta())
    points = prior.kernel.rows(inducing.to(torch.float64))
    function = Basis.of(prior.kernel.form, theta, points, Workspace())
    _ = sums.inner  # which may fail
    return StreamedState(prior, inducing, function, sums, sample, report, settings, held)


def with_prior(state: StreamedState, prior: Prior) -> StreamedState:
    """The same answers under a prior whose likelihood gives the same covariance matrix and residual."""
    return replace(state, prior=prior.held())
