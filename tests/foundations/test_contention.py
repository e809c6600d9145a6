"""What others leave of the cores, from readings that are made up."""

import itertools
import os
from pathlib import Path

import psutil
import pytest

from flashgp.foundations.contention import LEAST_SECONDS, CoreTimes, OtherLoad
from flashgp.foundations.processors import usable_cores
from machine_root import MachineRoot


@pytest.mark.parametrize(("others", "taken"), [(0.0, 0), (0.05, 0), (-0.3, 0)])
def test_free_cores_are_those_that_others_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: float, taken: int
) -> None:
    """This process ran one core and a half; what else was busy is others'. Clocks of the two may be off by a tick."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    readings = (CoreTimes(-100.0 + i, 100.0 + (1.5 + others) * i, 7.0 + 1.5 * i) for i in itertools.count())
    with MachineRoot(tmp_path, monkeypatch):  # without a quota
        assert OtherLoad(lambda: next(readings)).free_cores() == max(1, 2 - taken)


def test_a_quota_leaves_its_time_where_others_fill_other_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container may run on all cores of a machine, for the time of two; what its neighbours use is not its own."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    with MachineRoot(tmp_path, monkeypatch) as machine:
        machine.write("proc/self/cgroup", "0::/a\n")
        machine.write("sys/fs/cgroup/a/cpu.max", "200000 100000\n")
        for others, free in ((29.0, 2), (62.5, 1), (64.0, 1)):
            readings = (CoreTimes(-100.0 + i, 100.0 + (1.0 + others) * i, 7.0 + i) for i in itertools.count())
            assert OtherLoad(lambda readings=readings: next(readings)).free_cores() == free


def test_a_system_that_counts_no_times_leaves_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", refused)
    assert CoreTimes.now()[1:] == (0.0, 0.0)
    assert OtherLoad().free_cores() == usable_cores()


def test_a_reading_serves_for_a_while() -> None:
    count = itertools.count()

    def read() -> CoreTimes:
        next(count)
        return CoreTimes.now()

    load = OtherLoad(read)
    for _ in range(50):
        load.free_cores()
    assert next(count) == 1, f"readings closer than {LEAST_SECONDS} s say nothing"


def test_times_grow_and_hold_what_this_process_ran() -> None:
    before = CoreTimes.now()
    sum(i * i for i in range(3_000_000))
    after = CoreTimes.now()
    assert after.own > before.own
    assert after.busy - before.busy > 0.5 * (after.own - before.own)
