"""log p(y | x) of a state: from its factor, or without one by stochastic Lanczos quadrature, eqs. (M-33) and (M-99)."""

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.output_states import AnyState, joined_report
from flashgp.inference.solves import Solves
from flashgp.inference.state import State

UNNOTED_RESIDUAL = 1e-12  # relative, of weights that are as good as float64 gives, where no bound is known
UNNOTED_SHARE, UNNOTED_NATS = 0.1, 1e-3  # of a likelihood's standard error, or nats: what weights may add unsaid


@entered(lambda state: state.run.deterministic)
def log_evidence(state: AnyState) -> Float64[Tensor, "*batch"]:
    """See `Posterior.log_marginal_likelihood`."""
    values = [_of_one(part) for part in state.parts]
    if not state.prior.separate:
        return values[0]
    whole = joined_report([part.report for part in state.parts])
    state.report.standard_error = whole.standard_error
    state.report.events += [event for event in whole.events if event not in state.report.events]
    return torch.stack(values).sum(0)


def _of_one(state: State) -> Float64[Tensor, "*batch"]:
    if not state.count:
        return torch.zeros(state.batch_shape, dtype=torch.float64, device=state.x.device)
    n, p = state.residual.shape[-2:]
    if state.factor is not None and state.solves is None:
        z = state.whitened_for_mean
        product = state.residual * state.representer_weights if z is None else z.square()
        fit = product.sum((-2, -1))
        log_determinant: Tensor | float = state.factor.log_determinant
    else:
        if state.cache.likelihood_parts is None:
            state.cache.likelihood_parts = _without_factor(state, p)
        fit, log_determinant = state.cache.likelihood_parts
    value = -0.5 * (fit + p * log_determinant + n * p * LOG_2PI)
    scale = state.sites.log_scale
    return value if scale is None else value + scale


def _without_factor(state: State, p: int) -> tuple[Tensor, float]:
    """r^T K^-1 r and log|K| of the distinct rows by solves; the latter's standard error goes to the report."""
    solves, weights = state.solves, state.representer_weights
    assert solves is not None
    fit = (2.0 * state.residual * weights - weights * solves.system.multiply(weights)).sum()
    estimate = solves.log_determinant()
    state.report.standard_error = 0.5 * p * estimate.standard_error
    event = Event(
        EventKind.LOG_DETERMINANT,
        probes=estimate.probes, steps=estimate.steps, standard_error=state.report.standard_error,
    )  # fmt: skip
    state.report.events.append(event)
    _note_unfinished(state, p, solves, state.report.standard_error)
    return fit, estimate.value


def _note_unfinished(state: State, p: int, solves: Solves, standard_error: float) -> None:
    """Report the effect on r^T K^-1 r of a solve of the weights that ended early: it is short by |e|_A^2 for each
    output."""
    bound, relative = state.report.error_bound, state.report.relative_residual or 0.0
    if bound is None and relative <= UNNOTED_RESIDUAL:
        return
    over = None
    if bound is not None:
        over = 0.5 * p * bound**2 / max(float(solves.system.diagonal().max()), torch.finfo(torch.float64).tiny)
        if over <= max(UNNOTED_SHARE * standard_error, UNNOTED_NATS):
            return
    event = Event(EventKind.LIKELIHOOD_UNCERTAIN, nats=over)
    state.report.events.append(event)
    warn(f"{event} Condition with a larger time_limit= or memory= for the whole solve")
