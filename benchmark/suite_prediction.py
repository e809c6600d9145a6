"""Prediction: one point again and again against GPyTorch at its defaults, and a million points in bounded memory."""

import functools
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from common import RECORDS, arguments, interleaved, peer, smooth_data

import flashgp as fgp
from flashgp.bench import measure_peak_bytes, write_record

LENGTHSCALE, VARIANCE, NOISE = 1.7, 1.3, 0.05
D = 6

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

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[-1]))

        def forward(self, z: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(z), self.kernel(z))

    model = Model(gpytorch.likelihoods.GaussianLikelihood()).to(x.device, torch.float64)
    model.kernel.base_kernel.lengthscale = LENGTHSCALE
    model.kernel.outputscale = VARIANCE
    model.likelihood.noise = NOISE
    model.eval()
    return model


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


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    warnings.simplefilter("ignore")
    if options.toy:
        post = _setup(20)
        mean, variance = _predict(post, 50)
        assert mean.shape == variance.shape == (50,)
        return 0
    rows = []
    gpytorch = peer("gpytorch")
    if gpytorch is not None and options.only in "one":
        rows.append(one_point(gpytorch, 2000, 21))
        print(rows[-1])
    if options.only in "many":
        rows.append(many_points(2000, POINTS))
        print(rows[-1])
    if not options.only:
        write_record(RECORDS / "prediction.json", {"title": "Prediction", "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
