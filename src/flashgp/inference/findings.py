"""Findings about a table and its fit: odd values before it, an unfinished search after it.

Nothing is changed or refused: an event and a warning name the column, the row and the value.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind


@dataclass(frozen=True)
class OddSettings:
    """Settings of what counts as odd.

    Args:
        labelled_rows: below which nobody knows what two values of a target are.
        counted_rows: below which whole numbers are no counts; counted_share, of distinct ones among counts, at most.
        quartile_rows: below which quartiles say nothing.
        share: of a column's standard deviation, within which half of its values are lost beside one that is far out.
    """

    labelled_rows: int = 5
    counted_rows: int = 20
    counted_share: float = 0.5
    quartile_rows: int = 8
    share: float = 1e-3


DEFAULTS = OddSettings()


@torch.no_grad()
def odd_data(
    x: Tensor, y: Tensor, names: Sequence[str], rows: Any = None, settings: OddSettings = DEFAULTS
) -> list[Event]:
    """Suspicious data, as events; warns of each kind.

    Args:
        x: (n, d), finite; y: (n,) or (n, outputs), of 0 outputs for x alone, NaN where a cell is missing.
        names: of the columns of x and of y, one after the other.
        rows: (n,) whole numbers, as the caller counts them; None where nobody knows, such as of a sample.

    Cost: two selections in every column.
    """
    columns = [*x.detach().double().cpu().unbind(-1), *y.detach().double().cpu().unsqueeze(-1).flatten(1).unbind(-1)]
    labels = [event for column in columns[x.shape[-1] :] if (event := _two_values(column, settings)) is not None]
    found = [_far_out(column, settings) for column in columns]
    far = [
        Event(EventKind.FAR_OUT, column=name, row=None if rows is None else int(rows[row]), value=value, share=share)
        for name, (row, value, share) in ((name, one) for name, one in zip(names, found, strict=True) if one)
    ]
    for event in (*labels[:1], *far):
        warn(str(event))
    return [*labels, *far]


def _two_values(y: Tensor, settings: OddSettings) -> Event | None:
    """Event for a target (n,) that has two values in more than a few rows."""
    y = y[~y.isnan()]
    if len(y) < settings.labelled_rows:
        return None
    low, high = float(y.min()), float(y.max())
    if low == high or not bool(((y == low) | (y == high)).all()):
        return None
    return Event(EventKind.TWO_VALUES, low=low, high=high)


def counts_suggested(name: str, y: Any, settings: OddSettings = DEFAULTS) -> list[Event]:
    """Event for a target (n,) that looks like counts: whole numbers from 0, most of which are in several rows."""
    if len(y) < settings.counted_rows or float(y.min()) < 0.0 or bool((y % 1.0 != 0.0).any()):
        return []
    distinct = len(set(y.tolist()))
    if not 2 < distinct <= settings.counted_share * len(y):
        return []
    return [Event(EventKind.COUNTS_SUGGESTED, target=name, low=float(y.min()), high=float(y.max()), distinct=distinct)]


def _far_out(column: Tensor, settings: OddSettings) -> tuple[int, float, float] | None:
    """(row, value, share) of the value beside which half of the others lie within a small share of the deviation."""
    present = column[~column.isnan()]
    n = len(present)
    largest = float(present.abs().max()) if n else 0.0
    if n < settings.quartile_rows or largest == 0.0:
        return None
    reduced = present / largest  # squares neither overflow nor underflow
    low, middle, high = (float(reduced.kthvalue(k).values) for k in (n // 4 + 1, n // 2 + 1, n - n // 4))
    deviation = float(reduced.std(correction=0))
    if not 0.0 < high - low < settings.share * deviation:
        return None
    row = int((column / largest - middle).abs().nan_to_num(nan=-1.0).argmax())
    return row, float(column[row]), (high - low) / deviation


class Unfinished(StrEnum):
    """Reason that a fit did not finish; the value is the reason, in words."""

    INTERRUPT = "Ctrl-C ended the fit"
    TIME = "the time limit ended the fit"
    SEARCH = "the search ended before its optimum"
    LOST = "the approximation may lose much against exact inference"

    @property
    def heading(self) -> str:
        """Heading of figures of such a model."""
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
    EventKind.SITES_CUT: Unfinished.TIME,
    EventKind.SEARCH_UNFINISHED: Unfinished.SEARCH,
}
_LOSING = {EventKind.LOST: "nats", EventKind.BRACKET: "nats", EventKind.ROWS_LEARNED: "gap"}  # and the field of it


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
