"""A search by minibatches, for rows of which a time limit allows too few passes, eq. (M-241).

    before      Fisher scoring on a random sample whose rows count for all of them, (M-240) (fit.py)
    steps       a batch of random rows moves q(u) by a natural-gradient step, whose size is that of the best weighted
                mean (minibatch.py), and the parameters by a step of Adam; 32 batches are a window, whose mean bound
                says whether the steps bring anything: where it shows no gain they are halved, where it has fallen they
                go on from the best window. They end where they are small, or with their share of the time.
    learning    q(u) from as many random rows as the rest of the time allows, at the parameters found; after one epoch
                it is the optimum, as a pass over all rows gives it.

Nobody sets a step size. The inducing points are chosen before the steps and again before learning, as pivots.
Source: Salimbeni, Eleftheriadis & Hensman (2018), Natural gradients in practice, for natural-gradient steps of q(u)
beside Adam's of the parameters; Kingma & Ba (2015) for Adam; Polyak & Juditsky (1992) for means of iterates.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.minibatch import InducingValues, RowMeans, minibatch_bound
from flashgp.inference.streamed.objective import StreamedLogJoint, block_rows
from flashgp.inference.training.history import Recorder, Run, Stage, TimeUp
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.settings import MinibatchSettings
from flashgp.sources.shuffled import ShuffledRows
from flashgp.sources.survey import Block, Moments, Survey

F64 = torch.float64
Array = numpy.ndarray
RUN = Run(Stage.MINIBATCHES)
TINY = numpy.finfo(numpy.float64).tiny
STEPS, LEARNING = 1, 2  # streams of random orders


@dataclass
class _Walk:
    """Where the steps are, between two windows.

    Fields: theta; mean and square, Adam's averages of the gradient and its square; step; taken, steps since Adam began;
    batches and windows so far; best, the mean vector of the best window, value and error its mean bound and standard
    error, nats a row; gain and gain_error, of the last window over the best before; q.
    """

    theta: Array
    step: float
    mean: Array = field(init=False)
    square: Array = field(init=False)
    best: Array = field(init=False)
    taken: int = 0
    batches: int = 0
    windows: int = 0
    value: float = -math.inf
    error: float = 0.0
    gain: float = 0.0
    gain_error: float = math.inf
    q: InducingValues | None = None

    def __post_init__(self) -> None:
        self.mean, self.square, self.best = numpy.zeros_like(self.theta), numpy.zeros_like(self.theta), self.theta

    NUMBERS = ("step", "taken", "batches", "windows", "value", "error", "gain", "gain_error")

    def arrays(self) -> dict[str, Array]:
        """For a checkpoint."""
        assert self.q is not None
        numbers = numpy.array([float(getattr(self, name)) for name in self.NUMBERS])
        vectors = {"theta": self.theta, "mean": self.mean, "square": self.square, "best": self.best}
        return {"numbers": numbers, **vectors, **{f"q.{name}": array for name, array in _arrays(self.q).items()}}

    @classmethod
    def of(cls, arrays: dict[str, Array], inducing: Tensor) -> "_Walk":
        """The inverse. Raises: KeyError, ValueError for what is no such state."""
        walk = cls(arrays["theta"], 0.0)
        walk.mean, walk.square, walk.best = (arrays[name] for name in ("mean", "square", "best"))
        for name, number in zip(cls.NUMBERS, arrays["numbers"].tolist(), strict=True):
            setattr(walk, name, int(number) if name in ("taken", "batches", "windows") else number)
        of_q = {name.removeprefix("q."): array for name, array in arrays.items() if name.startswith("q.")}
        walk.q = _values_of(of_q, inducing)
        return walk


class MinibatchSearch:
    """The steps; windows are evaluations of the recorder, and its checkpoint has where they are.

    Args:
        problem: of the sample of the rows, whose parameters are moved.
        survey: the rows.
        recorder: of all evaluations, whose deadline ends the steps.
        settings: that tune them.
        seed: of the order of the rows.
    Fields: walk, where the steps are; batch, rows of one. Cost of a step: as `minibatch_bound`.
    """

    def __init__(
        self, problem: Problem, survey: Survey, recorder: Recorder, settings: MinibatchSettings, seed: int
    ) -> None:
        self.problem, self.survey, self.recorder, self.settings, self.seed = problem, survey, recorder, settings, seed
        self.walk: _Walk | None = None
        self.batch = 0

    def run(self, theta: Array, points: Tensor) -> Array:
        """The vector found from another one, with inducing points (m, d). Raises: TimeUp, with `recorder.reached`."""
        settings, recorder = self.settings, self.recorder
        objective = StreamedLogJoint(self.problem, self.survey, points)
        walk = self.walk = self._resumed(points) or _Walk(theta.copy(), settings.first_step)
        rows = ShuffledRows(self.survey, settings.batch_rows(len(points)), (self.seed, STEPS))
        self.batch = rows.size
        recorder.begin(self.survey.count)
        recorder.reached = walk.best
        window = _Window()
        if walk.step < settings.last_step:
            return walk.best
        for block in rows.batches(walk.batches, self._check):
            self._check()
            self._step(walk, window, objective, block)
            if len(window.values) == settings.window:
                self._end(walk, window)
                window = _Window()
            if walk.step < settings.last_step:
                break
        return walk.best

    def _check(self) -> None:
        if self.recorder.deadline.passed():
            raise TimeUp

    def _resumed(self, points: Tensor) -> _Walk | None:
        """Where the checkpoint was, its windows put into the history."""
        log = self.recorder.evaluations
        if not log.has(str(RUN)):
            return None
        entries, state = log.replay(str(RUN)), log.state
        try:
            walk = _Walk.of(state, points.detach())
        except (KeyError, ValueError):
            walk = None
        if walk is None or walk.windows != len(entries):
            log.forget()
            return None
        self.recorder.reached = walk.best
        for theta, value, gradient in entries:
            self.recorder.record(RUN, theta, value, gradient, state=state)
        return walk

    def _step(self, walk: _Walk, window: "_Window", objective: StreamedLogJoint, block: Block) -> None:
        """One batch: q(u) and, after the first window, the parameters."""
        settings, n = self.settings, self.survey.count
        walk.batches += 1
        objective.parameters.assign(walk.theta)
        block = block.to(objective.points.device)
        try:
            with torch.enable_grad():
                found = minibatch_bound(self.problem.prior, block.x, block.y, n, objective.points, walk.q)
                extra, slope = objective.pull((found.value,), (torch.ones_like(found.value),))
        except NotPositiveDefiniteError:
            self.recorder.failures += 1
            walk.step *= settings.shrink
            self._back(walk)
            return
        prior, by_prior = objective.priors.value_and_gradient(walk.theta)
        value, gradient = (found.value.item() + extra + prior) / n, (slope + by_prior) / n
        window.add(value if walk.q is not None else None, walk.theta, gradient)
        walk.q = found.q
        if walk.windows == 0 or not numpy.isfinite(gradient).all():
            return  # q(u) first
        unit = objective.parameters.units(walk.theta)
        low, high = objective.parameters.bounds()
        scaled = gradient * unit
        walk.taken += 1
        walk.mean = walk.mean + (1.0 - settings.mean_decay) * (scaled - walk.mean)
        walk.square = walk.square + (1.0 - settings.square_decay) * (scaled**2 - walk.square)
        mean = walk.mean / (1.0 - settings.mean_decay**walk.taken)
        square = walk.square / (1.0 - settings.square_decay**walk.taken)
        move = walk.step * mean / numpy.sqrt(numpy.maximum(square, TINY))
        walk.theta = numpy.clip(walk.theta + unit * move, low, high)

    def _end(self, walk: _Walk, window: "_Window") -> None:
        """What a window's mean says, eq. (M-241)."""
        settings = self.settings
        value, error = window.mean_and_error()
        walk.windows += 1
        walk.gain, walk.gain_error = value - walk.value, math.hypot(error, walk.error)
        if walk.windows > 1 and walk.gain < walk.gain_error:
            walk.step *= settings.shrink
        if walk.gain < -settings.worse * walk.gain_error:
            self._back(walk)
        elif walk.gain > 0.0:
            walk.best, walk.value, walk.error = window.theta, value, error
        self.recorder.reached = walk.best
        n = self.survey.count
        self.recorder.record(RUN, window.theta, -n * value, -n * window.gradient, state=walk.arrays())

    def _back(self, walk: _Walk) -> None:
        """To the best window; q(u) follows with the next batches, (M-194)."""
        walk.theta, walk.taken = walk.best.copy(), 0
        walk.mean, walk.square = numpy.zeros_like(walk.theta), numpy.zeros_like(walk.theta)


