"""What is allocated: strips in predictions, two n x n buffers in a gradient, no graph over pairs, clean failures."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import pytest
import torch

import flashgp as fgp
from flashgp.bench.memory import measure_peak_bytes
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.likelihood import DirectSettings, evaluate_likelihood
from flashgp.pairwise.torch import tile_job
from flashgp.pairwise.torch.tiles import TileSettings, TorchTiles
from flashgp.planner.variances import VarianceSettings
from inference.allocations import Allocations
from inference.plain_gp import F64, PlainGP, data, model, predicted, relative
from inside_torch import InsideTorch, Operation, makes_a_tensor, raising

MIB = 2**20


def test_the_watcher_sees() -> None:
    with Allocations(1000) as seen:
        one = torch.zeros(1000, dtype=F64)
        two = one + 1
        view = two[:10]
        del one, two
        torch.zeros(10)
        three = torch.ones(500, dtype=F64)
        del view, three
    assert seen.largest == 8000
    assert seen.peak == 16000
    assert seen.alive == 0


@contextlib.contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """The bytes of every tensor an autograd graph keeps."""
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield saved


# -- predictions -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_prediction_holds_strips_only(requires_grad: bool) -> None:
    """n x n_test would be 32 MB, n_test x n_test 3 GB; nothing passes the tile's 2 MiB or the strip's 1 MiB."""
    x, y = data(200, 3)
    posterior = model(3).condition(x, y)
    x_test, _ = data(20_000, 3, seed=3)
    x_test.requires_grad_(requires_grad)
    with torch.set_grad_enabled(False), Allocations() as seen:
        found = predicted(posterior, x_test, variances=VarianceSettings(strip_bytes=MIB))
        assert found.mean.shape == found.variance.shape == found.observation_variance.shape == (20_000,)
        found.interval()
    assert seen.largest <= 2 * MIB + 20_000 * 8


def test_strips_and_tiles_do_not_change_the_answer() -> None:
    """Strips of 1 to 600 points; all points with all rows are more than a tile."""
    x, y = data(500, 2)
    x_test, _ = data(601, seed=3)
    assert len(x) * len(x_test) > tile_job.TILE_PAIRS["cpu"]
    with torch.no_grad():
        mean, covariance = PlainGP(model(), x, y).predict(x_test)
    posterior = model().condition(x, y)
    for strip in (1, 8 * 500 * 7, 8 * 500 * 600, 2**25):
        found = predicted(posterior, x_test, variances=VarianceSettings(strip_bytes=strip))
        assert relative(found.mean, mean) < 1e-11
        assert relative(found.variance, covariance.diagonal()) < 1e-10
        assert relative(found.covariance(), covariance) < 1e-10


def test_tiles_do_not_change_likelihood_and_gradient() -> None:
    x, y = data(60, 2)
    results = []
    for tile in (2**18, 601, 60, 1):
        gp = model()
        settings = DirectSettings(TorchTiles(settings=TileSettings(pairs=tile, taped_pairs=0)), F64, None)
        with deterministically():  # leaves NumPy out
            value = evaluate_likelihood(gp, settings, x, y)
        results.append(
            (value.detach(), torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(gp.parameters()))]))
        )
    for value, gradient in results[1:]:
        assert relative(value, results[0][0]) < 1e-13
        assert relative(gradient, results[0][1]) < 1e-11


def test_a_joint_covariance_beyond_memory_is_refused(set_free_memory: Callable[..., int]) -> None:
    x, y = data(5)
    found = model().condition(x, y).predict(torch.zeros(10_000, 2, dtype=F64))
    free = set_free_memory(10**9)
    for call in (found.covariance, found.sample, lambda: found.joint_log_prob(torch.zeros(10_000, dtype=F64))):
        with pytest.raises(fgp.MemoryBudgetError, match=r"ask for fewer points, or for \.variance") as caught:
            call()
        assert caught.value.needed_bytes == (3 * 10_000**2 + 2 * 10_000 * 5) * 8
        assert caught.value.available_bytes == free


@pytest.mark.parametrize("route", ["direct", "recomputed"])
@pytest.mark.parametrize(("n", "n_test"), [(1500, 200), (300, 900)])
def test_a_joint_covariance_takes_what_was_checked(
    set_free_memory: Callable[..., int], route: str, n: int, n_test: int
) -> None:
    x, y = data(n)
    x_test, _ = data(n_test, seed=3)
    gp = model()
    posterior = gp.condition(x, y, plan=fgp.plan(gp, n=n, d=2, route=route))
    posterior.predict(x_test[:3]).covariance()
    with torch.no_grad(), Allocations(100_000) as seen:
        posterior.predict(x_test).covariance()
    set_free_memory(0)
    with pytest.raises(fgp.MemoryBudgetError) as caught:
        predicted(posterior, x_test, unchecked_bytes=0).covariance()
    # Beside it, blocks and products take their tiles, and solves some vectors for each of 64 points.
    beside = 4 * MIB + (0 if route == "direct" else 16 * 8 * 64 * n)
    assert 0.6 * caught.value.needed_bytes <= seen.peak <= 1.1 * caught.value.needed_bytes + beside


def test_a_thousand_columns_make_no_third_dimension() -> None:
    """CONTRACTS' case 8: n x n x d would be 2 GB."""
    n, d = 520, 1000
    x, y = data(n, d)
    gp = fgp.GP(fgp.kernels.Matern(2.5, torch.full((d,), 30.0)), None, fgp.likelihoods.Gaussian(0.1))
    with Allocations() as seen:
        gp.log_marginal_likelihood(x, y).backward()
        gp.condition(x, y).predict(x[:300]).variance.sum()
    assert seen.largest <= n * (d + 2) * 8, "no more than the features, d + 2 numbers a row"


