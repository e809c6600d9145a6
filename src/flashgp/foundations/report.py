"""Report: what was planned and what then happened, carried by every answer."""

import html
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Report", "counted", "readable_bytes", "readable_seconds"]


@dataclass
class Report:
    """The record of one fit, solve or prediction; None means not applicable.

    Fields: route, backend, device, dtype as text; iterations; relative_residual |r| / |rhs| in float64; error_bound
    of the mean in units of y, eq. (M-37); standard_error; jitter added to the diagonal (absolute; a list in a batch);
    predicted and peak bytes, predicted and used seconds; compile_seconds, what compiling took beside them, once;
    events, one line for every change of route, precision, jitter or tolerance; plan.
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
    events: list[str] = field(default_factory=list)
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
                text = "; ".join(value)
            else:
                text = str(value)
            shown.append((f.name.replace("_", " "), text))
        return shown

    def __str__(self) -> str:
        return "\n".join(f"{name:<18} {text}" for name, text in self.lines())

    def _repr_html_(self) -> str:
        body = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(t)}</td></tr>" for n, t in self.lines())
        return f"<table>{body}</table>"


def readable_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(count: int, thing: str) -> str:
    """A number of things in words: "1 start", "1,200 starts"."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def readable_seconds(seconds: float) -> str:
    """0.0123 -> '12.3 ms'."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120.0:
        return f"{seconds:.1f} s"
    if seconds < 7200.0:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800.0 else f"{seconds / 86_400:.1f} days"


# What was predicted, the name of the pair, what was measured, and how both are written.
_PAIRS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "predicted_bytes": ("peak memory", "peak_bytes", readable_bytes),
    "predicted_seconds": ("time", "seconds", readable_seconds),
}
