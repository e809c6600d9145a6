"""The machine profile: the rates a plan predicts seconds from, and the memory that is really free.

Built-in conservative values; a measured profile comes with `flashgp tune` in a later step. A plan says which it used.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from flashgp.foundations.errors import DomainError

__all__ = ["BUILT_IN", "MachineProfile", "available_bytes", "parse_bytes"]

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
FREE_MEMORY_SHARE = 0.8  # of what is free at this moment: other processes live too


@dataclass(frozen=True)
class MachineProfile:
    """Rates of one machine. Units: flops per second by dtype, kernel pairs per second, seconds per call."""

    name: str
    cholesky_float64: float
    cholesky_float32: float
    triangular_float64: float
    pairs: float
    call_seconds: float

    def cholesky(self, dtype: torch.dtype) -> float:
        return self.cholesky_float64 if dtype == torch.float64 else self.cholesky_float32


BUILT_IN = MachineProfile(
    name="built-in",
    cholesky_float64=5e10,
    cholesky_float32=1e11,
    triangular_float64=4e10,
    pairs=1e8,
    call_seconds=1e-4,
)


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
    """Bytes that may be taken on a device right now: the machine's free memory within the control group's limit."""
    if device.type != "cpu":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free * FREE_MEMORY_SHARE)
    import psutil

    free = int(psutil.virtual_memory().available)
    limit = _control_group_free()
    return int((free if limit is None else min(free, limit)) * FREE_MEMORY_SHARE)


def _control_group_free() -> int | None:
    """Bytes left in a Linux control group (version 2, then 1); None where there is none."""
    for limit_name, used_name in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if os.name != "posix" or not Path(limit_name).exists():
            continue
        try:
            return max(0, int(Path(limit_name).read_text()) - int(Path(used_name).read_text()))
        except (ValueError, OSError):  # "max": no limit
            continue
    return None
