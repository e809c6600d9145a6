"""The log of runs: sizes and seconds only, bounded, shared by processes, and never in the way."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashgp.foundations import profile_store, run_log
from flashgp.foundations.profile_store import CHOICE, profile_path
from flashgp.foundations.run_log import SWITCH, forget_runs, log_run, read_runs, runs_path, write_runs

PLAN = {"profile": "measured", "route": "direct", "backend": "torch", "device": "cpu", "dtype": "float64", "n": 500,
        "d": 3, "outputs": 1, "batch": 1}  # fmt: skip


def plan(**other: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**PLAN, **other})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where a profile was kept, and a process that has logged nothing."""
    monkeypatch.setenv(CHOICE, str(tmp_path))
    monkeypatch.setattr(profile_store, "_known", {})
    monkeypatch.setattr(run_log, "_gathered", None)
    monkeypatch.setattr(run_log.atexit, "register", lambda call: None)
    profile_path().write_text("{}")
    return tmp_path


def test_equal_runs_are_one_line_with_their_median(folder: Path) -> None:
    for seconds in (1.0, 9.0, 2.0):
        log_run("condition", plan(), 1.5, seconds)
    log_run("product", plan(m=200, t=4), 0.5, 0.25)
    assert not runs_path().exists(), "nothing is written while a computation runs"
    first, second = read_runs()
    assert (first.work, first.n, first.m, first.t, first.seconds, first.count) == ("condition", 500, 500, 1, 2.0, 3)
    assert (second.work, second.m, second.t, second.predicted_seconds) == ("product", 200, 4, 0.5)
    log_run("condition", plan(), 1.5, 3.0)
    assert [run.count for run in read_runs()] == [3, 1, 1]
    said = set(json.loads(runs_path().read_text().splitlines()[0]))
    assert said == {"work", "route", "backend", "device", "dtype", "n", "m", "d", "t", "batch", "predicted_seconds",
                    "seconds", "count"}, "sizes and seconds, nothing of the data"  # fmt: skip
    assert os.stat(runs_path()).st_mode & 0o077 == 0


def test_many_repeats_take_little_memory(folder: Path) -> None:
    for k in range(1000):
        log_run("product", plan(m=1, t=1), 1.0, 2.0 if k < 500 else 4.0)
    ((expected, taken, count),) = run_log._gathered.runs.values()  # type: ignore[union-attr]
    assert (len(expected), len(taken), count) == (run_log.MOST_REPEATS, run_log.MOST_REPEATS, 1000)
    assert read_runs()[0].seconds == 4.0, "the latest ones count"


@pytest.mark.parametrize(
    "why", ["built-in rates", "nothing predicted", "switched off", "built-in profile", "no profile"]
)
def test_what_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "switched off":
        monkeypatch.setenv(SWITCH, "off")
    if why == "no profile":
        profile_path().unlink()
    if why == "built-in profile":
        monkeypatch.setenv(CHOICE, "built-in")
    made = plan(profile="built-in") if why == "built-in rates" else plan()
    log_run("condition", made, None if why == "nothing predicted" else 1.0, 2.0)
    write_runs()
    assert [path for path in folder.iterdir() if "runs" in path.name] == []


def test_the_file_is_bounded_and_keeps_the_latest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "LARGEST_BYTES", 4096)
    for n in range(1, 200):
        log_run("condition", plan(n=n), 1.0, 1.0)
        write_runs()
        assert runs_path().stat().st_size <= 4096 + 400
    kept = [run.n for run in read_runs()]
    assert kept == list(range(kept[0], 200))


def test_memory_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "MOST_KINDS", 5)
    for n in range(1, 13):
        log_run("condition", plan(n=n), 1.0, 1.0)
    assert len(run_log._gathered.runs) == 2  # type: ignore[union-attr]
    assert len(runs_path().read_text().splitlines()) == 10


def test_a_process_that_goes_on_writes_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    log_run("condition", plan(), 1.0, 1.0)
    assert not runs_path().exists()
    now[0] += run_log.WRITE_SECONDS + 1
    log_run("condition", plan(), 1.0, 1.0)
    assert len(runs_path().read_text().splitlines()) == 1


def test_failures_end_the_log_and_nothing_else(folder: Path) -> None:
    runs_path().mkdir()
    log_run("condition", plan(), 1.0, 1.0)
    write_runs()
    log_run("condition", plan(), 1.0, 1.0)
    assert run_log._gathered.ended  # type: ignore[union-attr]
    assert read_runs() == []


HOSTILE = [b"", b"[" * 10_000, b"{}", b"null", b"\xff\xfe", b'{"work": 3}']


def test_lines_that_are_not_ours_are_left_out(folder: Path) -> None:
    log_run("condition", plan(), 1.0, 1.0)
    write_runs()
    own = runs_path().read_bytes()
    changes = [{"seconds": "fast"}, {"n": -1}, {"n": True}, {"seconds": float("inf")}, {"route": "x" * 999},
               {"count": 1.5}, {"predicted_seconds": 0.0}]  # fmt: skip
    hostile = [*HOSTILE, *(json.dumps({**json.loads(own), **change}).encode() for change in changes)]
    runs_path().write_bytes(b"\n".join([*hostile, own]))
    assert len(read_runs()) == 1


def test_a_new_profile_begins_a_new_log(folder: Path) -> None:
    log_run("condition", plan(), 1.0, 1.0)
    write_runs()
    log_run("condition", plan(n=7), 1.0, 1.0)
    forget_runs()
    assert read_runs() == []
    forget_runs()


def test_processes_share_the_file_and_write_at_their_end(folder: Path, source_environment: dict[str, str]) -> None:
    code = """
import sys
from types import SimpleNamespace
from flashgp.foundations.run_log import log_run
plan = SimpleNamespace(profile="measured", route="direct", backend="torch", device="cpu", dtype="float64",
                       n=int(sys.argv[1]), d=3, outputs=1, batch=1)
log_run("fit", plan, 1.0, 2.0)
"""
    log_run("fit", plan(n=4), 1.0, 1.0)
    write_runs()
    subprocess.run([sys.executable, "-c", code, "5"], env=source_environment, check=True)
    log_run("fit", plan(n=6), 1.0, 1.0)
    assert [run.n for run in read_runs()] == [4, 5, 6]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_write_its_parents_runs(folder: Path) -> None:
    log_run("condition", plan(), 1.0, 1.0)
    child = os.fork()
    if not child:
        write_runs()
        os._exit(0)
    os.waitpid(child, 0)
    assert not runs_path().exists()
    assert len(read_runs()) == 1
