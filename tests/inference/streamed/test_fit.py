"""Fits from rows that are read: near the exact optimum, repeatable, resumable, on time."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.fit import Fit, fit_as
from flashgp.inference.run import Run
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SampleSettings, StochasticSettings
from flashgp.sources.source import Batches
from inference.plain_gp import data, model

FEW = FitSettings(stochastic=StochasticSettings(first_rows=100))  # so that small tables have all stages


def batches(x: Tensor, y: Tensor, size: int = 64) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def fitted(x: Tensor, y: Tensor, **options: Any) -> fgp.fit:
    return fgp.fit(model(), batches(x, y), **{"settings": FEW, "inducing": 10, **options})


def test_the_best_choice_of_points_is_the_answer() -> None:
    x, y = data(400)
    found = fitted(x, y)
    best = max((one for one in found.history if one.run.stage is Stage.APPROXIMATE), key=lambda one: one.value)
    assert best.theta == pytest.approx(torch.cat([p.detach().reshape(-1) for p in found.gp.parameters()]).tolist())
    again = found.gp.condition(batches(x, y), inducing=found.posterior.inducing)
    assert again.bound.lower == pytest.approx(found.posterior.bound.lower, rel=1e-10)


def test_a_noise_that_few_rows_have_not_is_reset_for_few_points() -> None:
    """Rows without noise, and one point that leaves much of them: seen red, at a bound thousands of nats below that of
    a constant with noise, since steps from a noise of nothing were too many."""
    x = torch.tensor([[0.0, 0.3], [1.0, -0.4], [0.2, 0.9]], dtype=torch.float64)
    x, y = x.repeat(9, 1), torch.tensor([0.7, -1.1, 0.3], dtype=torch.float64).repeat(9)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(2)))
    found = fgp.fit(gp, x, y, approximation="sparse", inducing=1, starts=1, max_iterations=25)
    constant = torch.distributions.Normal(y.mean(), y.std(correction=0)).log_prob(y).sum()
    assert found.posterior.bound.lower > float(constant) - 1.0
    assert of_kind(found.report.events, EventKind.NOISE_RESET)


class Counting:
    """Batches that count how often they were begun, and read; a clock that goes on by one with each."""

    def __init__(self, x: Tensor, y: Tensor, size: int = 20) -> None:
        self.batches, self.passes, self.now = batches(x, y, size), 0, 0.0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        for batch in self.batches:
            self.now += 1.0
            yield batch

    def deadline(self, end: float) -> Deadline:
        return Deadline(end, end, lambda: self.now)


SPARSE = Approximation("sparse", 10)


def fitted_by(source: Counting, end: float, approximation: Approximation = SPARSE, **options: Any) -> Fit:
    settings = dataclasses.replace(FEW, **options)
    asked = FitOptions(run=Run(deadline=source.deadline(end)), starts=1, settings=settings)
    return fit_as(model(), Batches(source), asked, approximation)


@pytest.mark.parametrize("kind", ["sparse", "fourier"])
def test_the_first_pass_ends_with_the_time_and_the_sample_answers(kind: str) -> None:
    if kind == "fourier":
        pytest.importorskip("finufft")
    x, y = data(1000)
    source = Counting(x, y)
    with pytest.warns(fgp.FlashGPWarning, match="time limit"):
        found = fitted_by(source, 7.5, SPARSE if kind == "sparse" else Approximation(kind))
    assert found.interrupted
    assert source.now < 10.0
    (event,) = of_kind(found.posterior.report.events, EventKind.READ_IN_PART)
    assert found.posterior.count == event.fields["read"] == 140
    with pytest.warns(fgp.FlashGPWarning, match="time limit"):
        post = model().condition(Slow(x, y), inducing=10, time_limit=0.02)
    assert post.count < 1000


class Slow(Counting):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in super().__iter__():
            time.sleep(0.005)
            yield batch


NEVER = SampleSettings(min_evaluations=0.0)


def test_a_pass_ends_with_the_time_and_a_finished_one_answers() -> None:
    """After the first evaluation of all rows its sums are the posterior; before, the sample is."""
    x, y = data(1000)
    source = Counting(x, y)
    whole = fitted_by(source, 1e9)
    evaluations = [entry for entry in whole.history if entry.run.stage is Stage.APPROXIMATE]
    assert source.passes == 1 + 2 * len(evaluations)  # none after the search
    every = 50.0
    for end in (every + 10.5, 2.5 * every):  # in the first pass of the first evaluation, in its second
        source = Counting(x, y)
        with pytest.warns(fgp.FlashGPWarning, match="time limit"):
            found = fitted_by(source, end, sample=NEVER)
        assert source.now <= end + 4.0
        assert found.posterior.count == 200
        (event,) = of_kind(found.posterior.report.events, EventKind.POSTERIOR_OF_PART)
        assert (event.fields["rows"], event.fields["of"]) == (200, 1000)
    source = Counting(x, y)
    found = fitted_by(source, 3.5 * every, sample=NEVER)
    assert found.interrupted
    assert found.posterior.count == 1000
    again = found.gp.condition(batches(x, y), inducing=found.posterior.inducing)
    assert found.posterior.bound.lower == pytest.approx(again.bound.lower, rel=1e-10)
