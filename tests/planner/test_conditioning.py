"""Which route a plan takes, what it costs, and how it trains: by rates and budget, without a size written down."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.pairwise.program.program import program_of
from flashgp.planner.conditioning import PATIENCE_SECONDS
from flashgp.planner.exact import NEEDED, WIDTH, making_passes, solve_passes
from flashgp.planner.fit_stages import WorkSettings
from flashgp.planner.products import STORED_ROWS
from flashgp.solvers.preconditioners import candidate
from flashgp.solvers.settings import ComparisonSettings, SolveSettings
from planned import conditioning_plan

FORM = fgp.kernels.RBF().form


def build(n: int, memory: str | int = "1TiB", **options: object) -> fgp.Plan:
    return conditioning_plan(FORM, n, memory=memory, **options)


def slow(cholesky: float) -> MachineProfile:
    """A machine that factors so many times slower than the built-in one."""
    cpu = dataclasses.replace(
        BUILT_IN.cpu,
        cholesky_float64=BUILT_IN.cpu.cholesky_float64 / cholesky,
        cholesky_float32=BUILT_IN.cpu.cholesky_float32 / cholesky,
    )
    return dataclasses.replace(BUILT_IN, cpu=cpu)


@pytest.mark.parametrize(("n", "outputs"), [(2000, 1), (700, 3), (100, 1)])
def test_bytes_and_seconds_of_iterative_routes(n: int, outputs: int) -> None:
    """Eq. (M-98), written out for the portable backend, which answers few pairs."""
    rates, rank = BUILT_IN.cpu, min(512, n // 4)
    rows = min(n, max(1, 2**18 // n))
    tiles = 8 * program_of(FORM).value_temporaries * rows * n
    operands = 2 * n * (4 * outputs + 8 * 3 * (2 + 1))
    own = 8 * n * (3 * rank + 6 * outputs + 4 * 6)
    preparing = n * rank / rates.block_pairs + 2 * n * rank**2 / rates.gemm_float64 + 40 * rates.call_seconds
    rate = BUILT_IN.product_rate("torch", "cpu", torch.float32, True, 2, outputs)
    plan = build(n, route="recomputed", outputs=outputs)
    assert (plan.rank, plan.dtype, plan.backend) == (rank, "float32", "torch")
    assert plan.peak_bytes == tiles + operands + own
    assert plan.seconds == pytest.approx(60 * (n * n / rate + rates.call_seconds) + preparing)
    plan = build(n, route="stored", outputs=outputs)
    panel = min(n, STORED_ROWS)
    kept = 4 * (n * n + n * panel) // 2
    assert plan.peak_bytes == kept + 4 * panel * n + tiles + operands + own
    products = max(2 * n * n * outputs / rates.gemm_float32, kept / rates.copy_bytes) + rates.call_seconds
    assert plan.seconds == pytest.approx(60 * products + n * n / rates.block_pairs + rates.call_seconds + preparing)
    assert "60 passes over the pairs are assumed" in plan.notes[0]


def test_passes_are_those_of_the_preconditioner_that_serves() -> None:
    """Eq. (M-121): its prices; a comparison where it takes long to make, none where it would take too long."""
    work, compared, rank = WorkSettings(), ComparisonSettings(), 512
    sizes = SolveSettings().full_scale
    assert [(one.block, one.neighbours, one.max_price) for one in sizes] == list(work.preconditioners)
    for n in (3000, 12_000, 200_000, 1_000_000):
        prices = [making_passes(n, rank, one.block, one.neighbours) for one in sizes]
        assert prices == pytest.approx([candidate.making_passes(n, rank, one, compared) for one in sizes])
    assert (work.at_once, work.at_once_most) == (compared.at_once, compared.at_once_most)
    assert work.made_most == compared.making_share * compared.unknown_left
    assert work.compared_most == (compared.unknown_left - compared.min_left) / 2.0
    assert solve_passes(3000, rank, work) == (work.passes_low_rank, 0.0)
    by_comparison, made = solve_passes(12_000, rank, work)
    assert (by_comparison, made) == (work.passes_compared, work.making * making_passes(12_000, rank, 64, 128))
    at_once, made = solve_passes(1_000_000, rank, work)
    assert (at_once, made) == (work.passes_at_once, work.making * making_passes(1_000_000, rank, 128, 896))
    assert made < 2.0 * compared.at_once_most


def test_passes_of_the_records_are_in_the_range_of_plans() -> None:
    """What solves took on 12,000 rows of eleven kinds, and on a million of rows."""
    records = Path(__file__).parents[2] / "benchmark" / "records"
    taken = [
        (cell["n"], cell["passes"])
        for cell in json.loads((records / "preconditioners.json").read_text())["cells"].values()
    ]
    taken += [(200_000, 33.0), (1_000_000, 26.0)]  # of million.json and whole_fits.json, in words
    assert len(taken) > 10
    for n, passes in taken:
        found, _ = solve_passes(n, 512, WorkSettings())
        assert found.low <= passes <= found.high, (n, passes)
    middle = sorted(passes for n, passes in taken if n < 10**6)[(len(taken) - 1) // 2]
    assert solve_passes(12_000, 512, WorkSettings())[0].middle == pytest.approx(middle, rel=0.2)


def test_float64_while_it_is_quick() -> None:
    """The choice follows the seconds that a plan predicts, on every machine."""
    for profile in (BUILT_IN, slow(1000.0)):
        low, high = 2, 60_000
        while high - low > 1:
            middle = (low + high) // 2
            quick = build(middle, route="direct", profile=profile).seconds <= PATIENCE_SECONDS
            low, high = (middle, high) if quick else (low, middle)
        assert build(low, profile=profile).route == "direct"
        after = build(high, profile=profile)
        assert after.route == "refined"
        reasons = {other.route: other.reason for other in after.alternatives}
        assert reasons["direct"] == "takes more than 10 s, and a float32 factor is refined to the same answer"
        assert reasons["stored"] == "a factor fits, and gives variances at once"


def test_without_room_for_a_factor_iterations_answer() -> None:
    direct, refined = (build(20_000, route=route).peak_bytes for route in ("direct", "refined"))
    assert build(20_000, direct).route == "refined", "slower than the patience: float32 although float64 fits"
    assert build(5000, build(5000, route="direct").peak_bytes - 1).route == "refined"
    assert build(20_000, refined).route == "refined"
    plan = build(20_000, refined - 1)
    assert plan.route in ("stored", "recomputed")
    assert "every exact variance costs a solve" in plan.notes[1]
    reasons = {other.route: other.reason for other in plan.alternatives}
    assert reasons["direct"].startswith("does not fit")
    assert reasons["refined"].startswith("does not fit")
    least = build(20_000, route="recomputed").peak_bytes
    assert build(20_000, least).route == "recomputed"


def test_short_memory_takes_columns_from_the_preconditioner() -> None:
    full = build(50_000, route="recomputed")
    assert full.rank == 512
    short = build(50_000, full.peak_bytes - 1, route="recomputed")
    assert (short.rank, full.peak_bytes - short.peak_bytes) == (511, 24 * 50_000)
    with pytest.raises(fgp.MemoryBudgetError, match="the recomputed route for n = 50,000 needs") as caught:
        build(50_000, "30MB", route="recomputed")
    assert build(50_000, caught.value.needed_bytes, route="recomputed").rank == 32


def test_columns_beyond_128_come_after_room_for_more_neighbours() -> None:
    """Smoothly: no more memory has fewer columns. The widest weights are those that solves may make."""
    sizes = SolveSettings().full_scale
    assert max(one.dtype.itemsize * (one.block + one.neighbours) for one in sizes) == 4 * WIDTH
    assert max((one.block + one.neighbours) / one.block for one in sizes) == NEEDED
    n, full = 300_000, build(300_000, route="recomputed")
    beside = full.peak_bytes - 24 * n * 512
    ranks = []
    for room in range(8 * n * 100, 8 * n * 1600, 8 * n * 20):
        plan = build(n, beside + room, route="recomputed")
        assert plan.peak_bytes <= beside + room
        assert plan.peak_bytes >= beside + 16 * n * plan.rank + min(4 * n * WIDTH, room - 16 * n * plan.rank)
        ranks.append(plan.rank)
    assert ranks == sorted(ranks)
    assert max(b - a for a, b in pairwise(ranks)) <= 10
    assert ranks.count(128) == (4 * WIDTH - 8 * 128) // 160, "a third buffer of 8 bytes becomes room for the weights"
    assert ranks[-1] == 512


def test_how_a_fit_trains() -> None:
    """Eq. (M-100): exact while a short fit is quick; else estimated gradients, on stored tiles where they fit."""
    small = build(1000)
    assert (small.training, small.training_bytes) == ("exact", small.peak_bytes)
    assert 40 * small.fit_step_seconds < 30.0
    large = build(20_000)
    assert (large.route, large.training) == ("refined", "stored")
    cpu = BUILT_IN.product_rate("cpu", "cpu", torch.float32, True, 2, 9)
    tight = build(20_000, build(20_000, route="refined").peak_bytes * 9 // 10)
    assert tight.training in ("stored", "recomputed")
    least = build(100_000, "4GiB")
    assert (least.route, least.training) == ("recomputed", "recomputed")
    calls = 33 * BUILT_IN.cpu.call_seconds
    assert least.fit_step_seconds == pytest.approx(33 * 100_000**2 / cpu + calls)
    assert least.training_bytes <= 4 * 2**30
    assert build(1000, dtype=torch.float32).training_bytes == build(1000, route="refined").peak_bytes
    assert build(3000, batch=5).training == "exact", "iterative solvers take one system at a time"
    assert "training" in str(least)


def test_sites_by_iteration_take_exact_gradients() -> None:
    """Of as many rows and classes as would have estimated ones."""
    likelihoods = fgp.likelihoods
    for likelihood in (likelihoods.Bernoulli(), likelihoods.Categorical(10)):
        gp = fgp.GP(fgp.kernels.RBF(), fgp.means.Zero(), likelihood)
        assert fgp.plan(gp, n=8000, d=64, profile=BUILT_IN).training == "exact"
    assert fgp.plan(fgp.GP(fgp.kernels.RBF()), n=8000, d=64, profile=BUILT_IN).training != "exact"


def test_what_joins_rows_is_in_the_budget_of_every_choice() -> None:
    """Eq. (M-89): 8 n bytes beside a factor, a preconditioner, and whatever trains."""
    n, u = 30_000, 3000
    alone = build(n, route="direct", distinct=u)
    assert alone.training == "exact"
    assert alone.training_bytes == alone.peak_bytes == build(u, route="direct").peak_bytes + 8 * n
    assert build(n, alone.training_bytes, distinct=u).training == "exact"
    tight = build(n, alone.training_bytes - 1, distinct=u)
    assert tight.training != "exact"
    assert tight.training_bytes <= tight.available_bytes
    full = build(n, route="recomputed", distinct=u)
    short = build(n, full.peak_bytes - 1, route="recomputed", distinct=u)
    assert (short.rank, full.peak_bytes - short.peak_bytes) == (full.rank - 1, 24 * u)


def test_a_solver_is_asked_for_by_name() -> None:
    gp = fgp.GP(fgp.kernels.RBF())
    assert fgp.plan(gp, n=500, d=2, solver="cholesky").route == "direct"
    plan = fgp.plan(gp, n=500, d=2, solver="cg")
    assert plan.route in ("stored", "recomputed")
    assert plan.solver == "cg"
    assert "conjugate gradients" in str(plan)
    reasons = {other.route: other.reason for other in plan.alternatives}
    assert reasons["direct"] == "stored or recomputed was asked for"
    assert fgp.plan(gp, n=500, d=2, solver="cg", route="recomputed").route == "recomputed"
    with pytest.raises(fgp.DomainError, match="`solver` 'cg' leaves no factor"):
        fgp.plan(gp, n=500, d=2, solver="cg", factored=True)
    with pytest.raises(fgp.DomainError, match="`solver` must be one of cholesky, cg, got 'x'"):
        fgp.plan(gp, n=500, d=2, solver="x")
    older = plan.to_json().replace('"cg"', '"alternating_projections"')
    assert fgp.Plan.from_json(older) == plan, "files written when there was that solver"
    with pytest.raises(fgp.DomainError, match="`route` 'direct' cannot be taken"):
        fgp.plan(gp, n=500, d=2, solver="cg", route="direct")


def test_larger_tiles_of_products_take_nothing_from_solves() -> None:
    """A tile that was measured as quick in large products is no reason for fewer columns of the preconditioner, or to
    refuse what fits: solves keep the least tiles."""
    quick = dataclasses.replace(BUILT_IN, cpu=dataclasses.replace(BUILT_IN.cpu, tile_pairs=2**21))
    for memory in ("60MiB", "96MiB", "1GiB"):
        plans = [build(20_000, memory, route="recomputed", profile=one) for one in (BUILT_IN, quick)]
        assert plans[0] == plans[1]
