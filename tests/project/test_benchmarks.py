"""Every benchmark script runs at toy size without the libraries it compares with; cells run in their own processes."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import cells
import psutil
import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark"
SCRIPTS = sorted([*BENCHMARK.glob("suite_*.py"), *BENCHMARK.glob("claim_*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs_at_toy_size(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = {record: record.stat().st_mtime_ns for record in BENCHMARK.rglob("*.json")}
    assert importlib.import_module(path.stem).main(["--toy"]) in (None, 0)
    after = {record: record.stat().st_mtime_ns for record in BENCHMARK.rglob("*.json")}
    assert after == before, "a toy run is no record"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cells.Cell:
    """A cell whose module, importable in the processes that run it, counts, fails, sleeps or ends at once."""
    (tmp_path / "jobs.py").write_text(
        "import os, time\ndef run(cell):\n    if cell['n'] < 0:\n        raise ValueError('negative')\n"
        "    if cell['n'] > 9:\n        time.sleep(100)\n    return {'found': cell['n'] + 1}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BENCHMARK.parent / "src"), str(BENCHMARK), str(tmp_path)]))
    return cells.Cell("n=1", {"n": 1}, 1.0)


def test_a_job_has_an_entry_however_it_ends(jobs: cells.Cell) -> None:
    done = cells.in_process("jobs", "run", jobs)
    assert (done["status"], done["n"], done["found"]) == ("done", 1, 2)
    assert {"hardware", "versions", "commit", "date"} <= done.keys()
    failed = cells.in_process("jobs", "run", cells.Cell("n=-1", {"n": -1}, 1.0))
    assert (failed["status"], failed["error"]) == ("failed", "ValueError: negative")
    late = cells.in_process("jobs", "run", cells.Cell("n=10", {"n": 10}, 1.0), patience=0.1)
    assert late["status"] == "failed"
    assert "still running" in late["error"]


def test_a_killed_command_leaves_no_process(jobs: cells.Cell, tmp_path: Path) -> None:
    code = "import cells; cells.in_process('jobs', 'run', cells.Cell('n=10', {'n': 10}, 1.0))"
    command = subprocess.Popen([sys.executable, "-c", f"if __name__ == '__main__':\n    {code}"], cwd=tmp_path)
    children: list[psutil.Process] = []
    while not children and command.poll() is None:
        children = [p for p in psutil.Process(command.pid).children() if "spawn_main" in " ".join(p.cmdline())]
    command.kill()
    command.wait()
    assert children, "the cell was running"
    assert psutil.wait_procs(children, timeout=60)[1] == []
