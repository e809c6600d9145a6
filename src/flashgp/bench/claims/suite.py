"""What a suite is asked for, and what it found: comparisons of several sizes, as a record, a table and text."""

import itertools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from flashgp.bench.comparison import compare
from flashgp.bench.formats import format_ratio, format_seconds, text_table
from flashgp.bench.perturbation import Perturb
from flashgp.bench.records import environment, write_record
from flashgp.bench.results import Comparison
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.machine import available_bytes

__all__ = [
    "BROADCASTING",
    "DTYPES",
    "VMAP",
    "Built",
    "Finding",
    "Options",
    "Outcome",
    "Speaker",
    "Suite",
    "built_rows",
    "devices_named",
    "measure",
    "quiet",
]

BROADCASTING, VMAP = "broadcasting", "nested vmap"  # plain torch, always there
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
Speaker = Callable[[str], None]
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

    Fields: sizes (rows); dtypes, among DTYPES; devices, "cpu" and accelerators; repeats of each candidate under the
    clock that decides; clocks beside it, as in `compare`; peers, whether installed ones take part; seed. Empty sizes,
    dtypes and devices mean the suite's own, and every device there is.
    """

    sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    repeats: int = 5
    clocks: str | tuple[str, ...] = "all"
    peers: bool = True
    seed: int = 0

    @property
    def problems(self) -> list[tuple[str, str, int]]:
        """(device, dtype, size) of every one."""
        return list(itertools.product(self.devices, self.dtypes, self.sizes))


@dataclass(frozen=True)
class Built:
    """What takes this long to build without computing a number. Fields: reason, of its refusal; numbers, the candidate
    that computes what this one promises."""

    name: str
    seconds: float
    reason: str
    numbers: str


@dataclass(frozen=True)
class Finding:
    """One comparison of a suite. Fields: group, what stays the same over sizes ("float32, cpu"); size."""

    group: str
    size: int
    comparison: Comparison
    built: tuple[Built, ...] = ()

    @property
    def work(self) -> str:
        return f"n={self.size:,}, {self.group}"


@dataclass(frozen=True)
class Outcome:
    """Everything that a suite found.

    Fields: name; title; question, in a sentence; findings; notes; columns and own_rows, of the record from which
    documents are made, one row for each candidate if there are none.
    """

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
        """Of the record's table: the suite's own, else one for each candidate."""
        if self.own_rows is not None:
            return list(self.own_rows)
        return [row for finding in self.findings for row in _rows(finding)]

    def record(self) -> dict[str, Any]:
        """As plain values; `flashgp.bench.tables` makes a table of a document from it."""
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
                    "built": [vars(built) for built in finding.built],
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
            if finding.built:
                parts.append(text_table(*built_rows(finding)))
        return "\n\n".join([*parts, *(f"note: {note}" for note in self.notes)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, whole or not at all: a picture (.png), a page (.html) or the record (any other ending).

        Raises: BackendUnavailableError without matplotlib; DomainError, OSError for a file that cannot be written.
        """
        ending = Path(path).suffix.lower()
        if ending == ".png":
            from flashgp.bench.claims.pages import write_curves

            write_curves(path, self)
        elif ending in (".html", ".htm"):
            from flashgp.bench.claims.pages import outcome_page
            from flashgp.page import write_page

            write_page(path, outcome_page(self))
        else:
            write_record(path, self.record())


@dataclass(frozen=True)
class Suite:
    """One of the claims.

    Fields: name; title; question; sizes and dtypes, its own; run, from full options to comparisons and notes.
    """

    name: str
    title: str
    question: str
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    run: Callable[[Options, Speaker], Outcome]
    allowed: tuple[str, ...] = ("float32", "float64")

    def measure(self, options: Options | None = None, say: Speaker = lambda text: None) -> Outcome:
        """Measure it; `say` hears what comes next. Raises: DomainError, BackendUnavailableError for what it cannot."""
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
            devices=devices_named(options.devices),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peers
            return self.run(full, say)

    def outcome(self, findings: Sequence[Finding], notes: Sequence[str] = (), **own: Any) -> Outcome:
        """What it found, with its names."""
        return Outcome(self.name, self.title, self.question, tuple(findings), tuple(notes), **own)


def devices_named(devices: Sequence[str]) -> tuple[str, ...]:
    """The devices given, or every one there is. Raises: DomainError, BackendUnavailableError."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    there = ("cpu",) if accelerator is None else ("cpu", accelerator.type)
    for device in devices:
        if device not in ("auto", "cpu", "cuda", "mps", "xpu"):
            raise DomainError(f"`device` must be auto, cpu, cuda, mps or xpu, got {device!r}; correct it")
        if device != "auto" and device not in there:
            raise BackendUnavailableError(
                f"`device` names {device!r}, which this machine or this build of torch does not have "
                f"(it has {', '.join(there)}); leave it out"
            )
    return there if not devices or "auto" in devices else tuple(dict.fromkeys(devices))


def measure(
    group: str,
    size: int,
    candidates: Mapping[str, Callable[..., Any]],
    inputs: Any,
    reference: Callable[..., Any],
    tolerance: float,
    options: Options,
    needs: Mapping[str, int] | None = None,
    say: Speaker = lambda text: None,
    *,
    gradients: bool = False,
    perturb: Perturb = True,
) -> tuple[Finding, list[str]]:
    """Compare; candidates that would need more bytes than are free are left out. Returns: the finding, and notes.

    Args: needs, bytes of candidates that may be large; gradients, whether candidates compute some themselves;
        perturb, as in `compare`.
    """
    free = available_bytes(torch.device("cpu"))
    large = {name: need for name, need in (needs or {}).items() if need > free and name in candidates}
    notes = [
        f"n={size:,}, {group}: {name} left out, it would take {need / 2**30:.1f} GiB with {free / 2**30:.1f} GiB free"
        for name, need in large.items()
    ]
    say(f"n={size:,}, {group}")
    comparison = compare(
        {name: f if gradients else quiet(f) for name, f in candidates.items() if name not in large},
        inputs,
        reference=reference,
        tolerance=tolerance,
        repeats=options.repeats,
        warmup=1,
        seed=options.seed,
        perturb=perturb,
        clocks=options.clocks,
    )
    return Finding(group, size, comparison), notes


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """A candidate whose inputs need no gradient, without one."""

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            return function(*inputs)

    return run


def built_rows(finding: Finding) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows of what is built without numbers, and what its numbers take."""
    seconds = {one.name: one.seconds for one in finding.comparison.candidates}
    baseline = seconds.get(BROADCASTING)
    rows: list[tuple[str, ...]] = []
    for built in finding.built:
        numbers = seconds.get(built.numbers)
        faster, really = _times(baseline, built.seconds), _times(baseline, numbers)
        rows.append(
            (
                built.name,
                format_seconds(built.seconds),
                faster,
                format_seconds(numbers),
                really,
                built.reason.split(",")[0],
            )
        )
    head = ("no numbers", "building it", '"faster" than broadcasting', "its numbers", "really", "refused because it")
    return head, rows


def _times(slower: float | None, seconds: float | None) -> str:
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
