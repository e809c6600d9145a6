"""What a suite is asked for, and what it measured: comparisons at several sizes, as a record, a table and text."""

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from flashgp.bench.comparison import compare
from flashgp.bench.formats import format_ratio, format_seconds, text_table
from flashgp.bench.perturbation import Perturb
from flashgp.bench.records import environment
from flashgp.bench.results import Comparison
from flashgp.bench.suites.baselines import BROADCASTING
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.machine import available_bytes

__all__ = [
    "DTYPES",
    "Comparisons",
    "Finding",
    "Options",
    "Problem",
    "Suite",
    "Unevaluated",
    "available_devices",
    "measure",
    "unevaluated_table",
    "without_gradient",
]

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_COLUMNS = (
    {"key": "work", "title": "work"},
    {"key": "candidate", "title": "candidate"},
    {"key": "seconds", "title": "median"},
    {"key": "spread_seconds", "title": "spread"},
    {"key": "ratio", "title": "of the fastest"},
    {"key": "error", "title": "error"},
    {"key": "peak_bytes", "title": "peak memory"},
    {"key": "verdict", "title": "verdict"},
)


@dataclass(frozen=True)
class Options:
    """What a suite is asked for.

    Fields:
        sizes: rows; empty: the suite's own.
        dtypes: among DTYPES; empty: the suite's own.
        devices: "cpu" and accelerators; empty: every device there is.
        repeats: timed runs of each candidate under the clock that decides.
        clocks: those beside it, as in `compare`.
        peers: whether other libraries that are installed take part.
        seed: of data, order and variations.
        progress: called with a line before each comparison.
    """

    sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    repeats: int = 5
    clocks: str | tuple[str, ...] = "all"
    peers: bool = True
    seed: int = 0
    progress: Callable[[str], None] = lambda line: None

    @property
    def problems(self) -> list[tuple[str, str, int]]:
        """(device, dtype, size) of every one."""
        return list(itertools.product(self.devices, self.dtypes, self.sizes))


@dataclass(frozen=True)
class Problem:
    """One comparison to make; `group` is what stays the same over sizes ("float32, cpu"), the rest as in `compare`.

    `needed_bytes` are of candidates that may be large: they are left out where more is needed than is free.
    """

    group: str
    size: int
    inputs: Any
    reference: Callable[..., Any]
    tolerance: float
    needed_bytes: Mapping[str, int] = field(default_factory=dict)
    perturb: Perturb = True


@dataclass(frozen=True)
class Unevaluated:
    """Something built without computing a number, the reason why it is refused, and the candidate that computes it."""

    name: str
    seconds: float
    reason: str
    evaluated_by: str


@dataclass(frozen=True)
class Finding:
    """One comparison of a suite, at one size of a group."""

    group: str
    size: int
    comparison: Comparison
    notes: tuple[str, ...] = ()
    unevaluated: tuple[Unevaluated, ...] = ()

    @property
    def work(self) -> str:
        return f"n={self.size:,}, {self.group}"


