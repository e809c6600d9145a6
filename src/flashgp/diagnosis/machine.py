"""The machine as this process finds it: cores, threads, free memory, the accelerator, and what ranks of a group share.

BLAS libraries are asked for their threads where they are loaded already, and `nvidia-smi` for NVIDIA's devices: nothing
is loaded or initialised. Whether torch can compute on a device is known for certain only at the first use.
"""

import json
import math
import os
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from flashgp.diagnosis.findings import Finding, Severity
from flashgp.foundations.machine import FREE_MEMORY_SHARE, available_bytes, memory_limit
from flashgp.foundations.placement import launcher_text, placement_events
from flashgp.foundations.processors import core_quota, core_text, own_cores, usable_cores
from flashgp.foundations.profile_store import machine_key
from flashgp.foundations.quantities import counted, readable_bytes
from flashgp.processes.group import Group

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_WAIT_POLICY")
_LOW_BYTES = 2**30  # a machine with less left than this refuses problems that are small elsewhere
_SECONDS = 20.0  # for an answer of the driver


def core_findings() -> Iterator[Finding]:
    """The cores this process may run on, by affinity, quota and launcher."""
    own, total, quota = own_cores(), os.cpu_count() or 1, core_quota()
    text = f"{machine_key()[0]}: {usable_cores()} of {counted(total, 'core')} can be used"
    text += f": affinity {core_text(own)}" if own else ": this system tells no affinity"
    text += "" if quota is None else f", and a control group grants {quota:.3g} cores' worth of time"
    text += "".join(f"; {part}" for part in (launcher_text(), *placement_events()) if part)
    affinity = sorted(own) if own else None
    values = {"usable": usable_cores(), "affinity": affinity, "of_machine": total, "quota": quota}
    yield Finding("cores", text, values=values)


def thread_findings() -> Iterator[Finding]:
    """Findings on torch, our compiled code and BLAS libraries with too many threads for the cores, or too few."""
    from threadpoolctl import ThreadpoolController

    threads, cores = torch.get_num_threads(), usable_cores()
    blas = ThreadpoolController().select(user_api="blas").info()
    libraries = {one["internal_api"]: one["num_threads"] for one in blas}
    environment = {name: os.environ[name] for name in _THREADS if os.environ.get(name)}
    values = {"torch": threads, "libraries": libraries, "cores": cores, "environment": environment}
    text = f"torch and our compiled code {threads}"
    text += "".join(f", {name} {count}" for name, count in libraries.items())
    text += "".join(f", {name}={value}" for name, value in environment.items())
    on_cores, few, share = f"{counted(threads, 'thread')} on {counted(cores, 'core')}", cores // 2, _share(cores)
    if threads > cores:
        advice = f"set OMP_NUM_THREADS={cores}: {on_cores}"
        yield Finding("threads", f"{on_cores}: they wait for each other ({text})", "warning", advice, values)
    elif share is not None and threads > share:
        text = f"{on_cores} in each process ({launcher_text()}), which share these cores ({text})"
        advice = f"set OMP_NUM_THREADS={share}, or give each process cores of its own, by `taskset`"
        yield Finding("threads", text, "warning", advice, values)
    elif threads < few and not launcher_text():  # torch's own choice where two threads share a core
        advice = f"set OMP_NUM_THREADS={few} or more if nothing else needs the other cores"
        yield Finding("threads", f"{on_cores} ({text})", "note", advice, values)
    else:
        yield Finding("threads", text, values=values)
    for name, count in libraries.items():
        if count > cores:
            text = f"{name} takes {counted(count, 'thread')} on {counted(cores, 'core')}"
            yield Finding("threads", text, "note", f"set {name.upper()}_NUM_THREADS={cores}")


