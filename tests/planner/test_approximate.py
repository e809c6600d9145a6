"""Plans of approximations: bytes of every allocation, seconds, refusals, and sizes chosen by what fits."""

import dataclasses

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.approximation import DEFAULT, LADDER
from flashgp.inference.full_scale import factor, layout
from flashgp.inference.plan import TRIED
from flashgp.inference.streamed import objective
from flashgp.pairwise.torch.tile_job import ACCELERATOR_TILE_PAIRS
from flashgp.planner.approximate import ApproximateWork
from flashgp.planner.plan import Plan
from flashgp.solvers.settings import FullScaleSettings

GP = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(8)))
KINDS = ("full_scale", "sparse")


def build(n: int, kind: str | None = "full_scale", gp: fgp.GP = GP, **options: object) -> Plan:
    return fgp.plan(gp, n=n, d=8, approximation=kind, **{"profile": BUILT_IN, "memory": "64GiB", **options})


def test_constants_of_prices_are_those_of_the_code() -> None:
    """One number each, in two layers."""
    work = ApproximateWork()
    assert work.set_pairs == factor.PAIRS
    assert work.candidates == FullScaleSettings().candidates
    assert work.pivot_share == layout.PIVOT_SHARE
    assert (work.block_numbers, work.min_block) == (objective.BLOCK_NUMBERS, objective.MIN_BLOCK)


# -- seconds ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_seconds_are_linear_in_the_rows(kind: str) -> None:
    """Eqs. (M-184) and (M-185): a value, its gradient and the choice of points, of many rows."""
    one, ten = (build(n, kind) for n in (200_000, 2_000_000))
    assert ten.fit_step_seconds / one.fit_step_seconds == pytest.approx(10.0, rel=0.01)
    assert ten.seconds / one.seconds == pytest.approx(10.0, rel=0.6)
    assert one.seconds < one.fit_step_seconds < one.fit_seconds_low < one.fit_seconds < one.fit_seconds_high
    assert one.more_seconds > 1.2 * one.fit_seconds


def test_seconds_follow_the_rates() -> None:
    """Eq. (M-184): by flops, covariances and bytes at the rates of a profile; twice the rates, half the time."""
    rates = {f.name: getattr(BUILT_IN.cpu, f.name) for f in dataclasses.fields(BUILT_IN.cpu)}
    quick = {name: value * 2 for name, value in rates.items() if isinstance(value, float)}
    quick["call_seconds"] = rates["call_seconds"] / 2
    profile = dataclasses.replace(BUILT_IN, name="twice", cpu=dataclasses.replace(BUILT_IN.cpu, **quick))
    for kind in KINDS:
        one, two = build(50_000, kind), build(50_000, kind, profile=profile)
        for name in ("seconds", "fit_step_seconds", "fit_seconds", "predict_seconds"):
            assert getattr(one, name) / getattr(two, name) == pytest.approx(2.0, rel=1e-6)


def test_a_step_takes_the_flops_of_its_formula() -> None:
    """Eq. (M-185): 7 n m^2 flops of a value with its gradient, where nothing else weighs."""
    plan = build(4_000_000, "sparse", inducing=1024)
    flops = 7.0 * 4e6 * 1024**2 / BUILT_IN.cpu.gemm_float64
    pairs = 4.0 * 4e6 * 1024 / BUILT_IN.cpu.block_pairs
    assert plan.fit_step_seconds == pytest.approx(flops + pairs, rel=0.01)


def test_a_fit_is_its_stages() -> None:
    """Eq. (M-186): more starts and more rows are more stages; rows of few are searched exactly."""
    assert build(20_000, starts=1).fit_seconds < build(20_000, starts=8).fit_seconds
    exact = fgp.plan(GP, n=300, d=8, profile=BUILT_IN)
    few = build(300, inducing=20, neighbours=20)
    assert few.fit_seconds > exact.fit_seconds
    assert few.fit_seconds - exact.fit_seconds < 40 * few.fit_step_seconds + 1.0


def test_most_of_a_search_has_coarse_sizes() -> None:
    """Eq. (M-208): so that a whole fit takes the time of some ten evaluations."""
    plan = build(1_000_000)
    assert plan.sizes.coarse().inducing == 64
    coarse = build(1_000_000, inducing=64, neighbours=48)
    assert coarse.fit_step_seconds < 0.5 * plan.fit_step_seconds
    work = ApproximateWork()
    begun = work.coarse.middle * coarse.fit_step_seconds + work.all_rows.middle * plan.fit_step_seconds
    assert begun < plan.fit_seconds < 1.6 * begun


# -- words and values -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_prints_and_reads_back(kind: str) -> None:
    plan = build(30_000, kind)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    text = str(plan)
    twice, width = ("twice the neighbours", 20) if plan.neighbours else ("twice the points", 19)
    for name in ("largest allocations", twice, "accuracy lost"):
        assert any(line.startswith(f"{name:<{width}} ") for line in text.splitlines()), "columns are aligned"
    assert "inducing points" in text
    assert "posterior.lost" in text or "posterior.bound" in text
    assert "<table>" in plan._repr_html_()
    with pytest.raises(fgp.DomainError, match="text"):
        Plan.from_json(plan.to_json().replace(kind, "nystroem"))


def test_arguments_of_exact_plans_are_refused_beside_it() -> None:
    for name, value in (("n_test", 5), ("route", "direct"), ("solver", "cg"), ("dtype", torch.float32)):
        with pytest.raises(fgp.DomainError, match=f"`{name}` is of exact inference"):
            build(100, **{name: value})
    with pytest.raises(fgp.DomainError, match="`approximation` must be"):
        build(100, "nystroem")
    with pytest.raises(fgp.DomainError, match="`inducing` is of an approximation"):
        fgp.plan(GP, n=100, d=8, inducing=10)
    with pytest.raises(fgp.DomainError, match="`approximation` is of one table"):
        build(100, batch=3)


