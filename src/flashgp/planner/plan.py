"""Plan: what conditioning and fitting will allocate and how long they will take, decided before anything is allocated.

Two routes: "direct", a Cholesky factor of all n rows in float64; and "refined", the same factor in float32, with the
weights corrected in float64. The plan is a frozen value that prints, serialises, and can be handed back (`plan=`) to
run the same way again. Plans of products and predictions are in planner/products.py.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.foundations.profile_store import current_profile
from flashgp.foundations.report import readable_bytes, readable_seconds
from flashgp.pairwise.torch_tiles import tile_rows
from flashgp.planner.choice import (
    DTYPES,
    Alternative,
    Candidate,
    budgets,
    check_route,
    choose,
    plan_json,
    plan_values,
    profile_notes,
    table_of,
)

__all__ = ["ROUTES", "Plan", "allowed_bytes", "kernel_line", "plan_direct", "printed", "printed_html"]

SMALL_BYTES = 64 * 2**20  # what a prediction may be off by, small problems included (docs/design.md, memory)
ROUTES = {"direct": "float64", "refined": "float32"}  # and the dtype of the factor
_DESCRIPTIONS = {
    "direct": "Cholesky of all rows, float64",
    "refined": "Cholesky of all rows, float32, weights corrected in float64",
}


def allowed_bytes(predicted: int) -> int:
    """What a run may take of the bytes its plan predicted: the error that plans promise, and not more."""
    return max(int(1.1 * predicted), predicted + SMALL_BYTES)


@dataclass(frozen=True)
class Plan:
    """One way to compute, with its predicted price. Equal plans run the same way.

    Fields: route, "direct" or "refined"; backend; device and dtype as text; n, d, outputs, batch (members); peak_bytes
    and seconds of conditioning once; fit_step_seconds of one objective with gradient; available_bytes; profile, whose
    rates were used; kernel, "fused" or what of it runs through Python, and why; notes; alternatives, the routes not
    chosen, with their price and the reason.
    """

    route: str
    backend: str
    device: str
    dtype: str
    n: int
    d: int
    outputs: int
    batch: int
    peak_bytes: int
    seconds: float
    fit_step_seconds: float
    available_bytes: int
    profile: str
    kernel: str
    notes: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def to_json(self) -> str:
        return plan_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Raises: DomainError for text that is not a plan."""
        plan = plan_values(cls, text)
        if ROUTES.get(plan.route) != plan.dtype:
            raise DomainError(f"`text` names route {plan.route!r} in {plan.dtype!r}, which this version does not know")
        return plan

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value); the alternatives are a table of their own."""
        size = f"n = {self.n:,}, d = {self.d}"
        size += f", {self.outputs} outputs" if self.outputs > 1 else ""
        size += f", {self.batch} models" if self.batch > 1 else ""
        return [
            ("problem", size),
            ("kernel", kernel_line(self.kernel)),
            ("route", f"{self.route}: {_DESCRIPTIONS[self.route]}, {self.backend} tiles on {self.device}"),
            ("peak memory", f"{readable_bytes(self.peak_bytes)} of {readable_bytes(self.available_bytes)} available"),
            ("condition", f"about {readable_seconds(self.seconds)} ({self.profile} rates)"),
            ("one fit step", f"about {readable_seconds(self.fit_step_seconds)}"),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        return printed(self.lines(), self.alternatives)

    def _repr_html_(self) -> str:
        return printed_html(self.lines(), self.alternatives)


def kernel_line(fusion: str) -> str:
    """A form's fusion for readers of a plan."""
    if fusion == "fused":
        return "fused: generated code evaluates all of it"
    return f"{fusion}; these pairs run through Python, on torch tiles only"


def printed(lines: Sequence[tuple[str, str]], alternatives: Sequence[Alternative]) -> str:
    """A plan as text: its lines, then the table of what was not chosen."""
    shown = [f"{name:<14} {text}" for name, text in lines]
    if alternatives:
        table = table_of(alternatives)
        widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
        shown += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(shown)


def printed_html(lines: Sequence[tuple[str, str]], alternatives: Sequence[Alternative]) -> str:
    """The same for notebooks."""
    body = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(t)}</td></tr>" for n, t in lines)
    text = f"<table>{body}</table>"
    if alternatives:
        head, *rows = table_of(alternatives)
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        text += f"<table><tr>{cells}</tr>{body}</table>"
    return text


