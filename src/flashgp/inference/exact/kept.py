"""A covariance matrix that is kept while the noise of its rows changes, as steps that find sites do.

A step takes a Cholesky factor and its inverse, n^3 / 3 flops each, and no pass over the pairs; K^-1 is made once, for
the gradient at the end, which the last step's factor serves. Of several outputs only what is small is kept of a step,
and the factors are made once more for the gradient, so that memory does not grow with their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.threads import quiet_openblas
from flashgp.pairwise.problem import PairProblem
from flashgp.solvers.direct.cholesky import factorise

MOST_ROWS = 2048  # four matrices of 32 MiB; with more, every step computes pairs, in the memory that plans announce


@dataclass(frozen=True)
class _Solved:
    """Of one noise. Fields: residual (n, 1) and noise (n,), that it is of; value, nats; weights, K^-1 r; diagonal, of
    K^-1; root, L^-1, None where it is not kept."""

    residual: Tensor
    noise: Tensor
    value: Tensor
    weights: Tensor
    diagonal: Tensor
    root: Tensor | None


class KeptCovariance:
    """K of some rows at some parameters.

    Args: as `log_marginal_likelihood`, of one table. Fields: diagonal, of K, (n,).
    """

    def __init__(self, settings: DirectSettings, form: Form, theta: Sequence[Tensor], rows: Rows) -> None:
        self.settings = settings
        problem = PairProblem(form, theta, rows).detached()
        self._block, self._pull = settings.backend.taped_block(
            problem, dtype=torch.float64, workspace=settings.workspace
        )
        self.diagonal = self._block.diagonal().clone()
        self._last: dict[int, _Solved] = {}

    def value_and_gradients(
        self, residual: Tensor, noise: Tensor, wanted: Sequence[bool]
    ) -> tuple[float, list[Tensor | None]]:
        """See `exact.likelihood.value_and_gradients`; gradients by rows and theta once, with which K is done.

        Args: noise, (n,), or (n, p) of outputs with noise of their own, whose values and gradients are summed.
        """
        columns = noise if noise.dim() == 2 else noise.unsqueeze(-1)
        tables = [
            (residual[:, j : j + 1].contiguous(), column.contiguous()) for j, column in enumerate(columns.unbind(-1))
        ]
        each = [self._solved(j, *table, keep=len(tables) == 1) for j, table in enumerate(tables)]
        gradients: list[Tensor | None] = [None] * len(wanted)
        weights = torch.cat([one.weights for one in each], -1)
        gradients[0] = -weights
        by_noise = 0.5 * (weights.square() - torch.stack([one.diagonal for one in each], -1))
        gradients[1] = by_noise.reshape(noise.shape)
        if any(wanted[2:]):
            slope = torch.zeros_like(self._block)
            for one, table in zip(each, tables, strict=True):
                root = self._solve(*table).root if one.root is None else one.root
                assert root is not None
                slope.addmm_(root.mT, root)
            pulled = self._pull(slope.addmm_(weights, weights.mT, beta=-0.5, alpha=0.5))
            gradients[2:] = [*pulled.rows, *pulled.theta]
        return float(sum(one.value for one in each)), gradients

    def _solved(self, output: int, residual: Tensor, noise: Tensor, *, keep: bool) -> _Solved:
        """That of the last step where it is of these. Args: keep, whether the root is kept."""
        last = self._last.get(output)
        if last is None or not (torch.equal(last.residual, residual) and torch.equal(last.noise, noise)):
            last = None
            self._last.pop(output, None)  # its memory, for the next
            last = self._solve(residual, noise)
            last = self._last[output] = last if keep else replace(last, root=None)
        return last

    def _solve(self, residual: Tensor, noise: Tensor) -> _Solved:
        settings = self.settings

        def build() -> Tensor:
            matrix = self._block.clone()
            matrix.diagonal().add_(noise)
            return matrix

        factor = factorise(build, settings.jitter, repair=settings.repair, max_jitter=settings.max_jitter)
        settings.jitters += factor.attempts
        root = settings.workspace.adopt(_inverse(factor.lower))
        half = root @ residual
        value = -0.5 * (half.square().sum() + factor.log_determinant + len(noise) * LOG_2PI)
        return _Solved(residual, noise, value, root.mT @ half, root.square().sum(0), root)


def _inverse(lower: Tensor) -> Tensor:
    """L^-1. LAPACK's own routine takes a third of the flops of solves with unit vectors, which torch has."""
    if lower.device.type != "cpu":
        return torch.linalg.solve_triangular(
            lower, torch.eye(len(lower), dtype=lower.dtype, device=lower.device), upper=False
        )
    from scipy.linalg.lapack import dtrtri

    with quiet_openblas():  # whose threads spin where others have a core: eight times as long at 400 rows
        inverse, status = dtrtri(lower.numpy(), lower=1)
    assert status == 0, "a factor has a positive diagonal"
    return torch.from_numpy(inverse)
