"""Small tables at the defaults: our covariance functions beside each other, and other libraries, on 14 tables.

    python benchmark/claim_small_tables.py
    python benchmark/claim_small_tables.py --peers --cells botorch

A cell is a table, a method and some of its splits, of at most 1,000 training rows, in a process of its own. RMSE and
negative log density of new observations are in standard deviations of the training targets; seconds of the cells are
those of a machine with other work. Our methods are `GPRegressor` with the kernel that their name says ("auto" chooses
it), all else at its defaults, the transform of the target too. Others get standardised targets and the inputs that
their documentation asks for, and are

    scikit-learn   constant * RBF() + white noise, one lengthscale (its own default kernel is not fitted)
    gpytorch       as its regression example trains it, Matern-3/2 with a lengthscale per column (see uci_gpytorch)
    botorch        SingleTaskGP and fit_gpytorch_mll, inputs in the unit cube

"Beside the best other" is the mean of the paired difference of the default and the best of the rest, and one standard
error of it, over the splits that all methods of a table have run.
"""

import argparse
import gzip
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA, Split
from peer_models import library
from scipy.stats import rankdata
from uci_gpytorch import run as run_gpytorch
from uci_types import Cell as Published

import flashgp as fgp
from flashgp.foundations.normal import LOG_2PI
from flashgp.kernels.default import CANDIDATES, DEFAULT
from flashgp.units import ColumnScaling

Array = Any  # float64

PUBLISHED = (
    "airfoil", "concrete", "energy", "housing", "wine", "yacht", "elevators", "pol", "kin40k", "keggdirected",
)  # fmt: skip
TABLES = (*PUBLISHED, "diabetes", "bike_counts", "precipitation", "friedman1")
SPLITS, PEER_SPLITS = 5, 10
AT_ONCE = {"botorch": 1}  # splits in one cell: a fit takes minutes; of others five
MOST_ROWS = 1000  # of training, and of test
SCORES = ("nll", "rmse")


AUTO = "auto"
OURS = tuple(candidate.name for candidate in CANDIDATES[:3])


# -- data -------------------------------------------------------------------------------------------------------------
def table_of(name: str) -> tuple[Array, Array]:
    """Rows (n, d) and target (n,) of a table."""
    if name in PUBLISHED:
        with gzip.open(SHARED_DATA / name / "data.csv.gz") as file:
            numbers = numpy.loadtxt(file, delimiter=",", ndmin=2)
        return numbers[:, :-1], numbers[:, -1]
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        return load_diabetes(return_X_y=True)
    if name == "friedman1":
        from sklearn.datasets import make_friedman1

        return make_friedman1(500, noise=1.0, random_state=0)
    with gzip.open(SHARED_DATA.parent / "nongaussian" / f"{name}.csv.gz") as file:
        numbers = numpy.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    if name == "bike_counts":
        return numbers[:, 1:], numpy.log1p(numbers[:, 0])
    return numbers[:, :-1], numbers[:, -1]


