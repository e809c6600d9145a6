"""Every registered solver keeps the contract: a true residual, a bound that bounds, starts, limits and bad input.

Eqs. (M-76), (M-79), (M-80) and (M-83) through their answers and bounds.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.solvers import SOLVERS
from flashgp.solvers.contract import Goal, Limits, Prepared, Solution, Solver, Step
from flashgp.solvers.iterative.refinement import RefinedGradients
from flashgp.solvers.settings import DEFAULTS
from solvers.dense_system import F64, DenseSystem, energy_error, matern, normal, points

# Settings besides the default, and what the default does not show at a few hundred rows.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "cholesky": [{}, {"dtype": torch.float32}],
    "conjugate_gradients": [{}, {"settings": replace(DEFAULTS, single=False)}],
}


class Rounded:
    """K~, K in eight bits."""

    left_out, relative, finer = 0.0, 1e-3, None
    event = Event(EventKind.APPROXIMATE_PRODUCTS, frequencies=1, gain=2.0)

    def __init__(self, system: DenseSystem) -> None:
        self.K = system.K.to(torch.bfloat16).double()

    def __matmul__(self, v: Tensor) -> Tensor:
        return self.K @ v


@dataclass(frozen=True)
class RefinedFromFewBits(Solver):
    """Solves by K~ that are refined, (M-440): with little noise they have to end as the others."""

    name: str = "refined"

    def prepare(self, system: DenseSystem, *, seed: int = 0) -> Prepared:  # type: ignore[override]
        return RefinedGradients(Rounded(system)).prepare(system, seed=seed)


CASES = [
    pytest.param(solver(**settings), id=f"{name}-{number}")
    for name, solver in SOLVERS.items()
    for number, settings in enumerate(VARIANTS.get(name, [{}]))
]
CASES.append(pytest.param(RefinedFromFewBits(), id="refined"))
ROUNDING = 1e-13  # relative to |A| |x|, of the residual that a bound is made from


def system_of(n: int, d: int = 2, noise: Tensor | float = 1e-2, lengthscale: float = 0.05) -> DenseSystem:
    return DenseSystem(matern(points(n, d), lengthscale), noise)


def check(system: DenseSystem, rhs: Tensor, solution: Solution, goal: Goal | None = None) -> None:
    """The residual is the true one, the bound of eq. (M-76) holds, and the goal is met if it was promised."""
    assert solution.value.shape == rhs.shape
    assert solution.value.dtype == F64
    residual = rhs - system.A @ solution.value
    size = rhs.norm(dim=0)
    relative = torch.where(size > 0, residual.norm(dim=0) / size, residual.norm(dim=0))
    rounding = ROUNDING * (system.A.norm() * solution.value.norm(dim=0) / size.clamp_min(1e-300) + 1.0)
    assert bool(((solution.relative_residual - relative).abs() <= rounding).all())
    least = float(system.noise.min())
    if least > 0:
        error = energy_error(system, rhs, solution.value)
        assert bool((error <= solution.energy_bound * (1 + 1e-9) + rounding * size / least**0.5).all())
    else:
        assert bool((solution.energy_bound.isinf() | (solution.relative_residual == 0)).all())
    if goal is not None:
        assert solution.stopped == "goal"
        assert bool(goal.met(solution.relative_residual, solution.energy_bound).all())


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("solver", CASES)
def test_the_answer_of_float64_cholesky(solver: Solver, noise: float, d: int) -> None:
    """To the goal in the norm that bounds predictions, |k_* e| <= sqrt(k_**) |e|_A, eq. (M-76)."""
    system = system_of(600, d, noise, lengthscale=0.3)
    rhs = normal(600, 3)
    goal = Goal(relative=0.0, energy=1e-3 * noise**0.5)
    solution = solver.prepare(system).solve(rhs, goal)
    check(system, rhs, solution, goal)
    exact = torch.cholesky_solve(rhs, torch.linalg.cholesky(system.A))
    difference = (system.K @ (solution.value - exact)).abs().max()
    assert float(difference) <= 1e-3 * noise**0.5
    assert solution.passes > 0
    assert solution.seconds > 0


@pytest.mark.parametrize("columns", [1, 17])
@pytest.mark.parametrize("solver", CASES)
def test_several_right_hand_sides(solver: Solver, columns: int) -> None:
    """Of very different sizes: each meets the goal relative to itself."""
    system = system_of(301)
    rhs = normal(301, columns) * 10.0 ** torch.linspace(-100, 100, columns, dtype=F64)
    goal = Goal(relative=1e-8)
    check(system, rhs, solver.prepare(system).solve(rhs, goal), goal)


@pytest.mark.parametrize("n", [1, 2, 3, 11])
@pytest.mark.parametrize("columns", [1, 2, 5, 20])
@pytest.mark.parametrize("solver", CASES)
def test_few_rows(solver: Solver, n: int, columns: int) -> None:
    system = system_of(n)
    rhs = normal(n, columns)
    goal = Goal(relative=1e-10)
    check(system, rhs, solver.prepare(system).solve(rhs, goal), goal)


@pytest.mark.parametrize("solver", CASES)
@pytest.mark.parametrize("columns", [0, 3])
def test_no_rows(solver: Solver, columns: int) -> None:
    none = torch.zeros(0, columns, dtype=torch.float64)
    system = DenseSystem(torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    found = solver.prepare(system).solve(none, Goal(1e-8))
    assert found.value.shape == (0, columns)
    assert found.relative_residual.shape == found.energy_bound.shape == (columns,)
    assert found.stopped == "goal"


@pytest.mark.parametrize("solver", CASES)
def test_no_columns(solver: Solver) -> None:
    solution = solver.prepare(system_of(5)).solve(torch.zeros(5, 0, dtype=F64), Goal(1e-6))
    assert solution.value.shape == (5, 0)
    assert solution.stopped == "goal"


@pytest.mark.parametrize("solver", CASES)
def test_columns_that_depend_on_each_other(solver: Solver) -> None:
    """Equal, opposite, zero and summed columns get equal, opposite, zero and summed answers."""
    system = system_of(250)
    a, b = normal(250, 2).unbind(1)
    rhs = torch.stack([a, a, -a, torch.zeros_like(a), b, a + b, 1e-9 * a], 1)
    goal = Goal(relative=1e-9)
    solution = solver.prepare(system).solve(rhs, goal)
    check(system, rhs, solution, goal)
    assert bool((solution.value[:, 3] == 0).all())
    assert float((solution.value[:, 0] - solution.value[:, 1]).norm()) <= 1e-5 * float(solution.value[:, 0].norm())


@pytest.mark.parametrize("solver", CASES)
def test_a_start(solver: Solver) -> None:
    """The answer as a start ends the solve at once; a good one saves work; a bad one is not taken."""
    system = system_of(400, noise=1e-3)
    rhs = normal(400, 4)
    prepared, goal = solver.prepare(system), Goal(relative=1e-6)
    solution = prepared.solve(rhs, goal)
    check(system, rhs, solution, goal)
    again = prepared.solve(rhs, goal, start=solution.value)
    assert again.iterations == 0
    assert torch.allclose(again.value, solution.value, rtol=1e-14, atol=0)
    stopped = prepared.solve(rhs, goal, start=1e3 * normal(400, 4, seed=5), limits=Limits(iterations=0))
    assert bool((stopped.value == 0).all())
    assert stopped.relative_residual.tolist() == pytest.approx([1.0] * 4, rel=1e-14)
    near = solution.value + 1e-3 * normal(400, 4, seed=6) * solution.value.abs().mean()
    before = (rhs - system.A @ near).norm(dim=0) / rhs.norm(dim=0)
    kept = prepared.solve(rhs, Goal(1e-14), start=near, limits=Limits(iterations=1))
    assert bool((kept.relative_residual <= before.clamp_max(1.0) * (1 + 1e-12)).all())
    warm = prepared.solve(rhs, goal, start=near)
    check(system, rhs, warm, goal)
    assert warm.iterations <= solution.iterations


@pytest.mark.parametrize("solver", CASES)
def test_zero_right_hand_sides(solver: Solver) -> None:
    solution = solver.prepare(system_of(40)).solve(torch.zeros(40, 3, dtype=F64), Goal(0.0), start=normal(40, 3))
    assert bool((solution.value == 0).all())
    assert bool((solution.relative_residual == 0).all())
    assert bool((solution.energy_bound == 0).all())
    assert (solution.stopped, solution.iterations) == ("goal", 0)


@pytest.mark.parametrize("solver", CASES)
def test_noise_of_each_row(solver: Solver) -> None:
    noise = 10.0 ** (-4.0 * points(400, 1, seed=3)[:, 0])
    system = system_of(400, noise=noise)
    rhs = normal(400, 2)
    goal = Goal(relative=1e-8)
    check(system, rhs, solver.prepare(system).solve(rhs, goal), goal)


@pytest.mark.parametrize("noise", [0.0, 1e-12])
@pytest.mark.parametrize("solver", CASES)
def test_hardly_any_noise(solver: Solver, noise: float) -> None:
    """cond(A) is about 1e7: direct and iterative answers still agree with their own residuals."""
    system = system_of(300, 3, noise)
    rhs = system.A @ normal(300, 2)
    goal = Goal(relative=1e-6)
    check(system, rhs, solver.prepare(system).solve(rhs, goal), goal)


@pytest.mark.parametrize("solver", CASES)
def test_two_clusters(solver: Solver) -> None:
    """1e6 apart: two problems in one."""
    x = points(300, 2)
    x[150:] += 1e6
    system = DenseSystem(matern(x, 0.05), 1e-3)
    rhs = normal(300, 3)
    goal = Goal(relative=1e-8)
    check(system, rhs, solver.prepare(system).solve(rhs, goal), goal)


@pytest.mark.parametrize("solver", CASES)
def test_all_rows_equal(solver: Solver) -> None:
    """K is a matrix of ones: rank one, the rest is noise."""
    system = DenseSystem(torch.ones(300, 300, dtype=F64), 1e-4)
    rhs = normal(300, 3)
    goal = Goal(relative=1e-8)
    check(system, rhs, solver.prepare(system).solve(rhs, goal), goal)


@pytest.mark.parametrize("solver", CASES)
def test_what_has_no_answer(solver: Solver) -> None:
    """Equal rows that disagree, without noise: the solve ends by itself and says that it did not get there."""
    system = DenseSystem(torch.ones(200, 200, dtype=F64), 0.0)
    rhs = normal(200, 2)
    try:
        prepared = solver.prepare(system)
    except NotPositiveDefiniteError:
        return
    solution = prepared.solve(rhs, Goal(1e-6))
    assert solution.stopped in ("stagnated", "diverged")
    assert solution.iterations < 1000
    assert bool((solution.relative_residual <= 1).all())
    check(system, rhs, solution)


class Broken(DenseSystem):
    """Products of one row become NaN from a certain call on."""

    row, after = 17, 0

    def multiply(self, v: Tensor) -> Tensor:
        return self._spoilt(super().multiply(v))

    def _spoilt(self, out: Tensor) -> Tensor:
        self.after -= 1
        if self.after < 0:
            out[self.row] = math.nan
        return out


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("solver", CASES)
def test_nan_inside_a_product(solver: Solver, after: int) -> None:
    system = Broken(matern(points(100, 2), 0.3), 1e-3)
    prepared = solver.prepare(system)
    system.after = after
    with pytest.raises(ConvergenceError, match=r"not finite in iteration \d+: .* at row 17, column 0") as caught:
        prepared.solve(normal(100, 2), Goal(1e-12))
    assert caught.value.iterations <= 2 or solver.name == "refined"  # whose first product is later


@pytest.mark.parametrize("solver", CASES)
def test_bad_right_hand_sides(solver: Solver) -> None:
    prepared = solver.prepare(system_of(10))
    rhs = normal(10, 2)
    rhs[3, 1] = math.inf
    with pytest.raises(ConvergenceError, match="`rhs` at row 3, column 1"):
        prepared.solve(rhs, Goal(1e-6))
    with pytest.raises(ConvergenceError, match="`start` at row 3, column 1"):
        prepared.solve(normal(10, 2), Goal(1e-6), start=rhs)
    with pytest.raises(ShapeError, match=r"`rhs` must be float64 of shape \(10, t\)"):
        prepared.solve(normal(9, 2), Goal(1e-6))
    with pytest.raises(ShapeError, match=r"`start` must be float64 of shape \(10, 2\)"):
        prepared.solve(normal(10, 2), Goal(1e-6), start=normal(10, 3))


@pytest.mark.parametrize("solver", CASES)
def test_no_time(solver: Solver) -> None:
    system = system_of(200)
    rhs = normal(200, 2)
    prepared = solver.prepare(system)
    solution = prepared.solve(rhs, Goal(1e-9), limits=Limits(deadline=Deadline.after(0.0)))
    assert (solution.stopped, solution.iterations) == ("time", 0)
    assert solution.relative_residual.tolist() == pytest.approx([1.0] * 2, rel=1e-14)
    check(system, rhs, solution)


@pytest.mark.parametrize("solver", CASES)
def test_limits_and_callbacks(solver: Solver) -> None:
    """The callback sees each iteration, with all columns; it and the iteration limit end a solve with what there is."""
    system = system_of(300, 3, 1e-4)
    rhs = normal(300, 3)
    prepared = solver.prepare(system)
    seen: list[Step] = []

    def stop(step: Step) -> bool:
        seen.append(step)
        return step.iteration == 2

    solution = prepared.solve(rhs, Goal(0.0), limits=Limits(callback=stop))
    assert (solution.stopped, solution.iterations) == ("callback", 2)
    assert [step.iteration for step in seen] == [1, 2]
    assert all(step.relative.shape == step.energy.shape == (3,) for step in seen)
    assert seen[1].passes > seen[0].passes or solver.name == "refined"  # whose products are no passes
    assert seen[1].seconds >= seen[0].seconds
    check(system, rhs, solution)
    limited = prepared.solve(rhs, Goal(0.0), limits=Limits(iterations=2))
    assert (limited.stopped, limited.iterations) == ("iterations", 2)
    assert torch.equal(limited.value, solution.value)
    needed = prepared.solve(rhs, Goal(1e-5)).iterations
    last = Limits(callback=lambda step: step.iteration == needed)
    assert prepared.solve(rhs, Goal(1e-5), limits=last).stopped == "goal", "the goal counts, whoever stopped it"


@pytest.mark.parametrize("solver", CASES)
def test_the_same_seed_gives_the_same_bits(solver: Solver) -> None:
    system = system_of(300, 3, 1e-3)
    rhs = normal(300, 3)
    values = [solver.prepare(system, seed=3).solve(rhs, Goal(1e-6)).value for _ in range(2)]
    assert torch.equal(*values)


@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-8])
@pytest.mark.parametrize("solver", CASES)
def test_the_bound_at_every_moment(solver: Solver, noise: float) -> None:
    """Eq. (M-76): wherever a solve is cut off, its bound is above the true error."""
    system = system_of(200, 3, noise, lengthscale=0.5)
    rhs = normal(200, 3)
    prepared = solver.prepare(system)
    for iterations in (0, 1, 2, 4, 8, 16):
        check(system, rhs, prepared.solve(rhs, Goal(0.0), limits=Limits(iterations=iterations)))


@pytest.mark.parametrize("solver", CASES)
def test_a_goal_in_either_norm(solver: Solver) -> None:
    """A column is done when it meets one of the two."""
    assert Goal(1e-3, 0.5).met(torch.tensor([1e-4, 1.0, 1.0]), torch.tensor([9.0, 0.1, 9.0])).tolist() == [
        True,
        True,
        False,
    ]
    system = system_of(300, noise=1e-4)
    rhs = normal(300, 2)
    prepared = solver.prepare(system)
    loose = prepared.solve(rhs, Goal(0.0, energy=10.0))
    tight = prepared.solve(rhs, Goal(0.0, energy=1e-4))
    assert loose.passes <= tight.passes
    check(system, rhs, loose, Goal(0.0, energy=10.0))
    check(system, rhs, tight, Goal(0.0, energy=1e-4))
