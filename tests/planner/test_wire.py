"""What ranks send: bytes and seconds of plans, by formulas written out, and the rates that they use."""

import dataclasses
import itertools
from typing import Any

import pytest

import flashgp as fgp
from flashgp.foundations.collectives import CollectiveRate, collective_rate
from flashgp.foundations.errors import DomainError
from flashgp.foundations.profile import BUILT_IN
from flashgp.planner.plan import Plan
from flashgp.processes.shares import too_many_ranks

MEASURED = CollectiveRate("gloo", 2, 1e-4, 1e9, machines=1)
KNOWN = dataclasses.replace(BUILT_IN, collectives=(MEASURED,))


def plan(n: int = 60_000, d: int = 3, **options: Any) -> Any:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
    return fgp.plan(gp, n=n, d=d, **{"memory": "4GiB", "profile": KNOWN, **options})


def test_rates_of_other_numbers_of_ranks_and_of_none() -> None:
    """Eq. (M-225)."""
    assert collective_rate([MEASURED], "gloo", 2) == MEASURED
    four = collective_rate([MEASURED], "gloo", 4)
    assert (four.ranks, four.measured, four.bytes_per_second) == (4, True, 1e9)
    assert four.seconds == pytest.approx(3e-4)  # six messages round the ring in place of two
    tree = collective_rate([dataclasses.replace(MEASURED, backend="nccl")], "nccl", 16)
    assert tree.seconds == pytest.approx(4e-4)
    near = collective_rate([MEASURED, dataclasses.replace(four, seconds=2e-4)], "gloo", 5)
    assert near.seconds == pytest.approx(2e-4 * 4 / 3)  # of four, not of two
    published = collective_rate([MEASURED], "nccl", 4)
    assert not published.measured
    assert published.seconds > 0.0
    assert MEASURED.wire_seconds(100, 5e8) == pytest.approx(0.51)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bytes_and_seconds_of_a_solve_over_ranks(ranks: int) -> None:
    """Eqs. (M-226), (M-227) and (M-228), written out."""
    n, d = 60_000, 3
    found, k = plan(n, d, solver="cg", ranks=ranks), 512
    assert (found.rank, found.shared is not None) == (k, True)
    share, reduced = -(-n // ranks), 2.0 * (ranks - 1) / ranks
    table = (ranks - 1) * share * 8 * (d + 1)
    one_pass = 2 * (ranks - 1) * share * 4 + reduced * 8 * (2 * k + 5) + (ranks - 1) * (ranks + 2) * 8
    low_rank = reduced * 8 * k * (2 * k + 128) + (ranks - 1) * 8 * k * (k + 1)
    sent = table + low_rank + 100 * one_pass + (ranks - 1) * share * 8
    assert found.shared.sent_bytes == pytest.approx(sent, rel=1e-6)
    collectives = 12 + 12 * 4 + 3 + 100 * 15 + 1
    rate = collective_rate(KNOWN.collectives, "gloo", ranks)
    assert found.shared.wire_seconds == pytest.approx(collectives * rate.seconds + sent / 1e9)
    assert found.shared.wire_seconds < found.seconds
    assert found.shared.collectives == "measured"
    assert not any("network" in note for note in found.notes)


def test_a_step_of_a_fit_over_ranks() -> None:
    """Eq. (M-229): its difference to a step on a network that takes no time."""
    n, d, ranks, k, t = 60_000, 3, 4, 512, 9
    rate = CollectiveRate("gloo", ranks, 1e-4, 1e9, machines=1)
    instant = dataclasses.replace(rate, seconds=1e-12, bytes_per_second=1e18)
    one, other = (
        plan(n, d, solver="cg", ranks=ranks, profile=dataclasses.replace(BUILT_IN, collectives=(r,)))
        for r in (rate, instant)
    )
    assert (one.training, one.training_rank) == (other.training, k)
    share, reduced = n // ranks, 2.0 * (ranks - 1) / ranks
    one_pass = 2 * (ranks - 1) * share * 4 * t + reduced * 8 * t * (2 * k + 5 * t)
    one_pass += (ranks - 1) * (ranks + 2) * 8 * t**2
    low_rank = reduced * 8 * k * (2 * k + 128) + (ranks - 1) * 8 * k * (k + 1)
    sent = low_rank + 33 * one_pass + 2 * (ranks - 1) * share * 8 * t + reduced * 4 * n * 3
    collectives = 12 * 4 + 3 + 33 * 15 + 1 + 20
    wire = collectives * 1e-4 + sent / 1e9
    assert one.fit_step_seconds - other.fit_step_seconds == pytest.approx(wire, rel=1e-6)
    assert one.shared.fit_sent_bytes > 10 * sent
    assert one.shared.fit_wire_seconds < one.fit_seconds


def test_more_ranks_take_less_memory_and_send_more() -> None:
    plans = [plan(solver="cg", ranks=ranks) for ranks in (1, 2, 4, 8)]
    assert plans[0].shared is None
    assert all(a.peak_bytes > b.peak_bytes for a, b in itertools.pairwise(plans))
    assert all(a.shared.sent_bytes < b.shared.sent_bytes for a, b in itertools.pairwise(plans[1:]))
    for one in plans[1:]:
        assert Plan.from_json(one.to_json()) == one
        assert "% of the time" in dict(one.lines())["sent"]
        assert one.peak_bytes < plans[0].peak_bytes


def test_a_factor_sends_the_table_alone() -> None:
    """(M-228): every rank makes the factor."""
    found = plan(1000, 3, ranks=4)
    assert found.route == "direct"
    assert found.shared.sent_bytes == 3 * 250 * 8 * 4
    assert found.seconds == pytest.approx(plan(1000, 3).seconds + found.shared.wire_seconds)


def test_an_exact_fit_sends_its_evaluations() -> None:
    """(M-229): one number of the variance, one of the lengthscale, one of the noise, and one of the mean at most."""
    found = plan(1000, 3, ranks=4)
    count = sum(p.numel() for p in fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5)).parameters())
    evaluations = (found.shared.fit_sent_bytes - found.shared.sent_bytes) / (3 * 8 * (2 * count + 1))
    assert 20.0 < evaluations < 300.0
    wire = found.shared.fit_wire_seconds - found.shared.wire_seconds
    rate = collective_rate(KNOWN.collectives, "gloo", 4)
    assert wire == pytest.approx(evaluations * (3 * rate.seconds + 3 * 8 * (2 * count + 1) / 1e9), rel=1e-3)


