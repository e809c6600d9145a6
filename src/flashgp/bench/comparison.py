"""Compare candidates that compute the same thing: time, peak memory and error of the same runs.

A fast wrong answer is no result: every timed run is checked against the reference at that run's own inputs, and a
candidate that fails once is refused, with the reason. How inputs vary between runs, and why a remembered answer then
shows, is in `perturbation`; what counts as an answer in `verification`; how memory is measured in `memory`.
"""

import math
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flashgp.bench.calibration import TELLING, calibrate
from flashgp.bench.clock import Clock, WallClock
from flashgp.bench.formats import format_bytes, format_error, format_ratio, format_seconds, text_table
from flashgp.bench.memory import PeakMeter
from flashgp.bench.perturbation import LEVELS, Feed, InputSource, Perturb, call
from flashgp.bench.records import dumps, environment, write_record
from flashgp.bench.verification import Path, answer_error, distances, reference_tensors
from flashgp.foundations.errors import DomainError

__all__ = ["Candidate", "Comparison", "Run", "compare"]


@dataclass(frozen=True)
class Run:
    """One timed call and what that very call took and gave."""

    seconds: float
    peak_bytes: int
    error: float


@dataclass(frozen=True)
class Candidate:
    """The result of one candidate; `seconds`, `spread`, `peak_bytes` and `error` are None if it was refused.

    seconds: median over the runs. spread: interquartile range of the seconds. peak_bytes: the largest of the runs,
    above the level at entry, the result included. error: the largest of the runs, relative (see `verification`).
    warmup_seconds: all warm-up calls together. times: seconds of each run, in the order they were made.
    """

    name: str
    accepted: bool
    reason: str | None
    seconds: float | None
    spread: float | None
    peak_bytes: int | None
    error: float | None
    warmup_seconds: float | None
    runs: tuple[Run, ...] = ()

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of each timed run, also of those before a refusal."""
        return tuple(run.seconds for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; print it for a table, `comparison["name"]` is one candidate."""

    candidates: tuple[Candidate, ...]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Candidate:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        raise KeyError(f"no candidate {name!r}; there are {[candidate.name for candidate in self.candidates]}")

    @property
    def fastest(self) -> Candidate | None:
        """The accepted candidate with the smallest median, or None if all were refused."""
        accepted = [candidate for candidate in self.candidates if candidate.seconds is not None]
        return min(accepted, key=lambda candidate: candidate.seconds or 0.0, default=None)

    def claim(self, *, work: str, against: str, ours: str, peer: str, target: float | None = None) -> dict[str, Any]:
        """One row of a claims record: `ours` and `peer` name candidates, `ratio` is how many times faster ours is.

        Raises: DomainError if either was refused, since then nothing can be claimed.
        """
        ours_found, peer_found = self[ours], self[peer]
        for argument, candidate in (("ours", ours_found), ("peer", peer_found)):
            if candidate.seconds is None:
                raise DomainError(
                    f"`{argument}` must be an accepted candidate, got {candidate.name!r}, refused because it "
                    f"{candidate.reason}; correct the candidate before claiming anything"
                )
        assert ours_found.seconds is not None
        assert peer_found.seconds is not None
        ratio = peer_found.seconds / ours_found.seconds
        return {
            "work": work,
            "against": against,
            "ours_seconds": ours_found.seconds,
            "ours_spread_seconds": ours_found.spread,
            "peer_seconds": peer_found.seconds,
            "peer_spread_seconds": peer_found.spread,
            "ratio": ratio,
            "target": target,
            "met": None if target is None else ratio >= target,
            "error": ours_found.error,
            "peer_error": peer_found.error,
            "peak_bytes": ours_found.peak_bytes,
            "peer_peak_bytes": peer_found.peak_bytes,
            **{key: self.settings[key] for key in ("tolerance", "seed", "repeats", "inputs")},
        }

    def record(self) -> dict[str, Any]:
        """Everything as plain values: settings, sizes, candidates with all runs, notes, environment."""
        return {
            **self.environment,
            **self.settings,
            "candidates": [
                {
                    **{key: value for key, value in vars(candidate).items() if key != "runs"},
                    "times": list(candidate.times),
                    "runs": [vars(run) for run in candidate.runs],
                }
                for candidate in self.candidates
            ],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The record as JSON text."""
        return dumps(self.record())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to a file, atomically."""
        write_record(path, self.record())

    def __str__(self) -> str:
        best = self.fastest
        rows = []
        for candidate in sorted(self.candidates, key=lambda entry: (entry.seconds is None, entry.seconds or 0.0)):
            relative = None
            if best is not None and best.seconds and candidate.seconds is not None:
                relative = candidate.seconds / best.seconds
            rows.append(
                (
                    candidate.name,
                    format_seconds(candidate.seconds),
                    format_seconds(candidate.spread),
                    format_ratio(relative),
                    format_bytes(candidate.peak_bytes),
                    format_error(candidate.error),
                    format_seconds(candidate.warmup_seconds),
                    "accepted" if candidate.accepted else f"refused: {candidate.reason}",
                )
            )
        header = ("candidate", "median", "spread", "relative", "peak memory", "error", "warm-up", "verdict")
        lines = [text_table(header, rows)]
        lines.append(
            f"{self.settings['repeats']} interleaved runs, tolerance {self.settings['tolerance']:.1e}, "
            f"{self.settings['clock']} clock, memory by {self.settings['memory_method']}"
        )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


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
        repeats, warmup: timed and untimed runs of each candidate; the untimed ones are checked and reported too.
        seed: of the order and of the variations. The global generators are not touched.
        perturb: True, see `perturbation`; a function `(inputs, generator) -> inputs` for inputs whose structure the
            built-in variation would break; False turns it off, and then a remembered answer can win.
        clock: how to time; None: the synchronised wall clock.
    Returns: a Comparison, with one Candidate for each name, in the order given.
    Raises: DomainError for unusable arguments, a reference that is not finite, or inputs that do not move it. Whatever
        the reference raises is passed on; what a candidate raises is the reason of its refusal.
    Cost: (repeats + warmup) calls of each candidate, as many of the reference for each, and a few to choose the steps;
        copies of the inputs and of two reference answers for each candidate.
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
    order = random.Random(seed)
    bench = _Bench(source, reference, tolerance, clock)
    entrants = [_Entrant(name, function, Feed(source), _levels(order)) for name, function in candidates.items()]
    for entrant in entrants:
        for _ in range(warmup):
            bench.run(entrant, warming=True)
    for _ in range(repeats):
        order.shuffle(entrants)
        for entrant in entrants:
            bench.run(entrant, warming=False)
    if perturb is not False:
        for entrant in entrants:
            entrant.refuse_untold()
    results = {entrant.name: entrant.result() for entrant in entrants}
    settings = {
        "inputs": source.describe(),
        "dtype": sorted({str(leaf.base.dtype).removeprefix("torch.") for leaf in source.leaves if leaf.floating}),
        "tolerance": tolerance,
        "repeats": repeats,
        "warmup": warmup,
        "seed": seed,
        "perturb": perturb if isinstance(perturb, bool) else "function",
        "clock": clock.name,
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
        self._first: dict[Path, torch.Tensor] | None = None
        self._previous: dict[Path, torch.Tensor] | None = None
        self._first_told = False
        self._previous_told = False

    def remember(self, truth: dict[Path, torch.Tensor], tolerance: float) -> None:
        """Note whether an answer remembered from the first or from the previous run would have been found out now."""
        if self._first is None or self._previous is None:
            self._first = truth
        else:
            apart = TELLING * tolerance
            self._first_told = self._first_told or max(distances(self._first, truth), default=0.0) > apart
            self._previous_told = self._previous_told or max(distances(self._previous, truth), default=0.0) > apart
        self._previous = truth

    def refuse_untold(self) -> None:
        several = len(self.runs) + len(self.warmup_runs) > 1
        if self.reason is None and several and not (self._first_told and self._previous_told):
            self.reason = (
                "cannot be told from one that remembers: its inputs moved the reference by less than two tolerances; "
                "pass a smaller tolerance or a stronger perturb"
            )

    def result(self) -> Candidate:
        warmup_seconds = sum(run.seconds for run in self.warmup_runs) if self.warmup_runs else None
        if self.reason is not None:
            return Candidate(self.name, False, self.reason, None, None, None, None, warmup_seconds, tuple(self.runs))
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
        )


class _Bench:
    """One run of one candidate: fresh values, clock and meter around the call, then the checks."""

    def __init__(self, source: InputSource, reference: Any, tolerance: float, clock: Clock) -> None:
        self._source = source
        self._reference = reference
        self._tolerance = tolerance
        self._clock = clock
        self._cuda = any(leaf.device.type == "cuda" for leaf in source.leaves)
        self.memory_method: str | None = None

    def run(self, entrant: _Entrant, *, warming: bool) -> None:
        if entrant.reason is not None:
            return
        values = self._source.draw(next(entrant.levels))
        structure = entrant.feed.load(values)
        meter = PeakMeter(cuda=self._cuda, collect=False)  # the clock holds the collector off
        self.memory_method = meter.method
        try:
            with meter:
                answer, seconds = self._clock.measure(lambda: call(entrant.function, structure))
        except Exception as error:
            entrant.reason = f"raised {type(error).__name__}: {error}"
            return
        mutation = entrant.feed.mutation()
        if mutation is not None:
            entrant.reason = f"mutated its inputs: {mutation}"
            return
        truth = self._truth(values)
        entrant.reason, error_found = answer_error(answer, truth, self._tolerance)
        if entrant.reason is None:
            assert error_found is not None
            (entrant.warmup_runs if warming else entrant.runs).append(Run(seconds, meter.peak_bytes, error_found))
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
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            raise DomainError(
                f"`{name}` must be a whole number >= {least}, got {count!r}; leave it out for the default"
            )
