"""Fits from rows that are read: near the exact optimum, repeatable, resumable, on time."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.streamed_posterior import StreamedPosterior
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from inference.plain_gp import data, model
from inference.training.test_resume import Killed, killed_after, replayed, trajectory

FEW = FitSettings(stochastic=StochasticSettings(first_rows=100))  # so that small tables have all stages


def batches(x: Tensor, y: Tensor, size: int = 64) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def fitted(x: Tensor, y: Tensor, **options: Any) -> fgp.fit:
    return fgp.fit(model(), batches(x, y), **{"settings": FEW, "inducing": 10, **options})


def test_a_fit_is_near_the_exact_one() -> None:
    x, y = data(900)
    exact, found = fgp.fit(model(), x, y), fitted(x, y, inducing=40)
    assert isinstance(found.posterior, StreamedPosterior)
    with torch.no_grad():
        gap = float(exact.gp.log_joint(x, y) - found.gp.log_joint(x, y)) / 900
        bound, likelihood = found.posterior.bound, float(found.gp.log_marginal_likelihood(x, y))
    assert bound.lower <= likelihood <= bound.upper
    assert abs(gap) < 5e-3
    assert found.report.route == "streamed"
    assert "nats, at least" in repr(found)
    assert of_kind(found.report.events, EventKind.STREAMED)


def test_the_best_choice_of_points_is_the_answer() -> None:
    x, y = data(400)
    found = fitted(x, y)
    best = max((one for one in found.history if one.run.stage is Stage.APPROXIMATE), key=lambda one: one.value)
    assert best.theta == pytest.approx(torch.cat([p.detach().reshape(-1) for p in found.gp.parameters()]).tolist())
    again = found.gp.condition(batches(x, y), inducing=found.posterior.inducing)
    assert again.bound.lower == pytest.approx(found.posterior.bound.lower, rel=1e-10)


def test_few_points_are_fitted_by_their_bound_however_few_rows_there_are() -> None:
    """The noise of the exact model says nothing of what five points leave of 90 rows."""
    x, y = data(90)
    x = 4.0 * x
    exact, found = fgp.fit(model(), x, y, settings=FEW), fitted(x, y, inducing=5)
    before = exact.gp.condition(batches(x, y), inducing=found.posterior.inducing)
    assert found.posterior.bound.lower > before.bound.lower + 5.0
    for factor in (0.7, 1.4):
        other = found.gp.released()
        other.likelihood = fgp.likelihoods.Gaussian(factor * found.gp.likelihood.noise_variance.value.item())
        moved = other.condition(batches(x, y), inducing=found.posterior.inducing)
        assert moved.bound.lower < found.posterior.bound.lower + 1.0


def test_the_same_seed_gives_the_same_trajectory_and_batches_change_little() -> None:
    x, y = data(300)
    one, two = (fitted(x, y) for _ in range(2))
    assert trajectory(one) == trajectory(two)
    other = fgp.fit(model(), batches(x, y, 31), settings=FEW, inducing=10)
    assert other.posterior.bound.lower == pytest.approx(one.posterior.bound.lower, rel=1e-4)


def test_a_fit_that_was_killed_goes_on_along_its_trajectory(tmp_path: Path) -> None:
    x, y = data(300)
    settings = dataclasses.replace(FEW, seconds_between_writes=-1.0)
    whole = fitted(x, y, settings=settings)
    for count in (5, len(whole.history) - 2):
        file = tmp_path / f"{count}.json"
        with pytest.raises(Killed):
            fitted(x, y, settings=settings, checkpoint=file, progress=killed_after(count))
        again = fitted(x, y, settings=settings, checkpoint=file)
        assert replayed(again) == count
        assert trajectory(again) == trajectory(whole)
        assert torch.equal(again.posterior.inducing, whole.posterior.inducing)
    for changed in ({"inducing": 11}, {"x": x + 1e-9}):
        with pytest.raises(fgp.DomainError, match="checkpoint"):
            fitted(changed.pop("x", x), y, settings=settings, checkpoint=file, **changed)


def test_without_time_the_parameters_are_those_that_the_data_suggest() -> None:
    x, y = data(200)
    found = fitted(x, y, time_limit=1e-9)
    assert found.interrupted
    assert of_kind(found.report.events, EventKind.FIT_TIME_UP)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_few_rows(n: int) -> None:
    x, y = data(n)
    found = fgp.fit(model(), batches(x, y))
    assert bool(found.posterior.predict(x).mean.isfinite().all())


def test_options_of_exact_inference_are_refused() -> None:
    x, y = data(30)
    for options in ({"dtype": torch.float32}, {"plan": fgp.plan(model(), n=30, d=2)}):
        with pytest.raises(fgp.DomainError, match=next(iter(options))):
            fitted(x, y, **options)


def test_rows_that_are_held_are_fitted_by_the_same_bound() -> None:
    x, y = data(300)
    read, held = fitted(x, y), fgp.fit(model(), x, y, approximation="sparse", inducing=10, settings=FEW)
    assert held.posterior.bound.lower == pytest.approx(read.posterior.bound.lower, rel=1e-6)
