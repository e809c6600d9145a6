"""Judging: the verdict on a posterior from rows left out or held out, and findings about what it was fitted to.

A verdict never raises: where it cannot be had, it says why. Its cost is that of leave-one-out, a small part of a fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, FlashGPError
from flashgp.foundations.estimate import Measure
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.foundations.parameters import named_parameter_objects
from flashgp.inference.answers import answer, refusal
from flashgp.inference.base_state import BaseState
from flashgp.inference.findings import why_unfinished
from flashgp.inference.fourier.left_out import of_rows
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.judgement.residuals import order_left, period_left, tails
from flashgp.inference.judgement.scored import Array, Scored, of_classes, of_numbers
from flashgp.inference.judgement.verdict import VERDICT, How, Verdict, VerdictSettings, judged, unjudged
from flashgp.inference.online.update import checked_rows
from flashgp.inference.predict.leave_one_out import LeaveOneOut
from flashgp.inference.predict.plan import Wanted
from flashgp.inference.streamed.left_out import leave_out
from flashgp.inference.streamed.state import StreamedState
from flashgp.likelihoods import PredictiveDistribution
from flashgp.likelihoods.gaussian import Normal
from flashgp.sources.survey import hashes

# Events of a fit or of its data that are findings as they stand.
_FINDINGS = frozenset({EventKind.TWO_VALUES, EventKind.COUNTS_SUGGESTED, EventKind.FAR_OUT, EventKind.FEW_VALUES})
UNASKED = "`verdict` says how good the predictions are, from all rows{ranks}."


def _array(values: Tensor) -> Array:
    return np.asarray(values.detach().double().numpy(force=True))


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Distributions of observations as `of_numbers` asks them."""

    found: PredictiveDistribution

    @property
    def mean(self) -> Array:
        return _array(self.found.mean)

    @property
    def std(self) -> Array:
        return _array(self.found.variance.sqrt())

    @property
    def median(self) -> Array:
        return _array(self.found.quantile(0.5))

    def standardised(self, y: Array) -> Array:
        return (y - self.mean) / self.std

    def inside(self, y: Array, level: float) -> Array:
        return np.asarray(
            self.found.inside(self.found.mean.new_tensor(y, dtype=torch.float64), level).numpy(force=True)
        )


Scoring = Callable[[Tensor, PredictiveDistribution], tuple[Array, Any]]


@dataclass(frozen=True, eq=False)
class Told:
    """What is known of a table beside its numbers.

    Fields: columns, names of those of x, x1, x2, ... for none; times, positions of those that are time; codes, of
    categories; scales, units of each column of x, None for 1; in_units, of targets and their distributions, the values
    of both in units of the target; events, of the fit and its posterior; interrupted, whether the fit was cut short;
    table, whether the model is one of a table.
    """

    columns: Sequence[str] | None = None
    times: Sequence[int] = ()
    codes: Sequence[int] = ()
    scales: Sequence[float] | None = None
    in_units: Scoring | None = None
    events: Sequence[Event] = ()
    interrupted: bool = False
    table: bool = False
    settings: VerdictSettings = field(default_factory=VerdictSettings)

    def name(self, column: int) -> str:
        return f"x{column + 1}" if self.columns is None else self.columns[column]


def verdict_of(state: BaseState, told: Told = Told()) -> Verdict:
    """The verdict by leaving rows out one by one; where rows were read, those of them that are held."""
    findings = findings_of(state, told)
    weights = _weights(state)
    if weights > state.count:
        reason = (
            f"{weights:,} weights of modules are fitted to {state.count:,} rows, and leaving out one row after the fit "
            "flatters them; judge rows held out, posterior.judge(x, y)."
        )
        return unjudged(reason, findings)
    try:
        found = _left_out(state)
        if isinstance(found, str):
            return unjudged(found, findings)
        left, x, y, how = found
        each = _of_every_output(state, left, x, y, how, told)
    except FlashGPError as error:
        return unjudged(str(error), findings)
    return _worst(each).with_findings(findings)


