"""The seams of inference, from outside: a likelihood of our own with fixed sites, and a predictor that is a table."""

import math

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.report import Report
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.predictor import Predictor, Variance
from flashgp.likelihoods import Gaussian, Likelihood, PredictiveDistribution, Sites

F64 = torch.float64
NOISE = 0.2


class LogNormal(PredictiveDistribution):
    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        self.location, self.spread = mean, variance
        self.mean = (mean + 0.5 * variance).exp()
        self.variance = variance.expm1() * (2.0 * mean + variance).exp()

    def quantile(self, q: float) -> Tensor:
        standard = torch.special.ndtri(torch.tensor(q, dtype=F64))
        return (self.location + standard * self.spread.sqrt()).exp()

    def log_prob(self, y: Tensor) -> Tensor:
        return torch.distributions.LogNormal(self.location, self.spread.sqrt()).log_prob(y)

    def sample(self, generator: torch.Generator) -> Tensor:
        normal = torch.randn(self.location.shape, generator=generator, dtype=F64)
        return (self.location + self.spread.sqrt() * normal).exp()


class Multiplicative(Likelihood):
    """y = exp(f + e): its sites are log y with the variance of e; log p(y) has - sum log y besides."""

    has_sites = True

    def __init__(self) -> None:
        super().__init__()
        self.noise_variance = fgp.Parameter(NOISE)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.distributions.LogNormal(f, self.noise_variance.value.sqrt()).log_prob(y)

    def predictive(self, mean: Tensor, variance: Tensor) -> LogNormal:
        return LogNormal(mean, variance + self.noise_variance.value)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self.log_prob(y, mean) - 0.5 * variance / self.noise_variance.value

    def sites(self, y: Tensor, outputs: int | None) -> Sites:
        return Sites(y.log(), self.noise_variance.value.reshape(1), -y.log().sum(-1))


class Given(Multiplicative):
    """Sites that were found elsewhere, one for each training row, whatever y is: say, a Laplace approximation's."""

    def __init__(self, targets: Tensor, variance: Tensor) -> None:
        super().__init__()
        self.register_buffer("site_targets", targets)
        self.register_buffer("site_variance", variance)

    rows_alike = False

    def sites(self, y: Tensor, outputs: int | None) -> Sites:
        return Sites(self.site_targets, self.site_variance)

    def rows(self, index: Tensor) -> "Given":
        return Given(self.site_targets[index], self.site_variance[index])


def table(n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    f = torch.sin(4.0 * x[:, 0]) + x[:, 1]
    return x, (f + NOISE**0.5 * torch.randn(n, generator=generator, dtype=F64)).exp()


def prior(likelihood: Likelihood) -> fgp.GP:
    return fgp.GP(1.5 * fgp.kernels.RBF(lengthscale=0.6), fgp.means.Constant(0.3), likelihood)


def dense(gp: fgp.GP, x: Tensor, targets: Tensor, variance: Tensor, at: Tensor) -> tuple[Tensor, ...]:
    """(mean, covariance, log density of the targets, leave-one-out mean and variance) by plain formulas."""
    with torch.no_grad():
        matrix = gp.kernel(x).to_dense() + torch.diag(variance.expand(len(x)))
        cross, corner = gp.kernel(at, x).to_dense(), gp.kernel(at).to_dense()
    inverse, residual = torch.linalg.inv(matrix), targets - 0.3
    weights = inverse @ residual
    density = torch.distributions.MultivariateNormal(torch.full((len(x),), 0.3, dtype=F64), matrix).log_prob(targets)
    diagonal = inverse.diagonal()
    return (
        0.3 + cross @ weights, corner - cross @ inverse @ cross.mT, density, targets - weights / diagonal,
        1.0 / diagonal,
    )  # fmt: skip


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_a_likelihood_with_sites_of_its_own_conditions_predicts_and_leaves_out() -> None:
    x, y = table()
    at = x[:4] + 0.03
    gp = prior(Multiplicative())
    post = gp.condition(x, y)
    mean, covariance, density, left_mean, left_variance = dense(gp, x, y.log(), torch.tensor([NOISE], dtype=F64), at)
    found = post.predict(at)
    close(found.mean, mean)
    close(found.covariance(), covariance)
    close(post.log_marginal_likelihood(), density - y.log().sum())
    close(gp.log_marginal_likelihood(x, y), density - y.log().sum())
    left = post.leave_one_out()
    close(left.mean, left_mean)
    close(left.variance, left_variance)
    more, more_y = table(37)
    longer = post.append(more[:7], more_y[:7])
    whole = gp.condition(torch.cat([x, more[:7]]), torch.cat([y, more_y[:7]]))
    close(longer.predict(at).mean, whole.predict(at).mean)
    close(longer.log_marginal_likelihood(), whole.log_marginal_likelihood())
    close(longer.drop(range(30, 37)).predict(at).mean, found.mean)


def test_a_prediction_asks_its_likelihood_for_observations() -> None:
    x, y = table()
    at = x[:5] + 0.03
    found = prior(Multiplicative()).condition(x, y).predict(at)
    wanted = torch.distributions.LogNormal(found.mean, (found.variance + NOISE).sqrt())
    close(found.observation_mean, wanted.mean)
    assert isinstance(found.distribution, LogNormal)
    close(found.distribution.mean, wanted.mean)
    close(found.observation_variance, wanted.variance)
    close(found.quantile(0.3), wanted.icdf(torch.tensor(0.3, dtype=F64)))
    close(found.log_prob(y[:5]), wanted.log_prob(y[:5]))
    low, high = found.interval(0.9)
    assert (low > 0).all()
    assert (low < high).all()
    drawn = found.sample(4000, observed=True, seed=0)
    error = drawn.log().mean(0) - found.mean
    assert (error.abs() < 4.0 * (found.variance + NOISE).sqrt() / math.sqrt(4000)).all()
    for ask in (lambda: found.covariance(observed=True), lambda: found.joint_log_prob(y[:5])):
        with pytest.raises(fgp.DomainError, match="`likelihood` must add noise to f for this, got Multiplicative"):
            ask()


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_sites_that_are_given_row_by_row(solver: str) -> None:
    x, y = table()
    generator = torch.Generator().manual_seed(1)
    targets = torch.randn(30, generator=generator, dtype=F64)
    variance = 0.1 + torch.rand(30, generator=generator, dtype=F64)
    gp = prior(Given(targets, variance))
    post = gp.condition(x, y, solver=solver, tolerance=1e-7)
    mean, covariance, density, left_mean, left_variance = dense(gp, x, targets, variance, x[:4] + 0.03)
    found = post.predict(x[:4] + 0.03)
    torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-6)
    if solver == "cg":
        return
    close(found.variance, covariance.diagonal())
    close(post.log_marginal_likelihood(), density)
    close(post.leave_one_out().mean, left_mean)
    close(post.leave_one_out().variance, left_variance)
    fewer = post.drop([0, 11])
    kept = [i for i in range(30) if i not in (0, 11)]
    close(fewer.predict(x[:4] + 0.03).mean, dense(gp, x[kept], targets[kept], variance[kept], x[:4] + 0.03)[0])


