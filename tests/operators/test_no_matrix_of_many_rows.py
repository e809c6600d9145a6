"""Every kernel, public method and backend at 20,000 rows, where a matrix would take 3.2 GB: none is allocated.

Every kernel makes a product and its gradient; one compiled and one that runs through Python make all
methods on all backends.

Three witnesses: every dispatch of torch is watched, the Workspace enforces the plan, and the operating system counts
what a fresh process takes. To be quick the loops visit only their first and last panels (portable backend) or tiles
(compiled backend): every panel allocates as much as these, and everything that is allocated for all rows is allocated
in full. Forward mode and second derivatives, which visit all their tiles, get 300 of the rows: a graph over these would
hold several times 48 MB.

What announces a matrix is not here: `to_dense`, plans with route "dense" or "stored", `condition` and `fit`
(tests/inference/test_planned_memory.py), `covariance` and `sample` (tests/inference/test_memory.py). Every order of
derivative at small size, counted tensor by tensor, is in tests/operators/test_every_order.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flashgp.kernels import REGISTRY
from flashgp.pairwise.cpu.backend import cpu_tiles_missing

MIB = 2**20
N = 20_000  # a matrix of 1.6 GB in float32; features, packed copies and results of so many rows take some MiB
LARGEST, PEAK = 64 * MIB, 256 * MIB
METHODS = (
    "product", "rectangular", "transposed", "gradient", "diagonal", "row", "part", "noise", "scipy", "jvp", "second",
    "predict",
)  # fmt: skip
FEW_METHODS = ("gradient",)  # whose value is a product

CHILD = """
import json, sys, warnings
import numpy, torch
import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.pairwise.torch import tile_job
from flashgp.pairwise.cpu.backend import cpu_tiles_missing
from pairwise.pair_cases import Case
from pairwise.test_memory import LargestTensor

N, T = int(sys.argv[1]), 2
warnings.simplefilter("ignore")  # of values: what the panels left out would have filled is arbitrary
panels = tile_job.TileJob.panels

def ends(of, first, last):
    return of if len(of) <= first + last else [*of[:first], *of[-last:]]

tile_job.TileJob.panels = lambda job, ranges=None: ends(panels(job, ranges), 1, 1)
backends = ["torch"]
if not cpu_tiles_missing():
    from flashgp.pairwise.cpu.engine import CompiledPairs
    backends.append("cpu")
    tiles = CompiledPairs.tiles
    CompiledPairs.tiles = lambda pairs: numpy.ascontiguousarray(ends(tiles(pairs), 12, 4))

def methods(kernel, case, backend):
    x, z, few = case.points(N, 1), case.points(N, 2), case.points(30, 3)
    v = torch.ones(N, T, dtype=torch.float64)

    def planned(a, b, t=T):
        return kernel.operator(a, b, plan=kernel.operator(a, b).plan(t, backend=backend))

    def gradient():
        leaves = [x.clone().requires_grad_(), v.clone().requires_grad_(), *kernel.parameters()]
        torch.autograd.grad((planned(leaves[0], None) @ leaves[1]).sum(), leaves, allow_unused=True)

    def second():
        w = v.clone().requires_grad_()
        leaves = [x[:300].clone().requires_grad_(), w, *kernel.parameters()]
        made = kernel.operator(leaves[0], z)
        out = (kernel.operator(leaves[0], z, plan=made.plan(T, backend=backend)) @ w).square().sum()
        slopes = torch.autograd.grad(out, leaves, create_graph=True, allow_unused=True)
        torch.autograd.grad(sum(s.square().sum() for s in slopes if s is not None), leaves, allow_unused=True)

    def predict():
        post = fgp.GP(kernel).condition(few, few.sum(-1), jitter=1e-6)
        found = post.predict(x, plan=fgp.plan(post.gp, n=post.distinct, d=x.shape[-1], n_test=N, backend=backend))
        return found.mean, found.variance, found.observation_variance, found.interval(), found.log_prob(x.sum(-1))

    with torch.no_grad():
        yield "product", lambda: planned(x, None) @ v
        yield "rectangular", lambda: planned(x, z) @ v
        yield "transposed", lambda: planned(x, z).T @ v
        yield "diagonal", lambda: planned(x, None).diagonal()
        yield "row", lambda: planned(x, None)[3]
        yield "part", lambda: planned(x, None)[:, :50] @ v[:50]
        yield "noise", lambda: planned(x, None).with_noise(0.1) @ v
        yield "scipy", lambda: planned(x, None, 1).to_scipy().matvec(v[:, 0].numpy())
        yield "predict", predict
        yield "jvp", lambda: torch.func.jvp(lambda w: planned(x[:300], z) @ w, (v,), (v,))
    yield "gradient", gradient
    yield "second", second

for name, index, wanted in json.loads(sys.argv[2]):
    case = Case(name, index, 3)
    kernel = case.kernel
    for backend in backends[: None if len(wanted) > 1 else 1]:
        if backend == "cpu" and not (kernel.form.fusable and kernel.form.statistics):
            continue
        for method, call in methods(kernel, case, backend):
            if method not in wanted:
                continue
            with PeakMeter(collect=False) as meter, LargestTensor() as watcher:
                call()
            print(json.dumps([name, index, backend, method, 8 * watcher.elements, meter.peak_bytes]), flush=True)
"""


def examples() -> list[tuple[str, int, tuple[str, ...]]]:
    """The first registered example of every kernel, and all that run through Python, with the methods to watch."""
    return [
        (name, index, METHODS if name == "Matern" or not kernel.form.fusable else FEW_METHODS)
        for name, row in REGISTRY.items()
        for index, kernel in enumerate(row.examples(3))
        if index == 0 or not kernel.form.fusable
    ]


@pytest.fixture(scope="module")
def measured(root: Path) -> list[tuple[Any, ...]]:
    paths = os.pathsep.join(map(str, (root / "src", root / "tests")))
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(N), json.dumps(examples())],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [tuple(json.loads(line)) for line in run.stdout.splitlines()]


def test_no_method_of_any_kernel_allocates_a_matrix(measured: list[tuple[Any, ...]]) -> None:
    for name, index, backend, method, largest, peak in measured:
        case = f"{method} of {name} {index} by {backend}"
        assert largest <= LARGEST, f"{case}: a tensor of {largest / MIB:.0f} MiB"
        assert peak <= PEAK, f"{case}: {peak / MIB:.0f} MiB"


def test_nothing_was_left_out(measured: list[tuple[Any, ...]]) -> None:
    seen = {one[:4] for one in measured}
    for name, index, methods in examples():
        form = REGISTRY[name].examples(3)[index].form
        compiled = form.fusable and form.statistics and not cpu_tiles_missing()
        for backend in ("torch", "cpu") if compiled and methods == METHODS else ("torch",):
            for method in methods:
                assert (name, index, backend, method) in seen
