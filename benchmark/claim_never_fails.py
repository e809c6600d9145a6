"""Fits that must not fail: 600 drawn ones, of twelve tables and made rows, every likelihood and engine, with damages.

    python benchmark/claim_never_fails.py
    python benchmark/claim_never_fails.py --cells digits made

A cell is a table and some seeds, each a fit of 20 to 250 rows by `fgp.fit` at its defaults. A seed draws a likelihood
that the target allows (numbers become counts, shares or levels where it asks for them), an engine, and damages: columns
times 1e-12 to 1e12, one that does not vary, copies of rows that agree or contradict each other, labels that a column
separates, one class or value alone, row weights. Counted are refusals (typed errors), other errors and answers with
NaN. The log density of 100 rows that are held out is compared with that of the constant predictor: the density of the
likelihood's family with the moments of the training targets. "Behind" are fits behind it by more than 0.02 and two
standard errors of the paired difference. Not scored are damages that make the training targets mislead: one class or
value, contradicting copies, labels that another column separates, and copies or weights of numbers, which deny noise.
"""

import gzip
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import SHARED_DATA
from scipy import stats

import flashgp as fgp
from flashgp.foundations.errors import FlashGPError

Array = Any  # float64
F64 = torch.float64

LABELS = ("banana", "ionosphere", "sonar", "heart", "australian", "breast")
TABLES = (*LABELS, "digits", "cultivars", "bike_counts", "housing", "yacht", "concrete", "made")
FITS = {"made": 120}  # of a table, else 40: 600 in all
AT_ONCE = 40  # seeds of a cell
SIZES, HELD_OUT, TRIALS, LEVELS = (20, 30, 60, 100, 150, 250), 100, 20, 4
DAMAGES = ("scales", "constant column", "copies", "contradicting copies", "separable", "one value", "weights")
ENGINES = ("exact", "full_scale", "sparse")
LYING = {"contradicting copies", "separable", "one value"}  # training targets that say nothing of those held out
CONTINUOUS = ("gaussian", "student", "heteroscedastic", "custom", "gamma", "beta")
ENOUGH = 0.02

KINDS = {
    "labels": ("bernoulli", "logit", "categorical"),
    "classes": ("categorical",),
    "counts": ("poisson", "negative binomial"),
    "numbers": (
        "gaussian", "student", "heteroscedastic", "custom", "gamma", "beta", "ordinal", "binomial", "poisson",
        "negative binomial", "bernoulli", "logit", "categorical",
    ),
}  # fmt: skip


# -- data -------------------------------------------------------------------------------------------------------------
def table_of(name: str, generator: numpy.random.Generator) -> tuple[Array, Array, str]:
    """Rows (n, d), targets (n,) and what these are, a key of KINDS."""
    if name in ("digits", "cultivars"):
        from sklearn.datasets import load_digits, load_wine

        return *(load_digits if name == "digits" else load_wine)(return_X_y=True), "classes"
    if name == "made":
        d, n = int(generator.integers(1, 7)), max(SIZES) + HELD_OUT
        x = generator.standard_normal((n, d))
        along, size = x @ generator.standard_normal(d), generator.choice([0.0, 0.3, 1.0, 3.0])
        smooth = [numpy.sin(along), numpy.sin(5.0 * along), along]
        return x, size * smooth[generator.integers(3)] + 0.3 * generator.standard_normal(n), "numbers"
    folder = SHARED_DATA if name in ("housing", "yacht", "concrete") else SHARED_DATA.parent / "nongaussian"
    if folder == SHARED_DATA:
        with gzip.open(folder / name / "data.csv.gz") as file:
            numbers = numpy.loadtxt(file, delimiter=",", ndmin=2)
        return numbers[:, :-1], numbers[:, -1], "numbers"
    with gzip.open(folder / f"{name}.csv.gz") as file:
        place = file.readline().decode().strip().split(",").index("count" if name == "bike_counts" else "label")
        numbers = numpy.loadtxt(file, delimiter=",", ndmin=2)
    x, y = numpy.delete(numbers, place, axis=1), numbers[:, place]
    return (x, y, "counts") if name == "bike_counts" else (x, (y > y.min()).astype(float), "labels")


def target_of(kind: str, of: str, y: Array, generator: numpy.random.Generator) -> Array:
    """The targets as the likelihood asks for them; numbers are counts, shares or levels then."""
    if of != "numbers":
        return y
    z = (y - y.mean()) / y.std()
    share = 1.0 / (1.0 + numpy.exp(-z))
    match kind:
        case "gamma":
            return numpy.exp(z)
        case "beta":
            return share
        case "ordinal":
            return numpy.searchsorted(numpy.quantile(z, numpy.arange(1, LEVELS) / LEVELS), z).astype(float)
        case "categorical":
            return numpy.searchsorted(numpy.quantile(z, [1 / 3, 2 / 3]), z).astype(float)
        case "bernoulli" | "logit":
            return (z > 0.0).astype(float)
        case "binomial":
            return generator.binomial(TRIALS, share).astype(float)
        case "poisson" | "negative binomial":
            return generator.poisson(numpy.exp(1.0 + numpy.clip(z, -5.0, 5.0))).astype(float)
    return z * generator.choice([1e-6, 1.0, 1e6])


