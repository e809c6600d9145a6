"""Second derivatives of the log marginal likelihood, eq. (M-130): every mode, route and model; a typed error else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import flashgp as fgp
from flashgp.pairwise.problem import PairProblem
from inference.plain_gp import F64, PlainGP, data, relative
from pairwise.pair_cases import ONE_CASE_EACH, Case

k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods
DIFFERENCES = 1e-6  # relative, of central differences of the gradient


def flat_of(gp: fgp.GP) -> Tensor:
    """All unconstrained values, in one vector."""
    return torch.cat([p.detach().reshape(-1) for p in gp.parameters()])


def by_parameters(
    gp: fgp.GP, x: Tensor, y: Tensor, method: str = "log_marginal_likelihood", **options: Any
) -> Callable[[Tensor], Tensor]:
    """The likelihood as a function of one vector of unconstrained values."""
    shapes = {name: p.shape for name, p in gp.named_parameters()}

    def value(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        theta = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return getattr(gp, method)(x, y, theta=theta, **options)

    return value


def differences(value: Callable[[Tensor], Tensor], at: Tensor, step: float = 2e-4) -> Tensor:
    """The Hessian by central differences of the gradient, of fourth order in the step."""

    def slope(point: Tensor) -> Tensor:
        point = point.detach().requires_grad_()
        (found,) = torch.autograd.grad(value(point) + 0.0 * point.sum(), point)
        return found

    rows = []
    for unit in torch.eye(at.numel(), dtype=F64).reshape(-1, *at.shape):
        near = slope(at + step * unit) - slope(at - step * unit)
        far = slope(at + 2 * step * unit) - slope(at - 2 * step * unit)
        rows.append((8.0 * near - far) / (12.0 * step))
    return torch.stack(rows).reshape(*at.shape, *at.shape)


def agrees(found: Tensor, wanted: Tensor) -> bool:
    """With central differences, whose own rounding is eps times the gradient over the step: 1e-10 here."""
    return bool((found - wanted).abs().max() <= DIFFERENCES * wanted.abs().max() + 1e-10)


def small() -> tuple[fgp.GP, Tensor, Tensor]:
    """A model with everything: ARD, a sum, a product, a linear mean, noise in each row, and rows of equal x."""
    x, y = data(11)
    x[3] = x[0]
    kernel = 1.3 * k.Matern(2.5, torch.tensor([0.7, 1.2])) * k.RationalQuadratic(1.1) + k.Linear(0.3)
    noise = lik.Gaussian(0.1, row_variance=torch.linspace(0.0, 0.2, 11), row_weight=torch.linspace(1.0, 2.0, 11))
    return fgp.GP(kernel, m.Linear(torch.tensor([0.3, -0.2]), 0.1), noise), x, y


def by_autograd(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(value, at)


def twice_by_hand(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(at), at, create_graph=True)
    return torch.stack([torch.autograd.grad(s, at, retain_graph=True)[0] for s in slope])


def by_jvp_of_grad(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return torch.stack([jvp(grad(value), (at,), (unit,))[1] for unit in torch.eye(len(at), dtype=F64)])


def by_dual_numbers(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Forward mode of autograd over its reverse mode."""
    rows = []
    for unit in torch.eye(len(at), dtype=F64):
        with forward_ad.dual_level():
            point = forward_ad.make_dual(at.clone().requires_grad_(), unit)
            (slope,) = torch.autograd.grad(value(point), point, create_graph=True)
            rows.append(forward_ad.unpack_dual(slope).tangent.detach())
    return torch.stack(rows)


MODES = {
    "autograd twice": twice_by_hand,
    "autograd.functional.hessian": by_autograd,
    "func.hessian": lambda value, at: hessian(value)(at),
    "jacrev of jacfwd": lambda value, at: jacrev(jacfwd(value))(at),
    "jacfwd of jacfwd": lambda value, at: jacfwd(jacfwd(value))(at),
    "jacrev of jacrev": lambda value, at: jacrev(jacrev(value))(at),
    "jvp of grad": by_jvp_of_grad,
    "forward mode of autograd": by_dual_numbers,
}


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_every_kernel(case: Case) -> None:
    """By all parameters, with rows of equal x, and for points also by them."""
    x, y = case.points(9, seed=1), data(9)[1]
    x[2] = x[0]
    gp = fgp.GP(case.kernel, m.Constant(0.2), lik.Gaussian(0.3))
    value, at = by_parameters(gp, x, y), flat_of(gp)
    wanted = differences(value, at)
    assert agrees(hessian(value)(at), wanted)
    assert agrees(by_autograd(value, at), wanted)
    if case.name in ("Categorical", "Coregionalization"):
        return
    points = case.points(5, seed=2)

    def of_points(x: Tensor) -> Tensor:
        return gp.log_marginal_likelihood(x, y[:5])

    wanted = differences(of_points, points)
    assert agrees(hessian(of_points)(points), wanted)
    assert agrees(by_autograd(of_points, points), wanted)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_every_mode(mode: Callable[..., Tensor]) -> None:
    gp, x, y = small()
    value, at = by_parameters(gp, x, y, "log_joint"), flat_of(gp)
    plain = torch.autograd.functional.hessian(
        lambda flat: torch.func.functional_call(
            _Plain(gp, x, y),
            {f"gp.{n}": p for n, p in zip(dict(gp.named_parameters()), _pieces(gp, flat), strict=True)},
        ),
        at,
    )
    assert relative(mode(value, at), plain) < 1e-9


