"""What variances take where there is no float64 factor: bytes, seconds, and who gives them, eq. (M-107)."""

import itertools
import re

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.workspace import Workspace
from flashgp.inference.predict.variance_solves import explained
from flashgp.planner.problem import Features, ProductProblem
from flashgp.planner.products import ProductPlan, product_prices
from flashgp.planner.variances import DEFAULT_VARIANCES, strip_points

F64 = torch.float64
GP = fgp.GP(fgp.kernels.Matern(1.5))


def plan(n: int, n_test: int, **options: object) -> ProductPlan:
    return fgp.plan(GP, n=n, d=3, n_test=n_test, memory="1TiB", deterministic=True, **options)


def product_seconds(n: int, route: str, dtype: torch.dtype, passes: int) -> tuple[int, float]:
    with deterministically():  # as the plans are: a compiler's memory counts whether it was needed already or not
        problem = ProductProblem(GP.kernel.form, n, None, Features(3), t=64, products=passes, dtype=dtype)
        prices = product_prices(problem, torch.device("cpu"), BUILT_IN)
    best = min((p for p in prices if p.route == route), key=lambda p: p.seconds)
    return best.peak_bytes, best.seconds


@pytest.mark.parametrize("route", ["stored", "recomputed", "refined"])
def test_bytes_and_seconds_of_exact_solves(route: str) -> None:
    """Eq. (M-107): a block of solves for every 64 points, beside the mean."""
    n, n_test = 5000, 640
    found, mean = (plan(n, n_test, variance=asked, conditioned=route) for asked in ("exact", False))
    product_bytes, exact = product_seconds(n, "recomputed", F64, 4)
    if route == "refined":
        solving = 2 * 4 * n * n * 64 / BUILT_IN.cpu.gemm_float64
    else:
        solving = product_seconds(n, route, torch.float32, 60)[1]
    assert found.seconds - mean.seconds == pytest.approx(10 * (solving + exact))
    own = 8 * n * 13 * 64 + product_bytes + 8 * (n + n_test) * 3
    assert own > mean.peak_bytes
    assert found.peak_bytes == own + 8 * (12 + 3) * n_test
    assert found.notes[0] == "variance by solves, 64 points at a time"
    fewer = plan(n, n_test, variance="exact", conditioned=route, passes=10)
    assert (fewer.seconds < found.seconds) == (route != "refined")


def test_the_way_to_variances_is_in_the_plan() -> None:
    """A factor where there is one; solves up to a minute; samples beyond, which hardly depend on the points."""
    direct = plan(5000, 640, conditioned="direct")
    assert direct == plan(5000, 640), "the route that is taken now"
    assert not any("variance" in note for note in direct.notes)
    low, high = 64, 10**7
    while high - low > 64:
        middle = (low + high) // 2
        exact = plan(20_000, middle, conditioned="recomputed").notes[0].startswith("variance by solves")
        low, high = (middle, high) if exact else (low, middle)
    beside = [plan(20_000, m, variance=v, conditioned="recomputed").seconds for m in (low, high) for v in (True, False)]
    assert beside[0] - beside[1] <= DEFAULT_VARIANCES.sampled_seconds
    sampled = plan(20_000, 100 * high, conditioned="recomputed")
    assert re.match(
        r"variance from (64|16|8) samples, with a standard error: exact solves would take", sampled.notes[0]
    )
    exact = plan(20_000, 100 * high, conditioned="recomputed", variance="exact")
    assert sampled.seconds < exact.seconds
    asked = plan(20_000, 640, conditioned="direct", variance="sampled")
    assert asked.notes[0] == "variance from 64 samples, with a standard error"
    assert plan(10**7, 10**5).notes[0].startswith("variance from 8 samples"), "no factor of so many rows fits"
    opaque = fgp.GP(fgp.kernels.Custom(lambda a, b: torch.exp(-(a - b).square().sum())))
    many = fgp.plan(opaque, n=20_000, d=3, n_test=100 * high, memory="1TiB", conditioned="recomputed")
    assert many.notes[0].startswith("variance by solves"), "no random features"
    with pytest.raises(fgp.DomainError, match="`conditioned` must be one of direct, refined, stored, recomputed"):
        plan(50, 5, conditioned="quickly")
    with pytest.raises(fgp.DomainError, match="`variance` must be one of auto, exact, sampled"):
        plan(50, 5, variance="quick")


def posterior(n: int, route: str) -> tuple[fgp.Posterior, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, x_test = (torch.rand(m, 3, generator=generator, dtype=F64) for m in (n, 130))
    return GP.condition(x, x.sum(-1), plan=fgp.plan(GP, n=n, d=3, route=route)), x_test


@pytest.mark.parametrize("route", ["stored", "recomputed"])
def test_predictions_follow_the_plan_of_their_solves(route: str) -> None:
    """Predicted and measured bytes stand side by side, and what solves took is measured."""
    found, x_test = posterior(1500, route)
    prediction = found.predict(x_test, memory="1GiB")
    prediction.variance  # noqa: B018
    report = prediction.report
    assert report.plan.notes[0] == "variance by solves, 64 points at a time"
    assert report.predicted_bytes == report.plan.peak_bytes
    assert report.predicted_bytes > 8 * 1500 * 13 * 64
    assert 8 * 8 * 1500 * 64 < report.peak_bytes <= 1.1 * report.predicted_bytes, "what a solver holds is counted"
    with pytest.raises(fgp.MemoryBudgetError, match=r"`memory` allows 5\.0 MiB"):
        found.predict(x_test, memory=5 * 2**20).variance  # noqa: B018


def test_solves_of_a_prediction_are_held_to_its_budget() -> None:
    found, x_test = posterior(400, "recomputed")
    solves, workspace = found.state.solves, Workspace()
    cross, prior = GP.kernel.operator(found.x, x_test[:64]).to_dense().detach(), torch.ones(64, dtype=F64)
    own = solves.system.workspace
    assert own.budget_bytes is None
    with pytest.raises(fgp.MemoryBudgetError), solves.charged_to(workspace, 10**6):
        explained(solves, cross, prior)
    assert own.budget_bytes is None
    with solves.charged_to(workspace, 10**8):
        explained(solves, cross, prior)
    assert 8 * 8 * 400 * 64 <= workspace.peak_bytes <= 10**8


def test_a_strip_is_a_64th_of_the_rows_of_a_large_factor() -> None:
    """(M-59): 32 MiB, and more points where so few columns would make triangular solves slow; without a jump. Where
    there is no room for them the least will do: a prediction that fits is not refused."""
    room = float("inf")
    assert [strip_points(n, 1, room) for n in (0, 1000, 8000, 36_000)] == [2**22, 4194, 524, 562]
    assert strip_points(36_000, 4, room) == 2**22 // (4 * 36_000)
    assert strip_points(36_000) == strip_points(36_000, 1, 12 * 8 * 36_000 * 100) == 2**22 // 36_000
    rooms = [strip_points(36_000, 1, 12 * 8 * 36_000 * points) for points in range(600)]
    assert rooms == [min(562, max(116, points)) for points in range(600)], "no jump as the budget grows"
    points = [strip_points(n, 1, room) for n in range(10_000, 40_000, 50)]
    assert max(abs(a - b) for a, b in itertools.pairwise(points)) <= 4
    assert min(points) >= 250
