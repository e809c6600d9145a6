"""The gradient of sum(W * K) along a direction: on kept derivatives of the profile, or on portable tiles.

Kept derivatives are the quick way, eq. (M-130); Python functions of pairs, and profiles with so many second
derivatives that they would fill the memory, take the sums over tiles of eq. (M-110), which keep nothing.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from flashgp.foundations.workspace import Workspace
from flashgp.operators.tiled import block_sum
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch.second_order import BlockTape, Pull

MAX_TILES = 24  # different derivatives of a profile, each kept as two n x n matrices


class SecondOrder(Protocol):
    """Directions through a symmetric block."""

    def along(self, directions: Sequence[Tensor | None]) -> tuple[Tensor, Pull]:
        """As BlockTape."""
        ...


def second_order(
    problem: PairProblem, weights: Tensor, workspace: Workspace, max_tiles: int = MAX_TILES
) -> SecondOrder:
    """The way that serves a symmetric problem; weights (*batch, n, n), symmetric, float64, of its batch.

    Args: max_tiles: derivatives of a profile that are kept at most.
    """
    if problem.form.fusable and program_of(problem.form).second_tiles <= max_tiles:
        return BlockTape(problem, weights, workspace)
    return _Tiled(problem, weights)


class _Tiled:
    """Second derivatives on portable tiles, recomputed for every direction."""

    def __init__(self, problem: PairProblem, weights: Tensor) -> None:
        batch = weights.shape[:-2]
        tensors = [
            t.expand((*batch, *t.shape[t.dim() - event :]))
            for t, event in zip(problem.tensors, problem.event_dims, strict=True)
        ]
        self._problem, self._weights = problem.with_tensors(tensors), weights

    def along(self, directions: Sequence[Tensor | None]) -> tuple[Tensor, Pull]:
        """See BlockTape."""
        tensors = self._problem.tensors
        moved = [None if d is None else d.expand(t.shape) for d, t in zip(directions, tensors, strict=True)]
        total = block_sum(self._problem, self._weights.dtype)
        if all(d is None for d in moved):
            block = torch.zeros_like(self._weights)
        else:
            (block,) = total.tangents(tensors, moved)
        floating = [k for k, t in enumerate(tensors) if t.is_floating_point()]

        def pull(slope: Tensor) -> list[Tensor | None]:
            if not floating:
                return [None] * len(tensors)
            found = total.pulled(floating).tangents([self._weights, *tensors], [slope, *moved])
            return [dict(zip(floating, found, strict=True)).get(k) for k in range(len(tensors))]

        return block, pull
