"""Kernels, points and tile sizes that the contract tests share."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.kernels import REGISTRY, Kernel
from flashgp.pairwise.backend import BACKENDS, Backend, PairGradient
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch import tiles as torch_tiles
from flashgp.pairwise.torch.tiles import TileSettings, TorchTiles
from pairwise.reference import Reference

EPS = torch.finfo(torch.float64).eps
REFERENCE: Backend = Reference()
TORCH: Backend = BACKENDS[torch_tiles.TorchTiles.name]()


@dataclass(frozen=True)
class Case:
    """One registered example for d columns."""

    name: str
    index: int
    d: int

    @property
    def kernel(self) -> Kernel:
        return REGISTRY[self.name].examples(self.d)[self.index]

    def points(self, n: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if REGISTRY[self.name].inputs == "codes":
            return torch.randint(0, 4, (n, self.d), generator=generator).double()
        return torch.randn(n, self.d, generator=generator, dtype=torch.float64)


CASES = [
    pytest.param(Case(name, index, d), id=f"{name}-{index}-d{d}")
    for name, row in REGISTRY.items()
    for d in (1, 3)
    for index in range(len(row.examples(d)))
]
ONE_CASE_EACH = [pytest.param(Case(name, 0, 3), id=name) for name in REGISTRY]

# Row counts: none, one, a prime, and one past a tile (below, a tile of 32 pairs holds four rows of eight columns).
SHAPES = [(0, 3), (3, 0), (1, 1), (7, 5), (5, 8), (0, None), (1, None), (7, None), (9, None)]
SHAPE_IDS = [f"{n}x{n if m is None else m}{'-symmetric' if m is None else ''}" for n, m in SHAPES]
ROUTES = ["one tile", "panels", "panels and one matrix product"]


def torch_tiles_by(route: str) -> Backend:
    """Tiles so small that small tables need several, or also distances by one matrix product whatever the size."""
    pairs = None if route == "one tile" else 32
    direct_pairs = 0 if route == "panels and one matrix product" else 2**16
    return TorchTiles(settings=TileSettings(pairs=pairs, direct_pairs=direct_pairs))


@dataclass(frozen=True)
class Job:
    """Everything a backend is given, with right-hand sides and weights."""

    form: Form
    theta: list[Tensor]
    rows: Rows
    cols: Rows | None
    left: Tensor
    right: Tensor
    weights: Tensor

    @property
    def problem(self) -> PairProblem:
        return PairProblem(self.form, self.theta, self.rows, self.cols)


def job(case: Case, n: int, m: int | None, *, kernel: Kernel | None = None) -> Job:
    """A job on random points among which rows repeat, inside x and between x and the columns."""
    kernel = kernel or case.kernel
    x = case.points(n, seed=n)
    if n > 2:
        x[2] = x[0]
    z = None
    if m is not None:
        z = case.points(m, seed=100 + m)
        if n and m:
            z[0] = x[0]
    generator = torch.Generator().manual_seed(1)
    count = n if m is None else m
    weights = torch.randn(n, count, generator=generator, dtype=torch.float64)
    return Job(
        kernel.form,
        [t.detach() for t in kernel.theta()],
        kernel.rows(x).detach(),
        None if z is None else kernel.rows(z).detach(),
        torch.randn(n, 2, generator=generator, dtype=torch.float64),
        torch.randn(count, 2, generator=generator, dtype=torch.float64),
        weights if m is not None else (weights + weights.mT) / 2,
    )


def gradients(found: PairGradient) -> list[Tensor | None]:
    """Flat: rows, then columns, then parameters."""
    return [*found.rows, *found.cols, *found.theta]


def pulled(backend: Backend, kernel: Kernel, x: Tensor, z: Tensor | None, weights: Tensor) -> dict[str, Tensor]:
    """Gradients of sum(weights * K) by raw parameters, "x" and "z", as the layers above chain them."""
    x = x.detach().requires_grad_()
    z = None if z is None else z.detach().requires_grad_()
    rows, cols, theta = kernel.rows(x), None if z is None else kernel.rows(z), kernel.theta()
    found = backend.block_gradient(
        PairProblem(kernel.form, [t.detach() for t in theta], rows.detach(), None if cols is None else cols.detach()),
        weights,
    )
    tensors = [*rows.tensors, *(() if cols is None else cols.tensors), *theta]
    pairs = [(t, g) for t, g in zip(tensors, gradients(found), strict=True) if g is not None and t.requires_grad]
    parameters = dict(kernel.named_parameters())
    inputs = {**parameters, "x": x, **({} if z is None else {"z": z})}
    if not pairs:
        return {name: torch.zeros_like(t) for name, t in inputs.items()}
    values = torch.autograd.grad(
        [t for t, _ in pairs],
        list(inputs.values()),
        [g.sum_to_size(t.shape).to(t.dtype) for t, g in pairs],
        allow_unused=True,
    )
    return {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(inputs.items(), values, strict=True)}


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference in units of the largest value, or of 1 when that is larger."""
    assert found.shape == wanted.shape
    if wanted.numel() == 0:
        return 0.0
    return float((found.double() - wanted).abs().max() / max(1.0, float(wanted.abs().max())))
