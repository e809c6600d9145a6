"""Compare candidates that compute the same thing: time, peak memory and error of the same runs.

A fast wrong answer is no result: every timed run is checked against the reference at that run's own inputs, and a
candidate that fails once is refused, with the reason. How inputs vary between runs, and why a remembered answer then
shows, is in `perturbation`; what counts as an answer in `verification`, and that it was there when the clock stopped in
`materialisation`; how memory is measured in `memory`; when clocks contradict each other in `agreement`.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from flashgp.bench.calibration import APART, calibrate
from flashgp.bench.candidate import Candidate, Run
from flashgp.bench.clocks import Clock, Clocks, WallClock, clocks_named, disagreement
from flashgp.bench.materialisation import late_reason, read
from flashgp.bench.memory import PeakMeter
from flashgp.bench.perturbation import LEVELS, Feed, InputSource, Perturb, call
from flashgp.bench.records import environment
from flashgp.bench.results import Comparison
from flashgp.bench.verification import Path, answer_error, answer_tensors, distances, reference_tensors
from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError

__all__ = ["compare"]

OTHER_RUNS = 3  # of each candidate under each further clock, at most: they confirm, they do not decide


def compare(
    candidates: Mapping[str, Callable[..., Any]],
    inputs: Any,
    *,
    reference: Any,
    tolerance: float | None = None,
    repeats: int = 5,
    warmup: int = 1,
    seed: int = 0,
    perturb: Perturb = True,
    clock: Clock | None = None,
    clocks: Clocks = (),
) -> Comparison:
    """Time candidates that compute the same thing, side by side, and refuse those that do not.

    Runs are interleaved (A B C, then again in another order), each with inputs of its own; peak memory and error are
    those of the timed call itself. The reference is computed after each run, for that run's inputs, so that it cannot
    warm a candidate's memory.

    Args:
        candidates: callables by name, each called with the inputs; each must return a dense tensor, or a tuple, list
            or dict of them, nested as the reference's.
        inputs: tuple of positional or dict of keyword arguments. Floating tensors and arrays are varied between runs;
            every candidate gets private copies, the same objects in each run. Gradients are cleared before a run.
        reference: callable of the same inputs giving the truth, best in float64; or a fixed value with `perturb=False`.
        tolerance: largest error accepted, relative to the largest magnitude of each tensor; None: the square root of
            eps of the coarsest floating input.
        repeats, warmup: timed and untimed runs of each candidate; the untimed ones are checked and reported too.
        seed: of the order and of the variations. The global generators are not touched.
        perturb: True, see `perturbation`; a function `(inputs, generator) -> inputs` for inputs whose structure the
            built-in variation would break; False turns it off, and then a remembered answer can win.
        clock: the one that decides; None: the synchronised wall clock.
        clocks: others beside it, each with runs of its own: 'events' (of the accelerator), 'profiler', a Clock, or
            'all' for every one that this machine offers. Where they disagree, the result says so: that work was not
            counted, if the smallest of three runs says so.
    Returns: a Comparison, with one Candidate for each name, in the order given.
    Raises: DomainError for unusable arguments, a reference that is not finite, or inputs that do not move it;
        BackendUnavailableError for a clock that this machine does not offer. Whatever the reference raises is passed
        on; what a candidate raises is the reason of its refusal.
    Cost: (repeats + warmup) calls of each candidate and up to three under each further clock, as many of the reference
        for each, and a few to choose the steps; copies of the inputs and of two reference answers for each candidate.

    Example:
        >>> x = torch.rand(50, 3, dtype=torch.float64)
        >>> candidates = {"matmul": lambda x: x @ x.T, "closure": lambda x: lambda: x @ x.T}
        >>> found = fgp.bench.compare(candidates, (x,), reference=lambda x: torch.einsum("ik,jk->ij", x, x), repeats=2)
        >>> found["matmul"].accepted, found["closure"].accepted
        (True, False)
    """
    _check_arguments(candidates, reference, tolerance, repeats, warmup, perturb)
    source = InputSource(inputs, seed=seed, perturb=perturb)
    tolerance = _default_tolerance(source) if tolerance is None else float(tolerance)
    notes = [f"{name} is passed on as it is: not varied, and not checked for changes" for name in source.opaque]
    if perturb is True:
        notes += calibrate(source, reference, tolerance)
    elif perturb is False:
        notes.append("inputs were the same in every run: a remembered answer would not be noticed")
    clock = WallClock() if clock is None else clock
    others = [other for other in clocks_named(clocks) if other.name != clock.name]
    order = random.Random(seed)
    bench = _Bench(source, reference, tolerance)
    entrants = [_Entrant(name, function, Feed(source), _levels(order)) for name, function in candidates.items()]
    for entrant in entrants:
        for _ in range(warmup):
            bench.run(entrant, clock, entrant.warmup_runs)
    for _ in range(repeats):
        order.shuffle(entrants)
        for entrant in entrants:
            bench.run(entrant, clock, entrant.runs)
    for other in others:
        for _ in range(min(repeats, OTHER_RUNS)):
            order.shuffle(entrants)
            for entrant in entrants:
                bench.run(entrant, other, entrant.other_runs.setdefault(other.name, []))
        for entrant in entrants:
            while entrant.doubts(other.name):
                bench.run(entrant, other, entrant.other_runs[other.name])
    for entrant in entrants:
        entrant.refuse_late()
        if perturb is not False:
            entrant.refuse_indistinct()
    results = {entrant.name: entrant.result(clock.name) for entrant in entrants}
    settings = {
        "inputs": source.describe(),
        "dtype": sorted({str(leaf.base.dtype).removeprefix("torch.") for leaf in source.leaves if leaf.floating}),
        "tolerance": tolerance,
        "repeats": repeats,
        "warmup": warmup,
        "seed": seed,
        "perturb": perturb if isinstance(perturb, bool) else "function",
        "clock": clock.name,
        "clocks": [other.name for other in others],
        "memory_method": bench.memory_method,
    }
    return Comparison(tuple(results[name] for name in candidates), settings, environment(), tuple(notes))


class _Entrant:
    """A candidate while the comparison runs."""

    def __init__(self, name: str, function: Callable[..., Any], feed: Feed, levels: Iterator[int]) -> None:
        self.name = name
        self.function = function
        self.feed = feed
        self.levels = levels
        self.reason: str | None = None
        self.runs: list[Run] = []
        self.warmup_runs: list[Run] = []
        self.other_runs: dict[str, list[Run]] = {}
        self.overhead: dict[str, float] = {}
        self.calls: list[float] = []
        self.late: list[float] = []
        self._first: dict[Path, torch.Tensor] | None = None
        self._previous: dict[Path, torch.Tensor] | None = None
        self._first_apart = False
        self._previous_apart = False

    def remember(self, truth: dict[Path, torch.Tensor], tolerance: float) -> None:
        """Note whether an answer remembered from the first or the previous run would differ from the truth now."""
        if self._first is None or self._previous is None:
            self._first = truth
        else:
            apart = APART * tolerance
            self._first_apart = self._first_apart or max(distances(self._first, truth), default=0.0) > apart
            self._previous_apart = self._previous_apart or max(distances(self._previous, truth), default=0.0) > apart
        self._previous = truth

    def refuse_indistinct(self) -> None:
        several = len(self.runs) + len(self.warmup_runs) > 1
        if self.reason is None and several and not (self._first_apart and self._previous_apart):
            self.reason = (
                "cannot be distinguished from one that remembers: its inputs moved the reference by less than two "
                "tolerances; pass a smaller tolerance or a stronger perturb"
            )

    def refuse_late(self) -> None:
        if self.reason is None:
            self.reason = late_reason(self.calls, self.late)

    def doubts(self, other: str) -> bool:
        """Whether another clock disagrees after fewer than OTHER_RUNS runs, which may be its start or other work."""
        times = [run.seconds for run in self.other_runs.get(other, ())]
        if self.reason is not None or not 0 < len(times) < OTHER_RUNS:
            return False
        seconds = statistics.median(run.seconds for run in self.runs)
        return min(times) > seconds and disagreement("", seconds, "", min(times), self.overhead[other]) is not None

    def result(self, decides: str) -> Candidate:
        warmup_seconds = sum(run.seconds for run in self.warmup_runs) if self.warmup_runs else None
        if self.reason is not None:
            return Candidate(self.name, False, self.reason, None, None, None, None, warmup_seconds, tuple(self.runs))
        others = {name: tuple(run.seconds for run in runs) for name, runs in self.other_runs.items()}
        times = [run.seconds for run in self.runs]
        quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
        return Candidate(
            name=self.name,
            accepted=True,
            reason=None,
            seconds=statistics.median(times),
            spread=quartiles[2] - quartiles[0],
            peak_bytes=max(run.peak_bytes for run in self.runs),
            error=max(run.error for run in self.runs),
            warmup_seconds=warmup_seconds,
            runs=tuple(self.runs),
            clock_times=others,
            disagreements=self._disagreements(decides, statistics.median(times), others),
        )

    def _disagreements(self, decides: str, seconds: float, others: Mapping[str, tuple[float, ...]]) -> dict[str, str]:
        lines = {}
        for name, times in others.items():
            # Work that a clock does not count is missing in every run: more is only believed if all runs say so.
            middle = statistics.median(times)
            other = middle if middle <= seconds else max(seconds, min(times))
            line = disagreement(decides, seconds, name, other, self.overhead[name])
            if line is not None:
                lines[name] = line
        return lines


class _Bench:
    """One run of one candidate: fresh values, clock and meter around the call, then the checks."""

    def __init__(self, source: InputSource, reference: Any, tolerance: float) -> None:
        self._source = source
        self._reference = reference
        self._tolerance = tolerance
        self._cuda = any(leaf.device.type == "cuda" for leaf in source.leaves)
        self.memory_method: str | None = None

    def run(self, entrant: _Entrant, clock: Clock, runs: list[Run]) -> None:
        """One run, appended to `runs` if its answer is right; else the reason of the refusal is noted."""
        if entrant.reason is not None:
            return
        values = self._source.draw(next(entrant.levels))
        structure = entrant.feed.load(values)
        meter = PeakMeter(cuda=self._cuda, collect=False)  # the clock holds the collector off
        self.memory_method = meter.method
        try:
            with meter:
                answer, seconds = clock.measure(lambda: call(entrant.function, structure))
        except Exception as error:
            entrant.reason = f"raised {type(error).__name__}: {error}"
            return
        entrant.reason, tensors = answer_tensors(answer)
        if entrant.reason is not None:
            return
        reading = read(tensors)
        mutation = entrant.feed.mutation()
        if mutation is not None:
            entrant.reason = f"mutated its inputs: {mutation}"
            return
        truth = self._truth(values)
        if reading.changed(tensors):
            entrant.reason = (
                "changed its answer after the clock had stopped: its work was still going on; wait for it inside the "
                "call"
            )
            return
        entrant.reason, error_found = answer_error(reading.tensors, truth, self._tolerance)
        if entrant.reason is None:
            assert error_found is not None
            runs.append(Run(seconds, meter.peak_bytes, error_found))
            entrant.calls.append(seconds)
            entrant.late.append(reading.late_seconds)
            entrant.overhead[clock.name] = getattr(clock, "overhead_seconds", 0.0)
            entrant.remember(truth, self._tolerance)

    def _truth(self, values: list[torch.Tensor]) -> dict[Path, torch.Tensor]:
        if callable(self._reference):
            return reference_tensors(self._source.call(self._reference, values))
        return reference_tensors(self._reference)


def _levels(order: random.Random) -> Iterator[int]:
    """Levels without end, none twice in a row."""
    level = order.choice(LEVELS)
    while True:
        yield level
        level = order.choice([other for other in LEVELS if other != level])


def _default_tolerance(source: InputSource) -> float:
    eps = [torch.finfo(leaf.base.dtype).eps for leaf in source.leaves if leaf.floating]
    return math.sqrt(max(eps, default=torch.finfo(torch.float64).eps))


def _check_arguments(
    candidates: Any, reference: Any, tolerance: float | None, repeats: int, warmup: int, perturb: Any
) -> None:
    if not isinstance(candidates, Mapping) or not candidates or not all(map(callable, candidates.values())):
        raise DomainError(
            f"`candidates` must be a mapping from names to callables, at least one, got {candidates!r}; "
            'write `{"name": function}`'
        )
    if not (isinstance(perturb, bool) or callable(perturb)):
        raise DomainError(f"`perturb` must be True, False or a function, got {perturb!r}; leave it out")
    if not callable(reference) and perturb is not False:
        raise DomainError(
            f"`reference` must be a callable while inputs are varied, got {type(reference).__name__}; pass the "
            "function that computes the truth, or `perturb=False` for one fixed value"
        )
    if tolerance is not None and not (tolerance >= 0 and math.isfinite(tolerance)):
        raise DomainError(f"`tolerance` must be a number >= 0, got {tolerance!r}; pass 1e-6 for six digits")
    for name, count, least in (("repeats", repeats, 1), ("warmup", warmup, 0)):
        check_count(count, name, least)
