"""Versions and missing packages, and what is kept between processes: measured rates and compiled code.

Versions come from the records of the installed packages. Nothing is imported, and nothing is written to see whether it
can be.
"""

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from flashgp.diagnosis.findings import Finding, Severity
from flashgp.foundations.profile_store import (
    CHOICE,
    current_profile,
    profile_path,
    tune_command,
    unused_accelerator,
    unused_profile,
)
from flashgp.foundations.quantities import counted
from flashgp.pairwise.program.source_cache import refuse_foreign, wanted_directory

# Packages FlashGP cannot do without, as they are imported and as they are installed.
_REQUIRED = {
    "torch": "torch", "numpy": "numpy", "scipy": "scipy", "sklearn": "scikit-learn", "safetensors": "safetensors",
    "jaxtyping": "jaxtyping", "threadpoolctl": "threadpoolctl", "typer": "typer", "rich": "rich", "psutil": "psutil",
    "filelock": "filelock", "platformdirs": "platformdirs",
}  # fmt: skip
# What is lost without the others, and how it is installed.
_OTHERS: dict[str, tuple[str, Severity, str]] = {
    "numba": ("products and fits of many rows take several times as long", "warning", "numba"),
    "pyarrow": ("Parquet tables cannot be read or written", "note", "'flashgp[table]'"),
    "matplotlib": ("nothing can be drawn, and reports have no figures", "note", "'flashgp[plot]'"),
}


def package_findings() -> Iterator[Finding]:
    """Python, FlashGP, every package that it uses, and what is lost without those that are missing."""
    from flashgp import __version__

    others = dict(_OTHERS)
    if torch.backends.cuda.is_built() and torch.cuda.device_count():
        others["triton"] = ("products on the NVIDIA device take several times as long", "warning", "triton")
    versions = {"python": platform.python_version(), "flashgp": __version__}
    names = (*_REQUIRED.values(), "triton", *_OTHERS)
    versions |= {name: version for name in names if (version := _version(name)) is not None}
    versions["torch"] = str(torch.__version__)  # with its build, which is not in its record everywhere
    system = f"{platform.system()} {platform.machine()}"
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("versions", f"{text}; {system}", values={**versions, "system": system})
    for module, name in _REQUIRED.items():
        if importlib.util.find_spec(module) is None:
            text = f"{name} is not installed, and FlashGP needs it"
            yield Finding("versions", text, "warning", f"pip install {name}")
    for name, (lost, severity, package) in others.items():
        if importlib.util.find_spec(name) is None:
            text = f"{name} is not installed: {lost}"
            yield Finding("versions", text, severity, f"pip install {package}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def profile_findings() -> Iterator[Finding]:
    """Findings on the rates that plans use, and whether others can be kept."""
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
    if not profile.measured:
        text = "built-in rates, guesses for two cores: predicted seconds may be far off"
        text = "; ".join(filter(None, (text, unused_profile())))
        advice = f"run `{tune_command()}`: seconds, once for each machine, number of threads and cores"
        yield Finding("profile", text, "note", advice, values)
    else:
        where = f"kept in {path}" if kept else "known to this process only"
        machine = f"{counted(profile.cores, 'core')}, {counted(profile.threads, 'thread')}"
        yield Finding("profile", f"measured on this machine with {machine}; {where}", values=values)
        if doubts := profile.doubts():
            text = f"rates that other work must have disturbed: {'; '.join(doubts)}"
            advice = f"run `{tune_command()}` again while nothing else runs"
            yield Finding("profile", text, "warning", advice, {"doubts": doubts})
        if gone := unused_accelerator(profile, torch.cuda.device_count() > 0):  # which initialises nothing
            advice = "make the accelerator visible again (driver, CUDA_VISIBLE_DEVICES), or run "
            advice += f"`{tune_command()}` if it is gone for good"
            yield Finding("profile", gone, "warning", advice, {"accelerator": profile.accelerator_name})
    if problem := _unwritable(path.parent):
        text, advice = f"{path.parent} cannot keep a profile: {problem}", "make it writable, or name another folder in"
        yield Finding("profile", text, "note", f"{advice} {CHOICE}", {"path": str(path.parent)})


def cache_findings() -> Iterator[Finding]:
    """Findings on the folder of generated and compiled code: whether it can be written to, and by the owner alone."""
    problem, path = "", None
    try:
        path = wanted_directory()
        if os.path.lexists(path):
            refuse_foreign(path)
        problem = _unwritable(path)
    except OSError as error:
        problem = str(error)
    values = {"path": None if path is None else str(path), "usable": not problem}
    if problem:
        where = "compiled code cannot be kept" if path is None else f"{path} cannot keep compiled code"
        advice = "set FLASHGP_CACHE_DIR to a directory of yours"
        yield Finding("cache", f"{where} ({problem}); every process compiles again", "warning", advice, values)
    else:
        there = "is there" if os.path.exists(str(path)) else "will be made when something is compiled"
        yield Finding("cache", f"{path} {there}", values=values)


def _unwritable(path: Path) -> str:
    """Reason that a folder, or the one it would be made in, cannot be written to; empty if it can."""
    there = next((one for one in (path, *path.parents) if os.path.exists(one)), None)
    if there is None:
        return "there is no such place"
    if not os.path.isdir(there):
        return f"{there} is a file"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"no write access to {there}"
