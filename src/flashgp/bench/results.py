"""The result of a comparison: its candidates with time, peak memory and error of the same runs, as a table or a record.

Also how cells of tables look: three digits of seconds and ratios, two of errors, a dash for None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashgp.foundations.quantities import readable_bytes

_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True)
class Run:
    """Seconds, peak memory and relative error of one timed call."""

    seconds: float
    peak_bytes: int
    error: float


@dataclass(frozen=True)
class Candidate:
    """The result of one candidate; `seconds`, `spread`, `peak_bytes` and `error` are None if it was refused.

    Attributes:
        seconds: median over the runs.
        spread: interquartile range of the seconds.
        peak_bytes: the largest of the runs, above the level at entry, the result included.
        error: the largest of the runs, relative (see `answers`).
        warmup_seconds: all warm-up calls together.
        runs: the timed runs in the order they were made, also those before a refusal.
    """

    name: str
    accepted: bool
    reason: str | None
    seconds: float | None = None
    spread: float | None = None
    peak_bytes: int | None = None
    error: float | None = None
    warmup_seconds: float | None = None
    runs: tuple[Run, ...] = ()

    @property
    def verdict(self) -> str:
        """Accepted, or refused with the reason."""
        return "accepted" if self.accepted else f"refused: {self.reason}"


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: print it for a table; `comparison["name"]` is one candidate."""

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
        """The comparison as plain values, for `write_record`: settings, sizes, candidates with all runs,
        environment."""
        return {
            **self.environment,
            **self.settings,
            "candidates": [{**vars(one), "runs": [vars(run) for run in one.runs]} for one in self.candidates],
            "notes": self.notes,
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Head and rows as text, the fastest candidate first."""
        head = ("candidate", "median", "spread", "relative", "peak memory", "error", "warm-up", "verdict")
        rows: list[tuple[str, ...]] = [
            (
                one.name,
                format_seconds(one.seconds),
                format_seconds(one.spread),
                format_ratio(self.ratio(one)),
                "-" if one.peak_bytes is None else readable_bytes(one.peak_bytes),
                format_error(one.error),
                format_seconds(one.warmup_seconds),
                one.verdict,
            )
            for one in self.ranked
        ]
        return head, rows

    def remarks(self) -> list[str]:
        """Remarks beside the table: how it was measured, and notes."""
        how = (
            f"{self.settings['repeats']} interleaved runs, tolerance {self.settings['tolerance']:.1e}, "
            f"{self.settings['clock']} clock, memory by {self.settings['memory_method']}"
        )
        return [how, *(f"note: {note}" for note in self.notes)]

    def __str__(self) -> str:
        return "\n".join([text_table(*self.table()), *self.remarks()])


def format_seconds(seconds: float | None) -> str:
    """Three digits and a unit: `1.23 ms`; a dash for None."""
    if seconds is None:
        return "-"
    for size, unit in _SECOND_UNITS:
        if abs(seconds) >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds:.1e} s"


def format_ratio(ratio: float | None) -> str:
    """Factor of speed as text, `4.1x`; a dash for None."""
    return "-" if ratio is None else f"{_three_digits(ratio)}x"


def format_error(error: float | None) -> str:
    """Two digits and an exponent: `3.1e-09`; a dash for None."""
    if error is None:
        return "-"
    return "0" if error == 0 else f"{error:.1e}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal, columns aligned, no trailing blanks."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 10 else f"{value:.1f}" if magnitude < 100 else f"{value:.0f}"
