"""Columns that matter among many: found at short distances, M-385, and expected to be few, M-386."""

import dataclasses
import math

import numpy
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.training.initial import SparsePrior
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import ColumnSettings, SearchSettings

F64 = torch.float64


def table(n: int = 100, d: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """y = 2 x_3 + sin(3 x_7) + noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=F64)
    noise = torch.randn(n, generator=generator, dtype=F64)
    return x, 2.0 * x[:, 3] + torch.sin(3.0 * x[:, 7]) + 0.1 * noise


def fitted(x: Tensor, y: Tensor, columns: ColumnSettings) -> fgp.Fit:
    d = x.shape[1]
    gp = fgp.GP(fgp.kernels.Matern(1.5, torch.full((d,), d**0.5, dtype=F64)) * 1.0)
    return fgp.fit(gp, x, y, starts=2, settings=FitSettings(search=SearchSettings(columns=columns)))


def test_a_column_that_matters_at_a_short_distance_is_found() -> None:
    x, y = table()
    ignoring = fitted(x, y, dataclasses.replace(ColumnSettings(), max_columns=0))
    found = fitted(x, y, ColumnSettings())
    (event,) = of_kind(found.report.events, EventKind.COLUMNS_FOUND)
    gain = float(found.posterior.log_marginal_likelihood() - ignoring.posterior.log_marginal_likelihood())
    assert event.fields["gain"] > 50.0
    assert gain > 50.0
    lengthscale = dict(found.gp.named_parameters())["kernel.kernel.lengthscale.raw"].detach()
    assert int(lengthscale.argmin()) == 7
    at, wanted = table(200, seed=1)
    error = (found.posterior.predict(at).mean - wanted).square().mean().sqrt()
    assert float(error) < 0.5 * float((ignoring.posterior.predict(at).mean - wanted).square().mean().sqrt())


def test_columns_that_say_nothing_take_no_search() -> None:
    x, _ = table()
    y = x[:, 3] + 0.3 * torch.randn(len(x), generator=torch.Generator().manual_seed(2), dtype=F64)
    plain = fitted(x, y, dataclasses.replace(ColumnSettings(), max_columns=0))
    tried = fitted(x, y, ColumnSettings())
    assert not of_kind(tried.report.events, EventKind.COLUMNS_FOUND)
    assert len(tried.history) <= len(plain.history) + 2 * ColumnSettings().tries
    assert math.isclose(tried.log_prior or 0.0, plain.log_prior or 0.0)


def test_few_columns_are_left_as_they_are() -> None:
    x, y = table()
    few, ignoring = fitted(x[:, :8], y, ColumnSettings()), fitted(x[:, :8], y, ColumnSettings(max_columns=0))
    assert len(few.history) == len(ignoring.history)


def test_the_sparse_prior_is_its_integral() -> None:
    """M-386: against Cauchy densities integrated over the common scale, and its gradient by differences."""
    log_unit = torch.tensor([0.3, -0.2, 1.0], dtype=F64)
    prior = SparsePrior(log_unit)
    log_lengthscale = numpy.array([0.5, 2.0, -1.0])
    v = numpy.exp(2.0 * (log_unit.numpy() - log_lengthscale))
    t = numpy.exp(numpy.linspace(-40.0, 40.0, 400_001))
    density = 2.0 / math.pi / (1.0 + (t / 0.1) ** 2) / 0.1
    for one in v:
        density *= 2.0 / math.pi / (t * (1.0 + (one / t) ** 2)) * 2.0 * one  # of log lengthscale
    wanted = numpy.trapezoid(density * t, numpy.log(t))
    value, gradient = prior.log_density(log_lengthscale)
    assert abs(value - math.log(wanted)) < 1e-9
    steps = 1e-5 * numpy.eye(3)
    ends = [(prior.log_density(log_lengthscale + s)[0], prior.log_density(log_lengthscale - s)[0]) for s in steps]
    assert numpy.allclose(gradient, [(high - low) / 2e-5 for high, low in ends], atol=1e-8)


def test_the_sparse_prior_of_many_columns_does_not_depend_on_where_its_nodes_lie() -> None:
    log_lengthscale = numpy.random.default_rng(0).normal(4.0, 1.0, (1, 200))
    log_lengthscale[0, 3] = -1.0
    values = [
        SparsePrior(torch.full((200,), s, dtype=F64)).log_density(log_lengthscale + s)[0] for s in (0.0, 0.013, 0.4)
    ]
    assert numpy.ptp(values) < 1e-8


def test_a_sparse_fit_says_its_prior_and_keeps_columns_that_matter() -> None:
    x, y = table(80, 12)
    gp = fgp.GP(1.0 * fgp.kernels.RBF(torch.full((12,), 3.0, dtype=F64)))
    fit = fgp.fit(gp, x, y, priors="sparse", starts=1)
    assert fit.priors["kernel.kernel.lengthscale"][0].endswith("^2 ~ HalfCauchy(t), t ~ HalfCauchy(0.1)")
    lengthscale = dict(fit.gp.named_parameters())["kernel.kernel.lengthscale.raw"].detach().exp()
    others = [j for j in range(12) if j not in (3, 7)]
    assert float(lengthscale[others].median()) > 5.0 * float(lengthscale[3])
