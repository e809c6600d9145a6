"""Pages of comparisons: one section for each, with its picture and its table. Pictures need matplotlib."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashgp.bench.formats import format_seconds
from flashgp.bench.pictures import draw
from flashgp.bench.results import Comparison
from flashgp.page import Facts, Figure, Notes, Page, PageTable, Section

__all__ = ["comparison_page", "comparison_section", "environment_section"]


def comparison_section(title: str, comparison: Comparison) -> Section:
    """What was compared, as a picture, as a table, and what the table does not say."""
    head, rows = comparison.table()
    return Section(
        title,
        [
            Figure.of(draw(comparison), f"Seconds of each candidate{f', {title}' if title else ''}."),
            PageTable(head, rows, numeric=tuple(range(1, len(head) - 1))),
            Notes(comparison.remarks()),
        ],
    )


def comparison_page(comparison: Comparison, title: str = "Comparison") -> Page:
    """One comparison as a page."""
    best = comparison.fastest
    highlights = [] if best is None else [(format_seconds(best.seconds), f"{best.name}, the fastest")]
    refused = sum(not candidate.accepted for candidate in comparison.candidates)
    return Page(
        title=title,
        lead="Every timed run was checked against the reference at inputs of its own.",
        highlights=[*highlights, (str(refused), "refused")],
        sections=[comparison_section("Result", comparison), environment_section(comparison.environment)],
    )


def environment_section(environment: Mapping[str, Any], more: Sequence[tuple[str, str]] = ()) -> Section:
    """On what it was measured."""
    hardware, versions = environment.get("hardware") or {}, environment.get("versions") or {}
    pairs = [
        ("processor", f"{hardware.get('cpu')}, {hardware.get('cores')} cores"),
        ("accelerators", ", ".join(str(gpu.get("name")) for gpu in hardware.get("gpus") or ()) or "none"),
        ("threads", str(environment.get("threads"))),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", str(environment.get("commit") or "-")),
        ("date", str(environment.get("date"))),
    ]
    return Section("Measured on", [Facts([*pairs, *more])])
