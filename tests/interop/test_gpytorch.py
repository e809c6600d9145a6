"""Models of GPyTorch and back: the same covariance, the same predictions, or a refusal that names what there is not."""

import copy
import warnings
from pathlib import Path

import gpytorch
import pytest
import torch
from gpytorch import kernels, means, priors
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    StudentTLikelihood,
)
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    CiqVariationalStrategy,
    DeltaVariationalDistribution,
    MeanFieldVariationalDistribution,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)

import flashgp as fgp
from flashgp.interop.gpytorch import FlashGPKernel, from_gpytorch, gp_from, kernel_from, kernel_to, members, to_gpytorch

GENERATOR = torch.Generator().manual_seed(3)
X = torch.rand(40, 3, generator=GENERATOR, dtype=torch.float64)
X[:, 2] = torch.randint(0, 3, (40,), generator=GENERATOR)
Y = torch.sin(6.0 * X[:, 0]) + X[:, 1]


class Model(gpytorch.models.ExactGP):
    def __init__(self, covariance, mean=None, likelihood=None, twist=1.0) -> None:
        super().__init__(X, Y, likelihood or GaussianLikelihood())
        self.covar_module, self.mean_module, self.twist = covariance, mean or means.ConstantMean(), twist
        self.double()

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.twist * self.covar_module(x))


def moved(module):
    """Copy with other parameters than the initial ones."""
    module = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


COVARIANCES = {
    "RBF": kernels.RBFKernel(),
    "RBF of each column": kernels.ScaleKernel(kernels.RBFKernel(ard_num_dims=3)),
    "Matern": kernels.ScaleKernel(kernels.MaternKernel(nu=1.5, ard_num_dims=3)),
    "RQ": kernels.RQKernel(),
    "Periodic": kernels.PeriodicKernel(active_dims=[0, 1], ard_num_dims=2),
    "Cosine": kernels.CosineKernel(active_dims=[0]),
    "Linear": kernels.LinearKernel(ard_num_dims=3) + kernels.RBFKernel(),
    "Polynomial": kernels.PolynomialKernel(power=3),
    "Constant": kernels.ConstantKernel() * kernels.RBFKernel(active_dims=[1]),
    "SpectralMixture": kernels.SpectralMixtureKernel(num_mixtures=3, active_dims=[0]),
    "Index": kernels.RBFKernel(active_dims=[0, 1]) * kernels.IndexKernel(num_tasks=3, rank=2, active_dims=[2]),
}


