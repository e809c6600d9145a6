"""The preconditioner of near rows, eq. (M-121): what it is, what it is worth, and when a solve takes it."""

import math

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import MemoryBudgetError
from flashgp.inference.system import CovarianceSystem
from flashgp.solvers import ConjugateGradients, Goal, Limits, Solution, conjugate_gradients
from flashgp.solvers.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.vecchia import Vecchia, vecchia_bytes
from solvers.dense_system import F64, DenseSystem, energy_error, matern, normal, points

EPS = torch.finfo(F64).eps


class PlacedSystem(DenseSystem):
    """A Matern-3/2 covariance of points, which it tells."""

    def __init__(self, x: Tensor, lengthscale: float, noise: Tensor | float) -> None:
        super().__init__(matern(x, lengthscale), noise)
        self.x = x / lengthscale

    def places(self) -> Tensor:
        return self.x

    def blocks(self, index: Tensor) -> Tensor:
        return self.K[index.unsqueeze(-1), index.unsqueeze(-2)]


def near(system: PlacedSystem, neighbours: int = 48) -> Vecchia:
    return Vecchia(system, system.places(), neighbours=neighbours)


def whitened(system: PlacedSystem, found: Vecchia) -> Tensor:
    """W A W^T by half solves: the identity for P = A."""
    eye = torch.eye(system.count, dtype=F64)
    return found.half_solve(system.A @ found.half_solve_transposed(eye))


# -- what it is ------------------------------------------------------------------------------------------------------
def test_with_all_earlier_rows_it_is_the_matrix() -> None:
    system = PlacedSystem(points(60, 2), 0.3, 0.01)
    found = near(system, 59)
    least = float(torch.linalg.eigvalsh(system.A)[0])
    assert torch.allclose(whitened(system, found), torch.eye(60, dtype=F64), atol=60 * EPS * 60 / least)
    wanted = float(torch.linalg.slogdet(system.A)[1])
    assert found.log_determinant == pytest.approx(wanted, rel=1e-10)


def test_half_solves_are_transposes() -> None:
    system = PlacedSystem(points(200, 3), 0.3, 0.1)
    found = near(system, 7)
    eye = torch.eye(200, dtype=F64)
    assert torch.equal(found.half_solve(eye).mT, found.half_solve_transposed(eye))
    assert found.log_determinant == pytest.approx(-2.0 * float(torch.linalg.slogdet(found.half_solve(eye))[1]))


def test_each_row_whitens_its_own() -> None:
    """The diagonal of W A W^T is 1: every row of W has a residual of unit variance, whatever its neighbours."""
    system = PlacedSystem(points(300, 2), 0.1, 0.01)
    diagonal = whitened(system, near(system, 12)).diagonal()
    assert torch.allclose(diagonal, torch.ones_like(diagonal), rtol=1e-10)


def test_neighbours_are_the_nearest_of_those_before() -> None:
    """Against all distances, in the order that the rows have."""
    x = points(400, 2)
    system = PlacedSystem(x, 0.2, 0.1)
    W = near(system, 6).half_solve(torch.eye(400, dtype=F64))
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    distance = torch.cdist(x[order], x[order]) + torch.ones(400, 400).triu().double() * 1e9
    for place in (1, 3, 50, 399):
        nearest = order[distance[place].argsort()[: min(6, place)]]
        wanted = sorted([*nearest.tolist(), int(order[place])])
        assert W[place].nonzero()[:, 0].tolist() == wanted


def test_the_seed_settles_the_bits() -> None:
    system = PlacedSystem(points(150, 2), 0.3, 0.1)
    v = normal(150, 2)
    assert torch.equal(near(system, 9).half_solve(v), near(system, 9).half_solve(v))
    other = Vecchia(system, system.places(), neighbours=9, seed=1)
    assert not torch.equal(near(system, 9).half_solve(v), other.half_solve(v))


@pytest.mark.parametrize("n", [0, 1, 2, 48, 49])
def test_few_rows(n: int) -> None:
    system = PlacedSystem(torch.linspace(0.0, 1.0, n, dtype=F64).unsqueeze(-1), 0.5, 0.1)
    assert torch.allclose(whitened(system, near(system)), torch.eye(n, dtype=F64), atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1e-12, 0.1])
def test_equal_rows(noise: float) -> None:
    """Rows of which nothing is left given others: the half solves stay finite, and P positive definite."""
    x = torch.cat([torch.zeros(80, 2, dtype=F64), points(40, 2), 1e6 + points(40, 2)])
    system = PlacedSystem(x, 0.3, noise)
    found = near(system)
    eye = torch.eye(160, dtype=F64)
    assert bool(found.half_solve(eye).isfinite().all())
    assert math.isfinite(found.log_determinant)
    assert float(torch.linalg.eigvalsh(found.half_solve_transposed(found.half_solve(eye)))[0]) > 0.0


