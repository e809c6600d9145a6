"""Results as files: a record, a picture or a page. Bars of one comparison, curves over sizes; both need matplotlib."""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgp.bench.candidate import Candidate
from flashgp.bench.formats import format_seconds
from flashgp.bench.records import write_record
from flashgp.foundations.atomic import write_whole
from flashgp.page import Facts, Figure, Page, Section, write_page
from flashgp.plots import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_bars", "draw_curves", "environment_section", "save"]

_BARS = (7.4, 0.42, 1.3)  # inches: width, height of one bar, and of what stands around the bars
_REASON_CHARACTERS = 60  # of a refusal, that are shown


def save(
    path: str | os.PathLike[str],
    plot: Callable[[], "Axes"],
    page: Callable[[], Page],
    record: Callable[[], Mapping[str, Any]],
) -> None:
    """Write a picture (.png), a page (.html, .htm) or the record (any other ending), whole or not at all.

    Raises: BackendUnavailableError for a picture or page without matplotlib; DomainError for a page that cannot be
        written; OSError for another file.
    """
    ending = Path(path).suffix.lower()
    if ending == ".png":
        write_whole(path, Figure.of(plot(), "").png)
    elif ending in (".html", ".htm"):
        write_page(path, page())
    else:
        write_record(path, record())


def draw_bars(ranked: Sequence[Candidate], clocks: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """A bar for each candidate, in this order, and clock, the one that decides first; refused candidates say why.

    Raises: BackendUnavailableError without matplotlib.
    """
    width, row_height, frame_height = _BARS
    ax = axes.new_axes(ax, (width, frame_height + row_height * max(1, len(ranked))))
    ax.set_xscale("log")
    height = 0.8 / len(clocks)
    for k, clock in enumerate(clocks):
        times = [one.seconds if k == 0 else one.clock_seconds.get(clock) for one in ranked]
        places = [place - 0.4 + (k + 0.5) * height for place in range(len(ranked))]
        widths = [seconds or 0.0 for seconds in times]
        ax.barh(places, widths, height, color=axes.COLOURS[k % len(axes.COLOURS)], label=f"{clock} clock")
        for place, seconds in zip(places, times, strict=True):
            if seconds:
                ax.text(seconds, place, f" {format_seconds(seconds)}", va="center", fontsize="x-small", color=axes.INK)
    shortest = min((s for one in ranked for s in (one.seconds, *one.clock_seconds.values()) if s), default=1e-6)
    for place, one in enumerate(ranked):
        if one.reason is not None:
            reason = axes.plain(f"refused: {one.reason}", _REASON_CHARACTERS)
            ax.text(shortest, place, reason, va="center", fontsize="x-small", color=axes.GREY, parse_math=False)
    ax.set_yticks(range(len(ranked)), [axes.plain(one.name) for one in ranked], parse_math=False)
    ax.invert_yaxis()
    ax.set_xlim(left=shortest / 2)
    ax.margins(x=0.25)
    axes.style(ax, "seconds, median of the runs", "", "", grid="x")
    if len(clocks) > 1:
        axes.legend(ax, loc="lower right")
    return ax


def draw_curves(
    ax: "Axes",
    title: str,
    seconds: Mapping[str, Sequence[tuple[int, float]]],
    without_numbers: Mapping[str, Sequence[tuple[int, float]]],
) -> None:
    """Median seconds against n, (n, seconds) by name, both logarithmic; dotted, what is built without numbers."""
    colours = itertools.cycle(axes.COLOURS)
    solid = [(name, points, next(colours), "o", "-") for name, points in seconds.items()]
    dotted = [(name, points, axes.GREY, "xv+"[k % 3], ":") for k, (name, points) in enumerate(without_numbers.items())]
    for name, points, colour, marker, line in solid + dotted:
        n, times = zip(*sorted(points), strict=True)
        look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": line}
        ax.plot(n, times, label=axes.plain(name), markersize=4, linewidth=1.4, **look)
    ax.set_xscale("log")
    ax.set_yscale("log")
    sizes = sorted({n for points in (*seconds.values(), *without_numbers.values()) for n, _ in points})
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.minorticks_off()
    axes.style(ax, "n", "seconds, median", title)
    axes.legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def environment_section(environment: Mapping[str, Any]) -> Section:
    """The section of a page that says on what something was measured: hardware, versions, commit and date."""
    hardware, versions = environment["hardware"], environment["versions"]
    pairs = [
        ("processor", f"{hardware['cpu']}, {hardware['cores']} cores"),
        ("accelerators", ", ".join(gpu["name"] for gpu in hardware["gpus"]) or "none"),
        ("threads", str(environment["threads"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", environment["commit"] or "-"),
        ("date", environment["date"]),
    ]
    return Section("Measured on", [Facts(pairs)])
