"""Learning online: append, predict and slide, beside GPyTorch's get_fantasy_model and beside starting over.

    python benchmark/claim_online.py --sizes 500 2000 --cells step

x is uniform in the unit cube, d = 4, y a draw of a Matern-3/2 prior with noise; float64, hyperparameters fixed. Cells:

    step      one row appended to n, and mean and variance of one point right after; GPyTorch factorises by Cholesky
              whatever the size, and its steps alternate with ours
    window    the oldest of 2,000 rows goes, one comes; beside conditioning on these rows and predicting one point
    stream    5,000 rows appended one by one from 100 on: each time divided by the fitted c0 + c1 n + c2 n^2; before
              them one is appended elsewhere, since the first in a process loads SciPy's BLAS, and timed apart
    fantasies 64 members of 4 hypothetical rows each beside 2,000 rows, and mean and variance of eight points that
              they share; beside GPyTorch's get_fantasy_model, eight members at a time: all at once take more than 23 GB
    operations 10,000 random appends, drops, slides and replacements of one to three rows, each with a prediction,
              from 150 rows on: mean, variance and log likelihood beside a fresh posterior; resident memory and live
              objects over all but the first fifth. The compiled rotations are ready before: they bring numba along
    beyond    1 and 16 rows appended to 20,000 without a factor, by conjugate gradients to the default tolerance:
              seconds, iterations and the bound of the mean, beside conditioning on these rows again
    sizes     the median of appends at sizes from 100 to 6,000 that differ by a tenth: the largest ratio of neighbours

Every answer is compared with a posterior conditioned on the same rows.
"""

import argparse
import gc
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import psutil
import torch
from cells import Cell, Claim, Entry, Speaker, main_of, options_of
from common import peer
from problems import drawn_table

import flashgp as fgp
from flashgp.bench.suites import GPyTorchModel
from flashgp.foundations.errors import BackendUnavailableError
from flashgp.foundations.quantities import readable_seconds
from flashgp.solvers.direct.rotations import rotations

D, LENGTHSCALE, NOISE = 4, 0.5 * 4**0.5, 0.01
AGREEMENT = 1e-8  # of mean and variance with a fresh posterior
APPEND_AT_LEAST = {500: 50.0, 1000: 150.0, 2000: 300.0, 3000: 400.0}  # times faster than GPyTorch
PREDICT_AT_LEAST = {500: 30.0, 1000: 80.0, 2000: 120.0, 3000: 300.0}
FANTASIES_AT_LEAST = 20.0
WINDOW_SECONDS, WINDOW_AT_LEAST = 8e-3, 50.0
BEYOND_AT_LEAST = 1.5  # times faster than conditioning again
STREAM_MOST = {"p99": 2.0, "largest": 6.0}  # of the median
NEIGHBOURS_MOST = 1.3
MAX_BYTES = 1000.0  # of resident memory for each operation, once all is warm
MAX_OBJECTS = 0.05  # for each: a factor in more panels has more parts
COLUMNS = [
    {"key": "work", "title": "work"},
    {"key": "seconds", "title": "FlashGP"},
    {"key": "peer_seconds", "title": "beside"},
    {"key": "faster", "title": "times faster", "format": "ratio"},
    {"key": "at_least", "title": "at least", "format": "ratio"},
    {"key": "p99", "title": "p99 / median", "format": "ratio"},
    {"key": "largest", "title": "largest / median", "format": "ratio"},
    {"key": "error", "title": "from a fresh posterior", "format": "error"},
    {"key": "met", "title": "reached"},
]


def run_cell(cell: Cell) -> Entry:
    work = {"step": _step, "window": _window, "stream": _stream, "fantasies": _fantasies, "operations": _operations}
    work |= {"sizes": _sizes, "beyond": _beyond}
    return work[cell["what"]](cell)


def _prior() -> fgp.GP:
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((D,), LENGTHSCALE))
    return fgp.GP(1.0 * kernel, fgp.means.Constant(0.0), fgp.likelihoods.Gaussian(NOISE))


