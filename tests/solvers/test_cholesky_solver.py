"""The factor as a solver: memory, the float64 answer of a float32 factor, a shift of the factor alone, its bound."""

import pytest
import torch

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import EventKind
from flashgp.solvers import CholeskySolver, Goal
from flashgp.solvers.preconditioners.cholesky import CholeskyPreconditioner
from solvers.dense_system import F64, DenseSystem, energy_error, matern, normal, points

F32 = torch.float32


def test_float32_reaches_the_float64_answer() -> None:
    """Where refinement (M-32) would not converge: eps32 cond(A) is far above 1."""
    system = DenseSystem(matern(points(300, 2), 1.0), 1e-7)
    rhs = system.A @ normal(300, 2)
    prepared = CholeskySolver(dtype=F32).prepare(system)
    assert torch.finfo(F32).eps * float(torch.linalg.cond(system.A)) > 50
    solution = prepared.solve(rhs, Goal(1e-12))
    assert solution.stopped == "goal"
    assert float(((rhs - system.A @ solution.value).norm(dim=0) / rhs.norm(dim=0)).max()) <= 1e-12


@pytest.mark.parametrize("dtype", [F32, F64])
def test_an_easy_system_takes_a_step_or_a_few(dtype: torch.dtype) -> None:
    system = DenseSystem(matern(points(300, 2), 0.1), 0.1)
    solution = CholeskySolver(dtype=dtype).prepare(system).solve(normal(300, 2), Goal(1e-9))
    assert solution.stopped == "goal"
    assert solution.iterations <= (1 if dtype == F64 else 3)
    assert solution.events == []


def test_a_shift_is_of_the_factor_alone() -> None:
    """Float32 cannot factorise this; the system that is solved stays as it is, and an event says what was done."""
    system = DenseSystem(matern(points(200, 1), 2.0), 1e-9)
    rhs = system.A @ normal(200, 2)
    prepared = CholeskySolver(dtype=F32).prepare(system)
    solution = prepared.solve(rhs, Goal(1e-7))
    assert solution.stopped == "goal"
    assert solution.events[0].kind is EventKind.FACTOR_SHIFTED
    assert float(((rhs - system.A @ solution.value).norm(dim=0) / rhs.norm(dim=0)).max()) <= 1e-7
    with pytest.raises(NotPositiveDefiniteError):
        CholeskySolver(dtype=F32).prepare(DenseSystem(-torch.eye(3, dtype=F64), 0.0))


@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-8])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_slack(dtype: torch.dtype, noise: float) -> None:
    """Eq. (M-83): L L^T <= slack A, and with a float64 factor the bound is tight."""
    system = DenseSystem(matern(points(150, 2), 0.5), noise)
    prepared = CholeskySolver(dtype=dtype).prepare(system)
    preconditioner = prepared.preconditioner
    assert isinstance(preconditioner, CholeskyPreconditioner)
    lower = preconditioner.lower.double()
    assert float(torch.linalg.eigvalsh(preconditioner.slack * system.A - lower @ lower.mT)[0]) > -1e-12
    near = torch.linalg.solve(system.A, normal(150, 2)) * 1.01
    rhs = normal(150, 2)
    solution = prepared.solve(rhs, Goal(0.02), start=near)
    error = energy_error(system, rhs, solution.value)
    assert bool((error <= solution.energy_bound * (1 + 1e-9)).all())
    if dtype == F64 and noise > 1e-6:
        assert bool((solution.energy_bound <= 1.01 * error).all())


def test_the_second_attempt_takes_no_second_matrix() -> None:
    """A factorisation that fails frees its matrix before the next one is made."""
    alive: list[int] = []

    class Watched(DenseSystem):
        def dense(self, dtype: torch.dtype) -> torch.Tensor:
            alive.append(self.workspace.live_bytes)
            matrix = self.workspace.empty((self.count, self.count), dtype, self.device)
            return matrix.copy_(super().dense(dtype))

    system = Watched(matern(points(800, 1), 2.0), 1e-12)
    CholeskySolver(dtype=F32).prepare(system)
    assert len(alive) > 1
    assert set(alive) == {0}
