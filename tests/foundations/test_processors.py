"""What is said of cores: lists as text, affinity and quotas of both versions of control groups."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashgp.foundations.errors import DomainError
from flashgp.foundations.processors import (
    core_quota,
    core_text,
    own_cores,
    parse_cores,
    usable_cores,
)
from machine_root import MachineRoot


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineRoot]:
    with MachineRoot(tmp_path, monkeypatch) as root:
        yield root


@pytest.mark.parametrize(
    ("given", "cores"),
    [
        ("0", {0}),
        ([3, 1], {1, 3}),
        (range(2), {0, 1}),
    ],
)
def test_core_numbers(given: object, cores: set[int]) -> None:
    assert parse_cores(given) == cores  # type: ignore[arg-type]
    assert parse_cores(core_text(cores)) == cores


@pytest.mark.parametrize(
    "given",
    [
        "",
        "3-1",
        "1-",
        "0,,1",
        [],
        [-1],
        None,
    ],
)
def test_what_names_no_cores(given: object) -> None:
    with pytest.raises(DomainError, match=r"`cores` must be core numbers like '0-3,8'"):
        parse_cores(given)  # type: ignore[arg-type]


def test_cores_as_text() -> None:
    assert core_text({8, 0, 1, 2, 3, 10, 11}) == "0-3,8,10-11"
    assert core_text([]) == ""


def test_own_cores_are_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5}, raising=False)
    assert own_cores() == {2, 5}
    monkeypatch.delattr(os, "sched_getaffinity")
    assert own_cores() is None


def test_a_quota_leaves_fewer_cores(root: MachineRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert (core_quota(), usable_cores()) == (None, 8)
    root.write("proc/self/cgroup", "0::/user/job\n")
    root.write("sys/fs/cgroup/user/job/cpu.max", "max 100000\n")
    assert (core_quota(), usable_cores()) == (None, 8)
    root.write("sys/fs/cgroup/user/cpu.max", "250000 100000\n")  # of the group above
    assert (core_quota(), usable_cores()) == (2.5, 3)
    root.write("sys/fs/cgroup/user/job/cpu.max", "50000 100000\n")
    assert (core_quota(), usable_cores()) == (0.5, 1)
    root.write("sys/fs/cgroup/user/job/cpu.max", "3200000 100000\n")
    root.write("sys/fs/cgroup/user/cpu.max", "rubbish\n")
    assert (core_quota(), usable_cores()) == (32.0, 8), "no more than the affinity"


def test_a_quota_of_version_1(root: MachineRoot) -> None:
    root.write("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/docker/abc\n")
    root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert core_quota() is None
    root.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "150000\n")
    root.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n")
    assert core_quota() == 1.5
    root.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "0\n")
    assert core_quota() is None
