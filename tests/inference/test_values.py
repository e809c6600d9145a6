"""Likelihood, predictions, densities and leave-one-out are those of the plain reference and of scikit-learn."""

import math
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import scipy.stats
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.determinism import deterministically
from inference.plain_gp import F64, PlainGP, condition_number, data, model, relative

EPS = torch.finfo(F64).eps
k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods


class Foreign(torch.nn.Module):
    """A mean of the user's: (n, d) to (n, 1), as most networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1, dtype=F64)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[0.4, -0.2]]))
            self.layer.bias.fill_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def rows(n: int = 12, seed: int = 5) -> Tensor:
    return 0.05 + torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)


MODELS = {
    "matern": model,
    "zero mean": lambda: fgp.GP(k.RBF(0.8), m.Zero(), lik.Gaussian(0.2)),
    "linear mean": lambda: fgp.GP(k.Matern(0.5), m.Linear(torch.tensor([0.5, -1.0]), 0.2), lik.Gaussian(0.1)),
    "foreign mean": lambda: fgp.GP(k.Matern(1.5), Foreign(), lik.Gaussian(0.1)),
    "sum in a product": lambda: fgp.GP(
        (k.Linear(0.5) + 2.0 * k.RBF(1.1)) * k.RationalQuadratic(0.9, active_dims=[1]) + 0.3,
        m.Constant(-1.0),
        lik.Gaussian(0.1),
    ),
    "product in a sum": lambda: fgp.GP(
        k.Periodic(1.3, 2.0, active_dims=[0]) * k.Matern(2.5, 2.0) + k.Polynomial(2, 0.3), m.Zero(), lik.Gaussian(0.3)
    ),
    "row variance": lambda: fgp.GP(k.Matern(2.5), m.Constant(0.1), lik.Gaussian(0.1, row_variance=rows())),
    "row variance only": lambda: fgp.GP(k.Matern(2.5), m.Constant(0.1), lik.Gaussian(None, row_variance=rows())),
    "row weight": lambda: fgp.GP(k.Matern(2.5), m.Constant(0.1), lik.Gaussian(0.1, row_weight=rows())),
    "both": lambda: fgp.GP(k.RBF(0.5), m.Constant(0.1), lik.Gaussian(0.1, row_variance=rows(), row_weight=rows(12, 6))),
    "no noise": lambda: fgp.GP(k.Matern(1.5, 0.5), m.Zero(), lik.Gaussian(0.0)),
}


@pytest.fixture(params=MODELS, ids=str)
def gp(request: pytest.FixtureRequest) -> fgp.GP:
    return MODELS[request.param]()


@pytest.fixture(params=["NumPy", "torch"])
def route(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small problems run in NumPy calls, deterministic ones on the portable backend: the numbers are the same."""
    with deterministically(request.param == "torch"):
        yield


def tolerance(plain: PlainGP) -> float:
    """Both sides lose up to the condition number times the unit roundoff; 10 for the sums around it."""
    return 10 * len(plain.x) * EPS * max(10.0, condition_number(plain.K))


def test_log_marginal_likelihood(gp: fgp.GP) -> None:
    x, y = data()
    plain = PlainGP(gp, x, y)
    wanted = plain.log_marginal_likelihood()
    for found in (gp.log_marginal_likelihood(x, y), gp.condition(x, y).log_marginal_likelihood()):
        assert found.dtype == F64
        assert relative(found, wanted) < tolerance(plain)


