"""The result of a comparison: its candidates, printed, stored or drawn."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashgp.bench.candidate import Candidate
from flashgp.bench.formats import format_error, format_ratio, format_seconds, text_table
from flashgp.bench.pages import draw_bars, environment_section, save
from flashgp.bench.records import dumps
from flashgp.foundations.quantities import readable_bytes
from flashgp.page import Figure, Notes, Page, PageTable, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; print it for a table, `comparison["name"]` is one candidate."""

    candidates: tuple[Candidate, ...]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Candidate:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(f"no candidate {name!r}; there are {[candidate.name for candidate in self.candidates]}")

    @property
    def ranked(self) -> list[Candidate]:
        """The candidates by their median, the fastest first, those that were refused last."""
        return sorted(self.candidates, key=lambda candidate: (candidate.seconds is None, candidate.seconds or 0.0))

    @property
    def fastest(self) -> Candidate | None:
        """The accepted candidate with the smallest median, or None if all were refused."""
        return next((candidate for candidate in self.ranked if candidate.accepted), None)

    def ratio(self, candidate: Candidate) -> float | None:
        """Seconds of a candidate over those of the fastest; None if it was refused."""
        best = self.fastest
        if best is None or not best.seconds or candidate.seconds is None:
            return None
        return candidate.seconds / best.seconds

    def record(self) -> dict[str, Any]:
        """Everything as plain values: settings, sizes, candidates with all runs, notes, environment."""
        return {
            **self.environment,
            **self.settings,
            "candidates": [
                {
                    **vars(candidate),
                    "clock_seconds": candidate.clock_seconds,
                    "times": candidate.times,
                    "runs": [vars(run) for run in candidate.runs],
                }
                for candidate in self.candidates
            ],
            "notes": self.notes,
        }

    def to_json(self) -> str:
        """The record as JSON text."""
        return dumps(self.record())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, atomically: a picture to a .png, a page to a .html, the record to any other file.

        Raises: BackendUnavailableError for a picture or page without matplotlib; DomainError for a page that cannot be
            written; OSError for another file.
        """
        save(path, self.plot, self._page, self.record)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Seconds of each candidate under each clock, on a logarithmic scale; needs matplotlib."""
        return draw_bars(self.ranked, self.clock_names, ax)

    def section(self, title: str) -> Section:
        """Picture, table and remarks, for a page; needs matplotlib."""
        head, rows = self.table()
        return Section(
            title,
            [
                Figure.of(self.plot(), f"Seconds of each candidate, {title}."),
                PageTable(head, rows, numeric=tuple(range(1, len(head) - 1))),
                Notes(self.remarks()),
            ],
        )

    def _page(self) -> Page:
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
        return (self.settings["clock"], *self.settings["clocks"])

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Head and rows as text, the fastest candidate first; a `!` marks a clock that disagrees."""
        others = self.clock_names[1:]
        rows = []
        for candidate in self.ranked:
            beside, flagged = candidate.clock_seconds, candidate.disagreements
            rows.append(
                (
                    candidate.name,
                    format_seconds(candidate.seconds),
                    format_seconds(candidate.spread),
                    *(format_seconds(beside.get(name)) + (" !" if name in flagged else "") for name in others),
                    format_ratio(self.ratio(candidate)),
                    "-" if candidate.peak_bytes is None else readable_bytes(candidate.peak_bytes),
                    format_error(candidate.error),
                    format_seconds(candidate.warmup_seconds),
                    candidate.verdict,
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
        flags = [f"! {one.name}: {line}" for one in self.candidates for line in one.disagreements.values()]
        return [how, *flags, *(f"note: {note}" for note in self.notes)]

    def __str__(self) -> str:
        return "\n".join([text_table(*self.table()), *self.remarks()])
