"""The full-scale preconditioner, eq. (M-121): what it is, what it is worth, and when a solve takes it."""

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.errors import ConvergenceError, MemoryBudgetError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.system import CovarianceSystem
from flashgp.solvers import ConjugateGradients, Goal, Limits, Solution
from flashgp.solvers.contract import System
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.iterative.lanczos import log_determinant
from flashgp.solvers.iterative.progress import Progress
from flashgp.solvers.preconditioners import candidate
from flashgp.solvers.preconditioners.candidate import (
    CandidatePreconditioner,
    Compared,
    full_scale,
    low_rank,
)
from flashgp.solvers.preconditioners.full_scale import (
    FullScale,
    making_bytes,
    whitening,
)
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.near_rows import blocks_of_near_rows, nearest_earlier_rows
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.settings import DEFAULTS, ComparisonSettings, FullScaleSettings, LowRankSettings, SolveSettings
from solvers.dense_system import F64, DenseSystem, energy_error, matern, normal, points

EPS = torch.finfo(F64).eps


class PlacedSystem(DenseSystem):
    """A Matern-3/2 covariance of points, which it tells."""

    def __init__(self, x: Tensor, lengthscale: float, noise: Tensor | float) -> None:
        super().__init__(matern(x, lengthscale), noise)
        self.x = x / lengthscale

    @property
    def has_scaled_inputs(self) -> bool:
        return True

    def scaled_inputs(self) -> Tensor:
        return self.x

    def blocks(self, index: Tensor) -> Tensor:
        return self.K[index.unsqueeze(-1), index.unsqueeze(-2)]


def factor_of(system: PlacedSystem, rank: int) -> Tensor:
    """A partial Cholesky factor, (n, rank)."""
    if not rank:
        return torch.empty(system.count, 0, dtype=F64)
    return partial_cholesky(system, limit=rank, settings=LowRankSettings(trace_share=0.0)).factor.clone()


def made(system: PlacedSystem, rank: int = 20, block: int = 16, neighbours: int = 24) -> FullScale:
    return FullScale(system, factor_of(system, rank), FullScaleSettings(block, neighbours, dtype=F64))


def whitened(system: PlacedSystem, found: Preconditioner) -> Tensor:
    """L^-1 A L^-T by half solves: the identity for P = A."""
    eye = torch.eye(system.count, dtype=F64)
    return found.half_solve(system.A @ found.half_solve_transposed(eye))


def dense_reference(system: PlacedSystem, F: Tensor, index: list[tuple[Tensor, Tensor]]) -> Tensor:
    """P^-1 of eq. (M-121), block by block with explicit inverses: V^-1 = sum S' G' G S, then Woodbury by an inverse.

    Args: index: rows of each block and its neighbours.
    """
    n = system.count
    left = system.A - F @ F.mT
    precision = torch.zeros(n, n, dtype=F64)
    for block, neighbours in index:
        weights = left[block][:, neighbours] @ torch.linalg.inv(left[neighbours][:, neighbours])
        conditional = left[block][:, block] - weights @ left[neighbours][:, block]
        rows = torch.zeros(len(block), n, dtype=F64)
        rows[:, neighbours] = -weights
        rows[torch.arange(len(block)), block] = 1.0
        precision += rows.mT @ torch.linalg.inv(conditional) @ rows
    return torch.linalg.inv(F @ F.mT + torch.linalg.inv(precision))


# -- what it is ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rank", "block", "neighbours"), [(5, 7, 60), (0, 7, 60), (5, 60, 0), (5, 60, 12), (20, 1, 60)]
)
def test_with_all_earlier_rows_it_is_the_matrix(rank: int, block: int, neighbours: int) -> None:
    system = PlacedSystem(points(60, 2), 0.3, 0.01)
    found = made(system, rank, block, neighbours)
    least = float(torch.linalg.eigvalsh(system.A)[0])
    assert torch.allclose(whitened(system, found), torch.eye(60, dtype=F64), atol=60 * EPS * 60 / least)
    wanted = float(torch.linalg.slogdet(system.A)[1])
    assert found.log_determinant == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("rank", [0, 20])
