"""Sites by Laplace's method, (M-350): its mode and likelihood, the gradient through the mode, where it warns."""

import pickle
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.likelihoods import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Custom,
    Gamma,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)
from flashgp.pairwise.torch.tiles import TorchTiles
from inference.iterated import Iterated, table

F64 = torch.float64
WEIGHT = 0.5 + torch.rand(40, generator=torch.Generator().manual_seed(3), dtype=F64)


class ByLaplace(Iterated):
    methods = ("laplace",)
    method = "laplace"


def bent(y: Tensor, f: Tensor, scale: Tensor) -> Tensor:
    return -torch.log(torch.cosh((y - f) / scale)) - torch.log(scale)


LIKELIHOODS: dict[str, Likelihood] = {
    "probit": Bernoulli(method="laplace"),
    "logit": Bernoulli("logit", method="laplace"),
    "Poisson": Poisson(exposure=WEIGHT).by_method("laplace"),
    "weighted": NegativeBinomial(0.3, row_weight=WEIGHT).by_method("laplace"),
    "Gamma": Gamma(2.0).by_method("laplace"),
    "Beta": Beta(5.0).by_method("laplace"),
    "Ordinal": Ordinal(4).by_method("laplace"),
    "Binomial": Binomial(9).by_method("laplace"),
    "Custom": Custom(bent, scale=0.8).by_method("laplace"),
}


def targets(name: str) -> tuple[Tensor, Tensor]:
    x, count, _ = table()
    wave = torch.sin(7.0 * x[:, 0])
    if name == "Gamma":
        return x, count + 0.5
    if name in ("Beta", "Custom"):
        return x, 0.5 + 0.4 * wave
    most = {"probit": 1.0, "logit": 1.0, "Ordinal": 3.0, "Binomial": 9.0}.get(name)
    return x, count if most is None else count.clamp(max=most)


def model(likelihood: Likelihood, variance: float = 1.5) -> fgp.GP:
    return fgp.GP(variance * fgp.kernels.Matern(nu=1.5, lengthscale=0.6), fgp.means.Constant(0.4), likelihood)


def objective(gp: fgp.GP, x: Tensor, y: Tensor) -> LogJoint:
    sites = IteratedSites.of(gp, x, y, SiteSettings(search=1e-11))
    return LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), sites=sites))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_gradient_goes_through_the_mode(name: str) -> None:
    """(M-351): by kernel, mean and the likelihood's own parameters, against differences."""
    x, y = targets(name)
    found = objective(model(LIKELIHOODS[name]), x, y)
    theta, step = found.parameters.values() + 0.1, 1e-4
    gradient = found(theta).gradient
    for k, one in enumerate(step * numpy.eye(len(theta))):
        above, below = found(theta + one).value, found(theta - one).value
        assert above is not None
        assert below is not None
        assert gradient[k] == pytest.approx((above - below) / (2.0 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["logit", "weighted", "Ordinal"])
def test_it_is_the_mode_and_the_determinant_there(name: str) -> None:
    """(M-350): Newton's steps on dense matrices, and log p(y | f) - f' K^-1 f / 2 - log|I + K W| / 2."""
    x, y = targets(name)
    gp = model(LIKELIHOODS[name])
    post = gp.condition(x, y)
    with torch.no_grad():
        k = gp.kernel(x).to_dense()

    def log_p(f: Tensor) -> Tensor:
        return gp.likelihood.log_prob_of_rows(y, f).sum()

    f = torch.full_like(y, 0.4)
    for _ in range(30):
        slope = torch.autograd.functional.jacobian(log_p, f)
        curvature = -torch.autograd.functional.hessian(log_p, f)
        f = 0.4 + torch.linalg.solve(torch.eye(len(y), dtype=F64) + k @ curvature, k @ (curvature @ (f - 0.4) + slope))
    value = log_p(f) - 0.5 * (f - 0.4) @ torch.linalg.solve(k, f - 0.4)
    value = value - 0.5 * torch.logdet(torch.eye(len(y), dtype=F64) + k @ curvature)
    torch.testing.assert_close(post.predict(x).mean, f, rtol=0.0, atol=1e-4)
    variance = (torch.linalg.inv(torch.linalg.inv(k) + curvature)).diagonal()
    torch.testing.assert_close(post.predict(x).variance, variance, rtol=1e-4, atol=0.0)
    assert float(post.log_marginal_likelihood()) == pytest.approx(float(value.detach()), abs=1e-4)


def test_of_a_gaussian_likelihood_it_is_regression() -> None:
    x, _, at = table()
    y = torch.sin(5.0 * x[:, 0])
    found, right = (model(one(0.1)).condition(x, y) for one in (ByLaplace, Gaussian))
    torch.testing.assert_close(found.predict(at).mean, right.predict(at).mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.predict(at).variance, right.predict(at).variance, rtol=1e-10, atol=1e-10)
    assert float(found.log_marginal_likelihood()) == pytest.approx(float(right.log_marginal_likelihood()), abs=1e-9)
    one, other = (
        objective(model(ByLaplace(0.1)), x, y),
        LogJoint(Problem(model(Gaussian(0.1)), x, y, DirectSettings(TorchTiles()))),
    )
    theta = one.parameters.values()
    numpy.testing.assert_allclose(one(theta).gradient, other(theta).gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("variance", "lengthscale"), [(1.0, 0.3), (16.0, 1.0), (1e3, 0.3)])
def test_labels_agree_with_those_of_scikit_learn(variance: float, lengthscale: float) -> None:
    """Whose classifier is Laplace's method with the logistic link; whose probabilities are within 1e-3."""
    process = pytest.importorskip("sklearn.gaussian_process")
    x, count, at = table(80)
    y = count.clamp(max=1.0)
    kernel = process.kernels.ConstantKernel(variance) * process.kernels.RBF(lengthscale)
    other = process.GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=1000).fit(x.numpy(), y.numpy())
    gp = fgp.GP(variance * fgp.kernels.RBF(lengthscale=lengthscale), fgp.means.Zero(), Bernoulli("logit"))
    post = gp.with_likelihood(gp.likelihood.by_method("laplace")).condition(x, y)
    value = float(other.log_marginal_likelihood(kernel.theta))
    assert float(post.log_marginal_likelihood()) == pytest.approx(value, abs=1e-4)
    found = post.predict(at).probability
    torch.testing.assert_close(found, torch.from_numpy(other.predict_proba(at.numpy())[:, 1]), rtol=0.0, atol=1e-3)