def plan_direct(
    n: int,
    d: int,
    *,
    features: int,
    temporaries: int,
    function_bytes: int = 0,
    kernel: str = "fused",
    outputs: int = 1,
    batch: int = 1,
    memory: str | int | None = None,
    device: torch.device | str | Sequence[torch.device] = "cpu",
    dtype: torch.dtype | None = None,
    route: str | None = None,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
) -> Plan:
    """The plan for n rows, eqs. (M-35) and (M-36): one n x n buffer, the features, one tile's temporaries.

    Args:
        features: float64 numbers per row in all statistics; temporaries: tiles alive at once in the generated code.
        function_bytes: what Python functions of two points make beside a tile; kernel: its form's fusion.
        memory: budget, bytes or text like "8GiB"; None for what is free now.
        device: where; of several, the quickest is chosen.
        dtype: of the factor; float64 by default, since a float32 factor rounds variances and likelihood.
        route: "direct" or "refined", which is the same choice by name.
        profile: whose rates; the machine's current one by default, the built-in one with deterministic.
    Raises: MemoryBudgetError with needed and available bytes when the plan does not fit; DomainError.
    """
    if dtype is not None and dtype not in DTYPES.values():
        raise DomainError(
            f"`dtype` must be torch.float64 or torch.float32, got {dtype}; half precision is never computed in"
        )
    check_route(route, tuple(ROUTES))
    if route is not None and dtype is not None and DTYPES[ROUTES[route]] != dtype:
        raise DomainError(
            f"`route` {route!r} factors in {ROUTES[route]}, got dtype={dtype} beside it; pass one of them"
        )
    wanted = route or ("refined" if dtype == torch.float32 else "direct")
    profile = profile or (BUILT_IN if deterministic else current_profile())
    devices = [torch.device(device)] if isinstance(device, torch.device | str) else list(device)
    plans = {
        (str(where), name): replace(
            _direct(n, d, features, temporaries, outputs, batch, where, name, profile, function_bytes), kernel=kernel
        )
        for where in devices
        for name in ROUTES
    }
    available = budgets(memory, devices)

    def candidate(plan: Plan) -> Candidate:
        objection = "" if plan.route == wanted else _objection(wanted)
        return Candidate(plan.route, plan.backend, plan.device, plan.dtype, plan.peak_bytes, plan.seconds, objection)

    def too_large(smallest: Candidate, other: Candidate | None) -> MemoryBudgetError:
        cheapest = None if other is None else completed(plans[other.device, other.route], ())
        return _does_not_fit(completed(plans[smallest.device, smallest.route], ()), cheapest, plans)

    def completed(plan: Plan, alternatives: tuple[Alternative, ...]) -> Plan:
        values = {**plan.__dict__, "available_bytes": available[plan.device], "alternatives": alternatives}
        return Plan(**{**values, "notes": profile_notes(profile, deterministic)})

    chosen, alternatives = choose([candidate(plan) for plan in plans.values()], available, too_large=too_large)
    return completed(plans[chosen.device, chosen.route], alternatives)


def _objection(wanted: str) -> str:
    if wanted == "direct":
        return "float32 rounds variances and likelihood: only on request"
    return "float32 was asked for"


def _direct(
    n: int,
    d: int,
    features: int,
    temporaries: int,
    outputs: int,
    batch: int,
    device: torch.device,
    route: str,
    profile: MachineProfile,
    function_bytes: int,
) -> Plan:
    """One route's price, eqs. (M-35) and (M-36); what is available and the alternatives are filled in later."""
    dtype = DTYPES[ROUTES[route]]
    rates = profile.rates(device)
    rows = min(n, tile_rows(n, batch, device))
    # A tile's temporaries: float64 statistics before the cast, and what the generated code keeps.
    tiles = temporaries * rows * n * 8 * batch + function_bytes
    pairs = n * n * batch / rates.block_pairs
    flops = n**3 * batch / rates.cholesky(dtype)
    return Plan(
        route=route,
        backend="torch",
        device=str(device),
        dtype=ROUTES[route],
        n=n,
        d=d,
        outputs=outputs,
        batch=batch,
        peak_bytes=n * n * dtype.itemsize * batch + tiles + 4 * n * features * 8 * batch + 6 * n * outputs * 8 * batch,
        seconds=flops / 3 + pairs * 1.5 + 40 * rates.call_seconds,
        fit_step_seconds=flops + pairs * 2 + 40 * rates.call_seconds,
        available_bytes=0,
        profile=profile.name,
        kernel="",
    )


def _does_not_fit(plan: Plan, cheapest: Plan | None, plans: dict[tuple[str, str], Plan]) -> MemoryBudgetError:
    advice = "take fewer rows, or raise memory= on a machine that has it"
    if cheapest is not None and cheapest.route == "refined":
        advice = f"dtype=torch.float32 (refined in float64) needs {readable_bytes(cheapest.peak_bytes)} and fits"
    elif cheapest is not None:
        advice = f"{cheapest.route} on {cheapest.device} needs {readable_bytes(cheapest.peak_bytes)} and fits"
    elif plan.route == "direct":
        single = min(p.peak_bytes for p in plans.values() if p.route == "refined")
        advice = f"even float32 needs {readable_bytes(single)}; {advice}"
    return MemoryBudgetError(
        f"`memory` allows {readable_bytes(plan.available_bytes)}, but the {plan.route} route for n = {plan.n:,} needs "
        f"{readable_bytes(plan.peak_bytes)}; {advice}",
        needed_bytes=plan.peak_bytes,
        available_bytes=plan.available_bytes,
        cheapest_plan=cheapest,
    )
