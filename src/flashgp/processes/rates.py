"""How quick a group's collectives are, measured: what `flashgp doctor` and `flashgp tune` say of it."""

import statistics
import time
from dataclasses import dataclass

import torch

from flashgp.processes.group import Group

__all__ = ["CollectiveRate", "measured_rate"]

LARGE_NUMBERS = 2**21  # float32: 8 MiB
REPEATS, LARGE_REPEATS = 20, 4


@dataclass(frozen=True)
class CollectiveRate:
    """Fields: seconds of an all-reduce of one number; bytes_per_second that a rank sends in one of many."""

    seconds: float
    bytes_per_second: float


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
    return CollectiveRate(slowest[0], sent / max(slowest[1] - slowest[0], 1e-9))


def _median(group: Group, tensor: torch.Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        group.sum(tensor).sum().item()  # which waits for an accelerator
        times.append(time.perf_counter() - began)
    return statistics.median(times)
