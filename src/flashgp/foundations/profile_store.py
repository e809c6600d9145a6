"""Storage of the measured machine profile: one small JSON file per machine in the user's configuration folder.

A file is found by what it was measured on (processor, cores, torch's threads and version), so that a home folder shared
by several machines serves each its own. Clouds give one name to different processors, "AMD EPYC": family, model and
stepping are part of the processor where the system lists them. A file is written whole or not at all, under a lock.
One that cannot be read, or is not ours, is a miss: one warning, and the built-in rates. Nothing read from it is
executed.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import torch

from flashgp.foundations.atomic import write_whole
from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import DomainError, warn
from flashgp.foundations.machine import user_folder
from flashgp.foundations.placement import active_placement
from flashgp.foundations.processors import core_text, cpuinfo, own_cores
from flashgp.foundations.profile import BUILT_IN, SCHEMA, MachineProfile
from flashgp.foundations.quantities import counted
from flashgp.foundations.threads import usual_threads

CHOICE = "FLASHGP_PROFILE"  # environment: "built-in" for no measured profile, or the folder that holds them
MAX_BYTES = 2**18
MAX_PROFILES = 32  # of a folder that are looked at
WAIT_SECONDS = 120.0  # for another process that measures; a measurement takes seconds

_NUMBERS = {"cpu family": "family", "model": "model", "stepping": "stepping"}  # of /proc/cpuinfo

_known: dict[tuple[str, int, int, str], MachineProfile] = {}  # one of the two process-wide values (docs/design.md)
_unused: dict[tuple[str, int, int, str], str] = {}  # why a profile kept is not among them


def machine_key() -> tuple[str, int, int, str]:
    """(processor, cores this process may use, torch's threads, torch's version)."""
    cores = own_cores() or range(os.cpu_count() or 1)
    return _processor(), len(cores), usual_threads(), torch.__version__


@functools.cache
def _processor() -> str:
    return processor_name(cpuinfo(Path("/")))


def processor_name(lines: Mapping[str, str]) -> str:
    """'AMD EPYC (family 25, model 1, stepping 1)': the name, and what tells processors of that name apart."""
    numbers = [f"{said} {lines[name][:20]}" for name, said in _NUMBERS.items() if lines.get(name)]
    model = lines.get("model name") or platform.processor() or platform.machine() or "unknown"
    return model[:120] + (f" ({', '.join(numbers)})" if numbers else "")


def profile_path() -> Path:
    """The file of this machine's profile. Raises: FileNotFoundError where this user has no folder for it."""
    digest = hashlib.sha256(json.dumps([SCHEMA, *machine_key()]).encode()).hexdigest()[:16]
    return _folder() / f"profile-{digest}.json"


def _folder() -> Path:
    chosen = os.environ.get(CHOICE, "")
    if chosen and chosen != "built-in":
        return Path(chosen)
    try:
        return user_folder("config")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; name a folder in {CHOICE}") from None


def current_profile() -> MachineProfile:
    """The default profile of plans: the profile measured on this machine if there is one, else the built-in one.

    Read once per process; the environment variable FLASHGP_PROFILE=built-in keeps measured ones out, and so does
    `deterministic=True` while it runs.
    """
    if is_deterministic() or os.environ.get(CHOICE) == "built-in":
        return BUILT_IN
    key = machine_key()
    if key not in _known:
        _known[key] = read_profile() or BUILT_IN
    return _known[key]


def forget_profiles() -> None:
    """The next plan reads the profile again, as another process would."""
    _known.clear()
    _unused.clear()


def read_profile() -> MachineProfile | None:
    """The measured profile of this machine from its file; None, with a warning unless there is no file, for a miss."""
    path: Path | None = None
    try:
        path = profile_path()
        profile = profile_in(path)
        if (profile.processor, profile.cores, profile.threads, profile.torch_version) != machine_key():
            raise DomainError("it was measured on another machine")
        doubts = profile.doubts()
    except FileNotFoundError:
        if path is not None:
            _look_at_others(path.parent)
        return None
    except (OSError, ValueError) as error:
        warn(
            f"the machine profile {path} could not be used ({error}): plans use built-in rates; run `{tune_command()}`"
        )
        return None
    if doubts:
        more = f" and {len(doubts) - 1} more" if len(doubts) > 1 else ""
        warn(
            f"the machine profile has rates that other work must have disturbed: {doubts[0]}{more}. Plans, and what is "
            f"decided by them, may be far off; run `{tune_command()}` again on a quiet machine"
        )
    return profile


