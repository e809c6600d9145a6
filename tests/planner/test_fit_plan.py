"""The seconds of a whole fit, of the stages that the search goes through; and the largest fit within limits."""

import dataclasses
import itertools
import math

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS
from flashgp.pairwise.numpy_pairs import MAX_NUMPY_ROWS
from flashgp.planner.exact import largest_fit
from flashgp.planner.fit_stages import Search, StageSettings, fit_stages
from flashgp.planner.plan import Plan
from inference.training.tables import prior, table

GP = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(8)))
SIZES = (0, 1, 2, 7, 50, 399, 400, 401, 1200, 1201, 2000, 2001)


def build(n: int, gp: fgp.GP = GP, d: int = 8, **options: object) -> Plan:
    return fgp.plan(gp, n=n, d=d, **{"profile": BUILT_IN, **options})


def stages(
    n: int, starts: int | None = None, *, scored: bool = True, estimated: bool = False
) -> list[tuple[int, Search]]:
    made = fit_stages(n, StageSettings(starts), parameters=10, scored=scored, estimated=estimated)
    return [(stage.rows, stage.search) for stage in made]


# -- stages ----------------------------------------------------------------------------------------------------------
def test_stages_by_their_rows() -> None:
    starts, scoring, values, estimated = Search.STARTS, Search.SCORING, Search.VALUES, Search.ESTIMATED
    assert stages(1) == [(1, starts)]
    assert stages(400) == [(400, starts)]
    assert stages(401) == [(400, starts), (401, scoring)]
    assert stages(3600) == [(400, starts), (1200, scoring), (3600, scoring)]
    assert stages(3600, scored=False) == [(400, starts), (3600, values)]
    first = [(400, starts), (894, scoring), (2000, scoring)]
    assert stages(6000, estimated=True) == [*first, (6000, estimated)]
    assert stages(20_000, estimated=True) == [*first, (5000, estimated), (20_000, estimated)]


@pytest.mark.parametrize(("n", "few"), [(30, 60), (60, 60), (400, 60), (150, 1000)])
def test_the_search_goes_through_these_stages(n: int, few: int) -> None:
    """One source: with settings of their own a fit evaluates the rows that its stages name, in their order."""
    settings = FitSettings(search=SearchSettings(start_rows=few), stochastic=StochasticSettings(min_draws=20))
    options = FitOptions(starts=2, settings=settings)
    made = fit_stages(n, options.stages, parameters=6, scored=True, estimated=False)
    x, y = table(n)
    seen: list[str] = []
    fgp.fit(prior(), x, y, starts=2, settings=settings, progress=lambda p: seen.append(p.phase))
    phases = [phase for phase in dict.fromkeys(seen) if phase.startswith("fitting")]
    assert phases == [f"fitting {stage.rows:,} rows" for stage in made]


def test_defaults_of_the_search_are_those_of_plans() -> None:
    assert FitOptions().stages == StageSettings()
    assert FitOptions(initial="given").stages.runs == 1
    assert FitOptions(starts=7).stages.runs == 7


def test_a_model_with_modules_of_its_own_starts_once_on_all_rows() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 2, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    own = fgp.GP(1.0 * fgp.kernels.Warped(Net(), fgp.kernels.RBF()))
    assert own.has_user_modules
    assert not GP.has_user_modules
    assert own.trainable_count == 8 * 2 + 2 + 4
    shape = StageSettings().for_model(own_modules=True)
    assert [(s.rows, s.search) for s in fit_stages(3000, shape, parameters=22, scored=False, estimated=False)] == [
        (3000, Search.STARTS)
    ]
    assert build(1500, own).fit_seconds > build(1500).fit_seconds


# -- seconds ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", SIZES)
def test_every_size_has_a_prediction(n: int) -> None:
    plan = build(n)
    assert 0.0 <= plan.fit_seconds_low <= plan.fit_seconds <= plan.fit_seconds_high < math.inf
    assert (plan.fit_seconds > plan.seconds) == (n > 0)
    assert ("whole fit" in str(plan)) == (n > 0)


def test_seconds_by_their_formula() -> None:
    """Eq. (M-146), written out for 500 rows and eleven parameters: one stage after that of few rows."""
    work, rates = StageSettings().work, BUILT_IN.cpu

    def seconds(rows: int, alone: float) -> float:
        factor, pairs = rows**3 / rates.cholesky_float64, rows**2 / rates.block_pairs
        return alone * factor + 3.0 * pairs + 40.0 * rates.call_seconds

    few, all_rows = seconds(400, 1.6), seconds(500, 1.0)
    draw = 2.0 * 400**2 * 9.0 / rates.cholesky_float64 + 40.0 * rates.call_seconds
    run = work.run.middle + 11 * work.run_per_parameter.middle
    expected = 5 * run * few + work.informations.middle * (few + 60 * draw)
    expected += (work.of_scoring(11).middle + work.reset.middle * run) * all_rows
    plan = build(500)
    assert plan.fit_seconds == pytest.approx(expected + plan.seconds)


