"""How many threads torch, BLAS libraries and compiled loops take, against the cores that there are.

Libraries are asked where they are loaded already, and none is loaded for it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.foundations.placement import launcher_text
from flashgp.foundations.processors import own_cores, physical_cores, usable_cores
from flashgp.foundations.quantities import counted

__all__ = ["thread_findings"]

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_WAIT_POLICY")


def thread_findings(read_libraries: Callable[[], list[dict[str, Any]]] | None = None) -> Iterator[Finding]:
    """Counts of threads, too many and too few."""
    threads, cores = torch.get_num_threads(), usable_cores()
    libraries = (read_libraries or _libraries)()
    said = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    numba = _numba_threads()
    values = {
        "torch": threads, "torch_interop": torch.get_num_interop_threads(), "loops": threads, "numba": numba,
        "libraries": libraries, "cores": cores, "environment": said,
    }  # fmt: skip
    text = f"torch and our compiled loops {threads}"
    text += "".join(f", {one['name']} {one['threads']}" for one in libraries)
    text += "" if numba is None else f", numba's own {numba}"
    text += "".join(f", {name}={value}" for name, value in said.items())
    physical = physical_cores(own_cores() or range(cores))
    share = _share(cores)
    if threads > cores:
        yield Finding(
            "threads", f"{counted(threads, 'thread')} on {counted(cores, 'core')}: they wait for each other ({text})",
            "warning", f"set OMP_NUM_THREADS={cores}: {threads} threads on {counted(cores, 'core')}", values,
        )  # fmt: skip
    elif share is not None and threads > share:
        yield Finding(
            "threads", f"{counted(threads, 'thread')} in each process ({launcher_text()}) on {counted(cores, 'core')} "
            f"that no other process is kept from ({text})", "warning",
            f"set OMP_NUM_THREADS={share}, or give each process cores of its own: `fgp.runtime(cores=...)`", values,
        )  # fmt: skip
    elif threads < min(cores, physical) and not launcher_text():
        yield Finding(
            "threads", f"{counted(threads, 'thread')} of {min(cores, physical)} that the cores allow ({text})", "note",
            f"set OMP_NUM_THREADS={min(cores, physical)} if nothing else needs the other cores", values,
        )  # fmt: skip
    else:
        yield Finding("threads", text, values=values)
    many = [one for one in libraries if one["threads"] > cores]
    for one in many:
        name = f"{one['name'].upper()}_NUM_THREADS"
        yield Finding(
            "threads", f"{one['name']} takes {counted(one['threads'], 'thread')} on {counted(cores, 'core')}", "note",
            f"set {name}={cores}",
        )  # fmt: skip


def _share(cores: int) -> int | None:
    """Threads for each process where a launcher has started several that may all use the same cores; else None."""
    try:
        size = int(os.environ.get("LOCAL_WORLD_SIZE", ""))
    except ValueError:
        return None
    own = own_cores()
    bound = own is not None and len(own) < (os.cpu_count() or 1)
    return max(1, cores // size) if size > 1 and not bound else None


def _libraries() -> list[dict[str, Any]]:
    """Name and count of each BLAS library of this process, torch's own MKL not among them."""
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas").info()
    return [
        {"name": one["internal_api"], "threads": one["num_threads"], "version": one.get("version")} for one in found
    ]


def _numba_threads() -> int | None:
    """What numba's own parallel loops would take; FlashGP has none. None where it is not loaded and nobody has said."""
    if "numba" in sys.modules:
        return int(sys.modules["numba"].config.NUMBA_NUM_THREADS)  # asking its pool would start it
    said = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(said) if said.isdigit() else None