def test_a_plan_says_that_its_network_was_not_measured() -> None:
    found = plan(solver="cg", ranks=4, profile=BUILT_IN)
    assert found.shared.collectives == "published"
    assert any("torchrun --nproc-per-node 4 -m flashgp tune" in note for note in found.notes)


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
def waiting(kind: str, name: str, ranks: int, **options: Any) -> float:
    """Seconds of a field that ranks wait: beside those of a network that takes no time."""
    rate = collective_rate(KNOWN.collectives, "gloo", ranks)
    instant = dataclasses.replace(rate, seconds=1e-15, bytes_per_second=1e21)
    one, other = (
        plan(approximation=kind, ranks=ranks, profile=dataclasses.replace(BUILT_IN, collectives=(r,)), **options)
        for r in (rate, instant)
    )
    return getattr(one, name) - getattr(other, name)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bytes_and_seconds_of_a_full_scale_model_over_ranks(ranks: int) -> None:
    """Eq. (M-231), written out: table, blocks with neighbours and points, sums; a gradient of all rows."""
    n, d, m, b, q = 60_000, 3, 200, 32, 96
    sizes = {"inducing": m, "neighbours": q}
    found = plan(n, d, approximation="full_scale", ranks=ranks, **sizes)
    assert (found.block, found.shared.ranks, found.shared.collectives) == (b, ranks, "measured")
    sets, reduced = n // b, 2.0 * (ranks - 1) / ranks
    near = (ranks - 1) * 8 * (sets * b + -(-sets // ranks) * q + m * d)
    sums = reduced * 8 * (m * m + m + 3)
    sent = (ranks - 1) * -(-n // ranks) * 8 * (d + 1) + near + sums
    assert found.shared.sent_bytes == pytest.approx(sent, rel=1e-6)
    rate = collective_rate(KNOWN.collectives, "gloo", ranks)
    wire = (12 + 3 + 2 + 1) * rate.seconds + sent / 1e9
    assert found.shared.wire_seconds == pytest.approx(wire)
    assert waiting("full_scale", "seconds", ranks, **sizes) == pytest.approx(wire, rel=1e-6)
    width, parameters = 3, sum(p.numel() for p in fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5)).parameters())
    step = sums + reduced * 8 * (n * (2 + width) + m * width + parameters) + (ranks - 1) * 8 * (2 * parameters + 1)
    wire = (1 + 2 + 3) * rate.seconds + step / 1e9
    assert waiting("full_scale", "fit_step_seconds", ranks, **sizes) == pytest.approx(wire, rel=1e-6)
    assert found.shared.fit_sent_bytes > 16 * step
    whole = waiting("full_scale", "fit_seconds", ranks, **sizes)
    assert whole == pytest.approx(found.shared.fit_wire_seconds, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 8])
