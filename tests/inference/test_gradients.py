"""Predictions are differentiable in x_test; condition(differentiable=True) keeps gradients to parameters, x and y."""

import numpy
import pytest
import torch

import flashgp as fgp
from inference.plain_gp import F64, PlainGP, data, model, relative

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


@pytest.mark.parametrize(
    "kernel",
    [
        1.3 * k.Matern(2.5, torch.tensor([0.7, 1.2])),
        k.RBF(0.9) * (k.Linear(0.5) + 0.2),
        k.RationalQuadratic(1.1) + k.Periodic(1.4, 2.0),
    ],
    ids=["matern", "product", "sum"],
)
def test_in_x_test(kernel: fgp.kernels.Kernel) -> None:
    x, y = data(8)
    x_test, _ = data(4, seed=3)
    posterior = fgp.GP(kernel, m.Linear(torch.tensor([0.3, 0.1])), lik.Gaussian(0.1)).condition(x, y)

    def values(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = posterior.predict(z)
        return p.mean, p.variance, p.covariance(observed=True), p.joint_log_prob(torch.zeros(4, dtype=F64))

    assert torch.autograd.gradcheck(values, x_test.requires_grad_())


def test_the_layout_of_x_test_does_not_matter() -> None:
    """CONTRACTS' case 10: the same numbers and the same gradients as contiguous, into the tensor the user holds."""
    x, y = data(8)
    posterior = model().condition(x, y)
    base, _ = data(6, seed=3)

    def gradient(leaf: torch.Tensor, view: object) -> torch.Tensor:
        leaf = leaf.clone().requires_grad_()
        return torch.autograd.grad(sums(posterior.predict(view(leaf))), leaf)[0]

    wanted = gradient(base, lambda z: z)
    storage = base.repeat_interleave(2, 0)
    assert relative(gradient(storage, lambda z: z[::2])[::2], wanted) < 1e-14
    assert relative(gradient(base.mT.contiguous(), lambda z: z.mT).mT, wanted) < 1e-14
    assert relative(gradient(base.flip(0), lambda z: z.flip(0)).flip(0), wanted) < 1e-14

    row = base[:1]
    rows = gradient(row.expand(6, 2).contiguous(), lambda z: z)
    assert relative(gradient(row, lambda z: z.expand(6, 2)), rows.sum(0, keepdim=True)) < 1e-12


def test_the_layout_of_training_data_does_not_matter() -> None:
    x, y = data(8)
    gp = model()

    def gradient(leaf: torch.Tensor, view: object) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = leaf.clone().requires_grad_()
        value = gp.log_marginal_likelihood(view(leaf), y)
        return torch.autograd.grad(value, leaf)[0], value.detach()

    wanted, value = gradient(x, lambda z: z)
    for leaf, view, back in (
        (x.mT.contiguous(), lambda z: z.mT, lambda g: g.mT),
        (x.repeat_interleave(3, 0), lambda z: z[::3], lambda g: g[::3]),
        (torch.cat([x, x], 1), lambda z: z[:, :2], lambda g: g[:, :2]),
    ):
        found, same = gradient(leaf, view)
        assert torch.equal(same, value)
        assert relative(back(found), wanted) < 1e-14
    expanded, _ = gradient(x[:1], lambda z: z.expand(8, 2))
    repeated, _ = gradient(x[:1].repeat(8, 1), lambda z: z)
    assert relative(expanded, repeated.sum(0, keepdim=True)) < 1e-10


def test_arrays_of_every_layout() -> None:
    """NumPy: Fortran order, negative strides, read-only, byte-swapped."""
    x, y = data(8)
    wanted = model().condition(x, y).predict(x).mean
    array = x.numpy()
    frozen = array.copy()
    frozen.flags.writeable = False
    for version in (numpy.asfortranarray(array), array[::-1].copy()[::-1], frozen, array.astype(">f8")):
        assert relative(model().condition(version, y).predict(version).mean, wanted) < 1e-15


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


def test_condition_is_detached_otherwise() -> None:
    x, y = data(6)
    x.requires_grad_()
    gp = model()
    posterior = gp.condition(x, y)
    assert not posterior.predict(x.detach()).mean.requires_grad
    before = posterior.predict(x.detach()).mean
    with torch.no_grad():
        for parameter in gp.parameters():
            parameter.add_(1.0)
        x.add_(1.0)
        y.add_(1.0)
    assert relative(gp.condition(x, y).predict(x.detach()).mean, before) > 1e-3
    found = posterior.predict(x.detach() - 1.0).mean
    assert relative(found, before) < 1e-12, (
        "a posterior is a value: later changes of parameters or data do not reach it"
    )


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


def test_theta_of_shared_and_tied_parameters() -> None:
    """Sharing by object (a Parameter in two places) and by tensor (tied weights of a network) both move together."""
    x, y = data(6)
    shared = fgp.Parameter(0.8)

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(2, 2, dtype=F64)
            self.two = torch.nn.Linear(2, 2, dtype=F64)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.tanh(self.one(x)))

    torch.manual_seed(0)
    gp = fgp.GP(k.RBF(shared, active_dims=[0]) * k.RBF(shared, active_dims=[1]) + k.Warped(Tied(), k.RBF()))
    theta = {name: (p.detach() + 0.3).requires_grad_() for name, p in gp.named_parameters()}
    before = {name: p.detach().clone() for name, p in gp.named_parameters()}
    found = gp.log_joint(x, y, theta=theta)
    slopes = torch.autograd.grad(found, list(theta.values()))
    assert all(torch.equal(p, before[name]) for name, p in gp.named_parameters())
    assert gp.kernel.parts[0].parts[0].lengthscale is gp.kernel.parts[0].parts[1].lengthscale
    with torch.no_grad():
        for p in gp.parameters():
            p.add_(0.3)
    wanted = gp.log_joint(x, y)
    assert relative(found, wanted) < 1e-14
    for one, two in zip(slopes, torch.autograd.grad(wanted, list(gp.parameters())), strict=True):
        assert relative(one, two) < 1e-12


