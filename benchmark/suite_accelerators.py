"""What PyTorch's accelerators are worth here: each question with its seconds before and after, and its error.

Both ways of a row are timed in turns in one process, and both answers are held against the same one in float64. What
docs/performance.md says of each comes from this record, and so does the curve of tile sizes.
"""

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from common import RECORDS, arguments, interleaved, smooth_data
from torch import Tensor, nn

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.foundations.workspace import Workspace
from flashgp.inference.system import CovarianceSystem
from flashgp.solvers.preconditioners.low_rank import LowRank, tall_times, tall_transposed_times
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import LowRankSettings

COLUMNS = [
    {"key": "question", "title": "question"},
    {"key": "before", "title": "before"},
    {"key": "before_seconds", "title": "seconds"},
    {"key": "after", "title": "after"},
    {"key": "after_seconds", "title": "seconds"},
    {"key": "ratio", "title": "times faster"},
    {"key": "before_error", "title": "error before"},
    {"key": "after_error", "title": "error after"},
    {"key": "verdict", "title": "adopted"},
]
TILE_COLUMNS = [
    {"key": "pairs", "title": "pairs per tile", "format": "integer"},
    {"key": "float32_seconds", "title": "float32"},
    {"key": "float64_seconds", "title": "float64"},
]
TILES = [2**power for power in range(14, 23)]
TILED_ROWS = 12_000  # so many that a plan may take the larger ones
RANK = 512
UNBOUNDED_BYTES = 2**62  # a plan would halve a tile that passes its bytes
Job = Callable[[], Tensor]


def _kernel(d: int, scale: float = 1.0) -> Any:
    return 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((d,), scale * math.sqrt(d), dtype=torch.float64))


def _product(kernel: Any, x: Tensor, V: Tensor, plan: Any = None) -> Job:
    def run() -> Tensor:
        with torch.no_grad():
            return kernel.operator(x, plan=plan) @ V

    return run


def _row(
    question: str, before: str, slow: Job, after: str, quick: Job, truth: Job, verdict: str, repeats: int
) -> dict[str, Any]:
    timed = interleaved({"before": slow, "after": quick}, repeats, warmup=2, least_seconds=0.1)
    wanted = truth().double()

    def error(answer: Tensor) -> float:
        return float((answer.double() - wanted).abs().max() / wanted.abs().max())

    return {
        "question": question, "before": before, "after": after,
        "before_seconds": timed["before"].seconds, "after_seconds": timed["after"].seconds,
        "before_spread": timed["before"].spread, "after_spread": timed["after"].spread,
        "ratio": timed["before"].seconds / timed["after"].seconds,
        "before_error": error(timed["before"].result), "after_error": error(timed["after"].result),
        "verdict": verdict,
    }  # fmt: skip


class Network(nn.Module):
    """A feature map of the usual size: 8 columns to 2 by two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(8, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


def rational(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """A user's own covariance function."""
    q = ((x - y) / scale).square().sum(-1)
    return torch.exp(-torch.sqrt(q + 1e-6)) / (1.0 + q)


def compiled_features(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    """What torch.compile is worth for a feature map."""
    x, _ = smooth_data(n, 8, torch.float32)
    V = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))
    x64, V64 = x.double(), V.double()
    network = Network()
    warped = fgp.kernels.Warped(network, _kernel(2))
    wide = torch.cat([x] * 10)
    yield _row(
        f"torch.compile of a feature map, {10 * n:,} rows, the features alone",
        "eager", _features(warped, wide), "compiled", _features(_compiled(network), wide), _features(warped, wide),
        "by the user: Warped(torch.compile(net), k)", repeats,
    )  # fmt: skip
    yield _row(
        f"the same, in a product of {n:,} rows with 4 columns",
        "eager", _product(warped, x, V), "compiled", _product(_compiled(network), x, V), _product(warped, x64, V64),
        "by the user", repeats,
    )  # fmt: skip


