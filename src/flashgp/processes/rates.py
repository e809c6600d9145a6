"""How quick a group's collectives are, measured: what `flashgp doctor` and `flashgp tune` say of it, and plans use."""

import socket
import statistics
import time

import torch

from flashgp.foundations.collectives import CollectiveRate
from flashgp.processes.group import Group

__all__ = ["measured_rate"]

LARGE_NUMBERS = 2**21  # float32: 8 MiB
REPEATS, LARGE_REPEATS = 20, 4
NOISE = 0.1  # of the seconds of many numbers, which take no less than so much longer than one


def measured_rate(group: Group, device: torch.device | None = None) -> CollectiveRate:
    """The slowest rank's, the same on every rank. Cost: some tenths of a second."""
    device = device or torch.device("cpu")
    small, large = torch.zeros(1, device=device), torch.zeros(LARGE_NUMBERS, device=device)
    group.sum(large)  # connections are made by the first
    latency = _median(group, small, REPEATS)
    before = group.bytes_sent
    seconds = _median(group, large, LARGE_REPEATS)
    sent = (group.bytes_sent - before) / LARGE_REPEATS
    slowest = group.max(torch.tensor([latency, seconds], dtype=torch.float64, device=device)).tolist()
    machines = len(set(group.gather_bytes(socket.gethostname().encode())))
    backend, (seconds, many) = group.backends[device.type], slowest
    return CollectiveRate(backend, group.size, seconds, sent / max(many - seconds, NOISE * many), machines)


def _median(group: Group, tensor: torch.Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        group.sum(tensor).sum().item()  # which waits for an accelerator
        times.append(time.perf_counter() - began)
    return statistics.median(times)
