"""One command for a machine with a GPU: are the Triton backend and the approximations right there, and how fast?

    make gpu-check        (or: PYTHONPATH=src python benchmark/gpu_check.py)

Works from source (PYTHONPATH says where that is, also to its processes), without a network, with torch, triton, numpy
and what flashgp imports. First correctness, shared out over processes because compiling takes longest; then speed,
alone on the device, timed with CUDA events, each with the error of sampled rows against float64 and the peak of
allocated memory. What the time budget leaves out is named. Records go to benchmark/records/gpu_correctness.json,
gpu_speed.json and, where time is left, gpu_linalg.json.

Without a GPU, or with --interpret, a few small cases run under Triton's interpreter instead and nothing is recorded.
"""

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashgp import kernels
from flashgp.kernels import REGISTRY, Kernel
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.pairwise.triton import TritonTiles
from flashgp.pairwise.triton.launch import LaunchSettings, TileShape

RECORDS = Path(__file__).resolve().parent / "records"
BUDGET_SECONDS = 450
CORRECTNESS_SHARE = 0.5  # of the budget at most
EPS = torch.finfo(torch.float32).eps
PRODUCT_TOLERANCE = 1e-5  # of (|K| |V|)_i: the error class of tensor-core distances; by differences 1e-6 is expected
GRADIENT_TOLERANCE = 1000 * EPS  # of the largest entry: sums of about 1000 terms of either sign
APPROXIMATIONS = ("full_scale", "sparse")
APPROXIMATION_TOLERANCE = 1e-8  # of numbers that both compute in float64
FIT_TOLERANCE = 1e-3  # nats a row, between searches of three evaluations each
SAMPLED_ROWS = 128
LINALG_SECONDS = 90.0  # of the budget that must be left for fgp.linalg, whose rates are measured first

TRITON, TORCH = TritonTiles(), TorchTiles()


