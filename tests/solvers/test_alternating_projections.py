"""What is particular to alternating projections, eq. (M-82): one block is exact, the error never grows, precision."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from flashgp.solvers import AlternatingProjections, Goal, Limits
from solvers.dense_system import F64, DenseSystem, energy_error, matern, normal, points

F32 = torch.float32


def test_one_step() -> None:
    """The block with the largest residual is solved exactly, the others are left alone, eq. (M-82)."""
    system = DenseSystem(matern(points(90, 2), 0.1), 10.0 ** (-2 * points(90, 1, seed=3)[:, 0]))
    rhs = normal(90, 2)
    rhs[30:60] *= 3.0
    prepared = AlternatingProjections(block_size=30, first=F64).prepare(system)
    assert [(b.start, b.stop) for b in prepared.blocks] == [(0, 30), (30, 60), (60, 90)]
    found = prepared.solve(rhs, Goal(0.0), limits=Limits(iterations=1))
    A = system.A
    assert torch.allclose(found.value[30:60], torch.linalg.solve(A[30:60, 30:60], rhs[30:60]), rtol=1e-9)
    assert bool((found.value[:30] == 0).all())
    assert bool((found.value[60:] == 0).all())
    assert found.passes == pytest.approx(1 / 3 + 1), "a third of the pairs, and the measured residual"


@pytest.mark.parametrize("noise", [1e-1, 1e-6])
def test_the_error_never_grows(noise: float) -> None:
    """In the A-norm, by r_B^T u in each step, eq. (M-82), also for rows in no order."""
    system = DenseSystem(matern(points(120, 2)[torch.randperm(120)], 0.3), noise)
    rhs = normal(120, 1)
    prepared = AlternatingProjections(block_size=17, first=F64).prepare(system)
    errors = []
    for iterations in range(12):
        values: list[Tensor] = []
        multiply = system.multiply

        def watched(v: Tensor, values: list[Tensor] = values, multiply=multiply) -> Tensor:  # type: ignore[no-untyped-def]
            values.append(v)
            return multiply(v)

        system.multiply = watched  # type: ignore[method-assign]
        prepared.solve(rhs, Goal(0.0), limits=Limits(iterations=iterations))
        system.multiply = multiply  # type: ignore[method-assign]
        # The value that was measured last, in units of |b|, whether it was better in the residual or not.
        value = values[-1] * rhs.norm() if values else torch.zeros_like(rhs)
        errors.append(float(energy_error(system, rhs, value)))
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(errors))
    assert errors[-1] < errors[0]


def test_blocks_of_nearly_equal_size() -> None:
    system = DenseSystem(matern(points(101, 2), 0.1), 0.1)
    for size, wanted in ((1, [1] * 101), (33, [25, 25, 25, 26]), (101, [101]), (2000, [101])):
        blocks = AlternatingProjections(block_size=size).prepare(system).blocks
        assert [b.stop - b.start for b in blocks] == wanted
        assert blocks[0].start == 0
        assert blocks[-1].stop == 101
        assert all(a.stop == b.start for a, b in pairwise(blocks))


def test_one_block_is_direct() -> None:
    system = DenseSystem(matern(points(80, 2), 0.3), 1e-3)
    solution = AlternatingProjections(first=F64).prepare(system).solve(normal(80, 3), Goal(1e-9))
    assert (solution.stopped, solution.iterations) == ("goal", 1)


class Coarse(DenseSystem):
    """Float32 parts of products that are off by a factor."""

    def cross(self, rows: slice, cols: slice, v: Tensor) -> Tensor:
        out = super().cross(rows, cols, v)
        return out * 3.0 if v.dtype == F32 else out


def test_float64_takes_over_where_float32_does_not_pay() -> None:
    system = Coarse(matern(points(200, 2), 0.05), 1e-4)
    rhs = normal(200, 2)
    solution = AlternatingProjections(block_size=50).prepare(system).solve(rhs, Goal(1e-8))
    assert solution.stopped == "goal"
    assert len(solution.events) == 1
    assert "with float32 products, float64 from iteration" in solution.events[0]
    assert float(((rhs - system.A @ solution.value).norm(dim=0) / rhs.norm(dim=0)).max()) <= 1e-8


def test_standing_still() -> None:
    """No halving within the window of passes: the best values, and why."""
    system = DenseSystem(matern(points(200, 2), 1.0), 1e-6)
    solution = AlternatingProjections(block_size=20, window=4).prepare(system).solve(normal(200, 2), Goal(1e-9))
    assert solution.stopped == "stagnated"
    assert solution.events[-1].endswith("the residual has not halved in 4 passes")
    assert solution.passes < 60


def test_blocks_that_need_a_shift() -> None:
    """Equal rows without noise: the projection is damped, the system is not changed, an event says so."""
    x = points(60, 2)
    x[:30] = x[0]
    system = DenseSystem(matern(x, 0.3), 0.0)
    rhs = system.K @ normal(60, 1)
    solution = AlternatingProjections(block_size=30).prepare(system).solve(rhs, Goal(1e-6))
    assert solution.events[0] == "alternating projections: 1 of 2 blocks are projected on with a shift"
    assert float((rhs - system.K @ solution.value).norm() / rhs.norm()) <= 1e-6


@pytest.mark.parametrize("gone", [[], [0], list(range(30, 60)), [5, 40, 41, 89]], ids=len)
@pytest.mark.parametrize("new", [0, 3, 50])
def test_blocks_of_other_rows(gone: list[int], new: int) -> None:
    """Factors of blocks whose rows are the same are shared; the answer is that of the new system, eq. (M-82)."""
    x = points(140, 2)
    K, noise = matern(x, 0.1), 10.0 ** (-points(140, 1, seed=3)[:, 0])
    prepared = AlternatingProjections(block_size=32, first=F64).prepare(DenseSystem(K[:90, :90], noise[:90]))
    kept = torch.tensor([i for i in range(90) if i not in gone])
    rows = torch.cat([kept, torch.arange(90, 90 + new)])
    noise[20] += 1.0
    changed = kept == 20
    system = DenseSystem(K[rows][:, rows], noise[rows])
    followed = prepared.followed(system, kept if gone else None, changed)
    assert [b.start for b in followed.blocks] == [0, *(b.stop for b in followed.blocks[:-1])]
    assert followed.blocks[-1].stop == len(rows)
    assert all(b.stop - b.start <= 32 for b in followed.blocks)
    for block, factor in zip(followed.blocks, followed.factors, strict=True):
        assert torch.allclose(factor.lower @ factor.lower.mT, system.A[block, block], atol=1e-12)
    shared = {id(factor) for factor in prepared.factors} & {id(factor) for factor in followed.factors}
    assert len(shared) == {0: 2, 1: 2, 30: 1, 4: 0}[len(gone)]
    rhs = normal(len(rows), 2)
    found = followed.solve(rhs, Goal(1e-10))
    assert torch.allclose(system.A @ found.value, rhs, atol=1e-8)