def judged_unasked(state: BaseState, settings: VerdictSettings = VERDICT) -> bool:
    """True if the verdict takes about a second at most, so that a text may show it: leave-one-out takes (rows)^3 for
    each draw of hyperparameters. Of several ranks a text may be one's alone."""
    rows = state.rows_learned
    count = len(state.sample.x) if rows is None else state.count  # type: ignore[attr-defined]
    return state.ranks == 1 and count**3 * state.draws <= settings.at_once**3


def unasked(state: BaseState) -> Verdict:
    """In place of a verdict that takes longer than a text may: how to ask for it."""
    return unjudged(UNASKED.format(ranks="" if state.ranks == 1 else "; ask it on every rank"))


def judge(state: BaseState, x: Any = None, y: Any = None, **of_rows: Any) -> Verdict:
    """See `Posterior.judge`."""
    if x is None and y is None:
        return verdict_of(state)
    if state.batch_shape:
        return unjudged("the model is a batch of several; judge each alone.")
    if y is None or x is None:
        raise DomainError(
            f"`{'y' if y is None else 'x'}` must be given beside the other, got None; pass both, or neither"
        )
    likelihood = state.prior.likelihood.underlying
    if likelihood.numbers_of_rows and not of_rows:
        known = " and ".join(f"{name}=" for name in likelihood.numbers_of_rows)
        return unjudged(f"rows held out need numbers of their own; pass {known}.", findings_of(state, Told()))
    x, y = checked_rows(state.prior, x, y, state.like)
    if not len(x):
        return unjudged("no row was held out.")
    if not state.count:
        return unjudged("the model has no rows; condition it on some.")
    try:
        with torch.no_grad():
            prediction = answer(state, "predict", x, Wanted())
            found = (prediction.given(**of_rows) if of_rows else prediction).distribution
            rows = state.rows_learned
            seen = state.sample.y if rows is None else rows[1]  # type: ignore[attr-defined]
            verdict = _worst(
                [
                    verdict_of_rows(state, _array(x[there]), scored_rows(state, targets, one, Told(), _present(others)))
                    for (targets, there, one), others in zip(
                        _by_output(state, found, y), _columns(state, seen), strict=True
                    )
                ]
            )
        return verdict if rows is None else verdict.with_findings(_fitted((x, y), rows))
    except FlashGPError as error:
        return unjudged(str(error), findings_of(state, Told()))


def _fitted(rows: Sequence[Tensor], learned: Sequence[Tensor]) -> list[Event]:
    """A finding where rows, x and y, are among those that were learned, by their hashes."""
    own, known = (hashes(np.column_stack([_array(t) for t in each])) for each in (rows, learned))
    count = int(np.isin(own, known).sum())
    return [Event(EventKind.ROWS_FITTED, rows=count, of=len(own))] if count else []


def verdict_of_rows(
    state: BaseState, x: Array, scored: Scored, told: Told = Told(), how: How = How.HELD_OUT
) -> Verdict:
    """The verdict on rows x, (n, d), with their scores."""
    of_rows = _of_residuals(scored, x, told)
    return judged(scored, how, [*of_rows, *findings_of(state, told)], told.settings)


def scored_rows(state: BaseState, y: Tensor, found: PredictiveDistribution, told: Told, others: Any = None) -> Scored:
    """Scores of observations y, (n,), or of classes as indicators, (n, classes). Args: others, targets that the
    constant model has seen, likewise; None for all of y but the row itself."""
    likelihood = state.prior.likelihood.underlying
    if likelihood.measure is Measure.LOG_LOSS:
        return of_classes(_codes(y), _log_probability(found), None if others is None else _codes(others))
    values, predicted = (_array(y), _Numbers(found)) if told.in_units is None else told.in_units(y, found)
    seen = None if others is None else _array(others) if told.in_units is None else told.in_units(others, found)[0]
    return of_numbers(values, predicted, seen, measure=likelihood.measure, discrete=likelihood.discrete)


def _codes(y: Tensor) -> npt.NDArray[np.int64]:
    return np.asarray((y.argmax(-1) if y.dim() == 2 else y).numpy(force=True), dtype=np.int64)


