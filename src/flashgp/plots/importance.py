"""Importance of inputs: how much worse held-out rows are predicted without each, as bars with intervals."""

from typing import TYPE_CHECKING

import numpy as np

from flashgp.drawing import BLUE, GREY, INK
from flashgp.foundations.errors import ShapeError

from .axes import name_ticks, new_axes, percent, short, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.inference.predict.importance import Importance

MAX_ROWS = 25


def importance(
    found: "Importance", *, unit: str = "", level: float = 0.95, rows: int = MAX_ROWS, ax: "Axes | None" = None
) -> "Axes":
    """The permutation importance of every column, the most important first, with intervals: how much RMSE grows, eq.
    (M-152), of classes and counts log loss, eq. (M-151).

    Args:
        found: what `importance()` of a posterior, a TableModel or a GPRegressor with one output gave.
        unit: of RMSE, that of the target, for the axis.
        level: probability of the intervals.
        rows: drawn at most.
        ax: axes to draw on; a new figure's by default.

    Raises:
        ShapeError: for several outputs.
        DomainError: unless 0 < level < 1.
        BackendUnavailableError: without matplotlib.
    Cost: O(columns).

    Example:
        >>> x = torch.rand(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> post = fgp.GP(fgp.kernels.RBF(torch.tensor([0.5, 9.0]))).condition(x, torch.sin(6.0 * x[:, 0]))
        >>> ax = fgp.plots.importance(post.importance({"hour": 0, "age": 1}))
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['age', 'hour']
    """
    if found.rmse.dim() != 1:
        raise ShapeError(
            f"`found` must be of one output, got an importance of shape {tuple(found.rmse.shape)}; plot the posterior "
            "of each output, post.by_output[j].importance()"
        )
    shown = found.order[:rows][::-1]
    low, high = (end.numpy()[shown] for end in found.growth_interval(level))
    values = found.growth.numpy()[shown]
    ax = new_axes(ax, (5.4, max(2.2, 1.1 + 0.3 * len(shown))))
    some = len(shown) < len(found.names)
    titles = [f"the {len(shown)} most important of {len(found.names):,}"] if some else []
    titles += [] if found.unfinished is None else [found.unfinished.heading]
    unit = unit if found.by == "rmse" else ""
    style(
        ax,
        f"{found.measure} grows by{f', {unit}' if unit else ''}; {percent(level)} intervals",
        "",
        "; ".join(titles),
        grid="x",
    )
    heights = np.arange(len(shown))
    ax.barh(heights, values, height=0.66, color=BLUE, alpha=0.85)
    ax.errorbar(values, heights, xerr=[values - low, high - values], fmt="none", color=INK, elinewidth=1.2, capsize=3)
    ax.axvline(0.0, color=GREY, linewidth=0.9)
    name_ticks(ax, short([found.names[j] for j in shown], ax))
    return ax
