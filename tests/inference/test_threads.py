"""Small evaluations run on one thread, and nobody else's count of threads changes."""

import functools
import threading
import time
from collections.abc import Iterator

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.contention import OtherLoad
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.threads import counts_are_own, single_thread
from flashgp.inference import threads
from flashgp.inference.threads import ONE_THREAD_ROWS, FreeCores, one_thread, side_by_side


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    if not counts_are_own():
        torch.set_num_threads(before)
        pytest.skip("torch runs on something else than OpenMP here")
    yield
    torch.set_num_threads(before)


def elsewhere() -> int:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


def test_only_this_thread_and_only_within_the_block() -> None:
    with one_thread(ONE_THREAD_ROWS):
        assert torch.get_num_threads() == 1
        assert elsewhere() == 2
        with one_thread(3):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), one_thread(3):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    with one_thread(ONE_THREAD_ROWS + 1):
        assert torch.get_num_threads() == 2


class Listening(torch.nn.Module):
    """A zero mean that notes how many threads evaluate it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch.get_num_threads())
        return x.new_zeros(x.shape[:-1])


@pytest.mark.parametrize(("n", "threads"), [(20, 1), (ONE_THREAD_ROWS + 1, 2)])
def test_evaluations_of_small_matrices_run_on_one_thread(n: int, threads: int) -> None:
    x = torch.linspace(0.0, 5.0, n, dtype=torch.float64)[:, None]
    mean = Listening()
    gp = fgp.GP(fgp.kernels.RBF(), mean, fgp.likelihoods.Gaussian(0.1))
    gp.log_marginal_likelihood(x, torch.sin(x[:, 0])).backward()
    assert mean.seen == [threads]
    assert torch.get_num_threads() == 2


class Taken(OtherLoad):
    """Others keep all cores but one busy."""

    def free_cores(self) -> int:
        return 1


def test_a_fit_beside_others_takes_the_cores_that_are_free() -> None:
    """Above the rows that run alone anyway; said once; and the count of threads comes back."""
    events: list[Event] = []
    cores = FreeCores(events.append, Taken())
    for rows, count in ((ONE_THREAD_ROWS, 2), (ONE_THREAD_ROWS + 1, 1), (5000, 1)):
        with cores.block(rows):
            assert torch.get_num_threads() == count
        assert torch.get_num_threads() == 2
    assert events == [Event(EventKind.CORES_TAKEN, threads=1, usual=2)]
    assert "1 thread instead of 2" in str(events[0])


CPU = torch.device("cpu")


def test_tasks_run_side_by_side_on_one_thread_each() -> None:
    """Two at a time, their results in their order, and all counts as before."""
    both = threading.Barrier(2, timeout=30.0)
    before = [library.get() for library in threads._openblas()]

    def task(number: int) -> tuple[int, int, list[int]]:
        if number < 2:
            both.wait()  # nobody passes alone
        return number, torch.get_num_threads(), [library.get() for library in threads._openblas()]

    tasks = [functools.partial(task, number) for number in range(5)]
    assert side_by_side(tasks, CPU) == [(number, 1, [1] * len(before)) for number in range(5)]
    assert torch.get_num_threads() == 2
    assert [library.get() for library in threads._openblas()] == before


def test_the_first_error_of_tasks_is_raised_and_ends_the_others() -> None:
    done: list[int] = []

    def task(number: int) -> None:
        if number == 1:
            raise ZeroDivisionError
        time.sleep(0.01)
        done.append(number)

    with pytest.raises(ZeroDivisionError):
        side_by_side([functools.partial(task, number) for number in range(50)], CPU)
    assert torch.get_num_threads() == 2
    assert len(done) < 40


@pytest.mark.parametrize("deterministic", [False, True])
def test_one_thread_takes_tasks_one_after_the_other(*, deterministic: bool) -> None:
    seen: list[int] = []
    with deterministically(deterministic), single_thread():
        side_by_side([lambda: seen.append(threading.get_ident())] * 3, CPU)
    assert seen == [threading.get_ident()] * 3
    side_by_side([lambda: seen.append(torch.get_num_threads())], CPU)
    assert seen[-1] == 2
    assert side_by_side([], CPU) == []