def test_its_bytes_are_counted() -> None:
    n = 8000
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=0.3)
    system = CovarianceSystem(kernel(points(n, 2)), torch.tensor([0.1], dtype=F64))
    places = system.places()
    assert places is not None
    found = Vecchia(system, places)
    assert 0.9 * vecchia_bytes(n) < system.workspace.live_bytes <= vecchia_bytes(n)
    assert system.workspace.peak_bytes <= 56 * 49 * n + 2**26  # and the temporaries of a block
    del found
    assert system.workspace.live_bytes == 0
    system.workspace.budget_bytes = 2**22
    with pytest.raises(MemoryBudgetError):
        Vecchia(system, places)


def test_sets_of_a_covariance_function() -> None:
    """What a model's system answers: K of sets of rows, and inputs by their lengthscales."""
    x = points(30, 2)
    kernel = 2.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.5, 2.0])) + fgp.kernels.Linear()
    system = CovarianceSystem(kernel(x), torch.tensor([0.1], dtype=F64))
    index = torch.tensor([[3, 5, 5, 29], [0, 1, 2, 3]])
    wanted = torch.stack([system.block(one, F64) for one in index])
    assert torch.allclose(system.blocks(index), wanted, rtol=1e-13, atol=1e-13)
    places = system.places()
    assert places is not None
    assert torch.allclose(
        torch.cdist(places, places), torch.cdist(x / torch.tensor([0.5, 2.0]), x / torch.tensor([0.5, 2.0]))
    )
    assert CovarianceSystem(fgp.kernels.Linear()(x), torch.tensor([0.1], dtype=F64)).places() is None


# -- what it is worth, and when a solve takes it ---------------------------------------------------------------------
@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few rows would never wait for near rows: as if these cost nothing."""
    monkeypatch.setattr(conjugate_gradients, "MAKING_PAIRS", 0)


GOAL = Goal(1e-13, energy=1e-5)


def solved(system: DenseSystem, rhs: Tensor, *, rank: int = 64) -> tuple[PreparedConjugateGradients, Solution]:
    prepared = ConjugateGradients(rank=rank).prepare(system)
    return prepared, prepared.solve(rhs, GOAL)


@pytest.mark.usefixtures("eager")
def test_a_slow_solve_in_few_dimensions_takes_it() -> None:
    x, rhs = points(1200, 2), normal(1200, 2)
    system = PlacedSystem(x, 0.03, 1e-3)
    prepared, found = solved(system, rhs)
    assert found.stopped == "goal"
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())
    assert any("near rows" in event and "kept" in event for event in found.events), found.events
    _, low = solved(DenseSystem(system.K, 1e-3), rhs)
    assert low.stopped == "goal"
    assert not any("near rows" in event for event in low.events)
    assert 2 * found.iterations < low.iterations
    assert prepared.active is not prepared.preconditioner
    assert prepared.preconditioner.slack == 1.0  # which bounds the error still
    again = prepared.solve(normal(1200, 2, seed=5), GOAL)  # the next solve begins with it
    assert not any("near rows" in event for event in again.events)
    assert again.iterations < found.iterations - 15


@pytest.mark.usefixtures("eager")
def test_in_many_dimensions_the_low_rank_goes_on() -> None:
    system = PlacedSystem(points(1500, 8), 3.0, 1e-5)
    rhs = normal(1500, 1)
    prepared, found = solved(system, rhs, rank=32)
    assert found.stopped == "goal"
    assert any(event.endswith("not kept") for event in found.events), found.events
    assert prepared.active is prepared.preconditioner
    _, low = solved(DenseSystem(system.K, 1e-5), rhs, rank=32)
    assert found.iterations <= low.iterations + 30, (found.iterations, low.iterations)
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())


def test_a_quick_solve_does_not_try_it() -> None:
    system = PlacedSystem(points(800, 2), 0.5, 0.1)
    _, found = solved(system, normal(800, 2))
    assert not any("near rows" in event for event in found.events)


@pytest.mark.usefixtures("eager")
def test_without_memory_for_it_the_low_rank_goes_on() -> None:
    system = PlacedSystem(points(1200, 2), 0.03, 1e-3)
    prepared = ConjugateGradients(rank=64).prepare(system)
    system.workspace.budget_bytes = system.workspace.live_bytes + 2**20
    found = prepared.solve(normal(1200, 2), GOAL)
    assert found.stopped == "goal"
    assert any("near rows were not tried" in event for event in found.events), found.events


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("iterations", [19, 20, 21, 24, 28, 29, 30])
def test_an_end_in_the_middle_keeps_the_best(iterations: int) -> None:
    """Wherever a limit falls, before, within and after the trial, the answer is no worse than what came before."""
    system = PlacedSystem(points(1500, 3), 0.3, 1e-4)
    rhs = normal(1500, 2)
    prepared = ConjugateGradients(rank=64).prepare(system)
    found = prepared.solve(rhs, Goal(0.0, energy=1e-9), limits=Limits(iterations=iterations))
    assert found.stopped == "iterations"
    assert found.iterations == iterations
    true = (rhs - system.A @ found.value).norm(dim=0) / rhs.norm(dim=0)
    assert torch.allclose(found.relative_residual, true, rtol=1e-6)
    assert bool((energy_error(system, rhs, found.value) <= found.energy_bound).all())
