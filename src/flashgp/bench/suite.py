"""A suite of `flashgp bench`: comparisons at several sizes, made in one loop, as text or a record."""

import functools
import importlib.util
import itertools
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from flashgp.bench.answers import answer_tensors
from flashgp.bench.clocks import WallClock
from flashgp.bench.comparison import compare
from flashgp.bench.inputs import Perturb
from flashgp.bench.records import environment
from flashgp.bench.results import Candidate, Comparison, format_ratio, format_seconds, text_table
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.machine import available_bytes

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_BUILDS = 21  # of each thing without numbers; the median counts
_COLUMNS = {
    "work": "work",
    "candidate": "candidate",
    "seconds": "median",
    "spread_seconds": "spread",
    "ratio": "of the fastest",
    "error": "error",
    "peak_bytes": "peak memory",
    "verdict": "verdict",
}
_BUILT = ("no numbers", "building it", '"faster" than broadcasting', "its numbers", "really", "refused because it")


@dataclass(frozen=True)
class Options:
    """Options of a suite; sizes, dtypes and devices that are empty are the suite's own, or all there are."""

    sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    repeats: int = 5
    peers: bool = True  # whether other libraries that are installed take part
    seed: int = 0
    progress: Callable[[str], None] = lambda line: None  # called before each comparison

    @property
    def grid(self) -> list[tuple[str, str, int]]:
        """Every (device, dtype, size)."""
        return list(itertools.product(self.devices, self.dtypes, self.sizes))


@dataclass(frozen=True)
class Problem:
    """One comparison to make.

    Fields:
        group: what stays the same over sizes ("float32, cpu").
        candidates, inputs, reference, tolerance, perturb: as in `compare`.
        needed_bytes: of candidates that may be large: they are left out where more is needed than is free.
        unevaluated: by name, the candidate that computes the numbers, and what only builds something without any.
    """

    group: str
    size: int
    candidates: Mapping[str, Callable[..., Any]]
    inputs: Any
    reference: Callable[..., Any]
    tolerance: float
    needed_bytes: Mapping[str, int] = field(default_factory=dict)
    perturb: Perturb = True
    unevaluated: Mapping[str, tuple[str, Callable[..., Any]]] = field(default_factory=dict)

    @property
    def work(self) -> str:
        return f"n={self.size:,}, {self.group}"


@dataclass(frozen=True)
class Finding:
    """One comparison of a suite; `unevaluated`: refused, with the seconds that building them takes."""

    problem: Problem
    comparison: Comparison
    notes: tuple[str, ...]
    unevaluated: tuple[Candidate, ...]

    def built(self) -> list[tuple[str, ...]]:
        """Rows below _BUILT: what building something without numbers takes, and what its numbers take."""
        medians = {one.name: one.seconds for one in self.comparison.candidates}
        baseline = medians.get("broadcasting")
        rows: list[tuple[str, ...]] = []
        for one in self.unevaluated:
            cells = []
            for seconds in (one.seconds, medians.get(self.problem.unevaluated[one.name][0])):
                cells += [format_seconds(seconds), format_ratio(baseline / seconds if baseline and seconds else None)]
            rows.append((one.name, *cells, str(one.reason).split(",")[0]))
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """Rows of each candidate and of what was not evaluated, below _COLUMNS."""
        return [
            {
                "work": self.problem.work,
                "candidate": one.name,
                "seconds": one.seconds,
                "spread_seconds": one.spread,
                "ratio": self.comparison.ratio(one),
                "error": one.error,
                "peak_bytes": one.peak_bytes,
                "verdict": one.verdict,
            }
            for one in (*self.comparison.candidates, *self.unevaluated)
        ]


