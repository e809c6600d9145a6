"""Events and stop reasons: values that survive JSON, whose sentences are made when shown."""

import json
import math
import string

import pytest

from flashgp.foundations.events import Event, EventKind, Obstacle, StopReason, joined
from flashgp.foundations.report import Report


def test_events_are_values() -> None:
    one = Event(EventKind.ROWS_JOINED, rows=12, distinct=7)
    assert one == Event(EventKind.ROWS_JOINED, distinct=7, rows=12)
    assert len({one, Event(EventKind.ROWS_JOINED, distinct=7, rows=12)}) == 1
    assert one != Event(EventKind.ROWS_JOINED, rows=12, distinct=8)
    one.fields["rows"] = 0
    assert one.fields == {"rows": 12, "distinct": 7}
    assert hash(Event(EventKind.JITTER, tried=[1e-8, 1e-6])) == hash(Event(EventKind.JITTER, tried=(1e-8, 1e-6)))


@pytest.mark.parametrize(
    "event",
    [
        Event(EventKind.SOLVE_ENDED, reason=StopReason.TIME, bound=math.inf, asked=None, residual=0.5),
        Event(EventKind.JITTER, jitter=[1e-8, [2.0]], tried=(1e-10,), factor_only=True),
        Event(EventKind.FLOAT64_PRODUCTS, solver="CG", obstacle=Obstacle.GROWING, iteration=3).during("update"),
    ],
)
def test_events_survive_json(event: Event) -> None:
    text = json.dumps(event.to_json(), allow_nan=False)
    assert Event.from_json(json.loads(text)) == event
    assert str(Event.from_json(json.loads(text))) == str(event)


def test_texts_of_older_files_are_notes() -> None:
    assert Event.from_json("moved 12 bytes") == Event(EventKind.NOTE, text="moved 12 bytes")
    assert str(Event.from_json("moved 12 bytes")) == "moved 12 bytes"
    gone = Event.from_json({"kind": "NO_SUCH_KIND", "fields": {"rows": 3}})
    assert gone.kind is EventKind.NOTE
    assert "rows" in str(gone)


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_has_a_sentence_whatever_its_fields_hold(kind: EventKind) -> None:
    names = {n for part in kind.value.replace("[", "").split("]") for _, n, _, _ in string.Formatter().parse(part) if n}
    for value in (3, None, "text", math.nan, True):
        said = str(Event(kind, **dict.fromkeys(names, value)))
        assert not set("{}[]|") & set(said.replace("None", "")), said
    str(Event(kind))


def test_sentences_leave_out_what_is_not_known() -> None:
    known = Event(EventKind.SOLVE_ENDED, reason=StopReason.TIME, bound=0.5, asked=0.25, residual=1e-3)
    assert "off by at most 5.00e-01" in str(known)
    assert "no bound" in str(Event(EventKind.SOLVE_ENDED, reason="time", bound=None, asked=0.25, residual=1e-3))
    rows = Event(EventKind.TILES_HALVED, rows=1)
    assert "in pieces of 1 row;" in str(rows)
    assert str(rows.during("update")).startswith("update: Memory")
    assert joined([rows, rows]) == f"{rows} {rows}"
    assert ("events", str(rows)) in Report(events=[rows]).lines()


def test_stop_reasons_say_what_to_do() -> None:
    for reason in StopReason:
        assert reason.sentence.endswith(".")
        assert bool(reason.advice) == (reason is not StopReason.GOAL)
    assert [r for r in StopReason if r.another_method_may_help] == ["iterations", "stagnated", "diverged"]
