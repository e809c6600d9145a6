"""qr, cholesky, eigh and solve_triangular: torch's, on the device where they are quicker.

Without an accelerator a call is torch's after one comparison. Arguments are checked only once torch has refused them.
Gradients pass through, batches and dtypes stay.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from flashgp.foundations.checks import check_finite, check_flag
from flashgp.foundations.errors import (
    ConvergenceError,
    DomainError,
    FlashGPError,
    NotPositiveDefiniteError,
    ShapeError,
)
from flashgp.foundations.profile_ranges import profiled

from .routing import run

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
MODES = ("reduced", "complete", "r")
_REFUSED = (RuntimeError, TypeError, AttributeError, IndexError)  # torch's errors; LinAlgError is a RuntimeError


@profiled("factorisation")
def qr(
    A: Inexact[Tensor, "*batch m n"], mode: str = "reduced", *, device: str = "auto", crossover: float | None = None
) -> Any:
    """A = Q R, as `torch.linalg.qr`, where it is quicker.

    Args:
        A: shape (*batch, m, n), float32 or float64.
        mode: "reduced", "complete" or "r" (Q is empty).
        device: "auto", or "cpu" or "cuda" to decide; results come back to A's device whatever it is.
        crossover: the order from which the accelerator is taken, of a matrix with other sides that of the square one
            with as many entries; measured if left out.

    Returns:
        The named tuple (Q, R) of torch.

    Raises:
        ShapeError: for A of another shape.
        DomainError: for A or options that are none.
        BackendUnavailableError: for a device that is not there.
    Cost: 4 m n^2 flops; on another device, what is carried there and back, too. A GPU that fails costs a warning.

    Example:
        >>> Q, R = fgp.linalg.qr(torch.rand(30, 4, dtype=torch.float64))
        >>> Q.shape, R.shape
        (torch.Size([30, 4]), torch.Size([4, 4]))
    """
    try:
        return run("qr", lambda a: torch.linalg.qr(a, mode), (A,), device, crossover)
    except _REFUSED as error:
        _check_matrix(error, A, square=False)
        if mode not in MODES:
            raise DomainError(f"`mode` must be one of {', '.join(MODES)}, got {mode!r}") from None
        raise


@profiled("factorisation")
def cholesky(
    A: Inexact[Tensor, "*batch n n"], *, upper: bool = False, device: str = "auto", crossover: float | None = None
) -> Inexact[Tensor, "*batch n n"]:
    """L with A = L L^T (U with A = U^T U), as `torch.linalg.cholesky`, where it is quicker.

    Args:
        A: shape (*batch, n, n), symmetric positive definite; one triangle is read.
        upper: return U in place of L.
        device: as of `qr`.
        crossover: as of `qr`.

    Raises:
        NotPositiveDefiniteError: with the pivot and the members of a batch that failed; other errors as `qr`.
    Cost: n^3 / 3 flops, and what is carried.

    Example:
        >>> A = torch.tensor([[4.0, 2.0], [2.0, 5.0]], dtype=torch.float64)
        >>> fgp.linalg.cholesky(A)
        tensor([[2., 0.],
                [1., 2.]], dtype=torch.float64)
    """
    try:
        return run("cholesky", lambda a: torch.linalg.cholesky(a, upper=upper), (A,), device, crossover)
    except _REFUSED as error:
        _check_matrix(error, A, square=True)
        if isinstance(error, LinAlgError):
            raise _not_positive_definite(A, upper) from None
        raise


@profiled("factorisation")
def eigh(A: Inexact[Tensor, "*batch n n"], *, device: str = "auto", crossover: float | None = None) -> Any:
    """Eigenvalues, increasing, and eigenvectors of symmetric A, as `torch.linalg.eigh`, where it is quicker.

    Args:
        A: shape (*batch, n, n), finite (else NaN, as torch gives); its lower triangle is read.
        device: as of `qr`.
        crossover: as of `qr`.

    Returns:
        The named tuple (eigenvalues, eigenvectors) of torch. Vectors of other devices may differ in sign.

    Raises:
        ConvergenceError: where LAPACK gives up; other errors as `qr`.
    Cost: some 9 n^3 flops, and what is carried.

    Example:
        >>> values, vectors = fgp.linalg.eigh(torch.diag(torch.tensor([3.0, 1.0])))
        >>> values
        tensor([1., 3.])
    """
    try:
        return run("eigh", torch.linalg.eigh, (A,), device, crossover)
    except _REFUSED as error:
        _check_matrix(error, A, square=True)
        if isinstance(error, LinAlgError):
            check_finite(A, "A")
            raise ConvergenceError(
                f"the eigenvalues of `A` {tuple(A.shape)} did not converge ({error}); scale it, or pass float64",
                iterations=30 * A.shape[-1], residual=float("inf"), tolerance=torch.finfo(A.dtype).eps,
            ) from None  # fmt: skip
        raise


@profiled("triangular solves")
def solve_triangular(
    A: Inexact[Tensor, "*a n n"],
    B: Inexact[Tensor, "*b k t"],
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    device: str = "auto",
    crossover: float | None = None,
) -> Inexact[Tensor, "*batch k t"]:
    """X with A X = B (X A = B with left=False), as `torch.linalg.solve_triangular`, where it is quicker.

    Args:
        A: shape (*batch, n, n), one triangle of which is read.
        B: (*batch, n, t), or (*batch, t, n) with left=False.
        upper: A is upper triangular.
        left: A stands left of X.
        unitriangular: A has a unit diagonal, which is not read.
        device: as of `qr`.
        crossover: as of `qr`, by the order of A.

    Returns:
        X, shape of B. A zero on the diagonal gives infinities, as torch does.

    Raises:
        DomainError: for a complex B beside a real A; other errors as `qr`.
    Cost: n^2 t flops, and what is carried.

    Example:
        >>> L = torch.tensor([[2.0, 0.0], [1.0, 2.0]])
        >>> fgp.linalg.solve_triangular(L, torch.tensor([[2.0], [5.0]]), upper=False)
        tensor([[1.],
                [2.]])
    """
    upper, left = check_flag(upper, "upper"), check_flag(left, "left")
    unitriangular = check_flag(unitriangular, "unitriangular")
    if isinstance(A, Tensor) and isinstance(B, Tensor) and B.is_complex() and not A.is_complex():  # torch casts it
        raise DomainError(f"`B` must be real like `A`, got {B.dtype}; pass A.to({B.dtype})")
    solve = functools.partial(torch.linalg.solve_triangular, upper=upper, left=left, unitriangular=unitriangular)
    try:
        return run("triangular", solve, (A, B), device, crossover)
    except _REFUSED as error:
        _check_matrix(error, A, square=True)
        _check_right(A, B, left)
        raise


# -- what was refused ------------------------------------------------------------------------------------------------
def _check_matrix(error: Exception, A: Any, *, square: bool) -> None:
    """Raises: the error if it is ours; ShapeError, DomainError for an A that torch had to refuse."""
    if isinstance(error, FlashGPError):
        raise error
    _check_dense(A, "A")
    if A.dtype not in DTYPES:
        raise DomainError(f"`A` must be float32 or float64, got {A.dtype}; convert it with .to(torch.float64)")
    if A.dim() < 2 or (square and A.shape[-1] != A.shape[-2]):
        wanted = "(*batch, n, n)" if square else "(*batch, m, n)"
        advice = "as many rows as columns" if square else "A[:, None] for one column"
        raise ShapeError(f"`A` must have shape {wanted}, got {tuple(A.shape)}; pass {advice}")


def _check_dense(value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        raise DomainError(
            f"`{name}` must be a tensor, got {type(value).__name__}; convert it with torch.as_tensor(...)"
        )
    if value.layout != torch.strided:
        raise DomainError(f"`{name}` must be dense, got layout {value.layout}; convert it with .to_dense()")


def _check_right(A: Tensor, B: Any, left: bool) -> None:
    _check_dense(B, "B")
    wanted, n = "(*batch, n, t)" if left else "(*batch, t, n)", A.shape[-1]
    if B.dim() < 2 or B.shape[-2 if left else -1] != n:
        raise ShapeError(
            f"`B` must have shape {wanted} with n = {n} like `A`, got {tuple(B.shape)}; pass B[:, None] for one "
            "right-hand side"
        )
    if A.device != B.device:
        raise DomainError(f"`B` must be on {A.device} like `A`, got {B.device}; move one of them")
    try:
        torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    except RuntimeError:
        raise ShapeError(
            f"`B` has batch shape {tuple(B.shape[:-2])}, which does not broadcast with that of `A`, "
            f"{tuple(A.shape[:-2])}; give both the same leading dimensions"
        ) from None


def _not_positive_definite(A: Tensor, upper: bool) -> FlashGPError:
    """The error with the pivot that was not positive; a value that is not finite is named first."""
    check_finite(A, "A")
    with torch.no_grad():
        factor, info = torch.linalg.cholesky_ex(A.detach(), upper=upper)
    failed: Sequence[tuple[int, ...]] = [tuple(index) for index in info.nonzero().tolist()] if info.dim() else []
    first = failed[0] if failed else ()
    column = int(info[first]) - 1
    pivot = float(factor[first][column, column].real) if column >= 0 else float("nan")
    where = f" in batch member {', '.join(map(str, failed))}" if failed else ""
    return NotPositiveDefiniteError(
        f"`A` {tuple(A.shape)} must be positive definite, but pivot {column}{where} is {pivot:.3g}; add to its "
        "diagonal",
        smallest_pivot=pivot,
        indices=failed,
    )
