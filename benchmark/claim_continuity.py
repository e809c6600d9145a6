"""No answer jumps: 40 sizes from 50 to 3,000 rows, and every switch of the active plan with its neighbours.

    python benchmark/claim_continuity.py --cells Matern-3/2 --picture continuity.png

Three covariance functions, three noise variances, d = 3: a cell is one of each. Switches are found by bisection on the
plans of conditioning and of a prediction and on the functions that choose the way of small problems, between each two
of the 40 sizes. At every size mean and variance at 4,000 points, and the log marginal likelihood by posterior and by
prior, are compared with a float64 Cholesky in plain NumPy (problems.py). Each must be within its tolerance:

    mean         1e-3 standard deviations of an observation's noise
    variance     1 % of itself
    likelihood   10 n eps (1 + n / noise variance) nats, the rounding of a factor of such a matrix, and four standard
                 errors where it is estimated
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from cells import Cell, Claim, Entry, Speaker, main_of, options_of, stored
from problems import Reference

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.exact.small import SmallModel
from flashgp.operators.multiplication import MIN_PLANNED_PAIRS

D, LENGTHSCALE = 3, 0.3 * 3**0.5
LEAST, MOST, SIZES = 50, 3000, 40
POINTS = 4000  # test points: enough that predictions of the larger sizes follow a plan
MEAN_TOLERANCE, VARIANCE_TOLERANCE, ROUNDINGS = 1e-3, 1e-2, 10.0
ANSWERS = ("mean", "variance", "likelihood")
KERNELS: dict[str, Callable[[], fgp.kernels.Kernel]] = {
    "squared exponential": lambda: fgp.kernels.SquaredExponential(LENGTHSCALE),
    "Matern-1/2": lambda: fgp.kernels.Matern(nu=0.5, lengthscale=LENGTHSCALE),
    "Matern-3/2": lambda: fgp.kernels.Matern(nu=1.5, lengthscale=LENGTHSCALE),
}
NOISES = (1e-1, 1e-3, 1e-5)
COLUMNS = [
    {"key": "kernel", "title": "covariance function"},
    {"key": "noise", "title": "noise variance"},
    {"key": "sizes", "title": "sizes", "format": "integer"},
    {"key": "switches", "title": "switches at"},
    *(
        {"key": f"{name}_{what}", "title": title, "format": form}
        for name, unit in (("mean", "standard deviations"), ("variance", "of itself"), ("likelihood", "nats"))
        for what, title, form in (("error", f"{name}, {unit}", "error"), ("at", "at n", "integer"))
    ),
    {"key": "total_seconds", "title": "all sizes"},
    {"key": "peak_bytes", "title": "peak of one"},
    {"key": "met", "title": "within tolerance"},
]


def run_cell(cell: Cell) -> Entry:
    """Errors at every size."""
    kernel, noise, most = cell["kernel"], cell["noise"], cell["most"]
    x, y, x_test = _data(most, cell["points"], noise)
    gp = fgp.GP(KERNELS[kernel](), fgp.means.Zero(), fgp.likelihoods.Gaussian(noise))
    grid = sorted({round(n) for n in numpy.geomspace(LEAST, most, cell["sizes"])})
    found = switches(lambda n: active(gp, x, y, n, len(x_test)), grid)
    sizes = sorted({*grid, *(n for s in found for n in (s - 1, s, s + 1) if 1 < n <= most)})
    speaker, points = Speaker(cell.key), []
    for n in sizes:
        speaker(f"n = {n:,} of up to {most:,}")
        points.append({"n": n, **_at(gp, kernel, noise, x[:n], y[:n], x_test)})
    return {"switches": found, "routes": list(dict.fromkeys(point["route"] for point in points)), "points": points}


def _data(n: int, n_test: int, noise: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A smooth function in the unit cube, with noise; the first rows of a larger table are those of a smaller one."""
    rows, tests, errors = (numpy.random.default_rng([7, k]) for k in range(3))
    x, x_test = rows.random((n, D)), tests.random((n_test, D))
    y = numpy.sin(3.0 * x[:, 0] + 2.0 * x[:, 1]) + 0.5 * numpy.cos(4.0 * x[:, 2])
    y += noise**0.5 * errors.standard_normal(n)
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x_test)


def active(gp: fgp.GP, x: torch.Tensor, y: torch.Tensor, n: int, n_test: int) -> tuple[Any, ...]:
    """Everything that is chosen by the number of rows: how conditioning, training, predicting and small ones run."""
    plan = fgp.plan(gp, n=n, d=D)
    prediction = None
    if n * n_test >= MIN_PLANNED_PAIRS:  # as `Posterior.predict` has it
        one = fgp.plan(gp, n=n, d=D, n_test=n_test)
        prediction = (one.route, one.backend, one.dtype)
    small = SmallModel.of(gp, x[:n], y[:n]) is not None
    return (
        plan.route,
        plan.solver,
        plan.backend,
        plan.dtype,
        plan.training,
        prediction,
        small,
    )