@pytest.mark.parametrize("neighbours", [0, 24])
def test_it_is_the_one_of_the_definition(rank: int, neighbours: int) -> None:
    """Eq. (M-121) against explicit inverses, with the blocks and neighbours that it found, one after the other."""
    system, settings = (
        PlacedSystem(points(200, 3), 0.3, 0.1),
        FullScaleSettings(16, neighbours, batch_bytes=1, dtype=F64),
    )
    F = factor_of(system, rank)
    blocks = blocks_of_near_rows(system.x, settings.block, 0)
    sets = zip(blocks, nearest_earlier_rows(system.x, blocks, settings), strict=True)
    wanted = dense_reference(system, F, [(block[block >= 0], near[near >= 0]) for block, near in sets])
    found = FullScale(system, F.clone(), settings)
    assert torch.allclose(found.solve(torch.eye(200, dtype=F64)), wanted, rtol=1e-9, atol=1e-9 * float(wanted.max()))
    assert found.log_determinant == pytest.approx(-float(torch.linalg.slogdet(wanted)[1]), rel=1e-10)


def test_half_solves_are_transposes() -> None:
    system = PlacedSystem(points(203, 3), 0.3, 0.1)
    found = made(system)
    eye = torch.eye(203, dtype=F64)
    assert torch.allclose(found.half_solve(eye).mT, found.half_solve_transposed(eye), rtol=1e-12, atol=1e-12)
    assert found.log_determinant == pytest.approx(-2.0 * float(torch.linalg.slogdet(found.half_solve(eye))[1]))


def test_without_neighbours_and_with_blocks_of_one_row_it_is_the_low_rank() -> None:
    """F F^T and a diagonal, which is that of A, so that the low rank is the one with what F leaves of it as noise."""
    system = PlacedSystem(points(150, 2), 0.3, 0.1)
    partial = partial_cholesky(system, limit=20)
    found = FullScale(system, partial.factor.clone(), FullScaleSettings(block=1, neighbours=0, dtype=F64))
    low = LowRank(partial, system.noise + (system.diagonal() - partial.factor.square().sum(1)))
    eye = torch.eye(150, dtype=F64)
    assert torch.allclose(found.solve(eye), low.solve(eye), rtol=1e-9, atol=1e-11)
    assert found.log_determinant == pytest.approx(low.log_determinant, rel=1e-12)


def test_without_inducing_points_it_is_vecchia() -> None:
    """Blocks of one row, each given its nearest rows before it: W A W^T has a diagonal of 1, and W their pattern."""
    system = PlacedSystem(points(300, 2), 0.1, 0.01)
    found = made(system, rank=0, block=1, neighbours=6)
    diagonal = whitened(system, found).diagonal()
    assert torch.allclose(diagonal, torch.ones_like(diagonal), rtol=1e-10)
    W = found.half_solve(torch.eye(300, dtype=F64))
    order = blocks_of_near_rows(system.x, 1, 0)[:, 0]
    distance = torch.cdist(system.x[order], system.x[order])
    for place in (1, 3, 50, 299):
        nearest = order[distance[place, :place].argsort()[: min(6, place)]]
        assert W[order[place]].nonzero()[:, 0].tolist() == sorted([*nearest.tolist(), int(order[place])])


def test_neighbours_are_the_nearest_rows_of_earlier_blocks() -> None:
    """Against all distances where all blocks are looked at; and nearly so where a quarter of them is."""
    x = points(1000, 3)
    blocks = blocks_of_near_rows(x, 20, 0)
    for candidates, least in ((1000, 1.0), (250, 0.9)):
        shared = wanted = 0
        for place, near in enumerate(nearest_earlier_rows(x, blocks, FullScaleSettings(20, 30, candidates))):
            earlier = blocks[:place].flatten()
            distance = torch.cdist(x[blocks[place]], x[earlier]).amin(0)
            exact = set(earlier[distance.argsort()[:30]].tolist())
            shared, wanted = shared + len(exact & set(near[near >= 0].tolist())), wanted + len(exact)
        assert shared >= least * wanted