def _share(cores: int) -> int | None:
    """Threads for each process where a launcher has started several that may all use the same cores; else None."""
    size, own = os.environ.get("LOCAL_WORLD_SIZE", ""), own_cores()
    bound = own is not None and len(own) < (os.cpu_count() or 1)
    return max(1, cores // int(size)) if size.isdigit() and int(size) > 1 and not bound else None


def memory_findings() -> Iterator[Finding]:
    """The bytes that plans may take, within every limit."""
    import psutil

    plans, limit, total = available_bytes(torch.device("cpu")), memory_limit(), psutil.virtual_memory().total
    rows = math.isqrt(plans // 8)
    text = f"{readable_bytes(plans / FREE_MEMORY_SHARE)} free of {readable_bytes(total)}"
    text += "" if limit is None else f", within a limit of {readable_bytes(limit)} by a control group"
    text += f"; plans take up to {readable_bytes(plans)}, a float64 factor of {rows:,} rows"
    low = plans < _LOW_BYTES
    advice = "give `memory=` what may be taken, raise the limit, or end other programs" if low else ""
    values = {"plan_bytes": plans, "limit_bytes": limit, "total_bytes": total, "factor_rows": rows}
    yield Finding("memory", text, "note" if low else "ok", advice, values)


# -- the accelerator -------------------------------------------------------------------------------------------------
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
        if torch.version.hip is not None:
            count = counted(torch.cuda.device_count(), "AMD device")
            yield Finding("accelerator", f"{count}, torch for ROCm {torch.version.hip}")
            return
        kind = "no NVIDIA driver is installed" if devices is None else "an NVIDIA driver, and no device"
        kind += "" if torch.version.cuda is None else f" (torch is built for CUDA {torch.version.cuda})"
        yield Finding("accelerator", f"none: {kind}; everything runs on the processor")
        return
    names, visible, hidden = "; ".join(devices), torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    severity: Severity = "ok"
    text, advice = f"{names}: torch for CUDA {torch.version.cuda} sees {visible} of {len(devices)}", ""
    if torch.version.cuda is None:
        text, severity = f"{names} cannot be used, torch {torch.__version__} is built without CUDA", "warning"
        advice = "install a build of torch with CUDA, see https://pytorch.org/get-started/locally"
    elif not visible and hidden is None:
        text, severity = f"{names}: torch finds none of them", "warning"
        advice = f"update the driver to one for CUDA {torch.version.cuda}, which torch is built for"
    elif not visible:
        text, severity = f"{names}: CUDA_VISIBLE_DEVICES={hidden!r} hides all of them", "note"
        advice = "unset CUDA_VISIBLE_DEVICES, or name a device in it"
    yield Finding("accelerator", text, severity, advice, {"devices": devices, "visible": visible})


def precision_findings() -> Iterator[Finding]:
    """Findings on float32 products of torch in less than float32."""
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


# -- ranks -----------------------------------------------------------------------------------------------------------
def rank_findings(group: Group) -> Iterator[Finding]:
    """Backends and machines of several ranks, and whether they share cores: the same on every one. Collectives are
    made; of one process there is nothing to say."""
    if group.size == 1:
        return
    here = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    own = {
        "host": socket.gethostname(), "cores": sorted(own_cores() or ()), "threads": torch.get_num_threads(),
        "device": here,
    }  # fmt: skip
    every = [json.loads(text) for text in group.gather_bytes(json.dumps(own).encode())]
    hosts, devices = Counter(one["host"] for one in every), [one["device"] for one in every]
    on = "one machine" if len(hosts) == 1 else f"{len(hosts)} machines"
    names = ", ".join(f"{backend} for {device}" for device, backend in group.backends.items())
    text = f"{group.size} on {on}: {names}; devices {', '.join(dict.fromkeys(devices))}"
    values: dict[str, Any] = {
        "size": group.size, "machines": len(hosts), "backends": group.backends, "devices": devices,
    }  # fmt: skip
    yield Finding("ranks", text, values=values)
    for host, count in hosts.items():
        ranks = [(rank, one) for rank, one in enumerate(every) if one["host"] == host]
        threads, cores = sum(one["threads"] for _, one in ranks), {core for _, one in ranks for core in one["cores"]}
        shared = count > 1 and len(cores) < sum(len(one["cores"]) for _, one in ranks)
        values = {"threads": threads, "cores": len(cores), "shared": shared}
        if shared and threads > len(cores) > 0:
            text = f"{counted(threads, 'thread')} of {count} ranks on {counted(len(cores), 'core')} that they share"
            advice = f"set OMP_NUM_THREADS={max(1, len(cores) // count)}, "
            advice += "or start torchrun with --numa-binding node, or give each rank --cores"
            yield Finding("ranks", text, "warning", advice, values)
        elif cores:
            text = "; ".join(f"rank {rank} has cores {core_text(one['cores'])}" for rank, one in ranks[:8])
            yield Finding("ranks", text, values=values)
