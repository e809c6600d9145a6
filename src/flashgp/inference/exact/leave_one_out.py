"""Leave-one-out: every training row predicted from all the others, without refitting, eqs. (M-39) and (M-40)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import DomainError
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.output_states import AnyState, OutputStates
from flashgp.inference.replicates import Replicates
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.solvers.direct.cholesky import TriangularFactor

__all__ = ["LeaveOneOut", "leave_one_out"]


@dataclass(frozen=True)
class LeaveOneOut:
    """Predictions of every training row from all the others, eqs. (M-39) and (M-40).

    Fields: mean (*batch, n[, outputs]); variance of the observation, the same shape; log_prob of the observed y.
    """

    mean: Float[Tensor, "*shape"]
    variance: Float[Tensor, "*shape"]
    log_prob: Float[Tensor, "*shape"]


@deterministic_where(lambda state: state.settings.deterministic)
def leave_one_out(state: AnyState) -> LeaveOneOut:
    """See `Posterior.leave_one_out`."""
    if isinstance(state, OutputStates):
        each = [leave_one_out(part) for part in state.parts]
        mean, variance, log_prob = (
            torch.stack([getattr(one, name) for one in each], dim=-1) for name in ("mean", "variance", "log_prob")
        )
        return LeaveOneOut(mean, variance, log_prob)
    if not state.count:
        empty = state.y.new_zeros(state.y.shape, dtype=state.result_dtype)
        return LeaveOneOut(empty, empty, empty)
    if state.factor is None:
        raise DomainError(
            f"`leave_one_out` needs a factor of all {state.distinct:,} rows, got a posterior by iterative solves; "
            "condition with a larger memory=, or with dtype=torch.float32, which takes half of what float64 takes"
        )
    outputs = state.prior.outputs
    y = state.prior.sites(state.y).targets.to(torch.float64)
    y = y if outputs is not None else y.unsqueeze(-1)
    parts = _left_out(state.factor, state.representer_weights, y, state.replicates)
    shaped = (part if outputs is not None else part.squeeze(-1) for part in parts)
    return LeaveOneOut(*(part.to(state.result_dtype) for part in shaped))


def _left_out(
    factor: TriangularFactor,
    weights: Float64[Tensor, "*batch u p"],
    y: Float64[Tensor, "*points n p"],
    replicates: Replicates | None,
) -> tuple[Float64[Tensor, "*batch n p"], Float64[Tensor, "*batch n p"], Float64[Tensor, "*batch n p"]]:
    """(mean, variance, log density) of y (*batch, n, p) from factor and representer weights, each of y's shape.

    With replicates the factor and the weights are those of the distinct rows, eq. (M-88).
    Source: Rasmussen & Williams (2006), section 5.4.2. Cost: n^3 / 3 flops, one strip of the inverse factor.
    """
    precision = _inverse_diagonal(factor)
    if replicates is not None:
        weights, precision = replicates.of_every_row(y if replicates.y.dim() == 2 else y[:, 0], weights, precision)
    precision = precision.unsqueeze(-1)
    error = weights / precision
    variance = (1.0 / precision).expand_as(error)
    log_prob = -0.5 * (weights * error - precision.log() + LOG_2PI)
    return y - error, variance, log_prob


def _inverse_diagonal(factor: TriangularFactor) -> Tensor:
    """The diagonal of K^-1 by strips of L^-1, (*batch, n), float64."""
    lower = factor.lower
    n = lower.shape[-1]
    step = tile_rows(n, lower.shape[:-2].numel(), lower.device)
    parts = []
    for start in range(0, n, step):
        stop = min(n, start + step)
        # Columns start..stop of L^-1 are zero above `start`: only the trailing block is solved.
        strip = torch.zeros(n - start, stop - start, dtype=lower.dtype, device=lower.device)
        strip.diagonal().fill_(1.0)
        solved = torch.linalg.solve_triangular(
            lower[..., start:, start:], strip.expand(*lower.shape[:-2], *strip.shape), upper=False
        )
        parts.append(solved.square().sum(-2))
    return torch.cat(parts, dim=-1).double()