def _log_probability(found: PredictiveDistribution) -> Array:
    chance: Tensor = found.probability  # type: ignore[attr-defined]
    chance = torch.stack([1.0 - chance, chance], dim=-1) if chance.dim() == 1 else chance
    return np.log(np.maximum(_array(chance), np.finfo(np.float64).tiny))


def _worst(each: Sequence[Verdict], most: int = VERDICT.of_others) -> Verdict:
    """The verdict on the output that is predicted worst, with findings of others that it has not, the worst first."""
    if len(each) == 1:
        return each[0]
    shares = [np.inf if one.explained is None else one.explained.value for one in each]
    worst, *others = np.argsort(shares, kind="stable").tolist()
    found, known = each[worst], {event.kind for event in each[worst].findings}
    more = [event.during(f"output {j}") for j in others for event in each[j].findings if event.kind not in known]
    return replace(
        found, of=f"output {worst}, the worst of {len(each)}, for ", findings=(*found.findings, *more[:most])
    )


# -- by leaving rows out -----------------------------------------------------------------------------------------------
def _left_out(state: BaseState) -> tuple[LeaveOneOut, Tensor, Tensor, How] | str:
    """Rows without themselves, with x and y; or the reason that there are none."""
    if state.batch_shape:
        return "the model is a batch of several; judge each alone."
    if state.count < 2:
        return f"leaving out one row of {state.count} says nothing."
    if refusal(state, "leave_one_out") is None:
        return answer(state, "leave_one_out"), state.x, state.y, How.LEFT_OUT
    if refusal(state, "leave_out") is None:
        sample = state.sample  # type: ignore[attr-defined]
        if isinstance(state, FourierState):
            return of_rows(state, sample), sample.x, sample.y, How.SAMPLE
        return leave_out(cast(StreamedState, state), sample), sample.x, sample.y, How.SAMPLE
    return f"{refusal(state, 'leave_one_out')}; or hold rows out, posterior.judge(x, y)."


def _of_every_output(state: BaseState, left: LeaveOneOut, x: Tensor, y: Tensor, how: How, told: Told) -> list[Verdict]:
    found, verdicts = left.distribution, list[Verdict]()
    if found is None:
        mean, variance = (t.double().movedim(-1, 0) if t.dim() > 1 else t.double() for t in (left.mean, left.variance))
        found = Normal(mean, variance)
    for targets, there, one in _by_output(state, found, y):
        scored = scored_rows(state, targets, one, told)
        verdicts.append(judged(scored, how, _of_residuals(scored, _array(x[there]), told), told.settings))
    return verdicts


def _by_output(state: BaseState, found: Any, y: Tensor) -> list[tuple[Tensor, Any, Any]]:
    """Targets of each output, their rows, and their distribution; of several outputs, (outputs, n), by two moments."""
    columns = _columns(state, y)
    if found.mean.dim() == 1 or state.prior.likelihood.underlying.measure is Measure.LOG_LOSS:
        return [(columns[0], slice(None), found)]
    each = []
    for column, mean, variance in zip(columns, found.mean.double(), found.variance.double(), strict=True):
        there = column.isfinite() & mean.isfinite()  # cells may be missing
        each.append((column[there], there, Normal(mean[there], variance[there])))
    return each


def _columns(state: BaseState, y: Tensor) -> list[Tensor]:
    """Targets of each output, (n,); of classes as indicators, (n, classes), themselves."""
    likelihood = state.prior.likelihood.underlying
    if y.dim() == 1 or likelihood.measure is Measure.LOG_LOSS:
        return [y]
    return [y[:, 0]] if likelihood.one_observation else [*y.unbind(-1)]


def _present(y: Tensor) -> Tensor:
    return y if y.dim() > 1 else y[y.isfinite()]


def _of_residuals(scored: Scored, x: Array, told: Told) -> list[Event]:
    settings, found = told.settings, tails(scored, settings=told.settings)
    if scored.explained is None or scored.explained.value > 1.0 - settings.least_left:
        return found
    for j in [0] if x.shape[1] == 1 else told.times:
        scale = 1.0 if told.scales is None else told.scales[j]
        found += period_left(scored, scale * x[:, j], told.name(j), table=told.table, settings=settings)
    steps = np.diff(x, axis=0)
    ordered = ((steps >= 0.0).all(axis=0) | (steps <= 0.0).all(axis=0)).any()  # their order is an input
    return found if found or ordered else order_left(scored, settings)