class _Window:
    """Values of some batches, each at the q(u) before it, and the means of their vectors and gradients."""

    def __init__(self) -> None:
        self.values: list[float | None] = []
        self._theta: list[Array] = []
        self._gradient: list[Array] = []

    def add(self, value: float | None, theta: Array, gradient: Array) -> None:
        self.values.append(value)
        self._theta.append(theta)
        self._gradient.append(gradient)

    @property
    def theta(self) -> Array:
        return numpy.mean(self._theta, axis=0)

    @property
    def gradient(self) -> Array:
        return numpy.mean(self._gradient, axis=0)

    def mean_and_error(self) -> tuple[float, float]:
        """Of the later half in the first window, where q(u) is made."""
        known = [value for value in self.values if value is not None]
        known = known if len(known) == len(self.values) else known[len(known) // 2 :]
        return mean_and_error(known)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean of numbers and its standard error, infinite for fewer than two."""
    if len(values) < 2:
        return (values[0] if values else -math.inf), math.inf
    return float(numpy.mean(values)), float(numpy.std(values, ddof=1)) / math.sqrt(len(values))


# -- learning ------------------------------------------------------------------------------------------------------
class LearnedValues(NamedTuple):
    """q(u) of the rows seen. Fields: bound and error, an estimate of the bound there, nats a row, None where nothing
    says; gap, nats a row to the best q(u), at most; shift, standard errors by which the column of the largest one is
    off, and its number, those of y after those of x."""

    q: InducingValues
    bound: float | None
    error: float | None
    gap: float | None
    shift: tuple[float, int]

    @property
    def whole(self) -> bool:
        """Whether it has learned every row once."""
        return self.q.seen == self.q.count


@torch.no_grad()
def learned_values(
    prior: Prior, survey: Survey, points: Tensor, seed: int, deadline: Deadline, smallest: int
) -> LearnedValues:
    """q(u) at the prior's parameters, from as many random rows as time allows, each once, eq. (M-241).

    Args: smallest, rows of a batch at least. Where there is no time for a batch, the sample of the survey is learned.
    Cost: for each batch of b rows b m evaluations and 3.25 b m^2 + 1.7 m^3 flops.
    """
    n, m = survey.count, len(points)
    size = max(smallest, min(block_rows(m), n // 16))
    q: InducingValues | None = None
    values: list[float] = []
    seen: tuple[Moments, Moments] | None = None

    def check() -> None:
        if deadline.passed():
            raise TimeUp

    try:
        for block in ShuffledRows(survey, size, (seed, LEARNING)).epoch(0, check):
            check()
            here = Moments.of(block.x), Moments.of(block.y.reshape(len(block.y), -1))
            block = block.to(points.device)
            found = minibatch_bound(prior, block.x, block.y, n, points, q)
            if q is not None:
                values.append(found.value.item() / n)
            q = found.q
            seen = here if seen is None else (seen[0].joined(here[0]), seen[1].joined(here[1]))
    except TimeUp:
        pass
    if q is None or seen is None:
        sample = survey.sample.to(points.device)
        q = minibatch_bound(prior, sample.x, sample.y, n, points, None).q
        return LearnedValues(q, None, None, None, (0.0, 0))
    if q.seen == n:
        return LearnedValues(q, q.sums.lower / n, 0.0, 0.0, (0.0, 0))
    shift = _shift(survey, seen, q.seen)
    later = values[len(values) // 2 :]
    if len(later) < 2:
        return LearnedValues(q, None, None, None, shift)
    bound, error = mean_and_error(later)
    return LearnedValues(q, bound, error, max(0.0, q.sums.lower / n - bound), shift)


def _shift(survey: Survey, seen: tuple[Moments, Moments], count: int) -> tuple[float, int]:
    """The largest distance of a column's mean from that of all rows, in standard errors of a random part."""
    of_mean = math.sqrt(1.0 / count - 1.0 / survey.count)
    both = zip((survey.x_moments, survey.y_moments), seen, strict=True)
    errors = torch.cat([(part.mean - whole.mean).abs() / (whole.scale * of_mean) for whole, part in both])
    worst = int(errors.argmax())
    return float(errors[worst]), worst


# -- checkpoints ---------------------------------------------------------------------------------------------------
_MEANS = ("squares", "logs", "left")
_VALUES = ("count", "seen", "step_size", "remembered", "scatter", "drift", "noise", "bound")


def _arrays(q: InducingValues) -> dict[str, Array]:
    means = [float(getattr(q.means, name)) for name in _MEANS]
    values = [math.nan if getattr(q, name) is None else float(getattr(q, name)) for name in _VALUES]
    tensors = {"gram": q.means.gram, "projected": q.means.projected, "x": q.sample.x, "y": q.sample.y}
    tensors |= {f"place.{at}": tensor for at, tensor in enumerate(q.place)}
    return {"numbers": numpy.array([*means, *values])} | {
        name: tensor.detach().numpy(force=True) for name, tensor in tensors.items()
    }


def _values_of(arrays: dict[str, Array], inducing: Tensor) -> InducingValues:
    """The inverse. Raises: KeyError, ValueError."""
    numbers = dict(zip((*_MEANS, *_VALUES), arrays["numbers"].tolist(), strict=True))
    tensors = {name: torch.from_numpy(array).to(inducing.device) for name, array in arrays.items() if name != "numbers"}
    place = sorted((name for name in tensors if name.startswith("place.")), key=lambda name: int(name[6:]))
    means = RowMeans(tensors["gram"], tensors["projected"], *(numbers[name] for name in _MEANS))
    return InducingValues(
        int(numbers["count"]), int(numbers["seen"]), inducing, numbers["step_size"], numbers["remembered"],
        numbers["scatter"], numbers["drift"], means, numbers["noise"],
        None if math.isnan(numbers["bound"]) else numbers["bound"], tuple(tensors[name] for name in place),
        Block(tensors["x"], tensors["y"]),
    )  # fmt: skip
