"""A batch of models is B independent models: the same numbers as a loop, and no member feels another.

What is compared bit for bit: blocks and diagonals whose statistics are direct differences or matches. Matrix products
of a batch and of one member are different BLAS calls, which may differ in the last bits.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashgp import kernels
from flashgp.pairwise.backend import Backend
from flashgp.pairwise.problem import PairProblem
from pairwise.pair_cases import EPS, ROUTES, TORCH, gradients, relative_error, torch_tiles_by

f64 = torch.float64
B, D = 3, 2
SCALES = torch.tensor([[0.7, 1.1], [0.9, 2.0], [1.3, 0.4]], dtype=f64)
NUMBERS = torch.tensor([0.6, 1.5, 30.0], dtype=f64)
FACTORS = torch.randn(B, 4, 2, generator=torch.Generator().manual_seed(1), dtype=f64)

Take = Callable[[Tensor], Tensor]
BATCHES: dict[str, Callable[[Take], kernels.Kernel]] = {
    "SquaredExponential": lambda t: kernels.SquaredExponential(t(SCALES)),
    "shared over columns": lambda t: kernels.SquaredExponential(t(SCALES[:, :1])),
    "Matern12": lambda t: kernels.Matern(0.5, t(SCALES)),
    "Matern52": lambda t: kernels.Matern(2.5, t(SCALES)),
    "RationalQuadratic": lambda t: kernels.RationalQuadratic(t(NUMBERS), t(SCALES)),
    "Periodic": lambda t: kernels.Periodic(t(SCALES), t(SCALES.flip(0))),
    "Cosine": lambda t: kernels.Cosine(t(SCALES)),
    "Linear": lambda t: kernels.Linear(t(SCALES)),
    "Polynomial": lambda t: kernels.Polynomial(3, t(NUMBERS), t(SCALES)),
    "Constant": lambda t: kernels.Constant(t(NUMBERS)),
    "Categorical": lambda t: kernels.Categorical(t(SCALES)),
    "Coregionalization": lambda t: kernels.Coregionalization(
        4, 2, t(FACTORS), t(FACTORS[..., 0].exp()), active_dims=[0]
    ),
    "Warped": lambda t: kernels.Warped(torch.nn.Tanh(), kernels.Matern(2.5, t(SCALES))),
    "Scaled": lambda t: kernels.Scaled(kernels.Matern(1.5, t(SCALES)), t(NUMBERS)),
    "composed": lambda t: (
        (kernels.Scaled(kernels.SquaredExponential(t(SCALES)), t(NUMBERS)) + kernels.Linear(t(SCALES)))
        * kernels.Matern(1.5, 1.2)
        + 1.0
    ),
    "one model, many tables": lambda t: 1.7 * kernels.Matern(2.5, [0.7, 1.1]) + kernels.Constant(0.3),
}
EXACT = {"shared over columns", "SquaredExponential", "Matern12", "Matern52", "RationalQuadratic", "Periodic"} | {
    "Constant", "Categorical", "Warped", "Scaled", "one model, many tables"
}  # fmt: skip


def points(name: str, n: int, batched: bool, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (B, n, D) if batched else (n, D)
    if name in ("Categorical", "Coregionalization"):
        return torch.randint(0, 4, shape, generator=generator).double()
    return torch.randn(shape, generator=generator, dtype=f64)


def everything(
    backend: Backend, kernel: kernels.Kernel, x: Tensor, z: Tensor | None, right: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    theta, rows = [t.detach() for t in kernel.theta()], kernel.rows(x).detach()
    cols = None if z is None else kernel.rows(z).detach()
    found = {
        "block": backend.block(PairProblem(kernel.form, theta, rows, cols), dtype=f64),
        "diagonal": backend.diagonal(PairProblem(kernel.form, theta, rows), dtype=f64),
        "product": backend.product(PairProblem(kernel.form, theta, rows, cols), right),
    }
    for what, pull in (
        ("block_gradient", backend.block_gradient(PairProblem(kernel.form, theta, rows, cols), weights)),
        (
            "bilinear_gradient",
            backend.bilinear_gradient(PairProblem(kernel.form, theta, rows, cols), weights @ right, right),
        ),
    ):
        found |= {f"{what}[{k}]": g for k, g in enumerate(gradients(pull)) if g is not None}
    return found


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("batched_points", [False, True], ids=["shared points", "points each"])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_a_loop(name: str, batched_points: bool, route: str) -> None:
    if name == "one model, many tables" and not batched_points:
        return  # then there is no batch
    backend = torch_tiles_by(route)
    for n, m in ((7, None), (5, 8)):
        x, z = points(name, n, batched_points, 1), None if m is None else points(name, m, batched_points, 2)
        generator = torch.Generator().manual_seed(3)
        right = torch.randn(B, m or n, 2, generator=generator, dtype=f64)
        weights = torch.randn(B, n, m or n, generator=generator, dtype=f64)
        weights = weights if m is not None else weights + weights.mT
        batch = everything(backend, BATCHES[name](lambda t: t), x, z, right, weights)
        assert batch["block"].shape == (B, n, m or n)
        for b in range(B):
            one = everything(
                backend,
                BATCHES[name](lambda t, b=b: t[b]),  # type: ignore[misc]
                x[b] if batched_points else x,
                z[b] if z is not None and batched_points else z,
                right[b],
                weights[b],
            )
            assert one.keys() == batch.keys()
            for what, wanted in one.items():
                error = relative_error(batch[what][b], wanted)
                assert error <= 100 * EPS, what
                if name in EXACT and what in ("block", "diagonal") and "matrix" not in route:
                    assert error == 0.0, what


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("value", [1e-9, 1e9, float("nan")])
def test_no_member_feels_another(route: str, value: float) -> None:
    """One member with hopeless features leaves every bit of the others as it was, and its own distances right."""
    backend = torch_tiles_by(route)
    kernel = 1.3 * kernels.Matern(2.5) * kernels.RationalQuadratic(0.4) + kernels.Linear()
    x = points("", 9, True, 1)
    changed = x.clone()
    changed[1] /= value
    for cols in (None, points("", 8, True, 2), points("", 8, False, 2)):
        generator = torch.Generator().manual_seed(3)
        m = 9 if cols is None else 8
        right = torch.randn(B, m, 2, generator=generator, dtype=f64)
        weights = torch.ones(B, 9, m, dtype=f64)
        before, after = (everything(backend, kernel, points, cols, right, weights) for points in (x, changed))
        for what, wanted in before.items():
            if wanted.shape[:1] == (B,):
                assert torch.equal(after[what][[0, 2]], wanted[[0, 2]]), what


def test_parameters_and_points_broadcast() -> None:
    """Batch dimensions of size one meet others, left and right."""
    kernel = kernels.SquaredExponential(SCALES[:, None, :])
    assert kernel.batch_shape == (B, 1)
    x, z = torch.randn(4, 5, D, dtype=f64), torch.randn(1, 1, 7, D, dtype=f64)
    rows, cols = kernel.rows(x).detach(), kernel.rows(z).detach()
    block = TORCH.block(PairProblem(kernel.form, [], rows, cols), dtype=f64)
    assert block.shape == (B, 4, 5, 7)
    one = kernels.SquaredExponential(SCALES[1])
    alone = TORCH.block(PairProblem(one.form, [], one.rows(x[2]).detach(), one.rows(z[0, 0]).detach()), dtype=f64)
    assert torch.equal(block[1, 2], alone)