# -- correctness --------------------------------------------------------------------------------------------------
def points(n: int, d: int, device: str, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def table(name: str, n: int, d: int, device: str, seed: int) -> Tensor:
    """Points for a registered covariance function, rows repeating."""
    if REGISTRY[name].inputs == "codes":
        x = torch.randint(0, 4, (n, d), generator=torch.Generator().manual_seed(seed)).double().to(device)
    else:
        x = points(n, d, device, seed)
    if n > 2:
        x[2] = x[0]
    return x


def gradients(found: PairGradient) -> list[Tensor | None]:
    return [*found.rows, *found.cols, *found.theta]


def errors(kernel: Kernel, x: Tensor, z: Tensor | None, t: int) -> dict[str, float]:
    """The largest error of each operation against float64: of (|K||V|)_i, of 1, of the largest gradient."""
    form, theta = kernel.form, [p.detach().to(x.device) for p in kernel.theta()]
    rows, cols = kernel.rows(x).detach(), None if z is None else kernel.rows(z).detach()
    m = (x if z is None else z).shape[-2]
    generator = torch.Generator().manual_seed(1)
    right = torch.randn(m, t, generator=generator).to(x.device)
    left = torch.randn(x.shape[-2], t, generator=generator).to(x.device)
    wanted = TORCH.block(PairProblem(form, theta, rows, cols), dtype=torch.float64)
    block = TRITON.block(PairProblem(form, theta, rows, cols), dtype=torch.float32)
    product = TRITON.product(PairProblem(form, theta, rows, cols), right)
    scale = wanted.abs() @ right.double().abs()
    found = {
        "block": float((block.double() - wanted).abs().max() / wanted.abs().max()),
        "product": float(((product.double() - wanted @ right.double()).abs() / scale.clamp_min(1e-300)).max()),
    }
    weights = left @ right.mT if z is not None else (left @ right.mT + right @ left.mT) / 2
    for name, ours, theirs in (
        (
            "bilinear_gradient",
            TRITON.bilinear_gradient(PairProblem(form, theta, rows, cols), left, right),
            TORCH.bilinear_gradient(PairProblem(form, theta, rows, cols), left.double(), right.double()),
        ),
        (
            "block_gradient",
            TRITON.block_gradient(PairProblem(form, theta, rows, cols), weights),
            TORCH.block_gradient(PairProblem(form, theta, rows, cols), weights.double()),
        ),
    ):
        worst = 0.0
        for a, b in zip(gradients(ours), gradients(theirs), strict=True):
            if a is not None and b is not None and b.numel():
                worst = max(worst, float((a.double() - b).abs().max() / b.abs().max().clamp_min(1.0)))
            elif (a is None) != (b is None) and b is not None and float(b.abs().max()) > 0:
                worst = float("inf")
        found[name] = worst
    return found


Check = tuple[str, Callable[[str], dict[str, float]]]


def checks(small: bool) -> Iterator[Check]:
    """Every form of the registry once, then sizes, scales, offsets and what only a device can show."""
    seen = set()
    for name, row in REGISTRY.items():
        for index, kernel in enumerate(row.examples(3)):
            if kernel.form in seen or (small and name not in ("SquaredExponential", "Sum")):
                continue
            seen.add(kernel.form)
            n, m = (17, 5) if small else (1000, 777)
            t = 11 if index % 2 else 2

            def run(
                device: str, k: Kernel = kernel, w: str = name, n: int = n, m: int = m, t: int = t
            ) -> dict[str, float]:
                k = k.to(device)
                return errors(k, table(w, n, 3, device, 0), table(w, m, 3, device, 1), t)

            yield f"{name}-{index}", run
    if not small:
        yield "exact fit", exact_fit
        yield "exact conditioning without storing K", conditioning
    for kind in APPROXIMATIONS:
        yield f"approximation {kind}", lambda device, kind=kind: approximation(kind, device, 300 if small else 2000)
    if small:
        return
    if importlib.util.find_spec("cufinufft") is not None:
        yield "approximation fourier", lambda device: series(device)
    matern, rbf = kernels.Matern, kernels.SquaredExponential
    for d in (1, 8, 9, 26, 64, 65, 200):
        yield f"d{d}", lambda device, d=d: errors(matern(1.5, d**0.5).to(device), points(700, d, device), None, 5)
    for n, m, t in ((1, 1, 1), (1, 5000, 3), (5000, 1, 3), (127, 129, 1), (129, 257, 64), (300, 301, 130)):
        label = f"n{n}-m{m}-t{t}"
        yield (
            label,
            lambda device, n=n, m=m, t=t: errors(
                matern(2.5).to(device), points(n, 3, device), points(m, 3, device, 1), t
            ),
        )
    for d in (3, 26):
        for scale in (0.03, 0.3, 1e-8, 1e8):
            label = f"lengthscale {scale:g} sqrt({d})"
            yield (
                label,
                lambda device, d=d, s=scale: errors(rbf(s * d**0.5).to(device), points(900, d, device), None, 3),
            )
        yield (
            f"x + 1000, d={d}",
            lambda device, d=d: errors(matern(1.5, d**0.5).to(device), points(900, d, device) + 1000, None, 3),
        )
    mixed = rbf() * kernels.Periodic(2.0) + kernels.Linear(0.1)
    yield "mixed d=20", lambda device: errors(mixed.to(device), points(600, 20, device), points(500, 20, device, 1), 16)
    yield "equal rows, equal bits", equal_rows
    yield "CUDA graph", graph
    yield "side stream", side_stream
    yield "no waiting", no_waiting


def approximation(kind: str, device: str, n: int) -> dict[str, float]:
    from gpu_approximations import agreement

    return agreement(kind, device, n)


def series(device: str) -> dict[str, float]:
    from gpu_approximations import agreement_of_series

    return agreement_of_series(device)


def exact_fit(device: str) -> dict[str, float]:
    """A fit of a dense covariance matrix: the predictions of the device and of the CPU."""
    from gpu_approximations import data, prior

    import flashgp as fgp

    (x, y), test = data(2000, 3), data(50, 3)[0] + 0.003
    places = (device, "cpu")
    made = [fgp.fit(prior(3), x.to(p), y.to(p), starts=1, progress=False).posterior.predict(test.to(p)) for p in places]
    found, wanted = made
    return {
        "mean": float((found.mean.cpu() - wanted.mean).abs().max() / wanted.mean.abs().max()),
        "variance": float((found.variance.cpu() - wanted.variance).abs().max() / wanted.variance.abs().max()),
    }


def conditioning(device: str) -> dict[str, float]:
    """Conjugate gradients on products by Triton: off by less than the bound in the report, beside a factor."""
    from gpu_approximations import data, prior

    import flashgp as fgp

    (x, y), test = data(8000, 3), data(50, 3)[0] + 0.003
    gp = prior(3).to(device)
    plan = fgp.plan(gp, *x.shape, device=device, solver="cg", route="recomputed")
    posterior = gp.condition(x.to(device), y.to(device), plan=plan)
    found = posterior.predict(test.to(device)).mean.cpu()
    wanted = prior(3).condition(x, y, solver="cholesky").predict(test).mean
    bound = posterior.report.error_bound
    assert "triton" in posterior.report.backend, posterior.report.backend
    assert bound is not None
    return {"bounded": float((found - wanted).abs().max()) / bound}


def _example(device: str, d: int = 3, n: int = 3000) -> tuple[Kernel, list[Tensor], Any, Tensor]:
    kernel = (2.0 * kernels.Matern(1.5, d**0.5)).to(device)
    right = torch.randn(n, 2, generator=torch.Generator().manual_seed(2)).to(device)
    return kernel, [t.detach() for t in kernel.theta()], kernel.rows(points(n, d, device)).detach(), right


def equal_rows(device: str) -> dict[str, float]:
    """Distances of equal rows are 0 to the last bit on every route; equal calls give equal bits."""
    off = 0.0
    for d in (3, 26, 200):
        kernel, theta, rows, right = _example(device, d)
        block = TRITON.block(PairProblem(kernel.form, theta, rows), dtype=torch.float32)
        off = max(off, float((block.diagonal() - 2.0).abs().max()), float((block - block.mT).abs().max()))
        one, two = (TRITON.product(PairProblem(kernel.form, theta, rows), right) for _ in range(2))
        off = max(off, float((one - two).abs().max()))
    return {"exact": off}


def graph(device: str) -> dict[str, float]:
    """A product and its gradient captured once and replayed on other right-hand sides."""
    kernel, theta, rows, right = _example(device, 26)
    left = right.flip(0).contiguous()

    def work() -> list[Tensor]:
        pulled = TRITON.bilinear_gradient(PairProblem(kernel.form, theta, rows), left, right)
        return [
            TRITON.product(PairProblem(kernel.form, theta, rows), right),
            *(g for g in gradients(pulled) if g is not None),
        ]

    work()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = work()
    right.mul_(-1.5)
    captured.replay()
    torch.cuda.synchronize()
    return {"exact": max(float((a - b).abs().max()) for a, b in zip(out, work(), strict=True))}


def side_stream(device: str) -> dict[str, float]:
    """Work goes to the current stream: what a side stream computes waits for what that stream was given before."""
    kernel, theta, rows, right = _example(device)
    wanted = TRITON.product(PairProblem(kernel.form, theta, rows), right * 3)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        found = TRITON.product(PairProblem(kernel.form, theta, rows), right * 3)
    stream.synchronize()
    return {"exact": float((found - wanted).abs().max())}


def no_waiting(device: str) -> dict[str, float]:
    """No call waits for the device: torch raises on every synchronising call in this mode."""
    kernel, theta, rows, right = _example(device)

    def work() -> None:
        TRITON.product(PairProblem(kernel.form, theta, rows), right)
        TRITON.block(PairProblem(kernel.form, theta, rows), dtype=torch.float32)
        TRITON.bilinear_gradient(PairProblem(kernel.form, theta, rows), right, right)

    work()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"exact": 0.0}