# -- sizes ----------------------------------------------------------------------------------------------------------
def sizes(plan: Plan) -> tuple[int, int, int]:
    return plan.inducing, plan.block, plan.neighbours


def test_sizes_without_limits_are_the_default_ones() -> None:
    """Eq. (M-187)."""
    plan = build(100_000)
    assert sizes(plan) == LADDER[DEFAULT]
    assert plan.predicting == 4 * plan.neighbours
    assert sizes(build(100)) == (100, 32, 96)
    assert build(100_000, "sparse").inducing == LADDER[DEFAULT][0]
    assert sizes(build(100_000, neighbours=300))[1:] == (128, 300)


def test_sizes_are_the_largest_that_keep_to_the_limits() -> None:
    """Eq. (M-187): monotone in the time limit, from the smallest of the ladder to its largest."""
    seen, cut = [], []
    for limit in (1e-3, 3.0, 10.0, 30.0, 60.0, 100.0, 300.0, 1000.0, 3000.0, 1e5):
        plan = build(36_000, time_limit=limit)
        seen.append(LADDER.index(sizes(plan)))
        in_part = seen[-1] <= DEFAULT and 2.0 * plan.seconds <= 0.25 * limit  # of a search that the time ends
        assert plan.fit_seconds <= limit or in_part or seen[-1] == 0
        cut.append(plan.fit_seconds > limit and seen[-1] > 0)
        if seen[-1] + 1 < len(LADDER):
            m, _, q = LADDER[seen[-1] + 1]
            assert build(36_000, inducing=m, neighbours=q).fit_seconds > 0.8 * limit
    assert seen == sorted(seen)
    assert any(cut)  # seen red: (64, 8, 24) for kin40k in 20 s, .3 nats a row behind
    assert (seen[0], seen[-1]) == (0, len(LADDER) - 1)
    own = build(36_000, time_limit=1e5, inducing=77)
    assert own.inducing == 77
    assert own.neighbours == LADDER[-1][2]


@pytest.mark.parametrize("kind", KINDS)
def test_short_memory_gives_smaller_sizes_and_names_what_fits(kind: str) -> None:
    """Eq. (M-183): nothing is planned that does not fit; a refusal says what would."""
    whole = build(100_000, kind)
    tight = build(100_000, kind, memory=whole.training_bytes - 1)
    assert tight.inducing < whole.inducing
    assert tight.training_bytes < whole.training_bytes
    with pytest.raises(fgp.MemoryBudgetError, match=f"inducing={tight.inducing}") as refused:
        build(100_000, kind, memory=whole.training_bytes - 1, inducing=2 * whole.inducing)
    error = refused.value
    assert error.needed_bytes > error.available_bytes
    assert isinstance(error.cheapest_plan, Plan)
    with pytest.raises(fgp.MemoryBudgetError, match="larger memory="):
        build(100_000, kind, memory="1MiB")


def test_tiles_of_an_accelerator_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covariances with inducing points are formed in tiles of 2^24 pairs there, (M-55)."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    here, there = (build(100_000, device=device).allocations for device in ("cpu", "cuda"))
    added = {one.name: one.bytes for one in there if one.name not in {other.name for other in here}}
    assert set(added) == {"a tile of covariances", "tiles of covariances"}
    pairs = ACCELERATOR_TILE_PAIRS
    assert 8 * pairs <= added["a tile of covariances"] == added["tiles of covariances"] // 2


# -- offers ---------------------------------------------------------------------------------------------------------
def test_an_exact_plan_that_takes_long_offers_approximations() -> None:
    short = fgp.plan(GP, n=2000, d=8, profile=BUILT_IN, memory="64GiB")
    assert not short.offers
    assert "posterior.lost" not in str(short)
    long = fgp.plan(GP, n=100_000, d=8, profile=BUILT_IN, memory="64GiB")
    assert [offer.approximation for offer in long.offers] == ["full_scale", "sparse"]
    assert all(0 < offer.seconds < long.fit_seconds and offer.bytes > 0 for offer in long.offers)
    assert sum("posterior.lost" in line for line in str(long).splitlines()) == 1
    late = fgp.plan(GP, n=2000, d=8, profile=BUILT_IN, memory="64GiB", time_limit=1.0)
    assert late.offers
    assert Plan.from_json(long.to_json()).offers == long.offers


def test_a_refusal_offers_approximations() -> None:
    with pytest.raises(fgp.MemoryBudgetError, match="approximation=") as refused:
        fgp.plan(GP, n=40_000, d=8, memory="100MiB", solver="cholesky")
    offers = refused.value.offers
    assert {offer.approximation for offer in offers} == set(KINDS)
    assert all(offer.bytes <= 100 * 2**20 for offer in offers)
    two = fgp.GP(fgp.kernels.Matern(), outputs=2)
    with pytest.raises(fgp.MemoryBudgetError) as refused:
        fgp.plan(two, n=40_000, d=8, memory="100MiB", solver="cholesky")
    assert {offer.approximation for offer in refused.value.offers} == set(KINDS)


def test_auto_gives_the_plan_of_what_would_be_taken() -> None:
    assert isinstance(build(1000, "auto"), Plan)
    assert isinstance(build(1000, "auto", time_limit=1000.0), Plan)
    found = build(200_000, "auto", time_limit=400.0)
    assert found.approximation == "full_scale"
    late = build(3_000_000, "auto", time_limit=300.0)
    assert late.approximation == "full_scale"
    assert TRIED in late.notes
