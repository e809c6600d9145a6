"""Free cores of a process: those that no other process keeps busy.

OpenMP's threads wait for each other at the end of every operation. Where another process has one of the cores, each of
them waits for the scheduler, spinning: two threads beside one busy core take several times as long as one thread.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from flashgp.foundations.processors import own_cores, usable_cores

LEAST_SECONDS = 0.2  # between two readings: the system counts in hundredths of a second
SPARE = 0.1  # of a core that others may keep busy before it counts as taken


class CoreTimes(NamedTuple):
    """A reading: seconds on the wall, seconds that the usable cores were busy, seconds that this process ran."""

    wall: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> "CoreTimes":
        """Reading of the cores of this process's affinity; time taken by other virtual machines counts as busy.

        Where the system does not say (a sandbox without /proc/stat), nothing was busy.
        """
        import psutil

        mine, busy = own_cores(), 0.0
        try:
            cores, process = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
        except (OSError, psutil.Error):
            return cls(time.perf_counter(), 0.0, 0.0)
        for core, times in enumerate(cores):
            if mine is None or core in mine:
                idle = times.idle + getattr(times, "iowait", 0.0)
                twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also in user and nice
                busy += sum(times) - idle - twice
        return cls(time.perf_counter(), busy, process.user + process.system)

    def others(self, later: "CoreTimes") -> float:
        """Cores that other processes kept busy between this reading and a later one."""
        return max(0.0, later.busy - self.busy - (later.own - self.own)) / (later.wall - self.wall)


def reachable_cores() -> int:
    """Cores of this process's affinity, on which others are counted; a quota may grant the time of fewer."""
    mine = own_cores()
    return len(mine) if mine else os.cpu_count() or 1


class OtherLoad:
    """The load of other processes on this one's cores, measured between calls.

    Args: read: what gives the times.
    Example:
        >>> load = OtherLoad()
        >>> load.free_cores() == usable_cores()  # nothing is known at first
        True
    """

    def __init__(self, read: Callable[[], CoreTimes] = CoreTimes.now) -> None:
        self._read, self._lock = read, threading.Lock()
        self._last, self._others, self._known = read(), 0.0, False

    def free_cores(self, *, wait: bool = False) -> int:
        """Cores that others left free since the last reading that is old enough, 1 at least.

        Args: wait: for the first reading, where there is none.
        Cost: some 0.1 ms.
        """
        with self._lock:
            if wait and not self._known:
                time.sleep(max(0.0, LEAST_SECONDS - (time.perf_counter() - self._last.wall)))
            if time.perf_counter() - self._last.wall >= LEAST_SECONDS:
                last, self._last = self._last, self._read()
                self._others = last.others(self._last)
                self._known = True
        return max(1, min(usable_cores(), int(reachable_cores() - self._others + SPARE)))
