"""Covariances as plain differentiable torch expressions: any order of derivative, forward mode, torch.func.

Slower than the tile backend and with an autograd graph over the tile it is given: callers choose tiles small enough.
Distances at zero have their true derivatives because only q = |u - v|^2 is differentiated here, and the profile's
derivatives are symbolic in q, eq. (M-4).
"""

from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.form import broadcast_batch
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import evaluate


def block(problem: PairProblem) -> Tensor:
    """The dense block (*batch, n, m), differentiable to any order in features, row scalars and theta."""
    form, theta, rows, cols = problem.form, problem.theta, problem.rows, problem.right
    statistics = []
    for index, (kind, left, right) in enumerate(zip(form.statistics, rows.features, cols.features, strict=True)):
        if kind == "opaque":
            function = form.opaque(index)
            statistics.append(function.pairs(left, right, function.parameters(theta)))
        elif kind == "match":
            statistics.append((left.unsqueeze(-1) == right.unsqueeze(-2)).to(torch.float64))
        elif kind == "product":
            statistics.append(left @ right.mT)
        else:
            statistics.append(_SquaredDistance.apply(left, right))
    scalars = [a.unsqueeze(-1) for a in rows.scalars] + [a.unsqueeze(-2) for a in cols.scalars]
    tile = evaluate(form, statistics, scalars, [t[..., None, None] if t.dim() else t for t in theta])
    return tile.expand(problem.shape)


def diagonal(problem: PairProblem) -> Tensor:
    """k(x_i, x_i) of the rows, shape (*batch, n), differentiable to any order."""
    form, theta, rows = problem.form, problem.theta, problem.rows
    statistics = []
    for index, (kind, feature) in enumerate(zip(form.statistics, rows.features, strict=True)):
        if kind == "product":
            statistics.append(feature.square().sum(-1))
        elif kind == "opaque":
            function = form.opaque(index)
            statistics.append(function.diagonal(feature, function.parameters(theta)))
        else:
            own = 0.0 if kind == "distance" else 1.0
            statistics.append(torch.full((rows.count,), own, dtype=torch.float64, device=rows.device))
    scalars = [*rows.scalars, *rows.scalars]
    value = evaluate(form, statistics, scalars, [t.unsqueeze(-1) if t.dim() else t for t in theta])
    batch = broadcast_batch(rows.batch_shape, *(t.shape for t in theta))
    return value.expand(*batch, rows.count)


class _SquaredDistance(torch.autograd.Function):
    """q_ij = |u_i - v_j|^2 by direct differences; its derivatives are matrix products, never (n, m, d), eq. (M-24)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, v: Tensor) -> Tensor:
        return torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist").square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        u, v = _centred(*ctx.saved_tensors)
        to_u = 2.0 * (gradient.sum(-1, keepdim=True) * u - gradient @ v) if ctx.needs_input_grad[0] else None
        to_v = 2.0 * (gradient.sum(-2).unsqueeze(-1) * v - gradient.mT @ u) if ctx.needs_input_grad[1] else None
        return (
            None if to_u is None else to_u.sum_to_size(u.shape),
            None if to_v is None else to_v.sum_to_size(v.shape),
        )

    @staticmethod
    def jvp(ctx: Any, du: Tensor | None, dv: Tensor | None) -> Tensor:
        u, v = _centred(*ctx.saved_tensors)
        du = torch.zeros_like(u) if du is None else du
        dv = torch.zeros_like(v) if dv is None else dv
        change = (u * du).sum(-1, keepdim=True) + (v * dv).sum(-1).unsqueeze(-2)
        return 2.0 * (change - u @ dv.mT - du @ v.mT)


def _centred(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides around u's mean: no derivative of |u - v|^2 changes, and none loses the digits of a common offset."""
    if u.shape[-2] == 0:
        return u, v
    centre = u.detach().mean(dim=-2, keepdim=True)
    return u - centre, v - centre
