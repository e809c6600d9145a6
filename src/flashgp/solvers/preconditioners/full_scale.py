"""The full-scale preconditioner P = F F^T + V: inducing points, block Vecchia for the residual covariance, (M-121).

The partial Cholesky factor F holds the long waves of K. Rows are cut into blocks of near rows, and W with V^-1 = W^T W
whitens each block given the nearest rows of earlier blocks, under the covariance that F leaves plus noise. Both ends
are known methods: without neighbours it is a low rank with a block diagonal (PITC), without inducing points it is block
Vecchia; with all earlier rows as neighbours P = A. A low rank alone holds the long waves, Vecchia the short ones.
Nothing puts P below A, so it bounds no error (slack is inf); solves keep the bounds of (M-76) and of the low rank.
Sources: Sang & Huang (2012), A full scale approximation of covariance functions; Gyger, Furrer & Sigrist (2025),
Vecchia-inducing-points full-scale approximations, arXiv 2507.05064, row by row; Katzfuss, Guinness, Gong & Zilber
(2020), Vecchia approximations of Gaussian-process predictions, for blocks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.profile_ranges import profiled
from flashgp.solvers.contract import System
from flashgp.solvers.preconditioners.low_rank import tall_times, tall_transposed_times
from flashgp.solvers.preconditioners.near_rows import neighbourhoods, shard_blocks
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.settings import DEFAULTS, FullScaleSettings

F64 = torch.float64
EPS = torch.finfo(F64).eps
TINY = torch.finfo(F64).tiny
APPLIED_BYTES = 2**25  # of W in float64, at once


def making_bytes(
    n: int, rank: int, settings: FullScaleSettings = DEFAULTS.full_scale[0], *, rows: int | None = None
) -> int:
    """Largest number of bytes on one rank while it is made, beside the low rank, with `rank` inducing points.

    Args: n, rows of that rank; rows, of all ranks, n alone by default: of several, the rows of F that the blocks need,
        B, and the blocks and neighbours of all rows are there beside F.
    """
    width = settings.neighbours + settings.block
    out = n * (8 * (rank + 4) + settings.dtype.itemsize * width) + 6 * settings.batch_bytes + 3 * 8 * rank**2
    if rows is None or rows == n:
        return out
    needed = min(rows, n + -(-n // settings.block) * settings.neighbours)
    return out + 8 * (n + needed) * rank + 8 * rows * (3 + settings.neighbours // settings.block)


def making_flops(rank: int, settings: FullScaleSettings) -> float:
    """Flops of making it, for one row, without the low rank."""
    width = settings.neighbours + settings.block
    return (2.0 * rank + width / 3.0) * width**2 / settings.block + 4.0 * rank**2


class FullScale(Preconditioner):
    """P = F F^T + (W^T W)^-1 with half solves L^-1 = (I + B B^T)^-1/2 W, B = W F, eq. (M-121).

    For block b with neighbours c: of A - F F^T over (c, b), C C^T with C = [[C11, 0], [C21, C22]], rows b of W are
    C22^-1 [-C21 C11^-1, I]. The root of I + B B^T is applied through the eigenvectors of B^T B.

    Over the ranks of a group, eq. (M-203), whole blocks are dealt to ranks, near ones to one rank. A rank is sent the
    rows of F that its blocks and their neighbours need once, and such rows of v in every half solve. All ranks have x
    and the positions of blocks and neighbours, which do not depend on how many ranks there are.

    Args:
        system: of which `blocks` are asked.
        factor: F, (n, k), float64, with F F^T <= K; overwritten, and kept: B takes its place.
        settings: sizes of blocks and neighbourhoods.
        seed: of the order of blocks.
    Fields: rank, k; reduced, blocks that were not positive definite with all their neighbours and have fewer.
    Raises: MemoryBudgetError; ConvergenceError if B^T B has no eigenvectors within the range of float64.
    Cost: with q = neighbours and b = block: n (q + b)^2 / b evaluations, n (2 k + (q + b) / 3) (q + b)^2 / b + 4 n k^2
        flops and n distances to `candidates` rows; n (8 k + 4 (q + b)) bytes, 4 being those of `dtype`; a half solve
        2 n (q + b + 2 k) t flops.
        A rank does and holds its share of that. While it is made there are also 8 n (1 + q / b) bytes of positions and
        at most (1 + q / b) n / ranks rows of F; a half solve sends as many rows of v at most, and n / ranks back.
    """

    slack = math.inf
    exact = True

    @profiled("factorisation")
    def __init__(
        self, system: System, factor: Tensor, settings: FullScaleSettings = DEFAULTS.full_scale[0], *, seed: int = 0
    ) -> None:
        points, self.space = system.scaled_inputs(), system.space
        assert points is not None
        n, self.rank = len(points), factor.shape[1]
        mean = float(self.space.sum(system.diagonal())) / max(1, n)
        near = neighbourhoods(points, settings, seed, self.space)
        shard = shard_blocks(near, n, seed, self.space)
        wanted, index, blocks = shard.rows, shard.near.index, shard.near.blocks
        known, inside = index >= 0, blocks >= 0
        index.clamp_(min=0)
        blocks.clamp_(min=0)
        self._wanted_count = len(wanted)
        self._near = self.space.exchange(wanted)
        self._own = self.space.exchange(wanted[: shard.own])
        noise = self._near.bring(system.noise).clamp_min(max(n * EPS * mean, TINY))
        brought = self._near.bring(factor)
        factor = factor if brought is factor else system.workspace.adopt(brought)
        slots = inside.view(-1).nonzero()[:, 0]
        self._slots = torch.empty_like(slots)  # of each row among those of all blocks
        self._slots[blocks.view(-1)[slots]] = slots
        self._index, self._rows = index, blocks
        (count, block), width = blocks.shape, index.shape[1]
        self._weights = system.workspace.empty((count, block, width), settings.dtype, system.device)
        self._applied = settings.applied
        self._unit = 1.0 / math.sqrt(mean) if mean > TINY else 1.0  # of the weights, which few digits may have to hold
        figures = torch.zeros(2, dtype=F64, device=system.device)  # blocks with fewer neighbours; 2 log |W|
        at_once = max(1, settings.batch_bytes // (8 * max(1, width) * max(1, width, self.rank)))
        for stop in range(count, 0, -at_once):  # the last first: no block that is left needs what B overwrites
            part = slice(max(0, stop - at_once), stop)
            gathered = factor[index[part]]
            covariance = system.blocks(wanted[index[part]]).baddbmm_(gathered, gathered.mT, alpha=-1.0)
            covariance.diagonal(dim1=-2, dim2=-1).add_(noise[index[part]])
            made = whitening(covariance, known[part], block)
            self._weights[part] = made.weights / self._unit
            weights = self._weights[part].double() * self._unit
            own = weights.diagonal(offset=width - block, dim1=-2, dim2=-1)
            figures += torch.stack([figures.new_tensor(made.reduced), 2.0 * own[inside[part]].log().sum()])
            factor[blocks[part][inside[part]]] = (weights @ gathered)[inside[part]]
        reduced, determinant = self.space.total(figures).tolist()
        self.reduced, self._log_determinant = int(reduced), -determinant
        own_rows = factor[: shard.own]
        self._basis = factor if len(own_rows) == len(factor) else system.workspace.adopt(own_rows.clone())
        self._decompose()

    def _decompose(self) -> None:
        """(I + B B^T)^-1/2 = I + B U diag(g) U^T B^T with B^T B = U diag(s) U^T and g = ((1 + s)^-1/2 - 1) / s."""
        gram = self.space.inner(self._basis, self._basis)
        squares, self._vectors = self.space.eigh(0.5 * (gram + gram.mT))
        grown = 1.0 + squares.clamp_min(0.0)
        self._log_determinant += float(grown.log().sum())
        # ((1 + s)^-1/2 - 1) / s without the cancellation at small s.
        self._shrinkage = -1.0 / (grown + grown.sqrt())

    @property
    def log_determinant(self) -> float:
        return self._log_determinant

    def half_solve(self, v: Tensor) -> Tensor:
        return self._own.give(self._shrunk(self._whitened(self._near.bring(v))))

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self._near.give(self._whitened_transposed(self._shrunk(self._own.bring(v))))

    def _shrunk(self, v: Tensor) -> Tensor:
        """(I + B B^T)^-1/2 v of the rows of blocks that are here."""
        inside = self._vectors.mT @ self.space.total(tall_transposed_times(self._basis, v))
        return v + tall_times(self._basis, self._vectors @ (self._shrinkage.unsqueeze(-1) * inside))

    # As rows, (s, t, w): batched products of few columns take half the time that way.
    def _whitened(self, v: Tensor) -> Tensor:
        """W v, rows of blocks that are here, of v, rows that these want."""
        rows = v.mT.to(self._applied)
        parts = [rows[:, index].transpose(0, 1) @ weights.mT for _, index, weights in self._parts()]
        if not parts:
            return v[:0]
        return torch.cat([part.mT.flatten(0, 1) for part in parts])[self._slots].double() * self._unit

    def _whitened_transposed(self, v: Tensor) -> Tensor:
        """W^T v, the transpose. Slots without a row have weights of 0."""
        out, v = v.new_zeros(self._wanted_count, v.shape[1]), v.to(self._applied)
        for rows, index, weights in self._parts():
            out.index_add_(0, index.flatten(), (v.mT[:, rows].transpose(0, 1) @ weights).mT.flatten(0, 1).double())
        return out.mul_(self._unit)

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, neighbours with rows, and W over its unit, of some blocks at a time."""
        count, block, width = self._weights.shape
        size = max(1, APPLIED_BYTES // max(1, 8 * block * width))
        for part in (slice(start, start + size) for start in range(0, count, size)):
            yield self._rows[part], self._index[part], self._weights[part].to(self._applied)


# -- whitening ---------------------------------------------------------------------------------------------------------
TINY = torch.finfo(F64).tiny


@dataclass(frozen=True, eq=False)
class Whitening:
    """Whitening of s sets of w rows, of which the last b are the block.

    Fields: lower (s, w, w), the Cholesky factors, of ones where a slot has no row; weights (s, b, w), the last rows of
    their inverses, 0 where nothing is known; known (s, w), slots with a row that counts; reduced, how many sets were
    not positive definite with all their neighbours.
    """

    lower: Tensor
    weights: Tensor
    known: Tensor
    reduced: int


def whitening(covariance: Tensor, known: Tensor, block: int) -> Whitening:
    """Factors of covariances (s, w, w), lower triangles.

    Sets that rounding leaves without a factor have half as many neighbours, and again, at last none; rows that are not
    even so are whitened alone.

    Args:
        known: (s, w), False for slots without a row; what precedes the last `block` are neighbours, nearest first.
    Cost: w^3 / 3 + w^2 b flops for each set.
    """
    width, every = covariance.shape[-1], bool(known.all())
    lower, info = torch.linalg.cholesky_ex(covariance if every else _of_known(covariance, known))
    weights = _last_rows(lower, block)
    left = ((info != 0) | ~weights.isfinite().flatten(1).all(1)).nonzero()[:, 0]
    reduced, kept = len(left), width - block
    known = known.clone() if reduced else known
    while len(left):
        if not kept:
            diagonal = covariance[left].diagonal(dim1=-2, dim2=-1).clamp_min(TINY)
            lower[left] = torch.diag_embed(torch.where(known[left], diagonal, 1.0).sqrt())
            weights[left] = _last_rows(lower[left], block)
            break
        kept //= 2
        known[left, kept : width - block] = False
        again, info = torch.linalg.cholesky_ex(_of_known(covariance[left], known[left]))
        rows = _last_rows(again, block)
        sound = (info == 0) & rows.isfinite().flatten(1).all(1)
        lower[left[sound]], weights[left[sound]] = again[sound], rows[sound]
        left = left[~sound]
    if not every or reduced:
        weights = weights * known.unsqueeze(1) * known[:, width - block :].unsqueeze(-1)
    return Whitening(lower, weights, known, reduced)


def _of_known(covariance: Tensor, known: Tensor) -> Tensor:
    """Ones on the diagonal, and nothing else, for slots without a row."""
    own = torch.eye(covariance.shape[-1], dtype=F64, device=covariance.device)
    return torch.where(known.unsqueeze(-1) & known.unsqueeze(-2), covariance, own)


def _last_rows(lower: Tensor, block: int) -> Tensor:
    """Last rows of the inverses of factors (s, w, w): (s, block, w)."""
    width = lower.shape[-1]
    own = torch.eye(width, dtype=F64, device=lower.device)[:, width - block :]
    return torch.linalg.solve_triangular(lower.mT, own.expand(len(lower), width, block), upper=True).mT
