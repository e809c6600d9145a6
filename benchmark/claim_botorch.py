"""FlashGPModel beside BoTorch's SingleTaskGP: one iteration, the knowledge gradient, and what loops of both find.

    python benchmark/claim_botorch.py --seeds 20

Both models have BoTorch's default covariance function and priors and are fitted by fit_gpytorch_mll; acquisition
functions and their optimisation are BoTorch's in both. Cells, each in a process of its own, one thread:

    step/EI/N      fit and optimisation of qLogEI (128 samples, 10 restarts of 256) at N points of Hartmann, d 6
    step/KG/N      the same of the knowledge gradient (16 fantasies, 5 restarts of 64, 20 iterations)
    loop/NAME      from 2 d + 2 points, ITERATIONS of fit and LogEI; regret is the distance of the best value from the
                   optimum: mean over seeds, and the mean of the paired difference with one standard error
"""

import argparse
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of

from flashgp.bench.suite import peer
from flashgp.foundations.errors import BackendUnavailableError

ITERATIONS, TURNS = 20, 3
LOOPS = {"Branin": 2, "Hartmann": 6, "Ackley": 4}
ASKED = {("EI", 100): 3.0, ("EI", 500): 3.0, ("KG", 100): None, ("KG", 500): 5.0}
COLUMNS = [
    {"key": "work", "title": "work"},
    {"key": "ours", "title": "FlashGPModel", "format": "seconds"},
    {"key": "theirs", "title": "SingleTaskGP", "format": "seconds"},
    {"key": "ratio", "title": "times quicker", "format": "ratio"},
    {"key": "fit_ratio", "title": "its fit", "format": "ratio"},
    {"key": "value", "title": "value or regret", "format": "fixed4"},
    {"key": "their_value", "title": "of SingleTaskGP", "format": "fixed4"},
    {"key": "difference", "title": "paired difference", "format": "text"},
    {"key": "target", "title": "to be reached", "format": "ratio"},
    {"key": "met", "title": "reached"},
]
F64 = torch.float64


def run_cell(cell: Cell) -> Entry:
    if peer("botorch") is None:
        raise BackendUnavailableError("botorch is not installed; pip install 'flashgp[botorch]'")
    warnings.simplefilter("ignore")
    return _step(cell) if cell["work"] == "step" else _loop(cell)


def models() -> dict[str, Any]:
    from botorch.models import SingleTaskGP

    from flashgp.interop.botorch import FlashGPModel

    return {"ours": FlashGPModel, "theirs": SingleTaskGP}


