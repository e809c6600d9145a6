"""Gradients of many quadratic forms at once, (M-308): those of `bilinear_gradient`, one by one."""

import pytest
import torch

from flashgp.foundations.workspace import Workspace
from flashgp.kernels import REGISTRY
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.quadratic_forms import has_shared_gradients, quadratic_form_gradients, sets_at_once
from flashgp.pairwise.torch.tiles import TorchTiles

F64 = torch.float64


@pytest.mark.parametrize("name", REGISTRY)
def test_gradients_are_those_of_each_form(name: str) -> None:
    row, generator = REGISTRY[name], torch.Generator().manual_seed(0)
    x = torch.rand(40, 3, generator=generator, dtype=F64) + 1.0
    if row.inputs == "codes":
        x = torch.randint(0, 3, (40, 3), generator=generator).double()
    vectors = torch.randn(4, 40, 2, generator=generator, dtype=F64)
    for kernel in row.examples(3):
        with torch.no_grad():
            problem = PairProblem(kernel.form, kernel.theta(), kernel.rows(x)).detached()
        if not has_shared_gradients(problem):
            continue
        found = quadratic_form_gradients(problem, vectors, Workspace())
        for k, one in enumerate(vectors):
            wanted = TorchTiles().bilinear_gradient(problem, one, one)
            for value, other in zip((*found.rows, *found.theta), (*wanted.rows, *wanted.theta), strict=True):
                assert (value is None) == (other is None)
                if value is not None and other is not None:
                    scale = float(other.abs().max()) + 1.0
                    torch.testing.assert_close(value[k], other, rtol=0.0, atol=1e-12 * scale)


def test_vectors_times_many_columns_come_in_parts() -> None:
    x = torch.zeros(2000, 200, dtype=F64)
    kernel = REGISTRY["Matern"].examples(200)[0]
    at_once = sets_at_once(PairProblem(kernel.form, kernel.theta(), kernel.rows(x)).detached(), 1)
    assert 1 <= at_once < 20  # of 1,000 draws for as many lengthscales
