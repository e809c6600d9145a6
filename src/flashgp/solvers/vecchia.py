"""Vecchia's approximation as a preconditioner: each row given a few near ones, P^-1 = W^T W with sparse W, (M-121).

Rows are put in a random order, and row i of W whitens row i given those of its nearest rows that come before it. In few
dimensions what is left of a row given its neighbours is nearly independent of all others, so that conjugate gradients
end in tens of iterations where a low-rank preconditioner takes hundreds: it holds the long waves of K, W the short
ones. In many dimensions no row is near, and W is worth little; conjugate_gradients.py tries it and counts.
Sources: Vecchia (1988), Estimation and model identification for continuous spatial processes; Kaporin (1994), New
convergence results and preconditioning strategies for the conjugate gradient method, for the optimality of each row;
Schäfer, Katzfuss & Owhadi (2021), Sparse Cholesky factorization by Kullback-Leibler minimization.
"""

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from flashgp.foundations.workspace import Workspace
from flashgp.solvers.contract import System
from flashgp.solvers.preconditioner import Preconditioner

__all__ = ["NEIGHBOURS", "Vecchia", "vecchia_bytes"]

F64 = torch.float64
EPS = torch.finfo(F64).eps
NEIGHBOURS = 48  # of a row: in 3 dimensions 16 would do, in 5 it takes these; 6 passes' time at 100,000 rows
COORDINATES = 8  # those that vary most: among more, a tree looks at all rows
GROWTH = 1.3  # rows of one tree beside those of the one before
BLOCK_BYTES = 2**24  # of the small matrices that are factorised at once
ENTRY_BYTES = 2 * (8 + 4)  # of W and of W^T
BUILDING_BYTES = 32  # of one entry, while W^T is made


def vecchia_bytes(n: int, neighbours: int = NEIGHBOURS) -> int:
    """What is kept for n rows."""
    return n * (neighbours + 1) * ENTRY_BYTES


class Vecchia(Preconditioner):
    """P^-1 = W^T W with C_i^-T e in row i of W, C_i the Cholesky factor of A of (near rows of i, i), eq. (M-121).

    P is positive definite and near A, but not below it: no bound of the error follows (slack is inf), and none is
    lost, since solves keep those of (M-76).

    Args:
        system: of which `places` and `blocks` are asked; neighbours: of a row, at most; seed: of the order of rows.
    Raises: MemoryBudgetError.
    Cost: n log n for the neighbours, n q^2 evaluations and n q^3 / 3 flops with q = neighbours + 1; 24 n q bytes, more
        than twice as many while it is made; a half solve 2 n q t flops.
    """

    slack = math.inf
    exact = True

    def __init__(self, system: System, places: Tensor, *, neighbours: int = NEIGHBOURS, seed: int = 0) -> None:
        n, width = len(places), min(neighbours, max(0, len(places) - 1)) + 1
        floor = max(n * EPS * float(system.diagonal().mean()), torch.finfo(F64).tiny) if n else 0.0
        noise = system.noise.clamp_min(floor)
        self._log_determinant = 0.0
        with system.workspace.hold(BUILDING_BYTES * n * width):
            values = system.workspace.empty((n, width), F64, system.device)
            columns = system.workspace.empty((n, width), torch.int32, system.device)
            there = torch.ones((n, width), dtype=torch.bool, device=system.device)
            at_once = max(1, BLOCK_BYTES // (8 * width**2))
            for start, index, known in _earlier(places.cpu(), width - 1, seed, at_once):
                index, known = index.to(system.device), known.to(system.device)
                stop = start + len(index)
                rows = _whitening(system, noise, index, known)
                self._log_determinant -= 2.0 * float(rows[:, -1].log().sum())
                columns[start:stop], sorting = torch.where(known, index, n).sort(1)  # as sparse rows have them
                values[start:stop], there[start:stop] = rows.gather(1, sorting), known.gather(1, sorting)
            self._whiten, self._unwhiten = _both(values, columns, there, system.workspace)

    @property
    def log_determinant(self) -> float:
        return self._log_determinant

    def half_solve(self, v: Tensor) -> Tensor:
        return self._whiten @ v

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self._unwhiten @ v


def _earlier(places: Tensor, count: int, seed: int, most: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(start, index (c, count + 1), known (c, count + 1)) for the rows start to start + c of a random order, c <= most.

    index: positions of the nearest of the rows before each, the row itself last; known: False where fewer were found,
    of the first rows and, rarely, of others.
    """
    from scipy.spatial import KDTree  # late: two tenths of a second for those that need no tree

    n = len(places)
    varied = (places.amax(0) - places.amin(0)).argsort(descending=True, stable=True)[:COORDINATES] if n else slice(0)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    ordered = places[order][:, varied].numpy()
    # Of so many near rows of a tree that ends GROWTH times as late, nearly always `count` come before.
    asked = math.ceil(1.5 * GROWTH * count) + 4
    start = 0
    while start < n:
        stop = min(n, max(start + asked, int(start * GROWTH)))
        tree = KDTree(ordered[:stop])
        for first in range(start, stop, most):
            last = min(stop, first + most)
            own = torch.arange(first, last).unsqueeze(-1)
            near = tree.query(ordered[first:last], k=range(1, min(asked, stop) + 1), workers=torch.get_num_threads())[1]
            near = torch.from_numpy(near)
            before = near < own
            # The nearest of those before first, in the order of their distances.
            taken = (~before).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
            near, known = near.gather(1, taken), before.gather(1, taken)
            if near.shape[1] < count:
                short = count - near.shape[1]
                near, known = (torch.cat([part, part.new_zeros(len(own), short)], 1) for part in (near, known))
            index = torch.cat([torch.where(known, near, own), own], 1)
            yield first, order[index], torch.cat([known, torch.ones_like(own, dtype=torch.bool)], 1)
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


def _both(values: Tensor, columns: Tensor, there: Tensor, workspace: Workspace) -> tuple[Tensor, Tensor]:
    """W and W^T as sparse rows."""
    n = len(values)
    every = bool(there.all())
    counts = there.sum(1)
    rows = torch.arange(n, dtype=torch.int32, device=values.device).repeat_interleave(counts)
    flat_values = values.reshape(-1) if every else workspace.adopt(values[there])
    flat_columns = columns.reshape(-1) if every else workspace.adopt(columns[there])
    forth = _sparse_rows(counts, flat_columns, flat_values, n)
    turned = flat_columns.argsort(stable=True)
    per_column = torch.bincount(flat_columns, minlength=n)
    back = _sparse_rows(per_column, workspace.adopt(rows[turned]), workspace.adopt(flat_values[turned]), n)
    return forth, back


def _sparse_rows(counts: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor:
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    dtype = torch.int32 if len(values) < 2**31 else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(starts.to(dtype), columns.to(dtype), values, size=(n, n), check_invariants=True)