@dataclass(frozen=True)
class Suite:
    """A question, the sizes and dtypes at which it is asked, and the problems that answer it.

    Fields:
        problems: those of some options, given a module of GPyTorch or None where it takes no part.
        peer: whether GPyTorch would take part.
    """

    name: str
    title: str
    question: str
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    problems: Callable[[Options, Any], Iterable[Problem]]
    allowed: tuple[str, ...] = ("float32", "float64")
    peer: bool = True

    def measure(self, options: Options) -> "Comparisons":
        """Run it. Raises: DomainError, BackendUnavailableError for options that cannot be met."""
        for size in options.sizes:
            if size < 2:
                raise DomainError(f"`sizes` must be at least 2 rows, got {size}; pass more, such as 1000")
        for dtype in options.dtypes:
            if dtype not in self.allowed:
                raise DomainError(
                    f"`dtypes` of {self.name} must be among {', '.join(self.allowed)}, got {dtype!r}; correct it"
                )
        full = replace(
            options,
            sizes=options.sizes or self.sizes,
            dtypes=options.dtypes or self.dtypes,
            devices=available_devices(options.devices),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other libraries
            gpytorch = peer("gpytorch") if self.peer and options.peers else None
            findings = [compared(problem, full) for problem in self.problems(full, gpytorch)]
        notes = [note for finding in findings for note in finding.notes]
        if self.peer and options.peers and gpytorch is None:
            notes.append("GPyTorch is not installed, so it takes no part; pip install 'flashgp[peers]'")
        return Comparisons(self, findings, notes)


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of a suite."""

    suite: Suite
    findings: Sequence[Finding]
    notes: Sequence[str]

    def record(self) -> dict[str, Any]:
        """Plain values, from which tables of documents are made."""
        made = environment()
        return {
            **made,
            "suite": self.suite.name,
            "title": self.suite.title,
            "question": self.suite.question,
            "columns": [{"key": key, "title": title} for key, title in _COLUMNS.items()],
            "rows": [row for finding in self.findings for row in finding.rows()],
            "notes": self.notes,
            "comparisons": [
                {
                    "group": finding.problem.group,
                    "size": finding.problem.size,
                    **{key: value for key, value in finding.comparison.record().items() if key not in made},
                }
                for finding in self.findings
            ],
        }

    def __str__(self) -> str:
        parts = [f"{self.suite.title}. {self.suite.question}"]
        for finding in self.findings:
            parts.append(f"{finding.problem.work}\n{finding.comparison}")
            if finding.unevaluated:
                parts.append(text_table(_BUILT, finding.built()))
        return "\n\n".join([*parts, *(f"note: {note}" for note in self.notes)])


@torch.no_grad()
def compared(problem: Problem, options: Options) -> Finding:
    """Compare, without gradients; candidates that need more bytes than are free are left out and noted."""
    free = available_bytes(torch.device("cpu"))
    large = {name: size for name, size in problem.needed_bytes.items() if size > free and name in problem.candidates}
    notes = tuple(
        f"{problem.work}: {name} left out, it would take {size / 2**30:.1f} GiB with {free / 2**30:.1f} GiB free"
        for name, size in large.items()
    )
    options.progress(problem.work)
    comparison = compare(
        {name: function for name, function in problem.candidates.items() if name not in large},
        problem.inputs,
        reference=problem.reference,
        tolerance=problem.tolerance,
        repeats=options.repeats,
        seed=options.seed,
        perturb=problem.perturb,
    )
    built = []
    for name, (_, make) in problem.unevaluated.items():
        runs = [WallClock().measure(functools.partial(make, *problem.inputs)) for _ in range(_BUILDS)]
        reason, _ = answer_tensors(runs[-1][0])
        seconds = statistics.median(seconds for _, seconds in runs)
        built.append(Candidate(name, False, reason or "returned numbers", seconds))
    return Finding(problem, comparison, notes, tuple(built))


def peer(name: str) -> Any | None:
    """Another library, or None when it is not installed."""
    if importlib.util.find_spec(name) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def available_devices(devices: Sequence[str]) -> tuple[str, ...]:
    """The devices given, or every one there is. Raises: DomainError, BackendUnavailableError."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    available = ("cpu",) if accelerator is None else ("cpu", accelerator.type)
    for device in devices:
        if device not in ("auto", "cpu", "cuda", "mps", "xpu"):
            raise DomainError(f"`device` must be auto, cpu, cuda, mps or xpu, got {device!r}; correct it")
        if device != "auto" and device not in available:
            raise BackendUnavailableError(
                f"`device` names {device!r}, which this machine or this build of torch does not have "
                f"(it has {', '.join(available)}); leave it out"
            )
    return available if not devices or "auto" in devices else tuple(dict.fromkeys(devices))
