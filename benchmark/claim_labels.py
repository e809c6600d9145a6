"""Two classes on six small tables: the defaults by exact inference, beside other libraries, on fresh splits.

    python benchmark/claim_labels.py
    python benchmark/claim_labels.py --cells flashgp scikit-learn --splits 10

A cell is a table, a method and some of its splits: a fifth of the rows is held out, columns are standardised by the
rest, constant ones left out. Scores are the mean negative log probability of the label, the share of right labels, and
the calibration error over ten bins of equal width. Seconds of the cells are those of a machine with other work.

    flashgp       Matern-5/2 with a lengthscale per column, constant mean, Bernoulli(): probit by moments
    variational   the same with Bernoulli(method="variational")
    logit         the same with Bernoulli("logit")
    scikit-learn  GaussianProcessClassifier, constant * RBF with one lengthscale, or one per column (ARD); Laplace
    gpytorch      ApproximateGP, whitened: all rows inducing, Bernoulli, Matern-5/2 with a lengthscale per column, 300
                  steps of Adam of rate 0.1 in float64; "with priors" has ours, (M-290), in its objective

"Beside the best other" is the mean of the paired difference of the default and the best other library, and one standard
error of it, over the splits that all methods of a table have run.
"""

import argparse
import gzip
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import peer_models
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA

import flashgp as fgp
from flashgp.foundations.events import EventKind

Array = Any  # float64

TABLES = ("banana", "ionosphere", "sonar", "heart", "australian", "breast")
FIRST, SPLITS = 100, 10  # seeds below were seen while the defaults were chosen
HELD_OUT, BINS = 0.2, 10
ADAM_STEPS, ADAM_RATE = 300, 0.1
COLUMN_SD, COMMON_SD, VARIANCE_SD, MEAN_SD, VARIANCE = 0.25, math.sqrt(3.0), 1.5, 2.0, 4.0  # (M-290)
SCORES = ("nlpd", "accuracy", "calibration", "seconds")


class Found(NamedTuple):
    """Probabilities of the label 1 at the test rows; seconds of the fit; factorisations, where they are known."""

    probability: Array
    seconds: float
    factorisations: int = 0


# -- data -------------------------------------------------------------------------------------------------------------
def split_of(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """x, y, x_test, y_test with labels 0 and 1."""
    generator = numpy.random.default_rng(seed)
    if name == "drawn":
        x = generator.standard_normal((50, 3))
        y = (x[:, 0] + 0.3 * generator.standard_normal(50) > 0.0).astype(float)
    else:
        with gzip.open(SHARED_DATA.parent / "nongaussian" / f"{name}.csv.gz") as file:
            place = file.readline().decode().strip().split(",").index("label")
            numbers = numpy.loadtxt(file, delimiter=",", ndmin=2)
        x, y = numpy.delete(numbers, place, axis=1), (numbers[:, place] > numbers[:, place].min()).astype(float)
    order, count = generator.permutation(len(y)), round(HELD_OUT * len(y))
    train, test = order[count:], order[:count]
    x = x[:, x[train].std(axis=0) > 0.0]
    x = (x - x[train].mean(axis=0)) / x[train].std(axis=0)
    return x[train], y[train], x[test], y[test]


# -- methods: a fit and its probabilities -----------------------------------------------------------------------------
def ours(likelihood: fgp.likelihoods.Bernoulli) -> Callable[[Array, Array, Array], Found]:
    def method(x: Array, y: Array, x_test: Array) -> Found:
        rows, labels, points = (torch.from_numpy(t) for t in (x, y, x_test))
        kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(x.shape[1], dtype=torch.float64))
        gp = fgp.GP(kernel, fgp.means.Constant(), likelihood)
        began = time.perf_counter()
        fit = fgp.fit(gp, rows, labels)
        seconds = time.perf_counter() - began
        (event,) = (event for event in fit.report.events if event.kind is EventKind.FIT_SITES)
        return Found(fit.posterior.predict(points).probability.numpy(force=True), seconds, event.fields["steps"])

    return method


