"""fgp.linalg without an accelerator: torch's bits, and errors that name the argument."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.errors import (
    ConvergenceError,
    DomainError,
    NotPositiveDefiniteError,
    ShapeError,
)
from flashgp.foundations.machine import using_accelerator
from linalg.test_routing import CALLS, definite, matrix, tensors


@pytest.fixture(autouse=True)
def none() -> Iterator[None]:
    with using_accelerator(None):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_torchs(name: str, dtype: torch.dtype) -> None:
    ours, torchs, make, options = CALLS[name]
    for n in (0, 1, 7, 33):
        for batch in ((), (3,)):
            operands = [one.to(dtype).expand(*batch, *one.shape).contiguous() for one in make(n)]
            found, wanted = ours(*operands, **options), torchs(*operands, **options)
            assert type(found) is type(wanted)
            for a, b in zip(tensors(found), tensors(wanted), strict=True):
                assert (a.dtype, a.shape) == (dtype, b.shape)
                assert torch.equal(a, b)


def test_options_reach_torch() -> None:
    a, b = definite(5), matrix(2, 5)
    assert torch.equal(linalg.cholesky(a, upper=True), torch.linalg.cholesky(a, upper=True))
    assert linalg.qr(matrix(7, 3), mode="complete").Q.shape == (7, 7)
    assert linalg.qr(matrix(7, 3), mode="r").Q.shape == (0,)
    upper, options = a.triu(), {"upper": True, "left": False, "unitriangular": True}
    assert torch.equal(linalg.solve_triangular(upper, b, **options), torch.linalg.solve_triangular(upper, b, **options))


@pytest.mark.parametrize("name", CALLS)
def test_gradients_by_finite_differences(name: str) -> None:
    ours, _, make, options = CALLS[name]
    operands = tuple(one.requires_grad_() for one in make(4))

    def values(*given: Tensor) -> tuple[Tensor, ...]:
        if name in ("cholesky", "eigh"):
            given = (0.5 * (given[0] + given[0].mT),)
        found = tensors(ours(*given, **options))
        return (found[0], found[1].abs()) if name == "eigh" else tuple(found)  # signs of vectors are free

    assert torch.autograd.gradcheck(values, operands)


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no tensor": (lambda: linalg.qr([[1.0]]), DomainError, "`A` must be a tensor, got list"),
    "one dimension": (lambda: linalg.qr(matrix(5)), ShapeError, r"`A` must have shape \(\*batch, m, n\), got \(5,\)"),
    "integers": (lambda: linalg.eigh(torch.eye(3, dtype=torch.int64)), DomainError, "`A` must be float32 or float64"),
    "mode": (lambda: linalg.qr(matrix(3, 3), mode="thin"), DomainError, "`mode` must be one of reduced, complete, r"),
    "device": (lambda: linalg.qr(matrix(3, 3), device="tpu"), DomainError, "`device` must be one of auto, cpu, cuda"),
    "crossover": (
        lambda: linalg.qr(matrix(3, 3), crossover=-1),
        DomainError,
        "`crossover` must be the order of a matrix",
    ),
    "B short": (
        lambda: linalg.solve_triangular(definite(3), matrix(4, 2), upper=True),
        ShapeError,
        r"`B` must have shape \(\*batch, n, t\) with n = 3 like `A`, got \(4, 2\)",
    ),
    "B of another batch": (
        lambda: linalg.solve_triangular(definite(3, 2), matrix(4, 3, 2), upper=True),
        ShapeError,
        "`B` has batch shape",
    ),
    "a sparse A": (lambda: linalg.qr(matrix(3, 3).to_sparse()), DomainError, "`A` must be dense"),
    "a complex B, of which torch takes the real part": (
        lambda: linalg.solve_triangular(definite(3), matrix(3, 2) * 1j, upper=True),
        DomainError,
        "`B` must be real like `A`",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_argument(case: str) -> None:
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call()


def test_a_matrix_that_is_not_positive_definite() -> None:
    with pytest.raises(NotPositiveDefiniteError, match="pivot 2 is -3") as found:
        linalg.cholesky(torch.diag(torch.tensor([1.0, 2.0, -3.0, 4.0])))
    assert (found.value.smallest_pivot, found.value.indices) == (-3.0, ())
    batch = torch.eye(3).expand(2, 2, 3, 3).clone()
    batch[1, 0, 1, 1] = 0.0
    for upper in (False, True):
        with pytest.raises(NotPositiveDefiniteError, match=r"in batch member \(1, 0\)") as found:
            linalg.cholesky(batch, upper=upper)
        assert found.value.indices == ((1, 0),) or found.value.indices == [(1, 0)]
        assert found.value.smallest_pivot == 0.0


def test_eigenvalues_that_do_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.linalg import LinAlgError

    def fails(a: Tensor) -> None:
        raise LinAlgError("failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    with pytest.raises(ConvergenceError, match=r"eigenvalues of `A` \(3, 3\)"):
        linalg.eigh(definite(3))
