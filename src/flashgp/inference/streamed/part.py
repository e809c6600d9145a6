"""Conditioning that may have time for a part of the rows only: as much of the sample of the first pass as it allows."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from flashgp.foundations.deadline import TimeUp
from flashgp.foundations.errors import warn
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.settings import ConditionSettings
from flashgp.sources.survey import Survey

S = TypeVar("S", bound=Any)  # a state, with a report


def on_time(
    survey: Survey,
    settings: ConditionSettings,
    whole: Callable[[], S],
    part: Callable[[Survey], S],
    late: Callable[[int], bool],
) -> S:
    """The state of all rows, or else of rows of the sample, which an event and a warning say.

    Args: whole, the state of all rows, which may raise TimeUp; part, the state of the sample of a survey; late, whether
        conditioning on so many rows would end too late.
    """
    if not survey.cut and not late(survey.count):
        with suppress(TimeUp):
            return whole()
    deadline, time, rows = settings.run.deadline, settings.time, len(survey.x)
    while rows > time.min_rows and late(rows):
        rows = max(time.min_rows, int(rows / time.growth))
    state = part(survey if rows == len(survey.x) else survey.of_fewer(rows, settings.run.seed))
    event = Event(EventKind.POSTERIOR_OF_PART, rows=rows, of=survey.count, **deadline.told)
    if survey.cut:
        event = Event(EventKind.READ_IN_PART, rows=rows, read=survey.count, limit=deadline.limit)
    if survey.cut or rows < survey.count:
        warn(str(event))
        state.report.events.append(event)
    return state
