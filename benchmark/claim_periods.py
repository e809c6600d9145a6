"""Periods that a default fit finds: sinusoids alone, and in sums and products with trends and other functions.

    python benchmark/claim_periods.py --against ../before/src   # beside another checkout, in turns

96 fits by `fgp.fit` with all at its defaults, every period given as 1: 48 of a sinusoid by a periodic covariance
(40, 60 and 120 rows on [0, 10], on a grid or at random, periods .5, 1.7, 3 and 6, noise .05 and .2), and 48 of
sinusoids in products with a slow function, beside one, beside a trend, beside another sinusoid, or by a cosine. A
period is found if it is within 2 % of the true one. Where it is not, a fit that is given the true period says whether
the data have another optimum that is as likely: on a grid of 40 rows .5 is beyond the Nyquist frequency. With
`--against`, every cell runs in processes of both checkouts in turns, and the smallest seconds of each fit count.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of
from torch import Tensor

import flashgp as fgp
from flashgp.kernels import RBF, Cosine, Kernel, Linear, Periodic

PERIODS = {0.5: 1.3, 1.7: 0.8, 3.0: 1.1, 6.0: 2.1}  # and the second one of two
NEAR, ALIKE = 0.02, 0.05  # share of a period; nats of the log joint
GOALS = {"sinusoid": 46, "composed": 44}
MOST = 1.3  # times the seconds before
TURNS = 2
Signal = Callable[[Tensor, float], Tensor]


def wave(x: Tensor, period: float) -> Tensor:
    return torch.sin(2 * math.pi * x / period)


MODELS: dict[str, tuple[Callable[[float, float], Kernel], Signal]] = {
    "Periodic": (lambda p, q: 1.0 * Periodic(p), wave),
    "Periodic * RBF": (
        lambda p, q: 1.0 * Periodic(p) * RBF(3.0), lambda x, p: wave(x, p) * (1 + 0.3 * torch.sin(x / 3))
    ),
    "Periodic + RBF": (
        lambda p, q: 1.0 * Periodic(p) + 1.0 * RBF(3.0), lambda x, p: wave(x, p) + 1.5 * wave(x + 2, 14.0) + 0.02 * x**2
    ),
    "Periodic + Linear": (lambda p, q: 1.0 * Periodic(p) + Linear(), lambda x, p: wave(x, p) + 0.5 * x),
    "Cosine": (lambda p, q: 1.0 * Cosine(1 / p), wave),
    "Periodic + Periodic": (
        lambda p, q: 1.0 * Periodic(p) + 1.0 * Periodic(q), lambda x, p: wave(x, p) + 0.7 * wave(x, PERIODS[p])
    ),
    "Periodic * RBF + Linear + RBF": (
        lambda p, q: 1.0 * Periodic(p) * RBF(3.0) + Linear() + 1.0 * RBF(3.0),
        lambda x, p: wave(x, p) + 0.5 * x + torch.sin(x / 2),
    ),
}  # fmt: skip
COLUMNS = [
    {"key": "model", "title": "covariance"},
    {"key": "found", "title": "within 2 %", "format": "text"},
    {"key": "alike", "title": "or as likely as from the true period", "format": "text"},
    {"key": "before_found", "title": "before", "format": "text"},
    {"key": "seconds", "title": "seconds of all"},
    {"key": "before_seconds", "title": "before"},
    {"key": "ratio", "title": "after / before", "format": "fixed2"},
    {"key": "reached", "title": "reached"},
]


def problems(model: str, rows: int, toy: bool = False) -> list[tuple[float, float, bool, int]]:
    """(period, noise, on a grid, seed) of the fits of a cell."""
    both = [(p, s, grid) for p in PERIODS for s in (0.05, 0.2) for grid in (True, False)]
    if model != "Periodic":  # every period once, other noises and places for other numbers of rows
        both = [both[4 * k + (k + rows // 30) % 4] for k in range(len(PERIODS))]
    seed = 1000 * list(MODELS).index(model) + rows
    return [(*one, seed + i) for i, one in enumerate(both[:1] if toy else both)]


def data(model: str, rows: int, period: float, noise: float, grid: bool, seed: int) -> tuple[Tensor, Tensor]:
    generator, f64 = torch.Generator().manual_seed(seed), torch.float64
    x = torch.linspace(0, 10, rows, dtype=f64) if grid else 10 * torch.rand(rows, generator=generator, dtype=f64)
    return x[:, None], MODELS[model][1](x, period) + noise * torch.randn(rows, generator=generator, dtype=f64)


def fitted(model: str, x: Tensor, y: Tensor, given: tuple[float, float]) -> tuple[list[float], float, float]:
    """(periods, log joint, seconds) of a default fit that is given two periods."""
    began = time.perf_counter()
    fit = fgp.fit(fgp.GP(MODELS[model][0](*given)), x, y, progress=False)
    seconds = time.perf_counter() - began
    found = []
    for leaf in fit.gp.kernel.leaves():
        if isinstance(leaf, Periodic):
            found.append(leaf.period.value.item())
        elif isinstance(leaf, Cosine):
            found.append(1.0 / abs(leaf.frequency.value.item()))
    return found, fit.posterior.log_marginal_likelihood().item() + (fit.log_prior or 0.0), seconds


def run_fits(model: str, rows: int, toy: bool = False) -> list[dict[str, Any]]:
    """What every fit of a cell found, in seconds, after one that warms up."""
    fitted(model, *data(model, rows, 1.7, 0.2, False, 0), (1.0, 1.0))
    found = []
    for period, noise, grid, seed in problems(model, rows, toy):
        x, y = data(model, rows, period, noise, grid, seed)
        wanted = [period, PERIODS[period]] if model == "Periodic + Periodic" else [period]
        periods, joint, seconds = fitted(model, x, y, (1.0, 1.0))
        error = max(min(abs(one / true - 1) for one in periods) for true in wanted)
        entry = {"period": period, "noise": noise, "grid": grid, "periods": periods, "error": error, "seconds": seconds}
        if error > NEAR:
            entry["behind"] = fitted(model, x, y, (period, PERIODS[period]))[1] - joint
        found.append(entry)
    return found


def run_cell(cell: Cell) -> dict[str, Any]:
    model, rows = cell["model"], cell["rows"]
    if cell["toy"]:
        return {"fits": run_fits(model, rows, toy=True)}
    sources = {"fits": Path(fgp.__file__).parents[1]}
    if cell["against"] is not None:
        sources["before"] = cell["against"]
    best: dict[str, Any] = {}
    for turn in range(TURNS):
        for name in sorted(sources, reverse=bool(turn % 2)):
            command = [sys.executable, __file__, "--fits", model, "--rows", str(rows)]
            environment = {**os.environ, "PYTHONPATH": str(sources[name])}
            said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            fits = json.loads(said.splitlines()[-1])
            for known, fit in zip(best.setdefault(name, fits), fits, strict=True):
                known["seconds"] = min(known["seconds"], fit["seconds"])
    return best


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row of each model and number of rows that is done, and the sums of both kinds."""
    table, sums = [], dict[str, list[Entry]]()
    for entry in (one for one in entries.values() if one["status"] == "done"):
        sums.setdefault("sinusoid" if entry["model"] == "Periodic" else "composed", []).append(entry)
        table.append(_row(f"{entry['model']}, {entry['rows']} rows", [entry]))
    for kind, parts in sums.items():
        row = _row(f"all: {kind}, at least {GOALS[kind]} to be found", parts)
        alike = sum(_alike(fit) for entry in parts for fit in entry["fits"])
        table.append(row | {"reached": alike >= GOALS[kind] and (row["ratio"] or 0.0) <= MOST})
    return table


