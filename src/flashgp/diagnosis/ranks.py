"""The processes of a group: backends, machines, and whether they share cores."""

import json
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.foundations.processors import core_text, own_cores
from flashgp.foundations.quantities import counted
from flashgp.processes.group import Group


def rank_findings(group: Group) -> Iterator[Finding]:
    """Of a group of several ranks, the same on every one; nothing of one process. Collectives are made."""
    if group.size == 1:
        return
    cores = own_cores() or frozenset()
    here = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    own = {
        "host": socket.gethostname(), "cores": sorted(cores), "threads": torch.get_num_threads(), "device": here,
    }  # fmt: skip
    every = [json.loads(text) for text in group.gather_bytes(json.dumps(own).encode())]
    hosts = Counter(one["host"] for one in every)
    backends = group.backends
    on = "one machine" if len(hosts) == 1 else f"{len(hosts)} machines"
    names = ", ".join(f"{backend} for {device}" for device, backend in backends.items())
    devices = [one["device"] for one in every]
    values: dict[str, Any] = {"size": group.size, "machines": len(hosts), "backends": backends, "devices": devices}
    yield Finding("ranks", f"{group.size} on {on}: {names}; devices {', '.join(dict.fromkeys(devices))}", values=values)
    yield from _shared_cores(every, hosts)


def _shared_cores(every: list[dict[str, Any]], hosts: Counter[str]) -> Iterator[Finding]:
    """Whether ranks of one machine have cores of their own."""
    for host, count in hosts.items():
        ranks = [(rank, one) for rank, one in enumerate(every) if one["host"] == host]
        threads, cores = sum(one["threads"] for _, one in ranks), {core for _, one in ranks for core in one["cores"]}
        shared = count > 1 and len(cores) < sum(len(one["cores"]) for _, one in ranks)
        text = "; ".join(f"rank {rank} has cores {core_text(one['cores'])}" for rank, one in ranks[:8] if one["cores"])
        values = {"threads": threads, "cores": len(cores), "shared": shared}
        advice = "start torchrun with --numa-binding node, or give each rank --cores"
        if shared and cores and threads > len(cores):
            text = f"{counted(threads, 'thread')} of {count} ranks on {counted(len(cores), 'core')} that they share"
            yield Finding(
                "ranks", text, "warning", f"set OMP_NUM_THREADS={max(1, len(cores) // count)}, or {advice}", values
            )
        elif text:
            yield Finding("ranks", text, values=values)
