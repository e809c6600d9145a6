"""The direct solver: Cholesky in place, jitter that is never silent, float64 refinement of a float32 factor.

The factor overwrites the matrix (one n x n buffer). If it fails, the matrix is built again with a jitter relative to
its mean diagonal, eq. (M-31); every attempt is recorded. A batch is factorised member by member: only the members that
failed get a jitter, and the others' bits do not change.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError
from flashgp.foundations.profile_ranges import profiled
from flashgp.solvers.contract import check_residual

JITTER_STEPS = (1.0, 10.0, 100.0)  # times n eps, the size of the factorisation's own rounding error


class TriangularFactor(Protocol):
    """Interface of a lower Cholesky factor L of K to inference, however it is stored.

    Fields: jitter, absolute, (*batch,); attempts, the relative jitters tried before the last; dtype, of its entries.
    """

    attempts: list[float]

    @property
    def jitter(self) -> Tensor: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def lower(self) -> Tensor:
        """L itself, (*batch, n, n), strict upper triangle zero; it may be put together for this call."""

    @property
    def log_determinant(self) -> Tensor: ...
    def solve(self, rhs: Tensor) -> Tensor: ...
    def half_solve(self, rhs: Tensor) -> Tensor: ...
    def back_solve(self, rhs: Tensor) -> Tensor: ...


@dataclass
class Factor:
    """A lower Cholesky factor.

    Fields: lower, (*batch, n, n), strict upper triangle zero, stored column by column; jitter, absolute, (*batch,);
    attempts, the relative jitters tried before the last; log_determinant, (*batch,), float64.
    """

    lower: Tensor
    jitter: Tensor
    attempts: list[float] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        return self.lower.dtype

    @property
    def log_determinant(self) -> Tensor:
        diagonal = self.lower.diagonal(dim1=-2, dim2=-1)
        return 2.0 * diagonal.double().log().sum(-1)

    @profiled("triangular solves")
    def solve(self, rhs: Tensor) -> Tensor:
        """K^-1 rhs for rhs (*batch, n, t), in the factor's dtype. Cost: 2 n^2 t flops, no copy of the factor.

        `torch.cholesky_solve` would copy it: a second n x n buffer that no plan announced.
        """
        return self.back_solve(self.half_solve(rhs))

    @profiled("triangular solves")
    def half_solve(self, rhs: Tensor) -> Tensor:
        """L^-1 rhs for rhs (*batch, n, t). Cost: n^2 t flops."""
        return _solved(self.lower, rhs, upper=False)

    @profiled("triangular solves")
    def back_solve(self, rhs: Tensor) -> Tensor:
        """L^-T rhs, as `half_solve`."""
        return _solved(self.lower.mT, rhs, upper=True)

    @profiled("factorisation")
    def inverse_(self) -> Tensor:
        """K^-1 in the factor's own memory; the factor must not be used afterwards. Cost: 2/3 n^3 flops."""
        return torch.cholesky_inverse(self.lower, out=self.lower)


def _solved(triangle: Tensor, rhs: Tensor, *, upper: bool) -> Tensor:
    """A^-1 rhs. One triangle takes a batch of right-hand sides at once: torch would copy it for each."""
    if triangle.dim() > 2 or rhs.dim() == 2:
        return torch.linalg.solve_triangular(triangle, rhs, upper=upper)
    beside = rhs.movedim(-2, 0)
    solved = torch.linalg.solve_triangular(triangle, beside.flatten(1), upper=upper)
    return solved.unflatten(1, beside.shape[1:]).movedim(0, -2)


@profiled("factorisation")
def factorise(
    build: Callable[[], Tensor],
    jitter: float | None = None,
    *,
    repair: Callable[[], bool] = lambda: True,
    rounding: Tensor | None = None,
    max_jitter: float = math.inf,
) -> Factor:
    """The Cholesky factor of the matrix that `build` makes, symmetric, shape (*batch, n, n), eq. (M-30).

    Args:
        build: makes the matrix; called again for every further attempt, since the factor overwrites it.
        jitter: None for the ladder n eps (1, 10, 100) after a failure, relative to the mean diagonal; a number is
            added from the start, relative likewise, and nothing more is tried.
        repair: says, after a failure, whether rounding may be blamed for it; if not, no jitter is tried.
        rounding: the absolute rounding error of the matrix, (*batch,), where its entries are differences of larger
            numbers; the ladder is then 1, 10, 100 times this. None for n eps times the mean diagonal.
        max_jitter: absolute, above which the ladder is not climbed: each step is another factorisation.
    Raises: NotPositiveDefiniteError with the smallest pivot, the jitters tried and the failing batch indices.
    Cost: n^3 / 3 flops per attempt, one n x n buffer.
    """
    if jitter is not None and not (math.isfinite(jitter) and jitter >= 0.0):
        raise DomainError(f"`jitter` must be a finite number >= 0, relative to the mean diagonal, got {jitter!r}")
    matrix = build()
    n, batch = matrix.shape[-1], matrix.shape[:-2]
    ladder = [0.0] if jitter is None else [jitter]
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(-1) if rounding is None else rounding
    unit = n * torch.finfo(matrix.dtype).eps if rounding is None else 1.0
    added = torch.zeros(batch, dtype=matrix.dtype, device=matrix.device)
    needed = torch.zeros(batch, dtype=torch.bool, device=matrix.device)
    repairable, refused = True, ""
    attempt = 0
    while True:
        if ladder[attempt]:
            now = ladder[attempt] * scale
            added = now if attempt == 0 else torch.where(needed, now, added)
            matrix.diagonal(dim1=-2, dim2=-1).add_(added.unsqueeze(-1))
        lower, info = _factor_in_place(matrix)
        if not bool(info.any()):
            return Factor(lower, added, ladder[1:] if jitter is None else [jitter])
        needed = info > 0  # a member that succeeded keeps its jitter; one that failed gets the next step
        if attempt == 0 and jitter is None:
            repairable = repair()
        attempt += 1
        if jitter is not None or not repairable or attempt > len(JITTER_STEPS):
            break
        step = JITTER_STEPS[attempt - 1] * unit
        if bool((step * scale > max_jitter).any()):
            wanted = float((step * scale).amax())
            refused = f"the next jitter, {wanted:.1e}, is above {max_jitter:.1e}, the most that may be added"
            break
        ladder.append(step)
        del matrix, lower  # before the next one is allocated
        matrix = build()
    raise _failure(lower, info, batch, ladder, repairable, n, refused)


