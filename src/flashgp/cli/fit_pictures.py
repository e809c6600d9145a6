"""Pictures of a fit by the kind of its target: how good predictions are, and what is expected along inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashgp import plots
from flashgp.drawing import PAGE_SIZE, VERMILLION
from flashgp.foundations.events import EventKind
from flashgp.page import Figure, PageTable
from flashgp.plots.axes import date_axis, legend_above, new_axes
from flashgp.scores import Answers, ClassAnswers, NumberAnswers
from flashgp.table.inputs import InputColumn
from flashgp.table.matching import shown
from flashgp.target_transform import WarpedMixture, WarpedNormal
from flashgp.targets import Number, Observations

from .outcome import FitOutcome, scored_sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class PictureSettings:
    """Settings of the pictures of a fit.

    Args:
        slices: inputs along which the model is drawn, at most.
        points: places along an input; points_2d, along each of two.
        importance: inputs in that picture, at most.
        worst: rows in the table of those least expected; inputs, their columns in it.
        most_count: the largest count of a rootogram.
        inputs_in_table: inputs in the table of their importance.
        together: share of the variance that two inputs have together, beyond what both have alone, from which they are
            drawn together; pairs, of them, at most.
        term_size: inches of the picture of each term over time.
        forecast: share of the range of a single input of dates that is drawn beyond its end.
    """

    slices: int = 4
    points: int = 150
    points_2d: int = 40
    importance: int = 8
    worst: int = 8
    inputs: int = 4
    most_count: int = 60
    inputs_in_table: int = 12
    together: float = 0.05
    pairs: int = 2
    forecast: float = 0.15
    term_size: tuple[float, float] = (4.0, 1.4)


PICTURES = PictureSettings()


def page_axes() -> "Axes":
    """Axes of a figure in the size of a page."""
    return new_axes(None, PAGE_SIZE)


# -- how good ----------------------------------------------------------------------------------------------------------
@singledispatch
def first_picture(predicted: Answers, outcome: FitOutcome) -> Figure:
    """What is predicted beside what was observed. Raises: TypeError for a kind of answers without a picture."""
    raise TypeError(type(predicted).__name__)


@first_picture.register
def _(predicted: NumberAnswers, outcome: FitOutcome) -> Figure:
    ax = plots.predicted_observed(outcome.observed, predicted, label=outcome.prepared.encoding.target, ax=page_axes())
    return Figure.of(ax, "Predicted against observed values; the nearer to the diagonal, the better.")


@first_picture.register
def _(predicted: ClassAnswers, outcome: FitOutcome) -> Figure:
    ax = plots.confusion(outcome.observed, predicted.probability, labels=predicted.labels, ax=page_axes())
    return Figure.of(ax, "Rows of each observed class by the class that was predicted; right ones on the diagonal.")


@singledispatch
def quality_pictures(predicted: Answers, outcome: FitOutcome) -> list[Figure]:
    """More figures of predictions against what was observed. Raises: TypeError as `first_picture`."""
    raise TypeError(type(predicted).__name__)


@quality_pictures.register
def _(predicted: WarpedNormal | WarpedMixture, outcome: FitOutcome) -> list[Figure]:
    ax = plots.calibration(outcome.observed, predicted, ax=page_axes())
    return [
        *_residuals(predicted, outcome),
        Figure.of(ax, "How often intervals hold the observed value: above the diagonal they are too wide."),
    ]


@quality_pictures.register
def _(predicted: ClassAnswers, outcome: FitOutcome) -> list[Figure]:
    pair, labels = (outcome.observed, predicted.probability), predicted.labels
    two = len(labels) == 2
    label = f"{labels[1]}" if two else ""
    calibrated = plots.reliability(*pair, label=label, ax=page_axes())
    found = [Figure.of(calibrated, "Do rows come true as often as predicted? On the diagonal they do.")]
    if two:
        curve = plots.roc(*pair, label=label, ax=page_axes())
        found.append(Figure.of(curve, f"{label}: share found against share falsely taken for it, by the threshold."))
        curve = plots.precision_recall(*pair, label=label, ax=page_axes())
        found.append(Figure.of(curve, f"{label}: share of those taken for it that are, against share found."))
    return found


@quality_pictures.register
def _(predicted: Observations, outcome: FitOutcome) -> list[Figure]:
    observed, pictures = outcome.observed, _residuals(predicted, outcome)
    whole = len(observed) and (observed % 1.0 == 0.0).all() and observed.min() >= 0.0
    if not whole:
        return pictures
    most = int(min(observed.max() + 3, PICTURES.most_count))
    expected = [float(np.exp(predicted.log_prob(np.full(len(observed), float(k)))).sum()) for k in range(most + 1)]
    hanging = plots.rootogram(observed, np.array(expected), label=outcome.prepared.encoding.target, ax=page_axes())
    return [
        *pictures, Figure.of(hanging, "How often each count was observed, hanging from how often it was expected.")
    ]  # fmt: skip


def _residuals(predicted: NumberAnswers, outcome: FitOutcome) -> list[Figure]:
    """Errors against predictions, and over time where an input is time, or else over the rows where they say more."""
    observed, encoding = outcome.observed, outcome.prepared.encoding
    target, time = encoding.target, encoding.time_position
    found = [
        Figure.of(
            plots.residuals(observed, predicted, label=target, ax=page_axes()),
            "Errors against predictions; means away from zero are structure that the model has not learned.",
        )
    ]
    if time is not None:
        column = encoding.inputs[time]
        ax = plots.residuals(
            observed, predicted, against=outcome.scored_x[:, time], x_label=axis_label(column),
            dates=column.kind == "date", ax=page_axes(),
        )  # fmt: skip
        found.append(Figure.of(ax, f"Errors over {column.name}; a wave or a trend is not learned."))
    elif _order_matters(outcome) and (places := scored_places(outcome)) is not None:
        numbers, of = places
        ax = plots.residuals(observed, predicted, against=numbers, x_label=f"{of} of the table", ax=page_axes())
        found.append(Figure.of(ax, f"Errors in the order of the table: neighbouring {of}s err alike."))
    return found


def _order_matters(outcome: FitOutcome) -> bool:
    """True if errors of neighbouring rows are alike, as the verdict has found."""
    return any(event.kind is EventKind.ORDER_LEFT for event in outcome.verdict.findings)


# -- the worst rows ----------------------------------------------------------------------------------------------------
def scored_places(outcome: FitOutcome) -> tuple[npt.NDArray[np.int64], str] | None:
    """Numbers of the scored rows in the table, and what they count; None of rows that are read."""
    places = outcome.prepared.places
    if places is None:
        return None
    numbers = places.fitted if outcome.left_out else places.held_out
    if len(outcome.observed) < len(numbers):
        numbers = numbers[scored_sample(len(numbers), len(outcome.observed), outcome.options.seed)]
    return numbers, places.of


def worst_rows(outcome: FitOutcome) -> PageTable:
    """The rows whose observed value or class was least expected, with their most important inputs."""
    predicted, observed = outcome.predicted, outcome.observed
    order = np.argsort(predicted.log_prob(observed), kind="stable")[: PICTURES.worst]
    places = scored_places(outcome)
    of, numbers = ("", None) if places is None else (places[1], places[0])
    answers, head, numeric = _answer_cells(predicted, observed, order)
    columns = important_inputs(outcome)[: PICTURES.inputs]
    inputs = outcome.prepared.encoding.inputs
    rows = []
    for place, row in enumerate(order):
        cells = [_cell(inputs[j], float(outcome.scored_x[row, j])) for j in columns]
        rows.append((*([] if numbers is None else [f"{numbers[row]}"]), *answers[place], *cells))
    shift = 0 if numbers is None else 1
    first = shift + len(head)
    right = [*range(shift), *(shift + k for k in numeric)]
    right += [first + k for k, j in enumerate(columns) if inputs[j].kind != "category"]
    return PageTable((*([of] * shift), *head, *(inputs[j].name for j in columns)), rows, right)


def _answer_cells(
    predicted: Answers, observed: npt.NDArray[np.float64], order: npt.NDArray[np.int64]
) -> tuple[list[tuple[str, ...]], tuple[str, ...], tuple[int, ...]]:
    """Cells of these rows on what was observed and predicted, their heads, and which are numbers."""
    if isinstance(predicted, ClassAnswers):
        chance = np.exp(predicted.log_prob(observed))
        cells: list[tuple[str, ...]] = [
            (str(predicted.labels[int(observed[row])]), f"{chance[row]:.2g}", str(predicted.label[row]))
            for row in order
        ]
        return cells, ("observed", "its probability", "predicted"), (1,)
    assert isinstance(predicted, NumberAnswers)
    mean, (lower, upper) = predicted.mean, predicted.interval(0.95)
    return (
        [(f"{observed[row]:.4g}", f"{mean[row]:.4g}", f"{lower[row]:.4g} to {upper[row]:.4g}") for row in order],
        ("observed", "predicted", "95 % interval"),
        (0, 1, 2),
    )


def _cell(column: InputColumn, value: float) -> str:
    return column.levels[int(value)] if column.kind == "category" else shown(column.kind, value, 4)


# -- what is expected along inputs -------------------------------------------------------------------------------------
def axis_label(column: InputColumn) -> str:
    """The name of an input, with the unit of what an axis counts; a date has none there."""
    return f"{column.name} ({column.unit})" if column.unit and column.kind != "date" else column.name


def important_inputs(outcome: FitOutcome) -> Sequence[int]:
    """Inputs, the most important first, in the order of the table where nothing says which."""
    found = outcome.importance
    return range(len(outcome.prepared.names)) if found is None else found.order


def sliced_inputs(outcome: FitOutcome) -> list[int]:
    """The inputs along which the model is drawn: the most important ones, those whose interval holds zero not."""
    found = outcome.importance
    order = list(important_inputs(outcome))[: PICTURES.slices]
    if found is None:
        return order
    low = found.growth_interval()[0]
    return [j for place, j in enumerate(order) if place == 0 or float(low[j]) > 0.0]


def importance_picture(outcome: FitOutcome) -> Figure | None:
    """How much worse rows are predicted without each input; None where nothing says."""
    if outcome.importance is None:
        return None
    unit = f"in units of {outcome.prepared.encoding.target}"
    ax = plots.importance(outcome.importance, unit=unit, rows=PICTURES.importance, ax=page_axes())
    return Figure.of(ax, "Importance: how much worse rows are predicted without what an input says.")


def function_picture(outcome: FitOutcome, column: int) -> Figure:
    """What the model expects along an input, others at typical values: a curve, or a point for each category."""
    prepared, post, predicted = outcome.prepared, outcome.fit.posterior, outcome.predicted
    found = prepared.encoding.inputs[column]
    labels = predicted.labels if isinstance(predicted, ClassAnswers) else ()
    y_label = f"probability of {labels[1]}" if len(labels) == 2 else "probability" if labels else ""
    common: Any = {"column": column, "at": _typical(outcome), "y_label": y_label or prepared.encoding.target,
                   "scaling": prepared.scaling, "ax": page_axes()}  # fmt: skip
    if found.kind == "category":
        ax = plots.by_category(post, levels=found.levels, labels=labels, **common)
        return Figure.of(ax, f"By {found.name}, with numbers of rows{_others(outcome)}")
    common |= {"x_label": axis_label(found), "dates": found.kind == "date", "points": PICTURES.points}
    if not isinstance(predicted, WarpedNormal | WarpedMixture):
        ax = plots.expected_1d(post, labels=labels, **common)
        return Figure.of(ax, f"Along {found.name}{_others(outcome)}")
    if len(prepared.names) > 1 or found.kind != "date":
        return Figure.of(plots.posterior_1d(post, samples=0, **common), f"Along {found.name}{_others(outcome)}")
    return _forecast(outcome, common)


def _forecast(outcome: FitOutcome, common: dict[str, Any]) -> Figure:
    """A single input of dates, drawn beyond the end of the table."""
    prepared = outcome.prepared
    x = prepared.x if prepared.held_out is None else np.concatenate([prepared.x, prepared.held_out[0]])
    low, high = float(x.min()), float(x.max())
    ends = np.array([low, high + PICTURES.forecast * (high - low)])
    first, last = prepared.scaling.x(ends[:, None])[:, 0].tolist()
    ax = plots.posterior_1d(outcome.fit.posterior, samples=0, x_range=(first, last), **common)
    if prepared.held_out is not None:
        later, observed = prepared.held_out[0][:, 0], prepared.held_out[1]
        moved = date_axis(ax, float(ends[0]), float(ends[1]))
        ax.scatter(
            later + moved, observed, s=10, color=VERMILLION, marker="D", linewidths=0, label="held out", zorder=6
        )
        legend_above(ax)
    return Figure.of(ax, f"Along {prepared.names[0]}, and on beyond the last date of the table.")


def terms_picture(outcome: FitOutcome) -> Figure | None:
    """The terms of the covariance function over time, such as trend and season, where that is the only input."""
    prepared, post = outcome.prepared, outcome.fit.posterior
    target = prepared.scaling.target
    column = prepared.encoding.inputs[0]
    if len(prepared.names) > 1 or column.kind not in ("date", "time") or post.can("components") is not None:
        return None
    if len(post.components) < 2 or not isinstance(target, Number) or not target.linear:
        return None
    axes = plots.components(
        post, x_label=axis_label(column), dates=column.kind == "date", scaling=prepared.scaling, size=PICTURES.term_size
    )
    return Figure.of(axes[0], f"What {prepared.encoding.target} is made of: the terms of the model add up to it.")


def two_way_pictures(outcome: FitOutcome, drawn: Sequence[int]) -> list[Figure]:
    """What the model expects over inputs that act together, beyond what each says alone; of classes over the first two
    numbers of `drawn` where there are none such."""
    inputs, found = outcome.prepared.encoding.inputs, outcome.importance
    pairs: list[tuple[int, int]] = []
    if found is not None and found.shares is not None:
        shares = found.shares
        strong = [k for k in range(len(shares.pairs)) if float(shares.together[k]) > PICTURES.together]
        strong.sort(key=lambda k: -float(shares.together[k]))
        pairs = [shares.pairs[k] for k in strong[: PICTURES.pairs]]
    if isinstance(outcome.predicted, ClassAnswers) and not pairs:
        numbers = [j for j in drawn if inputs[j].kind not in ("category", "date")]
        pairs = [(numbers[0], numbers[1])] if len(numbers) > 1 else []
    pictures = (_two_way(outcome, pair) for pair in pairs)
    return [picture for picture in pictures if picture is not None]


def _two_way(outcome: FitOutcome, pair: tuple[int, int]) -> Figure | None:
    """Over two inputs, a category as lines; None of two categories."""
    prepared, predicted, inputs = outcome.prepared, outcome.predicted, outcome.prepared.encoding.inputs
    # A category has lines, a date is along the picture.
    first, second = sorted(pair, key=lambda j: (inputs[j].kind == "category", inputs[j].kind != "date"))
    if inputs[first].kind == "category":
        return None
    labels = predicted.labels if isinstance(predicted, ClassAnswers) else ()
    categories = inputs[second].kind == "category"
    what = ""
    common: Any = {"columns": (first, second), "at": _typical(outcome), "points": PICTURES.points_2d,
                   "names": (axis_label(inputs[first]), axis_label(inputs[second])), "ax": page_axes()}  # fmt: skip
    post, scaling = outcome.fit.posterior, prepared.scaling
    if labels and not categories and inputs[first].kind != "date":
        ax = plots.probability_2d(post, scaling, labels=labels, **common)
        what = ", the most probable class: the deeper, the surer"
    else:
        y_label = "" if labels else prepared.encoding.target
        ax = plots.interaction(
            post, scaling, levels=inputs[second].levels if categories else (), labels=labels,
            dates=inputs[first].kind == "date", y_label=y_label, **common,
        )  # fmt: skip
    return Figure.of(ax, f"Over {inputs[first].name} and {inputs[second].name}{what}{_others(outcome)}")


def importance_cells(outcome: FitOutcome) -> PageTable | None:
    """The most important inputs with what they say; None where nothing is known."""
    found = outcome.importance
    if found is None:
        return None
    low, high = (end.tolist() for end in found.growth_interval())
    shares, growth = found.shares, found.growth.tolist()
    rows = []
    for j in found.order[: PICTURES.inputs_in_table]:
        of_variance = [] if shares is None else shares.cells(j)
        rows.append([found.names[j], f"{growth[j]:.3g}", f"{low[j]:.3g} to {high[j]:.3g}", *of_variance])
    more = len(found.names) - len(rows)
    if more:
        rows.append([f"and {more:,} more", *[""] * (len(rows[0]) - 1)])
    head = ["input", f"{found.measure} grows by", "95 % interval"]
    head += [] if shares is None else ["of the variance alone", "with others"]
    return PageTable(head, rows, range(1, len(head)))


def _others(outcome: FitOutcome) -> str:
    many = len(outcome.prepared.names) > 1
    return "; other inputs at their median or most frequent value." if many else "."


def _typical(outcome: FitOutcome) -> npt.NDArray[np.float64]:
    """Medians, of categories the most frequent, in the units of the posterior's x."""
    x = outcome.fit.posterior.state.training_table.x.detach().double().numpy(force=True)
    place = np.median(x, axis=0)
    for j in outcome.prepared.encoding.category_positions:
        values, counts = np.unique(x[:, j], return_counts=True)
        place[j] = values[counts.argmax()]
    return place
