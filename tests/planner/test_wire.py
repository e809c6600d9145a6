"""Plans of ranks: bytes that rank 0 sends, by formulas written out; arithmetic and memory, which are shared."""

import itertools
import json
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.plan import TRIED
from flashgp.inference.plan_settings import RowCounts, conditioning_problem
from flashgp.planner.approximate import ApproximatePrice, ApproximateWork
from flashgp.planner.full_scale_price import FullScalePrice
from flashgp.planner.plan import Plan, Sizes
from flashgp.planner.problem import PlanSettings
from flashgp.planner.sparse_price import SparsePrice
from flashgp.planner.wire import step_wire
from flashgp.processes.shares import too_many_ranks

GP = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
PARAMETERS = sum(p.numel() for p in GP.parameters())


def plan(n: int = 60_000, d: int = 3, **options: Any) -> Any:
    return fgp.plan(GP, n=n, d=d, **{"memory": "4GiB", "profile": BUILT_IN, **options})


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bytes_of_a_solve_over_ranks(ranks: int) -> None:
    """Eqs. (M-226), (M-227) and (M-228), written out."""
    n, d = 60_000, 3
    found, k = plan(n, d, solver="cg", ranks=ranks), 512
    assert (found.rank, found.shared is not None) == (k, True)
    share, reduced = -(-n // ranks), 2.0 * (ranks - 1) / ranks
    table = (ranks - 1) * share * 8 * (d + 1)
    one_pass = 2 * (ranks - 1) * share * 4 + reduced * 8 * (2 * k + 5) + (ranks - 1) * (ranks + 2) * 8
    low_rank = reduced * 8 * k * (2 * k + 128) + (ranks - 1) * 8 * k * (k + 1)
    sent = table + low_rank + 36 * one_pass + (ranks - 1) * share * 8
    assert found.shared.sent_bytes == pytest.approx(sent, rel=1e-6)


def test_a_step_of_a_fit_over_ranks() -> None:
    """Eq. (M-229), written out; a fit takes some of them."""
    n, ranks, k, t = 60_000, 4, 512, 9
    problem = conditioning_problem(GP, RowCounts(n, 3), PlanSettings(ranks=ranks))
    share, reduced = n // ranks, 2.0 * (ranks - 1) / ranks
    one_pass = 2 * (ranks - 1) * share * 4 * t + reduced * 8 * t * (2 * k + 5 * t)
    one_pass += (ranks - 1) * (ranks + 2) * 8 * t**2
    low_rank = reduced * 8 * k * (2 * k + 128) + (ranks - 1) * 8 * k * (k + 1)
    sent = low_rank + 33 * one_pass + 2 * (ranks - 1) * share * 8 * t + reduced * 4 * n * 3
    assert step_wire(problem, t, k, 33) == pytest.approx(sent, rel=1e-6)
    assert plan(n, 3, solver="cg", ranks=ranks).shared.fit_sent_bytes > 5 * sent


def test_more_ranks_take_less_memory_and_send_more() -> None:
    plans = [plan(solver="cg", ranks=ranks) for ranks in (1, 2, 4, 8)]
    assert plans[0].shared is None
    assert "ranks" not in dict(plans[0].lines())
    assert all(a.peak_bytes > b.peak_bytes for a, b in itertools.pairwise(plans))
    assert all(a.shared.sent_bytes < b.shared.sent_bytes for a, b in itertools.pairwise(plans[1:]))
    for one in plans[1:]:
        assert Plan.from_json(one.to_json()) == one
        assert "time on the network not counted" in dict(one.lines())["ranks"]
        assert one.peak_bytes < plans[0].peak_bytes


def test_a_factor_sends_the_table_alone() -> None:
    """(M-228): every rank makes the factor."""
    found = plan(1000, 3, ranks=4)
    assert found.route == "direct"
    assert found.shared.sent_bytes == 3 * 250 * 8 * 4
    assert found.seconds == plan(1000, 3).seconds


def test_an_exact_fit_sends_its_evaluations() -> None:
    """(M-229): one number of the variance, one of the lengthscale, one of the noise, and one of the mean at most."""
    found = plan(1000, 3, ranks=4)
    evaluations = (found.shared.fit_sent_bytes - found.shared.sent_bytes) / (3 * 8 * (2 * PARAMETERS + 1))
    assert 20.0 < evaluations < 300.0


@pytest.mark.parametrize("kind", [None, "full_scale"])
def test_plans_of_before_have_seconds_of_a_network_that_are_left_out(kind: str | None) -> None:
    found = plan(ranks=2, approximation=kind)
    values = json.loads(found.to_json())
    values["shared"] |= {"collectives": "published", "wire_seconds": 0.5, "fit_wire_seconds": 2.0}
    assert type(found).from_json(json.dumps(values)) == found


@pytest.mark.parametrize("beside", [{"n_test": 5}, {"batch": 3}, {"ranks": 0}])
def test_ranks_are_of_fits_of_one_model(beside: dict[str, Any]) -> None:
    with pytest.raises(DomainError, match="`ranks`"):
        plan(1000, **{"ranks": 2, **beside})


@pytest.mark.parametrize("kind", [None, "full_scale", "sparse", "auto"])
def test_more_ranks_than_rows_are_refused_as_a_fit_refuses_them(kind: str | None) -> None:
    with pytest.raises(DomainError) as refused:
        plan(10, ranks=20, approximation=kind)
    assert str(refused.value) == str(too_many_ranks("group", 20, 10)).replace("group", "ranks")
    assert "got 20 ranks and 10 rows" in str(refused.value)
    assert plan(10, ranks=10, approximation=kind) is not None


# -- approximations --------------------------------------------------------------------------------------------------
def price(kind: type[ApproximatePrice], n: int, ranks: int, sizes: Sizes) -> ApproximatePrice:
    problem = conditioning_problem(GP, RowCounts(n, 3), PlanSettings(ranks=ranks))
    return kind(problem, BUILT_IN, torch.device("cpu"), sizes, ApproximateWork())


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bytes_of_a_full_scale_model_over_ranks(ranks: int) -> None:
    """Eq. (M-231), written out: table, blocks with neighbours and points, sums; a gradient of all rows."""
    n, d, m, b, q = 60_000, 3, 200, 32, 96
    sizes = {"inducing": m, "neighbours": q}
    found = plan(n, d, approximation="full_scale", ranks=ranks, **sizes)
    assert (found.block, found.shared.ranks) == (b, ranks)
    sets, reduced = n // b, 2.0 * (ranks - 1) / ranks
    near = (ranks - 1) * 8 * (sets * b + -(-sets // ranks) * q + m * d)
    sums = reduced * 8 * (m * m + m + 3)
    sent = (ranks - 1) * -(-n // ranks) * 8 * (d + 1) + near + sums
    assert found.shared.sent_bytes == pytest.approx(sent, rel=1e-6)
    width, parameters = 3, PARAMETERS
    step = sums + reduced * 8 * (n * (2 + width) + m * width + parameters) + (ranks - 1) * 8 * (2 * parameters + 1)
    assert price(FullScalePrice, n, ranks, Sizes(m, b, q, 0)).step(n).sent == pytest.approx(step, rel=1e-6)
    assert found.shared.fit_sent_bytes > 16 * step


@pytest.mark.parametrize("ranks", [2, 8])
def test_bytes_of_inducing_points_over_ranks(ranks: int) -> None:
    """Eq. (M-231), written out: a sample, points, sums."""
    n, d, m = 60_000, 3, 200
    found = plan(n, d, approximation="sparse", ranks=ranks, inducing=m)
    reduced = 2.0 * (ranks - 1) / ranks
    sums = reduced * 8 * (m * m + m + 6)
    sent = (ranks - 1) * 8 * (20 * m * (d + 3) + m * d) + sums
    assert found.shared.sent_bytes == pytest.approx(sent, rel=1e-6)
    step = sums + reduced * 8 * (m * 3 + 2 * PARAMETERS) + (ranks - 1) * 8 * (2 * PARAMETERS + 1)
    sparse = price(SparsePrice, n, ranks, Sizes(m, 0, 0, 0))
    assert sparse.step(n).sent == pytest.approx(step, rel=1e-6)
    assert sparse.step(n // 2).sent == 0.0  # of the sample, which every rank searches by itself
    assert found.shared.fit_sent_bytes > 16 * step


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
def test_more_ranks_share_the_work_of_an_approximation(kind: str) -> None:
    """Eq. (M-230): a step of as many ranks is that part of one process's, beside what each of them does; memory is no
    more than that of fewer."""
    sizes = {"inducing": 64, "neighbours": 24} if kind == "full_scale" else {"inducing": 64}
    plans = [plan(2_000_000, approximation=kind, ranks=ranks, memory="64GiB", **sizes) for ranks in (1, 2, 4, 16)]
    assert plans[0].shared is None
    for one, ranks in zip(plans[1:], (2, 4, 16), strict=True):
        share = one.fit_step_seconds / plans[0].fit_step_seconds
        # A of the rows that blocks may need, (24 + 8) / 8 times their own.
        assert 0.99 / ranks < share < (2.2 if kind == "full_scale" else 1.01) / ranks
        assert one.seconds < plans[0].seconds
        assert type(one).from_json(one.to_json()) == one
        assert f"{ranks}: bytes and seconds are those of each of them" in dict(one.lines())["ranks"]
    assert all(a.training_bytes >= b.training_bytes for a, b in itertools.pairwise(plans[1:]))
    assert plans[-1].training_bytes < 0.7 * plans[0].training_bytes


def test_auto_over_ranks_is_planned_from_their_share() -> None:
    """What one process has no time for, many may have; and a plan offers what its ranks would take."""
    options = {"memory": "64GiB"}
    alone = plan(1_000_000, approximation="full_scale", inducing=64, neighbours=24, **options)
    asked = {"approximation": "auto", "time_limit": 0.6 * alone.fit_seconds, **options}
    one, many = (plan(1_000_000, d=4, ranks=ranks, **asked) for ranks in (1, 64))
    assert (one.shared, many.shared.ranks) == (None, 64)
    assert one.approximation == many.approximation == "full_scale"
    assert many.fit_seconds <= asked["time_limit"] < one.fit_seconds
    assert TRIED in one.notes
    assert TRIED not in many.notes
    exact = plan(200_000, solver="cg", ranks=4, **options)
    offered = {offer.approximation: offer.seconds for offer in exact.offers}
    assert offered["full_scale"] == plan(200_000, approximation="full_scale", ranks=4, **options).fit_seconds


def test_a_plan_of_ranks_is_not_run_by_one_process() -> None:
    found = fgp.plan(GP, n=5, d=1, ranks=2)
    x = [[0.0], [1.0], [2.0], [3.0], [4.0]]
    with pytest.raises(DomainError, match="for 2 ranks"):
        GP.condition(x, [0.0, 1.0, 0.0, 1.0, 0.0], plan=found)
