"""Parts, sums with noise and the SciPy protocol are those of the dense matrix."""

import pytest
import torch

import flashgp as fgp
from flashgp.operators.linear import DiagonalOperator

F64 = torch.float64
KERNEL = 1.3 * fgp.kernels.Matern(2.5, torch.tensor([0.7, 1.2])) + fgp.kernels.Linear(0.2)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


X, Z = numbers(9, 2), numbers(6, 2, seed=1)


@pytest.mark.parametrize("index", [
    (slice(2, 7), slice(1, 5)), (slice(None), slice(0, 3)), (slice(None, None, 2), slice(None)),
    (torch.tensor([3, 0, 3]), slice(None)), ([1, -1], torch.tensor([5, 2])), (slice(0, 0), slice(None)),
])  # fmt: skip
def test_parts(index: tuple[object, object]) -> None:
    operator, dense = KERNEL(X, Z), KERNEL(X, Z).to_dense()
    part = operator[index]
    assert isinstance(part, fgp.operators.CovarianceOperator)
    wanted = dense[index[0]][:, index[1]]
    assert part.shape == wanted.shape
    assert torch.allclose(part.to_dense(), wanted, rtol=0, atol=1e-14)
    right = numbers(wanted.shape[1], 2)
    assert torch.allclose(part @ right, wanted @ right, rtol=0, atol=1e-13)


def test_rows_columns_and_numbers() -> None:
    operator, dense = KERNEL(X, Z), KERNEL(X, Z).to_dense()
    assert torch.allclose(operator[3], dense[3], rtol=0, atol=1e-14)
    assert torch.allclose(operator[-1, 1:4], dense[-1, 1:4], rtol=0, atol=1e-14)
    assert torch.allclose(operator[:, 2], dense[:, 2], rtol=0, atol=1e-14)
    assert torch.allclose(operator[4, 2], dense[4, 2], rtol=0, atol=1e-14)
    keep = torch.tensor([True, False] * 4 + [True])
    assert torch.allclose(operator[keep].to_dense(), dense[keep], rtol=0, atol=1e-14)
    square = KERNEL(X)[2:5, 2:5]
    assert square.symmetric
    assert torch.allclose(square.diagonal(), KERNEL(X).to_dense().diagonal()[2:5])
    with pytest.raises(fgp.ShapeError, match="within 9"):
        operator[9]
    with pytest.raises(fgp.ShapeError, match="one-dimensional"):
        operator[torch.zeros(2, 2, dtype=torch.long)]


def test_sums_with_noise() -> None:
    operator, right = KERNEL(X), numbers(9, 3)
    dense = operator.to_dense()
    variances = torch.rand(9, dtype=F64)
    for noise in (0.3, variances):
        noisy = operator.with_noise(noise)
        wanted = dense + torch.diag(torch.as_tensor(noise, dtype=F64).expand(9))
        assert torch.allclose(noisy.to_dense(), wanted, rtol=0, atol=1e-14)
        assert torch.allclose(noisy @ right, wanted @ right, rtol=0, atol=1e-13)
        assert torch.allclose(noisy @ right[:, 0], wanted @ right[:, 0], rtol=0, atol=1e-13)
        assert torch.allclose(noisy.T.diagonal(), wanted.diagonal())
    both = KERNEL(X, Z) + fgp.kernels.RBF(0.5)(X, Z)
    assert torch.allclose(both @ numbers(6), (KERNEL + fgp.kernels.RBF(0.5))(X, Z) @ numbers(6), rtol=0, atol=1e-13)
    variances.requires_grad_()
    (operator.with_noise(variances) @ right).sum().backward()
    assert torch.allclose(variances.grad, right.sum(1))  # type: ignore[arg-type]


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(fgp.ShapeError, match="square"):
        KERNEL(X, Z).with_noise(0.1)
    with pytest.raises(fgp.ShapeError, match="one shape"):
        KERNEL(X, Z) + KERNEL(X)
    with pytest.raises(fgp.DomainError, match=r"float32.*float64|float64.*float32"):
        KERNEL(X) + DiagonalOperator(torch.ones(9))
    with pytest.raises(fgp.ShapeError, match="9 rows"):
        KERNEL(X) @ numbers(6)
    with pytest.raises(fgp.DomainError, match="float32"):
        KERNEL(X) @ numbers(9).float()
    with pytest.raises(TypeError):
        KERNEL(X) + 1.0  # type: ignore[operator]
    with pytest.raises(fgp.ShapeError, match="one matrix"):
        KERNEL(numbers(2, 4, 2)).to_scipy()


def test_scipy_solves_with_it() -> None:
    from scipy.sparse.linalg import cg

    noisy, y = KERNEL(X).with_noise(0.5), numbers(9)
    scipy_operator = noisy.to_scipy()
    assert scipy_operator.shape == (9, 9)
    solution, failed = cg(scipy_operator, y.numpy(), rtol=1e-12)
    assert failed == 0
    assert torch.allclose(noisy.to_dense() @ torch.from_numpy(solution), y, rtol=0, atol=1e-9)
    wide = KERNEL(X, Z).to_scipy()
    assert torch.allclose(torch.from_numpy(wide.rmatvec(y.numpy())), KERNEL(X, Z).to_dense().T @ y, rtol=0, atol=1e-13)
    assert wide.matmat(numbers(6, 2).numpy()).shape == (9, 2)
