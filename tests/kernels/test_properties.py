"""Properties that hold for every covariance function, and for any composition of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashgp import kernels
from flashgp.kernels import REGISTRY
from flashgp.pairwise.problem import PairProblem
from kernels.plain_formulas import plain
from pairwise.pair_cases import CASES, EPS, ONE_CASE_EACH, REFERENCE, TORCH, Case, pulled, relative_error

f64 = torch.float64


def dense(kernel: kernels.Kernel, x: Tensor, z: Tensor | None = None) -> Tensor:
    cols = None if z is None else kernel.rows(z).detach()
    return TORCH.block(
        PairProblem(kernel.form, [t.detach() for t in kernel.theta()], kernel.rows(x).detach(), cols), dtype=f64
    )


@pytest.mark.parametrize("case", CASES)
def test_positive_semidefinite_and_symmetric(case: Case) -> None:
    """The smallest eigenvalue is not below -n eps times the largest, repeated rows included; k(x, x') = k(x', x)."""
    kernel, x = case.kernel, case.points(24, 1)
    x[5:9] = x[0]
    K = dense(kernel, x)
    eigenvalues = torch.linalg.eigvalsh(K)
    assert eigenvalues[0] >= -24 * EPS * eigenvalues[-1]
    assert relative_error(K, K.mT.contiguous()) <= 20 * EPS
    z = case.points(7, 2)
    assert relative_error(dense(kernel, x, z), dense(kernel, z, x).mT.contiguous()) <= 20 * EPS


TRANSLATED = ["SquaredExponential", "Matern", "RationalQuadratic", "Periodic", "Cosine", "Categorical", "Constant"]


@pytest.mark.parametrize("case", [p for p in CASES if p.values[0].name in TRANSLATED])  # type: ignore[union-attr]
def test_stationary_functions_do_not_see_a_translation(case: Case) -> None:
    """A shift by 16 that rounds nothing changes nothing but the rounding of angles; and k(x, x) = 1."""
    x = (case.points(9, 1) * 2**10).round() / 2**10
    kernel = case.kernel
    assert relative_error(dense(kernel, x + 16.0), dense(kernel, x)) <= 2000 * EPS
    if case.name != "Constant":
        assert relative_error(dense(kernel, x).diagonal(), torch.ones(9, dtype=f64)) <= 4 * EPS


LEAVES = ["SquaredExponential", "Matern12", "Matern32", "Matern52", "RationalQuadratic", "Periodic", "Cosine", "Linear",
          "Polynomial", "Constant"]  # fmt: skip
NUMBER = st.floats(0.3, 3.0)


def leaf(name: str, a: float, b: float) -> kernels.Kernel:
    match name:
        case "Matern12" | "Matern32" | "Matern52":
            return kernels.Matern({"1": 0.5, "3": 1.5, "5": 2.5}[name[-2]], [a, b])
        case "RationalQuadratic":
            return kernels.RationalQuadratic(a, b)
        case "Periodic":
            return kernels.Periodic(1.0 + a, b)
        case "Cosine":
            return kernels.Cosine([0.3 * a, 0.3 * b])
        case "Polynomial":
            return kernels.Polynomial(2, a, b / 3)
        case "Linear":
            return kernels.Linear([a, b])
        case "Constant":
            return kernels.Constant(a)
        case _:
            return kernels.SquaredExponential([a, b])


LEAF = st.builds(leaf, st.sampled_from(LEAVES), NUMBER, NUMBER)
# A scaled sum or product of two to three, nested: sums inside products and products inside sums, both orders.
COMPOSED = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, s: s * a, inner, NUMBER),
        st.builds(lambda a, s: a + s, inner, NUMBER),
    ),
    max_leaves=5,
)


@settings(max_examples=60)
@given(COMPOSED, st.integers(0, 1000))
def test_any_composition_is_the_composed_formula(kernel: kernels.Kernel, seed: int) -> None:
    """(M-2), (M-3), (M-4): values, and gradients by every parameter and input, of random compositions."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 2, generator=generator, dtype=f64)
    z = torch.randn(4, 2, generator=generator, dtype=f64)
    weights = torch.randn(5, 4, generator=generator, dtype=f64)
    assert relative_error(dense(kernel, x, z), plain(kernel, x, z).detach()) <= 1e3 * EPS
    inputs = {**dict(kernel.named_parameters()), "x": x.requires_grad_(), "z": z.requires_grad_()}
    wanted = torch.autograd.grad((weights * plain(kernel, x, z)).sum(), list(inputs.values()), allow_unused=True)
    found = pulled(TORCH, kernel, x, z, weights)
    for (name, tensor), gradient in zip(inputs.items(), wanted, strict=True):
        expected = torch.zeros_like(tensor) if gradient is None else gradient
        assert relative_error(found[name], expected) <= 1e4 * EPS, name


@settings(max_examples=30)
@given(COMPOSED)
def test_any_composition_has_the_loops_gradient_at_repeated_rows(kernel: kernels.Kernel) -> None:
    """Where plain torch has 0/0: the tiles give what the loops give, finite, and zero where the slope must vanish."""
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=f64)
    x[1] = x[0]
    weights = torch.ones(4, 4, dtype=f64)
    wanted = pulled(REFERENCE, kernel, x, None, weights)
    for name, found in pulled(TORCH, kernel, x, None, weights).items():
        assert found.isfinite().all()
        assert relative_error(found, wanted[name]) <= 1e4 * EPS, name


def test_order_and_nesting_change_no_value() -> None:
    """A sum inside a product and the same multiplied out; a product inside a sum; both orders."""
    a, b, c = kernels.Matern(1.5, 0.7), kernels.Linear(0.4), kernels.Periodic(1.3)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=f64)
    for one, two in (
        ((a + b) * c, a * c + b * c),
        (c * (a + b), c * a + c * b),
        (a * b + c, c + b * a),
        (2.0 * (a + b), 2.0 * a + 2.0 * b),
        ((a + b) * (a + c), a * a + a * c + b * a + b * c),
    ):
        assert relative_error(dense(one, x), dense(two, x)) <= 20 * EPS
        for gradient_one, gradient_two in zip(
            *(pulled(TORCH, k, x, None, torch.ones(6, 6, dtype=f64))["x"] for k in (one, two)), strict=True
        ):
            assert relative_error(gradient_one, gradient_two) <= 500 * EPS


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_gradients_are_finite_differences(case: Case) -> None:
    """Central differences along one random direction of all raw parameters and the points, h chosen for eps^(1/3)."""
    kernel = case.kernel
    codes = REGISTRY[case.name].inputs == "codes"
    x, z = case.points(5, 1), case.points(4, 2)
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(5, 4, generator=generator, dtype=f64)
    parameters = list(kernel.parameters())
    steps = [torch.randn(p.shape, generator=generator, dtype=f64) for p in parameters]
    step_x = torch.zeros_like(x) if codes else torch.randn(x.shape, generator=generator, dtype=f64)
    found = pulled(TORCH, kernel, x, z, weights)
    slope = (found["x"] * step_x).sum()
    slope = slope + sum((found[n] * s).sum() for (n, _), s in zip(kernel.named_parameters(), steps, strict=True))
    values = []
    h = 1e-5
    for sign in (1, -2):
        with torch.no_grad():
            for p, step in zip(parameters, steps, strict=True):
                p.add_(step, alpha=sign * h)
            x = x + sign * h * step_x
        values.append((weights * dense(kernel, x, z)).sum())
    assert float((values[0] - values[1]) / (2 * h)) == pytest.approx(float(slope), rel=1e-8, abs=1e-8)
