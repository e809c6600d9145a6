"""The context in which nothing depends on the number of threads: what it sets, and that nobody else sees it."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from flashgp.foundations.determinism import contiguous_copy, deterministically, is_deterministic
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.profile_store import current_profile, keep_profile, machine_key
from flashgp.foundations.threads import counts_are_own, single_thread
from flashgp.pairwise.cpu.pool import workers


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def mkl_threads() -> str:
    lines = torch.__config__.parallel_info().splitlines()
    return next((line.split()[-1] for line in lines if "mkl_get_max_threads" in line), "")


def elsewhere(seen: Callable[[], object]) -> object:
    """What a new thread sees."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append((torch.get_num_threads(), seen())[1]))
    thread.start()
    thread.join()
    return found[0]


def test_one_thread_within_and_as_before_after_it() -> None:
    """OpenMP's count, MKL's and that of our loops; also nested, and after an error."""
    mkl = mkl_threads()
    with deterministically():
        assert is_deterministic()
        assert (torch.get_num_threads(), workers()) == (1, 1)
        assert mkl_threads() in ("", "1")
        with deterministically(), single_thread():
            assert torch.get_num_threads() == 1
        assert is_deterministic()
        assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError), deterministically():
        raise ZeroDivisionError
    assert not is_deterministic()
    assert (torch.get_num_threads(), mkl_threads()) == (3, mkl)
    with deterministically(False):
        assert not is_deterministic()
        assert torch.get_num_threads() == 3


def test_other_threads_keep_theirs() -> None:
    """A thread that is there, and one that begins meanwhile."""
    assert counts_are_own()
    go, done = threading.Event(), threading.Event()
    seen: list[tuple[int, str, bool]] = []

    def wait() -> None:
        torch.set_num_threads(2)
        go.wait(60)
        seen.append((torch.get_num_threads(), mkl_threads(), is_deterministic()))
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    mkl = mkl_threads()
    with deterministically():
        go.set()
        assert done.wait(60)
        assert elsewhere(is_deterministic) is False
        torch_now, mkl_now = elsewhere(torch.get_num_threads), elsewhere(mkl_threads)
    thread.join()
    assert seen == [(2, mkl and "2", False)]
    assert torch_now == 2, "what was set last, for threads that are new to torch"
    assert mkl_now == (mkl and "2")
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("profiles")
def test_measured_rates_stay_out() -> None:
    import dataclasses

    processor, cores, count, version = machine_key()
    measured = dataclasses.replace(
        BUILT_IN, name="measured", processor=processor, cores=cores, threads=count, torch_version=version
    )
    keep_profile(measured)
    assert current_profile() == measured
    with deterministically():
        assert current_profile() is BUILT_IN
    assert current_profile() == measured


def test_data_are_read_from_torchs_own_memory() -> None:
    values = torch.arange(24.0).reshape(4, 6)[:, 1:].T
    assert contiguous_copy(values) is values
    with deterministically():
        found = contiguous_copy(values)
    assert torch.equal(found, values)
    assert found.is_contiguous()
    assert found.data_ptr() % 64 == 0
