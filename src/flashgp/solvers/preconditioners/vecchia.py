"""The Vecchia preconditioner: each row given its nearest neighbours, P^-1 = W^T W with sparse W, (M-121).

Rows are put in a random order, and row i of W whitens row i given those of its nearest rows that come before it. In few
dimensions what is left of a row given its neighbours is nearly independent of all others, so that conjugate gradients
end in tens of iterations where a low-rank preconditioner takes hundreds: it holds the long waves of K, W the short
ones. In many dimensions no row is near, and W is worth little: candidate.py compares the two.
Sources: Vecchia (1988), Estimation and model identification for continuous spatial processes; Kaporin (1994), New
convergence results and preconditioning strategies for the conjugate gradient method, for the optimality of each row;
Schäfer, Katzfuss & Owhadi (2021), Sparse Cholesky factorization by Kullback-Leibler minimization.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flashgp.solvers.contract import System
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.settings import DEFAULTS, VecchiaSettings

__all__ = ["Vecchia", "making_bytes"]

F64 = torch.float64
EPS = torch.finfo(F64).eps
ENTRY_BYTES = 2 * (8 + 4)  # of W and of W^T
BUILDING_BYTES = 24  # of one entry more, while W^T is made


def making_bytes(n: int, settings: VecchiaSettings) -> int:
    """What is alive at most while it is made."""
    return n * (settings.neighbours + 1) * (ENTRY_BYTES + BUILDING_BYTES) + 4 * settings.block_bytes


class Vecchia(Preconditioner):
    """P^-1 = W^T W with C_i^-T e in row i of W, C_i the Cholesky factor of A of (neighbours of i, i), eq. (M-121).

    P is positive definite and near A, but not below it: no bound of the error follows (slack is inf), and none is
    lost, since solves keep those of (M-76).

    Args:
        system: of which `blocks` are asked.
        points: scaled inputs, (n, d), finite; nearest rows are nearest in these.
        settings: number of neighbours and how they are found.
        seed: of the order of rows.
    Raises: MemoryBudgetError.
    Cost: n log n for the neighbours, n q^2 evaluations and n q^3 / 3 flops with q = neighbours + 1; 24 n q bytes, twice
        as many while it is made; a half solve 2 n q t flops.
    """

    slack = math.inf
    exact = True

    def __init__(
        self, system: System, points: Tensor, settings: VecchiaSettings = DEFAULTS.vecchia, *, seed: int = 0
    ) -> None:
        n, width = len(points), min(settings.neighbours, max(0, len(points) - 1)) + 1
        floor = max(n * EPS * float(system.diagonal().mean()), torch.finfo(F64).tiny) if n else 0.0
        noise, device, workspace = system.noise.clamp_min(floor), system.device, system.workspace
        self._log_determinant = 0.0
        with workspace.hold(BUILDING_BYTES * n * width):
            values = workspace.empty((n, width), F64, device)
            columns = workspace.empty((n, width), torch.int32, device)
            at_once = max(1, settings.block_bytes // (8 * width**2))
            for start, index, known in _earlier_neighbours(points.cpu(), width - 1, seed, at_once, settings):
                index, known = index.to(device), known.to(device)
                rows = _whitening(system, noise, index, known)
                self._log_determinant -= 2.0 * float(rows[:, -1].log().sum())
                columns[start : start + len(index)], sorting = index.sort(1)  # as sparse rows have them
                values[start : start + len(index)] = rows.gather(1, sorting)
            every = torch.arange(0, n * width + 1, width, device=device)
            self._rows = every, columns.view(-1), values.view(-1)
            turned = columns.view(-1).argsort(stable=True)
            counts = torch.bincount(columns.view(-1), minlength=n)
            starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            row = turned.div(width, rounding_mode="floor").to(torch.int32)
            self._columns = starts, workspace.adopt(row), workspace.adopt(values.view(-1)[turned])
        self._connect()

    def _connect(self) -> None:
        self._whiten, self._unwhiten = _sparse_rows(*self._rows), _sparse_rows(*self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Without the sparse tensors, which torch does not copy: they are views of plain ones."""
        return {name: value for name, value in vars(self).items() if name not in ("_whiten", "_unwhiten")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    @property
    def log_determinant(self) -> float:
        return self._log_determinant

    def half_solve(self, v: Tensor) -> Tensor:
        return self._whiten @ v

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self._unwhiten @ v


def _earlier_neighbours(
    points: Tensor, count: int, seed: int, at_once: int, settings: VecchiaSettings
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(start, index (c, count + 1), known (c, count + 1)) for rows start to start + c of a random order, c <= at_once.

    index: distinct positions, neighbours first, the row itself last; known: the row itself and the nearest of those
    before it, False for what fills up the first rows and, rarely, others.
    """
    from scipy.spatial import KDTree  # late: two tenths of a second for those that need no tree

    n, growth = len(points), settings.growth
    spread = points.amax(0) - points.amin(0) if n else points.new_zeros(points.shape[1])
    varied = spread.argsort(descending=True, stable=True)[: settings.coordinates]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    ordered = points[order][:, varied].numpy()
    # Of so many neighbours in a tree that ends `growth` times as late, nearly always `count` come before.
    asked = math.ceil(1.5 * growth * count) + 4
    start = 0
    while start < n:
        stop = min(n, max(start + asked, int(start * growth)))
        tree = KDTree(ordered[:stop])
        for first in range(start, stop, at_once):
            last = min(stop, first + at_once)
            rows = torch.arange(first, last).unsqueeze(-1)
            ranks = range(1, min(asked, stop) + 1)
            near = torch.from_numpy(tree.query(ordered[first:last], k=ranks, workers=torch.get_num_threads())[1])
            # First the nearest of those before it, in the order of their distances, then others, never itself.
            ranked = (near > rows).to(torch.int8) + 2 * (near == rows).to(torch.int8)
            near = near.gather(1, ranked.argsort(dim=1, stable=True)[:, :count])
            yield first, order[torch.cat([near, rows], 1)], torch.cat([near < rows, torch.ones_like(rows).bool()], 1)
        start = stop


def _whitening(system: System, noise: Tensor, index: Tensor, known: Tensor) -> Tensor:
    """Rows of W at the positions `index`, (c, q), eq. (M-121); 0 where nothing is known."""
    matrix = system.blocks(index)
    matrix = torch.where(known.unsqueeze(-1) & known.unsqueeze(-2), matrix, 0.0)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(torch.where(known, diagonal + noise[index], 1.0))
    factor, info = torch.linalg.cholesky_ex(matrix)
    last = torch.zeros(*index.shape, 1, dtype=F64, device=index.device)
    last[:, -1] = 1.0
    rows = torch.linalg.solve_triangular(factor.mT, last, upper=True).squeeze(-1)
    # Where rounding leaves no factor, the row alone: any row of W with a positive last entry is one of some P.
    alone = last.squeeze(-1) * diagonal[:, -1:].rsqrt()
    sound = (info == 0).unsqueeze(-1) & rows.isfinite().all(-1, keepdim=True)
    return torch.where(known, torch.where(sound, rows, alone), 0.0)


def _sparse_rows(starts: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    n, dtype = len(starts) - 1, torch.int32 if len(values) < 2**31 else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(
            starts.to(dtype), columns.to(dtype), values, size=(n, n), check_invariants=True
        )  # fmt: skip
