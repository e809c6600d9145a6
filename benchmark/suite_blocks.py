"""Dense covariance blocks, float32, into fresh memory: ours against broadcasting, nested vmap and GPyTorch.

Turns last 50 ms, one call at least. From large to small: our loops are compiled for the large ones, and small ones take
what is ready. How long the first call of each size took, compiling included, is in the record.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import RECORDS, arguments, interleaved, peer

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.bench.suites import broadcasting, vmapped

COLUMNS = [
    {"key": "work", "title": "dense block"},
    {"key": "ours_seconds", "title": "FlashGP"},
    {"key": "broadcasting_seconds", "title": "broadcasting"},
    {"key": "vmap_seconds", "title": "nested vmap"},
    {"key": "gpytorch_seconds", "title": "GPyTorch"},
    {"key": "limit_seconds", "title": "writing fresh memory"},
    {"key": "error", "title": "largest error"},
]
SIZES = [(8000, 8), (4000, 32), (4000, 8), (2000, 8), (2000, 32)]


def ours(kernel: fgp.kernels.Kernel, x: torch.Tensor) -> torch.Tensor:
    return kernel.operator(x).to_dense()


def fresh(n: int) -> torch.Tensor:
    return torch.zeros(n, n).add_(1.0)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    gpytorch = None if options.toy else peer("gpytorch")
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for n, d in [(50, 3)] if options.toy else SIZES:
            x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
            scale = math.sqrt(d)
            kernel = fgp.kernels.RBF(scale)
            started = time.perf_counter()
            found = ours(kernel, x)
            first = time.perf_counter() - started
            exact = torch.exp(-0.5 * torch.cdist(x.double(), x.double()).square_().div_(d))
            error = float((found - exact).abs().max())
            assert error < 1e-5
            jobs: dict[str, Callable[[], Any]] = {
                "ours": lambda k=kernel, x=x: ours(k, x),
                "limit": lambda n=n: fresh(n),
                "broadcasting": lambda x=x, s=scale: broadcasting(x, x, s),
                "vmap": lambda x=x, s=scale: vmapped(x, x, s),
            }
            if gpytorch is not None:
                peer_kernel = gpytorch.kernels.RBFKernel()
                peer_kernel.lengthscale = scale
                jobs["gpytorch"] = lambda k=peer_kernel, x=x: k(x).to_dense()
            timed = interleaved(jobs, 3, 2) if options.toy else interleaved(jobs, 7, 2, least_seconds=0.05)
            row = {"work": f"RBF, n={n:,}, d={d}", "error": error, "first_call_seconds": first}
            row |= {f"{name}_seconds": t.seconds for name, t in timed.items()}
            row |= {f"{name}_spread": t.spread for name, t in timed.items()}
            rows.append(row)
            print(row, flush=True)
    if not options.toy:
        write_record(RECORDS / "blocks.json", {"title": "Dense blocks", "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
