"""What a fit came to: scores, parameters and figures, for people and as JSON."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import flashgp
from flashgp.foundations.quantities import readable_seconds
from flashgp.foundations.report import Report
from flashgp.inference.fit import Fit
from flashgp.target_transform import WarpedNormal

from .console import Console
from .model import TableModel
from .options import FitOptions
from .parameters import ParameterRow, parameter_rows, parameter_table
from .prepared import Prepared
from .scores import Scores

__all__ = ["FitOutcome", "evidence_text", "happened", "outcome_json", "outcome_of", "say_outcome"]

# Of a report, what people are told beside time and figures of merit; the plan, said before, has the rest.
_HAPPENED = ("relative residual", "error bound", "standard error", "jitter", "peak memory", "compile seconds")
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FitOutcome:
    """All that the report shows.

    Fields:
        options, prepared, fit, model: what was asked for, and what it became.
        scores: None where no rows are held out and there is no factor.
        left_out: whether they are leave-one-out.
        observed, predicted: of the rows scored, in units of the target.
        parameters, seconds, notes, warnings: as shown.
    """

    options: FitOptions
    prepared: Prepared
    fit: Fit
    model: TableModel
    scores: Scores | None
    left_out: bool
    observed: _Numbers
    predicted: WarpedNormal
    parameters: list[ParameterRow]
    seconds: float
    notes: list[str]
    warnings: list[str]


def outcome_of(
    options: FitOptions, prepared: Prepared, result: Fit, model: TableModel, began: float, console: Console
) -> FitOutcome:
    """What a fit of the command line reached, with its scores on held-out rows."""
    scaling = prepared.scaling
    if prepared.test is not None:
        observed = prepared.y[prepared.test]
        predicted = model.predict(prepared.data.x[prepared.test], memory=options.memory).target
    elif result.posterior.factor is None:
        observed = np.empty(0)
        predicted = scaling.predictive(observed, observed)
    else:
        observed = prepared.y[prepared.train]
        left = result.posterior.leave_one_out()
        predicted = scaling.predictive(left.mean.cpu().double().numpy(), left.variance.cpu().double().sqrt().numpy())
    return FitOutcome(
        options=options,
        prepared=prepared,
        fit=result,
        model=model,
        scores=Scores.of(observed, predicted, scaling) if len(observed) else None,
        left_out=prepared.test is None,
        observed=observed,
        predicted=predicted,
        parameters=parameter_rows(result.gp, prepared.names, scaling, prepared.encoding.target),
        seconds=time.perf_counter() - began,
        notes=console.notes,
        warnings=console.warnings,
    )


def happened(report: Report) -> list[tuple[str, str]]:
    """Lines of a report for people: how exact the answer is, and what it took."""
    return [(name, text) for name, text in report.lines() if name in _HAPPENED]


def say_outcome(outcome: FitOutcome, console: Console) -> None:
    """Print what a person wants to know of a fit."""
    report = outcome.fit.report
    seconds = readable_seconds(report.seconds or 0.0)
    console.pairs(
        f"fitted in {seconds}, {len(outcome.fit.history)} evaluations",
        [
            ("log marginal likelihood", f"{evidence_text(outcome)}, of the target in its units"),
            *happened(report),
            ("time", dict(report.lines())["time"]),
            ("whole command", f"{readable_seconds(outcome.seconds)}, with reading and predicting"),
            *(("event", str(event)) for event in report.events),
        ],
    )
    if outcome.scores is not None:
        where = "leave-one-out" if outcome.left_out else "held out"
        console.pairs(f"{where}, {outcome.scores.rows:,} rows", outcome.scores.lines(outcome.prepared.encoding.target))
    console.say("parameters")
    shown = outcome.parameters[:40]
    console.table(*parameter_table(shown))
    if len(shown) < len(outcome.parameters):
        console.say(f"  and {len(outcome.parameters) - len(shown):,} more")


def _log_evidence(outcome: FitOutcome) -> float:
    """log p(y | x), nats, of y in its own units: each row's density moves by scale and transform, eq. (M-141)."""
    post, prepared = outcome.fit.posterior, outcome.prepared
    standardised = float(post.log_marginal_likelihood())
    slopes = prepared.scaling.transform.log_slope(prepared.y[prepared.train])
    return standardised + post.count * float(prepared.scaling.log_density(0.0)) + float(slopes.sum())


def evidence_text(outcome: FitOutcome) -> str:
    """The same for people, with its standard error where there is no factor to compute it from."""
    value = f"{_log_evidence(outcome):.6g} nats"
    error = outcome.fit.posterior.report.standard_error
    return value if error is None else f"{value} with a standard error of {error:.2g}"


def outcome_json(outcome: FitOutcome) -> dict[str, Any]:
    """The same as data, for `--json`."""
    options, prepared, report = outcome.options, outcome.prepared, outcome.fit.report
    scores = None if outcome.scores is None else outcome.scores.to_json()
    return {
        "command": "fit",
        "version": flashgp.__version__,
        "table": options.table,
        "target": prepared.encoding.target,
        "inputs": prepared.names,
        "rows": prepared.table.rows,
        "rows_used": len(prepared.data.rows),
        "rows_fitted": len(prepared.train),
        "rows_held_out": 0 if prepared.test is None else len(prepared.test),
        "kernel": outcome.model.kernel or None,
        "target_transform": prepared.scaling.transform.to_json(),
        "seed": options.seed,
        "plan": asdict(prepared.plan),
        "log_marginal_likelihood": _log_evidence(outcome),
        "log_marginal_likelihood_standard_error": outcome.fit.posterior.report.standard_error,
        "held_out": None if outcome.left_out else scores,
        "leave_one_out": scores if outcome.left_out else None,
        "parameters": [row.to_json() for row in outcome.parameters],
        "evaluations": len(outcome.fit.history),
        "fit_seconds": report.seconds,
        "peak_bytes": report.peak_bytes,
        "seconds": outcome.seconds,
        "events": [event.to_json() for event in report.events],
        "interrupted": outcome.fit.interrupted,
        "out": options.out,
        "report": options.report,
    }
