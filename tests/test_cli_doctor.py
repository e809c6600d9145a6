"""`flashgp doctor`, and --threads and --cores of every command that computes."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("typer")
from typer.testing import CliRunner

from flashgp.cli.application import application
from flashgp.foundations.processors import core_text, own_cores

COMMANDS = ("fit", "predict", "update", "plan", "tune", "doctor")
ONE = sorted(own_cores() or {0})[0]
linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot choose its cores here")


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(application, [str(a) for a in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def test_this_machine_as_one_json_object() -> None:
    said = json.loads(run("doctor", "--json").stdout)
    assert said["command"] == "doctor"
    assert {"versions", "cores", "threads", "cache"} <= {one["topic"] for one in said["findings"]}
    assert said["findings"][0]["values"]["torch"] == torch.__version__


def test_a_warning_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 100_000)
    lines = run("doctor").stdout.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("! threads"))
    assert "100,000 threads on" in lines[place]
    advice = next(line for line in lines[place:] if line.startswith("=>"))
    assert "set OMP_NUM_THREADS=" in advice
    quiet = run("doctor", "--quiet")
    assert quiet.stdout == ""
    assert "warning: threads: 100,000 threads on" in quiet.stderr
    findings = json.loads(run("doctor", "--json").stdout)["findings"]
    assert next(one["severity"] for one in findings if one["topic"] == "threads") == "warning"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    text = " ".join(run(command, "--help").stdout.split())
    for option in ("--json", "--quiet", "--debug", "--threads", "--cores"):
        assert option in text
    assert ("fixed(number)" in text) == (command in ("fit", "plan"))


@linux
def test_a_command_runs_where_it_was_put(tmp_path: Path) -> None:
    said = json.loads(run("doctor", "--json", "--cores", ONE, "--threads", 1).stdout)
    cores = next(one for one in said["findings"] if one["topic"] == "cores")
    assert cores["values"]["affinity"] == [ONE]
    assert f"1 thread on core {ONE}" in cores["found"]
    table = tmp_path / "table.csv"
    x = np.linspace(0, 5, 12)
    table.write_text("x,y\n" + "".join(f"{a},{np.sin(a)}\n" for a in x))
    before = (torch.get_num_threads(), own_cores())
    fitted = json.loads(run("fit", table, "-t", "y", "--starts", 1, "--json", "--cores", ONE).stdout)
    assert {"kind": "RUNTIME", "fields": {"placement": f"1 thread on core {ONE}"}} in fitted["events"]
    assert (torch.get_num_threads(), own_cores()) == before


def test_bad_usage_and_what_this_machine_has_not() -> None:
    assert "--cores" in run("doctor", "--cores", "a-b", code=2).stderr
    run("doctor", "--threads", 0, code=2)
    failed = run("plan", "--rows", 10, "--columns", 2, "--cores", "65000", "--json", code=2)
    assert json.loads(failed.stdout)["error"]["type"] in ("DomainError", "BackendUnavailableError")
    if hasattr(os, "sched_getaffinity"):
        assert f"may use, {core_text(own_cores() or ())}" in failed.stderr
