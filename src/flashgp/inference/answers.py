"""Answers of each kind of state: a table of functions for every kind, by the name of the method of `Posterior`.

All of them take the state first. A new kind of state is a class derived from `BaseState` and a row of `ANSWERS`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from flashgp.foundations.checks import check_count, promotions
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.base_state import BaseState
from flashgp.inference.exact.evidence import log_evidence
from flashgp.inference.exact.mixture import MixtureState
from flashgp.inference.fourier import predictor as fourier
from flashgp.inference.fourier.append import append as fourier_append
from flashgp.inference.fourier.left_out import leave_one_out as fourier_left_out
from flashgp.inference.fourier.left_out import leave_out as fourier_leave_out
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.full_scale import outputs as full_scale
from flashgp.inference.full_scale.output_states import FullScaleOutputs
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.online import update as online
from flashgp.inference.online.fantasies import fantasize, fantasize_mixture
from flashgp.inference.online.new_sites import with_sites_to_come
from flashgp.inference.online.refine import refined
from flashgp.inference.output_states import AnyState, OutputStates
from flashgp.inference.predict.components import component, components
from flashgp.inference.predict.importance import importance
from flashgp.inference.predict.leave_one_out import LeaveOneOut, leave_one_out, mixed, of_observations
from flashgp.inference.predict.paths import Paths, draw_paths
from flashgp.inference.predict.plan import Wanted, planners_of
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.predictor import Predictor
from flashgp.inference.predict.prior_draws import draw_seed
from flashgp.inference.predict.together import draw_paths_together, predict_together, ranks_of
from flashgp.inference.state import State
from flashgp.inference.streamed import append as streamed_append
from flashgp.inference.streamed import predictor as streamed
from flashgp.inference.streamed.bracket import bracket
from flashgp.inference.streamed.left_out import leave_out
from flashgp.inference.streamed.rows import named
from flashgp.inference.streamed.state import Bound, StreamedState
from flashgp.sources.source import Held, source_of
from flashgp.sources.survey import Block, checked, joined

Answers = Mapping[str, Callable[..., Any]]


# -- exact inference ---------------------------------------------------------------------------------------------------
def _evidence(state: Any) -> torch.Tensor:
    value = log_evidence(state)
    group = ranks_of(state, "log_marginal_likelihood")
    return value if group.size == 1 else group.from_first(value)


def _planned_seconds(state: Any, rows: int) -> float:
    points = torch.empty(rows, state.x.shape[-1], dtype=torch.float64, device=state.x.device)
    planners = planners_of(state, points, Wanted())
    return sum(planner(True).seconds for planner in planners if planner is not None)


def _left_out(state: AnyState) -> LeaveOneOut:
    """Leave-one-out of observations: where sites are not, from the cavities of these, (M-268)."""
    left, likelihood = leave_one_out(state), state.prior.likelihood
    if likelihood.underlying.has_sites:
        return left
    variance = (left.variance.double() - state.prior.sites(state.y).variance).clamp_min(0.0)
    return of_observations(likelihood, left.mean.double(), variance, state.y, state.result_dtype)


def _moments(state: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of f at points."""
    found = ANSWERS[type(state)]["predict"](state, x, Wanted("exact"))
    return found.mean, found.variance


def _with_rows(update: Callable[..., Any], append: Callable[..., Any]) -> Callable[..., Any]:
    """An update by rows that come, the first arguments after which are x and y, with sites of theirs."""

    def updated(state: Any, x: Any, y: Any, *known: Any, **numbers: Any) -> Any:
        def joined(state: Any, x: Any, y: Any) -> Any:
            return append(state, x, y, *(None for _ in known))

        return update(with_sites_to_come(state, x, y, known, numbers, _moments, joined), x, y, *known)

    return updated


def _replaced(state: Any, indices: Any, x: Any, y: Any, *known: Any, **numbers: Any) -> Any:
    def update(state: Any, x: Any, y: Any, *known: Any) -> Any:
        return online.replace_rows(state, indices, x, y, *known)

    return _with_rows(update, online.append)(state, x, y, *known, **numbers)


def _joined(state: StreamedState, x: Any, y: Any, row_variance: Any, row_weight: Any, **numbers: Any) -> StreamedState:
    """Rows one after the other where sites need iteration: each is found from what the rows before it say."""
    numbers |= {"row_variance": row_variance, "row_weight": row_weight}
    given = {name: each for name, each in numbers.items() if each is not None}
    source, prior = streamed_append.new_rows(state, x, y, given), state.prior
    if prior.likelihood.has_sites:
        return streamed_append.append(state, source)
    for _, block in checked(source, prior.outputs, state.inducing.shape[-1]):
        for i in range(len(block.x)):
            state = streamed_append.append(state, Held(*block.part(i, i + 1)))
    return state


