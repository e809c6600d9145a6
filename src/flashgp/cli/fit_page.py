"""Report page of a fit, for someone who decides: the verdict, three figures, how good, what was learned, the data, and
how it was computed at the end."""

import os
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata

import flashgp
from flashgp import plots
from flashgp.foundations.estimate import Measure
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.inference.judgement.verdict import Word
from flashgp.page import Facts, Figure, Notes, Page, PageTable, Part, Preformatted, Section
from flashgp.table.matching import shown

from .after_fit import AFTER_FIT
from .fit_pictures import (
    PICTURES,
    first_picture,
    function_picture,
    importance_cells,
    importance_picture,
    page_axes,
    quality_pictures,
    sliced_inputs,
    terms_picture,
    two_way_pictures,
    worst_rows,
)
from .outcome import FitOutcome, evidence_text, happened, maximised
from .parameters import parameter_table
from .prepared import plan_summary

_MAX_PARAMETERS, _MAX_COLUMNS = 30, 20
_DAYS = 10.0  # dates that spread over more have a mean without a time of day
_NAT = (
    "For those who ask how. Logarithms of densities are in nats, the unit of natural logarithms: one nat less, and the "
    "data are 2.7 times less probable."
)
_EXPLAINED = {
    Measure.VARIANCE: ("{:.2f}", "R²: share of the variance explained"),
    Measure.LOG_LOSS: ("{:.0%}", "less log loss than by the shares of the classes"),
    Measure.SPREAD: ("{:.0%}", "of the squared median deviation explained"),
}
_PACKAGES = ("torch", "numpy", "scipy", "matplotlib")


def fit_page(outcome: FitOutcome) -> Page:
    """The report of a fit. Needs matplotlib."""
    prepared, scores = outcome.prepared, outcome.scores
    target = prepared.encoding.target
    count = len(prepared.names)
    drawn = _drawn(outcome)
    slices = [function_picture(outcome, column) for column in drawn]
    first = [picture for picture in (importance_picture(outcome), *slices[:1]) if picture is not None]
    if scores is not None:
        first = [first_picture(outcome.predicted, outcome), *first]
    return Page(
        title=target,
        lead=f"Predicted from {count} column{'s' * (count > 1)} of {os.path.basename(outcome.options.table)}; "
        f"{prepared.count:,} rows fitted",
        verdict=outcome.verdict.sentence,
        findings=[*map(str, outcome.verdict.findings)],
        highlights=_highlights(outcome),
        glance=first,
        sections=[
            _quality(outcome),
            *_functions(outcome, drawn, slices[1:]),
            _data(outcome),
            _computation(outcome),
        ],
        footer=_versions(),
    )


def _highlights(outcome: FitOutcome) -> list[tuple[str, str]]:
    """The figures that matter most: the share explained, and those of the kind of target; none that are not judged."""
    if outcome.scores is None or outcome.verdict.word is Word.UNJUDGED:
        return []
    explained, measure = outcome.verdict.explained, outcome.verdict.measure
    first: list[tuple[str, str]] = []
    if explained is not None:
        shown, name = _EXPLAINED[measure]
        first = [(shown.format(explained.value).replace("%", " %"), name)]
    return [*first, *outcome.scores.highlights(outcome.prepared.encoding.target)]


def _quality(outcome: FitOutcome) -> Section:
    prepared = outcome.prepared
    title = "How good are the predictions?"
    if outcome.scores is None:
        how = "No rows were held out, and leave-one-out needs a Cholesky factor, which this fit has not."
        if prepared.exact_plan is None or not outcome.fit.posterior.state.by_solves or not outcome.left_out:
            how = f"No rows were scored: {outcome.asked.ended} left no time for it."
        return Section(title, [Notes([how])])
    rows, classes = outcome.scores.rows, bool(prepared.encoding.target_levels)
    how = (
        f"{rows:,} rows are predicted, each from all other rows with the same parameters."
        if outcome.left_out
        else f"{rows:,} rows were held out: they took no part in the fit."
    )
    what = "Predictions are probabilities." if classes else "Intervals are of new observations, noise included."
    return Section(
        title,
        [
            Notes([f"{how} {what}"]),
            Notes([f"Least expected were the observed {'classes' if classes else 'values'} of these rows:"]),
            worst_rows(outcome),
            *quality_pictures(outcome.predicted, outcome),
        ],
    )


def _drawn(outcome: FitOutcome) -> list[int]:
    """The most important inputs along which there is time to draw what is expected."""
    post, deadline = outcome.fit.posterior, outcome.asked.deadline
    return [c for c in sliced_inputs(outcome) if AFTER_FIT.scored(post, PICTURES.points, deadline) == PICTURES.points]


