"""NVIDIA's driver and devices, as `nvidia-smi` lists them; CUDA is not initialised."""

import shutil
import subprocess
from dataclasses import dataclass

__all__ = ["Device", "Driver", "DriverError", "driver"]

_QUERY = "driver_version,name,compute_cap,memory.total,memory.free"  # sizes in MiB
_SECONDS = 20.0  # for an answer


class DriverError(RuntimeError):
    """`nvidia-smi` is there, and answers with an error."""


@dataclass(frozen=True)
class Device:
    """One device, as the driver sees it: also one that CUDA_VISIBLE_DEVICES hides."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Driver:
    """Fields: version, of the driver; devices."""

    version: str
    devices: tuple[Device, ...]


def driver() -> Driver | None:
    """What the driver says; None where there is none. Raises: DriverError."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]
        devices = tuple(_device(*row[1:]) for row in rows)
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        raise DriverError(f"`nvidia-smi` does not list the devices ({error}); run it for more") from None
    return Driver(rows[0][0] if rows else "", devices)


def _device(name: str, capability: str, total: str, free: str) -> Device:
    major, minor = capability.split(".")
    return Device(name, (int(major), int(minor)), int(total) * 2**20, int(free) * 2**20)
