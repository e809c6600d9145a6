"""The posterior along one input: mean, intervals, samples, and the data where there is but one input."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashgp.drawing import BLUE, GREY, INK, SKY
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.normal import half_width
from flashgp.targets import Number
from flashgp.units import Scaling

from .axes import column_label, date_axis, legend_above, new_axes, note, numbers, percent, shown_rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from flashgp.inference.fit import Fit
    from flashgp.inference.posterior import Posterior

MAX_DATA = 5_000
_MARKS = 400  # places of them that are told apart along the axis
_MARGIN = 0.05  # of the data's range, on each side


def posterior_1d(
    posterior: "Posterior | Fit",
    *,
    column: int = 0,
    x_range: tuple[float, float] | None = None,
    at: Any = None,
    level: float = 0.95,
    samples: int = 3,
    points: int = 300,
    seed: int = 0,
    x_label: str = "",
    y_label: str = "y",
    dates: bool = False,
    scaling: Scaling | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """The posterior along one column of x: mean, intervals of the function and of observations, and samples.

    With several columns it is a slice: the others are held at `at`, and the data, which lie beside the slice, are left
    out.

    Args:
        posterior: one model with one output, or the fit of one.
        column: the column along which to look, from 0.
        x_range: where it begins and ends, in the units of the posterior's x; beyond the data it is a forecast. About
            the range of the data by default.
        at: values of all d columns, shape (d,), in the units of the posterior's x; the training medians by default.
        level: probability of both bands.
        samples: functions drawn from the posterior.
        points: places along the column.
        seed: of the samples.
        x_label: with units.
        y_label: with units.
        dates: whether the column holds days since 1970-01-01, which are then shown as dates.
        scaling: what x and y were standardised with, to show both in their own units.
        ax: axes to draw on; a new figure's by default.

    Raises:
        ShapeError: for a batch or several outputs.
        DomainError: for a column, level or range that does not exist.
        BackendUnavailableError: without matplotlib.
    Cost: a prediction at `points` places; their joint covariance and points^3 / 3 flops for samples, unless 0.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = x[:, 0].sin()
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(x[::2], y[::2])
        >>> ax = fgp.plots.posterior_1d(posterior, x_label="hours")
        >>> ax.get_xlabel()
        'hours'
    """
    import torch

    half_width(level)  # refuses what is no probability
    if samples < 0:
        raise DomainError(f"`samples` must be at least 0, got {samples}; correct it")
    along = slice_of(posterior, column, x_range, at, points)
    d, line, x, y = along.x_test.shape[-1], along.line, along.x, along.y
    prediction = along.posterior.predict(along.x_test)
    with torch.no_grad():
        mean = numbers(prediction.mean, "mean")
        latent = np.sqrt(numbers(prediction.variance, "variance"))
        observed = np.sqrt(numbers(prediction.observation_variance, "variance"))
        drawn = np.empty((0, len(mean)))
        if samples:
            drawn = _samples(mean, prediction.covariance().detach().cpu().double().numpy(), samples, seed)
    target = Number()
    if scaling is not None:
        line, x = (v * scaling.x_scale[column] + scaling.x_shift[column] for v in (line, x))
        assert isinstance(scaling.target, Number)
        target = scaling.target
        y, drawn = target.decode(y), target.decode(drawn)
    functions, observations = target.normal(mean, latent), target.normal(mean, observed)
    bands = ((observations, SKY, 0.22, "new observation"), (functions, BLUE, 0.28, "function"))

    ax = new_axes(ax, (6.4, 4.0))
    style(ax, x_label or column_label(posterior, column, dates=dates), y_label)
    if dates:
        moved = date_axis(ax, float(line[0]), float(line[-1]))
        line, x = line + moved, x + moved
    text = percent(level)
    for order, (band, colour, alpha, what) in enumerate(bands, 1):
        lower, upper = band.interval(level)
        ax.fill_between(line, lower, upper, color=colour, alpha=alpha, linewidth=0, label=f"{text}, {what}",
                        zorder=order)  # fmt: skip
    for index, sample in enumerate(drawn):
        ax.plot(line, sample, color=GREY, linewidth=0.9, alpha=0.85, label="samples" if index == 0 else None, zorder=3)
    ax.plot(line, functions.mean, color=BLUE, linewidth=2.0, label="mean", zorder=4)
    if d == 1 and len(x):
        rows = shown_rows(len(x), MAX_DATA)
        few = len(rows) <= 500
        ax.scatter(x[rows], y[rows], s=16 if few else 5, color=INK, alpha=0.85 if few else 0.35, linewidths=0,
                   label="data", rasterized=not few, zorder=5)  # fmt: skip
        if len(rows) < len(x):
            note(ax, f"{len(rows):,} of {len(x):,} rows drawn")
    elif d > 1 and len(x):
        # Where the column has data: marks along the axis, below the plot's own range, as one line with gaps.
        steps = np.unique(np.rint(_MARKS * (x - x.min()) / (np.ptp(x) or 1.0)))
        marks = x.min() + np.ptp(x) * steps / _MARKS
        ax.plot(np.repeat(marks, 3), np.tile([0.0, 0.025, np.nan], len(marks)), linewidth=0.8, color=INK, alpha=0.5,
                transform=ax.get_xaxis_transform(), label="data", zorder=5)  # fmt: skip
        if at is None:
            note(ax, "other inputs at their median", "upper right")
    ax.set_xlim(line[0], line[-1])
    legend_above(ax)
    return ax


@dataclass(frozen=True)
class Slice:
    """Points along one column of x. Fields: posterior; line, (points,); x_test, (points, d); x and y of the rows."""

    posterior: "Posterior"
    line: npt.NDArray[np.float64]
    x_test: "Tensor"
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]


def slice_of(
    posterior: "Posterior | Fit", column: int, x_range: tuple[float, float] | None, at: Any, points: int
) -> Slice:
    """See `posterior_1d`."""
    import torch

    from flashgp.inference.fit import Fit

    if isinstance(posterior, Fit):
        posterior = posterior.posterior
    like = posterior.state.like[0]
    if like.dim() != 2 or posterior.gp.outputs is not None or posterior.batch_shape:
        raise ShapeError(
            f"`posterior` must be of one model with one output, got x of shape {tuple(like.shape)} and outputs "
            f"{posterior.gp.outputs}; plot one at a time"
        )
    kept = posterior.state.training_table  # of rows that were read a sample
    d = like.shape[-1]
    if not 0 <= column < d or points < 2:
        raise DomainError(
            f"`column` must be 0 to {d - 1} and `points` at least 2, got {column} and {points}; correct them"
        )
    x, y = numbers(kept.x[:, column], "x"), numbers(kept.y, "y")
    low, high = (float(x.min()), float(x.max())) if len(x) else (-1.0, 1.0)
    # Beyond the data only where they are shown; a slice stays within the column's range.
    margin = (_MARGIN if d == 1 else 0.0) * (high - low) if high > low else 1.0
    first, last = (low - margin, high + margin) if x_range is None else x_range
    if not -math.inf < first < last < math.inf:
        raise DomainError(f"`x_range` must be two finite numbers, the smaller first, got {x_range!r}; correct them")
    line = np.linspace(first, last, points)
    if at is not None:
        place = numbers(at, "at")
        if place.shape != (d,):
            raise ShapeError(f"`at` must have shape ({d},), one value per column of x, got {place.shape}")
    else:
        place = kept.x.detach().median(dim=0).values.cpu().double().numpy() if len(x) else np.zeros(d)
    grid = np.tile(place, (points, 1))
    grid[:, column] = line
    return Slice(posterior, line, torch.as_tensor(grid, dtype=like.dtype, device=like.device), x, y)


def _samples(
    mean: npt.NDArray[np.float64], covariance: npt.NDArray[np.float64], count: int, seed: int
) -> npt.NDArray[np.float64]:
    """Functions drawn at close places, (count, points).

    By eigenvalues: neighbours on a fine line are so alike that the covariance has no Cholesky factor in float64.
    """
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return mean + np.random.default_rng(seed).standard_normal((count, len(mean))) @ root.T
