"""FullScaleState: a prior given data by the full-scale approximation, as a value, eqs. (M-148) and (M-154)."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows
from flashgp.foundations.quantities import readable_seconds
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.base_state import BaseState, UpdateState
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor, Sums, noise_floor
from flashgp.inference.full_scale.layout import Layout, scaled_points
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates, join
from flashgp.inference.run import Run
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem
from flashgp.planner.plan import Sizes
from flashgp.solvers.growing.shared_rows import SharedRows


@dataclass(frozen=True)
class Lost:
    """Accuracy lost against the exact model, by an estimate.

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
        """Event of a report."""
        return Event(EventKind.LOST, nats=self.nats, standard_error=self.standard_error, seconds=self.seconds)


@dataclass(frozen=True, eq=False)
class Tables:
    """Tensors with room behind their rows. Fields: given, x and y of the table; distinct, of the u distinct rows the
    residual, A, where near ones are looked for, and features; sets, blocks and their neighbours."""

    given: SharedRows
    distinct: SharedRows
    sets: SharedRows


@dataclass(frozen=True, eq=False)
class Asked:
    """A function that points are asked of: f, or a term of it, eq. (M-410).

    Fields: state, of f; prior, theta, function and rows, with the covariance of this function with the inducing points
    and with the training rows.
    """

    state: "FullScaleState"
    prior: Prior
    theta: tuple[Tensor, ...]
    function: Basis
    rows: Rows

    def covariance(self, rows: Rows, others: Rows | None = None) -> CovarianceOperator:
        """Prior covariance of some rows, with others or with each other, float64."""
        return CovarianceOperator(PairProblem(self.prior.kernel.form, self.theta, rows, others), torch.float64)


@dataclass(frozen=True, eq=False)
class FullScaleState(BaseState):
    """Fields: prior, detached; x (n, d) and y (n[, outputs]), the table; layout; of the u distinct rows:
    rows, their features, residual (u, p), noise (u or 1,); theta; function, A of rows; sums; replicates; run;
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
    run: Run = field(default_factory=Run)
    online: UpdateState = field(default_factory=UpdateState)
    tables: "Tables | None" = None
    ranks: int = 1
    term: Asked | None = None
    factor: ClassVar[None] = None
    parts: ClassVar[tuple[()]] = ()

    @property
    def asked(self) -> Asked:
        """The function that it is the state of."""
        return self.term or Asked(self, self.prior, self.theta, self.function, self.rows)

    def of_term(self, prior: Prior) -> "FullScaleState":
        kernel, device = prior.kernel, self.x.device
        theta = tuple(value.to(device) for value in kernel.theta())
        function = replace(self.function, form=kernel.form, theta=theta, points=kernel.rows(self.inducing))
        return replace(self, prior=prior, term=Asked(self, prior, theta, function, kernel.rows(self.points)))

    @property
    def sizes(self) -> Sizes:
        """Sizes asked for."""
        return self.layout.sizes

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
        """Least noise that counts: the rounding of the rows of conditioning."""
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
    def inducing(self) -> Tensor:
        """The inducing points, (m, d)."""
        return self.layout.inducing

    @property
    def loss(self) -> str:
        known: Lost | None = self.__dict__.get("lost")
        return str(known or "posterior.lost estimates it")

    @property
    def passes(self) -> FullScaleFactor:
        """The factor whose blocks are gone through again."""
        return FullScaleFactor(
            self.prior.kernel.form, self.theta, self.rows, self.layout.near, self.residual, self.noise, self.function,
            self.basis, floor=self.floor,
        )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        near, sums = self.layout.near, self.sums
        return super().tensors() | {
            "inducing": self.inducing, "blocks": near.blocks, "neighbours": near.neighbours, "inner": sums.inner,
            "projected": sums.projected,
        }  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        sizes, sums = self.sizes, self.sums
        return {
            "kind": "full_scale", "block": sizes.block, "neighbours": sizes.neighbours, "predicting": sizes.predicting,
            "log_determinant": sums.log_determinant, "squares": sums.squares, "reduced": sums.reduced,
        }  # fmt: skip

    @torch.no_grad()
    def precision(self) -> tuple[Float64[Tensor, "u"], Float64[Tensor, "u p"]]:
        """The diagonal of the precision Q of the approximate model, and Q r. Cost: a pass over the blocks."""
        n, p = self.residual.shape
        diagonal, weights = self.residual.new_zeros(n), self.residual.new_zeros(n, p)
        back = torch.zeros_like(self.basis)  # W^T B
        for (part,), _ in self.passes.parts(taped=False):
            rows, g = part.index.view(-1), part.weights
            basis = g @ part.basis
            white = g @ part.residual - basis @ self.weights
            diagonal.index_add_(0, rows, g.square().sum(1).flatten())
            weights.index_add_(0, rows, (g.mT @ white).flatten(0, 1))
            back.index_add_(0, rows, (g.mT @ basis).flatten(0, 1))
        half = torch.linalg.solve_triangular(self.sums.inner.mT, back, upper=True, left=False)
        return diagonal - half.square().sum(-1), weights

    @property
    def representer_weights(self) -> Float64[Tensor, "u p"]:
        """Q r. Cost: a pass over the blocks."""
        return self.precision()[1]

    @torch.no_grad()
    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        """log p(y) of the approximate model, nats."""
        value = torch.tensor(self.sums.log_likelihood(self.distinct), dtype=torch.float64, device=self.x.device)
        y = self.y if self.replicates is None else self.replicates.y
        scale = self.prior.with_likelihood(self.likelihood).log_scale(y)
        return value if scale is None else value + scale


@torch.no_grad()
def restore(
    prior: Prior, table: tuple[Tensor, Tensor, Tensor | None], layout: Layout, sums: Sums,
    how: tuple[Report, Run, UpdateState],
) -> FullScaleState:  # fmt: skip
    """A state from what was computed before; features, residual and the factor of the points are computed again.

    Args: prior, held; table, x, y and group (n,), the distinct row that each row of x joined, or None; how it was
    made.
    Raises: NotPositiveDefiniteError for inducing points without a factor.
    """
    (x, y, group), (report, run, online) = table, how
    replicates = None if group is None else join(prior, x, y, group)
    of_rows, points, targets = prior, x, y
    if replicates is not None:
        of_rows, points, targets = prior.with_likelihood(replicates.likelihood), replicates.x, replicates.y
    residual, noise, rows, values = of_rows.likelihood_inputs(points, targets)
    theta = tuple(t.detach() for t in values)
    function = Basis.of(prior.kernel.form, theta, prior.kernel.rows(layout.inducing), Workspace())
    return FullScaleState(
        prior, x, y, layout, rows, residual, noise, theta, function, sums, report, replicates, run, online
    )