class _Plain(torch.nn.Module):
    """The likelihood of `PlainGP`, as a module for functional_call."""

    def __init__(self, gp: fgp.GP, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.gp, self.x, self.y = gp, x, y

    def forward(self) -> Tensor:
        return PlainGP(self.gp, self.x, self.y).log_marginal_likelihood()


def _pieces(gp: fgp.GP, flat: Tensor) -> list[Tensor]:
    parameters = list(gp.parameters())
    parts = flat.split([p.numel() for p in parameters])
    return [part.reshape(p.shape) for part, p in zip(parts, parameters, strict=True)]


@pytest.mark.parametrize("mode", ["autograd.functional.hessian", "func.hessian"])
def test_priors_and_their_jacobians(mode: str) -> None:
    x, y = data(9)
    prior = torch.distributions.LogNormal(torch.tensor(0.2, dtype=F64), torch.tensor(0.5, dtype=F64))
    unit = torch.distributions.constraints.interval(0.1, 3.0)
    kernel = fgp.Parameter(1.5, prior=prior) * k.RBF(fgp.Parameter(0.7, unit))
    gp = fgp.GP(kernel, likelihood=lik.Gaussian(0.1))
    value, at = by_parameters(gp, x, y, "log_joint", jacobian=True), flat_of(gp)
    assert agrees(MODES[mode](value, at), differences(value, at))


def test_parameters_points_and_targets_at_once() -> None:
    """The mixed derivatives too."""
    gp, x, y = small()
    x[3] += 0.5
    of_theta, at = by_parameters(gp, x, y), flat_of(gp)
    assert of_theta(at).dim() == 0
    sizes = [at.numel(), x.numel(), y.numel()]

    def value(everything: Tensor) -> Tensor:
        flat, points, targets = everything.split(sizes)
        return by_parameters(gp, points.reshape(x.shape), targets)(flat)

    everything = torch.cat([at, x.reshape(-1), y])
    assert agrees(hessian(value)(everything), differences(value, everything))


def test_a_value_changed_in_between_is_refused() -> None:
    """A gradient with a graph is that of the values then, or an error, never that of others."""
    x, y = data(8)
    gp = fgp.GP(1.7 * k.Matern(2.5), likelihood=lik.Gaussian(0.07))
    value = gp.log_marginal_likelihood(x, y)
    with torch.no_grad():
        next(gp.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(value, list(gp.parameters()), create_graph=True)


@pytest.mark.parametrize(("outputs", "shared", "n"), [(None, False, 200), (2, False, 9), (2, True, 9)])
def test_several_outputs_and_many_rows(outputs: int | None, shared: bool, n: int) -> None:
    x, y = data(n)
    y = y if outputs is None else torch.stack([y, y.roll(1)], -1)
    gp = fgp.GP(1.2 * k.RBF(torch.tensor([0.7, 1.2])), likelihood=lik.Gaussian(0.2, shared=shared), outputs=outputs)
    value, at = by_parameters(gp, x, y), flat_of(gp)
    wanted = differences(value, at)
    for mode in ("autograd.functional.hessian", "func.hessian"):
        assert agrees(MODES[mode](value, at), wanted)


def test_vmap_over_parameters() -> None:
    gp, x, y = small()
    value, at = by_parameters(gp, x, y), flat_of(gp)
    several = torch.stack([at, at + 0.1, at - 0.2])
    assert relative(vmap(value)(several), torch.stack([value(a) for a in several])) < 1e-12
    assert relative(vmap(grad(value))(several), torch.stack([grad(value)(a) for a in several])) < 1e-11
    wanted = torch.stack([by_autograd(value, a) for a in several])
    assert relative(vmap(hessian(value))(several), wanted) < 1e-10
    assert relative(vmap(jacrev(jacfwd(value)))(several), wanted) < 1e-10
    assert relative(vmap(jacfwd(jacfwd(value)))(several), wanted) < 1e-10
    assert relative(hessian(lambda a: vmap(value)(a).sum())(several)[1, :, 1], wanted[1]) < 1e-10


@pytest.mark.parametrize("outer", [jacrev, jacfwd])
def test_third_derivatives_are_refused(outer: Callable[..., Any]) -> None:
    gp, x, y = small()
    with pytest.raises(fgp.DerivativeError, match="third derivatives of the log marginal likelihood") as caught:
        outer(jacfwd(jacrev(by_parameters(gp, x, y))))(flat_of(gp))
    assert (caught.value.order, caught.value.rows) == (3, 11)


@pytest.mark.parametrize("mode", [twice_by_hand, MODES["func.hessian"]])
def test_too_many_rows_are_refused(mode: Callable[..., Tensor]) -> None:
    gp, x, y = small()
    with pytest.raises(fgp.DerivativeError, match=r"second_order_rows=10 rows, got 11; pass") as caught:
        mode(by_parameters(gp, x, y, second_order_rows=10), flat_of(gp))
    assert (caught.value.order, caught.value.rows) == (2, 11)
    mode(by_parameters(gp, x, y, second_order_rows=11), flat_of(gp))
    grad(by_parameters(gp, x, y, second_order_rows=0))(flat_of(gp))  # a gradient alone is not concerned
    with pytest.raises(fgp.DomainError, match="`second_order_rows` must be a whole number"):
        gp.log_marginal_likelihood(x, y, second_order_rows=-1)


@pytest.mark.parametrize("options", [{}, {"outer_jacobian_strategy": "forward-mode"}])
def test_autograds_own_vmap_is_refused(options: dict[str, str]) -> None:
    gp, x, y = small()
    with pytest.raises(fgp.DerivativeError, match="vectorize=True"):
        torch.autograd.functional.hessian(by_parameters(gp, x, y), flat_of(gp), vectorize=True, **options)


def test_both_ways_through_the_pairs_agree() -> None:
    """Kept derivatives of the profile, and sums over portable tiles, eq. (M-110)."""
    from flashgp.foundations.workspace import Workspace
    from flashgp.operators.second_order import second_order

    gp, x, _ = small()
    kernel = gp.kernel
    generator = torch.Generator().manual_seed(0)
    problem = PairProblem(kernel.form, [t.detach() for t in kernel.theta()], kernel.rows(x).detach())
    weights, slope = (torch.randn(11, 11, generator=generator, dtype=F64) for _ in range(2))
    weights, slope = weights + weights.mT, slope + slope.mT
    directions = [torch.randn(t.shape, generator=generator, dtype=F64) for t in problem.tensors]
    for given in (directions, [None, *directions[1:]], [None] * len(directions)):
        (one, pull), (two, other) = (
            second_order(problem, weights, Workspace(), tiles).along(given) for tiles in (24, 0)
        )
        assert relative(one, two) < 1e-12
        for a, b in zip(pull(slope), other(slope), strict=True):
            assert relative(torch.zeros_like(b) if a is None else a, b) < 1e-11


def test_clusters_far_apart() -> None:
    """Rows 1e4 lengthscales away share no covariance: the Hessian is the sum of both, to the digits of each."""
    x, y = data(6)
    gp = fgp.GP(1.3 * k.RBF(torch.tensor([0.7, 1.2])), m.Zero(), lik.Gaussian(0.2))
    apart = torch.cat([x, x + 2.0**14])
    value = lambda x, y: by_parameters(gp, x, y)  # noqa: E731
    wanted = by_autograd(value(apart[:6], y), flat_of(gp)) + by_autograd(value(apart[6:], 2.0 * y), flat_of(gp))
    found = by_autograd(value(apart, torch.cat([y, 2.0 * y])), flat_of(gp))
    assert relative(found, wanted) < 1e-8


def test_conflicting_rows_are_refused_inside_transforms() -> None:
    """Noise-free rows of equal x that disagree: no jitter makes them agree, whoever looks."""
    x, y = data(6)
    x[1] = x[0]
    gp = fgp.GP(1.3 * k.RBF(0.7), likelihood=lik.Gaussian(None))
    value, at = by_parameters(gp, x, y), flat_of(gp)
    several = vmap(value)
    for function in (value, grad(value), hessian(value), several):
        with pytest.raises(fgp.NotPositiveDefiniteError, match="rows repeat with different targets"):
            function(at if function is not several else torch.stack([at, at + 0.1]))
