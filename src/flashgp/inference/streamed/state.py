"""StreamedState: a prior given rows that were read, by inducing points: m numbers and m x m, whatever the rows."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.inference.full_scale.factor import Basis
from flashgp.inference.prior import Prior
from flashgp.inference.settings import SolveSettings
from flashgp.inference.state import UpdateState
from flashgp.inference.streamed.bound import BoundSums, noise_floor
from flashgp.inference.streamed.rows import prior_of_rows
from flashgp.likelihoods import Gaussian
from flashgp.planner.plan import Plan
from flashgp.sources.source import Held
from flashgp.sources.survey import Block


@dataclass(frozen=True)
class Bound:
    """What is known of log p(y). Fields: lower and upper, nats, eqs. (M-160) and (M-161); rows.

    nats: what the approximation loses of each row at most, in log p(y); standard_error of that, 0.
    """

    lower: float
    upper: float
    rows: int
    standard_error: float = 0.0

    @property
    def nats(self) -> float:
        return max(0.0, self.upper - self.lower) / max(1, self.rows)

    def __str__(self) -> str:
        return str(self.event)

    @property
    def event(self) -> Event:
        """The bracket of each row, for a report."""
        rows = max(1, self.rows)
        return Event(EventKind.BRACKET, lower=self.lower / rows, upper=self.upper / rows, nats=self.nats)


@dataclass(frozen=True, eq=False)
class RowsKept:
    """Rows that can be conditioned on. Fields: prior, theirs; x (n, d), y (n,) or (n, outputs), float64; settings."""

    prior: Prior
    x: Tensor
    y: Tensor
    settings: SolveSettings
    replicates: ClassVar[None] = None
    batch_shape: ClassVar[torch.Size] = torch.Size()

    @property
    def count(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class StreamedState:
    """Fields: prior, detached; inducing, points (m, d), in the dtype of x; function, A of rows; sums of the pass over
    all rows; sample, some of them, float64; report; settings; held, the rows where the caller holds them, else None;
    ranks, of which each has read a part of the rows; online, how many rows joined since conditioning.
    """

    prior: Prior
    inducing: Tensor
    function: Basis
    sums: BoundSums
    sample: Block
    report: Report
    settings: SolveSettings = field(default_factory=SolveSettings)
    held: Held | None = None
    ranks: int = 1
    online: UpdateState = field(default_factory=UpdateState)
    differentiable: ClassVar[bool] = False
    by_solves: ClassVar[bool] = False
    replicates: ClassVar[None] = None

    @property
    def prior_of_rows(self) -> Prior:
        """The prior without what its likelihood knows of single rows, which come with their own."""
        likelihood = self.prior.likelihood
        if self.sample.row_variance is None or not isinstance(likelihood, Gaussian):
            return self.prior
        return self.prior.with_likelihood(likelihood.with_rows())

    @property
    def knows_rows(self) -> bool:
        """Whether the likelihood has numbers of single rows that do not come with them."""
        return not self.prior_of_rows.likelihood.rows_alike

    @property
    def rows_learned(self) -> tuple[Tensor, Tensor] | None:
        """x and y of all training rows; None where they are not held, or not by this rank."""
        return None if self.held is None or self.held.length != self.count else (self.held.x, self.held.y)

    @property
    def rows_kept(self) -> Any:
        """The sample, with the prior of its rows. Raises: DomainError where the likelihood knows rows one by one."""
        if self.knows_rows:
            raise DomainError(
                "`importance` of inducing points needs a likelihood that treats all rows alike but for known "
                f"variances, got {self.prior.likelihood.name} with numbers of single rows; condition exactly"
            )
        return RowsKept(prior_of_rows(self.prior_of_rows, self.sample), self.sample.x, self.sample.y, self.settings)

    @property
    def floor(self) -> float:
        """Below which rounding decides a noise variance, (M-148)."""
        return noise_floor(self.function, self.count)

    @property
    def count(self) -> int:
        """The number of training rows."""
        return self.sums.count

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        """x and y whose width, dtypes and device those of new rows have."""
        outputs = () if self.prior.outputs is None else (self.prior.outputs,)
        return self.inducing, self.inducing.new_empty(0, *outputs)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()

    @property
    def result_dtype(self) -> torch.dtype:
        return self.inducing.dtype

    @property
    def plan(self) -> Plan | None:
        """None: there is no plan of exact inference; `report.plan` is the approximate one."""
        return None

    @property
    def bound(self) -> Bound:
        return Bound(self.sums.lower, self.sums.upper, self.count)

    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        """The lower bound on log p(y), nats."""
        return torch.tensor(self.sums.lower, dtype=torch.float64, device=self.inducing.device)

    def checked_points(self, x: Any, name: str) -> Tensor:
        """Points that answers are asked at, (n_test, d). Raises: ShapeError, DomainError."""
        x = check_points(x, name, like=self.inducing)
        if x.dim() != 2:
            raise ShapeError(
                f"`{name}` must be of shape (n_test, d) for an approximate posterior, which is of one table, got "
                f"{tuple(x.shape)}; pass x.reshape(-1, {x.shape[-1]})"
            )
        return x