def run_checks(device: str, part: int, parts: int, seconds: float, small: bool) -> list[dict[str, Any]]:
    """The checks of one part; what is left when the time is over is named as not run."""
    deadline, results = time.monotonic() + seconds, []
    for position, (label, check) in enumerate(checks(small)):
        if position % parts != part:
            continue
        if time.monotonic() > deadline:
            results.append({"check": label, "outcome": "not run: the time budget was used up"})
            continue
        try:
            found = check(device)
        except Exception as error:  # recorded and reported: one failure must not hide the others
            results.append({"check": label, "outcome": f"failed: {type(error).__name__}: {str(error)[:500]}"})
            continue
        limits = {
            "exact": 0.0,
            "bounded": 1.0,
            "block": PRODUCT_TOLERANCE,
            "product": PRODUCT_TOLERANCE,
            "fit": FIT_TOLERANCE,
        }
        limits |= dict.fromkeys(("value", "gradient", "mean", "variance"), APPROXIMATION_TOLERANCE)
        bad = [k for k, v in found.items() if not v <= limits.get(k, GRADIENT_TOLERANCE)]
        outcome = "ok" if not bad else f"failed: {', '.join(bad)} beyond the tolerance"
        finite = {k: (v if v < float("inf") else None) for k, v in found.items()}
        results.append({"check": label, "outcome": outcome, "errors": finite})
    return results


