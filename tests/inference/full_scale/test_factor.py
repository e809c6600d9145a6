"""The full-scale likelihood, eq. (M-148): its ends, its gradient (M-149, M-150), and layouts that are hard."""

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor
from flashgp.inference.full_scale.layout import Layout, layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.training.objective import Problem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Sizes
from inference.plain_gp import F64, data, model
from pairwise.pair_cases import ONE_CASE_EACH, Case

k, lik = fgp.kernels, fgp.likelihoods


def layout(gp: fgp.GP, x: Tensor, inducing: int, block: int, neighbours: int) -> Layout:
    noise = torch.full((1,), 0.1, dtype=F64)
    return layout_of(gp, x, noise, Sizes(inducing, block, neighbours, 0), seed=0)


def objective(gp: fgp.GP, x: Tensor, y: Tensor, made: Layout) -> FullScaleLogJoint:
    return FullScaleLogJoint(Problem(gp.released(), x, y, DirectSettings(TorchTiles())), made)


def factor(gp: fgp.GP, x: Tensor, y: Tensor, made: Layout) -> FullScaleFactor:
    with torch.no_grad():
        residual, noise, rows, theta = gp.likelihood_inputs(x, y)
        points = gp.kernel.rows(made.inducing)
        function = Basis.of(gp.kernel.form, theta, points, Workspace())
        return FullScaleFactor.of(function, rows, made.near, residual, noise)


def dense(gp: fgp.GP, x: Tensor, y: Tensor, made: Layout) -> Tensor:
    """A A^T + (W^T W)^-1 by its definition, block by block, with dense matrices of all rows."""
    with torch.no_grad():
        noise = gp.likelihood_inputs(x, y)[1].expand(len(x))
        z = made.inducing
        at = gp.kernel.operator(z).to_dense()
        at = at + 1e-8 * at.diagonal().mean() * torch.eye(len(z), dtype=F64)
        cross = gp.kernel.operator(x, z).to_dense()
        low = cross @ torch.linalg.solve(at, cross.mT)
        left = gp.kernel.operator(x).to_dense() - low + torch.diag(noise)
        white = torch.zeros(len(x), len(x), dtype=F64)
        for b, c in zip(made.near.blocks, made.near.neighbours, strict=True):
            b, c = b[b >= 0], c[c >= 0]
            weights = torch.linalg.solve(left[c][:, c], left[c][:, b]).mT
            given = left[b][:, b] - weights @ left[c][:, b]
            lower = torch.linalg.cholesky(given)
            white[b.unsqueeze(1), b] = torch.linalg.inv(lower)
            white[b.unsqueeze(1), c] = -torch.linalg.solve(lower, weights)
        return low + torch.linalg.inv(white.mT @ white)


def log_density(covariance: Tensor, residual: Tensor) -> float:
    normal = torch.distributions.MultivariateNormal(torch.zeros(len(residual), dtype=F64), covariance)
    return float(normal.log_prob(residual))


@pytest.mark.parametrize(("inducing", "block", "neighbours"), [(8, 6, 9), (0, 6, 9), (8, 6, 0), (0, 1, 5), (5, 7, 60)])
def test_the_likelihood_is_that_of_its_covariance(inducing: int, block: int, neighbours: int) -> None:
    """(M-148)"""
    gp, (x, y) = model(), data(50)
    made = layout(gp, x, inducing, block, neighbours)
    found = factor(gp, x, y, made).sums_of_each()[0].log_likelihood(50)
    with torch.no_grad():
        wanted = log_density(dense(gp, x, y, made), gp.residual(x, y)[:, 0])
    assert found == pytest.approx(wanted, rel=1e-9)


def differences(of: FullScaleLogJoint, theta: numpy.ndarray, step: float = 1e-4) -> numpy.ndarray:
    """Central differences of the value, of fourth order."""
    slopes = []
    for unit in step * numpy.eye(len(theta)):
        near = of(theta + unit).value - of(theta - unit).value
        far = of(theta + 2 * unit).value - of(theta - 2 * unit).value
        slopes.append((8 * near - far) / (12 * step))
    return numpy.array(slopes)


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_gradients_agree_with_differences(case: Case) -> None:
    """Of every kernel, (M-149) and (M-150)."""
    gp = fgp.GP(case.kernel, fgp.means.Linear(torch.full((case.d,), 0.2)), lik.Gaussian(0.1))
    x = case.points(40, seed=1)
    y = torch.sin(x.sum(-1)) + data(40, seed=2)[1]
    of = objective(gp, x, y, layout(gp, x, 6, 5, 8))
    theta = of.parameters.values()
    found, wanted = of(theta).gradient, differences(of, theta)
    assert numpy.abs(found - wanted).max() <= 1e-6 * (1.0 + numpy.abs(wanted).max())


@pytest.mark.parametrize(("inducing", "block", "neighbours"), [(0, 4, 9), (9, 4, 0), (9, 1, 9)])
def test_gradients_of_its_ends_and_of_noise_in_rows_and_outputs(inducing: int, block: int, neighbours: int) -> None:
    x, y = data(30)
    noise = lik.Gaussian(0.1, row_variance=torch.linspace(0.0, 0.2, 30), row_weight=torch.linspace(1.0, 2.0, 30))
    for gp, targets in (
        (fgp.GP(model().kernel, likelihood=noise), y),
        (fgp.GP(model().kernel, likelihood=lik.Gaussian(0.1, shared=True), outputs=2), torch.stack([y, y.exp()], 1)),
    ):
        of = objective(gp, x, targets, layout(gp, x, inducing, block, neighbours))
        theta = of.parameters.values()
        wanted = differences(of, theta)
        assert numpy.abs(of(theta).gradient - wanted).max() <= 1e-6 * (1.0 + numpy.abs(wanted).max())
