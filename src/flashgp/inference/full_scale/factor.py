"""The full-scale factor of a covariance matrix, its log likelihood and the gradient of that, eqs. (M-148) to (M-150).

    K + noise  ~  A A^T + (W^T W)^-1,   A = K_nz L_zz^-T,   W whitens each block given its neighbours under
                                                            S = K - A A^T + noise

With G the rows of W of one block over (neighbours, block), B = W A, M = I + B^T B and w = M^-1 B^T W r:

    log p(y) = -1/2 [ p n log 2 pi - 2 p sum log W_ii + p log|M| + |W r|^2 - tr(w^T M w) ]

Two passes over blocks: the first accumulates M and B^T W r, the second, with both known, the gradient. Between them
nothing is kept but A and its gradient, so memory is linear in the rows.
Sources: Sang & Huang (2012), A full scale approximation of covariance functions; Gyger, Furrer & Sigrist (2025),
Vecchia-inducing-points full-scale approximations, arXiv 2507.05064, row by row; Katzfuss, Guinness, Gong & Zilber
(2020) for blocks.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.normal import LOG_2PI
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.layout import Share
from flashgp.inference.threads import in_task, side_by_side
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.pairwise.cpu.pool import workers
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares
from flashgp.solvers.direct.strided import solve_triangle_, update_triangle
from flashgp.solvers.group_space import GroupSpace
from flashgp.solvers.preconditioners.full_scale import Whitening, whitening
from flashgp.solvers.preconditioners.near_rows import Neighbourhoods, shard_blocks

F64 = torch.float64
EPS = torch.finfo(F64).eps
PAIRS = 2**18  # of the small matrices taken together: a tile of the portable backend
FLOOR = 1e-8  # of K_zz, relative to its mean diagonal: as if inducing values were seen with so much noise


def solve_rows_(lower: Tensor, rows: Tensor, *, transposed: bool = False) -> None:
    """rows <- rows L^-T, or rows L^-1 where `transposed`, of a Cholesky factor L.

    Within a task by SciPy's BLAS, which is quicker on one thread (decision 30). Elsewhere torch's threads would spin
    where those of another library want to run.
    """
    if in_task():
        solve_triangle_(lower, rows, transposed=transposed)
    elif rows.numel():
        lower = lower if transposed else lower.mT
        torch.linalg.solve_triangular(lower, rows, upper=not transposed, left=False, out=rows)


@dataclass(frozen=True, eq=False)
class Basis:
    """A = K_nz L_zz^-T, as a function of rows. Fields: form, theta; points, rows of the inducing points; lower, L_zz;
    pairs, what evaluates covariances with other rows.

    FLOOR is part of the model: K_zz + floor I is the covariance of inducing values that are seen with noise, so
    A A^T <= K stays true, and points that nearly repeat cost nothing.
    """

    form: Form
    theta: Sequence[Tensor]
    points: Rows
    lower: Tensor
    workspace: Workspace
    pairs: Backend = field(default_factory=CpuTiles)

    @classmethod
    def of(
        cls, form: Form, theta: Sequence[Tensor], points: Rows, workspace: Workspace, pairs: Backend | None = None
    ) -> "Basis":
        """Raises: NotPositiveDefiniteError for a covariance of the points that has no factor."""
        block = TorchTiles().block(PairProblem(form, theta, points), dtype=F64, workspace=workspace)
        diagonal = block.diagonal()
        diagonal += FLOOR * diagonal.mean() if len(diagonal) else 0.0
        lower, info = torch.linalg.cholesky_ex(block)
        if int(info):
            raise NotPositiveDefiniteError(
                f"the covariance of {points.count} inducing points must be positive semidefinite, but its Cholesky "
                "factorisation failed; check that the covariance function is one"
            )
        return cls(form, theta, points, lower, workspace, pairs or CpuTiles())

    @property
    def rank(self) -> int:
        return self.points.count

    def __call__(self, rows: Rows) -> Tensor:
        """A of some rows, (count, m). Cost: count m evaluations, count m^2 flops."""
        problem = PairProblem(self.form, self.theta, rows, self.points)
        cross = self.pairs.block(problem, dtype=F64, workspace=self.workspace)
        solve_rows_(self.lower, cross)
        return cross

    def taped(self, rows: Rows) -> Tensor:
        """The basis with its graph where gradients are asked for."""
        if not torch.is_grad_enabled() or not rows.requires_grad:
            return self(rows)
        cross = CovarianceOperator(PairProblem(self.form, self.theta, rows, self.points), F64).to_dense()
        return torch.linalg.solve_triangular(self.lower.mT, cross, upper=True, left=False)

    def pull(self, rows: Rows, basis: Tensor, slope: Tensor) -> tuple[PairGradient, PairGradient]:
        """From a gradient by A, overwritten, of a function of A A^T: by K_nz's rows, points and theta, and by those of
        K_zz, eq. (M-150). Cost: as A, twice."""
        inner = basis.mT @ slope
        return self.pull_across(rows, slope), self.pull_among(inner)

    def pull_across(self, rows: Rows, slope: Tensor) -> PairGradient:
        """The part of `pull` by K_nz, of some of the rows: from their gradient by A, which is overwritten."""
        solve_rows_(self.lower, slope, transposed=True)
        cross = PairProblem(self.form, self.theta, rows, self.points)
        return self.pairs.block_gradient(cross, slope, workspace=self.workspace)

    def pull_among(self, inner: Tensor) -> PairGradient:
        """The part of `pull` by K_zz, from A^T times the gradient by A of all rows, (m, m)."""
        half = torch.linalg.solve_triangular(self.lower.mT, inner + inner.mT, upper=True)
        whole = torch.linalg.solve_triangular(self.lower, half, upper=False, left=False)
        own, weights = PairProblem(self.form, self.theta, self.points), -0.125 * (whole + whole.mT)
        if self.rank:
            weights.diagonal().add_(FLOOR * weights.diagonal().mean())
        return TorchTiles().block_gradient(own, weights, workspace=self.workspace)


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the blocks, each with its neighbours, s sets of w rows.

    Fields: index (s, w), rows; white, what whitens them under S; basis (s, w, m) and residual (s, w, p) there, 0 in
    slots without a row.
    """

    index: Tensor
    white: Whitening
    basis: Tensor
    residual: Tensor

    @classmethod
    def of(
        cls, covariance: Tensor, index: Tensor, known: Tensor, block: int, basis: Tensor, residual: Tensor
    ) -> "Part":
        """Part of a block from S, (s, w, w), its lower triangle."""
        white = whitening(covariance, known, block)
        if white.reduced or not bool(known.all()):
            inside = white.known.unsqueeze(-1)
            basis, residual = basis * inside, residual * inside
        return cls(index, white, basis, residual)

    @property
    def weights(self) -> Tensor:
        """G, (s, b, w)."""
        return self.white.weights

    @property
    def log_determinants(self) -> Tensor:
        """-2 sum log W_ii of each block, (s,)."""
        diagonal = self.white.lower.diagonal(dim1=-2, dim2=-1)[:, -self.weights.shape[1] :]
        return 2.0 * diagonal.log().sum(-1)  # 0 where there is no row


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of the first pass over blocks.

    Fields: inner, the Cholesky factor of M = I + B^T B; projected, B^T W r, (m, p); log_determinant, -2 sum log W_ii;
    squares, |W r|^2; reduced, blocks that lost neighbours.
    """

    inner: Tensor
    projected: Tensor
    log_determinant: float = 0.0
    squares: float = 0.0
    reduced: int = 0

    @classmethod
    def none(cls, m: int, p: int, device: torch.device) -> "Sums":
        """Sums of no blocks, without the I of M."""
        return cls(torch.zeros(m, m, dtype=F64, device=device), torch.zeros(m, p, dtype=F64, device=device))

    def added(self, other: "Sums") -> "Sums":
        """The sums of both; `inner` is overwritten."""
        return Sums(
            self.inner.add_(other.inner), self.projected + other.projected,
            self.log_determinant + other.log_determinant, self.squares + other.squares, self.reduced + other.reduced,
        )  # fmt: skip

    def with_block(self, basis: Tensor, part: Part) -> "Sums":
        """The sums with those of some blocks; M stays. Args: basis, their B, (rows, m)."""
        right = (part.weights @ part.residual).flatten(0, 1)
        return Sums(
            self.inner, self.projected + basis.mT @ right,
            self.log_determinant + float(part.log_determinants.sum()), self.squares + float(right.square().sum()),
            self.reduced + part.white.reduced,
        )  # fmt: skip

    @classmethod
    def of(cls, inner: Tensor, projected: Tensor, numbers: Tensor) -> "Sums":
        """Sums with their `numbers`."""
        logs, squares, reduced = numbers.tolist()
        return cls(inner, projected, logs, squares, int(reduced))

    @property
    def numbers(self) -> Tensor:
        """Those that are no matrices, (3,)."""
        return self.inner.new_tensor([self.log_determinant, self.squares, self.reduced])

    def factorised(self) -> "Sums":
        """The sums where `inner` is M. Raises: NotPositiveDefiniteError."""
        factor, info = torch.linalg.cholesky_ex(self.inner)
        if int(info):
            raise NotPositiveDefiniteError("I + B^T B of the full-scale factor is not positive definite")
        return replace(self, inner=factor)

    @property
    def weights(self) -> Tensor:
        """w, the mean of the whitened inducing values, (m, p)."""
        return torch.cholesky_solve(self.projected, self.inner)

    def log_likelihood(self, n: int) -> float:
        """log p(y) of n rows."""
        p = self.projected.shape[1]
        logs = self.log_determinant + 2.0 * float(self.inner.diagonal().log().sum())
        explained = float((self.projected * self.weights).sum())
        return -0.5 * (n * p * LOG_2PI + p * logs + self.squares - explained)


@dataclass(eq=False)
class FullScaleFactor:
    """The factor of a covariance matrix, as its blocks are gone through; `sums_of_each` is its first pass, eq. (M-148).

    Outputs with noise of their own have a matrix each, and the covariances of the sets of rows in common.

    Args:
        form, theta, rows, points: the covariance function, training rows and inducing points.
        near: blocks and neighbours.
        residual: y minus the prior mean, (n, p), float64.
        noise: variance of each row, (n or 1,), or of each row and output, (n or 1, p), float64.
        function: A as a function of rows.
        basis: A of the training rows, (n, m).
        floor: what noise counts as at least; that of these rows by default.
        share: of a rank whose group shares the blocks, eq. (M-204): rows, residual, noise and A are of the rows that
            its blocks need, and `near` has their places among these; sums and gradients are those of all ranks.
    Cost of a pass, with q + b rows of a set: n (q + b)^2 / b evaluations, n [(2 m + (q + b) / 3) (q + b)^2 / b + 4 m^2]
        flops; 8 n m bytes. All but evaluations and 2 m of these for each matrix.
    """

    form: Form
    theta: Sequence[Tensor]
    rows: Rows
    near: Neighbourhoods
    residual: Tensor
    noise: Tensor
    function: Basis
    basis: Tensor
    workspace: Workspace = field(default_factory=Workspace)
    floor: float | None = None
    share: Share | None = None

    def __post_init__(self) -> None:
        n = self.rows.count
        floor = noise_floor(self.form, self.theta, self.rows) if self.floor is None else self.floor
        shape = (n, *self.noise.shape[1:])
        self.clamped = (self.noise < floor).expand(shape)
        self.noise_of_rows = self.noise.clamp_min(floor).expand(shape)

    @property
    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        """Noise (n,) and residual, (n, outputs that share it), of each covariance matrix."""
        if self.noise.dim() == 1:
            return [(self.noise_of_rows, self.residual)]
        return list(zip(self.noise_of_rows.unbind(1), self.residual.split(1, 1), strict=True))

    @classmethod
    def of(
        cls,
        function: Basis,
        rows: Rows,
        near: Neighbourhoods,
        residual: Tensor,
        noise: Tensor,
        group: Group = ALONE,
        seed: int = 0,
    ) -> "FullScaleFactor":
        """Factor with A of the rows computed here; with a group this rank's share, of all rows on every rank.

        Args: seed: of the order of blocks.
        """
        form, theta, workspace = function.form, function.theta, function.workspace
        if group.size == 1:
            return cls(form, theta, rows, near, residual, noise, function, function(rows), workspace)
        n, floor = rows.count, noise_floor(form, theta, rows)
        shard = shard_blocks(near, n, seed, GroupSpace(group, Shares.even(n, group.size)))
        here, noise = rows.take(shard.rows), noise.expand(n, *noise.shape[1:])[shard.rows]
        return cls(
            form, theta, here, shard.near, residual[shard.rows], noise, function, function(here), workspace, floor,
            Share(group, shard.rows, n),
        )  # fmt: skip

    def sums_of_each(self) -> list[Sums]:
        """The first pass, of every matrix. Raises: NotPositiveDefiniteError."""
        first = self.share is None or not self.share.group.rank  # I is counted once
        found = side_by_side([partial(self._sums_of, chunks) for chunks in self._shares()], self.residual.device)
        each = [functools.reduce(Sums.added, own) for own in zip(*found, strict=True)]
        for one in each if first else ():
            one.inner.diagonal().add_(1.0)
        if self.share is not None:
            own = [t for one in each for t in (one.inner, one.projected, one.numbers)]
            summed = self.share.summed(own)
            each = [Sums.of(*summed[k : k + 3]) for k in range(0, len(summed), 3)]
        return [one.factorised() for one in each]

    def _sums_of(self, chunks: Sequence[Tensor]) -> list[Sums]:
        """Sums of some blocks, with B^T B in place of M."""
        rank, device = self.function.rank, self.residual.device
        each = [Sums.none(rank, residual.shape[1], device) for _, residual in self.matrices]
        for sets in chunks:
            for j, part in enumerate(self._of_sets(sets, taped=False)[0]):
                here = (part.weights @ part.basis).flatten(0, 1)
                each[j].inner.addmm_(here.mT, here)
                each[j] = each[j].with_block(here, part)
        return each

    def sums_after(self, before: Sums, *, compiled: bool) -> Sums:
        """Sums of earlier blocks with those of these ones, eq. (M-176). Args: compiled, as `update_triangle`.

        The factor of M is updated by orthogonal maps, where nothing is subtracted. Cost beside that of the blocks: 2 k
        m^2 flops for k rows. Raises: NotPositiveDefiniteError for covariances that are not finite.
        """
        inner = before.inner.contiguous()
        for (part,), _ in self.parts(taped=False):
            here = (part.weights @ part.basis).flatten(0, 1)
            out = torch.empty_like(inner)
            update_triangle(inner, out, here.mT.clone(), compiled=compiled)
            inner, before = out.tril_(), before.with_block(here, part)
        if not (math.isfinite(before.log_determinant) and bool(inner.isfinite().all())):
            raise NotPositiveDefiniteError(
                "the covariance matrix with the new rows must be finite, but some of its entries are none; correct "
                "these rows, or leave them out"
            )
        return replace(before, inner=inner)

    def marginals(self, each: Sequence[Sums]) -> tuple[Tensor, Tensor]:
        """q(f) of every row given its block and that block's neighbours, eq. (M-272): what its mean is below the
        target, and its variance, of the shape of the noise; of the rows of all ranks. The latter is positive whatever
        the neighbours.

        Args: each, sums of the density; neighbours here are the nearest rows of all other blocks. Cost: a first pass.
        """
        matrices = self.matrices
        below, variance = ([torch.zeros_like(noise) for noise, _ in matrices] for _ in range(2))

        def of_sets(sets: Tensor) -> None:  # rows of a block are in no other
            for j, part in enumerate(self._of_sets(sets, taped=False)[0]):
                sums, g, block = each[j], part.weights, part.weights.shape[1]
                own, inside = g[..., -block:], part.white.known[:, -block:]
                rows = part.index[:, -block:][inside]
                noise = matrices[j][0][rows]
                error = own.mT @ (g @ (part.residual - part.basis @ sums.weights))
                among = (own.mT @ (g @ part.basis))[inside] * noise.unsqueeze(-1)
                spread = torch.linalg.solve_triangular(sums.inner.mT, among, upper=True, left=False).square().sum(-1)
                below[j][rows] = noise * error.squeeze(-1)[inside]
                variance[j][rows] = noise * (1.0 - noise * own.square().sum(1)[inside]) + spread

        side_by_side([partial(of_sets, sets) for sets in self._chunks()], self.residual.device)
        found = below[0], variance[0]
        if self.noise.dim() > 1:
            found = torch.stack(below, -1), torch.stack(variance, -1)
        if self.share is None:
            return found
        of_all = self.share.summed([self.share.of_all(part, self.noise) for part in found])
        return of_all[0], of_all[1]

    def parts(self, *, taped: bool) -> Iterator[tuple[Iterator[Part], Callable[[Tensor], PairGradient] | None]]:
        """The blocks, so many at a time, under every matrix; with `taped` also what pulls a gradient by the covariances
        of the sets."""
        for sets in self._chunks():
            yield self._of_sets(sets, taped=taped)

    def _chunks(self) -> list[Tensor]:
        """The blocks with their neighbours, as many at a time as a thread takes together."""
        index, cpu = self.near.index, self.residual.device.type == "cpu"
        return list(index.split(max(1, PAIRS // max(1, (workers() if cpu else 1) * index.shape[1] ** 2))))

    def _shares(self) -> list[list[Tensor]]:
        """`_chunks` of each thread."""
        chunks = self._chunks()
        count = max(1, min(len(chunks), workers() if self.residual.device.type == "cpu" else 1))
        return [chunks[k::count] for k in range(count)]

    def _of_sets(self, sets: Tensor, *, taped: bool) -> tuple[Iterator[Part], Callable[[Tensor], PairGradient] | None]:
        """See `parts`."""
        known, block = sets >= 0, self.near.block
        if not bool((used := known.any(0)).all()):  # slots that none of these blocks has a row in
            sets, known, block = sets[:, used], known[:, used], int(used[-block:].sum()) if block else 0
        sets = sets.clamp(min=0)
        problem = PairProblem(self.form, self.theta, self.rows.sets(sets))
        matrix, pull = _block(TorchTiles(), problem, taped, self.workspace)
        basis = self.basis[sets]
        matrix = matrix.baddbmm(basis, basis.mT, alpha=-1.0) if taped else matrix.baddbmm_(basis, basis.mT, alpha=-1.0)
        return self._with_noise(matrix, sets, known, block, basis), pull

    def _with_noise(self, matrix: Tensor, sets: Tensor, known: Tensor, block: int, basis: Tensor) -> Iterator[Part]:
        """Blocks from what A leaves of their covariances, overwritten, under one matrix after the other."""
        matrices = self.matrices
        for noise, residual in matrices:
            one = matrix.clone() if len(matrices) > 1 else matrix
            one.diagonal(dim1=-2, dim2=-1).add_(noise[sets])
            # The upper triangle is what a block has; a factor reads the lower one.
            yield Part.of(one.mT, sets, known, block, basis, residual[sets])


def _block(
    backend: Backend, problem: PairProblem, taped: bool, workspace: Workspace
) -> tuple[Tensor, Callable[[Tensor], PairGradient] | None]:
    if taped:
        return backend.taped_block(problem, dtype=F64, workspace=workspace)
    block = backend.block(problem, dtype=F64, workspace=workspace, upper=True)
    return (block if block.dim() == 3 else block.expand(problem.shape)).contiguous(), None


def noise_floor(form: Form, theta: Sequence[Tensor], rows: Rows) -> float:
    """Noise variance of rounding: smaller ones count as that."""
    if not rows.count:
        return 0.0
    diagonal = TorchTiles().diagonal(PairProblem(form, theta, rows), dtype=F64)
    return max(rows.count * EPS * float(diagonal.mean()), torch.finfo(F64).tiny)


@torch.no_grad()
def rounding_of(function: Basis, rows: Rows, summands: int) -> Tensor:
    """Bound on the rounding of covariances of rows from which A A^T and so many more products are taken, ()."""
    prior = TorchTiles().diagonal(PairProblem(function.form, function.theta, rows), dtype=F64)
    return (function.rank + summands) * EPS * prior.mean()


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients by residual (n, p), noise (n,), tensors of the training rows, those of the inducing points, and
    theta."""

    residual: Tensor
    noise: Tensor
    rows: list[Tensor | None]
    points: list[Tensor | None]
    theta: list[Tensor | None]