def correctness(seconds: float) -> list[dict[str, Any]]:
    """All checks, shared out over processes: they compile at the same time."""
    parts = max(1, min(8, (os.cpu_count() or 2) // 2))
    command = [sys.executable, str(Path(__file__)), "--part"]
    workers = [
        subprocess.Popen(
            [*command, f"{part}/{parts}", "--seconds", str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in range(parts)
    ]
    results: list[dict[str, Any]] = []
    for part, worker in enumerate(workers):
        try:
            out, err = worker.communicate(timeout=seconds + 60)
            results += json.loads(out.splitlines()[-1])
        except (subprocess.TimeoutExpired, json.JSONDecodeError, IndexError):
            worker.kill()
            _, err = worker.communicate()
            results.append({"check": f"process {part}", "outcome": f"failed: it ended without a result: {err[-800:]}"})
    return results


# -- speed ----------------------------------------------------------------------------------------------------------
def timed(work: Callable[[], Any], repeats: int = 3) -> tuple[Any, list[float]]:
    """The last result and the seconds of each repeat by CUDA events, after one run to warm up."""
    result = work()
    seconds = []
    for _ in range(repeats):
        result = None
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        result = work()
        last.record()
        last.synchronize()
        seconds.append(first.elapsed_time(last) / 1e3)
    return result, seconds


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def product_cell(
    name: str,
    kernel: Kernel,
    n: int,
    d: int,
    t: int,
    device: str = "cuda",
    offset: float = 0.0,
    triton: Backend = TRITON,
) -> dict[str, Any]:
    """Pairs per second of K V, its error on sampled rows, and its memory."""
    kernel = kernel.to(device)
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64, device=device) + offset
    right = torch.randn(n, t, generator=generator, device=device)
    rows, theta, form = kernel.rows(x).detach(), [p.detach() for p in kernel.theta()], kernel.form
    small = kernel.rows(x[:4096]).detach()
    started = time.perf_counter()
    triton.product(PairProblem(form, theta, small), right[:4096].contiguous())
    torch.cuda.synchronize()
    compile_seconds = time.perf_counter() - started
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out, seconds = timed(lambda: triton.product(PairProblem(form, theta, rows), right))
    peak = torch.cuda.max_memory_allocated() - before
    some = torch.randperm(n, generator=torch.Generator().manual_seed(1))[:SAMPLED_ROWS].to(device)
    sample = kernel.rows(x[some]).detach()
    wanted, scale = [], []
    for first in range(0, SAMPLED_ROWS, 16):
        strip = TORCH.block(PairProblem(form, theta, sample.part(first, first + 16), rows), dtype=torch.float64)
        wanted.append(strip @ right.double())
        scale.append(strip.abs_() @ right.double().abs())
    off = out[some].double() - torch.cat(wanted)
    error = float((off.abs() / torch.cat(scale)).max())
    norm = float(off.norm() / torch.cat(wanted).norm())
    median = _median(seconds)
    return {
        "work": name, "n": n, "d": d, "t": t, "seconds": median, "spread_seconds": max(seconds) - min(seconds),
        "pairs_per_second": n * n / median, "max_relative_error": error, "norm_relative_error": norm,
        "peak_bytes_above_data": peak, "compile_seconds": compile_seconds,
    }  # fmt: skip


def gradient_cell(name: str, kernel: Kernel, n: int, d: int, t: int, device: str = "cuda") -> dict[str, Any]:
    """Seconds of the gradient by all rows and parameters, beside those of a product with as many columns."""
    kernel = kernel.to(device)
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64, device=device)
    left, right = (torch.randn(n, t, generator=generator, device=device) for _ in range(2))
    rows, theta, form = kernel.rows(x).detach(), [p.detach() for p in kernel.theta()], kernel.form
    _, product = timed(lambda: TRITON.product(PairProblem(form, theta, rows), right))
    _, seconds = timed(lambda: TRITON.bilinear_gradient(PairProblem(form, theta, rows), left, right))
    return {
        "work": name, "n": n, "d": d, "t": t, "seconds": _median(seconds), "pairs_per_second": n * n / _median(seconds),
        "products": _median(seconds) / _median(product),
    }  # fmt: skip


def block_cell(n: int, d: int, device: str = "cuda") -> dict[str, Any]:
    kernel = kernels.SquaredExponential(d**0.5).to(device)
    rows = kernel.rows(points(n, d, device)).detach()
    _, seconds = timed(lambda: TRITON.block(PairProblem(kernel.form, [], rows), dtype=torch.float32))
    written = n * n * 4 / _median(seconds)
    return {"work": "dense block", "n": n, "d": d, "seconds": _median(seconds), "written_bytes_per_second": written}


def keops_cell(kind: str, n: int, d: int, t: int, device: str = "cuda") -> dict[str, Any]:
    """The same product by KeOps."""
    from pykeops.torch import LazyTensor

    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(n, d, generator=generator, device=device) / d**0.5
    right = torch.randn(n, t, generator=generator, device=device)
    q = ((LazyTensor(x[:, None, :]) - LazyTensor(x[None, :, :])) ** 2).sum(-1)
    matrix = (-q / 2).exp() if kind == "rbf" else (1 + 3**0.5 * q.sqrt()) * (-(3**0.5) * q.sqrt()).exp()
    _, seconds = timed(lambda: matrix @ right, repeats=1)
    return {
        "work": f"KeOps {kind}",
        "n": n,
        "d": d,
        "t": t,
        "seconds": seconds[0],
        "pairs_per_second": n * n / seconds[0],
    }


def gpytorch_cell(n: int, d: int, device: str = "cuda") -> dict[str, Any]:
    """GPyTorch's dense matrix and its product with one vector."""
    from gpytorch.kernels import RBFKernel

    kernel = RBFKernel().to(device)
    kernel.lengthscale = d**0.5
    x = points(n, d, device).float()
    right = torch.randn(n, 1, device=device)
    with torch.no_grad():
        _, seconds = timed(lambda: kernel(x).to_dense() @ right)
    return {
        "work": "GPyTorch dense rbf", "n": n, "d": d, "t": 1, "seconds": _median(seconds),
        "pairs_per_second": n * n / _median(seconds),
    }  # fmt: skip


SWEEP = {
    "few": (3, 1, [(64, 64, 4, 2), (32, 32, 4, 2), (64, 16, 4, 2), (128, 32, 4, 2)]),
    "many": (26, 64, [(128, 64, 8, 3), (64, 64, 4, 2)]),
}


def conditioning_cell(n: int, d: int, device: str = "cuda", **options: Any) -> dict[str, Any]:
    """Seconds of a posterior given the hyperparameters, the second of two; memory beside what the plan said."""
    from gpu_approximations import data, prior

    x, y = (t.to(device) for t in data(n, d))
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, started = torch.cuda.memory_allocated(), time.perf_counter()
        report = prior(d).to(device).condition(x, y, **options).report
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated() - before
    work = ", ".join(map(str, options.values())) or "dense"
    return {
        "work": f"posterior, {work}", "n": n, "d": d, "seconds": seconds, "route": report.route,
        "backend": report.backend, "iterations": report.iterations, "relative_residual": report.relative_residual,
        "error_bound": report.error_bound, "peak_bytes_above_data": peak, "planned_bytes": report.predicted_bytes,
        "planned_seconds": report.predicted_seconds,
    }  # fmt: skip


def approximation_cell(kind: str, n: int, d: int, device: str = "cuda") -> dict[str, Any]:
    """Seconds of a value with its gradient, 512 inducing points, float64."""
    from gpu_approximations import MANY, data, objective

    x, y = data(n, d)
    of = objective(kind, x.to(device), y.to(device), MANY)
    theta = of.parameters.values()
    _, seconds = timed(lambda: of(theta))
    return {"work": f"value and gradient, {kind}", "n": n, "d": d, "seconds": _median(seconds)}


def sweep_cell(which: str, tile: Sequence[int], n: int = 200_000) -> dict[str, Any]:
    """Another tile for the two kernels that matter most: which shape should be the built-in one?"""
    d, t, _ = SWEEP[which]
    triton = TritonTiles(LaunchSettings(shapes={which: TileShape(*tile)}))
    kernel = kernels.SquaredExponential(d**0.5) if which == "few" else kernels.Matern(1.5, d**0.5)
    return product_cell(f"sweep {which} {tuple(tile)}", kernel, n, d, t, triton=triton) | {"tile": list(tile)}


def cells() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What is measured, the most wanted first."""
    rbf, matern, million = kernels.SquaredExponential, kernels.Matern, 1_000_000
    yield "rbf d3 t1", lambda: product_cell("RBF", rbf(3**0.5), million, 3, 1)
    yield "matern d26 t64", lambda: product_cell("Matern-3/2", matern(1.5, 26**0.5), million, 26, 64)
    if importlib.util.find_spec("pykeops") is not None:
        yield "keops rbf d3 t1", lambda: keops_cell("rbf", million, 3, 1)
        yield "keops matern d26 t64", lambda: keops_cell("matern", 100_000, 26, 64)
        yield "keops rbf d26 t1", lambda: keops_cell("rbf", 200_000, 26, 1)
    for kind in APPROXIMATIONS:
        yield f"value and gradient, {kind}", lambda kind=kind: approximation_cell(kind, 36_000, 8)
    for n, options in (
        (20_000, {}), (100_000, {"solver": "cg"}), (300_000, {"solver": "cg"}), (20_000, {"solver": "cg"}),
        (100_000, {"approximation": "full_scale"}), (100_000, {"approximation": "sparse"}),
    ):  # fmt: skip
        yield f"condition {n} {options}", lambda n=n, options=options: conditioning_cell(n, 3, **options)
    for d, t in ((3, 1), (8, 16), (26, 1), (26, 64), (90, 16)):
        yield (
            f"portable d{d} t{t}",
            lambda d=d, t=t: product_cell("portable RBF", rbf(d**0.5), 50_000, d, t, triton=TORCH),
        )
    for which in SWEEP:
        for tile in SWEEP[which][2]:
            yield f"sweep {which} {tile}", lambda w=which, s=tile: sweep_cell(w, s)
    yield "gradient d3 t1", lambda: gradient_cell("gradient RBF", 2.0 * rbf(3**0.5), 200_000, 3, 1)
    yield "gradient d3 t11", lambda: gradient_cell("gradient RBF", 2.0 * rbf(3**0.5), 200_000, 3, 11)
    yield "gradient d26 t11", lambda: gradient_cell("gradient Matern-3/2", 2.0 * matern(1.5, 26**0.5), 200_000, 26, 11)
    for d, t in ((3, 1), (8, 1), (8, 16), (26, 1), (26, 16), (90, 16)):
        for factor in (1.0, 0.3):
            label = f"RBF {factor:g} sqrt(d)"
            yield (
                f"{label} d{d} t{t}",
                lambda f=factor, d=d, t=t, w=label: product_cell(w, rbf(f * d**0.5), 200_000, d, t),
            )
    yield "x + 1000", lambda: product_cell("RBF x + 1000", rbf(3**0.5), 200_000, 3, 1, offset=1000.0)
    yield "short", lambda: product_cell("RBF 0.03 sqrt(d)", rbf(0.03 * 3**0.5), 200_000, 3, 1)
    mixed = rbf(3**0.5) * kernels.Periodic(2.0) + kernels.Linear()
    yield "mixed", lambda: product_cell("RBF * Periodic + Linear", mixed, 200_000, 3, 1)
    yield "matern d3", lambda: product_cell("Matern-3/2", matern(1.5, 3**0.5), million, 3, 1)
    yield "small", lambda: product_cell("RBF, launches", rbf(3**0.5), 1000, 3, 1)
    yield "block d8", lambda: block_cell(32768, 8)
    yield "block d26", lambda: block_cell(32768, 26)
    if importlib.util.find_spec("gpytorch") is not None:
        yield "gpytorch", lambda: gpytorch_cell(32768, 8)


def speed(deadline: float) -> list[dict[str, Any]]:
    """Cells in turn until the time is over."""
    missing = [peer for peer in ("pykeops", "gpytorch") if importlib.util.find_spec(peer) is None]
    rows: list[dict[str, Any]] = [{"work": peer, "outcome": "not measured: not installed"} for peer in missing]
    for label, cell in cells():
        if time.monotonic() > deadline:
            rows.append({"work": label, "outcome": "not measured: the time budget was used up"})
            continue
        try:
            row = cell() | {"outcome": "measured"}
        except Exception as error:  # a peer or a tile that does not run is a result too
            row = {"work": label, "outcome": f"not measured: {type(error).__name__}: {str(error)[:300]}"}
        torch.cuda.empty_cache()
        rows.append(row)
        print(_line(row), flush=True)
    return rows


COLUMNS = [
    {"key": "work", "title": "work"}, {"key": "n", "title": "rows", "format": "integer"},
    {"key": "d", "title": "columns", "format": "integer"},
    {"key": "t", "title": "right-hand sides", "format": "integer"}, {"key": "backend", "title": "backend"},
    "seconds", {"key": "giga_pairs", "title": "G pairs/s", "format": "integer"},
    {"key": "max_relative_error", "title": "largest error", "format": "error"},
    {"key": "relative_residual", "title": "relative residual", "format": "error"},
    {"key": "peak_bytes_above_data", "title": "peak above the data", "format": "bytes"},
]  # fmt: skip


def table_rows(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a page shows of the cells: those measured, tiles of a sweep left out."""
    shown = []
    for row in results:
        if row["outcome"] == "measured" and not row["work"].startswith("sweep"):
            kept = {k: v for k, v in row.items() if k != "outcome"}
            pairs = row.get("pairs_per_second")
            shown.append(kept | ({} if pairs is None else {"giga_pairs": pairs / 1e9}))
    return shown


def _line(row: dict[str, Any]) -> str:
    if row["outcome"] != "measured":
        return f"{row['work']}: {row['outcome']}"
    text = f"{row['work']}, n={row['n']} d={row['d']}" + (f" t={row['t']}" if "t" in row else "")
    text += f": {row['seconds'] * 1e3:.2f} ms"
    text += f", {row['pairs_per_second']:.3g} pairs/s" if "pairs_per_second" in row else ""
    text += f", {row['route']} by {row['backend']}, {row['iterations']} iterations" if "route" in row else ""
    text += f", error {row['max_relative_error']:.1e}" if "max_relative_error" in row else ""
    return text + (f", {row['products']:.2f} products" if "products" in row else "")


def linalg(deadline: float, records: Path) -> None:
    """The choice of fgp.linalg beside each device, until the time is over; `make bench` measures all of it."""
    from suite_linalg import ORDERS, measured_rates, payload, rows_of

    from flashgp.bench import write_record

    if time.monotonic() > deadline - LINALG_SECONDS:
        print("fgp.linalg: not measured: the time budget was used up")
        return
    measured_rates()
    rows = list(rows_of(ORDERS[::2], deadline=deadline))
    missed = [f"{r['work']} {r['dtype']} n={r['n']} on {r['home']}" for r in rows if not r["met"]]
    print(f"fgp.linalg: {len(rows) - len(missed)} of {len(rows)} choices as quick as promised; {', '.join(missed)}")
    if rows:
        write_record(records / "gpu_linalg.json", payload("fgp.linalg on a GPU", rows))


# -- the command ------------------------------------------------------------------------------------------------------
def interpreted() -> int:
    """The small checks under Triton's interpreter, in a process of their own."""
    if importlib.util.find_spec("triton") is None:
        print("gpu-check: no GPU, and triton is not installed: nothing was checked")
        return 0
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(Path(__file__)), "--part", "0/1", "--small"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        print(run.stderr[-3000:])
        return 1
    results = json.loads(run.stdout.splitlines()[-1])
    failed = [r for r in results if r["outcome"] != "ok"]
    for result in failed:
        print(f"gpu-check: {result['check']}: {result['outcome']}")
    print(f"gpu-check: no GPU was used; {len(results) - len(failed)} of {len(results)} interpreted checks passed")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpret", action="store_true", help="run the small checks under Triton's interpreter")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds for everything")
    parser.add_argument("--records", type=Path, default=RECORDS, help="the folder of the records")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=BUDGET_SECONDS, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    started = time.monotonic()
    if given.part:
        part, parts = map(int, given.part.split("/"))
        device = "cpu" if given.small else "cuda"
        print(json.dumps(run_checks(device, part, parts, given.seconds, given.small)))
        return 0
    if given.interpret or not torch.cuda.is_available():
        if not given.interpret:
            print("gpu-check: torch finds no CUDA device")
        return interpreted()

    from flashgp.bench import write_record

    print(
        f"gpu-check: {torch.cuda.get_device_name()}, torch {torch.__version__}, budget {given.budget:.0f} s", flush=True
    )
    results = correctness(CORRECTNESS_SHARE * given.budget)
    failed = [r for r in results if r["outcome"].startswith("failed")]
    skipped = [r for r in results if r["outcome"].startswith("not run")]
    for result in (*failed, *skipped):
        print(f"{result['check']}: {result['outcome']}")
    print(f"{len(results) - len(failed) - len(skipped)} of {len(results)} checks passed", flush=True)
    importlib.import_module("triton")  # a record names the versions of what is imported

    seconds = time.monotonic() - started
    write_record(
        given.records / "gpu_correctness.json", {"title": "GPU checks", "seconds": seconds, "results": results}
    )
    kept = LINALG_SECONDS if given.budget >= BUDGET_SECONDS else 0.0
    rows = speed(started + given.budget - kept)
    payload = {
        "title": "Products and posteriors on a GPU", "seed": 0, "correct": not failed, "results": rows,
        "columns": COLUMNS, "rows": table_rows(rows),
    }  # fmt: skip
    write_record(given.records / "gpu_speed.json", payload)
    linalg(started + given.budget, given.records)
    print(f"gpu-check: {time.monotonic() - started:.0f} s; records in {given.records}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
