"""Plans: bytes and seconds by formula, refusals with numbers, and the same plan run again."""

import dataclasses
import json
from collections.abc import Callable

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.machine import parse_bytes, using_accelerator
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.profile_store import keep_profile
from flashgp.foundations.quantities import readable_seconds
from flashgp.planner.choice import Candidate, choose
from planned import conditioning_plan

CPU = torch.device("cpu")


def build(n: int = 2000, **options: object) -> fgp.Plan:
    return conditioning_plan(fgp.kernels.RBF().form, n, **{"memory": "8GiB", **options})


@pytest.mark.parametrize(
    ("n", "outputs", "batch", "dtype"),
    [(2000, 1, 1, None), (600, 3, 2, None), (2000, 1, 1, torch.float32), (10, 1, 1, None)],
)
def test_bytes_and_seconds(n: int, outputs: int, batch: int, dtype: torch.dtype | None) -> None:
    """Eqs. (M-35) and (M-36), written out."""
    plan = build(n, outputs=outputs, batch=batch, dtype=dtype)
    size, rate = (4, BUILT_IN.cpu.cholesky_float32) if dtype == torch.float32 else (8, BUILT_IN.cpu.cholesky_float64)
    rows = min(n, max(1, 2**18 // (n * batch)))
    assert plan.peak_bytes == batch * (n * n * size + 3 * rows * n * 8 + 4 * n * 6 * 8 + 6 * n * outputs * 8)
    pairs, cubic, calls = n * n * batch / BUILT_IN.cpu.block_pairs, n**3 * batch / rate, 40 * BUILT_IN.cpu.call_seconds
    assert plan.seconds == pytest.approx(cubic / 3 + 1.5 * pairs + calls)
    assert plan.fit_step_seconds == pytest.approx(cubic + 2 * pairs + calls)
    assert plan.torch_dtype == (dtype or torch.float64)
    assert plan.available_bytes == 8 * 2**30


def test_the_public_plan() -> None:
    gp = fgp.GP(1.0 * fgp.kernels.RBF(torch.ones(3)), outputs=2)
    plan = fgp.plan(gp, n=5000, d=3, memory="16GiB")
    assert (plan.n, plan.d, plan.outputs, plan.batch, plan.route, plan.backend) == (5000, 3, 2, 1, "direct", "torch")
    text = str(plan)
    for part in ("n = 5,000, d = 3, 2 outputs", "Cholesky of all rows, float64", "MiB of 16.0 GiB", "built-in"):
        assert part in text
    assert "<table>" in plan._repr_html_()
    batch = fgp.GP(torch.ones(3) * fgp.kernels.RBF())
    assert fgp.plan(batch, n=10, d=1).batch == 3
    assert "3 models" in str(fgp.plan(batch, n=10, d=1))
    with pytest.raises(fgp.DomainError, match="`n` must be a whole number, 0 or more"):
        fgp.plan(gp, n=-1, d=3)
    with pytest.raises(fgp.DomainError, match="`d` must be a whole number, 1 or more, got 0"):
        fgp.plan(gp, n=1, d=0)
    with pytest.raises(fgp.DomainError, match="half precision is never computed in"):
        fgp.plan(gp, n=1, d=3, dtype=torch.float16)


def test_a_plan_is_frozen_and_survives_json() -> None:
    plan = build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.n = 3
    assert fgp.Plan.from_json(plan.to_json()) == plan
    fields = json.loads(plan.to_json())
    for text in (
        "",
        "[]",
        "3",
        "{}",
        "null",
        plan.to_json()[:-1],
        json.dumps({**fields, "extra": 1}),
        json.dumps({**fields, "n": "5"}),
        json.dumps({**fields, "d": True}),
        json.dumps({**fields, "alternatives": [1]}),
        json.dumps({name: value for name, value in fields.items() if name != "alternatives"}),
    ):
        with pytest.raises(fgp.DomainError, match=r"must be what Plan\.to_json wrote"):
            fgp.Plan.from_json(text)
    for wrong in (
        {"dtype": "float16"}, {"route": "os.system"}, {"route": "refined"}, {"training": "os.system"},
        {"backend": "os.system"},
    ):  # fmt: skip
        with pytest.raises(fgp.DomainError, match="which this version does not know"):
            fgp.Plan.from_json(json.dumps({**fields, **wrong}))
    for distinct in (0, fields["n"] + 1):
        with pytest.raises(fgp.DomainError, match=f"`text` names {distinct:,} distinct rows of n = "):
            fgp.Plan.from_json(json.dumps({**fields, "distinct": distinct}))


def test_too_large_says_what_would_fit() -> None:
    needed = build(4000, memory="1TiB").peak_bytes
    with pytest.raises(fgp.MemoryBudgetError, match=r"route='refined' \(float32\) needs .* and fits") as caught:
        build(4000, memory=100 * 10**6, dtype=torch.float64)
    assert caught.value.needed_bytes == needed
    assert caught.value.available_bytes == 100 * 10**6
    cheapest = caught.value.cheapest_plan
    assert cheapest.dtype == "float32"
    assert cheapest.peak_bytes <= 100 * 10**6
    for options in ({}, {"dtype": torch.float32}):
        plan = build(4000, memory=100 * 10**6, **options)
        assert (plan.route, plan.peak_bytes) == ("refined", cheapest.peak_bytes)
    for options in ({}, {"dtype": torch.float64}, {"dtype": torch.float32}, {"route": "stored"}):
        with pytest.raises(fgp.MemoryBudgetError, match="take fewer rows") as caught:
            build(4000, memory="1MB", **options)
        assert caught.value.cheapest_plan is None


def test_condition_and_fit_refuse_before_they_allocate() -> None:
    x, y = torch.arange(2000.0, dtype=torch.float64).reshape(1000, 2), torch.zeros(1000, dtype=torch.float64)
    gp = fgp.GP(fgp.kernels.RBF())
    for call in (gp.condition, lambda *a, **k: fgp.fit(gp, *a, **k)):
        with pytest.raises(fgp.MemoryBudgetError, match=r"`memory` allows 1\.0 MiB") as caught:
            call(x, y, memory="1MiB")
        needed = caught.value.needed_bytes
        assert fgp.plan(gp, n=1000, d=2, memory=needed).peak_bytes == needed
        with pytest.raises(fgp.MemoryBudgetError):
            fgp.plan(gp, n=1000, d=2, memory=needed - 1)


def test_a_plan_is_replayed() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = x.sum(-1)
    gp = fgp.GP(fgp.kernels.RBF())
    single = fgp.plan(gp, n=40, d=2, dtype=torch.float32)
    for posterior in (gp.condition(x, y, plan=single), fgp.fit(gp, x, y, plan=single, max_iterations=2).posterior):
        assert posterior.plan == single
        assert posterior.report.dtype == "float32"
        assert posterior.factor.lower.dtype == torch.float32
    again = gp.condition(x, y, plan=fgp.Plan.from_json(single.to_json()))
    first = gp.condition(x, y, plan=single)
    assert torch.equal(again.representer_weights, first.representer_weights)


def test_a_plan_of_other_sizes_is_refused() -> None:
    x, y = torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    gp = fgp.GP(fgp.kernels.RBF())
    for n, d in ((5, 2), (4, 3)):
        with pytest.raises(fgp.DomainError, match=rf"= \({n}, {d}, 1, 1\), got data with \(4, 2, 1, 1\)"):
            gp.condition(x, y, plan=fgp.plan(gp, n=n, d=d))
        with pytest.raises(fgp.DomainError, match="`plan` is for"):
            fgp.fit(gp, x, y, plan=fgp.plan(gp, n=n, d=d))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 2**33),
        ("1.5 kb", 1500),
        ("2TiB", 2**41),
        ("7", 7),
        ("3MB", 3_000_000),
        (5, 5),
        (5.9, 5),
        (2**62, 2**62),
    ],
)
def test_amounts_of_memory(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GB", "8 XB", "1e999GB", "nan", 0, -3, True, None, float("nan"), float("inf")]
)
def test_no_amounts_of_memory(text: object) -> None:
    with pytest.raises(fgp.DomainError, match="`memory` must be a positive number of bytes"):
        parse_bytes(text)


