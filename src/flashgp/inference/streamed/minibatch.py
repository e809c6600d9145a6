"""The bound of inducing points on a minibatch, and the natural-gradient step of q(u), eqs. (M-190) to (M-194).

For rows whose pass takes longer than a step of an optimiser may. What a Gaussian likelihood says of the inducing values
is a sum over rows, A^T A and A^T r; q(u) is what their mean over the rows seen says, and a natural-gradient step moves
that mean towards the batch's. Its size is that of the best weighted mean: rows of the batch beside rows that the mean
stands for, which are fewer the more the parameters have moved since. Nothing is left to be set.
Sources: Hensman, Fusi & Lawrence (2013), Gaussian processes for big data, for the bound and its natural gradient;
Ranganath, Wang, Blei & Xing (2013), An adaptive learning rate for stochastic variational inference, for step sizes from
the scatter of batches.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import EVENT
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximation import refuse_exact
from flashgp.inference.choice import refuse_batch
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.bound import BoundSums, StreamedBound, add_symmetric, block, summed
from flashgp.inference.streamed.collapsed import Evaluation, Inputs, differentiable, evaluated
from flashgp.inference.streamed.condition import ROUTE
from flashgp.inference.streamed.state import StreamedState
from flashgp.kernels.warped import collapsed_features
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.processes.gradient_shares import sum_together
from flashgp.processes.group import ALONE, Group
from flashgp.sources.survey import Block

F64 = torch.float64
SAMPLE_ROWS = 2000  # of x that are kept, for draws of posterior functions


@dataclass(frozen=True, eq=False)
class RowMeans:
    """Averages over rows: the sums of `BoundSums`, divided by their number.

    Fields: gram, A^T A, (m, m); projected, A^T r, (m, p); squares, |r|^2; logs, log(s + d); left, d.
    """

    gram: Tensor
    projected: Tensor
    squares: float
    logs: float
    left: float

    def moved(self, other: "RowMeans", share: float) -> "RowMeans":
        """The natural-gradient step of size `share` towards another mean, eq. (M-192)."""
        return RowMeans(
            self.gram.lerp(other.gram, share),
            self.projected.lerp(other.projected, share),
            *(a + share * (b - a)
              for a, b in ((self.squares, other.squares), (self.logs, other.logs), (self.left, other.left))),
        )  # fmt: skip

    def apart(self, other: "RowMeans") -> float:
        """The squared distance in A^T A and A^T r."""
        return float((self.gram - other.gram).square().sum() + (self.projected - other.projected).square().sum())

    def sums(self, count: int, noise: float) -> BoundSums:
        """Sums of so many rows."""
        n = count
        return BoundSums(
            n, n / noise * self.gram, n / noise * self.projected, n / noise * self.squares, n * self.logs,
            n * math.log(noise), n / noise * self.left,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class InducingValues:
    """q(u), the normal distribution of the whitened inducing values after some minibatches.

    Made by `gp.minibatch_bound`; `gp.condition(q)` is the posterior of all rows that it stands for.

    Fields: count, of all rows; seen, rows of the batches so far; inducing, the points (m, d); step_size, of the last
    natural-gradient step; remembered, rows that the mean stands for; scatter, the variance of what one row says; drift,
    the squared distance by which the parameters move the mean of all rows between two batches; means, of what the rows
    say; noise, s, at the last batch; bound, the mean bound of batches at the q before them, nats, None after the first;
    place, what a change of the parameters is known by; sample, some of the rows.
    """

    count: int
    seen: int
    inducing: Tensor
    step_size: float
    remembered: float
    scatter: float
    drift: float
    means: RowMeans
    noise: float
    bound: float | None
    place: tuple[Tensor, ...]
    sample: Block

    @cached_property
    def sums(self) -> BoundSums:
        """Sums of all rows."""
        return self.means.sums(self.count, self.noise)

    @property
    def mean(self) -> Tensor:
        """w, (m, outputs or 1). Cost: m^3 flops."""
        return self.sums.weights

    @property
    def covariance(self) -> Tensor:
        """S = M^-1, (m, m). Cost: m^3 flops."""
        return torch.cholesky_inverse(self.sums.inner)

    @property
    def gap(self) -> float | None:
        """Nats a row between the bound where it is and at the best q(u) of what was seen, eq. (M-195); None where not
        known. Cost: m^3 flops."""
        return None if self.bound is None else max(0.0, self.sums.lower - self.bound) / self.count

    def __repr__(self) -> str:
        return (
            f"q(u) of {len(self.inducing):,} inducing points after {self.seen:,} rows of {self.count:,}: the last step "
            f"had size {self.step_size:.2g}, {self.remembered:,.0f} rows are remembered"
        )


@dataclass(frozen=True, eq=False)
class MinibatchBound:
    """The bound on a minibatch. Fields: value, nats of all rows, differentiable; q, for the next batch; events."""

    value: Tensor
    q: InducingValues
    events: list[Event]


def minibatch_bound(
    prior: Prior, x: Any, y: Any, count: Any, inducing: Any, q: InducingValues | None, group: Group = ALONE
) -> MinibatchBound:
    """See `GP.minibatch_bound`."""
    with group.together():
        group.compare(count=count, seen=None if q is None else (type(q), getattr(q, "seen", None)))
        return evaluated(
            prior, x, y, inducing, group, lambda own, inputs: _minibatch(own, inputs, count, q, group)
        )  # fmt: skip


def _minibatch(prior: Prior, inputs: Inputs, count: Any, q: InducingValues | None, group: Group) -> MinibatchBound:
    count = check_count(count, "count", inputs.count)
    if q is not None:
        _check(q, inputs, count)
    with torch.no_grad():
        part = _Part(prior, inputs, count, group)
        step = _step_of(q, part)
        means = part.means if q is None else q.means.moved(part.means, step.share)
        before = means.sums(count, part.noise) if q is None else q.sums
    wanted = inputs.wanted  # outside, where gradients are on
    value = differentiable(lambda: part.evaluate(before, wanted), inputs.tensors)
    bound = None
    if q is not None:
        bound = value.item() if q.bound is None else q.bound + step.share * (value.item() - q.bound)
    following = InducingValues(
        count, inputs.count + (0 if q is None else q.seen), inputs.inducing.detach().clone(), step.share,
        step.remembered, step.scatter, step.drift, means, part.noise, bound, part.place,
        _sample_of(inputs, group) if q is None or group.size == 1 else q.sample,
    )  # fmt: skip
    return MinibatchBound(value, following, inputs.events)


@entered(lambda prior, q, settings: settings.run.deterministic)
@torch.no_grad()
def condition_on_values(prior: Prior, q: InducingValues, settings: ConditionSettings) -> StreamedState:
    """The state that q(u) stands for, at the prior's present parameters. Raises: as `GP.condition`.

    Cost: m^3 flops; no row is read.
    """
    began = time.perf_counter()
    refuse_exact(
        solver=settings.solver, plan=settings.plan, jitter=settings.jitter, differentiable=settings.differentiable,
        progress=settings.progress, device=settings.run.device,
        dtype=None if settings.run.dtype == torch.float64 else settings.run.dtype,
    )  # fmt: skip
    if q.means.projected.shape[1] != (prior.outputs or 1):
        raise ShapeError(
            f"`q` must be of as many outputs as the GP, {prior.outputs or 1}, got {q.means.projected.shape[1]}; "
            "condition the GP that it was made with"
        )
    refuse_batch(batch=prior.kernel.batch_shape.numel() > 1)
    if not prior.likelihood.rows_alike:
        raise DomainError(
            f"`likelihood` must have one noise variance for all rows that q has seen, got {prior.likelihood.name} with "
            "numbers of single rows; condition the GP that q was made with"
        )
    prior, workspace = prior.held(), Workspace()
    noise = prior.additive_noise(q.inducing.device)
    bound = StreamedBound(prior, prior.kernel.rows(q.inducing), q.count, workspace)
    sums = q.means.sums(q.count, max(float(noise), bound.floor))
    assert sums.inner is not None  # which may fail
    said = Event(EventKind.MINIBATCHES, inducing=len(q.inducing), seen=q.seen, rows=q.count, gap=q.gap)
    events = [*([EVENT] if settings.run.deterministic else []), said, *collapsed_features(prior.kernel, q.sample.x)]
    report = Report(
        route=ROUTE, device=str(q.inducing.device), dtype="float64", peak_bytes=workspace.peak_bytes,
        seconds=time.perf_counter() - began, events=events,
    )  # fmt: skip
    return StreamedState(prior, q.inducing, bound.basis, sums, q.sample, report, settings.run.kept)


def _sample_of(inputs: Inputs, group: Group) -> Block:
    """Some of the rows, the same on every rank."""
    own = [t.detach()[: -(-SAMPLE_ROWS // group.size)].to(F64, copy=True) for t in (inputs.x, inputs.y)]
    shares = group.shares(len(own[0]))
    x, y = (group.gather_rows(t, shares) for t in own)
    return Block(x, y)


def _check(q: Any, inputs: Inputs, count: int) -> None:
    if not isinstance(q, InducingValues):
        raise DomainError(f"`q` must be None or the q of an earlier batch, got {type(q).__name__}; pass step.q")
    if q.inducing.shape != inputs.inducing.shape or q.means.projected.shape[1] != inputs.residual.shape[1]:
        raise ShapeError(
            f"`q` must be of the same inducing points and outputs, got {tuple(q.inducing.shape)} points with "
            f"{q.means.projected.shape[1]} beside {tuple(inputs.inducing.shape)} with {inputs.residual.shape[1]}; "
            "begin with q=None"
        )
    if q.count != count:
        raise DomainError(f"`count` must be the {q.count:,} rows of `q`, got {count:,}; begin with q=None")


@dataclass(frozen=True)
class _Step:
    """A natural-gradient step. Fields: share, its size; the others as of `InducingValues`, after it."""

    share: float
    remembered: float
    scatter: float
    drift: float


def _step_of(q: InducingValues | None, part: "_Part") -> _Step:
    """The step of a batch from q(u), eqs. (M-193) and (M-194)."""
    b, scatter = part.size, part.scatter
    if q is None:
        return _Step(1.0, b, scatter, 0.0)
    held, drift = q.remembered, q.drift
    weight = b / (held + b)  # a mean over as many batches as that of the rows
    scatter = q.scatter + weight * (scatter - q.scatter)
    if not _same(q.place, part.place):
        excess = part.means.apart(q.means) - scatter * (1.0 / held + 1.0 / b)
        drift += weight * (excess - drift)
        if drift > 0.0:
            held = scatter / (scatter / held + drift)
    if b == part.count:  # a batch of all rows says all there is
        return _Step(1.0, b, scatter, drift)
    return _Step(b / (held + b), held + b, scatter, drift)


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


class _Part:
    """A batch under the present parameters; with a group that of all ranks, whose rows each has a part of.

    Fields: size, of it; count, of all rows; noise, s; clamped, whether rounding decides it; a, A (b, m); left, d (b,);
    means, what it says; place, what a change of the parameters is known by.
    """

    def __init__(self, prior: Prior, inputs: Inputs, count: int, group: Group) -> None:
        self.residual, self.rows, self.count = inputs.residual.detach(), inputs.rows.detach(), count
        self.group = group
        points, residual = inputs.points.detach(), self.residual
        self.bound, noise = StreamedBound(prior, points, count, Workspace()), float(inputs.noise.detach())
        self.size, self.noise = inputs.count, max(noise, self.bound.floor)
        self.clamped = noise < self.bound.floor
        self.place = tuple(t.clone() for t in (*points.tensors, *self.bound.theta, prior.mean_at(inputs.inducing)))
        self.a, self.left = block(self.bound.basis, self.rows)
        lengths = self.a.square().sum(-1)
        own = torch.stack([
            residual.square().sum(), (self.noise + self.left).log().sum(), self.left.sum(),
            (lengths.square() + lengths * residual.square().sum(-1)).sum(),
        ])  # fmt: skip
        sums = sum_together(group, (_mirrored(self.a, self.a), self.a.mT @ residual, own))
        gram, projected, numbers = (part / self.size for part in sums)
        squares, logs, left, self._lengths = numbers.tolist()
        self.means = RowMeans(gram, projected, squares, logs, left)

    @property
    def scatter(self) -> float:
        """v, the variance of what one row says, in A^T A and A^T r together, eq. (M-194)."""
        if self.size == 1:
            return self._lengths
        mean = float(self.means.gram.square().sum() + self.means.projected.square().sum())
        return max(0.0, (self._lengths - mean) * self.size / (self.size - 1))

    def evaluate(self, sums: BoundSums, wanted: bool) -> Evaluation:
        """The bound at the q(u) of some sums, eq. (M-190), and its gradient by everything else, eq. (M-191)."""
        a, s, p, scale = self.a, self.noise, self.residual.shape[1], self.count / self.size
        weights, covariance = sums.weights, torch.cholesky_inverse(sums.inner)
        m = len(covariance)
        spread = a @ covariance
        h = self.residual.addmm(a, weights, alpha=-1.0)
        own = h.square().sum() + p * (spread * a).sum()  # of this rank's rows
        squares = float(self.group.sum(own))
        logs = self.size * self.means.logs
        explained = -0.5 * scale * (p * (self.size * LOG_2PI + logs) + squares / s)
        determinant = 2.0 * float(sums.inner.diagonal().log().sum())
        divergence = 0.5 * (p * (float(covariance.trace()) - m + determinant) + float(weights.square().sum()))
        value = explained - divergence
        return value, self._gradients(weights, spread, h, float(own)) if wanted else ()

    def _gradients(self, weights: Tensor, spread: Tensor, h: Tensor, squares: float) -> Sequence[Tensor | None]:
        """Eq. (M-191), of this rank's rows, as `squares` is; `spread`, A S, is overwritten."""
        bound, rows, s, p, scale = self.bound, self.rows, self.noise, h.shape[1], self.count / self.size
        c = 1.0 / (s + self.left)
        slope = spread.mul_(-p * scale / s).addmm_(h, weights.mT, alpha=scale / s)
        slope.addcmul_(self.a, c.unsqueeze(-1), value=p * scale)
        # q(u) is held in coordinates of the Cholesky factor of K_zz, which is differentiated as it is: the upper
        # triangle of A^T slope stands for both. Of a function of A A^T it would be symmetric.
        inner = _mirrored(slope, self.a)
        across, among = bound.basis.pull_across(rows, slope), bound.basis.pull_among(inner)
        along = TorchTiles().diagonal_gradient(PairProblem(bound.form, bound.theta, rows), -0.5 * p * scale * c)
        by_noise = 0.0 if self.clamped else 0.5 * scale * (squares / s**2 - p * float(c.sum()))
        return (
            h * (-scale / s), h.new_full((1,), by_noise), *summed(across.rows, along.rows),
            *summed(across.cols, among.rows), *summed(summed(across.theta, along.theta), among.theta),
        )  # fmt: skip


def _mirrored(a: Tensor, b: Tensor) -> Tensor:
    """The lower triangle of a^T b, (m, m), on both sides of the diagonal. Cost: 1.25 b m^2 flops."""
    m = a.shape[1]
    lower = a.new_zeros(m, m)
    add_symmetric(lower, a, b)
    return lower.tril_().add_(lower.tril(-1).mT)
