"""`flashgp tune`: a part, profiles beside each other, pictures, predictions beside what happened; bad luck."""

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
from typer.testing import CliRunner

import flashgp as fgp
from flashgp.cli.application import application
from flashgp.foundations import profile_store
from flashgp.foundations.errors import FlashGPWarning
from flashgp.foundations.machine import using_accelerator
from flashgp.foundations.profile import BUILT_IN, MachineProfile, OperationTime
from flashgp.foundations.profile_store import CHOICE, keep_profile, machine_key, profile_path


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(application, [str(a) for a in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def measured_profile(**other: Any) -> MachineProfile:
    processor, cores, threads, version = machine_key()
    times = tuple(
        OperationTime(op, dtype, n, 1e-6 + n**3 / 1e10)
        for op in ("gemm", "cholesky")
        for dtype in ("float64", "float32")
        for n in (16, 256)
    )
    values = {"processor": processor, "cores": cores, "threads": threads, "torch_version": version}
    values |= {"cpu": replace(BUILT_IN.cpu, operations=times), "accelerator": None, **other}
    return replace(BUILT_IN, name="measured", **values)


@pytest.fixture
def folder(profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where profiles are kept; the system does not say what other tests do meanwhile."""

    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", refused)
    return tmp_path


def test_a_part_is_measured_again(folder: Path) -> None:
    assert "there is none yet" in run("tune", "--only", "exp", code=2).stderr
    keep_profile(measured_profile())
    said = json.loads(run("tune", "--only", "exp,call", "--only", "copy", "--json").stdout)
    found = MachineProfile.from_json(profile_path().read_text())
    assert json.loads(found.to_json()) == said["profile"]
    assert Path(said["path"]) == profile_path()
    assert any("kept in" in note for note in said["notes"])
    assert json.loads(run("tune", "--show", "--json").stdout)["profile"] == said["profile"]
    assert json.loads(run("plan", "--rows", 10, "--columns", 2, "--json").stdout)["profile"] == "measured"
    assert found.products == measured_profile().products
    assert found.cpu.gemm_float64 == measured_profile().cpu.gemm_float64
    assert found.cpu.exp != measured_profile().cpu.exp
    assert found.cpu.copy_bytes != measured_profile().cpu.copy_bytes
    assert found.cpu.operations == measured_profile().cpu.operations
    assert "svd is none of gemm, cholesky, copy" in " ".join(run("tune", "--only", "exp,svd", code=2).output.split())


@pytest.mark.parametrize("there", [False, True])
def test_an_accelerator_that_is_gone_is_said(there: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rates stay in the profile, for when it comes back, and nothing is planned with them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(there))
    gone = "this process has no accelerator: the profile's rates of NVIDIA Test are not used"
    gp = fgp.GP(fgp.kernels.RBF())

    def said() -> list[bool]:
        product = fgp.kernels.RBF().operator(torch.zeros(9, 1)).plan()
        plan = fgp.plan(gp, n=50, d=1, device="cpu")
        assert plan.profile == product.profile == "measured"
        findings = [one.severity for one in fgp.doctor().findings if one.found == gone]
        assert findings in ([], ["warning"])
        shown = run("tune", "--show").stderr
        return [gone in plan.notes, gone in product.notes, bool(findings), gone in shown]

    with using_accelerator(torch.device("cuda") if there else None):
        keep_profile(measured_profile())
        assert said() == [False] * 4, "it never had one"
        assert profile_store.unused_accelerator(measured_profile(), there) == ""
        keep_profile(measured_profile(accelerator=BUILT_IN.accelerator, accelerator_name="NVIDIA Test"))
        assert said() == [not there] * 4
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        on_it = fgp.plan(gp, n=50, d=1, memory=2**30, device="cuda")
        assert gone not in on_it.notes, "given up, and asked for all the same: planned with its rates"
        monkeypatch.setenv(CHOICE, "built-in")
        assert gone not in run("tune", "--show").stderr


def test_what_could_not_be_written_is_not_called_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an older file is there, whose name would say otherwise."""
    assert keep_profile(measured_profile()) is True
    assert f"; kept in {profile_path()}" in run("tune", "--only", "exp").stderr

    def refuse(*arguments: object) -> None:
        raise PermissionError("read-only file system")

    before = profile_path().read_text()
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(FlashGPWarning, match="could not be kept"):
        assert keep_profile(measured_profile()) is False
    said = run("tune", "--only", "exp").stderr
    assert "could not be kept" in said
    assert "; not kept" in said
    assert "; kept in" not in said
    assert profile_path().read_text() == before


def test_profiles_beside_each_other(folder: Path) -> None:
    for name, exp in (("a.json", 1e9), ("b.json", 3e9)):
        (folder / name).write_text(measured_profile(cpu=replace(measured_profile().cpu, exp=exp)).to_json())
    out = folder / "both.html"
    result = run("tune", "--show", folder / "a.json", folder / "b.json", "--out", out)
    line = next(line for line in result.stdout.splitlines() if line.strip().startswith("exp"))
    assert line.split() == ["exp", "1", "G/s", "float32", "3", "G/s", "float32"]
    page = out.read_text()
    assert page.count("<svg") == 3
    assert "a.json" in page
    assert "`" not in page.split("</style>")[1], "marks of another way of writing"
    run("tune", "--show", folder / "a.json", "--out", out)
    assert out.read_text().count("<svg") == 2, "a machine is not compared with itself"
    picture = folder / "one.png"
    run("tune", "--show", folder / "a.json", "--out", picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    said = json.loads(run("tune", "--show", folder / "a.json", folder / "b.json", "--json").stdout)
    assert [one["cpu"]["exp"] for one in said["profiles"].values()] == [1e9, 3e9]


def test_what_is_no_profile_is_named(folder: Path) -> None:
    bad = folder / "bad.json"
    bad.write_text("{}")
    for name in (bad, folder / "none.json", folder):
        assert f"`--show` takes machine profiles that `flashgp tune` wrote, got '{name}'" in run(
            "tune", "--show", name, code=2
        ).stderr  # fmt: skip
    assert "must end in .png or .html" in run("tune", "--show", "--out", folder / "a.txt", code=2).stderr
    assert "does not exist" in run("tune", "--show", "--out", folder / "no" / "a.png", code=2).stderr
    for wrong in ((bad,), ("--show", "--only", "exp")):
        run("tune", *wrong, code=2)


# -- bad luck ----------------------------------------------------------------------------------------------------
def test_no_home_directory(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in rates serve, what is measured is used in this process, and one warning says so."""
    monkeypatch.delenv(CHOICE)
    for name in ("XDG_CONFIG_HOME", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    profile_store.forget_profiles()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profile_store.current_profile() is BUILT_IN
        assert json.loads(run("tune", "--show", "--json").stdout)["path"] is None
        with profile_store.measuring() as waited:
            assert not waited
    with pytest.warns(FlashGPWarning, match="there is no home directory; name a folder in FLASHGP_PROFILE") as said:
        keep_profile(measured_profile())
    assert len(said) == 1
    assert profile_store.current_profile() == measured_profile()
