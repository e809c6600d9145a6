"""The terms of a sum of covariance functions along one input, such as trend and season, one picture below the other."""

from typing import TYPE_CHECKING, Any

import numpy as np

from flashgp.drawing import BLUE
from flashgp.foundations.errors import DomainError
from flashgp.foundations.normal import half_width
from flashgp.inference.prior import outline
from flashgp.targets import Number
from flashgp.units import Scaling

from .axes import column_label, date_axis, legend, new_figure, numbers, percent, style
from .posterior import slice_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.inference.fit import Fit
    from flashgp.inference.posterior import Posterior


def components(
    posterior: "Posterior | Fit",
    *,
    column: int = 0,
    x_range: tuple[float, float] | None = None,
    at: Any = None,
    level: float = 0.95,
    x_label: str = "",
    dates: bool = False,
    scaling: Scaling | None = None,
    size: tuple[float, float] = (6.4, 1.9),
) -> "list[Axes]":
    """Each term of the covariance function given the data, eq. (M-410): mean and interval along one column.

    Titles have the share of the variance of the posterior mean over the training rows, eq. (M-411). The prior mean is
    in no term.

    Args:
        posterior: one model with one output, or the fit of one.
        column: as `posterior_1d`.
        x_range: as `posterior_1d`.
        at: as `posterior_1d`.
        level: probability of the band.
        x_label: with units.
        dates: as `posterior_1d`.
        scaling: as `posterior_1d`, of a target without a transform, under which no sum would be left.
        size: inches of each picture.

    Returns:
        The axes of a new figure, one for each term.

    Raises:
        ShapeError: for a batch or several outputs.
        DomainError: for a column, level or range that does not exist, a posterior without terms or a scaling with a
            transform of the target.
        BackendUnavailableError: without matplotlib.
    Cost: a prediction at 300 places and the means of 2,048 rows for each term.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 60, dtype=torch.float64).unsqueeze(-1)
        >>> gp = fgp.GP(fgp.kernels.RBF(3.0) + fgp.kernels.Periodic(period=1.0))
        >>> axes = fgp.plots.components(gp.condition(x, x[:, 0] + torch.sin(6.28 * x[:, 0])), x_label="years")
        >>> len(axes), axes[-1].get_xlabel()
        (2, 'years')
    """
    import torch

    half = half_width(level)
    if scaling is not None and not (isinstance(scaling.target, Number) and scaling.target.linear):
        raise DomainError(
            f"`scaling` must be of a target without a transform, got one of a {scaling.target.described[0]}; leave it "
            "out, or fit with target_transform='none'"
        )
    along = slice_of(posterior, column, x_range, at, 300)
    parts, line, unit = along.posterior.components, along.line, 1.0
    if scaling is not None:
        line, unit = line * scaling.x_scale[column] + scaling.x_shift[column], scaling.target.unit
    grid = new_figure((size[0], 0.6 + size[1] * len(parts))).subplots(len(parts), 1, sharex=True, squeeze=False)[:, 0]
    for part, ax in zip(parts, grid, strict=True):
        found = part.predict(along.x_test)
        with torch.no_grad():
            mean, spread = unit * numbers(found.mean, "mean"), unit * half * numbers(found.std, "std")
            share = f": {100 * float(part.share):.3g}% of the variance" if along.posterior.count > 1 else ""
        style(ax, "", "", f"{outline(part.kernel)}{share}")
        moved = date_axis(ax, float(line[0]), float(line[-1])) if dates else 0.0
        ax.fill_between(line + moved, mean - spread, mean + spread, color=BLUE, alpha=0.28, linewidth=0,
                        label=percent(level))  # fmt: skip
        ax.plot(line + moved, mean, color=BLUE, linewidth=2.0, label="mean")
        ax.set_xlim(line[0] + moved, line[-1] + moved)
        ax.set_xlabel("")
    style(grid[-1], x_label or column_label(posterior, column, dates=dates), "")
    legend(grid[0], loc="upper right", ncols=2)
    return list(np.asarray(grid))
