"""A trial before what takes the time, eq. (M-245)."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fit import fit_by_trial
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.full_scale.trial import TEST_SHARE, Part, Trial
from flashgp.inference.run import Run
from flashgp.inference.settings import TimeSettings
from flashgp.inference.streamed.state import StreamedState
from flashgp.inference.training.fit import Fitted
from flashgp.inference.training.history import Stage
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.options import FitOptions
from flashgp.pairwise.torch.tiles import TorchTiles
from inference.plain_gp import F64, PlainGP, data, model
from inference.streamed.test_learning import STEPS


def of_trial(x: Tensor, y: Tensor, points: Tensor, learned: int, part: Part | None = None) -> tuple[Trial, fgp.GP]:
    gp = model()
    found = Trial.of(Problem(gp.released(), x, y, DirectSettings(TorchTiles())), points, learned, part, 0)
    assert found is not None
    return found, gp


def test_points_are_the_posterior_of_as_many_rows_less_what_more_would_take() -> None:
    """Points at the rows are exact inference on them; learning n' rows takes m s (1 / N - 1 / n') from it."""
    x, y = data(60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    count = 60 - int(TEST_SHARE * 60)
    kept, out = order[:count], order[count:]
    found, gp = of_trial(x, y, x[kept], count)
    with torch.no_grad():
        mean, _ = PlainGP(gp, x[kept], y[kept]).predict(x[out])
    assert found.points == pytest.approx(float((y[out] - mean).square().mean()), rel=1e-4)
    more, _ = of_trial(x, y, x[kept], 10 * count)
    assert found.points - more.points == pytest.approx(found.noise * 0.9, rel=1e-6)
    fewer, _ = of_trial(x, y, x[order[: count // 8]], count)
    assert found.few == pytest.approx(fewer.points, rel=1e-4)
    assert found.near == math.inf


@pytest.mark.parametrize("inducing", [20, 60])
def test_full_scale_is_tried_as_it_predicts(inducing: int) -> None:
    """All rows of the part as neighbours: exact inference on it, but for values of points that rows apart gave."""
    x, y = data(400)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    kept, out = order[:100], order[400 - int(TEST_SHARE * 400) :]
    found, gp = of_trial(x, y, x[order[:inducing]], 400, Part(100, 100))
    with torch.no_grad():
        mean, _ = PlainGP(gp, x[kept], y[kept]).predict(x[out])
    assert found.near == pytest.approx(float((y[out] - mean).square().mean()), rel=0.02)
    assert found.event.fields["part"] == pytest.approx(found.near**0.5)


def test_an_eighth_of_the_points_suffices_where_the_others_add_nothing() -> None:
    enough = Trial(points=1.0, few=1.0 + 1e-4, near=2.0, near_rows=100, noise=0.5, inducing=20)
    assert enough.suffice is not None
    assert enough.suffice.fields["kept"] == 3
    assert dataclasses.replace(enough, few=1.0 + 1e-2).suffice is None
    assert enough.points_are_better
    assert not dataclasses.replace(enough, near=0.9).points_are_better


def fitted(x: Tensor, y: Tensor, points: int) -> tuple[Fitted[Any], list[Event]]:
    """A fit by full scale that has time for 400 rows, or by inducing points."""
    time = TimeSettings(posterior_share=1e-9)
    options = FitOptions(
        run=Run(deadline=Deadline.after(1e5)), starts=1, settings=dataclasses.replace(STEPS, time=time)
    )
    sizes = Approximation("sparse").sizes_at(0, len(x))
    rival = Approximation("sparse").resolved(dataclasses.replace(sizes, inducing=points))
    asked = Approximation("full_scale", inducing=8, neighbours=16)
    return fit_by_trial(model(), Data.of(model(), x, y), options, asked, rival)


def test_a_rough_function_with_little_noise_takes_full_scale_of_some_rows() -> None:
    x = torch.rand(1200, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    found, taken = fitted(x, (9 * x[:, 0]).sin() * (9 * x[:, 1]).cos(), 8)
    assert not taken
    (tried,) = of_kind(found.report.events, EventKind.PART_TRIED)
    assert tried.fields["taken"]
    assert tried.fields["part"] < 0.5 * tried.fields["points"]
    assert isinstance(found.state, FullScaleState)


def test_a_smooth_function_with_noise_takes_points_and_goes_on_from_the_first_rows() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(3000, 2, generator=g, dtype=F64)
    y = (2 * x[:, 0]).sin() + 0.5 * torch.randn(3000, generator=g, dtype=F64)
    found, (tried,) = fitted(x, y, 40)
    assert tried.kind is EventKind.PART_TRIED
    assert not tried.fields.get("taken")
    assert isinstance(found.state, StreamedState)
    assert len(found.state.inducing) <= 40
    assert all(entry.run.number == 0 for entry in found.history if entry.run.stage is Stage.SUBSET)
    begins = [entry.seconds for entry in found.history if entry.run.stage is Stage.SUBSET and entry.index == 0]
    assert len(begins) == 2  # of the search before the trial, and of the one after it
    assert [entry.seconds for entry in found.history] == sorted(entry.seconds for entry in found.history)
    assert not found.interrupted