def _alike(fit: Mapping[str, Any]) -> bool:
    return fit["error"] <= NEAR or fit.get("behind", math.inf) <= ALIKE


def _row(name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    fits = [fit for entry in entries for fit in entry["fits"]]
    before = [fit for entry in entries for fit in entry.get("before", [])]
    near, of = (lambda some: sum(fit["error"] <= NEAR for fit in some)), len(fits)
    seconds, earlier = (sum(fit["seconds"] for fit in some) for some in (fits, before))
    return {
        "model": name, "found": f"{near(fits)} of {of}", "alike": f"{sum(map(_alike, fits))} of {of}",
        "seconds": seconds, "before_found": f"{near(before)} of {of}" if before else None,
        "before_seconds": earlier if before else None, "ratio": seconds / earlier if before else None,
    }  # fmt: skip


def line(entry: Entry) -> str:
    row = _row(entry["model"], [entry])
    return f"{row['found']} within 2 %, {row['alike']} as likely, {row['seconds']:.1f} s; before {row['before_found']}"


CLAIM = Claim("periods", "claim_periods", "Periods that a default fit finds", COLUMNS, rows, line)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", type=Path, metavar="SRC", help="src folder of another checkout")
    parser.add_argument("--fits", choices=MODELS, help="print the fits of one cell, and nothing else")
    parser.add_argument("--rows", type=int, default=60, help="of --fits")


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name, _more)
    if options.fits:
        print(json.dumps(run_fits(options.fits, options.rows)))
        return 0
    against = None if options.against is None else options.against.resolve()
    sizes = {model: (40, 60, 120) if model == "Periodic" else (60, 120) for model in MODELS}
    if options.toy:
        sizes = {"Periodic": (20,)}
    cells = [
        Cell(
            f"{model}/n={n}", {"model": model, "rows": n}, 10.0 + 0.1 * n,
            {"toy": options.toy, "against": against},
        )
        for model, counts in sizes.items()
        for n in counts
    ]  # fmt: skip
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