def questions(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    """The other rows of the table."""
    x, y = smooth_data(n, 8, torch.float32)
    V = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))
    x64, V64 = x.double(), V.double()
    warped, wide = fgp.kernels.Warped(Network(), _kernel(2)), torch.cat([x] * 10)
    yield _row(
        f"torch.autocast of a feature map, {10 * n:,} rows, the features alone",
        "float32", _features(warped, wide), "bfloat16", _in_bfloat16(_features(warped, wide)), _features(warped, wide),
        "the caller's autocast is honoured, and said", repeats,
    )  # fmt: skip
    custom = fgp.kernels.Custom(rational, scale=1.7)
    tiled = custom.operator(x).plan(4, backend="torch")
    yield _row(
        f"a Custom function, product of {n:,} rows", "torch tiles", _product(custom, x, V, tiled), "traced, compiled",
        _product(custom, x, V), _product(custom, x64, V64), "yes, from 1e7 pairs on", repeats,
    )  # fmt: skip
    plain = _kernel(8)
    yield _row(
        f"float32 inside a product of {n:,} rows", "float64", _product(plain, x64, V64), "float32",
        _product(plain, x, V), _product(plain, x64, V64), "follows x; sums and residuals stay float64", repeats,
    )  # fmt: skip
    columns = x.T.contiguous().T
    yield _row(
        f"rows stored by columns, product of {n:,} rows", "by columns", _product(plain, columns, V), "contiguous",
        _product(plain, x, V), _product(plain, x64, V64), "features are packed by us: either will do", repeats,
    )  # fmt: skip
    few = max(60, n // 4)
    gp = fgp.GP(plain, fgp.means.Zero(), fgp.likelihoods.Gaussian(0.01))
    xs, ys, points = x64[:few], y[:few].double(), x64[few : few + 200]
    plans = {kind: fgp.plan(gp, n=few, d=8, route=kind) for kind in ("direct", "refined")}

    def mean(kind: str) -> Job:
        return lambda: gp.condition(xs, ys, plan=plans[kind]).predict(points).mean

    yield _row(
        f"a factor of {few:,} rows", "float64", mean("direct"), "float32, refined in float64", mean("refined"),
        mean("direct"), "where a float64 factor takes over 10 s, or does not fit", repeats,
    )  # fmt: skip
    posterior = gp.condition(xs, ys)
    many = x64[: max(60, n // 10)]
    yield _row(
        f"predicting {len(many):,} points from {few:,} rows", "100 at a time",
        lambda: torch.cat([posterior.predict(part).variance for part in many.split(100)]), "in one call",
        lambda: posterior.predict(many).variance, lambda: posterior.predict(many).variance,
        "one call: strips of it are cut by us", repeats,
    )  # fmt: skip
    yield from _preconditioner(n, repeats)


def _preconditioner(n: int, repeats: int) -> Iterator[dict[str, Any]]:
    """What an iteration of a solve spends beside its product: two halves of a preconditioner of low rank."""
    x, _ = smooth_data(n // 2, 8, torch.float64)
    rows, few = len(x), torch.randn(n // 2, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        operator = _kernel(8, 0.5).operator(x)
        system = CovarianceSystem(operator, torch.full((rows,), 0.1, dtype=torch.float64), workspace=Workspace())
        partial = partial_cholesky(system, limit=min(RANK, rows // 4), settings=LowRankSettings(trace_share=0.0))
        P = partial.factor @ partial.factor.mT + torch.diag(system.noise)
        usual = LowRank(partial, system.noise)
    Q = usual.basis.mT.contiguous().mT  # by columns, as F is
    assert (rows * partial.rank**2 >= usual.settings.min_gram_flops) == (usual.skew > 1.0), "by eigenvectors"
    yield _row(
        f"Q Q^T V of {rows:,} rows, rank {partial.rank}, 14 columns", "as columns",
        lambda: Q @ (Q.mT @ few), "as rows, filled up to 16",
        lambda: tall_times(Q, tall_transposed_times(Q, few)), lambda: (Q @ Q.mT) @ few,
        "yes, in half solves of a basis in one part", repeats,
    )  # fmt: skip

    def by_householder() -> Tensor:
        return LowRank(partial, system.noise, LowRankSettings(max_defect=0.0)).solve(few)

    yield _row(
        f"the preconditioner of {rows:,} rows, rank {partial.rank}, and one solve", "Householder", by_householder,
        "eigenvectors of F^T D^-1 F", lambda: LowRank(partial, system.noise).solve(few),
        lambda: torch.linalg.solve(P, few), "where Q^T Q = I stays true to 1e-11", repeats,
    )  # fmt: skip


def _features(kernel: Any, x: Tensor) -> Job:
    def run() -> Tensor:
        with torch.no_grad():
            features: Tensor = kernel.rows(x).features[0]
            return features

    return run


def _compiled(network: nn.Module) -> Any:
    return fgp.kernels.Warped(torch.compile(network), _kernel(2))


def _in_bfloat16(job: Job) -> Job:
    def run() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return job()

    return run


def tiles(n: int, repeats: int) -> list[dict[str, Any]]:
    """Seconds of a product by the portable backend, by pairs per tile, all sizes in turns."""
    jobs: dict[str, Job] = {}
    for dtype in (torch.float32, torch.float64):
        x, _ = smooth_data(n, 8, dtype)
        V = torch.randn(n, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
        plan = _kernel(8).operator(x).plan(4, backend="torch")
        for pairs in TILES:
            tiled = dataclasses.replace(plan, tile_pairs=pairs, peak_bytes=UNBOUNDED_BYTES)
            jobs[f"{pairs}/{dtype}"] = _product(_kernel(8), x, V, tiled)
    timed = interleaved(jobs, repeats)
    return [
        {"pairs": pairs, "float32_seconds": timed[f"{pairs}/torch.float32"].seconds,
         "float64_seconds": timed[f"{pairs}/torch.float64"].seconds}
        for pairs in TILES
    ]  # fmt: skip


def main(argv: Any = None) -> int:
    options = arguments(argv, __doc__ or "")
    n, repeats = (120, 1) if options.toy else (16_000, 7)
    rows: list[Mapping[str, Any]] = []
    compiled = [] if options.toy else compiled_features(n, repeats)  # compiling takes half a minute
    for row in itertools.chain(compiled, questions(n, repeats)):
        rows.append(row)
        if not options.toy:
            print(row, flush=True)
    curve = tiles(100 if options.toy else TILED_ROWS, repeats)
    if not (options.toy or options.only):
        title = "PyTorch's accelerators, measured before adopted"
        write_record(RECORDS / "accelerators.json", {"title": title, "columns": COLUMNS, "rows": rows})
        title = f"Pairs per tile of the torch tiles, products of {TILED_ROWS:,} rows"
        write_record(RECORDS / "tiles.json", {"title": title, "columns": TILE_COLUMNS, "rows": curve})
    return 0


if __name__ == "__main__":
    sys.exit(main())