def _functions(outcome: FitOutcome, drawn: list[int], slices: list[Figure]) -> list[Section]:
    """What the model has learned, beyond the first figures; none where they say it all."""
    found, cells = outcome.importance, importance_cells(outcome)
    unfinished = outcome.fit.unfinished
    parts: list[Part] = [] if unfinished is None else [Notes([f"What follows is {unfinished.heading}."])]
    if found is not None and cells is not None:
        how = (
            f"Importance: the values of one input are exchanged between {found.rows:,} rows, which are predicted from "
            f"{found.others:,} others. Inputs that say the same stand in for each other."
        )
        if found.shares is not None:
            how += " Shares are of the variance of the predicted mean, where inputs take their values independently."
        parts += [Notes([how]), cells]
    if len(drawn) < len(sliced_inputs(outcome)):
        ended = outcome.asked.ended
        parts.append(Notes([f"{ended[0].upper()}{ended[1:]} left no time to draw the function along every input."]))
    terms = terms_picture(outcome)
    parts += [*slices, *two_way_pictures(outcome, drawn), *([] if terms is None else [terms])]
    return [Section("What has the model learned?", parts)] if parts else []


def _data(outcome: FitOutcome) -> Section:
    prepared, options = outcome.prepared, outcome.options
    scaling, encoding = prepared.scaling, prepared.encoding
    rows = [("rows in the file", f"{prepared.total:,}"), ("rows used", f"{prepared.used:,}")]
    if prepared.held_out is not None:
        how = f"the last {options.test_last}"
        if options.split is not None:
            how = f"split {options.split}"
        elif options.test_fraction is not None:
            how = f"a share of {options.test_fraction:g} at random, seed {options.seed}"
        rows.append(("rows held out", f"{len(prepared.held_out[1]):,} ({how})"))
    columns = []
    for column, shift, scale in zip(encoding.inputs, scaling.x_shift, scaling.x_scale, strict=True):
        if column.kind == "category":
            levels = ", ".join(column.levels[:8]) + (", ..." if len(column.levels) > 8 else "")
            columns.append((column.name, f"{len(column.levels)} categories: {levels}", "", ""))
        else:
            spread = f"{scale:.4g} {column.unit}".rstrip()
            mean = shown(column.kind, round(shift) if column.kind == "date" and scale >= _DAYS else shift, 4)
            columns.append((column.name, column.kind, mean, spread))
    more = len(columns) - _MAX_COLUMNS
    columns = columns[:_MAX_COLUMNS] + ([(f"and {more:,} more", "", "", "")] if more > 0 else [])
    columns.append((encoding.target, *scaling.target.described))
    table = PageTable(("column", "what it is", "mean", "standard deviation"), columns, (2, 3))
    notes = [*outcome.notes, *outcome.warnings]
    return Section("Data", [Facts(rows), table, *([Notes(notes)] if notes else [])])


def _computation(outcome: FitOutcome) -> Section:
    """Section on the computation: expected beside measured."""
    plan, report, post = outcome.prepared.plan, outcome.fit.report, outcome.fit.posterior.report
    evaluations = max(1, len(outcome.fit.history))
    steps = (report.seconds or 0.0) - (post.seconds or 0.0)
    step = (
        "one evaluation with gradient",
        readable_seconds(plan.fit_step_seconds),
        readable_seconds(steps / evaluations),
    )
    compared = [
        ("peak memory", readable_bytes(plan.peak_bytes), _bytes(report.peak_bytes)),
        *([step] if not plan.approximation else []),  # an approximation evaluates mostly few rows
        ("conditioning on the rows", readable_seconds(plan.seconds), readable_seconds(post.seconds or 0.0)),
        ("the whole fit", plan.fit_text, readable_seconds(report.seconds or 0.0)),
    ]
    facts = [plan_summary(outcome.prepared)[0], ("evaluations", f"{len(outcome.fit.history):,}"), *happened(report)]
    trace = plots.training_trace(outcome.fit.history, ax=page_axes())
    return Section(
        "How it was computed",
        [
            Notes([_NAT]),
            *_model(outcome),
            *([] if outcome.scores is None else [Facts(outcome.scores.lines(outcome.prepared.encoding.target))]),
            Figure.of(trace, "The search: how far the log density of each evaluation was from the best one."),
            Facts(facts),
            PageTable(("", "expected", "happened"), compared),
            *([Notes([str(event) for event in report.events])] if report.events else []),
            Preformatted(shlex.join(["flashgp", *sys.argv[1:]])),
        ],
    )


def _model(outcome: FitOutcome) -> list[Part]:
    prepared = outcome.prepared
    shown_rows = outcome.parameters[:_MAX_PARAMETERS]
    rest = len(outcome.parameters) - len(shown_rows)
    return [
        Facts(
            [
                ("covariance function", prepared.kernel_words),
                ("mean", "constant"),
                ("likelihood", prepared.gp.likelihood.name),
                ("log marginal likelihood", evidence_text(outcome)),
                *maximised(outcome),
            ]
        ),
        PageTable(*parameter_table(shown_rows)),
        *([Notes([f"{rest:,} more parameters are in the model file."])] if rest else []),
    ]


def _bytes(count: int | None) -> str:
    return "not measured" if count is None else readable_bytes(count)


def _versions() -> str:
    def lines() -> Iterator[str]:
        yield f"flashgp {flashgp.__version__}"
        yield f"Python {platform.python_version()}"
        for package in _PACKAGES:
            yield f"{package} {metadata.version(package)}"
        yield platform.platform()

    return ", ".join(lines())
