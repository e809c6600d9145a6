"""Time limits where sites are found by iteration: steps end with the time, or are of as many rows as it allows."""

import contextlib
from typing import Any

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.foundations.errors import FlashGPWarning
from flashgp.foundations.events import EventKind
from flashgp.inference.approximation import approximation_of
from flashgp.inference.condition import condition
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fit import fit_as
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.likelihoods import Bernoulli, Poisson
from flashgp.pairwise.torch.tiles import TorchTiles
from inference.iterated import labels, model, table

SPARSE = {"approximation": "sparse", "inducing": 20}
FULL_SCALE = {"approximation": "full_scale", "inducing": 20, "neighbours": 20}


class Ticking:
    """A clock on which every look takes a second."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("kind", [None, "full_scale", "sparse"])
def test_steps_end_with_the_time(kind: str | None) -> None:
    x, y, _ = table()
    gp = model(Poisson())
    limit = {None: 7.0, "full_scale": 9.0, "sparse": 6.0}[kind]
    settings = ConditionSettings(Run(deadline=Deadline.after(limit, Ticking())))
    neighbours: dict[str, Any] = {"neighbours": 40} if kind == "full_scale" else {"neighbours": "auto"}
    asked = None if kind is None else approximation_of(kind, inducing=x[:20], **neighbours)
    with pytest.warns(FlashGPWarning, match="ended the steps of sites"):
        cut = fgp.Posterior(condition(gp, Data.of(gp, x, y), settings, asked))
    (event,) = (event for event in cut.report.events if event.kind is EventKind.SITES_CUT)
    assert 1 <= event.fields["steps"] <= 5
    assert event.fields["moved"] > 1e-4
    whole = gp.condition(x, y, **({} if kind is None else {"approximation": kind, "inducing": x[:20], **neighbours}))
    far = (gp.condition(x[:1], y[:1]).predict(x).mean - whole.predict(x).mean).abs().mean()
    assert float((cut.predict(x).mean - whole.predict(x).mean).abs().mean()) < 0.5 * float(far)


@pytest.mark.parametrize("options", [{}, SPARSE, FULL_SCALE])
def test_a_fit_without_time_has_sites_of_few_rows(options: dict[str, Any]) -> None:
    x, y = labels(1700)
    gp = fgp.GP(
        4.0 * fgp.kernels.Matern(nu=1.5, lengthscale=0.2), fgp.means.Zero(), Bernoulli("logit", method="variational")
    )
    with pytest.warns(FlashGPWarning) if options != SPARSE else contextlib.nullcontext():  # which has a sample of all
        fit = fgp.fit(gp, x, y, time_limit=0.0, initial="given", **options)
    kinds = [event.kind for event in fit.report.events]
    assert fit.interrupted
    assert EventKind.FIT_TIME_UP in kinds
    rows = fit.posterior.x.shape[0]
    assert (EventKind.POSTERIOR_OF_PART in kinds) == (rows < 1700)
    assert rows < 1700 or options == SPARSE
    right = (fit.posterior.predict(x).quantile(0.5) == y).double().mean()
    assert options == SPARSE or float(right) > 0.6  # of 400 rows
    assert torch.isfinite(fit.posterior.log_marginal_likelihood())


def test_sites_of_few_rows_ask_the_time_too() -> None:
    """An evaluation of a search ends with it, and steps of the posterior, which may pass the limit by the grace alone
    and keep where they begin, however few rows there are."""
    x, y, _ = table()
    looks = Ticking()
    options = FitOptions(initial="given", run=Run(deadline=Deadline.after(9.0, looks)))
    with pytest.warns(FlashGPWarning, match="ended the steps of sites"):
        fit = fit_as(model(Poisson()), Data.of(model(Poisson()), x, y), options)
    kinds = [event.kind for event in fit.report.events]
    assert EventKind.SITES_CUT in kinds
    assert EventKind.FIT_TIME_UP in kinds
    assert looks.now < 24.0
    gp = model(Poisson())
    sites = IteratedSites.of(gp, x, y, SiteSettings(search=1e-12), Deadline.after(3.0, Ticking()))
    with pytest.raises(TimeUp):
        LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), sites=sites)).at(numpy.zeros(3))
