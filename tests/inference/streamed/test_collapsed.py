"""The collapsed bound for loops of the user's own, eqs. (M-160), (M-162): dense reference, differences, networks."""

import pytest
import torch
from torch import Tensor, nn

import flashgp as fgp
from flashgp.inference.streamed.collapsed import collapsed_bound
from inference.plain_gp import data, model
from inference.streamed.test_bound import dense
from pairwise.pair_cases import ONE_CASE_EACH, Case

k, lik = fgp.kernels, fgp.likelihoods


def network(d: int = 2, features: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 5), nn.Tanh(), nn.Linear(5, features)).double()


def deep(d: int = 2) -> fgp.GP:
    kernel = 1.3 * k.Warped(network(d), k.Matern(nu=2.5, lengthscale=torch.tensor([0.5, 0.8])))
    return fgp.GP(kernel, fgp.means.Linear(torch.full((d,), 0.2)), lik.Gaussian(0.1))


def differences(gp: fgp.GP, x: Tensor, y: Tensor, z: Tensor, tensor: Tensor) -> Tensor:
    """Of the bound by one tensor, central."""
    found, flat = torch.empty_like(tensor).view(-1), tensor.data.view(-1)
    with torch.no_grad():
        for j in range(len(flat)):
            at, values = float(flat[j]), []
            for step in (1e-5, -1e-5):
                flat[j] = at + step
                values.append(float(gp.collapsed_bound(x, y, inducing=z)))
            flat[j] = at
            found[j] = (values[0] - values[1]) / 2e-5
    return found.view_as(tensor)


@pytest.mark.parametrize("inducing", [1, 7, 20])
def test_the_value_is_that_of_dense_matrices(inducing: int) -> None:
    """(M-160), with a network and without."""
    x, y = data(50)
    for gp in (model(), deep()):
        lower, _ = dense(gp, x, y, x[:inducing])
        assert gp.collapsed_bound(x, y, inducing=x[:inducing]).item() == pytest.approx(lower, rel=1e-8)


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_gradients_agree_with_differences(case: Case) -> None:
    """By every parameter of every kernel, (M-162)."""
    gp = fgp.GP(case.kernel, fgp.means.Linear(torch.full((case.d,), 0.2)), lik.Gaussian(0.1))
    x, z = case.points(30, seed=1), case.points(6, seed=4)
    y = torch.sin(x.sum(-1)) + data(30, seed=2)[1]
    gp.collapsed_bound(x, y, inducing=z).backward()
    for parameter in gp.parameters():
        wanted = differences(gp, x, y, z, parameter)
        found = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        assert bool((found - wanted).abs().max() <= 1e-6 * (1.0 + wanted.abs().max()))


def test_gradients_by_weights_of_a_network_rows_targets_and_points() -> None:
    """In blocks of 16 rows."""
    gp, (x, y) = deep(), data(50)
    z = x[:7] + 0.1
    leaves = [x.requires_grad_(), y.requires_grad_(), z.detach().requires_grad_()]
    collapsed_bound(gp, *leaves, block=16).backward()
    for tensor in (*gp.parameters(), *leaves):
        assert tensor.grad is not None
        wanted = differences(gp, *leaves, tensor)
        assert bool((tensor.grad - wanted).abs().max() <= 1e-6 * (1.0 + wanted.abs().max()))


def test_what_it_cannot_do_is_refused() -> None:
    gp, (x, y) = model(), data(20)
    for points, said in ((30, "gp.inducing_points"), ("auto", "gp.inducing_points"), (x[:, :1], "inducing")):
        with pytest.raises((fgp.DomainError, fgp.ShapeError), match=said):
            gp.collapsed_bound(x, y, inducing=points)
    with pytest.raises(fgp.DomainError, match="batch"):
        gp.collapsed_bound(torch.stack([x, x]), torch.stack([y, y]), inducing=x[:3])
    with pytest.raises(fgp.DomainError, match="at most the 20 rows"):
        gp.collapsed_bound(x, y, inducing=torch.cat([x, x]))
    with pytest.raises(fgp.ShapeError, match="at least one row"):
        gp.collapsed_bound(x[:0], y[:0], inducing=x[:1])
    with pytest.raises(fgp.DomainError, match="one noise variance"):
        fgp.GP(k.Matern(), likelihood=lik.Gaussian(0.1, row_variance=torch.rand(20))).collapsed_bound(
            x, y, inducing=x[:3]
        )
    with pytest.raises(fgp.ShapeError, match="at least 21"):
        gp.inducing_points(x, 21)
    with pytest.raises(fgp.DerivativeError):
        torch.autograd.grad(gp.collapsed_bound(x, y, inducing=x[:3]), list(gp.parameters()), create_graph=True)
