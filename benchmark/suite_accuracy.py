"""Accuracy on real tables: RMSE and NLL on five fixed splits, paired with scikit-learn's and GPyTorch's exact GPs.

All three fit variance * Matern-5/2 ARD + noise to inputs and targets z-scored with training statistics. FlashGP and
scikit-learn use L-BFGS-B, GPyTorch the loop of its documentation (Adam, rate 0.1), factorising by Cholesky. Every
finished piece is kept in records/accuracy_pieces.json, so that the suite can be stopped and run again.
"""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import peer_models
import torch
from common import RECORDS, Split, arguments, peer, scores
from splits import Piece, complete, paired, pieces_of

import flashgp as fgp
from flashgp.bench import write_record

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
    objective = peer_models.exact(x, y, peer_models.matern(x.shape[1], nu=2.5))
    step = peer_models.adam(objective, 0.1)
    settings = peer_models.library("gpytorch").settings
    with settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
        for _ in range(ADAM_STEPS):
            step(x, y)
        return scores(*peer_models.predicted(objective, x_test), y_test)


METHODS: dict[str, Callable[..., dict[str, float]]] = {"flashgp": ours, "sklearn": sklearns}
if peer("gpytorch") is not None:
    METHODS["gpytorch"] = gpytorchs


def table(pieces: dict[str, Piece]) -> list[dict[str, Any]]:
    """One row per set that is complete: means over splits, and the paired differences to both peers."""
    rows = []
    for name, values in complete(pieces, ("flashgp", "sklearn", "gpytorch")):
        ours = values["flashgp"]
        row: dict[str, Any] = {"work": name, "rows": ours[0]["rows"]}
        verdicts = []
        for score in ("rmse", "nll"):
            for method, theirs in values.items():
                row[score if theirs is ours else f"{method}_{score}"] = float(numpy.mean([v[score] for v in theirs]))
                if theirs is ours:
                    continue
                mean, standard_error = paired(ours, theirs, score)
                row[f"{score}_minus_{method}"], row[f"{score}_minus_{method}_standard_error"] = mean, standard_error
                if mean > standard_error:
                    verdicts.append(f"{score} worse than {method} by {mean:.4f}")
        row["coverage"] = float(numpy.mean([v["coverage"] for v in ours]))
        row["verdict"] = "; ".join(verdicts) or "not worse"
        row["met"] = not verdicts
        rows.append(row)
    return rows


def piece(method: str, split: Split, _before: dict[str, Piece]) -> Piece:
    """Scores of a method on a split, and the seconds that it took."""
    started = time.perf_counter()
    scored = METHODS[method](*split)
    return {**scored, "seconds": time.perf_counter() - started, "rows": len(split.x)}


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
    store = RECORDS / "accuracy_pieces.json"
    pieces = pieces_of(store, "Pieces of the accuracy table", tuple(METHODS), piece, options.only)
    if pieces:
        title = "Accuracy on real tables, means over splits 0 to 4"
        write_record(RECORDS / "accuracy.json", {"title": title, "columns": COLUMNS, "rows": table(pieces)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
