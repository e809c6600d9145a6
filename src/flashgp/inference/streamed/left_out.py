"""Leave-one-out of a posterior of inducing points: training rows predicted without what each says, eq. (M-167).

    mean_-i(x_i) = y_i - h_i / (1 - v_i / s_i),   variance_-i = d_i + v_i / (1 - v_i / s_i) + s_i

with h_i = r_i - a_i^T w, v_i = a_i^T M^-1 a_i and d_i = k_ii - |a_i|^2: M and b lose one term each, and w follows by
the formula of Sherman and Morrison. The inducing points stay where they are.
"""

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.predict.leave_one_out import LeaveOneOut, of_observations
from flashgp.inference.streamed.bound import BlockInputs, BoundSums, block
from flashgp.inference.streamed.objective import block_rows
from flashgp.inference.streamed.rows import inputs_of, prior_of_rows
from flashgp.inference.streamed.state import StreamedState
from flashgp.sources.survey import Block

F64 = torch.float64
EPS = torch.finfo(F64).eps


@entered(lambda state, rows: state.run.deterministic)
@torch.no_grad()
def leave_out(state: StreamedState, rows: Block) -> LeaveOneOut:
    """Training rows, each predicted from all the others. Args: rows: some of those that the state has seen.

    Cost: n m evaluations and 3 n m^2 flops; one block of rows of memory.
    """
    size, count = block_rows(state.function.rank), len(rows.x)
    blocks = [rows.part(start, start + size) for start in range(0, count, size)]
    inputs = list(inputs_of(state.prior_of_rows, blocks, state.inducing.device, values=state.values))
    parts = [_block(state, one, found) for one, found in zip(blocks, inputs, strict=True)]
    outputs, likelihood = state.prior.outputs, prior_of_rows(state.prior_of_rows, rows).likelihood
    found = [torch.cat(columns) for columns in zip(*parts, strict=True)]
    if not likelihood.underlying.has_sites:
        noise = torch.cat([part.noise.expand(len(part.residual), *part.noise.shape[1:]) for part in inputs])
        mean, variance = (t.reshape(noise.shape) for t in found[:2])
        y = rows.y.to(mean.device)
        return of_observations(likelihood, mean, variance - noise, y, state.result_dtype)
    return LeaveOneOut(*((t if outputs is not None else t.squeeze(-1)).to(state.result_dtype) for t in found))


def _block(state: StreamedState, rows: Block, inputs: BlockInputs) -> tuple[Tensor, ...]:
    """Mean, variance and log density of the sites' targets of some rows, (b, p) each."""
    y = inputs.residual + state.prior.mean_at(rows.x.to(inputs.residual.device))
    a, left = block(state.function, inputs.rows)
    each = [
        _of_matrix(one.sums, a, left, residual, noise.clamp_min(state.floor))
        for one, (residual, noise) in zip(state.parts or (state,), inputs.matrices, strict=True)
    ]
    error, variance = (torch.cat(columns, -1) for columns in zip(*each, strict=True))
    return y - error, variance, -0.5 * (error.square() / variance + variance.log() + LOG_2PI)


def _of_matrix(sums: BoundSums, a: Tensor, left: Tensor, residual: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of the sites' targets and their variances, (b, p), under one covariance matrix."""
    h = residual - a @ sums.weights
    spread = torch.linalg.solve_triangular(sums.inner.mT, a, upper=True, left=False).square().sum(-1)
    kept = (1.0 - spread / noise).clamp_min(EPS)
    return h / kept.unsqueeze(-1), (left + spread / kept + noise).unsqueeze(-1).expand_as(h)
