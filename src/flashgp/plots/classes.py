"""Pictures of classes and counts: reliability, ROC, precision and recall, confusion; what is expected along inputs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.normal import QUANTILE_975, half_width
from flashgp.foundations.quantities import counted
from flashgp.scores import ClassScores

from .axes import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    SKY,
    VERMILLION,
    date_axis,
    empty,
    legend,
    new_axes,
    note,
    percent,
    short,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.inference.posterior import Posterior
    from flashgp.units import Scaling

Array = npt.NDArray[np.float64]
_MAX_SHOWN = 12  # classes in a picture


def class_scores(y: Any, probability: Any) -> ClassScores:
    """Scores of probabilities (n, classes), or of the second of two classes (n,), against codes y (n,).

    Raises: ShapeError, DomainError for what does not fit together.
    """
    codes, p = np.asarray(y, dtype=np.float64), np.asarray(probability, dtype=np.float64)
    p = np.stack([1.0 - p, p], axis=1) if p.ndim == 1 else p
    if codes.ndim != 1 or p.ndim != 2 or len(p) != len(codes):
        raise ShapeError(
            f"`y` must have one code for each row of probabilities (n, classes), got shapes {codes.shape} and "
            f"{p.shape}; pass predict_proba(X) and the codes of its rows"
        )
    kept = np.isfinite(codes) & np.isfinite(p).all(axis=1)
    codes, p = codes[kept], p[kept]
    if ((codes != np.floor(codes)) | (codes < 0) | (codes >= p.shape[1])).any():
        raise DomainError(
            f"`y` must hold codes 0 to {p.shape[1] - 1}, the columns of the probabilities, got {codes.min():g} to "
            f"{codes.max():g}; number the labels in the order of classes_"
        )
    with np.errstate(divide="ignore"):
        return ClassScores(codes.astype(np.int64), np.log(p))


def reliability(y: Any, probability: Any, *, label: str = "", ax: "Axes | None" = None) -> "Axes":
    """Share of rows that are of the second class against its predicted probability, in bins of as many rows each.

    Of more than two classes share of rows whose most probable class was observed. Bars are standard errors times 1.96;
    below the diagonal probabilities are too high.

    Args:
        y: observed classes as codes 0, 1, ..., shape (n,).
        probability: of each class, shape (n, classes), or of the second of two, (n,), such as `predict_proba(X)`.
        label: the class whose probability it is.
        ax: axes to draw on; a new figure's by default.

    Raises:
        ShapeError: for another number of codes than of rows.
        DomainError: for codes that are no columns.
        BackendUnavailableError: without matplotlib.
    Cost: O(n log n).

    Example:
        >>> y, p = np.array([0, 1, 1, 0, 1]), np.array([0.2, 0.7, 0.9, 0.4, 0.6])
        >>> fgp.plots.reliability(y, p, label="good").get_xlabel()
        'predicted probability of good'
    """
    scores, ax = class_scores(y, probability), new_axes(ax)
    what = label or ("the second class" if scores.log_probability.shape[1] == 2 else "the most probable class")
    style(ax, f"predicted probability of {what}", "share of rows where it came true")
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, dashes=(4, 3), zorder=1)
    _unit_square(ax)
    if not scores.rows:
        empty(ax, "no rows with a label")
        return ax
    bins = scores.bins
    ax.errorbar(bins.probability, bins.share, yerr=QUANTILE_975 * bins.spread, color=BLUE, ecolor=SKY, marker="o",
                linewidth=2.0, elinewidth=2.0, label=f"{counted(len(bins.rows), 'bin')} of rows", zorder=3)  # fmt: skip
    note(ax, f"calibration error {bins.error.text()},\nby chance {bins.by_chance:.3g}, {counted(scores.rows, 'row')}")
    ax.text(0.03, 0.80, "too low", transform=ax.transAxes, color=GREY, fontsize="small", va="top")
    ax.text(0.97, 0.34, "too high", transform=ax.transAxes, color=GREY, fontsize="small", ha="right")
    legend(ax, loc="upper left")
    return ax


def roc(y: Any, probability: Any, *, label: str = "", ax: "Axes | None" = None) -> "Axes":
    """True against false positives of the second class, for every threshold of its probability.

    Args:
        y: as of `reliability`.
        probability: as of `reliability`, of two classes.
        label: as of `reliability`.
        ax: as of `reliability`.

    Raises:
        ShapeError: as `reliability`.
        DomainError: as `reliability`.
        BackendUnavailableError: without matplotlib.
    Cost: O(n log n).

    Example:
        >>> y, p = np.array([0, 1, 1, 0, 1]), np.array([0.2, 0.7, 0.9, 0.4, 0.6])
        >>> fgp.plots.roc(y, p).get_ylabel().split()[-1]
        'found'
    """
    scores, ax = class_scores(y, probability), new_axes(ax)
    what = label or "the second class"
    style(ax, "share of the others taken for it", f"share of {what} found")
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, dashes=(4, 3), zorder=1)
    _unit_square(ax)
    if scores.auc is None:
        empty(ax, "needs rows of both classes")
        return ax
    found, wrong = _counts_by_threshold(scores)
    ax.plot(wrong / wrong[-1], found / found[-1], color=BLUE, linewidth=2.0, zorder=3)
    note(ax, f"AUC {scores.auc.text()}, {counted(scores.rows, 'row')}")
    return ax


def precision_recall(y: Any, probability: Any, *, label: str = "", ax: "Axes | None" = None) -> "Axes":
    """Precision against recall of the second class, for every threshold of its probability.

    Args:
        y: as of `reliability`.
        probability: as of `reliability`, of two classes.
        label: as of `reliability`.
        ax: as of `reliability`.

    Raises:
        ShapeError: as `reliability`.
        DomainError: as `reliability`.
        BackendUnavailableError: without matplotlib.
    Cost: O(n log n).

    Example:
        >>> y, p = np.array([0, 1, 1, 0, 1]), np.array([0.2, 0.7, 0.9, 0.4, 0.6])
        >>> fgp.plots.precision_recall(y, p).get_xlabel()
        'share of the second class found (recall)'
    """
    scores, ax = class_scores(y, probability), new_axes(ax)
    what = label or "the second class"
    style(ax, f"share of {what} found (recall)", "share of those taken for it that are (precision)")
    _unit_square(ax)
    if scores.auc is None:
        empty(ax, "needs rows of both classes")
        return ax
    found, wrong = (each[1:] for each in _counts_by_threshold(scores))
    share = float(scores.shares[1])
    ax.axhline(share, color=GREY, linewidth=1.0, dashes=(4, 3), label=f"all taken for it: {share:.1%}", zorder=1)
    ax.plot(found / found[-1], found / (found + wrong), color=BLUE, linewidth=2.0, drawstyle="steps-post", zorder=3)
    legend(ax, loc="lower left")
    return ax


def confusion(y: Any, probability: Any, *, labels: Sequence[Any] = (), ax: "Axes | None" = None) -> "Axes":
    """Rows of each observed class by the class that is most probable; the twelve most frequent classes.

    Args:
        y: as of `reliability`.
        probability: as of `reliability`.
        labels: of the classes; their codes by default.
        ax: as of `reliability`.

    Raises:
        ShapeError: as `reliability`.
        DomainError: as `reliability`.
        BackendUnavailableError: without matplotlib.

    Example:
        >>> y, p = np.array([0, 1, 1, 0, 1]), np.array([0.2, 0.7, 0.9, 0.4, 0.6])
        >>> fgp.plots.confusion(y, p, labels=("bad", "good")).get_xlabel()
        'most probable class'
    """
    scores, ax = class_scores(y, probability), new_axes(ax)
    style(ax, "most probable class", "observed class", grid="")
    count = scores.log_probability.shape[1]
    if not scores.rows:
        empty(ax, "no rows with a label")
        return ax
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (scores.codes, scores.log_probability.argmax(axis=1)), 1)
    shown = np.sort(np.argsort(-scores.shares, kind="stable")[:_MAX_SHOWN])
    names = short([str(one) for one in labels] or [str(code) for code in range(count)])
    cells = table[np.ix_(shown, shown)]
    share = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
    ax.imshow(share, cmap="Blues", vmin=0.0, vmax=1.25, aspect="auto")
    for (row, column), value in np.ndenumerate(cells):
        ax.text(column, row, f"{value:,}", ha="center", va="center", color=INK, fontsize="small")
    ax.set_xticks(range(len(shown)), [names[k] for k in shown], rotation=30 if len(shown) > 3 else 0)
    ax.set_yticks(range(len(shown)), [names[k] for k in shown])
    if len(shown) < count:
        note(ax, f"{len(shown)} of {count} classes drawn")
    return ax


def rootogram(y: Any, expected: Any, *, label: str = "", ax: "Axes | None" = None) -> "Axes":
    """Roots of how often each count was observed, hanging from roots of how often it was expected.

    Bars that do not reach the axis, or cross it, are counts that are rarer or more frequent than the model says; the
    band holds 95 of 100 of them if it is right (by the root's constant variance of 1/4).

    Args:
        y: observed counts, shape (n,).
        expected: how many of the n rows the model expects at 0, 1, ..., shape (counts,).
        label: what is counted.
        ax: as of `reliability`.

    Raises:
        ShapeError: for expected numbers that are no vector.
        BackendUnavailableError: without matplotlib.
    Source: Tukey (1977); Kleiber & Zeileis (2016), Visualizing count data regressions using rootograms.

    Example:
        >>> fgp.plots.rootogram([0, 0, 1, 2], np.array([1.8, 1.2, 0.6, 0.4]), label="visits").get_xlabel()
        'visits'
    """
    wanted = np.asarray(expected, dtype=np.float64)
    if wanted.ndim != 1:
        raise ShapeError(f"`expected` must have shape (counts,), one number for each count, got {wanted.shape}")
    counts = np.asarray(y, dtype=np.float64)
    seen = np.bincount(counts[np.isfinite(counts)].astype(np.int64), minlength=len(wanted))[: len(wanted)]
    ax = new_axes(ax)
    style(ax, label or "count", "root of the number of rows", grid="y")
    at, roots = np.arange(len(wanted)), np.sqrt(wanted)
    ax.bar(
        at, np.sqrt(seen), bottom=roots - np.sqrt(seen), width=0.85, color=SKY, alpha=0.7, label="observed", zorder=2
    )
    ax.plot(at, roots, color=VERMILLION, linewidth=1.8, marker="o", markersize=3, label="expected", zorder=3)
    ax.axhspan(-0.5 * QUANTILE_975, 0.5 * QUANTILE_975, color=GREY, alpha=0.15, linewidth=0, zorder=1)
    ax.axhline(0.0, color=INK, linewidth=0.8, zorder=4)
    legend(ax, loc="upper right")
    return ax


def expected_1d(
    posterior: "Posterior",
    scaling: "Scaling",
    *,
    column: int = 0,
    labels: Sequence[Any] = (),
    level: float = 0.95,
    points: int = 300,
    x_label: str = "",
    y_label: str = "",
    dates: bool = False,
    ax: "Axes | None" = None,
) -> "Axes":
    """What is expected along one column of x: the probability of a class or the mean of a number, others at medians.

    The band is of the function: what is expected where f is at the ends of its central interval. Of more than two
    classes each has a line, and no band.

    Args:
        posterior: of a likelihood that is no noise added to f.
        scaling: of x, and the target, as `TableModel.scaling`.
        column: along which to look, from 0.
        labels: of the classes; empty of numbers.
        level: probability of the band.
        points: places along the column.
        x_label: with units.
        y_label: what is expected.
        dates: whether the column holds days since 1970-01-01, which are then shown as dates.
        ax: as of `reliability`.

    Raises:
        BackendUnavailableError: without matplotlib.
    Cost: a prediction at `points` places.

    Example:
        >>> x = np.linspace(-2.0, 2.0, 30)
        >>> model = fgp.TableModel().fit({"x": x, "warm": x + np.sin(9.0 * x) > 0.0}, target="warm")
        >>> fgp.plots.expected_1d(model.posterior, model.scaling, labels=(False, True), x_label="x").get_ylabel()
        'probability of True'
    """
    import torch

    kept = posterior.state.training_table
    place = kept.x.detach().median(dim=0).values.cpu().double().numpy()
    x = kept.x[:, column].detach().cpu().double().numpy()
    line = np.linspace(float(x.min()), float(x.max()), points)
    grid = np.tile(place, (points, 1))
    grid[:, column] = line
    like, likelihood = posterior.state.like[0], posterior.state.prior.likelihood
    with torch.no_grad():
        prediction = posterior.predict(torch.as_tensor(grid, dtype=like.dtype, device=like.device))
        several = len(labels) > 2
        mean = prediction.probability if labels else prediction.observation_mean
        lines = np.asarray(mean.double().cpu()).reshape(points, -1)
        half = half_width(level) * prediction.variance.double().sqrt()
        ends = [prediction.mean.double() + side * half for side in (-1.0, 1.0)]
        bands = [] if several else [likelihood.predictive(f, torch.zeros_like(f)).mean.cpu().numpy() for f in ends]
    unit = 1.0 if labels else scaling.target.sizes[1]
    line = line * scaling.x_scale[column] + scaling.x_shift[column]
    ax = new_axes(ax, (6.4, 4.0))
    style(ax, x_label or f"column {column + 1} of x", y_label or (f"probability of {labels[-1]}" if labels else "mean"))
    if dates:
        line = line + date_axis(ax, float(line[0]), float(line[-1]))
    if bands:
        ax.fill_between(line, unit * bands[0], unit * bands[1], color=BLUE, alpha=0.25, linewidth=0,
                        label=f"{percent(level)}, function", zorder=2)  # fmt: skip
    for k, values in enumerate(lines.T[: len(COLOURS)]):
        ax.plot(line, unit * values, color=COLOURS[k], linewidth=2.0, zorder=3,
                label=str(labels[k]) if several else "expected")  # fmt: skip
    if labels:
        ax.set_ylim(0.0, 1.0)
    ax.set_xlim(line[0], line[-1])
    legend(ax, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, borderaxespad=0.2)
    return ax


def probability_2d(
    posterior: "Posterior",
    scaling: "Scaling",
    *,
    columns: tuple[int, int] = (0, 1),
    label: str = "the second class",
    names: tuple[str, str] = ("column 1 of x", "column 2 of x"),
    points: int = 60,
    rows: int = 600,
    ax: "Axes | None" = None,
) -> "Axes":
    """The probability of the second of two classes over two columns of x, others at their medians, with the rows.

    Args:
        posterior: of two classes.
        scaling: of x, as `TableModel.scaling`.
        columns: along which to look, from 0.
        label: the class.
        names: of the columns.
        points: places along each column.
        rows: drawn at most.
        ax: as of `reliability`.

    Raises:
        BackendUnavailableError: without matplotlib.
    Cost: a prediction at the square of `points`.

    Example:
        >>> u = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 2))
        >>> table = {"u": u[:, 0], "v": u[:, 1], "in": (u**2).sum(1) + 0.2 * np.sin(40.0 * u[:, 0]) < 0.6}
        >>> model = fgp.TableModel().fit(table, target="in")
        >>> ax = fgp.plots.probability_2d(model.posterior, model.scaling, names=("u", "v"), points=8)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('u', 'v')
    """
    import torch

    from .axes import shown_rows

    kept, (first, second) = posterior.state.training_table, columns
    x, y = (values.detach().cpu().double().numpy() for values in (kept.x, kept.y))
    ends = [np.linspace(float(x[:, j].min()), float(x[:, j].max()), points) for j in columns]
    grid = np.tile(np.median(x, axis=0), (points * points, 1))
    across, up = np.meshgrid(*ends)
    grid[:, first], grid[:, second] = across.reshape(-1), up.reshape(-1)
    like = posterior.state.like[0]
    with torch.no_grad():
        prediction = posterior.predict(torch.as_tensor(grid, dtype=like.dtype, device=like.device))
        p = prediction.probability.double().cpu().numpy().reshape(points, points)

    def own(values: Any, j: int) -> Any:
        return values * scaling.x_scale[j] + scaling.x_shift[j]

    ax = new_axes(ax, (6.4, 4.4))
    style(ax, *names, grid="")
    levels = np.linspace(0.0, 1.0, 11)
    filled = ax.contourf(own(ends[0], first), own(ends[1], second), p, levels=levels, cmap="RdBu", alpha=0.55)
    ax.contour(own(ends[0], first), own(ends[1], second), p, levels=[0.5], colors=INK, linewidths=1.2)
    ax.figure.colorbar(filled, ax=ax, label=f"probability of {label}", ticks=[0.0, 0.5, 1.0])
    some = shown_rows(len(x), rows)
    for code, colour, marker in ((0, VERMILLION, "v"), (1, BLUE, "o")):
        these = some[y[some] == code]
        ax.scatter(own(x[these, first], first), own(x[these, second], second), s=14, color=colour, marker=marker,
                   edgecolors="white", linewidths=0.4, zorder=3)  # fmt: skip
    if x.shape[1] > 2:
        note(ax, "other inputs at their median", "upper right")
    return ax


def _counts_by_threshold(scores: ClassScores) -> tuple[Array, Array]:
    """Rows of the second class, and of the first, above ever lower thresholds, from none of both."""
    odds = scores.log_probability[:, 1] - scores.log_probability[:, 0]
    order = np.argsort(-odds, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(odds[order])), len(order) - 1)  # of ties
    found = np.cumsum(scores.codes[order] == 1)[ends]
    return np.append(0.0, found), np.append(0.0, ends + 1 - found)


def _unit_square(ax: "Axes") -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.02)
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
