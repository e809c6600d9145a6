"""What is particular to block conjugate gradients, eq. (M-80): shared spaces, precision, width, standing still."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flashgp.foundations.events import EventKind, Obstacle
from flashgp.solvers import ConjugateGradients, Goal, Limits, Step
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import DEFAULTS, LowRankSettings
from solvers.dense_system import F64, DenseSystem, energy_error, matern, normal, points

F32 = torch.float32
DOUBLE = replace(DEFAULTS, single=False)


def plain(system: DenseSystem, rhs: Tensor, iterations: int) -> Tensor:
    """Conjugate gradients for one right-hand side without a preconditioner, as in the textbook."""
    A, x = system.A, torch.zeros_like(rhs)
    r = rhs.clone()
    p = r
    for _ in range(iterations):
        Ap = A @ p
        a = (r @ r) / (p @ Ap)
        x, r_next = x + a * p, r - a * Ap
        p = r_next + (r_next @ r_next) / (r @ r) * p
        r = r_next
    return x


def test_one_column_is_the_textbook_method() -> None:
    """Without a preconditioner (rank 0, constant noise): the same iterates, eq. (M-80)."""
    system = DenseSystem(matern(points(80, 2), 0.1), 2.0)
    rhs = normal(80, 1)
    prepared = ConjugateGradients(0, DOUBLE).prepare(system)
    for iterations in (1, 2, 5, 10):
        found = prepared.solve(rhs, Goal(0.0, energy=1e-9), limits=Limits(iterations=iterations))
        assert torch.allclose(found.value[:, 0], plain(system, rhs[:, 0], iterations), rtol=1e-9, atol=1e-11)


def test_the_best_over_the_shared_space() -> None:
    """The A-norm of every column's error is the smallest over the block Krylov space of all columns, eq. (M-80)."""
    system = DenseSystem(matern(points(60, 2), 0.2), 1.0)
    rhs = normal(60, 3)
    partial = partial_cholesky(system, limit=10, settings=LowRankSettings(trace_share=0.0))
    low = LowRank(partial, system.noise)
    prepared = PreparedConjugateGradients(system, low, DOUBLE)
    space = low.solve(rhs)
    for iterations in (1, 2, 3):
        found = prepared.solve(rhs, Goal(0.0, energy=1e-9), limits=Limits(iterations=iterations))
        basis = torch.linalg.qr(space)[0]
        best = basis @ torch.linalg.solve(basis.mT @ system.A @ basis, basis.mT @ rhs)
        wanted, got = energy_error(system, rhs, best), energy_error(system, rhs, found.value)
        assert torch.allclose(got, wanted, rtol=1e-6)
        space = torch.cat([space, low.solve(system.A @ space[:, -3:])], 1)


def test_columns_that_are_done_leave() -> None:
    """Once more than a quarter is done the block gets narrower, and what is left goes on undisturbed."""
    system = DenseSystem(matern(points(300, 2), 0.5), 1e-3)
    rhs = normal(300, 8)
    prepared = ConjugateGradients(10, DOUBLE).prepare(system)
    near = prepared.solve(rhs, Goal(1e-7)).value
    near[:, 4:] = 0.0
    widths: list[int] = []
    multiply = system.multiply

    def counted(v: Tensor) -> Tensor:
        widths.append(v.shape[1])
        return multiply(v)

    system.multiply = counted  # type: ignore[method-assign]
    solution = prepared.solve(rhs, Goal(1e-6), start=near)
    assert solution.stopped == "goal"
    assert widths[0] == 8, "the residual of the start"
    assert set(widths[1:]) <= {1, 2, 3, 4}


def test_products_begin_in_float32_and_stay_there_while_that_pays() -> None:
    system = DenseSystem(matern(points(400, 2), 0.1), 1e-2)
    rhs = normal(400, 2)
    prepared = ConjugateGradients().prepare(system)
    solution = prepared.solve(rhs, Goal(1e-10))
    assert solution.stopped == "goal"
    assert solution.events == []
    assert system.products[F32] == solution.iterations
    assert system.products[F64] < 0.25 * system.products[F32]
    assert solution.passes == sum(system.products.values())


class Rough(DenseSystem):
    """Float32 products that are off by a fixed relative error."""

    def multiply(self, v: Tensor) -> Tensor:
        out = super().multiply(v)
        if v.dtype == F32:
            noise = normal(*out.shape, seed=self.products[F32]).float()
            out += 0.5 * out.norm(dim=0) / len(out) ** 0.5 * noise
        return out


def test_float64_takes_over_where_float32_does_not_pay() -> None:
    """An event says so, and the answer is as good as ever."""
    system = Rough(matern(points(300, 2), 0.3), 1e-3)
    rhs = normal(300, 2)
    solution = ConjugateGradients(rank=20).prepare(system).solve(rhs, Goal(1e-9))
    assert solution.stopped == "goal"
    assert len(solution.events) == 1
    assert solution.events[0].kind is EventKind.FLOAT64_PRODUCTS
    assert float(((rhs - system.A @ solution.value).norm(dim=0) / rhs.norm(dim=0)).max()) <= 1e-9
    assert system.products[F64] > 10


