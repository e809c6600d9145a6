"""The history of a fit: what was evaluated, what a progress callback sees, the log that makes it resumable."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.inference.training.lockstep import Outcome

__all__ = ["Evaluation", "Progress", "Recorder", "TimeUp"]

log = logging.getLogger("flashgp.fit")
Measure = Literal["log joint", "gain"]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the objective: run, counter within it, seconds since the beginning, value (nats), largest
    gradient entry, the unconstrained vector, and what the value is.

    measure: "log joint", or "gain" where gradients of many rows are estimated and no value is computed: then it is how
    much the log joint of the run's rows has grown since the run's first gradient, integrated from the gradients, and
    only values of one run compare.
    """

    start: str
    index: int
    seconds: float
    value: float
    gradient_norm: float
    theta: tuple[float, ...]
    measure: Measure = "log joint"


@dataclass(frozen=True)
class Progress:
    """What a progress callback sees: phase, evaluations so far, run, best value, largest gradient entry of the latest
    evaluation, seconds so far, an upper estimate of the seconds left (None at first), fraction done, and what the best
    value is of: the log joint of the phase's rows, or its gain in this run (see Evaluation)."""

    phase: str
    evaluation: int
    start: str
    best: float
    gradient_norm: float
    seconds: float
    eta_seconds: float | None
    fraction: float
    measure: Measure = "log joint"


class TimeUp(Exception):  # noqa: N818 - not an error
    """The time limit of a fit has passed: the best so far is its answer."""


@dataclass
class Recorder:
    """Counts, logs and reports evaluations of all phases. reached: where the last phase that is done ended."""

    evaluations: EvaluationLog
    progress: Callable[[Progress], None] | None
    deadline: float
    expected: int
    began: float = field(default_factory=time.perf_counter)
    history: list[Evaluation] = field(default_factory=list)
    best: dict[str, tuple[float, numpy.ndarray]] = field(default_factory=dict)
    failures: int = 0
    phase: str = ""
    reached: numpy.ndarray | None = None

    def record_round(self, outcomes: list[tuple[str, numpy.ndarray, Outcome]], measure: Measure = "log joint") -> None:
        """What was evaluated together: logged whole before anything can interrupt, then told one by one."""
        self.evaluations.add_round(
            [
                (run, theta, math.inf, numpy.zeros_like(theta))
                if isinstance(outcome, NotPositiveDefiniteError)
                else (run, theta, *outcome)
                for run, theta, outcome in outcomes
            ]
        )
        for run, theta, outcome in outcomes:
            self._record(run, theta, outcome, measure)

    def _record(self, run: str, theta: numpy.ndarray, outcome: Outcome, measure: Measure) -> None:
        if isinstance(outcome, NotPositiveDefiniteError):
            self.failures += 1
            return
        value, gradient = outcome
        norm = float(numpy.abs(gradient).max(initial=0.0))
        seconds = time.perf_counter() - self.began
        index = sum(1 for e in self.history if e.start == run) if len(self.history) < 10_000 else len(self.history)
        self.history.append(Evaluation(run, index, seconds, -value, norm, tuple(theta.tolist()), measure))
        if run not in self.best or value < self.best[run][0]:
            self.best[run] = (value, theta.copy())
        if self.progress is not None or log.isEnabledFor(logging.DEBUG):
            self._tell(run, norm, seconds, measure)
        self.check_time()

    def check_time(self) -> None:
        """Raises: TimeUp."""
        if time.perf_counter() - self.began > self.deadline:
            raise TimeUp

    def _tell(self, run: str, norm: float, seconds: float, measure: Measure) -> None:
        done = len(self.history)
        fraction = min(1.0, done / max(1, self.expected))
        label = run.split(" ")[0]
        alike = [run] if measure == "gain" else [key for key in self.best if key.split(" ")[0] == label]
        best = -min(self.best[key][0] for key in alike)
        eta = seconds / done * max(0, self.expected - done) if done > 2 else None
        log.debug("%s: evaluation %d, best %s %.4f, gradient %.2e", run, done, measure, best, norm)
        if self.progress is not None:
            self.progress(Progress(self.phase, done, run, best, norm, seconds, eta, fraction, measure))