# -- routes ----------------------------------------------------------------------------------------------------------
def test_the_other_routes_stand_in_the_plan() -> None:
    plan = build()
    others = {other.route: other for other in plan.alternatives}
    assert (plan.route, set(others)) == ("direct", {"refined", "stored", "recomputed"})
    assert others["refined"].reason == "a float64 factor takes less than 10 s, or is as quick"
    assert others["stored"].reason == others["recomputed"].reason == "a factor fits, and gives variances at once"
    single = build(dtype=torch.float32)
    assert (others["refined"].peak_bytes, others["refined"].seconds) == (single.peak_bytes, single.seconds)
    assert single.route == "refined"
    assert {other.reason for other in single.alternatives} == {"refined was asked for"}
    assert build(route="refined") == single
    assert build(route="direct", dtype=torch.float64).peak_bytes == plan.peak_bytes
    for part in ("refined", "why not", others["refined"].reason, "training"):
        assert part in str(plan)
    assert plan._repr_html_().count("<table>") == 2
    for route in ("direct", "refined", "stored", "recomputed"):
        forced = build(route=route)
        assert (forced.route, fgp.Plan.from_json(forced.to_json())) == (route, forced)
    with pytest.raises(fgp.DomainError, match=r"`route` 'refined' computes in float32, got dtype=torch\.float64"):
        build(route="refined", dtype=torch.float64)
    with pytest.raises(
        fgp.DomainError, match="`route` must be one of direct, refined, stored, recomputed, got 'quick'"
    ):
        fgp.plan(fgp.GP(fgp.kernels.RBF()), n=5, d=1, route="quick")
    with pytest.raises(fgp.DomainError, match="`route` 'stored' cannot be taken for 3 models"):
        build(route="stored", batch=3)


