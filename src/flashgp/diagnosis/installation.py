"""Versions, what a missing package costs, and what is kept between processes: measured rates and compiled code.

Versions come from the records of the installed packages, and a cost is the seconds of one product by the planner's
rates. Nothing is imported, and nothing is written to see whether it can be.
"""

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.foundations.profile_store import (
    CHOICE,
    current_profile,
    profile_path,
    tune_command,
    unused_accelerator,
    unused_profile,
)
from flashgp.foundations.quantities import counted, readable_bytes, readable_seconds
from flashgp.kernels.matern import Matern
from flashgp.pairwise.program.source_cache import refuse_foreign, wanted_directory
from flashgp.planner.problem import Features, ProductProblem, Resources
from flashgp.planner.products import plan_product

PROBLEM = (20_000, 8, 1)  # rows, columns and right-hand sides of the product that seconds are given for
_BUDGET = 2**50  # what fits is not the question here, and asking a device for its memory would initialise it
_MAX_FILES = 10_000  # that are counted
_MIN_FREE_BYTES = 100 * 2**20  # of a disk that compiled code is to be kept on

# Packages FlashGP cannot do without, as they are imported and as they are installed.
_REQUIRED = {
    "torch": "torch", "numpy": "numpy", "scipy": "scipy", "sklearn": "scikit-learn", "safetensors": "safetensors",
    "jaxtyping": "jaxtyping", "threadpoolctl": "threadpoolctl", "typer": "typer", "rich": "rich", "psutil": "psutil",
    "filelock": "filelock", "platformdirs": "platformdirs",
}  # fmt: skip
# Without these something cannot be done, and nothing takes longer.
_EXTRAS = {
    "pyarrow": ("Parquet tables cannot be read or written", "flashgp[table]"),
    "matplotlib": ("nothing can be drawn, and reports have no figures", "flashgp[plot]"),
}


# -- packages --------------------------------------------------------------------------------------------------------
def version_findings() -> Iterator[Finding]:
    """Python, FlashGP, and every package that it uses."""
    from flashgp import __version__

    versions = {"python": platform.python_version(), "flashgp": __version__}
    names = (*_REQUIRED.values(), "numba", "triton", *_EXTRAS)
    versions |= {name: version for name in names if (version := _version(name)) is not None}
    versions["torch"] = str(torch.__version__)  # with its build, which is not in its record everywhere
    system = f"{platform.system()} {platform.machine()}"
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("versions", f"{text}; {system}", values={**versions, "system": system})
    for module, name in _REQUIRED.items():
        if not _installed(module):
            text = f"{name} is not installed, and FlashGP needs it"
            yield Finding("versions", text, "warning", f"pip install {name}")


def package_findings() -> Iterator[Finding]:
    """What each package that FlashGP can do without is worth here."""
    yield _worth("numba", "cpu", "cpu")
    if torch.backends.cuda.is_built() and torch.cuda.device_count():
        yield _worth("triton", "triton", "cuda")
    else:
        text = f"triton {_version('triton')}" if _installed("triton") else "triton is not installed"
        yield Finding("packages", f"{text}: without an NVIDIA device nothing uses it")
    for name, (lost, extra) in _EXTRAS.items():
        if _installed(name):
            yield Finding("packages", f"{name} {_version(name)}")
        else:
            text = f"{name} is not installed: {lost}; no computation takes longer"
            yield Finding("packages", text, "note", f"pip install '{extra}'")


def product_seconds(device: str) -> dict[str, float]:
    """Seconds of the product by each engine on a kind of device, eqs. (M-57) and (M-58), installed or not."""
    n, d, t = PROBLEM
    problem = ProductProblem(Matern(nu=2.5).form, n, None, Features(d), t=t, dtype=torch.float32)
    plan = plan_product(problem, Resources(_BUDGET, device, current_profile()))
    others = {one.backend: one.seconds for one in plan.alternatives if one.route == "recomputed"}
    return {plan.backend: plan.seconds, **others}


def product_values(seconds: float, without: float) -> dict[str, Any]:
    """What a finding about the seconds of the product rests on."""
    problem = "K V of n={:,}, d={}, t={} in float32".format(*PROBLEM)
    return {
        "problem": problem, "seconds": seconds, "seconds_without": without, "rates": f"{current_profile().name} rates"
    }  # fmt: skip


def _worth(name: str, backend: str, device: str) -> Finding:
    """What a package is worth whose backend takes products on a kind of device, beside the portable one."""
    seconds = product_seconds(device)
    values = {**product_values(seconds[backend], seconds["torch"]), "device": device}
    end = f" ({values['rates']})"
    quick, slow = readable_seconds(seconds[backend]), readable_seconds(seconds["torch"])
    if _installed(name):
        text = f"{name} {_version(name)}: {values['problem']} takes about {quick}, {slow} without it{end}"
        return Finding("packages", text, "ok", values=values)
    text = f"{name} is not installed: {values['problem']} takes about {slow} instead of {quick}{end}"
    missed = seconds["torch"] > seconds[backend]
    return Finding("packages", text, "warning" if missed else "note", f"pip install {name}", values)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# -- files -----------------------------------------------------------------------------------------------------------
