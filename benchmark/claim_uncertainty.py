"""Posteriors over hyperparameters on small and wide tables, beside point estimates and BoTorch's fully Bayesian model.

    python benchmark/claim_uncertainty.py
    python benchmark/claim_uncertainty.py --cells botorch

A cell is a table, a method and some of its splits. Methods of ours are `fgp.fit(..., uncertainty=NAME)` of the kernel
that `GPRegressor` takes by default, columns and target standardised; "none" is the plain fit. "botorch" is
SaasFullyBayesianSingleTaskGP by NUTS, 256 transitions of which the first half are warm-up, every eighth kept, inputs in
the unit cube. "weak" is the plain fit with weak priors, on tables where rows are few for the columns, of which it
expects few to matter by default. Log density of new observations is a row's, in standard deviations of the training
targets; coverage is the share of them that lies within their 95 % intervals; seconds are those of one core's clock, of
the fit alone.

"Beside botorch" is the mean of the paired difference and one standard error of it over splits.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from claim_small_tables import table_of
from common import SHARED_DATA, peer
from scipy.special import ndtr

import flashgp as fgp
from flashgp.foundations.errors import BackendUnavailableError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import ColumnSettings, SearchSettings
from flashgp.kernels.default import default_for
from flashgp.units import ColumnScaling

Array = Any  # float64

ROWS = {"yacht": 120, "energy": 120, "concrete": 150, "housing": 150, "diabetes": 200}
MADE = {"wide": (200, 100), "friedman": (100, 50), "hartmann": (80, 60), "noise": (400, 200), "drawn": (30, 2)}
TABLES = (*ROWS, "wide", "friedman", "hartmann")
PART = {"elevators": 180, "pol": 300}  # rows of tables on which priors alone are compared
SPARSE = ("housing", "wide", "friedman", "hartmann", *PART, "noise")  # 12 columns or more, fewer than 12 rows for each
METHODS_OF_DRAWS = ("laplace", "nuts", "auto")
OURS = ("none", *METHODS_OF_DRAWS)
WEAK = FitSettings(search=SearchSettings(columns=ColumnSettings(sparse_rows=0.0)))
SPLITS, TEST_ROWS = 5, 300
WARM_UP, SAMPLES, THINNING = 128, 128, 8
TARGET_COVERAGE = 0.95


def _hartmann(x: Array) -> Array:
    """Hartmann's function of six columns in the unit cube."""
    weight = numpy.array([1.0, 1.2, 3.0, 3.2])
    a = numpy.array([[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8],
                     [17, 8, 0.05, 10, 0.1, 14]])  # fmt: skip
    p = 1e-4 * numpy.array([[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
                            [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381]])  # fmt: skip
    return (weight * numpy.exp(-(a * (x[:, None, :6] - p) ** 2).sum(-1))).sum(-1)


def split_of(name: str, number: int) -> tuple[Array, Array, Array, Array]:
    """x, y, x_test, y_test: a random part of a table, or rows drawn anew."""
    generator = numpy.random.default_rng(100 + number)
    if name in ROWS or name in PART:
        x, y = table_of(name)
        order, n = generator.permutation(len(y)), {**ROWS, **PART}[name]
    else:
        n, d = MADE[name]
        order, many = numpy.arange(n + TEST_ROWS), n + TEST_ROWS
        noise = generator.standard_normal(many)
        if name == "noise":
            x, y = generator.standard_normal((many, d)), noise
        elif name in ("wide", "drawn"):
            x = generator.standard_normal((many, d))
            y = 2.0 * x[:, 3 % d] + numpy.sin(3.0 * x[:, 10 % d]) + 0.1 * noise
        else:
            x = generator.random((many, d))
            if name == "friedman":
                y = 10 * numpy.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
                y = y + noise
            else:
                y = _hartmann(x) + 0.05 * noise
    train, test = order[:n], order[n : n + TEST_ROWS]
    if name in PART:  # columns that do not vary in few rows, and may in others
        x = x[:, numpy.ptp(x[train], axis=0) > 1e-9 * numpy.abs(x[train]).max(axis=0)]
    return x[train], y[train], x[test], y[test]


class Found(NamedTuple):
    """Log density and distribution function of each new observation, in units of the training targets' deviation; mean;
    seconds of the fit; what else the record keeps."""

    log_density: Array
    below: Array
    mean: Array
    seconds: float
    told: str = ""


def ours(method: str, x: Array, y: Array, x_test: Array, y_test: Array) -> Found:
    drawn = method if method in METHODS_OF_DRAWS else None
    gp = fgp.GP(default_for(None, *x.shape, drawn).build(x.shape[1]))
    rows, targets, points, wanted = map(torch.from_numpy, (x, y, x_test, y_test))
    options: dict[str, Any] = {"none": {}, "weak": {"settings": WEAK}}.get(method, {"uncertainty": method})
    began = time.process_time()
    fit = fgp.fit(gp, rows, targets, **options)
    seconds = time.process_time() - began
    predicted = fit.posterior.predict(points)
    below = predicted.distribution.cdf(wanted)
    told = " ".join(map(str, of_kind(fit.report.events, EventKind.HYPERPARAMETERS_SAMPLED)))
    return Found(predicted.log_prob(wanted).numpy(), below.numpy(), predicted.mean.numpy(), seconds, told)


def botorch(x: Array, y: Array, x_test: Array, y_test: Array) -> Found:
    from botorch.fit import fit_fully_bayesian_model_nuts
    from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP

    low, width = x.min(axis=0), numpy.ptp(x, axis=0)
    width[width == 0.0] = 1.0
    x, x_test = (torch.from_numpy((part - low) / width) for part in (x, x_test))
    torch.manual_seed(0)
    import pyro

    pyro.set_rng_seed(0)
    began = time.process_time()
    model = SaasFullyBayesianSingleTaskGP(x, torch.from_numpy(y[:, None]))
    fit_fully_bayesian_model_nuts(
        model, warmup_steps=WARM_UP, num_samples=SAMPLES, thinning=THINNING, disable_progbar=True
    )
    seconds = time.process_time() - began
    with torch.no_grad():
        predicted = model.posterior(x_test, observation_noise=True)
    mean, variance = (part[..., 0].numpy(force=True) for part in (predicted.mean, predicted.variance))  # (draws, n)
    z = (y_test - mean) / numpy.sqrt(variance)
    log_each = -0.5 * (z * z + numpy.log(2.0 * math.pi * variance))
    log_density = numpy.logaddexp.reduce(log_each, axis=0) - math.log(len(mean))
    return Found(log_density, ndtr(z).mean(axis=0), mean.mean(axis=0), seconds)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Scores of each split."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    method = cell["method"]
    if method == "botorch" and (peer("botorch") is None or peer("pyro") is None):
        raise BackendUnavailableError("botorch or pyro-ppl is not installed; pip install 'flashgp[peers]' pyro-ppl")
    entry: dict[str, Any] = {"log_density": [], "coverage": [], "rmse": [], "fit_seconds": [], "told": []}
    for number in range(cell["first"], cell["first"] + cell["splits"]):
        x, y, x_test, y_test = split_of(cell["table"], number)
        units, target = ColumnScaling.of(x), ColumnScaling.of(y[:, None])
        x, x_test = units.apply(x), units.apply(x_test)
        y, y_test = (target.apply(part[:, None])[:, 0] for part in (y, y_test))
        found = botorch(x, y, x_test, y_test) if method == "botorch" else ours(method, x, y, x_test, y_test)
        tail = 0.5 * (1.0 - TARGET_COVERAGE)
        entry["log_density"].append(float(found.log_density.mean()))
        entry["coverage"].append(float(((found.below > tail) & (found.below < 1.0 - tail)).mean()))
        entry["rmse"].append(float(numpy.sqrt(numpy.mean(numpy.square(found.mean - y_test)))))
        entry["fit_seconds"].append(found.seconds)
        entry["told"].append(found.told)
    return entry | {"rows_used": len(y), "d": x.shape[1]}


# -- the table --------------------------------------------------------------------------------------------------------
SCORES = (("log_density", "log density"), ("coverage", "coverage of 95 %"), ("fit_seconds", "seconds"))
METHODS = ("weak", *OURS, "botorch")


def columns() -> list[dict[str, str]]:
    first = [{"key": "problem", "title": "table"}, {"key": "score", "title": "score"}]
    first.append({"key": "splits", "title": "splits", "format": "integer"})
    each = [{"key": name, "title": name, "format": "fixed4"} for name in METHODS]
    beside = {"sparse": "none beside weak", "beside": "auto beside botorch"}
    return [*first, *each, *({"key": key, "title": title} for key, title in beside.items())]


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """By score and table, means over the splits that each method has."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    table: list[dict[str, Any]] = []
    for score, title in SCORES:
        for name in (*TABLES, *PART, "noise", "drawn"):
            values: dict[str, dict[int, float]] = {}
            cells = [entry for entry in done if entry["table"] == name]
            for entry in cells:
                values.setdefault(entry["method"], {}).update(enumerate(entry[score], entry["first"]))
            if not values:
                continue
            row: dict[str, Any] = {"problem": f"{name}, n={cells[0]['rows_used']:,}, d={cells[0]['d']}", "score": title}
            row["splits"] = min(map(len, values.values()))
            row |= {method: float(numpy.mean(list(known.values()))) for method, known in values.items()}
            if score == "log_density" and "weak" in values and "none" in values:
                gains = numpy.array([values["none"][k] - value for k, value in values["weak"].items()])
                row["sparse"] = f"{gains.mean():+.4f} ± {gains.std(ddof=1) / math.sqrt(len(gains)):.4f}"
            both = sorted(values.get("auto", {}).keys() & values.get("botorch", {}).keys())
            if both and score == "log_density" and len(both) > 1:
                gains = numpy.array([values["auto"][k] - values["botorch"][k] for k in both])
                mean, error = float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(len(both)))
                row |= {"difference": mean, "standard_error": error, "beside": f"{mean:+.4f} ± {error:.4f}"}
            elif both and score == "fit_seconds":
                ratio = sum(values["botorch"][k] for k in both) / sum(values["auto"][k] for k in both)
                row |= {"ratio": ratio, "beside": f"{ratio:.0f} times sooner"}
            table.append(row)
    return table


def line(entry: Entry) -> str:
    density, coverage, seconds = (float(numpy.mean(entry[key])) for key, _ in SCORES)
    return f"log density {density:.4f}, {coverage:.1%} within 95 % intervals, {seconds:.1f} s a fit"


CLAIM = Claim(
    "uncertainty", "claim_uncertainty", "Posteriors over hyperparameters on small and wide tables", columns(), rows,
    line,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--splits", type=int, metavar="N", help="only cells that begin before split N")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    tables, methods, splits = TABLES, METHODS, SPLITS
    if options.toy:
        tables, methods, splits = ("drawn",), OURS, 2
    elif not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0

    def at_once(method: str) -> int:
        return 1 if method in ("botorch", "nuts") else splits

    wanted = [(table, method) for method in methods if method != "weak" for table in tables]
    if not options.toy:
        wanted += [(table, method) for method in ("weak", "none") for table in SPARSE if (table, method) not in wanted]
    cells = [
        Cell(
            f"{table}/{method}/{first}",
            {"table": table, "method": method, "first": first, "splits": at_once(method)},
            {"botorch": 30.0, "nuts": 20.0}.get(method, 1.0) * at_once(method),
        )
        for table, method in wanted
        for first in range(0, min(splits, options.splits or splits), at_once(method))
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
