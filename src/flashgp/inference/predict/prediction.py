"""Prediction: mean, variance, intervals, samples and densities at test points, computed when asked for.

    mean     = m(x*) + K_sx K^-1 (y - m(x))                        (M-41)
    variance = k(x*, x*) - |L^-1 K_xs|^2                            (M-42)

The work goes strip by strip over the test points: never n x n_test numbers at once, never n_test x n_test unless a
joint covariance is asked for.
"""

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.checks import check_targets
from flashgp.foundations.contexts import autocast_disabled
from flashgp.foundations.determinism import EVENT, deterministic_where
from flashgp.foundations.errors import DomainError, FlashGPWarning, MemoryBudgetError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.numpy_prior import TITLE
from flashgp.inference.predict.few_points import FewPoints
from flashgp.inference.predict.pricing import price_of
from flashgp.inference.predict.variance_samples import probes_of
from flashgp.inference.predict.variance_solves import FLOOR, SHARE, Explained, explained, explained_jointly, strips
from flashgp.inference.solves import Solves
from flashgp.inference.state import State
from flashgp.inference.threads import ONE_THREAD_ROWS, one_thread
from flashgp.means import evaluate_mean
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem
from flashgp.planner.plan import allowed_bytes
from flashgp.planner.products import ProductPlan
from flashgp.planner.variances import CORRECTION_SECONDS, SAMPLES, strip_points
from flashgp.solvers.direct.cholesky import Factor, factorise_keeping

__all__ = ["Prediction"]

log = logging.getLogger("flashgp.predict")

KEPT_NUMBERS = 2**17  # of K_sx kept between mean and variance: 1 MiB
FEW_POINTS = 16  # up to which memory is the limit: a second thread only makes each operation wait for it
SAMPLE = 16  # points at which they are checked otherwise
# Of a variance, that the error of a float32 factor may be at those where samples would take its place, and time: a
# quarter of theirs without control, (M-97), since at other points it may be larger. With control theirs may be less.
SAMPLED_SHARE = 0.25 * math.sqrt(2.0 / SAMPLES)
UNCHECKED_BYTES = 2**28  # of a joint covariance, below which the free memory is not asked for
_INSTEAD = {"solves": "corrected", "samples": "sampled"}
FAR_BELOW_ZERO = 100.0  # times n eps k(x, x): a computed variance below minus this is not rounding


