"""A trial before what takes the time, eq. (M-245), and the sizes that a time limit allows, eq. (M-244)."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import decided
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fit import Fit, fit_as
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.run import Run
from flashgp.inference.streamed.trial import TEST_SHARE, Trial, largest_part
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.options import FitOptions
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.approximate import by_sample
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings
from flashgp.sources.source import Held
from inference.plain_gp import F64, PlainGP, data, model
from inference.streamed.test_learning import STEPS


def of_trial(x: Tensor, y: Tensor, points: Tensor, learned: int, part: int) -> tuple[Trial, fgp.GP]:
    gp = model()
    found = Trial.of(Problem(gp.released(), x, y, DirectSettings(TorchTiles())), points, learned, part, 0)
    assert found is not None
    return found, gp


def test_a_part_is_the_plain_posterior_on_rows_held_out() -> None:
    x, y = data(60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    kept, out = order[:30], order[60 - int(TEST_SHARE * 60) :]
    found, gp = of_trial(x, y, x[:8], 60, 30)
    with torch.no_grad():
        mean, _ = PlainGP(gp, x[kept], y[kept]).predict(x[out])
    assert found.part == pytest.approx(float((y[out] - mean).square().mean()), rel=1e-8)
    assert found.event.fields["part"] == pytest.approx(found.part**0.5)


def test_points_are_the_posterior_of_as_many_rows_less_what_more_would_take() -> None:
    """Points at the rows are exact inference on them; learning n' rows takes m s (1 / N - 1 / n') from it."""
    x, y = data(60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    count = 60 - int(TEST_SHARE * 60)
    found, _ = of_trial(x, y, x[order[:count]], count, count)
    assert found.points == pytest.approx(found.part, rel=1e-4)
    more, _ = of_trial(x, y, x[order[:count]], 10 * count, count)
    assert found.points - more.points == pytest.approx(found.noise * 0.9, rel=1e-6)
    fewer, _ = of_trial(x, y, x[order[: count // 8]], count, 0)
    assert found.few == pytest.approx(fewer.points, rel=1e-4)
    assert fewer.part == float("inf")


def test_an_eighth_of_the_points_suffices_where_the_others_add_nothing() -> None:
    enough = Trial(points=1.0, few=1.0 + 1e-4, part=2.0, part_rows=100, noise=0.5, inducing=20)
    assert enough.suffice is not None
    assert enough.suffice.fields["kept"] == 3
    assert dataclasses.replace(enough, few=1.0 + 1e-2).suffice is None
    assert not enough.part_is_better
    assert dataclasses.replace(enough, part=0.9).part_is_better


def test_a_part_is_as_large_as_its_time() -> None:
    assert largest_part(lambda rows: rows / 100.0, 2.0, 100.0, 100, 10**6) in range(4500, 5001)
    assert largest_part(lambda rows: 1e9, 2.0, 100.0, 100, 10**6) == 100
    assert largest_part(lambda rows: 0.0, 2.0, 100.0, 100, 90) == 0


def fitted(x: Tensor, y: Tensor, points: int) -> Fit:
    options = FitOptions(run=Run(deadline=Deadline.after(1e5)), starts=1, settings=STEPS)
    sizes = Approximation("sparse").sizes_at(0, len(x))
    asked = Approximation("sparse").resolved(dataclasses.replace(sizes, inducing=points))
    return fit_as(model(), Held(x, y), options, asked, by_part=True)


def test_a_rough_function_with_little_noise_takes_an_exact_part() -> None:
    """Seen red: 20 points for all rows, ten times the error of those of the sample."""
    x = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = fitted(x, (9 * x[:, 0]).sin() * (9 * x[:, 1]).cos(), 20)
    (tried,) = of_kind(found.report.events, EventKind.PART_TRIED)
    assert tried.fields["taken"]
    assert found.posterior.can("bound") is not None
    (part,) = of_kind(found.report.events, EventKind.POSTERIOR_OF_PART)
    assert part.fields["rows"] == found.posterior.count == tried.fields["rows"]
    error = found.posterior.predict(x).mean - (9 * x[:, 0]).sin() * (9 * x[:, 1]).cos()
    assert float(error.square().mean().sqrt()) < 0.1 * tried.fields["points"]
    assert of_kind(found.report.events, EventKind.FIT_ENDED)


def test_a_smooth_function_with_noise_keeps_its_points_and_says_what_ended_it() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(3000, 2, generator=g, dtype=F64)
    y = (2 * x[:, 0]).sin() + 0.5 * torch.randn(3000, generator=g, dtype=F64)
    found = fitted(x, y, 40)
    (tried,) = of_kind(found.report.events, EventKind.PART_TRIED)
    assert not tried.fields.get("taken")
    assert found.posterior.can("bound") is None
    assert len(found.posterior.state.inducing) <= 40
    (ended,) = of_kind(found.report.events, EventKind.FIT_ENDED)
    assert ended.fields["sampled"]
    assert not found.interrupted
    assert not of_kind(found.report.events, EventKind.FIT_TIME_UP)


def decision(n: int, limit: float | None, gp: Any = None) -> tuple[str, Plan]:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=[1.0, 1.0, 1.0])) if gp is None else gp
    settings = PlanSettings(memory="16GiB", profile=BUILT_IN)
    taken, plan, event = decided(gp, RowCounts(n, 3), Approximation("auto"), settings, limit)
    assert bool(plan.approximation) == (taken is not None)
    return event.fields["chosen"], plan  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("n", "limit", "least"), [(300_000, 5.0, 128), (300_000, 30.0, 512), (2_000_000, 120.0, 512), (10**6, 180.0, 512)]
)
def test_short_limits_take_points_that_a_sample_has_time_for(n: int, limit: float, least: int) -> None:
    """Seen red: 64 points, since sizes followed from passes alone."""
    chosen, plan = decision(n, limit)
    assert chosen == "sparse"
    assert plan.inducing >= least
    assert by_sample(plan, limit)
    assert 0.0 < plan.sample_seconds[0] <= plan.fit_seconds <= plan.fit_seconds_high <= limit
    assert any("sample" in note for note in plan.notes)


def test_an_exact_fit_that_fits_stays_exact() -> None:
    for n, limit in ((1000, 60.0), (2000, 600.0), (300_000, None)):
        assert decision(n, limit)[0] == "exact"


def test_rows_with_variances_of_their_own_have_sizes_by_passes() -> None:
    known = fgp.likelihoods.Gaussian(row_variance=torch.full((300_000,), 0.1))
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5), likelihood=known)
    plan = decision(300_000, 30.0, gp)[1]
    assert not any("sample" in note for note in plan.notes)
