"""Which inputs a fitted model looks at: one over the lengthscale, column by column."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flashgp.foundations.errors import ShapeError
from flashgp.foundations.parameters import Parameter

from .axes import BLUE, GREY, ORANGE, empty, legend, new_axes, note, short, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.inference.gp import GP
    from flashgp.kernels.base import Kernel

__all__ = ["relevance"]

MAX_ROWS = 25
_LOG_RANGE = 30.0  # beyond this ratio of largest to smallest the axis is logarithmic


def relevance(
    gp: "GP",
    names: Sequence[str] | None = None,
    *,
    unit: str = "per unit of the column",
    ax: "Axes | None" = None,
) -> "Axes":
    """One over each lengthscale, most relevant first: how fast the function may change along a column.

    Comparable between columns when they were standardised (then say so with `unit`). Over categories the value is the
    drop of log correlation between different levels, in another colour.

    Args:
        gp: a GP without batch dimensions.
        names: the columns of x, as many as it has; x1, x2, ... by default.
        unit: in what the values are, for the axis.
        ax: axes to draw on; a new figure's by default.

    Raises:
        ShapeError: for a batch of models or too few names.
        BackendUnavailableError: without matplotlib.
    Cost: O(columns); at most 25 are drawn, and the plot says so.

    Example:
        >>> import flashgp as fgp
        >>> ax = fgp.plots.relevance(fgp.GP(fgp.kernels.RBF([0.5, 2.0])), ["speed", "chord"])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['chord', 'speed']
    """
    lengthscales = list(_lengthscales(gp.kernel, names))
    ax = new_axes(ax, (5.4, max(2.2, 0.9 + 0.3 * min(len(lengthscales), MAX_ROWS))))
    if not lengthscales:
        style(ax, "", "", grid="")
        ax.set_xticks([])
        ax.set_yticks([])
        empty(ax, "this covariance function has no lengthscale")
        return ax
    lengthscales.sort(key=lambda entry: entry[2])
    shown = lengthscales[:MAX_ROWS][::-1]
    values = np.array([1.0 / max(entry[2], 1e-300) for entry in shown])
    logarithmic = len(shown) > 1 and values.max() > _LOG_RANGE * values.min()
    style(ax, f"1 / lengthscale, {unit}" + (" (log scale)" if logarithmic else ""), "", grid="x")
    heights = np.arange(len(shown))
    for category, colour, label in ((False, BLUE, "distance"), (True, ORANGE, "category: drop of log correlation")):
        chosen = np.array([entry[3] == category for entry in shown])
        if not chosen.any():
            continue
        if logarithmic:
            # A bar needs a zero to start from, which a logarithm does not have: stems and dots.
            start = 10.0 ** np.floor(np.log10(values.min()) - 0.05)
            ax.hlines(heights[chosen], start, values[chosen], color=colour, linewidth=1.4, alpha=0.5)
            ax.scatter(values[chosen], heights[chosen], color=colour, s=34, zorder=3, label=label)
        else:
            ax.barh(heights[chosen], values[chosen], height=0.66, color=colour, alpha=0.9, label=label)
    if logarithmic:
        ax.set_xscale("log")
        ax.set_xlim(left=start)
    else:
        ax.set_xlim(left=0.0)
    several = len({entry[0] for entry in shown}) > 1
    labels = short([f"{entry[1]} · {entry[0]}" if several else entry[1] for entry in shown])
    ax.set_yticks(heights)
    for tick, text in zip(ax.set_yticklabels(labels), labels, strict=True):
        tick.set_parse_math(False)
        tick.set_text(text)
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_color(GREY)
    if len(lengthscales) > len(shown):
        note(ax, f"the {len(shown)} most relevant of {len(lengthscales):,}")
    if any(entry[3] for entry in shown):
        legend(ax, loc="lower right" if len(lengthscales) == len(shown) else "center right")
    return ax


def _lengthscales(kernel: "Kernel", names: Sequence[str] | None) -> Iterator[tuple[str, str, float, bool]]:
    """(kernel, column, lengthscale, whether it is over categories) of every lengthscale measured along columns."""
    from flashgp.kernels import Categorical, Warped

    if isinstance(kernel, Warped):
        return  # what a module returns has no column names
    for part in kernel.parts:
        yield from _lengthscales(part, names)
    parameter = getattr(kernel, "lengthscale", None)
    category = isinstance(kernel, Categorical)
    roles: dict[str, str] = getattr(type(kernel), "roles", {})
    if not isinstance(parameter, Parameter) or (not category and roles.get("lengthscale") != "input_scale"):
        return
    if parameter.batch_shape:
        raise ShapeError(
            f"`gp` must be one model, got lengthscales of shape {tuple(parameter.raw.shape)}; plot one at a time"
        )
    kind = type(kernel).__name__
    values = parameter.value.detach().cpu().reshape(-1).tolist()
    dims: Sequence[int] | None = kernel.active_dims  # type: ignore[assignment]
    if parameter.event_dim == 0 and (dims is None or len(dims) > 1):
        yield kind, "all columns" if dims is None else f"{len(dims)} columns", values[0], category
        return
    dims = range(len(values)) if dims is None else dims
    for dim, value in zip(dims, values, strict=True):
        yield kind, _name(names, dim), value, category


def _name(names: Sequence[str] | None, dim: int) -> str:
    if names is None:
        return f"x{dim + 1}" if dim >= 0 else f"x[{dim}]"
    if not -len(names) <= dim < len(names):
        raise ShapeError(
            f"`names` must name every column of x, got {len(names)} names and a column {dim + 1}; add names"
        )
    return names[dim]