@pytest.mark.parametrize(("n", "size"), [(0, 4), (1, 4), (4, 4), (5, 4), (97, 8), (1000, 128)])
def test_blocks_have_every_row_once_and_like_sizes(n: int, size: int) -> None:
    blocks = blocks_of_near_rows(points(n, 3), size, 0)
    assert sorted(blocks[blocks >= 0].tolist()) == list(range(n))
    sizes = (blocks >= 0).sum(1)
    assert len(blocks) == -(-n // size)
    assert not n or int(sizes.max()) - int(sizes.min()) <= 2


def test_the_seed_settles_the_bits() -> None:
    system = PlacedSystem(points(150, 2), 0.3, 0.1)
    v = normal(150, 2)
    assert torch.equal(made(system).half_solve(v), made(system).half_solve(v))
    other = FullScale(system, factor_of(system, 20), FullScaleSettings(16, 24, dtype=F64), seed=1)
    assert not torch.equal(made(system).half_solve(v), other.half_solve(v))


@pytest.mark.parametrize("n", [0, 1, 2, 16, 17])
def test_few_rows(n: int) -> None:
    system = PlacedSystem(torch.linspace(0.0, 1.0, n, dtype=F64).unsqueeze(-1), 0.5, 0.1)
    assert torch.allclose(whitened(system, made(system, rank=n // 4)), torch.eye(n, dtype=F64), atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1e-12, 0.1])
@pytest.mark.parametrize("rank", [0, 20])
def test_equal_rows_and_constant_columns(noise: float, rank: int) -> None:
    """Rows of which nothing is left given others: the half solves stay finite, and P positive definite."""
    x = torch.cat([torch.zeros(80, 2, dtype=F64), points(40, 2), 1e6 + points(40, 2)])
    system = PlacedSystem(torch.cat([x, torch.full((160, 1), 7.0, dtype=F64)], 1), 0.3, noise)
    found = made(system, rank)
    eye = torch.eye(160, dtype=F64)
    half = found.half_solve(eye)
    assert bool(half.isfinite().all())
    assert math.isfinite(found.log_determinant)
    assert float(torch.linalg.svdvals(half)[-1]) > 0.0


def test_a_block_that_is_not_positive_definite_has_fewer_neighbours() -> None:
    """Half of them, and again, at last none; what is indefinite by itself is whitened row by row."""
    sets = torch.eye(12, dtype=F64).repeat(4, 1, 1)
    sets[1, 7, 0] = sets[1, 0, 7] = 2.0  # among the farther neighbours
    sets[2, 1, 0] = sets[2, 0, 1] = 2.0  # among the nearest
    sets[3, 11, 10] = sets[3, 10, 11] = 2.0  # in the block
    sets[:, 11, 2] = sets[:, 2, 11] = 0.5
    found = whitening(sets, torch.ones(4, 12, dtype=torch.bool), 4)
    weights = found.weights
    assert found.reduced == 3
    assert found.known.sum(1).tolist() == [12, 8, 5, 4]
    assert torch.allclose(torch.linalg.inv(found.lower)[:, 8:], weights)
    for i, kept in ((0, 8), (1, 4), (2, 0)):
        rows = [*range(kept), 8, 9, 10, 11]
        inverse = torch.linalg.inv(torch.linalg.cholesky(sets[i][rows][:, rows]))
        wanted = torch.zeros(4, 12, dtype=F64)
        wanted[:, rows] = inverse[-4:]
        assert torch.allclose(weights[i], wanted)
    assert torch.equal(weights[3], torch.eye(12, dtype=F64)[8:])


def test_its_bytes_are_counted() -> None:
    n, rank, settings = 6000, 64, FullScaleSettings()
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=0.3)
    system = CovarianceSystem(kernel(points(n, 2)), torch.tensor([0.1], dtype=F64))
    low = low_rank(system, rank, 0, replace(DEFAULTS, compare=False))
    assert isinstance(low, LowRank)
    before, system.workspace.peak_bytes = system.workspace.live_bytes, system.workspace.live_bytes
    other = full_scale(system, low, 0)
    assert other is not None
    found = other.preconditioner()
    kept = n * (8 * rank + 4 * (settings.block + settings.neighbours))
    assert 0.9 * kept < system.workspace.live_bytes - before <= 1.1 * kept
    assert system.workspace.peak_bytes - before <= making_bytes(n, rank, settings)
    del found, other
    assert system.workspace.live_bytes == before
    system.workspace.budget_bytes = before + 2**22
    refused = full_scale(system, low, 0)
    assert refused is not None
    assert refused.preconditioner() is None
    assert refused.outcome == "refused"


@pytest.mark.parametrize("noise", ["uniform", "by row"])
@pytest.mark.parametrize("min_gram_flops", [0, 10**12])
def test_the_factor_of_a_low_rank(noise: str, min_gram_flops: int) -> None:
    """F again, by Gram matrix and by Householder."""
    variances = torch.full((80,), 0.1, dtype=F64) if noise == "uniform" else 0.1 + normal(80).square()
    system = PlacedSystem(points(80, 2), 0.3, variances)
    partial = partial_cholesky(system, limit=10)
    low = LowRank(partial, system.noise, LowRankSettings(min_gram_flops=min_gram_flops))
    for one in (low, low.with_noise(partial, 2.0 * system.noise)):
        assert torch.allclose(one.factor(), partial.factor, rtol=1e-9, atol=1e-10)
        assert one.factor().data_ptr() != partial.factor.data_ptr()


def test_sets_of_a_covariance_function() -> None:
    """What a model's system answers: K of sets of rows, and inputs by their lengthscales."""
    x = points(30, 2)
    kernel = 2.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.5, 2.0])) + fgp.kernels.Linear()
    system = CovarianceSystem(kernel(x), torch.tensor([0.1], dtype=F64))
    index = torch.tensor([[3, 5, 5, 29], [0, 1, 2, 3]])
    wanted = torch.stack([system.block(one, F64) for one in index])
    assert torch.allclose(system.blocks(index), wanted, rtol=1e-13, atol=1e-13)
    places = system.scaled_inputs()
    assert places is not None
    assert torch.allclose(
        torch.cdist(places, places), torch.cdist(x / torch.tensor([0.5, 2.0]), x / torch.tensor([0.5, 2.0]))
    )
    assert CovarianceSystem(fgp.kernels.Linear()(x), torch.tensor([0.1], dtype=F64)).scaled_inputs() is None