def likelihood_of(kind: str, y: Array, weight: Any) -> fgp.likelihoods.Likelihood:
    of, spread = fgp.likelihoods, float(y.std()) or 1.0
    match kind:
        case "bernoulli" | "logit":
            return of.Bernoulli("probit" if kind == "bernoulli" else "logit", row_weight=weight)
        case "categorical":
            return of.Categorical(max(2, int(y.max()) + 1), row_weight=weight)
        case "ordinal":
            return of.Ordinal(LEVELS, row_weight=weight)
        case "binomial":
            return of.Binomial(TRIALS, row_weight=weight)
        case "poisson":
            return of.Poisson(row_weight=weight)
        case "negative binomial":
            return of.NegativeBinomial(row_weight=weight)
        case "gamma":
            return of.Gamma(1.0, row_weight=weight)
        case "beta":
            return of.Beta(10.0, row_weight=weight)
        case "student":
            return of.StudentT(4.0, 0.3 * spread, row_weight=weight)
        case "heteroscedastic":
            return of.HeteroscedasticGaussian(offset=math.log(0.1 * spread**2))
        case "custom":
            scale = fgp.Parameter(0.3 * spread, torch.distributions.constraints.positive)
            return of.Custom(
                lambda y, f, scale: -(1.0 + ((y - f) / scale).square()).sqrt() - scale.log() - 0.18549, scale=scale,
                mean=lambda f, scale: f, variance=lambda f, scale: 2.0 * scale.square() + 0.0 * f, row_weight=weight,
            )  # fmt: skip
    return of.Gaussian(0.1 * spread**2)


class Drawn(NamedTuple):
    """What a seed draws; the first `rows` of x and y are learnt from."""

    kind: str
    engine: str
    damages: list[str]
    x: Array
    y: Array
    rows: int
    weight: Array | None


def drawn(name: str, seed: int) -> Drawn:
    generator = numpy.random.default_rng([seed, *name.encode()])
    x, y, of = table_of(name, generator)
    n = int(min(generator.choice(SIZES), len(y) - HELD_OUT))
    chosen = generator.permutation(len(y))[: n + HELD_OUT]
    kind = str(generator.choice(KINDS[of]))
    x, y = x[chosen].copy(), target_of(kind, of, y, generator)[chosen].copy()
    damages = [damage for damage in DAMAGES if generator.random() < 0.15]
    half, weight = n // 2, None
    if "copies" in damages or "contradicting copies" in damages:
        x[:half] = x[half : 2 * half]
        y[:half] = y[half : 2 * half] if "copies" in damages else generator.permutation(y[half : 2 * half])
    if "separable" in damages and kind in ("bernoulli", "logit"):
        y[:n] = (x[:n, 0] > numpy.median(x[:n, 0])).astype(float)
    if "one value" in damages:
        y[:n] = y[0]
    if "constant column" in damages:
        x[:, generator.integers(x.shape[1])] = 3.7
    if "scales" in damages:
        x *= 10.0 ** generator.choice([-12, -6, 6, 12], size=x.shape[1])
    if "weights" in damages and kind != "heteroscedastic":
        weight = generator.choice([0.1, 1.0, 2.0, 20.0], size=n)
    return Drawn(kind, str(generator.choice(ENGINES)), damages, x, y, n, weight)


# -- fits -------------------------------------------------------------------------------------------------------------
def densities(case: Drawn) -> Array:
    """Log density of the rows that are held out. Raises: what the fit raises."""
    n = case.rows
    x, y = torch.from_numpy(case.x).to(F64), torch.from_numpy(case.y).to(F64)
    weight = None if case.weight is None or case.kind == "gaussian" else torch.from_numpy(case.weight)
    likelihood = likelihood_of(case.kind, case.y[:n] if case.kind != "categorical" else case.y, weight)
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(x.shape[1], dtype=F64))
    single = case.kind not in ("categorical", "heteroscedastic")
    gp = fgp.GP(kernel, fgp.means.Constant(), likelihood) if single else fgp.GP(kernel, likelihood=likelihood)
    fit = fgp.fit(gp, x[:n], y[:n], approximation=None if case.engine == "exact" else case.engine)
    p = fit.posterior.predict(x[n:])
    with torch.no_grad():
        density = p.log_prob(y[n:])
        unsound = [name for name in ("mean", "variance") if not bool(getattr(p, name).isfinite().all())]
    if unsound or bool(density.isnan().any()):
        raise ArithmeticError(f"{', '.join(unsound) or 'log density'} of {case.kind} by {case.engine} is not a number")
    return density.numpy(force=True)