def test_bytes_and_seconds_of_inducing_points_over_ranks(ranks: int) -> None:
    """Eq. (M-231), written out: a sample, points, sums."""
    n, d, m = 60_000, 3, 200
    found = plan(n, d, approximation="sparse", ranks=ranks, inducing=m)
    reduced = 2.0 * (ranks - 1) / ranks
    sums = reduced * 8 * (m * m + m + 6)
    sent = (ranks - 1) * 8 * (20 * m * (d + 3) + m * d) + sums
    assert found.shared.sent_bytes == pytest.approx(sent, rel=1e-6)
    rate = collective_rate(KNOWN.collectives, "gloo", ranks)
    wire = (25 + 2 + 1) * rate.seconds + sent / 1e9
    assert waiting("sparse", "seconds", ranks, inducing=m) == pytest.approx(wire, rel=1e-6)
    width, parameters = 3, sum(p.numel() for p in fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5)).parameters())
    step = sums + reduced * 8 * (m * width + 2 * parameters) + (ranks - 1) * 8 * (2 * parameters + 1)
    wire = (1 + 1 + 3) * rate.seconds + step / 1e9
    assert waiting("sparse", "fit_step_seconds", ranks, inducing=m) == pytest.approx(wire, rel=1e-6)
    whole = waiting("sparse", "fit_seconds", ranks, inducing=m)
    assert whole == pytest.approx(found.shared.fit_wire_seconds, rel=0.01)


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
def test_more_ranks_share_the_work_of_an_approximation(kind: str) -> None:
    """Eq. (M-230): a step of as many ranks is that part of one process's, beside what each of them does; memory is no
    more than that of fewer."""
    instant = dataclasses.replace(MEASURED, seconds=1e-15, bytes_per_second=1e21)
    profile = dataclasses.replace(BUILT_IN, collectives=(instant,))
    sizes = {"inducing": 64, "neighbours": 24} if kind == "full_scale" else {"inducing": 64}
    plans = [
        plan(2_000_000, approximation=kind, ranks=ranks, profile=profile, memory="64GiB", **sizes)
        for ranks in (1, 2, 4, 16)
    ]
    assert plans[0].shared is None
    for one, ranks in zip(plans[1:], (2, 4, 16), strict=True):
        share = one.fit_step_seconds / plans[0].fit_step_seconds
        # A of the rows that blocks may need, (24 + 8) / 8 times their own.
        assert 0.99 / ranks < share < (2.2 if kind == "full_scale" else 1.01) / ranks
        assert one.seconds < plans[0].seconds
        assert type(one).from_json(one.to_json()) == one
        assert f"{ranks}: bytes and seconds are those of each of them" in dict(one.lines())["ranks"]
        assert "% of the time" in dict(one.lines())["sent"]
    assert all(a.training_bytes >= b.training_bytes for a, b in itertools.pairwise(plans[1:]))
    assert plans[-1].training_bytes < 0.7 * plans[0].training_bytes


def test_auto_over_ranks_is_planned_from_their_share() -> None:
    """What one process has no time for, many may have; and a plan offers what its ranks would take."""
    instant = dataclasses.replace(MEASURED, seconds=1e-15, bytes_per_second=1e21)
    options = {"profile": dataclasses.replace(BUILT_IN, collectives=(instant,)), "memory": "64GiB"}
    alone = plan(1_000_000, approximation="full_scale", inducing=64, neighbours=24, **options)
    asked = {"approximation": "auto", "time_limit": 0.6 * alone.fit_seconds, **options}
    one, many = (plan(1_000_000, ranks=ranks, **asked) for ranks in (1, 64))
    assert (one.shared, many.shared.ranks) == (None, 64)
    assert one.approximation == "sparse"
    assert many.approximation == "full_scale"
    exact = plan(200_000, solver="cg", ranks=4, **options)
    offered = {offer.approximation: offer.seconds for offer in exact.offers}
    assert offered["full_scale"] == plan(200_000, approximation="full_scale", ranks=4, **options).fit_seconds


def test_a_plan_of_ranks_is_not_run_by_one_process() -> None:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
    found = fgp.plan(gp, n=5, d=1, ranks=2)
    x = [[0.0], [1.0], [2.0], [3.0], [4.0]]
    with pytest.raises(DomainError, match="for 2 ranks"):
        gp.condition(x, [0.0, 1.0, 0.0, 1.0, 0.0], plan=found)
