"""Mean and covariance of points by a float64 factor, together: what acquisition functions ask thousands of times.

S = L^-1 K_xs,   mean = m(s) + S^T L^-1 (y - m(x)),   covariance = K_ss - S^T S        eqs. (M-41), (M-42)
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.form import Rows
from flashgp.inference.state import State


@dataclass(frozen=True)
class JointMoments:
    """Of points (*b, m, d). Fields: mean, (*b, m, 1); covariance, (*b, m, m); half, S, (*b, n, m), None without data;
    rows, of the kernel; dtype, of the points."""

    mean: Float64[Tensor, "*b m p"]
    covariance: Float64[Tensor, "*b m m"]
    half: Float64[Tensor, "*b n m"] | None
    rows: Rows
    dtype: torch.dtype


def joint_moments(state: State, x: Any) -> JointMoments:
    """Differentiable in x. Args: state, of one model with a float64 factor.

    Cost: n m evaluations, n^2 m flops, for all points of a batch at once; m^2 numbers of each member.
    """
    x = check_points(x, "x_test", like=state.x)
    rows = state.prior.kernel.rows(x)
    mean, prior = state.prior.mean_at(x), state.prior_covariance(rows)
    covariance = prior.diagonal().unsqueeze(-1) if x.shape[-2] == 1 else prior.to_dense()
    if not state.count:
        return JointMoments(mean, covariance, None, rows, x.dtype)
    assert state.factor is not None
    half = state.factor.half_solve(state.covariance_to(rows, torch.float64).to_dense().mT)
    whitened = state.whitened_residual
    if whitened is None:
        whitened = state.factor.half_solve(state.residual)
    return JointMoments(mean + half.mT @ whitened, covariance - half.mT @ half, half, rows, x.dtype)