def constant(case: Drawn) -> Array | None:
    """Log density of the same rows by the moments of the training targets; None where these have none."""
    n = case.rows
    y, held = case.y[:n], case.y[n:]
    w = numpy.ones(n) if case.weight is None or case.kind == "gaussian" else case.weight
    mean = float((w * y).sum() / w.sum())
    variance = float((w * (y - mean) ** 2).sum() / w.sum())
    if case.kind in ("bernoulli", "logit", "categorical", "ordinal"):
        levels = max(2, int(case.y.max()) + 1)
        counts = numpy.array([w[y == level].sum() + 1.0 / levels for level in range(levels)])
        return numpy.log(counts / counts.sum())[held.astype(int)]
    if case.kind == "binomial":
        return stats.binom.logpmf(held, TRIALS, (mean + 0.5 / n) / (TRIALS + 1.0 / n))
    if case.kind == "poisson" or (case.kind == "negative binomial" and variance <= mean):
        return stats.poisson.logpmf(held, mean + 0.5 / n)
    if case.kind == "negative binomial":
        size = mean**2 / (variance - mean)
        return stats.nbinom.logpmf(held, size, size / (size + mean))
    if not variance > 1e-20 * mean**2:
        return None
    if case.kind == "gamma":
        return stats.gamma.logpdf(held, mean**2 / variance, scale=variance / mean)
    if case.kind == "beta":
        both = mean * (1.0 - mean) / variance - 1.0
        return stats.beta.logpdf(held, mean * both, (1.0 - mean) * both) if both > 0.0 else None
    return stats.norm.logpdf(held, mean, math.sqrt(variance))


def lying(kind: str) -> set[str]:
    """Damages after which training targets mislead: copies and weights of numbers deny any noise."""
    return LYING | ({"copies", "weights"} if kind in CONTINUOUS else set())


def run_cell(cell: Cell) -> dict[str, Any]:
    """Of every seed: what it drew, how it ended, its difference from the constant predictor and seconds."""
    warnings.simplefilter("ignore")
    fits = []
    for seed in range(cell["first"], cell["first"] + cell["fits"]):
        case = drawn(cell["table"], seed)
        said = {"seed": seed, "kind": case.kind, "engine": case.engine, "damages": case.damages, "rows": case.rows}
        began = time.perf_counter()
        try:
            ours, plain = densities(case), constant(case)
            ended = "answered"
            if plain is not None and not set(case.damages) & lying(case.kind):
                gained = ours - plain
                said |= {"gained": float(gained.mean()), "error": float(gained.std(ddof=1) / math.sqrt(len(gained)))}
        except FlashGPError as error:
            ended, said["told"] = "refused", f"{type(error).__name__}: {error}"
        except ArithmeticError as error:
            ended, said["told"] = "not a number", str(error)
        except Exception as error:
            ended, said["told"] = "failed", f"{type(error).__name__}: {error}"
        fits.append({**said, "ended": ended, "seconds": time.perf_counter() - began})
    return {"each": fits}


# -- the table --------------------------------------------------------------------------------------------------------
COLUMNS: tuple[dict[str, str], ...] = (
    {"key": "problem", "title": "table"},
    *(
        {"key": key, "title": key, "format": "integer"}
        for key in ("fits", "answered", "refused", "failed", "not a number", "scored", "behind")
    ),
    {"key": "gained", "title": "log density beyond the constant, median", "format": "fixed2"},
    {"key": "slowest", "title": "slowest, s", "format": "fixed2"},
)


def is_behind(fit: Mapping[str, Any]) -> bool:
    return bool(fit["gained"] < -ENOUGH - 2.0 * fit["error"])


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """By table, and of all."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    names = list(dict.fromkeys(entry["table"] for entry in done))
    return [
        row_of(name, [fit for entry in done if name in (entry["table"], "all") for fit in entry["each"]])
        for name in (*names, "all")
    ]


def row_of(name: str, fits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    scored = [fit for fit in fits if "gained" in fit]
    return {
        "problem": name, "fits": len(fits), "answered": 0, "refused": 0, "failed": 0, "not a number": 0,
        **Counter(fit["ended"] for fit in fits), "scored": len(scored), "behind": sum(map(is_behind, scored)),
        "gained": float(numpy.median([fit["gained"] for fit in scored])) if scored else None,
        "slowest": max((fit["seconds"] for fit in fits), default=0.0),
    }  # fmt: skip


def line(entry: Entry) -> str:
    row = row_of(entry["table"], entry["each"])
    return ", ".join(f"{row[key]} {key}" for key in ("answered", "refused", "failed", "not a number", "behind"))


CLAIM = Claim("never_fails", "claim_never_fails", "Fits that must not fail", list(COLUMNS), rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    if not options.toy and not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return 0
    counts = {"made": 4} if options.toy else {name: FITS.get(name, 40) for name in TABLES}
    cells = [
        Cell(f"{name}/{first}", {"table": name, "first": first, "fits": min(AT_ONCE, count)}, 1.5 * min(AT_ONCE, count))
        for name, count in counts.items()
        for first in range(0, count, AT_ONCE)
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
