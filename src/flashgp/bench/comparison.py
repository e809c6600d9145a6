"""Compare candidates that compute the same thing: time, peak memory and error of the same runs.

A fast wrong answer is no result: every timed run is checked against the reference at that run's own inputs, and a
candidate that fails once is refused, with the reason. How inputs vary between runs, and why a remembered answer then
shows, is in `inputs`; what counts as an answer, and that it was there when the clock stopped, in `answers`; how time
and memory are measured in `clocks` and `memory`.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from flashgp.bench.answers import Tensors, answer_error, answer_tensors, changed, distances, read
from flashgp.bench.clocks import Clock, WallClock
from flashgp.bench.inputs import LEVELS, Feed, InputSource, Perturb, calibrate, call
from flashgp.bench.memory import PeakMeter
from flashgp.bench.records import environment
from flashgp.bench.results import Candidate, Comparison, Run, format_seconds
from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError

APART = 2.0  # two answers within one tolerance of truths so many tolerances apart cannot be taken for each other
_LATE_SECONDS = 2e-4  # of reading that is no work yet: small answers in cold caches take up to 60 µs longer at first
_LATE_SHARE = 0.1  # of the timed call, likewise


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
        repeats: timed runs of each candidate.
        warmup: untimed runs of each candidate, which are checked and reported too.
        seed: of the order and of the variations. The global generators are not touched.
        perturb: True, see `inputs`; a function `(inputs, generator) -> inputs` for inputs whose structure the
            built-in variation would break; False turns it off, and then a remembered answer can win.
        clock: the one that decides; None: the synchronised wall clock.

    Returns:
        A Comparison, with one Candidate for each name, in the order given.

    Raises:
        DomainError: for unusable arguments, a reference that is not finite, or inputs that do not move it. Whatever
            the reference raises is passed on; what a candidate raises is the reason of its refusal.
    Cost: one call of the reference for each of a candidate, and a few to choose the steps; copies of the inputs and of
        two reference answers for each candidate.

    Example:
        >>> x = torch.rand(50, 3, dtype=torch.float64)
        >>> candidates = {"matmul": lambda x: x @ x.T, "closure": lambda x: lambda: x @ x.T}
        >>> found = fgp.bench.compare(candidates, (x,), reference=lambda x: torch.einsum("ik,jk->ij", x, x), repeats=2)
        >>> found["matmul"].accepted, found["closure"].accepted
        (True, False)
    """
    _check_arguments(candidates, reference, tolerance, repeats, warmup, perturb)
    source = InputSource(inputs, reference=reference, seed=seed, perturb=perturb)
    if tolerance is None:
        eps = [torch.finfo(leaf.base.dtype).eps for leaf in source.leaves if leaf.floating]
        tolerance = math.sqrt(max(eps, default=torch.finfo(torch.float64).eps))
    notes = [f"{name} is passed on as it is: not varied, and not checked for changes" for name in source.opaque]
    if perturb is True:
        notes += calibrate(source, tolerance)
    elif perturb is False:
        notes.append("inputs were the same in every run: a remembered answer would not be noticed")
    clock = WallClock() if clock is None else clock
    order = random.Random(seed)
    cuda = any(leaf.device.type == "cuda" for leaf in source.leaves)
    meter = PeakMeter(cuda=cuda, collect=False)  # the clock holds the collector off
    entrants = [_Entrant(name, function, source, tolerance, _levels(order)) for name, function in candidates.items()]
    for entrant in entrants:
        for _ in range(warmup):
            entrant.run(clock, meter, entrant.warmup_runs)
    for _ in range(repeats):
        order.shuffle(entrants)
        for entrant in entrants:
            entrant.run(clock, meter, entrant.runs)
    results = {entrant.name: entrant.result() for entrant in entrants}
    settings = {
        "inputs": source.describe(),
        "dtype": sorted({str(leaf.base.dtype).removeprefix("torch.") for leaf in source.leaves if leaf.floating}),
        "tolerance": float(tolerance),
        "repeats": repeats,
        "warmup": warmup,
        "seed": seed,
        "perturb": perturb if isinstance(perturb, bool) else "function",
        "clock": clock.name,
        "memory_method": meter.method,
    }
    return Comparison(tuple(results[name] for name in candidates), settings, environment(), tuple(notes))


