"""Report: what was planned and what then happened, carried by every answer."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from flashgp.foundations.cells import html_table
from flashgp.foundations.events import Event, joined
from flashgp.foundations.quantities import readable_bytes, readable_seconds

AND = " and "


@dataclass
class Report:
    """The record of one fit, solve or prediction; None means not applicable.

    Attributes:
        route: as text.
        backend: as text.
        device: as text.
        dtype: as text.
        iterations: of the solver.
        relative_residual: |r| / |rhs| in float64.
        error_bound: of the mean, in units of y, eq. (M-37); of Fourier series measured beside another grid, (M-465).
        standard_error: of a sampled answer.
        jitter: added to the diagonal, absolute; a list in a batch.
        predicted_bytes: by the plan.
        peak_bytes: used.
        predicted_seconds: by the plan.
        seconds: used.
        compile_seconds: of compiling beside them, once.
        events: typed (foundations/events.py), one for every change of route, precision, jitter or tolerance.
        plan: the plan that ran.
    """

    route: str = ""
    backend: str = ""
    device: str = ""
    dtype: str = ""
    iterations: int | None = None
    relative_residual: float | None = None
    error_bound: float | None = None
    standard_error: float | None = None
    jitter: float | list[float] | None = None
    predicted_bytes: int | None = None
    peak_bytes: int | None = None
    predicted_seconds: float | None = None
    seconds: float | None = None
    compile_seconds: float | None = None
    events: list[Event] = field(default_factory=list)
    plan: Any = None

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value) of every field that is set; what was predicted stands beside what was measured."""
        shown = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _PAIRS:
                name, measured, readable = _PAIRS[f.name]
                sides = ((value, "predicted"), (getattr(self, measured), "measured"))
                text = ", ".join(f"{readable(side)} {what}" for side, what in sides if side is not None)
                shown += [(name, text)] if text else []
                continue
            if value is None or value == "" or value == [] or f.name in ("plan", "peak_bytes", "seconds"):
                continue
            if f.name == "compile_seconds":
                text = f"{readable_seconds(value)}, once, not in the time"
            elif isinstance(value, float):
                text = f"{value:.3g}"
            elif f.name == "events":
                text = joined(value)
            else:
                text = str(value)
            shown.append((f.name.replace("_", " "), text))
        return shown

    def __str__(self) -> str:
        return "\n".join(f"{name:<18} {text}" for name, text in self.lines())

    def _repr_html_(self) -> str:
        return html_table(self.lines())


def joined_titles(*titles: str | None) -> str:
    """Titles, some of which name several already, each once: "a and b" and "b" are "a and b"."""
    return AND.join(dict.fromkeys(one for title in titles if title for one in title.split(AND)))


# What was predicted, the name of the pair, what was measured, and how both are written.
_PAIRS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "predicted_bytes": ("peak memory", "peak_bytes", readable_bytes),
    "predicted_seconds": ("time", "seconds", readable_seconds),
}
