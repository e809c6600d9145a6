"""The accelerator, its driver and how torch multiplies matrices there, asked without initialising anything.

`nvidia-smi` answers for NVIDIA's devices. Whether torch can compute there is known for certain only at the first use.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.diagnosis.installation import product_seconds, product_values
from flashgp.foundations.quantities import counted, readable_bytes, readable_seconds

__all__ = ["Device", "DriverError", "accelerator_findings", "nvidia_devices", "precision_findings"]

_QUERY = "driver_version,name,compute_cap,memory.total,memory.free"  # sizes in MiB
_SECONDS = 20.0  # for an answer of the driver
_TF32_CAPABILITY = (8, 0)  # from here on tensor cores take float32 as TF32


class DriverError(RuntimeError):
    """`nvidia-smi` is there, and answers with an error."""


class Device(NamedTuple):
    """One device, as the driver sees it: also one that CUDA_VISIBLE_DEVICES hides."""

    driver: str
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


def nvidia_devices() -> list[Device] | None:
    """The devices that the driver lists; None without a driver. Raises: DriverError."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
        devices = []
        for line in filter(str.strip, listed.splitlines()):
            driver, name, capability, total, free = (cell.strip() for cell in line.split(","))
            major, minor = map(int, capability.split("."))
            devices.append(Device(driver, name, (major, minor), int(total) * 2**20, int(free) * 2**20))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise DriverError(f"`nvidia-smi` does not list the devices ({error}); run it for more") from None
    return devices


def accelerator_findings() -> Iterator[Finding]:
    """Devices and their driver, and whether torch sees them."""
    devices = nvidia_devices()
    if not devices:
        yield _without_device(devices)
        return
    names = ", ".join(device.name for device in devices)
    if torch.version.cuda is None:
        there, here = min(product_seconds("cuda").values()), min(product_seconds("cpu").values())
        values = product_values(there, here)
        yield Finding(
            "accelerator",
            f"{names} cannot be used, torch {torch.__version__} is built without CUDA: {values['problem']} takes about "
            f"{readable_seconds(here)} on the processor instead of {readable_seconds(there)} ({values['rates']})",
            "warning" if there < here else "note",
            "install a build of torch with CUDA, see https://pytorch.org/get-started/locally",
            values,
        )
        return
    visible, hidden = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible and hidden is None:
        yield Finding("accelerator", f"{names}: torch finds none of them", "warning")
    elif not visible:
        text = f"{names}: CUDA_VISIBLE_DEVICES={hidden!r} hides all of them"
        yield Finding("accelerator", text, "note", "unset CUDA_VISIBLE_DEVICES, or name a device in it")
    for number, device in enumerate(devices):
        modes = "tensor cores take TF32 and bfloat16" if device.capability >= _TF32_CAPABILITY else "no TF32"
        yield Finding(
            "accelerator", f"{device.name}, {readable_bytes(device.free_bytes)} free of "
            f"{readable_bytes(device.total_bytes)}, compute capability {'.'.join(map(str, device.capability))} "
            f"({modes}), driver {device.driver}, torch for CUDA {torch.version.cuda}",
            values={
                **device._asdict(), "number": number, "capability": list(device.capability),
                "torch_cuda": torch.version.cuda, "visible": visible,
            },
        )  # fmt: skip


def _without_device(devices: list[Device] | None) -> Finding:
    if torch.version.hip is not None:
        count = torch.cuda.device_count()
        return Finding("accelerator", f"{counted(count, 'AMD device')}, torch for ROCm {torch.version.hip}")
    kind = "no NVIDIA driver is installed" if devices is None else "an NVIDIA driver, and no device"
    if torch.version.cuda is not None:
        kind += f" (torch is built for CUDA {torch.version.cuda})"
    return Finding("accelerator", f"none: {kind}; everything runs on the processor")


def precision_findings() -> Iterator[Finding]:
    """Whether torch multiplies float32 matrices in float32."""
    try:
        matmul = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch's older and newer flags say different things
        matmul = "mixed"
    backends: Any = torch.backends  # of which torch types a part
    values = {
        "float32_matmul": matmul,
        "cuda_matmul": backends.cuda.matmul.fp32_precision,
        "cpu_matmul": backends.mkldnn.matmul.fp32_precision,
        "bfloat16_sums_in_bfloat16": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "float16_sums_in_float16": backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    }
    rounded = [str(values[name]) for name in ("cuda_matmul", "cpu_matmul") if values[name] in ("tf32", "bf16")]
    if rounded or matmul in ("high", "medium"):
        kinds = " and ".join(dict.fromkeys(rounded)) or "less"
        yield Finding(
            "precision", f"torch may multiply float32 matrices in {kinds} (float32 matmul precision {matmul!r}): "
            "distances of close points are lost", "warning",
            'torch.set_float32_matmul_precision("highest") where covariances are computed in float32', values,
        )  # fmt: skip
    else:
        yield Finding("precision", "torch multiplies float32 matrices in float32: no TF32, no bfloat16", values=values)
