"""Predictions are differentiable in x_test; condition(differentiable=True) keeps gradients to parameters, x and y."""

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from inference.plain_gp import F64, PlainGP, data, relative

k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods


def sums(prediction: object) -> torch.Tensor:
    """One number that depends on mean, variance, joint covariance and densities."""
    n = prediction.mean.shape[-1]
    weights = torch.linspace(0.5, 1.5, n, dtype=F64)
    return (
        (prediction.mean * weights).sum()
        + (prediction.variance * weights).sum()
        + prediction.covariance()[0].sum()
        + prediction.joint_log_prob(torch.zeros(n, dtype=F64))
        + prediction.log_prob(torch.ones(n, dtype=F64)).sum()
        + prediction.interval(0.9)[1].sum()
    )


@pytest.mark.parametrize("mean", [m.Constant(0.2), m.Linear(torch.tensor([0.3, 0.1]), 0.2)], ids=["constant", "linear"])
@pytest.mark.parametrize(
    "noise", [lik.Gaussian(0.1), lik.Gaussian(0.1, row_variance=torch.linspace(0.1, 0.3, 8))], ids=["one", "rows"]
)
def test_differentiable_condition(mean: torch.nn.Module, noise: fgp.likelihoods.Gaussian) -> None:
    """To parameters, x and y, against plain autograd, through everything a posterior says."""
    x, y = data(8)
    x_test, _ = data(4, seed=3)
    x, y, x_test = (t.requires_grad_() for t in (x, y, x_test))
    gp = fgp.GP(1.3 * k.RBF(torch.tensor([0.7, 1.2])) * (k.Linear(0.5) + 0.4), mean, noise)
    inputs = [x, y, x_test, *gp.parameters()]
    posterior = gp.condition(x, y, differentiable=True)
    plain = PlainGP(gp, x, y)
    plain_mean, plain_covariance = plain.predict(x_test)
    loo_mean, loo_variance = plain.leave_one_out()
    found_loo = posterior.leave_one_out()
    prediction = posterior.predict(x_test)
    pairs = [
        (prediction.mean, plain_mean),
        (prediction.variance, plain_covariance.diagonal()),
        (prediction.covariance(), plain_covariance),
        (prediction.observation_variance, plain_covariance.diagonal() + plain.new_noise()),
        (posterior.log_marginal_likelihood(), plain.log_marginal_likelihood()),
        (found_loo.mean, loo_mean),
        (found_loo.variance, loo_variance),
    ]
    for found, wanted in pairs:
        assert relative(found, wanted) < 1e-11
        weights = torch.linspace(0.5, 1.5, wanted.numel(), dtype=F64).view(wanted.shape)
        one = torch.autograd.grad((found * weights).sum(), inputs, retain_graph=True, allow_unused=True)
        two = torch.autograd.grad((wanted * weights).sum(), inputs, retain_graph=True, allow_unused=True)
        for a, b, t in zip(one, two, inputs, strict=True):
            zero = torch.zeros_like(t)
            b = zero if b is None else b
            assert float((zero if a is None else a).sub(b).abs().max()) <= 1e-9 * (1.0 + float(b.abs().max()))


def test_theta_by_chains() -> None:
    """log_joint at other parameters: chain by chain what the parameters themselves give, gradients too."""
    x, y = data(9)
    gp = fgp.GP(
        fgp.Parameter(1.5, prior=torch.distributions.Gamma(torch.tensor(2.0, dtype=F64), torch.tensor(1.0, dtype=F64)))
        * k.RBF(torch.ones(2)),
        likelihood=lik.Gaussian(0.1),
    )
    generator = torch.Generator().manual_seed(0)
    before = {name: p.detach().clone() for name, p in gp.named_parameters()}
    theta = {
        name: (p.detach() + 0.3 * torch.randn(3, 2, *p.shape, generator=generator, dtype=F64)).requires_grad_()
        for name, p in gp.named_parameters()
    }
    for jacobian in (False, True):
        joint = gp.log_joint(x, y, theta=theta, jacobian=jacobian)
        assert joint.shape == (3, 2)
        gradients = torch.autograd.grad(joint.sum(), list(theta.values()))
        for i in range(3):
            for j in range(2):
                one = {name: value[i, j].detach().requires_grad_() for name, value in theta.items()}
                alone = gp.log_joint(x, y, theta=one, jacobian=jacobian)
                assert relative(joint[i, j], alone) < 1e-13
                for found, wanted in zip(gradients, torch.autograd.grad(alone, list(one.values())), strict=True):
                    assert relative(found[i, j], wanted) < 1e-10
    assert all(torch.equal(p, before[name]) for name, p in gp.named_parameters())