def profile_findings() -> Iterator[Finding]:
    """Whose rates plans use, and whether others can be kept."""
    if os.environ.get(CHOICE) == "built-in":
        text, advice = f"{CHOICE}=built-in: plans use built-in rates, guesses for two cores", f"unset {CHOICE} to use"
        yield Finding("profile", text, "note", f"{advice} measured rates", {"state": "built-in"})
        return
    try:
        path = profile_path()
    except OSError as error:
        text = f"built-in rates: there is no folder for a measured profile ({error})"
        advice = f"name a folder in {CHOICE}, then run `flashgp tune`"
        yield Finding("profile", text, "note", advice, {"state": "built-in"})
        return
    profile = current_profile()
    kept = os.path.exists(path)
    values = {"state": profile.name, "path": str(path), "kept": kept}
    if profile.measured:
        where = f"kept in {path}" if kept else "known to this process only"
        machine = f"{counted(profile.cores, 'core')}, {counted(profile.threads, 'thread')}"
        yield Finding("profile", f"measured on this machine with {machine}; {where}", values=values)
        doubts = profile.doubts()
        if doubts:
            advice = f"run `{tune_command()}` again while nothing else runs"
            text = f"rates that other work must have disturbed: {'; '.join(doubts)}"
            yield Finding("profile", text, "warning", advice, {"doubts": doubts})
        gone = unused_accelerator(profile, torch.cuda.device_count() > 0)  # which initialises nothing
        if gone:
            advice = "make the accelerator visible again (driver, CUDA_VISIBLE_DEVICES), or run "
            advice += f"`{tune_command()}` if it is gone for good"
            yield Finding("profile", gone, "warning", advice, {"accelerator": profile.accelerator_name})
    else:
        text = "built-in rates, guesses for two cores: predicted seconds may be far off"
        text = "; ".join(filter(None, (text, unused_profile())))
        advice = f"run `{tune_command()}`: seconds, once for each machine, number of threads and cores"
        yield Finding("profile", text, "note", advice, values)
    problem = _unwritable(path.parent)
    if problem:
        text, advice = f"{path.parent} cannot keep a profile: {problem}", "make it writable, or name another folder in"
        yield Finding("profile", text, "note", f"{advice} {CHOICE}", {"path": str(path.parent)})


def cache_findings() -> Iterator[Finding]:
    """Where generated and compiled code is kept: whether it can be, and by the owner alone."""
    advice = "set FLASHGP_CACHE_DIR to a directory of yours"

    def refused(text: str, **values: Any) -> Finding:
        return Finding("cache", f"{text}; every process compiles again", "warning", advice, values)

    try:
        path = wanted_directory()
    except OSError as error:
        yield refused(f"compiled code cannot be kept ({error})", writable=False)
        return
    values: dict[str, Any] = {"path": str(path), "exists": os.path.exists(path), "writable": True, "owner_only": True}
    try:
        if os.path.lexists(path):
            refuse_foreign(path)
    except OSError as error:
        yield refused(f"{path} is not used: {error}", **{**values, "owner_only": False})
        return
    problem = _unwritable(path)
    if problem:
        yield refused(f"{path} cannot be written to: {problem}", **{**values, "writable": False})
        return
    if not values["exists"]:
        yield Finding("cache", f"{path} will be made when something is compiled", values=values)
        return
    sizes = [one.stat().st_size for one in islice(path.rglob("*"), _MAX_FILES) if one.is_file()]
    alone = not hasattr(os, "getuid") or not path.stat().st_mode & 0o077
    values |= {"files": len(sizes), "bytes": sum(sizes), "owner_only": alone}
    whose = "yours alone" if alone else "yours, others may read it"
    text = f"{path}: {whose}, can be written to, {counted(len(sizes), 'file')} of {readable_bytes(sum(sizes))}"
    yield Finding("cache", text, values=values)
    free = shutil.disk_usage(path).free
    if free < _MIN_FREE_BYTES:
        text = f"the disk of {path} has {readable_bytes(free)} left: compiled code may not fit"
        yield Finding("cache", text, "warning", f"make room, or {advice}", {"free_bytes": free})


def _unwritable(path: Path) -> str:
    """Why a folder, or the one it would be made in, cannot be written to; empty where it can."""
    there = next((one for one in (path, *path.parents) if os.path.exists(one)), None)
    if there is None:
        return "there is no such place"
    if not os.path.isdir(there):
        return f"{there} is a file"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"no write access to {there}"
