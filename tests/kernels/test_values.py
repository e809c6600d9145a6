"""Values and gradients against the definitions written a second time, and against scikit-learn's kernels."""

import numpy as np
import pytest
import torch

from flashgp import kernels
from flashgp.pairwise.problem import PairProblem
from kernels.plain_formulas import plain
from pairwise.pair_cases import CASES, EPS, REFERENCE, TORCH, Case, pulled, relative_error

VALUE_TOLERANCE = 50 * EPS
GRADIENT_TOLERANCE = 1000 * EPS  # autograd of the plain formula has its own rounding, about as large


def dense(
    kernel: kernels.Kernel, x: torch.Tensor, z: torch.Tensor | None, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    cols = None if z is None else kernel.rows(z).detach()
    theta = [t.detach() for t in kernel.theta()]
    return TORCH.block(PairProblem(kernel.form, theta, kernel.rows(x).detach(), cols), dtype=torch.float64)


@pytest.mark.parametrize("case", CASES)
def test_values_are_the_definition(case: Case) -> None:
    """The form (M-1), sums and products (M-2), scaling (M-3) and every formula: (M-5), (M-6), (M-7), (M-8), (M-9),
    (M-10), (M-11), (M-12), (M-13), (M-14), (M-15), (M-16), (M-17)."""
    kernel, x, z = case.kernel, case.points(7, 1), case.points(4, 2)
    z[0] = x[0]
    for cols in (z, None):
        wanted = plain(kernel, x, x if cols is None else cols).detach()
        assert relative_error(dense(kernel, x, cols), wanted) <= VALUE_TOLERANCE
    diagonal = TORCH.diagonal(
        PairProblem(kernel.form, [t.detach() for t in kernel.theta()], kernel.rows(x).detach()), dtype=torch.float64
    )
    assert relative_error(diagonal, plain(kernel, x, x).detach().diagonal()) <= VALUE_TOLERANCE


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", [TORCH, REFERENCE], ids=["torch", "reference"])
def test_gradients_are_those_of_the_definition(case: Case, backend: object) -> None:
    """One-pass gradients by all parameters and inputs, eqs. (M-21), (M-24), (M-25), (M-26), against autograd."""
    kernel, x, z = case.kernel, case.points(5, 1).requires_grad_(), case.points(4, 2).requires_grad_()
    weights = torch.randn(5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    inputs = {**dict(kernel.named_parameters()), "x": x, "z": z}
    f = (weights * plain(kernel, x, z)).sum()
    wanted = torch.autograd.grad(f, list(inputs.values()), allow_unused=True)
    found = pulled(backend, kernel, x, z, weights)  # type: ignore[arg-type]
    for (name, tensor), gradient in zip(inputs.items(), wanted, strict=True):
        expected = torch.zeros_like(tensor) if gradient is None else gradient
        assert relative_error(found[name], expected) <= GRADIENT_TOLERANCE, name


def scikit_learn_pairs() -> list[tuple[str, kernels.Kernel, object]]:
    from sklearn.gaussian_process import kernels as peers

    lengthscales = torch.tensor([0.7, 1.1, 2.3], dtype=torch.float64)
    ls = lengthscales.numpy()
    return [
        ("RBF", kernels.RBF(lengthscales), peers.RBF(ls)),
        *((f"Matern {nu}", kernels.Matern(nu, lengthscales), peers.Matern(ls, nu=nu)) for nu in (0.5, 1.5, 2.5)),
        ("RationalQuadratic", kernels.RationalQuadratic(0.8, 1.3), peers.RationalQuadratic(1.3, 0.8)),
        ("DotProduct", kernels.Linear() + 0.49, peers.DotProduct(0.7)),
        (
            "product",
            2.0 * kernels.RBF(1.5) * kernels.Linear(),
            peers.ConstantKernel(2.0) * peers.RBF(1.5) * peers.DotProduct(0.0),
        ),
        ("power", kernels.Polynomial(3, 0.49), peers.DotProduct(0.7) ** 3),
    ]


def test_values_are_scikit_learns() -> None:
    """(M-5) to (M-9), (M-12), (M-13) as another library computes them."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(20, 3)), rng.normal(size=(11, 3))
    z[0] = x[0]
    for name, ours, peer in scikit_learn_pairs():
        wanted = torch.from_numpy(peer(x, z))  # type: ignore[operator]
        assert relative_error(dense(ours, torch.from_numpy(x), torch.from_numpy(z)), wanted) <= 1e-12, name


def test_periodic_is_scikit_learns_in_one_column() -> None:
    """(M-10); scikit-learn's takes the sine of the distance, which is the same in one column only."""
    from sklearn.gaussian_process.kernels import ExpSineSquared

    x = np.random.default_rng(0).normal(size=(20, 1))
    wanted = torch.from_numpy(ExpSineSquared(length_scale=0.9, periodicity=2.3)(x))
    assert relative_error(dense(kernels.Periodic(2.3, 0.9), torch.from_numpy(x), None), wanted) <= 1e-12


def test_large_mixture_is_the_squared_exponential() -> None:
    """(M-9) tends to (M-5): the error is q²/(8 alpha), and nothing is lost to 1 + tiny."""
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    difference = dense(kernels.RationalQuadratic(1e9), x, None) - dense(kernels.SquaredExponential(), x, None)
    q = (x - x.mT) ** 2
    assert torch.allclose(difference, q**2 / 8e9 * torch.exp(-q / 2), rtol=1e-5, atol=4 * EPS)


def test_a_category_that_was_not_seen_differs_from_all() -> None:
    """(M-15): a new code is one more category."""
    kernel = kernels.Categorical(0.8, active_dims=[1])
    seen = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    new = torch.tensor([[5.0, 17.0], [5.0, -3.0], [5.0, 17.0]], dtype=torch.float64)
    between = dense(kernel, new, seen)
    assert torch.allclose(between, torch.full((3, 3), -1 / 0.8, dtype=torch.float64).exp(), rtol=4 * EPS)
    assert dense(kernel, new, None)[0].tolist() == pytest.approx([1.0, np.exp(-1 / 0.8), 1.0])


def test_rows_are_double_whatever_x_is() -> None:
    """Lengthscales divide in float64, shared or one per column: float32 points lose nothing more than they lost."""
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    for kernel in (kernels.SquaredExponential(0.3), kernels.SquaredExponential([0.3, 0.3]), kernels.Periodic(0.7),
                   kernels.Cosine(0.3), kernels.Linear(0.3)):  # fmt: skip
        (feature,) = kernel.rows(x).features
        assert feature.dtype == torch.float64
        assert torch.equal(feature, kernel.rows(x.double()).features[0])
