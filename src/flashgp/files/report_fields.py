"""A Report and its Plan as JSON, and back, each field of the type it should have."""

import dataclasses
import json
from typing import Any

from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.json_values import json_fields, json_list, json_number, json_text, number_json, refused
from flashgp.foundations.report import Report
from flashgp.inference.base_state import UPDATE
from flashgp.planner.plan import LATER, Plan

_FIELDS = tuple(f.name for f in dataclasses.fields(Report))
_TEXTS = ("backend", "device", "dtype", "route")
# Fields of a plan that the first format lacks.
_SINCE_2 = ("distinct", "rank", "solver", "training", "training_bytes", "training_factor_passes", "training_rank")
_OLD_UPDATE = "online: "
_COUNTS = ("iterations", "peak_bytes", "predicted_bytes")


def report_json(report: Report) -> dict[str, Any]:
    """JSON values of all fields."""
    fields = {name: _numbers(getattr(report, name)) for name in _FIELDS if name not in ("events", "plan")}
    fields["events"] = [event.to_json() for event in report.events]
    plan = report.plan
    return {**fields, "plan": json.loads(plan.to_json()) if isinstance(plan, Plan) and not plan.approximation else None}


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    return number_json(value) if isinstance(value, float) else value


def json_report(value: Any, version: int) -> Report:
    """The report that `report_json` of a format version described. Raises: ModelFileError naming the field."""
    fields = dict(json_fields(value, "report", _FIELDS))
    for name, field in fields.items():
        where = f"report.{name}"
        if name in _TEXTS:
            json_text(field, where)
        elif name == "events":
            fields[name] = [_event(event, where) for event in json_list(field, where)]
        elif name == "plan":
            fields[name] = None if field is None else _plan(field, version)
        elif name in _COUNTS:
            if field is not None and type(field) is not int:
                raise refused(where, "an integer or null", field)
        elif field is not None:
            fields[name] = _nested(field, where) if name == "jitter" else json_number(field, where)
    return Report(**fields)


def _event(value: Any, where: str) -> Event:
    """An event. Files from before events were typed hold its sentence, which begins so where an update replaces it."""
    if isinstance(value, str) and value.startswith(_OLD_UPDATE):
        return Event(EventKind.NOTE, text=value.removeprefix(_OLD_UPDATE), stage=UPDATE)
    if not isinstance(value, str):
        fields = json_fields(value, where, ("kind", "fields"))
        json_text(fields["kind"], f"{where}.kind")
        if not isinstance(fields["fields"], dict):
            raise refused(f"{where}.fields", "an object", fields["fields"])
    try:
        return Event.from_json(value)
    except (KeyError, TypeError, ValueError):
        raise refused(f"{where}.fields", "fields of an event", value) from None


def _nested(value: Any, where: str) -> Any:
    """A number, or lists of numbers as deep as a batch has dimensions."""
    return [_nested(entry, where) for entry in value] if isinstance(value, list) else json_number(value, where)


def _plan(value: Any, version: int) -> Plan:
    names = [f.name for f in dataclasses.fields(Plan) if version > 1 or f.name not in _SINCE_2]
    if isinstance(value, dict):
        value = {**LATER, **value}
    fields = dict(json_fields(value, "report.plan", names))
    if version == 1:  # what there was then: a factor for everything
        fields |= {
            "distinct": fields["n"], "rank": 0, "solver": "cholesky", "training": "exact",
            "training_bytes": fields["peak_bytes"], "training_factor_passes": 0, "training_rank": 0,
        }  # fmt: skip
    try:
        return Plan.from_json(json.dumps(fields))
    except DomainError as error:
        raise refused("report.plan", f"a plan ({error})", "another one") from None
