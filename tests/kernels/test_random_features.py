"""Random features have the covariance they are for: in expectation, and exactly where its rank is finite."""

import pytest
import torch
from scipy.special import gammaincinv

from flashgp import kernels
from flashgp.foundations.errors import DomainError
from flashgp.kernels.random_features import gamma_quantile
from kernels.plain_formulas import plain
from pairwise.pair_cases import CASES, Case

F64 = torch.float64
SEEDS = 48
FINITE = ("Cosine", "Linear", "Polynomial", "Constant", "Coregionalization")
WITH_FEATURES = [case for case in CASES if case.values[0].kernel.has_features]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gram(kernel: kernels.Kernel, x: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    found = kernel.features(count, generator(seed))
    assert found is not None
    psi = found(x).detach()
    return psi @ psi.mT


def assert_mean_is(kernel: kernels.Kernel, x: torch.Tensor, wanted: torch.Tensor, count: int = 64) -> None:
    """The mean over seeds within 4.5 standard errors, each entry, and the errors small enough to see a wrong one."""
    grams = torch.stack([gram(kernel, x, count, seed) for seed in range(SEEDS)])
    scale = wanted.diagonal().sqrt()
    error = (grams.mean(0) - wanted).abs() / (scale[:, None] * scale)
    allowed = 4.5 * grams.std(0) / SEEDS**0.5 / (scale[:, None] * scale) + 1e-9
    assert bool((error <= allowed).all()), (error / allowed).max()
    assert float(allowed.median()) < 0.1, "the test must be able to see an error"


@pytest.mark.parametrize("case", [case for case in WITH_FEATURES if case.values[0].d == 3])
def test_the_mean_over_seeds_is_the_covariance(case: Case) -> None:
    """E psi . psi' = k, eqs. (M-90), (M-91), (M-92), (M-93), over the registry."""
    x = case.points(6, 1)
    assert_mean_is(case.kernel, x, plain(case.kernel, x, x).detach())


def test_which_kernels_have_none() -> None:
    assert {case.values[0].name for case in CASES if not case.values[0].kernel.has_features} == {"Custom"}
    custom = kernels.Custom(lambda x, z: torch.exp(-(x - z).abs().sum()))
    for kernel in (custom, custom + kernels.RBF(), 2.0 * custom, kernels.Warped(torch.nn.Identity(), custom)):
        assert not kernel.has_features
        assert kernel.features(8, generator(0)) is None


@pytest.mark.parametrize("case", [case for case in CASES if case.values[0].name in FINITE])
def test_finite_ranks_are_exact(case: Case) -> None:
    x = case.points(6, 1)
    wanted = plain(case.kernel, x, x).detach()
    found = case.kernel.features(64, generator(0))
    assert found is not None
    assert found.exact(x)
    torch.testing.assert_close(gram(case.kernel, x, 64, 0), wanted, rtol=1e-12, atol=1e-12 * float(wanted.max()))


def test_finite_ranks_join_exactly() -> None:
    """Sums, products and scalings of finite ranks are of finite rank, eq. (M-92)."""
    x = torch.randn(5, 2, generator=generator(3), dtype=F64)
    kernel = (0.7 * kernels.Linear(0.3) + 1.5) * kernels.Cosine(0.2) * kernels.Polynomial(2, 0.4)
    found = kernel.features(64, generator(0))
    assert found is not None
    assert found.exact(x)
    torch.testing.assert_close(gram(kernel, x, 64, 0), plain(kernel, x, x).detach(), rtol=1e-12, atol=1e-12)
    mixed = (kernel * kernels.RBF(0.5)).features(64, generator(0))
    assert mixed is not None
    assert not mixed.exact(x)


def test_large_finite_ranks_are_projected() -> None:
    """More monomials than features, and finite factors above 16, become random: right on average, and no larger."""
    x = torch.randn(4, 5, generator=generator(3), dtype=F64)
    for kernel in (kernels.Polynomial(4, 0.5), kernels.Polynomial(3, 0.5) * kernels.RBF(2.0)):
        found = kernel.features(64, generator(0))
        assert found is not None
        assert not found.exact(x)
        assert found(x).shape[-1] <= 64
        grams = torch.stack([gram(kernel, x, 1024, seed) for seed in range(SEEDS)])
        error = (grams.mean(0) - plain(kernel, x, x).detach()).abs()
        assert bool((error <= 4.5 * grams.std(0) / SEEDS**0.5 + 1e-9).all())


def test_equal_factors_have_randomness_of_their_own() -> None:
    """k * k with one kernel object: shared frequencies would give k of twice the distance instead."""
    x = torch.randn(5, 2, generator=generator(3), dtype=F64)
    one = kernels.RBF(1.3)
    assert_mean_is(one * one, x, plain(one * one, x, x).detach())
    assert_mean_is(one + one, x, plain(one + one, x, x).detach())


def test_active_dims_and_batches() -> None:
    x = torch.randn(5, 3, generator=generator(3), dtype=F64)
    lengthscale = torch.tensor([[0.7], [1.9]], dtype=F64)
    batch = torch.tensor([0.5, 2.0], dtype=F64) * kernels.RationalQuadratic(
        torch.tensor([0.6, 3.0], dtype=F64), lengthscale, active_dims=[2, 0]
    )
    found = batch.features(4096, generator(0))
    assert found is not None
    psi = found(x).detach()
    for member, (variance, shape, scale) in enumerate([(0.5, 0.6, 0.7), (2.0, 3.0, 1.9)]):
        single = variance * kernels.RationalQuadratic(shape, scale)
        wanted = plain(single, x[:, [2, 0]], x[:, [2, 0]]).detach()
        assert float((psi[member] @ psi[member].mT - wanted).abs().max()) < 0.1 * variance


def test_randomness_is_frozen() -> None:
    """The same function at every call, whatever the order and number of rows; another for another integer."""
    x = torch.randn(9, 2, generator=generator(3), dtype=F64)
    kernel = kernels.RBF() * kernels.Matern(0.5) + kernels.Linear()
    found = kernel.features(32, generator(5))
    assert found is not None
    whole = found(x)
    torch.testing.assert_close(torch.cat([found(x[:4]), found(x[4:])]), whole, rtol=1e-13, atol=1e-13)
    again, other = kernel.features(32, generator(5)), kernel.features(32, generator(6))
    assert again is not None
    assert other is not None
    assert torch.equal(again(x), whole)
    assert not torch.equal(other(x), whole)
    before = torch.get_rng_state()
    kernel.features(32, generator(1))(x)  # type: ignore[misc]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("case", WITH_FEATURES)
def test_smooth_in_points_and_parameters(case: Case) -> None:
    """Gradients with the randomness fixed, by finite differences."""
    kernel, x = case.kernel, case.points(3, 1)
    found = kernel.features(8, generator(2))
    assert found is not None
    names = [name for name, _ in kernel.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in kernel.parameters()]
    weight = torch.randn(found(x).shape, generator=generator(4), dtype=F64)

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            return (found(points) * weight).sum()

    def value(points: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        named = {f"kernel.{name}": tensor for name, tensor in zip(names, given, strict=True)}
        return torch.func.functional_call(Call(), named, (points,))

    points = x.clone().requires_grad_(kernels.REGISTRY[case.name].inputs != "codes")
    assert torch.autograd.gradcheck(value, (points, *values), rtol=1e-4, atol=1e-6)


def test_sobol_points_have_less_error_than_random_ones() -> None:
    x = torch.randn(40, 2, generator=generator(3), dtype=F64)
    kernel = kernels.RBF(1.0)
    wanted = plain(kernel, x, x).detach()
    error = torch.stack([(gram(kernel, x, 1024, seed) - wanted).square().mean() for seed in range(8)]).mean().sqrt()
    independent = (
        ((1 + plain(kernels.RBF(0.5), x, x).detach() - 2 * wanted**2) / 2 / 512).mean().sqrt()
    )  # var of a cosine
    assert float(error) < 0.7 * float(independent)


def test_gamma_quantiles_and_their_derivative() -> None:
    u = torch.linspace(0.02, 0.98, 7, dtype=F64)
    shape = torch.tensor([[0.3], [1.5], [40.0]], dtype=F64, requires_grad=True)
    wanted = torch.from_numpy(gammaincinv(shape.detach().numpy(), u.numpy()))
    assert torch.equal(gamma_quantile(shape, u).detach(), wanted)
    assert torch.autograd.gradcheck(lambda a: gamma_quantile(a, u), (shape,), rtol=1e-5)


@pytest.mark.parametrize("count", [1, 0, True, 2.5])
def test_a_count_that_is_refused(count: object) -> None:
    with pytest.raises(DomainError, match="`count` must be a whole number, 2 or more"):
        kernels.RBF().features(count, generator(0))  # type: ignore[arg-type]
