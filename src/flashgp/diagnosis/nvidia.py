"""NVIDIA's driver, through its management library (NVML): versions, devices, free memory. CUDA is not initialised.

The few functions used here are called by ctypes, as torch itself counts devices; their signatures are those of nvml.h.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Device", "Driver", "DriverError", "driver"]

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # of the longest name, with its end


class DriverError(RuntimeError):
    """The driver's library is there, and answers with an error."""


@dataclass(frozen=True)
class Device:
    """One device, as the driver sees it: also one that CUDA_VISIBLE_DEVICES hides."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Driver:
    """Fields: version, of the driver; cuda_version, the newest it can serve; devices."""

    version: str
    cuda_version: tuple[int, int]
    devices: tuple[Device, ...]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def driver() -> Driver | None:
    """What the driver says; None where there is none. Raises: DriverError."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    with _started(library):
        count, cuda = ctypes.c_uint(), ctypes.c_int()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        _call(library, "nvmlSystemGetDriverVersion", text, _TEXT_BYTES)
        _call(library, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        devices = tuple(_device(library, number) for number in range(count.value))
        return Driver(_text(text), (cuda.value // 1000, cuda.value % 1000 // 10), devices)


@contextlib.contextmanager
def _started(library: Any) -> Iterator[None]:
    _call(library, "nvmlInit_v2")
    try:
        yield
    finally:
        library.nvmlShutdown()


def _device(library: Any, number: int) -> Device:
    handle, memory, text = ctypes.c_void_p(), _Memory(), ctypes.create_string_buffer(_TEXT_BYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(handle))
    _call(library, "nvmlDeviceGetName", handle, text, _TEXT_BYTES)
    _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    _call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    return Device(_text(text), (major.value, minor.value), int(memory.total), int(memory.free))


def _call(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise DriverError(f"NVIDIA's driver answers {name} with error {code}; `nvidia-smi` may say more")


def _text(buffer: Any) -> str:
    return str(buffer.value.decode("utf-8", "replace"))
