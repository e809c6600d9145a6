"""K V without K on the CPU: time, error and peak memory of compiled pair loops, beside KeOps in the same run.

x ~ N(0, 1)^d, V ~ N(0, 1), float32, no pair left out. Errors are against float64 on 200 rows: the largest share of
(|K| |V|)_i, and the 2-norm. A pair counts once per (i, j) of the full matrix. KeOps at n = 100,000 takes the first
10,000 rows against all columns, at n = 1,000,000 the first 2,000 (its rate does not depend on the number of rows).
Compile times are in their own column and in no other figure. Turns of up to 20,000 rows last 0.3 seconds, of KeOps one
call at least. The ceiling counts vector operations of a pair that is evaluated (differences or products, 12 for an
exponential, two per right-hand side when a tile serves both of its sides) at the highest rate of multiply-adds
measured between the rows: of a matrix product or of compiled chains in registers, whichever is higher (a BLAS may run
at half the processor's rate).
"""

import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import RECORDS, arguments, interleaved, peer

import flashgp as fgp
from flashgp.bench import measure_peak_bytes, write_record

F32, F64 = torch.float32, torch.float64
COLUMNS = [
    {"key": "work", "title": "product"},
    {"key": "rate", "title": "G pairs/s", "format": "fixed2"},
    {"key": "peer_rate", "title": "KeOps", "format": "fixed2"},
    {"key": "ratio", "title": "times faster"},
    {"key": "target", "title": "at least"},
    {"key": "error", "title": "largest error", "format": "error"},
    {"key": "norm_error", "title": "2-norm error", "format": "error"},
    {"key": "peak_bytes", "title": "peak above the data"},
    {"key": "ceiling", "title": "of the ceiling", "format": "percent"},
    {"key": "compile_seconds", "title": "compile, s", "format": "fixed2"},
]
# (d, t, lengthscale / sqrt(d), times KeOps)
GRID = [(d, t, s, target) for d, t, target in
        [(3, 1, 36.0), (8, 1, 30.0), (8, 16, 16.0), (26, 1, 30.0), (26, 16, 22.0), (90, 16, 15.0)]
        for s in (1.0, 0.3)]  # fmt: skip
SAMPLE = 200
MAX_BYTES = 500_000_000  # of the product of a million rows, above the data


def points(n: int, d: int, t: int, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """x ~ N(0, 1)^d + offset, (n, d), and V ~ N(0, 1), (n, t), float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator) + offset
    return x, torch.randn(n, t, generator=generator)


def keops_product(x: torch.Tensor, z: torch.Tensor, right: torch.Tensor, scale: float) -> Callable[[], Any]:
    """KeOps' K(x, z) right with a squared exponential kernel of that lengthscale."""
    from pykeops.torch import LazyTensor

    def run() -> torch.Tensor:
        a, b = LazyTensor(x[:, None, :] / scale), LazyTensor(z[None, :, :] / scale)
        return (-((a - b) ** 2).sum(-1) / 2).exp() @ right

    return run


def ours(operator: Any, right: torch.Tensor) -> torch.Tensor:
    """`k.operator(x) @ V`, packing included."""
    with torch.no_grad():
        return operator @ right


def errors(
    kernel: fgp.kernels.Kernel, x: torch.Tensor, right: torch.Tensor, found: torch.Tensor
) -> tuple[float, float]:
    """Largest share of |K| |V|, and the 2-norm, on sampled rows, against float64 by direct differences."""
    index = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(1))[:SAMPLE]
    total, scale = (
        torch.zeros(len(index), right.shape[1], dtype=F64),
        torch.zeros(len(index), right.shape[1], dtype=F64),
    )
    with torch.no_grad():
        for start in range(0, x.shape[0], 20_000):
            part = slice(start, start + 20_000)
            dense = kernel.operator(x[index].double(), x[part].double()).to_dense()
            total += dense @ right[part].double()
            scale += dense.abs() @ right[part].double().abs()
    off = found[index].double() - total
    return float((off.abs() / scale).max()), float(off.norm() / total.norm())


def operations_of(kernel: fgp.kernels.Kernel, d: int, t: int) -> int:
    """Vector operations of a pair that is evaluated, and serves both of its sides."""
    from flashgp.pairwise.cpu.layout import layout_of

    rows = kernel.rows(points(4000, d, 1)[0]).detach()
    (statistic, *_), _, _ = layout_of(kernel.form, [], rows, rows, F32)
    return d * (1 if statistic.way == "dot" else 2) + 12 + 2 * t


def multiply_add_rates() -> Callable[[], float]:
    """A function that measures float32 multiply-adds per second of all threads: of a matrix product, or of chains in
    registers if those are quicker."""
    from concurrent.futures import ThreadPoolExecutor

    from numba import njit

    from flashgp.pairwise.cpu.arithmetic import wide_vectors

    count, steps, repeats, threads = 2048, 12, 20_000, torch.get_num_threads()

    @njit(nogil=True, fastmath={"contract"})  # type: ignore[untyped-decorator]
    def chains(x: Any, y: Any, c: Any, repeats: int) -> None:
        wide_vectors()
        for _ in range(repeats):
            for i in range(len(x)):
                v = x[i]
                a = v * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                a = a * v + c
                y[i] = a * v + c

    rows = [(torch.rand(count).numpy(), torch.rand(count).numpy()) for _ in range(threads)]
    third = torch.tensor(1 / 3).numpy()[()]
    chains(*rows[0], third, 1)

    def together() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda pair: chains(*pair, third, repeats), rows))

    a, b = torch.randn(2, 2048, 2048)

    def rate() -> float:
        chained = threads * repeats * steps * count / best_of_five(together)
        return max(2048.0**3 / best_of_five(lambda: a @ b), chained)

    return rate


