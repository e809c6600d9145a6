"""K V without K: compiled pair loops beside plain torch, which makes the matrix, and KeOps."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashgp.bench.claims.peers import peer, takes_no_part
from flashgp.bench.claims.plain import PLAIN, exact
from flashgp.bench.claims.suite import DTYPES, Finding, Options, Outcome, Speaker, Suite, measure
from flashgp.kernels import SquaredExponential

__all__ = ["SUITE", "keops_product", "points"]

D, T = 8, 1
LENGTHSCALE = math.sqrt(D)
TOLERANCES = {"float32": 1e-4, "float64": 1e-10}  # of the largest entry of K V, in which terms of both signs cancel


def points(n: int, d: int, t: int, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """x ~ N(0, 1)^d + offset, (n, d), and V ~ N(0, 1), (n, t), float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator) + offset
    return x, torch.randn(n, t, generator=generator)


def keops_product(pykeops: Any, x: Tensor, z: Tensor, right: Tensor, scale: float) -> Callable[[], Any]:
    """KeOps' K(x, z) right with a squared exponential kernel of that lengthscale."""
    from pykeops.torch import LazyTensor

    def run() -> Tensor:
        a, b = LazyTensor(x[:, None, :] / scale), LazyTensor(z[None, :, :] / scale)
        return (-((a - b) ** 2).sum(-1) / 2).exp() @ right

    return run


def run(options: Options, say: Speaker) -> Outcome:
    """Every size, dtype and device; see Suite."""
    findings: list[Finding] = []
    notes: list[str] = []
    pykeops = peer("pykeops") if options.peers else None
    kernel = SquaredExponential(LENGTHSCALE)
    for device, name, n in options.problems:
        dtype = DTYPES[name]
        x, right = (tensor.to(device, dtype) for tensor in points(n, D, T))
        candidates: dict[str, Callable[..., Any]] = {"FlashGP": lambda x, right: kernel.operator(x) @ right}
        candidates |= {plain: lambda x, right, k=k: k(x, x, LENGTHSCALE) @ right for plain, k in PLAIN.items()}
        if pykeops is not None:
            candidates["KeOps"] = lambda x, right: keops_product(pykeops, x, x, right, LENGTHSCALE)()
        finding, said = measure(
            f"d={D}, {T} right-hand side, {name}, {device}", n, candidates, (x, right),
            lambda x, right: exact(x, x, LENGTHSCALE) @ right.double().cpu(), TOLERANCES[name], options,
            dict.fromkeys(PLAIN, 3 * n * n * D * dtype.itemsize), say,
        )  # fmt: skip
        findings.append(finding)
        notes += said
    if options.peers and pykeops is None:
        notes.append(takes_no_part("KeOps"))
    return SUITE.outcome(findings, notes)


SUITE = Suite(
    "products",
    "Products without the matrix",
    "How long does K V take, the matrix made or not?",
    sizes=(1000, 4000),
    dtypes=("float32",),
    run=run,
)
