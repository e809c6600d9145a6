"""Several L-BFGS-B runs in lockstep: each runs SciPy unchanged in a thread of its own, and their evaluations meet.

SciPy's optimiser calls its objective; here that call waits until every run that is still going has asked, and then all
are evaluated in one batch. The result of each run depends on its own evaluations only, never on thread timing.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy

from flashgp.foundations.errors import NotPositiveDefiniteError

__all__ = ["Outcome", "Stopped", "run_lockstep"]

Evaluation = tuple[float, numpy.ndarray]
Outcome = Evaluation | NotPositiveDefiniteError


class Stopped(Exception):  # noqa: N818 - not an error: how a run is told to end
    """Raised inside a run when the whole is stopped."""


class _Meeting:
    """Where runs hand in vectors and wait for values."""

    def __init__(self, count: int) -> None:
        self.condition = threading.Condition()
        self.active = count
        self.asked: dict[int, numpy.ndarray] = {}
        self.answered: dict[int, Outcome] = {}
        self.stopped = False
        self.failed: BaseException | None = None

    def ask(self, run: int, theta: numpy.ndarray) -> Outcome:
        with self.condition:
            if self.stopped:
                raise Stopped
            self.asked[run] = theta.copy()
            self.condition.notify_all()
            self.condition.wait_for(lambda: run in self.answered or self.stopped)
            if run in self.answered:
                return self.answered.pop(run)
            raise Stopped

    def leave(self) -> None:
        with self.condition:
            self.active -= 1
            self.condition.notify_all()


def run_lockstep(
    starts: list[numpy.ndarray],
    minimise: Callable[[int, numpy.ndarray, Callable[[numpy.ndarray], Outcome]], Any],
    evaluate: Callable[[dict[int, numpy.ndarray]], dict[int, Outcome]],
) -> None:
    """Run `minimise(run, start, ask)` for every start; `evaluate` gets the vectors of all waiting runs at once.

    `evaluate` is called in the caller's thread, so that an interrupt lands there; when it raises, every run is
    stopped before the exception goes on. One start runs without any thread.
    """
    if len(starts) == 1:
        minimise(0, starts[0], lambda theta: evaluate({0: theta})[0])
        return
    meeting = _Meeting(len(starts))

    def work(run: int, start: numpy.ndarray) -> None:
        try:
            minimise(run, start, lambda theta: meeting.ask(run, theta))
        except Stopped:
            pass
        except BaseException as error:
            meeting.failed = error
        finally:
            meeting.leave()

    threads = [
        threading.Thread(target=work, args=(run, start), name=f"flashgp-start-{run}", daemon=True)
        for run, start in enumerate(starts)
    ]
    for thread in threads:
        thread.start()
    try:
        while True:
            with meeting.condition:
                meeting.condition.wait_for(lambda: len(meeting.asked) >= meeting.active)
                if meeting.active == 0:
                    break
                asked = dict(sorted(meeting.asked.items()))
                meeting.asked.clear()
            answers = evaluate(asked)
            with meeting.condition:
                meeting.answered.update(answers)
                meeting.condition.notify_all()
    finally:
        with meeting.condition:
            meeting.stopped = True
            meeting.condition.notify_all()
        for thread in threads:
            thread.join()
    if meeting.failed is not None:
        raise meeting.failed
