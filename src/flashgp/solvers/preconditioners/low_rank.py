"""Randomly pivoted partial Cholesky K ~ F F^T, and the preconditioner P = F F^T + diag(noise) made of it.

Pivots are drawn with probability proportional to what of the diagonal is left, which follows a decaying spectrum and
is not misled by outliers as the greedy choice is. Columns and factor are float64: in exact arithmetic F F^T <= K, which
makes P a lower bound of A and sqrt(r^T P^-1 r) a bound of the error, eq. (M-76); float32 columns would break the order
by their rounding, which is larger than small noise. It does not look at the spectrum of A, only at the trace left.
Sources: Chen, Epperly, Tropp & Webber (2023), Randomly pivoted Cholesky, algorithm 2.1; Epperly, Tropp & Webber (2024),
Embrace rejection, for the blocks.
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import ConvergenceError, DomainError, NotPositiveDefiniteError
from flashgp.foundations.profile_ranges import stretched
from flashgp.solvers.iterative.contract import System
from flashgp.solvers.preconditioners.carried_basis import CarriedBasis
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.preconditioners.tall_products import tall_times, tall_transposed_times

__all__ = ["LowRank", "PartialCholesky", "by_householder", "defect", "partial_cholesky"]

F64 = torch.float64
EPS = torch.finfo(F64).eps
BLOCK = 128  # pivots proposed at once: the b x b rejection loop stays below the cost of their columns
FULL = 0.9  # of the rows of a buffer from which it is kept as it is
STALL = 2.0  # a column of the identity removes 1 / (n - k) of the trace; less than twice that is no decay
SHIFTS = (1.0, 10.0, 100.0, 1000.0)  # times b eps max diag(K), of a block of pivots
LOST = 1e-6  # relative: where rounding of Q Q^T v may reach this share of P^-1 v, it is taken out twice
ORTHONORMAL = 1e-11  # of Q^T Q - I: up to here Q is made of F^T D^-1 F, at the speed of products, else by Householder
PROBES = 4  # that measure how orthonormal a basis is
LEAST_FLOPS = 2**27  # n k^2 from which that is worth it; by Householder bits are the same from run to run

EndReason = Literal["trace", "limit", "stalled", "exhausted", "given"]


@dataclass(frozen=True)
class PartialCholesky:
    """K ~ F F^T, with F F^T <= K up to rounding.

    Fields: factor F (n, k), float64; pivots (k,), int64; left (n,), the diagonal of K - F F^T; ended, why it has k
    columns: the trace left is small enough, the limit, no decay, nothing above rounding left, or pivots were given;
    mean_diagonal, of K; triangle T (k, k), lower, with F^T = T^-1 K_p,: for any row, eq. (M-115).
    """

    factor: Tensor
    pivots: Tensor
    left: Tensor
    mean_diagonal: float
    ended: EndReason
    triangle: Tensor

    @property
    def rank(self) -> int:
        return self.factor.shape[1]

    @property
    def trace(self) -> float:
        """tr(K - F F^T)."""
        return float(self.left.sum())


@stretched("factorisation")
def partial_cholesky(
    system: System, *, limit: int, share: float = 0.1, seed: int = 0, pivots: Tensor | None = None
) -> PartialCholesky:
    """F with K ~ F F^T by random pivots, eq. (M-77).

    Args:
        limit: most columns; as many are allocated, so the caller decides by memory.
        share: columns are added until tr(K - F F^T) <= share sum(noise), or until they no longer pay: less is gained
            per column than twice what a column of an identity matrix would bring.
        seed: of the draws. pivots: take these instead, (k,), distinct; F is then a smooth function of K.
    Raises: DomainError for a limit or share below 0; NotPositiveDefiniteError if K is not at the pivots.
    Cost: n k evaluations in float64, n k^2 flops, 8 n limit bytes; another 8 n k at its end if k < FULL limit.
    """
    if limit < 0 or not share >= 0.0:
        raise DomainError(f"`limit` and `share` must be at least 0, got {limit} and {share}; pass a rank and a share")
    if pivots is None:
        return _drawn(system, min(limit, system.count), share, seed)
    growing = _Growing(system, len(pivots))
    for part in pivots.split(BLOCK):
        growing.append(part)
    return growing.finished("given")


def _drawn(system: System, limit: int, share: float, seed: int) -> PartialCholesky:
    n = system.count
    growing = _Growing(system, limit)
    generator = torch.Generator().manual_seed(seed)
    enough = share * float(system.noise.sum())
    trace = growing.trace
    while True:
        if trace <= enough:
            return growing.finished("trace")
        if growing.rank == limit:
            return growing.finished("limit")
        accepted = growing.accepted(min(BLOCK, limit - growing.rank), generator)
        if not len(accepted):
            return growing.finished("exhausted")
        before = growing.rank
        growing.append(accepted)
        last, trace = trace, growing.trace
        gained = math.log(last / trace) if trace > 0.0 else math.inf
        if trace > enough and gained * (n - before) < STALL * len(accepted):
            return growing.finished("stalled")


class _Growing:
    """F^T, row by row, in one buffer of the largest size."""

    def __init__(self, system: System, limit: int) -> None:
        self.system = system
        self.rows = system.workspace.empty((limit, system.count), F64, system.device)
        self.left = system.diagonal().clone()
        self.largest = float(self.left.max()) if system.count else 0.0
        self.mean = float(self.left.mean()) if system.count else 0.0
        self.floor = system.count * EPS * self.largest  # of a diagonal entry that is more than rounding
        self.pivots: list[Tensor] = []
        self.corners: list[Tensor] = []  # the rows of T, of each block of pivots
        self.rank = 0

    @property
    def trace(self) -> float:
        return float(self.left.sum())

    def accepted(self, count: int, generator: torch.Generator) -> Tensor:
        """Pivots with the distribution of drawing them one after the other: proposals and rejection, (M-77)."""
        weight = torch.where(self.left > self.floor, self.left, 0.0).cumsum(0)
        total = float(weight[-1]) if len(weight) else 0.0
        draws = torch.rand(2, count, generator=generator, dtype=F64).to(weight.device)
        if not total > 0.0:
            return torch.empty(0, dtype=torch.int64, device=weight.device)
        proposals = torch.searchsorted(weight, draws[0] * total, right=True).clamp_(max=len(weight) - 1)
        part = self.rows[: self.rank, proposals]
        block = self.system.block(proposals, F64) - part.mT @ part
        least = (draws[1] * self.left[proposals]).clamp_min(self.floor)
        chosen = []
        for i in range(count):
            pivot = float(block[i, i])
            if pivot > float(least[i]):
                chosen.append(i)
                column = block[:, i] / math.sqrt(pivot)
                block = block.addr_(column, column, alpha=-1.0)
        return proposals[chosen]

    def append(self, index: Tensor) -> None:
        """The columns of these pivots. A shift of their block keeps F F^T <= K, since (H + c I)^-1 <= H^-1."""
        known, added = self.rows[: self.rank], self.rows[self.rank : self.rank + len(index)]
        torch.mm(known[:, index].mT, known, out=added)
        columns = torch.sub(self.system.columns(index, F64).mT, added, out=added)
        block = columns[:, index]
        block = 0.5 * (block + block.mT)
        unit = max(len(index) * EPS * self.largest, torch.finfo(F64).tiny)
        for shift in SHIFTS:
            lower, info = torch.linalg.cholesky_ex(block + shift * unit * torch.eye(len(index), dtype=F64).to(block))
            if not int(info):
                break
        else:
            raise NotPositiveDefiniteError(
                f"the covariance of {len(index)} pivots must be positive semidefinite, but its Cholesky factorisation "
                f"failed with shifts up to {SHIFTS[-1] * unit:.1e}; check that the covariance function is one",
                jitters=SHIFTS,
            )
        torch.linalg.solve_triangular(lower, columns, upper=False, out=added)
        self.left.sub_(torch.einsum("kn,kn->n", added, added)).clamp_min_(0.0)
        self.left[index] = 0.0
        self.pivots.append(index)
        self.corners.append(torch.cat([known[:, index].mT, lower], dim=1))
        self.rank += len(index)

    def finished(self, ended: EndReason) -> PartialCholesky:
        none = torch.empty(0, dtype=torch.int64, device=self.left.device)
        pivots = torch.cat([none, *self.pivots])
        triangle = torch.zeros(self.rank, self.rank, dtype=F64, device=self.left.device)
        place = 0
        for corner in self.corners:
            height, width = corner.shape
            triangle[place : place + height, :width] = corner
            place += height
        rows = self.rows[: self.rank]
        if self.rank < FULL * len(self.rows):  # what is not used must not live as long as the factor
            rows = rows.clone()
        return PartialCholesky(rows.mT, pivots, self.left, self.mean, ended, triangle)


class LowRank(Preconditioner):
    """P = F F^T + D with D = diag(noise), at least a floor, eqs. (M-78) and (M-79).

    With D^-1/2 F = Q R everything is done in the orthonormal Q and k x k matrices, so that what P^-1 takes away from v
    keeps its digits where the noise is 1e-12 of the variance; the usual Cholesky factor of I + F^T D^-1 F has the
    square of that condition number. Where F^T D^-1 F = V S^2 V^T has the digits for that, Q = D^-1/2 F V S^-1, which is
    applied as it stands; else Q is made by Householder.

    The floor: rows whose noise is below n eps of the mean diagonal get that, or the mean of the diagonal left if it is
    larger. In P only: A stays as it is, and `slack` says what of the order P <= A remains (inf where noise is 0).

    Args:
        partial: F; noise (n,), float64.
    Fields: rank; trace, of K - F F^T; slack; noise, D; pivots, positions of rows; triangle, left, mean_diagonal as in
    PartialCholesky; skew, how many times EPS the columns of Q of the largest singular values may be in others: 1 by
    Householder.
    Cost: 2 n k^2 flops and F itself (uniform noise), or another n x k buffer; by Householder 4 n k^2 and two more such
        buffers while it is made, one kept; a half solve 4 n k t flops, or 8 n k t where digits would be lost.
    """

    exact = True
    _base: "Tensor | CarriedBasis"

    @stretched("factorisation")
    def __init__(self, partial: PartialCholesky, noise: Tensor) -> None:
        self.rank, self.trace = partial.rank, partial.trace
        self.pivots, self.triangle, self.left = partial.pivots, partial.triangle, partial.left
        self.mean_diagonal = partial.mean_diagonal
        self._take(noise)
        made = _decomposed(partial.factor, self._deviation)
        self._base, self._turn, self._inner = made.base, made.turn, made.inner
        self._rotation, self._singular = made.rotation, made.singular
        self.skew = made.skew
        self._stretched()

    def with_noise(self, partial: PartialCholesky, noise: Tensor) -> "LowRank":
        """The same F with another D: where both are multiples of the identity, Q and the directions of R stay, and
        nothing is decomposed again."""
        other = copy.copy(self)
        other._take(noise)
        if not (_uniform(self.noise) and _uniform(other.noise)):
            return LowRank(partial, noise)
        ratio = self._deviation[:1, 0] / other._deviation[:1, 0] if len(noise) else 1.0
        other._inner, other._singular = self._inner * ratio, self._singular * ratio
        other._stretched()
        return other

    def _take(self, noise: Tensor) -> None:
        self._take_floored(noise, self.floored(noise, len(noise)))

    def _take_floored(self, noise: Tensor, floored: Tensor) -> None:
        self.noise = floored
        self.slack = float((self.noise / noise).max()) if len(noise) else 1.0
        self._deviation = self.noise.sqrt().unsqueeze(-1)

    def floored(self, noise: Tensor, n: int) -> Tensor:
        """D of some of n rows."""
        smallest = max(n * EPS * self.mean_diagonal, torch.finfo(F64).tiny)
        return torch.where(noise >= smallest, noise, max(smallest, self.trace / max(n, 1)))

    def _stretched(self) -> None:
        self._stretch = 1.0 + self._singular.square()
        self._largest = float(self._stretch.max()) if self._stretch.numel() else 1.0  # all may have left

    @property
    def _twice(self) -> bool:
        """Whether what lies in Q is taken out twice."""
        return self._largest * EPS * self.skew > LOST

    @property
    def basis(self) -> CarriedBasis:
        """Q of D^-1/2 F = Q R, (n, r)."""
        return self._base if isinstance(self._base, CarriedBasis) else CarriedBasis.of(self._base, self._turn)

    @property
    def inner(self) -> Tensor:
        """R, (r, k)."""
        return self._inner

    def moved(
        self,
        basis: CarriedBasis,
        inner: Tensor,
        triangle: Tensor,
        left: Tensor,
        noise: Tensor,
        floored: Tensor,
    ) -> "LowRank":
        """The same for other rows, of which everything is known; the pivots may be none of them, so none are named.

        What Q has in others of its columns is measured, by two passes over it.
        """
        other = copy.copy(self)
        other.rank, other.trace, other.left, other.triangle = inner.shape[1], float(left.sum()), left, triangle
        other.pivots = self.pivots[:0]
        other._take_floored(noise, floored)
        other._base, other._turn, other._inner = basis, None, inner
        other._rotation, other._singular, _ = torch.linalg.svd(inner, full_matrices=False)
        other._stretched()
        other.skew = max(1.0, defect(basis, other._rotation * (other._stretch / other._largest)))
        return other

    def solve(self, v: Tensor) -> Tensor:
        """P^-1 v for v (n, t), float64."""
        return self._power(v / self._deviation, 1.0) / self._deviation

    def half_solve(self, v: Tensor) -> Tensor:
        return self._power(v / self._deviation, 0.5)

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self._power(v, 0.5) / self._deviation

    @property
    def log_determinant(self) -> float:
        """log |P|, eq. (M-78)."""
        return float(self.noise.log().sum() + self._stretch.log().sum())

    def sample(self, generator: torch.Generator, count: int) -> Tensor:
        """(n, count) columns from N(0, P), eq. (M-78)."""
        draws = torch.randn(self.rank + len(self.noise), count, generator=generator, dtype=F64)
        draws = draws.to(self.noise.device)
        return self._deviation * (self._outside(self._inner @ draws[: self.rank]) + draws[self.rank :])

    def _power(self, v: Tensor, power: float) -> Tensor:
        """(I + Q R R^T Q^T)^-power v: what lies in Q shrinks, the rest stays, eq. (M-78)."""
        inside = self._inside(v)
        turned = inside if self._rotation is None else self._rotation.mT @ inside
        shrunk = turned / self._stretch.pow(power).unsqueeze(-1)
        if not self._twice:
            return v + self._outside(self._rotated(shrunk - turned))
        outside = v - self._outside(inside)
        again = self._inside(outside)  # rounding of what was taken out, which P^-1 must shrink
        return outside + self._outside(self._rotated(shrunk) - again)

    def _rotated(self, u: Tensor) -> Tensor:
        """U u."""
        return u if self._rotation is None else self._rotation @ u

    def _inside(self, v: Tensor) -> Tensor:
        """Q^T v."""
        base, turn = self._base, self._turn
        if isinstance(base, CarriedBasis):
            return base.mT @ v
        inside = tall_transposed_times(base, v)
        return inside if turn is None else turn.mT @ inside

    def _outside(self, u: Tensor) -> Tensor:
        """Q u."""
        base, turn = self._base, self._turn
        if isinstance(base, CarriedBasis):
            return base @ u
        return tall_times(base, u if turn is None else turn @ u)


@dataclass(frozen=True)
class Decomposed:
    """D^-1/2 F = Q R, Q = B T and R = U S V^T, eq. (M-78).

    Fields: base B (n, k); turn T and rotation U, (k, k), None for I; inner R (k, k); singular, the diagonal of S, (k,);
    skew of Q as in `LowRank`.
    """

    base: Tensor
    turn: Tensor | None
    inner: Tensor
    rotation: Tensor | None
    singular: Tensor
    skew: float = 1.0


def _decomposed(factor: Tensor, deviation: Tensor) -> Decomposed:
    """Of F (n, k) and the roots of D, (n, 1)."""
    if is_deterministic() or factor.shape[0] * factor.shape[1] ** 2 < max(1, LEAST_FLOPS):
        return by_householder(factor, deviation)
    if _uniform(deviation):
        scaled, unit = factor, float(deviation[0])
    else:
        scaled, unit = factor / deviation, 1.0
    sizes = torch.einsum("nk,nk->k", scaled, scaled)  # between the least and the largest eigenvalue
    if EPS * float(sizes.max()) > ORTHONORMAL * float(sizes.min()):
        return by_householder(factor, deviation)
    gram = scaled.mT @ scaled / unit**2
    try:
        squares, vectors = linalg.eigh(gram, device=linalg.own_device(gram))
    except ConvergenceError:
        return by_householder(factor, deviation)
    least, largest = float(squares[0]), float(squares[-1])
    if not (least > torch.finfo(F64).tiny / EPS and EPS * largest <= ORTHONORMAL * least):
        return by_householder(factor, deviation)
    singular = squares.sqrt()
    inner = singular.unsqueeze(-1) * vectors.mT
    return Decomposed(scaled, vectors / (unit * singular), inner, None, singular, math.sqrt(largest / least))


def by_householder(factor: Tensor, deviation: Tensor) -> Decomposed:
    """The same for any condition number. Cost: 4 n k^2 flops, at the speed of LAPACK."""
    scaled = factor / deviation
    basis, inner = linalg.qr(scaled, device=linalg.own_device(scaled))
    rotation, singular, _ = torch.linalg.svd(inner)
    return Decomposed(basis, None, inner, rotation, singular)


def defect(basis: CarriedBasis, directions: Tensor) -> float:
    """The Frobenius norm of (Q^T Q - I) V, V (r, p), in EPS: by Gaussian probes, whose mean square is its square.

    Cost: 16 n r flops, two passes over Q.
    """
    probes = torch.randn(directions.shape[1], PROBES, generator=torch.Generator().manual_seed(0), dtype=F64)
    v = directions @ probes.to(directions.device)
    found = float((basis.mT @ (basis @ v) - v).norm()) / (EPS * math.sqrt(PROBES))
    return found if math.isfinite(found) else math.inf


def _uniform(values: Tensor) -> bool:
    return len(values) == 0 or bool((values == values[0]).all())
