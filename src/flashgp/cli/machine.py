"""Commands on the machine: `flashgp tune`, `flashgp doctor` and `flashgp bench`.

Each imports what it runs: a doctor does not wait for the benchmarks.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from flashgp import plots
from flashgp.drawing import PAGE_SIZE, png
from flashgp.foundations.atomic import write_whole
from flashgp.foundations.errors import DomainError
from flashgp.foundations.machine import accelerator
from flashgp.foundations.profile import OPERATIONS, MachineProfile
from flashgp.foundations.profile_store import (
    current_profile,
    profile_in,
    profile_path,
    tune_command,
    unused_accelerator,
)
from flashgp.foundations.quantities import readable_seconds
from flashgp.page import Facts, Figure, Page, PageTable, Section, write_page
from flashgp.planner.tuning import tuned
from flashgp.plots.axes import new_axes, new_figure, require_matplotlib
from flashgp.plots.machine import OPERATION_NAMES

from .console import Console
from .options import BenchArguments, DoctorArguments, TuneArguments, listed, require_writable


def run_tune(options: TuneArguments, console: Console) -> dict[str, Any]:
    """Do what the options say, and print it. Returns: it as JSON values, with the path of the profile.

    Raises: DomainError for a file that is no profile or cannot be written; BackendUnavailableError for a picture
        without matplotlib, before anything is measured.
    """
    if options.out is not None:
        if not options.out.lower().endswith((".png", ".html")):
            raise DomainError(f"`--out` must end in .png or .html, got {options.out!r}; choose one of them")
        require_writable(options.out, "--out")
        require_matplotlib("--out")
    profiles = {os.path.basename(name): _profile_of(name) for name in options.profiles or ()}
    if len(profiles) < len(options.profiles or ()):
        profiles = {name: _profile_of(name) for name in options.profiles or ()}
    if not profiles:
        profiles = {"this machine": _measured_or_known(options, console)}
    if len(profiles) == 1:
        profile = next(iter(profiles.values()))
        console.pairs("profile", profile.lines())
    else:
        console.table(*_beside(profiles))
    if options.out is not None:
        _draw(options.out, profiles)
        console.note(f"drawn in {options.out}")
    result: dict[str, Any] = {"command": "tune", "path": _path()}
    if options.profiles:
        result["profiles"] = {name: json.loads(profile.to_json()) for name, profile in profiles.items()}
    else:
        result["profile"] = json.loads(profile.to_json())
    return result


def _measured_or_known(options: TuneArguments, console: Console) -> MachineProfile:
    if options.show:
        profile = current_profile()
        if not profile.measured:
            console.note(f"these are the built-in rates; `{tune_command()}` measures this machine's")
        gone = unused_accelerator(profile, accelerator() is not None)
        if gone:
            console.note(gone)
        return profile
    began = time.perf_counter()
    with console.stages() as progress:
        profile, kept = tuned(options.only or None, progress)
    where = f"kept in {_path()}" if kept else "not kept"
    console.note(f"measured in {readable_seconds(time.perf_counter() - began)}; {where}")
    return profile


def _path() -> str | None:
    try:
        return str(profile_path())
    except FileNotFoundError:
        return None


def _profile_of(name: str) -> MachineProfile:
    """Raises: DomainError."""
    try:
        return profile_in(name)
    except (OSError, ValueError) as error:
        raise DomainError(
            f"`--show` takes machine profiles that `flashgp tune` wrote, got {name!r} ({error}); choose another file"
        ) from None


# -- several beside each other -------------------------------------------------------------------------------------
def _beside(profiles: Mapping[str, MachineProfile]) -> tuple[list[str], list[list[str]]]:
    """A table with a column for each profile."""
    columns = [dict(profile.lines()) for profile in profiles.values()]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return ["", *profiles], [[name, *(column.get(name, "-") for column in columns)] for name in names]


def _draw(out: str, profiles: Mapping[str, MachineProfile]) -> None:
    """A figure of all operations, or a page with the figures and the table."""
    several = len(profiles) > 1  # beside itself every rate of a single one is 1
    if out.lower().endswith(".png"):
        axes = new_figure((14.0, 4.0)).subplots(1, len(OPERATIONS) + several).flat
        for ax, operation in zip(axes, OPERATIONS, strict=False):
            plots.machine_rates(profiles, operation, ax=ax)
        if several:
            plots.machine_bandwidths(profiles, ax=axes[len(OPERATIONS)])
        write_whole(out, png(axes[0]))
        return
    head, rows = _beside(profiles)
    figures = [
        Figure.of(plots.machine_rates(profiles, one, ax=new_axes(None, PAGE_SIZE)), f"Speed of {name} by order.")
        for one, name in OPERATION_NAMES.items()
    ]
    if several:
        ax = plots.machine_bandwidths(profiles, ax=new_axes(None, PAGE_SIZE))
        figures.append(Figure.of(ax, "Copies, exponentials and products, as multiples of the first machine's rates."))
    facts = [(name, f"{p.processor}, {p.cores} cores, torch {p.torch_version}") for name, p in profiles.items()]
    page = Page(
        title="Machine profiles" if several else "Machine profile",
        lead="How fast a machine is, which plans predict seconds from. Measured by flashgp tune.",
        highlights=[],
        sections=[
            Section("Machines" if several else "Machine", [Facts(facts)]),
            Section("Rates by size", figures),
            Section("All rates", [PageTable(head, rows)]),
        ],
    )
    write_page(out, page)


def run_doctor(_options: DoctorArguments, console: Console) -> dict[str, Any]:
    """Look, and say it. Returns: the findings as JSON values; warnings among them are no failure of the command."""
    from flashgp.diagnosis import doctor

    diagnosis = doctor(group=console.group)
    for line in str(diagnosis).splitlines():
        console.say(line)
    if console.quiet:
        for finding in diagnosis.of("warning"):
            console.warn(f"{finding.topic}: {finding.found}")
    return {"command": "doctor", **json.loads(diagnosis.to_json())}


def run_bench(options: BenchArguments, console: Console) -> dict[str, Any]:
    """Measure, print and write. Returns: the record. Raises: FlashGPError, OSError, before work where it can be."""
    from flashgp.bench.records import write_record
    from flashgp.bench.suite import Options
    from flashgp.bench.suites import SUITES

    began = time.perf_counter()
    if options.out is not None:
        if Path(options.out).suffix.lower() != ".json":
            raise DomainError(f"`--out` must end in .json, got {options.out!r}; a record is what is written")
        require_writable(options.out, "--out")
    with console.stages() as stage:

        def progress(line: str) -> None:
            if stage is not None:
                stage(line, 0.0)

        asked = Options(
            sizes=options.rows, dtypes=listed(options.dtypes), devices=listed(options.device),
            repeats=options.repeats, peers=options.peers,
            seed=options.seed, progress=progress,
        )  # fmt: skip
        with redirect_stdout(sys.stderr):  # what other libraries print must not get between the results
            measured = SUITES[options.name].measure(asked)
    console.say(str(measured))
    record = measured.record()
    if options.out is not None:
        write_record(options.out, record)
        console.say(f"wrote {options.out}")
    console.note(f"measured in {readable_seconds(time.perf_counter() - began)}")
    return {"command": "bench", "out": options.out, **record}
