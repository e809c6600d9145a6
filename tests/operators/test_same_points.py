"""`k.operator(x, x)` is `k.operator(x)`: symmetric, at its speed, and a gradient by x counts both roles."""

import numpy
import pytest
import torch
from torch import Tensor
from torch.func import jvp

import flashgp as fgp

F64 = torch.float64
KERNEL = 1.3 * fgp.kernels.Matern(2.5, torch.tensor([0.7, 1.1])) + fgp.kernels.Linear(0.2)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_the_same_tensor_twice_is_symmetric() -> None:
    x = numbers(7, 2)
    operator = KERNEL.operator(x, x)
    assert operator.symmetric
    assert torch.equal(operator.to_dense(), KERNEL.operator(x).to_dense())
    assert torch.equal(operator.diagonal(), KERNEL.operator(x).diagonal())
    assert KERNEL(x, x).plan().symmetric


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda x: x, lambda x: x.view(7, 2)),
        (lambda x: x[1:4], lambda x: x[1:4]),
        (lambda x: x.numpy(), lambda x: x.numpy()),
        (lambda x: x[:, :1].expand(7, 2), lambda x: x[:, :1].expand(7, 2)),
    ],
    ids=["views", "parts", "arrays", "expanded"],
)
def test_the_same_numbers_in_memory_are_the_same_points(one: object, two: object) -> None:
    x = numbers(7, 2)
    assert KERNEL.operator(one(x), two(x)).symmetric


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda x: x, lambda x: x.clone()),
        (lambda x: x[:4], lambda x: x[1:5]),
        (lambda x: x, lambda x: x[:6]),
        (lambda x: x[:2], lambda x: x[:2].mT),
        (lambda x: x, lambda x: x.float()),
        (lambda x: x, lambda x: torch._neg_view(x)),
        (lambda x: x.numpy(), lambda x: numpy.flip(x.numpy(), 0)),
        (lambda x: x.to("meta"), lambda x: x.to("meta")),
    ],
    ids=["copy", "shifted", "shorter", "transposed", "dtype", "negated", "flipped", "meta"],
)
def test_other_points_are_others(one: object, two: object) -> None:
    x = numbers(7, 2)
    assert not fgp.kernels.RBF().operator(one(x), two(x)).symmetric


def test_a_gradient_counts_both_roles() -> None:
    x, right, left = numbers(7, 2).requires_grad_(), numbers(7, 3, seed=1), numbers(7, 3, seed=2)
    wanted = torch.autograd.grad((left * (KERNEL.operator(x, x + 0.0) @ right)).sum(), x)[0]
    assert KERNEL.operator(x, x).symmetric
    for product in (KERNEL.operator(x, x) @ right, KERNEL.operator(x, x).to_dense() @ right):
        found = torch.autograd.grad((left * product).sum(), x)[0]
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_side_without_gradient_gets_none() -> None:
    """x beside x.detach() is the same memory in two roles, of which autograd follows one."""
    x, right, left = numbers(7, 2).requires_grad_(), numbers(7, 3, seed=1), numbers(7, 3, seed=2)
    wanted = torch.autograd.grad((left * (KERNEL.operator(x, numbers(7, 2)) @ right)).sum(), x)[0]
    found = torch.autograd.grad((left * (KERNEL.operator(x, x.detach()) @ right)).sum(), x)[0]
    assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
    tangent = numbers(7, 2, seed=3)
    _, moved = jvp(lambda a: KERNEL.operator(a, numbers(7, 2)) @ right, (x.detach(),), (tangent,))
    same = x.detach()
    assert torch.allclose(jvp(lambda a: KERNEL.operator(a, same) @ right, (same,), (tangent,))[1], moved, rtol=1e-12)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(same, tangent)
        product = KERNEL.operator(dual, same) @ right
        assert torch.allclose(torch.autograd.forward_ad.unpack_dual(product).tangent, moved, rtol=1e-12)
