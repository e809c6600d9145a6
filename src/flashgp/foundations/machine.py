"""Resources of this machine: memory that is free now, control groups, the user's folders; amounts of memory as text."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from flashgp.foundations.errors import DomainError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_root = Path("/")  # of /proc and /sys
NO_LIMIT = 2**60  # how version 1 of control groups writes that there is none, and more than any machine has
# Of a control group, by version: its limit, what is used, and what of that the page cache would give up.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
FREE_MEMORY_SHARE = 0.8  # of what is free at this moment: other processes live too


def root_folder() -> Path:
    """Folder of /proc and /sys."""
    return _root


@contextlib.contextmanager
def using_root(folder: Path) -> Iterator[None]:
    """Inside, the files of /proc and /sys are those of this folder; not for several threads."""
    global _root
    before, _root = _root, folder
    try:
        yield
    finally:
        _root = before


def parse_bytes(text: str | int | float, name: str = "memory") -> int:
    """'8GiB', '500 MB' or a number of bytes as an int. Raises: DomainError."""
    if isinstance(text, int | float) and not isinstance(text, bool) and 0 < text < math.inf:
        return int(text)
    if isinstance(text, str):
        compact = text.replace(" ", "").lower()
        digits = compact.rstrip("abcdefghijklmnopqrstuvwxyz")
        try:
            size = int(float(digits) * _UNITS[compact[len(digits) :]])
        except (ValueError, KeyError, OverflowError):
            size = 0
        if size > 0:
            return size
    raise DomainError(f"`{name}` must be a positive number of bytes like '8GiB' or 2_000_000_000, got {text!r}")


def available_bytes(device: torch.device) -> int:
    """Bytes that may be taken on a device right now: what is free, within every limit this process is under.

    On the host: what could be had without swapping, and what each control group around this process has left. On an
    accelerator: its free memory, and what torch's allocator keeps for itself without using it.
    """
    if device.type != "cpu":
        free, _total = torch.accelerator.get_memory_info(device)
        idle = torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
        return int((free + max(0, idle)) * FREE_MEMORY_SHARE)
    import psutil

    free = min([psutil.virtual_memory().available, *_control_groups_free()])
    return int(free * FREE_MEMORY_SHARE)


def control_groups(resource: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of each Linux control group around this process that may limit a resource, versions 2 and 1.

    A process is in one group per hierarchy, and in all groups above it; inside a container only the part of the path
    below its own top may be visible.
    """
    root = root_folder()
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            version, top = 2, root / "sys/fs/cgroup"
        elif resource in controllers.split(","):
            version, top = 1, root / "sys/fs/cgroup" / resource
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            yield version, top.joinpath(*parts[:depth])


def memory_limit() -> int | None:
    """Bytes of the tightest memory limit of a control group around this process; None where there is none."""
    limits = [_group_limit(folder / _FILES[version][0]) for version, folder in control_groups("memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def _control_groups_free() -> list[int]:
    """Bytes left in each control group that has a limit. What the page cache holds is given up on demand: not used."""
    groups = (_group_free(folder, *_FILES[version]) for version, folder in control_groups("memory"))
    return [left for left in groups if left is not None]


def _group_free(folder: Path, limit: str, used: str, cache: str) -> int | None:
    most, taken = _group_limit(folder / limit), text_of(folder / used).strip()
    if most is None or not taken.isdigit():
        return None
    left = most - int(taken)
    for line in text_of(folder / "memory.stat").splitlines():
        if line.startswith(f"{cache} "):
            left += int(line.split()[1])
    return max(0, left)


def _group_limit(path: Path) -> int | None:
    try:
        limit = int(text_of(path))
    except ValueError:  # "max", or no such file: no limit here
        return None
    return limit if limit < NO_LIMIT else None


def text_of(path: Path) -> str:
    """A small file of /proc or /sys; empty where there is none, or it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def user_folder(kind: Literal["config", "cache"]) -> Path:
    """Folder of this user's settings or caches of the library.

    Raises: FileNotFoundError without a home directory, so that no folder named ~ is made anywhere.
    """
    from platformdirs import PlatformDirs

    try:
        folders = PlatformDirs("flashgp", appauthor=False)
        path = folders.user_config_path if kind == "config" else folders.user_cache_path
    except RuntimeError:  # where the system does not know the user
        path = Path("~")
    if path.parts[:1] == ("~",):
        raise FileNotFoundError("there is no home directory")
    return path


# -- the accelerator ---------------------------------------------------------------------------------------------------
_UNKNOWN = object()
_found: object = _UNKNOWN


def accelerator() -> torch.device | None:
    """The accelerator that device="auto" may choose, None where there is none."""
    global _found
    if _found is _UNKNOWN:
        forked = getattr(torch.cuda, "_is_in_bad_fork", lambda: False)()
        _found = torch.device("cuda") if torch.cuda.is_available() and not forked else None
    return _found  # type: ignore[return-value]


def give_up_accelerator() -> None:
    """From now on this process has none."""
    global _found
    _found = None


def ask_again() -> None:
    """The next call asks the system."""
    global _found
    _found = _UNKNOWN


@contextlib.contextmanager
def using_accelerator(device: torch.device | None) -> Iterator[None]:
    """Inside, this process has that accelerator, or none; not for several threads."""
    global _found
    before, _found = _found, device
    try:
        yield
    finally:
        _found = before


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ask_again)
