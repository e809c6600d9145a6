"""Pictures of a fit by the kind of its target: how good predictions are, and what is expected along inputs."""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np

from flashgp import plots
from flashgp.page import Figure, Notes, PageTable
from flashgp.scores import Answers, ClassAnswers
from flashgp.table.inputs import InputColumn
from flashgp.target_transform import WarpedNormal
from flashgp.targets import Observations

from .outcome import FitOutcome

_WORST = 8  # rows
_MAX_COUNT = 60  # of a rootogram
_POINTS_2D = 40


@singledispatch
def quality_pictures(predicted: Answers, outcome: FitOutcome) -> list[Figure | Notes | PageTable]:
    """Figures of predictions against what was observed. Raises: TypeError for a kind of answers without any."""
    raise TypeError(type(predicted).__name__)


@quality_pictures.register
def _(predicted: WarpedNormal, outcome: FitOutcome) -> list[Figure | Notes | PageTable]:
    observed = outcome.observed
    return [
        Figure.of(
            plots.predicted_observed(observed, predicted, label=outcome.prepared.encoding.target),
            "Predicted against observed values.",
        ),
        Figure.of(
            plots.calibration(observed, predicted), "Calibration: how often central intervals hold the observed value."
        ),
        Figure.of(
            plots.pit_histogram(observed, predicted),
            "Where observed values fall in their predicted distributions; flat is calibrated.",
        ),
    ]


@quality_pictures.register
def _(predicted: ClassAnswers, outcome: FitOutcome) -> list[Figure | Notes | PageTable]:
    pair, labels = (outcome.observed, predicted.probability), predicted.labels
    two = len(labels) == 2
    label = f"{labels[1]}" if two else ""
    curves = [
        (plots.roc(*pair, label=label), f"{label}: found against falsely taken for it, by the threshold."),
        (plots.precision_recall(*pair, label=label), f"{label}: precision against recall, by the threshold."),
    ] if two else []  # fmt: skip
    return [
        Figure.of(plots.reliability(*pair, label=label), "Calibration: do rows come true as often as predicted?"),
        *(Figure.of(ax, caption) for ax, caption in curves),
        Figure.of(plots.confusion(*pair, labels=labels), "Observed by most probable classes, numbers of rows."),
        Notes(["The rows whose observed class was least expected:"]),
        _worst_rows(predicted, outcome),
    ]


@quality_pictures.register
def _(predicted: Observations, outcome: FitOutcome) -> list[Figure | Notes | PageTable]:
    target = outcome.prepared.encoding.target
    observed = outcome.observed
    pair = Figure.of(
        plots.predicted_observed(observed, predicted, label=target), "Predicted means against observed values."
    )
    whole = np.isfinite(observed).all() and (observed % 1.0 == 0.0).all() and observed.min() >= 0.0
    if not whole or not len(observed):
        return [pair]
    most = int(min(observed.max() + 3, _MAX_COUNT))
    expected = [float(np.exp(predicted.log_prob(np.full(len(observed), float(k)))).sum()) for k in range(most + 1)]
    hanging = plots.rootogram(observed, np.array(expected), label=target)
    return [pair, Figure.of(hanging, "How often each count was observed, hanging from how often it was expected.")]


def _worst_rows(predicted: ClassAnswers, outcome: FitOutcome) -> PageTable:
    """The rows whose observed class had the smallest probability."""
    prepared, logs = outcome.prepared, predicted.log_prob(outcome.observed)
    order = np.argsort(logs, kind="stable")[:_WORST]
    x = outcome.scored_x
    names = prepared.names[:4]
    head = ("observed", "its probability", "most probable", *names)
    rows = []
    for row in order:
        cells = [_cell(column, x[row, j]) for j, column in enumerate(prepared.encoding.inputs[: len(names)])]
        observed = predicted.labels[int(outcome.observed[row])]
        rows.append((str(observed), f"{np.exp(logs[row]):.2g}", str(predicted.label[row]), *cells))
    return PageTable(head, rows, (1, *range(3, len(head))))


def _cell(column: InputColumn, value: float) -> str:
    from flashgp.table.matching import shown

    return column.levels[int(value)] if column.kind == "category" else shown(column.kind, value, 4)


def function_pictures(
    outcome: FitOutcome, columns: list[int], labelled: Callable[[InputColumn], str], points: int
) -> list[Figure]:
    """Figures of what the model says along inputs. Args: columns, positions of these; labelled, of an axis."""
    prepared, post, predicted = outcome.prepared, outcome.fit.posterior, outcome.predicted
    inputs, names = prepared.encoding.inputs, prepared.names
    others = ", other inputs at their median." if len(names) > 1 else "."
    labels = predicted.labels if isinstance(predicted, ClassAnswers) else ()

    def along(column: int) -> Any:
        axis: Any = {"x_label": labelled(inputs[column]), "dates": inputs[column].kind == "date", "column": column}
        if isinstance(predicted, WarpedNormal):
            return plots.posterior_1d(
                post, y_label=prepared.encoding.target, scaling=prepared.scaling, points=points, **axis
            )
        y_label = "" if len(labels) == 2 else "probability" if labels else prepared.encoding.target
        return plots.expected_1d(post, prepared.scaling, labels=labels, y_label=y_label, points=points, **axis)

    found = [Figure.of(along(column), f"Along {names[column]}{others}") for column in columns]
    if len(labels) == 2 and len(columns) > 1:
        first, second = columns[:2]
        ax = plots.probability_2d(
            post, prepared.scaling, columns=(first, second), label=str(labels[1]), points=_POINTS_2D,
            names=(labelled(inputs[first]), labelled(inputs[second])),
        )  # fmt: skip
        found.append(Figure.of(ax, f"Over {names[first]} and {names[second]}{others}"))
    return found
