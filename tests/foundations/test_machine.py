"""What is really free: the machine's own count, every control group around the process, the accelerator's allocator."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flashgp.foundations.machine import FREE_MEMORY_SHARE, available_bytes, memory_limit
from machine_root import MachineRoot

CPU = torch.device("cpu")
GIB = 2**30
NO_LIMIT_V1 = 9223372036854771712  # what version 1 writes for "no limit"


class Machine(MachineRoot):
    """One with control groups."""

    def group(self, folder: str, limit: int | str, used: int, cache: int = 0) -> None:
        self.write(f"sys/fs/cgroup/{folder}/memory.max", f"{limit}\n")
        self.write(f"sys/fs/cgroup/{folder}/memory.current", f"{used}\n")
        self.write(f"sys/fs/cgroup/{folder}/memory.stat", f"anon 5\ninactive_file {cache}\nactive_file 3\n")

    def old_group(self, folder: str, limit: int, used: int, cache: int = 0) -> None:
        self.write(f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"sys/fs/cgroup/memory/{folder}/memory.usage_in_bytes", f"{used}\n")
        self.write(f"sys/fs/cgroup/memory/{folder}/memory.stat", f"inactive_file 1\ntotal_inactive_file {cache}\n")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with Machine(tmp_path, monkeypatch) as fake:
        fake.memory(16 * GIB)
        yield fake


def free() -> float:
    return available_bytes(CPU) / FREE_MEMORY_SHARE / GIB


def test_without_control_groups(fake: Machine) -> None:
    assert free() == pytest.approx(16)
    fake.write("proc/self/cgroup", "0::/\n")
    assert free() == pytest.approx(16)


def test_version_2_takes_the_tightest_group(fake: Machine) -> None:
    fake.write("proc/self/cgroup", "0::/user.slice/job\n")
    fake.group("user.slice/job", "max", GIB)
    assert free() == pytest.approx(16)
    fake.group("user.slice/job", 8 * GIB, 5 * GIB)
    assert free() == pytest.approx(3)
    assert memory_limit() == 8 * GIB
    fake.group("user.slice", 10 * GIB, 8 * GIB)  # shared with other processes of the user
    assert free() == pytest.approx(2)
    fake.group("user.slice", 10 * GIB, 8 * GIB, cache=4 * GIB)  # the page cache is given up on demand
    assert free() == pytest.approx(3)
    fake.group("other", GIB, GIB)  # not ours
    assert free() == pytest.approx(3)


def test_version_2_inside_a_container(fake: Machine) -> None:
    """The namespace shows only the container's own group, as the top."""
    fake.write("proc/self/cgroup", "0::/\n")
    fake.group("", 4 * GIB, GIB)
    assert free() == pytest.approx(3)
    fake.write("proc/self/cgroup", "0::/../sibling\n")
    assert free() == pytest.approx(3)


def test_version_1(fake: Machine) -> None:
    fake.write("proc/self/cgroup", "9:cpu:/docker/abc\n4:memory,hugetlb:/docker/abc\n0::/\n")
    fake.old_group("", NO_LIMIT_V1, 20 * GIB)
    assert free() == pytest.approx(16)
    assert memory_limit() is None
    fake.old_group("docker/abc", 6 * GIB, 4 * GIB, cache=GIB)
    assert free() == pytest.approx(3)
    assert memory_limit() == 6 * GIB
    fake.old_group("docker", 6 * GIB, 7 * GIB)  # over its limit: nothing is left, and not less than that
    assert free() == 0


def test_files_that_say_nothing(fake: Machine) -> None:
    fake.write("proc/self/cgroup", "\nrubbish\n4:memory:/a\n0::/a\n")
    fake.group("a", "", 0)
    assert free() == pytest.approx(16)


def test_here_something_is_free() -> None:
    import psutil

    assert 0 < available_bytes(CPU) <= psutil.virtual_memory().total


def test_an_accelerator_counts_what_its_allocator_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free on the device plus what torch has reserved and not given out."""
    said = SimpleNamespace(
        get_memory_info=lambda device: (3 * GIB, 9 * GIB),
        memory_reserved=lambda device: 4 * GIB,
        memory_allocated=lambda device: 2 * GIB,
    )
    monkeypatch.setattr(torch, "accelerator", said)
    assert available_bytes(torch.device("cuda")) == int(5 * GIB * FREE_MEMORY_SHARE)
