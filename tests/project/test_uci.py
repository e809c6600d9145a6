"""The benchmark of published sets: cells resume, fail alone, survive being killed, are compared with their targets."""

import gzip
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import flashgp as fgp
from flashgp.bench import read_record
from flashgp.bench.tables import markdown_table
from flashgp.foundations.errors import MemoryBudgetError

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark"


@pytest.fixture
def uci(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command's module, imported beside what it shares with the other suites, as its script is."""
    monkeypatch.syspath_prepend(str(BENCHMARK))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BENCHMARK.parent / "src"), str(BENCHMARK)]))
    return importlib.import_module("uci")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two sets of 90 rows and two splits; the mask of one has too few rows."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((90, 2))
    x[7] = x[3]
    y = 5.0 + np.sin(x[:, 0]) + 0.1 * generator.standard_normal(90)
    for name, rows in (("tiny", 90), ("broken", 40)):
        (tmp_path / "sets" / name).mkdir(parents=True)
        write(tmp_path / "sets" / name / "data.csv.gz", np.column_stack([x, y]))
        test = np.zeros((rows, 2), int)
        test[-9:, 0] = test[:9, 1] = 1
        write(tmp_path / "sets" / name / "test_mask.csv.gz", test)
    return tmp_path / "sets"


def write(path: Path, numbers: np.ndarray) -> None:
    with gzip.open(path, "wt") as file:
        np.savetxt(file, numbers, delimiter=",")


