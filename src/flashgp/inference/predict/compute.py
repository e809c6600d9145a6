"""What a prediction of a state takes: its checks, its plan, and the price of its variances."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from flashgp.foundations.checks import check_points, promotions
from flashgp.foundations.determinism import contiguous_copy, deterministically
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.form import broadcast_batch
from flashgp.inference.plan import check_prediction_plan, plan_for
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.pricing import passes_of_solves, route_of_variances
from flashgp.inference.state import State
from flashgp.kernels.warped import autocast_events
from flashgp.operators.multiplication import MIN_PLANNED_PAIRS
from flashgp.planner.products import ProductPlan
from flashgp.planner.variances import check_variance

__all__ = ["predict"]


def predict(
    state: State,
    x_test: Any,
    *,
    variance: str,
    plan: ProductPlan | None,
    memory: str | int | None,
    deterministic: bool,
) -> Prediction:
    """See `Posterior.predict`."""
    deterministic = deterministic or state.settings.deterministic
    promoted = [*promotions(x_test=x_test), *autocast_events(state.prior.kernel)]
    x_test = check_points(x_test, "x_test", like=state.x)
    with deterministically(deterministic):
        x_test = contiguous_copy(x_test)
    try:
        broadcast_batch(x_test.shape[:-2], state.batch_shape)
    except RuntimeError:
        raise ShapeError(
            f"`x_test` has batch shape {tuple(x_test.shape[:-2])}, which does not broadcast with the model's "
            f"{tuple(state.batch_shape)}; give it the same leading dimensions, or none"
        ) from None
    planner = _planner(state, x_test, plan, memory, deterministic)
    prediction = Prediction(state, x_test, planner, check_variance(variance), deterministic)
    prediction.report.events += promoted
    return prediction


def _planner(
    state: State, x_test: Tensor, plan: ProductPlan | None, memory: str | int | None, deterministic: bool
) -> Callable[[bool | str], ProductPlan] | None:
    """What makes the plan of a prediction, with its variance or without; None where no plan is worth its time."""
    n_test, d = x_test.shape[-2:]
    if plan is None and memory is None and (not state.count or n_test * state.distinct < MIN_PLANNED_PAIRS):
        return None
    prior = state.prior
    members = broadcast_batch(x_test.shape[:-2], state.batch_shape).numel()
    if plan is not None:
        check_prediction_plan(plan, (n_test, state.distinct, prior.outputs or 1, members), memory, x_test.device)
        return lambda variance: plan
    return lambda variance: plan_for(
        prior, state.distinct, d, n_test=n_test, batch=max(1, members // prior.kernel.batch_shape.numel()),
        memory=memory, device=x_test.device, variance=variance, conditioned=route_of_variances(state),
        passes=passes_of_solves(state), deterministic=deterministic,
    )  # fmt: skip