def _table(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    table = drawn_table(rows, 8, D, LENGTHSCALE, NOISE)
    return torch.from_numpy(table.x), torch.from_numpy(table.y), torch.from_numpy(table.x_test)


def _answer(post: Any, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    prediction = post.predict(at)
    return prediction.mean, prediction.variance


def _error(post: Any, at: torch.Tensor) -> float:
    """The largest difference in mean and variance from a posterior conditioned on the same rows."""
    fresh = _answer(_prior().condition(post.x, post.y), at)
    return max(float((a - b).abs().max()) for a, b in zip(_answer(post, at), fresh, strict=True))


def _timed(job: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = job()
    return result, time.perf_counter() - began


def _step(cell: Cell) -> Entry:
    """Appends from a little below n to a little above; GPyTorch appends to n rows, in between."""
    n, repeats, warm, others = cell["n"], cell["repeats"], cell["warm"], cell["peer_repeats"]
    x, y, at = _table(n + warm + repeats)
    first, point = n - repeats // 2 - warm, at[:1]
    post, peer_model = _prior().condition(x[:first], y[:first]), _peer(cell, x[:n], y[:n], point)
    times: dict[str, list[float]] = {name: [] for name in ("append", "predict", "peer_append", "peer_predict")}
    apart = None
    for i in range(warm + repeats):
        row = slice(first + i, first + i + 1)
        post, append = _timed(lambda post=post, row=row: post.append(x[row], y[row]))
        found, predict = _timed(lambda post=post: _answer(post, point))
        if i >= warm:
            times["append"].append(append)
            times["predict"].append(predict)
        if peer_model is None or i % max(1, (warm + repeats) // (others + 1)):
            continue
        fantasy, append = _timed(lambda: peer_model.add(x[n : n + 1], y[n : n + 1]))
        theirs, predict = _timed(lambda fantasy=fantasy: peer_model.predict(fantasy, point))
        apart = float((theirs - found[0]).abs().max())
        if i:  # the first one warms up
            times["peer_append"].append(append)
            times["peer_predict"].append(predict)
    medians = {name: statistics.median(values) if values else None for name, values in times.items()}
    return {"times": times, **medians, "error": _error(post, at), "peer_apart": apart}


def _peer(cell: Cell, x: torch.Tensor, y: torch.Tensor, point: torch.Tensor) -> GPyTorchModel | None:
    gpytorch = peer("gpytorch")
    if gpytorch is None:
        if cell["toy"]:
            return None
        raise BackendUnavailableError('this cell is measured beside GPyTorch; install it: pip install "flashgp[peers]"')
    warnings.simplefilter("ignore")
    base = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=D)
    base.lengthscale = LENGTHSCALE
    return GPyTorchModel(gpytorch, base, x, y, NOISE, point)


def _window(cell: Cell) -> Entry:
    n, repeats = cell["n"], cell["repeats"]
    x, y, at = _table(n + cell["warm"] + repeats)
    post, point, slides, over = _prior().condition(x[:n], y[:n]), at[:1], [], []
    speaker = Speaker(cell.key)
    for i in range(cell["warm"] + repeats):
        post, seconds = _timed(lambda post=post, i=i: post.slide(x[n + i : n + i + 1], y[n + i : n + i + 1]))
        speaker(f"slide {i:,}")
        if i >= cell["warm"]:
            slides.append(seconds)
        if i % max(1, repeats // 5) == 0:
            own = slice(i + 1, n + i + 1)
            over.append(_timed(lambda own=own: _answer(_prior().condition(x[own], y[own]), point))[1])
    return {
        "times": slides, "seconds": statistics.median(slides), "peer_seconds": statistics.median(over),
        **_spread(numpy.array(slides)), "refactorised": post.state.online.refactorised, "error": _error(post, at),
    }  # fmt: skip


def _stream(cell: Cell) -> Entry:
    n, repeats = cell["n"], cell["repeats"]
    x, y, at = _table(n + repeats)
    elsewhere = _prior().condition(x[:5], y[:5])
    first_seconds = _timed(lambda: elsewhere.append(x[5:6], y[5:6]))[1]
    post, times = _prior().condition(x[:n], y[:n]), []
    speaker = Speaker(cell.key)
    for i in range(n, n + repeats):
        post, seconds = _timed(lambda post=post, i=i: post.append(x[i : i + 1], y[i : i + 1]))
        times.append(seconds)
        speaker(f"row {i:,}")
    rows, taken = numpy.arange(n, n + repeats, dtype=float), numpy.array(times)
    design = numpy.stack([rows**0, rows, rows**2], axis=1)
    fitted = design @ _robust(design, taken)
    return {
        "times": times, "first_seconds": first_seconds, "seconds": float(taken.sum()), **_spread(taken / fitted),
        "panels": post.factor.panels, "refactorised": post.state.online.refactorised, "error": _error(post, at),
    }  # fmt: skip


def _fantasies(cell: Cell) -> Entry:
    n, members, q, repeats = cell["n"], cell["members"], cell["q"], cell["repeats"]
    x, y, at = _table(n + members * q)
    new, targets = x[n:].reshape(members, q, D), y[n:].reshape(members, q)
    post, peer_model = _prior().condition(x[:n], y[:n]), _peer(cell, x[:n], y[:n], at)
    post.append(x[n : n + 1], y[n : n + 1])  # SciPy's BLAS is loaded
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    apart = None
    for i in range(repeats + 1):
        with torch.no_grad():
            found, seconds = _timed(lambda: post.fantasize(new, targets).predict(at))
        if i:
            times["ours"].append(seconds)
        if peer_model is None:
            continue
        if i > cell["peer_repeats"]:
            continue
        theirs, seconds = _timed(lambda: _in_eights(peer_model, new, targets, at))
        apart = float((theirs - found.mean).abs().max())
        if i:
            times["peer"].append(seconds)
    error = 0.0
    for b in (0, members - 1):
        fresh = _prior().condition(torch.cat([x[:n], new[b]]), torch.cat([y[:n], targets[b]])).predict(at)
        pairs = (found.mean[b], fresh.mean), (found.variance[b], fresh.variance)
        error = max(error, *(float((a - b).abs().max()) for a, b in pairs))
    return {
        "times": times, "seconds": statistics.median(times["ours"]), "error": error, "peer_apart": apart,
        "peer_seconds": statistics.median(times["peer"]) if times["peer"] else None,
    }  # fmt: skip


def _in_eights(peer_model: GPyTorchModel, new: torch.Tensor, targets: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    parts = zip(new.split(8), targets.split(8), strict=True)
    return torch.cat([peer_model.predict(peer_model.add(x, y), at.expand(len(x), -1, -1)) for x, y in parts])


def _operations(cell: Cell) -> Entry:
    n, cycles = cell["n"], cell["repeats"]
    x, y, at = _table(3 * cycles + n)
    generator = numpy.random.default_rng(0)
    post, used, settled = _prior().condition(x[:n], y[:n]), n, cycles // 5
    process, speaker = psutil.Process(), Speaker(cell.key)
    rotations.wait()
    resident = objects = 0
    for i in range(cycles):
        if i == settled:
            gc.collect()
            resident, objects = process.memory_info().rss, len(gc.get_objects())
        k = int(generator.integers(1, 4))
        rows = slice(used, used + k)
        kind = generator.choice(["slide", "replace", "append" if post.count < n else "drop"])
        some = generator.choice(post.count, k, replace=False)
        if kind == "drop":
            post = post.drop(some)
        elif kind == "replace":
            post = post.replace(some, x[rows], y[rows])
        else:
            post = getattr(post, kind)(x[rows], y[rows])
        used += 0 if kind == "drop" else k
        _answer(post, at[:1])
        speaker(f"operation {i:,}")
    gc.collect()
    fresh = _prior().condition(post.x, post.y)
    likelihood = abs(float(post.log_marginal_likelihood() - fresh.log_marginal_likelihood()))
    return {
        "error": max(_error(post, at), likelihood), "refactorised": post.state.online.refactorised, "rows": post.count,
        "bytes_per_cycle": (process.memory_info().rss - resident) / (cycles - settled),
        "objects": len(gc.get_objects()) - objects,
    }  # fmt: skip


def _beyond(cell: Cell) -> Entry:
    """Each update on the one before it; conditioning compiles nothing that the first did not."""
    n, speaker = cell["n"], Speaker(cell.key)
    x, y, at = _table(n + sum(cell["appended"]))
    gp, start = _prior(), n

    def conditioned(rows: int) -> tuple[Any, float]:
        plan = fgp.plan(gp, n=rows, d=D, solver="cg")
        return _timed(lambda: gp.condition(x[:rows], y[:rows], plan=plan))

    (post, first_seconds), steps = conditioned(n), []
    for k in cell["appended"]:
        rows = slice(start, start + k)
        post, seconds = _timed(lambda post=post, rows=rows: post.append(x[rows], y[rows]))
        speaker(f"{k} rows appended in {readable_seconds(seconds)}")
        start += k
        again, over = conditioned(start)
        found, fresh = (one.predict(at).mean for one in (post, again))
        steps.append({
            "appended": k, "seconds": seconds, "iterations": post.report.iterations,
            "bound": post.report.error_bound, "peer_seconds": over, "peer_iterations": again.report.iterations,
            "peer_bound": again.report.error_bound, "error": float((found - fresh).abs().max()),
        })  # fmt: skip
    return {
        "steps": steps, "route": post.report.route, "first_seconds": first_seconds,
        "prepared_anew": post.state.online.refactorised, "asked": 1e-3 * NOISE**0.5,
        "error": max(step["error"] for step in steps),
    }  # fmt: skip


def _robust(design: numpy.ndarray, taken: numpy.ndarray) -> numpy.ndarray:
    """Least absolute deviations by weights, so that a few late rows do not bend the curve."""
    weights = numpy.ones(len(taken))
    found = numpy.zeros(design.shape[1])
    for _ in range(20):
        root = numpy.sqrt(weights)
        found = numpy.linalg.lstsq(design * root[:, None], taken * root, rcond=None)[0]
        weights = 1.0 / numpy.maximum(numpy.abs(taken - design @ found), 1e-7)
    return found


def _spread(taken: numpy.ndarray) -> dict[str, float]:
    median = float(numpy.median(taken))
    return {"p99": float(numpy.quantile(taken, 0.99)) / median, "largest": float(taken.max()) / median}


def _sizes(cell: Cell) -> Entry:
    """In turns, so that what else runs on the machine does not fall on one size; each time after a row that is not
    timed, since a stream finds its factor in the cache."""
    least, most, repeats = cell["n"], cell["most"], cell["repeats"]
    x, y, at = _table(most + 2 * (repeats + 1))
    grid = sorted({round(n) for n in numpy.geomspace(least, most, cell["count"])})
    post, children = _prior().condition(x[:least], y[:least]), []
    for n in grid:
        post = post.append(x[post.count : n], y[post.count : n]) if n > post.count else post
        children.append(post)
    taken: list[list[float]] = [[] for _ in grid]
    for turn in range(repeats + 1):
        for i in range(len(grid)):
            for timed in (False, True):
                row = slice(children[i].count, children[i].count + 1)
                children[i], seconds = _timed(lambda row=row, i=i: children[i].append(x[row], y[row]))
                if timed and turn:
                    taken[i].append(seconds)
    medians = [statistics.median(times) for times in taken]
    ratios = [max(a / b, b / a) for a, b in itertools.pairwise(medians)]
    return {
        "grid": grid, "medians": medians, "neighbours": max(ratios, default=1.0), "error": _error(children[-1], at),
    }  # fmt: skip


def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for entry in entries.values():
        n, what = entry["n"], entry["what"]
        if entry["status"] != "done":
            found.append({"work": f"{what}, n={n:,}", "met": str(entry["error"]).splitlines()[0][:80]})
            continue
        right = entry["error"] <= AGREEMENT
        if what == "step":
            for name, least in (("append", APPEND_AT_LEAST), ("predict", PREDICT_AT_LEAST)):
                ours, theirs, wanted = entry[name], entry[f"peer_{name}"], least.get(n)
                faster = None if theirs is None else theirs / ours
                met = right and (wanted is None or faster is None or faster >= wanted)
                title = "append one row" if name == "append" else "predict one point after it"
                found.append({
                    "work": f"{title}, n={n:,}, beside GPyTorch", "seconds": ours, "peer_seconds": theirs,
                    "faster": faster, "at_least": wanted, "error": entry["error"], "met": met,
                })  # fmt: skip
        elif what == "window":
            faster = entry["peer_seconds"] / entry["seconds"]
            met = right and entry["seconds"] <= WINDOW_SECONDS and faster >= WINDOW_AT_LEAST
            found.append({
                "work": f"slide a window of {n:,}, beside conditioning and predicting",
                "at_least": WINDOW_AT_LEAST, "faster": faster, "met": met and entry["p99"] <= 1.5,
                **{key: entry[key] for key in ("seconds", "peer_seconds", "p99", "largest", "error")},
            })  # fmt: skip
        elif what == "fantasies":
            theirs = entry["peer_seconds"]
            faster = None if theirs is None else theirs / entry["seconds"]
            work = f"{entry['members']} fantasies of {entry['q']} rows, n={n:,}, and eight points, beside GPyTorch"
            found.append({
                "work": work, "seconds": entry["seconds"], "peer_seconds": theirs, "faster": faster,
                "at_least": FANTASIES_AT_LEAST, "error": entry["error"],
                "met": right and (faster is None or faster >= FANTASIES_AT_LEAST),
            })  # fmt: skip
        elif what == "operations":
            work = (
                f"{entry['repeats']:,} random operations, {n:,} rows: {entry['bytes_per_cycle']:.0f} bytes and "
                f"{entry['objects'] / entry['repeats']:.3f} objects more for each"
            )
            few = abs(entry["objects"]) < MAX_OBJECTS * entry["repeats"]
            met = right and few and entry["bytes_per_cycle"] < MAX_BYTES
            found.append({"work": work, "error": entry["error"], "met": met})
        elif what == "beyond":
            for step in entry["steps"]:
                # Both means are certain to their bounds, which add up.
                bounds = max(step["bound"], step["peer_bound"])
                right = bounds <= 1.001 * entry["asked"] and step["error"] <= step["bound"] + step["peer_bound"]
                faster = step["peer_seconds"] / step["seconds"]
                work = (
                    f"append {step['appended']} to n={n:,} without a factor ({entry['route']}): {step['iterations']} "
                )
                work += f"iterations, the mean within {step['bound']:.1e}, beside conditioning again: "
                work += f"{step['peer_iterations']} iterations"
                found.append({
                    "work": work, "faster": faster, "at_least": BEYOND_AT_LEAST,
                    "met": right and faster >= BEYOND_AT_LEAST,
                    **{key: step[key] for key in ("seconds", "peer_seconds", "error")},
                })  # fmt: skip
        elif what == "stream":
            met = right and all(entry[key] <= most for key, most in STREAM_MOST.items())
            work = f"{entry['repeats']:,} rows appended one by one from {n:,} on, all of them; "
            work += f"the first of the process, before them, took {readable_seconds(entry['first_seconds'])}"
            found.append({"work": work, "met": met, **{k: entry[k] for k in ("seconds", "p99", "largest", "error")}})
        else:
            work = f"append one row, {n:,} to {entry['most']:,}: neighbouring sizes differ by at most a factor of "
            work += f"{entry['neighbours']:.2f}"
            found.append(
                {"work": work, "error": entry["error"], "met": right and entry["neighbours"] <= NEIGHBOURS_MOST}
            )
    return found


def line(entry: Entry) -> str:
    what = entry["what"]
    if what == "step":
        beside = entry["peer_append"]
        ratio = "" if beside is None else f", GPyTorch {readable_seconds(beside)}"
        return f"append {readable_seconds(entry['append'])}{ratio}, predict {readable_seconds(entry['predict'])}"
    if what == "operations":
        return f"{entry['bytes_per_cycle']:.0f} bytes for each, off by {entry['error']:.1e}"
    if what == "fantasies":
        return f"{readable_seconds(entry['seconds'])}"
    if what == "beyond":
        each = (f"{step['appended']} in {readable_seconds(step['seconds'])}" for step in entry["steps"])
        return f"appended {', '.join(each)}, off by {entry['error']:.1e}"
    if what == "sizes":
        return f"neighbours within {entry['neighbours']:.2f}"
    return f"{readable_seconds(entry['seconds'])}, p99 / median {entry['p99']:.2f}, largest {entry['largest']:.1f}"


CLAIM = Claim("online", "claim_online", "Learning online, given hyperparameters", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sizes", nargs="+", type=int, default=[500, 1000, 2000, 3000], metavar="ROWS")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    toy = options.toy
    beside = {"toy": toy}
    steps = {"what": "step", "repeats": 3 if toy else 64, "warm": 1 if toy else 16, "peer_repeats": 1 if toy else 5}
    cells = [
        Cell(f"step/n={n}", {"n": n, **steps}, 5.0 + 3e-9 * n**3, beside)
        for n in ([30] if toy else options.sizes)
    ]  # fmt: skip
    window = {"n": 30 if toy else 2000, "repeats": 5 if toy else 600, "warm": 2 if toy else 100}
    cells.append(Cell(f"window/n={window['n']}", {"what": "window", **window}, 30.0, beside))
    stream = {"n": 20 if toy else 100, "repeats": 10 if toy else 5000}
    cells.append(Cell(f"stream/n={stream['n']}", {"what": "stream", **stream}, 60.0, beside))
    many = {"n": 30 if toy else 2000, "members": 3 if toy else 64, "q": 4}
    many |= {"repeats": 1 if toy else 9, "peer_repeats": 1}
    cells.append(Cell(f"fantasies/n={many['n']}", {"what": "fantasies", **many}, 60.0, beside))
    operations = {"n": 20 if toy else 150, "repeats": 20 if toy else 10_000}
    cells.append(Cell(f"operations/n={operations['n']}", {"what": "operations", **operations}, 60.0, beside))
    beyond = {"n": 60 if toy else 20_000, "appended": [1, 16]}
    cells.append(Cell(f"beyond/n={beyond['n']}", {"what": "beyond", **beyond}, 300.0, beside))
    sizes = (
        {"n": 20, "most": 40, "count": 3, "repeats": 3} if toy else {"n": 100, "most": 6000, "count": 43, "repeats": 9}
    )
    cells.append(Cell(f"sizes/most={sizes['most']}", {"what": "sizes", **sizes}, 60.0, beside))
    return main_of(CLAIM, cells, options)


if __name__ == "__main__":
    sys.exit(main())
