"""Plain float64 Python loops over pairs as a backend: slow and obvious, what the tests compare with."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.expression import Expression, Symbol
from flashgp.foundations.expression_value import value_at
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import Backend, PairGradient
from flashgp.pairwise.problem import PairProblem


class Reference(Backend):
    """One pair at a time; unbatched inputs only."""

    title = "reference loops"

    def block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None, upper: bool = False
    ) -> Tensor:
        out = torch.empty((problem.rows.count, problem.right.count), dtype=torch.float64)
        for i in range(problem.rows.count):
            for j in range(problem.right.count):
                out[i, j] = value_at(problem.form.profile, _pair(problem, i, j))
        return out.to(dtype)

    def diagonal(self, problem: PairProblem, *, dtype: torch.dtype) -> Tensor:
        problem = replace(problem, columns=None)
        values = [value_at(problem.form.profile, _pair(problem, i, i)) for i in range(problem.rows.count)]
        return torch.tensor(values, dtype=dtype)

    def product(self, problem: PairProblem, right: Tensor, *, workspace: Workspace | None = None) -> Tensor:
        block = self.block(problem, dtype=torch.float64)
        block = block if problem.near is None else block * problem.near.mask()
        return (block @ right.double()).to(right.dtype)

    def block_gradient(
        self, problem: PairProblem, weights: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        form, theta, rows, other = problem.form, problem.theta, problem.rows, problem.right
        sides = [[_zeros(t) for t in rows.tensors], [_zeros(t) for t in other.tensors]]
        thetas = [torch.zeros((), dtype=torch.float64) for _ in theta]
        slopes = _slopes(form)
        count = len(form.statistics)
        for i in range(rows.count):
            for j in range(other.count):
                values = _pair(problem, i, j)
                weight = float(weights[i, j])
                for symbol, slope in slopes.items():
                    part = weight * value_at(slope, values)
                    k = symbol.index
                    if symbol.kind == "parameter":
                        thetas[k] += part
                    elif symbol.kind == "left":
                        sides[0][count + k][i] += part
                    elif symbol.kind == "right":
                        sides[1][count + k][j] += part
                    elif symbol.kind == "opaque":
                        _add_opaque(form, theta, rows, other, (i, j, k), part, sides, thetas)
                    else:
                        u, v = rows.features[k][i].double(), other.features[k][j].double()
                        to_u, to_v = (v, u) if symbol.kind == "product" else (2 * (u - v), 2 * (v - u))
                        sides[0][k][i] += part * to_u
                        sides[1][k][j] += part * to_v
        if problem.symmetric:
            joined: list[Tensor | None] = [a + b for a, b in zip(*sides, strict=True)]
            return PairGradient(joined, [], list(thetas))
        return PairGradient(list(sides[0]), list(sides[1]), list(thetas))

    def bilinear_gradient(
        self, problem: PairProblem, left: Tensor, right: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        weights = left.double() @ right.double().mT
        return self.block_gradient(problem, weights if problem.near is None else weights * problem.near.mask())

    def diagonal_gradient(self, problem: PairProblem, weights: Tensor) -> PairGradient:
        total: PairGradient | None = None
        rows = problem.rows
        for i in range(rows.count):
            one = self.block_gradient(problem.between(rows.part(i, i + 1), None), weights[i : i + 1, None])
            total = _placed(one, i, rows) if total is None else _added(total, _placed(one, i, rows))
        if total is None:
            return PairGradient([_zeros(t) for t in rows.tensors], [], [_zeros(t) for t in problem.theta])
        return total


def _add_opaque(
    form: Form,
    theta: Sequence[Tensor],
    rows: Rows,
    cols: Rows,
    at: tuple[int, int, int],
    part: float,
    sides: list[list[Tensor]],
    thetas: list[Tensor],
) -> None:
    """part times the gradient of a Python function at one pair, by autograd, eq. (M-49)."""
    i, j, k = at
    function = form.opaque(k)
    with torch.enable_grad():
        leaves = [rows.features[k][i].detach().clone(), cols.features[k][j].detach().clone()]
        leaves += [v.detach().clone() for v in function.parameters(theta)]
        value = function(*(leaf.requires_grad_() for leaf in leaves))
        found = torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else [None] * len(leaves)
    slopes = [_zeros(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
    sides[0][k][i] += part * slopes[0]
    sides[1][k][j] += part * slopes[1]
    for position, slope in enumerate(function.flat(slopes[2:])):
        thetas[function.first + position] += part * slope


def _slopes(form: Form) -> dict[Symbol, Expression]:
    symbols = [Symbol(kind, k) for k, kind in enumerate(form.statistics) if kind != "match"]
    symbols += [Symbol(side, k) for side in ("left", "right") for k in range(form.scalar_count)]
    symbols += [Symbol("parameter", k) for k in range(form.parameter_count)]
    return {s: form.profile.derivative(s) for s in symbols}


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=torch.float64)


def _placed(gradient: PairGradient, i: int, rows: Rows) -> PairGradient:
    placed: list[Tensor | None] = []
    for part, whole in zip(gradient.rows, rows.tensors, strict=True):
        target = _zeros(whole)
        assert part is not None
        target[i] = part[0]
        placed.append(target)
    return PairGradient(placed, [], gradient.theta)


def _added(a: PairGradient, b: PairGradient) -> PairGradient:
    def join(x: list[Any], y: list[Any]) -> list[Any]:
        return [p + q for p, q in zip(x, y, strict=True)]

    return PairGradient(join(a.rows, b.rows), [], join(a.theta, b.theta))


def _pair(problem: PairProblem, i: int, j: int) -> dict[Symbol, float]:
    form, theta, rows, cols = problem.form, problem.theta, problem.rows, problem.right
    if rows.batch_shape or cols.batch_shape or any(t.dim() for t in theta):
        raise DomainError("`rows` must be unbatched for the reference backend, got a batch; loop over its members")
    values: dict[Symbol, float] = {}
    for k, kind in enumerate(form.statistics):
        u, v = rows.features[k][i], cols.features[k][j]
        if kind == "match":
            value = 1.0 if int(u) == int(v) else 0.0
        elif kind == "opaque":
            function = form.opaque(k)
            value = float(function(u, v, *function.parameters(theta)))
        elif kind == "product":
            value = math.fsum(float(a) * float(b) for a, b in zip(u, v, strict=True))
        else:
            value = math.sqrt(math.fsum((float(a) - float(b)) ** 2 for a, b in zip(u, v, strict=True)))
        values[Symbol(kind, k)] = value
    for k in range(form.scalar_count):
        values[Symbol("left", k)] = float(rows.scalars[k][i])
        values[Symbol("right", k)] = float(cols.scalars[k][j])
    for k, t in enumerate(theta):
        values[Symbol("parameter", k)] = float(t)
    return values
