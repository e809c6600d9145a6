"""Plan: what a computation will allocate and how long it will take, decided before anything is allocated.

This step knows one route, the direct one: a Cholesky factor of all n rows. The plan is a frozen value that prints,
serialises, and can be handed back (`plan=`) to run the same way again.
"""

import html
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.machine import BUILT_IN, MachineProfile, available_bytes, parse_bytes
from flashgp.foundations.report import readable_bytes, readable_seconds
from flashgp.pairwise.torch_tiles import tile_rows

__all__ = ["Plan", "plan_direct"]

SMALL_BYTES = 64 * 2**20  # what a prediction may be off by, small problems included (docs/design.md, memory)
_DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class Plan:
    """One way to compute, with its predicted price. Equal plans run the same way.

    Fields: route ("direct"); backend; device and dtype as text; n, d, outputs, batch (members); peak_bytes and seconds
    of conditioning once; fit_step_seconds of one objective with gradient; available_bytes; profile, whose rates were
    used.
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

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Raises: DomainError for text that is not a plan."""
        try:
            fields = json.loads(text)
            plan = cls(**fields)
            for name, kind in cls.__annotations__.items():
                if not isinstance(fields[name], (int, float) if kind is float else kind) or isinstance(
                    fields[name], bool
                ):
                    raise TypeError(f"{name} is {fields[name]!r}")
        except (ValueError, TypeError) as error:
            raise DomainError(f"`text` must be what Plan.to_json wrote, got something else ({error})") from None
        if plan.dtype not in _DTYPES or plan.route != "direct":
            raise DomainError(f"`text` names route {plan.route!r} in {plan.dtype!r}, which this version does not know")
        return plan

    def lines(self) -> list[tuple[str, str]]:
        size = f"n = {self.n:,}, d = {self.d}"
        size += f", {self.outputs} outputs" if self.outputs > 1 else ""
        size += f", {self.batch} models" if self.batch > 1 else ""
        return [
            ("problem", size),
            ("route", f"{self.route}: Cholesky of all rows, {self.dtype}, {self.backend} tiles on {self.device}"),
            ("peak memory", f"{readable_bytes(self.peak_bytes)} of {readable_bytes(self.available_bytes)} available"),
            ("condition", f"about {readable_seconds(self.seconds)} ({self.profile} rates)"),
            ("one fit step", f"about {readable_seconds(self.fit_step_seconds)}"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<14} {text}" for name, text in self.lines())

    def _repr_html_(self) -> str:
        body = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(t)}</td></tr>" for n, t in self.lines())
        return f"<table>{body}</table>"


def plan_direct(
    n: int,
    d: int,
    *,
    features: int,
    temporaries: int,
    outputs: int = 1,
    batch: int = 1,
    memory: str | int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    profile: MachineProfile = BUILT_IN,
) -> Plan:
    """The direct plan for n rows, eqs. (M-35) and (M-36): one n x n buffer, the features, one tile's temporaries.

    Args:
        features: float64 numbers per row in all statistics; temporaries: tiles alive at once in the generated code.
        memory: budget, bytes or text like "8GiB"; None for what is free now.
    Raises: MemoryBudgetError with needed and available bytes when the plan does not fit.
    """
    device = torch.device(device)
    dtype = dtype or torch.float64
    if dtype not in _DTYPES.values():
        raise DomainError(
            f"`dtype` must be torch.float64 or torch.float32, got {dtype}; half precision is never computed in"
        )
    matrix = n * n * dtype.itemsize * batch
    rows = min(n, tile_rows(n, batch, device))
    # A tile's temporaries: float64 statistics before the cast, and what the generated code keeps.
    tiles = temporaries * rows * n * 8 * batch
    peak = matrix + tiles + 4 * n * features * 8 * batch + 6 * n * outputs * 8 * batch
    pairs = n * n * batch / profile.pairs
    flops = n**3 * batch / profile.cholesky(dtype)
    available = parse_bytes(memory) if memory is not None else available_bytes(device)
    plan = Plan(
        route="direct",
        backend="torch",
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        n=n,
        d=d,
        outputs=outputs,
        batch=batch,
        peak_bytes=peak,
        seconds=flops / 3 + pairs * 1.5 + 40 * profile.call_seconds,
        fit_step_seconds=flops + pairs * 2 + 40 * profile.call_seconds,
        available_bytes=available,
        profile=profile.name,
    )
    if peak > available:
        raise _does_not_fit(plan, n, d, features, temporaries, outputs, batch, device)
    return plan


def _does_not_fit(
    plan: Plan, n: int, d: int, features: int, temporaries: int, outputs: int, batch: int, device: Any
) -> MemoryBudgetError:
    advice = "take fewer rows, or raise memory= on a machine that has it"
    cheapest: Plan | None = None
    if plan.dtype == "float64":
        cheapest = plan_direct(
            n,
            d,
            features=features,
            temporaries=temporaries,
            outputs=outputs,
            batch=batch,
            memory=2**62,
            device=device,
            dtype=torch.float32,
        )
        if cheapest.peak_bytes <= plan.available_bytes:
            advice = f"dtype=torch.float32 (refined in float64) needs {readable_bytes(cheapest.peak_bytes)} and fits"
        else:
            advice = f"even float32 needs {readable_bytes(cheapest.peak_bytes)}; {advice}"
            cheapest = None
    return MemoryBudgetError(
        f"`memory` allows {readable_bytes(plan.available_bytes)}, but the direct route for n = {n:,} needs "
        f"{readable_bytes(plan.peak_bytes)}; {advice}",
        needed_bytes=plan.peak_bytes,
        available_bytes=plan.available_bytes,
        cheapest_plan=cheapest,
    )
