"""The memory that is really free on this machine, now; amounts of memory as people write them."""

import math
from pathlib import Path

import torch

from flashgp.foundations.errors import DomainError

__all__ = ["available_bytes", "parse_bytes"]

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
ROOT = "/"  # of /proc and /sys; tests put files of their own there
NO_LIMIT = 2**60  # how version 1 of control groups writes that there is none, and more than any machine has
FREE_MEMORY_SHARE = 0.8  # of what is free at this moment: other processes live too


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

    On the host: the free memory of the machine, and of each control group around this process. On an accelerator: its
    free memory, and what torch's allocator keeps for itself without using it.
    """
    if device.type != "cpu":
        free, _total = torch.accelerator.get_memory_info(device)
        idle = torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
        return int((free + max(0, idle)) * FREE_MEMORY_SHARE)
    root = Path(ROOT)
    free = min([_machine_free(root), *_control_groups_free(root)])
    return int(free * FREE_MEMORY_SHARE)


def _machine_free(root: Path) -> int:
    """What the kernel says could be had without swapping; other processes' memory is not in it."""
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    import psutil

    return int(psutil.virtual_memory().available)


def _control_groups_free(root: Path) -> list[int]:
    """Bytes left in each Linux control group around this process that has a limit, versions 2 and 1.

    A process is in one group per hierarchy, and in all groups above it; inside a container only the part of the path
    below its own top may be visible. What the page cache holds is given up on demand and does not count as used.
    """
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            left = _group_free(top.joinpath(*parts[:depth]), *names)
            if left is not None:
                found.append(left)
    return found


def _group_free(folder: Path, limit: str, used: str, cache: str) -> int | None:
    try:
        most = int(_text(folder / limit))
        if most >= NO_LIMIT:
            return None
        left = most - int(_text(folder / used))
    except ValueError:  # "max", or no such file: no limit here
        return None
    for line in _text(folder / "memory.stat").splitlines():
        if line.startswith(f"{cache} "):
            left += int(line.split()[1])
    return max(0, left)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
