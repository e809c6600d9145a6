"""The posterior along one input: mean, intervals, samples, and the data where there is but one input."""

from typing import TYPE_CHECKING, Any

import numpy as np

from flashgp.foundations.errors import DomainError, ShapeError

from .axes import BLUE, GREY, INK, SKY, legend, new_axes, note, numbers, shown_rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.inference.posterior import Posterior
    from flashgp.scaling import Scaling

__all__ = ["posterior_1d"]

MOST_DATA = 5_000
_MARGIN = 0.05  # of the data's range, on each side


def posterior_1d(
    posterior: "Posterior",
    *,
    column: int = 0,
    at: Any = None,
    level: float = 0.95,
    samples: int = 3,
    points: int = 300,
    seed: int = 0,
    x_label: str = "",
    y_label: str = "y",
    scaling: "Scaling | None" = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """The posterior along one column of x: mean, intervals of the function and of observations, and samples.

    With several columns it is a slice: the others are held at `at`, and the data, which lie beside the slice, are left
    out.

    Args:
        posterior: one model with one output.
        column: the column along which to look, from 0.
        at: values of all d columns, shape (d,), in the units of the posterior's x; the training medians by default.
        level: probability of both bands.
        samples: functions drawn from the posterior; points: places along the column.
        seed: of the samples.
        x_label, y_label: with units.
        scaling: what x and y were standardised with, to show both in their own units.
        ax: axes to draw on; a new figure's by default.
    Raises: ShapeError for a batch or several outputs, DomainError; BackendUnavailableError without matplotlib.
    Cost: a prediction at `points` places; points^3 / 3 flops for the samples.
    """
    import torch

    from flashgp.plots.predictive import _checked_level, _quantile

    _checked_level(level)
    if posterior.x.dim() != 2 or posterior.gp.outputs is not None or posterior.batch_shape:
        raise ShapeError(
            f"`posterior` must be of one model with one output, got x of shape {tuple(posterior.x.shape)} and outputs "
            f"{posterior.gp.outputs}; plot one at a time"
        )
    d = posterior.x.shape[-1]
    if not 0 <= column < d or points < 2 or samples < 0:
        raise DomainError(
            f"`column` must be 0 to {d - 1}, `points` at least 2 and `samples` at least 0, got {column}, {points} and "
            f"{samples}; correct them"
        )
    x, y = numbers(posterior.x[:, column], "x"), numbers(posterior.y, "y")
    low, high = (float(x.min()), float(x.max())) if len(x) else (-1.0, 1.0)
    margin = _MARGIN * (high - low) or 1.0
    line = np.linspace(low - margin, high + margin, points)
    if at is not None:
        place = numbers(at, "at")
        if place.shape != (d,):
            raise ShapeError(f"`at` must have shape ({d},), one value per column of x, got {place.shape}")
    else:
        place = posterior.x.detach().median(dim=0).values.cpu().double().numpy() if len(x) else np.zeros(d)
    grid = np.tile(place, (points, 1))
    grid[:, column] = line
    prediction = posterior.predict(torch.as_tensor(grid, dtype=posterior.x.dtype, device=posterior.x.device))
    with torch.no_grad():
        mean = numbers(prediction.mean, "mean")
        latent = np.sqrt(numbers(prediction.variance, "variance"))
        observed = np.sqrt(numbers(prediction.observation_variance, "variance"))
        drawn = (
            prediction.sample(samples, seed=seed).detach().cpu().double().numpy() if samples else np.zeros((0, points))
        )
    if scaling is not None:
        line, x = (v * scaling.x_scale[column] + scaling.x_shift[column] for v in (line, x))
        mean, y, drawn = scaling.mean(mean), scaling.mean(y), scaling.mean(drawn)
        latent, observed = scaling.std(latent), scaling.std(observed)

    ax = new_axes(ax, (6.4, 4.0))
    style(ax, x_label or f"column {column + 1} of x", y_label)
    half = _quantile(0.5 + level / 2)
    text = f"{level:.4g}".removeprefix("0.") if level < 0.995 else f"{level:.6g}"
    text = f"{level:.0%}" if round(level * 100) == level * 100 else text
    ax.fill_between(line, mean - half * observed, mean + half * observed, color=SKY, alpha=0.22, linewidth=0,
                    label=f"{text}, new observation", zorder=1)  # fmt: skip
    ax.fill_between(line, mean - half * latent, mean + half * latent, color=BLUE, alpha=0.28, linewidth=0,
                    label=f"{text}, function", zorder=2)  # fmt: skip
    for index, sample in enumerate(drawn):
        ax.plot(line, sample, color=GREY, linewidth=0.9, alpha=0.85, label="samples" if index == 0 else None, zorder=3)
    ax.plot(line, mean, color=BLUE, linewidth=2.0, label="mean", zorder=4)
    if d == 1 and len(x):
        rows = shown_rows(len(x), MOST_DATA)
        few = len(rows) <= 500
        ax.scatter(x[rows], y[rows], s=16 if few else 5, color=INK, alpha=0.85 if few else 0.35, linewidths=0,
                   label="data", rasterized=not few, zorder=5)  # fmt: skip
        if len(rows) < len(x):
            note(ax, f"{len(rows):,} of {len(x):,} rows drawn")
    elif d > 1:
        note(ax, "other inputs at their median" if at is None else "other inputs held fixed")
    ax.set_xlim(line[0], line[-1])
    legend(ax, loc="best", ncols=2)
    return ax