def split_of(name: str, number: int, rows: int = MOST_ROWS) -> tuple[Array, Array, Array, Array]:
    """x, y, x_test, y_test in their own units: a published split, or a tenth of the rows drawn for the test; at most so
    many random rows of training, the first of those that more would be."""
    if name == "drawn":
        generator = numpy.random.default_rng(number)
        x = generator.standard_normal((40, 2))
        y = numpy.sin(x[:, 0]) + 0.1 * generator.standard_normal(40)
        return x[:30], y[:30], x[30:], y[30:]
    x, y = table_of(name)
    generator = numpy.random.default_rng(number)
    if name in PUBLISHED:
        with gzip.open(SHARED_DATA / name / "test_mask.csv.gz") as file:
            held_out = numpy.loadtxt(file, delimiter=",", ndmin=2)[:, number] > 0.5
    else:
        held_out = numpy.zeros(len(y), dtype=bool)
        held_out[generator.permutation(len(y))[: len(y) // 10]] = True
    train, test = (generator.permutation(numpy.flatnonzero(part)) for part in (~held_out, held_out))
    train, test = train[:rows], test[:MOST_ROWS]
    return x[train], y[train], x[test], y[test]


# -- methods: a fit and its answer ------------------------------------------------------------------------------------
class Found(NamedTuple):
    """Means at the test rows and the mean negative log density there, in units of y; seconds of the fit; what else the
    record keeps."""

    mean: Array
    nll: float
    fit_seconds: float
    told: str = ""


def ours(method: str, x: Array, y: Array, x_test: Array, y_test: Array) -> Found:
    """GPRegressor with a kernel of that name."""
    known = {candidate.name: candidate for candidate in CANDIDATES}
    kernel = "auto" if method == AUTO else known[method].build(x.shape[1])
    began = time.perf_counter()
    model = fgp.GPRegressor(kernel).fit(x, y)
    seconds = time.perf_counter() - began
    predicted = model.predict_distribution(x_test)
    told = [
        str(model.scaling_.target.transform),
        *(e.fields["kernel"] for e in model.report_.events if "kernel" in e.fields),
    ]
    return Found(predicted.mean, -float(predicted.log_prob(y_test).mean()), seconds, ", ".join(told))


def _normal(mean: Array, variance: Array, units: ColumnScaling, y_test: Array, seconds: float) -> Found:
    """Of a normal answer in standard units."""
    scale = units.scale[0]
    mean, variance = mean * scale + units.offset[0], variance * scale**2
    nll = 0.5 * (numpy.square(y_test - mean) / variance + numpy.log(variance) + LOG_2PI)
    return Found(mean, float(nll.mean()), seconds)


def _standard(x: Array, y: Array, x_test: Array) -> tuple[Array, Array, Array, ColumnScaling]:
    units, target = ColumnScaling.of(x), ColumnScaling.of(y[:, None])
    return units.apply(x), target.apply(y[:, None])[:, 0], units.apply(x_test), target


def scikit_learn(x: Array, y: Array, x_test: Array, y_test: Array) -> Found:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, y, x_test, units = _standard(x, y, x_test)
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    began = time.perf_counter()
    model = GaussianProcessRegressor(kernel).fit(x, y)
    seconds = time.perf_counter() - began
    mean, std = model.predict(x_test, return_std=True)  # of new observations: the kernel has the noise
    return _normal(mean, numpy.square(std), units, y_test, seconds)


def gpytorch(x: Array, y: Array, x_test: Array, y_test: Array) -> Found:
    x, y, x_test, units = _standard(x, y, x_test)
    parts = Split(*map(torch.from_numpy, (x, y, x_test, units.apply(y_test[:, None])[:, 0])))
    answer = run_gpytorch(Published("", 0, "gpytorch-default", ""), parts, quiet=True, strict=False)
    mean, variance = (part.double().numpy() for part in (answer.mean, answer.variance))
    return _normal(mean, variance, units, y_test, answer.fit_seconds)


def botorch(x: Array, y: Array, x_test: Array, y_test: Array) -> Found:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    low = x.min(axis=0)
    width = numpy.ptp(x, axis=0)
    width[width == 0.0] = 1.0
    x, x_test = (torch.from_numpy((part - low) / width) for part in (x, x_test))
    torch.manual_seed(0)
    began = time.perf_counter()
    model = SingleTaskGP(x, torch.from_numpy(y[:, None]))  # standardises the target itself
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    seconds = time.perf_counter() - began
    with torch.no_grad():
        predicted = model.posterior(x_test, observation_noise=True)
    mean, variance = (part[:, 0].numpy(force=True) for part in (predicted.mean, predicted.variance))
    return _normal(mean, variance, ColumnScaling.identity(1), y_test, seconds)


PEERS: dict[str, tuple[str, Callable[[Array, Array, Array, Array], Found]]] = {
    "scikit-learn": ("sklearn", scikit_learn),
    "gpytorch": ("gpytorch", gpytorch),
    "botorch": ("botorch", botorch),
}


def run_cell(cell: Cell) -> dict[str, Any]:
    """Scores of each split in standard deviations of the training targets, and the seconds of its fit."""
    warnings.simplefilter("ignore")
    method = cell["method"]
    if method in PEERS:
        library(PEERS[method][0])
    entry: dict[str, Any] = {"nll": [], "rmse": [], "fit_seconds": [], "told": []}
    for number in range(cell["first"], cell["first"] + cell["splits"]):
        x, y, x_test, y_test = split_of(cell["table"], number)
        found = PEERS[method][1](x, y, x_test, y_test) if method in PEERS else ours(method, x, y, x_test, y_test)
        scale = float(ColumnScaling.of(y[:, None]).scale[0])
        entry["nll"].append(found.nll - math.log(scale))
        entry["rmse"].append(float(numpy.sqrt(numpy.mean(numpy.square(found.mean - y_test)))) / scale)
        entry["fit_seconds"].append(found.fit_seconds)
        entry["told"].append(found.told)
    return entry | {"rows_used": len(y), "d": x.shape[1]}


# -- the table --------------------------------------------------------------------------------------------------------
def columns(methods: Sequence[str]) -> list[dict[str, str]]:
    """The table, a row for each score of each table, with a column for each method."""
    first = [{"key": "problem", "title": "table"}, {"key": "score", "title": "score"}]
    first.append({"key": "splits", "title": "splits", "format": "integer"})
    each = [{"key": name, "title": name, "format": "fixed4"} for name in methods]
    return [*first, *each, {"key": "beside", "title": "default beside the best other"}]


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """By score and table, means over the splits that all methods of a table have; last means and mean ranks."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    table: list[dict[str, Any]] = []
    for score in SCORES:
        means: list[dict[str, float]] = []
        worse = better = 0
        for name in (*TABLES, "drawn"):
            cells = [e for e in done if e["table"] == name]
            values, splits = _paired(cells, score)
            if not splits:
                continue
            means.append({method: float(v.mean()) for method, v in values.items()})
            row: dict[str, Any] = {"problem": f"{name}, n={cells[0]['rows_used']:,}, d={cells[0]['d']}", "score": score}
            row |= {"splits": splits, **means[-1]}
            rivals = {method: v for method, v in values.items() if method not in (DEFAULT.name, AUTO)}
            if rivals and DEFAULT.name in values and splits > 1:
                best = min(rivals, key=lambda method: float(rivals[method].mean()))
                difference = values[DEFAULT.name] - rivals[best]
                mean, error = float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(splits))
                row |= {"difference": mean, "standard_error": error, "best_other": best}
                row["beside"] = f"{mean:+.4f} ± {error:.4f} ({best})"
                worse, better = worse + (mean > error), better + (mean < -error)
            table.append(row)
        methods = list(dict.fromkeys(method for one in means for method in one))
        means = [one for one in means if len(one) == len(methods)]  # tables that every method has
        ranks = [rankdata([one[method] for method in methods]) for one in means]
        for title, numbers in (
            ("mean", [numpy.mean([one[method] for one in means]) for method in methods]),
            ("mean rank", numpy.mean(ranks, axis=0) if means else []),
        ):
            told = f"{better} better, {worse} worse by a standard error"
            row = {"problem": f"{title} of {len(means)} tables", "score": score, "beside": told}
            table.append(row | {method: float(number) for method, number in zip(methods, numbers, strict=True)})
    return table


def _paired(cells: Sequence[Entry], score: str) -> tuple[dict[str, Array], int]:
    """A score by method, (splits,), on the splits that every method of these cells has; how many these are."""
    by_split: dict[str, dict[int, float]] = {}
    for e in cells:
        by_split.setdefault(e["method"], {}).update(enumerate(e[score], e.get("first", 0)))
    splits = sorted(set.intersection(*map(set, by_split.values()))) if by_split else []
    return {method: numpy.array([of[k] for k in splits]) for method, of in by_split.items()}, len(splits)


def line(entry: Entry) -> str:
    nll, rmse, seconds = (float(numpy.mean(entry[key])) for key in (*SCORES, "fit_seconds"))
    return f"negative log density {nll:.4f}, RMSE {rmse:.4f}, {seconds:.1f} s a fit"


def claim(methods: Sequence[str], name: str, title: str) -> Claim:
    return Claim(name, "claim_small_tables", title, columns(methods), rows, line)


KERNELS = claim((*OURS, AUTO), "small_tables", "Covariance functions on small tables")
BESIDE = claim((DEFAULT.name, AUTO, *PEERS), "small_tables_peers", "Small tables beside other libraries")


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--peers", action="store_true", help="beside other libraries; a record of its own")
        parser.add_argument("--splits", type=int, metavar="N", help="only cells that begin before split N")

    beside = "--peers" in (sys.argv[1:] if argv is None else argv)
    claimed = BESIDE if beside else KERNELS
    options = options_of(__doc__ or "", argv, claimed.name, more)
    methods = [column["key"] for column in claimed.columns[3:-1]]
    tables, splits = TABLES, PEER_SPLITS if beside else SPLITS
    if options.toy:
        tables, splits = ("drawn",), 2
        methods = [method for method in methods if method not in PEERS]
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    cells = [
        Cell(
            f"{table}/{method}" + f"/{first}" * (first > 0),
            {"table": table, "method": method, "first": first, "splits": count},
            4.0 * count,
        )
        for table in tables
        for method in methods
        for count in [min(splits, AT_ONCE.get(method, 5))]
        for first in range(0, min(splits, options.splits or splits), count)
    ]
    return main_of(claimed, cells, options)


if __name__ == "__main__":
    sys.exit(main())
