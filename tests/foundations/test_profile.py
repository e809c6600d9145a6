"""The machine profile: what its file may say, where it is kept, and that bad luck with it costs one warning."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPWarning
from flashgp.foundations.processors import cpuinfo
from flashgp.foundations.profile import BUILT_IN, SCHEMA, MachineProfile, PairRate
from flashgp.foundations.profile_store import (
    CHOICE,
    current_profile,
    forget_profiles,
    keep_profile,
    machine_key,
    measuring,
    processor_name,
    profile_path,
    read_profile,
    tune_command,
    unused_profile,
)
from flashgp.planner.problem import PlanSettings

F32, F64 = torch.float32, torch.float64


def own() -> MachineProfile:
    """A profile of this machine that differs from the built-in one."""
    processor, cores, threads, version = machine_key()
    cpu = replace(BUILT_IN.cpu, cholesky_float64=7e9)
    return replace(
        BUILT_IN, name="measured", processor=processor, cores=cores, threads=threads, torch_version=version, cpu=cpu
    )


@pytest.fixture
def folder(profiles: Path) -> Path:
    return profiles


def quiet() -> MachineProfile:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return current_profile()


# -- rates -----------------------------------------------------------------------------------------------------------
def test_rates_between_measured_shapes() -> None:
    """Eq. (M-58): the nearest measured shape, by the ratio of the work per pair; symmetry counts half."""
    near = PairRate("torch", "cpu", "float32", True, 3, 1, 4e8)
    far = PairRate("torch", "cpu", "float32", True, 90, 16, 1e8)
    profile = replace(BUILT_IN, name="measured", products=(near, far))

    def rate(symmetric: bool, d: int, t: int) -> float | None:
        return profile.product_rate("torch", "cpu", F32, symmetric, d, t)

    assert rate(True, 3, 1) == 4e8
    assert rate(True, 8, 2) == pytest.approx(4e8 * (3 + 1 + 16) / (8 + 2 + 16))
    assert rate(True, 200, 16) == pytest.approx(1e8 * (90 + 16 + 16) / (200 + 16 + 16))
    assert rate(False, 3, 1) == pytest.approx(2e8)
    rectangular = replace(near, symmetric=False, pairs_per_second=3e8)
    profile = replace(profile, products=(near, far, rectangular))
    assert rate(False, 3, 1) == 3e8
    assert rate(False, 90, 16) == pytest.approx(3e8 * 20 / 122)
    assert replace(profile, products=(rectangular,)).product_rate("torch", "cpu", F32, True, 3, 1) == 6e8


def test_what_a_profile_does_not_know_is_built_in() -> None:
    profile = replace(BUILT_IN, name="measured", accelerator=None, products=())
    assert profile.product_rate("cpu", "cpu", F32, True, 3, 1) == BUILT_IN.product_rate("cpu", "cpu", F32, True, 3, 1)
    assert profile.product_rate("triton", "cuda", F32, True, 3, 1) == 1e12
    assert profile.product_rate("triton", "cuda", F64, True, 3, 1) is None
    assert profile.product_rate("triton", "cpu", F32, True, 3, 1) is None
    assert profile.rates("cuda") is BUILT_IN.accelerator
    assert profile.rates("cpu") is profile.cpu
    assert (profile.cpu.gemm(F32), profile.cpu.gemm(F64)) == (1.2e11, 6e10)
    assert (profile.cpu.cholesky(F32), profile.cpu.cholesky(F64)) == (1e11, 5e10)


# -- the file --------------------------------------------------------------------------------------------------------
def test_a_profile_survives_its_file() -> None:
    for profile in (BUILT_IN, own(), replace(own(), accelerator=None, products=())):
        assert MachineProfile.from_json(profile.to_json()) == profile
    text = str(own())
    for part in ("measured", "Cholesky", "7 GFLOP/s float64, 100 float32", machine_key()[0], "G pairs/s"):
        assert part in text


def changed(**values: object) -> str:
    return json.dumps({**json.loads(own().to_json()), **values})


HOSTILE = {
    "nothing": "",
    "a field less": json.dumps({k: v for k, v in json.loads(BUILT_IN.to_json()).items() if k != "cores"}),
    "accelerator rates that are none": changed(accelerator=7),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_profile_is_refused(case: str) -> None:
    with pytest.raises(DomainError):
        MachineProfile.from_json(HOSTILE[case])


# -- the store -------------------------------------------------------------------------------------------------------


def test_a_kept_profile_is_found_by_other_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert quiet() is BUILT_IN
    keep_profile(own())
    assert quiet() == own()
    forget_profiles()  # as another process
    assert quiet() == own()
    assert [p.suffix for p in folder.iterdir()] == [".json"]
    profile_path().unlink()
    assert quiet() == own(), "read once"
    forget_profiles()
    assert quiet() is BUILT_IN
    keep_profile(own())
    monkeypatch.setenv(CHOICE, "built-in")
    assert quiet() is BUILT_IN


def test_another_machine_has_another_file(folder: Path) -> None:
    keep_profile(own())
    here = profile_path()
    with fgp.runtime(threads=machine_key()[2] + 1):
        assert profile_path() != here
        assert quiet() is BUILT_IN
        profile_path().write_text(here.read_text())  # copied over by hand
        with pytest.warns(FlashGPWarning, match="measured on another machine"):
            assert read_profile() is None


def processor_of(folder: Path, text: str) -> str:
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc/cpuinfo").write_text(text)
    return processor_name(cpuinfo(folder))


def test_processors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Clouds call different processors "AMD EPYC"; a home folder may be shared by machines with each of them."""
    milan = {"cpu family": "25", "model": "1", "model name": "AMD EPYC", "stepping": "1"}

    def named(**changes: str) -> str:
        lines = {**milan, **{name.replace("_", " "): value for name, value in changes.items()}}
        first = "processor\t: 0\n" + "".join(f"{name}\t: {value}\n" for name, value in lines.items())
        return processor_of(tmp_path, f"{first}\n{first.replace('stepping', 'stepping of the second')}")

    assert named() == "AMD EPYC (family 25, model 1, stepping 1)"
    assert len({named(), named(cpu_family="26"), named(model="17"), named(stepping="2")}) == 4
    assert len(named(model_name="x" * 500, stepping="9" * 500)) <= 200, "what a profile's file takes"
    first, second = "model name : A\n\n", "model name : B\nstepping : 4\n"
    assert processor_of(tmp_path, first + second) == "A", "one processor, not parts of two"
    assert processor_of(tmp_path, "CPU part : 0xd40\n") == processor_of(tmp_path, "") != ""
    assert cpuinfo(tmp_path / "none") == {}


