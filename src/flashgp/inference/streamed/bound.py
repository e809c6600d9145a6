"""The collapsed bound of inducing points, read block by block: value and gradient, eqs. (M-160) to (M-163).

With A = K_nz L_zz^-T, d = diag(K - A A^T), s the noise variance, M = I + A^T A / s, b = A^T r / s and w = M^-1 b:

    log p(y) >= -1/2 [ p n log 2 pi + p sum log(s + d_i) + p log|M| + |r|^2 / s - tr(w^T b) ]

Everything is a sum over rows but what M says. The first pass adds up A^T A, A^T r and three numbers; the second, with
M known, the gradient. Memory is that of one block of rows and of m x m numbers, whatever the number of rows.
Sources: Titsias (2009), Variational learning of inducing variables in sparse Gaussian processes; Titsias (2025), New
bounds for sparse variational Gaussian processes, and Bui, Ashman & Turner (2025), Tighter sparse variational Gaussian
processes, for the logarithm in place of d_i / s; Titsias (2014), Variational inference for Gaussian and determinantal
point processes, for the upper bound.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.form import Rows
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.factor import Basis
from flashgp.inference.prior import Prior
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS, CpuTiles
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles

__all__ = [
    "Block",
    "BoundSums",
    "Slopes",
    "StreamedBound",
    "add_symmetric",
    "added",
    "block",
    "noise_floor",
    "summed",
]

F64 = torch.float64
EPS = torch.finfo(F64).eps
PANELS = 4  # of a symmetric product


@dataclass(frozen=True, eq=False)
class BoundSums:
    """What the first pass adds up over rows.

    Fields: count of rows; noise, s; gram, A^T A, (m, m); projected, A^T r, (m, p); squares, |r|^2; logs, sum log(s +
    d_i); left, sum d_i, the trace that the inducing points leave.
    Of rows with noise s_i of their own, eq. (M-177), s is 1, and row i counts 1 / s_i times in all but logs, sum
    log(s_i + d_i); log_noises, sum log(s_i / s). scale, what the likelihood adds to the density of its sites, nats.
    """

    count: int
    noise: float
    gram: Tensor
    projected: Tensor
    squares: float
    logs: float
    left: float
    log_noises: float = 0.0
    scale: float = 0.0

    @cached_property
    def inner(self) -> Tensor:
        """The Cholesky factor of M. Raises: NotPositiveDefiniteError."""
        return _factor(self.gram, self.noise)

    @cached_property
    def weights(self) -> Tensor:
        """w, the mean of the whitened inducing values, (m, p)."""
        return torch.cholesky_solve(self.projected / self.noise, self.inner)

    def with_noise(self, noise: float) -> "BoundSums":
        """The same rows where rounding amounts to more noise than s: log(s + d_i) grows by at most log(noise / s), so
        that the bound stays one."""
        if noise <= self.noise:
            return self
        logs = self.logs + self.count * math.log(noise / self.noise)
        return replace(self, noise=noise, logs=logs)

    @property
    def lower(self) -> float:
        """The lower bound on log p(y), nats, eq. (M-160)."""
        p = self.projected.shape[1]
        explained = float((self.projected * self.weights).sum())
        fit = (self.squares - explained) / self.noise
        return self.scale - 0.5 * (p * (self.count * LOG_2PI + self.logs + self._log_determinant) + fit)

    @property
    def upper(self) -> float:
        """An upper bound on log p(y), nats, eq. (M-161): the trace left counts as noise where the data have to fit."""
        n, p = self.count, self.projected.shape[1]
        noise = self.noise + self.left
        weights = torch.cholesky_solve(self.projected / noise, _factor(self.gram, noise))
        fit = (self.squares - float((self.projected * weights).sum())) / noise
        logs = n * torch.tensor(self.noise, dtype=F64).log().item() + self.log_noises + self._log_determinant
        return self.scale - 0.5 * (p * (n * LOG_2PI + logs) + fit)

    @property
    def _log_determinant(self) -> float:
        return 2.0 * float(self.inner.diagonal().log().sum())


def _factor(gram: Tensor, noise: float) -> Tensor:
    scaled = gram / noise
    scaled.diagonal().add_(1.0)
    factor, info = torch.linalg.cholesky_ex(scaled)
    if int(info):
        raise NotPositiveDefiniteError("I + A^T A / noise of the collapsed bound is not positive definite")
    return factor


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows: their sites and features.

    Fields: residual of the sites' targets, (b, p); rows; variance of the sites where rows have noise of their own,
    (b,), None where all have the noise s; log_scale of the sites, None for 0.
    """

    residual: Tensor
    rows: Rows
    variance: Tensor | None = None
    log_scale: Tensor | None = None

    def detached(self) -> "Block":
        """Without a graph."""
        tensors = (None if t is None else t.detach() for t in (self.variance, self.log_scale))
        return Block(self.residual.detach(), self.rows.detach(), *tensors)


