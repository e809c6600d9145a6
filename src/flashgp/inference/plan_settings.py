"""What a plan is asked about: sizes of a prior's problem, where it may run, and what it has to keep to, as values."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.machine import accelerator
from flashgp.foundations.profile import MachineProfile
from flashgp.inference.prior import Prior
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch import opaque
from flashgp.planner.fit_stages import StageSettings
from flashgp.planner.problem import ConditioningProblem, Features, Resources
from flashgp.planner.variances import VarianceProblem


def chosen_device(device: str | torch.device | None, x: Tensor) -> torch.device:
    """x's own device by default; "auto" an accelerator when there is one. Raises: DomainError."""
    if device is None:
        return x.device
    if device == "auto":
        return accelerator() or torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
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


@dataclass(frozen=True)
class RowCounts:
    """Training rows: n of d columns, of which so many differ in x (None for all), for each of `batch` models; alike,
    where the source gives none a noise variance of its own."""

    n: int
    d: int
    distinct: int | None = None
    batch: int = 1
    alike: bool = True


@dataclass(frozen=True)
class PlanSettings:
    """What a plan is asked to keep to; the fields are arguments of `fgp.plan`, but for stages, of the
    fit, and ranks, of a group."""

    memory: str | int | None = None
    device: str | torch.device | None = None
    dtype: torch.dtype | None = None
    route: str | None = None
    solver: str | None = None
    factored: bool = False
    backend: str | None = None
    profile: MachineProfile | None = None
    deterministic: bool = False
    stages: StageSettings = field(default_factory=StageSettings)
    ranks: int = 1


@dataclass(frozen=True)
class ProblemSize:
    """Sizes of a GP's problem.

    Fields: features; temporaries, tiles alive at once; outputs, models, distinct training rows.
    """

    features: Features
    temporaries: int
    outputs: int
    batch: int
    n: int

    @classmethod
    def of(cls, prior: Prior, rows: RowCounts) -> "ProblemSize":
        """Raises: DomainError for counts that are none."""
        n, d, batch = check_count(rows.n, "n", 0), check_count(rows.d, "d", 1), check_count(rows.batch, "batch", 0)
        distinct = n if rows.distinct is None else check_count(rows.distinct, "distinct", min(n, 1))
        if distinct > n:
            raise DomainError(
                f"`distinct` must be at most n = {n:,}, got {distinct:,}; count the rows that differ in x"
            )
        form = prior.kernel.form
        program, probe = program_of(form), prior.kernel.rows(torch.zeros(1, d, dtype=torch.float64))
        models = batch * prior.kernel.batch_shape.numel()
        return cls(
            Features(probe.width, sum(opaque.columns(form, probe)), opaque.temporary_bytes(form, probe, models)),
            max(program.value_temporaries, program.partial_temporaries), prior.outputs or 1, models, distinct,
        )  # fmt: skip

    def variances(self, prior: Prior, n_test: int, device: torch.device, profile: MachineProfile) -> VarianceProblem:
        """What variances at n_test points are priced by."""
        return VarianceProblem(
            form=prior.kernel.form, n=self.n, n_test=n_test, batch=self.batch, features=self.features,
            temporaries=self.temporaries, device=device, profile=profile, has_features=prior.kernel.has_features,
        )  # fmt: skip


def conditioning_problem(prior: Prior, rows: RowCounts, settings: PlanSettings) -> ConditioningProblem:
    """What is planned, in sizes. Raises: DomainError."""
    size = ProblemSize.of(prior, rows)
    return ConditioningProblem(
        prior.kernel.form, int(rows.n), int(rows.d), size.features, size.n, size.outputs, size.batch,
        prior.trainable_count, prior.has_user_modules, settings.stages, prior.factors, settings.ranks,
    )  # fmt: skip


def resources_of(settings: PlanSettings) -> Resources:
    """The devices that may be used. Raises: DomainError."""
    other = accelerator() if settings.device == "auto" else None
    devices = [torch.device("cpu"), other] if other is not None else [chosen_device(settings.device, torch.zeros(0))]
    return Resources(settings.memory, devices, settings.profile, settings.deterministic)
