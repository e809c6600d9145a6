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
from collections.abc import Iterator

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.profile_ranges import profiled
from flashgp.solvers.contract import System
from flashgp.solvers.preconditioners.near_rows import neighbourhoods
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.preconditioners.tall_products import tall_times, tall_transposed_times
from flashgp.solvers.preconditioners.whitening import whitening
from flashgp.solvers.settings import DEFAULTS, FullScaleSettings

__all__ = ["FullScale", "making_bytes", "making_flops"]

F64 = torch.float64
EPS = torch.finfo(F64).eps
TINY = torch.finfo(F64).tiny
APPLIED_BYTES = 2**25  # of W in float64, at once


def making_bytes(n: int, rank: int, settings: FullScaleSettings = DEFAULTS.full_scale[0]) -> int:
    """What is alive at most while it is made, beside the low rank, for n rows and `rank` inducing points."""
    width = settings.neighbours + settings.block
    return n * (8 * (rank + 4) + (4 if settings.single else 8) * width) + 6 * settings.batch_bytes + 3 * 8 * rank**2


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
        flops and n distances to `candidates` rows; n (8 k + 4 (q + b)) bytes, or 8 for 4; a half solve
        2 n (q + b + 2 k) t flops.
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
        mean = float(system.diagonal().mean()) if n else 0.0
        floor = max(n * EPS * mean, TINY)
        noise = system.noise.clamp_min(floor)
        near = neighbourhoods(points, settings, seed)
        blocks, index = near.blocks, near.index
        known, inside = index >= 0, blocks >= 0
        index.clamp_(min=0)
        slots = inside.view(-1).nonzero()[:, 0]
        self._slots = torch.empty_like(slots)  # of each row among those of all blocks
        self._slots[blocks.view(-1)[slots]] = slots
        self._index, self._rows = index, blocks.clamp(min=0)
        (count, block), width = blocks.shape, index.shape[1]
        dtype = torch.float32 if settings.single else F64
        self._weights = system.workspace.empty((count, block, width), dtype, system.device)
        self._unit = 1.0 / math.sqrt(mean) if mean > TINY else 1.0  # of the weights, which float32 may have to hold
        self.reduced, self._log_determinant = 0, 0.0
        at_once = max(1, settings.batch_bytes // (8 * max(1, width) * max(1, width, self.rank)))
        for stop in range(count, 0, -at_once):  # the last first: no block that is left needs what B overwrites
            part = slice(max(0, stop - at_once), stop)
            gathered = factor[index[part]]
            covariance = system.blocks(index[part]).baddbmm_(gathered, gathered.mT, alpha=-1.0)
            covariance.diagonal(dim1=-2, dim2=-1).add_(noise[index[part]])
            made = whitening(covariance, known[part], block)
            self.reduced += made.reduced
            self._weights[part] = made.weights / self._unit
            weights = self._weights[part].double() * self._unit
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
        parts = [v.mT[:, index].transpose(0, 1) @ weights.mT for _, index, weights in self._parts()]
        return torch.cat([part.mT.flatten(0, 1) for part in parts])[self._slots] * self._unit if parts else v

    def _whitened_transposed(self, v: Tensor) -> Tensor:
        """W^T v. Slots without a row have weights of 0."""
        out = torch.zeros_like(v)
        for rows, index, weights in self._parts():
            out.index_add_(0, index.flatten(), (v.mT[:, rows].transpose(0, 1) @ weights).mT.flatten(0, 1))
        return out.mul_(self._unit)

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, neighbours with rows, and W over its unit in float64, of some blocks at a time."""
        count, block, width = self._weights.shape
        size = max(1, APPLIED_BYTES // max(1, 8 * block * width))
        for part in (slice(start, start + size) for start in range(0, count, size)):
            yield self._rows[part], self._index[part], self._weights[part].double()
