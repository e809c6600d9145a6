"""Several processes with rows of their own: their answers, speed, memory, and what a kill does.

    python benchmark/claim_ranks.py --cells product memory

Ranks are processes of this machine over gloo. The cells are

    answers/R    the posterior of 201 rows on R ranks (98 + 100 + 3 and none, or as many as there are) by a factor and
                 by conjugate gradients: largest difference to one process, relative to the largest answer
    product/R    K V and the gradient of sum(U K V) of all rows, eight columns, Matern-3/2 ARD: one process of two
                 threads, two ranks of one; seconds of both together, and the pairs that were evaluated
    sparse/R     the bound of inducing points and its gradient: one process of two threads, two ranks of one
    memory/R     conditioning by conjugate gradients that keep K in tiles: the peak of a rank
    kills        a fit by torchrun with a checkpoint, a random rank of which is killed at random moments: how many end
                 with the answer of an undisturbed one

Seconds and bytes are those of the slowest and the largest rank.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cells import Cell, Claim, Entry, main_of, options_of
from common import smooth_data

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.sharing import share_of_tiles, shared_operator, summed_gradient
from flashgp.processes.attempts import init_process_group
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares

D, COLUMNS_OF_V, F64 = 8, 8, torch.float64
MAX_ERROR, MIN_SPEED, MAX_PAIRS, KILL_ERROR = 1e-10, 0.9, 1.05, 1e-8  # what was to be reached
MIN_SPARSE_SPEED, MAX_SPARSE_ERROR = 0.95, 1e-10
MOST_SECONDS = 120.0  # of one fit under torchrun
COLUMNS = [
    {"key": "what", "title": "what"},
    {"key": "found", "title": "found", "format": "text"},
    {"key": "target", "title": "to be reached", "format": "text"},
    {"key": "met", "title": "reached"},
]


# -- what a rank does -------------------------------------------------------------------------------------------------
def _model() -> fgp.GP:
    kernel = 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((D,), 2.0))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.05))


def _rows(n: int, process_group: Any, counts: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = smooth_data(n, D, F64)
    if process_group is None:
        return x, y
    rank, size = torch.distributed.get_rank(process_group), torch.distributed.get_world_size(process_group)
    part = (Shares.even(n, size) if counts is None else Shares(tuple(counts))).slice(rank)
    return x[part], y[part]


def _answers(process_group: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    x, y = _rows(given["n"], process_group, given["counts"])
    z = smooth_data(given["n"] + 20, D, F64)[0][-20:]
    out: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        for solver in ("cholesky", "cg"):
            post = _model().condition(x, y, solver=solver, tolerance=1e-8, group=process_group)
            out[solver] = post.predict(z).mean.tolist()
            out[f"{solver} iterations"] = post.report.iterations
    return out


def _product(process_group: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    group, n = ALONE if process_group is None else Group.of(process_group), given["n"]
    x, _ = smooth_data(n, D, F64)
    gp = _model()
    theta = [t.detach() for t in gp.kernel.theta()]
    whole = CovarianceOperator.of(gp.kernel.form, theta, gp.kernel.rows(x).detach(), dtype=torch.float32)
    share = shared_operator(whole, group)
    v = torch.randn(n, COLUMNS_OF_V, generator=torch.Generator().manual_seed(1))

    def both() -> None:
        group.sum(share.times(v))
        summed_gradient(share.pulled_back(v, v), group)

    both()  # compiles
    seconds = []
    for _ in range(given["repeats"]):
        with group.together():
            pass  # all ranks begin together
        began = time.perf_counter()
        both()
        seconds.append(time.perf_counter() - began)
    near = share_of_tiles(n, group.rank, group.size)
    i, j = (torch.from_numpy(side.copy()) for side in near.pairs.T)
    lengths = [torch.clamp(n - near.size * side, max=near.size) for side in (i, j)]
    return {"seconds": statistics.median(seconds), "pairs": int((lengths[0] * lengths[1]).sum())}


def _sparse(process_group: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sums over rows and their gradient, two passes of the rows that a rank has."""
    group = ALONE if process_group is None else Group.of(process_group)
    x, y = _rows(given["n"], process_group)
    gp, z = _model(), smooth_data(given["inducing"], D, F64)[0]

    def both() -> float:
        gp.zero_grad()
        value = gp.collapsed_bound(x, y, inducing=z, group=process_group)
        value.backward()
        return value.item()

    both()  # compiles
    seconds = []
    for _ in range(given["repeats"]):
        with group.together():
            pass  # all ranks begin together
        began = time.perf_counter()
        value = both()
        seconds.append(time.perf_counter() - began)
    return {"seconds": statistics.median(seconds), "value": value}


