"""A kind of case: TableModel in units of its table, however the table comes, at the hyperparameters that it found."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pandas
import torch

import flashgp as fgp
from hunt.differences import Findings
from hunt.rounding import Rounded

FORMS = ("dict", "frame", "csv", "parquet")
SAFETY = 100.0  # times n eps cond(K + noise): products, solves, and the rounding of standardised rows


@dataclass(frozen=True)
class TableCase:
    """Fit, and predict a table whose columns stand in another order; against the dense formulas of standardised rows,
    whose covariances are those that the other kinds judge.

    Fields: d columns of x with spreads x_scale; form and test_form, of FORMS; extra, whether the predicted table has a
    column more; saved, whether the model goes through a file.
    """

    seed: int = 0
    n: int = 12
    d: int = 2
    n_test: int = 4
    x_scale: float = 1.0
    y_scale: float = 1.0
    kernel: str | None = "Matern(nu=1.5)"
    form: str = "dict"
    test_form: str = "dict"
    extra: bool = False
    saved: bool = False

    def check(self) -> Findings:
        found = Findings()
        rng = numpy.random.default_rng([self.seed, 7])
        x, x_test = (self.x_scale * rng.normal(size=(n, self.d)) for n in (self.n, self.n_test))
        y = self.y_scale * (numpy.sin(2.0 * x[:, 0] / self.x_scale) + 0.3 * rng.normal(size=self.n))
        names = [f"column {j}" for j in range(self.d)]
        table = {name: x[:, j] for j, name in enumerate(names)} | {"target": y}
        asked = {name: x_test[:, j] for j, name in reversed(list(enumerate(names)))}
        asked |= {"beside": numpy.arange(float(self.n_test))} if self.extra else {}
        model: Any = None
        with found.watched("table"), tempfile.TemporaryDirectory() as folder:
            model = fgp.TableModel(self.kernel, target_transform="none", starts=1)
            model = model.fit(written(table, self.form, Path(folder) / "table"), "target")
            if self.saved:
                model.save(Path(folder) / "model.safetensors")
                model = fgp.load(Path(folder) / "model.safetensors")
            answer = model.predict(written(asked, self.test_form, Path(folder) / "asked"))
            wanted = _dense(model.posterior.gp, x, y, x_test)
            for name, got in (("mean", answer.mean), ("std", answer.std)):
                found.compare(name, torch.from_numpy(numpy.asarray(got)), wanted[name])
        return found


def _dense(gp: fgp.GP, x: numpy.ndarray, y: numpy.ndarray, x_test: numpy.ndarray) -> dict[str, Rounded]:
    """Mean and standard deviation of a new observation, in units of y."""
    offset, scale = y.mean(), y.std()
    rows, points = (torch.from_numpy((part - x.mean(axis=0)) / x.std(axis=0)) for part in (x, x_test))
    with torch.no_grad():
        cross = gp.kernel.operator(points, rows).to_dense(torch.float64).numpy()
        among = gp.kernel.operator(rows).to_dense(torch.float64).numpy()
        own = gp.kernel.operator(points).diagonal().double().numpy()
        noise = float(gp.likelihood.noise_variance.value)
        residual = (y - offset) / scale - gp.mean(rows).double().numpy()
        prior = gp.mean(points).double().numpy()
    matrix = among + noise * numpy.eye(len(y))
    mean = prior + cross @ numpy.linalg.solve(matrix, residual)
    variance = own - (cross * numpy.linalg.solve(matrix, cross.T).T).sum(axis=1) + noise
    off = SAFETY * len(y) * numpy.linalg.cond(matrix)  # in eps
    largest = 1.0 + abs(residual).max() + abs(prior).max()
    std = numpy.sqrt(variance)
    return {
        "mean": Rounded(mean * scale + offset, off * largest * scale + 4 * abs(offset)),
        "std": Rounded(std * scale, off * (own + noise) / std * scale),
    }


def written(table: dict[str, numpy.ndarray], form: str, path: Path) -> Any:
    """The table in one of FORMS; a file has every digit."""
    frame = pandas.DataFrame(table)
    match form:
        case "frame":
            return frame
        case "csv":
            frame.to_csv(path.with_suffix(".csv"), index=False)
            return path.with_suffix(".csv")
        case "parquet":
            frame.to_parquet(path.with_suffix(".parquet"))
            return path.with_suffix(".parquet")
    return table


__all__ = ["FORMS", "TableCase"]
