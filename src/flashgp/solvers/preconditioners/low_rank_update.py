"""The preconditioner P = F F^T + D of other rows than it was made for: rows leave, and others come at their places.

A row that comes gets its F by the pivots there are, eq. (M-115), which keeps F F^T <= K: pivots are points, whether or
not they still are rows. Rows of which the pivots know much less than of the others become pivots. The half solves stay
those of LowRank, with an orthonormal basis that small matrices carry over, eq. (M-116); no n x k numbers are computed
but for new pivots. How orthonormal it is is measured, by products with a few columns.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.solvers.preconditioners.carried_basis import CarriedBasis
from flashgp.solvers.preconditioners.low_rank import LowRank, defect

__all__ = ["MOST_RANK_GROWTH", "carried"]

F64 = torch.float64
EPS = torch.finfo(F64).eps
LITTLE_KNOWN = 4.0  # times what the pivots leave of a row on average: beyond, it is an outlying eigenvalue of its own
MOST_RANK_GROWTH = 1.25  # of the columns that the preconditioner was made with
LOST_DIRECTION = 1e-8  # the share of a column of Q in the rows that stay, below which rounding is what would be scaled
DEFECT = 1e-6  # of Q^T Q - I after one change: a smaller share is given up as well where more would come of it
WORN = 1e-8  # of Q^T Q - I: beyond, a preconditioner is made anew before rows leave it
SHIFT = 10.0  # times b eps max diag(K), of a block of new pivots


def carried(
    old: LowRank,
    stay: Tensor,
    place: Tensor,
    fresh: Tensor,
    cross: Tensor,
    diagonal: Tensor,
    noise: Tensor,
    columns: Callable[[Tensor], Tensor],
    most: int,
) -> tuple[LowRank, Tensor] | None:
    """P of the rows there are now, eqs. (M-115) and (M-116).

    Args:
        stay: positions of rows that keep their noise, increasing, and place, where they stand now.
        fresh: positions of the other rows, (m,); cross: K of them with the pivots, (m, k); diagonal: K of each, (m,).
        noise: of all rows now, (n,); columns: K[:, index] of all rows now, (n, b), float64.
        most: columns that F may have.
    Returns: the preconditioner, and the positions that became pivots; None where rows leave a basis that is worn.
    Cost: some 30 k^3 flops and m k^2, four passes over the basis; n k q for q new pivots, and n q evaluations.
    """
    n, basis, inner = len(noise), old.basis, old.inner
    turn = torch.eye(inner.shape[0], dtype=F64, device=inner.device)
    some_go = len(stay) < basis.count
    off = EPS * defect(basis, turn) if some_go else 0.0
    if off > WORN:
        return None
    features = torch.linalg.solve_triangular(old.triangle, cross.mT, upper=False).mT  # F of new rows, (M-115)
    left = noise.new_empty(n)
    left[place] = old.left[stay]
    left[fresh] = (diagonal - features.square().sum(1)).clamp_min(0.0)
    floored = noise.new_empty(n)
    floored[place] = old.noise[stay]
    floored[fresh] = old.floored(noise[fresh], n)
    if some_go:  # Q[stay] is not orthonormal: Q[stay]^T Q[stay] = I - Q_g^T Q_g = U diag(s) U^T
        going = torch.ones(basis.count, dtype=torch.bool, device=stay.device)
        going[stay] = False
        lost = basis.taken(going.nonzero()[:, 0])
        left_over = turn - lost.mT @ lost
        values, vectors = linalg.eigh(left_over, device=linalg.own_device(left_over))
        kept = values > max(LOST_DIRECTION, off / DEFECT)
        root = values[kept].sqrt()
        turn, inner = vectors[:, kept] / root, (vectors[:, kept] * root).mT @ inner
    rows = inner.new_zeros(0, inner.shape[0])
    if len(fresh):
        stacked = torch.cat([inner, features / floored[fresh].sqrt().unsqueeze(-1)])
        outer, inner = linalg.qr(stacked, device=linalg.own_device(stacked))
        turn, rows = turn @ outer[: turn.shape[1]], outer[turn.shape[1] :]
    basis = basis.changed(stay, place, n, turn, fresh, rows)
    triangle = old.triangle
    pivots = _little_known(left, fresh, most - inner.shape[1])
    if len(pivots):
        own = features[torch.isin(fresh, pivots)]
        grown = _grown(old, basis, inner, floored.sqrt().unsqueeze(-1), columns(pivots), pivots, own)
        if grown is None:
            pivots = pivots[:0]
        else:
            basis, inner, lower, more = grown
            left = (left - more).clamp_min(0.0)
            left[pivots] = 0.0
            above = triangle.new_zeros(len(triangle), len(pivots))
            triangle = torch.cat([torch.cat([triangle, above], dim=1), torch.cat([own, lower], dim=1)])
    return old.moved(basis, inner, triangle, left, noise, floored), pivots


def _little_known(left: Tensor, fresh: Tensor, room: int) -> Tensor:
    """New rows, in their order, of which F F^T leaves much more than of a row on average; at most `room` of them."""
    found = fresh[left[fresh] > LITTLE_KNOWN * left.mean()]
    most = left[found].argsort(descending=True)[: max(0, room)].sort().values
    return found[most]


def _grown(
    old: LowRank, basis: CarriedBasis, inner: Tensor, deviation: Tensor, columns: Tensor, pivots: Tensor, own: Tensor
) -> tuple[CarriedBasis, Tensor, Tensor, Tensor] | None:
    """(Q, R, the corner of T, what the new columns of F take of each row) with the pivots; None where rounding is all
    that is left of their block."""
    rest = columns - deviation * (basis @ (inner @ own.mT))
    corner = rest[pivots]
    unit = max(len(pivots) * EPS * old.mean_diagonal, torch.finfo(F64).tiny)
    lower, info = torch.linalg.cholesky_ex(
        0.5 * (corner + corner.mT) + SHIFT * unit * torch.eye(len(pivots), dtype=F64, device=corner.device)
    )
    if int(info):
        return None
    more = torch.linalg.solve_triangular(lower, rest.mT, upper=False).mT
    outside = more / deviation
    inside = basis.mT @ outside
    outside = outside - basis @ inside  # once is enough: much is left where little was known
    X, corner = linalg.qr(outside, device=linalg.own_device(outside))
    below = corner.new_zeros(len(corner), inner.shape[1])
    inner = torch.cat([torch.cat([inner, inside], dim=1), torch.cat([below, corner], dim=1)])
    return basis.beside(X), inner, lower, more.square().sum(1)