def _memory(process_group: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    x, y = _rows(given["n"], process_group)
    with warnings.catch_warnings(), PeakMeter() as meter:
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        ranks = 1 if process_group is None else Group.of(process_group).size
        plan = fgp.plan(_model(), n=given["n"], d=D, route="stored", memory="64GiB", ranks=ranks)
        post = _model().condition(x, y, plan=plan, tolerance=0.1, group=process_group)
    return {"bytes": meter.peak_bytes, "route": post.report.route, "sent": post.state.run.group.bytes_sent}


def _fit(process_group: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    x, y = _rows(given["n"], process_group)
    fit = fgp.fit(
        _model(), x, y, starts=1, group=process_group, checkpoint=given["checkpoint"], progress=False,
        settings=fgp.inference.training.options.FitSettings(seconds_between_writes=0.0),
    )  # fmt: skip
    theta = [float(number) for p in fit.gp.parameters() for number in p.detach().reshape(-1)]
    return {"theta": theta, "evaluations": len(fit.history)}


JOBS = {"answers": _answers, "product": _product, "sparse": _sparse, "memory": _memory, "fit": _fit}


def _run_rank(job: str, given: Mapping[str, Any], folder: Path) -> None:
    """A rank of a job; what it returns is written into the folder."""
    import flashgp.inference.training.options  # noqa: F401 - by name in `_fit`

    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    torch.set_num_threads(given["threads"])
    group = None
    if size > 1:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            init_process_group()
        else:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
            )
        group = torch.distributed.group.WORLD
    found = JOBS[job](group, given)
    (folder / f"found{rank}.json").write_text(json.dumps(found))
    if size > 1:
        torch.distributed.destroy_process_group()


# -- what starts them -------------------------------------------------------------------------------------------------
def _ranks(job: str, size: int, **given: Any) -> list[dict[str, Any]]:
    """What each rank has found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, "--job", job, json.dumps({"threads": 1, **given}), name]
        started = [
            subprocess.Popen(command, env=_environment(WORLD_SIZE=str(size), RANK=str(rank))) for rank in range(size)
        ]
        codes = [one.wait() for one in started]
        if any(codes):
            raise RuntimeError(f"ranks of {job} ended with {codes}")
        return [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(size)]


def _environment(**more: str) -> dict[str, str]:
    """That of this process, with its paths and without what another torchrun has left."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TORCHELASTIC")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | more


