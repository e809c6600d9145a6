"""History of a fit: each evaluation's distance to the best value found, run by run."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from flashgp.drawing import BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION
from flashgp.foundations.quantities import counted
from flashgp.inference.training.history import Stage

from .axes import empty, legend, new_axes, note, plain_log_ticks, shown_rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FLOOR = 1e-3  # nats; smaller differences are of no interest and would stretch the axis
_MAX_POINTS = 2_000


def training_trace(history: Iterable[Any], *, ax: "Axes | None" = None) -> "Axes":
    """Log joint of every evaluation as nats below the best one found (logarithmic): a line for each search.

    Runs on some of the rows, which only say where the search over all of them begins, are left out: their values are of
    other data. Where there are no others, the last of them are shown.

    Args:
        history: `fit.history`; each entry has `run`, `index`, `value` in nats and `measure`, what the value is: the
            log joint, or its gain since the first gradient of the run.
        ax: axes to draw on; a new figure's by default.

    Raises:
        BackendUnavailableError: without matplotlib.
    Cost: O(evaluations); at most 2 000 per start are drawn.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = x[:, 0].sin()
        >>> fit = fgp.fit(fgp.GP(fgp.kernels.RBF()), x, y, max_iterations=3)
        >>> ax = fgp.plots.training_trace(fit.history)
        >>> ax.get_xlabel()
        'evaluation'
    """
    history = _comparable(list(history))
    gains = any(e.measure == "gain" for e in history)
    runs = list(dict.fromkeys(e.run for e in history))  # numbered as they came, whatever started each
    entries = [(f"search {runs.index(e.run) + 1}", int(e.index), float(e.value)) for e in history]
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
        rows = shown_rows(len(own), _MAX_POINTS)
        index = np.array([own[i][0] for i in rows])
        gap = np.maximum(best - np.array([own[i][1] for i in rows]), _FLOOR)
        colour, width, label = BLUE, 2.2, f"{start}, the best" if others else start
        if start != winner:
            many = len(others) > len(colours)
            colour, width = GREY if many else colours[place], 1.1
            label = start if not many else f"{len(others)} other searches" if place == 0 else "_other"
        ax.plot(index, gap, color=colour, linewidth=width, alpha=1.0 if start == winner else 0.75,
                marker="o" if len(own) <= 40 else None, markersize=1.6 * width, label=label,
                zorder=4 if start == winner else 3)  # fmt: skip
    ax.set_yscale("log")
    plain_log_ticks(ax.yaxis)
    ax.set_ylim(bottom=_FLOOR * 0.7)
    last = max(index for _, index, _ in finite)
    ax.set_xlim(-0.03 * last - 0.5, 1.03 * last + 0.5)
    _whole_numbers(ax)
    failed = len(entries) - len(finite)
    note(
        ax,
        f"{'gained since the first gradient' if gains else 'best log joint'} {best:.6g} nats"
        + (f"\n{counted(failed, 'evaluation')} had no finite value" if failed else ""),
        "lower left",
    )
    legend(ax, loc="upper right")
    return ax


def _comparable(history: list[Any]) -> list[Any]:
    """The entries of runs on all rows, of the likelihood that was maximised last, or else of the last phase: values of
    other rows do not compare."""
    if not history:
        return []
    for stage in (Stage.APPROXIMATE, Stage.ALL_ROWS):
        if found := [e for e in history if e.run.stage is stage]:
            return found
    last = history[-1].run
    rows = last.number if last.stage is Stage.PART else None
    return [e for e in history if e.run.stage is last.stage and rows in (None, e.run.number)]


def _whole_numbers(ax: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
