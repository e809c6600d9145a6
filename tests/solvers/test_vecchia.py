"""The preconditioner of near rows, eq. (M-121): what it is, what it is worth, and when a solve takes it."""

import copy
import math
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.errors import MemoryBudgetError
from flashgp.foundations.events import Event, EventKind, Obstacle, StopReason, of_kind
from flashgp.inference.system import CovarianceSystem
from flashgp.solvers import ConjugateGradients, Goal, Limits, Solution
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients, _Run
from flashgp.solvers.iterative.progress import Progress
from flashgp.solvers.preconditioners import candidate as second
from flashgp.solvers.preconditioners.candidate import near_rows
from flashgp.solvers.preconditioners.vecchia import Vecchia, making_bytes, vecchia_bytes
from flashgp.solvers.settings import VecchiaSettings
from solvers.dense_system import F64, DenseSystem, energy_error, matern, normal, points

EPS = torch.finfo(F64).eps
SETTINGS = VecchiaSettings()


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


def near(system: PlacedSystem, neighbours: int = 48) -> Vecchia:
    return Vecchia(system, system.scaled_inputs(), VecchiaSettings(neighbours=neighbours))


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
    other = Vecchia(system, system.scaled_inputs(), VecchiaSettings(neighbours=9), seed=1)
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
    n = 6000
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=0.3)
    system = CovarianceSystem(kernel(points(n, 2)), torch.tensor([0.1], dtype=F64))
    places = system.scaled_inputs()
    assert places is not None
    found = Vecchia(system, places)
    assert 0.9 * vecchia_bytes(n, SETTINGS) < system.workspace.live_bytes <= vecchia_bytes(n, SETTINGS)
    assert system.workspace.peak_bytes <= making_bytes(n, SETTINGS)
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
    places = system.scaled_inputs()
    assert places is not None
    assert torch.allclose(
        torch.cdist(places, places), torch.cdist(x / torch.tensor([0.5, 2.0]), x / torch.tensor([0.5, 2.0]))
    )
    assert CovarianceSystem(fgp.kernels.Linear()(x), torch.tensor([0.1], dtype=F64)).scaled_inputs() is None


