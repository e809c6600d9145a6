"""Every autograd function of the library against differences, with gradients that are undefined for some outputs.

A new one needs a case: its function of tensors, and whether it has second derivatives.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import flashgp as fgp
from flashgp.foundations.errors import DerivativeError
from flashgp.foundations.expression import parameter, product, squared_distance
from flashgp.foundations.form import Form
from flashgp.inference import gathered
from flashgp.inference.exact import derivatives, small
from flashgp.inference.fourier import predictor as fourier
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.streamed import collapsed
from flashgp.kernels import random_features
from flashgp.operators import autograd, tiled
from flashgp.pairwise.program import program
from flashgp.pairwise.torch import differentiable
from flashgp.processes import gradient_shares
from flashgp.processes.group import ALONE
from flashgp.processes.shares import Shares
from flashgp.solvers.direct import solved_rows

F64 = torch.float64
SOURCE = Path(fgp.__file__).parent


def random(*shape: int, seed: int = 0) -> Tensor:
    """Numbers between 1/2 and 3/2."""
    return 0.5 + torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@dataclass(frozen=True)
class Case:
    """A function of tensors that applies a class; orders of its derivatives, 2 for any; forward, whether it has its own
    forward mode; refused, the error of one more order."""

    function: Callable[..., Any]
    tensors: Sequence[Tensor]
    orders: int = 2
    forward: bool = False
    refused: type[Exception] = DerivativeError


class Lower:
    """A factor that solves for rows."""

    dtype = F64

    def __init__(self, n: int) -> None:
        self.lower = random(n, n).tril() + torch.eye(n, dtype=F64)

    def solve_rows_(self, rows: Tensor, *, transposed: bool) -> Tensor:
        lower = self.lower.mT if transposed else self.lower
        return torch.linalg.solve_triangular(lower, rows.mT, upper=transposed).mT


class Curvature:
    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def along(self, directions: Sequence[Tensor | None]) -> list[Tensor | None]:
        da, db = (torch.zeros_like(t) if d is None else d for t, d in zip((self.a, self.b), directions, strict=True))
        return [
            6.0 * self.a * da * self.b + 3.0 * self.a.square() * db,
            (3.0 * self.a.square() * da).sum() + 2.0 * db,
        ]


def evaluation() -> derivatives.Evaluation:
    """Of b sum(a^3) + b^2, for a (rows, columns) and a number b."""

    def gradient(tensors: Sequence[Tensor], _: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        a, b = tensors
        return b * a.pow(3).sum() + b.square(), [3.0 * a.square() * b, a.pow(3).sum() + 2.0 * b]

    return derivatives.Evaluation(gradient, lambda tensors: Curvature(*tensors), (True, True), (2, 0), 100)


KERNEL = fgp.kernels.RationalQuadratic(0.7, torch.tensor([0.8, 1.2])) * fgp.kernels.Linear(0.5)
ACROSS = KERNEL(random(3, 2), random(2, 2, seed=1))._products
ITSELF = fgp.kernels.RationalQuadratic(0.7)(random(2, 2))._products


def pairs(products: autograd.PairProducts, apply: Callable[..., Any], *given: Tensor, **how: Any) -> Case:
    return Case(apply, [*given, *(t.detach() for t in products.problem.tensors)], forward=True, **how)


def products_of(products: autograd.PairProducts) -> dict[Any, list[Case]]:
    n, m = products.problem.shape[-2:]
    return {
        autograd._Product: [pairs(products, lambda *t: autograd._Product.apply(products, *t), random(m, 1))],
        autograd._ProductGradient: [
            pairs(products, lambda *t: autograd._ProductGradient.apply(products, *t), random(n, 1), random(m, 1))
        ],
        autograd._Block: [pairs(products, lambda *t: autograd._Block.apply(products, F64, *t))],
        autograd._BlockGradient: [
            pairs(products, lambda *t: autograd._BlockGradient.apply(products, *t), random(n, m))
        ],
        tiled._Tiled: [pairs(products, tiled.product_sum(products.problem, 6), random(m, 1))],
    }


def model() -> fgp.GP:
    return fgp.GP(1.3 * fgp.kernels.RBF(torch.tensor([0.7, 1.4])), likelihood=fgp.likelihoods.Gaussian(0.1))


def evidence() -> Case:
    """gradcheck moves the parameters where they stand."""
    gp, x, y = model(), random(5, 2), random(5)
    return Case(lambda *_: gp.log_marginal_likelihood(x, y), tuple(gp.parameters()), refused=DerivativeError)


def bound() -> Case:
    gp, y, z = model(), random(5), random(2, 2, seed=1)
    return Case(lambda x, z: gp.collapsed_bound(x, y, inducing=z), (random(5, 2), z), orders=1)


def series() -> Case:
    """phi* B^-1 phi of points, whose vectors are those of real functions."""
    post = model().condition(random(20, 2), random(20), approximation="fourier", tolerance=1e-8)
    state = post.state
    assert isinstance(state, FourierState)

    def squares(x: Tensor) -> Tensor:
        phi = state.weights.system.root * state.grid.waves(x)
        return state.grid.dot(phi, fourier._Solve.apply(phi, state))

    return Case(squares, (random(2, 2, seed=4),))


A, B = random(3, 2), random(seed=1)
DA, DB = random(3, 2, seed=2), random(seed=3)
FORM = Form(squared_distance(0) * product(1) ** 2 / (1 + parameter(0)), ("distance", "product"), 0, 1)
CASES: dict[Any, list[Case]] = {
    **{key: products_of(ACROSS)[key] + products_of(ITSELF)[key] for key in products_of(ACROSS)},
    solved_rows._Solve: [
        Case(lambda rhs, t=t: solved_rows._Solve.apply(rhs, Lower(4), t), (random(2, 4, 3),), forward=True)
        for t in (False, True)
    ],
    random_features._GammaQuantile: [
        Case(lambda shape: random_features._GammaQuantile.apply(shape, random(4) - 0.5), (random(2, 1),), orders=1)
    ],
    random_features._GammaSlope: [
        Case(lambda shape: random_features._GammaSlope.apply(shape, random(4)), (random(1),), orders=0)
    ],
    # One multiplies the gradient by 2, the other undoes it: together they are the identity that they look like.
    gradient_shares._Times: [
        Case(lambda x: gradient_shares._Times.apply(gradient_shares._Times.apply(x, 2.0), 0.5), (random(3),))
    ],
    gradient_shares._Summed: [
        Case(lambda *t: gradient_shares._Summed.apply(ALONE, torch.device("cpu"), *t), (random(3), random(2, 2)),
             orders=1, refused=RuntimeError)
    ],
    gathered._GatheredRows: [
        Case(lambda x: gathered._GatheredRows.apply(x, ALONE, Shares((4,))), (random(4, 2),))
    ],
    collapsed._Value: [bound()],
    fourier._Solve: [series()],
    small._Known: [evidence()],
    derivatives._Value: [Case(lambda *t: derivatives._Value.apply(evaluation(), *t), (A, B), forward=True)],
    derivatives._Gradient: [
        Case(lambda *t: derivatives._Gradient.apply(evaluation(), *t), (A, B), orders=1, forward=True)
    ],
    derivatives._Slope: [
        Case(lambda *t: derivatives._Slope.apply(evaluation(), 0, *t), (A, B, DA, DB), orders=1, forward=True)
    ],
    derivatives._Along: [
        Case(lambda *t: derivatives._Along.apply(evaluation(), 0, A, B, *t), (DA, DB), forward=True)
    ],
    derivatives._Last: [Case(lambda *t: derivatives._Last.apply(*t), (A, B), orders=0)],
    program._Evaluate: [
        Case(lambda *t: program._Evaluate.apply(FORM.profile, FORM, *t), (random(3, 2), random(3, 2, seed=1), random()),
             forward=True)
    ],
    differentiable._SquaredDistance: [
        Case(differentiable._SquaredDistance.apply, (random(3, 2), random(2, 2, seed=1)), forward=True)
    ],
}  # fmt: skip


def functions() -> list[str]:
    """Where every subclass of torch.autograd.Function in the library stands: module.class."""
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    return [
        ".".join(["flashgp", *path.relative_to(SOURCE).with_suffix("").parts, node.name])
        for path, text in texts.items()
        if "autograd" in text and "Function" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in node.bases)
    ]


# Its value is never looked at, and its gradient is what it was given: tests/foundations/test_transforms.py.
WITHOUT_VALUE = "flashgp.foundations.transforms._InnerProduct"


def test_every_function_has_a_case() -> None:
    assert sorted(functions()) == sorted([WITHOUT_VALUE, *(f"{one.__module__}.{one.__name__}" for one in CASES)])


@pytest.mark.parametrize("one", CASES, ids=lambda one: f"{one.__module__.split('.')[-1]}.{one.__name__}")
def test_derivatives_are_those_of_the_value(one: Any) -> None:
    for case in CASES[one]:
        tensors = tuple(t if t.requires_grad else t.clone().requires_grad_(t.is_floating_point()) for t in case.tensors)
        if case.orders >= 1:
            assert gradcheck(case.function, tensors, check_forward_ad=case.forward, fast_mode=True)
        if case.orders >= 2:
            assert gradgradcheck(case.function, tensors, fast_mode=True)
            continue
        values = case.function(*tensors)
        total = sum(v.square().sum() for v in ([values] if isinstance(values, Tensor) else values))
        with pytest.raises(case.refused):
            first = torch.autograd.grad(total, tensors, create_graph=case.orders == 1)
            torch.autograd.grad(sum(g.sum() for g in first), tensors)
