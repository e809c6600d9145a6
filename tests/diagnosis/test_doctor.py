"""The doctor on machines of our own making: what it finds, what it advises, and that it never fails."""

import importlib.util
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.diagnosis import Diagnosis, Finding, installation, machine
from flashgp.diagnosis.examination import CHECKS, examine
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.foundations.profile_store import forget_profiles, machine_key
from machine_root import MachineRoot

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineRoot]:
    with MachineRoot(tmp_path / "root", monkeypatch) as root:
        yield root


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*machine._THREADS, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def only(findings: Any) -> Finding:
    (finding,) = findings
    assert isinstance(finding, Finding)
    return finding


# -- the whole ---------------------------------------------------------------------------------------------------------
def test_this_machine() -> None:
    before = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    found = fgp.doctor()
    assert isinstance(found, Diagnosis)
    failed = [finding for finding in found.findings if "could not be looked at" in finding.found]
    assert failed == []
    topics = {finding.topic for finding in found.findings}
    assert topics >= set(CHECKS)
    assert json.loads(found.to_json())["findings"][0]["values"]["torch"] == torch.__version__
    assert "<table>" in found._repr_html_()
    text = str(found)
    assert max(map(len, text.splitlines())) <= 120 or "/" in text
    for advice in found.advice:
        assert f"=> {advice}"[:60] in text
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
    assert not torch.cuda.is_initialized()


def test_nothing_is_imported_to_be_looked_at(source_environment: dict[str, str]) -> None:
    """Also within 512 MB, on one core, and without a word on the way."""
    code = """
import json, os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import flashgp as fgp
found = fgp.doctor()
assert not [one for one in found.findings if "could not be" in one.found], found
peak = 0
if sys.platform == "linux":  # of this program: getrusage counts what the process was before it, too
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
print(json.dumps([sorted(sys.modules), peak]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], env=source_environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    loaded, peak = json.loads(run.stdout)
    heavy = {"numba", "llvmlite", "triton", "sklearn", "matplotlib", "pandas", "pyarrow", "typer", "scipy.optimize"}
    assert heavy & set(loaded) == set()
    assert peak < 512 * 2**20


def test_a_driver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises() -> None:
        raise RuntimeError("CUDA driver version is insufficient")

    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "device_count", raises)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    found = fgp.doctor()
    failed = [one for one in found.findings if "could not be looked at" in one.found]
    assert {one.topic for one in failed} == {"accelerator", "versions"}
    assert any("`nvidia-smi` does not list the devices" in one.found for one in failed)
    assert any("driver version is insufficient" in one.found for one in failed)


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs users")
def test_without_a_home_and_without_write_access(source_environment: dict[str, str], tmp_path: Path) -> None:
    """As a user whom the system does not know, where root can become one: its packages may be out of reach then too."""
    code = """
import os, sys
import torch, flashgp as fgp
fgp.doctor()
if os.getuid() == 0:
    os.setgid(65432); os.setuid(65432)
for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "FLASHGP_PROFILE", "FLASHGP_CACHE_DIR"):
    os.environ.pop(name, None)
