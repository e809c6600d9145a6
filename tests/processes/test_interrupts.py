"""Ctrl-C among ranks: it comes at the end of a collective, and a fit that it ends in its last pass keeps its GP."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from flashgp.processes.interrupts import interrupt_deferred
from processes import fault_jobs
from processes.launch import Ranks


@contextmanager
def handled_by(handler: object) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is handler  # as it was
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_waits_for_the_end() -> None:
    done = []
    with handled_by(signal.default_int_handler):
        with pytest.raises(KeyboardInterrupt), interrupt_deferred(), interrupt_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
        with interrupt_deferred():
            done.append(2)
    assert done == [1, 2]


@pytest.mark.parametrize("told", [False, True])
def test_an_error_goes_on_and_the_next_block_ends_with_the_interrupt(*, told: bool) -> None:
    """Whether the error is of another rank, or this one tells it: who handles it hears of Ctrl-C none the less."""
    came: list[int] = []

    def handler(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    with handled_by(handler):
        if told:
            with interrupt_deferred(past_error=True):
                signal.raise_signal(signal.SIGINT)
        else:
            with pytest.raises(ZeroDivisionError), interrupt_deferred():
                signal.raise_signal(signal.SIGINT)
                raise ZeroDivisionError
        assert came == [], "the error goes on"
        with pytest.raises(KeyboardInterrupt), interrupt_deferred():
            pass
        assert came == [signal.SIGINT]
        with interrupt_deferred():
            pass
        assert came == [signal.SIGINT], "once"


def test_where_there_is_nothing_to_defer() -> None:
    """In another thread, and where Python does not handle it."""
    seen = []

    def elsewhere() -> None:
        with interrupt_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    with handled_by(signal.default_int_handler):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    with handled_by(signal.SIG_IGN), interrupt_deferred():
        seen.append(signal.getsignal(signal.SIGINT))
    assert seen == [signal.default_int_handler, signal.SIG_IGN]


def test_a_collective_ends_before_it(ranks: Ranks) -> None:
    """In the midst of any: the others are told by the next one, which may be in their last pass, and the group works
    afterwards."""
    for told in ranks.run(fault_jobs.signalled, 3):
        assert len(told) >= 5
        assert set(told) == {"KeyboardInterrupt"}


@pytest.mark.parametrize("kind", ["exact", "full_scale", "sparse"])
def test_the_last_pass_of_a_fit_leaves_its_gp_on_every_rank(ranks: Ranks, kind: str) -> None:
    for name, same, count in ranks.run(fault_jobs.interrupted_at_the_end, 2, kind):
        assert name == "FitInterrupted"
        assert same
        assert count == 48  # it knows the noise of this rank's rows, and is conditioned on them
