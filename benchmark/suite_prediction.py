"""Prediction: one point again and again against GPyTorch at its defaults, a million points in bounded memory, and
points of a full-scale posterior.

    python benchmark/suite_prediction.py                # all of them, and the record
    python benchmark/suite_prediction.py --only full    # the full-scale posterior alone, without the record
"""

import functools
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import peer_models
import torch
from common import RECORDS, arguments, interleaved, peer, smooth_data

import flashgp as fgp
from flashgp.bench import measure_peak_bytes, write_record
from flashgp.inference.full_scale.predictor import near_enough

LENGTHSCALE, VARIANCE, NOISE = 1.7, 1.3, 0.05
LITTLE_NOISE = 1e-4  # where a full-scale posterior needs all its neighbours
D = 6
MAX_SECONDS = 1.5e-3  # of a point of a full-scale posterior: what was to be reached

COLUMNS = [
    {"key": "work", "title": "prediction"},
    {"key": "against", "title": "against"},
    {"key": "ours_seconds", "title": "FlashGP"},
    {"key": "peer_seconds", "title": "peer"},
    {"key": "ratio", "title": "times faster"},
    {"key": "target", "title": "at least"},
    {"key": "error", "title": "our error"},
    {"key": "peer_error", "title": "peer's error"},
    {"key": "peak_bytes", "title": "peak above the model"},
]
POINTS = 1_000_000


def posterior(n: int, d: int = D) -> Any:
    """Our posterior of smooth data, float64."""
    x, y = smooth_data(n, d, torch.float64)
    kernel = VARIANCE * fgp.kernels.SquaredExponential(torch.full((d,), LENGTHSCALE, dtype=torch.float64))
    return fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(NOISE)).condition(x, y)


