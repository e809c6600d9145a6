"""At and near zero distance: derivatives are the true limits, eq. (M-4), and equal rows have distance exactly 0."""

import math

import mpmath
import pytest
import torch
from torch import Tensor

from flashgp import kernels
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch import differentiable
from pairwise.pair_cases import EPS, ROUTES, TORCH, torch_tiles_by

f64 = torch.float64

# Second derivative by x at zero distance, from the Taylor series of each definition (lengthscale 0.7, others below).
CURVATURES = [
    pytest.param(kernels.SquaredExponential(0.7), -1 / 0.7**2, id="SquaredExponential"),
    pytest.param(kernels.Matern(1.5, 0.7), -3 / 0.7**2, id="Matern32"),
    pytest.param(kernels.Matern(2.5, 0.7), -5 / 3 / 0.7**2, id="Matern52"),
    pytest.param(kernels.RationalQuadratic(0.3, 0.7), -1 / 0.7**2, id="RationalQuadratic"),
    pytest.param(kernels.Periodic(1.3, 0.7), -4 * math.pi**2 / (1.3 * 0.7) ** 2, id="Periodic"),
    pytest.param(kernels.Cosine(0.4), -4 * math.pi**2 * 0.4**2, id="Cosine"),
    pytest.param(
        kernels.Matern(1.5, 0.7) * kernels.Matern(2.5, 0.9) + 2.0 * kernels.SquaredExponential(0.5),
        -3 / 0.7**2 - 5 / 3 / 0.9**2 - 2.0 / 0.5**2,
        id="sum and product",
    ),
]


def scalar(kernel: kernels.Kernel, x: Tensor, z: Tensor) -> Tensor:
    """k(x, z) of two numbers."""
    rows, cols = kernel.rows(x.reshape(1, 1)), kernel.rows(z.reshape(1, 1))
    return differentiable.block(PairProblem(kernel.form, kernel.theta(), rows, cols)).reshape(())


@pytest.mark.parametrize(("kernel", "curvature"), CURVATURES)
@pytest.mark.parametrize("offset", [0.0, 1.7])
def test_slope_and_curvature_are_the_limits(kernel: kernels.Kernel, curvature: float, offset: float) -> None:
    x = torch.tensor(offset, dtype=f64)

    def k(a: Tensor, b: Tensor) -> Tensor:
        return scalar(kernel, a, b)

    (slope, other), ((xx, xz), (zx, zz)) = torch.func.jacrev(k, (0, 1))(x, x), torch.func.hessian(k, (0, 1))(x, x)
    assert abs(slope.item()) <= 200 * EPS
    assert abs(other.item()) <= 200 * EPS
    for found, sign in ((xx, 1), (zz, 1), (xz, -1), (zx, -1)):  # a function of x - z
        assert found.item() == pytest.approx(sign * curvature, rel=500 * EPS)


def test_matern_one_half_has_slope_zero_at_its_kink() -> None:
    """The one 1/r that stays counts as 0, so that the gradient of repeated rows is finite and symmetric."""
    x = torch.tensor([[1.0], [1.0]], dtype=f64)
    kernel = kernels.Matern(0.5, 0.7)
    assert program_of(kernel.form).bounded_slope == {0: False}
    found = TORCH.block_gradient(PairProblem(kernel.form, [], kernel.rows(x).detach()), torch.ones(2, 2, dtype=f64))
    assert found.rows[0] is not None
    assert torch.equal(found.rows[0], torch.zeros(2, 1, dtype=f64))
    assert torch.func.hessian(lambda a: scalar(kernel, a, x[0, 0]))(x[0, 0]).item() == 0.0


