"""Were the predictions right, and was their uncertainty: predicted against observed, calibration, PIT."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashgp.drawing import BLUE, GREY, INK, SKY, VERMILLION
from flashgp.foundations.errors import DomainError
from flashgp.foundations.normal import QUANTILE_975
from flashgp.foundations.quantities import counted

from .axes import SMALL, central, empty, legend, legend_above, moments, new_axes, note, percent, shown_rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 5_000
MAX_BARS = 400


def predicted_observed(
    y: Any, prediction: Any, *, level: float = 0.95, label: str = "", ax: "Axes | None" = None
) -> "Axes":
    """Predicted means against observed values, with intervals; a perfect model lies on the diagonal.

    Args:
        y: observed values, shape (n,).
        prediction: a `Prediction` at those rows, a pair (mean, std) of a new observation, or what
            `GPRegressor.predict_distribution` returns.
        level: probability of the intervals drawn for at most 400 rows.
        label: what y is, with its unit; for both axes.
        ax: axes to draw on; a new figure's by default.

    Raises:
        ShapeError: for targets of another shape than the prediction.
        DomainError: for a prediction that is none.
        BackendUnavailableError: without matplotlib.
    Cost: O(n); at most 5 000 rows are drawn, and the plot says so.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = x[:, 0].sin()
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(x[::2], y[::2])
        >>> ax = fgp.plots.predicted_observed(y[1::2], posterior.predict(x[1::2]), label="sine")
        >>> ax.get_xlabel()
        'observed sine'
    """
    observed, mean, lower, upper = central(y, prediction, level)
    ax = new_axes(ax)
    suffix = f" {label}" if label else ""
    style(ax, f"observed{suffix}", f"predicted{suffix}")
    if len(observed) == 0:
        empty(ax, "no held-out rows")
        return ax
    rows = shown_rows(len(observed), MAX_POINTS)
    few = len(rows) <= MAX_BARS
    outside = (observed < lower) | (observed > upper)
    low, high = float(min(observed.min(), mean.min())), float(max(observed.max(), mean.max()))
    pad = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    limits = (low - pad, high + pad)
    ax.plot(limits, limits, color=GREY, linewidth=1.0, dashes=(4, 3), zorder=1)
    name = f"{percent(level)} interval"
    for misses, colour, text in ((False, BLUE, f"in its {name}"), (True, VERMILLION, f"outside its {name}")):
        chosen = rows[outside[rows] == misses]
        if len(chosen) == 0:
            continue
        if few:
            ax.vlines(
                observed[chosen],
                lower[chosen],
                upper[chosen],
                color=colour,
                alpha=0.3,
                linewidth=1.0,
                zorder=2,
            )
        ax.scatter(
            observed[chosen],
            mean[chosen],
            s=18 if few else 8,
            marker="D" if misses else "o",
            color=colour,
            alpha=0.9 if few else 0.45,
            linewidths=0,
            rasterized=not few,
            label=f"{text} ({(outside == misses).mean():.1%})",
            zorder=3,
        )
    ax.set_xlim(limits)
    if not few:
        ax.set_ylim(limits)
    ax.margins(y=0.02)
    error = float(np.sqrt(np.mean(np.square(observed - mean))))
    drawn = f"\n{len(rows):,} of {len(observed):,} rows drawn" if len(rows) < len(observed) else ""
    note(ax, f"RMSE {error:.4g}, {counted(len(observed), 'row')}{drawn}")
    legend(ax, loc="upper left", markerscale=1.0 if few else 2.0)
    return ax


def calibration(y: Any, prediction: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Observed against nominal coverage of central intervals.

    Above the diagonal the intervals are too wide, below too narrow. The band is where a perfectly calibrated model
    would be in 95 of 100 samples of this many rows, level by level (normal approximation to the binomial).

    Args:
        y: as of `predicted_observed`.
        prediction: as of `predicted_observed`.
        ax: as of `predicted_observed`.

    Raises:
        ShapeError: for targets of another shape than the prediction.
        DomainError: for a prediction that is none.
        BackendUnavailableError: without matplotlib.
    Cost: O(n log n).

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = x[:, 0].sin()
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(x[::2], y[::2])
        >>> ax = fgp.plots.calibration(y[1::2], posterior.predict(x[1::2]))
        >>> ax.get_ylabel()
        'share of rows inside it'
    """
    observed, mean, std = moments(y, prediction)
    ax = new_axes(ax)
    style(ax, "probability of the central interval", "share of rows inside it")
    levels = np.linspace(0.0, 1.0, 101)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, dashes=(4, 3), zorder=2)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    _percent(ax)
    if len(observed) == 0:
        empty(ax, "no held-out rows")
        return ax
    # The smallest central interval that holds y has probability |2 Phi(z) - 1|.
    needed = np.sort(np.abs(2.0 * _normal_cdf(observed, mean, std) - 1.0))
    share = np.searchsorted(needed, levels, side="right") / len(needed)
    spread = QUANTILE_975 * np.sqrt(levels * (1.0 - levels) / len(needed))
    ax.fill_between(
        levels,
        np.clip(levels - spread, 0, 1),
        np.clip(levels + spread, 0, 1),
        color=SKY,
        alpha=0.25,
        linewidth=0,
        label=f"expected for {counted(len(needed), 'row')}",
        zorder=1,
    )
    ax.plot(levels, share, color=BLUE, linewidth=2.0, drawstyle="steps-post" if len(needed) < 20 else "default",
            label="this model", zorder=3)  # fmt: skip
    at = float(np.mean(needed <= 0.95))
    ax.scatter([0.95], [at], color=VERMILLION, s=28, zorder=4, label=f"95% intervals hold {at:.1%}", clip_on=False)
    ax.text(0.03, 0.66, "too wide", transform=ax.transAxes, color=GREY, fontsize=SMALL, va="top")
    ax.text(0.97, 0.34, "too narrow", transform=ax.transAxes, color=GREY, fontsize=SMALL, ha="right")
    legend(ax, loc="upper left")
    return ax