def test_alternatives_that_do_not_fit_say_so() -> None:
    single = build(4000, memory="1TiB", dtype=torch.float32)
    plan = build(4000, memory=single.peak_bytes, dtype=torch.float32)
    too_large = {a.route: a.reason.startswith("does not fit in ") for a in plan.alternatives if a.backend == "torch"}
    assert too_large == {"direct": True, "stored": False, "recomputed": False}


def test_a_plan_names_its_rates(request: pytest.FixtureRequest) -> None:
    """The built-in ones unless a profile is given, and it says so."""
    assert build().notes == ("built-in rates, no measured ones: `flashgp tune` measures this machine's in seconds",)
    assert "deterministic=True" in build(deterministic=True).notes[0]
    quick = dataclasses.replace(BUILT_IN.cpu, cholesky_float64=5e13)
    profile = dataclasses.replace(BUILT_IN, name="measured", cpu=quick)
    plan = fgp.plan(fgp.GP(fgp.kernels.RBF()), n=2000, d=4, profile=profile)
    assert (plan.profile, plan.notes) == ("measured", ())
    assert "measured rates" in str(plan)
    assert plan.seconds < fgp.plan(fgp.GP(fgp.kernels.RBF()), n=2000, d=4).seconds
    request.getfixturevalue("profiles")
    keep_profile(profile)
    assert (build().profile, build(deterministic=True).profile) == ("measured", "built-in")


@pytest.mark.usefixtures("profiles")
def test_the_quickest_device_is_chosen(set_free_memory: Callable[..., int]) -> None:
    """device="auto": by the rates and by what fits; nothing is allocated."""
    set_free_memory(2**34, 2**30)
    with using_accelerator(torch.device("cuda")):
        gp = fgp.GP(fgp.kernels.RBF())
        large = fgp.plan(gp, n=8000, d=2, device="auto")
        assert (large.device, large.available_bytes) == ("cuda", 2**30)
        others = [(a.device, a.route) for a in large.alternatives if a.route in ("direct", "refined")]
        assert others == [("cuda", "refined"), ("cpu", "refined"), ("cpu", "direct")]
        assert fgp.plan(gp, n=10_500, d=2, device="auto").device == "cpu", "does not fit the other"
        slow = dataclasses.replace(BUILT_IN.accelerator, call_seconds=1.0)
        profile = dataclasses.replace(BUILT_IN, accelerator=slow)
        assert fgp.plan(gp, n=100, d=2, device="auto", profile=profile).device == "cpu"
        x = torch.zeros(100, 2, dtype=torch.float64)
        x[:, 0] = torch.arange(100)
        keep_profile(profile)
        assert gp.condition(x, x[:, 0], device="auto").report.device == "cpu"
        assert fgp.fit(gp, x, x[:, 0], device="auto", max_iterations=1, starts=1).report.device == "cpu"


@pytest.mark.parametrize(("name", "value", "words"), [
    ("n", 1e6, "whole number.*1000000.0"), ("n", -1, "0 or more.*-1"), ("n", "a", "whole number.*'a'"),
    ("d", 0, "1 or more.*0"), ("d", True, "whole number.*True"), ("batch", 0, "1 or more.*0"),
    ("n_test", 1.5, "whole number.*1.5"), ("n_test", "a", "whole number"), ("n_test", True, "whole number.*True"),
])  # fmt: skip
def test_counts_are_whole_numbers(name: str, value: object, words: str) -> None:
    gp = fgp.GP(fgp.kernels.RBF())
    with pytest.raises(fgp.DomainError, match=f"`{name}` must be.*{words}"):
        fgp.plan(gp, **{"n": 100, "d": 2, name: value})
    assert fgp.plan(gp, numpy.int64(100), numpy.int32(2), memory="1GiB") == fgp.plan(gp, 100, 2, memory="1GiB")


def test_times_are_readable() -> None:
    wanted = {5e-5: "50 us", 0.0123: "12.3 ms", 119.0: "119.0 s", 130.0: "2.2 min", 7000.0: "116.7 min"}
    wanted |= {7200.0: "2.0 hours", 100_000.0: "27.8 hours", 6_681_666.0: "77.3 days"}
    assert {seconds: readable_seconds(seconds) for seconds in wanted} == wanted


@pytest.mark.parametrize(
    ("seconds", "chosen", "why"),
    [
        (1.0, 1.0, "no quicker"), (0.0, 0.0, "no quicker"), (1.004, 1.0, "no quicker"),
        (1.006, 1.0, "slower, 1.01 times"), (2.5, 1.0, "slower, 2.5 times"), (1e-3, 1e-7, "slower, 10,000 times"),
        (1.0, 0.0, "slower"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_route_that_was_not_chosen_is_true(seconds: float, chosen: float, why: str) -> None:
    candidates = [Candidate("taken", "torch", "cpu", "float64", 1, chosen),
                  Candidate("other", "torch", "cpu", "float64", 2, seconds)]  # fmt: skip
    taken, (other,) = choose(candidates, {"cpu": 10}, too_large=lambda *_: pytest.fail("it fits"))
    assert (taken.route, other.reason) == ("taken", why)