SLOPES = {
    "Matern32": (kernels.Matern(1.5), lambda r: (1 + mpmath.sqrt(3) * r) * mpmath.exp(-mpmath.sqrt(3) * r)),
    "Matern52": (
        kernels.Matern(2.5),
        lambda r: (1 + mpmath.sqrt(5) * r + mpmath.mpf(5) / 3 * r**2) * mpmath.exp(-mpmath.sqrt(5) * r),
    ),
    "Matern12": (kernels.Matern(0.5), lambda r: mpmath.exp(-r)),
    "RationalQuadratic": (
        kernels.RationalQuadratic(0.3),
        lambda r: (1 + r**2 / mpmath.mpf("0.6")) ** mpmath.mpf("-0.3"),
    ),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_near_zero_have_all_their_digits(name: str) -> None:
    """Against differences in 400 digits: no 1/r is left that would cancel in floating point."""
    kernel, formula = SLOPES[name]
    theta = [t.detach() for t in kernel.theta()]
    with mpmath.workdps(400):
        for r in (1e-100, 1e-12, 1e-8, 1e-3, 0.1, 1.0, 7.0):
            x, z = torch.tensor([[r]], dtype=f64), torch.zeros(1, 1, dtype=f64)
            found = TORCH.block_gradient(
                PairProblem(kernel.form, theta, kernel.rows(x).detach(), kernel.rows(z).detach()),
                torch.ones(1, 1, dtype=f64),
            )
            assert found.rows[0] is not None
            wanted = float(mpmath.diff(formula, mpmath.mpf(r), h=mpmath.mpf(10) ** -150))
            assert float(found.rows[0]) == pytest.approx(wanted, rel=20 * EPS * max(1.0, r)), r


SMOOTH = [
    pytest.param(kernels.SquaredExponential([0.7, 1.2]), id="SquaredExponential"),
    pytest.param(kernels.Matern(2.5, 0.9), id="Matern52"),
    pytest.param(kernels.RationalQuadratic(1.1, 0.8), id="RationalQuadratic"),
    pytest.param((kernels.Matern(2.5) + kernels.Linear()) * kernels.Periodic(2.0) * 1.3, id="composed"),
]


@pytest.mark.parametrize("kernel", SMOOTH)
def test_first_and_second_derivatives_by_everything(kernel: kernels.Kernel) -> None:
    """Derivatives against finite differences among repeated rows: by x, z and every raw parameter, and of those."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, generator=generator, dtype=f64)
    x[1] = x[0]
    z = torch.stack([x[0], torch.randn(2, generator=generator, dtype=f64)])
    names = [name for name, _ in kernel.named_parameters()]
    raw = [p.detach().clone().requires_grad_() for _, p in kernel.named_parameters()]

    def block(x: Tensor, z: Tensor, *raw: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(kernel, dict(zip(names, raw, strict=True))):
            return differentiable.block(PairProblem(kernel.form, kernel.theta(), kernel.rows(x), kernel.rows(z)))

    inputs = (x.requires_grad_(), z.requires_grad_(), *raw)
    assert torch.autograd.gradcheck(block, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(block, inputs)


STATIONARY = [
    kernels.SquaredExponential,
    lambda s: kernels.Matern(0.5, s),
    lambda s: kernels.Matern(1.5, s),
    lambda s: kernels.Matern(2.5, s),
    lambda s: kernels.RationalQuadratic(0.5, s),
    lambda s: kernels.Periodic(1.0, s),
]


@pytest.mark.parametrize("lengthscale", [1e-8, 1e8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", STATIONARY)
def test_tiny_and_huge_lengthscales_stay_finite(make: object, dtype: torch.dtype, lengthscale: float) -> None:
    kernel = make(lengthscale)  # type: ignore[operator]
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=f64)
    x[1] = x[0]
    theta, rows = [t.detach() for t in kernel.theta()], kernel.rows(x).detach()
    block = TORCH.block(PairProblem(kernel.form, theta, rows), dtype=dtype)
    assert block.isfinite().all()
    assert torch.equal(block.diagonal(), torch.ones(6, dtype=dtype))
    assert block[0, 1] == 1.0
    if lengthscale > 1:
        assert torch.allclose(block, torch.ones(6, 6, dtype=dtype))
    found = TORCH.block_gradient(PairProblem(kernel.form, theta, rows), torch.ones(6, 6, dtype=dtype))
    assert all(g is None or g.isfinite().all() for g in (*found.rows, *found.theta))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_equal_rows_have_distance_exactly_zero(route: str, dtype: torch.dtype, d: int) -> None:
    """Whichever way distances are formed, eq. (M-22): a covariance of 1 to the last bit, within and between sets."""
    backend = torch_tiles_by(route)
    x = 3.0 + torch.randn(9, d, generator=torch.Generator().manual_seed(d), dtype=f64)
    x[4] = x[1]
    for kernel in (kernels.SquaredExponential(0.37), kernels.Matern(0.5, 0.37), kernels.Matern(2.5, 0.37)):
        rows = kernel.rows(x)
        cols = kernel.rows(x.flip(0))
        block = backend.block(PairProblem(kernel.form, [], rows.detach()), dtype=dtype)
        assert block[1, 4] == block[4, 1] == 1.0
        assert torch.equal(block.diagonal(), torch.ones(9, dtype=dtype))
        between = backend.block(PairProblem(kernel.form, [], rows.detach(), cols.detach()), dtype=dtype)
        assert torch.equal(between.flip(1).diagonal(), torch.ones(9, dtype=dtype))
