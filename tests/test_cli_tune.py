"""`flashgp tune`: a part, profiles beside each other, pictures, predictions beside what happened; bad luck."""

import hashlib
import json
import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
from typer.testing import CliRunner

import flashgp as fgp
from flashgp.cli.application import application
from flashgp.foundations import profile_store, run_log
from flashgp.foundations.contention import MOST_OTHERS
from flashgp.foundations.errors import FlashGPWarning
from flashgp.foundations.operations import OperationTime
from flashgp.foundations.profile import BUILT_IN, SCHEMA, MachineProfile
from flashgp.foundations.profile_store import CHOICE, keep_profile, machine_key, placed_otherwise, profile_path
from flashgp.foundations.report import counted
from flashgp.foundations.run_log import Run
from flashgp.planner import tuning
from flashgp.planner.checking import checked_runs


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(application, [str(a) for a in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def own(**other: Any) -> MachineProfile:
    processor, cores, threads, version = machine_key()
    times = tuple(
        OperationTime(op, dtype, n, n, 1, (1e-6 + n**3 / 1e10))
        for op in ("gemm", "cholesky", "qr", "eigh", "triangular")
        for dtype in ("float64", "float32")
        for n in (16, 256)
    )
    values = {"processor": processor, "cores": cores, "threads": threads, "torch_version": version}
    values |= {"cpu": replace(BUILT_IN.cpu, operations=times), "accelerator": None, **other}
    return replace(BUILT_IN, name="measured", **values)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CHOICE, str(tmp_path / "profiles"))
    monkeypatch.setattr(profile_store, "_known", {})
    monkeypatch.setattr(run_log, "_gathered", None)
    monkeypatch.setattr(run_log.atexit, "register", lambda call: None)
    monkeypatch.setattr(tuning, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "sizes_of", lambda operation: [(16, 16, 1), (64, 64, 1)])
    return tmp_path


def test_a_part_is_measured_again(folder: Path) -> None:
    assert "there is none yet" in run("tune", "--only", "exp", code=1).stderr
    keep_profile(own())
    said = json.loads(run("tune", "--only", "exp,qr", "--only", "copy", "--json").stdout)
    found = MachineProfile.from_json(profile_path().read_text())
    assert json.loads(found.to_json()) == said["profile"]
    assert found.products == own().products
    assert found.cpu.gemm_float64 == own().cpu.gemm_float64
    assert found.cpu.exp != own().cpu.exp
    assert found.cpu.copy_bytes != own().cpu.copy_bytes
    assert {one.rows for one in found.cpu.operations if one.operation == "qr"} == {16, 64}
    assert {one.rows for one in found.cpu.operations if one.operation == "eigh"} == {16, 256}
    assert "svd is none of gemm, cholesky, qr" in " ".join(run("tune", "--only", "exp,svd", code=2).output.split())


def one_core() -> dict[str, Any]:
    return {"cores": [min(os.sched_getaffinity(0))]}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux lets a process choose its cores")
@pytest.mark.parametrize(
    ("kept", "now"),
    [
        ({"threads": 2}, {"threads": 1}),
        ({"threads": 1}, {"threads": 2}),
        ({"threads": 2}, one_core()),
        (one_core(), {"threads": 2}),
        (None, {"threads": 1}),
        (None, {"threads": 2}),
        (None, one_core()),
    ],
)
@pytest.mark.filterwarnings("ignore:2 threads on 1 core")
def test_the_command_named_is_the_one_that_helps(
    kept: dict[str, Any] | None, now: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile is of threads and cores: with others, a plain `flashgp tune` would measure the first ones again."""
    gp = fgp.GP(fgp.kernels.RBF())

    def note() -> str:
        return " ".join(fgp.plan(gp, n=50, d=1).notes)

    if kept is not None:
        with fgp.runtime(**now):
            assert "the profile kept is of" not in note(), "and what was looked up is not kept for ever"
        with fgp.runtime(**kept):
            keep_profile(own())
            assert note() == ""
    with fgp.runtime(**now):
        _, cores, threads, _ = machine_key()
        said, command = note(), profile_store.tune_command()
        assert f"`{command}` measures" in said
        other = placed_otherwise()
        assert [one.measured for one in other] == [True] * (kept is not None)
        if other:
            of = f"{counted(other[0].threads, 'thread')} on {counted(other[0].cores, 'core')}"
            assert f"the profile kept is of {of}; `{command}` measures {counted(threads, 'thread')} on" in said
        with pytest.raises(fgp.DomainError, match=f"run `{command}` without it once"):
            fgp.tune(only="exp")
        advised = [one.advice for one in fgp.doctor().findings if one.topic == "profile"]
        each = "number of threads and cores" if other else "machine"
        assert advised == [f"run `{command}`: seconds, once for each {each}"]
        assert f"`{command}` measures" in run("tune", "--show").stderr
        assert f"run `{command}`, then" in run("tune", "--check").stderr
    monkeypatch.setattr(tuning, "_measure", lambda *_: own())
    run(*command.split()[1:])
    with fgp.runtime(**now):
        assert note() == ""
        assert machine_key()[1:3] == (cores, threads)


def test_other_cores_of_another_machine_are_none_of_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in (own(threads=63, processor="Abacus"), own(threads=63, torch_version="0.1")):
        profile_path().parent.mkdir(exist_ok=True)
        profile_path().with_name(f"profile-{other.torch_version}.json").write_text(other.to_json())
    assert len(profile_store.kept_profiles()) == 2
    assert placed_otherwise() == ()
    assert profile_store.tune_command() == "flashgp tune"
    assert profile_store.tune_advice() == "`flashgp tune` measures this machine's"
    keep_profile(own())
    assert placed_otherwise() == (), "it is of these"
    monkeypatch.setattr(profile_store, "machine_key", lambda: (*machine_key()[:2], 64, machine_key()[3]))
    assert placed_otherwise() == (own(),)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    (folder / "profiles").rename(folder / "flashgp")
    monkeypatch.setenv(CHOICE, "built-in")
    assert placed_otherwise() == (), "measured ones are kept out"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux lets a process choose its cores")
def test_a_process_bound_by_others_names_its_cores_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a launcher or by its own code: no runtime knows of it."""
    before = os.sched_getaffinity(0)
    keep_profile(own(cores=len(before) + 1))
    profile_path().rename(profile_path().with_name("profile-more.json"))
    os.sched_setaffinity(0, {min(before)})
    try:
        assert profile_store.tune_command() == f"flashgp tune --threads {machine_key()[2]} --cores {min(before)}"
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("there", [False, True])
def test_an_accelerator_that_is_gone_is_said(there: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rates stay in the profile, for when it comes back, and nothing is planned with them."""
    import torch

    place = torch.device("cuda") if there else None
    for module in ("planner.choice", "cli.tuning"):
        monkeypatch.setattr(f"flashgp.{module}.accelerator", lambda: place)
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

    keep_profile(own())
    assert said() == [False] * 4, "it never had one"
    assert profile_store.unused_accelerator(own(), there) == ""
    with monkeypatch.context() as patch:
        patch.setattr("flashgp.planner.choice.accelerator", None)
        assert fgp.plan(gp, n=50, d=1, device="cpu").profile == "measured", "and nobody is asked for one"
    keep_profile(own(accelerator=BUILT_IN.accelerator, accelerator_name="NVIDIA Test"))
    assert said() == [not there] * 4
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    on_it = fgp.plan(gp, n=50, d=1, memory=2**30, device="cuda")
    assert gone not in on_it.notes, "given up, and asked for all the same: planned with its rates"
    monkeypatch.setenv(CHOICE, "built-in")
    assert gone not in run("tune", "--show").stderr


def test_what_was_measured_on_a_busy_machine_says_so(folder: Path) -> None:
    """A warning while tuning is soon forgotten; the rates stay."""
    import torch

    gp = fgp.GP(fgp.kernels.RBF())

    def said(cores: float | None) -> tuple[list[str], list[tuple[str, str]]]:
        keep_profile(own(others_cores=cores))
        profile_store._known.clear()
        findings = [one for one in fgp.doctor().findings if one.topic == "profile"]
        product = fgp.kernels.RBF().operator(torch.zeros(9, 1)).plan()
        plan = fgp.plan(gp, n=50, d=1)
        notes, others = ([note for note in one.notes if "rates" in note] for one in (plan, product))
        assert notes == others
        assert plan.profile == "measured"
        return notes, [(one.found, one.advice) for one in findings[1:]]

    assert [said(cores) for cores in (None, 0.0, MOST_OTHERS)] == [([], [])] * 3
    assert "other work" not in run("tune", "--show").stdout
    notes, findings = said(1.23)
    again = "run `flashgp tune` again once the machine is quiet"
    assert notes == [f"rates measured while others kept 1.2 cores busy: {again}"]
    (found,) = findings
    assert found[0].startswith("measured while others kept 1.2 cores busy")
    assert found[1] == again
    assert "measured while others kept 1.2 cores busy" in run("tune", "--show").stdout


@pytest.mark.filterwarnings("ignore:2 threads on 1 core")
def test_a_plan_on_the_command_line_names_the_command(folder: Path) -> None:
    with fgp.runtime(threads=2):
        keep_profile(own())
    said = " ".join(run("plan", "--rows", 50, "--columns", 1, "--threads", 1).stdout.split())
    assert "the profile kept is of 2 threads on" in said
    assert "`flashgp tune --threads 1` measures 1 thread on" in said


def test_what_could_not_be_written_is_not_called_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an older file is there, whose name would say otherwise."""
    assert keep_profile(own()) is True
    assert f"; kept in {profile_path()}" in run("tune", "--only", "exp").stderr

    def refuse(*arguments: object) -> None:
        raise PermissionError("read-only file system")

    before = profile_path().read_text()
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(FlashGPWarning, match="could not be kept"):
        assert keep_profile(own()) is False
    said = run("tune", "--only", "exp").stderr
    assert "could not be kept" in said
    assert "; not kept" in said
    assert "; kept in" not in said
    assert profile_path().read_text() == before


def test_profiles_beside_each_other(folder: Path) -> None:
    for name, exp in (("a.json", 1e9), ("b.json", 3e9)):
        (folder / name).write_text(own(cpu=replace(own().cpu, exp=exp)).to_json())
    out = folder / "both.html"
    result = run("tune", "--show", folder / "a.json", folder / "b.json", "--out", out)
    line = next(line for line in result.stdout.splitlines() if line.strip().startswith("exp"))
    assert line.split() == ["exp", "1", "G/s", "float32", "3", "G/s", "float32"]
    assert "up to" in result.stdout
    page = out.read_text()
    assert page.count("<img") == 6
    assert "a.json" in page
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
            "tune", "--show", name, code=1
        ).stderr  # fmt: skip
    assert "must end in .png or .html" in run("tune", "--show", "--out", folder / "a.txt", code=1).stderr
    assert "does not exist" in run("tune", "--show", "--out", folder / "no" / "a.png", code=1).stderr
    for wrong in (("--show", "--check"), ("--check", "--out", "a.png"), (bad,), ("--show", "--only", "qr")):
        run("tune", *wrong, code=2)


def kept(seconds: float, **other: Any) -> Run:
    values = {"work": "condition", "route": "direct", "backend": "torch", "device": "cpu", "dtype": "float64", "n": 500,
              "m": 500, "d": 3, "t": 1, "batch": 1, "predicted_seconds": 1.0, "count": 2}  # fmt: skip
    return Run(**{**values, **other}, seconds=seconds)


def test_runs_of_one_kind_are_checked_together() -> None:
    found = checked_runs([kept(1.4), kept(9.0, n=7), kept(1.6), kept(0.5, n=8), kept(1.0), kept(1.49, work="fit")])
    assert [(one.run.n, one.run.work, one.off) for one in found] == [
        (7, "condition", True), (8, "condition", True), (500, "fit", False), (500, "condition", False)
    ]  # fmt: skip
    assert (found[-1].ratio, found[-1].run.count) == (1.4, 6)
    assert found[1].ratio == 0.5


def test_predictions_are_checked_by_what_happened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    result = run("tune", "--check")
    assert "no runs are logged" in result.stderr
    keep_profile(own(cpu=replace(own().cpu, block_pairs=1.0)))  # predicts hours
    x = torch.rand(40, 2, dtype=torch.float64)
    post = fgp.GP(fgp.kernels.RBF()).condition(x, x.sum(1))
    assert post.report.plan.profile == "measured"
    said = json.loads(run("tune", "--check", "--json").stdout)
    (one,) = [run for run in said["runs"] if run["work"] == "condition"]
    assert (one["n"], one["d"], one["off"], one["count"]) == (40, 2, True, 1)
    assert one["predicted_seconds"] == post.report.predicted_seconds
    assert one["seconds"] == post.report.seconds
    text = run("tune", "--check")
    assert "0 of 1 kind of runs took what was predicted, within 1.5 times" in text.stdout
    assert "n=40 d=2 t=1" in text.stdout
    assert "0 slower and 1 quicker" in text.stderr
    monkeypatch.setenv(run_log.SWITCH, "off")
    fgp.GP(fgp.kernels.RBF()).condition(x[:30], x[:30].sum(1))
    assert len(json.loads(run("tune", "--check", "--json").stdout)["runs"]) == 1


def test_predictions_products_and_fits_are_logged_too(folder: Path) -> None:
    import torch

    keep_profile(own())
    x = torch.rand(3300, 2, dtype=torch.float64)
    operator = fgp.kernels.RBF().operator(x)
    operator @ torch.ones(3300, 1, dtype=torch.float64)
    fit = fgp.fit(fgp.GP(fgp.kernels.RBF()), x[:40], x[:40].sum(1), max_iterations=2)
    prediction = fit.posterior.predict(x[:300])
    prediction.mean, prediction.variance  # noqa: B018
    works = {run.work for run in run_log.read_runs()}
    assert {"condition", "fit", "product"} <= works


# -- bad luck ----------------------------------------------------------------------------------------------------
def test_no_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in rates serve, what is measured is used in this process, and one warning says so."""
    monkeypatch.delenv(CHOICE)
    for name in ("XDG_CONFIG_HOME", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(profile_store, "_known", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profile_store.current_profile() is BUILT_IN
        assert json.loads(run("tune", "--show", "--json").stdout)["path"] is None
        with profile_store.measuring() as waited:
            assert not waited
        assert run_log.read_runs() == []
    with pytest.warns(FlashGPWarning, match="there is no home directory; name a folder in FLASHGP_PROFILE") as said:
        keep_profile(own())
    assert len(said) == 1
    assert profile_store.current_profile() == own()
    monkeypatch.setattr(profile_store, "_known", {})
    monkeypatch.setitem(__import__("sys").modules, "platformdirs", None)
    assert profile_store.current_profile() is BUILT_IN


@pytest.mark.parametrize("schema", [*range(1, SCHEMA), SCHEMA + 1])
def test_a_profile_of_another_version_is_said(schema: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor, *rest = machine_key()
    # All that versions 1 and 2 knew of it; from 3 on also the numbers.
    name = re.sub(r" \(family .*\)$", "", processor) if schema < 3 else processor
    digest = hashlib.sha256(json.dumps([schema, name, *rest]).encode()).hexdigest()[:16]
    old = profile_path().with_name(f"profile-{digest}.json")
    assert old == profile_path(schema)
    old.parent.mkdir(parents=True)
    old.write_text(f'{{"schema": {schema}}}')
    with pytest.warns(FlashGPWarning, match="by another version of FlashGP and is not read.*run `flashgp tune` again"):
        assert profile_store.current_profile() is BUILT_IN
    keep_profile(own())
    monkeypatch.setattr(profile_store, "_known", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profile_store.current_profile() == own()


def test_a_folder_without_write_access_logs_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    keep_profile(own())

    def refuse(*arguments: object) -> int:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(run_log.os, "open", refuse)
    x = torch.rand(20, 1, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0])
        run_log.write_runs()
    assert not run_log.runs_path().exists()