# -- mixtures ----------------------------------------------------------------------------------------------------------
def _mixed(state: MixtureState, x_test: Any, wanted: Wanted) -> Prediction:
    points = state.checked_points(x_test, "x_test")
    return predict_together(state.each, points, wanted).mixed(state.log_weights)


def _mixed_left_out(state: MixtureState) -> LeaveOneOut:
    """Leave-one-out where each row takes the draws as the others have them, eq. (M-382)."""
    return mixed(leave_one_out(state.each), state.log_weights)


def _mixed_paths(state: MixtureState, count: int, features: int, seed: int | None) -> Paths:
    seed, count = draw_seed(seed), check_count(count, "count", 0)
    weights, generator = state.log_weights.exp().cpu(), torch.Generator().manual_seed(seed)
    which = torch.multinomial(weights, max(1, count), replacement=True, generator=generator)[:count]
    return Paths.mixed(state, lambda each: draw_paths(state.each, each, features, seed), which)


# -- approximations ----------------------------------------------------------------------------------------------------
def _predicted_by(predictor: Callable[..., Predictor]) -> Callable[..., Prediction]:
    """The function behind `predict` of an approximation. Args: predictor, of a state, deterministic or not."""

    def predict(state: Any, x_test: Any, wanted: Wanted) -> Prediction:
        variance, plan = wanted.variance, wanted.plan
        if variance not in ("auto", "exact") or plan is not None:
            raise DomainError(
                "`variance` and `plan` are of exact posteriors; an approximate one computes every variance, without a "
                f"plan, got variance={variance!r}, plan={plan!r}; leave them out"
            )
        promoted = promotions(x_test=x_test)
        x_test = state.checked_points(x_test, "x_test")
        _check_time(state, len(x_test), wanted.time_limit)
        with torch.set_grad_enabled(torch.is_grad_enabled() or x_test.requires_grad):
            x_test = x_test.clone()
        asked = predictor(state, deterministic=wanted.deterministic or state.run.deterministic)
        prediction = Prediction(asked, x_test, state.prior.likelihood, state.prior.outputs)
        prediction.report.events += promoted
        return prediction

    return predict


def _check_time(state: BaseState, count: int, time_limit: float | None) -> None:
    """Raises: DomainError for what is no time, or less than so many points take by the plan."""
    plan, limit = state.report.plan, Deadline.after(time_limit).limit
    if limit is None or plan is None:
        return
    needed = count * plan.predict_seconds
    if needed > limit:
        fewer = int(limit / plan.predict_seconds)
        ways = f"ask for {fewer:,} at a time, or pass more" if fewer else "pass more"
        raise DomainError(
            f"`time_limit` must be at least about {readable_seconds(needed)} for {count:,} points, got {limit:g} s; "
            f"{ways}"
        )


def _seconds_as_conditioning(state: BaseState, rows: int) -> float:
    """About what the passes took over as many rows."""
    return rows * (state.report.seconds or 0.0) / max(1, state.count)


# -- inducing points alone ---------------------------------------------------------------------------------------------
def _held_left_out(state: StreamedState) -> LeaveOneOut:
    rows = state.of_rows("leave_one_out")
    return leave_out(state, Block(rows.x.double(), rows.y.double(), rows.numbers))


def _given_left_out(state: StreamedState, x: Any, y: Any, **numbers: Any) -> LeaveOneOut:
    source = streamed_append.new_rows(state, x, y, numbers)
    blocks = [block for _, block in checked(source, state.prior.outputs, state.inducing.shape[-1])]
    for block in blocks:
        streamed_append.check_alike(state.sample.numbers.keys(), block)
    return leave_out(state, joined(blocks))


def _bracket(state: StreamedState, rows: Any) -> Bound:
    return bracket(state, state.of_rows("bracket") if rows is None else named(source_of(rows), state.prior))


