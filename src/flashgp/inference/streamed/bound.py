"""The collapsed bound of inducing points, read block by block: value and gradient, eqs. (M-160) to (M-163).

With A = K_nz L_zz^-T, d = diag(K - A A^T), S = diag(s) the noise variances, M = I + A^T S^-1 A, b = A^T S^-1 r and
w = M^-1 b:

    log p(y) >= -1/2 [ p n log 2 pi + p sum log(s_i + d_i) + p log|M| + tr(r^T S^-1 r) - tr(w^T b) ]

Everything is a sum over rows but what M says. The first pass adds up A^T S^-1 A, b and four numbers; the second, with
M known, the gradient. Memory is that of one block of rows and of m x m numbers, whatever the number of rows. Outputs
with noise of their own have an S, an M and a b each, and A in common, (M-400).
Sources: Titsias (2009), Variational learning of inducing variables in sparse Gaussian processes; Titsias (2025), New
bounds for sparse variational Gaussian processes, and Bui, Ashman & Turner (2025), Tighter sparse variational Gaussian
processes, for the logarithm in place of d_i / s; Titsias (2014), Variational inference for Gaussian and determinantal
point processes, for the upper bound.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.form import Rows
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.factor import Basis
from flashgp.inference.prior import Prior
from flashgp.inference.threads import side_by_side
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS, CpuTiles
from flashgp.pairwise.cpu.pool import workers
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.processes.gradient_shares import sum_together
from flashgp.processes.group import ALONE, Group
from flashgp.solvers.direct.strided import add_gram_, add_product_

F64 = torch.float64
EPS = torch.finfo(F64).eps
PART_NUMBERS = 2**19  # of one buffer of the rows that a thread takes at a time: 4 MiB, which caches hold
PART_ROWS = 128  # at least, below which calls weigh as much as arithmetic
PANELS = 4  # of a symmetric product
STRIP = 64  # columns of a tile of one, at least
Numbers = float | Tensor  # of one covariance matrix, or (outputs,)


class BlockInputs(NamedTuple):
    """Inputs of a block: residual of the sites' targets (b, p), features, variance of the sites (b,) or (1,), or of
    each output (b, p) or (1, p), the log factor that the likelihood adds to their density, None for zero, and `block`
    of the rows where it is known, which a pass may overwrite."""

    residual: Tensor
    rows: Rows
    noise: Tensor
    log_scale: Tensor | None = None
    known: tuple[Tensor, Tensor] | None = None

    def detached(self) -> "BlockInputs":
        scale = None if self.log_scale is None else self.log_scale.detach()
        return self._replace(
            residual=self.residual.detach(), rows=self.rows.detach(), noise=self.noise.detach(), log_scale=scale
        )

    def parts(self, inducing: int) -> "list[BlockInputs]":
        """Parts of the rows, as many as a thread takes at a time, without `log_scale`; all of them on an
        accelerator."""
        if self.rows.device.type != "cpu":
            return [self]
        return [
            BlockInputs(
                self.residual[part], self.rows.part(part.start, part.stop),
                self.noise if len(self.noise) == 1 else self.noise[part],
                None, None if self.known is None else (self.known[0][part], self.known[1][part]),
            )
            for part in parts_of(self.rows.count, inducing)
        ]  # fmt: skip

    def block(self, basis: Basis) -> tuple[Tensor, Tensor]:
        """As `block` of the rows, to be overwritten."""
        return block(basis, self.rows) if self.known is None else self.known

    @property
    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        """Residual and noise, (b,) or (1,), of each covariance matrix."""
        if self.noise.dim() == 1:
            return [(self.residual, self.noise)]
        return list(zip(self.residual.split(1, dim=-1), self.noise.unbind(-1), strict=True))


def parts_of(rows: int, inducing: int) -> list[slice]:
    """Parts of the rows of a block, as many as a thread takes at a time; one of no rows."""
    threads, most = workers(), max(PART_ROWS, PART_NUMBERS // max(1, inducing))
    count = min(2 * threads * -(-rows // (2 * threads * most)), rows // PART_ROWS)  # two each: some take longer
    size = max(1, -(-rows // max(1, count)))
    return [slice(start, min(rows, start + size)) for start in range(0, max(1, rows), size)]


@dataclass(frozen=True, eq=False)
class BoundSums:
    """Sums of the first pass over rows.

    Fields: count of rows; gram, A^T S^-1 A, (m, m); projected, b, (m, p); squares, tr(r^T S^-1 r); logs, sum log(s_i +
    d_i); noise_logs, sum log s_i; left, sum d_i / s_i, what the inducing points leave of the trace beside the noise;
    scale, what the likelihood adds to the density of its sites, nats, (M-177). Of outputs with noise of their own all
    but count and scale have a dimension for these in front, where p is 1.
    """

    count: int
    gram: Tensor
    projected: Tensor
    squares: Numbers
    logs: Numbers
    noise_logs: Numbers
    left: Numbers
    scale: float = 0.0

    @classmethod
    def none(cls, rank: int, shape: Sequence[int], device: torch.device) -> "BoundSums":
        """Sums of no rows. Args: rank, m; shape, (p,), or (outputs, 1) where each has noise of its own."""
        *each, p = shape
        gram, projected = (torch.zeros(*each, rank, k, dtype=F64, device=device) for k in (rank, p))
        return cls.of(0, gram, projected, torch.zeros(4, *each, dtype=F64, device=device), 0.0)

    @classmethod
    def of(cls, count: int, gram: Tensor, projected: Tensor, numbers: Tensor, scale: float) -> "BoundSums":
        """Args: numbers, squares, logs, noise_logs and left, (4,) or (4, outputs)."""
        squares, logs, noise_logs, left = numbers.tolist() if numbers.dim() == 1 else numbers.unbind()
        return cls(count, gram, projected, squares, logs, noise_logs, left, scale)

    @property
    def numbers(self) -> Tensor:
        """The inverse of `of`."""
        own = (self.squares, self.logs, self.noise_logs, self.left)
        return torch.stack([torch.as_tensor(one, dtype=F64, device=self.gram.device) for one in own])

    @property
    def each(self) -> "list[BoundSums]":
        """The sums of every covariance matrix, among which what the likelihood adds is split evenly."""
        if self.gram.dim() == 2:
            return [self]
        scale, columns = self.scale / len(self.gram), zip(self.gram, self.projected, self.numbers.mT, strict=True)
        return [BoundSums.of(self.count, gram, b, numbers, scale) for gram, b, numbers in columns]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `none`."""
        return *self.projected.shape[:-2], self.projected.shape[-1]

    def joined(self, other: "BoundSums") -> "BoundSums":
        """The sums of the rows of both, (M-175)."""
        return BoundSums(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @cached_property
    def inner(self) -> Tensor:
        """The Cholesky factor of M. Raises: NotPositiveDefiniteError."""
        return _factor(self.gram, 1.0)

    @cached_property
    def weights(self) -> Tensor:
        """w, the mean of the whitened inducing values, (m, p)."""
        return torch.cholesky_solve(self.projected, self.inner)

    @cached_property
    def covariance(self) -> Tensor:
        """M^-1, the covariance of the whitened inducing values, (m, m)."""
        return torch.cholesky_inverse(self.inner)

    def repeated(self, times: float) -> "BoundSums":
        """Sums as if every row came so many times: the estimate by a random part of the rows for all of them,
        (M-240)."""
        return BoundSums(
            round(times * self.count), times * self.gram, times * self.projected, times * self.squares,
            times * self.logs, times * self.noise_logs, times * self.left, times * self.scale,
        )  # fmt: skip

    def with_more_noise(self, factor: float) -> "BoundSums":
        """Sums for every noise variance so many times as large: log(s + d_i) grows by at most log(factor) then, so that
        the bound stays one, (M-175)."""
        if factor <= 1.0:
            return self
        more = self.count * math.log(factor)
        return BoundSums(
            self.count, self.gram / factor, self.projected / factor, self.squares / factor, self.logs + more,
            self.noise_logs + more, self.left / factor, self.scale,
        )  # fmt: skip

    @property
    def lower(self) -> float:
        """The lower bound on log p(y), nats, eq. (M-160)."""
        p = self.projected.shape[-1]
        fit = self.squares - (self.projected * self.weights).sum((-2, -1))
        return self.scale - 0.5 * float((p * (self.count * LOG_2PI + self.logs + self._log_determinant) + fit).sum())

    def lower_at(self, values: "BoundSums") -> float:
        """The bound at the q(u) of other sums, which sites and `scale` here are made from, nats, eq. (M-274)."""
        weights, m = values.weights, values.gram.shape[-1]
        fit = self.squares + (weights * (self.gram @ weights - 2.0 * self.projected + weights)).sum((-2, -1))
        spread = (torch.cholesky_solve(self.gram, values.inner) + values.covariance).diagonal(dim1=-2, dim2=-1).sum(-1)
        logs = self.count * LOG_2PI + self.logs + values._log_determinant
        return self.scale - 0.5 * float((logs + fit + spread - m).sum())

    @property
    def upper(self) -> float:
        """An upper bound on log p(y), nats, eq. (M-161): where the data have to fit, the noise of every row grows by
        the factor c = 1 + sum d_i / s_i. Where c is large, which it is for many rows unless the inducing points leave
        next to nothing, the fit counts for nothing, and the bound is half a nat a row above the evidence."""
        if self.gram.dim() > 2:
            return sum(one.upper for one in self.each)
        c = 1.0 + float(self.left)
        weights = torch.cholesky_solve(self.projected / c, _factor(self.gram, c))
        return self.upper_with((float(self.squares) - float((self.projected * weights).sum())) / c)

    def upper_with(self, fit: float) -> float:
        """Upper bound with another number that tr(r^T (K + S)^-1 r) is not below, (M-242)."""
        p = self.projected.shape[1]
        whole = p * (self.count * LOG_2PI + self.noise_logs + self._log_determinant) + fit
        return self.scale - 0.5 * float(whole)

    @property
    def _log_determinant(self) -> Tensor:
        return 2.0 * self.inner.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _factor(gram: Tensor, divisor: float) -> Tensor:
    """The Cholesky factor of I + gram / divisor. Raises: NotPositiveDefiniteError."""
    scaled = gram / divisor
    scaled.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor, info = torch.linalg.cholesky_ex(scaled)
    if bool(info.any()):
        raise NotPositiveDefiniteError("I + A^T S^-1 A of the collapsed bound is not positive definite")
    return factor


@dataclass(frozen=True, eq=False)
class Slopes:
    """The gradient by what a block of rows brings: residual (b, p), noise as it came, and tensors of its rows."""

    residual: Tensor
    noise: Tensor
    rows: list[Tensor | None]


class StreamedBound:
    """The bound of one prior at its parameters, as blocks of rows are gone through.

    Args:
        prior: whose parameters stay what they are between the passes.
        points: features of the inducing points.
        count: of all rows.
        workspace: where the pairs are computed.
        group: of ranks whose rows are added up; gradients by points and theta stay this rank's shares.
        times: that every row counts, (M-240).
    Fields: basis, A as a function of rows; floor, below which rounding decides a noise variance, (M-148); after a
        second pass by_points and by_theta.
    Raises: NotPositiveDefiniteError.
    Cost of a first pass: n m evaluations and 2 n m^2 flops; of a second one n m evaluations with gradients and 5 n m^2
        flops.
    """

    def __init__(
        self, prior: Prior, points: Rows, count: int, workspace: Workspace, group: Group = ALONE, times: float = 1.0
    ) -> None:
        self.prior, self.count, self.workspace, self.group, self.times = prior, count, workspace, group, times
        theta = [t.detach().to(points.device) for t in prior.kernel.theta()]
        self.form, self.theta = prior.kernel.form, theta
        self.basis = Basis.of(self.form, theta, points, workspace, pairs_of(count, points.count))
        self.floor = noise_floor(self.basis, count)
        self.by_points: list[Tensor | None] = [None] * len(points.tensors)
        self.by_theta: list[Tensor | None] = [None] * len(theta)

    def sums(self, blocks: Iterable[BlockInputs]) -> BoundSums:
        """The first pass over residuals (b, p), rows and noise variances, (b,) or (1,): (M-160)."""
        found = added(self.basis, self.floor, blocks)
        if self.group.size > 1:
            own = BoundSums.none(self.basis.rank, shape_of(self.prior), self.basis.lower.device)
            found = _over_ranks(found or own, self.group)
        assert found is not None
        assert found.count == self.count
        return found if self.times == 1.0 else found.repeated(self.times)

    def gradients(self, blocks: Iterable[BlockInputs], sums: BoundSums) -> Iterator[Slopes]:
        """The second pass, eqs. (M-162) and (M-163): what each block says about its own rows; the rest adds up.

        With h = r - A w and e = s / (s + d), of one block:

            by A = (h w^T - p A M^-1 + p e A) / s,   by r = -h / s,   by diag(K) = -p e / (2 s)
            by s = (|h|^2 / s + p diag(A M^-1 A^T) / s - p e) / (2 s)

        summed over the covariance matrices.
        """
        each, p, m = sums.each, sums.projected.shape[-1], self.basis.rank
        # A^T h w^T and A^T A M^-1 of all rows are known: what is left to add up is A^T (e / s) A.
        spread = torch.zeros_like(each[0].gram)
        pull = partial(self._pulled, each=[(one.weights, one.covariance) for one in each])
        for inputs in blocks:
            found = side_by_side([partial(pull, part) for part in inputs.parts(m)], spread.device)
            add_gram(spread, [scaled for part in found for scaled in part.scaled])
            rows, by_diagonal = inputs.rows, torch.cat([part.by_diagonal for part in found])
            along = TorchTiles().diagonal_gradient(PairProblem(self.form, self.theta, rows), by_diagonal)
            self._add([None] * len(self.by_points), along.theta)
            for part in found:
                self._add(part.across.cols, part.across.theta)
            by_noise = torch.cat([part.by_noise for part in found])
            by_noise = by_noise if len(inputs.noise) == rows.count else by_noise.sum(0, keepdim=True)
            across = [joined(parts) for parts in zip(*(part.across.rows for part in found), strict=True)]
            yield Slopes(torch.cat([part.by_residual for part in found]), by_noise, summed(across, along.rows))
        spread = self.times * (spread.tril() + spread.tril(-1).mT)
        inner = torch.zeros_like(spread)
        for one in each:
            inner.addmm_(one.weights, one.weights.mT).add_(one.covariance, alpha=p)
        inner.diagonal().sub_(p * len(each))
        inner = inner.div_(self.group.size).add_(spread, alpha=p)  # what all ranks know is split evenly
        own: PairGradient = self.basis.pull_among(inner)
        self._add(own.rows, own.theta)

    def _pulled(self, part: BlockInputs, each: Sequence[tuple[Tensor, Tensor]]) -> "_Pulled":
        """Terms of some rows of a block. Args: each, w and M^-1 of every covariance matrix."""
        times, whole = self.times, None
        a, left = part.block(self.basis)
        by_residual, by_noise, by_diagonal, scaled = list[Tensor](), list[Tensor](), torch.zeros_like(left), []
        for (residual, variance), (weights, inverse) in zip(part.matrices, each, strict=True):
            p, noise = weights.shape[1], variance.clamp_min(self.floor)
            h, share = residual.addmm(a, weights, alpha=-1.0).div_(noise.unsqueeze(-1)), 1.0 / (noise + left)
            white = a.div_(noise.unsqueeze(-1)) if len(each) == 1 else a / noise.unsqueeze(-1)
            slope = self.workspace.empty(a.shape, F64, a.device)
            add_product_(slope, white, inverse, alpha=-p * times, beta=0.0)
            own = times * (h.square().sum(-1) - p * share) - (slope * white).sum(-1)
            by_noise.append(torch.where(variance < self.floor, 0.0, 0.5 * own))
            slope.addcmul_(white, (noise * share).unsqueeze(-1), value=p * times).addmm_(h, weights.mT, alpha=times)
            whole = slope if whole is None else whole.add_(slope)
            scaled.append(white.mul_((noise * share.sqrt()).unsqueeze(-1)))
            by_residual.append(-times * h)
            by_diagonal.sub_(share, alpha=0.5 * times * p)
        assert whole is not None
        across = self.basis.pull_across(part.rows, whole)
        noise_slopes = by_noise[0] if part.noise.dim() == 1 else torch.stack(by_noise, -1)
        return _Pulled(torch.cat(by_residual, -1), noise_slopes, by_diagonal, across, scaled)

    def _add(self, points: Sequence[Tensor | None], theta: Sequence[Tensor | None]) -> None:
        self.by_points = summed(self.by_points, points)
        self.by_theta = summed(self.by_theta, theta)


def added(
    basis: Basis, floor: float, blocks: Iterable[BlockInputs], before: BoundSums | None = None
) -> BoundSums | None:
    """Sums with residuals (b, p), rows and noise variances of other rows added, eqs. (M-160) and (M-175); None of no
    rows at all.

    Args: floor, of the noise.
    Cost: b m evaluations and 2 b m^2 flops for b rows; m^2 numbers.
    """
    m, device, count, scale = basis.rank, basis.lower.device, 0, 0.0
    gram, projected, numbers, shared = list[Tensor](), list[Tensor](), list[list[float]](), True
    for inputs in blocks:
        found = side_by_side([partial(_white, basis, part, floor) for part in inputs.parts(m)], device)
        if not gram:
            shared = inputs.noise.dim() == 1
            gram = [torch.zeros(m, m, dtype=F64, device=device) for _ in found[0]]
            projected = [torch.zeros(m, one.residual.shape[1], dtype=F64, device=device) for one in found[0]]
            numbers = [[0.0] * 4 for _ in found[0]]
        for j, whites in enumerate(zip(*found, strict=True)):
            add_gram(gram[j], [white.a for white in whites])
            for white in whites:
                projected[j].add_(white.a.mT @ white.residual)
                numbers[j] = [one + more for one, more in zip(numbers[j], white.numbers, strict=True)]
        scale += 0.0 if inputs.log_scale is None else float(inputs.log_scale.sum())
        count += inputs.rows.count
    if not gram:
        return before
    gram = [one.tril() + one.tril(-1).mT for one in gram]
    four = torch.tensor(numbers, dtype=F64, device=device)
    tensors = (gram[0], projected[0], four[0]) if shared else (torch.stack(gram), torch.stack(projected), four.mT)
    own = BoundSums.of(count, *tensors, scale)
    return own if before is None else before.joined(own)


def shape_of(prior: Prior) -> tuple[int, ...]:
    """See `BoundSums.none`."""
    return (prior.factors, 1) if prior.separate else (prior.outputs or 1,)


def _over_ranks(own: BoundSums, group: Group) -> BoundSums:
    """The sums of all ranks' rows, by one all-reduce of m x m + m p + 6 numbers for each matrix, (M-221)."""
    few = torch.tensor([own.count, own.scale], dtype=F64, device=own.gram.device)
    gram, projected, numbers, few = sum_together(group, (own.gram, own.projected, own.numbers, few))
    return BoundSums.of(int(few[0]), gram, projected, numbers, float(few[1]))


@dataclass(frozen=True, eq=False)
class _WhiteBlock:
    """Some rows. Fields: a (b, m) and residual (b, p), divided by the root of the noise; noise, (b,) or (1,); left
    (b,), d."""

    a: Tensor
    residual: Tensor
    noise: Tensor
    left: Tensor

    @property
    def numbers(self) -> tuple[float, ...]:
        """squares, logs, noise_logs and left of `BoundSums`."""
        logs = float(self.noise.log().sum()) * (len(self.a) / len(self.noise))
        squares, left = float(self.residual.square().sum()), float((self.left / self.noise).sum())
        return squares, float((self.noise + self.left).log().sum()), logs, left


def _white(basis: Basis, part: BlockInputs, floor: float) -> list[_WhiteBlock]:
    """White part of a block, of rows divided by the root of their noise, of every covariance matrix."""
    a, left = part.block(basis)
    found = []
    for residual, noise in part.matrices:
        noise = noise.clamp_min(floor)
        root = noise.rsqrt().unsqueeze(-1)
        white = a.mul_(root) if len(part.matrices) == 1 else a * root
        found.append(_WhiteBlock(white, residual * root, noise, left))
    return found


class _Pulled(NamedTuple):
    """The gradient by what some rows bring. Fields: by_residual (b, p); by_noise (b,) or (b, p); by_diagonal (b,);
    across, by the covariances with the inducing points; scaled, A with each row times the root of e / s, (b, m), of
    every covariance matrix."""

    by_residual: Tensor
    by_noise: Tensor
    by_diagonal: Tensor
    across: PairGradient
    scaled: list[Tensor]


def block(basis: Basis, rows: Rows) -> tuple[Tensor, Tensor]:
    """A of some rows, (b, m), and what it leaves of their variances, (b,)."""
    a = basis(rows)
    variance = TorchTiles().diagonal(PairProblem(basis.form, basis.theta, rows), dtype=F64)
    return a, (variance - torch.linalg.vector_norm(a, dim=-1).square_()).clamp_min_(0.0)


def pairs_of(count: int, inducing: int) -> CpuTiles:
    """Backend for the covariances of so many rows: blocks are small, and there are many, so that what all of them take
    together decides whether a compile pays."""
    return CpuTiles.for_every_size() if count * inducing >= PORTABLE_PAIRS else CpuTiles()


def noise_floor(basis: Basis, count: int) -> float:
    """Noise variance of rounding with so many rows: smaller ones count as that, (M-148)."""
    diagonal = TorchTiles().diagonal(PairProblem(basis.form, basis.theta, basis.points), dtype=F64)
    mean = float(diagonal.mean()) if len(diagonal) else 0.0
    return max(count * EPS * mean, torch.finfo(F64).tiny)


def add_symmetric(total: Tensor, a: Tensor, b: Tensor) -> None:
    """a^T b, (m, m), which is symmetric, to the lower triangle of a total. Cost: 1.25 b m^2 flops in place of 2."""
    m = total.shape[0]
    step = -(-m // PANELS)
    for start in range(0, m, max(1, step)):
        total[start:, start : start + step].addmm_(a[:, start:].mT, b[:, start : start + step])


def add_gram(total: Tensor, parts: Sequence[Tensor]) -> None:
    """The sum of a^T a over parts a of some rows, (b, m), to the lower triangle of a total, (m, m).

    Tiles of it are taken side by side, each over all rows. Cost: b m^2 flops of b rows, a quarter more on accelerators.
    """
    m, cpu = total.shape[0], total.device.type == "cpu"
    count = max(1, min(workers() if cpu else PANELS, m // STRIP))
    strips = [slice(*edges) for edges in itertools.pairwise(m * k // count for k in range(count + 1))]
    tiles = [(rows, cols) for k, rows in enumerate(strips) for cols in strips[:k]]  # twice the work of the others
    tiles += [(strip, strip) for strip in strips]
    side_by_side([partial(_add_tile, total, parts, *tile) for tile in tiles], total.device)


def _add_tile(total: Tensor, parts: Sequence[Tensor], rows: slice, cols: slice) -> None:
    tile = total[rows, cols]
    for a in parts:
        if rows == cols:
            add_gram_(tile, a[:, rows])
        else:
            add_product_(tile, a[:, rows].mT, a[:, cols])


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Gradients by the rows of blocks, as those by all rows; None for no dependence."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


def summed(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The sum of two gradients, whose parts that are 0 are None."""
    return [b if a is None else a if b is None else a + b for a, b in zip(one, other, strict=True)]
