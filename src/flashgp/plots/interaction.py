"""What a model expects over two inputs that act together: shades over two numbers, or a line for each category."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flashgp.drawing import BLUE, GREY, INK

from .axes import COLOURS, SMALL, date_axis, legend_above, new_axes, note, plain, shown_rows, style
from .expected import Array, expected_at, place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.inference.posterior import Posterior
    from flashgp.units import Scaling

_SHADES = 8  # at most, between round numbers


def interaction(
    posterior: "Posterior",
    scaling: "Scaling",
    *,
    columns: tuple[int, int] = (0, 1),
    levels: Sequence[str] = (),
    at: Any = None,
    labels: Sequence[Any] = (),
    names: tuple[str, str] = ("column 1 of x", "column 2 of x"),
    dates: bool = False,
    y_label: str = "",
    points: int = 40,
    rows: int = 300,
    ax: "Axes | None" = None,
) -> "Axes":
    """The mean of a number, or the probability of a class, over two columns of x, others held: of the second of two
    classes, of several the one whose probability the columns change together most.

    Where the columns do not act together the lines are parallel, and shades change along one column as they do
    anywhere along the other.

    Args:
        posterior: one model with one output.
        scaling: of x, and the target, as `TableModel.scaling`.
        columns: along which to look, from 0.
        levels: names of the categories of the second column, by code, which then have a line each, the most frequent
            five; empty of a number.
        at: as of `expected_1d`.
        labels: of the classes; empty of numbers.
        names: of the columns.
        dates: whether the first column holds days since 1970-01-01, which are then shown as dates.
        y_label: what is expected; the mean, or the class, by default.
        points: places along each column.
        rows: drawn at most, where they lie.
        ax: axes to draw on; a new figure's by default.

    Raises:
        BackendUnavailableError: without matplotlib.
    Cost: a prediction at the square of `points`, or at `points` for each category.

    Example:
        >>> u = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 2))
        >>> model = fgp.TableModel().fit({"u": u[:, 0], "v": u[:, 1], "y": u[:, 0] * u[:, 1]}, target="y")
        >>> ax = fgp.plots.interaction(model.posterior, model.scaling, names=("u", "v"), points=8)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('u', 'v')
    """
    from matplotlib.ticker import MaxNLocator

    x = posterior.state.training_table.x.detach().double().numpy(force=True)
    first, second = columns
    ax = new_axes(ax, (6.4, 4.4))
    place = place_of(posterior, at)
    along = np.linspace(x[:, first].min(), x[:, first].max(), points)

    def own(values: Any, column: int) -> Any:
        return values * scaling.x_scale[column] + scaling.x_shift[column]

    across = own(along, first)
    if levels:
        codes, count = np.unique(x[:, second], return_counts=True)
        ends = codes[np.sort(np.argsort(-count, kind="stable")[: len(COLOURS)])]
    else:
        ends = np.linspace(x[:, second].min(), x[:, second].max(), points)
    grid = np.tile(place, (len(ends) * points, 1))
    grid[:, first], grid[:, second] = np.tile(along, len(ends)), np.repeat(ends, points)
    each = expected_at(posterior, scaling, grid, labels, 0.95)[0].reshape(-1, len(ends), points)
    which = int(_together(each).argmax())
    y_label = y_label or (f"probability of {labels[which if len(labels) > 2 else 1]}" if labels else "mean")
    style(ax, names[0], y_label if levels else names[1], grid="both" if levels else "")
    found = each[which]
    moved = date_axis(ax, float(across[0]), float(across[-1])) if dates else 0.0
    if levels:
        for colour, code, line in zip(COLOURS, ends, found, strict=False):
            ax.plot(across + moved, line, color=colour, linewidth=2.0, label=levels[round(own(code, second))])
        ax.set_xlim(across[0] + moved, across[-1] + moved)
        legend_above(ax)
        return ax
    steps = MaxNLocator(_SHADES).tick_values(float(found.min()), float(found.max()))
    shades = [(BLUE, 0.06 + 0.8 * k / max(1, len(steps) - 2)) for k in range(len(steps) - 1)]
    filled = ax.contourf(across + moved, own(ends, second), found, levels=steps, colors=shades)
    some = shown_rows(len(x), rows)
    ax.scatter(
        own(x[some, first], first) + moved, own(x[some, second], second), s=4, color=INK, alpha=0.5, linewidths=0
    )
    bar = ax.figure.colorbar(filled, ax=ax)
    bar.set_label(plain(y_label, 40), parse_math=False, color=INK)
    bar.ax.tick_params(colors=GREY, labelcolor=INK, labelsize=SMALL)
    if at is None and x.shape[1] > 2:
        note(ax, "other inputs at their median", "upper right")
    return ax


def _together(each: Array) -> Array:
    """Mean square of what neither column says alone, of functions (k, a, b)."""
    alone = each - each.mean(axis=1, keepdims=True) - each.mean(axis=2, keepdims=True)
    return np.asarray(np.square(alone + each.mean(axis=(1, 2), keepdims=True)).mean(axis=(1, 2)))
