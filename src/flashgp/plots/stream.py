"""History of a stream: the error of predictions made before rows were learned, and how long each step took."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flashgp.drawing import BLUE, GREY, INK, ORANGE, VERMILLION
from flashgp.foundations.checks import check_count
from flashgp.foundations.quantities import counted, readable_seconds

from .axes import empty, legend, new_axes, note, plain_log_ticks, shown_rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS = 20_000


def prequential_error(
    steps: Sequence[Any],
    *,
    rows: int = 200,
    beside: Sequence[Any] | None = None,
    beside_label: str = "the other model",
    ax: "Axes | None" = None,
) -> "Axes":
    """Root mean squared error over the latest rows, as the stream went on, with what the predictions expected of it.

    Args:
        steps: results of `Stream.step`, in order.
        rows: of which the error is the mean.
        beside: steps of another model on the same rows, for a second line.
        beside_label: name of that line.
        ax: axes to draw on; a new figure's by default.

    Raises:
        BackendUnavailableError: without matplotlib.
        DomainError: for `rows` below 1.
    Cost: O(rows of all steps).

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = x[:, 0].sin()
        >>> stream = fgp.Stream(fgp.GP(fgp.kernels.RBF()).condition(x[:10], y[:10]))
        >>> steps = [stream.step(x[i : i + 1], y[i : i + 1]) for i in range(10, 20)]
        >>> ax = fgp.plots.prequential_error(steps, rows=5)
        >>> ax.get_xlabel()
        'rows learned'
    """
    rows = check_count(rows, "rows", 1)
    ax = new_axes(ax)
    style(ax, "rows learned", f"RMSE of the latest {rows:,} rows")
    drawn = False
    for values, colour, label in ((beside, GREY, beside_label), (steps, BLUE, "predicted, then learned")):
        squares, variances = _squares([] if values is None else values)
        if len(squares) < 2:
            continue
        drawn = True
        at = shown_rows(len(squares), _MAX_POINTS)
        ax.plot(at + 1, np.sqrt(_latest(squares, rows))[at], color=colour, linewidth=1.6, label=label)
        if values is steps:
            ax.plot(at + 1, np.sqrt(_latest(variances, rows))[at], color=VERMILLION, linewidth=1.1, linestyle="--",
                    label="as the predictions expected")  # fmt: skip
    if not drawn:
        empty(ax, "no row had a target")
        return ax
    ax.set_ylim(bottom=0.0)
    legend(ax, loc="upper right")
    return ax


def latency(steps: Sequence[Any], *, deadline: float | None = None, ax: "Axes | None" = None) -> "Axes":
    """Seconds of every step on a logarithmic axis, with their median and 99 % quantile; refinements apart.

    Args:
        steps: results of `Stream.step`, in order.
        deadline: in seconds; it is drawn, and the steps beyond it are counted.
        ax: axes to draw on; a new figure's by default.

    Raises:
        BackendUnavailableError: without matplotlib.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = x[:, 0].sin()
        >>> stream = fgp.Stream(fgp.GP(fgp.kernels.RBF()).condition(x[:10], y[:10]))
        >>> steps = [stream.step(x[i : i + 1], y[i : i + 1]) for i in range(10, 20)]
        >>> ax = fgp.plots.latency(steps, deadline=0.1)
        >>> ax.get_xlabel()
        'step'
    """
    ax = new_axes(ax)
    style(ax, "step", "milliseconds of predicting and learning (log scale)")
    seconds = np.array([step.seconds for step in steps], dtype=np.float64)
    if not len(seconds):
        empty(ax, "no step was taken")
        return ax
    at = shown_rows(len(seconds), _MAX_POINTS)
    ax.plot(at + 1, 1e3 * seconds[at], ".", color=BLUE, markersize=2.5, alpha=0.6, label="a step")
    refining = np.array([step.refining_seconds for step in steps], dtype=np.float64)
    if (refining > 0.0).any():
        where = refining.nonzero()[0]
        ax.plot(where + 1, 1e3 * refining[where], "^", color=ORANGE, markersize=6, label="a refinement")
    median, high = float(np.median(seconds)), float(np.quantile(seconds, 0.99))
    ax.axhline(1e3 * median, color=INK, linewidth=1.1, label="median")
    ax.axhline(1e3 * high, color=INK, linewidth=1.1, linestyle=":", label="99 %")
    text = f"median {readable_seconds(median)}, 99 % within {readable_seconds(high)}"
    if deadline is not None:
        ax.axhline(1e3 * deadline, color=VERMILLION, linewidth=1.4, label="deadline")
        missed = int((seconds > deadline).sum())
        text += f"\n{counted(missed, 'step')} of {len(seconds):,} beyond {readable_seconds(deadline)}"
    ax.set_yscale("log")
    plain_log_ticks(ax.yaxis)
    ax.set_ylim(top=6.0 * ax.get_ylim()[1])  # room for the legend
    note(ax, text, "lower right")
    legend(ax, loc="upper left", ncols=2)
    return ax


def _squares(steps: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors and variances of all rows with a target, means over outputs."""
    squares, variances = [], []
    for step in steps:
        if step.y is not None:
            rows = len(step.y)
            squares.append((step.y - step.mean).double().square().reshape(rows, -1).mean(1).cpu().numpy())
            variances.append(step.variance.double().reshape(rows, -1).mean(1).cpu().numpy())
    nothing = np.zeros(0)
    return (np.concatenate(squares), np.concatenate(variances)) if squares else (nothing, nothing)


def _latest(values: np.ndarray, count: int) -> np.ndarray:
    """The mean of the latest `count` values, of all while they are fewer."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    stop = np.arange(1, len(total))
    start = np.maximum(0, stop - count)
    return (total[stop] - total[start]) / (stop - start)