def test_seconds_grow_with_rows_and_jump_only_with_the_work() -> None:
    """As long as there are as many stages and the posterior comes by the same route, a few more rows take a little more
    time. One more stage makes those before it smaller, and a run on few of the rows ends sooner than one on all: the
    work itself is less then."""
    sizes = sorted({*(round(1.02**k) for k in range(470)), *SIZES[1:]})
    for before, after in itertools.pairwise(build(n) for n in sizes):
        if before.training != after.training:
            continue
        estimated = after.training != "exact"
        same = len(stages(before.n, estimated=estimated)) == len(stages(after.n, estimated=estimated))
        compiled = before.n**2 < PORTABLE_PAIRS <= after.n**2  # products of gradients by quicker loops
        same = same and before.route == after.route and not (estimated and compiled)
        other_engine = before.n <= MAX_NUMPY_ROWS < after.n  # torch's calls take longer than NumPy's
        growth = after.fit_seconds / before.fit_seconds
        assert growth <= (1.8 if other_engine else 1.02 if same else 1.08) * (after.n / before.n) ** 3.0, (
            before.n,
            after.n,
        )
        assert growth >= (1.0 if same else 0.75), (before.n, after.n)


def test_seconds_follow_rates_starts_and_parameters() -> None:
    cpu = dataclasses.replace(BUILT_IN.cpu, cholesky_float64=5e9, block_pairs=1e7, call_seconds=1e-3, gemm_float64=6e9)
    slow = dataclasses.replace(BUILT_IN, cpu=cpu)
    assert build(300, profile=slow).fit_seconds > 5.0 * build(300).fit_seconds
    assert build(300, starts=1).fit_seconds < 0.5 * build(300).fit_seconds
    one = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
    assert build(300, one).fit_seconds < build(300).fit_seconds
    few = build(300, distinct=30)
    assert few.fit_seconds == pytest.approx(build(30).fit_seconds)


def test_the_report_has_what_was_predicted_beside_what_it_took() -> None:
    x, y = table(80)
    fit = fgp.fit(prior(), x, y, starts=1)
    assert (
        fit.report.predicted_seconds
        == fit.report.plan.fit_seconds
        == build(80, prior(), 3, starts=1, profile=None).fit_seconds
    )
    assert "predicted, " in dict(fit.report.lines())["time"]


# -- the largest fit -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("time_limit", [0.5, 3.0, 20.0, 300.0, None])
@pytest.mark.parametrize("memory", ["64MiB", "8GiB"])
def test_the_largest_fit_keeps_to_its_limits_and_one_row_more_does_not(time_limit: float | None, memory: str) -> None:
    found = build(500, memory=memory, time_limit=time_limit).largest_fit

    def keeps(n: int) -> bool:
        try:
            plan = build(n, memory=memory)
        except fgp.MemoryBudgetError:
            return False
        return plan.training_bytes <= plan.available_bytes and plan.fit_seconds <= (time_limit or math.inf)

    assert found.rows > 0
    assert keeps(found.rows)
    assert not keeps(found.rows + 1)
    assert found.seconds == build(found.rows, memory=memory).fit_seconds


def test_more_time_and_more_memory_allow_more_rows() -> None:
    for memory in ("32MiB", "8GiB"):
        rows = [
            build(10, memory=memory, time_limit=t).largest_fit.rows for t in (1e-4, 0.3, 1.0, 3.0, 10.0, 30.0, 90.0)
        ]
        assert rows == sorted(rows)
        assert rows[0] == 0
    assert build(10, memory="32MiB").largest_fit.rows < build(10, memory="1GiB").largest_fit.rows


@pytest.mark.parametrize("limit", [0.9, 3.0, 7.5, 11.0, 40.0])
def test_where_seconds_fall_the_largest_fit_still_grows_with_the_limit(limit: float) -> None:
    """Seconds that fall to half at 3,000 rows, as where gradients are estimated from there on."""
    base = build(10)

    def plan_of(n: int) -> Plan:
        return dataclasses.replace(base, fit_seconds=n / 300.0 if n < 3000 else n / 600.0)

    found = largest_fit(plan_of, limit, 2**30)
    assert found.seconds <= limit < plan_of(found.rows + 1).fit_seconds
    assert found.rows <= largest_fit(plan_of, 1.2 * limit, 2**30).rows


def test_the_largest_fit_in_words() -> None:
    plan = build(500, memory="8GiB", time_limit=60.0)
    assert f"fits up to     {plan.largest_fit.rows:,} rows like these in 60.0 s and 8.0 GiB" in str(plan)
    assert "fits up to" not in str(build(500))
    short = build(5000, time_limit=0.5)
    assert "a fit would end at the time limit" in short.notes[-1]
    again = fgp.Plan.from_json(plan.to_json())
    assert (again, again.largest_fit) == (plan, plan.largest_fit)
    assert plan == build(500, memory="8GiB"), "it runs the same way"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": 0.0}, "`time_limit` must be positive seconds or None, got 0.0"),
        ({"time_limit": -3}, "`time_limit` must be positive seconds or None, got -3"),
        ({"time_limit": math.nan}, "`time_limit` must be positive seconds or None, got nan"),
        ({"time_limit": True}, "`time_limit` must be positive seconds or None, got True"),
        ({"time_limit": "60"}, "`time_limit` must be positive seconds or None, got '60'"),
        ({"starts": 0}, "`starts` must be a whole number, 1 or more, got 0"),
        ({"starts": 1.5}, "`starts` must be a whole number"),
        ({"n_test": 5, "time_limit": 3.0}, "`time_limit` and `starts` are of fits"),
        ({"n_test": 5, "starts": 3}, "`time_limit` and `starts` are of fits"),
    ],
)
def test_bad_input_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(fgp.DomainError, match=message):
        fgp.plan(GP, n=100, d=8, **options)
