"""What a suite measured, written as a record, as curves over sizes or as a page; the last two need matplotlib."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgp.bench.formats import format_seconds
from flashgp.bench.pages import environment_section
from flashgp.bench.records import write_record
from flashgp.bench.suites.suite import Comparisons, Finding, unevaluated_table
from flashgp.foundations.atomic import replacing
from flashgp.page import Figure, Notes, Page, PageTable, Section, write_page
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

__all__ = ["save"]

_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY, INK)
_WIDTH, _HEIGHT = 8.0, 4.2  # inches


def save(path: str | os.PathLike[str], measured: Comparisons) -> None:
    """Write a picture (.png), a page (.html) or the record (any other ending), whole or not at all.

    Raises: BackendUnavailableError without matplotlib; DomainError, OSError for a file that cannot be written.
    """
    ending = Path(path).suffix.lower()
    if ending == ".png":
        write_curves(path, measured)
    elif ending in (".html", ".htm"):
        write_page(path, comparisons_page(measured))
    else:
        write_record(path, measured.record())


def draw_curves(findings: list[Finding], ax: "Axes | None" = None) -> "Axes":
    """Median seconds against n of one group, both logarithmic; dotted, what is built without numbers."""
    ax = new_axes(ax, (_WIDTH, _HEIGHT))
    solid: dict[str, list[tuple[int, float]]] = {}
    dotted: dict[str, list[tuple[int, float]]] = {}
    for finding in findings:
        for one in finding.comparison.candidates:
            if one.seconds is not None:
                solid.setdefault(one.name, []).append((finding.size, one.seconds))
        for entry in finding.unevaluated:
            dotted.setdefault(f"{entry.name} (no numbers)", []).append((finding.size, entry.seconds))
    for k, (name, points) in enumerate(solid.items()):
        _line(ax, name, points, color=_COLOURS[k % len(_COLOURS)], marker="o")
    for k, (name, points) in enumerate(dotted.items()):
        _line(ax, name, points, color=GREY, marker="xv+"[k % 3], linestyle=":")
    ax.set_xscale("log")
    ax.set_yscale("log")
    sizes = sorted({finding.size for finding in findings})
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.minorticks_off()
    style(ax, "n", "seconds, median", findings[0].group)
    legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _line(ax: "Axes", name: str, points: list[tuple[int, float]], **look: Any) -> None:
    points = sorted(points)
    ax.plot([n for n, _ in points], [s for _, s in points], label=plain(name), markersize=4, linewidth=1.4, **look)


def _groups(measured: Comparisons) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in measured.findings:
        groups.setdefault(finding.group, []).append(finding)
    return groups


def write_curves(path: str | os.PathLike[str], measured: Comparisons) -> None:
    """A picture of all groups, one under the other. Raises: BackendUnavailableError without matplotlib; OSError."""
    require_matplotlib("--out FILE.png")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    groups = list(_groups(measured).values())
    figure = Drawing(figsize=(_WIDTH, _HEIGHT * len(groups)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for ax, findings in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        draw_curves(findings, ax)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})


def comparisons_page(measured: Comparisons) -> Page:
    """The page of a suite: curves, what was built without numbers, every comparison with all clocks."""
    require_matplotlib("--out FILE.html")
    sections = []
    tables = [(finding.work, *unevaluated_table(finding)) for finding in measured.findings if finding.unevaluated]
    if tables:
        head = tables[0][1]
        rows = [(work, *row) for work, _, entries in tables for row in entries]
        sections.append(
            Section(
                "What was built, and what was computed",
                [
                    Notes(
                        [
                            "Building a closure or a lazy matrix takes the same microseconds whatever n is. Timed as "
                            "if it were the matrix, it beats broadcasting by a factor as large as one likes; the "
                            'numbers, under "really", take about as long as everybody else\'s.',
                            "flashgp.bench.compare refuses what is no numbers; the reason is beside it.",
                        ]
                    ),
                    PageTable(("work", *head), rows, numeric=(2, 3, 4, 5)),
                ],
            )
        )
    curves = [
        Figure.of(draw_curves(findings), f"Seconds against n, {group}.")
        for group, findings in _groups(measured).items()
    ]
    sections.append(Section("Seconds against n", curves))
    sections += [finding.comparison.section(finding.work) for finding in measured.findings]
    if measured.notes:
        sections.append(Section("Notes", [Notes(measured.notes)]))
    sections.append(environment_section(measured.environment))
    return Page(measured.title, measured.question, _highlights(measured), sections)


def _highlights(measured: Comparisons) -> list[tuple[str, str]]:
    largest = max(measured.findings, key=lambda finding: finding.size, default=None)
    if largest is None:
        return []
    highlights = [
        (format_seconds(b.seconds), f"{b.name}: no numbers, n={largest.size:,}") for b in largest.unevaluated[:1]
    ]
    best = largest.comparison.fastest
    if best is not None:
        highlights.append((format_seconds(best.seconds), f"{best.name}, the fastest, {largest.work}"))
    return highlights
