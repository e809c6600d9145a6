"""No matrix where none is asked for: the largest tensor inside a product or a gradient is a tile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashgp import kernels
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch import tile_job
from pairwise.pair_cases import TORCH

f64 = torch.float64
D, T = 3, 2
N = 3000


class LargestTensor(TorchDispatchMode):
    """Records the elements of the largest tensor that owns its memory among all results."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


def test_the_watcher_sees() -> None:
    with LargestTensor() as seen:
        x = torch.zeros(30, 2)
        (x[:, None] - x[None]).square().sum(-1)
    assert seen.elements == 30 * 30 * 2


KERNELS = [
    pytest.param(N, kernels.SquaredExponential([0.7, 1.0, 1.3]), id="one matrix product"),
    pytest.param(N, kernels.Matern(0.5), id="direct differences"),
    pytest.param(
        1200,  # slow under the watcher, and enough to tell: 1200² is five tiles
        (kernels.Matern(2.5) + 0.5) * kernels.Categorical(active_dims=[0])
        + kernels.Coregionalization(4, active_dims=[0]),
        id="all statistics",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("n", "kernel"), KERNELS)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "rectangular"])
def test_nothing_is_larger_than_a_tile(n: int, kernel: kernels.Kernel, symmetric: bool) -> None:
    """(M-20), (M-21): K V and its gradient hold a tile, the points and the result, never n m or n m d numbers."""
    x = torch.randint(0, 4, (n, D), generator=torch.Generator().manual_seed(0)).double()
    theta, rows = [t.detach() for t in kernel.theta()], kernel.rows(x).detach()
    cols = None if symmetric else rows
    right = torch.ones(n, T, dtype=f64)
    calls: list[Callable[[], object]] = [
        lambda: TORCH.product(PairProblem(kernel.form, theta, rows, cols), right),
        lambda: TORCH.bilinear_gradient(PairProblem(kernel.form, theta, rows, cols), right, right),
        lambda: TORCH.diagonal(PairProblem(kernel.form, theta, rows), dtype=f64),
        lambda: TORCH.diagonal_gradient(PairProblem(kernel.form, theta, rows), right[:, 0]),
    ]
    for call in calls:
        with LargestTensor() as seen:
            call()
        assert 0 < seen.elements <= tile_job.TILE_PAIRS["cpu"]


def test_a_block_holds_itself_and_tiles() -> None:
    kernel, workspace = kernels.Matern(2.5), Workspace()
    rows = kernel.rows(torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=f64)).detach()
    with LargestTensor() as seen:
        block = TORCH.block(PairProblem(kernel.form, [], rows), dtype=f64, workspace=workspace)
    assert seen.elements == N * N
    tiles = workspace.peak_bytes - N * N * 8
    assert 0 < tiles <= 16 * tile_job.TILE_PAIRS["cpu"] * 8
    assert workspace.live_bytes == N * N * 8
    del block
    assert workspace.live_bytes == 0


def test_rows_per_tile() -> None:
    """A tile is at least one row, and shrinks with the columns and the members of a batch."""
    cpu = torch.device("cpu")
    pairs = tile_job.TILE_PAIRS["cpu"]
    assert tile_job.tile_rows(pairs, 1, cpu) == 1
    assert tile_job.tile_rows(10 * pairs, 1, cpu) == 1
    assert tile_job.tile_rows(64, 8, cpu) == pairs // 512
    assert tile_job.tile_rows(0, 0, cpu) == pairs
    assert tile_job.tile_rows(64, 1, torch.device("cuda")) > tile_job.tile_rows(64, 1, cpu)
