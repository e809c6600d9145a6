"""The covariance of observations as a system: every part of it against the dense float64 matrix."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import ShapeError
from flashgp.inference.system import CovarianceSystem
from flashgp.planner.products import STORED_ROWS
from solvers.dense_system import F64, normal, points

F32 = torch.float32
KERNEL = 2.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.2, 0.4])) + 0.5
COMPILED = 3200  # rows: beyond 1e7 pairs, products follow a plan


def system_of(n: int, *, stored: bool = False, noise: float = 0.01) -> tuple[CovarianceSystem, torch.Tensor]:
    x = points(n, 2)
    operator = KERNEL.operator(x)
    per_row = noise * (1.0 + points(n, 1, seed=2)[:, 0])
    return CovarianceSystem(operator, per_row, stored=stored), operator.to_dense().detach()


@pytest.mark.parametrize("n", [1, 2, 131, COMPILED])
@pytest.mark.parametrize("stored", [False, True])
def test_products(n: int, stored: bool) -> None:
    """Eq. (M-20) with noise, in the precision of the vector; through stored tiles too, (M-56)."""
    system, K = system_of(n, stored=stored)
    A = K + torch.diag(system.noise)
    v = normal(n, 3)
    for dtype, error in ((F64, 1e-12), (F32, 1e-5)):
        found = system.multiply(v.to(dtype))
        assert found.dtype == dtype
        assert float((found - A @ v).norm()) <= error * float(A.norm() * v.norm())


def test_tiles_of_several_panels() -> None:
    n = 2 * STORED_ROWS + 13
    system, K = system_of(n, stored=True)
    v = normal(n, 2)
    assert torch.allclose(system.multiply(v.float()).double(), K @ v + system.noise[:, None] * v, atol=1e-4)


def test_one_symmetric_matrix() -> None:
    x = points(5, 2)
    for operator in (KERNEL.operator(x, x.clone()), KERNEL.operator(torch.stack([x, x]))):
        with pytest.raises(ShapeError, match="`operator` must be one symmetric covariance"):
            CovarianceSystem(operator, torch.tensor([0.1]))
