"""Sizes of full scale in a fit: coarse at first (M-208), fewer points (M-207), more neighbours (M-209)."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.full_scale.layout import Layout, drop_redundant_points
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.planner.plan import Plan, Sizes
from inference.plain_gp import F64, data, model, rough
from solvers.dense_system import matern

FEW = FitSettings(stochastic=StochasticSettings(first_rows=200))  # so that small tables have all stages


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
    pairs = zip(again.posterior.gp.parameters(), fit.posterior.gp.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs), "to the bit: they are of the file"
    means = [one.posterior.predict(x[:5]).mean for one in (again, fit)]
    torch.testing.assert_close(*means, rtol=0.0, atol=1200 * torch.finfo(F64).eps * 10)  # sums in another order


@pytest.mark.parametrize("first", ["auto", 96])
def test_a_checkpoint_goes_on_only_where_as_many_may_be_taken(tmp_path: Path, first: str | int) -> None:
    """Values of 192 neighbours are not those of 96."""
    x, y = rough(300)
    asked = {"approximation": "full_scale", "inducing": 8, "settings": FEW, "max_iterations": 2}
    path, other = tmp_path / "log", 96 if first == "auto" else "auto"
    fgp.fit(model(4), x, y, checkpoint=path, neighbours=first, **asked)
    with pytest.raises(fgp.DomainError, match="checkpoint"):
        fgp.fit(model(4), x, y, checkpoint=path, neighbours=other, **asked)


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


k = fgp.kernels


def short(n: int) -> tuple[fgp.GP, Tensor, Tensor]:
    """A draw in two dimensions, with a lengthscale that the neighbours of a block span."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    covariance = matern(x, 0.1).diagonal_scatter(torch.full((n,), 1.01, dtype=F64))
    y = torch.linalg.cholesky(covariance) @ torch.randn(n, generator=generator, dtype=F64)
    return fgp.GP(1.0 * k.Matern(1.5, 0.1), likelihood=fgp.likelihoods.Gaussian(0.01)), x, y


def smooth(n: int) -> tuple[fgp.GP, Tensor, Tensor]:
    """In six dimensions, with waves longer than any neighbourhood and little noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 6, generator=generator, dtype=F64)
    y = torch.sin(2.0 * x.sum(-1)) + 0.01 * torch.randn(n, generator=generator, dtype=F64)
    return fgp.GP(4.0 * k.Matern(1.5, 2.5), likelihood=fgp.likelihoods.Gaussian(1e-4)), x, y


def test_where_neighbours_explain_everything_an_eighth_serves() -> None:
    gp, x, y = short(1500)
    found = gp.condition(x, y, approximation="full_scale")
    (event,) = of_kind(found.report.events, EventKind.FEWER_POINTS_SUFFICE)
    assert (event.fields["kept"], event.fields["planned"]) == (64, 512)
    assert found.state.sizes.inducing == len(found.state.layout.inducing) == 64
    assert "inducing=512 keeps them all" in str(event)
    every = gp.condition(x, y, approximation="full_scale", inducing=512)
    assert not of_kind(every.report.events, EventKind.FEWER_POINTS_SUFFICE), "what was asked for is kept"
    lost = float(every.log_marginal_likelihood() - found.log_marginal_likelihood()) / len(x)
    assert lost <= 1e-3
    assert event.fields["gain"] is None or event.fields["gain"] == pytest.approx(lost, rel=1e-6)
    a, b = (one.predict(x[:50] + 0.003) for one in (found, every))
    assert float(((a.mean - b.mean) / b.variance.sqrt()).abs().max()) < 0.2


def test_where_waves_are_long_all_points_stay() -> None:
    gp, x, y = smooth(1500)
    found = gp.condition(x, y, approximation="full_scale")
    assert not of_kind(found.report.events, EventKind.FEWER_POINTS_SUFFICE)
    assert found.state.sizes.inducing == 512
    few = gp.condition(x, y, approximation="full_scale", inducing=64)
    assert float(found.log_marginal_likelihood() - few.log_marginal_likelihood()) / len(x) > 1e-3


def test_a_fit_settles_it_for_its_posterior() -> None:
    gp, x, y = short(1300)
    few = FitSettings(stochastic=StochasticSettings(first_rows=300))
    fit = fgp.fit(gp, x, y, approximation="full_scale", starts=1, max_iterations=4, settings=few)
    assert len(of_kind(fit.report.events, EventKind.FEWER_POINTS_SUFFICE)) == 1
    assert len(of_kind(fit.posterior.report.events, EventKind.FEWER_POINTS_SUFFICE)) == 1
    assert fit.posterior.state.sizes.inducing == 64
    again = fit.gp.condition(x, y, approximation="full_scale")
    assert float(again.log_marginal_likelihood()) == pytest.approx(
        float(fit.posterior.log_marginal_likelihood()), abs=1e-3 * len(x)
    )


@pytest.mark.parametrize(("few", "kept"), [
    (1000.0 - 0.9, 2), (1000.0 - 1.1, 16), (1001.0, 2), (float("nan"), 16),
])  # fmt: skip
def test_a_thousandth_of_a_nat_a_row_is_the_limit(few: float, kept: int) -> None:
    """Of 1,000 rows; Vecchia is no bound, so that fewer points may say more."""
    whole = Layout(torch.zeros(16, 1, dtype=F64), cast(Any, None), Sizes(16, 8, 8, 8))
    values = {16: 1000.0, 2: few}
    layout, made, event = drop_redundant_points(whole, lambda one: (len(one.inducing), values[len(one.inducing)]), 1000)
    assert len(layout.inducing) == layout.sizes.inducing == made == kept
    assert (event is not None) == (kept == 2)


FEWER = FitSettings(stochastic=StochasticSettings(first_rows=100))  # so that small tables have all stages


@pytest.mark.parametrize("inducing", ["auto", 16])
def test_the_last_stage_has_the_sizes_asked_for(inducing: str | int) -> None:
    """With all rows as neighbours the model is exact, with half of them it is not."""
    x, y = data(240)
    fit = fgp.fit(model(), x, y, approximation="full_scale", inducing=inducing, neighbours=240, settings=FEWER)
    runs = [entry for entry in fit.history if entry.run.stage is Stage.APPROXIMATE]
    first, last = runs[0].run, runs[-1].run
    assert first != last

    def gap(run: object) -> float:
        """Of the last value of a run to the exact one at the parameters found, nats."""
        exact = float(fit.gp.condition(x, y).log_marginal_likelihood()) + fit.log_prior
        return abs([entry.value for entry in runs if entry.run == run][-1] - exact)

    assert gap(last) < 1e-6
    assert gap(first) > 1e-3