# -- what it is worth, and when a solve takes it ---------------------------------------------------------------------
# So few rows would never wait for it: as if it cost nothing, but for a solve that begins with it.
COMPARISON = ComparisonSettings(interval=20, min_left=60, at_once=-1.0, pair_flops=math.inf)
EAGER = replace(DEFAULTS, comparison=COMPARISON)
GOAL = Goal(1e-13, energy=1e-5)


@pytest.mark.parametrize(
    ("left", "size"), [(0.0, 0), (79.0, 0), (80.0, 1), (159.0, 1), (160.0, 2), (1e9, 2), (math.inf, 1)]
)
def test_its_size_is_what_the_iterations_that_are_left_are_worth(left: float, size: int) -> None:
    other = CandidatePreconditioner(lambda size: made(few_dimensions(50)), [5.0, 10.0, 20.0])
    other.choose_size(left)
    assert other.size == size
    assert other.price == [5.0, 10.0, 20.0][size]
    assert other.preconditioner() is not None
    other.choose_size(1e9 if size == 0 else 0.0)
    assert other.size == size, "what is made stays"
    assert other.price == 0.0


def few_dimensions(n: int = 700) -> PlacedSystem:
    return PlacedSystem(points(n, 2), 0.03, 1e-3)


def solved(system: DenseSystem, rhs: Tensor, *, rank: int = 32) -> tuple[PreparedConjugateGradients, Solution]:
    prepared = ConjugateGradients(rank, EAGER).prepare(system)
    return prepared, prepared.solve(rhs, GOAL)


def candidate_of(prepared: PreparedConjugateGradients) -> CandidatePreconditioner:
    assert isinstance(prepared.preconditioner, Compared)
    return prepared.preconditioner.candidate


def outcome(prepared: PreparedConjugateGradients) -> str:
    return candidate_of(prepared).outcome


def compared(found: Solution) -> list[Event]:
    """What a solve says of comparisons."""
    kinds = (EventKind.PRECONDITIONER_COMPARED, EventKind.PRECONDITIONER_UNDECIDED, EventKind.PRECONDITIONER_REFUSED)
    return [event for event in found.events if event.kind in kinds]


def test_a_slow_solve_in_few_dimensions_takes_it() -> None:
    system, rhs = few_dimensions(), normal(700, 2)
    prepared, found = solved(system, rhs)
    assert found.stopped == "goal"
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())
    (said,) = compared(found)
    assert said.fields["kept"]
    assert "full-scale" in str(said)
    assert outcome(prepared) == "kept"
    assert prepared.preconditioner.slack == 1.0  # which bounds the error still
    _, low = solved(DenseSystem(system.K, 1e-3), rhs)
    assert low.stopped == "goal"
    assert not compared(low)
    assert 2 * found.iterations < low.iterations
    again = prepared.solve(normal(700, 2, seed=5), GOAL)  # the next solve begins with it
    assert not compared(again)
    assert again.iterations < found.iterations - 15


