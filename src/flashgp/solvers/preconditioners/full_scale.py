"""The full-scale preconditioner P = F F^T + V: inducing points, and block Vecchia on what they leave, (M-121).

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

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.profile_ranges import profiled
from flashgp.solvers.contract import System
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.preconditioners.tall_products import tall_times, tall_transposed_times
from flashgp.solvers.settings import DEFAULTS, FullScaleSettings

__all__ = ["FullScale", "making_bytes", "making_flops"]

F64 = torch.float64
EPS = torch.finfo(F64).eps


def making_bytes(n: int, rank: int, settings: FullScaleSettings = DEFAULTS.full_scale[0]) -> int:
    """What is alive at most while it is made, beside the low rank, for n rows and `rank` inducing points."""
    width = settings.neighbours + settings.block
    return 8 * n * (rank + width + 4) + 6 * settings.batch_bytes + 3 * 8 * rank**2


def making_flops(rank: int, settings: FullScaleSettings) -> float:
    """Of making it, for one row, without the low rank."""
    width = settings.neighbours + settings.block
    return (2.0 * rank + width / 3.0) * width**2 / settings.block + 4.0 * rank**2


class FullScale(Preconditioner):
    """P = F F^T + (W^T W)^-1 with half solves L^-1 = (I + B B^T)^-1/2 W, B = W F, eq. (M-121).

    For block b with neighbours c: of A - F F^T over (c, b), C C^T with C = [[C11, 0], [C21, C22]], rows b of W are
    C22^-1 [-C21 C11^-1, I]. The root of I + B B^T is applied through the eigenvectors of B^T B.

    Args:
        system: of which `blocks` are asked.
        factor: F, (n, k), float64, with F F^T <= K; overwritten, and kept: B takes its place.
        settings: sizes of blocks and neighbourhoods.
        seed: of the order of blocks.
    Fields: rank, k; reduced, blocks that were not positive definite with all their neighbours and have fewer.
    Raises: MemoryBudgetError; ConvergenceError if B^T B has no eigenvectors within the range of float64.
    Cost: with q = neighbours and b = block: n (q + b)^2 / b evaluations, n (2 k + (q + b) / 3) (q + b)^2 / b + 4 n k^2
        flops and n distances to `candidates` rows; 8 n (k + q + b) bytes; a half solve 2 n (q + b + 2 k) t flops.
    """

    slack = math.inf
    exact = True

    @profiled("factorisation")
    def __init__(
        self, system: System, factor: Tensor, settings: FullScaleSettings = DEFAULTS.full_scale[0], *, seed: int = 0
    ) -> None:
        points = system.scaled_inputs()
        assert points is not None
        n, self.rank = factor.shape
        floor = max(n * EPS * float(system.diagonal().mean()), torch.finfo(F64).tiny) if n else 0.0
        noise = system.noise.clamp_min(floor)
        blocks = _blocks_of_near_rows(points, settings.block, seed)
        index = torch.cat([_neighbours(points, blocks, settings), blocks], 1)
        known, inside = index >= 0, blocks >= 0
        index.clamp_(min=0)
        slots = inside.view(-1).nonzero()[:, 0]
        self._slots = torch.empty_like(slots)  # of each row among those of all blocks
        self._slots[blocks.view(-1)[slots]] = slots
        self._index, self._rows = index, blocks.clamp(min=0)
        (count, block), width = blocks.shape, index.shape[1]
        self._weights = system.workspace.empty((count, block, width), F64, system.device)
        self.reduced, self._log_determinant = 0, 0.0
        at_once = max(1, settings.batch_bytes // (8 * max(1, width) * max(1, width, self.rank)))
        for stop in range(count, 0, -at_once):  # the last first: no block that is left needs what B overwrites
            part = slice(max(0, stop - at_once), stop)
            gathered = factor[index[part]]
            covariance = system.blocks(index[part]).baddbmm_(gathered, gathered.mT, alpha=-1.0)
            covariance.diagonal(dim1=-2, dim2=-1).add_(noise[index[part]])
            weights, reduced = _whitening(covariance, known[part], block)
            self.reduced += reduced
            self._weights[part] = weights
            own = weights.diagonal(offset=width - block, dim1=-2, dim2=-1)
            self._log_determinant -= 2.0 * float(own[inside[part]].log().sum())
            factor[blocks[part][inside[part]]] = (weights @ gathered)[inside[part]]
        self._basis = factor
        self._decompose()

    def _decompose(self) -> None:
        """(I + B B^T)^-1/2 = I + B U diag(g) U^T B^T with B^T B = U diag(s) U^T and g = ((1 + s)^-1/2 - 1) / s."""
        gram = self._basis.mT @ self._basis
        squares, self._vectors = linalg.eigh(0.5 * (gram + gram.mT), device=linalg.own_device(gram))
        grown = 1.0 + squares.clamp_min(0.0)
        self._log_determinant += float(grown.log().sum())
        # ((1 + s)^-1/2 - 1) / s without the cancellation at small s.
        self._shrinkage = -1.0 / (grown + grown.sqrt())

    @property
    def log_determinant(self) -> float:
        return self._log_determinant

    def half_solve(self, v: Tensor) -> Tensor:
        return self._shrunk(self._whitened(v))

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self._whitened_transposed(self._shrunk(v))

    def _shrunk(self, v: Tensor) -> Tensor:
        """(I + B B^T)^-1/2 v."""
        inside = self._vectors.mT @ tall_transposed_times(self._basis, v)
        return v + tall_times(self._basis, self._vectors @ (self._shrinkage.unsqueeze(-1) * inside))

    # As rows, (s, t, w): batched products of few columns take half the time that way, as in tall_products.py.
    def _whitened(self, v: Tensor) -> Tensor:
        """W v."""
        parts = v.mT[:, self._index].transpose(0, 1) @ self._weights.mT
        return parts.mT.flatten(0, 1)[self._slots]

    def _whitened_transposed(self, v: Tensor) -> Tensor:
        """W^T v. Slots without a row have weights of 0."""
        parts = v.mT[:, self._rows].transpose(0, 1) @ self._weights
        return torch.zeros_like(v).index_add_(0, self._index.view(-1), parts.mT.flatten(0, 1))


def _whitening(covariance: Tensor, known: Tensor, block: int) -> tuple[Tensor, int]:
    """The last rows of the inverse Cholesky factors of covariances (s, w, w), (s, block, w), eq. (M-121).

    Args:
        known: (s, w), False for slots without a row; what precedes the last `block` are neighbours, nearest first.
    Returns: the rows, 0 where nothing is known; how many sets were not positive definite with all neighbours. Those
        have half as many, and again, at last none; rows that are not even so are whitened alone.
    """
    known, width = known.clone(), covariance.shape[-1]
    weights = covariance.new_zeros(len(covariance), block, width)
    left, kept, reduced = torch.arange(len(covariance), device=covariance.device), width - block, 0
    own = torch.eye(width, dtype=F64, device=covariance.device)
    while len(left):
        pairs = known[left].unsqueeze(-1) & known[left].unsqueeze(-2)
        factor, info = torch.linalg.cholesky_ex(torch.where(pairs, covariance[left], own))
        rows = torch.linalg.solve_triangular(factor.mT, own[:, width - block :], upper=True).mT
        sound = (info == 0) & rows.isfinite().flatten(1).all(1)
        weights[left[sound]] = rows[sound]
        left = left[~sound]
        if not len(left):
            break
        reduced = max(reduced, len(left))
        if not kept:
            diagonal = covariance[left].diagonal(dim1=-2, dim2=-1)[:, width - block :]
            alone = torch.diag_embed(diagonal.clamp_min(torch.finfo(F64).tiny).rsqrt())
            weights[left, :, width - block :] = alone
            break
        kept //= 2
        known[left, kept : width - block] = False
    weights *= known.unsqueeze(1)
    weights *= known[:, width - block :].unsqueeze(-1)
    return weights, reduced


def _blocks_of_near_rows(points: Tensor, size: int, seed: int) -> Tensor:
    """Rows cut into blocks at quantiles of the coordinate that varies most, in a random order: (blocks, rows), -1 where
    there is none. Cost: n log n for each of log2(n / size) levels."""
    n = len(points)
    count = -(-n // size)
    parts = [(torch.arange(n, device=points.device), count)] if n else []
    blocks: list[Tensor] = []
    while parts:
        rows, pieces = parts.pop()
        if pieces == 1:
            blocks.append(rows)
            continue
        here = points[rows]
        rows = rows[here[:, int((here.amax(0) - here.amin(0)).argmax())].argsort(stable=True)]
        first = pieces // 2
        cut = len(rows) * first // pieces
        parts += [(rows[cut:], pieces - first), (rows[:cut], first)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    shape = (count, max((len(rows) for rows in blocks), default=0))
    members = torch.full(shape, -1, dtype=torch.int64, device=points.device)
    for place, i in enumerate(order):
        members[place, : len(blocks[i])] = blocks[i]
    return members


def _neighbours(points: Tensor, blocks: Tensor, settings: FullScaleSettings) -> Tensor:
    """Rows of earlier blocks that are nearest to any row of a block, nearest first: (blocks, q), -1 where there are no
    more.

    Looked at are those of the earlier blocks whose centres are nearest, about `candidates` rows, so that no step takes
    all pairs of rows. Cost: a distance of centres for each pair of blocks, n `candidates` distances of rows.
    """
    (count, size), d = blocks.shape, points.shape[1]
    near = min(max(0, count - 1), max(1, -(-settings.candidates // max(1, size))))
    wanted = min(settings.neighbours, near * size)
    found = torch.full((count, wanted), -1, dtype=torch.int64, device=points.device)
    if not wanted:
        return found
    inside = blocks >= 0
    members = torch.where(inside.unsqueeze(-1), points[blocks.clamp(min=0)], 0.0)
    centres = members.sum(1) / inside.sum(1, keepdim=True)
    at_once = max(1, settings.batch_bytes // (8 * size * near * (size + d)))
    for start in range(1, count, at_once):
        part = slice(start, min(count, start + at_once))
        between = torch.cdist(centres[part], centres[: part.stop])
        later = torch.arange(part.stop, device=points.device) >= torch.arange(start, part.stop).to(blocks).unsqueeze(-1)
        few = min(near, part.stop)
        distance, nearest = between.masked_fill_(later, math.inf).topk(few, largest=False)
        usable = distance.isfinite().unsqueeze(-1) & inside[nearest]
        # From the block's own centre: nothing cancels.
        own = (members[part] - centres[part].unsqueeze(1)).masked_fill(~inside[part].unsqueeze(-1), 0.0)
        others = (members[nearest] - centres[part].unsqueeze(1).unsqueeze(1)).flatten(1, 2)
        squares = own.square().sum(-1).masked_fill(~inside[part], math.inf)
        least = torch.baddbmm(squares.unsqueeze(-1), own, others.mT, alpha=-2.0).amin(1).add_(others.square().sum(-1))
        least.masked_fill_(~usable.flatten(1), math.inf)
        taken = min(wanted, few * size)
        distance, chosen = least.topk(taken, largest=False)
        rows = blocks[nearest].flatten(1).gather(1, chosen)
        found[part, :taken] = torch.where(distance.isfinite(), rows, -1)
    return found