def test_theta_with_a_batch_of_data() -> None:
    """Chains times data sets, with shared parameters and with one per data set: no chain is paired with a data set."""
    pairs = [data(7, seed=s) for s in (1, 2)]
    x, y = torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
    gp = fgp.GP(k.RBF(torch.ones(2)), m.Constant(torch.zeros(2)), lik.Gaussian(0.1))
    theta = {
        name: p.detach() + torch.linspace(0.0, 0.5, 2, dtype=F64).view(2, *(1,) * p.dim())
        for name, p in gp.named_parameters()
    }
    found = gp.log_joint(x, y, theta=theta)
    assert found.shape == (2, 2)
    for chain in range(2):
        one = {name: value[chain] for name, value in theta.items()}
        assert relative(found[chain], gp.log_joint(x, y, theta=one)) < 1e-13


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


@pytest.mark.parametrize("points", [3, 40])
def test_mean_and_variance_each_have_a_graph_of_their_own(points: int) -> None:
    """A backward pass from the mean leaves the variance's, whatever the two could share."""
    x = torch.linspace(0.0, 1.0, 60, dtype=torch.float64)[:, None]
    post = fgp.GP(fgp.kernels.RBF(0.3), likelihood=fgp.likelihoods.Gaussian(0.1)).condition(x, torch.sin(6.0 * x[:, 0]))
    here = (torch.arange(points, dtype=torch.float64)[:, None] / 40.0).requires_grad_()
    found = post.predict(here)
    found.mean.sum().backward()
    found.variance.sum().backward()
    fresh = post.predict(here)
    (expected,) = torch.autograd.grad(fresh.mean.sum() + fresh.variance.sum(), here)
    assert here.grad is not None
    torch.testing.assert_close(here.grad, expected)
