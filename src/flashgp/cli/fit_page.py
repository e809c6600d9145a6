"""Report page of a fit: data, figures of merit, model, functions, plan against what happened, versions."""

import platform
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata

import flashgp
from flashgp import plots
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.page import Facts, Figure, Notes, Page, PageTable, Preformatted, Section
from flashgp.table.inputs import InputColumn
from flashgp.table.matching import shown

from .after_fit import AFTER_FIT
from .fit_pictures import function_pictures, quality_pictures
from .outcome import FitOutcome, evidence_text, happened, maximised, scored_words
from .parameters import parameter_table
from .prepared import plan_summary

_MAX_PARAMETERS = 200
_SLICES, _POINTS = 2, 300  # functions along the most important inputs, at so many points
_DAYS = 10.0  # dates that spread over more have a mean without a time of day
_WHAT = {
    False: "Predictions and intervals are of new observations, noise included.",
    True: "Predictions are probabilities of classes.",
}
_PACKAGES = ("torch", "numpy", "scipy", "matplotlib")


def fit_page(outcome: FitOutcome) -> Page:
    """The report of a fit. Needs matplotlib."""
    prepared, scores = outcome.prepared, outcome.scores
    target = prepared.encoding.target
    where = scored_words(outcome)
    highlights = []
    if scores is not None:
        highlights = [
            *scores.highlights(where, target),
            (f"{scores.rows:,}", f"rows {'predicted from all others' if outcome.left_out else 'held out'}"),
        ]
    count = len(prepared.names)
    return Page(
        title=f"{target}: Gaussian process {'classification' if prepared.encoding.target_levels else 'regression'}",
        lead=f"{outcome.options.table}, {prepared.count:,} rows fitted on {count} input{'s' * (count > 1)}",
        highlights=highlights,
        sections=[
            _quality(outcome),
            _functions(outcome),
            _model(outcome),
            _data(outcome),
            _computation(outcome),
        ],
        footer=_versions(),
    )


def _quality(outcome: FitOutcome) -> Section:
    prepared = outcome.prepared
    target = prepared.encoding.target
    trace = Figure.of(plots.training_trace(outcome.fit.history), "The fit: each evaluation's distance to the best.")
    if outcome.scores is None:
        how = "No rows were held out, and leave-one-out needs a Cholesky factor, which this fit has not."
        if prepared.exact_plan is None or not outcome.fit.posterior.state.by_solves or not outcome.left_out:
            how = "No rows were scored: the time limit left no time for it."
        return Section("Are the predictions right?", [Notes([how]), trace])
    how = (
        f"{'Each of these rows' if prepared.held_out is not None or prepared.exact_plan is None else 'Every row'} is "
        "predicted from all other rows with the same parameters."
        if outcome.left_out
        else "The rows held out took no part in the fit or in the standardisation."
    )
    return Section(
        "Are the predictions right?",
        [
            Notes([how, _WHAT[bool(prepared.encoding.target_levels)]]),
            Facts(outcome.scores.lines(target)),
            *quality_pictures(outcome.predicted, outcome),
            trace,
        ],
    )


def _functions(outcome: FitOutcome) -> Section:
    post = outcome.fit.posterior
    wanted = _most_important(outcome)
    drawn = [c for c in wanted if AFTER_FIT.scored(post, _POINTS, outcome.asked.deadline) == _POINTS]
    parts = function_pictures(outcome, drawn, _labelled, _POINTS)
    missing = [Notes(["The time limit left no time to draw the function along every input."])]
    unfinished = outcome.fit.unfinished
    whose = [] if unfinished is None else [Notes([f"What follows is {unfinished.heading}."])]
    return Section(
        "What has the model learned?",
        [*whose, *_importance(outcome), *parts, *(missing if len(drawn) < len(wanted) else [])],
    )


def _labelled(column: InputColumn) -> str:
    """The name of an input, with the unit of what an axis counts; a date has none there."""
    return f"{column.name} ({column.unit})" if column.unit and column.kind != "date" else column.name


def _importance(outcome: FitOutcome) -> list[Notes | Figure | PageTable]:
    found, encoding = outcome.importance, outcome.prepared.encoding
    if found is None:
        return []
    how = (
        f"Importance: the values of one input are exchanged between {found.rows:,} rows, which are predicted from "
        f"{found.others:,} others with the same parameters. Inputs that say the same stand in for each other."
    )
    picture = Figure.of(
        plots.importance(found, unit=f"in units of {encoding.target}"),
        "Importance: how much worse rows are predicted without what an input says, with 95 % intervals.",
    )
    return [Notes([how]), picture]


def _most_important(outcome: FitOutcome) -> list[int]:
    """Numeric inputs, the most important first, in the order of the table where nothing says which."""
    codes, found = outcome.prepared.encoding.category_positions, outcome.importance
    order = range(len(outcome.prepared.names)) if found is None else found.order
    return [j for j in order if j not in codes][:_SLICES]


def _model(outcome: FitOutcome) -> Section:
    prepared = outcome.prepared
    shown = outcome.parameters[:_MAX_PARAMETERS]
    rest = len(outcome.parameters) - len(shown)
    return Section(
        "Model",
        [
            Facts(
                [
                    ("covariance function", prepared.kernel_words),
                    ("mean", "constant"),
                    ("likelihood", prepared.gp.likelihood.name),
                    ("log marginal likelihood", evidence_text(outcome)),
                    *maximised(outcome),
                ]
            ),
            PageTable(*parameter_table(shown)),
            *([Notes([f"{rest:,} more parameters are in the model file."])] if rest else []),
        ],
    )


def _data(outcome: FitOutcome) -> Section:
    prepared, options = outcome.prepared, outcome.options
    scaling, encoding = prepared.scaling, prepared.encoding
    rows = [("rows in the file", f"{prepared.total:,}"), ("rows used", f"{prepared.used:,}")]
    if prepared.held_out is not None:
        how = (
            f"split {options.split}" if options.split is not None else f"{options.test_fraction:g}, seed {options.seed}"
        )
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
    return Section(
        "How it was computed",
        [
            Facts(facts),
            PageTable(("", "expected", "happened"), compared, (1, 2)),
            *([Notes([str(event) for event in report.events])] if report.events else []),
            Preformatted(shlex.join(["flashgp", *sys.argv[1:]])),
        ],
    )


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
