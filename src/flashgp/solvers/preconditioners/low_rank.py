"""The low-rank preconditioner P = F F^T + diag(noise), made of a partial Cholesky factor F, eqs. (M-78) and (M-79).

F F^T <= K makes P a lower bound of A and sqrt(r^T P^-1 r) a bound of the error, eq. (M-76). It does not look at the
spectrum of A, only at the trace that F leaves.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.profile_ranges import profiled
from flashgp.solvers.preconditioners.pivoted_cholesky import PartialCholesky
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.settings import DEFAULTS, LowRankSettings
from flashgp.solvers.space import Space

WIDTH = 4  # of more columns than that: zeros fill them up to a multiple, since the kernels of BLAS are for blocks


def tall_times(Q: Tensor, u: Tensor) -> Tensor:
    """Q u, (n, t), for Q (n, k) and u (k, t). Cost: 2 n k t flops."""
    return (_rows(u) @ Q.mT).mT[:, : u.shape[1]]


def tall_transposed_times(Q: Tensor, v: Tensor) -> Tensor:
    """Q^T v, (k, t), for Q (n, k) and v (n, t). Cost: 2 n k t flops."""
    return (_rows(v) @ Q).mT[:, : v.shape[1]]


def _rows(v: Tensor) -> Tensor:
    """v^T, contiguous, with zeros up to a full width."""
    t = v.shape[1]
    width = t if t < WIDTH else -(-t // WIDTH) * WIDTH
    if width == t:
        return v.mT.contiguous()
    rows = v.new_zeros(width, v.shape[0])
    rows[:t] = v.mT
    return rows


F64 = torch.float64
EPS = torch.finfo(F64).eps


class LowRank(Preconditioner):
    """P = F F^T + D with D = diag(noise), at least a floor, eqs. (M-78) and (M-79).

    With D^-1/2 F = Q R everything is done in the orthonormal Q and k x k matrices, so that what P^-1 takes away from v
    keeps its digits where the noise is 1e-12 of the variance; the usual Cholesky factor of I + F^T D^-1 F has the
    square of that condition number. Where F^T D^-1 F = V S^2 V^T has the digits for that, Q = D^-1/2 F V S^-1, which is
    applied as it stands; else Q is made by Householder.

    The floor: rows whose noise is below n eps of the mean diagonal get that, or the mean of the diagonal left if it is
    larger. In P only: A stays as it is, and `slack` says what of the order P <= A remains (inf where noise is 0).

    Args: partial: F; noise: (n,), float64.
    Fields: rank; trace, of K - F F^T; slack; noise, D; mean_diagonal, of K; basis Q (n, k);
    inner R (k, k); skew, how many times EPS the columns of Q of the largest singular values may be in others: 1 by
    Householder.
    Cost: 2 n k^2 flops and F itself (uniform noise), or another n x k buffer; by Householder 4 n k^2 and two more such
        buffers while it is made, one kept; a half solve 4 n k t flops, or 8 n k t where digits would be lost.
    """

    exact = True

    @profiled("factorisation")
    def __init__(self, partial: PartialCholesky, noise: Tensor, settings: LowRankSettings = DEFAULTS.low_rank) -> None:
        self.space, self.settings = partial.space, settings
        self.rank, self.trace, self.mean_diagonal = partial.rank, partial.trace, partial.mean_diagonal
        self._set_noise(noise)
        decomposed = _decomposed(partial.factor, self._deviation, self.space, settings)
        self._base, self._turn, self.inner = decomposed.base, decomposed.turn, decomposed.inner
        self._rotation, self._singular = decomposed.rotation, decomposed.singular
        self.skew = decomposed.skew
        self._update_eigenvalues()

    def with_noise(self, partial: PartialCholesky, noise: Tensor) -> "LowRank":
        """The preconditioner of this F with another D: where both are multiples of the identity, Q and the directions
        of R stay, and nothing is decomposed again."""
        other = copy.copy(self)
        other._set_noise(noise)
        if not (_is_uniform(self.noise, self.space) and _is_uniform(other.noise, self.space)):
            return LowRank(partial, noise, self.settings)
        ratio = self.space.max(self._deviation) / self.space.max(other._deviation) if self.space.count(noise) else 1.0
        other.inner, other._singular = self.inner * ratio, self._singular * ratio
        other._update_eigenvalues()
        return other

    def _set_noise(self, noise: Tensor) -> None:
        smallest = max(self.space.count(noise) * EPS * self.mean_diagonal, torch.finfo(F64).tiny)
        rest = max(smallest, self.trace / max(self.space.count(noise), 1))
        self.noise = torch.where(noise >= smallest, noise, rest)
        self.slack = float(self.space.max(self.noise / noise)) if self.space.count(noise) else 1.0
        self._deviation = self.noise.sqrt().unsqueeze(-1)

    def _update_eigenvalues(self) -> None:
        self._eigenvalues = 1.0 + self._singular.square()
        self._largest = float(self._eigenvalues.max()) if self._eigenvalues.numel() else 1.0

    def factor(self) -> Tensor:
        """F, (n, k), row by row in memory of its own. Cost: 8 n k bytes, and 2 n k^2 flops by Householder."""
        if self._turn is None:
            return (self._base @ self.inner).mul_(self._deviation)
        factor = self._base.clone(memory_format=torch.contiguous_format)
        return factor if _is_uniform(self.noise, self.space) else factor.mul_(self._deviation)

    @property
    def _twice(self) -> bool:
        """True if what lies in Q is taken out twice."""
        return self._largest * EPS * self.skew > self.settings.lost

    @property
    def basis(self) -> Tensor:
        """Q of D^-1/2 F = Q R, (n, k)."""
        return self._base if self._turn is None else self._base @ self._turn

    def solve(self, v: Tensor) -> Tensor:
        return self._power(v / self._deviation, 1.0) / self._deviation

    def half_solve(self, v: Tensor) -> Tensor:
        return self._power(v / self._deviation, 0.5)

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return self._power(v, 0.5) / self._deviation

    @property
    def log_determinant(self) -> float:
        """log |P|, eq. (M-78)."""
        return float(self.space.sum(self.noise.log()) + self._eigenvalues.log().sum())

    def sample(self, generator: torch.Generator, count: int) -> Tensor:
        """(n, count) columns from N(0, P), eq. (M-78)."""
        draws = torch.randn(self.rank + self.space.count(self.noise), count, generator=generator, dtype=F64)
        draws = draws.to(self.noise.device)
        independent = self.space.local(draws[self.rank :])
        return self._deviation * (self._outside(self.inner @ draws[: self.rank]) + independent)

    def _power(self, v: Tensor, power: float) -> Tensor:
        """(I + Q R R^T Q^T)^-power v: what lies in Q shrinks, the rest stays, eq. (M-78)."""
        inside = self._inside(v)
        turned = inside if self._rotation is None else self._rotation.mT @ inside
        shrunk = turned / self._eigenvalues.pow(power).unsqueeze(-1)
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
        inside = self.space.total(tall_transposed_times(self._base, v))
        return inside if self._turn is None else self._turn.mT @ inside

    def _outside(self, u: Tensor) -> Tensor:
        """Q u."""
        return tall_times(self._base, u if self._turn is None else self._turn @ u)


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


def _decomposed(factor: Tensor, deviation: Tensor, space: Space, settings: LowRankSettings) -> Decomposed:
    """Decomposition of F (n, k) and the roots of D, (n, 1)."""
    count = space.count(factor)
    if is_deterministic() or count * factor.shape[1] ** 2 < max(1, settings.min_gram_flops):
        return _by_householder(factor, deviation, space)
    if _is_uniform(deviation, space):
        scaled, unit = factor, float(space.max(deviation))
    else:
        scaled, unit = factor / deviation, 1.0
    sizes = space.total(torch.einsum("nk,nk->k", scaled, scaled))  # between the least and the largest eigenvalue
    if EPS * float(sizes.max()) > settings.max_defect * float(sizes.min()):
        return _by_householder(factor, deviation, space)
    gram = space.inner(scaled, scaled) / unit**2
    try:
        squares, vectors = space.eigh(gram)
    except ConvergenceError:
        return _by_householder(factor, deviation, space)
    smallest, largest = float(squares[0]), float(squares[-1])
    if not (smallest > torch.finfo(F64).tiny / EPS and EPS * largest <= settings.max_defect * smallest):
        return _by_householder(factor, deviation, space)
    singular = squares.sqrt()
    inner = singular.unsqueeze(-1) * vectors.mT
    return Decomposed(scaled, vectors / (unit * singular), inner, None, singular, math.sqrt(largest / smallest))


def _by_householder(factor: Tensor, deviation: Tensor, space: Space) -> Decomposed:
    """The decomposition for any condition number. Cost: 4 n k^2 flops, at the speed of LAPACK."""
    basis, inner = space.qr(factor / deviation)
    rotation, singular, _ = torch.linalg.svd(inner)  # of one place, as Q and R are
    return Decomposed(basis, None, inner, space.agreed(rotation), space.agreed(singular))


def _is_uniform(values: Tensor, space: Space) -> bool:
    """True if all values of all rows are equal."""
    return space.count(values) == 0 or bool((space.max(values) == -space.max(-values)).all())
