"""What a comparison found: candidates with time, peak memory and error of the same runs, printed, stored or drawn."""

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgp.bench.formats import format_bytes, format_error, format_ratio, format_seconds, text_table
from flashgp.bench.records import dumps, write_record
from flashgp.foundations.errors import DomainError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Candidate", "Comparison", "Run"]


@dataclass(frozen=True)
class Run:
    """One timed call and what that very call took and gave."""

    seconds: float
    peak_bytes: int
    error: float


@dataclass(frozen=True)
class Candidate:
    """The result of one candidate; `seconds`, `spread`, `peak_bytes` and `error` are None if it was refused.

    seconds: median over the runs. spread: interquartile range of the seconds. peak_bytes: the largest of the runs,
    above the level at entry, the result included. error: the largest of the runs, relative (see `verification`).
    warmup_seconds: all warm-up calls together. times: seconds of each run, in the order they were made.
    clock_times: seconds of each run under every other clock, by its name; these runs are not among `runs`.
    disagreements: what another clock says that contradicts the one that decides, one line each.
    """

    name: str
    accepted: bool
    reason: str | None
    seconds: float | None
    spread: float | None
    peak_bytes: int | None
    error: float | None
    warmup_seconds: float | None
    runs: tuple[Run, ...] = ()
    clock_times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    disagreements: tuple[str, ...] = ()

    @property
    def clock_seconds(self) -> dict[str, float]:
        """The median under every other clock, by its name; empty if the candidate was refused."""
        if not self.accepted:
            return {}
        return {name: statistics.median(times) for name, times in self.clock_times.items() if times}

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of each timed run, also of those before a refusal."""
        return tuple(run.seconds for run in self.runs)


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

    def claim(self, *, work: str, against: str, ours: str, peer: str, target: float | None = None) -> dict[str, Any]:
        """One row of a claims record: `ours` and `peer` name candidates, `ratio` is how many times faster ours is.

        Raises: DomainError if either was refused, since then nothing can be claimed.
        """
        ours_found, peer_found = self[ours], self[peer]
        for argument, candidate in (("ours", ours_found), ("peer", peer_found)):
            if candidate.seconds is None:
                raise DomainError(
                    f"`{argument}` must be an accepted candidate, got {candidate.name!r}, refused because it "
                    f"{candidate.reason}; correct the candidate before claiming anything"
                )
        assert ours_found.seconds is not None
        assert peer_found.seconds is not None
        ratio = peer_found.seconds / ours_found.seconds
        return {
            "work": work,
            "against": against,
            "ours_seconds": ours_found.seconds,
            "ours_spread_seconds": ours_found.spread,
            "peer_seconds": peer_found.seconds,
            "peer_spread_seconds": peer_found.spread,
            "ratio": ratio,
            "target": target,
            "met": None if target is None else ratio >= target,
            "error": ours_found.error,
            "peer_error": peer_found.error,
            "peak_bytes": ours_found.peak_bytes,
            "peer_peak_bytes": peer_found.peak_bytes,
            **{key: self.settings[key] for key in ("tolerance", "seed", "repeats", "inputs")},
        }

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

            write_picture(path, [("", self)])
        elif ending in (".html", ".htm"):
            from flashgp.bench.pages import comparison_page
            from flashgp.page import write_page

            write_page(path, comparison_page(self))
        else:
            write_record(path, self.record())

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Seconds of each candidate under each clock, on a logarithmic scale; needs matplotlib."""
        from flashgp.bench.pictures import draw

        return draw(self, ax)

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
