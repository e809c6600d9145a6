"""Results of a fit: scores, parameters and figures, for people and as JSON."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import flashgp
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.estimate import Measure
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.quantities import counted, readable_seconds
from flashgp.foundations.report import Report
from flashgp.inference.fit import Fit
from flashgp.inference.judgement.verdict import VERDICT, How, Verdict, Word
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.importance import Importance
from flashgp.likelihoods.gaussian import Normal
from flashgp.scores import Answers, TargetScores
from flashgp.table_model import TableModel
from flashgp.table_model.preparation import PreparedTable
from flashgp.targets import Placed

from .after_fit import AFTER_FIT
from .console import Console
from .options import FitArguments
from .parameters import ParameterRow, parameter_rows, parameter_table

# Of a report, what people are told beside time and figures of merit; the plan, said before, has the rest.
_HAPPENED = ("relative residual", "error bound", "standard error", "jitter", "peak memory", "compile seconds")
_MAX_INPUTS, _MAX_NAMED = 12, 8  # of the importance, on a terminal: in a table, in a line
_MAX_FINDINGS = 4  # lines of a terminal
# Events that change nothing of what a reader does with the model.
_ROUTINE = frozenset(
    {
        EventKind.SUBSET_FIT, EventKind.TARGET_KEPT, EventKind.KERNEL_KEPT, EventKind.SOLVED,
        EventKind.LENGTHSCALES_RESET, EventKind.NOISE_RESET, EventKind.CORES_TAKEN, EventKind.DETERMINISTIC,
        EventKind.RUNTIME, EventKind.MOVED, EventKind.PAIRS_SKIPPED, EventKind.PAIRS_NOT_SKIPPED, EventKind.REFINED,
        EventKind.FULL_SCALE, EventKind.STREAMED, EventKind.FEWER_POINTS_SUFFICE, EventKind.MORE_NEIGHBOURS_TAKEN,
        EventKind.POINTS_REJECTED, EventKind.RESUMED, EventKind.GRADIENTS_ESTIMATED, EventKind.GRADIENTS_BY_FACTORS,
        EventKind.GRADIENTS_IN_FLOAT64, EventKind.GRADIENTS_FULL_SCALE, EventKind.FLOAT64_PRODUCTS,
        EventKind.PRECONDITIONER_AT_ONCE, EventKind.PRECONDITIONER_COMPARED, EventKind.LOG_DETERMINANT,
        EventKind.HYPERPARAMETERS_DRAWN, EventKind.COLUMNS_FOUND,
        EventKind.ROWS_JOINED, EventKind.ON_BOUND, EventKind.SITES, EventKind.FIT_SITES, EventKind.VARIANCE_LEFT_OUT,
    }
)  # fmt: skip
_Numbers = npt.NDArray[np.float64]
Stage = Callable[[str, float], None]


@dataclass(frozen=True)
class Asked:
    """Arguments of a command.

    Fields: options; began, by `time.perf_counter`; deadline; by_hand, whether Ctrl-C made it.
    """

    options: FitArguments
    began: float
    deadline: Deadline = NO_DEADLINE
    by_hand: bool = False

    @property
    def ended(self) -> str:
        return "Ctrl-C" if self.by_hand else "the time limit"


@dataclass(frozen=True)
class FitOutcome:
    """Contents of the report.

    Fields:
        asked, prepared, fit, model: what was asked for, and what it became.
        verdict: how good the predictions are, and what to check.
        scores: None where no rows are held out and there is no factor, or no time is left.
        evidence: log p(y | x) of the target in its units, nats; None where no time is left for it, or for all rows.
        left_out: whether they are leave-one-out.
        importance: of the inputs; None of a single one, of one row, and where no time is left.
        scored_x, observed, predicted: inputs of the rows scored, and the target in its units.
        parameters, seconds, notes, warnings: as shown.
    """

    asked: Asked
    prepared: PreparedTable
    fit: Fit
    model: TableModel
    verdict: Verdict
    scores: TargetScores | None
    evidence: float | None
    left_out: bool
    importance: Importance | None
    scored_x: _Numbers
    observed: _Numbers
    predicted: Answers
    parameters: list[ParameterRow]
    seconds: float
    notes: list[str]
    warnings: list[str]

    @property
    def options(self) -> FitArguments:
        return self.asked.options


def outcome_of(
    prepared: PreparedTable, model: TableModel, asked: Asked, console: Console, stage: Stage | None = None
) -> FitOutcome:
    """Results of a fit of the command line, with its scores on held-out rows, as far as there is time. Args: stage,
    told what is done, and what part of the work before it."""
    result = model.training
    assert result is not None
    stage = stage or (lambda what, done: None)
    scaling, post = prepared.scaling, result.posterior
    stage("scoring rows that took no part", 0.0)
    scored_x, observed, predicted = _scored_rows(prepared, post, model, asked, console)
    scores = predicted.scores(observed, scaling.target.unit) if len(observed) else None
    verdict = _verdict(prepared, model, (scored_x, observed, predicted))
    stage("importance of inputs", 0.3)
    whole = post.count == prepared.count
    evidence = (
        _log_evidence(prepared, post) if whole and AFTER_FIT.has_time_for_evidence(post, asked.deadline) else None
    )
    return FitOutcome(
        asked=asked,
        prepared=prepared,
        fit=result,
        model=model,
        verdict=verdict,
        scores=scores,
        evidence=evidence,
        left_out=prepared.held_out is None,
        importance=_importance(prepared, model, asked, console) if _says_something(verdict, result) else None,
        scored_x=scored_x,
        observed=observed,
        predicted=predicted,
        parameters=parameter_rows(
            result.gp, prepared.names, scaling, prepared.encoding.target, result.priors, prepared.encoding.units
        ),
        seconds=time.perf_counter() - asked.began,
        notes=console.notes,
        warnings=console.warnings,
    )


def fit_seconds(prepared: PreparedTable, fit: Fit) -> float:
    """Seconds of a fit of a table, with the short fits that choose the target's transform and the covariance
    function."""
    return prepared.choice_seconds + (fit.report.seconds or 0.0)


def happened(report: Report) -> list[tuple[str, str]]:
    """Lines of a report for people: how exact the answer is, and what it took."""
    return [(name, text) for name, text in report.lines() if name in _HAPPENED]


def say_outcome(outcome: FitOutcome, console: Console) -> None:
    """Print what a person wants to know of a fit; with --verbose all that the report has."""
    report, verbose, verdict = outcome.fit.report, outcome.options.verbose, outcome.verdict
    console.say(verdict.sentence)
    if outcome.scores is not None:
        explained = verdict.explained if verdict.measure is Measure.VARIANCE else None
        line = outcome.scores.line(outcome.prepared.encoding.target, explained)
        console.say(f"{scored_words(outcome)}, {outcome.scores.rows:,} rows: {line}")
    findings = [*map(str, verdict.findings)]
    shown = {event.kind for event in verdict.findings}
    if EventKind.NO_BETTER in shown or verdict.word is Word.UNJUDGED:
        shown.add(EventKind.NOTHING_EXPLAINED)
    if EventKind.UNFINISHED in shown:
        shown.add(EventKind.FIT_INTERRUPTED)
    told = [event for event in report.events if verbose or not (event.kind in _ROUTINE | shown or _of_text(event))]
    findings += [] if verbose else [*map(str, told)]
    findings = [text for text in findings if text not in outcome.warnings]  # said before
    most = len(findings) if verbose or len(findings) <= _MAX_FINDINGS else _MAX_FINDINGS - 1
    for text in findings[:most]:
        console.say(f"- {text}")
    if most < len(findings):
        console.say(f"- {counted(len(findings) - most, 'more note')} with --verbose")
    _say_importance(outcome, console)
    if verbose:
        _say_details(outcome, told, console)


def _of_text(event: Event) -> bool:
    """True of classes that are no numbers, which no one would take for numbers."""
    return event.kind is EventKind.CLASSES_FOUND and any(isinstance(one, str) for one in event.fields["labels"])


def _say_importance(outcome: FitOutcome, console: Console) -> None:
    found = outcome.importance
    if found is None:
        return
    whose = "" if found.unfinished is None else f", {found.unfinished.heading}"
    growth = "" if outcome.options.verbose else f" {_importance_line(found)}"
    console.say(
        f"inputs by importance{whose}: {found.measure} grows by{growth} where one is permuted among {found.rows} rows"
    )
    if outcome.options.verbose:
        console.table(*importance_table(found))


def _say_details(outcome: FitOutcome, told: Sequence[Event], console: Console) -> None:
    """What --verbose adds."""
    report, seconds = outcome.fit.report, fit_seconds(outcome.prepared, outcome.fit)
    console.pairs(
        f"fitted in {readable_seconds(seconds)}, {counted(len(outcome.fit.history), 'evaluation')}",
        [
            ("log marginal likelihood", evidence_text(outcome)),
            *maximised(outcome),
            *happened(report),
            ("time", dict(report.lines())["time"]),
            ("whole command", f"{readable_seconds(outcome.seconds)}, with reading and predicting"),
            *(("event", str(event)) for event in told),
        ],
    )
    if outcome.scores is not None:
        console.pairs(scored_words(outcome), outcome.scores.lines(outcome.prepared.encoding.target))
    console.say("parameters")
    shown = outcome.parameters[:40]
    console.table(*parameter_table(shown))
    if len(shown) < len(outcome.parameters):
        console.say(f"  and {len(outcome.parameters) - len(shown):,} more")


def _verdict(prepared: PreparedTable, model: TableModel, rows: tuple[_Numbers, _Numbers, Answers]) -> Verdict:
    """The verdict on the rows that are scored. Args: rows, their inputs, targets and predictions."""
    x, observed, predicted = rows
    left_out = prepared.held_out is None
    others = None if left_out else prepared.y
    how = How.LEFT_OUT if left_out else How.HELD_OUT
    how = How.SAMPLE if prepared.read and len(observed) < prepared.count else how
    return model.verdict_of(x, observed, predicted, others, how)


def _scored_rows(
    prepared: PreparedTable, post: Posterior, model: TableModel, asked: Asked, console: Console
) -> tuple[_Numbers, _Numbers, Answers]:
    """The rows held out, or else all by leave-one-out, of rows that are read a sample, observed and predicted; none
    where there is no factor, or no time: a note says so."""
    scaling, target = prepared.scaling, prepared.scaling.target
    empty = torch.empty(*([prepared.gp.outputs] if prepared.gp.outputs else []), 0, dtype=torch.float64)
    without = target.answers(prepared.gp.likelihood.predictive(empty, empty), Placed.all(0))
    nothing = np.empty((0, len(prepared.names))), np.empty(0), without
    if prepared.read:
        sample = len(prepared.y)
        # A posterior of part of the rows has not learned every row of the sample.
        count = AFTER_FIT.scored(post, sample, asked.deadline) if post.count == prepared.count else 0
        if count < sample:
            console.note(f"{asked.ended} left no time for leave-one-out scores of the whole sample.")
        if not count:
            return nothing
        some = scored_sample(sample, count, asked.options.seed)  # the sample is in the order of the files
        x, observed = prepared.x[some], prepared.y[some]
        left = post.leave_out(scaling.x(x), scaling.y(observed))
    elif prepared.held_out is not None:
        x, observed = prepared.held_out
        count = AFTER_FIT.scored(post, len(x), asked.deadline)
        if count < len(x):
            console.note(f"{asked.ended} left time to score {count:,} of the {len(x):,} rows held out.")
            some = scored_sample(len(x), count, asked.options.seed)
            x, observed = x[some], observed[some]
        if not count:
            return nothing
        found, *_ = model.predict_encoded(x, memory=asked.options.memory)
        return x, observed, target.answers(found, Placed.all(count))
    else:
        question = "leave_one_out" if post.can("leave_one_out") is None else "leave_out"  # of rows of other ranks too
        if post.can(question) is not None:
            return nothing
        if post.count < prepared.count or not AFTER_FIT.has_time_for_left_out(post, asked.deadline):
            console.note(f"{asked.ended} left no time for leave-one-out scores of all rows.")
            return nothing
        x, observed = prepared.x, prepared.y
        left = post.leave_one_out() if question == "leave_one_out" else post.leave_out(*prepared.rows)  # type: ignore[misc]
    found = left.distribution or Normal(left.mean.double(), left.variance.double())
    return x, observed, target.answers(found, Placed.all(len(observed)))


def scored_sample(rows: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Random positions of so many of so many rows, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(rows)[:count])


def _says_something(verdict: Verdict, fit: Fit) -> bool:
    """True unless inputs explain nothing, or few rows say nothing, and more time would not change that."""
    few = verdict.word is Word.UNJUDGED and verdict.rows < VERDICT.least_judged and verdict.how is not How.HELD_OUT
    return fit.unfinished is not None or not (verdict.word is Word.USELESS or few)


def _importance(prepared: PreparedTable, model: TableModel, asked: Asked, console: Console) -> Importance | None:
    """Importance of the inputs, if there are two and time for it: else a note says so."""
    rows = model.posterior.count
    if rows < 2 or len(prepared.names) < 2:
        return None
    long = asked.by_hand and rows > AFTER_FIT.time.min_rows  # of a model that did not finish, and the user waits
    if long or not AFTER_FIT.has_time_for_importance(prepared, rows, asked.deadline):
        console.note(f"{asked.ended} left no time for the importance of inputs.")
        return None
    try:
        return model.importance(seed=asked.options.seed)
    except DomainError as error:  # of too few rows that differ
        console.note(f"no importance of inputs: {error}.")
        return None


def _importance_line(found: Importance) -> str:
    """The most important inputs, each with what it adds; chance alone takes something off."""
    shown = found.order[:_MAX_NAMED]
    more = len(found.names) - len(shown)
    named = ", ".join(f"{found.names[j]} {max(0.0, float(found.growth[j])):.3g}" for j in shown)
    return f"{named}{f' and less for {more:,} more' * bool(more)}"


def importance_table(found: Importance) -> tuple[Sequence[str], list[Sequence[str]], Sequence[int]]:
    """Head, cells, and which columns are numbers; the most important inputs first."""
    low, high = (end.tolist() for end in found.growth_interval())
    other = found.log_density if found.by == "rmse" else found.rmse
    growth, beside = found.growth.tolist(), other.tolist()
    cells: list[Sequence[str]] = [
        (found.names[j], f"{growth[j]:.3g}", f"{low[j]:.3g} to {high[j]:.3g}", f"{beside[j]:.3g}")
        for j in found.order[:_MAX_INPUTS]
    ]
    if len(cells) < len(found.names):
        cells.append((f"and {len(found.names) - len(cells):,} more", "", "", ""))
    return ("input", found.measure, "95 % interval", "nats a row" if found.by == "rmse" else "RMSE"), cells, (1, 2, 3)


def _importance_json(found: Importance | None) -> list[dict[str, Any]] | None:
    if found is None:
        return None
    (low, high), (low_density, high_density) = found.interval(), found.log_density_interval()
    return [
        {
            "input": found.names[j], "rmse": float(found.rmse[j]), "rmse_95": [float(low[j]), float(high[j])],
            "log_density": float(found.log_density[j]),
            "log_density_95": [float(low_density[j]), float(high_density[j])], "by": found.by,
        }
        for j in found.order
    ]  # fmt: skip


def _log_evidence(prepared: PreparedTable, post: Posterior) -> float | None:
    """log p(y | x), nats, of y in its own units: each row's density moves by scale and transform, eq. (M-141). None
    where the slopes are of rows that are not held."""
    standardised, target = float(post.log_marginal_likelihood()), prepared.scaling.target
    if prepared.read and target.transforms:
        return None
    slopes = target.log_slope(prepared.y[:1]) if prepared.read else target.log_slope(prepared.y)
    return standardised + post.count * float(slopes.mean())


def maximised(outcome: FitOutcome) -> list[tuple[str, str]]:
    """Terms that the fit maximised beside the likelihood, in standard units."""
    log_prior = outcome.fit.log_prior
    if log_prior is None:
        return []
    return [("log prior", f"{log_prior:.4g} nats: the fit maximises the sum of both, under the priors below")]


def evidence_text(outcome: FitOutcome) -> str:
    """The evidence for people, with its standard error where there is no factor to compute it from."""
    post = outcome.fit.posterior
    if outcome.evidence is None:
        whole = post.count == outcome.prepared.count
        if whole and outcome.prepared.read and outcome.prepared.scaling.target.transforms:
            return f"{float(post.log_marginal_likelihood()):.6g} nats at least, of the standardised target"
        return f"not computed, since {outcome.asked.ended} left no time for it"
    error = post.report.standard_error
    spread = "" if error is None else f", with a standard error of {error:.2g}"
    least = " at least" if post.can("bound") is None else ""
    return f"{outcome.evidence:.6g} nats{least}{spread}, of the target in its units"


def scored_words(outcome: FitOutcome) -> str:
    """Words on how the rows were scored."""
    if not outcome.left_out:
        return "held out"
    sampled = outcome.prepared.read and len(outcome.observed) < outcome.prepared.count
    return "leave-one-out of a random sample" if sampled else "leave-one-out"


def outcome_json(outcome: FitOutcome) -> dict[str, Any]:
    """Results as data, for `--json`."""
    options, prepared, report = outcome.options, outcome.prepared, outcome.fit.report
    scores = None if outcome.scores is None else outcome.scores.to_json()
    return {
        "command": "fit",
        "version": flashgp.__version__,
        "table": options.table,
        "target": prepared.encoding.target,
        "inputs": prepared.names,
        "rows": prepared.total,
        "rows_used": prepared.used,
        "rows_fitted": prepared.count,
        "rows_held_out": prepared.used - prepared.count,
        "kernel": options.kernel,
        **prepared.scaling.target.told,
        "seed": options.seed,
        "approximation": prepared.plan.approximation if prepared.read else prepared.settings.approximation,
        "plan": asdict(prepared.plan),
        "log_marginal_likelihood": outcome.evidence,
        "log_marginal_likelihood_standard_error": outcome.fit.posterior.report.standard_error,
        "held_out": None if outcome.left_out else scores,
        "leave_one_out": scores if outcome.left_out else None,
        "verdict": outcome.verdict.to_json(),
        "importance": _importance_json(outcome.importance),
        "parameters": [row.to_json() for row in outcome.parameters],
        "evaluations": len(outcome.fit.history),
        "fit_seconds": fit_seconds(outcome.prepared, outcome.fit),
        "peak_bytes": report.peak_bytes,
        "seconds": outcome.seconds,
        "events": [event.to_json() for event in report.events],
        "interrupted": outcome.fit.interrupted,
        "unfinished": None if outcome.fit.unfinished is None else outcome.fit.unfinished.name,
        "out": options.out,
        "report": options.report,
    }