def gradients(factor: FullScaleFactor, each: Sequence[Sums]) -> Gradients:
    """The gradient of the log likelihood of a factor: the second pass, eqs. (M-149) and (M-150).

    Of one block, with h = r - A w, z = G h, Y = h z^T + p A M^-1 (G A)^T and R = S^-1 Y - 1/2 G^T (G Y) - p/2 G^T:

        dS = 1/2 (R G + G^T R^T),   dA = G^T (z w^T - p G A M^-1 - R^T A) - R (G A),   dr = -G^T z

    Args: each, sums of every matrix, whose likelihoods add up.
    Cost: twice the first pass, and one of A.
    """
    rows, n = factor.rows, factor.rows.count
    by_basis = torch.zeros_like(factor.basis)
    by_residual = [torch.zeros_like(residual) for _, residual in factor.matrices]
    by_noise = [factor.residual.new_zeros(n) for _ in each]
    weights = [sums.weights for sums in each]
    total = _Total(rows, factor.function.points, len(factor.theta))

    def of_sets(sets: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]], PairGradient]:
        parts, pull = factor._of_sets(sets, taped=True)
        assert pull is not None
        slope, where, found = torch.zeros(()), torch.empty(0), list[tuple[Tensor, ...]]()
        for j, part in enumerate(parts):
            own, by_set, by_row = _of_part(part, weights[j], each[j].inner)
            where, slope = part.index, slope + own if j else own
            found.append((by_set.flatten(0, 1), by_row.flatten(0, 1), own.diagonal(dim1=-2, dim2=-1).flatten()))
        return where, found, pull(slope)

    for chunks in zip_longest(*factor._shares()):
        tasks = [partial(of_sets, sets) for sets in chunks if sets is not None]
        for where, found, pulled in side_by_side(tasks, factor.residual.device):
            place = where.view(-1)
            for j, (by_set, by_row, of_noise) in enumerate(found):
                by_basis.index_add_(0, place, by_set)
                by_residual[j].index_add_(0, place, by_row)
                by_noise[j].index_add_(0, place, of_noise)
            total.add_sets(where, pulled)
    if n or factor.share is None:  # a rank may have no blocks
        across, among = factor.function.pull(rows, factor.basis, by_basis)
        total.add(across.rows, across.cols, across.theta)
        total.add([None] * len(across.rows), among.rows, among.theta)
    noise = by_noise[0] if factor.noise.dim() == 1 else torch.stack(by_noise, -1)
    noise = noise.masked_fill(factor.clamped, 0.0)
    gradient = Gradients(torch.cat(by_residual, -1), noise, total.rows, total.points, total.theta)
    return gradient if factor.share is None else _of_all_ranks(gradient, factor, factor.share)