def scikit_learn(ard: bool) -> Callable[[Array, Array, Array], Found]:
    def method(x: Array, y: Array, x_test: Array) -> Found:
        from sklearn.gaussian_process import GaussianProcessClassifier
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel

        scale = math.sqrt(x.shape[1])
        kernel = ConstantKernel(VARIANCE) * RBF(numpy.full(x.shape[1], scale) if ard else scale)
        began = time.perf_counter()
        model = GaussianProcessClassifier(kernel, random_state=0).fit(x, y)
        seconds = time.perf_counter() - began
        return Found(model.predict_proba(x_test)[:, 1], seconds)

    return method


def gpytorch(priors: bool) -> Callable[[Array, Array, Array], Found]:
    def method(x: Array, y: Array, x_test: Array) -> Found:
        rows, labels, points = (torch.from_numpy(t) for t in (x, y, x_test))
        d = rows.shape[1]
        kernel = peer_models.matern(d, nu=2.5)
        kernel.base_kernel.lengthscale, kernel.outputscale = math.sqrt(d), VARIANCE
        torch.manual_seed(0)
        likelihood = peer_models.library("gpytorch").likelihoods.BernoulliLikelihood()
        objective = peer_models.svgp(rows, kernel, len(labels), likelihood, learn=False)
        covariance = COLUMN_SD**2 * torch.eye(d, dtype=torch.float64) + COMMON_SD**2
        spread = rows.std(0, correction=0) * math.sqrt(d)
        of_columns = torch.distributions.MultivariateNormal(spread.log() + math.sqrt(2.0), covariance)
        share = labels.mean().clamp(0.01, 0.99)
        sds = torch.tensor([VARIANCE_SD, MEAN_SD], dtype=torch.float64)
        of_others = torch.distributions.Normal(
            torch.stack([torch.tensor(VARIANCE).log(), torch.special.ndtri(share)]), sds
        )

        def log_prior() -> torch.Tensor:
            others = torch.stack([kernel.outputscale.log(), objective.model.mean.constant])
            lengthscales = kernel.base_kernel.lengthscale.squeeze(0)
            return (of_columns.log_prob(lengthscales.log()) + of_others.log_prob(others).sum()) / len(labels)

        began = time.perf_counter()
        step = peer_models.adam(objective, ADAM_RATE, log_prior if priors else float)
        for _ in range(ADAM_STEPS):
            step(rows, labels)
        seconds = time.perf_counter() - began
        return Found(peer_models.predicted(objective, points)[0].numpy(force=True), seconds)

    return method


METHODS: dict[str, tuple[str | None, Callable[[Array, Array, Array], Found]]] = {
    "flashgp": (None, ours(fgp.likelihoods.Bernoulli())),
    "variational": (None, ours(fgp.likelihoods.Bernoulli(method="variational"))),
    "logit": (None, ours(fgp.likelihoods.Bernoulli("logit"))),
    "scikit-learn": ("sklearn", scikit_learn(ard=False)),
    "scikit-learn, ARD": ("sklearn", scikit_learn(ard=True)),
    "gpytorch": ("gpytorch", gpytorch(priors=False)),
    "gpytorch, with priors": ("gpytorch", gpytorch(priors=True)),
}
PEERS = tuple(name for name, (library, _) in METHODS.items() if library is not None)
COST = {"gpytorch": 20.0, "gpytorch, with priors": 20.0, "scikit-learn, ARD": 5.0}  # seconds of a fit, roughly


def run_cell(cell: Cell) -> dict[str, Any]:
    """Scores of each split, and the seconds of its fit; the first fit of a process, which loads libraries, is not one
    of them."""
    warnings.simplefilter("ignore")
    library, method = METHODS[cell["method"]]
    if library is not None:
        peer_models.library(library)
    entry: dict[str, Any] = {name: [] for name in (*SCORES, "factorisations")}
    if library is None:
        method(*split_of("drawn", 0)[:3])
    for seed in range(cell["first"], cell["first"] + cell["splits"]):
        x, y, x_test, y_test = split_of(cell["table"], seed)
        found = method(x, y, x_test)
        of_label = numpy.where(y_test > 0.5, found.probability, 1.0 - found.probability)
        entry["nlpd"].append(-float(numpy.log(numpy.maximum(of_label, numpy.finfo(float).tiny)).mean()))
        entry["accuracy"].append(float(((found.probability > 0.5) == (y_test > 0.5)).mean()))
        entry["calibration"].append(calibration_error(found.probability, y_test))
        entry["seconds"].append(found.seconds)
        entry["factorisations"].append(found.factorisations)
    return entry | {"rows_used": len(y), "d": x.shape[1]}


