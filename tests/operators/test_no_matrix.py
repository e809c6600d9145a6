"""No product, gradient, diagonal or prediction makes a tensor of the size of the matrix: every dispatch is watched."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import flashgp as fgp
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import OperatorOptions
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.cpu.backend import CpuTiles, cpu_tiles_missing
from flashgp.pairwise.torch.tiles import TorchTiles
from pairwise.pair_cases import ONE_CASE_EACH, Case

BACKENDS = {"torch": TorchTiles, "cpu": lambda: CpuTiles(min_pairs=0)}


class Watcher(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.untyped_storage().nbytes())
        return result


def watch(case: Case, backend: Backend, n: int) -> int:
    """Bytes of the largest storage made by a product, its gradient and a diagonal of n rows."""
    x = case.points(n, 1)
    x.requires_grad_(x.is_floating_point())
    kernel = case.kernel
    operator = kernel.operator(x)
    orders = OperatorOptions(backend=backend)
    operator = CovarianceOperator(operator.problem, torch.float64, options=orders)
    with Watcher() as watcher:
        right = torch.ones(n, 2, dtype=torch.float64, requires_grad=True)
        out = operator @ right
        leaves = [t for t in (x, right, *kernel.parameters()) if t.requires_grad]
        torch.autograd.grad(out.sum(), leaves, allow_unused=True)
        operator.diagonal().detach()
    return watcher.largest


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        *((*case.values, "torch") for case in ONE_CASE_EACH),
        *((Case(name, 0, 3), "cpu") for name in ("Matern", "Coregionalization", "Sum")),
    ],
    ids=str,
)
def test_products_and_gradients(case: Case, backend: str) -> None:
    if backend == "cpu" and cpu_tiles_missing():
        pytest.skip("numba is not installed")
    n = 3000  # a matrix of 72 MB; tiles of 2 MB
    assert watch(case, BACKENDS[backend](), n) < 8 * n * n // 4


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_products_and_gradients_of_many_rows(case: Case, backend: str) -> None:
    n = 20_000  # a matrix of 3.2 GB
    assert watch(case, BACKENDS[backend](), n) < 64 * 2**20


def test_the_watcher_sees_a_matrix() -> None:
    x = torch.zeros(1000, 2, dtype=torch.float64)
    with Watcher() as watcher:
        fgp.kernels.RBF(1.0)(x).to_dense()
    assert watcher.largest == 8 * 1000 * 1000


def test_prediction_makes_no_matrix_of_all_points() -> None:
    x = torch.linspace(0, 10, 400, dtype=torch.float64)[:, None]
    post = fgp.GP(fgp.kernels.Matern(2.5)).condition(x, x[:, 0].sin())
    points = torch.linspace(0, 10, 40_000, dtype=torch.float64)[:, None]
    with Watcher() as watcher:
        p = post.predict(points)
        assert p.mean.shape == p.variance.shape == (40_000,)
    assert watcher.largest <= 2**25 + 2**20  # one strip of K_sx, of 122 MiB in all
