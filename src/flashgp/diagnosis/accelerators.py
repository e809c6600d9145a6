"""The accelerator, its driver and how torch multiplies matrices there, asked without initialising anything.

`nvidia-smi` answers for NVIDIA's devices. Whether torch can compute there is known for certain only at the first use.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.diagnosis.nvidia import Driver, driver
from flashgp.diagnosis.packages import product_seconds, product_text
from flashgp.foundations.profile_store import current_profile
from flashgp.foundations.quantities import counted, readable_bytes, readable_seconds

__all__ = ["accelerator_findings", "precision_findings"]

_TF32_CAPABILITY = (8, 0)  # from here on tensor cores take float32 as TF32


def accelerator_findings(read_driver: Callable[[], Driver | None] | None = None) -> Iterator[Finding]:
    """Devices and their driver, and whether torch sees them."""
    found = (read_driver or driver)()
    if found is None or not found.devices:
        yield from _without_device(found)
        return
    names = ", ".join(device.name for device in found.devices)
    if torch.version.cuda is None:
        yield _unused(names)
        return
    visible = torch.cuda.device_count()
    if not visible:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "torch finds none of them" if hidden is None else f"CUDA_VISIBLE_DEVICES={hidden!r} hides all of them"
        advice = "" if hidden is None else "unset CUDA_VISIBLE_DEVICES, or name a device in it"
        yield Finding("accelerator", f"{names}: {why}", "note" if hidden is not None else "warning", advice)
    for number, device in enumerate(found.devices):
        modes = "tensor cores take TF32 and bfloat16" if device.capability >= _TF32_CAPABILITY else "no TF32"
        yield Finding(
            "accelerator", f"{device.name}, {readable_bytes(device.free_bytes)} free of "
            f"{readable_bytes(device.total_bytes)}, compute capability {_dotted(device.capability)} ({modes}), driver "
            f"{found.version}, torch for CUDA {torch.version.cuda}",
            values={
                "number": number, "name": device.name, "total_bytes": device.total_bytes,
                "free_bytes": device.free_bytes, "capability": list(device.capability), "driver": found.version,
                "torch_cuda": torch.version.cuda, "visible": visible,
            },
        )  # fmt: skip


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


def _without_device(found: Driver | None) -> Iterator[Finding]:
    if torch.version.hip is not None:
        count = torch.cuda.device_count()
        yield Finding("accelerator", f"{counted(count, 'AMD device')}, torch for ROCm {torch.version.hip}")
        return
    kind = "no NVIDIA driver is installed" if found is None else "an NVIDIA driver, and no device"
    if torch.version.cuda is not None:
        kind += f" (torch is built for CUDA {torch.version.cuda})"
    yield Finding("accelerator", f"none: {kind}; everything runs on the processor")


def _unused(names: str) -> Finding:
    there, here = min(product_seconds("cuda").values()), min(product_seconds("cpu").values())
    rates = f"{current_profile().name} rates"
    values = {"problem": product_text(), "seconds": there, "seconds_without": here, "rates": rates}
    return Finding(
        "accelerator",
        f"{names} cannot be used, torch {torch.__version__} is built without CUDA: {product_text()} takes about "
        f"{readable_seconds(here)} on the processor instead of {readable_seconds(there)} ({rates})",
        "warning" if there < here else "note",
        "install a build of torch with CUDA, see https://pytorch.org/get-started/locally",
        values,
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
