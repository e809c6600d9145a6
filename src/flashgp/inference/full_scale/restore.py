"""Full-scale states from numbers that are at hand, as of a model file, or under a prior that says the same."""

from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.factor import Basis, Sums
from flashgp.inference.full_scale.layout import Layout
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import join
from flashgp.inference.settings import SolveSettings
from flashgp.inference.state import UpdateState


@torch.no_grad()
def restore(
    prior: Prior, table: tuple[Tensor, Tensor, Tensor | None], layout: Layout, sums: Sums, report: Report,
    settings: SolveSettings, online: UpdateState,
) -> FullScaleState:  # fmt: skip
    """A state from what was computed before; features, residual and the factor of the points are computed again.

    Args: prior, held; table, x, y and group (n,), the distinct row that each row of x joined, or None.
    Raises: NotPositiveDefiniteError for inducing points without a factor.
    """
    x, y, group = table
    replicates = None if group is None else join(prior, x, y, group)
    of_rows, points, targets = prior, x, y
    if replicates is not None:
        of_rows, points, targets = prior.with_likelihood(replicates.likelihood), replicates.x, replicates.y
    residual, noise, rows, values = of_rows.likelihood_inputs(points, targets)
    theta = tuple(t.detach() for t in values)
    function = Basis.of(prior.kernel.form, theta, prior.kernel.rows(layout.inducing), Workspace())
    return FullScaleState(
        prior, x, y, layout, rows, residual, noise, theta, function, sums, report, replicates, settings, online
    )


def with_prior(state: FullScaleState, prior: Prior) -> FullScaleState:
    """The same answers under a prior whose likelihood gives the same covariance matrix and residual."""
    prior = prior.held()
    joined = None if state.replicates is None else join(prior, state.x, state.y, state.replicates.group)
    return replace(state, prior=prior, replicates=joined)
