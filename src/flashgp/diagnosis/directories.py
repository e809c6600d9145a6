"""What FlashGP keeps between processes: the measured machine profile, and generated code with what was compiled of it.

Looked at only: nothing is made, and nothing is written to see whether it can be.
"""

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.foundations.profile_store import (
    CHOICE,
    current_profile,
    profile_path,
    tune_command,
    unused_accelerator,
)
from flashgp.foundations.quantities import counted, readable_bytes
from flashgp.pairwise.program.source_cache import refuse_foreign, wanted_directory

__all__ = ["cache_findings", "profile_findings"]

_MAX_FILES = 10_000  # that are counted
_MIN_FREE_BYTES = 100 * 2**20  # of a disk that compiled code is to be kept on


def profile_findings() -> Iterator[Finding]:
    """Whose rates plans use, and whether others can be kept."""
    if os.environ.get(CHOICE) == "built-in":
        yield Finding(
            "profile", f"{CHOICE}=built-in: plans use built-in rates, guesses for two cores", "note",
            f"unset {CHOICE} to use measured rates", {"state": "built-in"},
        )  # fmt: skip
        return
    try:
        path = profile_path()
    except (OSError, RuntimeError) as error:
        yield Finding(
            "profile", f"built-in rates: there is no folder for a measured profile ({error})", "note",
            f"name a folder in {CHOICE}, then run `flashgp tune`", {"state": "built-in"},
        )  # fmt: skip
        return
    profile = current_profile()
    kept = os.path.exists(path)
    values = {"state": profile.name, "path": str(path), "kept": kept}
    if profile.measured:
        where = f"kept in {path}" if kept else "known to this process only"
        machine = f"{counted(profile.cores, 'core')}, {counted(profile.threads, 'thread')}"
        yield Finding("profile", f"measured on this machine with {machine}; {where}", values=values)
        gone = unused_accelerator(profile, torch.cuda.device_count() > 0)  # which initialises nothing
        if gone:
            yield Finding(
                "profile", gone, "warning",
                f"make the accelerator visible again (driver, CUDA_VISIBLE_DEVICES), or run `{tune_command()}` if it "
                "is gone for good", {"accelerator": profile.accelerator_name},
            )  # fmt: skip
    else:
        text = "built-in rates, guesses for two cores: predicted seconds may be far off"
        advice = f"run `{tune_command()}`: seconds, once for each machine, number of threads and cores"
        yield Finding("profile", text, "note", advice, values)
    problem = _unwritable(path.parent)
    if problem:
        yield Finding(
            "profile", f"{path.parent} cannot keep a profile: {problem}", "note",
            f"make it writable, or name another folder in {CHOICE}", {"path": str(path.parent)},
        )  # fmt: skip


def cache_findings() -> Iterator[Finding]:
    """Where generated and compiled code is kept: whether it can be, and by the owner alone."""
    advice = "set FLASHGP_CACHE_DIR to a directory of yours"
    try:
        path = wanted_directory()
    except OSError as error:
        text = f"compiled code cannot be kept ({error}): every process compiles again"
        yield Finding("cache", text, "warning", advice, {"writable": False})
        return
    exists = os.path.exists(path)
    values = {"path": str(path), "exists": exists, "writable": True, "owner_only": True}
    try:
        if os.path.lexists(path):
            refuse_foreign(path)
    except OSError as error:
        text = f"{path} is not used: {error}; every process compiles again"
        yield Finding("cache", text, "warning", advice, {**values, "owner_only": False})
        return
    problem = _unwritable(path)
    if problem:
        text = f"{path} cannot be written to: {problem}; every process compiles again"
        yield Finding("cache", text, "warning", advice, {**values, "writable": False})
        return
    if not exists:
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
        yield Finding(
            "cache", f"the disk of {path} has {readable_bytes(free)} left: compiled code may not fit", "warning",
            f"make room, or {advice}", {"free_bytes": free},
        )  # fmt: skip


def _unwritable(path: Path) -> str:
    """Why a folder, or the one it would be made in, cannot be written to; empty where it can."""
    there = path
    while not os.path.exists(there):
        if there.parent == there:
            return "there is no such place"
        there = there.parent
    if not os.path.isdir(there):
        return f"{there} is a file"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"no write access to {there}"