class Prediction:
    """The posterior at n_test points. Everything is computed on first use and kept.

    Shapes: mean, variance (*batch, n_test), or (*batch, n_test, outputs); in x's dtype and device.
    """

    def __init__(
        self,
        posterior: State,
        x: Tensor,
        planner: Callable[[bool | str], ProductPlan] | None = None,
        variance: str = "auto",
        deterministic: bool = False,
    ) -> None:
        self._posterior = posterior
        self._asked, self._deterministic = variance, deterministic
        self._planner = planner  # the plan of the mean, and of the variance too; none for a few points
        self._x = x
        self._mean: Tensor | None = None
        self._variance: Tensor | None = None
        self._sampled: tuple[Tensor, ...] | None = None  # standard error, lower and upper of sampled variances
        self._limit: int | None = None  # bytes that solves may take
        self._room = 0  # bytes, for wider strips than the least
        self._rows: Rows | None = None  # of a few points, from the mean to the variance; likewise K_sx
        self._cross: Tensor | None = None
        self._solved_cross: Tensor | None = None  # L^-1 K_xs, likewise
        self._few: FewPoints | None = None  # what takes the place of all three where points and prior are simple
        self._workspace = Workspace()
        self._graph = False  # whether what is kept carries gradients
        condition = posterior.report
        self.report = Report(
            route=condition.route, device=str(x.device), dtype=condition.dtype,
            error_bound=condition.error_bound, jitter=condition.jitter, seconds=0.0,
            events=[EVENT] if deterministic else [],
        )  # fmt: skip

    # -- latent function ----------------------------------------------------------------------------------------
    @property
    def mean(self) -> Float[Tensor, "*shape"]:
        """E f(x*), units of y."""
        self._forget_without_graph()
        if self._mean is None:
            self._compute(variance=False)
        return self._given(self._mean)

    @property
    def variance(self) -> Float[Tensor, "*shape"]:
        """Var f(x*) of the latent function, units of y squared, the same for every output."""
        self._forget_without_graph()
        if self._variance is None:
            self._compute(variance=True)
        return self._given(self._variance)

    @property
    def variance_standard_error(self) -> Float[Tensor, "*shape"] | None:
        """Of a sampled variance, point by point, eq. (M-97), in its units and shape; None where it is exact."""
        self.variance  # noqa: B018 - which says
        return None if self._sampled is None else self._given(self._sampled[0])

    @property
    def variance_interval(self) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]] | None:
        """What holds the exact variance with a probability of 95 %, each of the shape of `variance`, eq. (M-97).

        Not two standard errors to each side, since the likelihood is skewed. None where the variance is exact.
        """
        self.variance  # noqa: B018 - which says
        return None if self._sampled is None else (self._given(self._sampled[1]), self._given(self._sampled[2]))

    @property
    def observation_variance(self) -> Float[Tensor, "*shape"]:
        """Variance of a new observation at x*: variance plus noise_variance."""
        noise = self._posterior.prior.additive_noise(self._x.device)
        noise = noise[..., None, None] if self._outputs is not None else noise.unsqueeze(-1)
        return (self.variance.double() + noise).to(self._x.dtype)

    # -- observations -------------------------------------------------------------------------------------------
    def quantile(self, q: float) -> Float[Tensor, "*shape"]:
        """The q-quantile of a new observation, 0 < q < 1."""
        if not 0.0 < q < 1.0:
            raise DomainError(f"`q` must be between 0 and 1, got {q!r}; for example 0.975")
        standard = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(2.0 * q - 1.0, dtype=torch.float64)))
        return self.mean + standard * self.observation_variance.sqrt()

    def interval(self, level: float = 0.95) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """The central interval that holds a new observation with that probability."""
        if not 0.0 < level < 1.0:
            raise DomainError(f"`level` must be between 0 and 1, got {level!r}; for example 0.95")
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def log_prob(self, y: Tensor) -> Float[Tensor, "*shape"]:
        """log density of each new observation on its own, nats, y's shape, eq. (M-43)."""
        y = check_targets(y, "y", self._x, self._outputs)
        variance = self.observation_variance.double()
        error = y.double() - self.mean.double()
        return (-0.5 * (error.square() / variance + variance.log() + math.log(2.0 * math.pi))).to(self._x.dtype)

    @deterministic_where(lambda self, *_, **__: self._deterministic)
    def joint_log_prob(self, y: Tensor) -> Float64[Tensor, "*batch"]:
        """log density of all new observations together, (*batch,), nats. Cost: n_test^3 / 3 flops."""
        y = check_targets(y, "y", self._x, self._outputs).double()
        error = y - self.mean.double()
        error = error if self._outputs is not None else error.unsqueeze(-1)
        factor = self._joint_factor(observed=True)
        self._note_jitter(factor.jitter)
        solved = factor.half_solve(error)
        n, p = error.shape[-2:]
        return -0.5 * (solved.square().sum((-2, -1)) + p * factor.log_determinant + n * p * math.log(2.0 * math.pi))

    # -- joint --------------------------------------------------------------------------------------------------
    def covariance(self, *, observed: bool = False) -> Float[Tensor, "*batch n_test n_test"]:
        """The joint covariance of the latent values (of observations with `observed`), (*batch, n_test, n_test).

        Raises: MemoryBudgetError when what it takes exceeds what is free: three to four such matrices, and two to three
            of n x n_test numbers. Cost: n^2 n_test + n n_test^2 flops.
        """
        return self._joint(observed=observed).to(self._x.dtype)

    @deterministic_where(lambda self, *_, **__: self._deterministic)
    def sample(
        self, count: int = 1, *, observed: bool = False, seed: int | None = None
    ) -> Float[Tensor, "{count} *shape"]:
        """Joint samples of the latent function (of observations with `observed`), (count, *batch, n_test[, outputs]).

        Without a seed one integer is drawn from torch's default generator. Cost: n_test^3 / 3 flops.
        """
        if count < 0:
            raise DomainError(f"`count` must be 0 or more, got {count!r}")
        mean = self.mean.double()
        mean = mean if self._outputs is not None else mean.unsqueeze(-1)
        drawn = int(torch.randint(2**63 - 1, ()).item()) if seed is None else seed
        generator = torch.Generator(device=mean.device).manual_seed(drawn)
        if mean.shape[-2] == 0:
            return self._given(mean.expand(count, *mean.shape))
        factor = self._joint_factor(observed=observed)
        self._note_jitter(factor.jitter)
        noise = torch.randn((count, *mean.shape), generator=generator, dtype=torch.float64, device=mean.device)
        return self._given(mean + factor.lower @ noise)

    # -- work ---------------------------------------------------------------------------------------------------
    @property
    def _outputs(self) -> int | None:
        return self._posterior.prior.outputs

    def _given(self, values: Tensor | None) -> Tensor:
        """Values (*batch, n_test, outputs or 1) the way the user wants them."""
        assert values is not None
        return (values if self._outputs is not None else values.squeeze(-1)).to(self._x.dtype)

    def _wants_graph(self) -> bool:
        return torch.is_grad_enabled() and (self._x.requires_grad or self._posterior.differentiable)

    def _forget_without_graph(self) -> None:
        """What was computed without gradients is computed again once they are asked for."""
        if self._wants_graph() and not self._graph:
            self._mean = self._variance = self._sampled = self._rows = self._cross = self._solved_cross = None
            self._few = None
            self._graph = True

    @autocast_disabled
    @deterministic_where(lambda self, *_, **__: self._deterministic)
    def _compute(self, variance: bool) -> None:
        started = time.perf_counter()
        post, workspace = self._posterior, self._workspace
        if self._of_few_points(variance):
            self.report.seconds = (self.report.seconds or 0.0) + time.perf_counter() - started
            self.report.backend = TITLE
            return
        plan = None
        if self._planner is not None:
            plan = self._planner(self._asked_now() if variance or self._variance is not None else False)
        if plan is not None:
            report = self.report
            self._limit = max(plan.available_bytes, allowed_bytes(plan.peak_bytes))
            self._room = 0 if self._deterministic else plan.available_bytes
            report.plan, report.predicted_bytes, report.predicted_seconds = plan, plan.peak_bytes, plan.seconds
        compiled = workspace.compile_seconds
        points = self._x.shape[:-1].numel()
        alone = points if points <= FEW_POINTS and not self._x.is_cuda else ONE_THREAD_ROWS + 1
        with one_thread(alone), torch.set_grad_enabled(self._wants_graph()):
            rows = self._rows or post.prior.kernel.rows(self._x)
            # A graph that is kept would be gone for the variance after a backward pass from the mean.
            self._rows = rows if points <= FEW_POINTS and not self._wants_graph() else None
            if self._mean is None:
                self._mean = workspace.adopt(self._latent_mean(rows, plan))
                self.report.error_bound = self._error_bound(rows)
            if variance:
                self._variance = workspace.adopt(self._latent_variance(rows)).expand(self._mean.shape)
                if self._sampled is not None:
                    self._sampled = tuple(part.expand(self._mean.shape) for part in self._sampled)
        elapsed = time.perf_counter() - started - (workspace.compile_seconds - compiled)
        self.report.seconds = (self.report.seconds or 0.0) + elapsed
        self.report.compile_seconds = workspace.compile_seconds or None
        self.report.backend = workspace.backend
        self.report.peak_bytes = workspace.peak_bytes
        self.report.events += [event for event in workspace.events if event not in self.report.events]

    def _of_few_points(self, variance: bool) -> bool:
        """The mean, and the variance if asked for, by the few calls that they need; False where that is not all."""
        if self._few is None:
            post = self._posterior
            simple = self._planner is None and self._asked != "sampled" and not self._deterministic
            if not (simple and post.float64_factor is not None and 0 < len(self._x) <= FEW_POINTS):
                return False
            if self._wants_graph() or (self._bound_moves and post.report.error_bound is not None):
                return False
            self._few = FewPoints.of(post, self._x.detach())
            if self._few is None:
                return False
        if self._mean is None:
            self._mean = self._few.mean()
        if variance:
            prior, explained = self._few.variance()
            self._variance = self._difference(prior, explained, torch.float64).expand(self._mean.shape)
        return True

    def _latent_mean(self, rows: Rows, plan: ProductPlan | None) -> Tensor:
        post = self._posterior
        prior = evaluate_mean(post.prior.mean, self._x, self._outputs)
        prior = prior if self._outputs is not None else prior.unsqueeze(-1)
        if not post.count:
            batch = broadcast_batch(prior.shape[:-2], post.batch_shape, rows.batch_shape)
            return prior.expand(*batch, self._x.shape[-2], post.residual.shape[-1])
        cross = post.covariance_to(rows, torch.float64, self._workspace, plan)
        if cross.shape.numel() > KEPT_NUMBERS or self._wants_graph():
            return prior + cross @ post.representer_weights
        self._cross = cross.to_dense()  # a few points: the variance will want the same numbers
        z = post.whitened_for_mean if self._x.shape[:-1].numel() <= FEW_POINTS and not self._wants_graph() else None
        if z is None:
            return prior + self._cross @ post.representer_weights
        assert post.factor is not None
        self._solved_cross = post.factor.half_solve(self._cross.mT)  # as quick as the weights, and the variance's too
        return prior + self._solved_cross.mT @ z

    @property
    def _bound_moves(self) -> bool:
        """Whether k(x, x) is not the same everywhere, and with it the bound of the error."""
        form = self._posterior.prior.kernel.form
        return bool({"product", "opaque"} & {*form.statistics} or form.scalar_count)

    def _error_bound(self, rows: Rows) -> float | None:
        """Eq. (M-37) at these points: where k(x*, x*) is not the same everywhere, the bound grows with its root."""
        post = self._posterior
        bound, form = post.report.error_bound, post.prior.kernel.form
        if bound is None or not rows.count or not self._bound_moves:
            return bound
        here, there = (
            float(CovarianceOperator(PairProblem(form, post.theta, r), torch.float64).diagonal().detach().max())
            for r in (rows, post.rows)
        )
        return bound * math.sqrt(max(1.0, here / there)) if there > 0.0 else bound

    def _latent_variance(self, rows: Rows) -> Tensor:
        post = self._posterior
        form, theta = post.prior.kernel.form, post.theta
        prior = CovarianceOperator(PairProblem(form, theta, rows), torch.float64).diagonal()
        batch = broadcast_batch(prior.shape[:-1], post.batch_shape)
        if not post.count:
            return prior.expand(*batch, rows.count).unsqueeze(-1)
        if not rows.count:
            return prior.expand(*batch, 0).unsqueeze(-1)
        solves = post.solves
        if self._x.dim() > 2 and (solves is not None or self._asked == "sampled"):  # one system: its points in one row
            flat = Prediction(post, self._x.flatten(0, -2), None, self._asked, self._deterministic)
            flat._workspace, flat._limit = self._workspace, self._limit
            found = flat._latent_variance(post.prior.kernel.rows(flat._x))
            self.report.events += flat.report.events
            if flat._sampled is not None:
                self._sampled = tuple(part.reshape(*self._x.shape[:-1], 1) for part in flat._sampled)
            return found.reshape(*self._x.shape[:-1], 1)
        if self._asked == "sampled":
            return self._from_samples(prior)
        way = "factor" if solves is None else self._way(rows.count)
        if solves is not None and self._solved(solves, rows, prior, way):
            if way == "samples":
                return self._from_samples(prior)
            explained, dtype = self._explained_by_solves(solves, rows, prior), torch.float64
        else:
            assert post.factor is not None
            explained, dtype = self._explained_by_factor(rows, batch), post.factor.dtype
        return self._difference(prior, explained, dtype)

    def _difference(self, prior: Tensor, explained: Tensor, dtype: torch.dtype) -> Tensor:
        """The variance that is left, (*batch, n_test, 1); dtype: of what the explained one was computed in."""
        variance = prior - explained
        rounding = FAR_BELOW_ZERO * self._posterior.distinct * torch.finfo(dtype).eps
        inside = torch._C._functorch.is_functorch_wrapped_tensor(variance)  # torch.func: vmap has no numbers to look at
        if not inside and variance.numel() and float((variance + rounding * prior).detach().min()) < 0.0:
            worst = float(variance.detach().min())
            self.report.events.append(Event(EventKind.VARIANCE_NEGATIVE, worst=worst))
            warnings.warn(
                f"a computed variance was {worst:.2e}: the covariance matrix is too ill-conditioned for {dtype}; "
                "the value is given as 0. Use float64, or more noise",
                FlashGPWarning,
                stacklevel=7,
            )
        return variance.clamp_min(0.0).unsqueeze(-1)

    def _explained_by_factor(self, rows: Rows, batch: torch.Size) -> Tensor:
        step = strip_points(self._posterior.distinct, batch.numel(), self._room)
        parts = [self._explained(rows.part(start, start + step)) for start in range(0, max(1, rows.count), step)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    # -- by solves: no factor, or one in float32 ------------------------------------------------------------------
    def _solved(self, solves: Solves, rows: Rows, prior: Tensor, way: str) -> bool:
        """Whether variances come from solves: without a factor; with one in float32 where that is cheap, or where
        a sample of the points shows that the factor's rounding matters. way: what takes the factor's place then."""
        if self._posterior.factor is None:
            return True
        count = rows.count
        price = price_of(self._posterior, count, "exact", self._deterministic)
        if price.seconds <= CORRECTION_SECONDS:
            return True
        index = torch.linspace(0, count - 1, min(SAMPLE, count)).round().long().to(rows.device)
        with torch.no_grad():
            some, prior = rows.take(index), prior.detach()[index]
            exact = prior - explained(solves, self._cross_to(some), prior).value
            rounded = prior - self._explained(some)
        error = float(((rounded - exact).abs() / exact.clamp_min(torch.finfo(exact.dtype).tiny)).max())
        gives_way = not error <= (SHARE if way == "solves" else SAMPLED_SHARE)  # also where it is no number
        event = Event(
            EventKind.VARIANCE_BY_FACTOR,
            error=error, points=len(index), instead=_INSTEAD[way] if gives_way else None,
        )  # fmt: skip
        self.report.events.append(event)
        if error > SHARE and not gives_way and not self._posterior.cache.warned_rounded_variance:
            self._posterior.cache.warned_rounded_variance = True
            warnings.warn(
                f"{event} At others it may be more; exact solves at {count:,} points would take about "
                f'{readable_seconds(price.seconds)}. predict(x, variance="exact") takes them, "sampled" samples',
                FlashGPWarning,
                stacklevel=7,
            )
        return gives_way

    def _asked_now(self) -> str:
        """Gradients are those of exact variances, whatever is the quickest."""
        return "exact" if self._asked == "auto" and self._wants_graph() else self._asked

    def _way(self, count: int) -> str:
        """Exact solves at so many points, or samples where those take too long, eq. (M-107)."""
        return price_of(self._posterior, count, self._asked_now(), self._deterministic).way

    def _from_samples(self, prior: Tensor) -> Tensor:
        """Eq. (M-97), from probes that the posterior keeps."""
        post = self._posterior
        if self._wants_graph():
            raise DomainError(
                '`variance` must be "auto" or "exact" where gradients are wanted, got "sampled", which has none; '
                "leave it out"
            )
        counted = (
            contextlib.nullcontext() if post.solves is None else post.solves.charged_to(self._workspace, self._limit)
        )
        with counted:
            probes = probes_of(post)
            found = probes(self._x)
        self._sampled = tuple(part.unsqueeze(-1) for part in (found.standard_error, found.lower, found.upper))
        least = FLOOR * prior.clamp_min(torch.finfo(prior.dtype).tiny)
        share = float((found.standard_error / torch.maximum(found.variance, least)).max())
        samples = probes.noisy.shape[1]
        event = Event(EventKind.VARIANCE_BY_SAMPLES, samples=samples, share=share)
        self.report.events.append(event)
        log.info("%s", event)
        if self._asked == "auto" and not post.cache.warned_sampled_variance:
            post.cache.warned_sampled_variance = True
            exact = price_of(post, len(prior), "exact", self._deterministic).seconds
            warnings.warn(
                f"{event} Exact solves at {len(prior):,} points would take about {readable_seconds(exact)}. "
                'predict(x, variance="exact") takes them; a factor, with a larger memory= of condition, would be quick',
                FlashGPWarning,
                stacklevel=7,
            )
        return found.variance.unsqueeze(-1)

    def _explained_by_solves(self, solves: Solves, rows: Rows, prior: Tensor) -> Tensor:
        """Exact solves, so many points at a time."""
        with solves.charged_to(self._workspace, self._limit):
            parts = [
                explained(solves, self._cross_to(rows.part(start, stop)), prior[start:stop])
                for start, stop in strips(rows.count)
            ]
        found = Explained(torch.cat([part.value for part in parts]), torch.cat([part.error for part in parts]))
        self._note_shortfall(found, prior.detach(), found.value.detach())
        return found.value

    def _note_shortfall(self, found: Explained, prior: Tensor, value: Tensor) -> None:
        """How far variances by solves may be off: an event, and a warning where that is more than it should be."""
        share = float((found.error / (prior - value - found.error).clamp_min(FLOOR * prior)).max())
        self.report.events.append(Event(EventKind.VARIANCE_BY_SOLVES, share=share))
        if share > SHARE:
            warnings.warn(
                f"a variance may be too large by {share:.1e} of itself: the solves ended before it was certain to "
                f"{SHARE:g}; more noise, or dtype=torch.float64, would make it so",
                FlashGPWarning,
                stacklevel=8,
            )

    def _cross_to(self, rows: Rows) -> Tensor:
        """K(x, x_*), (n, m), float64."""
        return self._posterior.covariance_to(rows, torch.float64, self._workspace).to_dense().mT

    def _half(self, rows: Rows) -> Tensor:
        """L^-1 K_xs, (*batch, n, n_test), for a strip of test rows."""
        if self._solved_cross is not None and self._solved_cross.shape[-1] == rows.count:
            return self._solved_cross
        factor = self._posterior.factor
        assert factor is not None
        # Rows of K_sx are contiguous, so its transpose is what LAPACK wants: no copy.
        dtype = factor.dtype
        if self._cross is not None and self._cross.dtype == dtype and self._cross.shape[-2] == rows.count:
            return factor.half_solve(self._cross.mT)
        cross = self._posterior.covariance_to(rows, dtype, self._workspace).to_dense()
        return self._workspace.adopt(factor.half_solve(cross.mT))

    def _explained(self, rows: Rows) -> Tensor:
        return self._half(rows).square().sum(-2, dtype=torch.float64)

    @autocast_disabled
    @deterministic_where(lambda self, *_, **__: self._deterministic)
    def _joint(self, *, observed: bool) -> Tensor:
        n = self._x.shape[-2]
        post = self._posterior
        self._forget_without_graph()
        needed = self._joint_bytes()
        if needed > UNCHECKED_BYTES and needed > (free := available_bytes(self._x.device)):
            raise MemoryBudgetError(
                f"`x_test` has {n:,} points, whose joint covariance needs {readable_bytes(needed)} with "
                f"{readable_bytes(free)} free; ask for fewer points, or for .variance, which needs no matrix",
                needed_bytes=needed,
                available_bytes=free,
            )
        with torch.set_grad_enabled(self._wants_graph()):
            joint = self._latent_joint()
            joint = joint.expand(*broadcast_batch(joint.shape[:-2], post.batch_shape), n, n)
            if observed:
                noise = post.prior.additive_noise(self._x.device).unsqueeze(-1)
                joint = joint + torch.diag_embed(noise.expand(*joint.shape[:-1]))
        return joint

    def _joint_bytes(self) -> int:
        """At the peak: matrices of the points, and their covariances with the training rows, solved and multiplied."""
        post, n = self._posterior, self._x.shape[-2]
        members = broadcast_batch(self._x.shape[:-2], post.batch_shape).numel()
        if post.solves is None:
            return 8 * members * (3 * n * n + 2 * n * post.distinct)
        return 8 * ((members + 3) * n * n + 3 * n * post.distinct)  # one member after the other

    def _latent_joint(self) -> Tensor:
        post, n = self._posterior, self._x.shape[-2]
        solves = post.solves
        if solves is not None and self._x.dim() > 2:  # one system: one member after the other
            members = [
                Prediction(post, member, None, "exact", self._deterministic) for member in self._x.flatten(0, -3)
            ]
            joint = torch.empty((len(members), n, n), dtype=torch.float64, device=self._x.device)
            for i, member in enumerate(members):
                joint[i] = member._latent_joint()
                self.report.events += [event for event in member.report.events if event not in self.report.events]
            return joint.unflatten(0, self._x.shape[:-2])
        rows = post.prior.kernel.rows(self._x)
        joint = CovarianceOperator(PairProblem(post.prior.kernel.form, post.theta, rows), torch.float64).to_dense()
        if solves is not None and n and self._solved(solves, rows, joint.detach().diagonal(), "solves"):
            prior = joint.detach().diagonal()
            found = explained_jointly(solves, self._cross_to(rows), prior)
            self._note_shortfall(found, prior, found.value.detach().diagonal())
            return joint - found.value
        if post.count and n:
            step = strip_points(post.distinct, room=self._room)
            halves = [self._half(rows.part(s, s + step)).double() for s in range(0, n, step)]
            half = halves[0] if len(halves) == 1 else torch.cat(halves, dim=-1)
            joint = joint - half.mT @ half
        return joint

    @deterministic_where(lambda self, *_, **__: self._deterministic)
    def _joint_factor(self, *, observed: bool) -> Factor:
        """The factor of the joint covariance; its rounding is that of the prior's entries it is a difference of."""
        joint = self._joint(observed=observed)
        post = self._posterior
        with torch.no_grad():
            rows = post.prior.kernel.rows(self._x)
            prior = (
                CovarianceOperator(PairProblem(post.prior.kernel.form, post.theta, rows), torch.float64)
                .diagonal()
                .mean(-1)
            )
        dtype = joint.dtype if post.factor is None else post.factor.dtype  # what a sample's jitter may hide
        size = (post.distinct + joint.shape[-1]) * torch.finfo(dtype).eps
        return factorise_keeping(joint, rounding=(size * prior.detach()).expand(joint.shape[:-2]))

    def _note_jitter(self, jitter: Tensor) -> None:
        if bool((jitter > 0).any()):
            self.report.events.append(Event(EventKind.JOINT_JITTER, jitter=float(jitter.max())))

    def __repr__(self) -> str:
        return f"Prediction at {self._x.shape[-2]:,} points\n{self.report}"
