"""The benchmark of published sets: what a cell records is what plain NumPy finds, and the table compares it."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uci
import uci_cell

import flashgp as fgp
from flashgp.bench import read_record


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
