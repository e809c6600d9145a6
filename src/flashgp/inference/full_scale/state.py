"""FullScaleState: a prior given data by the full-scale approximation, as a value, eqs. (M-148) and (M-154)."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows
from flashgp.foundations.quantities import readable_seconds
from flashgp.foundations.report import Report
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor, Sums, noise_floor
from flashgp.inference.full_scale.layout import Layout, scaled_points
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates
from flashgp.inference.settings import SolveSettings
from flashgp.inference.state import UpdateState
from flashgp.likelihoods.base import Likelihood
from flashgp.planner.approximate_prices import Sizes
from flashgp.planner.plan import Plan
from flashgp.solvers.growing.shared_rows import SharedRows


@dataclass(frozen=True)
class Lost:
    """What an approximation loses against the exact model, by an estimate.

    Fields: nats, of each row, an estimate of the divergence from the exact model; standard_error of that; rows, that it
    was estimated from; seconds, that the same fit with twice the neighbours would take by a plan.
    """

    nats: float
    standard_error: float
    rows: int
    seconds: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        more = "" if self.seconds is None else f"; twice the neighbours would take {readable_seconds(self.seconds)}"
        return f"loses {self.nats:.2g} ± {self.standard_error:.1g} nats a row{more}"

    @property
    def event(self) -> Event:
        """The same for a report."""
        return Event(EventKind.LOST, nats=self.nats, standard_error=self.standard_error, seconds=self.seconds)


@dataclass(frozen=True, eq=False)
class Tables:
    """Tensors with room behind their rows. Fields: given, x and y of the table; distinct, of the u distinct rows the
    residual, A, where near ones are looked for, and features; sets, blocks and their neighbours."""

    given: SharedRows
    distinct: SharedRows
    sets: SharedRows


@dataclass(frozen=True, eq=False)
class FullScaleState:
    """Fields: prior, detached; x (n, d) and y (n[, outputs]), the table; layout; of the u distinct rows:
    rows, their features, residual (u, p), noise (u or 1,); theta; function, A of rows; sums; replicates; settings;
    online, how many rows joined since conditioning; tables, of rows and blocks with room behind them; ranks, that
    shared the passes over blocks; report.
    """

    prior: Prior
    x: Tensor
    y: Tensor
    layout: Layout
    rows: Rows
    residual: Tensor
    noise: Tensor
    theta: tuple[Tensor, ...]
    function: Basis
    sums: Sums
    report: Report
    replicates: Replicates | None = None
    settings: SolveSettings = field(default_factory=SolveSettings)
    online: UpdateState = field(default_factory=UpdateState)
    tables: "Tables | None" = None
    ranks: int = 1
    differentiable: ClassVar[bool] = False
    by_solves: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """The number of training rows."""
        return self.x.shape[-2]

    @property
    def distinct(self) -> int:
        """The number of training rows that differ."""
        return self.rows.count

    @property
    def points(self) -> Float[Tensor, "u d"]:
        """The distinct training inputs, (u, d)."""
        return self.x if self.replicates is None else self.replicates.x

    @property
    def sizes(self) -> Sizes:
        """Those asked for."""
        return self.layout.sizes

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        """x and y whose width, dtypes and device those of new rows have."""
        return self.x, self.y

    @property
    def rows_learned(self) -> tuple[Tensor, Tensor] | None:
        """x and y of all training rows; None where they are not held."""
        return self.x, self.y

    @property
    def rows_kept(self) -> Any:
        """The rows that importance and plots are told from: all."""
        return self

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()

    @property
    def result_dtype(self) -> torch.dtype:
        return self.x.dtype

    @property
    def plan(self) -> Plan | None:
        """None: there is no plan of exact inference; `report.plan` is the approximate one."""
        return None

    @property
    def likelihood(self) -> Likelihood:
        """That of the distinct rows."""
        return self.prior.likelihood if self.replicates is None else self.replicates.likelihood

    @cached_property
    def basis(self) -> Float64[Tensor, "u m"]:
        """A of the training rows, kept once asked for: 8 u m bytes."""
        return self.function(self.rows)

    @cached_property
    def near_points(self) -> Float64[Tensor, "u k"]:
        """The training rows where near ones are looked for, kept once asked for."""
        return scaled_points(self.prior, self.rows, self.points)

    @cached_property
    def floor(self) -> float:
        """What noise counts as at least: what rounding made of the rows of conditioning."""
        rows = self.rows.part(0, self.distinct - self.online.appended)
        return noise_floor(self.prior.kernel.form, self.theta, rows)

    @cached_property
    def noise_of_rows(self) -> Float64[Tensor, "u"]:
        """The noise variance of each distinct row, no smaller than rounding."""
        return self.noise.clamp_min(self.floor).expand(self.distinct)

    @cached_property
    def weights(self) -> Float64[Tensor, "m p"]:
        """The posterior mean of the whitened inducing values."""
        return self.sums.weights

    @property
    def factor(self) -> FullScaleFactor:
        """Whose blocks are gone through again."""
        return FullScaleFactor(
            self.prior.kernel.form, self.theta, self.rows, self.layout.near, self.residual, self.noise, self.function,
            self.basis, floor=self.floor,
        )  # fmt: skip

    @torch.no_grad()
    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        """log p(y) of the approximate model, nats."""
        value = torch.tensor(self.sums.log_likelihood(self.distinct), dtype=torch.float64, device=self.x.device)
        y = self.y if self.replicates is None else self.replicates.y
        scale = self.prior.with_likelihood(self.likelihood).log_scale(y)
        return value if scale is None else value + scale

    def checked_points(self, x: Any, name: str) -> Tensor:
        """Points that answers are asked at, (n_test, d). Raises: ShapeError, DomainError."""
        x = check_points(x, name, like=self.x)
        if x.dim() != 2:
            raise ShapeError(
                f"`{name}` must be of shape (n_test, d) for an approximate posterior, which is of one table, got "
                f"{tuple(x.shape)}; pass x.reshape(-1, {x.shape[-1]})"
            )
        return x