def gpytorch_model(gpytorch: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """GPyTorch's exact model at the same hyperparameters, ready to predict."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[-1]))
    objective = peer_models.exact(x, y, kernel, gpytorch.means.ZeroMean())
    kernel.base_kernel.lengthscale, kernel.outputscale, objective.likelihood.noise = LENGTHSCALE, VARIANCE, NOISE
    return objective.model.eval()


def one_point(gpytorch: Any, n: int, repeats: int) -> dict[str, Any]:
    """Mean and variance of a new point each time; error against a dense float64 solve of the same point."""
    post = posterior(n)
    x, y = post.x, post.y
    d = x.shape[-1]
    points = torch.randn(4 * repeats + 16, 1, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    model = gpytorch_model(gpytorch, x, y)
    turn = {"ours": 0, "peer": 0}

    def ours() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = points[turn["ours"]]
        turn["ours"] += 1
        p = post.predict(z)
        return z, p.mean, p.variance

    def theirs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = points[turn["peer"]]
        turn["peer"] += 1
        with torch.no_grad():
            p = model(z)
            return z, p.mean, p.variance

    timed = interleaved({"ours": ours, "peer": theirs}, repeats, 2)
    k = lambda a, b: VARIANCE * torch.exp(-0.5 * torch.cdist(a / LENGTHSCALE, b / LENGTHSCALE).square())  # noqa: E731
    full = k(x, x) + NOISE * torch.eye(n, dtype=torch.float64)

    def error(found: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
        z, mean, variance = found
        cross = k(z, x)
        solved = torch.linalg.solve(full, torch.cat([y[:, None], cross.T], 1))
        true_mean, true_variance = cross @ solved[:, 0], VARIANCE - (cross @ solved[:, 1:]).squeeze()
        by_mean = float((mean - true_mean).abs().max()) / NOISE**0.5
        return max(by_mean, float((variance - true_variance).abs().max()) / NOISE)

    ours_seconds, peer_seconds = timed["ours"].seconds, timed["peer"].seconds
    return {
        "work": f"mean + variance of one point, n={n}", "against": "GPyTorch, default settings",
        "ours_seconds": ours_seconds, "peer_seconds": peer_seconds, "ratio": peer_seconds / ours_seconds,
        "ours_spread_seconds": timed["ours"].spread, "peer_spread_seconds": timed["peer"].spread,
        "target": 50.0, "met": peer_seconds / ours_seconds >= 50.0,
        "error": error(timed["ours"].result), "peer_error": error(timed["peer"].result), "peak_bytes": None,
        "note": "errors in noise standard deviations (mean) or noise variances (variance), the larger",
    }  # fmt: skip


def _setup(n: int) -> Any:
    post = posterior(n)
    post.predict(post.x[:8]).variance  # noqa: B018 - loads everything that is loaded once
    return post


def _predict(post: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, post.x.shape[-1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    p = post.predict(x)
    return p.mean, p.variance


def many_points(n: int, count: int) -> dict[str, Any]:
    """Peak memory in a fresh process, everything the caller holds (inputs and results) included."""
    peak = measure_peak_bytes(functools.partial(_predict, count=count), setup=functools.partial(_setup, n))
    post = _setup(n)
    started = time.perf_counter()
    mean, variance = _predict(post, count)
    seconds = time.perf_counter() - started
    x = torch.randn(count, post.x.shape[-1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    few = post.predict(x[-5:])
    error = max(float((mean[-5:] - few.mean).abs().max()), float((variance[-5:] - few.variance).abs().max()))
    return {
        "work": f"mean + variance of {count:,} points, n={n}", "against": "memory, at most 1 GiB",
        "ours_seconds": seconds, "peer_seconds": None, "ratio": None, "target": "under 1 GiB", "met": peak < 2**30,
        "error": error, "peer_error": None, "peak_bytes": peak,
        "note": "error: the last points against the same points predicted alone",
    }  # fmt: skip


def full_scale_points(n: int, count: int, sizes: tuple[int, int]) -> dict[str, Any]:
    """New points of smooth data in eight dimensions, after the first one."""
    x, y = smooth_data(n + count, 8, torch.float64)
    kernel = VARIANCE * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((8,), LENGTHSCALE, dtype=torch.float64))
    gp = fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(LITTLE_NOISE))
    inducing, neighbours = sizes
    post = gp.condition(x[count:], y[count:], approximation="full_scale", inducing=inducing, neighbours=neighbours)
    started = time.perf_counter()
    post.predict(x[:1]).variance  # noqa: B018 - finds how many neighbours suffice
    first = time.perf_counter() - started
    points = x[:count]
    started = time.perf_counter()
    p = post.predict(points)
    mean, variance = p.mean, p.variance
    seconds = (time.perf_counter() - started) / len(points)
    few = post.predict(points[-5:])
    error = max(float((mean[-5:] - few.mean).abs().max()), float((variance[-5:] - few.variance).abs().max()))
    return {
        "work": f"mean + variance of a point, full scale, n={n}, {inducing} points, "
        f"{near_enough(post.state).count} neighbours",
        "against": "a limit of 1.5 ms", "ours_seconds": seconds, "peer_seconds": None, "ratio": None,
        "target": MAX_SECONDS, "met": seconds <= MAX_SECONDS, "error": error, "peer_error": None, "peak_bytes": None,
        "first_seconds": first, "note": f"of {len(points):,} points; error: the last ones against the same alone",
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    warnings.simplefilter("ignore")
    if options.toy:
        post = _setup(20)
        mean, variance = _predict(post, 50)
        assert mean.shape == variance.shape == (50,)
        assert full_scale_points(300, 20, (8, 4))["error"] < 1e-9
        return 0
    rows = []
    gpytorch = peer("gpytorch")
    if gpytorch is not None and options.only in "one":
        rows.append(one_point(gpytorch, 2000, 21))
        print(rows[-1])
    if options.only in "many":
        rows.append(many_points(2000, POINTS))
        print(rows[-1])
    if options.only in "full":
        rows.append(full_scale_points(36_000, 4000, (512, 48)))
        print(rows[-1])
    if not options.only:
        write_record(RECORDS / "prediction.json", {"title": "Prediction", "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
