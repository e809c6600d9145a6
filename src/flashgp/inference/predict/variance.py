"""Var f at points given the data, eq. (M-42): by its factor, by exact solves, or by samples.

A float64 factor answers at once. Without one a variance costs a solve, and samples take over where these would take
long, eq. (M-107). A float32 factor is corrected by solves where that is cheap, or where its rounding matters.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.quantities import readable_seconds
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.predict.plan import price_of
from flashgp.inference.predict.predictor import Variance
from flashgp.inference.predict.progress import PredictionProgress, ToldProgress
from flashgp.inference.predict.sampled_variance import probes_of
from flashgp.inference.predict.variance_solves import (
    FLOOR,
    SHARE,
    Explained,
    explained,
    explained_jointly,
    strips,
)
from flashgp.inference.progress_bar import shown_progress
from flashgp.inference.run import DEFAULT_RUN, Run
from flashgp.inference.solves import Solves
from flashgp.inference.state import State
from flashgp.planner.exact import SAMPLES
from flashgp.planner.products import ProductPlan
from flashgp.planner.variances import (
    CORRECTION_SECONDS,
    DEFAULT_VARIANCES,
    SOLVED_POINTS,
    VariancePrice,
    VarianceSettings,
    strip_points,
)
from flashgp.solvers.contract import Limits, Step

log = logging.getLogger("flashgp.predict")

F64 = torch.float64
SAMPLE = 16  # points at which the variances of a float32 factor are compared with exact ones
_INSTEAD = {"solves": "corrected", "samples": "sampled"}


@dataclass(frozen=True)
class PredictOptions:
    """Options of a prediction.

    Args:
        variance: "auto", "exact" or "sampled".
        planner: makes the plan of the mean, or of the variance too; None for few points.
        run: whether bits repeat, and the ranks that ask together and share the pairs of the mean.
        correction_seconds: up to which variances of a float32 factor are corrected by solves without a look.
        max_error: of a variance relative to itself, that a float32 factor may leave beyond that.
        max_sampled_error: the same where samples, not solves, would take its place: a quarter of their standard error
            without control, (M-97), since at other points the factor's error may be larger.
        variances: when samples take the place of exact solves, and the strips.
        unchecked_bytes: of a joint covariance, below which the free memory is not asked for.
        far_below_zero: times n eps k(x, x); a computed variance below minus this is not rounding.
        progress: called after every iteration of a solve for variances; None for a bar.
    """

    variance: str = "auto"
    planner: Callable[[bool | str], ProductPlan] | None = None
    run: Run = DEFAULT_RUN
    correction_seconds: float = CORRECTION_SECONDS
    max_error: float = SHARE
    max_sampled_error: float = 0.25 * math.sqrt(2.0 / SAMPLES)
    variances: VarianceSettings = DEFAULT_VARIANCES
    unchecked_bytes: int = 2**28
    far_below_zero: float = 100.0
    progress: ToldProgress = False


@dataclass(frozen=True, eq=False)
class PosteriorVariance:
    """Variances and covariances at the points of one prediction.

    Fields: state; options; x, the points (*batch, n_test, d); graph, whether gradients are wanted; report,
    which gets the events; workspace; limit, bytes that solves may take, None for no limit; room, bytes for wider strips
    than the least; cross K_sx (*batch, n_test, n) and solved_cross L^-1 K_xs, None where the mean did not need them.
    """

    state: State
    options: PredictOptions
    x: Tensor
    graph: bool
    report: Report
    workspace: Workspace
    limit: int | None = None
    room: int = 0
    cross: Tensor | None = None
    solved_cross: Tensor | None = None

    def marginal(self, rows: Rows) -> Variance:
        """Variance of each point, (*batch, n_test, 1)."""
        solves, sampled = self.state.solves, self.asked == "sampled"
        prior = self.state.prior_covariance(rows).diagonal()
        if not self.state.count or not rows.count:
            batch = broadcast_batch(prior.shape[:-1], self.state.batch_shape)
            return Variance(prior.expand(*batch, rows.count).unsqueeze(-1))
        if self.x.dim() > 2 and (solves is not None or sampled):  # one system: its points in one row
            flat = self._at(self.x.flatten(0, -2))
            variance = flat.marginal(self.state.prior.kernel.rows(flat.x))
            return variance.mapped(lambda part: part.reshape(*self.x.shape[:-1], 1))
        if solves is None and not sampled:
            return Variance(self.left(prior, *self._explained_by_factor(rows)))
        price = self._price(rows.count, self.asked)
        if not sampled and solves is not None and not self._factor_gives_way(solves, rows, prior, price.way):
            return Variance(self.left(prior, *self._explained_by_factor(rows)))
        if price.way == "samples" and self._has_probes(price):
            return self._by_samples(prior, price)
        self._require_time(price, rows.count)
        if price.way == "samples":
            return self._by_samples(prior, price)
        assert solves is not None
        return Variance(self.left(prior, self._explained_by_solves(solves, rows, prior, price), F64))

    def joint(self, rows: Rows) -> tuple[Tensor, torch.dtype]:
        """Covariance of the points with each other, (*batch, n_test, n_test), and the dtype that it was computed in."""
        state, n, solves = self.state, self.x.shape[-2], self.state.solves
        if solves is not None and self.x.dim() > 2:  # one system: one member after the other
            members = self.x.flatten(0, -3)
            joint, dtype = torch.empty((len(members), n, n), dtype=F64, device=self.x.device), F64
            for i, x in enumerate(members):
                joint[i], of_member = self._at(x).joint(state.prior.kernel.rows(x))
                dtype = dtype if of_member == F64 else of_member
            return joint.unflatten(0, self.x.shape[:-2]), dtype
        prior = state.prior_covariance(rows).to_dense()
        if not state.count or not n:
            return prior, F64
        if solves is not None:
            diagonal = prior.detach().diagonal()
            if self._factor_gives_way(solves, rows, diagonal, "solves"):
                part = explained_jointly(solves, self._cross_to(rows), diagonal)
                self._note_shortfall(part, diagonal, part.value.detach().diagonal())
                return prior - part.value, F64
        step = strip_points(state.distinct, room=self.room, strip_bytes=self.options.variances.strip_bytes)
        halves = [self._half_solve(rows.part(s, s + step)).double() for s in range(0, n, step)]
        half = halves[0] if len(halves) == 1 else torch.cat(halves, dim=-1)
        assert state.factor is not None
        return prior - half.mT @ half, state.factor.dtype

    def left(self, prior: Tensor, explained: Tensor, dtype: torch.dtype) -> Tensor:
        """Rest of the prior variance, (*batch, n_test, 1); dtype: of the explained part as computed."""
        variance = prior - explained
        rounding = self.options.far_below_zero * self.state.distinct * torch.finfo(dtype).eps
        inside = torch._C._functorch.is_functorch_wrapped_tensor(variance)  # torch.func: vmap has no numbers to look at
        if not inside and variance.numel() and float((variance + rounding * prior).detach().min()) < 0.0:
            worst = float(variance.detach().min())
            self._note(Event(EventKind.VARIANCE_NEGATIVE, worst=worst))
            warn(
                f"a computed variance was {worst:.2e}: the covariance matrix is too ill-conditioned for {dtype}; "
                "the value is given as 0. Use float64, or more noise"
            )
        return variance.clamp_min(0.0).unsqueeze(-1)

    @property
    def asked(self) -> str:
        """ "auto", "exact" or "sampled": gradients are those of exact variances, whatever is the quickest."""
        return "exact" if self.options.variance == "auto" and self.graph else self.options.variance

    def _at(self, x: Tensor) -> "PosteriorVariance":
        """The posterior variance at other points."""
        return replace(self, x=x, cross=None, solved_cross=None)

    def _price(self, count: int, asked: str) -> VariancePrice:
        return price_of(self.state, count, asked, self.options.run.deterministic, self.options.variances)

    def _has_probes(self, price: VariancePrice) -> bool:
        """True if the samples are at hand, so that only the points are left to do."""
        probes = self.state.cache.variance_probes
        return probes is not None and probes.noisy.shape[1] >= price.sizes.samples

    def _require_time(self, price: VariancePrice, count: int) -> None:
        """Raises: DomainError where the time limit does not reach for any variance, with what does."""
        limit = self.options.variances.time_limit
        if limit is None or price.least_seconds <= limit:
            return
        fewer = SOLVED_POINTS * int(count / SOLVED_POINTS * limit / price.least_seconds)
        points = f"ask for {fewer:,} points at a time, " if price.way == "solves" and fewer else ""
        raise DomainError(
            f"`time_limit` must be at least about {readable_seconds(price.least_seconds)} for variances at {count:,} "
            f"points, got {limit:g} s; {points}pass more, take .mean, which is quick, or condition with "
            'approximation="full_scale", whose variances are'
        )

    def _note(self, event: Event) -> None:
        if event not in self.report.events:
            self.report.events.append(event)

    # -- by the factor ---------------------------------------------------------------------------------------------
    def _explained_by_factor(self, rows: Rows) -> tuple[Tensor, torch.dtype]:
        """|L^-1 K_xs|^2, (*batch, n_test), strip by strip, and the factor's dtype."""
        state, batch = self.state, broadcast_batch(rows.batch_shape, self.state.batch_shape)
        assert state.factor is not None
        step = strip_points(state.distinct, batch.numel(), self.room, self.options.variances.strip_bytes)
        parts = [self._explained(rows.part(start, start + step)) for start in range(0, max(1, rows.count), step)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1), state.factor.dtype

    def _explained(self, rows: Rows) -> Tensor:
        return self._half_solve(rows).square().sum(-2, dtype=F64)

    def _half_solve(self, rows: Rows) -> Tensor:
        """L^-1 K_xs, (*batch, n, n_test), for a strip of test rows."""
        if self.solved_cross is not None and self.solved_cross.shape[-1] == rows.count:
            return self.solved_cross
        factor = self.state.factor
        assert factor is not None
        # Rows of K_sx are contiguous, so its transpose is what LAPACK wants: no copy.
        if self.cross is not None and self.cross.dtype == factor.dtype and self.cross.shape[-2] == rows.count:
            return factor.half_solve(self.cross.mT)
        cross = self.state.covariance_to(rows, factor.dtype, self.workspace).to_dense()
        return self.workspace.adopt(factor.half_solve(cross.mT))

    def _factor_gives_way(self, solves: Solves, rows: Rows, prior: Tensor, instead: str) -> bool:
        """True if solves or samples take the place of the factor: without one; of one in float32 where exact solves are
        cheap, or where a sample of the points shows that its rounding matters."""
        if self.state.factor is None:
            return True
        count = rows.count
        price = self._price(count, "exact")
        if price.seconds <= self.options.correction_seconds:
            return True
        index = torch.linspace(0, count - 1, min(SAMPLE, count)).round().long().to(rows.device)
        with torch.no_grad():
            some, prior = rows.take(index), prior.detach()[index]
            exact = prior - explained(solves, self._cross_to(some), prior).value
            rounded = prior - self._explained(some)
        allowed = self.options.max_error if instead == "solves" else self.options.max_sampled_error
        error = float(((rounded - exact).abs() / exact.clamp_min(torch.finfo(exact.dtype).tiny)).max())
        gives_way = not error <= allowed  # also where it is not a number
        event = Event(
            EventKind.VARIANCE_BY_FACTOR,
            error=error, points=len(index), instead=_INSTEAD[instead] if gives_way else None,
        )  # fmt: skip
        self._note(event)
        if error > self.options.max_error and not gives_way and not self.state.cache.warned_rounded_variance:
            self.state.cache.warned_rounded_variance = True
            warn(
                f"{event} At others it may be more; exact solves at {count:,} points would take about "
                f'{readable_seconds(price.seconds)}. predict(x, variance="exact") takes them, "sampled" samples'
            )
        return gives_way

    # -- by exact solves -------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _telling(self, price: VariancePrice) -> Iterator[Callable[[int], Callable[[Step], None] | None]]:
        """Callback that reports the progress of solves to the caller, for a number of points that are done."""
        began, of, sampled = time.perf_counter(), self.x.shape[:-1].numel(), price.way == "samples"
        with shown_progress(self.options.progress) as show:

            def telling(points: int) -> Callable[[Step], None] | None:
                def tell(step: Step) -> None:
                    assert show is not None
                    seconds = time.perf_counter() - began
                    show(PredictionProgress(points, of, step.iteration, seconds, price.seconds, sampled))

                return None if show is None else tell

            yield telling

    def _explained_by_solves(self, solves: Solves, rows: Rows, prior: Tensor, price: VariancePrice) -> Tensor:
        """(n_test,), so many points at a time, eq. (M-101). Points that the time does not reach keep the prior
        variance, which is never too small."""
        deadline, parts = self._deadline(self.options.variances.time_limit), []
        late = 0
        with solves.charged_to(self.workspace, self.limit), self._telling(price) as tell:
            for start, stop in strips(rows.count):
                if deadline.passed():
                    late = rows.count - start
                    rest = prior[start:]
                    parts.append(Explained(torch.zeros_like(rest), rest.detach()))
                    break
                limits = Limits(deadline.share((stop - start) / (rows.count - start)), callback=tell(start))
                parts.append(explained(solves, self._cross_to(rows.part(start, stop)), prior[start:stop], limits))
        whole = Explained(torch.cat([part.value for part in parts]), torch.cat([part.error for part in parts]))
        unfinished = late + sum(len(part.value) for part in parts if not part.in_time)
        self._note_shortfall(whole, prior.detach(), whole.value.detach(), unfinished)
        return whole.value

    def _deadline(self, limit: float | None) -> Deadline:
        """Deadline from now; none over ranks, which would come to the end of theirs at different iterations."""
        alone = self.state.run.group.size == 1
        return Deadline.after(limit) if alone and limit is not None and limit < math.inf else NO_DEADLINE

    def _note_shortfall(self, part: Explained, prior: Tensor, value: Tensor, unfinished: int = 0) -> None:
        """Record the error of variances by solves: an event, and a warning if it is more than it should be."""
        share = float((part.error / (prior - value - part.error).clamp_min(FLOOR * prior)).max())
        if unfinished and share > SHARE:
            event = Event(EventKind.VARIANCE_TOO_LARGE, points=unfinished, of=len(value))
            self._note(event)
            warn(str(event))
            return
        self._note(Event(EventKind.VARIANCE_BY_SOLVES, share=share))
        if share > SHARE:
            warn(
                f"a variance may be too large by {share:.1e} of itself: the solves ended before it was certain to "
                f"{SHARE:g}; more noise, or dtype=torch.float64, would make it so"
            )

    def _cross_to(self, rows: Rows) -> Tensor:
        """K_xs, (n, n_test), float64."""
        return self.state.covariance_to(rows, F64, self.workspace).to_dense().mT

    # -- by samples ------------------------------------------------------------------------------------------------
    def _by_samples(self, prior: Tensor, price: VariancePrice) -> Variance:
        """Eq. (M-97), from probes that the state keeps; their solves leave the points the time that these take."""
        state = self.state
        if self.graph:
            raise DomainError(
                '`variance` must be "auto" or "exact" where gradients are wanted, got "sampled", which has none; '
                "leave it out"
            )
        deadline = self._deadline(self.options.variances.limit(self.asked)).before(price.after_seconds)
        solves = state.solves
        with contextlib.nullcontext() if solves is None else solves.charged_to(self.workspace, self.limit):
            with self._telling(price) as tell:
                probes = probes_of(state, price.sizes, Limits(deadline, callback=tell(0)))
            sampled = probes(self.x)
        least = FLOOR * prior.clamp_min(torch.finfo(prior.dtype).tiny)
        share = float((sampled.standard_error / torch.maximum(sampled.variance, least)).max())
        unfinished = True if probes.residuals is not None else None
        event = Event(EventKind.VARIANCE_BY_SAMPLES, samples=probes.noisy.shape[1], share=share, unfinished=unfinished)
        self._note(event)
        log.info("%s", event)
        if self.options.variance == "auto" and not state.cache.warned_sampled_variance:
            state.cache.warned_sampled_variance = True
            seconds = self._price(len(prior), "exact").seconds
            more = ', "sampled" more samples' if probes.noisy.shape[1] < SAMPLES else ""
            warn(
                f"{event} Exact solves at {len(prior):,} points would take about {readable_seconds(seconds)}. "
                f'predict(x, variance="exact") takes them{more}; a factor, with a larger memory= of condition, would '
                "be quick"
            )
        parts = (sampled.variance, sampled.standard_error, sampled.lower, sampled.upper)
        return Variance(*(part.unsqueeze(-1) for part in parts))