# -- what it is worth, and when a solve takes it ---------------------------------------------------------------------
@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few rows would never wait for near rows: as if these cost nothing."""
    monkeypatch.setattr(second, "MAKING_PAIRS", 0)


GOAL = Goal(1e-13, energy=1e-5)


@pytest.mark.parametrize("gain", [1.01, 1.0, 0.9999, 0.98])
def test_a_plateau_is_not_taken_for_the_rest_of_a_solve(gain: float) -> None:
    """Ten iterations that gain hardly anything are seen beside the ten before."""
    decay = [0.5**i for i in range(11)]
    plateau = decay + [decay[-1] * gain**i for i in range(1, 11)]
    assert second.lately(plateau) == pytest.approx(gain)
    assert second.usually(plateau) == pytest.approx((0.5 * gain) ** 0.5)
    price = second.making_passes(20_000)
    assert not second.is_slow(second.usually(plateau), 2.0, price)
    assert second.is_slow(second.lately(plateau), 1e3, price), "by the last ten alone"


def test_what_is_slow() -> None:
    price = second.making_passes(20_000)
    assert second.usually([1.0] * 10 + [0.5**i for i in range(11)]) == pytest.approx(0.5), "the last ten, if they gain"
    assert second.usually([0.99**i for i in range(21)]) == pytest.approx(0.99)
    assert second.usually([1.0] * 21) == 1.0
    assert second.is_slow(1.0, 2.0, second.making_passes(300)), "nobody knows how many are left"
    assert second.is_slow(0.99, 1e6, price)
    assert not second.is_slow(0.5, 1e6, price)
    assert not second.is_slow(1.01, 0.9, 0.0)


def few_dimensions(n: int = 1200) -> PlacedSystem:
    return PlacedSystem(points(n, 2), 0.03, 1e-3)


def solved(system: DenseSystem, rhs: Tensor, *, rank: int = 64) -> tuple[PreparedConjugateGradients, Solution]:
    prepared = ConjugateGradients(rank=rank).prepare(system)
    return prepared, prepared.solve(rhs, GOAL)


def outcome(prepared: PreparedConjugateGradients) -> str:
    assert prepared.second is not None
    return prepared.second.outcome


def of_near_rows(found: Solution) -> list[Event]:
    kinds = (
        EventKind.PRECONDITIONER_COMPARED, EventKind.PRECONDITIONER_UNDECIDED, EventKind.PRECONDITIONER_REFUSED,
    )  # fmt: skip
    return [event for event in found.events if event.kind in kinds]


@pytest.mark.usefixtures("eager")
def test_a_slow_solve_in_few_dimensions_takes_it() -> None:
    system, rhs = few_dimensions(), normal(1200, 2)
    prepared, found = solved(system, rhs)
    assert found.stopped == "goal"
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())
    (said,) = of_near_rows(found)
    assert said.fields["kept"]
    assert outcome(prepared) == "kept"
    assert prepared.preconditioner.slack == 1.0  # which bounds the error still
    _, low = solved(DenseSystem(system.K, 1e-3), rhs)
    assert low.stopped == "goal"
    assert not of_near_rows(low)
    assert 2 * found.iterations < low.iterations
    again = prepared.solve(normal(1200, 2, seed=5), GOAL)  # the next solve begins with it
    assert not of_near_rows(again)
    assert again.iterations < found.iterations - 15


@pytest.mark.usefixtures("eager")
def test_in_many_dimensions_the_low_rank_goes_on() -> None:
    system = PlacedSystem(points(1500, 8), 3.0, 1e-5)
    rhs = normal(1500, 1)
    prepared, found = solved(system, rhs, rank=32)
    assert found.stopped == "goal"
    assert not of_near_rows(found)[-1].fields["kept"], found.events
    assert outcome(prepared) == "lost"
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())
    _, low = solved(DenseSystem(system.K, 1e-5), rhs, rank=32)
    assert found.iterations <= low.iterations + 30, (found.iterations, low.iterations)
    assert not of_near_rows(prepared.solve(normal(1500, 1, seed=4), GOAL))


@pytest.mark.usefixtures("eager")
def test_with_deterministic_a_solve_does_not_depend_on_the_one_before() -> None:
    system, rhs, other = few_dimensions(), normal(1200, 1), normal(1200, 1, seed=7)
    with deterministically(True):
        prepared = ConjugateGradients(rank=64).prepare(system)
        first = prepared.solve(rhs, GOAL)
        prepared.solve(other, GOAL)
        again = prepared.solve(rhs, GOAL)
    assert torch.equal(first.value, again.value)
    assert of_near_rows(first) == of_near_rows(again) != []


def test_with_deterministic_its_price_is_that_of_making_it_whether_it_is_made_or_not() -> None:
    """Else a solve that is not slow enough to make near rows would take those that another one has made."""
    system = few_dimensions()
    made = near_rows(system, 0)
    assert made is not None
    with deterministically(True):
        price = made.price
        assert price == second.MAKING_PAIRS / 1200
        assert made.made() is not None
        made.settle(0.1, 0.9)
        assert made.price == price
        assert made.may_be_tried(F64)
        assert made.begun_with() is None
    assert made.price == 0.0
    assert made.begun_with() is not None


@pytest.mark.usefixtures("eager")
def test_what_was_lost_is_not_kept_in_memory() -> None:
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=0.3)
    system = CovarianceSystem(kernel(points(8000, 2)), torch.tensor([0.1], dtype=F64))
    made = near_rows(system, 0)
    assert made is not None
    before = system.workspace.live_bytes
    assert made.made() is not None
    assert system.workspace.live_bytes > before
    assert not made.settle(0.9, 0.9)
    assert system.workspace.live_bytes == before


def test_two_threads_make_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def make() -> Vecchia:
        calls.append(threading.get_ident())
        time.sleep(0.05)
        return near(few_dimensions(50))

    made = second.Second(make, 50)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: made.made(), range(4)))
    assert len(calls) == 1
    assert all(one is found[0] for one in found)


@pytest.mark.usefixtures("eager")
def test_a_trial_that_reaches_the_rounding_of_the_products_has_won() -> None:
    """It ends, in fewer iterations than a trial has, where no product is sharper: that is no loss."""
    system = PlacedSystem(points(1000, 1), 0.3, 1e-8)
    prepared, low = (ConjugateGradients(rank=16, near=near).prepare(system) for near in (True, False))
    rhs, goal = normal(1000, 2), Goal(1e-13)
    found, without = prepared.solve(rhs, goal), low.solve(rhs, goal)
    assert outcome(prepared) == "kept", found.events
    assert float(found.relative_residual.max()) < 1e-6 < float(without.relative_residual.max())
    assert found.iterations < 100


@pytest.mark.usefixtures("eager")
def test_where_float32_gets_nowhere_float64_comes_before_a_trial() -> None:
    """In float32 both would grow, which says nothing of either."""
    system, rhs = PlacedSystem(points(1500, 1), 0.1, 1e-6), normal(1500, 1)
    prepared = ConjugateGradients(rank=16).prepare(system)
    found = prepared.solve(rhs, Goal(1e-13, energy=1e-3))
    said = found.events
    assert found.stopped == "goal", said
    assert found.iterations < 100
    assert outcome(prepared) == "kept", said
    (event,) = of_kind(said, EventKind.FLOAT64_PRODUCTS)
    assert event.fields["obstacle"] is Obstacle.NO_GAIN
    assert said[-1].kind is EventKind.PRECONDITIONER_COMPARED


def test_a_trial_is_judged_by_true_residuals_of_the_columns_that_are_open() -> None:
    every = torch.arange(4)
    trial = second.Trial(0.99)
    assert trial.iterations(30) == 0
    trial.begin(torch.tensor([0, 2]), torch.tensor([0.5, 9.0, 0.1, 9.0], dtype=F64), 0.5, 20, torch.float32)
    assert trial.iterations(28) == 8
    after = torch.tensor([0.5 * 2.0**-8, 9.0, 1e-9, 9.0], dtype=F64)
    assert trial.outcome(after, every, 28) == pytest.approx(0.5)
    assert trial.outcome(torch.tensor([0.5, 9.0, 1e-9, 9.0], dtype=F64), every, 28) == 1.0
    done_early = torch.tensor([0.3, 9.0, 0.1 * 2.0**-8, 9.0], dtype=F64)  # met its goal, and stays
    assert trial.outcome(done_early, torch.tensor([2]), 28) == pytest.approx(0.5)
    assert trial.outcome(done_early, torch.tensor([], dtype=torch.int64), 28) == pytest.approx(0.5)
    assert trial.blames_rounding(1.0, 2.1)
    assert not trial.blames_rounding(1.0, 1.9), "a plateau"
    assert not trial.blames_rounding(0.9, 2.1)


@pytest.mark.usefixtures("eager")
def test_a_trial_begins_anew_with_sharper_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 products are found out in the middle of it, what they made of near rows does not count."""
    begun = []
    begin = second.Trial.begin

    def seen(self: second.Trial, *args: object) -> None:
        begun.append((args[3], args[4]))
        begin(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(second.Trial, "begin", seen)
    system, rhs = few_dimensions(), normal(1200, 1)
    prepared = ConjugateGradients(rank=64).prepare(system)
    judged = _Run._judge

    def judge(self: _Run, before: Tensor, claimed: Tensor, sound: bool) -> str | None:
        if self.trial is not None and self.trial.running and self.dtype == torch.float32:
            return self._harder(Obstacle.DRIFTED, StopReason.STAGNATED)
        return judged(self, before, claimed, sound)

    monkeypatch.setattr(_Run, "_judge", judge)
    found = prepared.solve(rhs, GOAL)
    assert found.stopped == "goal"
    assert outcome(prepared) == "kept", found.events
    assert len(begun) == 2, found.events
    assert begun[1][0] > begun[0][0]
    assert {dtype for _, dtype in begun} == {torch.float32}, "what a lost one goes back to"


def test_a_loss_is_remembered_by_the_precision_of_products() -> None:
    """Once for a matrix: what lost with sharp products is not made again for each solve."""
    made = second.Second(lambda: near(few_dimensions(50)), 50)
    assert made.may_be_tried(torch.float32)
    made.settle(1.0, 0.99, rough=True)
    assert [made.may_be_tried(dtype) for dtype in (torch.float32, F64)] == [False, True]
    made.settle(1.0, 0.99)
    assert [made.may_be_tried(dtype) for dtype in (torch.float32, F64)] == [False, False]
    with deterministically(True):
        assert made.may_be_tried(torch.float32)


class Fading(Vecchia):
    """Quick for a few solves, and then no preconditioner."""

    solves = 0

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        type(self).solves += 1
        found = super().half_solve_transposed(v)
        return found if type(self).solves < 3 else found.flip(0)


@pytest.mark.usefixtures("eager")
def test_a_trial_that_breaks_down_after_a_quick_start_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    system, rhs = few_dimensions(600), normal(600, 2)
    monkeypatch.setattr(second, "Vecchia", Fading)
    Fading.solves = 0
    prepared, found = solved(system, rhs, rank=16)
    assert found.stopped == "goal"
    assert outcome(prepared) == "lost", found.events


def test_it_is_pickled_and_copied_with_what_holds_it() -> None:
    """Posteriors are, before and after a trial."""
    gp = fgp.GP(fgp.kernels.Matern(nu=1.5, lengthscale=0.3), fgp.means.Zero(), fgp.likelihoods.Gaussian(0.01))
    x = points(300, 2)
    post = gp.condition(x, torch.sin(9.0 * x.sum(1)), solver="cg")
    assert post.state.solves is not None
    ready = post.state.solves.prepared()
    assert isinstance(ready, PreparedConjugateGradients)
    assert ready.second is not None
    x_test = points(20, 2, seed=3)
    wanted = post.predict(x_test).mean
    for taken in (False, True):
        made = ready.second.made() if taken else None
        for again in (pickle.loads(pickle.dumps(post)), copy.deepcopy(post)):
            assert torch.equal(again.predict(x_test).mean, wanted)
            if made is not None:
                v = normal(300, 2)
                other = again.state.solves.method.ready.second.made()
                assert torch.equal(other.half_solve(v), made.half_solve(v))
                assert torch.equal(other.half_solve_transposed(v), made.half_solve_transposed(v))
                assert other.log_determinant == made.log_determinant


@pytest.mark.parametrize("x", [torch.tensor([[0.0], [math.inf]]), torch.tensor([[math.nan]]), torch.tensor([[1e200]])])
def test_places_that_are_none(x: Tensor) -> None:
    system = PlacedSystem(torch.zeros(len(x), 1, dtype=F64), 1.0, 0.1)
    system.x = x.double()
    made = near_rows(system, 0)
    assert made is not None
    assert made.made() is None
    assert "near rows, got larger or none" in made.why
    assert near_rows(DenseSystem(system.K, 0.1), 0) is None


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("limit", ["time", "iterations"])
def test_no_trial_begins_that_would_pass_a_limit(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, rhs = few_dimensions(), normal(1200, 2)
    if limit == "iterations":
        limits = Limits(iterations=20 + second.TRIAL - 1)
    else:
        deadline = Limits(deadline=time.perf_counter() + 30.0)
        progress = Progress("test", system, rhs, GOAL, deadline, None, lambda r: torch.full((r.shape[1],), math.inf))
        progress.began, progress.passes = progress.began - 10.0, 10.0  # a second for each
        assert progress.has_room_for(8, 12.0)
        assert not progress.has_room_for(8, 23.0)
        monkeypatch.setattr(Progress, "has_room_for", lambda *_: False)
        limits = Limits(iterations=40)
    prepared = ConjugateGradients(rank=64).prepare(system)
    found = prepared.solve(rhs, GOAL, limits=limits)
    assert found.stopped == "iterations"
    assert not of_near_rows(found)
    assert outcome(prepared) == "untried"


def test_a_quick_solve_does_not_try_it() -> None:
    system = PlacedSystem(points(800, 2), 0.5, 0.1)
    prepared, found = solved(system, normal(800, 2))
    assert not of_near_rows(found)
    assert outcome(prepared) == "untried"


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("error", ["budget", "torch", "free"])
def test_without_memory_for_it_the_low_rank_goes_on(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system = few_dimensions()
    prepared = ConjugateGradients(rank=64).prepare(system)
    if error == "budget":
        system.workspace.budget_bytes = system.workspace.live_bytes + 2**20
    elif error == "free":
        monkeypatch.setattr(second, "available_bytes", lambda _: 2**20)
    else:
        monkeypatch.setattr(system, "blocks", lambda _: (_ for _ in ()).throw(RuntimeError("can't allocate memory")))
    found = prepared.solve(normal(1200, 2), GOAL)
    assert found.stopped == "goal"
    assert of_near_rows(found)[0].kind is EventKind.PRECONDITIONER_REFUSED
    assert outcome(prepared) == "refused"


@pytest.mark.usefixtures("eager")
def test_an_error_of_the_model_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    system = few_dimensions()
    monkeypatch.setattr(system, "blocks", lambda _: (_ for _ in ()).throw(RuntimeError("a fault")))
    with pytest.raises(RuntimeError, match="a fault"):
        ConjugateGradients(rank=64).prepare(system).solve(normal(1200, 2), GOAL)


class Wrong(Vecchia):
    """Not positive definite: what a trial must not end a solve with."""

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        return super().half_solve_transposed(v).flip(0)


@pytest.mark.usefixtures("eager")
def test_a_trial_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    system, rhs = few_dimensions(600), normal(600, 2)
    monkeypatch.setattr(second, "Vecchia", Wrong)
    prepared, found = solved(system, rhs, rank=16)
    assert found.stopped == "goal"
    assert bool((energy_error(system, rhs, found.value) <= 1e-5).all())
    assert not of_near_rows(found)[-1].fields["kept"], found.events
    assert outcome(prepared) == "lost"


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("iterations", [19, 20, 21, 24, 27, 28, 29, 30])
def test_an_end_in_the_middle_keeps_the_best(iterations: int) -> None:
    """Wherever the caller ends it, before, within and after the trial, the answer is no worse than what came before;
    what was not compared does not count, and the next solve is as good."""
    system = PlacedSystem(points(1500, 3), 0.3, 1e-4)
    rhs = normal(1500, 2)
    prepared = ConjugateGradients(rank=64).prepare(system)
    limits = Limits(callback=lambda step: step.iteration == iterations)
    found = prepared.solve(rhs, Goal(0.0, energy=1e-9), limits=limits)
    assert found.stopped == "callback"
    assert found.iterations == iterations
    true = (rhs - system.A @ found.value).norm(dim=0) / rhs.norm(dim=0)
    assert torch.allclose(found.relative_residual, true, rtol=1e-6)
    assert bool((energy_error(system, rhs, found.value) <= found.energy_bound).all())
    assert outcome(prepared) == ("kept" if iterations > 28 else "untried")
    if 20 < iterations <= 28:
        assert of_near_rows(found)[-1].kind is EventKind.PRECONDITIONER_UNDECIDED
    after = prepared.solve(rhs, GOAL, start=found.value)
    assert after.stopped == "goal"