def fitted(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    made = model(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(made.likelihood, made))
    return made


def problem(name: str) -> tuple[Any, torch.Tensor]:
    """A function to maximise on the unit cube, and its bounds there."""
    from botorch import test_functions
    from botorch.utils.transforms import unnormalize

    sizes = {} if name == "Branin" else {"dim": LOOPS[name]}
    function = getattr(test_functions, name)(negate=True, **sizes).to(F64)
    unit = torch.stack([torch.zeros(function.dim, dtype=F64), torch.ones(function.dim, dtype=F64)])
    return (lambda x: function(unnormalize(x, function.bounds))[:, None], function), unit


def _step(cell: Cell) -> Entry:
    from botorch.acquisition import qKnowledgeGradient, qLogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    (value, _), unit = problem("Hartmann")
    generator = torch.Generator().manual_seed(cell["n"])
    x = torch.rand(cell["n"], 6, generator=generator, dtype=F64)
    y = value(x)
    found: dict[str, list[tuple[float, float, float]]] = {"ours": [], "theirs": []}
    for model in models().values():  # what a process does once
        qKnowledgeGradient(fitted(model, x[:10], y[:10]), num_fantasies=2)(x[:3].unsqueeze(0)).backward()
    for _ in range(cell["turns"]):
        for name, model in models().items():
            began = time.process_time()
            made = fitted(model, x, y)
            middle = time.process_time()
            torch.manual_seed(0)
            if cell["acquisition"] == "EI":
                sampler = SobolQMCNormalSampler(torch.Size([128]), seed=1)
                acquisition: Any = qLogExpectedImprovement(made, y.max(), sampler=sampler)
                how: dict[str, Any] = {"num_restarts": 10, "raw_samples": 256}
            else:
                acquisition = qKnowledgeGradient(made, num_fantasies=16)
                how = {"num_restarts": 5, "raw_samples": 64, "options": {"maxiter": 20}}
            _, best = optimize_acqf(acquisition, unit, q=1, **how)
            found[name].append((middle - began, time.process_time() - middle, float(best)))
    entry: Entry = {}
    for name, rows in found.items():
        fits, searches, values = zip(*rows, strict=True)
        entry |= {f"{name}_fit": min(fits), f"{name}_search": min(searches), f"{name}_value": values[-1]}
    return entry


def _loop(cell: Cell) -> Entry:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf

    (value, function), unit = problem(cell["function"])
    regrets: dict[str, list[float]] = {"ours": [], "theirs": []}
    seconds = {"ours": 0.0, "theirs": 0.0}
    for seed in range(cell["seeds"]):
        first = torch.rand(2 * function.dim + 2, function.dim, generator=torch.Generator().manual_seed(seed), dtype=F64)
        for name, model in models().items():
            x, y, began = first, value(first), time.process_time()
            for step in range(cell["iterations"]):
                made = fitted(model, x, y)
                torch.manual_seed(1000 * seed + step)
                acquisition = LogExpectedImprovement(made, y.max())
                new, _ = optimize_acqf(acquisition, unit, q=1, num_restarts=4, raw_samples=128)
                x, y = torch.cat([x, new]), torch.cat([y, value(new)])
            seconds[name] += time.process_time() - began
            regrets[name].append(float(function.optimal_value - y.max()))
    return {"seconds": seconds, "regrets": regrets}


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = []
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    for entry in (one for one in done if one["work"] == "step"):
        ours, theirs = (entry[f"{name}_fit"] + entry[f"{name}_search"] for name in ("ours", "theirs"))
        asked = ASKED.get((entry["acquisition"], entry["n"]))
        table.append({
            "work": f"fit and {entry['acquisition']}, n = {entry['n']}", "ours": ours, "theirs": theirs,
            "ratio": theirs / ours, "fit_ratio": entry["theirs_fit"] / entry["ours_fit"], "value": entry["ours_value"],
            "their_value": entry["theirs_value"], "target": asked,
            "met": None if asked is None else theirs / ours >= asked,
        })  # fmt: skip
    for entry in (one for one in done if one["work"] == "loop"):
        ours, theirs = (torch.tensor(entry["regrets"][name]) for name in ("ours", "theirs"))
        apart = ours - theirs
        error = float(apart.std()) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
        table.append({
            "work": f"{entry['function']}, d {LOOPS[entry['function']]}, {entry['iterations']} steps, "
                    f"{len(apart)} seeds", "ours": entry["seconds"]["ours"], "theirs": entry["seconds"]["theirs"],
            "ratio": entry["seconds"]["theirs"] / entry["seconds"]["ours"], "value": float(ours.mean()),
            "their_value": float(theirs.mean()), "difference": f"{float(apart.mean()):+.4f} ± {error:.4f}",
            "met": float(apart.mean()) <= error,
        })  # fmt: skip
    failed = [entry for entry in entries.values() if entry["status"] != "done"]
    return [*table, *({"work": str(one["work"]), "difference": str(one["error"])[:80]} for one in failed)]


def line(entry: Entry) -> str:
    if entry["work"] == "step":
        ours, theirs = (entry[f"{name}_fit"] + entry[f"{name}_search"] for name in ("ours", "theirs"))
        return f"{ours:.2f} s beside {theirs:.2f}"
    return " beside ".join(f"{sum(one) / len(one):.4f}" for one in entry["regrets"].values())


CLAIM = Claim("botorch", "claim_botorch", "FlashGPModel beside SingleTaskGP", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seeds", type=int, default=20, metavar="COUNT")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    toy = options.toy
    cells = []
    for name in ["EI"] if toy else ["EI", "KG"]:
        turns = 1 if toy or name == "KG" else TURNS
        cells += [
            Cell(f"step/{name}/{n}", {"work": "step", "acquisition": name, "n": n, "turns": turns}, 300.0)
            for n in ((12,) if toy else (100, 500))
        ]
    seeds, steps = (1, 2) if toy else (options.seeds, ITERATIONS)
    cells += [
        Cell(f"loop/{name}", {"work": "loop", "function": name, "seeds": seeds, "iterations": steps}, 60.0 * seeds)
        for name in (["Branin"] if toy else LOOPS)
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
