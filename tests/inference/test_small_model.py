"""The small model in NumPy against the general path, for every kernel that states small features: (M-33), (M-34)."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.determinism import deterministically
from flashgp.inference.exact.small import SmallModel
from flashgp.kernels import REGISTRY, Kernel

D = 3
SERVED = {"SquaredExponential", "Matern", "RationalQuadratic", "Linear", "Polynomial", "Constant", "Periodic", "Cosine"}


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    x[n // 2] = x[0]  # a repeated row: zero distance off the diagonal
    return x, torch.randn(n, 2, generator=generator, dtype=torch.float64)


def examples() -> list[tuple[str, Kernel]]:
    found = [(name, k) for name in sorted(SERVED) for k in REGISTRY[name].examples(D)]
    k = fgp.kernels
    shared = fgp.Parameter(torch.tensor([0.5, 0.8, 1.1], dtype=torch.float64))
    bounded = fgp.Parameter(0.7, torch.distributions.constraints.interval(0.1, 2.0))
    floor = fgp.Parameter(torch.tensor([0.9]), torch.distributions.constraints.greater_than(0.05))
    composed = [
        1.3 * k.Matern(2.5, shared) * k.RBF(shared) + k.Linear(0.2, active_dims=[1]) + 0.3,
        bounded * k.RationalQuadratic(1.4, floor) + k.Polynomial(2, 0.5, 0.1, active_dims=[0, 2]),
    ]
    return found + [(f"composed {i}", kernel) for i, kernel in enumerate(composed)]


@pytest.mark.parametrize(("name", "kernel"), examples(), ids=[name for name, _ in examples()])
@pytest.mark.parametrize("case", ["plain", "outputs", "weights", "zero mean, noise known"])
def test_equals_the_general_path(name: str, kernel: Kernel, case: str) -> None:
    x, y = rows(17)
    weights = torch.linspace(0.5, 2.0, 17, dtype=torch.float64)
    likelihood, mean, outputs = fgp.likelihoods.Gaussian(0.3), fgp.means.Constant(0.4), None
    if case == "outputs":
        mean, outputs = fgp.means.Constant([0.1, -0.3], outputs=2), 2
        likelihood = fgp.likelihoods.Gaussian(0.3, shared=True)
    elif case == "weights":
        likelihood = fgp.likelihoods.Gaussian(0.3, row_variance=0.1 * weights, row_weight=weights)
    elif case != "plain":
        likelihood, mean = fgp.likelihoods.Gaussian(None, row_variance=weights), fgp.means.Zero()
    gp = fgp.GP(kernel, mean, likelihood, outputs)
    y = y if outputs else y[:, 0]
    small = SmallModel.of(gp, x, y)
    assert small is not None
    found = gp.log_marginal_likelihood(x, y)
    parameters = list(gp.parameters())
    gradients = torch.autograd.grad(found, parameters)
    with deterministically():  # leaves NumPy out
        expected = gp.log_marginal_likelihood(x, y)
    wanted = torch.autograd.grad(expected, parameters)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11 * float(expected.detach().abs()))
