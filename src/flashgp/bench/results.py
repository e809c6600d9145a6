"""The result of a comparison: its candidates, printed, stored or drawn."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgp.bench.candidate import Candidate
from flashgp.bench.formats import format_bytes, format_error, format_ratio, format_seconds, text_table
from flashgp.bench.records import dumps, write_record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flashgp.page import Page, Section

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; print it for a table, `comparison["name"]` is one candidate."""

    candidates: tuple[Candidate, ...]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Candidate:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(f"no candidate {name!r}; there are {[candidate.name for candidate in self.candidates]}")

    @property
    def fastest(self) -> Candidate | None:
        """The accepted candidate with the smallest median, or None if all were refused."""
        accepted = [candidate for candidate in self.candidates if candidate.seconds is not None]
        return min(accepted, key=lambda candidate: candidate.seconds or 0.0, default=None)

    def record(self) -> dict[str, Any]:
        """Everything as plain values: settings, sizes, candidates with all runs, notes, environment."""
        return {
            **self.environment,
            **self.settings,
            "candidates": [
                {
                    **{key: value for key, value in vars(candidate).items() if key != "runs"},
                    "clock_seconds": candidate.clock_seconds,
                    "times": list(candidate.times),
                    "runs": [vars(run) for run in candidate.runs],
                }
                for candidate in self.candidates
            ],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The record as JSON text."""
        return dumps(self.record())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, atomically: a picture to a .png, a page to a .html, the record to any other file.

        Raises: BackendUnavailableError for a picture or page without matplotlib; DomainError for a page that cannot be
            written; OSError for another file.
        """
        ending = Path(path).suffix.lower()
        if ending == ".png":
            from flashgp.bench.pictures import write_picture

            write_picture(path, self.candidates, self.clock_names)
        elif ending in (".html", ".htm"):
            from flashgp.page import write_page

            write_page(path, self._page())
        else:
            write_record(path, self.record())

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Seconds of each candidate under each clock, on a logarithmic scale; needs matplotlib."""
        from flashgp.bench.pictures import draw

        return draw(self.candidates, self.clock_names, ax)

    def section(self, title: str) -> "Section":
        """Picture, table and remarks, for a page; needs matplotlib."""
        from flashgp.page import Figure, Notes, PageTable, Section

        head, rows = self.table()
        return Section(
            title,
            [
                Figure.of(self.plot(), f"Seconds of each candidate{f', {title}' if title else ''}."),
                PageTable(head, rows, numeric=tuple(range(1, len(head) - 1))),
                Notes(self.remarks()),
            ],
        )

    def _page(self) -> "Page":
        from flashgp.bench.pages import environment_section
        from flashgp.page import Page

        best = self.fastest
        highlights = [] if best is None else [(format_seconds(best.seconds), f"{best.name}, the fastest")]
        refused = sum(not candidate.accepted for candidate in self.candidates)
        return Page(
            title="Comparison",
            lead="Every timed run was checked against the reference at inputs of its own.",
            highlights=[*highlights, (str(refused), "refused")],
            sections=[self.section("Result"), environment_section(self.environment)],
        )

    @property
    def clock_names(self) -> tuple[str, ...]:
        """The clock that decides, then the others."""
        return (self.settings["clock"], *self.settings.get("clocks", ()))

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Head and rows as text, the fastest candidate first; a `!` marks a clock that disagrees."""
        best = self.fastest
        others = self.clock_names[1:]
        rows = []
        for candidate in sorted(self.candidates, key=lambda entry: (entry.seconds is None, entry.seconds or 0.0)):
            relative = None
            if best is not None and best.seconds and candidate.seconds is not None:
                relative = candidate.seconds / best.seconds
            flagged = {line.partition(" clock")[0] for line in candidate.disagreements}
            beside = candidate.clock_seconds
            rows.append(
                (
                    candidate.name,
                    format_seconds(candidate.seconds),
                    format_seconds(candidate.spread),
                    *(format_seconds(beside.get(name)) + (" !" if name in flagged else "") for name in others),
                    format_ratio(relative),
                    format_bytes(candidate.peak_bytes),
                    format_error(candidate.error),
                    format_seconds(candidate.warmup_seconds),
                    "accepted" if candidate.accepted else f"refused: {candidate.reason}",
                )
            )
        head = (
            "candidate", "median", "spread", *others, "relative", "peak memory", "error", "warm-up", "verdict"
        )  # fmt: skip
        return head, rows

    def remarks(self) -> list[str]:
        """What the table does not say: how it was measured, which clocks disagree, notes."""
        others = self.clock_names[1:]
        beside = f" beside {' and '.join(others)}" if others else ""
        how = (
            f"{self.settings['repeats']} interleaved runs, tolerance {self.settings['tolerance']:.1e}, "
            f"{self.settings['clock']} clock{beside}, memory by {self.settings['memory_method']}"
        )
        flags = [f"! {candidate.name}: {line}" for candidate in self.candidates for line in candidate.disagreements]
        return [how, *flags, *(f"note: {note}" for note in self.notes)]

    def __str__(self) -> str:
        return "\n".join([text_table(*self.table()), *self.remarks()])
