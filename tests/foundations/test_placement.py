"""`fgp.runtime`: threads and cores of the whole process within a block, and all of it as it was afterwards."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import BackendUnavailableError, DomainError, FlashGPWarning
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.foundations.placement import _active, _threads, launcher_text
from flashgp.foundations.processors import own_cores
from flashgp.pairwise.cpu.pool import run_together, workers
from machine_root import MachineRoot

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot choose its cores here")
ONE = sorted(own_cores() or {0})[0]
LAST = sorted(own_cores() or {0})[-1]


def blas_threads() -> list[int]:
    import scipy.linalg  # noqa: F401 - loads its BLAS
    from threadpoolctl import ThreadpoolController

    return [one.get_num_threads() for one in ThreadpoolController().select(user_api="blas").lib_controllers]


def masks() -> dict[int, set[int]]:
    found = {}
    for task in _threads():
        with suppress(ProcessLookupError):  # a thread that was joined may still be ending
            found[task] = os.sched_getaffinity(task)
    return found


class State:
    """Counts of threads, and the cores of each; equal to another where the threads that live in both have not moved."""

    def __init__(self) -> None:
        self.masks = masks()
        self.counts = torch.get_num_threads(), elsewhere(torch.get_num_threads), blas_threads()

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, State)
        both = self.masks.keys() & other.masks.keys()
        assert threading.get_native_id() in both
        return self.counts == other.counts and all(self.masks[task] == other.masks[task] for task in both)

    def __repr__(self) -> str:
        return f"{self.counts} {self.masks}"


def elsewhere(call: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def two_threads_everywhere() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(300, 300) @ torch.ones(300, 300)  # OpenMP's threads exist
    run_together([lambda _: None, lambda _: None])  # and those of our loops
    yield
    assert not _active
    torch.set_num_threads(before)


# -- threads -----------------------------------------------------------------------------------------------------------
def test_threads_of_torch_of_new_threads_of_loops_and_of_blas() -> None:
    before = State()
    with fgp.runtime(threads=1) as placed:
        assert (torch.get_num_threads(), workers(), elsewhere(torch.get_num_threads)) == (1, 1, 1)
        assert set(blas_threads()) <= {1}
        assert str(placed) == "1 thread"
    assert State() == before


def test_all_comes_back_after_an_exception_and_nested() -> None:
    before = State()
    with pytest.raises(ZeroDivisionError), fgp.runtime(threads=1):
        outer = State()
        with pytest.raises(KeyError), fgp.runtime(threads=2, cores=[ONE, LAST]):
            assert torch.get_num_threads() == 2
            raise KeyError
        assert State() == outer
        raise ZeroDivisionError
    assert State() == before


def test_more_threads_than_cores_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MachineRoot(tmp_path, monkeypatch) as machine:
        machine.write("proc/self/cgroup", "0::/a\n")
        machine.write("sys/fs/cgroup/a/cpu.max", "100000 100000\n")
        with (
            pytest.warns(FlashGPWarning, match=r"2 threads on 1 core: .*; take threads=1"),
            fgp.runtime(threads=2),
        ):
            assert torch.get_num_threads() == 2


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_threads_are_a_positive_number(threads: Any) -> None:
    with pytest.raises(DomainError, match="`threads` must be"), fgp.runtime(threads=threads):
        pass


# -- cores -------------------------------------------------------------------------------------------------------------
@linux
def test_threads_that_exist_and_threads_that_come_run_on_the_cores() -> None:
    before = State()
    stop, started = threading.Event(), threading.Event()
    waiting = threading.Thread(target=lambda: (started.set(), stop.wait()), daemon=True)
    with fgp.runtime(cores=[ONE]) as placed:
        assert (placed.threads, torch.get_num_threads()) == (1, 1), "no more threads than cores"
        assert str(placed) == f"1 thread on core {ONE}"
        waiting.start()
        started.wait()
        assert len(masks()) > 1
        assert all(mask == {ONE} for mask in masks().values()), masks()
        assert elsewhere(lambda: os.sched_getaffinity(0)) == {ONE}
    assert State() == before
    assert os.sched_getaffinity(waiting.native_id or 0) == own_cores(), "a thread of the block is free again"
    stop.set()
    waiting.join()


@linux
def test_results_are_the_same_on_fewer_cores_and_the_report_says_where() -> None:
    x = torch.linspace(0.0, 5.0, 300, dtype=torch.float64)[:, None]
    gp = fgp.GP(fgp.kernels.RBF())
    free = gp.condition(x, x[:, 0].sin()).predict(x[:5]).mean
    with fgp.runtime(cores=[ONE]):
        placed = gp.condition(x, x[:, 0].sin())
        fitted = fgp.fit(gp, x[:20], x[:20, 0].sin(), starts=1)
    assert torch.allclose(placed.predict(x[:5]).mean, free, rtol=1e-9)
    said = Event(EventKind.RUNTIME, placement=f"1 thread on core {ONE}")
    assert of_kind(placed.report.events, EventKind.RUNTIME) == [said]
    assert of_kind(fitted.report.events, EventKind.RUNTIME) == [said]
    outside = gp.condition(x, x[:, 0].sin()).report.events
    assert not of_kind(outside, EventKind.RUNTIME)


@linux
def test_the_inner_block_stays_within_the_outer_one() -> None:
    if ONE == LAST:
        pytest.skip("needs two cores")
    with fgp.runtime(cores=[ONE]), pytest.raises(DomainError, match=f"may use, {ONE}"), fgp.runtime(cores=[LAST]):
        pass


@linux
def test_cores_outside_of_a_launchers_binding_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    named = r"may use, 4-7 \(LOCAL_RANK 1 of 2\), got 3-4"
    with pytest.raises(DomainError, match=named), fgp.runtime(cores="3-4"):
        pass
    assert launcher_text() == "LOCAL_RANK 1 of 2"


@linux
def test_a_refusal_of_the_system_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before, real, calls = State(), os.sched_setaffinity, []

    def refuses(task: int, cores: Any) -> None:
        calls.append(task)
        if len(calls) == 2:
            raise PermissionError(1, "Operation not permitted")
        real(task, cores)

    monkeypatch.setattr(os, "sched_setaffinity", refuses)
    with pytest.raises(BackendUnavailableError, match=r"refuses .Operation not permitted.; start"):
        fgp.runtime(cores=[ONE]).__enter__()
    monkeypatch.undo()
    assert len(calls) > 2
    assert State() == before


# -- one per process ---------------------------------------------------------------------------------------------------
def test_another_thread_is_refused_meanwhile() -> None:
    def other() -> str:
        try:
            with fgp.runtime(threads=1):
                return "entered"
        except DomainError as error:
            return str(error)

    with fgp.runtime(threads=1):
        assert "active in another thread (1 thread)" in elsewhere(other)