# -- of data and fit ---------------------------------------------------------------------------------------------------
def findings_of(state: BaseState, told: Told) -> list[Event]:
    """Findings about rows, parameters and search, which need no prediction."""
    settings, found = told.settings, [event for event in told.events if event.kind in _FINDINGS]
    unfinished = why_unfinished(told.events, interrupted=told.interrupted)
    if unfinished is not None:
        found.append(Event(EventKind.UNFINISHED, reason=unfinished.value))
    rows = state.rows_learned
    if rows is None or state.batch_shape or not len(rows[0]):
        return found
    x, y = _array(rows[0]), _array(rows[1])
    n, parameters = len(x), sum(p.numel() for p in state.prior.parameters())
    if n > 1 and (y == y[0]).all():
        found.append(Event(EventKind.CONSTANT_TARGET))
    if n < settings.rows_per_parameter * parameters and not of_kind(found, EventKind.FEW_VALUES):
        found.append(Event(EventKind.FEW_ROWS, rows=n, parameters=parameters))
    if n >= settings.least_rows:
        found += [
            Event(EventKind.COUNTS_ROWS, column=told.name(j))
            for j in _counting(x)
            if j not in (*told.times, *told.codes)
        ]
        found += [Event(EventKind.COPIES_TARGET, column=told.name(j)) for j in _copies(x, y, settings.exactly)]
        twins = n - len(np.unique(hashes(np.column_stack([x, y]))))
        if 2 * twins > settings.repeated * n:
            found.append(Event(EventKind.ROWS_REPEATED, share=min(100.0, 200.0 * twins / n)))
    return found


def _weights(state: BaseState) -> int:
    """Weights of modules that are not the library's own."""
    prior = state.prior
    own = {id(p.raw) for _, p in named_parameter_objects(prior)}
    return sum(p.numel() for p in prior.parameters() if id(p) not in own)


def _counting(x: Array) -> list[int]:
    """Columns, of several, whose rows are evenly spaced in their order."""
    if x.shape[1] < 2:
        return []
    steps, span = np.diff(x, axis=0), np.ptp(x, axis=0)
    even = np.abs(steps - steps.mean(axis=0)).max(axis=0) <= 1e-6 * np.abs(steps.mean(axis=0))
    return np.flatnonzero(even & (span > 0.0)).tolist()


def _copies(x: Array, y: Array, most: float) -> list[int]:
    """Columns, of several, that are a target y but for a shift and a scale. Args: most, the share of squares left."""
    if x.shape[1] < 2 or y.ndim > 1 or len(np.unique(y)) <= 2:
        return []
    u, v = x - x.mean(axis=0), y - y.mean()
    squares = np.square(u).sum(axis=0) * np.square(v).sum()
    return np.flatnonzero((squares > 0.0) & (np.square(u.T @ v) > (1.0 - most) * squares)).tolist()


def out_of_range(state: BaseState, x: Array, told: Told) -> Event | None:
    """Finding of points x, (m, d), that lie farther outside the range of the fitted rows than a part of its width."""
    rows = state.rows_learned
    learned = _array(state.sample.x if rows is None else rows[0])  # type: ignore[attr-defined]
    if state.batch_shape or not len(learned) or not len(x):
        return None
    low, high = learned.min(axis=0), learned.max(axis=0)
    width = high - low
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where(width > 0.0, np.maximum(low - x, x - high) / width, 0.0)
    far[:, list(told.codes)] = 0.0
    beyond = far > told.settings.beyond
    outside = int(beyond.any(axis=1).sum())
    if not outside:
        return None
    column = told.name(int(beyond.sum(axis=0).argmax()))
    return Event(EventKind.OUT_OF_RANGE, rows=outside, of=len(x), column=column, far=float(far.max()))