def test_where_it_is_kept_it_is_the_control_variate_of_log_determinants() -> None:
    """Eq. (M-99): a smaller standard error in no more steps, and both cover the truth."""
    system = few_dimensions()
    prepared = ConjugateGradients(32, EAGER).prepare(system)
    first = prepared.preconditioner.kept()
    assert isinstance(first, LowRank), "no solve has compared them yet"
    prepared.solve(normal(700, 2), GOAL)
    kept = prepared.preconditioner.kept()
    assert isinstance(kept, FullScale)
    wanted = float(torch.linalg.slogdet(system.A)[1])
    low, full = (log_determinant(system, one) for one in (first, kept))
    for found in (low, full):
        assert abs(found.value - wanted) <= 4.5 * found.standard_error
    assert full.standard_error < 0.5 * low.standard_error
    assert full.steps < low.steps
    with deterministically():
        assert prepared.preconditioner.kept() is first, "which no solve before changes"


def at_once(make: Callable[[int], Preconditioner], price: float) -> tuple[PlacedSystem, Solution, Compared]:
    """A solve whose candidate has that price, in passes."""
    system, rhs = few_dimensions(), normal(700, 1)
    first = low_rank(system, 32, 0, replace(EAGER, compare=False))
    both = Compared(first, CandidatePreconditioner(make, [price], settings=replace(COMPARISON, at_once=1.0)))
    found = PreparedConjugateGradients(system, both, EAGER).solve(rhs, GOAL)
    assert found.stopped == "goal", found.events
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())
    return system, found, both


def test_one_that_is_made_in_the_time_of_a_pass_has_the_first_iterations() -> None:
    _, waited, _ = at_once(lambda size: made(few_dimensions()), 1.1)
    _, found, both = at_once(lambda size: made(few_dimensions()), 1.0)
    assert found.iterations < waited.iterations - EAGER.comparison.interval // 2
    kinds = [event.kind for event in found.events]
    assert kinds[:2] == [EventKind.PRECONDITIONER_AT_ONCE, EventKind.PRECONDITIONER_COMPARED]
    assert found.events[1].fields["kept"]
    assert "contracted with the full-scale preconditioner" in str(found.events[1])
    assert both.candidate.outcome == "kept"


class Poor(FullScale):
    """One that gains nothing in its first half solves, or ever."""

    applied, poor = 0, math.inf

    def half_solve(self, v: Tensor) -> Tensor:
        self.applied += 1
        return super().half_solve(v) if self.applied > self.poor else self.spoilt(v)

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return super().half_solve_transposed(v) if self.applied > self.poor else self.spoilt(v)

    def spoilt(self, v: Tensor) -> Tensor:
        order = torch.randperm(len(v), generator=torch.Generator().manual_seed(0))
        return v * torch.logspace(-6.0, 6.0, len(v), dtype=F64)[order].unsqueeze(-1)


def poor_of(half_solves: float) -> Callable[[int], Preconditioner]:
    system = few_dimensions()
    low = low_rank(system, 16, 0, replace(DEFAULTS, compare=False))
    assert isinstance(low, LowRank)

    def make(_: int) -> Preconditioner:
        found = Poor(system, low.factor(), FullScaleSettings())
        found.poor = half_solves
        return found

    return make


@pytest.mark.parametrize("mends", [False, True])
def test_one_that_gains_nothing_in_the_first_iterations_makes_way(mends: bool) -> None:
    """To the low rank, with float32 products as before; where that is slow, a comparison with it follows."""
    first = 1 + COMPARISON.length  # half solves of the first comparison
    _, found, both = at_once(poor_of(first if mends else math.inf), 0.5)
    trial, second = compared(found)
    assert not trial.fields["kept"]
    assert second.fields["rate"] < 1.0, "of the low rank"
    assert both.candidate.outcome == ("kept" if mends else "lost")
    assert second.fields["kept"] == mends
    between = found.events[found.events.index(trial) : found.events.index(second)]
    assert [event.kind for event in between] == [EventKind.PRECONDITIONER_COMPARED]


