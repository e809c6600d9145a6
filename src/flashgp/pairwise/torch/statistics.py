"""Tiles of pair statistics in torch: squared distances that are exactly 0 for equal rows, products, matches.

A squared distance |u|^2 + |v|^2 - 2 u.v cancels; that form is used, in float64 and around a common centre, only
while its rounding bound (3 d + 4) eps max|phi - centre|^2, eq. (M-22), times the steepness of the profile is below the
dtype's budget, and values below the bound are set to 0. Otherwise, and for profiles whose slope is unbounded at zero
distance, direct differences.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.pairwise.program.slopes import steepness
from flashgp.pairwise.torch import opaque

DIRECT_COLUMNS, DIRECT_NUMBERS = 16, 4  # see `_are_few`
DISTANCE_BUDGET = {torch.float64: 1e-11, torch.float32: 1e-8}  # largest admitted error of q from cancellation
# Features whose squared distance from their centre, times eps, passes 1e-9 (1e-3 in float32) pull gradients back by
# differences: the difference of two sums, eq. (M-24), would be all rounding where the terms are far larger than it.
FAR_SQUARED = {
    torch.float64: 1e-9 / torch.finfo(torch.float64).eps,
    torch.float32: 1e-3 / torch.finfo(torch.float32).eps,
}


class TileStatistics:
    """Evaluates the statistics of a form between parts of two sets of rows.

    Args:
        form: the structure; rows, cols: what the points contribute, in the features' own dtype.
        dtype: the dtype of the tiles (distances are formed in float64 first where they could cancel).
        bounded_slope: per distance, whether an error of q stays small in g.
        theta: the parameters, which opaque statistics and the steepness of the profile depend on.
        direct_pairs: see TileSettings.
    """

    def __init__(
        self,
        form: Form,
        rows: Rows,
        cols: Rows,
        dtype: torch.dtype,
        bounded_slope: dict[int, bool],
        theta: Sequence[Tensor] = (),
        direct_pairs: int = 2**16,
    ) -> None:
        self.dtype = dtype
        self.makers: list[Callable[[slice, slice], Tensor]] = []
        pairs = rows.count * cols.count
        for index, kind in enumerate(form.statistics):
            left, right = rows.features[index], cols.features[index]
            if kind == "match":
                self.makers.append(self._match(left, right))
            elif kind == "product":
                self.makers.append(self._product(left, right))
            elif kind == "opaque":
                self.makers.append(opaque.tiles(form.opaque(index), theta, left, right, dtype))
            elif not bounded_slope[index] or _are_few(pairs, left.shape[-1], direct_pairs):
                self.makers.append(self._direct(left, right))
            else:
                self.makers.append(self._distance(left, right, steepness(form, theta).get(index, 1.0)))
        self.scalars = (rows.scalars, cols.scalars)

    def tile(self, i: slice, j: slice) -> tuple[list[Tensor], list[Tensor]]:
        """(statistics, row scalars) of the pairs i x j: (*batch, |i|, |j|), (*batch, |i|, 1) and (*batch, 1, |j|)."""
        statistics = [make(i, j) for make in self.makers]
        left, right = self.scalars
        scalars = [a[..., i].unsqueeze(-1).to(self.dtype) for a in left]
        scalars += [a[..., j].unsqueeze(-2).to(self.dtype) for a in right]
        return statistics, scalars

    def _match(self, left: Tensor, right: Tensor) -> Callable[[slice, slice], Tensor]:
        return lambda i, j: (left[..., i].unsqueeze(-1) == right[..., j].unsqueeze(-2)).to(self.dtype)

    def _product(self, left: Tensor, right: Tensor) -> Callable[[slice, slice], Tensor]:
        return lambda i, j: (left[..., i, :] @ right[..., j, :].mT).to(self.dtype)

    def _direct(self, left: Tensor, right: Tensor) -> Callable[[slice, slice], Tensor]:
        if left.shape[-1] == 1:
            return lambda i, j: (left[..., i, :] - right[..., j, :].mT).square_().to(self.dtype)

        def make(i: slice, j: slice) -> Tensor:
            distances = torch.cdist(left[..., i, :], right[..., j, :], compute_mode="donot_use_mm_for_euclid_dist")
            return distances.square_().to(self.dtype)

        return make

    def _distance(self, left: Tensor, right: Tensor, steep: float) -> Callable[[slice, slice], Tensor]:
        centre = left.mean(dim=-2, keepdim=True)
        u, v = (left - centre).double(), (right - centre).double()
        uu, vv = u.square().sum(-1, keepdim=True), v.square().sum(-1, keepdim=True)
        largest = torch.maximum(uu.amax(dim=(-2, -1)), vv.amax(dim=(-2, -1)))
        bound = (3 * left.shape[-1] + 4) * torch.finfo(torch.float64).eps * largest
        # Each member of a batch by its own bound: what one holds must not change the bits of another.
        far = ~(bound * steep <= DISTANCE_BUDGET[self.dtype])
        any_far = bool(far.any())
        if any_far and bool(far.all()):
            return self._direct(left, right)
        # [-2 u, |u|^2, 1] . [v, 1, |v|^2]: one matrix product gives q, eq. (M-22).
        first = torch.cat([u * -2.0, uu, torch.ones_like(uu)], dim=-1)
        second = torch.cat([v, torch.ones_like(vv), vv], dim=-1)
        least = bound.item() if bound.dim() == 0 else 0.0
        direct = None
        if any_far:
            direct = self._direct(*(side.expand(*far.shape, *side.shape[-2:])[far] for side in (left, right)))

        def make(i: slice, j: slice) -> Tensor:
            q = first[..., i, :] @ second[..., j, :].mT
            if bound.dim():
                q.masked_fill_(q <= bound[..., None, None], 0.0)
            else:
                torch.threshold_(q, least, 0.0)
            q = q.to(self.dtype)
            if direct is not None:
                q[far] = direct(i, j)
            return q

        return make


def _are_few(pairs: int, columns: int, most: int) -> bool:
    """True if direct differences take no longer than a matrix product: of so many pairs at most, of more than
    DIRECT_COLUMNS columns up to DIRECT_NUMBERS times as many numbers."""
    return pairs <= most and (columns <= DIRECT_COLUMNS or pairs * columns <= DIRECT_NUMBERS * most)
