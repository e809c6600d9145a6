"""The history of a fit: what was evaluated, what a progress callback sees, the log that makes it resumable."""

import enum
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy

from flashgp.foundations.deadline import NO_DEADLINE, Deadline, TimeUp
from flashgp.foundations.events import Event
from flashgp.foundations.quantities import readable_seconds
from flashgp.foundations.workspace import Workspace
from flashgp.inference.threads import FreeCores
from flashgp.inference.training.checkpoint import EvaluationLog
from flashgp.processes.group import ALONE, Group

log = logging.getLogger("flashgp.fit")
Measure = Literal["log joint", "gain"]
T = TypeVar("T")
FACTORED_ROWS = 2000


class Stage(enum.Enum):
    """The rows of a run: a subset that weighs periods, one that chooses the start, the first of many rows, a larger
    part, all; all by a likelihood in place of the exact one; and a sample that counts for all by it."""

    PERIODS = "periods"
    SUBSET = "subset"
    FIRST_ROWS = "middle"
    PART = "part"
    ALL_ROWS = "start"
    APPROXIMATE = "approximate"
    WEIGHTED = "weighted sample"


class Reset(enum.Enum):
    """Parameters put back to their start by a search that begins once more from an optimum."""

    NONE = ""
    LENGTHSCALES = ", lengthscales reset"
    NOISE = ", noise reset"
    COLUMNS = ", a column tried"


class Solving(enum.Enum):
    """Solvers of estimated gradients, from the quickest to the one that serves last: iterations with float32 products,
    with float64 ones, such that ended before their goal, and a factor in float32 or float64."""

    ITERATIONS = ""
    FLOAT64_ITERATIONS = ", in float64"
    ROUGH_ITERATIONS = ", roughly"
    FLOAT32_FACTOR = ", by factors"
    FLOAT64_FACTOR = ", by float64 factors"

    @property
    def by_factor(self) -> bool:
        return self in (Solving.FLOAT32_FACTOR, Solving.FLOAT64_FACTOR)


@dataclass(frozen=True)
class SearchRun:
    """One search: its stage and number (of a start, or of rows), and how it differs; its text names it in histories
    and checkpoints."""

    stage: Stage
    number: int = 0
    reset: Reset = Reset.NONE
    solving: Solving = Solving.ITERATIONS

    def __str__(self) -> str:
        return f"{self.stage.value} {self.number}{self.reset.value}{self.solving.value}"


@dataclass(frozen=True)
class HistoryEntry:
    """One evaluation of the objective: run, counter within it, seconds since the beginning, value (nats), largest
    gradient entry, the unconstrained vector, and what the value is; start, the run's name.

    measure: "log joint", or "gain" where gradients of many rows are estimated and no value is computed: then it is how
    much the log joint of the run's rows has grown since the run's first gradient, integrated from the gradients, and
    only values of one run compare.
    """

    run: SearchRun
    index: int
    seconds: float
    value: float
    gradient_norm: float
    theta: tuple[float, ...]
    measure: Measure = "log joint"

    @property
    def start(self) -> str:
        return str(self.run)


@dataclass(frozen=True)
class Progress:
    """Argument of a progress callback: phase, evaluations so far, run, best value, largest gradient entry of the latest
    evaluation, seconds so far, about how many are left (None where nothing says), fraction done, and what the best
    value is of: the log joint of the phase's rows, or its gain in this run (see HistoryEntry)."""

    phase: str
    evaluation: int
    start: str
    best: float
    gradient_norm: float
    seconds: float
    eta_seconds: float | None
    fraction: float
    measure: Measure = "log joint"

    def __str__(self) -> str:
        text = f"{self.phase}: step {self.evaluation}, {readable_seconds(self.seconds)}"
        return text if self.eta_seconds is None else f"{text}, about {readable_seconds(self.eta_seconds)} left"