def test_theta_jacobian() -> None:
    """The density of the unconstrained values, eq. (M-38): prior times |d value / d raw|, eq. (M-18)."""
    x, y = data(5)
    gp = fgp.GP(
        k.RBF(
            fgp.Parameter(
                0.7, prior=torch.distributions.LogNormal(torch.tensor(0.2, dtype=F64), torch.tensor(0.5, dtype=F64))
            )
        ),
        m.Zero(),
        lik.Gaussian(0.1),
    )
    # log N(raw; 0.2, 0.5): the Jacobian turns a LogNormal density of the value into a normal one of its logarithm.
    raw = gp.kernel.lengthscale.raw.detach()
    normal = torch.distributions.Normal(torch.tensor(0.2, dtype=F64), torch.tensor(0.5, dtype=F64)).log_prob(raw)
    noise_jacobian = gp.likelihood.noise_variance.raw.detach()
    wanted = gp.log_marginal_likelihood(x, y) + normal + noise_jacobian
    assert relative(gp.log_joint(x, y, jacobian=True), wanted.squeeze()) < 1e-14


@pytest.mark.parametrize(
    ("theta", "error", "message"),
    [
        ({"kernel.lengthscale": torch.zeros(2)}, fgp.DomainError, "which is not a parameter; choose from"),
        ({"kernel.lengthscale.raw": torch.zeros(3)}, fgp.ShapeError, r"must have shape \(\*chains, 2\), got \(3,\)"),
        ({"kernel.lengthscale.raw": torch.zeros(())}, fgp.ShapeError, r"must have shape \(\*chains, 2\), got \(\)"),
    ],
)
def test_theta_is_checked(theta: dict[str, torch.Tensor], error: type[Exception], message: str) -> None:
    x, y = data(4)
    with pytest.raises(error, match=message):
        fgp.GP(k.RBF(torch.ones(2))).log_joint(x, y, theta=theta)


GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(6, 2, generator=GENERATOR, dtype=F64)
Y = torch.rand(6, generator=GENERATOR, dtype=F64)


def model() -> fgp.GP:
    return fgp.GP(1.3 * fgp.kernels.RBF(torch.tensor([0.7, 1.4])), likelihood=fgp.likelihoods.Gaussian(0.1))


@pytest.mark.parametrize("name", ["x", "y"])
def test_evidence(name: str) -> None:
    gp, given = model(), {"x": X.clone(), "y": Y.clone()}

    def value(t: Tensor) -> Tensor:
        return gp.log_marginal_likelihood(**{**given, name: t})

    asked = given[name].clone().requires_grad_()
    assert torch.autograd.gradcheck(value, asked)
    assert torch.autograd.gradgradcheck(value, asked)


def test_a_differentiable_posterior_knows_that_its_parameters_have_changed() -> None:
    """They are the GP's own, so that gradients reach them; its factor is of what they were."""
    gp, (x, y) = model(), data(12)
    posterior = gp.condition(x, y, differentiable=True)
    posterior.predict(x[:3]).mean.sum().backward()
    posterior.predict(x[:3])
    torch.optim.SGD(gp.parameters(), lr=0.1).step()
    with pytest.raises(fgp.DomainError, match="changed since; condition again"):
        posterior.predict(x[:3])