class Table(Predictor):
    """A posterior that is written down: values at points 0, 1, 2, ... of one column."""

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        self.values, self.joint, self.report = mean, covariance, Report(route="table")

    def mean(self, x: Tensor) -> Tensor:
        return self.values[x[:, 0].long()].unsqueeze(-1)

    def variance(self, x: Tensor) -> Variance:
        return Variance(self.joint.diagonal()[x[:, 0].long()].unsqueeze(-1))

    def covariance(self, x: Tensor) -> Tensor:
        index = x[:, 0].long()
        return self.joint[index][:, index]

    def paths(self, count: int, features: int, seed: int | None) -> None:
        raise fgp.DomainError("a table has no paths")


@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Multiplicative()])
def test_a_prediction_asks_any_predictor(likelihood: Likelihood) -> None:
    root = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [0.1, -0.3, 0.6]], dtype=F64)
    mean, covariance = torch.tensor([0.3, -1.0, 2.0], dtype=F64), root @ root.mT
    x = torch.tensor([[2.0], [0.0]], dtype=F64)
    found = Prediction(Table(mean, covariance), x, likelihood, None)
    assert found.report.route == "table"
    close(found.mean, mean[[2, 0]])
    close(found.variance, covariance.diagonal()[[2, 0]])
    close(found.covariance(), covariance[[2, 0]][:, [2, 0]])
    assert found.variance_standard_error is None
    wanted = likelihood.predictive(found.mean, found.variance)
    close(found.observation_variance, wanted.variance)
    close(found.interval(0.8)[1], wanted.quantile(0.9))
    close(found.log_prob(torch.ones(2, dtype=F64)), wanted.log_prob(torch.ones(2, dtype=F64)))
    drawn = found.sample(4000, seed=1)
    assert torch.allclose(drawn.mT.cov(), found.covariance(), atol=0.1)
    if isinstance(likelihood, Gaussian):
        normal = torch.distributions.MultivariateNormal(found.mean, found.covariance(observed=True))
        close(found.joint_log_prob(torch.ones(2, dtype=F64)), normal.log_prob(torch.ones(2, dtype=F64)))


class Model(fgp.GP):
    """A user's model, whose constructor takes other arguments than that of GP."""

    def __init__(self, lengthscale: float) -> None:
        super().__init__(fgp.kernels.RBF(lengthscale), likelihood=Gaussian(0.1))
        self.author = "a user"


def test_a_subclass_of_gp_keeps_its_type_with_rows_of_its_own() -> None:
    x, y = table()
    repeated = torch.cat([x, x[:5]]), torch.cat([y, y[:5] + 0.1])
    fitted = fgp.fit(Model(0.5), *repeated, starts=1, max_iterations=2).gp
    assert isinstance(fitted, Model)
    assert fitted.author == "a user"
    longer = Model(0.5).condition(x, y).append(x[:1] + 0.5, y[:1], row_weight=torch.tensor([2.0]))
    assert isinstance(longer.gp, Model)
    assert not longer.gp.likelihood.rows_alike
