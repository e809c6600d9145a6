"""A fit takes twice the neighbours where these add much, eq. (M-209)."""

from pathlib import Path

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import approximate_plan
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.planner.plan import Plan, Sizes
from flashgp.planner.problem import PlanSettings
from inference.plain_gp import F64, model, rough

FEW = FitSettings(stochastic=StochasticSettings(first_rows=200))  # so that small tables have all stages


@pytest.mark.parametrize(("sizes", "twice"), [
    (Sizes(512, 32, 96, 384), Sizes(512, 32, 192, 768)),
    (Sizes(512, 128, 512, 1024), Sizes(512, 128, 1024, 1024)),
    (Sizes(512, 128, 1024, 1024), Sizes(512, 128, 2048, 2048)),
    (Sizes(9, 9, 0, 0), Sizes(18, 9, 0, 0)),
])  # fmt: skip
def test_twice_the_neighbours(sizes: Sizes, twice: Sizes) -> None:
    assert sizes.doubled() == twice


def test_a_fit_takes_them_where_they_add_much(tmp_path: Path) -> None:
    """The posterior has them, the plan of the answer is of them, and a fit that goes on takes them again."""
    x, y = rough(1200)
    asked = {"approximation": "full_scale", "inducing": 8, "settings": FEW, "max_iterations": 4}
    planned = fgp.plan(model(4), n=1200, d=4, approximation="full_scale", inducing=8)
    fit = fgp.fit(model(4), x, y, checkpoint=tmp_path / "log", **asked)
    (event,) = of_kind(fit.report.events, EventKind.MORE_NEIGHBOURS_TAKEN)
    assert (event.fields["planned"], event.fields["kept"]) == (96, 192)
    assert event.fields["gain"] > 0.05
    assert fit.posterior.state.sizes.neighbours == fit.report.plan.neighbours == 192
    assert fit.posterior.state.sizes.predicting == 768
    assert fit.report.plan.more_seconds > planned.more_seconds, "of twice as many again"
    assert fit.report.predicted_bytes == planned.training_bytes >= fit.report.plan.training_bytes
    given = fgp.fit(model(4), x, y, neighbours=96, **asked)
    assert not of_kind(given.report.events, EventKind.MORE_NEIGHBOURS_TAKEN), "what was asked for is kept"
    wide, narrow = (float(one.posterior.log_marginal_likelihood()) for one in (fit, given))
    assert wide > narrow + 0.05 * 1200
    again = fgp.fit(model(4), x, y, checkpoint=tmp_path / "log", **asked)
    assert again.posterior.state.sizes == fit.posterior.state.sizes
    assert torch.equal(again.posterior.predict(x[:5]).mean, fit.posterior.predict(x[:5]).mean)


@pytest.mark.parametrize("first", ["auto", 96])
def test_a_checkpoint_goes_on_only_where_as_many_may_be_taken(tmp_path: Path, first: str | int) -> None:
    """Values of 192 neighbours are not those of 96."""
    x, y = rough(300)
    asked = {"approximation": "full_scale", "inducing": 8, "settings": FEW, "max_iterations": 2}
    path, other = tmp_path / "log", 96 if first == "auto" else "auto"
    fgp.fit(model(4), x, y, checkpoint=path, neighbours=first, **asked)
    with pytest.raises(fgp.DomainError, match="checkpoint"):
        fgp.fit(model(4), x, y, checkpoint=path, neighbours=other, **asked)


def test_auto_that_chose_full_scale_may_take_them() -> None:
    """The request that `approximation="auto"` is settled to leaves neighbours open."""
    settings = PlanSettings(None, torch.device("cpu"))
    rows, asked = RowCounts(36_000, 8, 36_000), Approximation("full_scale")
    plan = approximate_plan(model(8), rows, asked, settings)
    settled = approximate_plan(model(8), rows, asked.resolved(plan.sizes), settings)
    assert settled.most_neighbours == plan.most_neighbours == 192
    given = Approximation("full_scale", neighbours=96).resolved(plan.sizes)
    assert approximate_plan(model(8), rows, given, settings).most_neighbours == 0


def test_points_of_ones_own_are_kept_with_them() -> None:
    x, y = rough(1200)
    points = x[:8] + 0.01
    fit = fgp.fit(model(4), x, y, approximation="full_scale", inducing=points, settings=FEW, max_iterations=4)
    assert len(of_kind(fit.report.events, EventKind.MORE_NEIGHBOURS_TAKEN)) == 1
    assert torch.equal(fit.posterior.state.layout.inducing, points)


def test_a_fit_leaves_them_where_they_add_little() -> None:
    """As half of them show, so that they are not even tried."""
    x = torch.linspace(0.0, 1.0, 600, dtype=F64).unsqueeze(-1)
    y = (9.0 * x[:, 0]).sin() + 0.1 * torch.randn(600, generator=torch.Generator().manual_seed(0), dtype=F64)
    fit = fgp.fit(model(1), x, y, approximation="full_scale", settings=FEW)
    assert not of_kind(fit.report.events, EventKind.MORE_NEIGHBOURS_TAKEN)
    assert fit.posterior.state.sizes.neighbours == fit.report.plan.neighbours == 96
    assert fit.report.plan.most_neighbours == 192


def test_plans_have_room_for_them() -> None:
    """Where nobody named neighbours or a time limit and they fit; else none are tried."""
    n, d = 36_000, 8

    def build(n: int = n, **asked: object) -> Plan:
        return fgp.plan(model(d), n=n, d=d, approximation="full_scale", **asked)

    few = [build(3000, inducing=8, **asked) for asked in ({}, {"neighbours": 96}, {"neighbours": 192})]
    assert few[0].peak_bytes == few[1].peak_bytes > few[2].peak_bytes, "fewer wide sets are taken together"
    assert few[0].training_bytes == few[2].training_bytes > few[1].training_bytes
    free, twice = build(), build(inducing=512, neighbours=192)
    assert (free.neighbours, free.most_neighbours) == (96, 192)
    assert free.training_bytes == max(twice.training_bytes, build(neighbours=96).training_bytes)
    assert free.fit_seconds < twice.fit_seconds
    assert free.fit_seconds_high > twice.fit_seconds_high, "trying them takes time too"
    assert "192 where these add much" in str(free)
    assert Plan.from_json(free.to_json()) == free
    for asked in ({"neighbours": 96}, {"time_limit": 1e4}):
        assert build(**asked).most_neighbours == 0, asked
    for share in (0.5, 0.9, 0.99):
        short = build(memory=int(share * free.training_bytes))
        assert short.training_bytes <= share * free.training_bytes
        assert short.most_neighbours in (0, 2 * short.neighbours)