@pytest.mark.parametrize("case", [*HOSTILE, "too long", "no text", "a folder"])
def test_a_file_that_cannot_be_used_is_a_miss_with_one_warning(folder: Path, case: str) -> None:
    folder.mkdir()
    path = profile_path()
    if case == "a folder":
        path.mkdir()
    else:
        content = {"too long": b" " * 2**20, "no text": b"\xff\xfe\x00"}.get(case)
        path.write_bytes(HOSTILE[case].encode() if content is None else content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert current_profile() is BUILT_IN
        assert current_profile() is BUILT_IN
    assert [w.category for w in caught] == [FlashGPWarning]
    assert "flashgp tune" in str(caught[0].message)


def test_a_profile_of_another_version_is_named(folder: Path) -> None:
    folder.mkdir()
    other = folder / "profile-0.json"
    other.write_text(changed(schema=SCHEMA - 1, processor="another"))
    assert quiet() is BUILT_IN, "of another machine that shares the folder"
    forget_profiles()
    other.write_text(changed(schema=SCHEMA - 1, processor=machine_key()[0].split(" (")[0], threads=77))
    with pytest.warns(FlashGPWarning, match="by another version of FlashGP and is not read.*run `flashgp tune` again"):
        assert current_profile() is BUILT_IN
    assert quiet() is BUILT_IN, "said once"
    assert unused_profile() == ""


def test_a_profile_of_other_threads_or_cores_is_named(folder: Path) -> None:
    assert (unused_profile(), tune_command()) == ("", "flashgp tune")
    keep_profile(own())
    assert (unused_profile(), tune_command()) == ("", "flashgp tune")
    (folder / "profile-0.json").write_text(replace(own(), threads=77, cores=80).to_json())
    (folder / "profile-1.json").write_text("no profile")
    profile_path().unlink()
    forget_profiles()
    assert quiet() is BUILT_IN
    assert unused_profile() == "the profile kept is of 77 threads on 80 cores, and its rates are not used"
    assert tune_command() == f"flashgp tune --threads {machine_key()[2]}"
    (note,) = PlanSettings().notes()
    assert "77 threads on 80 cores" in note
    assert tune_command() in note


def test_a_folder_that_cannot_be_written_costs_one_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(CHOICE, str(tmp_path / "file" / "profiles"))
    with measuring() as waited:
        assert not waited
        with pytest.warns(FlashGPWarning, match="could not be kept") as caught:
            keep_profile(own())
    assert len(caught) == 1
    assert quiet() == own(), "in use all the same"


def test_who_comes_second_waits(folder: Path) -> None:
    from filelock import FileLock

    with measuring() as waited:
        assert not waited
    held = FileLock(profile_path().with_suffix(".lock"))
    with held.acquire(), measuring(wait_seconds=0.05) as waited:
        assert waited, "a process that hangs does not stop others for ever"