def profile_in(path: str | Path) -> MachineProfile:
    """The profile in a file of at most MAX_BYTES. Raises: OSError; ValueError for what is no profile."""
    with open(path, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DomainError(f"the file has more than {MAX_BYTES:,} bytes")
    return MachineProfile.from_json(content.decode())


def keep_profile(profile: MachineProfile) -> bool:
    """Use a profile in this process from now on, and write it for others; one warning if it cannot be written.

    Returns: whether it was written.
    """
    _known[machine_key()] = profile
    _unused.pop(machine_key(), None)
    where = "a file"
    try:
        path = profile_path()
        where = str(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, profile.to_json().encode())
    except OSError as error:
        warn(
            f"the machine profile could not be kept in {where} ({error}): it is used in this process only; make that "
            f"folder writable, or name another in {CHOICE}"
        )
        return False
    return True


def unused_accelerator(profile: MachineProfile, there: bool) -> str:
    """Message about rates of an accelerator in a profile while none is there; empty without such rates."""
    if there or not profile.accelerator_name:
        return ""
    return f"this process has no accelerator: the profile's rates of {profile.accelerator_name} are not used"


def _look_at_others(folder: Path) -> None:
    """Remember why no profile of a folder is of this process: measured with other cores or threads, or by another
    version."""
    processor, cores, threads, version = key = machine_key()
    outdated = False
    for path in islice(sorted(folder.glob("profile-*.json")), MAX_PROFILES):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError), open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode()
            values = json.loads(text)
            if not processor.startswith(values["processor"]):  # older versions wrote the name without its numbers
                continue
            outdated |= values["schema"] != SCHEMA
            profile = MachineProfile.from_json(text)
            if profile.torch_version == version and (profile.cores, profile.threads) != (cores, threads):
                of = f"{counted(profile.threads, 'thread')} on {counted(profile.cores, 'core')}"
                _unused.setdefault(key, f"the profile kept is of {of}, and its rates are not used")
    if outdated and key not in _unused:
        warn(
            "the machine profile kept here was measured by another version of FlashGP and is not read: plans use "
            f"built-in rates; run `{tune_command()}` again"
        )


def unused_profile() -> str:
    """Message where the profile kept of this machine is of other threads or cores; empty otherwise."""
    return "" if os.environ.get(CHOICE) == "built-in" else _unused.get(machine_key(), "")


def tune_command() -> str:
    """The command whose profile this process would use: with threads and cores where a plain one may measure others,
    as within `fgp.runtime`, or where a profile of others is kept."""
    placement = active_placement()
    if placement is None:
        return f"flashgp tune --threads {machine_key()[2]}" if unused_profile() else "flashgp tune"
    cores = "" if placement.cores is None else f" --cores {core_text(placement.cores)}"
    return f"flashgp tune --threads {placement.threads}{cores}"


@contextlib.contextmanager
def measuring(wait_seconds: float = WAIT_SECONDS) -> Iterator[bool]:
    """Hold the lock of this machine's profile; gives whether another process held it when this one came.

    Two measurements at once would disturb each other. Where no lock can be had (a folder that is read-only, a file
    system without locks, a process that holds it for longer than `wait_seconds`) the block runs without one: writing is
    atomic all the same.
    """
    from filelock import FileLock, Timeout

    lock, waited = None, False
    try:
        path = profile_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waited = True
            lock.acquire(timeout=wait_seconds)
    except (OSError, NotImplementedError):  # a Timeout is an OSError too
        pass
    try:
        yield waited
    finally:
        if lock is not None:
            lock.release()
