"""States from numbers that are at hand: those of a model file, or of another prior with the same covariance matrix."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.report import Report
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import join
from flashgp.inference.settings import SolveSettings
from flashgp.inference.state import State, UpdateState
from flashgp.solvers.direct.cholesky import TriangularFactor

__all__ = ["STORED", "restore", "with_prior"]

STORED = ("representer_weights", "residual", "x", "y")  # properties of a state, from which it is restored


@torch.no_grad()
def restore(
    prior: Prior,
    data: Mapping[str, Tensor],
    factor: TriangularFactor | None,
    report: Report,
    *,
    group: Tensor | None = None,
    settings: SolveSettings | None = None,
    online: UpdateState | None = None,
) -> State:
    """A state from what was computed before; features and kernel parameters are computed again.

    Args:
        prior: held.
        data: tensors by the names of STORED.
        group: (n,), the distinct row that each row of x joined; None where no row repeats.
    """
    x, y = data["x"], data["y"]
    replicates = None if group is None else join(prior, x, y, group)
    return State(
        prior, x, y, prior.kernel.rows(x if replicates is None else replicates.x),
        tuple(value.to(x.device) for value in prior.kernel.theta()), data["residual"], factor, report,
        data["representer_weights"], replicates=replicates, settings=settings or SolveSettings(),
        online=online or UpdateState(),
    )  # fmt: skip


def with_prior(state: State, prior: Prior) -> State:
    """The same answers under a prior whose likelihood gives the same covariance matrix and residual."""
    prior = prior.held()
    joined = None if state.replicates is None else join(prior, state.x, state.y, state.replicates.group)
    return replace(
        state, prior=prior, replicates=joined, weights=state.representer_weights, solver=state.solves,
        online=UpdateState(),
    )  # fmt: skip