os.chdir("/")
import tempfile
tempfile.tempdir = "/proc/nowhere"
print(fgp.doctor())
"""
    run = subprocess.run(
        [sys.executable, "-c", code], env=source_environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert "versions" in run.stdout
    if os.getuid() == 0:
        assert "compiled code cannot be kept" in run.stdout
        assert "=> set FLASHGP_CACHE_DIR to a directory of yours" in run.stdout
    assert list(tmp_path.iterdir()) == []


# -- packages ----------------------------------------------------------------------------------------------------------


# -- processor, cores, memory ------------------------------------------------------------------------------------------
def eight_cores(root: MachineRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


def test_cores_by_affinity_quota_and_launcher(root: MachineRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    eight_cores(root, monkeypatch)
    root.write("proc/self/cgroup", "0::/\n")
    root.write("sys/fs/cgroup/cpu.max", "250000 100000\n")
    monkeypatch.setenv("LOCAL_RANK", "1")
    cores = only(machine.core_findings())
    assert cores.found.endswith(
        "3 of 8 cores can be used: affinity 0-7, and a control group grants 2.5 cores' worth of time; LOCAL_RANK 1"
    )
    assert cores.values["quota"] == 2.5


def test_memory_within_the_limit(root: MachineRoot) -> None:
    root.memory(8 * GIB, 16 * GIB)
    found = only(machine.memory_findings())
    assert found.severity == "ok"
    assert found.values["plan_bytes"] == pytest.approx(0.8 * 8 * GIB)
    assert (
        found.values["factor_rows"] ** 2 * 8 <= found.values["plan_bytes"] < (found.values["factor_rows"] + 1) ** 2 * 8
    )
    root.write("proc/self/cgroup", "0::/\n")
    root.write("sys/fs/cgroup/memory.max", f"{512 * 2**20}\n")
    root.write("sys/fs/cgroup/memory.current", f"{112 * 2**20}\n")
    found = only(machine.memory_findings())
    assert (found.severity, found.values["limit_bytes"]) == ("note", 512 * 2**20)
    assert "400.0 MiB free of 16.0 GiB, within a limit of 512.0 MiB" in found.found


# -- threads -----------------------------------------------------------------------------------------------------------
def with_blas(monkeypatch: pytest.MonkeyPatch, *libraries: dict[str, Any]) -> None:
    """What threadpoolctl says of this process."""
    controller = SimpleNamespace(select=lambda user_api: SimpleNamespace(info=lambda: libraries))
    monkeypatch.setattr("threadpoolctl.ThreadpoolController", lambda: controller)


def test_too_many_and_too_few_threads(root: MachineRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    eight_cores(root, monkeypatch)
    with_blas(monkeypatch, {"internal_api": "openblas", "num_threads": 8, "version": "1"})

    def with_threads(count: int) -> list[Finding]:
        monkeypatch.setattr(torch, "get_num_threads", lambda: count)
        return list(machine.thread_findings())

    assert [one.severity for one in with_threads(4)] == ["ok"]
    assert [one.severity for one in with_threads(8)] == ["ok"], "of 8 logical cores"
    few = only(with_threads(2))
    assert (few.severity, few.advice) == ("note", "set OMP_NUM_THREADS=4 or more if nothing else needs the other cores")
    many = only(with_threads(16))
    assert (many.severity, many.advice) == ("warning", "set OMP_NUM_THREADS=8: 16 threads on 8 cores")
    root.write("proc/self/cgroup", "0::/\n")
    root.write("sys/fs/cgroup/cpu.max", "200000 100000\n")
    many, blas = with_threads(8)
    assert many.advice == "set OMP_NUM_THREADS=2: 8 threads on 2 cores"
    assert blas.advice == "set OPENBLAS_NUM_THREADS=2"


def test_processes_of_a_launcher_that_share_their_cores(root: MachineRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    eight_cores(root, monkeypatch)
    with_blas(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    shared = only(machine.thread_findings())
    assert shared.advice.startswith("set OMP_NUM_THREADS=2, or give each process cores of its own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert only(machine.thread_findings()).severity == "ok", "each has its own"


# -- accelerator -------------------------------------------------------------------------------------------------------
def driven(monkeypatch: pytest.MonkeyPatch, folder: Path, listed: str, built: str | None, visible: int = 1) -> Any:
    """The findings where `nvidia-smi` prints these lines."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{listed}'\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/bin{os.pathsep}/usr/bin")
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    return list(machine.accelerator_findings())


H100 = "NVIDIA H100, 81920 MiB\\n"


