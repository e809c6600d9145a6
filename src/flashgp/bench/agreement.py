"""Which clocks there are, and when two that timed the same work contradict each other.

Clocks agree if neither says more than `AGREEMENT` times what the other says with `GRACE_SECONDS` and its own overhead
on top. A disagreement does not refuse a candidate; it is said beside its time, since one of the clocks missed work.
"""

from collections.abc import Callable, Sequence

import torch

from flashgp.bench.clock import Clock, WallClock
from flashgp.bench.event_clock import EventClock
from flashgp.bench.formats import format_seconds
from flashgp.bench.profiler_clock import ProfilerClock
from flashgp.foundations.errors import DomainError

__all__ = ["AGREEMENT", "CLOCKS", "GRACE_SECONDS", "Clocks", "available_clocks", "clocks_named", "disagreement"]

Clocks = str | Sequence[str | Clock]
CLOCKS: dict[str, Callable[[], Clock]] = {"wall": WallClock, "events": EventClock, "profiler": ProfilerClock}
AGREEMENT = 3.0
GRACE_SECONDS = 1e-4
# Why a clock may say much less than the one that decides.
_LESS = {
    "profiler": "the time passes outside PyTorch's operations: in Python, in code compiled by others, or waiting",
    "events": "the work is the host's, or is queued on another stream than the current one",
}


def available_clocks() -> tuple[str, ...]:
    """The names of the clocks that this machine offers."""
    return tuple(name for name in CLOCKS if name != "events" or torch.accelerator.is_available())


def clocks_named(clocks: Clocks) -> list[Clock]:
    """The clocks given, or named; 'all' for every one that this machine offers.

    Raises: DomainError for an unknown name or the same name twice; BackendUnavailableError for one not offered here.
    """
    if isinstance(clocks, str):
        clocks = available_clocks() if clocks == "all" else [clocks]
    found = [clock if not isinstance(clock, str) else _made(clock) for clock in clocks]
    names = [clock.name for clock in found]
    if len(set(names)) < len(names):
        raise DomainError(f"`clocks` must have different names, got {names}; name each once")
    return found


def _made(name: str) -> Clock:
    if name not in CLOCKS:
        raise DomainError(f"`clocks` must be among {', '.join(CLOCKS)} or 'all', got {name!r}; correct the name")
    return CLOCKS[name]()


def disagreement(decides: str, seconds: float, other: str, other_seconds: float, overhead: float = 0.0) -> str | None:
    """Why two clocks contradict each other about the same work, or None if they agree.

    Args: decides, seconds: the clock whose time is reported; other, other_seconds: the one beside it; overhead: what
        that one's looking may have added or hidden, in seconds.
    """
    grace = GRACE_SECONDS + overhead
    said = f"{other} clock {format_seconds(other_seconds)}, {decides} clock {format_seconds(seconds)}"
    if other_seconds > AGREEMENT * (seconds + grace):
        return f"{said}: work went on while the {decides} clock did not count it"
    if seconds > AGREEMENT * (other_seconds + grace):
        return f"{said}: {_LESS.get(other, f'the {other} clock did not see all of the work')}"
    return None
