"""Accuracy on real tables: RMSE and NLL on five fixed splits, paired with scikit-learn's and GPyTorch's exact GPs.

All three fit variance * Matern-5/2 ARD + noise to inputs and targets z-scored with training statistics. FlashGP and
scikit-learn use L-BFGS-B, GPyTorch the loop of its documentation (Adam, rate 0.1), factorising by Cholesky. Every
finished piece is kept in records/accuracy_pieces.json, so that the suite can be stopped and run again.
"""

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from common import RECORDS, SHARED_DATA, arguments, peer, scores, split_of

import flashgp as fgp
from flashgp.bench import read_record, write_record

SETS = ("yacht", "housing", "energy", "concrete", "airfoil", "wine")
SPLITS = range(5)
ADAM_STEPS = 150
COLUMNS = [
    {"key": "work", "title": "set"},
    {"key": "rows", "title": "rows", "format": "integer"},
    {"key": "rmse", "title": "RMSE", "format": "fixed4"},
    {"key": "nll", "title": "NLL", "format": "fixed4"},
    {"key": "coverage", "title": "95 % coverage", "format": "percent"},
    {"key": "sklearn_rmse", "title": "scikit-learn RMSE", "format": "fixed4"},
    {"key": "sklearn_nll", "title": "NLL", "format": "fixed4"},
    {"key": "gpytorch_rmse", "title": "GPyTorch RMSE", "format": "fixed4"},
    {"key": "gpytorch_nll", "title": "NLL", "format": "fixed4"},
    {"key": "verdict", "title": "paired difference against one standard error"},
]


def ours(x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, y_test: torch.Tensor) -> dict[str, float]:
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(x.shape[1]))
    p = fgp.fit(fgp.GP(kernel), x, y).posterior.predict(x_test)
    return scores(p.mean, p.observation_variance, y_test)


def sklearns(x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, y_test: torch.Tensor) -> dict[str, float]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0) * Matern(numpy.ones(x.shape[1]), nu=2.5) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel).fit(x.numpy(), y.numpy())
    mean, deviation = model.predict(x_test.numpy(), return_std=True)
    return scores(torch.from_numpy(mean), torch.from_numpy(deviation).square(), y_test)


def gpytorchs(x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, y_test: torch.Tensor) -> dict[str, float]:
    import gpytorch

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=x.shape[1])
            self.kernel = gpytorch.kernels.ScaleKernel(base)

        def forward(self, points: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    model = Model(gpytorch.likelihoods.GaussianLikelihood()).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
        for _ in range(ADAM_STEPS):
            optimiser.zero_grad()
            (-objective(model(x), y)).backward()
            optimiser.step()
        model.eval()
        model.likelihood.eval()
        with torch.no_grad():
            p = model.likelihood(model(x_test))
            return scores(p.mean, p.variance, y_test)


METHODS: dict[str, Callable[..., dict[str, float]]] = {"flashgp": ours, "sklearn": sklearns, "gpytorch": gpytorchs}


def table(pieces: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per set that is complete: means over splits, and the paired differences to both peers."""
    rows = []
    for name in SETS:
        values = {m: [pieces.get(f"{name}/{s}/{m}") for s in SPLITS] for m in METHODS}
        if any(v is None for column in values.values() for v in column):
            continue
        row: dict[str, Any] = {"work": name, "rows": values["flashgp"][0]["rows"]}
        verdicts = []
        for score in ("rmse", "nll"):
            for method in METHODS:
                column = numpy.array([v[score] for v in values[method]])
                row[score if method == "flashgp" else f"{method}_{score}"] = float(column.mean())
                if method == "flashgp":
                    continue
                difference = numpy.array([v[score] for v in values["flashgp"]]) - column
                standard_error = float(difference.std(ddof=1) / math.sqrt(len(difference)))
                key = f"{score}_minus_{method}"
                row[key], row[f"{key}_standard_error"] = float(difference.mean()), standard_error
                worse = difference.mean() > standard_error
                verdicts.append(f"{score} worse than {method} by {difference.mean():.4f}" if worse else "")
        row["coverage"] = float(numpy.mean([v["coverage"] for v in values["flashgp"]]))
        row["verdict"] = "; ".join(v for v in verdicts if v) or "not worse"
        row["met"] = row["verdict"] == "not worse"
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    warnings.simplefilter("ignore")
    if options.toy:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
        y = torch.sin(x[:, 0])
        scored = ours(x[:24], y[:24], x[24:], y[24:])
        assert scored["rmse"] < 1.0
        return 0
    if not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    store = RECORDS / "accuracy_pieces.json"
    pieces: dict[str, Any] = read_record(store)["pieces"] if store.exists() else {}
    for name in SETS:
        for split in SPLITS:
            for method, run in METHODS.items():
                key = f"{name}/{split}/{method}"
                if key in pieces or (options.only and options.only not in key):
                    continue
                if method == "gpytorch" and peer("gpytorch") is None:
                    continue
                parts = split_of(name, split)
                started = time.perf_counter()
                scored = run(*parts)
                seconds = time.perf_counter() - started
                pieces[key] = {**scored, "seconds": seconds, "rows": parts[0].shape[0]}
                print(key, pieces[key], flush=True)
                write_record(store, {"title": "Pieces of the accuracy table", "pieces": pieces})
    rows = table(pieces)
    title = "Accuracy on real tables, means over splits 0 to 4"
    write_record(RECORDS / "accuracy.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