@profiled("factorisation")
def factorise_keeping(
    matrix: Tensor,
    jitter: float | None = None,
    *,
    repair: Callable[[], bool] = lambda: True,
    rounding: Tensor | None = None,
) -> Factor:
    """`factorise` of a matrix that is kept, differentiable in it: the jitter is found on a detached copy first."""
    kept = matrix.detach()
    factor = factorise(
        lambda: kept.clone(memory_format=torch.contiguous_format), jitter, repair=repair, rounding=rounding
    )
    if not (torch.is_grad_enabled() and matrix.requires_grad):
        return factor
    lower = torch.linalg.cholesky(matrix + torch.diag_embed(factor.jitter.unsqueeze(-1).expand(matrix.shape[:-1])))
    return Factor(lower, factor.jitter, factor.attempts)


def _factor_in_place(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """LAPACK wants columns: the transpose of a symmetric matrix is itself, so its view is factorised in place."""
    if not matrix.mT.is_contiguous() and matrix.is_contiguous():
        matrix = matrix.mT
    info = torch.empty(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)
    torch.linalg.cholesky_ex(matrix, out=(matrix, info))
    return matrix, info


def _failure(
    lower: Tensor, info: Tensor, batch: torch.Size, ladder: list[float], repair: bool, n: int, refused: str
) -> NotPositiveDefiniteError:
    indices = [tuple(index) for index in info.nonzero().tolist()] if batch else []
    first = indices[0] if indices else ()
    column = int(info[first]) - 1
    pivot = float(lower[first][column, column])
    where = f" in batch member {', '.join(map(str, indices))}" if indices else ""
    if not repair:
        advice = "rows repeat with different targets and no noise: pass noise_variance > 0, or jitter="
    elif math.isnan(pivot):
        advice = "a covariance there is not a number: check the hyperparameters and the rows, rather than the noise"
    elif refused:
        advice = refused
    else:
        advice = "add noise, remove rows that repeat, or pass a larger jitter= (relative to the mean diagonal)"
    tried = ", ".join(f"{r:.1e}" for r in ladder if r) or "none"
    return NotPositiveDefiniteError(
        f"the covariance matrix ({n} x {n}) must be positive definite, but pivot {column}{where} is {pivot:.3g} "
        f"(relative jitters tried: {tried}); {advice}",
        smallest_pivot=pivot,
        jitters=[r for r in ladder if r],
        indices=indices,
    )


def refine(
    solve: Callable[[Tensor], Tensor],
    multiply: Callable[[Tensor], Tensor],
    rhs: Tensor,
    target: float,
    limit: int = 12,
) -> tuple[Tensor, float, int]:
    """Iterative refinement: a float32 solve corrected by float64 residuals, eq. (M-32).

    Args:
        solve: approximate K^-1 of a (*batch, n, t) tensor.
        multiply: K times it, in float64.
        rhs: (*batch, n, t), float64.
        target: relative residual to stop at.
        limit: corrections at most.
    Returns: solution, its relative residual |rhs - K a| / |rhs| (largest over columns) and the corrections made.
        It stops early when a correction no longer halves the residual, and returns the best so far.
    Raises: ConvergenceError as soon as a residual is not finite, naming row and column.
    Source: Higham (2002), Accuracy and Stability of Numerical Algorithms, section 12.1.
    """
    solution = solve(rhs)
    scale = rhs.norm(dim=-2).clamp_min(torch.finfo(rhs.dtype).tiny)
    residual = rhs - multiply(solution)
    check_residual("refinement", 0, residual)
    size = float((residual.norm(dim=-2) / scale).amax())
    for step in range(limit):
        if not size > target:
            return solution, size, step
        better = solution + solve(residual)
        residual_after = rhs - multiply(better)
        check_residual("refinement", step + 1, residual_after)
        size_after = float((residual_after.norm(dim=-2) / scale).amax())
        if not size_after < size:
            return solution, size, step
        stalled = size_after > 0.5 * size
        solution, residual, size = better, residual_after, size_after
        if stalled:
            return solution, size, step + 1
    return solution, size, limit
