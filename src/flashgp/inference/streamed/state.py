"""StreamedState: a prior given rows that were read, by inducing points: m numbers and m x m, whatever the rows."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.base_state import BaseState, UpdateState
from flashgp.inference.full_scale.factor import Basis
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.inference.streamed.bound import BoundSums, noise_floor
from flashgp.inference.streamed.rows import noise_of
from flashgp.inference.streamed.steps import InducingValues
from flashgp.sources.source import Held
from flashgp.sources.survey import Block

OF_ROWS = ("x", "y", "points", "residual", "leave_one_out")  # what is of rows that are held
OBSERVED = {  # what is of sites that are observations, and what to do elsewhere
    **dict.fromkeys(("bound", "bracket", "lost"), "take post.log_marginal_likelihood(), the lower bound"),
    **dict.fromkeys(("noise", "residual"), "take post.gp.likelihood"), "importance": "condition exactly",
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """Bounds of log p(y).

    Fields: lower and upper, nats, eqs. (M-160) and (M-161); rows.

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
    """Rows that can be conditioned on. Fields: prior, theirs; x (n, d), y (n,) or (n, outputs), float64; run."""

    prior: Prior
    x: Tensor
    y: Tensor
    run: Run
    replicates: ClassVar[None] = None
    batch_shape: ClassVar[torch.Size] = torch.Size()

    @property
    def count(self) -> int:
        return len(self.x)


class StateOfPasses(BaseState):
    """A state by sums over rows, which it holds where the caller does: `held`, else None; sample, some of them."""

    held: Held | None
    sample: Block
    run: Run
    factor: ClassVar[None] = None
    replicates: ClassVar[None] = None

    def of_rows(self, name: str) -> Held:
        """The rows, where they are held. Args: name, of what asks for them. Raises: DomainError."""
        if self.held is None:
            raise DomainError(self.not_held(name))
        return self.held

    def not_held(self, name: str) -> str:
        """Reason that a question of the rows is refused, in four parts."""
        raise NotImplementedError

    def prior_of(self, rows: Block) -> Prior:
        """The prior of some rows, whose known variances come with them."""
        likelihood = self.prior.likelihood
        alike = likelihood.rows_alike and not rows.numbers
        return self.prior if alike else self.prior.with_likelihood(likelihood.with_rows(**rows.numbers))

    @property
    def rows_learned(self) -> tuple[Tensor, Tensor] | None:
        """x and y of all training rows; None where they are not held, or not by this rank."""
        return None if self.held is None or self.held.length != self.count else (self.held.x, self.held.y)

    @property
    def training_table(self) -> Any:
        """The kept sample of the rows, with their prior."""
        return RowsKept(self.prior_of(self.sample), self.sample.x, self.sample.y, self.run)

    def tensors(self) -> dict[str, Tensor]:
        """Those of the sample, and of rows that are held."""
        found = {"sample_x": self.sample.x, "sample_y": self.sample.y}
        found |= {f"sample_{name}": each for name, each in self.sample.numbers.items()}
        return found if self.held is None else {**found, "x": self.held.x, "y": self.held.y}

    def with_prior(self, prior: Prior) -> Self:
        return replace(self, prior=prior.held())  # type: ignore[type-var]

    @property
    def x(self) -> Tensor:
        return self.of_rows("x").x

    @property
    def y(self) -> Tensor:
        return self.of_rows("y").y

    @property
    def points(self) -> Tensor:
        return self.of_rows("points").x

    @property
    def residual(self) -> Tensor:
        rows = self.of_rows("residual")
        return self.prior.residual(rows.x, self.prior.sites(rows.y).targets).detach()

    @property
    def distinct(self) -> int:
        return self.count

    @property
    def some_inputs(self) -> Tensor:
        """Those of the kept sample."""
        return self.sample.x


