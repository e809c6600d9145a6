"""How a fit went: each evaluation's distance to the best value found, start by start."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .axes import BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, empty, legend, new_axes, note, shown_rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["training_trace"]

_FLOOR = 1e-3  # nats; smaller differences are of no interest and would stretch the axis
_MOST_POINTS = 2_000


def training_trace(history: Iterable[Any], *, ax: "Axes | None" = None) -> "Axes":
    """Log joint of every evaluation as nats below the best one found (logarithmic): a line for each start.

    Runs on a subset of the rows, which only choose the start, are left out: their values are of other data.

    Args:
        history: `fit.history`; each entry has `start`, `index` and `value`, the log joint in nats.
        ax: axes to draw on; a new figure's by default.
    Raises: BackendUnavailableError without matplotlib.
    Cost: O(evaluations); at most 2 000 per start are drawn.
    """
    entries = [(str(e.start), int(e.index), float(e.value)) for e in history]
    if not all(start.startswith("subset") for start, _, _ in entries):
        entries = [entry for entry in entries if not entry[0].startswith("subset")]
    finite = [entry for entry in entries if np.isfinite(entry[2])]
    ax = new_axes(ax)
    style(ax, "evaluation", "nats below the best (log scale)")
    if not finite:
        empty(ax, "no evaluation was recorded")
        return ax
    winner, _, best = max(finite, key=lambda entry: entry[2])
    others = [start for start in dict.fromkeys(entry[0] for entry in finite) if start != winner]
    colours = (VERMILLION, GREEN, ORANGE, SKY)
    for place, start in enumerate([*others, winner]):
        own = sorted((index, value) for s, index, value in finite if s == start)
        rows = shown_rows(len(own), _MOST_POINTS)
        index = np.array([own[i][0] for i in rows])
        gap = np.maximum(best - np.array([own[i][1] for i in rows]), _FLOOR)
        colour, width, label = BLUE, 2.2, f"{start}, the best" if others else start
        if start != winner:
            many = len(others) > len(colours)
            colour, width = GREY if many else colours[place], 1.1
            label = start if not many else f"{len(others)} other starts" if place == 0 else "_other"
        ax.plot(index, gap, color=colour, linewidth=width, alpha=1.0 if start == winner else 0.75,
                marker="o" if len(own) <= 40 else None, markersize=1.6 * width, label=label,
                zorder=4 if start == winner else 3)  # fmt: skip
    ax.set_yscale("log")
    ax.set_ylim(bottom=_FLOOR * 0.7)
    last = max(index for _, index, _ in finite)
    ax.set_xlim(-0.03 * last - 0.5, 1.03 * last + 0.5)
    _whole_numbers(ax)
    failed = len(entries) - len(finite)
    note(
        ax,
        f"best log joint {best:.6g} nats" + (f"\n{failed} evaluations had no finite value" if failed else ""),
        "lower left",
    )
    legend(ax, loc="upper right")
    return ax


def _whole_numbers(ax: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
