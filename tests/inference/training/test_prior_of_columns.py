"""The weak prior of lengthscales that have something in common, (M-290), and a search whitened by it."""

import math

import numpy
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

import flashgp as fgp
from flashgp.inference.data import Data
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.training.fit import problem_of
from flashgp.inference.training.history import SearchRun, Stage
from flashgp.inference.training.initial import SparsePrior, WeakPrior
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.inference.training.options import FitOptions
from flashgp.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson
from flashgp.pairwise.torch.tiles import TorchTiles

F64 = torch.float64


def rows(n: int, d: int) -> tuple[Tensor, Tensor]:
    """Labels of the first of d columns, with noise."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, d, generator=generator, dtype=F64) * torch.logspace(-1, 1, d, dtype=F64)
    return x, (10.0 * x[:, 0] + torch.randn(n, generator=generator, dtype=F64) > 0.0).to(F64)


def model(d: int, likelihood: Likelihood) -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(d, dtype=F64))
    return fgp.GP(kernel, fgp.means.Constant(0.0), likelihood)


def problem(n: int, d: int, likelihood: Likelihood, priors: str = "weak") -> Problem:
    x, y = rows(n, d)
    gp = model(d, likelihood)
    return problem_of(gp, Data.of(gp, x, y), x.device, DirectSettings(TorchTiles()), FitOptions(priors=priors))


@pytest.mark.parametrize(("n", "sd"), [(40, 0.25), (1000, 0.5)])
def test_lengthscales_share_a_scale_and_differ_little_from_it(n: int, sd: float) -> None:
    """(M-290): value, gradient and curvature are those of dense matrices."""
    d = 4
    objective = LogJoint(problem(n, d, Poisson() if n == 40 else Bernoulli()))
    prior, parameters = objective.problem.prior, objective.parameters
    slots = {slot.name: slot.entries for slot in parameters.slots}
    columns, variance, mean = (
        slots[f"{name}.raw"] for name in ("kernel.kernel.lengthscale", "kernel.variance", "mean.value")
    )
    x, _ = rows(n, d)
    expected = (x.std(0, correction=0) * math.sqrt(d)).log() + math.sqrt(2.0)
    covariance = sd**2 * torch.eye(d, dtype=F64) + 3.0
    v = float(objective.problem.roles[prior.kernel.variance].start)
    centre = float(objective.problem.roles[prior.mean.value].start)
    theta = torch.from_numpy(parameters.values() + 0.3 * numpy.arange(parameters.size)).requires_grad_()
    wanted = MultivariateNormal(expected, covariance).log_prob(theta[columns])
    means, sds = torch.tensor([math.log(v), centre], dtype=F64), torch.tensor([1.5, math.sqrt(v)], dtype=F64)
    wanted = wanted + Normal(means, sds).log_prob(torch.cat([theta[variance], theta[mean]])).sum()
    (slope,) = torch.autograd.grad(wanted, theta)
    at = theta.detach().numpy()
    value, gradient = objective.priors.value_and_gradient(at)
    assert value == pytest.approx(float(wanted.detach()), rel=1e-12)
    numpy.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-12)
    curvature = objective.priors.curvature(at)
    numpy.testing.assert_allclose(curvature[columns, columns], torch.linalg.inv(covariance), rtol=1e-6)
    assert curvature[variance, variance] == pytest.approx(1.5**-2)
    root, inverse = parameters.joint()
    numpy.testing.assert_allclose(root[columns, columns] @ root[columns, columns], covariance, rtol=1e-12)
    numpy.testing.assert_allclose(root @ inverse, numpy.eye(parameters.size), atol=1e-14)


@pytest.mark.parametrize(("d", "own"), [(4, 1 / 3), (64, 1 / 3), (96, 1 / 2), (192, 1.0), (300, 1.0)])
def test_columns_of_regression_share_less_of_their_scale_the_more_there_are(d: int, own: float) -> None:
    """(M-44): each by itself has the variance 3, of which a share is common; all are by themselves from 192 on."""
    found = problem(12 * d, d, Gaussian(0.1))
    prior = found.roles[found.prior.kernel.kernel.lengthscale].prior
    assert isinstance(prior, WeakPrior)
    assert prior.sd**2 == pytest.approx(3.0 * own)
    assert prior.common**2 == pytest.approx(3.0 * (1.0 - own), abs=1e-14)
    assert found.roles[found.prior.mean.value].prior is None


@pytest.mark.parametrize(("rows_of", "d", "sparse"), [(143, 12, True), (144, 12, False), (40, 11, False)])
def test_few_columns_are_expected_to_matter_where_rows_are_few(rows_of: int, d: int, sparse: bool) -> None:
    found = problem(rows_of, d, Gaussian(0.1))
    assert isinstance(found.roles[found.prior.kernel.kernel.lengthscale].prior, SparsePrior) is sparse
    labels = problem(rows_of, d, Bernoulli("logit", method="variational"))
    assert isinstance(labels.roles[labels.prior.kernel.kernel.lengthscale].prior, WeakPrior)


def test_fits_without_weak_priors_have_none() -> None:
    given = LogJoint(problem(40, 4, Bernoulli("logit", method="variational"), priors="given"))
    assert given.priors.value_and_gradient(given.parameters.values())[0] == 0.0


def test_a_column_that_labels_do_not_show_differs_little_from_the_others() -> None:
    """Free columns of 60 labels end orders of magnitude apart; a scale that is common does not."""
    x, y = rows(60, 12)
    fit = fgp.fit(model(12, Bernoulli("logit", method="variational")), x, y)
    assert {entry.run for entry in fit.history} == {SearchRun(Stage.ALL_ROWS)}  # one start, nothing reset
    relative = (fit.gp.kernel.kernel.lengthscale.value.detach() / x.std(0, correction=0)).log()
    assert 0.1 < float(relative.max() - relative.min()) < 1.5
    assert relative.argmin() == 0
    entries = [row.prior for row in fit.rows() if row.path == "kernel.kernel.lengthscale"]
    assert len(entries) == 12
    assert all(text.endswith(", 0.25 and 1.73 in common), weak") for text in entries)
    assert any(row.prior.startswith("value ~ Normal(") for row in fit.rows())


def test_a_whitened_search_takes_fewer_evaluations() -> None:
    """Along what is common the prior is forty times as wide as across; steps of one size find both."""
    x, y = rows(60, 30)
    assert len(fgp.fit(model(30, Bernoulli("logit", method="variational")), x, y).history) <= 13
