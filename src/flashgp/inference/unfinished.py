"""Whether a fit is what it would become with more time: what is read from its model, such as importance, says so."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from flashgp.foundations.events import Event, EventKind


class Unfinished(StrEnum):
    """Why a fit did not finish; the value is why, in words."""

    INTERRUPT = "Ctrl-C ended the fit"
    TIME = "the time limit ended the fit"
    SEARCH = "the search ended before its optimum"
    LOST = "the approximation may lose much against exact inference"

    @property
    def heading(self) -> str:
        """What figures of such a model are headed by."""
        return f"of a model that did not finish: {self.value}"


@dataclass(frozen=True)
class UnfinishedSettings:
    """Args: max_lost, nats of each row that an approximation may lose against the exact model: beyond, whole inputs can
    look as if they said nothing."""

    max_lost: float = 0.3


_ENDED = {
    EventKind.FIT_INTERRUPTED: Unfinished.INTERRUPT,
    EventKind.FIT_SOLVE_INTERRUPTED: Unfinished.INTERRUPT,
    EventKind.FIT_TIME_UP: Unfinished.TIME,
    EventKind.READ_IN_PART: Unfinished.TIME,
    EventKind.POSTERIOR_OF_PART: Unfinished.TIME,
    EventKind.SEARCH_UNFINISHED: Unfinished.SEARCH,
}
_LOSING = {EventKind.LOST: "nats", EventKind.BRACKET: "nats", EventKind.MINIBATCH_FIT: "gap"}  # and the field of it


def why_unfinished(
    events: Iterable[Event], *, interrupted: bool, settings: UnfinishedSettings = UnfinishedSettings()
) -> Unfinished | None:
    """The first reason that applies, in the order of `Unfinished`; None of a fit that finished.

    Args: events, of the report of the fit and of its posterior; interrupted, whether it was cut short.
    """
    events = list(events)
    found = {_ENDED[event.kind] for event in events if event.kind in _ENDED}
    if any((event.fields.get(_LOSING.get(event.kind, "")) or 0.0) > settings.max_lost for event in events):
        found.add(Unfinished.LOST)
    if interrupted and not found & {Unfinished.INTERRUPT, Unfinished.TIME}:
        found.add(Unfinished.SEARCH)
    return next((reason for reason in Unfinished if reason in found), None)
