"""Pictures of classes and counts: reliability, ROC, precision and recall, confusion, rootogram."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashgp.drawing import BLUE, GREY, INK, SKY, VERMILLION
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.normal import QUANTILE_975
from flashgp.foundations.quantities import counted
from flashgp.scores import ClassScores

from .axes import SMALL, empty, legend, new_axes, note, short, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    ax.text(0.03, 0.80, "too low", transform=ax.transAxes, color=GREY, fontsize=SMALL, va="top")
    ax.text(0.97, 0.34, "too high", transform=ax.transAxes, color=GREY, fontsize=SMALL, ha="right")
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
    style(ax, f"share of {what} found (recall)", "share right (precision)")
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
    from matplotlib.patches import Rectangle

    scores, ax = class_scores(y, probability), new_axes(ax)
    style(ax, "most probable class", "observed class", grid="")
    count = scores.log_probability.shape[1]
    if not scores.rows:
        empty(ax, "no rows with a label")
        return ax
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (scores.codes, scores.log_probability.argmax(axis=1)), 1)
    shown = np.sort(np.argsort(-scores.shares, kind="stable")[:_MAX_SHOWN])
    names = short([str(one) for one in labels] or [str(code) for code in range(count)], ax)
    cells = table[np.ix_(shown, shown)]
    share = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
    ax.set_xlim(-0.5, len(shown) - 0.5)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    for (row, column), value in np.ndenumerate(cells):
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1.0, 1.0, color=BLUE, alpha=0.75 * share[row, column], lw=0))
        ax.text(column, row, f"{value:,}", ha="center", va="center", color=INK, fontsize=SMALL)
    turned: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if len(shown) > 3 else {}
    ax.set_xticks(range(len(shown)), [names[k] for k in shown], **turned)
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
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