def test_with_deterministic_a_solve_does_not_depend_on_the_one_before() -> None:
    system, rhs, other = few_dimensions(), normal(700, 1), normal(700, 1, seed=7)
    with deterministically(True):
        prepared = ConjugateGradients(32, EAGER).prepare(system)
        first = prepared.solve(rhs, GOAL)
        prepared.solve(other, GOAL)
        again = prepared.solve(rhs, GOAL)
    assert torch.equal(first.value, again.value)
    assert compared(first) == compared(again) != []


def test_two_threads_make_it_once() -> None:
    calls = []

    def make(size: int) -> FullScale:
        calls.append(threading.get_ident())
        time.sleep(0.05)
        return made(few_dimensions(50))

    other = CandidatePreconditioner(make, [0.0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: other.preconditioner(), range(4)))
    assert len(calls) == 1
    assert all(one is found[0] for one in found)


def test_a_trial_that_reaches_the_rounding_of_the_products_has_won() -> None:
    """It ends, in fewer iterations than a trial has, where no product is sharper: that is no loss."""
    system = PlacedSystem(points(600, 1), 0.3, 1e-8)
    prepared, low = (ConjugateGradients(16, replace(EAGER, compare=one)).prepare(system) for one in (True, False))
    rhs, goal = normal(600, 2), Goal(1e-13)
    found, without = prepared.solve(rhs, goal), low.solve(rhs, goal)
    assert outcome(prepared) == "kept", found.events
    assert float(found.relative_residual.max()) < 1e-6 < float(without.relative_residual.max())
    assert found.iterations < 100


@pytest.mark.parametrize(
    ("n", "lengthscale", "rank", "interval", "seed"),
    [(900, 0.1, 16, 10, 6), (900, 0.05, 100, 10, 7)],
)
def test_where_float32_gets_nowhere_float64_comes_before_a_trial(
    n: int, lengthscale: float, rank: int, interval: int, seed: int
) -> None:
    """In float32 both would grow, which says nothing of either, nor does that the low rank fell just before: its
    residual goes up and down, 17 to 70 times as large as where it began."""
    settings = replace(EAGER, comparison=replace(COMPARISON, interval=interval, min_left=2 * interval))
    system, rhs = PlacedSystem(points(n, 1, seed=max(0, seed - 5)), lengthscale, 1e-6), normal(n, 1, seed=seed)
    prepared = ConjugateGradients(rank, settings).prepare(system)
    found = prepared.solve(rhs, Goal(1e-13, energy=1e-3))
    said = found.events
    assert found.stopped == "goal", said
    assert found.iterations < 100
    assert outcome(prepared) == "kept", said
    assert said[-1].fields["kept"]
    assert any(event.kind is EventKind.FLOAT64_PRODUCTS for event in said), said


def solved_with(make: Callable[[PlacedSystem], Preconditioner]) -> tuple[PlacedSystem, Tensor, Solution, str]:
    """Of few rows, compared with what `make` makes; the outcome last."""
    system, rhs = few_dimensions(500), normal(500, 2)
    other = CandidatePreconditioner(lambda size: make(system), [0.0], settings=COMPARISON)
    first = low_rank(system, 16, 0, replace(EAGER, compare=False))
    found = PreparedConjugateGradients(system, Compared(first, other), EAGER).solve(rhs, GOAL)
    return system, rhs, found, other.outcome


class Wrong(FullScale):
    """Not positive definite: what a comparison must not end a solve with."""

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return super().half_solve_transposed(v).flip(0)


def test_a_comparison_that_fails_ends_alone() -> None:
    system, rhs, found, outcome = solved_with(lambda system: Wrong(system, factor_of(system, 16)))
    assert found.stopped == "goal"
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())
    assert not compared(found)[-1].fields["kept"], found.events
    assert outcome == "lost"


def test_no_comparison_begins_that_would_pass_a_limit() -> None:
    system, rhs = few_dimensions(), normal(700, 2)
    deadline = Limits(deadline=Deadline.after(30.0))
    progress = Progress("test", system, GOAL, deadline, lambda r: torch.full((r.shape[1],), math.inf))
    progress.began, progress.passes = progress.began - 10.0, 10.0  # a second for each
    assert progress.has_room_for(8, 12.0)
    assert not progress.has_room_for(8, 23.0)
    prepared = ConjugateGradients(32, EAGER).prepare(system)
    found = prepared.solve(rhs, GOAL, limits=Limits(iterations=20 + COMPARISON.length - 1))
    assert found.stopped == "iterations"
    assert not compared(found)
    assert outcome(prepared) == "untried"


