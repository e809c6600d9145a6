"""Leave-one-out: every training row predicted from all the others, without refitting, eqs. (M-39) and (M-40).

The diagonal of K^-1 comes from the factor. That of a float32 factor is corrected by solves where these are cheap, and
compared with them at some rows elsewhere: beside large covariances its rounding may exceed the noise.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.cells import html_table
from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.missing_cells import observed, rows_of_output
from flashgp.inference.output_states import AnyState
from flashgp.inference.predict.plan import price_of
from flashgp.inference.predict.variance_solves import SHARE, precisions, strips
from flashgp.inference.replicates import Replicates
from flashgp.inference.state import State
from flashgp.likelihoods import Likelihood, PredictiveDistribution
from flashgp.likelihoods.finite_mixture import FiniteMixture
from flashgp.likelihoods.gaussian import Normal
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.variances import CORRECTION_SECONDS
from flashgp.solvers.direct.cholesky import TriangularFactor

COMPARED_ROWS = 16
LEAST_EFFECTIVE = 0.25  # share of the draws of a mixture that weights of a row leave


@dataclass(frozen=True)
class LeaveOneOut:
    """Predictions of every training row from all the others, eqs. (M-39) and (M-40).

    Fields: mean (*batch, n[, outputs]); variance of the observation, the same shape; log_prob of the observed y. NaN
    where a cell of several outputs is missing. Of classes mean and variance are those of indicators, and log_prob is
    (n,). distribution, of the observation; None where it is normal.
    """

    mean: Float[Tensor, "*shape"]
    variance: Float[Tensor, "*shape"]
    log_prob: Float[Tensor, "*rows"]
    distribution: PredictiveDistribution | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        (_, rows), *pairs = self._summary()
        return f"LeaveOneOut({rows}{': ' * bool(pairs)}{', '.join(map(' '.join, pairs))})"

    def _repr_html_(self) -> str:
        return html_table(self._summary(), title="Leave-one-out")

    def _summary(self) -> list[tuple[str, str]]:
        """Names and values: of normal distributions the errors follow from the densities, log N(y; mean, variance)."""
        if not self.log_prob.numel():
            return [("rows", "no rows")]
        if self.distribution is not None:
            density = f"{float(self.log_prob.nanmean()):.4g} nats"
            return [("rows", f"{len(self.log_prob):,} rows"), ("mean log density", density)]
        known = ~self.log_prob.isnan()
        variance, log_prob = (t.detach()[known].double() for t in (self.variance, self.log_prob))
        squares = (-2.0 * log_prob - LOG_2PI - variance.log()).clamp_min(0.0)  # of errors in standard deviations
        spread = f"{float(squares.mean().sqrt()):.3g} in root mean square, at most {float(squares.max().sqrt()):.3g}"
        return [
            ("rows", f"shape {tuple(log_prob.shape)}"),
            ("root mean square error", f"{float((squares * variance).mean().sqrt()):.4g}"),
            ("mean log density", f"{float(log_prob.mean()):.4g} nats"), ("errors over their deviations", spread),
        ]  # fmt: skip


class LeftOutObservations(LeaveOneOut):
    """Those of observations that are not normal, whose moments are computed when they are asked for: a likelihood that
    does not say them refuses them alone.

    Args: distribution; log_prob; by_output, whether its first dimension is that of outputs, which rows have last.
    """

    def __init__(self, distribution: PredictiveDistribution, log_prob: Tensor, by_output: bool) -> None:
        for name, value in (("distribution", distribution), ("log_prob", log_prob), ("_by_output", by_output)):
            object.__setattr__(self, name, value)

    _by_output: bool

    @property
    def mean(self) -> Float[Tensor, "*shape"]:
        return self._shaped(self._distribution.mean)

    @property
    def variance(self) -> Float[Tensor, "*shape"]:
        return self._shaped(self._distribution.variance)

    def _shaped(self, values: Tensor) -> Tensor:
        return _of_rows(values, self.log_prob.dtype, self._by_output)

    @property
    def _distribution(self) -> PredictiveDistribution:
        assert self.distribution is not None
        return self.distribution


def of_observations(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, dtype: torch.dtype
) -> LeaveOneOut:
    """Leave-one-out of observations whose latent values are N(mean, variance) without them.

    Args: y, of that shape, (n,) or (n, outputs); dtype, of the result.
    """
    if likelihood.outputs is not None:
        mean, variance, y = (t.movedim(-1, 0) for t in (mean, variance, y))
    found = likelihood.predictive_of_rows(mean, variance)
    by_output = likelihood.outputs is not None
    return LeftOutObservations(found, _of_rows(found.log_prob(y), dtype, by_output), by_output)


def mixed(left: LeaveOneOut, log_weights: Float64[Tensor, "k"]) -> LeaveOneOut:
    """Leave-one-out of a mixture of k models, (k, n): p(y_i | others) = 1 / sum_k w_k / p_k(y_i | others), eq. (M-382).

    Draws of hyperparameters were given all rows; those that the others alone would give have weights
    w_k / p_k(y_i | others), y_i with all outputs of the row, (k, n, outputs). Where these leave less than a quarter of
    the draws, a row takes w_k.
    Source: Gelfand, Dey & Chang (1992), section 3.
    """
    by_output = left.log_prob.dim() > 2
    mean, variance, log_prob = (
        value.double().movedim(-1, 0) if by_output else value.double()  # (outputs, k, n)
        for value in (left.mean, left.variance, left.log_prob)
    )
    whole = log_prob.nansum(0) if by_output else log_prob  # cells may be missing
    of_rows = torch.log_softmax(log_weights.unsqueeze(-1) - whole, 0)
    effective = torch.exp(-torch.logsumexp(2.0 * of_rows, 0))
    few = effective < LEAST_EFFECTIVE * torch.exp(-torch.logsumexp(2.0 * log_weights, 0))
    of_rows = torch.where(few, log_weights.unsqueeze(-1), of_rows)  # a draw or two would stand for all
    found = FiniteMixture(Normal(mean, variance), of_rows)
    density = torch.logsumexp(of_rows + log_prob, -2)
    parts = (_of_rows(value, left.mean.dtype, by_output) for value in (found.mean, found.variance, density))
    return LeaveOneOut(*parts, distribution=found)


def _of_rows(values: Tensor, dtype: torch.dtype, by_output: bool) -> Tensor:
    """Numbers of observations, of which rows have that of outputs, the first dimension, last."""
    values = values.to(dtype)
    return values.movedim(0, -1) if by_output else values


@entered(lambda state, *_, **__: state.run.deterministic)
def leave_one_out(state: AnyState, correction_seconds: float = CORRECTION_SECONDS) -> LeaveOneOut:
    """See `Posterior.leave_one_out`; correction_seconds, by the machine's rates, that correcting a float32 factor may
    take."""
    each = [_of_one(part, correction_seconds) for part in state.parts]
    if not state.prior.separate:
        return each[0]
    cells = observed(state.y, state.prior.outputs)

    def of_all(values: Tensor, j: int) -> Tensor:
        if cells is None:
            return values
        whole = values.new_full((*values.shape[:-1], len(cells)), torch.nan)
        return whole.index_copy_(-1, rows_of_output(cells, j), values)

    mean, variance, log_prob = (
        torch.stack([of_all(getattr(one, name), j) for j, one in enumerate(each)], dim=-1)
        for name in ("mean", "variance", "log_prob")
    )
    told = state.report.events
    told += [e for part in state.parts for e in of_kind(part.report.events, EventKind.LEFT_OUT) if e not in told]
    return LeaveOneOut(mean, variance, log_prob)


def _of_one(state: State, correction_seconds: float) -> LeaveOneOut:
    if not state.count:
        empty = state.y.new_zeros(state.y.shape, dtype=state.result_dtype)
        return LeaveOneOut(empty, empty, empty)
    assert state.factor is not None
    outputs = state.prior.outputs
    y = state.prior.sites(state.y).targets.to(torch.float64)
    y = y if outputs is not None else y.unsqueeze(-1)
    precision = _inverse_diagonal(state.factor)
    if state.solves is not None:
        precision = _corrected(state, precision, correction_seconds)
    parts = left_out_moments(precision, state.representer_weights, y, state.replicates)
    shaped = (part if outputs is not None else part.squeeze(-1) for part in parts)
    return LeaveOneOut(*(part.to(state.result_dtype) for part in shaped))


def _corrected(state: State, precision: Float64[Tensor, "u"], correction_seconds: float) -> Float64[Tensor, "u"]:
    """The diagonal of K^-1 by solves, or the float32 factor's own where these would take long, which is then compared.

    An event says how far off it may be, and a warning where that is more than SHARE. What no solve could say anything
    about stays the factor's own.
    """
    solves, n = state.solves, state.distinct
    assert solves is not None
    dense = price_of(state, n, "exact", state.run.deterministic).seconds <= correction_seconds
    rows = torch.arange(n) if dense else torch.linspace(0, n - 1, min(COMPARED_ROWS, n)).round().long().unique()
    rows = rows.to(precision.device)
    least = 1.0 / (solves.system.diagonal() + solves.system.noise)  # (K^-1)_ii is at least that
    guess = torch.maximum(precision, least).nan_to_num(nan=0.0)
    parts = [precisions(solves, rows[a:b], guess[rows[a:b]]) for a, b in strips(len(rows))]
    value, short = (torch.cat([getattr(part, name) for part in parts]) for name in ("value", "error"))
    share = float((short / value).max())
    if not dense:
        share = max(share, float((precision[rows] / value - 1.0).abs().nan_to_num(nan=torch.inf).max()))
    event = Event(EventKind.LEFT_OUT, share=share, rows=None if dense else len(rows))
    if event not in state.report.events:
        state.report.events.append(event)
        if not share <= SHARE:
            warn(f"{event} Condition with dtype=torch.float64, or with more noise")
    return torch.where(short < value, value, precision) if dense else precision


def left_out_moments(
    precision: Float64[Tensor, "*batch u"],
    weights: Float64[Tensor, "*batch u p"],
    y: Float64[Tensor, "*points n p"],
    replicates: Replicates | None,
) -> tuple[Float64[Tensor, "*batch n p"], Float64[Tensor, "*batch n p"], Float64[Tensor, "*batch n p"]]:
    """(mean, variance, log density) of y (*batch, n, p), of its shape, from the diagonal of K^-1 and the weights.

    With replicates these are of the distinct rows, eq. (M-88). Source: Rasmussen & Williams (2006), section 5.4.2.
    """
    if replicates is not None:
        weights, precision = replicates.of_every_row(y if replicates.y.dim() == 2 else y[:, 0], weights, precision)
    precision = precision.unsqueeze(-1)
    error = weights / precision
    variance = (1.0 / precision).expand_as(error)
    log_prob = -0.5 * (weights * error - precision.log() + LOG_2PI)
    return y - error, variance, log_prob


def _inverse_diagonal(factor: TriangularFactor) -> Tensor:
    """The diagonal of K^-1 by strips of L^-1, (*batch, n), float64. Cost: n^3 / 3 flops, one strip."""
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
