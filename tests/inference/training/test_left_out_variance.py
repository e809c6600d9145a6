"""The common variance of classes by leaving rows out, eq. (M-341)."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

import flashgp as fgp
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.data import Data
from flashgp.inference.sites import SiteSettings
from flashgp.inference.training.exact_fit import fit_exact
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitOptions, FitSettings

F64 = torch.float64


@pytest.mark.parametrize("options", [{}, {"approximation": "sparse", "inducing": 60}])
def test_rows_left_out_are_as_much_more_likely_as_the_event_says(options: dict[str, Any]) -> None:
    digits = load_digits(n_class=4)
    x, y = torch.from_numpy(digits.data[:60] / digits.data.std()), torch.from_numpy(digits.target[:60]).double()
    kernel = 1.0 * fgp.kernels.SquaredExponential(lengthscale=8.0)
    fit = fgp.fit(fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Categorical(4)), x, y, **options)
    (event,) = (event for event in fit.report.events if event.kind is EventKind.VARIANCE_LEFT_OUT)
    found = float(fit.posterior.leave_one_out().log_prob.mean())
    variance, lengthscale = (parameter.exp() for parameter in fit.gp.kernel.parameters())
    before = (variance / event.fields["factor"]) * fgp.kernels.SquaredExponential(lengthscale=lengthscale)
    searched = fgp.GP(before, fgp.means.Zero(), fgp.likelihoods.Categorical(4)).condition(x, y)
    gained = found - float(searched.leave_one_out().log_prob.mean())
    assert event.fields["factor"] > 2.0, "the bound wants too little"
    assert gained == pytest.approx(event.fields["gain"], abs=0.05), "which has the prior's density in it"
    assert gained > 0.01


def test_without_time_for_it_the_variance_is_the_bounds_which_is_said() -> None:
    digits = load_digits(n_class=4)
    x, y = torch.from_numpy(digits.data[:60] / digits.data.std()), torch.from_numpy(digits.target[:60]).double()
    kernel = 1.0 * fgp.kernels.SquaredExponential(lengthscale=8.0)
    fit = fgp.fit(fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Categorical(4)), x, y, time_limit=1e-3)
    kinds = [event.kind for event in fit.report.events]
    assert EventKind.VARIANCE_AS_SEARCHED in kinds
    assert EventKind.VARIANCE_LEFT_OUT not in kinds


def test_a_variance_that_is_given_stays() -> None:
    x = torch.linspace(0.0, 6.0, 40, dtype=F64)[:, None]
    y = (x[:, 0] / 2.0).floor().clamp(max=2)
    kernel = fgp.kernels.Matern(nu=2.5)
    fit = fgp.fit(fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Categorical(3)), x, y)
    assert not [event for event in fit.report.events if event.kind is EventKind.VARIANCE_LEFT_OUT]


def test_a_search_that_leaves_the_variance_to_left_out_rows_needs_few_and_says_so() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 6.0 * torch.rand(60, 1, generator=generator, dtype=F64)
    y = (x[:, 0] / 2.0).floor().clamp(max=2)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), fgp.means.Zero(), fgp.likelihoods.Categorical(3))
    settings = FitSettings(sites=SiteSettings(start_rows=20, searched_rows=30))
    options = FitOptions(settings=settings)
    fitted = fit_exact(gp, Data.of(gp, x, gp.likelihood.encoded(y, "y")), options.by_sites())
    assert Event(EventKind.SEARCHED_PART, likelihood="Categorical", rows=30, of=60) in fitted.report.events
    assert {entry.run.stage for entry in fitted.history} == {Stage.SUBSET, Stage.FIRST_ROWS}
