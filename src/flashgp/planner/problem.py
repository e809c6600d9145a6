"""The problem of a plan, in sizes, and the resources that may be used, in bytes and rates."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.form import Form
from flashgp.foundations.machine import accelerator, available_bytes, parse_bytes
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.foundations.profile_store import current_profile, tune_command, unused_accelerator, unused_profile
from flashgp.pairwise.program.program import program_of
from flashgp.planner.choice import DTYPES
from flashgp.planner.engines import ENGINES, Engine
from flashgp.planner.fit_stages import StageSettings


@dataclass(frozen=True)
class Features:
    """Numbers per row that a form makes of x: width, all of them; function_width, of them those that are points of
    Python functions; function_bytes, what these functions make beside a tile."""

    width: int
    function_width: int = 0
    function_bytes: int = 0


@dataclass(frozen=True)
class ProductProblem:
    """K V. Fields: form; n and m, rows and columns of K, m None where both are the same points; features; t, columns of
    V; batch, models; products, how many with the same K; kept, the share of the pairs that is evaluated, below 1 where
    far tiles are skipped, eq. (M-72); dtype, of V and of the result."""

    form: Form
    n: int
    m: int | None
    features: Features
    t: int = 1
    batch: int = 1
    products: int = 1
    kept: float = 1.0
    dtype: torch.dtype = torch.float64

    @property
    def symmetric(self) -> bool:
        return self.m is None

    @property
    def columns(self) -> int:
        return self.n if self.m is None else self.m

    @property
    def pairs(self) -> int:
        return self.batch * self.n * self.columns

    def check(self) -> None:
        """Raises: DomainError."""
        if self.dtype not in DTYPES.values():
            raise DomainError(
                f"`dtype` must be torch.float64 or torch.float32, got {self.dtype}; half precision is storage only"
            )
        if min(self.n, self.columns, self.t) < 0 or min(self.features.width, self.batch, self.products) < 1:
            raise DomainError(
                f"`n`, `m` and `t` must be 0 or more, `d`, `batch` and `products` at least 1, got n={self.n}, "
                f"m={self.m}, t={self.t}, d={self.features.width}, batch={self.batch}, products={self.products}"
            )
        if not 0.0 <= self.kept <= 1.0:
            raise DomainError(f"`kept` must be a share of the pairs, 0 to 1, got {self.kept}; pass operator.kept")


@dataclass(frozen=True)
class ConditioningProblem:
    """Conditioning and fitting. Fields: form; n rows of d columns; features; distinct, of the n rows those that differ,
    whose price it is but for (M-89), None for all; outputs; batch, models; factors, covariance matrices of each model:
    1, or one for each output with noise of its own; parameters, numbers that a fit trains; own_modules, whether modules
    of a user's own take part; stages, what decides those of a fit; ranks, of a group that shares iterative solves: what
    is planned is what each of them takes; has_features, whether the kernel has random ones, which samples need;
    iterates, whether the likelihood's sites are found by iteration, which takes gradients in closed form."""

    form: Form
    n: int
    d: int
    features: Features
    distinct: int | None = None
    outputs: int = 1
    batch: int = 1
    parameters: int = 3
    own_modules: bool = False
    stages: StageSettings = field(default_factory=StageSettings)
    factors: int = 1
    ranks: int = 1
    has_features: bool = False
    iterates: bool = False

    @property
    def columns(self) -> int:
        """Outputs that one covariance matrix serves."""
        return self.outputs // self.factors

    @property
    def samples_rows(self) -> bool:
        """True if steps to sites have variances of all rows, sampled where there is no factor."""
        return self.iterates and self.has_features

    @property
    def u(self) -> int:
        """The rows that are computed with."""
        return self.n if self.distinct is None else self.distinct

    @property
    def numbers(self) -> int:
        """Float64 numbers per row, the columns of x included."""
        return self.features.width + self.d

    @property
    def temporaries(self) -> int:
        """Tiles alive at once in the generated code."""
        program = program_of(self.form)
        return max(program.value_temporaries, program.partial_temporaries)

    def products(self, t: int, count: int) -> ProductProblem:
        """Float32 products of the distinct rows with t right-hand sides."""
        return ProductProblem(self.form, self.u, None, self.product_features, t=t, products=count, dtype=torch.float32)

    @property
    def product_features(self) -> Features:
        """Features of products, which have one column at least."""
        return replace(self.features, width=max(1, self.features.width))


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
class PlanSettings:
    """Limits and options of a plan.

    Fields: memory, budget in bytes or text like "8GiB", None for what is free now; device, "auto" or several for
    the quickest of them, None for the CPU; dtype, route, solver, factored, backend, deterministic, as `fgp.plan` takes
    them; profile, whose rates, None for the machine's current one, with deterministic the built-in one; stages, of a
    fit; ranks, of a group; whole, for fits whose search has to end within a time limit, as with a
    checkpoint; engines, between which a plan of products chooses.
    """

    memory: str | int | None = None
    device: torch.device | str | Sequence[torch.device] | None = None
    dtype: torch.dtype | None = None
    route: str | None = None
    solver: str | None = None
    factored: bool = False
    backend: str | None = None
    profile: MachineProfile | None = None
    deterministic: bool = False
    stages: StageSettings = field(default_factory=StageSettings)
    ranks: int = 1
    whole: bool = False
    engines: tuple[Engine, ...] = ENGINES

    @property
    def devices(self) -> list[torch.device]:
        """Raises: DomainError for one that cannot be used."""
        if isinstance(self.device, Sequence) and not isinstance(self.device, str):
            return list(self.device)
        other = accelerator() if self.device == "auto" else None
        return [chosen_device(self.device, torch.zeros(0))] if other is None else [torch.device("cpu"), other]

    @property
    def rates(self) -> MachineProfile:
        return self.profile or (BUILT_IN if self.deterministic else current_profile())

    def available(self) -> dict[str, int]:
        """The bytes that may be taken on each device: the budget given, else what is free there now."""
        if self.memory is not None:
            return {str(device): parse_bytes(self.memory) for device in self.devices}
        return {str(device): available_bytes(device) for device in self.devices}

    def notes(self) -> tuple[str, ...]:
        """Notes of a plan on the rates it was made with."""
        profile = self.rates
        if profile.measured:
            gone = ""
            if profile.accelerator_name and all(device.type == "cpu" for device in self.devices):
                gone = unused_accelerator(profile, accelerator() is not None)
            return (gone,) if gone else ()
        if self.deterministic or is_deterministic():
            return ("built-in rates, no measured ones: as deterministic=True asks",)
        advice = f"`{tune_command()}` measures this machine's in seconds"
        return (f"built-in rates, no measured ones: {'; '.join(filter(None, (unused_profile(), advice)))}",)
