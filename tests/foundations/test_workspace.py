"""The workspace counts what is alive, refuses what does not fit, fails where it is told, and gives memory back."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

from flashgp.foundations.errors import MemoryBudgetError
from flashgp.foundations.workspace import COUNTED_BYTES, Workspace

CPU = torch.device("cpu")
MIB = 2**20


def take(workspace: Workspace, mebibytes: int) -> torch.Tensor:
    return workspace.empty((mebibytes, MIB // 8), torch.float64, CPU)


def test_counts_and_high_water_mark() -> None:
    workspace = Workspace()
    first = take(workspace, 2)
    assert (first.shape, first.dtype, first.is_contiguous()) == ((2, MIB // 8), torch.float64, True)
    second = take(workspace, 3)
    assert (workspace.live_bytes, workspace.peak_bytes, workspace.requests) == (5 * MIB, 5 * MIB, 2)
    del first
    assert (workspace.live_bytes, workspace.peak_bytes) == (3 * MIB, 5 * MIB)
    third = take(workspace, 2)
    assert (workspace.live_bytes, workspace.peak_bytes, workspace.requests) == (5 * MIB, 5 * MIB, 3)
    del second, third
    assert workspace.live_bytes == 0
    fourth = take(workspace, 2)
    assert (workspace.live_bytes, workspace.peak_bytes) == (fourth.numel() * 8, 5 * MIB)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int8])
def test_bytes_follow_the_dtype(dtype: torch.dtype) -> None:
    workspace = Workspace()
    tensor = workspace.empty((3, 2 * MIB), dtype, CPU)
    assert workspace.live_bytes == tensor.untyped_storage().nbytes() == 6 * MIB * dtype.itemsize


def test_small_buffers_are_not_counted() -> None:
    workspace = Workspace(budget_bytes=0, fail_at=1)
    assert workspace.empty((COUNTED_BYTES // 8,), torch.float64, CPU).shape == (COUNTED_BYTES // 8,)
    assert workspace.empty((), torch.float64, CPU).shape == ()
    assert workspace.empty((0, 5), torch.float64, CPU).shape == (0, 5)
    with workspace.hold(COUNTED_BYTES):
        pass
    assert (workspace.requests, workspace.peak_bytes) == (0, 0)
    with pytest.raises(MemoryBudgetError):
        workspace.empty((COUNTED_BYTES // 8 + 1,), torch.float64, CPU)


def test_a_view_keeps_the_buffer_alive() -> None:
    """The storage counts, not the object that was handed out: views, transposes and NumPy arrays hold it."""
    workspace = Workspace()
    for hold in (lambda t: t[1:, :3], lambda t: t.mT, lambda t: t.numpy(), lambda t: t.detach(),
                 lambda t: t.untyped_storage()):  # fmt: skip
        tensor = take(workspace, 2)
        held = hold(tensor)
        del tensor
        assert workspace.live_bytes == 2 * MIB
        del held
        assert workspace.live_bytes == 0


def test_the_budget() -> None:
    workspace = Workspace(budget_bytes=5 * MIB)
    first = take(workspace, 3)
    with pytest.raises(MemoryBudgetError) as caught:
        take(workspace, 3)
    error = caught.value
    assert (error.needed_bytes, error.available_bytes, error.cheapest_plan) == (3 * MIB, 2 * MIB, None)
    assert "3,145,728 bytes" in str(error)
    assert "2,097,152 bytes" in str(error)
    assert "memory=" in str(error)
    assert isinstance(error, MemoryError)
    assert workspace.live_bytes == workspace.peak_bytes == 3 * MIB  # a refused request is no memory
    exact = take(workspace, 2)
    assert workspace.live_bytes == 5 * MIB
    del first
    assert take(workspace, 3).shape[0] == exact.shape[0] + 1


@pytest.mark.parametrize("k", [1, 2, 3])
def test_failing_on_purpose(k: int) -> None:
    workspace = Workspace(fail_at=k)
    kept = [take(workspace, 2) for _ in range(k - 1)]
    with pytest.raises(MemoryBudgetError) as caught:
        take(workspace, 2)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (2 * MIB, 0)
    assert workspace.live_bytes == 2 * MIB * len(kept)
    kept.append(take(workspace, 2))  # only the k-th
    assert workspace.live_bytes == 2 * MIB * len(kept)


def test_holding_counts_while_the_block_runs() -> None:
    workspace = Workspace(budget_bytes=4 * MIB)
    with workspace.hold(3 * MIB):
        assert workspace.live_bytes == 3 * MIB
        with pytest.raises(MemoryBudgetError):
            take(workspace, 2)
    assert (workspace.live_bytes, workspace.peak_bytes) == (0, 3 * MIB)
    with pytest.raises(ZeroDivisionError), workspace.hold(3 * MIB):
        raise ZeroDivisionError
    assert workspace.live_bytes == 0
    with pytest.raises(MemoryBudgetError), workspace.hold(5 * MIB):
        raise AssertionError("entered")
    with pytest.raises(MemoryBudgetError), Workspace(fail_at=1).hold(2 * MIB):
        raise AssertionError("entered")


def test_threads_together_keep_the_budget() -> None:
    """What one thread was granted counts before another one asks."""
    parent, interval = Workspace(), sys.getswitchinterval()
    one = Workspace(budget_bytes=3 * MIB, parent=parent)

    def ask(_: int) -> None:
        for _ in range(2000):
            with suppress(MemoryBudgetError), one.hold(MIB + 1):
                pass

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert one.peak_bytes <= 3 * MIB
    assert one.live_bytes == parent.live_bytes == 0


def test_the_machine_itself_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace()
    with pytest.raises(MemoryBudgetError) as caught:
        workspace.empty((2**50,), torch.float64, CPU)
    assert caught.value.needed_bytes == 2**53
    assert "cpu" in str(caught.value)
    assert workspace.live_bytes == 0
