"""Plans of what a GP will do: `fgp.plan`, where it may run, and whether a plan handed in fits the data."""

import math
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.foundations.profile_store import current_profile
from flashgp.inference.gp import GP
from flashgp.inference.prediction import STRIP_BYTES
from flashgp.pairwise import opaque
from flashgp.pairwise.program import program_of
from flashgp.pairwise.torch_tiles import tile_rows
from flashgp.planner.engines import accelerator
from flashgp.planner.plan import Plan, plan_direct
from flashgp.planner.products import ProductPlan, plan_product

__all__ = ["check_plan", "check_prediction_plan", "chosen_device", "plan_for", "planned_device"]

# Float64 numbers per test point: mean, variance, what they are put together from (six), and as much again that the C
# library keeps: freed blocks below 32 MiB are not given back to the system one by one.
RESULTS = 12


def chosen_device(device: str | torch.device | None, x: Tensor) -> torch.device:
    """x's own device by default; "auto" an accelerator when there is one. Raises: DomainError."""
    if device is None:
        return x.device
    if device == "auto":
        return accelerator() or torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DomainError(
            f"`device` must be None, 'auto' or a torch device, got {device!r} ({error}); for example 'cpu'"
        ) from None
    if chosen.type not in ("cpu", "cuda"):
        raise DomainError(f"`device` must be a cpu or cuda device, got {device!r}; pass 'cpu'")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            f"`device` must be one that torch can use, got {device!r} with {torch.cuda.device_count()} CUDA devices "
            "in sight; pass 'cpu', or install a CUDA build of torch"
        )
    return chosen


def planned_device(plan: Plan, device: str | torch.device | None, x: Tensor) -> torch.device:
    """Where a plan runs: "auto" leaves it to the plan, which took the quickest device."""
    return torch.device(plan.device) if device == "auto" else chosen_device(device, x)


@overload
def plan_for(
    gp: GP,
    n: int,
    d: int,
    *,
    n_test: None = None,
    batch: int = 1,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    route: str | None = None,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
) -> Plan: ...
@overload
def plan_for(
    gp: GP,
    n: int,
    d: int,
    *,
    n_test: int,
    batch: int = 1,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    route: str | None = None,
    backend: str | None = None,
    variance: bool = True,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
) -> ProductPlan: ...
def plan_for(
    gp: GP,
    n: int,
    d: int,
    *,
    n_test: int | None = None,
    batch: int = 1,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    route: str | None = None,
    backend: str | None = None,
    variance: bool = True,
    profile: MachineProfile | None = None,
    deterministic: bool = False,
) -> Plan | ProductPlan:
    """What conditioning (and fitting) a GP on n rows of d columns takes, or predicting from them: `fgp.plan`.

    Args:
        n_test: None for conditioning and fitting; else the points whose mean and variance are predicted.
        batch: models; memory: budget in bytes or text like "8GiB"; None for what is free now.
        device: "auto" takes the quickest of the devices there are; dtype: of the factor.
        route: force one: "direct" or "refined"; of a prediction "recomputed", "dense" or "stored".
        backend: of a prediction, what evaluates the pairs of its mean: "torch", "cpu" or "triton"; variance: whether a
            prediction computes it.
        profile: the rates to use, such as `fgp.tune()` returned; the kept ones by default, built-in ones where none
            were kept or with `deterministic`.
    Returns: Plan, or ProductPlan with n_test; printed, it also shows the routes not chosen.
    Raises: MemoryBudgetError with the bytes needed and the cheapest plan that fits; DomainError.
    """
    n, d, batch = check_count(n, "n", 0), check_count(d, "d", 1), check_count(batch, "batch", 0)
    n_test = None if n_test is None else check_count(n_test, "n_test", 0)
    size = _Size.of(gp, n, d, batch)
    here = torch.device("cpu")
    other = accelerator() if device == "auto" else None
    devices = [here, other] if other is not None else [chosen_device(device, torch.zeros(0))]
    profile = profile or (BUILT_IN if deterministic else current_profile())
    if n_test is not None:
        other_bytes, other_seconds = size.variance(n_test, devices[-1], profile) if variance else (0, 0.0)
        return plan_product(
            gp.kernel.form, n_test, n, d=max(1, size.features), function_d=size.function_d,
            function_bytes=size.function_bytes, t=size.outputs, batch=size.batch, memory=memory,
            device=devices, route=route, backend=backend, profile=profile, deterministic=deterministic,
            dtype=torch.float64,
            kept_bytes=8 * RESULTS * n_test * size.batch * size.outputs, other_bytes=other_bytes,
            other_seconds=other_seconds,
        )  # fmt: skip
    return plan_direct(
        n, d, features=size.features + d, temporaries=size.temporaries, function_bytes=size.function_bytes,
        kernel=gp.kernel.form.fusion, outputs=size.outputs, batch=size.batch, memory=memory, device=devices,
        dtype=dtype, route=route, profile=profile, deterministic=deterministic,
    )  # fmt: skip


