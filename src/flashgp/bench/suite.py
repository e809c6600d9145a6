"""A suite of `flashgp bench`: comparisons at several sizes, made in one loop, as a record, a table, text or a page."""

import importlib.util
import itertools
import os
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flashgp.bench.answers import answer_tensors
from flashgp.bench.clocks import WallClock
from flashgp.bench.comparison import compare
from flashgp.bench.inputs import Perturb
from flashgp.bench.records import environment, write_record
from flashgp.bench.results import Comparison, format_ratio, format_seconds, text_table
from flashgp.foundations.atomic import write_whole
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.machine import available_bytes
from flashgp.page import Facts, Figure, Notes, Page, PageTable, Section, write_page
from flashgp.plots import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_WIDTH, _HEIGHT = 8.0, 4.2  # inches of one group's curves
_BUILDS = 21  # of each thing without numbers; the median counts
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
_BUILT = ("no numbers", "building it", '"faster" than broadcasting', "its numbers", "really", "refused because it")
_BUILT_NOTES = (
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
        unevaluated: by name, the candidate that computes the numbers, and a function of the inputs that only builds
            something without any.
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

    @property
    def seconds(self) -> dict[str, float | None]:
        """The median of every candidate, by its name."""
        return {one.name: one.seconds for one in self.comparison.candidates}

    def built(self) -> list[tuple[str, ...]]:
        """Rows below _BUILT: what building something without numbers takes, and what its numbers take."""
        baseline = self.seconds.get("broadcasting")
        rows: list[tuple[str, ...]] = []
        for entry in self.unevaluated:
            evaluated = self.seconds.get(entry.evaluated_by)
            building, really = (format_ratio(ratio(baseline, other)) for other in (entry.seconds, evaluated))
            times = (format_seconds(entry.seconds), building, format_seconds(evaluated), really)
            rows.append((entry.name, *times, entry.reason.split(",")[0]))
        return rows


def ratio(slower: float | None, seconds: float | None) -> float | None:
    """How many times faster; None if either was refused."""
    return slower / seconds if slower and seconds else None


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
    """A question, the sizes and dtypes at which it is asked, and the problems that answer it.

    Fields:
        problems: those of some options, given a module of GPyTorch or None where it takes no part.
        peer: whether GPyTorch would take part.
        columns: of the table of its record; rows: those of one finding.
    """

    name: str
    title: str
    question: str
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    problems: Callable[[Options, Any], Iterable[Problem]]
    allowed: tuple[str, ...] = ("float32", "float64")
    peer: bool = True
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
            gpytorch = peer("gpytorch") if self.peer and options.peers else None
            findings = [compared(problem, full) for problem in self.problems(full, gpytorch)]
        absent = "GPyTorch is not installed, so it takes no part; pip install 'flashgp[peers]'"
        return Comparisons(self, findings, [absent] if self.peer and options.peers and gpytorch is None else [])


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


@torch.no_grad()
def compared(problem: Problem, options: Options) -> Finding:
    """Compare, without gradients; candidates that need more bytes than are free are left out and noted."""
    free = available_bytes(torch.device("cpu"))
    large = {name: size for name, size in problem.needed_bytes.items() if size > free and name in problem.candidates}
    work = f"n={problem.size:,}, {problem.group}"
    notes = tuple(
        f"{work}: {name} left out, it would take {size / 2**30:.1f} GiB with {free / 2**30:.1f} GiB free"
        for name, size in large.items()
    )
    options.progress(work)
    comparison = compare(
        {name: function for name, function in problem.candidates.items() if name not in large},
        problem.inputs,
        reference=problem.reference,
        tolerance=problem.tolerance,
        repeats=options.repeats,
        seed=options.seed,
        perturb=problem.perturb,
        clocks=options.clocks,
    )
    entries = tuple(_build(name, make, problem.inputs, by) for name, (by, make) in problem.unevaluated.items())
    return Finding(problem.group, problem.size, comparison, notes, entries)


def _build(name: str, make: Callable[..., Any], inputs: Any, evaluated_by: str) -> Unevaluated:
    """Median time of making something that is not numbers, and why `compare` refuses it."""
    runs = [WallClock().measure(lambda: make(*inputs)) for _ in range(_BUILDS)]
    reason, _ = answer_tensors(runs[-1][0])
    return Unevaluated(name, statistics.median(s for _, s in runs), reason or "returned numbers", evaluated_by)


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
                parts.append(text_table(_BUILT, finding.built()))
        return "\n\n".join([*parts, *(f"note: {note}" for note in self.notes)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write curves of all groups to a .png, a page to a .html, the record to any other file, whole or not at all.

        Raises: BackendUnavailableError without matplotlib; DomainError, OSError for a file that cannot be written.
        """
        ending, groups = Path(path).suffix.lower(), list(dict.fromkeys(finding.group for finding in self.findings))
        if ending == ".png":
            panels = axes.new_figure((_WIDTH, _HEIGHT * len(groups))).subplots(len(groups), 1, squeeze=False)[:, 0]
            for group, ax in zip(groups, panels, strict=True):
                self._draw(group, ax)
            write_whole(path, Figure.of(panels[0], "").png)
        elif ending in (".html", ".htm"):
            write_page(path, self._page(groups))
        else:
            write_record(path, self.record())

    def _page(self, groups: Sequence[str]) -> Page:
        built = [(finding.work, *row) for finding in self.findings for row in finding.built()]
        sections = []
        if built:
            table = PageTable(("work", *_BUILT), built, numeric=(2, 3, 4, 5))
            sections.append(Section("What was built, and what was computed", [Notes(_BUILT_NOTES), table]))
        curves = [
            Figure.of(self._draw(group, axes.new_axes(None, (_WIDTH, _HEIGHT))), f"Seconds against n, {group}.")
            for group in groups
        ]
        sections.append(Section("Seconds against n", curves))
        for finding in self.findings:
            head, rows = finding.comparison.table()
            table = PageTable(head, rows, numeric=tuple(range(1, len(head) - 1)))
            sections.append(Section(finding.work, [table, Notes(finding.comparison.remarks())]))
        if self.notes:
            sections.append(Section("Notes", [Notes(self.notes)]))
        hardware, versions = self.environment["hardware"], self.environment["versions"]
        facts = {
            "processor": f"{hardware['cpu']}, {hardware['cores']} cores",
            "accelerators": ", ".join(gpu["name"] for gpu in hardware["gpus"]) or "none",
            "threads": str(self.environment["threads"]),
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "commit": self.environment["commit"] or "-",
            "date": self.environment["date"],
        }
        sections.append(Section("Measured on", [Facts(list(facts.items()))]))
        return Page(self.suite.title, self.suite.question, (), sections)

    def _draw(self, group: str, ax: "Axes") -> "Axes":
        """Median seconds against n, both logarithmic; dotted and grey, what is built without numbers."""
        computed: dict[str, list[tuple[int, float]]] = {}
        built: dict[str, list[tuple[int, float]]] = {}
        for finding in self.findings:
            if finding.group == group:
                for name, seconds in finding.seconds.items():
                    if seconds is not None:
                        computed.setdefault(name, []).append((finding.size, seconds))
                for entry in finding.unevaluated:
                    built.setdefault(f"{entry.name} (no numbers)", []).append((finding.size, entry.seconds))
        for k, (name, points) in enumerate([*computed.items(), *built.items()]):
            n, times = zip(*sorted(points), strict=True)
            look: dict[str, Any] = {"color": axes.COLOURS[k % len(axes.COLOURS)], "marker": "o", "linestyle": "-"}
            if name in built:
                look = {"color": axes.GREY, "marker": "xv+"[k % 3], "linestyle": ":"}
            ax.plot(n, times, label=axes.plain(name), markersize=4, linewidth=1.4, **look)
        ax.set_xscale("log")
        ax.set_yscale("log")
        sizes = sorted({finding.size for finding in self.findings if finding.group == group})
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
        ax.minorticks_off()
        axes.style(ax, "n", "seconds, median", group)
        axes.legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return ax