def test_a_fit_by_it_ends_at_its_optimum() -> None:
    x, y, _ = table(60)
    fit = fgp.fit(model(Poisson()), x, y, method="laplace", priors="given")
    assert fit.gp.likelihood.method == "laplace"
    assert "at least" not in dict(fit.summary())["log marginal likelihood"]
    best = float(fit.posterior.log_marginal_likelihood())
    found = objective(fit.gp, x, y)
    gradient = found(found.parameters.values()).gradient
    assert best == pytest.approx(-float(found(found.parameters.values()).value or 0.0), abs=1e-2)
    assert numpy.abs(gradient).max() < 0.1
    assert not [event for event in fit.report.events if event.kind.name.startswith("LAPLACE")]


def test_it_warns_where_it_is_known_to_fail() -> None:
    """(M-352), and curvature that is negative."""
    x, y, _ = table()
    far = model(Bernoulli(method="laplace"), 1e4)
    with pytest.warns(UserWarning, match="nats on average from the parabola"):
        post = far.condition(x, y.clamp(max=1.0))
    assert [event.kind for event in post.report.events].count(EventKind.LAPLACE_FAR) == 1
    y = torch.sin(5.0 * x[:, 0])
    y[:3] += 9.0
    with pytest.warns(UserWarning, match="of 3 rows log p bends upwards at the mode"):
        fgp.fit(model(StudentT()), x, y, method="laplace", max_iterations=2, initial="given")


def test_a_file_keeps_it(tmp_path: Path) -> None:
    x, y, at = table()
    gp = model(Poisson().by_method("laplace"))
    fgp.save(gp.condition(x, y), tmp_path / "p.safetensors")
    again = fgp.load(tmp_path / "p.safetensors")
    assert again.gp.likelihood.underlying.method == "laplace"
    torch.testing.assert_close(again.predict(at).mean, gp.condition(x, y).predict(at).mean, rtol=0.0, atol=1e-9)


def test_rows_left_out_go_to_another_process() -> None:
    x, y, _ = table()
    left = model(Poisson()).condition(x, y).leave_one_out()
    again = pickle.loads(pickle.dumps(left))
    for name in ("mean", "variance", "log_prob"):
        assert torch.equal(getattr(again, name), getattr(left, name))


def test_a_row_that_joins_has_the_site_at_its_own_mode() -> None:
    x, y, at = table()
    gp = model(Poisson().by_method("laplace"))
    post = gp.condition(x[:-1], y[:-1]).append(x[-1:], y[-1:])
    torch.testing.assert_close(post.predict(at).mean, gp.condition(x, y).predict(at).mean, rtol=0.0, atol=0.05)


def test_what_it_does_not_go_with_is_refused() -> None:
    x, y, _ = table()
    for approximation in ("full_scale", "sparse"):
        with pytest.raises(DomainError, match=r"`method` must be 'variational' where inference is approximate, got"):
            fgp.fit(model(Poisson()), x, y, method="laplace", approximation=approximation)
    found = fgp.fit(
        model(Poisson()), x, y, method="laplace", approximation="auto", time_limit=1e-3, starts=1, max_iterations=1
    )  # there is no other
    (event,) = of_kind(found.report.events, EventKind.APPROXIMATION_CHOSEN)
    assert event.fields["chosen"] == "exact"
    with pytest.raises(DomainError, match=r"`method` must be 'variational' for Categorical, got 'laplace'"):
        fgp.fit(fgp.GP(fgp.kernels.RBF(), likelihood=Categorical(3)), x, y.clamp(max=2.0), method="laplace")
    with pytest.raises(DomainError, match=r"`method` is of likelihoods whose sites are found by iteration, got"):
        fgp.fit(model(Gaussian(0.1)), x, y, method="laplace")
    with pytest.raises(DomainError, match=r"`method` must be 'ep' or 'variational' or 'laplace'"):
        fgp.fit(model(Bernoulli()), x, y.clamp(max=1.0), method="moments")
