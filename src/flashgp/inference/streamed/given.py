"""The state of a q(u) that is known, without the rows that it was learned from, eqs. (M-463) and (M-464)."""

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.factor import FLOOR, Basis
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.inference.streamed.bound import BoundSums
from flashgp.inference.streamed.condition import ROUTE
from flashgp.inference.streamed.state import StreamedState
from flashgp.sources.survey import Block

F64 = torch.float64


@torch.no_grad()
def state_of_values(prior: Prior, inducing: Tensor, mean: Tensor, covariance: Tensor, jitter: float) -> StreamedState:
    """The state with q(u) = N(mean, covariance) of whitened values: G u + m(Z) of K_zz + jitter I = G G^T.

    It has no rows, and its sample is the inducing points; the bound is of rows that join.

    Args: inducing (m, d); mean (m,); covariance (m, m); all float64; jitter, a variance.
    Raises: NotPositiveDefiniteError where K_zz + jitter I has no factor, or the covariance has none and the jitter is
        no larger than that of the state.
    Cost: 3 m^3 flops.
    """
    prior, workspace = prior.held(), Workspace()
    theta = tuple(t.detach().to(inducing.device) for t in prior.kernel.theta())
    function = Basis.of(prior.kernel.form, theta, prior.kernel.rows(inducing), workspace)
    lower = function.lower
    block = lower @ lower.mT
    block.diagonal().add_(jitter - FLOOR / (1.0 + FLOOR) * float(block.diagonal().mean()))
    # R of (M-463)
    change = torch.linalg.solve_triangular(_factor(block, "K_zz + jitter I").mT, lower.mT, upper=True, left=False)
    one = torch.eye(len(lower), dtype=F64, device=lower.device)
    spread = one + change @ (covariance - one) @ change.mT
    precision = torch.cholesky_inverse(_factor(0.5 * (spread + spread.mT), "the covariance of q(u)"))
    projected = (precision @ (change @ mean)).unsqueeze(-1)
    gram = 0.5 * (precision + precision.mT) - one
    sums = BoundSums(0, gram, projected, 0.0, 0.0, 0.0, 0.0)  # without the numbers of (M-464)
    fit, logs = float((projected * sums.weights).sum()), -2.0 * float(sums.inner.diagonal().log().sum())
    sample = Block(inducing, (prior.mean_at(inducing) + lower @ sums.weights).squeeze(-1))
    report = Report(route=ROUTE, device=str(inducing.device), dtype="float64", peak_bytes=workspace.peak_bytes)
    return StreamedState(
        prior,
        inducing,
        function,
        BoundSums(0, gram, projected, fit, logs, logs, 0.0),
        sample,
        report,
        Run(),
        given=True,
    )


def _factor(matrix: Tensor, name: str) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        raise NotPositiveDefiniteError(
            f"{name} of {len(matrix)} inducing points must be positive definite, but its Cholesky factorisation "
            "failed; take more jitter, or fewer inducing points"
        )
    return factor
