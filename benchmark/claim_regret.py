"""What the planner's choices cost: the seconds of `auto` over those of the best route, on a grid of problems.

    python benchmark/claim_regret.py --cells product gradient

A problem is a product K V, the gradient of sum(U * K V) by every parameter, or a posterior with mean and variance at
200 points, of a scaled Matern-3/2 kernel with ARD. `auto` is the call as users make it, its planning included. It is
timed beside every route that may be taken without being asked for, each forced by a plan made beforehand, products by
the portable backend with tiles of every size that `tune` tries. Nobody is asked for the device and the dtype of a
product here: there is one device, and float32 for data of float64 would be another answer; routes of posteriors differ
in dtype. A time is the smallest of 7 turns, A B C C B A A B C, so that no one comes after the same other every time:
threads of another library wait for work by spinning for a while. A route whose first turn takes over four times that
of the quickest is not run again. A cell is all problems of one kind and number of rows, in a process of its own:

    regret            seconds of auto / seconds of the quickest of them, auto among them
    against all       the same where routes that are taken only on request count too (K kept in memory, large tiles)

A factor in float64 is taken while it takes less than ten seconds, although one in float32 with corrections may take
half as long (planner/conditioning.py): this is policy, not prediction, and float32 factors are routes on request then.
"""

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import smooth_data

import flashgp as fgp
from flashgp.foundations.profile_store import current_profile
from flashgp.foundations.quantities import readable_seconds
from flashgp.pairwise.torch.tiles import tile_pairs
from flashgp.planner.conditioning import PATIENCE_SECONDS
from flashgp.planner.tuning import TILES

TURNS = 7
MIN_SECONDS = 0.002  # of one turn of a short job, which is called again until then
UNBOUNDED_BYTES = 2**62  # a plan would halve a tile that passes its bytes
HOPELESS = 4.0  # times the quickest, in the first turn
TEST_POINTS = 200
SHARE, USUAL, MOST = 0.9, 1.3, 2.0  # what was to be reached: regret of so many problems, and of all
# (columns, right-hand sides) of products and gradients; columns of posteriors. Few of them where a product takes long.
SHAPES = ((1, 1), (8, 1), (8, 64), (26, 16), (90, 1))
PRODUCTS = {50: SHAPES, 200: SHAPES, 1000: SHAPES, 3000: SHAPES, 10_000: SHAPES[:4], 30_000: SHAPES[:2],
            100_000: SHAPES[:1]}  # fmt: skip
