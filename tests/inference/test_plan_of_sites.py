"""Plans price the conditionings that find sites by iteration."""

import contextlib
import time
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import FlashGPWarning
from flashgp.foundations.events import EventKind
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.condition import condition
from flashgp.inference.data import Data
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import SiteSettings
from flashgp.planner.plan import FACTORED

F64 = torch.float64


def model(likelihood: fgp.likelihoods.Likelihood) -> fgp.GP:
    return fgp.GP(4.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=likelihood)


@pytest.mark.parametrize("options", [{}, {"approximation": "full_scale"}])
def test_a_plan_has_as_many_conditionings_as_it_says(options: dict[str, Any]) -> None:
    plan, once = (
        fgp.plan(model(one), n=2000, d=3, starts=1, **options)
        for one in (fgp.likelihoods.Bernoulli(), fgp.likelihoods.Gaussian(0.1))
    )
    assert once.conditionings == 1
    settings = SiteSettings()
    assert plan.conditionings == (settings.linear_conditionings if options else settings.conditionings)
    assert plan.seconds == pytest.approx(plan.conditionings * once.seconds)
    assert plan.peak_bytes == once.peak_bytes
    assert once.fit_step_seconds < plan.fit_step_seconds < 5.0 * once.fit_step_seconds
    assert plan.fit_seconds > plan.seconds
    assert f"as {plan.conditionings} conditionings that find sites" in str(plan)
    assert "conditionings" not in str(once)
    assert fgp.Plan.from_json(plan.to_json()) == plan


def test_labels_have_few_evaluations_of_all_rows_and_passes_a_price_for_sites() -> None:
    """(M-185), (M-186): 19 s of CPU for labels where numbers took 21, both of 8,000 x 8 by 512 points (decision 63)."""
    kinds = fgp.likelihoods.Bernoulli(), fgp.likelihoods.Poisson(), fgp.likelihoods.Gaussian(0.1)
    sizes: dict[str, Any] = {"n": 8000, "d": 8, "approximation": "full_scale", "inducing": 512}
    labels, counts, numbers = (fgp.plan(model(one), **sizes).fit_seconds for one in kinds)
    assert 0.8 * numbers < labels < counts < 2.5 * numbers
    classes = fgp.likelihoods.Categorical(10)
    ten, one, plain = (
        fgp.plan(model(likelihood), n=10**6, d=8, approximation="sparse", inducing=128)
        for likelihood in (classes, kinds[0], kinds[2])
    )
    assert 6.0 < ten.seconds / one.seconds < 11.0
    assert one.seconds > 3.0 * one.conditionings * plain.seconds


def test_sites_of_few_rows_without_a_factor_are_those_of_one() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(80, 3, generator=generator, dtype=F64)
    y, gp = (x[:, 0] > 0.5).double(), model(fgp.likelihoods.Bernoulli())
    found, wanted = (gp.condition(x, y, solver=solver, tolerance=1e-6).predict(x[:5]) for solver in ("cg", None))
    torch.testing.assert_close(found.mean, wanted.mean, rtol=0.0, atol=1e-3)
    custom = fgp.GP(fgp.kernels.Custom(lambda a, b: torch.exp(-(a - b).square().sum())), likelihood=gp.likelihood)
    noted = [any("solves for the variances" in note for note in fgp.plan(one, n=80, d=3, solver="cg").notes)
             for one in (gp, custom)]  # fmt: skip
    assert noted == [False, True]  # sampled ones are in the price