def test_a_cell_that_fails_is_recorded_and_a_second_run_does_nothing(
    uci: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "records" / "uci.json"
    command = ["--sets", "broken", "tiny", "--splits", "0", "--methods", "flashgp", "--rows", "60"]
    command += ["--data", str(data), "--record", str(record)]
    assert uci.main(command) == 1, "a cell has failed"
    cells = read_record(record)["cells"]
    assert list(cells) == ["broken/0/flashgp/rows=60", "tiny/0/flashgp/rows=60"]
    failed, done = cells.values()
    assert (failed["status"], done["status"]) == ("failed", "done")
    assert "IndexError" in failed["error"]
    assert (done["n"], done["n_distinct"], done["d"], done["n_test"]) == (60, 59, 2, 9)
    for key in ("seconds", "fit_seconds", "predict_seconds", "peak_bytes", "predicted_bytes"):
        assert done[key] > 0
    assert done["compile_seconds"] >= 0
    assert done["seconds"] >= done["fit_seconds"] + done["predict_seconds"]
    assert done["relative_residual"] < 1e-8
    for key in ("commit", "hardware", "versions", "seed", "events", "route", "date"):
        assert key in done

    # The same fit here, scored in plain NumPy: z-scored with the statistics of the rows that were kept.
    with gzip.open(data / "tiny" / "data.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",")
    train, test = table[:60], table[-9:]
    train, test = (train - train.mean(0)) / train.std(0), (test - train.mean(0)) / train.std(0)
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2, dtype=torch.float64))
    fit = fgp.fit(fgp.GP(kernel), torch.from_numpy(train[:, :2]), torch.from_numpy(train[:, 2]))
    p = fit.posterior.predict(torch.from_numpy(test[:, :2]))
    error, variance = test[:, 2] - p.mean.numpy(), p.observation_variance.numpy()
    assert done["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    assert done["nll"] == pytest.approx(np.mean(0.5 * (error**2 / variance + np.log(2 * np.pi * variance))), abs=1e-6)
    assert done["coverage"] == np.mean(np.abs(error) < 1.959963984540054 * np.sqrt(variance))

    asked: list[str] = []

    def remember(cell: Any) -> dict[str, Any]:
        asked.append(cell.key)
        return {**cells[cell.key], "error": "again", "hardware": {**done["hardware"], "cpu": "another machine"}}

    monkeypatch.setattr(uci, "_run", remember)
    before = record.stat().st_mtime_ns
    capsys.readouterr()
    assert uci.main([*command, "--seed", "3"]) == 1
    assert asked == []
    assert record.stat().st_mtime_ns == before
    said = capsys.readouterr().out
    assert "tiny/0/flashgp/rows=60: kept (made with seed=0)" in said
    assert "| tiny | FlashGP | 60 | 59 | 0 |" in said
    uci.main([*command, "--again", "failed"])
    assert asked == ["broken/0/flashgp/rows=60"]
    assert read_record(record)["cells"][asked[0]]["error"] == "again"
    machines = sorted(["another machine", done["hardware"]["cpu"]])
    assert read_record(record)["hardware"]["cpu"] == " or ".join(machines), "a record names every machine"
    uci.main([*command, "--again"])
    assert asked[1:] == list(cells)


def test_a_killed_run_keeps_what_was_finished_and_leaves_no_process(
    uci: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(1)
    (data / "large").mkdir()  # a minute's fit, so that the second cell does not end by itself
    write(data / "large" / "data.csv.gz", generator.standard_normal((5000, 4)))
    write(data / "large" / "test_mask.csv.gz", np.arange(5000)[:, None] < 500)
    record = tmp_path / "uci.json"
    command = ["--sets", "tiny", "large", "--splits", "0", "--methods", "dense", "--data", str(data)]
    command += ["--record", str(record)]
    run = subprocess.Popen([sys.executable, str(BENCHMARK / "uci.py"), *command], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    while "large/0/dense: running" not in run.stdout.readline():
        assert run.poll() is None
    deadline = time.monotonic() + 30
    while not (children := spawned(run.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert children, "the second cell was running"
    assert psutil.wait_procs(children, timeout=30)[1] == [], "a cell ends with the command that started it"
    assert list(read_record(record)["cells"]) == ["tiny/0/dense"]
    kept = read_record(record)["cells"]["tiny/0/dense"]
    assert kept["route"] == "direct"
    asked: list[str] = []
    monkeypatch.setattr(uci, "_run", lambda cell: (asked.append(cell.key), {**kept, "set": cell.set})[1])
    assert uci.main(command) == 0
    assert asked == ["large/0/dense"]
    assert list(read_record(record)["cells"]) == ["tiny/0/dense", "large/0/dense"]
    assert list(tmp_path.glob(".*partial")) == []


def spawned(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children() if "spawn_main" in " ".join(p.cmdline())]


def test_what_does_not_fit_states_its_bytes_and_is_asked_again(
    uci: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "uci.json"
    command = ["--sets", "tiny", "--splits", "0", "--methods", "dense", "--memory", "1", "--data", str(data)]
    command += ["--record", str(record)]
    assert uci.main(command) == 0, "a refusal is no failure"
    entry = read_record(record)["cells"]["tiny/0/dense"]
    assert entry["status"] == "refused"
    assert entry["needed_bytes"] > entry["available_bytes"] == 1
    assert "would need" in read_record(record)["rows"][0]["verdict"]
    asked: list[str] = []
    monkeypatch.setattr(uci, "_run", lambda cell: (asked.append(cell.key), entry)[1])
    uci.main(command)
    assert asked == ["tiny/0/dense"]


def test_a_cell_that_outlives_its_limit_is_ended(
    uci: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uci, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(uci, "PATIENCE", 0.0)
    cell = importlib.import_module("uci_cell").Cell("tiny", 0, "flashgp", str(data), time_limit=1.0)
    entry = uci._run(cell)
    assert entry["status"] == "failed"
    assert "still running" in entry["error"]


def test_strict_peers_are_refused_before_any_work(uci: Any) -> None:
    module = importlib.import_module("uci_gpytorch")
    with pytest.raises(MemoryBudgetError, match="GPyTorch needs about") as error:
        module._require_room(100_000, True, "8GiB")
    assert error.value.needed_bytes == module.needed_bytes(100_000, True) > 2 * 8 * 100_000**2
    module._require_room(100, True, "8GiB")


def test_gpytorch_is_measured_with_a_float64_product(uci: Any, data: Path) -> None:
    pytest.importorskip("gpytorch", reason="the peers are not installed")
    module = importlib.import_module("uci_cell")
    strict, default = (
        module.run_cell(module.Cell("tiny", 0, f"gpytorch-{how}", str(data), peer_steps=30))
        for how in ("cholesky", "default")
    )
    assert strict["relative_residual"] < 1e-9
    assert 1e-9 < default["relative_residual"] < 1e-2
    assert strict["training"] == "Adam, rate 0.1, 30 steps"
    assert strict["rmse"] == pytest.approx(default["rmse"], rel=0.05)


def cell(name: str, split: int, method: str, **values: Any) -> dict[str, Any]:
    found = {
        "set": name, "split": split, "method": method, "rows": None, "memory": None, "status": "done", "n": 100,
        "n_distinct": 90, "rmse": 0.3, "nll": 0.2, "coverage": 0.95, "relative_residual": 1e-5, "evaluations": 20,
        "iterations": 20, "seconds": 10.0, "fit_seconds": 8.0, "predict_seconds": 1.0, "compile_seconds": 1.0,
        "peak_bytes": 10**6, "route": "direct",
    }  # fmt: skip
    return {**found, **values}


def test_the_table_compares_with_targets_and_with_the_dense_optimum(uci: Any) -> None:
    module = importlib.import_module("uci_summary")
    cells = {
        "elevators/0/flashgp": cell("elevators", 0, "flashgp", rmse=0.356, nll=0.39, relative_residual=1e-4),
        "elevators/1/flashgp": cell("elevators", 1, "flashgp", rmse=0.36, nll=0.39, peak_bytes=3 * 10**6),
        "elevators/0/dense": cell("elevators", 0, "dense", rmse=0.355, nll=0.385),
        "elevators/1/dense": cell("elevators", 1, "dense", rmse=0.3585, nll=0.3845),
        "elevators/0/gpytorch-cholesky": {
            "set": "elevators",
            "split": 0,
            "method": "gpytorch-cholesky",
            "rows": None,
            "memory": None,
            "status": "refused",
            "needed_bytes": 2**34,
            "available_bytes": 2**33,
            "error": "too large",
        },
        "pol/0/flashgp": cell("pol", 0, "flashgp", rmse=0.085, nll=-1.19, seconds=200.0),
        "pol/1/flashgp": cell("pol", 1, "flashgp", status="failed", error="ValueError: no\nmore"),
        "pol/0/flashgp/rows=50": cell("pol", 0, "flashgp", rows=50, n=50),
    }
    rows = module.summary(cells)
    assert [(row["set"], row["method"], row["n"]) for row in rows] == [
        ("elevators", "FlashGP", 100),
        ("elevators", "FlashGP, dense float64", 100),
        ("elevators", "GPyTorch, Cholesky", None),
        ("pol", "FlashGP", 100),
        ("pol", "FlashGP", 50),
    ]
    ours, _, refused, pol, cut = rows
    assert (ours["splits"], ours["residual_error"], ours["peak_bytes"]) == ("0, 1", 1e-4, 3 * 10**6)
    assert ours["rmse"] == pytest.approx(0.358)
    assert (ours["met"], ours["verdict"]) == (True, "reached")
    assert ours["optimum"] == "+0.0015, +0.0055: reached"
    assert "would need 16.0 GiB of 8.0 GiB" in refused["verdict"]
    assert pol["met"] is False
    assert pol["verdict"].startswith("mean short: rmse by 0.005, nll by 0.01, by 20 s; split 0 short: ")
    assert pol["verdict"].endswith("split 1 failed: ValueError: no")
    assert cut.get("target") is None, "targets are of all rows"
    cells["elevators/1/dense"] |= {"rmse": 0.357}
    assert module.summary(cells)[0]["optimum"].endswith(": short")
    cells["elevators/1/dense"] |= {"rmse": 0.3585, "interrupted": "the time limit of 180 s"}
    assert module.summary(cells)[0]["optimum"] == "+0.0015, +0.0055: within, of one that had not ended"
    cells["elevators/1/polished"] = cells.pop("elevators/1/dense") | {"method": "polished", "interrupted": None}
    assert module.summary(cells)[0]["optimum"] == "+0.0015, +0.0055: reached", "one that went on from there counts too"
    text = markdown_table({"columns": module.COLUMNS, "rows": rows})
    assert "0.358, 0.393, 120 s" in text
    assert "| - |" in text
