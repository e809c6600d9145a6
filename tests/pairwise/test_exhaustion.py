"""When memory runs out inside a tile, the loop goes on with half the rows, gives the same numbers, and says so."""

import itertools
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

from flashgp import kernels
from flashgp.foundations.errors import MemoryBudgetError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.workspace import Workspace, ran_out_of_memory
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.cpu.backend import CpuTiles, cpu_tiles_missing
from flashgp.pairwise.cpu.panels import PanelSettings
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.quadratic_forms import quadratic_form_gradients
from flashgp.pairwise.torch.tiles import TileSettings, TorchTiles
from inside_torch import InsideTorch, makes_a_tensor, raising

f64 = torch.float64
D, T, N, M = 3, 2, 45, 37
TOLERANCE = 200 * N * torch.finfo(f64).eps  # sums of N terms in another order, of mixed sign

KERNELS = {
    "distance": lambda: 1.5 * kernels.Matern(2.5, [0.7, 1.0, 1.3]),
    "product and row scalars": lambda: kernels.Linear(torch.ones(D)) * kernels.Periodic() + kernels.Categorical(
        active_dims=[0]
    ),
}  # fmt: skip


EIGHT_ROWS = TorchTiles(settings=TileSettings(pairs=8 * N))


class Calls:
    """The primitives that go over tiles, on fixed rows: each returns tensors to compare."""

    def __init__(self, kernel: kernels.Kernel, symmetric: bool, backend: Backend = EIGHT_ROWS) -> None:
        self.backend = backend
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(0, 4, (N, D), generator=generator).double()
        z = torch.randint(0, 4, (M, D), generator=generator).double()
        columns = None if symmetric else kernel.rows(z)
        self.problem = PairProblem(kernel.form, kernel.theta(), kernel.rows(x), columns).detached()
        m = N if symmetric else M
        self.left = torch.randn(N, T, generator=generator, dtype=f64)
        self.right = torch.randn(m, T, generator=generator, dtype=f64)
        self.weights = torch.randn(N, m, generator=generator, dtype=f64)
        if symmetric:
            self.weights = self.weights + self.weights.mT

    def block(self, workspace: Workspace | None) -> list[Tensor]:
        return [self.backend.block(self.problem, dtype=f64, workspace=workspace)]

    def product(self, workspace: Workspace | None) -> list[Tensor]:
        return [self.backend.product(self.problem, self.right, workspace=workspace)]

    def block_gradient(self, workspace: Workspace | None) -> list[Tensor]:
        return flat(self.backend.block_gradient(self.problem, self.weights, workspace=workspace))

    def bilinear_gradient(self, workspace: Workspace | None) -> list[Tensor]:
        return flat(self.backend.bilinear_gradient(self.problem, self.left, self.right, workspace=workspace))

    def quadratic_forms(self, workspace: Workspace | None) -> list[Tensor]:
        sets = torch.stack([self.left, self.right, self.left + self.right])
        return flat(quadratic_form_gradients(self.problem, sets, workspace or Workspace(), TileSettings(pairs=8 * N)))


NAMES = ["block", "product", "block_gradient", "bilinear_gradient"]


def flat(gradient: PairGradient) -> list[Tensor]:
    found = [*gradient.rows, *gradient.cols, *gradient.theta]
    return [torch.zeros(()) if g is None else g for g in found]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all((f - w).abs().max() <= TOLERANCE * (1 + w.abs().max()) for f, w in zip(found, wanted, strict=True))


def failing(function: Callable[..., object], at: int, error: Callable[[], Exception]) -> Callable[..., object]:
    """The function, failing at its k-th call only."""
    state = {"calls": 0}

    def run(*arguments: object, **options: object) -> object:
        state["calls"] += 1
        if state["calls"] == at:
            raise error()
        return function(*arguments, **options)

    return run


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "rectangular"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_the_workspace_failing_at_every_request(name: str, kernel: str, symmetric: bool) -> None:
    """The request of a tile is halved; that of a result cannot be, and is the one error."""
    calls = Calls(KERNELS[kernel](), symmetric)
    counting = Workspace(counted_bytes=0)
    wanted = getattr(calls, name)(counting)
    assert counting.events == []
    own = 1 if name in ("block", "product") else 0
    assert counting.requests == own + 1
    for k in range(1, counting.requests + 1):
        workspace = Workspace(counted_bytes=0, fail_at=k)
        if k <= own:
            with pytest.raises(MemoryBudgetError):
                getattr(calls, name)(workspace)
        else:
            assert same(getattr(calls, name)(workspace), wanted)
            assert workspace.events == [Event(EventKind.TILES_HALVED, rows=4)]
    assert workspace.peak_bytes < counting.peak_bytes