@pytest.mark.parametrize("name", COVARIANCES)
def test_predictions_and_covariances_are_those_of_the_model_and_back(name: str) -> None:
    model = Model(moved(COVARIANCES[name]), moved(means.LinearMean(3)))
    points = X[:9].clone()
    points[:, :2] += 0.05
    found = from_gpytorch(model).predict(points)
    with gpytorch.settings.fast_computations(False, False, False), torch.no_grad():
        said = model.eval()(points)
    assert torch.allclose(found.mean, said.mean, rtol=1e-10, atol=1e-11)
    assert torch.allclose(found.variance, said.variance, rtol=1e-10, atol=1e-11)
    back = to_gpytorch(kernel_from(model.covar_module, 3))
    assert torch.allclose(back(points).to_dense(), model.covar_module(points).to_dense(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rows", ["alike", "variances", "weights"])
@pytest.mark.parametrize("mean", [fgp.means.Zero(), fgp.means.Constant(0.7), fgp.means.Linear(torch.ones(3))], ids=repr)
def test_a_posterior_of_ours_is_a_model_of_theirs(rows: str, mean: torch.nn.Module) -> None:
    of_rows = torch.linspace(0.1, 1.0, 40, dtype=torch.float64)
    noise = {"alike": {}, "variances": {"row_variance": of_rows}, "weights": {"row_weight": of_rows}}[rows]
    kernel = 1.5 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.tensor([0.5, 0.7, 2.0])) + fgp.kernels.Linear()
    post = fgp.GP(kernel, mean, fgp.likelihoods.Gaussian(1e-5 if rows == "alike" else 0.01, **noise)).condition(X, Y)
    model, points = to_gpytorch(post), X[:7] + 0.05
    found = post.predict(points)
    with gpytorch.settings.fast_computations(False, False, False), torch.no_grad():
        said = model(points)
    assert torch.allclose(found.mean, said.mean, rtol=1e-8, atol=1e-8)
    assert torch.allclose(found.variance, said.variance, rtol=1e-8, atol=1e-8)
    with pytest.raises(fgp.DomainError, match="exact posterior of one output"):
        to_gpytorch(fgp.GP(fgp.kernels.RBF(), outputs=1).condition(X, Y[:, None]))


def test_fixed_noise_with_more_that_is_learned() -> None:
    noise = torch.linspace(0.01, 0.2, 40, dtype=torch.float64)
    model = Model(kernels.RBFKernel(), likelihood=FixedNoiseGaussianLikelihood(noise, learn_additional_noise=True))
    post = from_gpytorch(model)
    assert torch.equal(post.gp.likelihood.row_variance, noise)
    assert float(post.gp.likelihood.noise_variance.value) == pytest.approx(float(model.likelihood.second_noise))


def test_bounds_priors_and_what_is_fixed_come_along() -> None:
    covariance = kernels.ScaleKernel(
        kernels.PeriodicKernel(
            lengthscale_prior=priors.LogNormalPrior(0.3, 0.5), lengthscale_constraint=GreaterThan(0.04),
            period_length_constraint=Interval(0.1, 3.0),
        ),
        outputscale_prior=priors.GammaPrior(2.0, 0.15),
    )  # fmt: skip
    covariance.raw_outputscale.requires_grad_(False)
    kernel = gp_from(Model(covariance), 3).kernel
    assert not kernel.variance.trainable
    assert isinstance(kernel.variance.prior, torch.distributions.Gamma)
    inner = kernel.kernel
    assert (inner.lengthscale.domain.lower, inner.period.domain.upper) == (pytest.approx(0.2), pytest.approx(3.0))
    # Of a lengthscale whose square is theirs: p(l) = 2 l p(l^2).
    at, theirs = torch.tensor(0.7, dtype=torch.float64), torch.distributions.LogNormal(0.3, 0.5)
    assert torch.isclose(inner.lengthscale.prior.log_prob(at), theirs.log_prob(at**2) + torch.log(2 * at))


def test_members_of_a_batch_have_their_own_parameters() -> None:
    batch = torch.Size((2, 3))
    covariance = kernels.ScaleKernel(kernels.RBFKernel(batch_shape=batch), batch_shape=batch).double()
    covariance.outputscale = torch.arange(1.0, 7.0).reshape(batch).double()
    found = [float(kernel_from(covariance, 3, index).variance.value) for index in members(batch)]
    assert found == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    copies = kernel_to(2.0 * fgp.kernels.Matern(lengthscale=torch.ones(3)), batch)
    assert copies.base_kernel.lengthscale.shape == (2, 3, 1, 3)


def test_what_gpytorch_lacks_is_wrapped() -> None:
    kernel = fgp.kernels.Warped(torch.nn.Linear(3, 2).double(), fgp.kernels.Matern(nu=1.5))
    wrapped = to_gpytorch(3.0 * kernel)
    assert isinstance(wrapped.base_kernel, FlashGPKernel)
    assert torch.allclose(wrapped(X).to_dense(), (3.0 * kernel)(X).to_dense())
    with pytest.raises(fgp.DomainError, match=r"`kernel` must have a counterpart .* got Warped"):
        kernel_to(kernel, torch.Size((2,)))


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (lambda: Model(kernels.ArcKernel(kernels.MaternKernel(nu=2.5))), "ArcKernel"),
        (lambda: Model(kernels.CosineKernel()), "CosineKernel of several columns"),
        (lambda: Model(kernels.RBFKernel(lengthscale_prior=priors.SmoothedBoxPrior(0.1, 2.0))), "SmoothedBoxPrior"),
        (lambda: Model(kernels.RBFKernel(), means.ConstantMeanGrad()), "ConstantMeanGrad"),
        (lambda: Model(kernels.RBFKernel(), twist=1.5), "differs from"),
        (lambda: Model(kernels.RBFKernel()).state_dict(), "must be a gpytorch ExactGP"),
    ],
)
def test_refusals_name_what_has_no_counterpart(model, wrong: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = model()
    with pytest.raises(fgp.DomainError, match=wrong):
        from_gpytorch(made)


def test_other_likelihoods_are_refused_by_name() -> None:
    model = Model(kernels.RBFKernel())
    model.likelihood = StudentTLikelihood()
    with pytest.raises(fgp.DomainError, match="StudentTLikelihood"):
        gp_from(model, 3)


class Sparse(gpytorch.models.ApproximateGP):
    """q(u) at the first rows, with parameters some variances above the prior's."""

    def __init__(self, strategy=VariationalStrategy, values=CholeskyVariationalDistribution, batch=()) -> None:
        points = X[:24, :2].expand(*batch, 24, 2).clone()
        super().__init__(strategy(self, points, values(24, torch.Size(batch))))
        self.mean_module = means.ConstantMean()
        self.covar_module = kernels.ScaleKernel(kernels.MaternKernel(nu=2.5, ard_num_dims=2))
        self.load_state_dict(moved(self.double()).state_dict())
        self.variational_strategy.variational_params_initialized.fill_(1)
        for each in self.modules():
            if isinstance(each, CholeskyVariationalDistribution):
                each.chol_variational_covar.data.mul_(0.1).diagonal(dim1=-2, dim2=-1)[..., ::3] += 1.3

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "values", [CholeskyVariationalDistribution, MeanFieldVariationalDistribution, DeltaVariationalDistribution]
)
@pytest.mark.parametrize("strategy", [VariationalStrategy, UnwhitenedVariationalStrategy])
def test_inducing_points_predict_as_the_model_does(strategy, values, dtype) -> None:
    model, points = Sparse(strategy, values).to(dtype), X[:9, :2] + 0.05
    model.train()(model.variational_strategy.inducing_points[:3])  # whose cached tensors have a graph
    found = from_gpytorch(model, GaussianLikelihood()).predict(points)  # eqs. (M-463), (M-464)
    jitter = model.variational_strategy.jitter_val
    model.eval().double().variational_strategy.jitter_val = jitter
    with gpytorch.settings.fast_computations(False, False, False), torch.no_grad():
        said = model(points)
    more = jitter if strategy is VariationalStrategy else 0.0
    assert torch.allclose(found.mean, said.mean, rtol=1e-10, atol=1e-10)
    assert torch.allclose(found.variance + more, said.variance, rtol=1e-10, atol=1e-10)


