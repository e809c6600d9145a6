"""BaseState: a prior given data, exactly or by an approximation, as far as all kinds of states have it alike."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates, join
from flashgp.inference.run import Run
from flashgp.likelihoods.base import Likelihood
from flashgp.planner.plan import Plan
from flashgp.solvers.direct.cholesky import TriangularFactor

UPDATES = ("append", "drop", "slide", "replace", "refine")  # questions whose answer is a posterior of other rows
SETTLED = ("log_marginal_likelihood", "leave_one_out", "leave_out")  # questions to sites of one q(f)
UPDATE = "update"  # the stage of the events of a report that the next update replaces


@dataclass(frozen=True, eq=False)
class UpdateState:
    """Record of online updates of a state since it was conditioned.

    Fields: appended, dropped, refactorised, refined, how often; updates since the last check of the factor; turn, the
    row that is checked next; moved, nats by which new rows moved q(f) from where iterated sites settled. Of solves:
    usual_iterations, the most that one took, which began at zeros; last, the event fields of the last one.
    """

    appended: int = 0
    dropped: int = 0
    refactorised: int = 0
    refined: int = 0
    updates: int = 0
    turn: int = 0
    moved: float = 0.0
    usual_iterations: int | None = None
    last: tuple[tuple[str, Any], ...] = ()

    def counted(self, appended: int, dropped: int) -> "UpdateState":
        """The record with so many more rows."""
        return replace(self, appended=self.appended + appended, dropped=self.dropped + dropped)

    @property
    def event(self) -> Event:
        """Event of the report."""
        return Event(
            EventKind.UPDATED,
            appended=self.appended, dropped=self.dropped, refactorised=self.refactorised or None,
            refined=self.refined or None, moved=self.moved or None, stage=UPDATE, **dict(self.last),
        )  # fmt: skip


class BaseState:
    """Defaults of a state; a kind overrides what differs.

    Fields: exact, whether it answers for the model itself and not for an approximation; prior, detached; x and y, the
    table; rows, features of the distinct rows; replicates, that joined them; residual, noise and representer_weights
    of the distinct rows; factor, of K + noise, and parts, the exact state of each factor, none of an approximation;
    run; online; report.
    """

    exact: ClassVar[bool] = False
    if TYPE_CHECKING:  # fields of one kind, properties of another
        prior: Prior
        report: Report

        @property
        def x(self) -> Tensor: ...
        @property
        def y(self) -> Tensor: ...
        @property
        def rows(self) -> Rows: ...
        @property
        def replicates(self) -> Replicates | None: ...
        @property
        def residual(self) -> Tensor: ...
        @property
        def noise(self) -> Tensor: ...
        @property
        def representer_weights(self) -> Tensor: ...
        @property
        def run(self) -> Run: ...
        @property
        def online(self) -> UpdateState: ...
        @property
        def factor(self) -> TriangularFactor | None: ...
        @property
        def parts(self) -> tuple[Any, ...]: ...

    @property
    def of_outputs(self) -> tuple[Any, ...]:
        """The state of each output that has noise of its own."""
        return self.parts

    # -- sizes ----------------------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """The number of training rows."""
        return self.x.shape[-2]

    @property
    def distinct(self) -> int:
        """The number of training rows that differ, which are those that are computed with."""
        return self.rows.count

    @property
    def points(self) -> Float[Tensor, "*batch u d"]:
        """The distinct training inputs, (*batch, u, d), in the order of the weights."""
        return self.x if self.replicates is None else self.replicates.x

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        """x and y whose width, dtypes and device those of new rows have."""
        return self.x, self.y

    @property
    def result_dtype(self) -> torch.dtype:
        return self.like[0].dtype

    @property
    def stored(self) -> "BaseState":
        """The state whose prior, factors and records a file has."""
        return self

    @property
    def plan(self) -> Plan | None:
        """Plan of exact inference; `report.plan` may be one of an approximation."""
        return None

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the distinct rows."""
        return self.prior.likelihood if self.replicates is None else self.replicates.likelihood

    @property
    def ranks(self) -> int:
        """Number of ranks that have conditioned together."""
        return self.run.group.size

    # -- how it answers -------------------------------------------------------------------------------------------
    def obstacle(self, question: str) -> str | None:
        """Reason that this state does not answer a question of its kind, in four parts; None if it answers.

        Args: question, a name of `Posterior`.
        """
        if (reason := self.obstacle_to_terms(question)) is not None:
            return reason
        if question in (*UPDATES, "fantasize") and self.batch_shape:
            shape = tuple(self.batch_shape)
            return f"`{question}` needs a posterior of one table, got a batch of shape {shape}; condition each alone"
        changed = self.online.appended + self.online.dropped
        if question in SETTLED and changed and not self.prior.likelihood.underlying.has_sites:
            return (
                f"`{question}` needs sites that iteration has settled together, got a posterior that {changed:,} rows "
                "joined or left since; condition again on its rows"
            )
        if question in UPDATES and self.differentiable:
            return f"`{question}` needs a detached posterior, got one with differentiable=True; condition without it"
        if question in UPDATES and self.ranks > 1:
            return (
                f"`{question}` learns rows in one process, got a posterior of {self.ranks} ranks, each of which would "
                "learn others; save it on one rank, and go on with what flashgp.load gives"
            )
        return None

    def obstacle_to_terms(self, question: str) -> str | None:
        """Reason that it has no terms: their covariance would be one of each output."""
        if question not in ("component", "components") or not self.prior.separate:
            return None
        return (
            f"`{question}` is of one covariance matrix, got a posterior of {self.prior.outputs} outputs with noise of "
            f"their own; take post.by_output[j].{question}"
        )

    @property
    def differentiable(self) -> bool:
        """True if gradients to parameters, x and y are kept."""
        return False

    @property
    def draws(self) -> int:
        """The number of sets of hyperparameters that answers average."""
        return 1

    @property
    def by_solves(self) -> bool:
        """True if answers come from solves."""
        return False

    @property
    def evidence_known(self) -> bool:
        """True if the log marginal likelihood takes no solves, by a factor or because it was asked for before."""
        return True

    @property
    def loss(self) -> str:
        """Accuracy lost by an approximation, in words."""
        return ""

    @property
    def rows_learned(self) -> tuple[Tensor, Tensor] | None:
        """x and y of all training rows; None where they are not held."""
        return self.x, self.y

    @property
    def training_table(self) -> Any:
        """The rows that importance and plots are computed from: all of them."""
        return self

    def checked_points(self, x: Any, name: str) -> Tensor:
        """Points that answers are asked at, (n_test, d). Raises: ShapeError, DomainError."""
        x = check_points(x, name, like=self.like[0])
        if x.dim() != 2:
            raise ShapeError(
                f"`{name}` must be of shape (n_test, d) for an approximate posterior, which is of one table, got "
                f"{tuple(x.shape)}; pass x.reshape(-1, {x.shape[-1]})"
            )
        return x

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of the state in a file, beside its prior and its factors."""
        group = {} if self.replicates is None else {"group": self.replicates.group}
        return {"x": self.x, "y": self.y, **group}

    def numbers(self) -> dict[str, Any]:
        """And numbers of an approximation, with its name as "kind"; none of exact inference."""
        return {}

    def under(self, prior: Prior, online: UpdateState) -> Self:
        """The state with what a prior knows of rows to come, and another record of updates."""
        return replace(self, prior=prior, online=online)  # type: ignore[type-var]

    @property
    def some_inputs(self) -> Tensor:
        """Inputs of training rows, (*batch, k, d): of all that are held."""
        return self.x

    def of_term(self, prior: Prior) -> Self:
        """The state of a term of f, eq. (M-410): with the covariance of the term with what this one knows f by.

        Args: prior, of the term, whose kernel is a summand; asked of states that answer `component`.
        """
        raise NotImplementedError

    def with_prior(self, prior: Prior) -> Self:
        """The state under a prior whose likelihood gives the same covariance matrix and residual."""
        prior = prior.held()
        joined = None if self.replicates is None else join(prior, self.x, self.y, self.replicates.group)
        return replace(self, prior=prior, replicates=joined)  # type: ignore[type-var]
