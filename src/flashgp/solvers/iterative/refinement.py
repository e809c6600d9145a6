"""Solves refined with exact residuals, by conjugate gradients on approximate products that are much cheaper.

The search directions of A come from solves with a matrix A~ near A, eq. (M-440): flexible conjugate gradients, whose
preconditioner is A~^-1. Each takes one exact float64 product with A, which its residual and its bound are made of:
nothing of A~ enters these. Where a direction gains too little, conjugate gradients on A go on from there.
Sources: Golub & Ye (1999), Inexact preconditioned conjugate gradient method with inner-outer iteration; Notay (2000).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.solvers.contract import NO_LIMITS, Goal, Index, Limits, Solution, Solver, Step, System, check_residual
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients, PreparedConjugateGradients
from flashgp.solvers.iterative.progress import Progress
from flashgp.solvers.settings import DEFAULTS, ComparisonSettings, SolveSettings

F64 = torch.float64


class ExactProducts(Protocol):
    """Products with K that are as exact as a solve asks, and tell how much they are off."""

    def __matmul__(self, v: Tensor) -> Tensor:
        """K v of (n, t), float64."""

    def error(self, v: Tensor, product: Tensor) -> Tensor:
        """Bound of |K v - product|, (t,)."""


class ApproximateProducts(Protocol):
    """K~ near K. Fields: left_out, variance of what it leaves out, of every row; relative, residual of a solve with it
    that is small beside what it leaves of that with K; finer, exact ones that are quicker than all pairs, None for
    none; event, what is said of it."""

    @property
    def left_out(self) -> float: ...
    @property
    def relative(self) -> float: ...
    @property
    def finer(self) -> ExactProducts | None: ...
    @property
    def event(self) -> Event: ...
    def __matmul__(self, v: Tensor) -> Tensor:
        """K~ v of (n, t), float64."""


def _inner() -> SolveSettings:
    comparison: ComparisonSettings = replace(DEFAULTS.comparison, at_once_most=0.5)
    return replace(
        DEFAULTS, low_rank=replace(DEFAULTS.low_rank, max_rank=128), comparison=comparison, single=False,
        full_scale=(replace(DEFAULTS.full_scale[0], applied=torch.float32),),
    )  # fmt: skip


@dataclass(frozen=True)
class RefinementSettings:
    """Fields: enough, of the residual that is asked for, below which none is wanted; least_gain, factor of the residual
    that an exact product must gain; off, of what is asked for, that residuals may be wrong by; solves, settings of
    conjugate gradients, whose preconditioner may take less to make, as iterations are cheap."""

    enough: float = 0.1
    least_gain: float = 2.0
    off: float = 0.5
    solves: SolveSettings = field(default_factory=_inner)


@dataclass(frozen=True)
class RefinedGradients(Solver):
    """Conjugate gradients on approximate products, refined. Args: products; rank, as `ConjugateGradients`.

    Cost: an exact product for each search direction, and iterations of approximate ones.
    """

    products: ApproximateProducts
    rank: int | None = None
    settings: RefinementSettings = field(default_factory=RefinementSettings)
    name: str = ConjugateGradients.name

    def prepare(self, system: System, *, seed: int = 0) -> "PreparedRefinement":
        solves = self.settings.solves
        most = solves.low_rank.max_rank
        rank = most if self.rank is None else min(self.rank, most)
        method = ConjugateGradients(rank, solves).prepare(system, seed=seed)
        return PreparedRefinement(method, self.products, self.settings)


class _Approximate(System):
    """A~ = K~ + diag(noise + left out), with blocks and columns of K itself."""

    def __init__(self, exact: System, products: ApproximateProducts) -> None:
        self.exact, self.products = exact, products
        self.count, self.device, self.workspace = exact.count, exact.device, exact.workspace
        self.noise = exact.noise + products.left_out

    def multiply(self, v: Tensor) -> Tensor:
        return (self.products @ v.double()).addcmul_(self.noise.unsqueeze(-1), v.double()).to(v.dtype)

    def diagonal(self) -> Tensor:
        return self.exact.diagonal()

    def columns(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return self.exact.columns(index, dtype)

    def block(self, index: Index, dtype: torch.dtype) -> Tensor:
        return self.exact.block(index, dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.exact.dense(dtype)


class PreparedRefinement(PreparedConjugateGradients):
    """As `PreparedConjugateGradients`, with approximate products while these gain."""

    def __init__(
        self, method: PreparedConjugateGradients, products: ApproximateProducts, settings: RefinementSettings
    ) -> None:
        tiles = replace(settings.solves, single=True)
        super().__init__(method.system, method.preconditioner, tiles, name=method.name, events=method.events)
        near = _Approximate(method.system, products)
        self.near = PreparedConjugateGradients(near, method.preconditioner, settings.solves, name=method.name)
        self.products, self.refining = products, settings

    def solve(self, rhs: Tensor, goal: Goal, *, start: Tensor | None = None, limits: Limits = NO_LIMITS) -> Solution:
        """As `Prepared.solve`; an iteration is one product with a block of search directions, of A~ or of A."""
        progress = Progress(self.name, self.system, goal, limits, self._bound, (*self.events, self.products.event))
        progress.begin(rhs, start)
        with self.system.workspace.hold(8 * 10 * rhs.numel()):
            try:
                ended = self._refined(progress)
            except KeyboardInterrupt:
                ended = progress.interrupted_by_hand()
        found = progress.finished(ended)
        if found.stopped is not StopReason.STAGNATED:
            return found
        found.events.append(Event(EventKind.APPROXIMATE_PRODUCTS_LEFT, solver=self.name))
        limits = replace(limits, iterations=max(0, limits.iterations - found.iterations))
        last = super().solve(rhs, goal, start=found.value, limits=limits)
        return replace(
            last, iterations=found.iterations + last.iterations, passes=found.passes + last.passes,
            seconds=found.seconds + last.seconds, events=list(dict.fromkeys((*found.events, *last.events))),
        )  # fmt: skip

    def _refined(self, progress: Progress) -> StopReason:
        """(M-440), until the goal is met; why it ended, STAGNATED where a direction gains too little."""
        value, residual, before = progress.value.clone(), progress.residual.clone(), None
        finer = self.products.finer
        while len(progress.open):
            size = progress.space.norm(residual)
            solved = self._solve_near(progress, residual)
            if not solved.iterations:
                return solved.stopped
            z, (Az, off) = solved.value, self._product(progress, solved.value, finer)
            if before is not None:  # made conjugate to the direction before
                s, As, off_before = before
                share = _ratio(progress.space.sum(As * z), progress.space.sum(s * As))
                z, Az, off = z - share * s, Az - share * As, off + share.abs() * off_before
            step = _ratio(progress.space.sum(z * residual), progress.space.sum(z * Az))
            value, residual = value + step * z, residual - step * Az
            before = z, Az, off
            progress.off = progress.off + step.abs() * off
            if finer is not None and progress.excess_off() > self.refining.off:
                progress.note(EventKind.EXACT_PRODUCTS_LEFT)
                finer = before = None
                progress.off.zero_()
                residual = progress.true_residual(slice(None), value)
            progress.record(slice(None), value, residual)
            if not solved.stopped.another_method_may_help and solved.stopped is not StopReason.GOAL:
                return solved.stopped
            gained = progress.space.norm(residual)[progress.open] * self.refining.least_gain
            if bool((gained > size[progress.open]).any()):
                return StopReason.STAGNATED
        return StopReason.GOAL

    def _solve_near(self, progress: Progress, residual: Tensor) -> Solution:
        """A~^-1 of residuals, as closely as is worth an exact product."""
        limits, done = progress.limits, progress.iterations
        callback = None if limits.callback is None else _telling(limits.callback, progress, residual)
        left = replace(
            limits, deadline=limits.deadline.before(progress.pass_seconds), iterations=limits.iterations - done,
            callback=callback,
        )  # fmt: skip
        excess = progress.excess(slice(None), residual)
        enough = max(self.products.relative, self.refining.enough / max(1.0, excess))
        solved = self.near.solve(residual, Goal(enough), limits=left)
        progress.iterations += solved.iterations
        progress.events += [event for event in solved.events if event not in progress.events]
        return solved

    def _product(self, progress: Progress, z: Tensor, finer: ExactProducts | None) -> tuple[Tensor, Tensor]:
        """A z in float64, counted as the pass over the pairs that it is or stands for, and a bound of how much it is
        off, (t,). Raises: ConvergenceError."""
        if finer is None:
            return progress.rhs - progress.true_residual(slice(None), z), torch.zeros_like(progress.scale)
        began = time.perf_counter()
        product = finer @ z
        off = finer.error(z, product)
        progress.pass_seconds = time.perf_counter() - began
        progress.passes += 1.0
        check_residual(self.name, progress.iterations, product)
        return product.addcmul_(self.system.noise.unsqueeze(-1), z), off


def _telling(
    callback: Callable[[Step], bool | None], progress: Progress, residual: Tensor
) -> Callable[[Step], bool | None]:
    """A callback of a solve for a residual, as of the solve that it is a part of."""
    done, passes, size = progress.iterations, progress.passes, progress.space.norm(residual)

    def told(step: Step) -> bool | None:
        return callback(
            replace(
                step, iteration=done + step.iteration, passes=passes, seconds=time.perf_counter() - progress.began,
                relative=step.relative * size, energy=step.energy * progress.scale,
            )
        )  # fmt: skip

    return told


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0.0, a / torch.where(b > 0.0, b, 1.0), 0.0)
