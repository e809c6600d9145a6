"""What compiled products cost against our own RBF product: other functions, rectangular, float64, the gradient.

The gradient is also compared with KeOps' backward in the same run: by the points, in both of their roles, and by the
lengthscale, of sum(U * (K V)). Turns last 0.3 seconds.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import RECORDS, arguments, interleaved, peer

import flashgp as fgp
from flashgp.bench import write_record
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.pairwise.problem import PairProblem

COLUMNS = [
    {"key": "work", "title": "work, n=20,000, d=3"},
    {"key": "rate", "title": "G pairs/s", "format": "fixed2"},
    {"key": "share", "title": "of the RBF product", "format": "fixed2"},
    {"key": "least", "title": "at least", "format": "fixed2"},
]


def job(kernel: fgp.kernels.Kernel, x: torch.Tensor, v: torch.Tensor, *, both: bool = False) -> Callable[[], Any]:
    operator = kernel.operator(x, x.clone() if both else None)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return operator @ v

    return run


def gradient(kernel: fgp.kernels.Kernel, x: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    rows, theta = kernel.rows(x).detach(), [p.detach() for p in kernel.theta()]
    return lambda: CpuTiles().bilinear_gradient(PairProblem(kernel.form, theta, rows), v, v)


def keops_backward(x: torch.Tensor, v: torch.Tensor, scale: float) -> Callable[[], Any]:
    """The backward pass alone of the same product."""
    from pykeops.torch import LazyTensor

    points, lengthscale = x.clone().requires_grad_(), torch.full((x.shape[1],), scale, requires_grad=True)
    a, b = LazyTensor((points / lengthscale)[:, None, :]), LazyTensor((points / lengthscale)[None, :, :])
    out = (-((a - b) ** 2).sum(-1) / 2).exp() @ v
    return lambda: torch.autograd.grad(out, [points, lengthscale], v, retain_graph=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    n, d = (60 if options.toy else 20_000), 3
    generator = torch.Generator().manual_seed(0)
    x, v = torch.randn(n, d, generator=generator), torch.randn(n, 11, generator=generator)
    k, scale = fgp.kernels, math.sqrt(d)
    rbf = k.RBF(torch.full((d,), scale))
    one = v[:, :1].contiguous()
    jobs: dict[str, Callable[[], Any]] = {
        "RBF": job(rbf, x, one),
        "Matern-3/2": job(k.Matern(1.5, scale), x, one),
        "RBF * Periodic + Linear": job(rbf * k.Periodic(1.0) + k.Linear(), x, one),
        "RBF, rectangular": job(rbf, x, one, both=True),
        "RBF, float64": job(rbf, x.double(), one.double()),
        "RBF, t=11": job(rbf, x, v),
        "RBF, gradient of all parameters and inputs, t=11": gradient(rbf, x, v),
    }
    least = {"Matern-3/2": 0.6, "RBF * Periodic + Linear": 0.4, "RBF, rectangular": 0.5, "RBF, float64": 0.4}
    timed = interleaved(jobs, 1) if options.toy else interleaved(jobs, 7, 1, least_seconds=0.3)
    if not options.toy and peer("pykeops") is not None:
        name = "KeOps' backward of the same gradient, t=11"
        timed[name] = interleaved({name: keops_backward(x, v, scale)}, 1, 1)[name]
    rows = []
    for name, t in timed.items():
        base = timed["RBF, t=11"] if "t=11" in name else timed["RBF"]
        limit = 1 / 2.5 if "all parameters" in name else least.get(name)
        rows.append(
            {"work": name, "rate": n * n / t.seconds / 1e9, "share": base.seconds / t.seconds, "least": limit,
             "seconds": t.seconds, "spread": t.spread}
        )  # fmt: skip
        print(rows[-1], flush=True)
    if not options.toy:
        title = "Compiled products against our own RBF product; the gradient against the product of as many columns"
        write_record(RECORDS / "ratios.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
