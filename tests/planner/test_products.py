"""Plans of products: bytes and seconds by formula, the quickest that fits, the price of a missing package."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.machine import accelerator
from flashgp.foundations.profile import BUILT_IN, PairRate
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.engines import ENGINES, Engine
from flashgp.planner.products import STORED_ROWS, ProductPlan
from planned import product_plan

CPU, F32, F64 = torch.device("cpu"), torch.float32, torch.float64
KERNEL = fgp.kernels.Matern(2.5) + fgp.kernels.Linear()
FORM = KERNEL.form
TORCH_ONLY = tuple(engine for engine in ENGINES if engine.backend == "torch")
FUSED = Engine("fused", "flashgp.pairwise.torch.tiles", "numba", ("cpu",), ("float64", "float32"), fused=True)
ABSENT = dataclasses.replace(FUSED, package="a_package_that_is_not_there")
NOT_YET = dataclasses.replace(FUSED, module="flashgp.pairwise.of_a_later_version")
# Rates with which the fused engine takes a tenth of the time.
RATES = dataclasses.replace(
    BUILT_IN,
    products=(
        PairRate("torch", "cpu", "float32", True, 8, 1, 4e8),
        PairRate("torch", "cpu", "float64", True, 8, 1, 3e8),
        PairRate("fused", "cpu", "float32", True, 8, 1, 4e9),
        PairRate("fused", "cpu", "float64", True, 8, 1, 3e9),
    ),
)


def build(n: int = 20_000, m: int | None = None, **options: object) -> ProductPlan:
    settings = {"d": 8, "memory": "16GiB", "profile": RATES, "engines": TORCH_ONLY, **options}
    return product_plan(FORM, n, m, **settings)


def building(engine: Engine) -> Callable[..., ProductPlan]:
    """`build` with one more engine than torch's."""
    return functools.partial(build, engines=(*TORCH_ONLY, engine))


def sizes(n: int, m: int, d: int, t: int, batch: int, item: int) -> tuple[int, int]:
    """The common terms of eq. (M-55) and the tiles, written out."""
    statistics = 2  # a distance and a product
    operands = batch * (n + m) * (t * item + 24 * (d + statistics))
    tiles = 8 * program_of(FORM).value_temporaries * min(n, tile_rows(m, batch, CPU)) * m * batch
    return operands, tiles