@pytest.mark.usefixtures("route")
def test_gradient_against_autograd_and_differences(gp: fgp.GP) -> None:
    """Eq. (M-34) pulled back to every parameter, x and y."""
    x, y = data()
    x.requires_grad_()
    y.requires_grad_()
    inputs = [x, y, *gp.parameters()]
    plain = PlainGP(gp, x, y)
    wanted = torch.autograd.grad(plain.log_marginal_likelihood(), inputs)
    found = torch.autograd.grad(gp.log_marginal_likelihood(x, y), inputs)
    for one, two in zip(found, wanted, strict=True):
        assert relative(one, two) < 10 * tolerance(plain)

    # Central differences of the value itself: error h^2 and eps / h balance at h = 1e-5.
    generator = torch.Generator().manual_seed(1)
    step = 1e-5
    with torch.no_grad():
        directions = [torch.randn(t.shape, generator=generator, dtype=F64) for t in inputs]
        slope = sum(float((g * v).sum()) for g, v in zip(found, directions, strict=True))
        values = []
        for sign in (1.0, -1.0):
            for t, v in zip(inputs, directions, strict=True):
                t += sign * step * v
            values.append(float(gp.log_marginal_likelihood(x, y)))
            for t, v in zip(inputs, directions, strict=True):
                t -= sign * step * v
    scale = sum(float((g * v).abs().sum()) for g, v in zip(found, directions, strict=True))
    assert abs((values[0] - values[1]) / (2 * step) - slope) < 1e-6 * scale


def test_predictions(gp: fgp.GP) -> None:
    """Mean, variance, joint covariance: eqs. (M-30), (M-41), (M-42)."""
    x, y = data()
    x_test, _ = data(7, seed=3)
    plain = PlainGP(gp, x, y)
    posterior = gp.condition(x, y)
    weights = plain.inverse @ (y - plain.mean(x))
    assert relative(posterior.representer_weights.squeeze(-1), weights) < tolerance(plain)
    mean, covariance = plain.predict(x_test)
    found = posterior.predict(x_test)
    assert relative(found.mean, mean) < tolerance(plain)
    assert relative(found.variance, covariance.diagonal()) < tolerance(plain)
    assert relative(found.covariance(), covariance) < tolerance(plain)
    observed = covariance + plain.new_noise() * torch.eye(7, dtype=F64)
    assert relative(found.observation_variance, observed.diagonal()) < tolerance(plain)
    assert relative(found.covariance(observed=True), observed) < tolerance(plain)


def test_leave_one_out_by_leaving_out(gp: fgp.GP) -> None:
    """Eqs. (M-39) and (M-40)."""
    x, y = data()
    plain = PlainGP(gp, x, y)
    mean, variance = plain.leave_one_out()
    found = gp.condition(x, y).leave_one_out()
    assert relative(found.mean, mean) < tolerance(plain)
    assert relative(found.variance, variance) < tolerance(plain)
    density = scipy.stats.norm(mean.detach().numpy(), variance.detach().sqrt().numpy()).logpdf(y.numpy())
    assert relative(found.log_prob, torch.tensor(density)) < 10 * tolerance(plain)


def test_densities_and_quantiles_by_scipy() -> None:
    """Eq. (M-43), quantiles and intervals of new observations."""
    x, y = data()
    x_test, y_test = data(6, seed=4)
    mean, covariance = (t.detach().numpy() for t in PlainGP(model(), x, y).predict(x_test))
    covariance = covariance + 0.07 * numpy.eye(6)
    each = scipy.stats.norm(mean, numpy.sqrt(covariance.diagonal()))
    found = model().condition(x, y).predict(x_test)
    numpy.testing.assert_allclose(found.log_prob(y_test), each.logpdf(y_test.numpy()), rtol=1e-12)
    joint = scipy.stats.multivariate_normal(mean, covariance).logpdf(y_test.numpy())
    assert float(found.joint_log_prob(y_test)) == pytest.approx(joint, rel=1e-11)
    for q in (1e-300, 1e-20, 1e-6, 0.025, 0.5, 0.9, math.nextafter(1.0, 0.0)):
        numpy.testing.assert_allclose(found.quantile(q), each.ppf(q), rtol=1e-11)
    narrow, wide = found.interval(math.nextafter(1.0, 0.0))
    numpy.testing.assert_allclose(wide - narrow, 2 * each.ppf(math.nextafter(1.0, 0.0)) - 2 * mean, rtol=0.02)
    low, high = found.interval(0.9)
    numpy.testing.assert_allclose(low, each.ppf(0.05), rtol=1e-11)
    numpy.testing.assert_allclose(high, each.ppf(0.95), rtol=1e-11)