def test_rows_join_the_inducing_points_and_files_keep_them(tmp_path: Path) -> None:
    model, noise = Sparse(), GaussianLikelihood().noise.detach().double()
    post, at = from_gpytorch(model, GaussianLikelihood()), model.variational_strategy.inducing_points[:5].detach()
    joint = post.predict(at)
    known = torch.distributions.MultivariateNormal(joint.mean, joint.covariance() + noise * torch.eye(5))
    longer = post.append(at, Y[:5])
    assert (post.count, float(post.log_marginal_likelihood())) == (0, pytest.approx(0.0, abs=1e-9))
    assert longer.log_marginal_likelihood().item() == pytest.approx(known.log_prob(Y[:5]).item(), rel=1e-5)
    assert longer.bound.lower <= longer.bound.upper
    for one in (post, longer):
        fgp.save(one, tmp_path / "model.safetensors")
        back = fgp.load(tmp_path / "model.safetensors").predict(at + 0.03)
        assert torch.allclose(back.variance, one.predict(at + 0.03).variance, rtol=1e-9, atol=1e-12)
    draws = post.paths(2000, seed=0)(at)
    assert torch.allclose(draws.mean(0), joint.mean, atol=4.0 * float(joint.variance.max() / 2000) ** 0.5)
    with pytest.raises(fgp.DomainError, match="`importance` is of rows that were read"):
        post.importance()


def test_classes_of_inducing_points() -> None:
    model, likelihood = Sparse(), BernoulliLikelihood()
    found = from_gpytorch(model, likelihood).predict(X[:9, :2] + 0.05)
    with torch.no_grad():
        said = likelihood(model.eval()(X[:9, :2] + 0.05)).probs
    assert torch.allclose(found.distribution.probability, said, atol=1e-6)  # whose variance has the jitter


@pytest.mark.parametrize(
    ("model", "likelihood", "wrong"),
    [
        (lambda: Sparse(CiqVariationalStrategy), GaussianLikelihood(), "CiqVariationalStrategy"),
        (lambda: Sparse(batch=(2,)), GaussianLikelihood(), r"inducing points \(2, 24, 2\)"),
        (lambda: Sparse(), StudentTLikelihood(), "StudentTLikelihood"),
        (lambda: Sparse(), FixedNoiseGaussianLikelihood(torch.ones(40)), "numbers of single rows"),
        (lambda: Sparse(), None, "must have a `likelihood`"),
    ],
)
def test_refusals_of_inducing_points(model, likelihood, wrong: str) -> None:
    with pytest.raises(fgp.DomainError, match=wrong):
        from_gpytorch(model(), likelihood)