def test_tiles_are_as_large_as_was_measured_where_they_stay_small() -> None:
    """(M-55): a 64th of the pairs at most, within the budget, and never below the least."""
    quick = dataclasses.replace(RATES, cpu=dataclasses.replace(RATES.cpu, tile_pairs=2**20))
    least = 2**18
    assert build(20_000).tile_pairs == least
    large = build(20_000, profile=quick)
    assert large.tile_pairs == 2**20
    assert "1,048,576 pairs" in str(large)
    assert build(6000, profile=quick).tile_pairs == 6000**2 // 64
    assert build(4000, profile=quick).tile_pairs == least
    assert build(20_000, profile=quick, deterministic=True).profile == quick.name
    assert product_plan(FORM, 20_000, d=8, memory="16GiB", deterministic=True).tile_pairs == least
    operands, _ = sizes(20_000, 20_000, 8, 1, 1, 8)
    temporaries = program_of(FORM).value_temporaries
    assert large.peak_bytes == operands + 8 * temporaries * (2**20 // 20_000) * 20_000
    tight = build(20_000, profile=quick, memory=large.peak_bytes - 8 * temporaries * 2**18)
    assert least < tight.tile_pairs < 2**20
    assert tight.peak_bytes <= tight.available_bytes
    assert build(20_000, profile=quick, room=0).tile_pairs == least
    smallest = build(20_000, profile=quick, memory=build(20_000).peak_bytes)
    assert smallest.tile_pairs >= least, "what fitted with the least tiles fits"
    with pytest.raises(fgp.MemoryBudgetError) as caught:
        build(20_000, profile=quick, memory=2**20)
    assert caught.value.needed_bytes == build(20_000).peak_bytes, "the least that it takes, whatever the budget"
    other = large.peak_bytes + 2**20  # of work before or after, not at the same time
    beside = build(20_000, profile=quick, memory=other, other_bytes=other)
    assert (beside.tile_pairs, beside.peak_bytes) == (2**20, other)
    for route in ("dense", "stored"):
        made = build(8000, profile=quick, route=route, dtype=F32)
        assert made.tile_pairs == least, "what is stored is made in the least tiles"
        assert "tiles" not in dict(made.lines())


def test_a_full_accelerator_does_not_make_tiles_of_the_host_smaller(set_free_memory: Callable[..., int]) -> None:
    quick = dataclasses.replace(RATES, cpu=dataclasses.replace(RATES.cpu, tile_pairs=2**20))
    set_free_memory(2**34, 2**23)
    both = build(20_000, profile=quick, memory=None, device=[CPU, torch.device("cuda")])
    assert (both.device, both.tile_pairs) == ("cpu", 2**20)


@pytest.mark.parametrize(
    ("n", "m", "t", "batch", "dtype"),
    [(5000, None, 1, 1, F64), (3000, 700, 16, 1, F32), (3000, None, 3, 2, F32), (10, 10, 1, 1, F64)],
)
def test_bytes(n: int, m: int | None, t: int, batch: int, dtype: torch.dtype) -> None:
    """Eqs. (M-55) and (M-56), written out."""
    cols, item = m or n, dtype.itemsize
    operands, tiles = sizes(n, cols, 8, t, batch, item)
    rows = min(n, STORED_ROWS)
    kept = batch * n * cols if m else batch * (n * n + n * rows) // 2

    def peak(route: str) -> int:
        return build(n, m, t=t, batch=batch, dtype=dtype, route=route).peak_bytes

    assert peak("recomputed") == operands + tiles
    assert peak("dense") == operands + tiles + batch * n * cols * item
    assert peak("stored") == operands + tiles + 4 * kept + 4 * batch * rows * cols


def test_bytes_of_a_fused_engine() -> None:
    """Eq. (M-55): packed right-hand sides, sums in float64 and a tile in the cache per thread, not tiles in memory."""
    known = building(FUSED)
    n, t, threads = 20_000, 4, RATES.threads
    plan = known(n, t=t, dtype=F32)
    assert (plan.route, plan.backend) == ("recomputed", "fused")
    assert plan.peak_bytes == n * (4 * t + 24 * 10) + 8 * n * t + threads * (8 * n * t + 2**21)  # equal rows, once
    plan = known(n, 100, t=t, dtype=F32)
    assert plan.peak_bytes == n * 4 * t + (n + 100) * 24 * 10 + 8 * 100 * t + threads * (8 * n * t + 2**21)
    n, t, batch = 2**22, 20, 3  # more right-hand sides than are taken at a time
    plan = known(n, 100, t=t, batch=batch, dtype=F32, memory="1TiB")
    kept = batch * (n * 4 * t + (n + 100) * 24 * 10)
    assert plan.peak_bytes == kept + 8 * 100 * 8 + threads * (8 * n * 8 + 2**21)


@pytest.mark.parametrize("count", [1, 50])
def test_seconds(count: int) -> None:
    """Eq. (M-57), written out: built once and multiplied by, or evaluated in every product."""
    n, t, cpu = 20_000, 4, RATES.cpu

    def seconds(route: str, dtype: torch.dtype = F64, t: int = t) -> float:
        return build(n, t=t, products=count, dtype=dtype, route=route).seconds

    calls = count * cpu.call_seconds
    rate = 3e8 * (8 + 1 + 16) / (8 + 4 + 16)
    assert seconds("recomputed") == pytest.approx(count * n * n / rate + calls)
    made = n * n / cpu.block_pairs + cpu.call_seconds
    assert seconds("dense") == pytest.approx(made + count * 8 * n * n / cpu.copy_bytes + calls)
    assert seconds("dense", t=512) == pytest.approx(made + count * 2 * n * n * 512 / cpu.gemm_float64 + calls)
    kept = (n * n + n * STORED_ROWS) // 2
    assert seconds("stored", F32) == pytest.approx(made + count * 4 * kept / cpu.copy_bytes + calls)


def test_the_quickest_that_fits_is_chosen() -> None:
    assert build().route == "recomputed", "one product never pays for storing"
    assert build(products=200).route == "dense"
    assert build(products=200, dtype=F32).route == "stored", "half the bytes are half the seconds"
    tight = build(products=200, memory="1GiB")
    assert tight.route == "recomputed"
    why = {(a.route, a.dtype): a.reason for a in tight.alternatives}
    assert why[("dense", "float64")] == "does not fit in 1.0 GiB"
    assert why[("stored", "float32")] == "rounds K to float32: only on request"
    assert build(products=200, memory="600MiB", dtype=F32).route == "recomputed"
    assert {a.route: a.reason for a in build(products=2).alternatives}["dense"].startswith("slower, ")
    quick = dataclasses.replace(RATES, cpu=dataclasses.replace(RATES.cpu, block_pairs=1e12))
    assert build(products=2, profile=quick).route == "dense"
    one = build(profile=quick)
    assert one.route == "recomputed", "one product does not ask for a matrix, however quick"
    assert {a.route: a.reason for a in one.alternatives}["dense"] == "keeps K, for one product: only on request"
    for plan in (build(), tight):
        seconds = [a.seconds for a in plan.alternatives]
        assert seconds == sorted(seconds)
        assert len(plan.alternatives) == 2


def test_a_missing_package_costs_seconds_not_memory() -> None:
    without, known = build(), building(ABSENT)
    plan = known()
    assert (plan.route, plan.backend, plan.peak_bytes) == (without.route, without.backend, without.peak_bytes)
    price = "is not installed: one product takes about 1.3 s instead of 133.4 ms"
    assert plan.notes[0] == f"a_package_that_is_not_there {price}"
    missing = plan.alternatives[0]
    assert (missing.backend, missing.reason) == ("fused", "a_package_that_is_not_there is not installed")
    assert "a_package_that_is_not_there is not installed" in str(plan)
    many = known(products=200)
    assert many.route == "dense", "the quickest of what is there"
    assert "200 products take about" in many.notes[0]
    assert len(many.notes) == 2, "what is quicker for another reason is not missing"
    with pytest.raises(fgp.BackendUnavailableError, match="needs a_package_that_is_not_there, which is not installed"):
        known(backend="fused")
    known = building(FUSED)
    assert known().backend == "fused"
    assert known().notes == without.notes
    known = building(NOT_YET)
    assert known() == without


def test_engines_of_this_version() -> None:
    assert [engine.backend for engine in ENGINES] == ["torch", "cpu", "triton"]
    portable = ENGINES[0]
    assert portable.supported()
    assert portable.installed()
    assert portable.load()
    assert (FUSED.installed(), ABSENT.installed(), NOT_YET.supported(), NOT_YET.load()) == (
        importable("numba"), False, False, False,
    )  # fmt: skip
    assert not dataclasses.replace(FUSED, module="no_such_package.inside").supported()
    assert not any(engine.runs_on(CPU) for engine in ENGINES if engine.backend == "triton")


def importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_routes_can_be_forced() -> None:
    forced = build(route="dense")
    assert (forced.route, forced.dtype) == ("dense", "float64")
    assert {a.reason for a in forced.alternatives} == {"another was asked for"}
    assert build(route="stored").route == "stored", "float32 tiles for float64, since they were asked for"
    assert build(backend="torch", route="recomputed") == dataclasses.replace(
        build(), alternatives=build(backend="torch", route="recomputed").alternatives
    )
    with pytest.raises(fgp.DomainError, match="`route` must be one of dense, stored, recomputed, got 'quick'"):
        build(route="quick")
    with pytest.raises(fgp.DomainError, match=r"dense by abacus, which is not among .* recomputed by torch"):
        build(route="dense", backend="abacus")


def test_nothing_fits() -> None:
    least = build(route="recomputed").peak_bytes
    with pytest.raises(fgp.MemoryBudgetError, match="raise memory=") as caught:
        build(memory=least - 1)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (least, least - 1)
    assert caught.value.cheapest_plan is None
    with pytest.raises(fgp.MemoryBudgetError, match=r"recomputed by torch needs .* and fits") as caught:
        build(memory=least, route="dense")
    assert caught.value.needed_bytes == build(route="dense").peak_bytes
    assert caught.value.cheapest_plan.route == "recomputed"
    assert build(memory=least).peak_bytes == least


def test_a_plan_survives_json_and_nothing_else_does() -> None:
    plan = build(t=3, products=7)
    assert ProductPlan.from_json(plan.to_json()) == plan
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.n = 3
    fields = json.loads(plan.to_json())
    bad = [
        {**fields, "extra": 1},
        {**fields, "symmetric": 1},
        {**fields, "t": True},
        {**fields, "t": -1},
        {**fields, "seconds": "1"},
        {**fields, "notes": "a note"},
        {**fields, "notes": [3]},
        {**fields, "alternatives": [{**fields["alternatives"][0], "reason": None}]},
        {**fields, "alternatives": [{"route": "dense"}]},
        {name: value for name, value in fields.items() if name != "notes"},
    ]
    for text in ("", "3", "[" * 100_000, plan.to_json()[:-1], *map(json.dumps, bad)):
        with pytest.raises(fgp.DomainError, match=r"must be what ProductPlan\.to_json wrote"):
            ProductPlan.from_json(text)
    for number in ("NaN", "Infinity", "1e999"):
        with pytest.raises(fgp.DomainError, match=r"must be what ProductPlan\.to_json wrote"):
            ProductPlan.from_json(plan.to_json().replace(str(plan.seconds), number))
    for wrong in ({"dtype": "float16"}, {"route": "os.system"}, {"backend": "shell"}):
        with pytest.raises(fgp.DomainError, match="which this version does not know"):
            ProductPlan.from_json(json.dumps({**fields, **wrong}))


def test_what_a_plan_says() -> None:
    text = str(build(t=16, batch=2, products=3))
    for part in (
        "20,000 x 20,000 (symmetric)",
        "16 right-hand sides, 2 models",
        "3 products",
        "built-in rates",
        "why not",
    ):
        assert part in text
    assert "rectangular" in str(build(10, 20))
    html = build()._repr_html_()
    assert html.count("<table>") == 2
    assert build(profile=dataclasses.replace(RATES, name="measured")).notes == ()
    assert build(profile=None, deterministic=True).notes == (
        "built-in rates, no measured ones: as deterministic=True asks",
    )


@pytest.mark.parametrize(
    "options", [{"n": -1}, {"m": -1}, {"t": -1}, {"d": 0}, {"batch": 0}, {"products": 0}, {"dtype": torch.float16}]
)
def test_sizes_that_are_none(options: dict[str, object]) -> None:
    with pytest.raises(fgp.DomainError):
        build(**options)


@pytest.mark.parametrize(("n", "m", "t"), [(0, None, 1), (0, 5, 1), (5, 0, 1), (5, None, 0), (1, 1, 1)])
def test_sizes_of_nothing(n: int, m: int | None, t: int) -> None:
    assert build(n, m, t=t).seconds >= 0.0


def test_cpu_or_accelerator_by_what_is_quicker(set_free_memory: Callable[..., int]) -> None:
    cuda = torch.device("cuda")
    set_free_memory(2**34, 2**34)
    both = {"device": [CPU, cuda], "memory": None, "profile": BUILT_IN}
    assert build(100_000, **both).device == "cuda"
    slow = dataclasses.replace(BUILT_IN.accelerator, call_seconds=1.0)
    assert build(100, **{**both, "profile": dataclasses.replace(BUILT_IN, accelerator=slow)}).device == "cpu"
    set_free_memory(2**34, 2**20)
    assert build(100_000, **both).device == "cpu"
    assert accelerator() is None or torch.cuda.is_available()


@pytest.mark.parametrize("n", [4000, 30_000])
def test_a_prediction_is_planned(n: int) -> None:
    """Eq. (M-59): the mean's product, or the variance's strips, whichever is larger, and the results."""
    gp = fgp.GP(KERNEL)
    n_test = 50_000
    plan = fgp.plan(gp, n=n, d=3, n_test=n_test, memory="16GiB", profile=RATES, conditioned="direct")
    features = 6  # three scaled columns in each statistic
    mean = product_plan(FORM, n_test, n, d=features, profile=RATES, memory="16GiB")
    program = program_of(FORM)
    temporaries = max(program.value_temporaries, program.partial_temporaries)
    strip_rows = max(2**25 // (8 * n), n // 64)
    tile = 8 * temporaries * min(strip_rows, tile_rows(n, 1, CPU)) * n
    strips = 3 * 8 * n * strip_rows + tile + 8 * (n + n_test) * features
    assert (plan.n, plan.m, plan.symmetric, plan.route) == (n_test, n, False, mean.route)
    assert plan.peak_bytes == max(mean.peak_bytes, strips) + 8 * (12 + 3) * n_test
    tight = fgp.plan(gp, n=n, d=3, n_test=n_test, memory=plan.peak_bytes, profile=RATES, conditioned="direct")
    assert tight.peak_bytes <= plan.peak_bytes
    assert (tight.peak_bytes < plan.peak_bytes) == (n > 4000), "narrow strips where there is no room for wide ones"
    solves = n_test * n * n / RATES.cpu.gemm_float64 + 2 * n * n_test / RATES.cpu.block_pairs
    calls = -(-n_test // strip_rows) * RATES.cpu.call_seconds
    assert plan.seconds == pytest.approx(mean.seconds + solves + calls)
    assert fgp.plan(gp, n=n, d=3, n_test=n_test, route="dense").route == "dense"
    assert fgp.plan(gp, n=0, d=3, n_test=0).n == 0
    with pytest.raises(fgp.DomainError, match="`n_test` must be a whole number, 0 or more"):
        fgp.plan(gp, n=5, d=3, n_test=-1)
    x = torch.zeros(5, 3, dtype=F64)
    with pytest.raises(fgp.DomainError, match="`plan` must be a plan of conditioning, got ProductPlan"):
        gp.condition(x, x.sum(-1), plan=fgp.plan(gp, n=5, d=3, n_test=2))


def test_a_share_of_the_pairs_is_kept() -> None:
    """Seconds of what is kept, in small panels, and of sorting once, eq. (M-57); the plan says so, as text and JSON."""
    known = building(FUSED)
    whole, part = known(100_000, d=2, dtype=F32), known(100_000, d=2, dtype=F32, kept=0.05)
    call, copy = RATES.cpu.call_seconds, RATES.cpu.copy_bytes
    pairs = 0.05 * (whole.seconds - call) / 0.9
    sorting = 256 * 100_000 * 4 * math.log2(100_000 / 128) / copy
    assert whole.route == "recomputed"
    assert part.seconds == pytest.approx(pairs + call + sorting)
    many = known(100_000, d=2, dtype=F32, kept=0.05, products=10)
    assert many.seconds == pytest.approx(10 * (pairs + call) + sorting)
    assert ("kept" in str(whole), "5 % of the pairs kept" in str(part)) == (False, True)
    assert {one.route for one in part.alternatives} == {"recomputed"}
    portable = build(100_000, d=2, dtype=F32, kept=0.05)
    assert ProductPlan.from_json(portable.to_json()) == portable
    # Whatever was small enough to store is not stored: the tiles that are kept are recomputed.
    assert known(500, kept=0.5, products=100).route == "recomputed"
    known = building(dataclasses.replace(FUSED, skips=False))
    assert known(100_000, d=2, dtype=F32, kept=0.05).backend == "torch"


@pytest.mark.parametrize("kept", [-0.1, 1.1, math.nan])
def test_a_share_that_is_none(kept: float) -> None:
    with pytest.raises(DomainError, match="`kept` must be a share"):
        build(kept=kept)
