"""What a suite is asked for, and what it measured: comparisons at several sizes, as a record, a table and text."""

import itertools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from flashgp.bench.comparison import compare
from flashgp.bench.formats import format_ratio, format_seconds, text_table
from flashgp.bench.pages import draw_curves, environment_section, save
from flashgp.bench.perturbation import Perturb
from flashgp.bench.records import environment
from flashgp.bench.results import Comparison
from flashgp.bench.suites.baselines import BROADCASTING
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.machine import available_bytes
from flashgp.page import Figure, Notes, Page, PageTable, Section
from flashgp.plots.axes import new_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_WIDTH, _HEIGHT = 8.0, 4.2  # inches of one group's curves
_BUILT = (
    "Building a closure or a lazy matrix takes the same microseconds whatever n is. Timed as if it were the matrix, it "
    'beats broadcasting by a factor as large as one likes; the numbers, under "really", take about as long as '
    "everybody else's.",
    "flashgp.bench.compare refuses what is no numbers; the reason is beside it.",
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


def _candidate_rows(finding: Finding) -> list[dict[str, Any]]:
    return [
        {
            "work": finding.work,
            "candidate": one.name,
            "seconds": one.seconds,
            "spread_seconds": one.spread,
            "ratio": finding.comparison.ratio(one),
            "error": one.error,
            "peak_bytes": one.peak_bytes,
            "verdict": one.verdict,
            **{f"{clock}_seconds": seconds for clock, seconds in one.clock_seconds.items()},
            "disagreements": one.disagreements,
        }
        for one in finding.comparison.candidates
    ]


@dataclass(frozen=True)
class Suite:
    """A question, the sizes and dtypes at which it is asked, and the function that measures the answer.

    Fields: columns, of the table of its record; rows, those of one finding.
    """

    name: str
    title: str
    question: str
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    run: Callable[[Options], "Comparisons"]
    allowed: tuple[str, ...] = ("float32", "float64")
    columns: tuple[Mapping[str, str], ...] = _COLUMNS
    rows: Callable[[Finding], list[dict[str, Any]]] = _candidate_rows

    def measure(self, options: Options | None = None) -> "Comparisons":
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


@dataclass(frozen=True)
class Comparisons:
    """Everything that a suite measured, with notes beside those of its findings."""

    suite: Suite
    findings: Sequence[Finding]
    more_notes: Sequence[str] = ()
    environment: Mapping[str, Any] = field(default_factory=environment)

    @property
    def notes(self) -> list[str]:
        """Of the findings, then of the suite."""
        return [*(note for finding in self.findings for note in finding.notes), *self.more_notes]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table of the record, by the suite's columns."""
        return [row for finding in self.findings for row in self.suite.rows(finding)]

    def record(self) -> dict[str, Any]:
        """Plain values, from which tables of documents are made."""
        return {
            **self.environment,
            "suite": self.suite.name,
            "title": self.suite.title,
            "question": self.suite.question,
            "columns": self.suite.columns,
            "rows": self.rows,
            "notes": self.notes,
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
        parts = [f"{self.suite.title}. {self.suite.question}"]
        for finding in self.findings:
            parts.append(f"{finding.work}\n{finding.comparison}")
            if finding.unevaluated:
                parts.append(text_table(*unevaluated_table(finding)))
        return "\n\n".join([*parts, *(f"note: {note}" for note in self.notes)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write curves of all groups to a .png, a page to a .html, the record to any other file.

        Raises: BackendUnavailableError without matplotlib; DomainError, OSError for a file that cannot be written.
        """
        save(path, self._plot, self._page, self.record)

    def _plot(self) -> "Axes":
        """The curves of every group, one below the other; returns the first axes."""
        groups = self._groups()
        panels = new_figure((_WIDTH, _HEIGHT * len(groups))).subplots(len(groups), 1, squeeze=False)[:, 0]
        for group, ax in zip(groups, panels, strict=True):
            self._draw(group, ax)
        first: Axes = panels[0]
        return first

    def _page(self) -> Page:
        tables = [(finding.work, *unevaluated_table(finding)) for finding in self.findings if finding.unevaluated]
        sections = []
        if tables:
            rows = [(work, *row) for work, _, entries in tables for row in entries]
            built = PageTable(("work", *tables[0][1]), rows, numeric=(2, 3, 4, 5))
            sections.append(Section("What was built, and what was computed", [Notes(_BUILT), built]))
        curves = [
            Figure.of(self._draw(group, new_axes(None, (_WIDTH, _HEIGHT))), f"Seconds against n, {group}.")
            for group in self._groups()
        ]
        sections.append(Section("Seconds against n", curves))
        sections += [finding.comparison.section(finding.work) for finding in self.findings]
        if self.notes:
            sections.append(Section("Notes", [Notes(self.notes)]))
        sections.append(environment_section(self.environment))
        return Page(self.suite.title, self.suite.question, self._highlights(), sections)

    def _groups(self) -> list[str]:
        return list(dict.fromkeys(finding.group for finding in self.findings))

    def _draw(self, group: str, ax: "Axes") -> "Axes":
        computed: dict[str, list[tuple[int, float]]] = {}
        built: dict[str, list[tuple[int, float]]] = {}
        for finding in self.findings:
            if finding.group == group:
                for one in finding.comparison.candidates:
                    if one.seconds is not None:
                        computed.setdefault(one.name, []).append((finding.size, one.seconds))
                for entry in finding.unevaluated:
                    built.setdefault(f"{entry.name} (no numbers)", []).append((finding.size, entry.seconds))
        draw_curves(ax, group, computed, built)
        return ax

    def _highlights(self) -> list[tuple[str, str]]:
        largest = max(self.findings, key=lambda finding: finding.size)
        best = largest.comparison.fastest
        built = [
            (format_seconds(entry.seconds), f"{entry.name}: no numbers, n={largest.size:,}")
            for entry in largest.unevaluated[:1]
        ]
        return built + ([(format_seconds(best.seconds), f"{best.name}, the fastest, {largest.work}")] if best else [])


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