def test_a_device_that_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = only(driven(monkeypatch, tmp_path, H100, None))
    assert found.severity == "warning"
    assert found.found.endswith("is built without CUDA")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = only(driven(monkeypatch, tmp_path, H100, "13.0", visible=0))
    assert (hidden.severity, hidden.advice[:26]) == ("note", "unset CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    unseen = only(driven(monkeypatch, tmp_path, H100, "13.0", visible=0))
    assert (unseen.severity, unseen.advice[:17]) == ("warning", "update the driver")


def test_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert only(machine.accelerator_findings()).found.startswith("none: no NVIDIA driver is installed")
    found = only(driven(monkeypatch, tmp_path, "", "13.0"))
    assert "an NVIDIA driver, and no device (torch is built for CUDA 13.0)" in found.found


@pytest.mark.parametrize("precision", ["medium"])
def test_float32_products_in_less_than_float32_are_named(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    assert only(machine.precision_findings()).severity == "ok"
    try:
        torch.set_float32_matmul_precision(precision)
        found = only(machine.precision_findings())
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.severity == "warning"
    assert found.advice.startswith('torch.set_float32_matmul_precision("highest")')
    assert found.values["float32_matmul"] == precision


# -- profile and cache -------------------------------------------------------------------------------------------------
def measured(**changes: Any) -> MachineProfile:
    processor_name, cores, count, version = machine_key()
    own = {"processor": processor_name, "cores": cores, "threads": count, "torch_version": version}
    return MachineProfile(**{**vars(BUILT_IN), "name": "measured", **own, **changes})


@pytest.fixture
def folder(profiles: Path) -> Path:
    return profiles


def test_the_profile_of_this_machine_and_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = only(installation.profile_findings())
    assert (none.severity, none.values["state"], none.values["kept"]) == ("note", "built-in", False)
    assert none.advice.startswith("run `flashgp tune`")
    assert not folder.exists(), "nothing is made"
    folder.mkdir()
    installation.profile_path().write_text(measured().to_json())
    forget_profiles()
    own = only(installation.profile_findings())
    assert (own.severity, own.values["state"], own.values["kept"]) == ("ok", "measured", True)
    installation.profile_path().write_text("{")
    forget_profiles()
    broken = list(examine("profile", installation.profile_findings))
    assert ["could not be used" in one.found for one in broken] == [False, True], "its warning is a finding"
    monkeypatch.setenv("FLASHGP_PROFILE", "built-in")
    assert "built-in rates" in only(installation.profile_findings()).found


def without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLASHGP_PROFILE", "FLASHGP_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)


def test_a_folder_that_cannot_keep_a_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("a file")
    with pytest.warns(fgp.FlashGPWarning, match="could not be used"):
        _, found = installation.profile_findings()
    assert "is a file" in found.found
    folder.unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    _, found = installation.profile_findings()
    assert f"no write access to {folder.parent}" in found.found
    assert found.advice.endswith("in FLASHGP_PROFILE")

    without_a_home(monkeypatch)
    assert only(installation.profile_findings()).advice.startswith("name a folder in FLASHGP_PROFILE")


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHGP_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "cache" / "generated"
    assert only(installation.cache_findings()).found == f"{path} will be made when something is compiled"
    assert not path.exists()
    path.mkdir(parents=True)
    path.chmod(0o700)
    assert only(installation.cache_findings()).found == f"{path} is there"
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        denied = only(installation.cache_findings())
    assert (denied.severity, denied.values["usable"]) == ("warning", False)
    if hasattr(os, "getuid"):
        path.chmod(path.stat().st_mode | stat.S_IWOTH)
        foreign = only(installation.cache_findings())
        assert (foreign.severity, foreign.values["usable"]) == ("warning", False)
        assert "others may write to it" in foreign.found

    without_a_home(monkeypatch)
    assert only(installation.cache_findings()).advice == "set FLASHGP_CACHE_DIR to a directory of yours"


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    real_spec, real_version = importlib.util.find_spec, metadata.version

    def spec(name: str, *rest: Any) -> Any:
        return None if name in missing else real_spec(name, *rest)

    def version(name: str) -> str:
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return real_version(name)

    monkeypatch.setattr("importlib.util.find_spec", spec)
    monkeypatch.setattr(metadata, "version", version)


def test_missing_packages_say_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "scipy", "numba", "pyarrow", "triton")
    versions, *missing = installation.package_findings()
    assert "scipy" not in versions.values
    assert [(one.found.split()[0], one.severity, one.advice) for one in missing] == [
        ("scipy", "warning", "pip install scipy"),
        ("numba", "warning", "pip install numba"),
        ("pyarrow", "note", "pip install 'flashgp[table]'"),
    ]
    assert "Parquet" in missing[2].found
