"""The covariance of observations as a system: every part of it against the dense float64 matrix."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import MemoryBudgetError, ShapeError
from flashgp.foundations.workspace import Workspace
from flashgp.inference.system import CovarianceSystem
from flashgp.planner.products import STORED_ROWS
from flashgp.solvers import SOLVERS, Goal
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


def test_parts() -> None:
    system, K = system_of(60)
    index = torch.tensor([4, 59, 0, 17])
    assert torch.allclose(system.diagonal(), K.diagonal(), rtol=1e-14)
    assert torch.allclose(system.columns(index, F64), K[:, index], atol=1e-13)
    assert torch.allclose(system.block(index, F64), K[index][:, index], atol=1e-13)
    assert torch.allclose(system.block(slice(5, 20), F32).double(), K[5:20, 5:20], atol=1e-5)
    for dtype in (F64, F32):
        dense = system.dense(dtype)
        assert dense.dtype == dtype
        assert torch.allclose(dense.triu().double(), (K + torch.diag(system.noise)).triu(), atol=1e-5)
    block = system.block(slice(5, 20), F64)
    block.diagonal().add_(1.0)  # the caller's own
    assert torch.allclose(system.block(slice(5, 20), F64), K[5:20, 5:20], atol=1e-13)


@pytest.mark.parametrize("name", sorted(SOLVERS))
@pytest.mark.parametrize("stored", [False, True])
def test_solvers_give_what_conditioning_gives(name: str, stored: bool) -> None:
    """The weights of the posterior, in the norm that bounds predictions, eq. (M-76)."""
    x, noise = points(400, 2), 0.05
    y = normal(400, 1)[:, 0]
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=0.05)
    gp = fgp.GP(kernel, mean=fgp.means.Zero(), likelihood=fgp.likelihoods.Gaussian(noise))
    wanted = gp.condition(x, y).representer_weights
    system = CovarianceSystem(kernel.operator(x), torch.tensor([noise], dtype=F64), stored=stored)
    solution = SOLVERS[name]().prepare(system).solve(y[:, None], Goal(0.0, energy=1e-3))
    assert solution.stopped == "goal"
    difference = solution.value - wanted
    energy = float((difference * system.multiply(difference)).sum()) ** 0.5
    assert energy <= float(solution.energy_bound) + 1e-10 <= 1.1e-3


def test_it_is_taken_as_it_is_now() -> None:
    """Without a graph, and not changed by training the kernel further."""
    kernel = fgp.kernels.SquaredExponential(lengthscale=0.5)
    x = points(30, 2).requires_grad_()
    system = CovarianceSystem(kernel.operator(x), torch.tensor([0.1], dtype=F64, requires_grad=True))
    v = normal(30, 1)
    out = system.multiply(v)
    assert not out.requires_grad
    assert not system.columns(torch.tensor([1]), F64).requires_grad


def test_memory() -> None:
    """Tiles are counted, and refused where they do not fit."""
    x = points(900, 2)
    workspace = Workspace()
    CovarianceSystem(KERNEL.operator(x), torch.tensor([0.1]), workspace=workspace, stored=True)
    assert workspace.peak_bytes >= 2 * 900**2
    with pytest.raises(MemoryBudgetError):
        CovarianceSystem(KERNEL.operator(x), torch.tensor([0.1]), workspace=Workspace(2**20), stored=True)


def test_one_symmetric_matrix() -> None:
    x = points(5, 2)
    for operator in (KERNEL.operator(x, x.clone()), KERNEL.operator(torch.stack([x, x]))):
        with pytest.raises(ShapeError, match="`operator` must be one symmetric covariance"):
            CovarianceSystem(operator, torch.tensor([0.1]))