@dataclass(frozen=True)
class Comparisons:
    """Everything that a suite measured; `columns` and `rows` make the table of its record."""

    name: str
    title: str
    question: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    columns: tuple[Mapping[str, str], ...] = _COLUMNS
    own_rows: tuple[Mapping[str, Any], ...] | None = None
    environment: Mapping[str, Any] = field(default_factory=environment)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The suite's own rows, else one for each candidate."""
        if self.own_rows is not None:
            return list(self.own_rows)
        return [row for finding in self.findings for row in _rows(finding)]

    def record(self) -> dict[str, Any]:
        """Plain values, from which tables of documents are made."""
        return {
            **self.environment,
            "suite": self.name,
            "title": self.title,
            "question": self.question,
            "columns": [dict(column) for column in self.columns],
            "rows": [dict(row) for row in self.rows],
            "notes": list(self.notes),
            "comparisons": [
                {
                    "group": finding.group,
                    "size": finding.size,
                    "unevaluated": [vars(entry) for entry in finding.unevaluated],
                    **{k: v for k, v in finding.comparison.record().items() if k not in self.environment},
                }
                for finding in self.findings
            ],
        }

    def text(self) -> str:
        """For a terminal."""
        parts = [f"{self.title}. {self.question}"]
        for finding in self.findings:
            parts.append(f"{finding.work}\n{finding.comparison}")
            if finding.unevaluated:
                parts.append(text_table(*unevaluated_table(finding)))
        return "\n\n".join([*parts, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Suite:
    """A question, the sizes and dtypes at which it is asked, and the function that measures the answer."""

    name: str
    title: str
    question: str
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    run: Callable[[Options], Comparisons]
    allowed: tuple[str, ...] = ("float32", "float64")

    def measure(self, options: Options | None = None) -> Comparisons:
        """Run it. Raises: DomainError, BackendUnavailableError for options that cannot be met."""
        options = Options() if options is None else options
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
            return self.run(full)

    def comparisons(self, findings: Sequence[Finding], notes: Sequence[str] = (), **table: Any) -> Comparisons:
        """The findings under the suite's name, with their notes and the suite's own."""
        notes = [*(note for finding in findings for note in finding.notes), *notes]
        return Comparisons(self.name, self.title, self.question, tuple(findings), tuple(notes), **table)


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


def measure(problem: Problem, candidates: Mapping[str, Callable[..., Any]], options: Options) -> Finding:
    """Compare, without gradients; candidates that need more bytes than are free are left out and noted."""
    free = available_bytes(torch.device("cpu"))
    large = {name: size for name, size in problem.needed_bytes.items() if size > free and name in candidates}
    work = f"n={problem.size:,}, {problem.group}"
    notes = tuple(
        f"{work}: {name} left out, it would take {size / 2**30:.1f} GiB with {free / 2**30:.1f} GiB free"
        for name, size in large.items()
    )
    options.progress(work)
    comparison = compare(
        {name: without_gradient(function) for name, function in candidates.items() if name not in large},
        problem.inputs,
        reference=problem.reference,
        tolerance=problem.tolerance,
        repeats=options.repeats,
        warmup=1,
        seed=options.seed,
        perturb=problem.perturb,
        clocks=options.clocks,
    )
    return Finding(problem.group, problem.size, comparison, notes)


def without_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under `torch.no_grad`."""

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            return function(*inputs)

    return run


def unevaluated_table(finding: Finding) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows: what building something without numbers takes, and what its numbers take."""
    seconds = {one.name: one.seconds for one in finding.comparison.candidates}
    baseline = seconds.get(BROADCASTING)
    rows: list[tuple[str, ...]] = []
    for entry in finding.unevaluated:
        evaluated = seconds.get(entry.evaluated_by)
        rows.append(
            (
                entry.name,
                format_seconds(entry.seconds),
                _speedup(baseline, entry.seconds),
                format_seconds(evaluated),
                _speedup(baseline, evaluated),
                entry.reason.split(",")[0],
            )
        )
    head = ("no numbers", "building it", '"faster" than broadcasting', "its numbers", "really", "refused because it")
    return head, rows


def _speedup(slower: float | None, seconds: float | None) -> str:
    return format_ratio(slower / seconds if slower and seconds else None)


def _rows(finding: Finding) -> list[dict[str, Any]]:
    best = finding.comparison.fastest
    rows = []
    for one in finding.comparison.candidates:
        ratio = one.seconds / best.seconds if one.seconds and best is not None and best.seconds else None
        rows.append(
            {
                "work": finding.work,
                "candidate": one.name,
                "seconds": one.seconds,
                "spread_seconds": one.spread,
                "ratio": ratio,
                "error": one.error,
                "peak_bytes": one.peak_bytes,
                "verdict": "accepted" if one.accepted else f"refused: {one.reason}",
                **{f"{clock}_seconds": seconds for clock, seconds in one.clock_seconds.items()},
                "disagreements": list(one.disagreements),
            }
        )
    return rows