def power_law(seconds: float, rows: int, power: int) -> Callable[[int], float]:
    """Seconds of any number of rows, given those of one."""
    return lambda other: seconds * (other / rows) ** power


@dataclass
class Recorder:
    """Counts, logs and reports evaluations of all stages.

    Fields: expected, evaluations of each stage by its rows, roughly, and what one costs, in any unit; best, (value,
    vector) of each run; counts, evaluations of each run; failures, vectors without one; phase; rows, of the stage that
    runs; reached, where the last finished stage ended; events, for the report; group, whose ranks search together;
    information, a plan's seconds of the Fisher information of so many rows;
    next_seconds, what work would have taken that did not begin, and what was left, where the time was not up yet.
    """

    evaluations: EvaluationLog
    progress: Callable[[Progress], None] | None = None
    deadline: Deadline = NO_DEADLINE
    expected: dict[int, tuple[float, float]] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    history: list[HistoryEntry] = field(default_factory=list)
    best: dict[SearchRun, tuple[float, numpy.ndarray]] = field(default_factory=dict)
    counts: dict[SearchRun, int] = field(default_factory=dict)
    failures: int = 0
    phase: str = ""
    reached: numpy.ndarray | None = None
    events: list[Event] = field(default_factory=list)
    group: Group = ALONE
    information: Callable[[int], float] | None = field(init=False, default=None)
    next_seconds: tuple[float, float] | None = field(init=False, default=None)
    free_cores: FreeCores = field(init=False)
    rows: int = field(init=False, default=0)
    _work: float = field(init=False, default=0.0)  # of all evaluations so far
    # Of evaluations whose cost grows with that power of the rows: seconds and rows of the last, and what a plan says.
    _pace: dict[int, tuple[float, int]] = field(init=False, default_factory=dict)
    _prices: dict[int, Callable[[int], float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.free_cores = FreeCores(self.note)

    def begin(self, rows: int) -> None:
        """A stage of so many rows."""
        self.rows, self.phase = rows, f"fitting {rows:,} rows"

    def expect(self, price: Callable[[int], float], power: int) -> None:
        """Record a plan's cost of an evaluation of so many rows, which grows with that power of them."""
        self._prices[power] = price

    def seconds_of(self, rows: int, power: int) -> float:
        """Seconds of an evaluation of so many rows, (M-243): by the plan until one like it was measured, then as that
        one, times the plan's ratio for their rows, or else the power of them; 0 where nothing is known."""
        price, pace = self._prices.get(power), self._pace.get(power)
        if price is not None:
            seconds = price(rows)
            if pace is None or price(pace[1]) <= 0.0:
                return seconds
            return pace[0] * max(1.0, seconds / price(pace[1]))
        pace = pace or next(iter(self._pace.values()), None)
        return 0.0 if pace is None else pace[0] * max(1.0, rows / pace[1]) ** power

    def slowdown(self, power: int) -> float:
        """Measured over planned seconds of the last evaluation that grows with this power of the rows; at least 1."""
        price, pace = self._prices.get(power), self._pace.get(power)
        if price is None or pace is None or price(pace[1]) <= 0.0:
            return 1.0
        return max(1.0, pace[0] / price(pace[1]))

    def evaluate(
        self,
        objective: Callable[[numpy.ndarray], T],
        theta: numpy.ndarray,
        rows: int,
        power: int = 3,
        workspace: Workspace | None = None,
    ) -> T:
        """An objective of so many rows, unless it would end after the deadline.

        Args: workspace: where it works; what compiling took of its time says nothing of the next evaluation.
        Raises: TimeUp; what the objective raises.
        """
        self.require(rows, power)
        began, compiled = self.deadline.clock(), 0.0 if workspace is None else workspace.compile_seconds
        with self.free_cores.block(rows):
            evaluation = objective(theta)
        once = 0.0 if workspace is None else workspace.compile_seconds - compiled
        self._pace[power] = max(0.0, self.deadline.clock() - began - once), rows
        return evaluation

    def require(self, rows: int, power: int = 3, evaluations: float = 1.0, *, beside: float = 0.0) -> None:
        """Time for work of so many evaluations, and so many seconds beside. Raises: TimeUp."""
        seconds = beside + evaluations * self.seconds_of(rows, power)
        if self.deadline.passed(seconds):
            left = self.deadline.left
            self.next_seconds = (seconds, left) if left > 0.0 else None
            raise TimeUp

    def require_information(self, rows: int) -> None:
        """Time for the Fisher information of so many rows, where a plan says what it takes. Raises: TimeUp."""
        if self.information is not None:
            self.require(rows, evaluations=0.0, beside=self.slowdown(3) * self.information(rows))

    def best_of(self, stage: Stage) -> tuple[SearchRun, float, numpy.ndarray] | None:
        """The run of a stage with the lowest value, that value and its vector; None where none was evaluated."""
        runs = [run for run in self.best if run.stage is stage]
        best = min(runs, key=lambda run: self.best[run][0], default=None)
        return None if best is None else (best, *self.best[best])

    def note(self, event: Event) -> None:
        """An event for the report, once."""
        if event not in self.events:
            self.events.append(event)

    def record_failure(self, run: SearchRun, theta: numpy.ndarray) -> None:
        """A vector without an evaluation."""
        self.evaluations.add(str(run), theta, math.inf, numpy.zeros_like(theta))
        self.failures += 1

    def record(
        self,
        run: SearchRun,
        theta: numpy.ndarray,
        value: float,
        gradient: numpy.ndarray,
        measure: Measure = "log joint",
    ) -> None:
        """One evaluation: logged before anything can interrupt, then reported. Raises: TimeUp."""
        self.evaluations.add(str(run), theta, value, gradient)
        norm = float(numpy.abs(gradient).max(initial=0.0))
        seconds = time.perf_counter() - self.began
        index = self.counts.get(run, 0)
        self.counts[run] = index + 1
        self._work += self._cost
        self.history.append(HistoryEntry(run, index, seconds, -value, norm, tuple(theta.tolist()), measure))
        if run not in self.best or value < self.best[run][0]:
            self.best[run] = (value, theta.copy())
        if self.progress is not None or log.isEnabledFor(logging.DEBUG):
            self._report(run, norm, seconds, measure)
        if self.deadline.passed():
            raise TimeUp

    @property
    def _cost(self) -> float:
        """Seconds of an evaluation of the running stage."""
        return self._cost_of(self.rows)

    def _cost_of(self, rows: int) -> float:
        return self.expected[rows][1] if rows in self.expected else work(rows)

    def worth(self, rows: int) -> float:
        """Evaluations of so many rows that all evaluations so far are worth; no clock tells."""
        return self._work / self._cost_of(rows)

    def _report(self, run: SearchRun, norm: float, seconds: float, measure: Measure) -> None:
        done = len(self.history)
        fraction = self._work / max(1.0, self._work, sum(count * cost for count, cost in self.expected.values()))
        comparable = [run] if measure == "gain" else [other for other in self.best if other.stage is run.stage]
        best = -min(self.best[other][0] for other in comparable)
        left = max(0.0, self.deadline.left)
        eta = min(seconds * (1.0 / fraction - 1.0), left) if done > 2 and fraction < 1.0 else None
        log.debug("%s: evaluation %d, best %s %.4f, gradient %.2e", run, done, measure, best, norm)
        if self.progress is not None:
            self.progress(Progress(self.phase, done, str(run), best, norm, seconds, eta, fraction, measure))


def work(rows: int) -> float:
    """Cost of an evaluation, in any unit: n^3, and n^2 beyond the rows that factors are made of."""
    return float(max(rows, 1)) ** 2 * min(max(rows, 1), FACTORED_ROWS)
