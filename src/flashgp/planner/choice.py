"""Choosing among routes: those that may be taken and fit, the quickest of them, and why each other one was not taken.

Also how a plan is written and read as JSON: every field by name and type, nothing else accepted.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from flashgp.foundations.errors import BackendUnavailableError, DomainError, MemoryBudgetError
from flashgp.foundations.json_values import json_dataclass
from flashgp.foundations.quantities import readable_bytes, readable_seconds

_GONE = ("collectives", "wire_seconds", "fit_wire_seconds")  # of ranks, which plans of before have
DTYPES = {"float64": torch.float64, "float32": torch.float32}
PlanType = TypeVar("PlanType")


@dataclass(frozen=True)
class Alternative:
    """A route that was not chosen, what it would have taken, and why it was not: one row of a plan's table."""

    route: str
    backend: str
    device: str
    dtype: str
    peak_bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class Candidate(Alternative):
    """A route before the choice.

    Fields: as Alternative, with reason, why it is taken only when forced (it rounds more than was asked for); missing,
    the package without which it cannot be taken.
    """

    reason: str = ""
    missing: str = ""

    def because(self, reason: str) -> Alternative:
        return Alternative(self.route, self.backend, self.device, self.dtype, self.peak_bytes, self.seconds, reason)


def choose(
    candidates: Sequence[Candidate],
    available: Mapping[str, int],
    *,
    route: str | None = None,
    backend: str | None = None,
    too_large: Callable[[Candidate, Candidate | None], MemoryBudgetError],
) -> tuple[Candidate, tuple[Alternative, ...]]:
    """The quickest candidate that may be taken and fits, and all others with the reason against each.

    Args:
        available: bytes by device; route, backend: take only these, whatever speaks against them but memory.
        too_large: the error for the smallest candidate that was wanted and does not fit; its second argument is the
            quickest other one that would fit.
    Raises: BackendUnavailableError if what is forced needs a missing package; MemoryBudgetError if nothing fits.
    """
    forced = route is not None or backend is not None
    asked = [c for c in candidates if route in (None, c.route) and backend in (None, c.backend)]
    if not asked:
        known = ", ".join(sorted({f"{c.route} by {c.backend}" for c in candidates}))
        raise DomainError(
            f"`route` and `backend` name {route or 'any route'} by {backend or 'any backend'}, which is not among the "
            f"routes of this problem; choose from {known}"
        )
    there = [c for c in asked if not c.missing]
    wanted = [c for c in there if not c.reason] or (there if forced else [])
    if not wanted:
        missing = ", ".join(sorted({c.missing for c in asked if c.missing}))
        raise BackendUnavailableError(
            f"`route` {asked[0].route} by {asked[0].backend} needs {missing}, which is not installed; install it, or "
            "leave the route to the plan"
        )
    fitting = [c for c in wanted if c.peak_bytes <= available[c.device]]
    if not fitting:
        others = [c for c in candidates if not c.missing and c not in wanted and c.peak_bytes <= available[c.device]]
        raise too_large(min(wanted, key=attrgetter("peak_bytes")), min(others, key=attrgetter("seconds"), default=None))
    chosen = min(fitting, key=attrgetter("seconds", "peak_bytes"))

    def reason(candidate: Candidate) -> str:
        limit = available[candidate.device]
        if candidate.missing:
            return f"{candidate.missing} is not installed"
        if candidate.peak_bytes > limit:
            return f"does not fit in {readable_bytes(limit)}"
        if candidate not in asked:
            return "another was asked for"
        if candidate not in wanted:
            return candidate.reason
        return _slower(candidate, chosen)

    return chosen, tuple(c.because(reason(c)) for c in sorted(candidates, key=attrgetter("seconds")) if c is not chosen)


def _slower(candidate: Candidate, chosen: Candidate) -> str:
    """Factor by which a candidate is slower than the chosen plan, to three digits."""
    if candidate.seconds < 1.005 * chosen.seconds or candidate.seconds == chosen.seconds:
        return "no quicker"
    ratio = candidate.seconds / chosen.seconds if chosen.seconds else math.inf
    if ratio < 100.0:
        return f"slower, {ratio:.3g} times"
    return "slower" if math.isinf(ratio) else f"slower, {ratio:,.0f} times"


def check_route(route: str | None, routes: Sequence[str], name: str = "route") -> None:
    """Raises: DomainError for a route that does not exist."""
    if route is not None and route not in routes:
        raise DomainError(
            f"`{name}` must be one of {', '.join(routes)}, got {route!r}; leave it out to have one chosen"
        )


# -- text ------------------------------------------------------------------------------------------------------------
def table_of(alternatives: Sequence[Alternative]) -> list[tuple[str, ...]]:
    """The alternatives as a table: the head, then a row each."""
    rows: list[tuple[str, ...]] = [("not chosen", "backend", "device", "dtype", "peak memory", "time", "why not")]
    for one in alternatives:
        size, time = readable_bytes(one.peak_bytes), readable_seconds(one.seconds)
        rows.append((one.route, one.backend, one.device, one.dtype, size, time, one.reason))
    return rows


# -- JSON ------------------------------------------------------------------------------------------------------------
def plan_json(plan: Any) -> str:
    """A plan, a dataclass of plain values, as JSON."""
    return json.dumps(asdict(plan), allow_nan=False)


def plan_values(kind: type[PlanType], text: str, later: Mapping[str, Any] = MappingProxyType({})) -> PlanType:
    """The plan that `plan_json` wrote, every field of its type. Raises: DomainError.

    Args: later: fields that plans of before have not, as JSON.
    """
    try:
        values = json.loads(text)
        if isinstance(values, dict):
            values = {**later, **values}
            if isinstance(shared := values.get("shared"), dict):
                values["shared"] = {name: value for name, value in shared.items() if name not in _GONE}
        return json_dataclass(kind, values, "plan")
    except (ValueError, RecursionError) as error:
        raise DomainError(f"`text` must be what {kind.__name__}.to_json wrote, got something else ({error})") from None
