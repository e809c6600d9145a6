"""The strides of a tensor change no number: views, transposes and expanded inputs as their contiguous copies."""

import pytest
import torch
from torch import Tensor

from flashgp import kernels
from flashgp.pairwise.problem import PairProblem
from pairwise.pair_cases import (
    EPS,
    ONE_CASE_EACH,
    ROUTES,
    TORCH,
    Case,
    job,
    pulled,
    relative_error,
    torch_tiles_by,
)


def strided(x: Tensor) -> list[Tensor]:
    """The same values in other layouts: transposed storage, every other column, reversed storage, an offset view."""
    wide = torch.zeros(x.shape[0], 2 * x.shape[1], dtype=x.dtype)
    wide[:, ::2] = x
    padded = torch.zeros(x.shape[0] + 2, x.shape[1] + 3, dtype=x.dtype)
    padded[1:-1, 2:-1] = x
    return [x.mT.contiguous().mT, wide[:, ::2], padded[1:-1, 2:-1]]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_layouts_of_points_and_weights(case: Case, route: str) -> None:
    backend = torch_tiles_by(route)
    kernel, x, z = case.kernel, case.points(7, 1), case.points(5, 2)
    theta = [t.detach() for t in kernel.theta()]
    weights = torch.randn(7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    right = torch.randn(5, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rows, cols = kernel.rows(x).detach(), kernel.rows(z).detach()
    product = backend.product(PairProblem(kernel.form, theta, rows, cols), right)
    wanted = pulled(backend, kernel, x, z, weights)
    for x2, z2, w2, r2 in zip(strided(x), strided(z), strided(weights), strided(right), strict=True):
        assert not (x2.is_contiguous() and w2.is_contiguous())
        found = backend.product(PairProblem(kernel.form, theta, kernel.rows(x2).detach(), kernel.rows(z2).detach()), r2)
        assert relative_error(found, product) <= 20 * EPS
        for name, gradient in pulled(backend, kernel, x2, z2, w2).items():
            assert relative_error(gradient, wanted[name]) <= 100 * EPS, name


@pytest.mark.parametrize("route", ROUTES)
def test_inputs_are_left_alone(route: str) -> None:
    """Tiles are overwritten in place; what the caller gave is not."""
    backend = torch_tiles_by(route)
    for case in (Case("Product", 1, 3), Case("Coregionalization", 0, 3), Case("Linear", 0, 1)):
        for n, m in ((9, None), (5, 8)):
            given = job(case, n, m)
            tensors = [*given.rows.tensors, *(given.cols.tensors if given.cols else ())]
            tensors += [*given.theta, given.left, given.right, given.weights]
            before = [t.clone() for t in tensors]
            backend.block(given.problem, dtype=torch.float64).add_(7.0)
            backend.product(given.problem, given.right).add_(7.0)
            backend.block_gradient(given.problem, given.weights)
            backend.bilinear_gradient(given.problem, given.left, given.right)
            backend.diagonal_gradient(PairProblem(given.form, given.theta, given.rows), given.weights.sum(-1))
            assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_a_block_may_be_changed_in_place() -> None:
    """Solvers add noise to the diagonal of a block: it must be memory of its own, a batch of constants included."""
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    numbers = torch.tensor([1.0, 2.0, 3.0])
    examples = [kernels.SquaredExponential(), kernels.Linear() + 1.0]
    for kernel in (*examples, kernels.Constant(numbers), kernels.Scaled(kernels.Matern(), numbers)):
        for points in (x, x[0]):
            theta = [t.detach() for t in kernel.theta()]
            block = TORCH.block(PairProblem(kernel.form, theta, kernel.rows(points).detach()), dtype=torch.float64)
            before = block.clone()
            block.diagonal(dim1=-2, dim2=-1).add_(1.0)
            assert torch.equal(block, before + torch.eye(5, dtype=torch.float64))
