"""Posterior: a prior conditioned on data, as a value. Factor once, reuse in every prediction.

With K^ = K + noise and r = y - m(x): representer_weights = K^-1 r, eq. (M-30). The posterior owns a detached copy of
the prior, so changing parameters afterwards changes nothing here. conditioning.py makes it.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.checks import check_points, promotions
from flashgp.foundations.determinism import deterministic_where, deterministically, in_own_memory
from flashgp.foundations.errors import DomainError, FlashGPWarning, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.parameters import named_parameter_objects
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.counters import NOTHING_LEARNED, Learned
from flashgp.inference.exact.leave_one_out import LeaveOneOut, left_out
from flashgp.inference.exact.likelihood import LOG_2PI
from flashgp.inference.exact.replicates import Replicates
from flashgp.inference.exact.solve import DEFAULT_CHOICE, SolverChoice, Solves
from flashgp.inference.gp import GP
from flashgp.inference.numpy_prior import PlainPrior
from flashgp.inference.online import update as online
from flashgp.inference.online.fantasies import Fantasies, fantasize
from flashgp.inference.online.window import whitened_by
from flashgp.inference.plan import check_prediction_plan, plan_for, price_of_variance
from flashgp.inference.predict.paths import Paths, draw_paths
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.variance_samples import VarianceProbes, variance_probes
from flashgp.kernels.warped import autocast_events
from flashgp.likelihoods import Gaussian
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import LEAST_PAIRS, Orders
from flashgp.planner.conditioning import PASSES
from flashgp.planner.plan import Plan
from flashgp.planner.products import ProductPlan, stored_bytes
from flashgp.planner.variances import VariancePrice, check_variance
from flashgp.solvers.direct.cholesky import TriangularFactor

if TYPE_CHECKING:
    from flashgp.inference.training.history import Progress

__all__ = ["LeaveOneOut", "Posterior", "in_batches"]

UNNOTED_RESIDUAL = 1e-12  # relative, of weights that are as good as float64 gives, where no bound is known
UNNOTED_SHARE, UNNOTED_NATS = 0.1, 1e-3  # of a likelihood's standard error, or nats: what weights may add unsaid
SAMPLED_SEED = 2**33  # added to a seed for the draws that variances are sampled from


class Posterior:
    """A Gaussian process given data. Made by `gp.condition`; immutable.

    Fields: gp, the prior as it was (a detached copy); x, y, the training data; representer_weights K^-1 (y - m),
    (*batch, u, outputs or 1), float64; factor, the Cholesky factor of K + noise (None without data, or where iterative
    solves made the weights); choice, how solves were asked for; learned, what happened to it online; report; plan;
    replicates, the u distinct rows that repeated rows of x were joined into (None where u = n). Factor, weights,
    residual and row features are theirs, in that order (inference/exact/replicates.py).
    """

    def __init__(
        self,
        gp: GP,
        x: Tensor,
        y: Tensor,
        rows: Rows,
        theta: tuple[Tensor, ...],
        factor: TriangularFactor | None,
        representer_weights: Tensor | None,
        residual: Tensor,
        report: Report,
        differentiable: bool = False,
        replicates: Replicates | None = None,
        solves: Solves | None = None,
        choice: SolverChoice = DEFAULT_CHOICE,
        learned: Learned = NOTHING_LEARNED,
    ) -> None:
        self.gp = gp
        self.x = x
        self.y = y
        self.rows = rows
        self.theta = theta
        self.factor = factor
        self._weights = representer_weights
        self.residual = residual
        self.report = report
        self.differentiable = differentiable
        self.replicates = replicates
        self.choice = choice
        self.learned = learned
        self._solves = solves
        self._probes: VarianceProbes | None = None
        self.told_of_samples = False  # whether a warning has said that variances are sampled
        self.told_of_rounding = False  # or that those of a float32 factor are off
        self._plain_prior: tuple[PlainPrior | None] | None = None  # once it was asked for
        self._likelihood_parts: tuple[Tensor, float] | None = None  # without a factor, once it was asked for

    @property
    def float64_factor(self) -> TriangularFactor | None:
        """The factor where it is float64, so that it answers everything alone; None beside solves, or without data."""
        return self.factor if self.factor is not None and self.factor.dtype == torch.float64 else None

    @property
    def plan(self) -> Plan | None:
        return self.report.plan

    @property
    def representer_weights(self) -> Float64[Tensor, "*batch u p"]:
        """K^-1 (y - m), (*batch, u, outputs or 1), float64; after an update n^2 flops when they are first asked for."""
        if self._weights is None:
            self._weights = online.weights_of(self)
        return self._weights

    @property
    def plain_prior(self) -> PlainPrior | None:
        """What points of the prior are made of in NumPy calls; None where torch has to say, as for repeated rows.

        Looked up once for all posteriors that come from this one by learning rows.
        """
        if self._plain_prior is None:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                return None  # inside a transform of torch.func no tensor is plain; afterwards they are
            served = not (self.replicates or self.differentiable or self.choice.deterministic or self.batch_shape)
            self._plain_prior = (PlainPrior.of(self.gp, self.theta, self.x) if served else None,)
        return self._plain_prior[0]

    def take_prior(self, post: "Posterior") -> None:
        """What `post`, of the same prior, has looked up of it."""
        self._plain_prior = post._plain_prior

    @property
    def whitened(self) -> Float64[Tensor, "u p"] | None:
        """L^-1 (y - m), (u, outputs or 1), while it spares the weights: after an update, until these are asked for.

        None for a deterministic posterior: its answers must not depend on what was asked for before.
        """
        spared = self._weights is None and not self.choice.deterministic
        return whitened_by(self.factor, self.learned.whitened) if spared else None

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
    def noise(self) -> Float64[Tensor, "*batch rows"]:
        """The noise variance of each distinct row, with the jitter of the system that was solved, (*batch, u or 1)."""
        noise = self._likelihood.diagonal(self.distinct, self.x.device)
        if self.factor is None or self.solves is not None:
            return noise
        return noise + self.factor.jitter.double().unsqueeze(-1)

    @property
    def _likelihood(self) -> Gaussian:
        return self.gp.likelihood if self.replicates is None else self.replicates.likelihood

    def predict(
        self,
        x_test: Any,
        *,
        variance: str = "auto",
        plan: ProductPlan | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
    ) -> Prediction:
        """The posterior at x_test, (*batch, n_test, d): lazy, tile by tile, differentiable in x_test.

        Lazy: x_test is read when something is asked for, and must be what it was until then. From 1e7 pairs of training
        and test rows on it follows a plan, which its report carries.

        Args:
            variance: without a float64 factor, "exact" takes solves for every point, (M-101), and "sampled" 64 solves
                once for all points, (M-97), with `p.variance_standard_error`; "auto" samples where exact solves would
                take more than a minute by the machine's rates, (M-107), with a warning, and never where gradients are
                wanted or the kernel has no random features. A float64 factor is exact unless "sampled" is asked for.
            plan: how to compute it, as `flashgp.plan(gp, n=, d=, n_test=)` made it (`distinct=` where rows repeat); by
                default one is made when the mean or the variance is asked for. memory: its budget, what is free by
                default.
            deterministic: the same bits whatever the number of threads, as `GP.condition` says; a posterior conditioned
                so predicts so.
        Raises: ShapeError, DomainError for points, a plan or a variance that do not fit; where the result is asked for,
            MemoryBudgetError if nothing fits.
        Cost: n n_test (d + 1) for the mean; n^2 n_test flops for the variance; never n x n_test numbers at once.
        """
        deterministic = deterministic or self.choice.deterministic
        promoted = [*promotions(x_test=x_test), *autocast_events(self.gp.kernel)]
        x_test = check_points(x_test, "x_test", like=self.x)
        with deterministically(deterministic):
            x_test = in_own_memory(x_test)
        try:
            broadcast_batch(x_test.shape[:-2], self.batch_shape)
        except RuntimeError:
            raise ShapeError(
                f"`x_test` has batch shape {tuple(x_test.shape[:-2])}, which does not broadcast with the model's "
                f"{tuple(self.batch_shape)}; give it the same leading dimensions, or none"
            ) from None
        planner = self._planner(x_test, plan, memory, deterministic)
        prediction = Prediction(self, x_test, planner, check_variance(variance), deterministic)
        prediction.report.events += promoted
        return prediction

    def _planner(
        self, x_test: Tensor, plan: ProductPlan | None, memory: str | int | None, deterministic: bool
    ) -> Callable[[bool | str], ProductPlan] | None:
        """What makes the plan of a prediction, with its variance or without; None where no plan is worth its time."""
        n_test, d = x_test.shape[-2:]
        if plan is None and memory is None and (not self.count or n_test * self.distinct < LEAST_PAIRS):
            return None
        members = broadcast_batch(x_test.shape[:-2], self.batch_shape).numel()
        if plan is not None:
            check_prediction_plan(plan, (n_test, self.distinct, self.gp.outputs or 1, members), memory, x_test.device)
            return lambda variance: plan
        return lambda variance: plan_for(
            self.gp, self.distinct, d, n_test=n_test, batch=max(1, members // self.gp.kernel.batch_shape.numel()),
            memory=memory, device=x_test.device, variance=variance, conditioned=self._route, passes=self._passes,
            deterministic=deterministic,
        )  # fmt: skip

    @property
    def _route(self) -> str:
        """The route that gives variances, by what there is: a hand-over may have changed the plan's."""
        if not self.count or self.batch_shape or self.float64_factor is not None:
            return "direct"
        if self.factor is not None:
            return "refined"
        return "recomputed" if self.plan is None else self.plan.route

    @property
    def _passes(self) -> int:
        """Over the pairs, of one more block of solves: as many as the weights took, where that is known.

        Those of an update began at the old weights, so that it took fewer: what counts is the solve before it.
        """
        if self.plan is None or self.plan.solver != "cg":
            return PASSES
        usual = self.learned.usual_iterations
        known = self.report.iterations if usual is None else usual
        return PASSES if known is None else max(1, known)

    def price_of_variance(self, n_test: int, asked: str, deterministic: bool) -> VariancePrice:
        """What variances at so many points take without a float64 factor: by exact solves, or by samples, (M-107)."""
        return price_of_variance(
            self.gp, self.distinct, self.x.shape[-1], n_test, self.x.device, route=self._route, passes=self._passes,
            asked=asked, deterministic=deterministic,
        )  # fmt: skip

    @property
    def probes(self) -> VarianceProbes:
        """What variances are sampled from: made once, from a stream of its own beside that of the solves.

        Raises: ShapeError, DomainError as `variance_probes`.
        """
        if self._probes is None:
            self._probes = variance_probes(self, seed=self.choice.seed + SAMPLED_SEED)
        return self._probes

    def paths(self, count: int, *, features: int = 2048, seed: int | None = None) -> Paths:
        """Posterior functions by Matheron's rule, eq. (M-94): `f = post.paths(64); f(x_any)`, differentiable in x_any.

        Args:
            count: how many; each output has independent ones.
            features: of the draw of the prior, per term of the expanded kernel; its error is `f.prior_error` and stands
                in `f.report`. A kernel without random features takes as many pivots of the training rows instead.
            seed: of all randomness; without one a single integer is drawn from torch's default generator.
        Returns: a function of points (*batch, n_test, d), with values (count, *batch, n_test[, outputs]).
        Raises: DomainError for counts that are none, or a kernel without features and no data; MemoryBudgetError where
            so many solves at once do not fit in what is free.
        Cost: one solve with count outputs right-hand sides; then n (d + count outputs) per point.
        Source: Wilson, Borovitskiy, Terenin, Mostowsky & Deisenroth (2020), eq. 13.
        """
        return draw_paths(self, count, features, seed)

    # -- learning online ------------------------------------------------------------------------------------------
    def append(self, x: Any, y: Any, *, row_variance: Any = None, row_weight: Any = None) -> "Posterior":
        """The posterior with k more rows, eq. (M-111); this one stays what it is.

        Args:
            x: (k, d); y: (k,) or (k, outputs); as `gp.condition` takes them, joined to the rows there are by torch.cat.
            row_variance: (k,), where the rows before have variances of their own; row_weight: (k,), ones by default.
        Raises: ShapeError, DomainError for rows that do not fit or are not finite, a batch or a differentiable
            posterior; NotPositiveDefiniteError for a row that repeats another without noise. Nothing changes then.
        Cost: n^2 k flops; k rows of memory, at times a panel of n / 2 spare ones. The weights wait until asked for.
            Without a float64 factor a solve from the old weights, to the tolerance of conditioning: about two thirds
            of its iterations, and little of its preparation (online_solves.py).
        """
        return online.append(self, x, y, row_variance, row_weight)

    def drop(self, indices: Any) -> "Posterior":
        """The posterior without some rows, eq. (M-112); without any row it is the prior.

        Args: indices: numbers of rows of `post.x`, from 0 on, each once.
        Raises: DomainError for numbers that are out of range or repeat, a batch or a differentiable posterior.
        Cost: 2 n^2 flops for each row, from the first that goes on; n^2 numbers. Without a float64 factor as `append`.
        """
        return online.drop(self, indices)

    def slide(self, x: Any, y: Any, *, row_variance: Any = None, row_weight: Any = None) -> "Posterior":
        """A window moves on: the k rows that came first are dropped, k new ones appended; see `append` and `drop`."""
        return online.slide(self, x, y, row_variance, row_weight)

    def replace(self, indices: Any, x: Any, y: Any, *, row_variance: Any = None, row_weight: Any = None) -> "Posterior":
        """Some rows are dropped and as many appended, at the end of the table; see `append` and `drop`."""
        return online.replace_rows(self, indices, x, y, row_variance, row_weight)

    def fantasize(self, x: Any, y: Any = None, *, samples: int | None = None, seed: int | None = None) -> "Fantasies":
        """Many posteriors at once, each with q hypothetical rows of its own beside these, eq. (M-114).

        Args:
            x: (*b, q, d), the rows of every member; y: their targets, (*s, *b, q) or (*s, *b, q, outputs), with the
                noise of the likelihood; or samples: draw so many targets from the posterior, s = (samples,), seed: of
                these draws.
        Returns: Fantasies, with `predict(x_test)` of all members at once; differentiable in x, y and x_test.
        Raises: ShapeError, DomainError for what does not fit, or a posterior without one float64 factor;
            NotPositiveDefiniteError for a row that repeats another without noise.
        Cost: n^2 flops for each distinct row, n q^2 for each member; n numbers for each distinct row.
        """
        return fantasize(self, x, y, samples, seed)

    def refine(
        self,
        steps: int = 5,
        *,
        priors: Literal["weak", "given"] = "weak",
        time_limit: float | None = None,
        progress: "Callable[[Progress], None] | None" = None,
    ) -> "Posterior":
        """The posterior of the same rows with better hyperparameters: a few steps up the log joint from its own.

        Args: steps: of L-BFGS-B at most; priors, time_limit, progress: as `fgp.fit`.
        Raises: DomainError for a posterior without rows, of a batch or differentiable; as `fgp.fit` otherwise.
        Cost: about 1.3 evaluations of n^3 flops a step, and a new factor: not of O(n^2).
        """
        from flashgp.inference.training.refine import refined

        return refined(self, steps, priors=priors, time_limit=time_limit, progress=progress)

    @property
    def solves(self) -> Solves | None:
        """A^-1 by solves, where there is no factor or one in float32; None where a factor is all that is needed."""
        if not self.count or self.float64_factor is not None or self.batch_shape:
            return None
        if self._solves is None:  # of a model file: what they keep is made again
            noise = self._likelihood.diagonal(self.distinct, self.x.device)
            self._solves = Solves.of(
                self._plan_that_fits(), self.gp.kernel.form, self.theta, self.rows, noise, factor=self.factor,
                choice=self.choice, reflected=self.learned.dropped > 0,
            )  # fmt: skip
        return self._solves

    def _plan_that_fits(self) -> Plan | None:
        """The plan of the solves where the tiles that it stores fit here and now; else one that recomputes them."""
        plan = self.plan
        if plan is None or plan.route != "stored":
            return plan
        needed, free = stored_bytes(self.distinct), available_bytes(self.x.device)
        if needed <= free:
            return plan
        self.report.events.append(Event(EventKind.TILES_NOT_STORED, needed=needed, free=free))
        return replace(plan, route="recomputed")

    @property
    def batch_shape(self) -> torch.Size:
        return self.residual.shape[:-2]

    @deterministic_where(lambda self: self.choice.deterministic)
    def log_marginal_likelihood(self) -> Float64[Tensor, "*batch"]:
        """log p(y | x) of eqs. (M-33) and (M-87), (*batch,), nats.

        From the float64 factor; without one by stochastic Lanczos quadrature, eq. (M-99), whose standard error goes to
        `report.standard_error`; what weights whose solve ended early may add is an event and a warning. Cost: O(n);
        without a factor some tens of passes over the pairs in float64, once; with a float32 factor, whose rounding is
        all that is left to estimate, a few.
        """
        if not self.count:
            return torch.zeros(self.batch_shape, dtype=torch.float64, device=self.x.device)
        n, p = self.residual.shape[-2:]
        if self.factor is not None and self.solves is None:
            z = self.whitened
            product = self.residual * self.representer_weights if z is None else z.square()
            fit = product.sum((-2, -1))
            log_determinant: Tensor | float = self.factor.log_determinant
        else:
            if self._likelihood_parts is None:
                self._likelihood_parts = self._without_factor(p)
            fit, log_determinant = self._likelihood_parts
        value = -0.5 * (fit + p * log_determinant + n * p * LOG_2PI)
        beyond = self._likelihood.beyond_matrix(value.device, p)
        return value if beyond is None else value + beyond

    def _without_factor(self, p: int) -> tuple[Tensor, float]:
        """r^T K^-1 r and log|K| of the distinct rows by solves; the latter's standard error goes to the report."""
        solves, weights = self.solves, self.representer_weights
        assert solves is not None
        fit = (2.0 * self.residual * weights - weights * solves.system.multiply(weights)).sum()
        found = solves.log_determinant()
        self.report.standard_error = 0.5 * p * found.standard_error
        self.report.events.append(
            Event(
                EventKind.LOG_DETERMINANT,
                probes=found.probes,
                steps=found.steps,
                standard_error=self.report.standard_error,
            )
        )
        self._note_unfinished(p, solves, self.report.standard_error)
        return fit, found.value

    def _note_unfinished(self, p: int, solves: Solves, standard_error: float) -> None:
        """What a solve of the weights that ended early does to r^T K^-1 r: it is short by |e|_A^2 for each output."""
        bound, relative = self.report.error_bound, self.report.relative_residual or 0.0
        if bound is None and relative <= UNNOTED_RESIDUAL:
            return
        over = None
        if bound is not None:
            over = 0.5 * p * bound**2 / max(float(solves.system.diagonal().max()), torch.finfo(torch.float64).tiny)
            if over <= max(UNNOTED_SHARE * standard_error, UNNOTED_NATS):
                return
        event = Event(EventKind.LIKELIHOOD_UNCERTAIN, nats=over)
        self.report.events.append(event)
        warnings.warn(
            f"{event} Condition with a larger time_limit= or memory= for the whole solve", FlashGPWarning, stacklevel=5
        )

    @deterministic_where(lambda self: self.choice.deterministic)
    def leave_one_out(self) -> LeaveOneOut:
        """Each observation predicted from the others, without refitting, eqs. (M-39) and (M-40).

        The others include the other observations at the same x, eq. (M-88): a noise-free one leaves no variance.
        Raises: DomainError without a factor. Cost: n^3 / 3 flops, one strip of the inverse factor.
        """
        if not self.count:
            empty = self.y.new_zeros(self.y.shape)
            return LeaveOneOut(empty, empty, empty)
        if self.factor is None:
            raise DomainError(
                f"`leave_one_out` needs a factor of all {self.distinct:,} rows, got a posterior by iterative solves; "
                "condition with a larger memory=, or with dtype=torch.float32, which takes half of what float64 takes"
            )
        y = self.y.to(torch.float64)
        y = y if self.gp.outputs is not None else y.unsqueeze(-1)
        parts = left_out(self.factor, self.representer_weights, y, self.replicates)
        shaped = (part if self.gp.outputs is not None else part.squeeze(-1) for part in parts)
        return LeaveOneOut(*(part.to(self.result_dtype) for part in shaped))

    @property
    def result_dtype(self) -> torch.dtype:
        return self.x.dtype

    def covariance_to(
        self, rows: Rows, dtype: torch.dtype, workspace: Workspace | None = None, plan: ProductPlan | None = None
    ) -> CovarianceOperator:
        """The prior covariance between other rows and the training rows; plan: of its products."""
        orders = None if plan is None else Orders(plan)
        return CovarianceOperator(self.gp.kernel.form, self.theta, rows, self.rows, dtype, workspace, orders)

    def __repr__(self) -> str:
        return f"Posterior of {self.count:,} rows\n{self.gp!r}\n{self.report}"

    def _repr_html_(self) -> str:
        return f"{self.gp._repr_html_()}{self.report._repr_html_()}"


def in_batches(gp: GP, x: Tensor, y: Tensor) -> bool:
    """Whether there is more than one system, or one in a batch: these take a factor."""
    of_y = y.dim() - (1 if gp.outputs is None else 2)
    return x.dim() > 2 or of_y > 0 or any(p.batch_shape for _, p in named_parameter_objects(gp))