def switches(signature: Callable[[int], Any], grid: Sequence[int]) -> list[int]:
    """The sizes at which a signature differs from that of one row less: by bisection between neighbours of the grid."""
    found: list[int] = []

    def between(low: int, high: int, at_low: Any, at_high: Any) -> None:
        if at_low == at_high:
            return
        if high == low + 1:
            found.append(high)
            return
        middle = (low + high) // 2
        at_middle = signature(middle)
        between(low, middle, at_low, at_middle)
        between(middle, high, at_middle, at_high)

    values = [signature(n) for n in grid]
    for low, high, at_low, at_high in zip(grid, grid[1:], values, values[1:], strict=False):
        between(low, high, at_low, at_high)
    return found


def _at(
    gp: fgp.GP, kernel: str, noise: float, x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor
) -> dict[str, Any]:
    """Errors and tolerances of one size: mean in standard deviations, variance relative, likelihood in nats."""
    began = time.perf_counter()
    with PeakMeter() as meter:
        post = gp.condition(x, y)
        prediction = post.predict(x_test)
        mean, variance = prediction.mean.numpy(), prediction.variance.numpy()
        likelihoods = [float(post.log_marginal_likelihood()), float(gp.log_marginal_likelihood(x, y).detach())]
    seconds = time.perf_counter() - began
    truth, points = Reference(kernel, x.numpy() / LENGTHSCALE, y.numpy(), noise), x_test.numpy() / LENGTHSCALE
    rounding = ROUNDINGS * len(x) * numpy.finfo(float).eps * (1.0 + len(x) / noise)
    return {
        "route": f"{post.report.route}, {post.report.backend}",
        "mean": float(numpy.abs(mean - truth.mean(points)).max()) / noise**0.5,
        "variance": float(numpy.abs(variance / truth.variance(points) - 1.0).max()),
        "likelihood": max(abs(one - truth.log_marginal_likelihood) for one in likelihoods),
        "tolerances": {
            "mean": MEAN_TOLERANCE,
            "variance": VARIANCE_TOLERANCE,
            "likelihood": rounding + 4.0 * (post.report.standard_error or 0.0),
        },
        "seconds": seconds,
        "peak_bytes": meter.peak_bytes,
    }


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """For each covariance function and noise the worst of every answer, by its share of the tolerance, and where."""
    found = []
    for entry in entries.values():
        row = {"kernel": entry["kernel"], "noise": f"{entry['noise']:g}"}
        if entry["status"] != "done":
            found.append({**row, "met": str(entry["error"]).splitlines()[0][:80]})
            continue
        points, beyond = entry["points"], []
        row |= {"sizes": len(points), "switches": ", ".join(map(str, entry["switches"])) or "none"}
        for name in ANSWERS:
            worst = max(points, key=lambda point, name=name: point[name] / point["tolerances"][name])
            row |= {f"{name}_error": worst[name], f"{name}_at": worst["n"]}
            beyond += [name] if worst[name] > worst["tolerances"][name] else []
        row["total_seconds"] = sum(point["seconds"] for point in points)
        row["peak_bytes"] = max(point["peak_bytes"] for point in points)
        found.append({**row, "met": f"not {', '.join(beyond)}" if beyond else "yes"})
    return found


def line(entry: Entry) -> str:
    (row,) = rows({"": entry})
    worst = ", ".join(f"{name} {row[f'{name}_error']:.1e} (n={row[f'{name}_at']})" for name in ANSWERS)
    taken = readable_seconds(row["total_seconds"])
    return f"{row['sizes']} sizes, switches at {row['switches']}: {worst}; {row['met']}, {taken}"


def picture(entries: Mapping[str, Entry], path: Path) -> None:
    """Every error over its tolerance, by the number of rows; a line is a cell, switches are dotted."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(ANSWERS), 1, sharex=True, figsize=(9, 9), layout="constrained")
    for entry in (entry for entry in entries.values() if entry["status"] == "done"):
        sizes = [point["n"] for point in entry["points"]]
        for panel, name in zip(panels, ANSWERS, strict=True):
            shares = [max(point[name] / point["tolerances"][name], 1e-16) for point in entry["points"]]
            panel.plot(sizes, shares, marker=".", linewidth=1, label=f"{entry['kernel']}, noise {entry['noise']:g}")
            for switch in entry["switches"]:
                panel.axvline(switch, linestyle=":", linewidth=0.5, color="grey")
            panel.axhline(1.0, color="black", linewidth=0.8)
            panel.set(xscale="log", yscale="log", ylabel=f"error of the {name} / tolerance")
    panels[0].legend(fontsize="x-small", ncols=3)
    panels[-1].set_xlabel("rows")
    figure.savefig(path)
    pyplot.close(figure)


CLAIM = Claim("continuity", "claim_continuity", "Continuity from 50 to 3,000 rows", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the record's errors (flashgp[plot])")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    fixed = {"sizes": SIZES, "most": MOST, "points": POINTS}
    if options.toy:
        fixed = {"sizes": 3, "most": 70, "points": 30}
    pairs = [(kernel, noise) for kernel in KERNELS for noise in NOISES]
    cells = [
        Cell(f"{kernel}/noise={noise:g}", {"kernel": kernel, "noise": noise, **fixed}, 90.0)
        for kernel, noise in (pairs[-1:] if options.toy else pairs)
    ]
    code = main_of(CLAIM, cells, options)
    if options.picture is not None and options.record.exists():
        picture(stored(options.record), options.picture)
    return code


if __name__ == "__main__":
    sys.exit(main())
