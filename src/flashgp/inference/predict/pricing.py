"""What variances of a state take without a float64 factor: by exact solves, or by samples, eq. (M-107)."""

from flashgp.inference.plan import PredictionQuestion, RowCounts, price_of_variance
from flashgp.inference.state import State
from flashgp.planner.conditioning import PASSES
from flashgp.planner.variances import DEFAULT_VARIANCES, VariancePrice, VarianceSettings

__all__ = ["passes_of_solves", "price_of", "route_of_variances"]


def route_of_variances(state: State) -> str:
    """The route that gives variances, by what there is: a hand-over may have changed the plan's."""
    if not state.count or state.batch_shape or state.float64_factor is not None:
        return "direct"
    if state.factor is not None:
        return "refined"
    return "recomputed" if state.plan is None else state.plan.route


def passes_of_solves(state: State) -> int:
    """Over the pairs, of one more block of solves: as many as the weights took, where that is known.

    Those of an update began at the old weights, so that it took fewer: what counts is the solve before it.
    """
    if state.plan is None or state.plan.solver != "cg":
        return PASSES
    usual = state.online.usual_iterations
    known = state.report.iterations if usual is None else usual
    return PASSES if known is None else max(1, known)


def price_of(
    state: State, n_test: int, asked: str, deterministic: bool, settings: VarianceSettings = DEFAULT_VARIANCES
) -> VariancePrice:
    """Of variances at so many points."""
    question = PredictionQuestion(n_test, asked, route_of_variances(state), passes_of_solves(state))
    rows = RowCounts(state.distinct, state.x.shape[-1])
    device = state.x.device
    return price_of_variance(state.prior, rows, question, device, deterministic=deterministic, settings=settings)
