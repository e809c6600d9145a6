"""A float32 factor with a float64 head: the matrix itself where float32 alone has none, its bound, its parts."""

import pytest
import torch

from flashgp.solvers import CholeskySolver, Goal
from flashgp.solvers.direct.headed_cholesky import HeadedCholesky, HeadedFactor
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from solvers.dense_system import F64, DenseSystem, matern, normal, points

F32 = torch.float32


def smooth(n: int = 400, noise: float = 1e-7) -> DenseSystem:
    """Lengthscale 2 in the unit square, of which float32 alone has no factor."""
    return DenseSystem(20.0 * matern(points(n, 2), 2.0), noise)


def test_a_smooth_matrix_with_little_noise_is_factorised_as_it_is() -> None:
    """Float32 alone needs a shift far above the noise, and many corrections."""
    system = smooth()
    rhs = system.A @ normal(400, 3)
    alone, headed = CholeskySolver(dtype=F32).prepare(system), HeadedCholesky(rank=100).prepare(system)
    assert alone.events
    assert not headed.events
    first, second = alone.solve(rhs, Goal(1e-9)), headed.solve(rhs, Goal(1e-9))
    assert second.stopped == "goal"
    assert second.iterations <= 3 < first.iterations


@pytest.mark.parametrize("rank", [0, 1, 50, 149, 150])
@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-8])
def test_the_factor_and_its_slack(rank: int, noise: float) -> None:
    """(M-108) and (M-83): L L^T is A up to float32 rounding of what the pivots leave, and at most slack times A."""
    system = DenseSystem(matern(points(150, 2), 0.5), noise)
    factor = HeadedCholesky(rank=rank).prepare(system).preconditioner
    assert isinstance(factor, HeadedFactor)
    identity = torch.eye(150, dtype=F64)
    lower = factor.times(identity)
    left = partial_cholesky(system, limit=rank, share=0.0).trace + float(system.noise.sum())
    assert float((lower @ lower.mT - system.A).norm()) <= 150 * torch.finfo(F32).eps * left + factor.jitter * 150**0.5
    assert float(torch.linalg.eigvalsh(factor.slack * system.A - lower @ lower.mT)[0]) > -1e-12
    inverse = factor.half_solve(identity)
    assert float((lower @ inverse - identity).norm()) < 1e-2
    assert float((factor.half_solve_transposed(identity) - inverse.mT).norm()) < 1e-2 * float(inverse.norm())


@pytest.mark.parametrize("n", [1, 2])
def test_one_row_or_two(n: int) -> None:
    system = DenseSystem(matern(points(n, 2), 0.5), 1e-2)
    solution = HeadedCholesky().prepare(system).solve(normal(n, 2), Goal(1e-10))
    assert solution.stopped == "goal"


def test_given_pivots_make_the_factor_a_function_of_the_matrix() -> None:
    """The same pivots for another matrix, as a search over parameters needs it."""
    pivots = torch.tensor([5, 3, 111])
    factor = HeadedCholesky(pivots=pivots).prepare(smooth(150, 1e-2)).preconditioner
    assert isinstance(factor, HeadedFactor)
    assert torch.equal(factor.pivots, pivots)


def test_its_determinant_is_that_of_the_matrix() -> None:
    system = DenseSystem(matern(points(150, 2), 0.5), 1e-3)
    factor = HeadedCholesky(rank=50).prepare(system).preconditioner
    assert factor.log_determinant == pytest.approx(float(torch.logdet(system.A)), rel=1e-6)
