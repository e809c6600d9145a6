"""The accelerator's own clock: two events on its stream, and the time between them as the device counts it.

What another stream does is not between them: a candidate that works there shows as a disagreement with the wall clock.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from flashgp.bench.clock import collector_off, synchronise
from flashgp.foundations.errors import BackendUnavailableError

__all__ = ["EventClock"]

T = TypeVar("T")
_MILLISECOND = 1e-3  # the unit of Event.elapsed_time


class EventClock:
    """Time between two events on the current stream of the accelerator in use.

    The device is asked once, here. Raises: BackendUnavailableError without an accelerator.
    Source: torch.Event, `elapsed_time` in milliseconds.

    Example:
        >>> fgp.bench.EventClock().measure(lambda: x @ x.T)  # doctest: +SKIP
    """

    name = "events"
    overhead_seconds = 2e-5  # two events with an idle stream between them, and what the host takes to record them

    def __init__(self) -> None:
        if not torch.accelerator.is_available():
            raise BackendUnavailableError(
                "`clocks` names 'events', which are an accelerator's, and there is none here; leave it out, or write "
                "clocks='all' for those that this machine offers"
            )
        self.device = torch.accelerator.current_accelerator()

    def measure(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of `function()` and the seconds between an event before it and one after it."""
        with collector_off():
            start, stop = (torch.Event(self.device, enable_timing=True) for _ in range(2))
            synchronise()
            start.record()
            result = function()
            stop.record()
            synchronise()
            return result, start.elapsed_time(stop) * _MILLISECOND