def test_standing_still() -> None:
    """No halving within the window ends the solve, with the best values; so does what rounding does not allow."""
    K = torch.diag(torch.logspace(0, 9, 300, dtype=F64))
    system = DenseSystem(K, 1e-6)
    rhs = normal(300, 1)
    solution = ConjugateGradients(0, replace(DOUBLE, stagnation_window=5)).prepare(system).solve(rhs, Goal(1e-9))
    assert solution.stopped == "stagnated"
    assert solution.iterations < 200
    easy = DenseSystem(matern(points(100, 2), 0.3), 1e-2)
    limit = ConjugateGradients().prepare(easy).solve(normal(100, 2), Goal(0.0))
    assert limit.stopped == "rounding"
    assert float(limit.relative_residual.max()) < 1e-13


def test_rounding_is_no_obstacle_to_a_bound() -> None:
    """What is left is the rounding of x, of which A^-1 makes little: a solve for the error says how little, (M-123)."""
    system = DenseSystem(matern(points(400, 2), 3.0) * 200.0, 1e-6)
    rhs = system.A @ normal(400, 1)
    prepared = ConjugateGradients(60, replace(DEFAULTS, compare=False)).prepare(system)
    least = prepared.solve(rhs, Goal(0.0))
    goal = Goal(0.0, 0.5 * float(least.energy_bound))
    steps: list[tuple[int, int]] = []
    limits = Limits(callback=lambda step: steps.append((step.iteration, system.products[F32])))
    found = prepared.solve(rhs, goal, limits=limits)
    assert found.stopped == "goal", found.events
    assert [step for step, _ in steps] == list(range(1, found.iterations + 1)), "one count for what a caller sees"
    (event,) = (event for event in found.events if event.kind is EventKind.CORRECTED)
    float32 = [products for _, products in steps[-1 - event.fields["iterations"] :]]
    assert float32[0] == float32[-1] > 0, "float32 products have led no further by then"
    assert event.fields["sharper"] > 2.0
    assert float(energy_error(system, rhs, found.value)) <= float(found.energy_bound) <= goal.energy


def test_what_ends_a_solve_for_the_error_ends_the_solve() -> None:
    """With the values before it. Seen red as a stagnation, after which another method would take over."""
    system = DenseSystem(matern(points(400, 2), 3.0) * 200.0, 1e-6)
    rhs = system.A @ normal(400, 1)
    prepared = ConjugateGradients(60, replace(DEFAULTS, compare=False)).prepare(system)
    least = prepared.solve(rhs, Goal(0.0))
    goal = Goal(0.0, 0.5 * float(least.energy_bound))
    whole = prepared.solve(rhs, goal)
    (event,) = (event for event in whole.events if event.kind is EventKind.CORRECTED)
    last = whole.iterations - event.fields["iterations"] + 1

    def end(step: Step) -> bool:
        if step.iteration == last:
            raise KeyboardInterrupt
        return False

    told: list[bool] = []
    found = prepared.solve(rhs, goal, limits=Limits(callback=end, interrupted=lambda: told.append(True)))
    assert told == [True]
    assert found.stopped == "interrupt"
    assert torch.equal(found.value, whole.value)
    assert float(energy_error(system, rhs, found.value)) <= float(found.energy_bound)


def test_what_counts_as_rounding_is_a_setting() -> None:
    easy = DenseSystem(matern(points(100, 2), 0.3), 1e-2)
    strict = replace(DEFAULTS, roundings=1e-6)
    assert ConjugateGradients(settings=strict).prepare(easy).solve(normal(100, 2), Goal(0.0)).stopped == "stagnated"


@pytest.mark.parametrize(("least", "largest"), [(-0.5, 2.0), (-2.0, -0.5)])
def test_what_is_not_positive_definite(least: float, largest: float) -> None:
    """It is found out and said, with the best values; nothing is thrown."""
    system = DenseSystem(torch.diag(torch.linspace(least, largest, 50, dtype=F64)), 1e-3)
    low = LowRank(partial_cholesky(DenseSystem(torch.eye(50, dtype=F64), 1.0), limit=0), system.noise)
    prepared = PreparedConjugateGradients(system, low)
    solution = prepared.solve(normal(50, 2), Goal(1e-8))
    assert solution.stopped == "diverged"
    assert len(solution.events) == 2, "float64 was tried"
    wanted = Obstacle.INDEFINITE if largest < 0 else Obstacle.GROWING
    assert all(event.fields["obstacle"] is wanted for event in solution.events)
    assert bool((solution.relative_residual <= 1 + 1e-12).all())


def test_the_bound_of_the_recurrence_reaches_the_callback() -> None:
    """Eq. (M-79): what a callback sees in the end is what is measured."""
    system = DenseSystem(matern(points(200, 2), 0.3), 1e-2)
    rhs = normal(200, 3)
    steps: list[Step] = []
    limits = Limits(callback=steps.append)
    solution = ConjugateGradients(settings=DOUBLE).prepare(system).solve(rhs, Goal(1e-8), limits=limits)
    assert torch.allclose(steps[-1].relative, solution.relative_residual, rtol=1e-3)
    assert torch.allclose(steps[-1].energy, solution.energy_bound, rtol=1e-3)
    assert len(steps) == solution.iterations