@dataclass(frozen=True, eq=False)
class Slopes:
    """The gradient by what a block of rows brings: residual (b, p), tensors of its rows, and the variance of its sites
    where they have some of their own, (b,)."""

    residual: Tensor
    rows: list[Tensor | None]
    variance: Tensor | None = None


class StreamedBound:
    """The bound of one prior at its parameters, as blocks of rows are gone through.

    Args:
        prior: whose parameters stay what they are between the passes.
        points: features of the inducing points.
        noise: s, before it is no smaller than rounding, (M-148).
        count: of all rows.
        workspace: where the pairs are computed.
    Fields: basis, A as a function of rows; noise; clamped, whether rounding decides it; after a second pass by_noise,
        by_points and by_theta.
    Raises: NotPositiveDefiniteError.
    Cost of a first pass: n m evaluations and 2.25 n m^2 flops; of a second one n m evaluations with gradients and 5.25
        n m^2 flops.
    """

    def __init__(self, prior: Prior, points: Rows, noise: float, count: int, workspace: Workspace) -> None:
        self.prior, self.count, self.workspace = prior, count, workspace
        theta = [t.detach().to(points.device) for t in prior.kernel.theta()]
        self.form, self.theta = prior.kernel.form, theta
        # Blocks are small, and there are many: what all of them take together decides whether a compile pays.
        together = CpuTiles.for_every_size() if count * points.count >= PORTABLE_PAIRS else CpuTiles()
        self.basis = Basis.of(self.form, theta, points, workspace, together)
        self.floor = noise_floor(self.basis, count)
        self.clamped, self.noise = noise < self.floor, max(noise, self.floor)
        self.by_noise = 0.0
        self.by_points: list[Tensor | None] = [None] * len(points.tensors)
        self.by_theta: list[Tensor | None] = [None] * len(theta)

    def sums(self, blocks: Iterable[Block]) -> BoundSums:
        """The first pass: (M-160)."""
        found = added(self.basis, self.noise, blocks, floor=self.floor)
        assert found is not None
        assert found.count == self.count
        return found

    def gradients(self, blocks: Iterable[Block], sums: BoundSums) -> Iterator[Slopes]:
        """The second pass, eqs. (M-162), (M-163): what each block says about its own rows; the rest adds up.

        With h = r - A w, c = 1 / (s + d) and s the noise of each row, of one block:

            by A = (h w^T - p A M^-1) / s + p c A,   by r = -h / s,   by diag(K) = -p c / 2
        """
        weights, p = sums.weights, sums.projected.shape[1]
        one = torch.eye(len(sums.gram), dtype=F64, device=sums.gram.device)
        inverse = torch.cholesky_solve(one, sums.inner)
        # A^T h w^T and A^T A M^-1 of all rows are known: what is left to add up is A^T c A.
        spread = torch.zeros_like(sums.gram)
        squares = reach = 0.0
        for part in blocks:
            rows = part.rows
            a, left = block(self.basis, rows)
            h = part.residual.addmm(a, weights, alpha=-1.0)
            noise = self.noise if part.variance is None else part.variance.clamp_min(self.floor)
            c = 1.0 / (noise + left)
            scaled = a * c.unsqueeze(-1)
            add_symmetric(spread, a, scaled)
            by_variance: Tensor | None = None
            if isinstance(noise, float):
                slope = scaled.mul_(p).addmm_(a, inverse, alpha=-p / noise).addmm_(h, weights.mT, alpha=1.0 / noise)
                squares += float(h.square().sum())
                reach += float(c.sum())
            else:
                solved, each = a @ inverse, noise.unsqueeze(-1)
                by_variance = 0.5 * (h.square().sum(-1) + p * (a * solved).sum(-1)) / noise.square() - 0.5 * p * c
                by_variance.masked_fill_(noise <= self.floor, 0.0)
                slope = scaled.mul_(p).add_((h @ weights.mT - p * solved).div_(each))
                h = h / each
            across = self.basis.pull_across(rows, slope)
            along = TorchTiles().diagonal_gradient(PairProblem(self.form, self.theta, rows), -0.5 * p * c)
            self._add(across.cols, across.theta)
            self._add([None] * len(self.by_points), along.theta)
            by_residual = h / -noise if isinstance(noise, float) else -h
            yield Slopes(by_residual, summed(across.rows, along.rows), by_variance)
        noise, spread = sums.noise, spread.tril() + spread.tril(-1).mT
        solved = torch.cholesky_solve(sums.gram, sums.inner)
        inner = (sums.projected - sums.gram @ weights) @ weights.mT / noise - p / noise * solved.mT + p * spread
        own: PairGradient = self.basis.pull_among(inner)
        self._add(own.rows, own.theta)
        explained = p * float(solved.diagonal().sum())
        self.by_noise = 0.0 if self.clamped else 0.5 * ((squares + explained) / noise**2 - p * reach)

    def _add(self, points: Sequence[Tensor | None], theta: Sequence[Tensor | None]) -> None:
        self.by_points = summed(self.by_points, points)
        self.by_theta = summed(self.by_theta, theta)