GRADIENTS = {50: SHAPES[1:], 300: SHAPES[1:], 2000: SHAPES[1:], 8000: SHAPES[1:3]}
POSTERIORS = {50: (3, 26), 200: (3, 26), 800: (3, 26), 2000: (3, 26), 5000: (3, 26), 10_000: (8,)}
DTYPES = ("float64", "float32")
SECONDS = {
    ("product", 30_000): 60.0,
    ("product", 100_000): 300.0,
    ("posterior", 5000): 60.0,
    ("posterior", 10_000): 120.0,
}
COLUMNS = [
    {"key": "kind", "title": "problems"},
    {"key": "count", "title": "number", "format": "integer"},
    {"key": "within", "title": "regret at most 1.3", "format": "percent"},
    {"key": "largest", "title": "largest regret", "format": "fixed2"},
    {"key": "worst", "title": "where, and what is quickest there"},
    {"key": "against_all", "title": "largest against all routes", "format": "fixed2"},
    {"key": "target", "title": "to be reached", "format": "text"},
    {"key": "met", "title": "reached"},
]  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One problem. Fields: name; auto, the call as users make it; routes, the same call with a plan, by what is forced;
    asked, those of them that are taken only on request."""

    name: str
    auto: Callable[[], Any]
    routes: Mapping[str, Callable[[], Any]]
    asked: frozenset[str]


def run_cell(cell: Cell) -> Entry:
    """Seconds of every route of every problem of the cell."""
    problems = itertools.islice(PROBLEMS[cell["kind"]](cell["n"]), cell["problems"])
    timed = [_timed(problem, cell["turns"]) for problem in problems]
    return {"problems": timed, "profile": current_profile().name}


def _timed(problem: Problem, turns: int) -> dict[str, Any]:
    jobs = {"auto": problem.auto, **problem.routes}
    for job in jobs.values():
        job()  # compiled, cached, warm
    best = {name: _turn(job) for name, job in jobs.items()}
    quickest = min(best.values())
    running = [name for name, seconds in best.items() if name == "auto" or seconds <= HOPELESS * quickest]
    for turn in range(turns - 1):
        for name in running if turn % 2 else reversed(running):
            best[name] = min(best[name], _turn(jobs[name]))
    allowed = {name: seconds for name, seconds in best.items() if name not in problem.asked}
    return {
        "problem": problem.name,
        "seconds": best,
        "on_request": sorted(problem.asked),
        "quickest": min(allowed, key=lambda name: allowed[name]),
        "regret": best["auto"] / min(allowed.values()),
        "against_all": best["auto"] / min(best.values()),
    }


def _turn(job: Callable[[], Any]) -> float:
    calls, began, taken = 0, time.perf_counter(), 0.0
    while not calls or taken < MIN_SECONDS:
        job()
        calls, taken = calls + 1, time.perf_counter() - began
    return taken / calls


# -- problems ---------------------------------------------------------------------------------------------------------
def _kernel(d: int) -> Any:
    return 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((d,), math.sqrt(d), dtype=torch.float64))


def _plans(operator: Any, t: int) -> tuple[dict[str, Any], frozenset[str]]:
    """A plan of every route of a product that can be taken here, and those that are only taken on request."""
    auto = operator.plan(t)
    plans = {f"{auto.route} by {auto.backend}": auto}
    asked = set()
    for one in auto.alternatives:
        if "not installed" in one.reason or "does not fit" in one.reason or "rounds K" in one.reason:
            continue  # not there, or not as accurate
        name = f"{one.route} by {one.backend}"
        plans[name] = operator.plan(t, route=one.route, backend=one.backend)
        if "on request" in one.reason:
            asked.add(name)
    return plans, frozenset(asked)


def _with_tiles(plans: Mapping[str, Any], asked: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """The same plans and those of the portable backend in the other sizes that `tune` tries and that cut the product
    otherwise; those that a plan may not take, which keeps temporaries well below the matrix, only on request."""
    variants, more = dict(plans), set(asked)
    for name, plan in plans.items():
        if not plan.in_torch_tiles:
            continue
        sizes = sorted({*TILES, plan.tile_pairs})
        whole = next((place for place, pairs in enumerate(sizes) if pairs >= plan.n * plan.m), len(sizes))
        for pairs in sizes[: whole + 1]:
            if pairs != plan.tile_pairs:
                other = f"{name}, tiles of {pairs:,} pairs"
                variants[other] = replace(plan, tile_pairs=pairs, peak_bytes=UNBOUNDED_BYTES)
                if pairs != tile_pairs(plan.n * plan.m, pairs, torch.device(plan.device)):
                    more.add(other)
    return variants, frozenset(more)


def _products(n: int) -> Iterator[Problem]:
    for number, (d, t) in enumerate(PRODUCTS[n]):
        for dtype in DTYPES if n <= 3000 else DTYPES[1 - number % 2 :][:1]:
            x, V, kernel = _inputs(n, d, t, dtype)
            plans, asked = _with_tiles(*_plans(kernel.operator(x), t))

            def product(plan: Any = None, x: Any = x, V: Any = V, kernel: Any = kernel) -> Any:
                with torch.no_grad():
                    return kernel.operator(x, plan=plan) @ V

            routes = {name: functools.partial(product, plan) for name, plan in plans.items()}
            yield Problem(f"K V, n={n:,}, d={d}, t={t}, {dtype}", product, routes, asked)


def _gradients(n: int) -> Iterator[Problem]:
    for number, (d, t) in enumerate(GRADIENTS[n]):
        for dtype in DTYPES if n <= 2000 else DTYPES[1 - number % 2 :][:1]:
            x, V, kernel = _inputs(n, d, t, dtype)
            plans, asked = _plans(kernel.operator(x), t)
            # A gradient is taken by the plan's backend tile by tile, whatever the product keeps.
            routes = {name: plan for name, plan in plans.items() if plan.route == "recomputed"}
            parameters = [p for p in kernel.parameters() if p.requires_grad]

            def gradient(plan: Any = None, x: Any = x, V: Any = V, kernel: Any = kernel, by: Any = parameters) -> Any:
                return torch.autograd.grad(((kernel.operator(x, plan=plan) @ V) * V).sum(), by)

            jobs = {name: functools.partial(gradient, plan) for name, plan in routes.items()}
            yield Problem(f"gradient, n={n:,}, d={d}, t={t}, {dtype}", gradient, jobs, asked)


def _inputs(n: int, d: int, t: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor, Any]:
    generator = torch.Generator().manual_seed(0)
    x, V = (torch.randn(n, columns, generator=generator, dtype=getattr(torch, dtype)) for columns in (d, t))
    return x, V, _kernel(d)


def _posteriors(n: int) -> Iterator[Problem]:
    for d in POSTERIORS[n]:
        x, y = smooth_data(n + TEST_POINTS, d, torch.float64)
        x, y, x_test = x[:n], y[:n], x[n:]
        gp = fgp.GP(_kernel(d), fgp.means.Zero(), fgp.likelihoods.Gaussian(0.01))

        def posterior(plan: Any = None, x: Any = x, y: Any = y, x_test: Any = x_test, gp: Any = gp) -> Any:
            return gp.condition(x, y, plan=plan).predict(x_test).variance

        auto = fgp.plan(gp, n=n, d=d)
        plans = {auto.route: auto}
        for one in auto.alternatives:
            if one.route not in plans and "does not fit" not in one.reason:
                plans[one.route] = fgp.plan(gp, n=n, d=d, route=one.route)
        routes = {name: functools.partial(posterior, plan) for name, plan in plans.items()}
        kept = auto.route == "direct" and auto.seconds < PATIENCE_SECONDS
        asked = frozenset(plans) - {"direct"} if kept else frozenset()
        yield Problem(f"posterior, n={n:,}, d={d}", posterior, routes, asked)


PROBLEMS: dict[str, Callable[[int], Iterator[Problem]]] = {
    "product": _products,
    "gradient": _gradients,
    "posterior": _posteriors,
}
SIZES: dict[str, Mapping[int, Any]] = {"product": PRODUCTS, "gradient": GRADIENTS, "posterior": POSTERIORS}
TITLES = {"product": "K V", "gradient": "gradient of K V", "posterior": "posterior, mean and variance"}


# -- the table --------------------------------------------------------------------------------------------------------
def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """A row for each kind, and one for all."""
    done = [entry for entry in entries.values() if entry["status"] == "done"]
    kinds = {kind: [p for entry in done if entry["kind"] == kind for p in entry["problems"]] for kind in PROBLEMS}
    table_rows = [_row(TITLES[kind], problems) for kind, problems in kinds.items() if problems]
    everything = [p for problems in kinds.values() for p in problems]
    if everything:
        last = _row("all", everything)
        last["target"] = f"{100 * SHARE:g} % within {USUAL:g}, none above {MOST:g}"
        last["met"] = bool(last["within"] >= SHARE and last["largest"] <= MOST)
        table_rows.append(last)
    failed = [
        f"{key}: {str(entry['error']).splitlines()[0][:80]}" for key, entry in entries.items() if entry not in done
    ]
    return [*table_rows, *({"kind": text} for text in failed)]


def _row(title: str, problems: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    worst = max(problems, key=lambda problem: problem["regret"])
    return {
        "kind": title,
        "count": len(problems),
        "within": sum(problem["regret"] <= USUAL for problem in problems) / len(problems),
        "largest": worst["regret"],
        "worst": f"{worst['problem']}: {worst['quickest']}",
        "against_all": max(problem["against_all"] for problem in problems),
    }


def line(entry: Entry) -> str:
    worst = max(entry["problems"], key=lambda problem: problem["regret"])
    quickest = readable_seconds(min(worst["seconds"].values()))
    return f"largest regret {worst['regret']:.2f}: {worst['problem']}, {worst['quickest']} in {quickest}"


CLAIM = Claim("regret", "claim_regret", "What the planner's choices cost", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(__doc__ or "", argv, CLAIM.name)
    turns, most, beside = (2, 50, {"problems": 1}) if options.toy else (TURNS, math.inf, {"problems": None})
    cells = [
        Cell(f"{kind}/n={n}", {"kind": kind, "n": n, "turns": turns}, SECONDS.get((kind, n), 20.0), beside)
        for kind, sizes in SIZES.items()
        for n in sizes
        if n <= most
    ]
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
