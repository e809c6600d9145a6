"""Whether plans keep their word on this machine: logged seconds beside predicted ones, for `flashgp tune --check`."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from flashgp.foundations.run_log import Run

__all__ = ["FACTOR", "CheckedRun", "checked_runs"]

FACTOR = 1.5  # a prediction farther off than this is shown


@dataclass(frozen=True)
class CheckedRun:
    """All logged runs of one kind. Fields: run, the latest of them, with the median seconds and predicted seconds of
    all; ratio, seconds over predicted seconds; off, whether it is beyond FACTOR either way."""

    run: Run
    ratio: float

    @property
    def off(self) -> bool:
        return not 1 / FACTOR <= self.ratio <= FACTOR


def checked_runs(runs: Iterable[Run]) -> list[CheckedRun]:
    """Runs of equal sizes and routes together; those farthest off first."""
    kinds: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        kind = (run.work, run.route, run.backend, run.device, run.dtype, run.n, run.m, run.d, run.t, run.batch)
        kinds.setdefault(kind, []).append(run)
    found = []
    for same in kinds.values():
        last = same[-1]
        seconds = statistics.median(run.seconds for run in same)
        predicted = statistics.median(run.predicted_seconds for run in same)
        whole = Run(
            last.work, last.route, last.backend, last.device, last.dtype, last.n, last.m, last.d, last.t, last.batch,
            predicted, seconds, sum(run.count for run in same),
        )  # fmt: skip
        found.append(CheckedRun(whole, seconds / predicted))
    return sorted(found, key=lambda one: -max(one.ratio, 1 / one.ratio))
