"""A search begins with coarse sizes and ends with those asked for, eq. (M-208)."""

import pytest

import flashgp as fgp
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.planner.plan import Sizes
from inference.plain_gp import data, model

FEW = FitSettings(stochastic=StochasticSettings(first_rows=100))  # so that small tables have all stages


@pytest.mark.parametrize(("asked", "coarse"), [
    (Sizes(512, 32, 96, 384), Sizes(64, 32, 48, 384)),
    (Sizes(0, 8, 7, 28), Sizes(0, 8, 4, 28)),
    (Sizes(9, 8, 0, 8), Sizes(2, 8, 0, 8)),
    (Sizes(1, 1, 1, 1), Sizes(1, 1, 1, 1)),
])  # fmt: skip
def test_an_eighth_of_the_points_and_half_the_neighbours(asked: Sizes, coarse: Sizes) -> None:
    assert asked.coarse() == coarse


@pytest.mark.parametrize("inducing", ["auto", 16])
def test_the_last_stage_has_the_sizes_asked_for(inducing: str | int) -> None:
    """With all rows as neighbours the model is exact, with half of them it is not."""
    x, y = data(240)
    fit = fgp.fit(model(), x, y, approximation="full_scale", inducing=inducing, neighbours=240, settings=FEW)
    runs = [entry for entry in fit.history if entry.run.stage is Stage.APPROXIMATE]
    first, last = runs[0].run, runs[-1].run
    assert first != last

    def gap(run: object) -> float:
        """Of the last value of a run to the exact one at the parameters found, nats."""
        exact = float(fit.gp.condition(x, y).log_marginal_likelihood()) + fit.log_prior
        return abs([entry.value for entry in runs if entry.run == run][-1] - exact)

    assert gap(last) < 1e-6
    assert gap(first) > 1e-3


def test_points_of_ones_own_are_kept_all_along() -> None:
    """Without neighbours that could be halved nothing is coarse: every stage has the same model."""
    x, y = data(240)
    given = fgp.fit(model(), x, y, approximation="full_scale", inducing=x[:40], neighbours=1, settings=FEW)
    runs = [entry for entry in given.history if entry.run.stage is Stage.APPROXIMATE]
    begun = next(entry.value for entry in runs if entry.run != runs[0].run)
    ended = [entry.value for entry in runs if entry.run == runs[0].run][-1]
    assert begun == pytest.approx(ended, abs=0.1)
    assert given.posterior.state.sizes.inducing == 40
