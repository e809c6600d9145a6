"""The processor and its instruction sets, the cores and NUMA nodes that this process has, the memory that is free."""

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.foundations import machine
from flashgp.foundations.machine import FREE_MEMORY_SHARE, available_bytes, memory_limit, text_of
from flashgp.foundations.placement import launcher_text, placement_events
from flashgp.foundations.processors import (
    core_quota,
    core_text,
    numa_nodes,
    own_cores,
    physical_cores,
    usable_cores,
)
from flashgp.foundations.profile_store import machine_key
from flashgp.foundations.quantities import counted, readable_bytes

__all__ = ["core_findings", "memory_findings", "processor_findings"]

# Instruction sets that matrix arithmetic gains from, as the system lists them (x86 and Arm).
_FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2", "bf16")
# With one of these OpenMP pins its threads itself, the calling one included, when torch is loaded.
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_LOW_BYTES = 2**30  # a machine with less left than this refuses problems that are small elsewhere


def processor_findings() -> Iterator[Finding]:
    """The model, what it can do, and what torch makes of it."""
    features = [name for name in _FEATURES if name in _flags()]
    capability = torch.backends.cpu.get_cpu_capability()
    values = {"model": machine_key()[0], "features": features, "torch_capability": capability}
    shown = ", ".join(features) or "its instruction sets are not listed"
    text = f"{values['model']} ({platform.machine()}): {shown}; torch uses {capability}"
    asked = os.environ.get("ATEN_CPU_CAPABILITY")
    if asked:
        advice = "unset ATEN_CPU_CAPABILITY, so that torch uses all that the processor has"
        yield Finding("processor", f"{text}, as ATEN_CPU_CAPABILITY={asked} asks", "note", advice, values)
    elif features and capability in ("DEFAULT", "NO AVX") and platform.machine() in ("x86_64", "AMD64"):
        yield Finding(
            "processor", f"{text}, and no vector instructions of AVX2 or later", "note",
            "choose a machine with AVX2: matrix arithmetic is several times slower without", values,
        )  # fmt: skip
    else:
        yield Finding("processor", text, values=values)


def core_findings() -> Iterator[Finding]:
    """The cores this process may run on, by affinity, quota and launcher, and the NUMA nodes they lie in."""
    own, total, quota = own_cores(), os.cpu_count() or 1, core_quota()
    values = {
        "usable": usable_cores(), "affinity": sorted(own) if own else None, "of_machine": total, "quota": quota,
        "physical": physical_cores(own) if own else None, "launcher": launcher_text(),
    }  # fmt: skip
    text = f"{usable_cores()} of {counted(total, 'core')} can be used"
    text += f": affinity {core_text(own)}" if own else ": this system tells no affinity"
    if own and values["physical"] != len(own):
        text += f" ({values['physical']} physical)"
    text += "" if quota is None else f", and a control group grants {quota:.3g} cores' worth of time"
    text += "".join(f"; {said}" for said in (launcher_text(), *placement_events()) if said)
    yield Finding("cores", text, values=values)
    bound = [f"{name}={os.environ[name]}" for name in BINDING_VARIABLES if os.environ.get(name)]
    if bound:
        yield Finding(
            "cores", f"{', '.join(bound)}: OpenMP binds torch's threads itself, the calling one included", "note",
            f"unset {' and '.join(one.split('=')[0] for one in bound)}, and bind with `fgp.runtime(cores=...)` or "
            "--cores",
        )  # fmt: skip
    yield from _node_findings(own)


def _node_findings(own: frozenset[int] | None) -> Iterator[Finding]:
    nodes = {node: cores for node, cores in numa_nodes().items() if cores}
    if not nodes:
        yield Finding("NUMA nodes", "this system names none")
        return
    values = {str(node): core_text(cores) for node, cores in nodes.items()}
    text = ", ".join(f"node {node}: cores {cores}" for node, cores in values.items())
    mine = [node for node, cores in nodes.items() if own and own & cores]
    if len(mine) > 1:
        text += f"; this process runs on {len(mine)} of them"
        advice = f"on problems that fit one node, pin to it: `fgp.runtime(numa_node={mine[0]})` or --numa {mine[0]}"
        yield Finding("NUMA nodes", f"{text}, whose memory is slower from the others", "note", advice, values)
    else:
        yield Finding("NUMA nodes", text, values=values)


def memory_findings() -> Iterator[Finding]:
    """What plans may take, within every limit."""
    plans, limit, total = available_bytes(torch.device("cpu")), memory_limit(), _total_bytes()
    rows = math.isqrt(plans // 8)
    values = {"free_bytes": int(plans / FREE_MEMORY_SHARE), "plan_bytes": plans, "limit_bytes": limit}
    values |= {"total_bytes": total, "factor_rows": rows}
    text = f"{readable_bytes(plans / FREE_MEMORY_SHARE)} free"
    text += "" if total is None else f" of {readable_bytes(total)}"
    text += "" if limit is None else f", within a limit of {readable_bytes(limit)} by a control group"
    text += f"; plans take up to {readable_bytes(plans)}, a float64 factor of {rows:,} rows"
    low = plans < _LOW_BYTES
    advice = "give `memory=` what may be taken, raise the limit, or end other programs" if low else ""
    yield Finding("memory", text, "note" if low else "ok", advice, values)


def _total_bytes() -> int | None:
    for line in text_of(Path(machine.ROOT) / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _flags() -> set[str]:
    """The instruction sets that the system lists for the first core."""
    for line in text_of(Path(machine.ROOT) / "proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(flags.split())
    return set()
