"""One candidate of a comparison: time, peak memory and error of the same runs, or why it was refused."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Candidate", "Run"]


@dataclass(frozen=True)
class Run:
    """Seconds, peak memory and relative error of one timed call."""

    seconds: float
    peak_bytes: int
    error: float


@dataclass(frozen=True)
class Candidate:
    """The result of one candidate; `seconds`, `spread`, `peak_bytes` and `error` are None if it was refused.

    Fields:
        seconds: median over the runs.
        spread: interquartile range of the seconds.
        peak_bytes: the largest of the runs, above the level at entry, the result included.
        error: the largest of the runs, relative (see `verification`).
        warmup_seconds: all warm-up calls together.
        runs: the timed runs in the order they were made.
        clock_times: seconds of each run under every other clock, by its name; these runs are not among `runs`.
        disagreements: how another clock contradicts the one that decides, a line by its name.
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
    disagreements: Mapping[str, str] = field(default_factory=dict)

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

    @property
    def verdict(self) -> str:
        """Accepted, or refused with the reason."""
        return "accepted" if self.accepted else f"refused: {self.reason}"
