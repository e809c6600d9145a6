"""The processor cores this process may use: affinity, time quotas of control groups, core lists as text.

Read from the operating system at every call, since affinity and quotas change while a process runs. Where the system
does not say (no Linux, no /proc, no /sys), the answer is None or empty, never an error.
"""

import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path

from flashgp.foundations import machine
from flashgp.foundations.errors import DomainError

MAX_CORES = 2**16  # of one machine; a larger number is a slip of the keyboard, and a range of it would fill memory


def own_cores() -> frozenset[int] | None:
    """The cores the calling thread may run on; None where the system knows no affinity (only Linux does here)."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def usable_cores() -> int:
    """Cores that the process can use: those of its affinity, or its quota rounded up if less."""
    own = own_cores()
    count = len(own) if own else os.cpu_count() or 1
    quota = core_quota()
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def core_quota() -> float | None:
    """Seconds of processor time per second that the tightest control group grants; None without such a limit."""
    quotas = []
    for version, folder in machine.control_groups("cpu"):
        if version == 2:
            granted, period = (*machine.text_of(folder / "cpu.max").split(), "", "")[:2]
        else:
            granted, period = (machine.text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        try:
            quota = int(granted) / int(period)
        except (ValueError, ZeroDivisionError):  # "max", or no such file: no limit here
            continue
        if quota > 0:  # version 1 writes -1 for no limit
            quotas.append(quota)
    return min(quotas, default=None)


def cpuinfo(root: Path | None = None) -> dict[str, str]:
    """The lines of /proc/cpuinfo for the first processor, by name; empty where the system has none."""
    first = machine.text_of((root or machine.root_folder()) / "proc/cpuinfo").strip().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_cores(cores: str | Iterable[int], name: str = "cores") -> frozenset[int]:
    """'0-3,8' or [0, 1, 2, 3, 8] as a set of core numbers.

    Raises: DomainError for anything else, an empty list included.

    >>> sorted(parse_cores("0-3,8"))
    [0, 1, 2, 3, 8]
    """
    parsed: set[int] = set()
    try:
        if isinstance(cores, str):
            for part in cores.replace(" ", "").split(","):
                first, dash, last = part.partition("-")
                low, high = _core(first), _core(last if dash else first)
                if low > high:
                    raise ValueError
                parsed.update(range(low, high + 1))
        else:
            parsed.update(_core(core) for core in cores)
    except (TypeError, ValueError):
        parsed.clear()
    if not parsed:
        raise DomainError(f"`{name}` must be core numbers like '0-3,8' or [0, 1, 2, 3, 8], got {str(cores)[:60]!r}")
    return frozenset(parsed)


def _core(number: str | int) -> int:
    """Raises: ValueError, TypeError."""
    if isinstance(number, bool) or (isinstance(number, str) and not (number.isascii() and number.isdigit())):
        raise ValueError
    value = int(number) if isinstance(number, str) else operator.index(number)
    if not 0 <= value < MAX_CORES:
        raise ValueError
    return value


def core_text(cores: Iterable[int]) -> str:
    """Core numbers as short text.

    >>> core_text([8, 0, 1, 2, 3])
    '0-3,8'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