def test_a_quick_solve_does_not_try_it() -> None:
    system = PlacedSystem(points(800, 2), 0.5, 0.1)
    prepared, found = solved(system, normal(800, 2))
    assert not compared(found)
    assert outcome(prepared) == "untried"


def fails(error: Exception) -> Callable[[PlacedSystem], Preconditioner]:
    def make(system: PlacedSystem) -> Preconditioner:
        raise error

    return make


@pytest.mark.parametrize(
    "error",
    [
        MemoryBudgetError("too little", needed_bytes=2, available_bytes=1),
        RuntimeError("can't allocate memory"),
        ConvergenceError("no eigenvectors", iterations=0, residual=math.nan, tolerance=0.0),
    ],
    ids=["budget", "torch", "eigenvectors"],
)
def test_where_it_cannot_be_made_the_low_rank_goes_on(error: Exception) -> None:
    _, _, found, outcome = solved_with(fails(error))
    assert found.stopped == "goal"
    assert [event.kind for event in compared(found)] == [EventKind.PRECONDITIONER_REFUSED]
    assert outcome == "refused"


def test_an_error_of_the_model_is_no_refusal() -> None:
    with pytest.raises(RuntimeError, match="a fault"):
        solved_with(fails(RuntimeError("a fault")))


@pytest.mark.parametrize("iterations", [20, 24, 28])
def test_an_end_in_the_middle_keeps_the_best(iterations: int) -> None:
    """Wherever the caller ends it, before and within the trial, the answer is no worse than what came before;
    what was not compared does not count, and the next solve is as good."""
    system = PlacedSystem(points(800, 3), 0.3, 1e-6)
    rhs = normal(800, 2)
    prepared = ConjugateGradients(32, EAGER).prepare(system)
    limits = Limits(callback=lambda step: step.iteration == iterations)
    found = prepared.solve(rhs, Goal(0.0, energy=1e-9), limits=limits)
    assert found.stopped == "callback"
    assert found.iterations == iterations
    true = (rhs - system.A @ found.value).norm(dim=0) / rhs.norm(dim=0)
    assert torch.allclose(found.relative_residual, true, rtol=1e-6)
    assert bool((energy_error(system, rhs, found.value) <= found.energy_bound).all())
    assert outcome(prepared) == "untried"
    if iterations > 20:
        assert compared(found)[-1].kind is EventKind.PRECONDITIONER_UNDECIDED
    after = prepared.solve(rhs, GOAL, start=found.value)
    assert after.stopped == "goal"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_of_a_fork_makes_a_candidate_while_another_thread_of_its_parent_does() -> None:
    with candidate._MAKING.held:  # held by this thread, as by another one when a fork happens
        child = os.fork()
        if child == 0:
            free: list[bool] = []
            other = threading.Thread(target=lambda: free.append(candidate._MAKING.held.acquire(timeout=5)))
            other.start()
            other.join()
            os._exit(0 if free == [True] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def candidate_for(system: System, settings: SolveSettings = DEFAULTS) -> CandidatePreconditioner:
    compared = low_rank(system, 16, 0, settings)
    assert isinstance(compared, Compared)
    return compared.candidate


@pytest.mark.parametrize("x", [torch.tensor([[0.0], [math.inf]]), torch.tensor([[math.nan]]), torch.tensor([[1e200]])])
def test_places_that_are_none(x: Tensor) -> None:
    system = PlacedSystem(torch.zeros(len(x), 1, dtype=F64), 1.0, 0.1)
    system.x = x.double()
    made = candidate_for(system)
    assert made.preconditioner() is None
    assert "full-scale preconditioner, got larger or none" in made.why
    assert isinstance(low_rank(DenseSystem(system.K, 0.1), 1, 0, DEFAULTS), LowRank)


def test_what_does_not_fit_in_the_free_memory_is_not_begun() -> None:
    settings = replace(DEFAULTS, full_scale=(FullScaleSettings(neighbours=2**40),))
    made = candidate_for(few_dimensions(50), settings)
    assert made.preconditioner() is None
    assert "while it is made, with" in made.why
