"""What is left of blocks of rows given their neighbours, whitened: one part of block Vecchia, eq. (M-121)."""

from dataclasses import dataclass

import torch
from torch import Tensor

F64 = torch.float64
TINY = torch.finfo(F64).tiny


@dataclass(frozen=True, eq=False)
class Whitening:
    """Of s sets of w rows, of which the last b are the block.

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
    """Of the inverses of factors (s, w, w): (s, block, w)."""
    width = lower.shape[-1]
    own = torch.eye(width, dtype=F64, device=lower.device)[:, width - block :]
    return torch.linalg.solve_triangular(lower.mT, own.expand(len(lower), width, block), upper=True).mT
