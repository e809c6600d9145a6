"""The accelerator, and how torch multiplies matrices there, asked without initialising anything.

`nvidia-smi` answers for NVIDIA's devices. Whether torch can compute there is known for certain only at the first use.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.diagnosis.installation import product_seconds, product_values
from flashgp.foundations.quantities import counted, readable_seconds

_SECONDS = 20.0  # for an answer of the driver


def nvidia_devices() -> list[str] | None:
    """Name and memory of the devices that the driver lists, also of those that CUDA_VISIBLE_DEVICES hides.

    Returns: None without a driver. Raises: RuntimeError for a driver that answers with an error.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"`nvidia-smi` does not list the devices ({error}); run it for more") from None
    lines = [line.strip() for line in listed.splitlines() if line.strip()]
    if not all("," in line for line in lines):
        raise RuntimeError(f"`nvidia-smi` does not list the devices ({lines[0][:80]}); run it for more")
    return lines


def accelerator_findings() -> Iterator[Finding]:
    """Devices, and whether torch sees them."""
    devices = nvidia_devices()
    if not devices:
        yield _without_device(devices)
        return
    names, visible = "; ".join(devices), torch.cuda.device_count()
    values = {"devices": devices, "visible": visible, "torch_cuda": torch.version.cuda}
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None:
        there, here = min(product_seconds("cuda").values()), min(product_seconds("cpu").values())
        values |= product_values(there, here)
        yield Finding(
            "accelerator",
            f"{names} cannot be used, torch {torch.__version__} is built without CUDA: {values['problem']} takes about "
            f"{readable_seconds(here)} on the processor instead of {readable_seconds(there)} ({values['rates']})",
            "warning" if there < here else "note",
            "install a build of torch with CUDA, see https://pytorch.org/get-started/locally",
            values,
        )
    elif visible:
        text = f"{names}: torch for CUDA {torch.version.cuda} sees {visible} of {len(devices)}"
        yield Finding("accelerator", text, values=values)
    elif hidden is None:
        advice = f"update the driver to one for CUDA {torch.version.cuda}, which torch is built for"
        yield Finding("accelerator", f"{names}: torch finds none of them", "warning", advice, values)
    else:
        text = f"{names}: CUDA_VISIBLE_DEVICES={hidden!r} hides all of them"
        yield Finding("accelerator", text, "note", "unset CUDA_VISIBLE_DEVICES, or name a device in it", values)


def _without_device(devices: list[str] | None) -> Finding:
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
    set_to = (backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision)
    rounded = [kind for kind in set_to if kind in ("tf32", "bf16")]
    values = {"float32_matmul": matmul}
    if rounded or matmul in ("high", "medium"):
        kinds = " and ".join(dict.fromkeys(rounded)) or "less"
        yield Finding(
            "precision", f"torch may multiply float32 matrices in {kinds} (float32 matmul precision {matmul!r}): "
            "distances of close points are lost", "warning",
            'torch.set_float32_matmul_precision("highest") where covariances are computed in float32', values,
        )  # fmt: skip
    else:
        yield Finding("precision", "torch multiplies float32 matrices in float32: no TF32, no bfloat16", values=values)