_ALL: Answers = {
    "importance": lambda state, groups, settings: importance(state.training_table, groups, settings),
}
_TERMS: Answers = {
    "component": lambda state, part: component(state, part, answer),
    "components": lambda state: components(state, answer),
}
_EXACT: Answers = {
    **_ALL, **_TERMS, "append": _with_rows(online.append, online.append), "drop": online.drop, "fantasize": fantasize,
    "leave_one_out": _left_out,
    "log_marginal_likelihood": _evidence, "paths": draw_paths_together, "predict": predict_together,
    "predict_seconds": _planned_seconds, "refine": refined, "replace": _replaced,
    "slide": _with_rows(online.slide, online.append),
}  # fmt: skip
_APPROXIMATE: Answers = {
    **_ALL, "inducing": lambda state: state.inducing.clone(), "predict_seconds": _seconds_as_conditioning,
    "log_marginal_likelihood": lambda state: state.log_marginal_likelihood(),
}  # fmt: skip
_FULL_SCALE: Answers = {
    **_APPROXIMATE, **_TERMS, "append": _with_rows(full_scale.appended, full_scale.appended),
    "leave_one_out": full_scale.leave_one_out, "lost": full_scale.lost, "paths": full_scale.paths,
    "predict": _predicted_by(full_scale.predictor),
}  # fmt: skip
_INDUCING: Answers = {
    **_APPROXIMATE, **_TERMS, "append": _joined, "bound": lambda state: state.bound, "bracket": _bracket,
    "leave_one_out": _held_left_out, "leave_out": _given_left_out, "lost": lambda state: state.bound,
    "paths": streamed.draw_paths, "predict": _predicted_by(streamed.predictor),
}  # fmt: skip
_FOURIER: Answers = {
    **_ALL, **_TERMS, "append": fourier_append, "leave_one_out": fourier_left_out, "lost": lambda state: state.lost,
    "leave_out": fourier_leave_out,
    "log_marginal_likelihood": lambda state: state.log_marginal_likelihood(), "paths": fourier.draw_paths,
    "predict": _predicted_by(fourier.predictor), "predict_seconds": fourier.predict_seconds,
}  # fmt: skip
_MIXTURE: Answers = {
    **_ALL, "append": _with_rows(online.append, online.append), "drop": online.drop, "replace": _replaced,
    "slide": _with_rows(online.slide, online.append), "fantasize": fantasize_mixture,
    "leave_one_out": _mixed_left_out, "log_marginal_likelihood": lambda state: _evidence(state.point),
    "paths": _mixed_paths, "predict": _mixed,
    "predict_seconds": lambda state, rows: _planned_seconds(state.each, rows),
}  # fmt: skip
ANSWERS: Mapping[type[BaseState], Answers] = {
    State: _EXACT, OutputStates: _EXACT, MixtureState: _MIXTURE, FullScaleState: _FULL_SCALE,
    FullScaleOutputs: _FULL_SCALE, StreamedState: _INDUCING, FourierState: _FOURIER,
}  # fmt: skip

# What some kinds do not answer: of which posteriors a question is, and what to do elsewhere.
_APART = {
    **dict.fromkeys(
        ("drop", "slide", "replace", "fantasize", "refine"),
        ("exact posteriors", "condition again on the rows that count"),
    ),
    **dict.fromkeys(
        ("lost", "inducing"),
        ("approximations", 'pass approximation="full_scale" or "sparse" to gp.condition, or ask posterior.report'),
    ),
    **dict.fromkeys(("bound", "bracket"), ("inducing points alone", "take posterior.log_marginal_likelihood()")),
    "leave_out": ("inducing points alone and Fourier series", "take posterior.leave_one_out()"),
    **dict.fromkeys(
        ("component", "components"),
        ("one set of hyperparameters", "fit without uncertainty="),
    ),
}


def refusal(state: BaseState, question: str) -> str | None:
    """Reason that a state does not answer a question, in four parts; None if it does. Args: question, of
    `Posterior`."""
    if question in _APART and question not in ANSWERS[type(state)]:
        if (reason := state.obstacle(question)) is not None:
            return reason
        of, way = _APART[question]
        return f"`{question}` is of {of}, got one by the route {state.report.route!r} of {state.count:,} rows; {way}"
    return state.obstacle(question)


def answer(state: BaseState, question: str, *arguments: Any, **options: Any) -> Any:
    """Answer of a state to a question of `Posterior`, with all ranks that it needs. Raises: DomainError if refused."""
    if (reason := refusal(state, question)) is not None:
        raise DomainError(reason)
    function = ANSWERS[type(state)][question]
    group = ranks_of(state, question)
    if group.size == 1:
        return function(state, *arguments, **options)
    with group.together(asked=question):
        return function(state, *arguments, **options)
