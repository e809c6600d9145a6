"""Findings of the doctor: values to be printed, shown in a notebook, or stored as JSON."""

import html
import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "note", "warning"]
_COLUMNS = 120  # of printed lines
_MARKS: dict[str, str] = {"ok": " ", "note": "-", "warning": "!"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Fields: topic; found, a sentence; severity, "warning" where results or seconds are at risk; advice, what to do,
    empty where nothing needs to be done; values, what it rests on, as JSON has it.
    """

    topic: str
    found: str
    severity: Severity = "ok"
    advice: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """All findings of one examination, topic by topic."""

    findings: tuple[Finding, ...]

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of this severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice, that of warnings first."""
        ordered = (*self.of("warning"), *self.of("note"), *self.of("ok"))
        return tuple(dict.fromkeys(finding.advice for finding in ordered if finding.advice))

    def to_json(self) -> str:
        """The findings as JSON."""
        return json.dumps({"findings": [asdict(finding) for finding in self.findings]}, allow_nan=False)

    def rows(self) -> list[tuple[str, str, str]]:
        """(mark, topic, sentence) of each finding; a topic is named once."""
        shown, last = [], ""
        for finding in self.findings:
            topic, last = "" if finding.topic == last else finding.topic, finding.topic
            shown.append((_MARKS[finding.severity], topic, finding.found))
        return shown

    def __str__(self) -> str:
        width = max((len(finding.topic) for finding in self.findings), default=0)
        starts = [(f"{mark} {topic:<{width}}  ", found) for mark, topic, found in self.rows()]
        starts += [("=> ", advice) for advice in self.advice]
        return "\n".join(
            textwrap.fill(  # paths and commands are not broken
                text, _COLUMNS, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False,
                break_on_hyphens=False,
            ) for start, text in starts
        )  # fmt: skip

    def _repr_html_(self) -> str:
        rows = (map(html.escape, row) for row in self.rows())
        cells = (f"<td>{mark}</td><th>{topic}</th><td>{found}</td>" for mark, topic, found in rows)
        items = "".join(f"<li>{html.escape(advice)}</li>" for advice in self.advice)
        table = "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
        return table + (f"<ul>{items}</ul>" if items else "")
