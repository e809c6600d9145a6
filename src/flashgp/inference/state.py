"""State: a prior given data, as a value. Functions of exact, predict, training and online take states and return them.

With K^ = K + noise and r = y - m(x): weights = K^-1 r, eq. (M-30). The state owns a detached copy of the prior, so that
changing parameters afterwards changes nothing here. Only its cache changes, and its report, to which later solves add.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.parameters import ParameterEntry, named_parameter_objects
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.base_state import BaseState, UpdateState
from flashgp.inference.numpy_prior import NumpyPrior
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates
from flashgp.inference.run import Run
from flashgp.inference.solves import Solves
from flashgp.inference.threads import ONE_THREAD_ROWS, one_thread
from flashgp.likelihoods.base import Sites
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import OperatorOptions
from flashgp.pairwise.problem import PairProblem
from flashgp.planner.plan import Plan
from flashgp.planner.products import ProductPlan, stored_bytes
from flashgp.solvers.direct.cholesky import TriangularFactor
from flashgp.solvers.growing.panels import PanelFactor

F64 = torch.float64


@dataclass(eq=False)
class Cache:
    """Values that a state has computed and need not compute again; the one thing of it that changes.

    Each state begins with an empty one. Fields: weights, whitened, solves, sites, as the properties of the state;
    numpy_prior, in a tuple once it was looked up; likelihood_parts, r^T K^-1 r and log|K| without a factor;
    variance_probes (predict/sampled_variance.py); warned_sampled_variance and warned_rounded_variance, whether a
    warning has said that variances are sampled, or that those of a float32 factor are off.
    """

    weights: Tensor | None = None
    whitened: Tensor | None = None
    solves: Solves | None = None
    sites: Sites | None = None
    numpy_prior: tuple[NumpyPrior | None] | None = None
    likelihood_parts: tuple[Tensor, float] | None = None
    variance_probes: Any = None
    warned_sampled_variance: bool = False
    warned_rounded_variance: bool = False


@dataclass(frozen=True, eq=False)
class State(BaseState):
    """A prior given data; changed by `dataclasses.replace` alone, which begins an empty cache.

    Fields: prior, detached; x (*batch, n, d) and y (*batch, n[, outputs]), the table. Of its u rows that differ in x,
    in the order of `replicates` (inference/replicates.py; None where u = n): rows, their features; residual (*batch, u,
    outputs or 1); factor, of K + noise (None without data, or where solves made the weights); weights, or whitened,
    L^-1 of the residual, each None where it is computed when asked for. theta, the kernel's parameters; solver, what
    solves go by where there is no float64 factor, None to make it when asked for; run; online, what
    happened since conditioning; differentiable, whether gradients to parameters, x and y are kept; versions, then those
    of the parameters, which are the GP's own; report.
    """

    prior: Prior
    x: Tensor
    y: Tensor
    rows: Rows
    theta: tuple[Tensor, ...]
    residual: Tensor
    factor: TriangularFactor | None
    report: Report
    weights: Tensor | None = None
    whitened: Tensor | None = None
    replicates: Replicates | None = None
    solver: Solves | None = None
    run: Run = field(default_factory=Run)
    online: UpdateState = field(default_factory=UpdateState)
    differentiable: bool = False
    versions: tuple[int, ...] = ()
    cache: Cache = field(default_factory=Cache, init=False, repr=False)
    exact: ClassVar[bool] = True

    @property
    def parts(self) -> tuple["State", ...]:
        """The state of each factor."""
        return (self,)

    @property
    def table(self) -> None:
        """No cell of y is missing."""
        return

    def common(self, name: str) -> "State":
        """The state that a name is asked of."""
        return self

    def mapped(self, function: Callable[["State", int], "State"], *_: Any) -> "State":
        """As `OutputStates.mapped`."""
        return function(self, 0)

    @property
    def batch_shape(self) -> torch.Size:
        return self.residual.shape[:-2]

    @property
    def plan(self) -> Plan | None:
        return self.report.plan

    # -- the rows that are computed with --------------------------------------------------------------------------
    @property
    def sites(self) -> Sites:
        """The Gaussian factors of the distinct rows that the state is conditioned on."""
        if self.cache.sites is None:
            y = self.y if self.replicates is None else self.replicates.y
            self.cache.sites = self.likelihood.sites(y, self.prior.outputs)
        return self.cache.sites

    @property
    def noise(self) -> Float64[Tensor, "*batch rows"]:
        """The noise variance of each distinct row, with the jitter of the system that was solved, (*batch, u or 1)."""
        noise = self.sites.variance
        if self.factor is None or self.by_solves:
            return noise
        return noise + self.factor.jitter.double().unsqueeze(-1)

    def obstacle(self, question: str) -> str | None:
        if question == "leave_one_out" and self.count and self.factor is None:
            return (
                f"`leave_one_out` needs a factor of all {self.distinct:,} rows, got a posterior by iterative solves; "
                "condition with a larger memory=, or with dtype=torch.float32, which takes half of what float64 takes"
            )
        if question == "fantasize" and self.count and self.float64_factor is None and not self.batch_shape:
            return (
                f"`fantasize` needs a float64 factor, got the route {self.report.route!r}; condition with "
                'dtype=torch.float64, or solver="cholesky" and a larger memory='
            )
        if question == "refine" and not self.count:
            return "`refine` needs a posterior with rows, got one of none; use fgp.fit"
        return super().obstacle(question)

    def checked_points(self, x: Any, name: str) -> Tensor:
        """Points that answers are asked at, (*batch, n_test, d). Raises: ShapeError, DomainError."""
        if self.versions and self.versions != versions_of(self.prior):
            raise DomainError(
                "`gp` of a differentiable posterior must have the parameters that it was conditioned with, got some "
                "that were changed since; condition again"
            )
        x = check_points(x, name, like=self.x)
        try:
            broadcast_batch(x.shape[:-2], self.batch_shape)
        except RuntimeError:
            raise ShapeError(
                f"`{name}` has batch shape {tuple(x.shape[:-2])}, which does not broadcast with the model's "
                f"{tuple(self.batch_shape)}; give it the same leading dimensions, or none"
            ) from None
        return x

    def prior_covariance(self, rows: Rows, others: Rows | None = None) -> CovarianceOperator:
        """Prior covariance of some rows, with others or with each other, float64."""
        return CovarianceOperator(PairProblem(self.prior.kernel.form, self.theta, rows, others), F64)

    def covariance_to(
        self, rows: Rows, dtype: torch.dtype, workspace: Workspace | None = None, plan: ProductPlan | None = None
    ) -> CovarianceOperator:
        """The prior covariance between other rows and the training rows; plan: of its products."""
        options = None if plan is None else OperatorOptions(plan)
        return CovarianceOperator(
            PairProblem(self.prior.kernel.form, self.theta, rows, self.rows), dtype, workspace, options
        )

    # -- what answers are made of ---------------------------------------------------------------------------------
    @property
    def float64_factor(self) -> TriangularFactor | None:
        """The factor where it is float64, so that it answers everything alone; None beside solves, or without data."""
        return self.factor if self.factor is not None and self.factor.dtype == F64 else None

    @property
    def by_solves(self) -> bool:
        """True if answers come from solves: there is no factor, or one in float32."""
        return bool(self.count) and self.float64_factor is None and not self.batch_shape

    @property
    def evidence_known(self) -> bool:
        return not self.by_solves or self.cache.likelihood_parts is not None

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"residual": self.residual, "representer_weights": self.representer_weights}

    def of_term(self, prior: Prior) -> "State":
        device = self.x.device
        return replace(
            self, prior=prior, rows=prior.kernel.rows(self.points), weights=self.representer_weights, whitened=None,
            theta=tuple(value.to(device) for value in prior.kernel.theta()), solver=self.solves, versions=(),
        )  # fmt: skip

    def with_prior(self, prior: Prior) -> "State":
        again = super().with_prior(prior)
        return replace(again, weights=self.representer_weights, solver=self.solves, online=UpdateState())

    @property
    def solves(self) -> Solves | None:
        """A^-1 by solves, where there is no factor or one in float32; None where a factor is all that is needed."""
        if not self.by_solves:
            return None
        if self.solver is not None:
            return self.solver
        if self.cache.solves is None:  # of a model file, or after an update
            self.cache.solves = self._solves_that_fit()
        return self.cache.solves

    def _solves_that_fit(self) -> Solves:
        """Solves by the plan; where the tiles that it stores do not fit here and now, they are recomputed, with an
        event."""
        plan = self.plan
        if plan is None or plan.route != "stored":
            return self._solves_by(plan)
        needed, free = stored_bytes(self.distinct), available_bytes(self.x.device)
        if needed <= free:
            try:
                return self._solves_by(plan)
            except MemoryBudgetError as error:  # what is said to be free may be in pieces, or taken meanwhile
                free = error.available_bytes
        self.report.events.append(Event(EventKind.TILES_NOT_STORED, needed=needed, free=free))
        return self._solves_by(replace(plan, route="recomputed"))

    def _solves_by(self, plan: Plan | None) -> Solves:
        options = OperatorOptions(deterministic=self.run.deterministic)
        problem = PairProblem(self.prior.kernel.form, self.theta, self.rows)
        operator = CovarianceOperator(problem, F64, None, options)
        return Solves.of(
            plan, operator, self.sites.variance, self.run, factor=self.factor, reflected=self.online.dropped > 0
        )

    @property
    def representer_weights(self) -> Float64[Tensor, "*batch u p"]:
        """K^-1 (y - m), (*batch, u, outputs or 1), float64; after an update n^2 flops when they are first asked for."""
        if self.weights is not None:
            return self.weights
        if self.cache.weights is None:
            self.cache.weights = self._weights_by_factor()
        return self.cache.weights

    @entered()
    @torch.no_grad()
    def _weights_by_factor(self) -> Tensor:
        """L^-T z, what an update left to do."""
        whitened, factor = self.whitened_residual, self.factor
        assert whitened is not None
        assert factor is not None
        alone = 0 if self.x.device.type == "cpu" else ONE_THREAD_ROWS + 1
        with deterministically(self.run.deterministic), one_thread(alone):
            return PanelFactor.of(factor).back_solve(whitened)

    @property
    def whitened_residual(self) -> Float64[Tensor, "u p"] | None:
        """L^-1 (y - m), (u, outputs or 1), where it is known."""
        return self.cache.whitened if self.whitened is None else self.whitened

    @property
    def whitened_for_mean(self) -> Float64[Tensor, "u p"] | None:
        """The whitened residual while it spares the weights: after an update, until these are asked for.

        None for a deterministic state: its answers must not depend on what was asked for before.
        """
        spared = self.weights is None and self.cache.weights is None and not self.run.deterministic
        return self.whitened_residual if spared else None

    @property
    def numpy_prior(self) -> NumpyPrior | None:
        """Parts of the prior's points in NumPy calls; None where torch has to say, as for repeated rows."""
        if self.cache.numpy_prior is None:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                return None  # inside a transform of torch.func no tensor is plain; afterwards they are
            served = self.run.online.numpy_pairs and not (
                self.replicates or self.differentiable or self.run.deterministic or self.batch_shape
            )
            self.cache.numpy_prior = (NumpyPrior.of(self.prior, self.theta, self.x) if served else None,)
        return self.cache.numpy_prior[0]


def versions_of(prior: Prior) -> tuple[int, ...]:
    """Number of times that torch has seen each parameter written to; of one output also those that it has an entry
    of."""
    entries = (one.raw for _, one in named_parameter_objects(prior) if isinstance(one, ParameterEntry))
    return tuple(tensor._version for tensor in (*prior.parameters(), *entries))


def continued(state: State, online: UpdateState) -> State:
    """A newly conditioned state, as the continuation of one that has been updated; the report says so."""
    online = replace(online, turn=0, usual_iterations=None, last=())
    state.report.events.append(online.event)
    return replace(state, online=online)