def test_likelihood_densities() -> None:
    """Eqs. (M-28) and (M-29): the expectation is that of Gauss-Hermite quadrature."""
    likelihood = lik.Gaussian(0.3)
    y, f, variance = (torch.tensor(v, dtype=F64) for v in ([0.2, -1.0], [0.5, 0.1], [0.4, 2.0]))
    wanted = scipy.stats.norm(f, math.sqrt(0.3)).logpdf(y)
    numpy.testing.assert_allclose(likelihood.log_prob(y, f).detach(), wanted, rtol=1e-14)
    nodes, weights = numpy.polynomial.hermite_e.hermegauss(9)
    points = f.numpy()[:, None] + variance.sqrt().numpy()[:, None] * nodes
    density = scipy.stats.norm(points, math.sqrt(0.3)).logpdf(y.numpy()[:, None])
    expected = (density * weights).sum(1) / weights.sum()
    numpy.testing.assert_allclose(likelihood.expected_log_prob(y, f, variance).detach(), expected, rtol=1e-13)
    found = likelihood.predictive(f, variance)
    mean, total = found.mean, found.variance
    assert torch.equal(mean, f)
    numpy.testing.assert_allclose(total.detach(), variance + 0.3, rtol=1e-15)


# -- scikit-learn ----------------------------------------------------------------------------------------------------
def peers(d: int, noise: Tensor) -> tuple[fgp.GP, object]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    ours = fgp.GP(
        1.0 * k.RBF(torch.ones(d)) + 1.0 * k.Matern(1.5, torch.ones(d)), m.Zero(), lik.Gaussian(1.0, row_variance=noise)
    )
    theirs = ConstantKernel() * RBF(numpy.ones(d)) + ConstantKernel() * Matern(numpy.ones(d), nu=1.5) + WhiteKernel()
    return ours, GaussianProcessRegressor(theirs, alpha=noise.numpy(), optimizer=None)


@pytest.mark.parametrize("online", [False, True])
def test_functions_of_a_posterior_take_the_transforms_of_torch(online: bool) -> None:
    x, y = data(30, 2)
    gp = model(2)
    post = gp.condition(x[:20], y[:20]).append(x[20:], y[20:]) if online else gp.condition(x, y)
    at = x[:4] + 0.1

    def total(points: Tensor) -> Tensor:
        found = post.predict(points)
        return found.mean.sum() + found.variance.sum()

    leaf = at.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(total(leaf), leaf)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        assert relative(transform(total)(at), wanted) < 1e-9
    second = torch.autograd.functional.hessian(total, at)
    assert relative(torch.func.hessian(total)(at), second) < 1e-9
    for name in ("mean", "variance"):
        each = torch.func.vmap(lambda point, name=name: getattr(post.predict(point[None]), name)[0])(at)
        assert relative(each, getattr(post.predict(at), name)) < 1e-9
    slopes = torch.func.vmap(torch.func.grad(lambda point: total(point[None])))(at)
    assert relative(slopes, wanted) < 1e-9


def test_a_prediction_shows_its_first_numbers() -> None:
    x, y = data(20)
    p = fgp.GP(fgp.kernels.Matern(), mean=m.Zero()).condition(x, y, solver="cg").predict(x[:9])
    assert "mean of f" not in repr(p), "solves are not begun for a text"
    assert f"[0]  {p.mean[0]:>9.4g}" in repr(p)
    assert "std of f" not in repr(p), "it may take long, and was not asked for"
    assert torch.equal(p.std, p.variance.sqrt())
    text = repr(p)
    assert f"[0]  {p.mean[0]:>9.4g}  {p.std[0]:>8.4g}" in text
    assert text.count("...") == 1


@pytest.mark.parametrize(
    "q",
    [0.0, 1.0, -0.1, math.nan, "0.5", None, 10**400, torch.Tensor, torch.tensor([0.1, 0.9]), numpy.array([0.1, 0.9]),
     torch.ones(1)],
)  # fmt: skip
def test_a_quantile_that_is_none(q: Any) -> None:
    x, y = data(3)
    found = model().condition(x, y).predict(x)
    for quantile in (found.quantile, lik.Gaussian().predictive(y, y.square()).quantile):
        with pytest.raises(fgp.DomainError, match=r"`q` must be one number between 0 and 1"):
            quantile(q)
    with pytest.raises(fgp.DomainError, match=r"`level` must be one number between 0 and 1"):
        found.interval(q)