def calibration_error(probability: Array, y: Array) -> float:
    """Mean distance of the share of ones from the mean probability, over bins of equal width."""
    bins = numpy.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = [abs(float((probability - y)[bins == k].sum())) for k in range(BINS)]
    return sum(gaps) / len(y)


# -- the table --------------------------------------------------------------------------------------------------------
def columns() -> list[dict[str, str]]:
    first = [{"key": "problem", "title": "table"}, {"key": "score", "title": "score"}]
    first.append({"key": "splits", "title": "splits", "format": "integer"})
    return [*first, *({"key": name, "title": name, "format": "fixed4"} for name in METHODS),
            {"key": "beside", "title": "default beside the best other"}]  # fmt: skip


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """By score and table, means over the splits that all methods of a table have, of seconds medians, and over those of
    the methods that have most; last their means."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    table: list[dict[str, Any]] = []
    for score in SCORES:
        every: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for name in (*TABLES, "drawn"):
            cells = [entry for entry in done if entry["table"] == name]
            seen = Counter({method: sum(e["splits"] for e in cells if e["method"] == method) for method in METHODS})
            most = {method for method in seen if seen[method] == max(seen.values())}
            for common in (True, False):
                values, splits = paired([e for e in cells if common or e["method"] in most], score)
                if not splits or (not common and splits == table[-1]["splits"]):
                    continue
                average = numpy.median if score == "seconds" else numpy.mean
                every[common].append({method: float(average(v)) for method, v in values.items()})
                row = {"problem": f"{name}, n={cells[0]['rows_used']:,}, d={cells[0]['d']}", "score": score}
                row |= {"splits": splits, **every[common][-1]} | (beside(values) if score == "nlpd" else {})
                table.append(row)
        for means in every.values():
            methods = [method for method in METHODS if means and all(method in one for one in means)]
            if methods:
                average_of = {method: float(numpy.mean([one[method] for one in means])) for method in methods}
                table.append({"problem": f"mean of {len(means)} tables", "score": score, **average_of})
    return table


def beside(values: Mapping[str, Array]) -> dict[str, Any]:
    """The default beside the best other library, on the same splits."""
    rivals = [method for method in PEERS if method in values]
    if not rivals or "flashgp" not in values or len(values["flashgp"]) < 2:
        return {}
    best = min(rivals, key=lambda method: float(values[method].mean()))
    difference = values["flashgp"] - values[best]
    mean, error = float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))
    text = f"{mean:+.4f} ± {error:.4f} ({best})"
    return {"difference": mean, "standard_error": error, "best_other": best, "beside": text}


def paired(cells: Sequence[Entry], score: str) -> tuple[dict[str, Array], int]:
    """A score by method, (splits,), on the splits that every method of these cells has; how many these are."""
    by_split: dict[str, dict[int, float]] = {}
    for entry in cells:
        by_split.setdefault(entry["method"], {}).update(enumerate(entry[score], entry["first"]))
    splits = sorted(set.intersection(*map(set, by_split.values()))) if by_split else []
    return {method: numpy.array([of[k] for k in splits]) for method, of in by_split.items()}, len(splits)


def line(entry: Entry) -> str:
    nlpd, accuracy, calibration, seconds = (float(numpy.mean(entry[key])) for key in SCORES)
    return f"negative log density {nlpd:.4f}, accuracy {accuracy:.3f}, calibration {calibration:.3f}, {seconds:.2f} s"


CLAIM = Claim("labels", "claim_labels", "Two classes on small tables", columns(), rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--splits", type=int, metavar="N", default=SPLITS, help="only the first N splits")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    tables, methods, splits = TABLES, tuple(METHODS), options.splits
    if options.toy:
        tables, methods, splits = ("drawn",), tuple(method for method in METHODS if method not in PEERS), 2
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    cells = [
        Cell(
            f"{table}/{method}/{first}", {"table": table, "method": method, "first": first, "splits": count},
            COST.get(method, 0.7) * count,
        )
        for method in methods
        for table in tables
        for count in [1 if method in COST else splits]
        for first in range(FIRST, FIRST + splits, count)
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
