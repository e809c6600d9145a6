"""The lazy operator: products, transposes, diagonals and gradients are those of the dense matrix."""

from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.pairwise.torch.tiles import TorchTiles
from inference.plain_gp import F64, data, relative
from kernels.plain_formulas import plain
from operators.operator_cases import operator_with

k = fgp.kernels
KERNELS = {
    "matern": lambda: 1.3 * k.Matern(2.5, torch.tensor([0.7, 1.2])),
    "sum in a product": lambda: (k.Linear(0.5) + 0.3) * k.RBF(1.1),
    "product in a sum": lambda: k.Periodic(1.4, 2.0) * k.RBF(1.3) + k.Polynomial(2, 0.4),
    "tasks": lambda: k.RBF(0.9, active_dims=[0]) * k.Coregionalization(3, 1, active_dims=[1]),
}


@pytest.fixture(params=["matern", "sum in a product", "product in a sum"])
def kernel(request: pytest.FixtureRequest) -> fgp.kernels.Kernel:
    return KERNELS[request.param]()


def points() -> tuple[torch.Tensor, torch.Tensor]:
    return data(7, seed=1)[0], data(5, seed=2)[0]


def test_it_is_the_matrix(kernel: fgp.kernels.Kernel) -> None:
    x, z = points()
    for operator, wanted in ((kernel.operator(x, z), plain(kernel, x, z)), (kernel(x), plain(kernel, x, x))):
        assert operator.shape == wanted.shape
        assert operator.dtype == F64
        assert relative(operator.to_dense(), wanted) < 1e-13
        assert relative(operator.T.to_dense(), wanted.mT) < 1e-13
        assert relative(operator.mT.mT.to_dense(), wanted) < 1e-13
        right = torch.randn(wanted.shape[-1], 3, dtype=F64, generator=torch.Generator().manual_seed(0))
        assert relative(operator @ right, wanted @ right) < 1e-13
        assert relative(operator @ right[:, 0], wanted @ right[:, 0]) < 1e-13
        left = torch.randn(wanted.shape[-2], 2, dtype=F64, generator=torch.Generator().manual_seed(1))
        assert relative(operator.T @ left, wanted.mT @ left) < 1e-13
    assert relative(kernel(x).diagonal(), plain(kernel, x, x).diagonal()) < 1e-13
    assert kernel(x).symmetric
    assert not kernel(x, z).symmetric
    assert "shape=(7, 5)" in repr(kernel(x, z))


def test_second_order(kernel: fgp.kernels.Kernel) -> None:
    x, z = (p.requires_grad_() for p in points())
    right = torch.ones(5, 1, dtype=F64, requires_grad=True)
    for function in (lambda a, b, v: kernel(a, b) @ v, lambda a, b, v: kernel(a, b).to_dense() @ v):
        assert torch.autograd.gradgradcheck(function, (x, z, right))


def test_integer_codes_carry_no_gradient() -> None:
    x = torch.tensor([[0.1, 0], [0.5, 1], [0.9, 2], [0.4, 1]], dtype=F64, requires_grad=True)
    kernel = KERNELS["tasks"]()
    right = torch.ones(4, 1, dtype=F64)
    found = torch.autograd.grad((kernel(x) @ right).sum(), [x, *kernel.parameters()])
    wanted = torch.autograd.grad((plain(kernel, x, x) @ right).sum(), [x, *kernel.parameters()])
    for one, two in zip(found, wanted, strict=True):
        assert relative(one, two) < 1e-12


def test_batches() -> None:
    kernel = torch.tensor([1.0, 2.0], dtype=F64) * k.RBF(torch.tensor([[0.5, 1.0], [1.5, 0.7]]))
    x, z = points()
    operator = kernel(x, z)
    assert operator.shape == (2, 7, 5)
    right = torch.randn(5, 3, dtype=F64)
    assert (operator @ right).shape == (2, 7, 3)
    for i, (v, s) in enumerate(zip([1.0, 2.0], torch.tensor([[0.5, 1.0], [1.5, 0.7]]), strict=True)):
        one = v * k.RBF(s)
        assert relative(operator.to_dense()[i], one(x, z).to_dense()) < 1e-14
        assert relative((operator @ right)[i], one(x, z) @ right) < 1e-13


def test_dtypes() -> None:
    """The operator has x's dtype; half is a storage format only."""
    x, z = (p.float() for p in points())
    kernel = KERNELS["matern"]()
    exact = kernel(x.double(), z.double()).to_dense()
    assert kernel(x, z).to_dense().dtype == torch.float32
    assert relative(kernel(x, z).to_dense(), exact) < 1e-6
    assert kernel(x, z).to_dense(dtype=torch.float64).dtype == F64
    half = kernel(x, z).to_dense(dtype=torch.float16)
    assert half.dtype == torch.float16
    assert torch.equal(half, kernel(x, z).to_dense().half())


def test_refusals() -> None:
    x, z = points()
    operator = KERNELS["matern"]()(x, z)
    with pytest.raises(fgp.ShapeError, match=r"`right` must have 5 rows like the operator \(7, 5\)"):
        operator @ torch.ones(7, dtype=F64)
    with pytest.raises(fgp.DomainError, match=r"`right` must be torch\.float64 on cpu"):
        operator @ torch.ones(5)
    with pytest.raises(fgp.ShapeError, match="`diagonal` needs an operator of one set of points"):
        operator.diagonal()
    with pytest.raises(TypeError):
        operator @ 3.0


def test_none_and_one_point() -> None:
    x, z = points()
    kernel = KERNELS["matern"]()
    assert kernel(x[:0], z).to_dense().shape == (0, 5)
    assert (kernel(x[:0], z) @ torch.ones(5, 2, dtype=F64)).shape == (0, 2)
    assert torch.equal(kernel(x, z[:0]) @ torch.ones(0, 2, dtype=F64), torch.zeros(7, 2, dtype=F64))
    assert kernel(x[:0]).diagonal().shape == (0,)
    assert relative(kernel(x[:1]).to_dense(), torch.tensor([[1.3]], dtype=F64)) < 1e-15


def test_a_symmetric_block_in_half_precision_evaluates_half() -> None:
    x = torch.randn(2, 1200, 3, generator=torch.Generator().manual_seed(0))
    pairs: list[int] = []

    class Counting(TorchTiles):
        def block(self, *given: Any, **options: Any) -> torch.Tensor:
            found = super().block(*given, **options)
            pairs.append(found.numel())
            return found

    operator = operator_with(fgp.kernels.RBF(1.0), x, backend=Counting())
    with torch.no_grad():
        half = operator.to_dense(torch.bfloat16)
        assert sum(pairs) < 0.6 * operator.shape.numel()
        assert torch.equal(half, half.mT)
        assert torch.allclose(half.float(), operator.to_dense(), rtol=2.0**-8, atol=0)


@pytest.mark.parametrize("kernel", [fgp.kernels.Categorical(1.0), fgp.kernels.Coregionalization(3)])
def test_vmap_over_codes(kernel: fgp.kernels.Kernel) -> None:
    """The values cannot be looked at inside vmap; outside of it a value that is no code is refused as ever."""
    x = torch.randint(0, 3, (4, 7, 1), generator=torch.Generator().manual_seed(0)).double()
    v = torch.randn(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.func.vmap(lambda one: kernel.operator(one) @ v)(x)
    assert torch.allclose(found, kernel.operator(x) @ v, rtol=1e-13)
    with pytest.raises(DomainError, match="integer codes"):
        torch.func.grad(lambda one: (kernel.operator(one) @ v).sum())(x[0] + 0.5)
