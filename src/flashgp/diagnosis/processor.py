"""The cores of this process, how many threads compute on them, and the free memory.

BLAS libraries are asked for their threads where they are loaded already; none is loaded for it.
"""

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.foundations.machine import FREE_MEMORY_SHARE, available_bytes, memory_limit
from flashgp.foundations.placement import launcher_text, placement_events
from flashgp.foundations.processors import (
    core_quota,
    core_text,
    own_cores,
    usable_cores,
)
from flashgp.foundations.profile_store import machine_key
from flashgp.foundations.quantities import counted, readable_bytes

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_WAIT_POLICY")
_LOW_BYTES = 2**30  # a machine with less left than this refuses problems that are small elsewhere


def core_findings() -> Iterator[Finding]:
    """The cores this process may run on, by affinity, quota and launcher."""
    own, total, quota = own_cores(), os.cpu_count() or 1, core_quota()
    values = {
        "model": machine_key()[0], "usable": usable_cores(), "affinity": sorted(own) if own else None,
        "of_machine": total, "quota": quota,
    }  # fmt: skip
    text = f"{values['model']}: {usable_cores()} of {counted(total, 'core')} can be used"
    text += f": affinity {core_text(own)}" if own else ": this system tells no affinity"
    text += "" if quota is None else f", and a control group grants {quota:.3g} cores' worth of time"
    text += "".join(f"; {part}" for part in (launcher_text(), *placement_events()) if part)
    yield Finding("cores", text, values=values)


def thread_findings(read_libraries: Callable[[], list[dict[str, Any]]] | None = None) -> Iterator[Finding]:
    """Whether torch, our compiled code and BLAS libraries take too many threads for the cores, or too few."""
    threads, cores = torch.get_num_threads(), usable_cores()
    libraries = (read_libraries or _libraries)()
    environment = {name: os.environ[name] for name in _THREADS if os.environ.get(name)}
    values = {
        "torch": threads, "torch_interop": torch.get_num_interop_threads(), "libraries": libraries, "cores": cores,
        "environment": environment,
    }  # fmt: skip
    text = f"torch and our compiled code {threads}"
    text += "".join(f", {one['name']} {one['threads']}" for one in libraries)
    text += "".join(f", {name}={value}" for name, value in environment.items())
    ours, on_cores = counted(threads, "thread"), f"on {counted(cores, 'core')}"
    few = cores // 2  # torch's own choice where two threads share a core
    share = _share(cores)
    if threads > cores:
        advice = f"set OMP_NUM_THREADS={cores}: {ours} {on_cores}"
        yield Finding("threads", f"{ours} {on_cores}: they wait for each other ({text})", "warning", advice, values)
    elif share is not None and threads > share:
        text = f"{ours} in each process ({launcher_text()}) {on_cores} that no other process is kept from ({text})"
        advice = f"set OMP_NUM_THREADS={share}, or give each process cores of its own, by `taskset`"
        yield Finding("threads", text, "warning", advice, values)
    elif threads < few and not launcher_text():
        advice = f"set OMP_NUM_THREADS={few} or more if nothing else needs the other cores"
        yield Finding("threads", f"{ours} {on_cores} ({text})", "note", advice, values)
    else:
        yield Finding("threads", text, values=values)
    for one in libraries:
        if one["threads"] > cores:
            text = f"{one['name']} takes {counted(one['threads'], 'thread')} {on_cores}"
            yield Finding("threads", text, "note", f"set {one['name'].upper()}_NUM_THREADS={cores}")


def memory_findings() -> Iterator[Finding]:
    """The bytes that plans may take, within every limit."""
    import psutil

    plans, limit, total = available_bytes(torch.device("cpu")), memory_limit(), psutil.virtual_memory().total
    free, rows = plans / FREE_MEMORY_SHARE, math.isqrt(plans // 8)
    values = {
        "free_bytes": int(free), "plan_bytes": plans, "limit_bytes": limit, "total_bytes": total, "factor_rows": rows,
    }  # fmt: skip
    text = f"{readable_bytes(free)} free of {readable_bytes(total)}"
    text += "" if limit is None else f", within a limit of {readable_bytes(limit)} by a control group"
    text += f"; plans take up to {readable_bytes(plans)}, a float64 factor of {rows:,} rows"
    low = plans < _LOW_BYTES
    advice = "give `memory=` what may be taken, raise the limit, or end other programs" if low else ""
    yield Finding("memory", text, "note" if low else "ok", advice, values)


def _share(cores: int) -> int | None:
    """Threads for each process where a launcher has started several that may all use the same cores; else None."""
    size = os.environ.get("LOCAL_WORLD_SIZE", "")
    own = own_cores()
    bound = own is not None and len(own) < (os.cpu_count() or 1)
    return max(1, cores // int(size)) if size.isdigit() and int(size) > 1 and not bound else None


def _libraries() -> list[dict[str, Any]]:
    """Name and threads of each BLAS library of this process, torch's own MKL not among them."""
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(user_api="blas").info()
    return [
        {"name": one["internal_api"], "threads": one["num_threads"], "version": one.get("version")} for one in libraries
    ]
