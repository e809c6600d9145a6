"""K kept as tiles: for many products with one K, where memory allows."""

import torch
from torch import Tensor

from flashgp.foundations.form import broadcast_batch
from flashgp.foundations.profile_ranges import profiled
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.problem import PairProblem
from flashgp.planner.products import STORED_ROWS

SUMMED_COLUMNS = 512  # of float64 products: sums of all n terms round more than products that are computed again


class StoredTiles:
    """K as float32 panels of rows, of a symmetric K from the diagonal on, (M-56); of `near` tiles these alone.

    Raises: MemoryBudgetError where the workspace has no room. Cost: n m evaluations, or half; a number for each.
    """

    def __init__(self, problem: PairProblem, backend: Backend, workspace: Workspace) -> None:
        self.shape, self.symmetric = problem.shape, problem.symmetric
        n, m = self.shape[-2:]
        batch = self.shape[:-2]
        step = STORED_ROWS
        ranges = [] if problem.near is None else problem.near.runs(m * step // problem.near.size)
        for start in range(0, n, step) if problem.near is None else ():
            i = slice(start, min(n, start + step))
            ranges.append((i, slice(start if self.symmetric else 0, m)))
        sizes = [batch.numel() * (i.stop - i.start) * (j.stop - j.start) for i, j in ranges]
        # One buffer: panels alone are below what a workspace counts.
        numbers = workspace.empty((sum(sizes),), torch.float32, problem.device)
        self.panels: list[tuple[slice, slice, Tensor]] = []
        for (i, j), part in zip(ranges, numbers.split(sizes) if sizes else (), strict=True):
            panel = problem.between(problem.rows.part(i.start, i.stop), problem.right.part(j.start, j.stop))
            tile = part.view(*batch, i.stop - i.start, j.stop - j.start)
            tile.copy_(backend.block(panel, dtype=torch.float32, workspace=workspace))
            self.panels.append((i, j, tile))

    @profiled("pairwise products")
    def __matmul__(self, right: Tensor) -> Tensor:
        """K @ right, (*batch, n, t), eq. (M-20), in right's dtype.

        Computed as right^T K^T: with few right-hand sides a matrix product is quicker with the panel on the right.
        Float64 sums are of at most SUMMED_COLUMNS terms each.
        """
        batch = broadcast_batch(self.shape[:-2], right.shape[:-2])
        given = right.mT.contiguous()
        out = right.new_zeros((*batch, right.shape[-1], self.shape[-2]))
        for i, j, tile in self.panels:
            values = tile.to(right.dtype)
            step = SUMMED_COLUMNS if right.dtype == torch.float64 else max(1, j.stop - j.start)
            for part, columns in zip(values.split(step, -1), given[..., j].split(step, -1), strict=True):
                out[..., i] += columns @ part.mT
            beyond = max(i.stop, j.start)  # the first column that also stands for its mirror image
            if self.symmetric and j.stop > beyond:
                out[..., beyond : j.stop] += given[..., i] @ values[..., beyond - j.start :]
        return out.mT.contiguous()
