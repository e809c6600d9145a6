"""A batch of models is a loop over models, bit for bit; one that fails is named and changes nothing in the others."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from inference.plain_gp import F64, data, relative

k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods

VARIANCE = torch.tensor([1.0, 2.5, 0.4], dtype=F64)
LENGTHSCALE = torch.tensor([[0.7, 1.2], [1.5, 0.6], [1.0, 1.0]], dtype=F64)
MEAN = torch.tensor([0.0, 1.0, -0.5], dtype=F64)
NOISE = torch.tensor([0.1, 0.03, 0.2], dtype=F64)


def model(member: int | None = None) -> fgp.GP:
    """Three models, or one of them."""
    part = slice(None) if member is None else member
    return fgp.GP(VARIANCE[part] * k.Matern(2.5, LENGTHSCALE[part]), m.Constant(MEAN[part]), lik.Gaussian(NOISE[part]))


def members(n: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [data(n, seed=s) for s in range(3)]
    return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])


@pytest.mark.parametrize("shared_x", [False, True])
@pytest.mark.parametrize("shared_y", [False, True])
def test_a_batch_is_a_loop(shared_x: bool, shared_y: bool) -> None:
    x, y = members()
    x_test, y_test = data(5, seed=7)
    given_x, given_y = x[0] if shared_x else x, y[0] if shared_y else y
    batch = model()
    posterior = batch.condition(given_x, given_y)
    found, loo = posterior.predict(x_test), posterior.leave_one_out()
    value = batch.log_marginal_likelihood(given_x, given_y)
    gradients = torch.autograd.grad(value.sum(), list(batch.parameters()))
    samples = found.sample(4, seed=1)
    assert samples.shape == (4, 3, 5)
    for i in range(3):
        alone = model(i)
        one_x, one_y = x[0 if shared_x else i], y[0 if shared_y else i]
        one = alone.condition(one_x, one_y)
        wanted = one.predict(x_test)
        for name in ("mean", "variance", "observation_variance"):
            assert relative(getattr(found, name)[i], getattr(wanted, name)) < 1e-13
        assert relative(found.covariance()[i], wanted.covariance()) < 1e-13
        assert relative(found.log_prob(y_test)[i], wanted.log_prob(y_test)) < 1e-12
        assert relative(found.joint_log_prob(y_test)[i], wanted.joint_log_prob(y_test)) < 1e-12
        assert relative(found.quantile(0.1)[i], wanted.quantile(0.1)) < 1e-13
        assert relative(loo.mean[i], one.leave_one_out().mean) < 1e-12
        assert relative(posterior.log_marginal_likelihood()[i], one.log_marginal_likelihood()) < 1e-13
        single = alone.log_marginal_likelihood(one_x, one_y)
        assert relative(value[i], single) < 1e-13
        for g, w in zip(gradients, torch.autograd.grad(single, list(alone.parameters())), strict=True):
            assert relative(g[i], w) < 1e-11


def noise_free() -> fgp.GP:
    return fgp.GP(k.RBF(torch.ones(3, 2)), m.Zero(), lik.Gaussian(0.0))


def test_only_the_member_that_fails_gets_a_jitter() -> None:
    """Member 1 repeats its first row with the same y: its second pivot is 0, a jitter repairs it, eq. (M-31)."""
    x, y = members()
    good = noise_free().condition(x, y)
    bad_x, bad_y = x.clone(), y.clone()
    bad_x[1, 1], bad_y[1, 1] = bad_x[1, 0], bad_y[1, 0]
    with pytest.warns(fgp.FlashGPWarning, match=r"batch members \[1\]"):
        found = noise_free().condition(bad_x, bad_y)
    assert found.report.jitter[0] == found.report.jitter[2] == 0.0
    assert found.report.jitter[1] in [pytest.approx(9 * torch.finfo(F64).eps * step, rel=1e-9) for step in (1, 10, 100)]
    assert of_kind(found.report.events, EventKind.JITTER)
    x_test, _ = data(4, seed=8)
    for i in (0, 2):
        assert torch.equal(found.factor.lower[i], good.factor.lower[i])
        assert torch.equal(found.representer_weights[i], good.representer_weights[i])
        assert torch.equal(found.predict(x_test).mean[i], good.predict(x_test).mean[i])
        assert torch.equal(found.predict(x_test).variance[i], good.predict(x_test).variance[i])
        assert torch.equal(found.log_marginal_likelihood()[i], good.log_marginal_likelihood()[i])


class Bowl(torch.nn.Module):
    """A mean by row, (*batch, n)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(-1)


@pytest.mark.parametrize("mean", [Bowl(), fgp.means.Linear(torch.tensor([0.5, -1.0]), 0.3)])
def test_a_mean_by_row_of_as_many_models_as_rows_is_not_one_by_output(mean: torch.nn.Module) -> None:
    """Two models of two rows and two outputs: (batch, n) has the shape of (n, outputs)."""
    x, _ = data(4)
    x, y = x.reshape(2, 2, 2), torch.arange(8, dtype=F64).reshape(2, 2, 2)
    gp = fgp.GP(fgp.kernels.Matern(), mean, outputs=2)
    together, x_test = gp.condition(x, y), x.flip(1) + 0.5
    assert torch.equal(gp.mean_at(x)[..., 0], mean(x).to(F64))
    for member in range(2):
        alone = gp.condition(x[member], y[member])
        assert relative(together.predict(x_test).mean[member], alone.predict(x_test[member]).mean) < 1e-13
        evidence = alone.log_marginal_likelihood()
        assert relative(together.log_marginal_likelihood()[member], evidence) < 1e-13


def test_two_batch_dimensions_and_test_points_of_their_own() -> None:
    x, y = members()
    x, y = x.expand(2, 3, 9, 2), torch.stack([y, y + 1.0])
    gp = model()
    x_test = torch.randn(2, 3, 4, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    found = gp.condition(x, y).predict(x_test)
    assert found.mean.shape == (2, 3, 4)
    for i in range(2):
        for j in range(3):
            wanted = model(j).condition(x[i, j], y[i, j]).predict(x_test[i, j])
            assert relative(found.mean[i, j], wanted.mean) < 1e-13
            assert relative(found.variance[i, j], wanted.variance) < 1e-13
    with pytest.raises(fgp.ShapeError, match="does not broadcast"):
        gp.condition(x, y).predict(torch.zeros(5, 4, 2, dtype=F64))