def test_an_exact_fit_of_many_labels_is_planned_by_full_scale_and_solves() -> None:
    """(M-451): by the rates of no machine; where variances cannot be sampled, by a factor, or not at all."""
    likelihood, options = fgp.likelihoods.Bernoulli(), {"d": 2, "profile": BUILT_IN, "memory": "16GiB"}
    gp = fgp.GP(4.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=likelihood)
    few, many = (fgp.plan(gp, n=n, **options) for n in (5_000, 20_000))
    assert (few.route, few.training) == ("direct", "exact")
    assert many.training == "full_scale"
    assert many.route not in FACTORED
    assert many.conditionings == SiteSettings().linear_conditionings
    search = fgp.plan(gp, n=20_000, approximation="full_scale", **options)
    assert many.fit_seconds - many.seconds == pytest.approx(search.fit_seconds - search.seconds)
    assert many.training_bytes < 8 * 20_000**2 < few.available_bytes
    assert fgp.Plan.from_json(many.to_json()) == many
    reason = "takes longer than solves with sampled variances of the rows"
    assert {one.reason for one in many.alternatives if one.route in FACTORED} == {reason}
    custom = fgp.GP(fgp.kernels.Custom(lambda a, b: torch.exp(-(a - b).square().sum())), likelihood=likelihood)
    assert fgp.plan(custom, n=20_000, **options).training == "exact"
    numbers = fgp.plan(fgp.GP(gp.kernel, likelihood=fgp.likelihoods.Gaussian(0.1)), n=20_000, **options)
    assert (numbers.route, numbers.training) == ("refined", "stored")


def test_a_time_limit_counts_all_conditionings() -> None:
    """Of a clock that stands: time for some of all rows is no time for their sites, and for many more it is."""
    x = torch.rand(600, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    y, gp, settings = (x[:, 0] > 0.5).double(), model(fgp.likelihoods.Bernoulli()), SiteSettings()
    data = Data.of(gp, x, y)
    once = fgp.plan(gp, n=600, d=3).seconds / settings.conditionings
    for times, whole in ((0.5 * settings.conditionings, False), (2.0 * settings.conditionings, True)):
        run = Run(deadline=Deadline(times * once, times * once, lambda: 0.0))
        with contextlib.nullcontext() if whole else pytest.warns(FlashGPWarning):
            state = condition(gp, data, ConditionSettings(run))
        kinds = [event.kind for event in state.report.events]
        assert (EventKind.POSTERIOR_OF_PART in kinds) == (state.count < 600) == (not whole)


def test_few_of_many_rows_have_a_factor() -> None:
    """Though all of them would have had solves, each of whose steps takes as long as a factor of these."""
    n = 20_000
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    gp = fgp.GP(4.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=fgp.likelihoods.Bernoulli())
    run = Run(deadline=Deadline(1.0, 1e-6, lambda: 0.0), memory="2GiB")  # no factor of all rows
    with pytest.warns(FlashGPWarning, match=r"of 400 random ones"):
        state = condition(gp, Data.of(gp, x, (x[:, 0] > 0.5).double()), ConditionSettings(run))
    assert state.report.route in FACTORED


def test_full_scale_predicts_the_seconds_of_all_its_conditionings() -> None:
    x = torch.rand(300, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    sizes: dict[str, Any] = {"approximation": "full_scale", "inducing": 20, "neighbours": 20}
    gp = model(fgp.likelihoods.Bernoulli())
    report = gp.condition(x, (x[:, 0] > 0.5).double(), **sizes).report
    assert report.predicted_seconds == pytest.approx(fgp.plan(gp, n=300, d=3, **sizes).seconds, rel=0.2)


def test_predicted_seconds_are_near_measured_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(500, 3, generator=generator, dtype=F64)
    y = ((6.0 * x[:, 0]).sin() + 0.5 * torch.randn(500, generator=generator, dtype=F64) > 0).double()
    gp = model(fgp.likelihoods.Bernoulli())
    gp.condition(x[:50], y[:50])
    began = time.perf_counter()
    report = gp.condition(x, y).report
    took = time.perf_counter() - began
    assert report.seconds == pytest.approx(took, rel=0.2)
    assert report.predicted_seconds == pytest.approx(fgp.plan(gp, n=500, d=3).seconds, rel=0.5)
    assert report.predicted_seconds > 0.05 * took  # of a machine that others use too