def added(
    basis: Basis, noise: float, blocks: Iterable[Block], before: BoundSums | None = None, *, floor: float = 0.0
) -> BoundSums | None:
    """What blocks add to sums of other rows, eqs. (M-160), (M-175) and (M-177); None of no rows at all.

    Args: noise, s, of all rows, also of those before; floor, what variances of single rows are at least.
    Cost: b m evaluations and 2.25 b m^2 flops for b rows; m^2 numbers.
    """
    m, device = basis.rank, basis.lower.device
    gram, projected = torch.zeros(m, m, dtype=F64, device=device), None
    squares = logs = left = log_noises = scale = 0.0
    count = 0
    for part in blocks:
        residual, variance = part.residual, part.variance
        a, spread = block(basis, part.rows)
        if variance is None:
            logs += float((noise + spread).log().sum())
        else:
            variance = variance.clamp_min(floor)
            logs += float((variance + spread).log().sum())
            share = noise / variance
            log_noises -= float(share.log().sum())
            root = share.sqrt().unsqueeze(-1)
            a, residual, spread = a * root, residual * root, spread * share
        add_symmetric(gram, a, a)
        here = a.mT @ residual
        projected = here if projected is None else projected.add_(here)
        squares += float(residual.square().sum())
        left += float(spread.sum())
        scale += 0.0 if part.log_scale is None else float(part.log_scale.sum())
        count += part.rows.count
    if projected is None:
        return before
    gram = gram.tril() + gram.tril(-1).mT
    if before is None:
        return BoundSums(count, noise, gram, projected, squares, logs, left, log_noises, scale)
    return BoundSums(
        before.count + count, noise, before.gram + gram, before.projected + projected, before.squares + squares,
        before.logs + logs, before.left + left, before.log_noises + log_noises, before.scale + scale,
    )  # fmt: skip


def block(basis: Basis, rows: Rows) -> tuple[Tensor, Tensor]:
    """A of some rows, (b, m), and what it leaves of their variances, (b,)."""
    a = basis(rows)
    variance = TorchTiles().diagonal(PairProblem(basis.form, basis.theta, rows), dtype=F64)
    return a, (variance - a.square().sum(-1)).clamp_min_(0.0)


def noise_floor(basis: Basis, count: int) -> float:
    """What noise rounding amounts to with so many rows: smaller ones count as that."""
    diagonal = TorchTiles().diagonal(PairProblem(basis.form, basis.theta, basis.points), dtype=F64)
    return max(count * EPS * float(diagonal.mean()), torch.finfo(F64).tiny)


def add_symmetric(total: Tensor, a: Tensor, b: Tensor) -> None:
    """a^T b, (m, m), which is symmetric, to the lower triangle of a total. Cost: 1.25 b m^2 flops in place of 2."""
    m = total.shape[0]
    step = -(-m // PANELS)
    for start in range(0, m, max(1, step)):
        total[start:, start : start + step].addmm_(a[:, start:].mT, b[:, start : start + step])


def summed(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The sum of two gradients, whose parts that are 0 are None."""
    return [b if a is None else a if b is None else a + b for a, b in zip(one, other, strict=True)]
