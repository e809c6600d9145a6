"""Why a fit did not finish, told from its events."""

from typing import Any

import pytest

from flashgp.foundations.events import Event, EventKind
from flashgp.inference.findings import Unfinished, UnfinishedSettings, why_unfinished

LOST = {"standard_error": 0.01, "seconds": None}


@pytest.mark.parametrize(
    ("events", "interrupted", "wanted"),
    [
        ([], False, None),
        ([Event(EventKind.SUBSET_FIT, starts=4, subset=400, rows=900)], False, None),
        ([Event(EventKind.FIT_TIME_UP, limit=3.0)], True, Unfinished.TIME),
        ([Event(EventKind.FIT_INTERRUPTED)], True, Unfinished.INTERRUPT),
        ([Event(EventKind.LOST, nats=2.0, **LOST), Event(EventKind.FIT_TIME_UP, limit=3.0)], True, Unfinished.TIME),
        ([Event(EventKind.SEARCH_UNFINISHED, evaluations=9, expected=3.0)], False, Unfinished.SEARCH),
        ([], True, Unfinished.SEARCH),
        ([Event(EventKind.LOST, nats=0.2, **LOST)], False, None),
        ([Event(EventKind.LOST, nats=0.4, **LOST)], False, Unfinished.LOST),
        ([Event(EventKind.BRACKET, lower=-2.0, upper=-1.0, nats=1.0)], False, Unfinished.LOST),
        ([Event(EventKind.ROWS_LEARNED, gap=0.9)], False, Unfinished.LOST),
        ([Event(EventKind.ROWS_LEARNED, gap=None)], False, None),
    ],
)
def test_what_ended_it_comes_first_then_what_is_lost(events: list[Event], interrupted: bool, wanted: Any) -> None:
    assert why_unfinished(events, interrupted=interrupted) is wanted


def test_how_much_may_be_lost_is_a_setting() -> None:
    events = [Event(EventKind.LOST, nats=0.4, **LOST)]
    assert why_unfinished(events, interrupted=False, settings=UnfinishedSettings(max_lost=0.5)) is None
