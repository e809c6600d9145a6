"""The famous comparison, taken at its word: a covariance matrix by nested vmap, 10,000 times faster than broadcasting.

What was timed there was the construction of a closure. Here the closure, and what lazy libraries return in its place,
is built and timed too, beside why it is refused as an answer; and the numbers of every candidate are timed by every
clock. bfloat16 is a storage format of the result: the arithmetic is float32, and what arithmetic in bfloat16 would give
is among the candidates.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flashgp.bench.clocks import WallClock
from flashgp.bench.suites.baselines import (
    BROADCASTING,
    VMAP,
    broadcasting,
    exact,
    from_products,
    missing_peer,
    peer,
    row_function,
    vmapped,
)
from flashgp.bench.suites.suite import (
    DTYPES,
    Comparisons,
    Finding,
    Options,
    Problem,
    Suite,
    Unevaluated,
    measure,
    without_gradient,
)
from flashgp.bench.verification import answer_tensors
from flashgp.kernels import SquaredExponential

__all__ = ["SUITE"]

D = 8
LENGTHSCALE = math.sqrt(D)
BUILDS = 21  # of each closure; the median counts
# Largest deviation over the largest entry, 1. float32: rounding, with a cancellation of |x|^2 allowed for. float64:
# sqrt(eps), which the square root of a cancelled distance leaves, but no float32 arithmetic. bfloat16: twice the half
# unit in the last place of its storage.
TOLERANCES = {"float32": 1e-5, "float64": 2e-8, "bfloat16": 2.0**-8}
OURS = "FlashGP"


def run(options: Options) -> Comparisons:
    """Every size, dtype and device; see Suite."""
    findings = [_compared(n, name, device, options) for device, name, n in options.problems]
    notes = [missing_peer("GPyTorch")] if options.peers and peer("gpytorch") is None else []
    return Comparisons(SUITE, findings, notes)


def _compared(n: int, name: str, device: str, options: Options) -> Finding:
    stored = DTYPES[name]
    computed = torch.float64 if stored == torch.float64 else torch.float32
    x = torch.randn(n, D, generator=torch.Generator().manual_seed(options.seed), dtype=torch.float64)
    x = x.to(device, computed)
    kernel = SquaredExponential(LENGTHSCALE)
    candidates: dict[str, Callable[[Tensor], Any]] = {
        OURS: lambda x: kernel.operator(x).to_dense(dtype=stored),
        BROADCASTING: lambda x: broadcasting(x, x, LENGTHSCALE).to(stored),
        VMAP: lambda x: vmapped(x, x, LENGTHSCALE).to(stored),
        "torch from products": lambda x: from_products(x, x, LENGTHSCALE).to(stored),
    }
    if stored == torch.bfloat16:
        candidates["arithmetic in bfloat16"] = lambda x: broadcasting(x.bfloat16(), x.bfloat16(), LENGTHSCALE)
    gpytorch = peer("gpytorch") if options.peers else None
    lazy: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
        "vmap, not called": (VMAP, lambda x: torch.func.vmap(row_function(x, LENGTHSCALE))),
        "FlashGP operator": (OURS, lambda x: kernel.operator(x)),
    }
    if gpytorch is not None:
        theirs = gpytorch.kernels.RBFKernel().to(device, computed)
        theirs.lengthscale = LENGTHSCALE
        candidates["GPyTorch"] = lambda x: theirs(x).to_dense().to(stored)
        lazy["GPyTorch, not evaluated"] = ("GPyTorch", lambda x: theirs(x))
    differences = 3 * n * n * D * computed.itemsize  # one (n, n, d) tensor, its square, and a margin
    problem = Problem(
        f"{name}, {device}",
        n,
        (x,),
        lambda x: exact(x, x, LENGTHSCALE),
        TOLERANCES[name],
        dict.fromkeys((BROADCASTING, VMAP, "arithmetic in bfloat16"), differences),
        _stretched if stored == torch.bfloat16 else True,
    )
    finding = measure(problem, candidates, options)
    entries = tuple(_build(title, without_gradient(make), x, by) for title, (by, make) in lazy.items())
    return replace(finding, unevaluated=entries)


def _stretched(inputs: Any, generator: torch.Generator) -> Any:
    """Points on another scale, and moved a little: steps of 5 % are lost in the rounding of bfloat16."""
    (x,) = inputs
    scale = 0.7 + 0.6 * torch.rand((), generator=generator)
    return ((x.cpu() * scale * (1.0 + 0.01 * torch.rand(x.shape, generator=generator))).to(x),)


def _build(title: str, make: Callable[[Tensor], Any], x: Tensor, evaluated_by: str) -> Unevaluated:
    """Median time of making something that is not numbers, and why `compare` refuses it."""
    clock, times = WallClock(), []
    for _ in range(BUILDS):
        product, seconds = clock.measure(lambda: make(x))
        times.append(seconds)
    reason, _ = answer_tensors(product)
    return Unevaluated(title, statistics.median(times), reason or "returned numbers", evaluated_by)


# -- the record -------------------------------------------------------------------------------------------------------
COLUMNS = (
    {"key": "work", "title": "covariance matrix"},
    {"key": "closure_seconds", "title": "building the vmap closure"},
    {"key": "artefact", "title": '"times faster" than broadcasting', "format": "integer"},
    {"key": "broadcasting_seconds", "title": "broadcasting"},
    {"key": "vmap_seconds", "title": "nested vmap, its numbers"},
    {"key": "vmap_ratio", "title": "times faster", "format": "ratio"},
    {"key": "ours_seconds", "title": "FlashGP"},
    {"key": "ours_ratio", "title": "times faster", "format": "ratio"},
    {"key": "gpytorch_seconds", "title": "GPyTorch"},
    {"key": "ours_error", "title": "FlashGP's error"},
)


def _rows(finding: Finding) -> list[dict[str, Any]]:
    by_name = {one.name: one for one in finding.comparison.candidates}
    seconds = {name: one.seconds for name, one in by_name.items()}
    plain, mapped, ours = (seconds.get(name) for name in (BROADCASTING, VMAP, OURS))
    closure = next(entry.seconds for entry in finding.unevaluated if entry.evaluated_by == VMAP)
    row = {
        "work": finding.work,
        "closure_seconds": closure,
        "artefact": plain / closure if plain else None,
        "broadcasting_seconds": plain,
        "vmap_seconds": mapped,
        "vmap_ratio": plain / mapped if plain and mapped else None,
        "ours_seconds": ours,
        "ours_ratio": plain / ours if plain and ours else None,
        "gpytorch_seconds": seconds.get("GPyTorch"),
        "ours_error": by_name[OURS].error,
    }
    return [row]


SUITE = Suite(
    "kernel-matrix",
    "The covariance matrix, and the time of a closure",
    "Is nested vmap thousands of times faster than broadcasting, or was something timed that is no matrix?",
    sizes=(100, 400, 1200),
    dtypes=("float32", "bfloat16", "float64"),
    run=run,
    allowed=tuple(DTYPES),
    columns=COLUMNS,
    rows=_rows,
)
