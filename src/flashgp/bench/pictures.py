"""Bar charts of candidates: seconds under each clock, logarithmic; refused ones say why. Needs matplotlib."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flashgp.bench.candidate import Candidate
from flashgp.bench.formats import format_seconds
from flashgp.foundations.atomic import replacing
from flashgp.plots.axes import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    SKY,
    VERMILLION,
    legend,
    new_axes,
    plain,
    require_matplotlib,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "write_picture"]

_COLOURS = (BLUE, ORANGE, GREEN, SKY, VERMILLION)
_WIDTH, _ROW, _FRAME = 7.4, 0.42, 1.3  # inches
_REASON = 60  # letters of a refusal that are shown


def draw(candidates: Sequence[Candidate], clocks: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """A bar for each candidate and clock, the fastest on top; needs matplotlib.

    Raises: BackendUnavailableError without matplotlib.
    """
    ordered = sorted(candidates, key=lambda one: (one.seconds is None, one.seconds or 0.0))
    ax = new_axes(ax, (_WIDTH, _FRAME + _ROW * max(1, len(ordered))))
    height = 0.8 / len(clocks)
    least = min((s for one in ordered for s in (one.seconds, *one.clock_seconds.values()) if s), default=1e-6)
    ax.set_xscale("log")
    for k, clock in enumerate(clocks):
        for place, one in enumerate(ordered):
            seconds = one.seconds if k == 0 else one.clock_seconds.get(clock)
            label = clock if place == 0 else "_"
            at = place - 0.4 + (k + 0.5) * height
            ax.barh(at, seconds or 0.0, height, color=_COLOURS[k % len(_COLOURS)], label=f"{label} clock"
                    if place == 0 else label)  # fmt: skip
            if seconds:
                ax.text(seconds, at, f" {format_seconds(seconds)}", va="center", fontsize="x-small", color=INK)
    for place, one in enumerate(ordered):
        if one.reason is not None:
            text = plain(f"refused: {one.reason}", _REASON)
            ax.text(least, place, text, va="center", fontsize="x-small", color=GREY, parse_math=False)
    ax.set_yticks(range(len(ordered)), [plain(one.name) for one in ordered], parse_math=False)
    ax.invert_yaxis()
    ax.set_xlim(left=least / 2)
    ax.margins(x=0.25)
    style(ax, "seconds, median of the runs", "", "", grid="x")
    if len(clocks) > 1:
        legend(ax, loc="lower right")
    return ax


def write_picture(path: str | os.PathLike[str], candidates: Sequence[Candidate], clocks: Sequence[str]) -> None:
    """The bar chart as a PNG, whole or not at all.

    Raises: BackendUnavailableError without matplotlib; OSError for a file that cannot be written.
    """
    require_matplotlib("--out FILE.png")
    figure: Any = draw(candidates, clocks).figure
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