def pit_histogram(y: Any, prediction: Any, *, bins: int = 10, ax: "Axes | None" = None) -> "Axes":
    """Histogram of Phi((y - mean) / std), the probability integral transform: flat when predictions are calibrated.

    A hill means intervals too wide, a valley too narrow, a slope a biased mean.

    Args:
        y: as of `predicted_observed`.
        prediction: as of `predicted_observed`.
        bins: number of bars, at least 1.
        ax: as of `predicted_observed`.

    Raises:
        ShapeError: for targets of another shape than the prediction.
        DomainError: for a prediction that is none.
        BackendUnavailableError: without matplotlib.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = x[:, 0].sin()
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(x[::2], y[::2])
        >>> ax = fgp.plots.pit_histogram(y[1::2], posterior.predict(x[1::2]))
        >>> ax.get_ylabel()
        'share of rows'
    """
    if bins < 1:
        raise DomainError(f"`bins` must be at least 1, got {bins!r}; for example 10")
    observed, mean, std = moments(y, prediction)
    ax = new_axes(ax)
    style(ax, "predicted probability of a value below the observed one", "share of rows", grid="y")
    ax.set_xlim(0, 1)
    _percent(ax)
    if len(observed) == 0:
        empty(ax, "no held-out rows")
        return ax
    count, _ = np.histogram(_normal_cdf(observed, mean, std), bins=bins, range=(0.0, 1.0))
    width = 1.0 / bins
    ax.bar((np.arange(bins) + 0.5) * width, count / len(observed), width=0.92 * width, color=BLUE, alpha=0.85, zorder=2)
    spread = QUANTILE_975 * np.sqrt(width * (1 - width) / len(observed))
    ax.axhspan(max(0.0, width - spread), width + spread, color=SKY, alpha=0.25, linewidth=0, zorder=1)
    ax.axhline(
        width, color=INK, linewidth=1.0, dashes=(4, 3), zorder=3, label=f"calibrated, {counted(len(observed), 'row')}"
    )
    legend_above(ax)
    return ax


def _normal_cdf(
    observed: npt.NDArray[np.float64], mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Phi((y - mean) / std), (n,); a prediction without uncertainty is right (1/2) or wrong (0 or 1)."""
    import torch

    error = observed - mean
    z = np.divide(error, std, out=np.copysign(np.inf, error), where=std > 0)
    z[(std <= 0) & (error == 0)] = 0.0
    return torch.special.ndtr(torch.from_numpy(z)).numpy()


def _percent(ax: "Axes") -> None:
    from matplotlib.ticker import PercentFormatter

    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
