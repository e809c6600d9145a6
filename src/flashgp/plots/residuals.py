"""Errors of predictions against what was predicted, against time or against the order of rows: is something left?"""

from typing import TYPE_CHECKING, Any

import numpy as np

from flashgp.drawing import BLUE, GREY, INK, VERMILLION
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.normal import QUANTILE_975

from .axes import central, date_axis, empty, legend_above, new_axes, note, numbers, percent, shown_rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 5_000
_FEW = 1_000  # dots that are drawn one by one
_BINS, _ROWS_PER_BIN = 10, 15


def residuals(
    y: Any,
    prediction: Any,
    *,
    against: Any = None,
    x_label: str = "",
    dates: bool = False,
    level: float = 0.95,
    label: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Observed less predicted values against what was predicted, or against another number of each row, such as time.

    Means of neighbouring rows, with 95 % intervals, lie on zero where nothing is left to learn along this axis.

    Args:
        y: observed values, shape (n,).
        prediction: as of `predicted_observed`.
        against: a number for each row, shape (n,); the predicted mean by default.
        x_label: what it is.
        dates: whether it is days since 1970-01-01, which are then shown as dates.
        level: probability of the intervals; rows outside have another colour.
        label: what y is, with its unit.
        ax: axes to draw on; a new figure's by default.

    Raises:
        ShapeError: for numbers of another shape than the prediction.
        DomainError: for a prediction that is none.
        BackendUnavailableError: without matplotlib.
    Cost: O(n log n); at most 5 000 rows are drawn, and the plot says so.

    Example:
        >>> y, mean = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0])
        >>> ax = fgp.plots.residuals(y, (mean, np.ones(3)), label="height")
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('predicted height', 'observed less predicted')
    """
    ax = new_axes(ax)
    observed, predicted, lower, upper = central(y, prediction, level)
    suffix = f" {label}" if label else ""
    style(ax, x_label or f"predicted{suffix}", "observed less predicted")
    place = predicted
    if against is not None:
        place = numbers(against, "against")
        if len(place) != len(predicted):
            raise ShapeError(
                f"`against` must have one number for each of {len(predicted)} rows, got {len(place)}; pass a column of "
                "the rows that were predicted"
            )
    if len(observed) == 0:
        empty(ax, "no held-out rows")
        return ax
    moved = date_axis(ax, float(place.min()), float(place.max())) if dates else 0.0
    place, errors = place + moved, observed - predicted
    outside = (observed < lower) | (observed > upper)
    rows = shown_rows(len(observed), MAX_POINTS)
    few = len(rows) <= _FEW
    name = f"{percent(level)} interval"
    for misses, colour, text in (
        (False, BLUE, f"in its {name}"),
        (True, VERMILLION, f"outside ({outside.mean():.1%})"),
    ):
        chosen = rows[outside[rows] == misses]
        if len(chosen):
            ax.scatter(place[chosen], errors[chosen], s=12 if few else 5, marker="D" if misses else "o", color=colour,
                       alpha=0.7 if few else 0.4, linewidths=0, rasterized=not few, label=text, zorder=2)  # fmt: skip
    ax.axhline(0.0, color=GREY, linewidth=1.0, dashes=(4, 3), zorder=1)
    bins = min(_BINS, len(errors) // _ROWS_PER_BIN)
    if bins > 1:
        parts = np.array_split(np.argsort(place, kind="stable"), bins)
        at, mean = ([float(values[part].mean()) for part in parts] for values in (place, errors))
        half = [QUANTILE_975 * float(errors[part].std(ddof=1)) / np.sqrt(len(part)) for part in parts]
        ax.errorbar(at, mean, yerr=half, color=INK, linewidth=1.4, elinewidth=1.2, capsize=2.0, marker="o",
                    markersize=3.0, label=f"mean of {len(errors) // bins:,} rows", zorder=4)  # fmt: skip
    if len(rows) < len(observed):
        note(ax, f"{len(rows):,} of {len(observed):,} rows drawn")
    legend_above(ax, markerscale=1.0 if few else 2.0)
    return ax