class _Entrant:
    """A candidate while the comparison runs: fresh values, clock and meter around each call, then the checks."""

    def __init__(
        self, name: str, function: Callable[..., Any], source: InputSource, tolerance: float, levels: Iterator[int]
    ) -> None:
        self.name = name
        self._function, self._source, self._tolerance, self._levels = function, source, tolerance, levels
        self._feed = Feed(source)
        self._reason: str | None = None
        self.runs: list[Run] = []
        self.warmup_runs: list[Run] = []
        self._calls: list[float] = []
        self._late: list[float] = []
        self._kept: list[Tensors] = []  # what one that remembers would have: the first answer, the previous one
        self._apart = [False, False]  # whether each was ever told from the truth of a later run

    def run(self, clock: Clock, meter: PeakMeter, runs: list[Run]) -> None:
        """One run, appended to `runs` if its answer is right; else the reason of the refusal is noted."""
        if self._reason is not None:
            return
        values = self._source.draw(next(self._levels))
        structure = self._feed.load(values)
        try:
            with meter:
                answer, seconds = clock.measure(lambda: call(self._function, structure))
        except Exception as error:
            self._reason = f"raised {type(error).__name__}: {error}"
            return
        self._reason, tensors = answer_tensors(answer)
        if self._reason is not None:
            return
        numbers, late = read(tensors)
        mutation = self._feed.mutation()
        if mutation is not None:
            self._reason = f"mutated its inputs: {mutation}"
            return
        truth = self._source.truth(values)
        if changed(tensors, numbers):
            self._reason = (
                "changed its answer after the clock had stopped: its work was still going on; wait for it inside the "
                "call"
            )
            return
        self._reason, error_found = answer_error(numbers, truth, self._tolerance)
        if self._reason is None:
            runs.append(Run(seconds, meter.peak_bytes, error_found))
            self._calls.append(seconds)
            self._late.append(late)
            apart = [max(distances(kept, truth), default=0.0) > APART * self._tolerance for kept in self._kept]
            self._apart = [a or b for a, b in zip(self._apart, apart, strict=True)] if apart else self._apart
            self._kept = [*self._kept[:1], truth] if self._kept else [truth, truth]

    def result(self) -> Candidate:
        """Accepted, or refused also for what only all runs together show."""
        reason = self._reason or late_reason(self._calls, self._late)
        several = len(self.runs) + len(self.warmup_runs) > 1
        if reason is None and several and self._source.perturb is not False and not all(self._apart):
            reason = (
                "cannot be distinguished from one that remembers: its inputs moved the reference by less than two "
                "tolerances; pass a smaller tolerance or a stronger perturb"
            )
        warmup_seconds = sum(run.seconds for run in self.warmup_runs) if self.warmup_runs else None
        if reason is not None:
            return Candidate(self.name, False, reason, warmup_seconds=warmup_seconds, runs=tuple(self.runs))
        times = [run.seconds for run in self.runs]
        seconds = statistics.median(times)
        quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [seconds] * 3
        return Candidate(
            name=self.name,
            accepted=True,
            reason=None,
            seconds=seconds,
            spread=quartiles[2] - quartiles[0],
            peak_bytes=max(run.peak_bytes for run in self.runs),
            error=max(run.error for run in self.runs),
            warmup_seconds=warmup_seconds,
            runs=tuple(self.runs),
        )


def late_reason(calls: Sequence[float], late: Sequence[float]) -> str | None:
    """Reason to refuse a candidate whose answers were computed on reading, by seconds of its calls and of late work.

    The medians count, the lower where there are two: a run that the system interrupted proves nothing.
    """
    if not calls:
        return None
    call_seconds, work = statistics.median_low(calls), statistics.median_low(late)
    if work <= max(_LATE_SECONDS, _LATE_SHARE * call_seconds):
        return None
    return (
        f"computed its answer after the clock had stopped: the call took {format_seconds(call_seconds)}, reading its "
        f"result {format_seconds(work)} more; synchronise, or compute the numbers, inside the call"
    )


def _levels(order: random.Random) -> Iterator[int]:
    """Levels without end, none twice in a row."""
    level = order.choice(LEVELS)
    while True:
        yield level
        level = order.choice([other for other in LEVELS if other != level])


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