def _of_part(part: Part, weights: Tensor, inner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dS, dA and dr of some blocks, as `gradients` has them."""
    p, g, a = part.residual.shape[-1], part.weights, part.basis
    h = part.residual - a @ weights
    z, b = g @ h, g @ a
    solved = _solved(b.flatten(0, 1), inner).view_as(b)  # G A M^-1
    y = h @ z.mT + p * (a @ solved.mT)
    inside = g @ y
    half = torch.linalg.solve_triangular(part.white.lower, y, upper=False)
    r = torch.linalg.solve_triangular(part.white.lower.mT, half, upper=True)
    inside.diagonal(dim1=-2, dim2=-1).add_(p)
    r = r.baddbmm_(g.mT, inside, alpha=-0.5)
    if part.white.reduced or not bool(part.white.known.all()):
        r = r * part.white.known.unsqueeze(-1)
    half = r @ g
    gathered = z @ weights.mT - p * solved - r.mT @ a
    return 0.5 * (half + half.mT), g.mT @ gathered - r @ b, -(g.mT @ z)


def _of_all_ranks(own: Gradients, factor: FullScaleFactor, share: Share) -> Gradients:
    """The sums over ranks of the gradients of their blocks, eq. (M-204)."""
    rows, points = factor.rows.tensors, factor.function.points.tensors
    template = [own.residual, own.noise, *rows, *points, *factor.theta]
    total = share.gradients([own.residual, own.noise, *own.rows], [*own.points, *own.theta], template)
    residual, noise = total[:2]
    assert residual is not None
    assert noise is not None
    by_rows, rest = total[2 : 2 + len(rows)], total[2 + len(rows) :]
    return Gradients(residual, noise, by_rows, rest[: len(points)], rest[len(points) :])


def _solved(v: Tensor, lower: Tensor) -> Tensor:
    """v (L L^T)^-1, rows of v at a time."""
    half = torch.linalg.solve_triangular(lower.mT, v, upper=True, left=False)
    return torch.linalg.solve_triangular(lower, half, upper=False, left=False)


class _Total:
    """Sums of gradients by the tensors of rows and points, and by theta."""

    def __init__(self, rows: Rows, points: Rows, parameters: int) -> None:
        self.rows: list[Tensor | None] = [None] * len(rows.tensors)
        self.points: list[Tensor | None] = [None] * len(points.tensors)
        self.theta: list[Tensor | None] = [None] * parameters
        self._like = rows.tensors

    def add(
        self, rows: Sequence[Tensor | None], points: Sequence[Tensor | None], theta: Sequence[Tensor | None]
    ) -> None:
        for totals, parts in ((self.rows, rows), (self.points, points), (self.theta, theta)):
            for k, part in enumerate(parts):
                if part is not None:
                    total = totals[k]
                    totals[k] = part.clone() if total is None else total + part

    def add_sets(self, index: Tensor, found: PairGradient) -> None:
        """Add the gradients of sets of rows, (s, w), at these rows."""
        for k, part in enumerate(found.rows):
            if part is None:
                continue
            known = self.rows[k]
            if known is None:
                known = self.rows[k] = torch.zeros_like(self._like[k], dtype=F64)
            known.index_add_(0, index.reshape(-1), part.expand(*index.shape, *known.shape[1:]).flatten(0, 1))
        self.add([], [], [None if t is None else t.sum() for t in found.theta])