@dataclass(frozen=True, eq=False)
class StreamedState(StateOfPasses):
    """Fields: prior, detached; inducing, points (m, d), in the dtype of x; function, A of rows; sums of the pass over
    all rows; sample, some of them, float64; report; run; held, the rows where the caller holds them, else None;
    ranks, of which each has read a part of the rows; online, how many rows joined since conditioning; given, whether
    q(u) was known without rows (given.py), and the sample is of points.

    Of outputs with noise of their own `sums` are those of each, and `parts` the state of each, of y without an axis for
    outputs.
    """

    prior: Prior
    inducing: Tensor
    function: Basis
    sums: BoundSums
    sample: Block
    report: Report
    run: Run = field(default_factory=Run)
    held: Held | None = None
    ranks: int = 1
    online: UpdateState = field(default_factory=UpdateState)
    given: bool = False

    @cached_property
    def parts(self) -> "tuple[StreamedState, ...]":
        if self.sums.gram.dim() == 2:
            return ()

        def column(rows: Any, j: int) -> Any:
            if rows is None:
                return None
            numbers = {name: each if each.dim() == 1 else each[:, j] for name, each in rows.numbers.items()}
            return type(rows)(rows.x, rows.y[:, j].contiguous(), numbers)

        return tuple(
            replace(
                self, prior=self.prior.output(j, live=False), sums=sums, sample=column(self.sample, j),
                held=column(self.held, j), report=replace(self.report, events=list(self.report.events)),
            )
            for j, sums in enumerate(self.sums.each)
        )  # fmt: skip

    def not_held(self, name: str) -> str:
        again = "give some of them again, post.leave_out(x, y)" if name == "leave_one_out" else "take post.inducing"
        return (
            f"`{name}` is of posteriors that hold their rows, got one of {self.count:,} rows that were read, or are "
            f"spread over ranks; {again}, or condition on the rows that count"
        )

    def obstacle(self, question: str) -> str | None:
        if question in OF_ROWS and self.held is None:
            return self.not_held(question)
        if question in OBSERVED and not self.prior.likelihood.has_sites:
            return (
                f"`{question}` of inducing points needs sites that are observations, got those of "
                f"{self.prior.likelihood.name}, found by iteration; {OBSERVED[question]}"
            )
        if question == "importance" and self.given:
            return (
                f"`importance` is of rows that were read, got a posterior of q(u) as it was given and {self.count:,} "
                "rows since; condition on the rows that count"
            )
        return super().obstacle(question)

    @property
    def representer_weights(self) -> NoReturn:
        raise DomainError(
            "`representer_weights` are one for each row, got a posterior of inducing points, whose mean is a sum over "
            "these; take post.predict(x).mean"
        )

    @property
    def noise(self) -> Float64[Tensor, "rows"]:
        """The noise variance of each row, (1,), or (n,) where rows that are held have known ones."""
        if (reason := self.obstacle("noise")) is not None:
            raise DomainError(reason)
        held = self.held
        rows = Block(*self.sample[:2]) if held is None else Block(held.x, held.y, held.numbers)
        return noise_of(self.prior_of_rows, rows).clamp_min(self.floor).to(self.inducing.device)

    @property
    def values(self) -> InducingValues:
        """q(u)."""
        return InducingValues(self.function, self.sums, self.floor)

    @property
    def loss(self) -> str:
        return str(self.bound) if self.prior.likelihood.has_sites else ""

    def tensors(self) -> dict[str, Tensor]:
        sums = self.sums
        if self.prior.separate and not self.parts:
            raise DomainError(
                f"`model` must be of all latent functions of {self.prior.likelihood.name} to be saved, got one of "
                "by_output; save the posterior itself"
            )
        found = {"inducing": self.inducing, "gram": sums.gram, "projected": sums.projected, **super().tensors()}
        return {**found, "sums": sums.numbers} if self.parts else found

    def numbers(self) -> dict[str, Any]:
        kind, names = "sparse_given" if self.given else "sparse", ["scale", "left", "logs", "noise_logs", "squares"]
        if self.parts:
            kind, names = "sparse_outputs", names[:1]
        return {"kind": kind, "count": self.count, **{name: getattr(self.sums, name) for name in names}}

    @property
    def prior_of_rows(self) -> Prior:
        """The prior without what its likelihood knows of single rows, which come with their own."""
        if not self.sample.numbers:
            return self.prior
        return self.prior.with_likelihood(self.prior.likelihood.with_rows())

    @property
    def training_table(self) -> Any:
        """Raises: DomainError if it is refused."""
        if (reason := self.obstacle("importance")) is not None:
            raise DomainError(reason)
        return super().training_table

    def of_term(self, prior: Prior) -> "StreamedState":
        kernel = prior.kernel
        theta = tuple(value.to(self.inducing.device) for value in kernel.theta())
        points = kernel.rows(self.inducing.to(torch.float64))
        return replace(self, prior=prior, function=replace(self.function, form=kernel.form, theta=theta, points=points))

    @property
    def floor(self) -> float:
        """Below which rounding decides a noise variance, (M-148)."""
        return noise_floor(self.function, self.count)

    @property
    def count(self) -> int:
        return self.sums.count

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        outputs = () if self.prior.outputs is None else (self.prior.outputs,)
        return self.inducing, self.inducing.new_empty(0, *outputs)

    @property
    def bound(self) -> Bound:
        """Bounds of log p(y), from the sums over rows. Cost: m^3 flops."""
        return Bound(self.sums.lower, self.sums.upper, self.count)

    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        """The lower bound on log p(y), nats."""
        return torch.tensor(self.sums.lower, dtype=torch.float64, device=self.inducing.device)


@torch.no_grad()
def restore(
    prior: Prior,
    inducing: Tensor,
    sums: BoundSums,
    sample: Block,
    table: tuple[Tensor, Tensor] | None,
    how: tuple[Report, Run, UpdateState],
) -> StreamedState:
    """A state from what was computed before; the factor of the inducing points is computed again.

    Args: prior, held; table, x and y where they are held; how it was made.
    Raises: NotPositiveDefiniteError for inducing points or sums without a factor.
    """
    theta = tuple(t.detach().to(inducing.device) for t in prior.kernel.theta())
    function = Basis.of(prior.kernel.form, theta, prior.kernel.rows(inducing.to(torch.float64)), Workspace())
    _ = sums.inner  # which may fail
    held, (report, run, online) = None, how
    if table is not None:
        held = Held(*table, dict(sorted(prior.likelihood.row_tensors.items())))
        if len(sample.numbers) < len(held.numbers):  # of files that have them of the held rows alone
            sample = Block(held.x.double(), held.y.double(), held.numbers).part(0, len(sample.x))
    return StreamedState(prior, inducing, function, sums, sample, report, run, held, online=online)
