"""A Report and its Plan as JSON, and back, each field of the type it should have."""

import dataclasses
import json
from typing import Any

from flashgp.files.bounded_json import json_number, number_json
from flashgp.foundations.errors import DomainError
from flashgp.foundations.report import Report
from flashgp.planner.plan import Plan
from flashgp.table.json_fields import json_fields, json_list, json_text, refused

__all__ = ["json_report", "report_json"]

_FIELDS = tuple(f.name for f in dataclasses.fields(Report))
_TEXTS = ("backend", "device", "dtype", "route")
_COUNTS = ("iterations", "peak_bytes", "predicted_bytes")


def report_json(report: Report) -> dict[str, Any]:
    """JSON values of all fields."""
    fields = {name: _numbers(getattr(report, name)) for name in _FIELDS if name != "plan"}
    plan = report.plan
    return {**fields, "plan": json.loads(plan.to_json()) if isinstance(plan, Plan) else None}


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    return number_json(value) if isinstance(value, float) else value


def json_report(value: Any) -> Report:
    """The report that `report_json` described. Raises: ModelFileError naming the field."""
    fields = dict(json_fields(value, "report", _FIELDS))
    for name, field in fields.items():
        where = f"report.{name}"
        if name in _TEXTS:
            json_text(field, where)
        elif name == "events":
            fields[name] = [json_text(event, where) for event in json_list(field, where)]
        elif name == "plan":
            fields[name] = None if field is None else _plan(field)
        elif name in _COUNTS:
            if field is not None and type(field) is not int:
                raise refused(where, "an integer or null", field)
        elif field is not None:
            fields[name] = _nested(field, where) if name == "jitter" else json_number(field, where)
    return Report(**fields)


def _nested(value: Any, where: str) -> Any:
    """A number, or lists of numbers as deep as a batch has dimensions."""
    return [_nested(entry, where) for entry in value] if isinstance(value, list) else json_number(value, where)


def _plan(value: Any) -> Plan:
    kinds = {f.name: f.type for f in dataclasses.fields(Plan)}
    fields = json_fields(value, "report.plan", tuple(kinds))
    for name, kind in kinds.items():
        if kind not in (str, int, float):
            continue  # notes and alternatives: Plan.from_json looks at them
        allowed = (int, float) if kind is float else kind
        if isinstance(fields[name], bool) or not isinstance(fields[name], allowed):
            raise refused(f"report.plan.{name}", f"of type {kind}", fields[name])
    try:
        return Plan.from_json(json.dumps(fields))
    except DomainError as error:
        raise refused("report.plan", f"a plan ({error})", "another one") from None
