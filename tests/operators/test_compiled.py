"""torch.compile(fullgraph=True) of a product with its backward: two shapes, no recompile per value."""

from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

import flashgp as fgp
from flashgp.planner.products import ProductPlan

F64 = torch.float64


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("rectangular", [False, True])
def test_value_and_gradients_in_two_shapes(rectangular: bool) -> None:
    kernel = 1.5 * fgp.kernels.Matern(1.5, torch.tensor([0.7, 1.1])) + fgp.kernels.Linear(0.3)

    def total(x: Tensor, z: Tensor | None, v: Tensor) -> Tensor:
        return (kernel.operator(x, z) @ v).sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    for n, m in ((7, 5), (11, 4)):
        x = numbers(n, 2).requires_grad_()
        z = numbers(m, 2, seed=1).requires_grad_() if rectangular else None
        v = numbers(m if rectangular else n, 3, seed=2).requires_grad_()
        leaves = [t for t in (x, z, v, *kernel.parameters()) if t is not None]
        wanted = torch.autograd.grad(total(x, z, v), leaves)
        found = torch.autograd.grad(compiled(x, z, v), leaves)
        for one, two in zip(found, wanted, strict=True):
            assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)


def test_no_recompile_per_value() -> None:
    kernel = fgp.kernels.RBF(1.0)
    count = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x, v: (kernel.operator(x) @ v).sum(), fullgraph=True, backend=count)
    for step in range(4):
        x, v = numbers(6, 2, seed=step), numbers(6, seed=step + 9)
        with torch.no_grad():
            for parameter in kernel.parameters():
                parameter.fill_(0.1 * step)
        assert torch.allclose(compiled(x, v), (kernel.operator(x) @ v).sum(), rtol=1e-13)
    assert count.frame_count == 1


def test_the_operation_keeps_torchs_contract() -> None:
    kernel = fgp.kernels.RBF(1.0)
    raws = [p.detach().clone().requires_grad_() for p in kernel.parameters()]
    x, v = numbers(5, 2).requires_grad_(), numbers(5, 3).requires_grad_()
    torch.library.opcheck(torch.ops.flashgp.product.default, (kernel.token, x, None, v, raws, "", False, False))


def test_a_plan_is_run_inside() -> None:
    """The compiled product follows the plan it is given, and another plan when it is given that."""
    kernel = fgp.kernels.RBF(0.8)
    x, v = numbers(40, 2).requires_grad_(), numbers(40, 3, seed=1)

    def total(plan: ProductPlan | None) -> Tensor:
        return (kernel.operator(x, plan=plan) @ v).square().sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    for route in ("dense", "recomputed"):
        plan = kernel.operator(x).plan(3, route=route, backend="torch")
        wanted = torch.autograd.grad(total(plan), x)[0]
        found = torch.autograd.grad(compiled(plan), x)[0]
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
    wrong = kernel.operator(x).plan(2)
    with pytest.raises(Exception, match="`plan` is for n, m, symmetric"):
        compiled(wrong)


def test_products_from_the_left_are_those_of_the_transpose() -> None:
    """K between two sets of points is not symmetric: V K is not K V."""
    kernel = fgp.kernels.RBF(0.7)
    for m, multiply in ((6, torch.matmul), (4, lambda v, k: v @ k)):
        x, z = numbers(6, 2), numbers(m, 2, seed=1)
        for v in (numbers(6, seed=2), numbers(3, 6, seed=3), numbers(2, 5, 6, seed=4)):
            leaves = [t.clone().requires_grad_() for t in (x, z, v)]
            product = torch.compile(
                lambda x, z, v: multiply(v, kernel.operator(x, z)),  # noqa: B023
                fullgraph=True,
                backend="aot_eager",
            )
            wanted, found = leaves[-1] @ kernel.operator(*leaves[:2]), product(*leaves)
            assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
            slopes = [torch.autograd.grad(out.square().sum(), leaves) for out in (found, wanted)]
            assert all(torch.allclose(one, two, rtol=1e-11, atol=1e-11) for one, two in zip(*slopes, strict=True))


@pytest.mark.parametrize("rectangular", [False, True])
def test_the_transpose_multiplies_from_both_sides(rectangular: bool) -> None:
    kernel = fgp.kernels.RBF(0.7)
    x, z = numbers(6, 2), numbers(4, 2, seed=1) if rectangular else None
    u, v = numbers(6, 3, seed=2), numbers(5, 4 if rectangular else 6, seed=3)

    def both(operator: Any) -> tuple[Tensor, Tensor, Tensor]:
        return operator.T @ u, v @ operator.mT, operator.T.T @ (operator.T @ u)

    found = torch.compile(lambda x, z: both(kernel.operator(x, z)), fullgraph=True, backend="aot_eager")(x, z)
    for one, two in zip(found, both(kernel.operator(x, z)), strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)


def test_products_that_look_alike_are_refused_and_matmul_tells_them_apart() -> None:
    """K @ V and V @ K reach the operator as the same call: where both fit and differ, neither is guessed."""
    kernel, x, z, square = fgp.kernels.RBF(0.7), numbers(6, 2), numbers(6, 2, seed=1), numbers(6, 6, seed=2)

    def compiled(multiply: Any, between: Tensor | None) -> Any:
        function = lambda v: multiply(kernel.operator(x, between), v)  # noqa: E731
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    for between, v in ((None, square), (z, square), (z, square[0])):
        for multiply in (lambda k, v: k @ v, lambda k, v: v @ k):
            with pytest.raises(Exception, match=r"look alike|TypeError|[Uu]nsupported"):
                compiled(multiply, between)(v)
        dense = kernel.operator(x, between).to_dense()
        assert torch.allclose(compiled(torch.matmul, between)(v), dense @ v)
        assert torch.allclose(compiled(lambda k, v: torch.matmul(v, k), between)(v), v @ dense)
    symmetric = kernel.operator(x).to_dense()
    assert torch.allclose(compiled(lambda k, v: v @ k, None)(square[0]), symmetric @ square[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_function_of_two_points_is_traced_inside(backend: str) -> None:
    """Its rows are evaluated by vmap, which the compiler leaves out of what an operation may dispatch to."""
    kernel = fgp.kernels.Custom(
        lambda a, b, scale: torch.exp(-((a - b) / scale).square().sum()),
        scale=fgp.Parameter(0.8, torch.distributions.constraints.positive),
    )
    leaves = [numbers(6, 2).requires_grad_(), numbers(6, 3, seed=1).requires_grad_()]
    torch.compiler.reset()
    found = torch.compile(lambda x, v: kernel.operator(x) @ v, fullgraph=True, backend=backend)(*leaves)
    wanted = kernel.operator(leaves[0]) @ leaves[1]
    assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
    slopes = [torch.autograd.grad(out.square().sum(), [*leaves, *kernel.parameters()]) for out in (found, wanted)]
    assert all(torch.allclose(one, two, rtol=1e-11, atol=1e-11) for one, two in zip(*slopes, strict=True))
