"""The benchmark of published sets: what a cell records is what plain NumPy finds, and the table compares it."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uci
import uci_cell
import uci_gpytorch
import uci_summary
from tables import markdown_table
from uci_types import Cell

import flashgp as fgp
from flashgp.bench import read_record
from flashgp.foundations.errors import MemoryBudgetError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A set of 90 rows, one of them repeated, and two splits."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((90, 2))
    x[7] = x[3]
    y = 5.0 + np.sin(x[:, 0]) + 0.1 * generator.standard_normal(90)
    (tmp_path / "sets" / "tiny").mkdir(parents=True)
    write(tmp_path / "sets" / "tiny" / "data.csv.gz", np.column_stack([x, y]))
    test = np.zeros((90, 2), int)
    test[-9:, 0] = test[:9, 1] = 1
    write(tmp_path / "sets" / "tiny" / "test_mask.csv.gz", test)
    return tmp_path / "sets"


def write(path: Path, numbers: np.ndarray) -> None:
    with gzip.open(path, "wt") as file:
        np.savetxt(file, numbers, delimiter=",")


def test_a_cell_is_scored_as_plain_numpy_does(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "records" / "uci.json"
    command = ["--sets", "tiny", "--splits", "0", "--methods", "flashgp", "--rows", "60"]
    run = lambda cell: {**uci_environment(), **cell.settings(), "status": "done", **uci_cell.run_cell(cell)}  # noqa: E731
    assert uci.main([*command, "--data", str(data), "--record", str(record)], run) == 0
    assert "| tiny | FlashGP | 60 | 59 | 0 |" in capsys.readouterr().out
    done = read_record(record)["cells"]["tiny/0/flashgp/rows=60"]
    assert (done["n"], done["n_distinct"], done["d"], done["n_test"]) == (60, 59, 2, 9)
    for key in ("seconds", "fit_seconds", "predict_seconds", "peak_bytes", "predicted_bytes"):
        assert done[key] > 0
    assert done["seconds"] >= done["fit_seconds"] + done["predict_seconds"]
    assert done["relative_residual"] < 1e-8

    # The same fit here, z-scored with the statistics of the rows that were kept.
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


def uci_environment() -> dict[str, Any]:
    from flashgp.bench import environment

    return environment()


def test_what_does_not_fit_states_its_bytes(data: Path) -> None:
    with pytest.raises(MemoryBudgetError) as error:
        uci_cell.run_cell(Cell("tiny", 0, "dense", str(data), memory="1"))
    assert error.value.needed_bytes > error.value.available_bytes == 1
    with pytest.raises(MemoryBudgetError, match="GPyTorch needs about") as error:
        uci_gpytorch._require_room(100_000, True, "8GiB")
    assert error.value.needed_bytes == uci_gpytorch.needed_bytes(100_000, True) > 2 * 8 * 100_000**2


def test_gpytorch_is_measured_with_a_float64_product(data: Path) -> None:
    pytest.importorskip("gpytorch", reason="the peers are not installed")
    strict, default = (
        uci_cell.run_cell(Cell("tiny", 0, f"gpytorch-{how}", str(data), peer_steps=30))
        for how in ("cholesky", "default")
    )
    assert strict["relative_residual"] < 1e-9
    assert 1e-9 < default["relative_residual"] < 1e-2
    assert strict["rmse"] == pytest.approx(default["rmse"], rel=0.05)


def cell(name: str, split: int, method: str, **values: Any) -> dict[str, Any]:
    entry = {
        "set": name, "split": split, "method": method, "rows": None, "memory": None, "status": "done", "n": 100,
        "n_distinct": 90, "rmse": 0.3, "nll": 0.2, "coverage": 0.95, "relative_residual": 1e-5, "evaluations": 20,
        "iterations": 20, "seconds": 10.0, "fit_seconds": 8.0, "predict_seconds": 1.0, "compile_seconds": 1.0,
        "peak_bytes": 10**6, "route": "direct",
    }  # fmt: skip
    return {**entry, **values}


def test_the_table_compares_with_targets_and_with_the_dense_optimum() -> None:
    entries = {
        "elevators/0/flashgp": cell("elevators", 0, "flashgp", rmse=0.356, nll=0.39, relative_residual=1e-4),
        "elevators/1/flashgp": cell("elevators", 1, "flashgp", rmse=0.36, nll=0.39, peak_bytes=3 * 10**6),
        "elevators/0/dense": cell("elevators", 0, "dense", rmse=0.355, nll=0.385),
        "elevators/1/dense": cell("elevators", 1, "dense", rmse=0.3585, nll=0.3845),
        "pol/0/flashgp": cell("pol", 0, "flashgp", rmse=0.085, nll=-1.19, seconds=200.0),
        "pol/1/flashgp": cell("pol", 1, "flashgp", status="failed", error="ValueError: no\nmore"),
    }
    rows = uci_summary.summary(entries)
    ours, _, pol = rows
    assert (ours["splits"], ours["residual_error"], ours["peak_bytes"]) == ("0, 1", 1e-4, 3 * 10**6)
    assert ours["rmse"] == pytest.approx(0.358)
    assert (ours["met"], ours["verdict"], ours["optimum"]) == (True, "reached", "+0.0015, +0.0055: reached")
    assert pol["met"] is False
    assert pol["verdict"].endswith("split 1 failed: ValueError: no")
    assert "0.358, 0.393, 120 s" in markdown_table({"columns": uci_summary.COLUMNS, "rows": rows})