def best_of_five(work: Callable[[], Any]) -> float:
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def peak(n: int, d: int, t: int) -> int:
    """Of one product in a fresh process, above its inputs."""
    return measure_peak_bytes(_product, setup=functools.partial(_prepare, n, d, t))


def _prepare(n: int, d: int, t: int) -> Any:
    x, right = points(n, d, t)
    kernel = fgp.kernels.RBF(math.sqrt(d))
    ours(kernel.operator(x[:4000]), right[:4000])  # what the compiler keeps is not of this product
    return kernel.operator(x), right


def _product(given: Any) -> None:
    ours(*given)


MILLION = "RBF, n=1,000,000, d=3, t=1, lengthscale 1 sqrt(d)"


def million(pykeops: Any) -> dict[str, Any]:
    """A million rows: once, since a product takes minutes; its peak in a process of its own."""
    n, d, t, few = 1_000_000, 3, 1, 2_000
    kernel = fgp.kernels.RBF(math.sqrt(d))
    x, v = points(n, d, t)
    operator = kernel.operator(x)
    ours(kernel.operator(x[:4000]), v[:4000])
    started = time.perf_counter()
    found = ours(operator, v)
    seconds = time.perf_counter() - started
    theirs = None
    if pykeops is not None:
        product = keops_product(x[:few], x, v, math.sqrt(d))
        product()
        started = time.perf_counter()
        product()
        theirs = few * n / (time.perf_counter() - started) / 1e9
    largest, norm = errors(kernel, x, v, found)
    rate, bytes_above = n * n / seconds / 1e9, peak(n, d, t)
    return {
        "work": MILLION, "rate": rate, "peer_rate": theirs, "target": None, "error": largest, "norm_error": norm,
        "ratio": rate / theirs if theirs else None, "operations": operations_of(kernel, d, t),
        "compile_seconds": 0.0, "seconds": seconds, "peak_bytes": bytes_above,
        "met": bytes_above <= MAX_BYTES and largest <= 1e-6 and norm <= 2e-6,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    from flashgp.pairwise.cpu.engine import compile_seconds

    options = arguments(argv, __doc__ or "")
    if options.toy:
        x, right = points(500, 3, 2)
        kernel = fgp.kernels.RBF(1.0)
        assert errors(kernel, x, right, ours(kernel.operator(x), right))[0] < 1e-6
        return 0
    pykeops = peer("pykeops")
    rate_now = multiply_add_rates()
    multiply_adds = 0.0
    rows: list[dict[str, Any]] = []
    for n in (20_000, 100_000):
        for d, t, share, target in GRID:
            work = f"RBF, n={n:,}, d={d}, t={t}, lengthscale {share:g} sqrt(d)"
            if options.only not in work or (n > 20_000 and share != 1.0):
                continue
            kernel = fgp.kernels.RBF(share * math.sqrt(d))
            x, v = points(n, d, t)
            operator = kernel.operator(x)
            before = compile_seconds()
            found = ours(operator, v)
            compiled = compile_seconds() - before
            jobs: dict[str, Callable[[], Any]] = {"ours": lambda k=operator, v=v: ours(k, v)}
            few = n if n <= 20_000 else 10_000
            if pykeops is not None:
                jobs["peer"] = keops_product(x[:few], x, v, share * math.sqrt(d))
            timed = interleaved(jobs, 5, least_seconds=0.3) if n <= 20_000 else interleaved(jobs, 1)
            rate = n * n / timed["ours"].seconds / 1e9
            theirs = few * n / timed["peer"].seconds / 1e9 if "peer" in timed else None
            largest, norm = errors(kernel, x, v, found)
            row = {
                "work": work, "rate": rate, "peer_rate": theirs, "target": target, "error": largest, "norm_error": norm,
                "ratio": rate / theirs if theirs else None,
                "operations": operations_of(kernel, d, t),
                "compile_seconds": compiled, "seconds": timed["ours"].seconds, "spread": timed["ours"].spread,
                "peak_bytes": peak(n, d, t) if share == 1.0 and n > 20_000 else None,
            }  # fmt: skip
            row["met"] = bool(theirs and row["ratio"] >= target and largest <= 1e-6 and norm <= 2e-6)
            rows.append(row)
            print(row, flush=True)
            multiply_adds = max(multiply_adds, rate_now())
    if not options.only or options.only in MILLION:
        rows.append(million(pykeops))
        print(rows[-1], flush=True)
    for row in rows:
        row["ceiling"] = row["rate"] * 1e9 * row["operations"] / (2.0 * multiply_adds)
    if not options.only:
        write_record(
            RECORDS / "products.json",
            {"title": "Products without the matrix", "columns": COLUMNS, "rows": rows,
             "multiply_adds_per_second": multiply_adds},
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
