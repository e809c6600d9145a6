"""Cells: long benchmarks in pieces that run one at a time, each in a process of its own, and are kept when finished.

A finished cell is written at once, atomically, to its record and skipped when the command runs again: stop it whenever
you like. A cell that fails, would not fit into memory, or misses a library is recorded as such, and the others go on.
"""

import argparse
import importlib
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any, Protocol

import torch
from common import RECORDS
from tables import markdown_table

from flashgp.bench import environment, read_record, write_record
from flashgp.bench.records import dumps
from flashgp.foundations.errors import BackendUnavailableError, MemoryBudgetError
from flashgp.foundations.quantities import readable_bytes, readable_seconds

ENDING_SECONDS = 30.0  # for a process that has given its entry to end by itself
LINE_SECONDS = 30.0  # between the lines of a cell that says how far it is
SCRATCH = Path(tempfile.gettempdir()) / "flashgp-bench"

Entry = dict[str, Any]


class Job(Protocol):
    """What a record knows a cell by: its key, and the settings that its entry repeats."""

    @property
    def key(self) -> str: ...

    def settings(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Cell:
    """One cell of a claim. Fields: key, its name in the record; values, what it runs with; seconds it takes on two
    cores, roughly: what is left is estimated from that; beside, what it is told beyond (folders, limits), which its
    entry does not repeat."""

    key: str
    values: Mapping[str, Any]
    seconds: float
    beside: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        return dict(self.values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name] if name in self.values else self.beside[name]


@dataclass(frozen=True)
class Claim:
    """A long benchmark. Fields: name of its record; module and function that run a cell, `function(cell) -> entry`;
    title and columns of its table; rows, made of the entries of all cells; line, one about a finished entry."""

    name: str
    module: str
    title: str
    columns: Sequence[Mapping[str, str]]
    rows: Callable[[Mapping[str, Entry]], list[dict[str, Any]]]
    line: Callable[[Entry], str]
    function: str = "run_cell"


# -- the command ------------------------------------------------------------------------------------------------------
def options_of(
    description: str,
    argv: Sequence[str] | None,
    name: str,
    more: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> argparse.Namespace:
    """What every claim can be told; `more` adds what one of them can be told beyond."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="smallest sizes, in this process, to see that it runs")
    parser.add_argument("--list", action="store_true", help="show the cells, what they take and what is done; run none")
    parser.add_argument("--cells", nargs="+", metavar="TEXT", help="only cells whose key contains one of these texts")
    parser.add_argument("--again", nargs="?", choices=("all", "failed"), const="all", help="run recorded cells again")
    parser.add_argument("--end-after", type=float, metavar="SECONDS", help="end a cell, as failed, after so long")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, metavar="FOLDER", help=f"large files; {SCRATCH}")
    parser.add_argument("--record", type=Path, default=RECORDS / f"{name}.json", metavar="FILE")
    more(parser)
    options = parser.parse_args(argv)
    if options.toy:
        options.scratch = Path(tempfile.mkdtemp(prefix="flashgp-toy-"))
    return options


def main_of(claim: Claim, cells: Sequence[Cell], options: argparse.Namespace) -> int:
    """Run what is missing and print the table. Returns: 1 if a cell of this command has failed, else 0."""
    cells = [cell for cell in cells if not options.cells or any(text in cell.key for text in options.cells)]
    if options.list:
        known = stored(options.record)
        for cell in cells:
            state = known[cell.key]["status"] if cell.key in known else "missing"
            print(f"{cell.key}: about {readable_seconds(cell.seconds)} on two cores; {state}")
        return 0
    if options.toy:
        try:
            return _toy(claim, cells)
        finally:
            shutil.rmtree(options.scratch, ignore_errors=True)
    pace: list[float] = []

    def run(cell: Cell) -> Entry:
        waiting = [c for c in cells[cells.index(cell) :] if needed(stored(options.record).get(c.key), options.again)]
        scale = statistics.median(pace) if pace else 1.0
        left = scale * sum(c.seconds for c in waiting)
        print(
            f"{cell.key}: running, about {readable_seconds(scale * cell.seconds)}; "
            f"{readable_seconds(left)} for all {len(waiting)} that are left",
            flush=True,
        )
        began = time.monotonic()
        entry = in_process(claim.module, claim.function, cell, options.end_after)
        if entry["status"] == "done":
            pace.append((time.monotonic() - began) / cell.seconds)
        return entry

    def payload(entries: Mapping[str, Entry]) -> dict[str, Any]:
        return {"title": claim.title, "columns": list(claim.columns), "rows": claim.rows(entries)}

    failed = run_missing(cells, options.record, run=run, again=options.again, payload=payload, line=claim.line)
    if options.record.exists():
        print(f"\n{markdown_table(read_record(options.record), source=options.record.name)}")
    return 1 if failed else 0


def _toy(claim: Claim, cells: Sequence[Cell]) -> int:
    """Every cell in this process; no record, but what would be one must have an honest form."""
    function = getattr(importlib.import_module(claim.module), claim.function)
    entries = {}
    for cell in cells:
        entries[cell.key] = {"status": "done", **cell.settings(), **function(cell)}
        print(f"{cell.key}: {claim.line(entries[cell.key])}", flush=True)
    payload = {"columns": list(claim.columns), "rows": claim.rows(entries)}
    dumps({**payload, "cells": entries})
    print(markdown_table(payload))
    return 0


def run_missing(
    jobs: Sequence[Any],
    record: Path,
    *,
    run: Callable[[Any], Entry | None],
    again: str | None,
    payload: Callable[[Mapping[str, Entry]], Mapping[str, Any]],
    line: Callable[[Entry], str],
) -> int:
    """Run the jobs that the record does not have, and write each at once.

    Args: run, gives a job's entry, None where it cannot be run here (and has said why); again, see `needed`;
        payload, the record's title, columns and rows from all entries; line, what to say about a finished entry.
    Returns: how many of the jobs are recorded as failed.
    """

    def said(entry: Entry) -> str:
        return line(entry) if entry["status"] == "done" else f"{entry['status']}: {entry['error']}"

    failed = 0
    for job in jobs:
        known = stored(record).get(job.key)
        if known is not None and not needed(known, again):
            other = [f"{name}={known.get(name)}" for name, value in job.settings().items() if known.get(name) != value]
            note = f" (made with {', '.join(other)})" if other else ""
            print(f"{job.key}: kept{note}, {said(known)}", flush=True)
            failed += known["status"] == "failed"
            continue
        entry = run(job)
        if entry is None:
            continue
        _store(record, job.key, entry, payload)
        print(f"{job.key}: {said(entry)}", flush=True)
        failed += entry["status"] == "failed"
    return failed


def needed(known: Entry | None, again: str | None) -> bool:
    """Whether to run a cell, recorded or not; one that did not fit, or missed a library, is asked again every time."""
    if known is None or again == "all":
        return True
    return known["status"] in ("refused", "missing") or (again == "failed" and known["status"] == "failed")


def stored(path: Path) -> dict[str, Entry]:
    """The entries of a record, by key; none where there is no record yet."""
    cells: dict[str, Entry] = read_record(path)["cells"] if path.exists() else {}
    return cells


def _store(
    path: Path, key: str, entry: Mapping[str, Any], payload: Callable[[Mapping[str, Entry]], Mapping[str, Any]]
) -> None:
    """Put a cell into the record: read, changed and replaced as a whole, so that no moment has half of it."""
    cells = {**stored(path), key: dict(entry)}
    commits = {cell["commit"] for cell in cells.values() if cell["commit"]}
    machines = sorted({cell["hardware"]["cpu"] for cell in cells.values()})
    written = {
        "hardware": {**entry["hardware"], "cpu": " or ".join(machines)},  # a cell names its own
        "versions": {name: text for cell in cells.values() for name, text in cell["versions"].items()},
        "commit": commits.pop() if len(commits) == 1 else "several" if commits else None,
        **payload(cells),
        "cells": cells,
    }
    write_record(path, written)


def kept_plan(peak_bytes: int, planned_bytes: int) -> bool:
    """Whether a peak is within what plans promise: 1.1 times from 256 MiB on, below that 64 MiB more."""
    most = 1.1 * planned_bytes if planned_bytes >= 2**28 else planned_bytes + 2**26
    return peak_bytes <= most


# -- one process ------------------------------------------------------------------------------------------------------
def in_process(module: str, function: str, job: Job, patience: float | None = None) -> Entry:
    """A job's entry, `function(job)` of a module, from a fresh process; however that ends, there is an entry.

    Args: patience: seconds after which the process is ended; None waits.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
        target=_run_and_send, args=(sender, module, function, job, torch.get_num_threads()), daemon=True
    )
    began = time.monotonic()
    child.start()
    sender.close()
    try:
        if receiver.poll(patience):
            entry: Entry = receiver.recv()
            child.join(timeout=ENDING_SECONDS)  # a peer may be writing its own caches at exit: killed, it breaks them
            return entry
        error = f"still running after {time.monotonic() - began:.0f} s, and ended"
    except EOFError:
        child.join()
        error = f"its process ended with exit code {child.exitcode} (-9 usually means out of memory)"
    finally:
        receiver.close()
        child.kill()
        child.join()
    return {**environment(), **job.settings(), "status": "failed", "error": error}


def _run_and_send(sender: Any, module: str, function: str, job: Job, threads: int) -> None:
    """Send the entry of a job through a pipe; an error is an entry too. The process ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: half a fit must not be recorded as a cell
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        torch.set_num_threads(threads)
        measured = getattr(importlib.import_module(module), function)(job)
        entry = {**environment(), "status": "done", **job.settings(), **measured}
        entry |= {"versions": environment()["versions"]}  # with the peers that the cell imported
        dumps(entry)
    except MemoryBudgetError as error:
        told = {"status": "refused", "needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
        entry = {**environment(), **job.settings(), **told, "error": str(error)}
    except BackendUnavailableError as error:
        entry = {**environment(), **job.settings(), "status": "missing", "error": str(error)}
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        entry = {**environment(), **job.settings(), "status": "failed", "error": said}
        traceback.print_exc()
    sender.send(entry)
    sender.close()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


# -- what cells say ---------------------------------------------------------------------------------------------------
class Speaker:
    """Says a line at most every LINE_SECONDS. Fields: key, before every line."""

    def __init__(self, key: str) -> None:
        self.key, self._spoken = key, time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._spoken >= LINE_SECONDS:
            self._spoken = time.monotonic()
            print(f"  {self.key}: {text}", file=sys.stderr, flush=True)

    def training(self, progress: Any) -> None:
        """For `fit(progress=)`."""
        left = progress.eta_seconds
        eta = "" if left is None else f", at most {readable_seconds(left)} left"
        after = readable_seconds(progress.seconds)
        self(f"{progress.phase}, evaluation {progress.evaluation}, {after}{eta}")

    def solving(self, step: Any) -> None:
        """For `condition(progress=)`."""
        residual, after = float(step.relative.max()), readable_seconds(step.seconds)
        self(f"{step.solver}, iteration {step.iteration}, relative residual {residual:.1e}, {after}")


def beside_plan(peak_bytes: float, planned_bytes: float) -> str:
    """Measured memory and how it compares with the plan's."""
    share = peak_bytes / planned_bytes if planned_bytes else 0.0
    return f"peak {readable_bytes(peak_bytes)}, planned {readable_bytes(planned_bytes)} ({share:.2f})"
