"""Posterior functions of kernels without random features have the posterior's law, eqs. (M-255) and (M-256)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.inference.predict.growing_draws import GrowingDraws

F64 = torch.float64
K = fgp.kernels
COUNT = 4000  # functions: a variance has a standard error of sqrt(2 / COUNT) of itself


def brownian() -> K.Kernel:
    return K.Custom(lambda a, b: torch.minimum(a, b).sum())


def rough(columns: int) -> K.Kernel:
    return K.Custom(lambda a, b: torch.exp(-(a - b).abs().sum()), columns=columns)


def smooth(columns: int) -> K.Kernel:
    return K.Custom(lambda a, b: torch.exp(-(a - b).square().sum() / 2), columns=columns)


class Stretched(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square() + x


def table(n: int, columns: int, seed: int = 0) -> Tensor:
    return 4.0 * torch.rand(n, columns, generator=torch.Generator().manual_seed(seed), dtype=F64)


def posterior(
    kernel: K.Kernel, n: int, columns: int, noise: float, outputs: int | None = None, **how: Any
) -> fgp.Posterior:
    x = table(n, columns)
    y = torch.sin(2.0 * x[:, 0])
    likelihood = fgp.likelihoods.Gaussian(noise)
    gp = fgp.GP(kernel, fgp.means.Zero(), likelihood, outputs=outputs)
    return gp.condition(x, y if outputs is None else torch.stack([y, -y], -1), **how)


CASES: dict[str, tuple[Callable[[], K.Kernel], int, int, float, dict[str, Any]]] = {
    "Brownian": (brownian, 40, 1, 0.01, {}),
    "small noise": (brownian, 20, 1, 1e-3, {}),
    "no noise": (brownian, 12, 1, 0.0, {}),
    "scaled": (lambda: 3.0 * brownian(), 20, 1, 1e-3, {}),
    "sum": (lambda: K.Linear() + brownian(), 20, 1, 1e-3, {}),
    "product": (lambda: K.RBF() * brownian() + 0.5, 20, 1, 1e-3, {}),
    "warped": (lambda: K.Warped(Stretched(), brownian()), 20, 1, 1e-3, {}),
    "four columns": (lambda: rough(4), 60, 4, 1e-3, {}),
    "smooth": (lambda: smooth(1), 60, 1, 1e-3, {}),
    "smooth, hardly any noise": (lambda: smooth(2), 60, 2, 1e-6, {}),
    "outputs": (brownian, 20, 1, 1e-3, {"outputs": 2}),
    "solves": (brownian, 60, 1, 0.01, {"solver": "cg", "tolerance": 1e-6}),
    "full-scale": (brownian, 120, 1, 0.01, {"approximation": "full_scale", "inducing": 12, "neighbours": 8}),
    "sparse": (brownian, 120, 1, 0.01, {"approximation": "sparse", "inducing": 12}),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_asked_twice_are_jointly_distributed_as_the_posterior(name: str) -> None:
    """Mean and variance of each point, and covariances between points asked for first and later."""
    make, n, columns, noise, how = CASES[name]
    post = posterior(make(), n, columns, noise, **how)
    points = table(9, columns, seed=5)
    f, p = post.paths(COUNT, seed=0), post.predict(points)
    first = f(points[:4])
    values = torch.cat([first, f(points[4:])], dim=1)
    assert f.prior_error == 0.0
    deviations = (values - p.mean) / p.variance.sqrt()
    assert (deviations.mean(0).abs() < 4.0 / COUNT**0.5).all()
    assert ((deviations.var(0) - 1.0).abs() < 4.0 * (2.0 / COUNT) ** 0.5).all()
    again = f(points.flip(0)).flip(1)
    assert float(((again - values) / p.variance.sqrt()).abs().max()) < 1e-5
    if values.dim() == 2:
        joint = p.covariance()
        scale = joint.diagonal().sqrt()
        wanted = joint / scale / scale.unsqueeze(-1)
        error = (deviations.mT @ deviations / COUNT - wanted).abs()
        assert (error < 4.5 * ((1.0 + wanted.square()) / COUNT).sqrt()).all()


@pytest.mark.parametrize("name", K.REGISTRY)
@pytest.mark.parametrize("partner", ["alone", "sum", "product"])
def test_every_kernel_of_the_registry(name: str, partner: str) -> None:
    """Alone, by features where it has them, and with a Custom."""
    row = K.REGISTRY[name]
    for kernel in row.examples(2)[:1]:
        x, points = table(15, 2), table(5, 2, seed=5)
        if row.inputs == "codes":
            x, points = x.floor().clamp(0, 2), points.floor().clamp(0, 2)
        whole = {"alone": kernel, "sum": kernel + rough(2), "product": kernel * rough(2)}[partner]
        gp = fgp.GP(whole, fgp.means.Zero(), fgp.likelihoods.Gaussian(0.05))
        post = gp.condition(x, torch.sin(x.sum(1)))
        ratio = post.paths(1000, seed=0)(points).var(0) / post.predict(points).variance
        assert ((ratio - 1.0).abs() < 4.0 * (2.0 / 1000) ** 0.5 + 0.03 * (partner == "alone")).all()


def test_slopes_are_those_of_the_functions() -> None:
    """(M-256): finite differences of values that are drawn later, and their law."""
    post = posterior(smooth(2), 12, 2, 0.01)
    f, points = post.paths(200, seed=1), table(3, 2, seed=5).requires_grad_()
    values = f(points)
    slopes = torch.stack([torch.autograd.grad(one.sum(), points, retain_graph=True)[0] for one in values])
    h = 1e-2 * torch.eye(2, dtype=F64)
    with torch.no_grad():
        found = torch.stack([(f(points + h[j]) - f(points - h[j])) / 2e-2 for j in range(2)], -1)
    assert float((slopes - found).abs().max()) < 0.02 * float(found.abs().max())
    apart = torch.cat([points.detach() + h[0], points.detach() - h[0]])
    joint = post.predict(apart).covariance()
    variance = (joint[:3, :3] + joint[3:, 3:] - joint[:3, 3:] - joint[3:, :3]).diagonal() / 2e-2**2
    assert ((slopes[..., 0].var(0) / variance - 1.0).abs() < 4.0 * (2.0 / 200) ** 0.5).all()


def test_differentiable_in_parameters() -> None:
    gp = fgp.GP(K.Custom(lambda a, b, s: torch.exp(-s * (a - b).abs().sum()), columns=1, s=0.7))
    x, points, raw = table(6, 1), table(3, 1, seed=5), next(gp.kernel.parameters())

    def value() -> Tensor:
        return gp.condition(x, torch.sin(x[:, 0]), differentiable=True).paths(2, seed=1)(points).square().sum()

    (gradient,) = torch.autograd.grad(value(), raw)
    with torch.no_grad():
        raw.add_(1e-5)
        above = value()
        raw.sub_(2e-5)
        below = value()
    assert float(gradient) == pytest.approx(float(above - below) / 2e-5, rel=1e-5)


def test_inside_a_transform_nothing_is_drawn() -> None:
    f, points = posterior(brownian(), 20, 1, 0.01).paths(3, seed=1), table(4, 1, seed=5)
    mapped = torch.func.vmap(lambda x: f(x.unsqueeze(0)).squeeze(-1), out_dims=-1)
    with pytest.raises(DomainError, match=r"no value at yet.*call the functions with these points before"):
        mapped(points)
    values = f(points)
    torch.testing.assert_close(mapped(points), values)
    slope = torch.func.grad(lambda x: f(x).sum())(points)
    inside = points.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(f(inside).sum(), inside)[0].shape, slope.shape)


def test_more_points_than_there_is_room_for_are_refused() -> None:
    x = table(40, 1)
    draws = GrowingDraws(fgp.GP(brownian()), x, torch.Size(), 2, torch.Generator().manual_seed(0), 24 * 30**2)
    draws(x[:30])
    with pytest.raises(MemoryBudgetError, match=r"ask for 30 at most, or use post\.predict") as caught:
        draws(x)
    assert caught.value.needed_bytes > caught.value.available_bytes
    assert draws(x[:30]).shape == (30, 2)