@dataclass(frozen=True)
class _Size:
    """Sizes of a GP's problem.

    Fields: features, numbers per row, of them function_d for Python functions of two points; temporaries, tiles alive
    at once, and function_bytes, what those functions make beside them; outputs, models, training rows.
    """

    features: int
    function_d: int
    temporaries: int
    function_bytes: int
    outputs: int
    batch: int
    n: int

    @classmethod
    def of(cls, gp: GP, n: int, d: int, batch: int) -> "_Size":
        program = program_of(gp.kernel.form)
        probe = gp.kernel.rows(torch.zeros(1, d, dtype=torch.float64))
        models = batch * gp.kernel.batch_shape.numel()
        return cls(
            features=probe.width,
            function_d=sum(opaque.columns(gp.kernel.form, probe)),
            temporaries=max(program.value_temporaries, program.partial_temporaries),
            function_bytes=opaque.temporary_bytes(gp.kernel.form, probe, models),
            outputs=gp.outputs or 1,
            batch=models,
            n=n,
        )

    def variance(self, n_test: int, device: torch.device, profile: MachineProfile) -> tuple[int, float]:
        """(bytes, seconds) of the variance beside the mean, eq. (M-59): strips of K_sx and their triangular solves."""
        rates = profile.rates(device)
        strip = min(STRIP_BYTES, 8 * self.n * n_test * self.batch)
        rows = min(max(1, STRIP_BYTES // (8 * max(1, self.n) * self.batch)), n_test)
        tile = 8 * self.temporaries * min(rows, tile_rows(self.n, self.batch, device)) * self.n * self.batch
        tile += self.function_bytes
        features = 8 * (n_test + self.n) * self.features * self.batch
        strips = math.ceil(n_test / max(1, rows))
        flops = self.batch * n_test * self.n * self.n
        seconds = flops / rates.gemm_float64 + 2 * self.batch * n_test * self.n / rates.block_pairs
        return 3 * strip + tile + features, seconds + strips * rates.call_seconds


def check_plan(plan: Plan, gp: GP, x: Tensor, memory: Any, dtype: torch.dtype | None, device: torch.device) -> None:
    """A handed-in plan is run exactly: it must fit the data, and nothing beside it may say otherwise.

    Raises: DomainError.
    """
    if not isinstance(plan, Plan):
        raise DomainError(
            f"`plan` must be a plan of conditioning, got {type(plan).__name__}; make one with flashgp.plan(gp, n=, d=)"
        )
    made_for = (plan.n, plan.d, plan.outputs, plan.batch)
    given = (*x.shape[-2:], gp.outputs or 1, x.shape[:-2].numel() * gp.kernel.batch_shape.numel())
    if made_for != given:
        raise DomainError(
            f"`plan` is for n, d, outputs, models = {made_for}, got data with {given}; make a plan for these sizes"
        )
    other_dtype = dtype is not None and dtype != plan.torch_dtype
    if memory is not None or other_dtype or torch.device(plan.device).type != device.type:
        raise DomainError(
            f"`plan` settles memory, dtype ({plan.dtype}) and device ({plan.device}), got another one beside it; "
            "pass the plan alone"
        )


def check_prediction_plan(plan: ProductPlan, given: tuple[int, ...], memory: Any, device: torch.device) -> None:
    """The same for a prediction of given (test rows, training rows, outputs, models). Raises: DomainError."""
    if not isinstance(plan, ProductPlan):
        raise DomainError(
            f"`plan` must be a plan of a prediction, got {type(plan).__name__}; make one with flashgp.plan(gp, n=, d=, "
            "n_test=)"
        )
    made_for = (plan.n, plan.m, plan.t, plan.batch)
    if made_for != given or plan.symmetric:
        raise DomainError(
            f"`plan` is for n_test, n, outputs, models = {made_for}, got a prediction with {given}; make a plan for "
            "these sizes"
        )
    if memory is not None or torch.device(plan.device).type != device.type:
        raise DomainError(
            f"`plan` settles memory and device ({plan.device}), got another one beside it; pass the plan alone"
        )