# -- likelihood and gradient -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_gradient_holds_two_buffers(dtype: torch.dtype) -> None:
    """Eq. (M-34): the factor overwrites K, the inverse the factor, dL/dK the inverse."""
    n = 1100
    x, y = data(n, 3)
    gp = model(3)
    buffer = n * n * dtype.itemsize
    with Allocations(buffer // 2) as seen:
        gp.log_marginal_likelihood(x, y, dtype=dtype).backward()
    assert buffer <= seen.peak <= 2 * buffer
    assert seen.alive == 0


def _model_and_data(n: int) -> tuple[fgp.GP, torch.Tensor, torch.Tensor]:
    gp, (x, y) = model(3), data(n, 3)
    gp.log_marginal_likelihood(x, y).backward()  # what libraries keep for themselves from then on
    return gp, x, y


def _step(given: tuple[fgp.GP, torch.Tensor, torch.Tensor]) -> None:
    gp, x, y = given
    gp.log_marginal_likelihood(x, y).backward()


def test_the_operating_system_counts_the_same() -> None:
    """Eq. (M-35) for a step of `fit`, what LAPACK takes for itself included: one buffer and a few tiles.

    In a process of its own: what the C library left in pieces for other tests would come on top.
    """
    n = 1500
    buffer = n * n * 8
    peak = measure_peak_bytes(_step, setup=functools.partial(_model_and_data, n))
    assert peak <= buffer + 16 * MIB < 2 * buffer


def test_no_graph_over_pairs() -> None:
    n = 300
    x, y = data(n, 3)
    gp = model(3)
    with saved_bytes() as saved:
        gp.log_joint(x, y).backward()
        theta = {name: p.detach().expand(1, *p.shape).clone().requires_grad_() for name, p in gp.named_parameters()}
        gp.log_joint(x, y, theta=theta).sum().backward()
    assert saved
    assert max(saved) <= n * 8 * 8, "features and targets, n times a few numbers"
    with saved_bytes() as saved:
        torch.linalg.cholesky(torch.eye(n, dtype=F64, requires_grad=True))
    assert max(saved) == n * n * 8, "the hook would have seen one"


# -- budgets and injected failures -----------------------------------------------------------------------------------
def large(operation: Operation) -> bool:
    """Whether an operation makes a tensor that a workspace would count."""
    return makes_a_tensor(operation) and operation.out.untyped_storage().nbytes() > MIB


CALLS: dict[str, Callable[[fgp.GP, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "condition": lambda gp, x, y: gp.condition(x, y).representer_weights,
    "predict": lambda gp, x, y: gp.condition(x, y).predict(x).variance,
    "covariance": lambda gp, x, y: gp.condition(x, y).predict(x).covariance(),
    "gradient": lambda gp, x, y: torch.autograd.grad(
        gp.log_marginal_likelihood(x, y), gp.likelihood.noise_variance.raw
    )[0],
    "fit": lambda gp, x, y: torch.tensor(fgp.fit(gp, x, y, starts=1, max_iterations=1).history[-1].theta, dtype=F64),
}


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_memory_running_out_at_every_large_tensor(call: str) -> None:
    """CONTRACTS' case 12: a clean error with the bytes, nothing changed or left alive, and the next call works.

    A tile that could not be had is no error: half of it is taken, and the result is the same but for rounding.
    """
    x, y = data(520, 2)  # a gradient asks the workspace from more than one tile on
    gp = model()
    before = [p.detach().clone() for p in gp.parameters()]
    wanted = CALLS[call](gp, x, y)
    fail_at = refusals = passed = smaller = 0
    while True:
        fail_at += 1
        failing = InsideTorch(large, raising(lambda: torch.OutOfMemoryError("out of memory"), fail_at))
        with Allocations(MIB) as seen, failing:
            found = None
            try:
                found = CALLS[call](gp, x, y)
            except fgp.MemoryBudgetError as error:
                refusals += (error.needed_bytes > MIB, error.available_bytes) == (True, 0)
            except torch.OutOfMemoryError:
                passed += 1
        if failing.count < fail_at:
            break
        if found is not None:
            assert relative(found, wanted) < 1e-10
            smaller += 1
            del found
        assert seen.alive == 0
        assert all(torch.equal(p, q) for p, q in zip(gp.parameters(), before, strict=True))
        assert all(p.grad is None for p in gp.parameters())
    assert refusals + passed + smaller == fail_at - 1 > 1
    assert smaller > 0 or call == "gradient"  # which keeps its derivatives at this size, and has no tiles
    assert refusals > 0 or call in ("covariance", "gradient")
    assert torch.equal(found, wanted)
    assert torch.equal(CALLS[call](gp, x, y), wanted)


def test_a_workspace_enforces_its_budget() -> None:
    workspace = Workspace(3 * MIB)
    one = workspace.empty((2, MIB), torch.uint8, torch.device("cpu"))
    with pytest.raises(fgp.MemoryBudgetError, match="larger memory= or use float32") as caught:
        workspace.empty((2, MIB), torch.uint8, torch.device("cpu"))
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (2 * MIB, MIB)
    assert workspace.live_bytes == workspace.peak_bytes == 2 * MIB
    view = one[0]
    del one
    assert workspace.live_bytes == 2 * MIB, "a view keeps the storage alive"
    del view
    assert workspace.live_bytes == 0
    with workspace.hold(3 * MIB):
        assert workspace.live_bytes == 3 * MIB
    assert (workspace.live_bytes, workspace.peak_bytes, workspace.requests) == (0, 3 * MIB, 3)
    failing = Workspace(fail_at=2)
    failing.empty((2, MIB), torch.uint8, torch.device("cpu"))
    with pytest.raises(fgp.MemoryBudgetError):
        failing.empty((2, MIB), torch.uint8, torch.device("cpu"))
    assert math.isclose(failing.peak_bytes, 2 * MIB)


def test_condition_reports_what_it_took() -> None:
    x, y = data(900, 3)
    report = model(3).condition(x, y).report
    assert 900 * 900 * 8 <= report.peak_bytes <= report.predicted_bytes
    single = model(3).condition(x, y, dtype=torch.float32).report
    assert single.peak_bytes < report.peak_bytes
    assert single.predicted_bytes < report.predicted_bytes


@pytest.mark.parametrize("call", ["condition", "predict", "fit"])
def test_reports_say_that_a_tile_was_halved(call: str) -> None:
    x, y = data(600, 2)
    post = model().condition(x, y)

    def of_a_tile(operation: Operation) -> bool:
        return makes_a_tensor(operation) and operation.out.shape == (436, 600)

    failing = InsideTorch(of_a_tile, raising(lambda: torch.OutOfMemoryError("CUDA out of memory"), 1))
    with failing:
        if call == "condition":
            report = model().condition(x, y).report
        elif call == "fit":
            report = fgp.fit(model(), x, y, starts=1, max_iterations=1).report
        else:
            found = post.predict(x)
            assert relative(found.mean, torch.zeros(1, dtype=F64) + post.predict(x).mean) < 1e-12
            report = found.report
            assert report.peak_bytes > 0
    assert failing.count
    assert of_kind(report.events, EventKind.TILES_HALVED) == [Event(EventKind.TILES_HALVED, rows=218)]
