"""A tighter upper bound on log p(y), by the pairs of rows of blocks, eq. (M-242).

The upper bound of the sums alone, (M-161), takes the whole trace of what the inducing points leave as noise: with many
rows the fit of the data counts for nothing there. r^T (K + S)^-1 r is at least (r^T v)^2 / v^T (K + S) v for any v, and
with v = (A A^T + S)^-1 r only v^T (K - A A^T) v is not known from the sums; blocks of rows bound it from above.
Sources: Artemev, Burt & van der Wilk (2021), Tighter bounds on the log marginal likelihood of Gaussian process
regression using conjugate gradients, for the quadratic form at any v, of which this is the first iterate.
"""

import torch

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError
from flashgp.inference.streamed.bound import block
from flashgp.inference.streamed.objective import block_rows
from flashgp.inference.streamed.rows import inputs_of
from flashgp.inference.streamed.state import Bound, StreamedState
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem
from flashgp.sources.source import RowSource
from flashgp.sources.survey import surveyed

PAIRS = 2**30  # of rows in blocks, all together: all pairs of 32,768 rows


@entered(lambda state, source, size=None: state.run.deterministic)
@torch.no_grad()
def bracket(state: StreamedState, source: RowSource, size: int | None = None) -> Bound:
    """See `Posterior.bracket`. Args: size, rows of a block; None for what the pairs allow."""
    survey = surveyed(source, state.prior.outputs, 0, 0)
    if survey.count != state.count or survey.width != state.inducing.shape[-1]:
        raise DomainError(
            f"`rows` must be the {state.count:,} training rows of {state.inducing.shape[-1]} columns, got "
            f"{survey.count:,} of {survey.width}; give those that the posterior has seen"
        )
    function, each, columns = state.function, state.sums.each, state.prior.outputs or 1
    size = size or max(block_rows(function.rank), PAIRS // survey.count)
    left, fit, noisy = (function.lower.new_zeros(columns) for _ in range(3))
    explained = function.lower.new_zeros(function.rank, columns)
    for inputs in inputs_of(state.prior_of_rows, survey.blocks(size), state.inducing.device):
        a, _ = block(function, inputs.rows)
        noise = inputs.noise.clamp_min(state.floor)
        noise = noise if noise.dim() == 2 else noise.unsqueeze(-1)
        v = (inputs.residual - torch.cat([a @ one.weights for one in each], -1)) / noise
        here = a.mT @ v
        pairs = CovarianceOperator(PairProblem(function.form, function.theta, inputs.rows), torch.float64)
        left += ((v * (pairs @ v)).sum(0) - here.square().sum(0)).clamp_min_(0.0).sqrt()
        fit += (inputs.residual * v).sum(0)
        noisy += (noise * v.square()).sum(0)
        explained += here
    whole = left.square() + noisy + explained.square().sum(0)
    least = torch.where(whole > 0.0, fit.square() / whole, torch.zeros_like(whole))
    upper = sum(one.upper_with(float(fit.sum())) for one, fit in zip(each, least.chunk(len(each)), strict=True))
    return Bound(state.sums.lower, min(state.sums.upper, upper), state.count)