ERRORS: list[Callable[[], Exception]] = [  # made anew each time: an error holds the frames it passed through
    lambda: torch.OutOfMemoryError("CUDA out of memory"),
    lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    lambda: RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
    MemoryError,
]


SIDES = [(name, symmetric) for name in NAMES for symmetric in (True, False)]


@pytest.mark.parametrize(("name", "symmetric"), [*SIDES, ("quadratic_forms", True)])
def test_torch_failing_at_every_third_tensor(name: str, symmetric: bool) -> None:
    """Wherever a panel fails, nothing of it is counted twice, and the panels before it are kept."""
    calls = Calls(KERNELS["product and row scalars"](), symmetric)
    wanted = getattr(calls, name)(None)
    halved = whole = 0
    for k in itertools.count(1, 3):
        workspace = Workspace(counted_bytes=0)
        found = None
        with InsideTorch(makes_a_tensor, raising(ERRORS[k % len(ERRORS)], k)) as tensors:
            try:
                found = getattr(calls, name)(workspace)
            except Exception as error:  # before the first panel, or after the last
                whole += ran_out_of_memory(error)
        if tensors.count < k:
            break
        if found is not None:
            assert same(found, wanted)
            halved += workspace.events == [Event(EventKind.TILES_HALVED, rows=4)]
            del found
        assert workspace.live_bytes == 0
    assert halved + whole == (k - 1) // 3
    assert halved > whole, "the panels make most of the tensors"


def test_a_budget_that_a_smaller_tile_fits() -> None:
    """The largest tile that fits is found by halving; where not one row fits, the error has the numbers."""
    calls = Calls(KERNELS["distance"](), True)
    counting = Workspace(counted_bytes=0)
    wanted = calls.product(counting)
    result = N * T * 8
    row = (counting.peak_bytes - result) // 8
    workspace = Workspace(counted_bytes=0, budget_bytes=result + 2 * row)
    assert same(calls.product(workspace), wanted)
    assert workspace.events == [Event(EventKind.TILES_HALVED, rows=rows) for rows in (4, 2)]
    with pytest.raises(MemoryBudgetError) as caught:
        calls.product(Workspace(counted_bytes=0, budget_bytes=result + row - 1))
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (row, row - 1)


# -- compiled loops --------------------------------------------------------------------------------------------------
@pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "rectangular"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["product", "bilinear_gradient"])
def test_compiled_loops_go_on_with_halves(
    name: str, kernel: str, symmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eqs. (M-20), (M-21) in panels: the same numbers whichever request fails; what cannot be halved raises."""
    calls = Calls(KERNELS[kernel](), symmetric, CpuTiles(0, PanelSettings(min_rows=4, min_right_sides=1)))
    counting = Workspace(counted_bytes=0)
    wanted = getattr(calls, name)(counting)
    own = 1 if name == "product" else 0  # the result
    assert (counting.events, counting.requests, counting.backends) == ([], own + 1, ["compiled backend"])
    for k in range(1, counting.requests + 1):
        workspace = Workspace(counted_bytes=0, fail_at=k)
        if k <= own:
            with pytest.raises(MemoryBudgetError):
                getattr(calls, name)(workspace)
            continue
        assert same(getattr(calls, name)(workspace), wanted)
        assert [event.kind for event in workspace.events] == [EventKind.LOOPS_HALVED]
        assert workspace.live_bytes == 0
        # Halves of a gradient stand beside the totals, which all pairs at once make of their own sums.
        assert name == "bilinear_gradient" or workspace.peak_bytes < counting.peak_bytes
    kept = N * T * 8
    if name == "bilinear_gradient":
        kept = 8 * calls.problem.rows.width * (N if symmetric else N + M)
    tight = Workspace(counted_bytes=0, budget_bytes=kept + (counting.peak_bytes - kept) // 4)
    assert same(getattr(calls, name)(tight), wanted)
    assert len(tight.events) > 1
    with pytest.raises(MemoryBudgetError):
        getattr(calls, name)(Workspace(counted_bytes=0, budget_bytes=own * N * T * 8 + 64))
    first = 1 if name == "product" else 2  # the totals of a gradient are made before its panels
    arrays = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(numpy, "zeros", lambda *given, zeros=numpy.zeros: (next(arrays), zeros(*given))[1])
        getattr(calls, name)(Workspace(counted_bytes=0, budget_bytes=tight.budget_bytes))
    last = next(arrays)
    assert last > 100
    for k in range(first, last, last // 29):  # wherever a panel's own work fails, nothing of it is counted twice
        with monkeypatch.context() as patch:
            patch.setattr(numpy, "zeros", failing(numpy.zeros, k, MemoryError))
            workspace = Workspace(counted_bytes=0, budget_bytes=tight.budget_bytes)
            assert same(getattr(calls, name)(workspace), wanted)
