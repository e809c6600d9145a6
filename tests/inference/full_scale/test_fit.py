"""Fits by the full-scale likelihood: near the exact optimum, repeatable, resumable, on time."""

from pathlib import Path

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from inference.plain_gp import data, model
from inference.training.test_resume import Killed, killed_after, replayed, trajectory

FEW = FitSettings(stochastic=StochasticSettings(first_rows=100))  # so that small tables have all stages
SCALE = {"approximation": "full_scale", "inducing": 20, "neighbours": 24}


def test_a_fit_is_near_the_exact_one() -> None:
    x, y = data(900)
    exact = fgp.fit(model(), x, y)
    found = fgp.fit(model(), x, y, **SCALE)
    assert found.posterior.can("lost") is None
    with torch.no_grad():
        gap = float(exact.gp.log_joint(x, y) - found.gp.log_joint(x, y)) / 900
    assert abs(gap) < 2e-3
    assert found.report.route == "full scale"
    assert of_kind(found.report.events, EventKind.FULL_SCALE)


def test_the_same_seed_gives_the_same_trajectory() -> None:
    x, y = data(300)
    one, two = (fgp.fit(model(), x, y, settings=FEW, **SCALE) for _ in range(2))
    assert trajectory(one) == trajectory(two)
    assert {entry.run.stage.value for entry in one.history} >= {"subset", "approximate"}


def test_a_fit_that_was_killed_goes_on_along_its_trajectory(tmp_path: Path) -> None:
    x, y = data(300)
    settings = FitSettings(stochastic=FEW.stochastic, seconds_between_writes=-1.0)
    whole = fgp.fit(model(), x, y, settings=settings, **SCALE)
    for count in (5, len(whole.history) - 2):
        file = tmp_path / f"{count}.json"
        with pytest.raises(Killed):
            fgp.fit(model(), x, y, settings=settings, checkpoint=file, progress=killed_after(count), **SCALE)
        again = fgp.fit(model(), x, y, settings=settings, checkpoint=file, **SCALE)
        assert replayed(again) == count
        assert trajectory(again) == trajectory(whole)
    with pytest.raises(fgp.DomainError, match="checkpoint"):
        fgp.fit(model(), x, y, settings=settings, checkpoint=file, **{**SCALE, "neighbours": 20})


def test_without_time_the_parameters_are_those_that_the_data_suggest() -> None:
    x, y = data(200)
    found = fgp.fit(model(), x, y, time_limit=1e-9, **SCALE)
    assert found.interrupted
    assert of_kind(found.report.events, EventKind.FIT_TIME_UP)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_few_rows(n: int) -> None:
    x, y = data(n)
    found = fgp.fit(model(), x, y, approximation="full_scale")
    assert bool(found.posterior.predict(x).mean.isfinite().all())


def test_as_many_points_as_rows_of_which_few_differ() -> None:
    x, y = data(30)
    x[:, :] = 1.0
    found = fgp.fit(model(), x, y, approximation="full_scale", inducing=12, neighbours=20)
    assert bool(found.posterior.predict(x).mean.isfinite().all())
