"""Conditioning and fits by the full-scale approximation keep to a time limit, by some of the rows."""

from collections.abc import Callable

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.data import Data
from flashgp.inference.full_scale.condition import condition
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from inference.plain_gp import data, model

ROWS = 4000


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is looked at."""
    now = [0.0]

    def clock() -> float:
        now[0] += seconds
        return now[0]

    return clock


def state_in(limit: float, tick: float, **likelihood: torch.Tensor) -> FullScaleState:
    x, y = data(ROWS)
    gp = model()
    if likelihood:
        gp.likelihood = fgp.likelihoods.Gaussian(0.1, **likelihood)
    settings = ConditionSettings(Run(deadline=Deadline(limit, limit, ticking(tick))))
    return condition(Approximation("full_scale", 16, 16), gp, Data.of(gp, x, y), settings)


@pytest.mark.parametrize(("tick", "least", "most"), [(0.02, 400, 400), (0.0075, 800, 1066)])
def test_a_posterior_of_as_many_rows_as_there_is_time_for(tick: float, least: int, most: int) -> None:
    """Rows that take at least as many times as long as there are more: of .02 s at 400, .05 s give 1,066 at most."""
    with pytest.warns(fgp.FlashGPWarning, match="random ones"):
        state = state_in(0.05, tick)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(state.run.seed))
    x, y = data(ROWS)
    index = order[: len(state.x)].sort().values
    assert least <= len(state.x) <= most + 1  # the clock's own rounding
    assert torch.equal(state.x, x[index])
    assert torch.equal(state.y, y[index])
    assert [event.fields["of"] for event in of_kind(state.report.events, EventKind.POSTERIOR_OF_PART)] == [ROWS]


@pytest.mark.parametrize(("limit", "tick"), [(1e4, 0.0), (0.05, 0.001)])
def test_with_time_all_rows_count(limit: float, tick: float) -> None:
    state = state_in(limit, tick)
    assert len(state.x) == ROWS
    assert not of_kind(state.report.events, EventKind.POSTERIOR_OF_PART)
