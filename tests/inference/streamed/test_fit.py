"""Fits from rows that are read: near the exact optimum, repeatable, resumable, on time."""

import dataclasses
import signal
import time
from collections.abc import Iterator
from pathlib import Path
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
from forked import Forked
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
    assert found.posterior.can("bound") is None
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
        assert torch.equal(again.posterior.state.sums.gram, whole.posterior.state.sums.gram)
        assert again.posterior.bound == whole.posterior.bound
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


def fitted_by(source: Counting, end: float, **options: Any) -> Fit:
    settings = dataclasses.replace(FEW, **options)
    asked = FitOptions(run=Run(deadline=source.deadline(end)), starts=1, settings=settings)
    return fit_as(model(), Batches(source), asked, Approximation("sparse", 10))


def test_the_first_pass_ends_with_the_time_and_the_sample_answers() -> None:
    x, y = data(1000)
    source = Counting(x, y)
    with pytest.warns(fgp.FlashGPWarning, match="time limit"):
        found = fitted_by(source, 7.5)
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
    x, y = data(3000)
    source = Counting(x, y)
    whole = fitted_by(source, 1e9)
    evaluations = [entry for entry in whole.history if entry.run.stage is Stage.APPROXIMATE]
    assert source.passes == 1 + 2 * len(evaluations)  # none after the search
    every = 150.0
    for end in (every + 10.5, 2.5 * every):  # in the first pass of the first evaluation, in its second
        source = Counting(x, y)
        with pytest.warns(fgp.FlashGPWarning, match="time limit"):
            found = fitted_by(source, end, sample=NEVER)
        assert source.now <= end + 4.0
        assert found.posterior.count == 200
        (event,) = of_kind(found.posterior.report.events, EventKind.POSTERIOR_OF_PART)
        assert (event.fields["rows"], event.fields["of"]) == (200, 3000)
    source = Counting(x, y)
    found = fitted_by(source, 3.5 * every, sample=NEVER)
    assert found.interrupted
    assert found.posterior.count == 3000
    again = found.gp.condition(batches(x, y), inducing=found.posterior.inducing)
    assert found.posterior.bound.lower == pytest.approx(again.bound.lower, rel=1e-10)


SCRIPT = """
import sys
import flashgp as fgp
from inference.plain_gp import data, model
from inference.streamed.test_fit import FEW, batches
import dataclasses
x, y = data(900)
settings = dataclasses.replace(FEW, seconds_between_writes=-1.0)
found = fgp.fit(model(), batches(x, y), inducing=20, settings=settings, checkpoint=sys.argv[1])
fgp.save(found, sys.argv[2])
"""


def test_killed_at_any_time_it_goes_on_to_the_same_posterior(tmp_path: Path) -> None:
    """SIGKILL leaves a whole checkpoint: every later run reads it, and the last one is the one that was not killed."""
    first, then = tmp_path / "first.safetensors", tmp_path / "then.safetensors"
    assert Forked(SCRIPT, tmp_path / "one", first).wait() == 0
    checkpoint, sizes = tmp_path / "two", [0]
    for _ in range(3):
        process = Forked(SCRIPT, checkpoint, then)
        while process.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_size > sizes[-1]):
            time.sleep(0.005)
        process.kill()
        code, _, said = process.ended()
        assert code in (-signal.SIGKILL, 0), said
        sizes.append(checkpoint.stat().st_size)
    assert Forked(SCRIPT, checkpoint, then).wait() == 0
    one, two = fgp.load(first), fgp.load(then)
    assert torch.equal(one.inducing, two.inducing)
    assert torch.equal(one.state.sums.gram, two.state.sums.gram)
    assert one.bound == two.bound
    named = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))  # a write was cut short
    assert named == sorted(["one", "two", first.name, then.name])