def _answers_cell(cell: Cell) -> Entry:
    size, n = cell["ranks"], cell["n"]
    counts = {1: [n], 2: [n // 2, n - n // 2], 3: [n - n // 2 - 3, n // 2, 3]}.get(size, [n - n // 2 - 3, n // 2, 3, 0])
    (one,) = _ranks("answers", 1, n=n, counts=None)
    found = _ranks("answers", size, n=n, counts=counts)
    entry: Entry = {}
    for solver in ("cholesky", "cg"):
        wanted = torch.tensor(one[solver], dtype=F64)
        differences = [float((torch.tensor(part[solver], dtype=F64) - wanted).abs().max()) for part in found]
        entry[f"{solver}_error"] = max(differences) / float(wanted.abs().max())
    more = [abs((part["cg iterations"] or 0) - (one["cg iterations"] or 0)) for part in found]
    return {**entry, "more_iterations": max(more)}


def _product_cell(cell: Cell) -> Entry:
    size, n = cell["ranks"], cell["n"]
    found = _ranks("product", size, n=n, repeats=cell["repeats"], threads=2 // size)
    return {"seconds": max(one["seconds"] for one in found), "pairs": sum(one["pairs"] for one in found)}


def _sparse_cell(cell: Cell) -> Entry:
    size = cell["ranks"]
    found = _ranks("sparse", size, n=cell["n"], inducing=cell["inducing"], repeats=cell["repeats"], threads=2 // size)
    return {"seconds": max(one["seconds"] for one in found), "value": found[0]["value"]}


def _memory_cell(cell: Cell) -> Entry:
    found = _ranks("memory", cell["ranks"], n=cell["n"], threads=2 // cell["ranks"])
    return {"bytes": max(one["bytes"] for one in found), "sent": max(one["sent"] for one in found)}


def _kills_cell(cell: Cell) -> Entry:
    """Each disturbed fit begins afresh; one rank is killed once, and torchrun starts all of them again."""
    undisturbed, seconds, _ = _under_torchrun(cell["n"], None)
    draw = random.Random(0)
    good, slowest = 0, 0.0
    for _ in range(cell["kills"]):
        found, taken, _ = _under_torchrun(cell["n"], draw.uniform(0.0, seconds), victim=draw.randrange(2))
        differences = [abs(a - b) for a, b in zip(found["theta"], undisturbed["theta"], strict=True)]
        good, slowest = good + (max(differences) <= KILL_ERROR), max(slowest, taken)
    return {"good": good, "seconds": seconds, "slowest_seconds": slowest}


def _under_torchrun(n: int, kill_after: float | None, victim: int = 0) -> tuple[dict[str, Any], float, int]:
    """What rank 0 has found, seconds since the ranks ran, and how often they did."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = {"threads": 1, "n": n, "checkpoint": str(folder / "fit.checkpoint")}
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*run, "--max-restarts", "3", __file__, "--job", "fit", json.dumps(given), name]
        process = subprocess.Popen(command, env=_environment(OMP_NUM_THREADS="1"), stderr=subprocess.DEVNULL)
        pid = folder / f"pid{victim}"
        while not (pid.exists() and pid.read_text()) and process.poll() is None:
            time.sleep(0.01)
        began = time.perf_counter()
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        try:
            process.wait(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            process.wait()
            raise RuntimeError(f"torchrun did not end within {MOST_SECONDS:g} s") from None
        if process.returncode:
            raise RuntimeError(f"torchrun ended with {process.returncode}")
        return json.loads((folder / "found0.json").read_text()), time.perf_counter() - began, 2


CELLS = {
    "answers": _answers_cell, "product": _product_cell, "sparse": _sparse_cell, "memory": _memory_cell,
    "kills": _kills_cell,
}  # fmt: skip


def run_cell(cell: Cell) -> Entry:
    return CELLS[cell["kind"]](cell)


# -- the table --------------------------------------------------------------------------------------------------------
def rows(entries: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """What was found beside what was to be reached."""
    table = []
    done = {key: entry for key, entry in entries.items() if entry["status"] == "done"}
    for key, entry in entries.items():
        row: dict[str, Any] = {"what": key}
        if key not in done:
            table.append({**row, "met": str(entry["error"]).splitlines()[0][:80]})
            continue
        one = done.get(f"{entry['kind']}/1")
        row["found"] = line(entry)
        if entry["kind"] == "answers":
            row |= {"target": f"{MAX_ERROR:g}, 1 iteration", "met": _same(entry)}
        elif entry["kind"] == "product" and one is not None and entry["ranks"] > 1:
            speed, pairs = one["seconds"] / entry["seconds"], entry["pairs"] / (entry["n"] * (entry["n"] + 1) / 2)
            row["found"] += f"; {speed:.2f} of the speed of one process, {pairs:.3f} of the pairs"
            row |= {"target": f"{MIN_SPEED:g}, {MAX_PAIRS:g}", "met": speed >= MIN_SPEED and pairs <= MAX_PAIRS}
        elif entry["kind"] == "sparse" and one is not None and entry["ranks"] > 1:
            speed, error = one["seconds"] / entry["seconds"], abs(entry["value"] / one["value"] - 1.0)
            row["found"] += f"; {speed:.2f} of the speed of one process, value to {error:.1e}"
            row |= {
                "target": f"{MIN_SPARSE_SPEED:g}", "met": speed >= MIN_SPARSE_SPEED and error <= MAX_SPARSE_ERROR
            }  # fmt: skip
        elif entry["kind"] == "memory" and one is not None and entry["ranks"] > 1:
            row["found"] += f"; {entry['bytes'] / one['bytes']:.2f} of one process's"
            row["target"] = f"{1.0 / entry['ranks']:.2f} and what every rank has"
        elif entry["kind"] == "kills":
            row |= {"target": "all", "met": entry["good"] == entry["kills"]}
        table.append(row)
    return table


def _same(entry: Entry) -> bool:
    return entry["cholesky_error"] <= MAX_ERROR and entry["more_iterations"] <= 1


def line(entry: Entry) -> str:
    if entry["kind"] == "answers":
        return f"factor {entry['cholesky_error']:.1e}, iterations {entry['cg_error']:.1e}"
    if entry["kind"] in ("product", "sparse"):
        return readable_seconds(entry["seconds"])
    if entry["kind"] == "memory":
        return f"{readable_bytes(entry['bytes'])} a rank, {readable_bytes(entry['sent'])} sent"
    return f"{entry['good']} of {entry['kills']} kills, {readable_seconds(entry['slowest_seconds'])} at most"


CLAIM = Claim("ranks", "claim_ranks", "Several processes with rows of their own", COLUMNS, rows, line)


def main(argv: Sequence[str] | None = None) -> int:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--n", type=int, default=20_000, metavar="ROWS", help="of a product")
        parser.add_argument("--sparse-n", type=int, default=200_000, metavar="ROWS", help="of inducing points")
        parser.add_argument("--inducing", type=int, default=512, metavar="POINTS")
        parser.add_argument("--memory-n", type=int, default=40_000, metavar="ROWS", help="of conditioning")
        parser.add_argument("--fit-n", type=int, default=1500, metavar="ROWS", help="of a fit that is killed")
        parser.add_argument("--kills", type=int, default=20, metavar="N")
        parser.add_argument("--repeats", type=int, default=5, metavar="N")

    options = options_of(__doc__ or "", argv, CLAIM.name, more)
    toy = options.toy  # each process of which imports torch
    if toy:
        options.n, options.memory_n, options.fit_n, options.repeats = 300, 300, 60, 1
        options.sparse_n, options.inducing = 400, 10
    found = [
        Cell(f"answers/{size}", {"kind": "answers", "ranks": size, "n": 201}, 30.0)
        for size in ((2,) if toy else (1, 2, 3, 4))
    ]
    for kind, n in (("product", options.n), ("memory", options.memory_n)):
        more_values = {"repeats": options.repeats} if kind == "product" else {}
        found += [
            Cell(f"{kind}/{size}", {"kind": kind, "ranks": size, "n": n, **more_values}, 120.0)
            for size in ((2,) if toy else (1, 2))
        ]
    sizes = {"n": options.sparse_n, "inducing": options.inducing, "repeats": options.repeats}
    found += [
        Cell(f"sparse/{size}", {"kind": "sparse", "ranks": size, **sizes}, 120.0) for size in ((2,) if toy else (1, 2))
    ]
    if not toy:  # kills: slow tests
        found.append(Cell("kills", {"kind": "kills", "n": options.fit_n, "kills": options.kills}, 60.0 * options.kills))
    return main_of(CLAIM, found, options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        _run_rank(sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4]))
        sys.exit(0)
    sys.exit(main())
