"""The matrix of inference in weight space, its solves and its log determinant, eq. (M-432).

    B = I + W T W,   W = diag(sqrt c),   T = E* S^-1 E,   log|K~ + S| = log|S| + log|B|

Few frequencies take a Cholesky factor. More take conjugate gradients, preconditioned by a factor of the lowest
frequencies and the diagonal of the others: what gaps and edges of the rows make of T is in the lowest. The log
determinant is then estimated by Lanczos quadrature of some solves, from vectors that stay the same.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.inference.fourier.domain_basis import DomainBasis
from flashgp.inference.fourier.grid import C128, Gram, Grid, Toeplitz
from flashgp.inference.fourier.grids import Series, basis_domain, coordinates_of
from flashgp.inference.fourier.real_basis import RealBasis
from flashgp.solvers.iterative.lanczos import log_of_tridiagonal

F64 = torch.float64
PROBED_SEED = 2**35  # added to a seed for the vectors of log determinants


@dataclass(frozen=True)
class SolveSettings:
    """Fields: dense, frequencies up to which there is a factor; block, that a preconditioner factorises at most, and
    one in `share` of all; most_iterations of a solve, and most_probed of those of a log determinant, whose slowest
    directions are few; probes, the fewest, and most_probes of a log
    determinant, as many as probed_numbers of frequencies allow; probed_error and variance_error, relative errors of its
    solves and of those of variances, which err by their squares; batch_numbers, complex ones of vectors solved at
    once; function_points, from which variances by a factor are one function, whose making takes as long as these."""

    dense: int = 2500
    block: int = 1500
    share: int = 8
    most_iterations: int = 4000
    most_probed: int = 250
    probes: int = 8
    most_probes: int = 64
    probed_numbers: int = 2**16
    probed_error: float = 1e-2
    variance_error: float = 1e-2
    batch_numbers: int = 2**23
    function_points: int = 2000

    def probes_of(self, frequencies: int) -> int:
        return min(self.most_probes, max(self.probes, self.probed_numbers // max(1, frequencies)))


@dataclass(frozen=True)
class Solution:
    """Fields: value, (k, *shape); error, |b - B value|, (k,), which bounds |B^-1 b - value|_B; iterations;
    tridiagonal, (alpha, beta) of the Lanczos process of each, (iterations, k) each, where asked for."""

    value: Tensor
    error: Tensor
    iterations: int
    tridiagonal: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, eq=False)
class WeightSystem:
    """B. Fields: spectrum, c of the grid's shape; gram, T; settings; deadline, which ends solves."""

    spectrum: Tensor
    gram: Gram
    settings: SolveSettings = field(default_factory=SolveSettings)
    deadline: Deadline = NO_DEADLINE

    @property
    def grid(self) -> Series:
        return self.gram.grid

    @property
    def toeplitz(self) -> Toeplitz:
        """T of one grid."""
        assert isinstance(self.gram, Toeplitz)
        return self.gram

    @cached_property
    def root(self) -> Tensor:
        """W, the square roots of the spectrum."""
        return self.spectrum.sqrt()

    @cached_property
    def diagonal(self) -> Tensor:
        """diag B."""
        return 1.0 + self.spectrum * self.gram.diagonal

    @property
    def dense(self) -> bool:
        """Whether there is a factor."""
        return bool(coordinates_of(self.grid, self.settings.dense))

    def __call__(self, vectors: Tensor) -> Tensor:
        """B v of (k, *shape)."""
        return vectors + self.root * self.gram(self.root * vectors)

    @property
    def kept(self) -> "WeightSystem":
        """The system, with what it has made, whose solves no longer end with the call that made it."""
        found = copy.copy(self)
        object.__setattr__(found, "deadline", NO_DEADLINE)
        return found

    # -- by a factor -----------------------------------------------------------------------------------------------
    @cached_property
    def basis(self) -> RealBasis | DomainBasis:
        """Of what there is a factor of: all that rows tell of, or the lowest frequencies."""
        settings, size = self.settings, self.grid.size
        domain = basis_domain(self.grid, settings.dense)
        if domain is not None:
            return DomainBasis(domain, self.root)
        assert isinstance(self.grid, Grid)
        return RealBasis.leading(
            self.grid, settings.dense if self.dense else min(settings.block, size // settings.share)
        )

    @cached_property
    def factor(self) -> Tensor:
        """Lower Cholesky factor of B in the basis."""
        known = "matrix" in self.__dict__
        return torch.linalg.cholesky(self.matrix if known else self.basis.matrix(self.gram, self.root))

    @cached_property
    def matrix(self) -> Tensor:
        """B in the basis, kept where it is asked for."""
        return self.basis.matrix(self.gram, self.root)

    @property
    def log_of_factor(self) -> float:
        """log|B| in the basis."""
        return 2.0 * float(self.factor.diagonal().log().sum())

    def solve(self, b: Tensor, goal: float, share: float = 0.0) -> Solution:
        """B^-1 b of (k, *shape). Args: goal, of errors in the norm of B; share, as `_by_iterations`. The
        deadline ends it, and the error says how far it came."""
        if not self.dense:
            size = max(1, self.settings.batch_numbers // self.spectrum.numel())
            parts = [self._by_iterations(part, goal, share) for part in b.split(size)]
            value, error = (torch.cat([getattr(part, name) for part in parts]) for name in ("value", "error"))
            iterations = max((part.iterations for part in parts), default=0)
            return Solution(value, error, iterations)
        found = torch.cholesky_solve(self.basis.coordinates(b).mT, self.factor).mT
        return Solution(self.basis.put(torch.empty_like(b), found), torch.zeros(len(b), dtype=F64), 0)

    def solve_anywhere(self, b: Tensor) -> Tensor:
        """B^-1 b of (k, *shape) that need not be of functions where rows lie."""
        found = self.solve(b, 0.0, 1e-6).value
        return found + self.basis.outside(b) if isinstance(self.basis, DomainBasis) else found

    def inverse_root(self, normal: Tensor) -> Tensor:
        """L^-T of normal vectors (k, *shape), where there is a factor: draws of N(0, B^-1)."""
        coordinates = self.basis.coordinates(normal)
        found = torch.linalg.solve_triangular(self.factor.mT, coordinates.mT, upper=True).mT
        return self.basis.put(torch.empty_like(normal), found)

    @cached_property
    def _block_inverse(self) -> Tensor:
        return torch.cholesky_inverse(self.factor)

    @cached_property
    def variance_coefficients(self) -> Tensor:
        """Coefficients of phi(x)* B^-1 phi(x) as a function, where there is a factor, of twice the orders, (M-448)."""
        basis, toeplitz, grid = self.basis, self.toeplitz, self.toeplitz.grid
        if isinstance(basis, DomainBasis) and grid.d > 1:
            of_points = self._whitened
            return basis.domain.lags(of_points.mT @ of_points)
        size, total = basis.size, torch.zeros(toeplitz.padded, dtype=F64)
        columns = torch.linalg.solve_triangular(self.factor, torch.eye(size, dtype=F64), upper=False)
        for some in columns.split(max(1, self.settings.batch_numbers // total.numel())):
            functions = basis.put(some.new_empty(len(some), *grid.shape, dtype=C128), some)
            total += toeplitz.values(self.root * functions).square().sum(0)
        return toeplitz.coefficients(total)

    @cached_property
    def _whitened(self) -> Tensor:
        """L^-1 R', where points are told by functions of the coordinates, (size, size)."""
        assert isinstance(self.basis, DomainBasis)
        return self.basis.whitened(self.factor)

    def precondition(self, vectors: Tensor) -> Tensor:
        """P^-1 of (k, *shape)."""
        found = vectors / self.diagonal
        return self.basis.put(found, self.basis.coordinates(vectors) @ self._block_inverse)

    # -- by conjugate gradients ------------------------------------------------------------------------------------
    def _by_iterations(self, b: Tensor, goal: float, share: float = 0.0, most: int | None = None) -> Solution:
        """Preconditioned conjugate gradients, until |b - B x| <= goal, which bounds the error as B >= I, (M-434); or,
        for draws, until |P^-1/2 (b - B x)|, which is near the error, has fallen to a share."""
        dot, shape = self.grid.dot, (-1, *(1,) * len(self.grid.shape))
        x, r = torch.zeros_like(b), b.clone()
        z = self.precondition(r)
        p, rz = z.clone(), dot(r, z)
        alphas, betas, enough = list[Tensor](), list[Tensor](), share**2 * rz
        iteration = 0
        while True:
            error = dot(r, r).sqrt()
            ended = bool(((error <= goal) | (rz <= enough)).all()) or self.deadline.passed()
            if ended or iteration == (most or self.settings.most_iterations):
                found = (torch.stack(alphas), torch.stack(betas)) if most and alphas else None
                return Solution(x, error, iteration, tridiagonal=found)
            q = self(p)
            step = torch.where(rz > 0, rz / dot(p, q), 0.0)
            x.add_(step.view(shape) * p)
            r.sub_(step.view(shape) * q)
            z = self.precondition(r)
            rz, before = dot(r, z), rz
            ratio = torch.where(before > 0, rz / before, 0.0)
            p = z + ratio.view(shape) * p
            alphas.append(step)
            betas.append(ratio)
            iteration += 1

    # -- the log determinant ---------------------------------------------------------------------------------------
    def log_determinant(self, seed: int, others: Sequence[Gram] = ()) -> tuple[float, Tensor, list[float]]:
        """log|B|, (B^-1 (B - I))_jj = c_j d log|B| / d c_j, of the grid's shape, and tr(B^-1 W T W) of other T;
        estimated where there is no factor, (M-433)."""
        grid, settings = self.grid, self.settings
        logs = self.log_of_factor
        if self.dense:
            inverse, traces = self._block_inverse, list[float]()
            for other in others:
                matrix = self.basis.matrix(other, self.root)
                matrix.diagonal().sub_(1.0)
                traces.append(float((inverse * matrix).sum()))
            return logs, self.basis.powers(torch.eye(self.basis.size, dtype=F64) - inverse), traces
        assert isinstance(grid, Grid)
        generator = torch.Generator().manual_seed(seed + PROBED_SEED)
        signs = grid.signs(settings.probes_of(grid.size), generator)
        z = self.diagonal.sqrt() * signs
        z = self.basis.put(z, self.basis.coordinates(signs) @ self.factor.mT)
        u = self.precondition(z)
        found = self._by_iterations(z, 0.0, settings.probed_error, settings.most_probed)
        outside = self.diagonal.log().to(C128).unsqueeze(0)
        outside = self.basis.put(outside, torch.zeros(1, self.basis.size, dtype=F64))[0].real
        logs += float(grid.total(outside))
        if found.tridiagonal is not None:
            logs += grid.size * float(_quadrature(*found.tridiagonal).mean())
        v = found.value
        products = torch.conj(v) * (self(u) - u) + torch.conj(u) * (z - v)
        traces = [float(grid.dot(v, self.root * other(self.root * u)).mean()) for other in others]
        return logs, 0.5 * products.real.mean(0), traces

    def trace(self, other: "WeightSystem") -> float:
        """tr(B^-1 B') less the number of coordinates, B' of another T, where there is a factor."""
        return float((self._block_inverse * other.matrix).sum()) - self.basis.size

    def inverse_variance_at(self, x: Tensor, part: Tensor | None = None) -> Tensor:
        """phi* B^-1 phi of the waves phi of points (n, columns), times W and, of a term, its part, (n,); with a factor
        one transform of many points, (M-448), or of several grids functions at them, (M-426)."""
        grid, basis, width = self.grid, self.basis, self.spectrum.numel()
        parts, root = [x.new_zeros(0, dtype=F64)], self.root if part is None else part * self.root
        if part is None and not isinstance(grid, Grid):
            whitened = self._whitened.mT
            blocks = x.split(max(1, self.settings.batch_numbers // len(whitened)))
            return torch.cat([(grid.domains.at(some) @ whitened).square().sum(1) for some in blocks])
        known = "variance_coefficients" in self.__dict__ or len(x) >= self.settings.function_points
        if self.dense and part is None and known and isinstance(grid, Grid):
            found = grid.doubled.forward(x, self.variance_coefficients.unsqueeze(0))[0]
            return found.clamp_min(0.0)
        for some in x.split(max(1, self.settings.batch_numbers // width // (8 if self.dense else 1))):
            phi = root * grid.waves(some)
            if self.dense:
                inside = basis.coordinates(phi)
                value = torch.linalg.solve_triangular(self.factor, inside.mT, upper=False).square().sum(0)
                if isinstance(basis, DomainBasis):
                    value += (grid.dot(phi, phi) - inside.square().sum(1)).clamp_min(0.0)
                parts.append(value)
            else:
                parts.append(grid.dot(phi, self._by_iterations(phi, 0.0, self.settings.variance_error).value))
        return torch.cat(parts)


def _quadrature(alphas: Tensor, betas: Tensor) -> Tensor:
    """e_1' log(T) e_1 of the tridiagonal matrices of conjugate gradients, (k,).

    Source: Golub & Meurant (2010), Matrices, moments and quadrature; Ubaru, Chen & Saad (2017).
    """
    found = []
    for alpha, beta in zip(alphas.unbind(1), betas.unbind(1), strict=True):
        count = int((alpha > 0).sum())  # later steps are of vectors that are solved
        a, b = alpha[:count], beta[: max(0, count - 1)]
        diagonal = 1.0 / a
        diagonal[1:] += b / a[:-1]
        found.append(log_of_tridiagonal(diagonal.unsqueeze(1), (b.sqrt() / a[:-1]).unsqueeze(1)))
    return torch.cat(found)
