"""The posterior at a few points by the calls that it needs and no others: eqs. (M-41) and (M-42).

At one point of a posterior of some thousand rows the arithmetic is a row of covariances and a triangular solve. The
calls around it weigh as much, so that here they are NumPy's and BLAS's, on what the prior looked up once
(numpy_prior.py). Whatever wants a graph, a plan, a batch, samples or certain bits goes the general way
(exact_predictor.py), which gives the same numbers up to rounding.
"""

import numpy
import torch
from torch import Tensor

from flashgp.inference.numpy_prior import NumpyPrior, plain_array
from flashgp.inference.state import State
from flashgp.inference.threads import quiet_openblas
from flashgp.pairwise.numpy_pairs import Array, RowArrays
from flashgp.solvers.direct.cholesky import TriangularFactor
from flashgp.solvers.growing.panels import PanelFactor


class FewPoints:
    """Mean and variance at few points. Made by `of`."""

    def __init__(self, state: State, prior: NumpyPrior, x: Array) -> None:
        self._state, self._prior = state, prior
        self._rows = prior.rows(x)
        self._cross = prior.covariance.block(self._rows, RowArrays.of(state.rows))
        self._solved: Array | None = None

    @classmethod
    def of(cls, state: State, x: Tensor) -> "FewPoints | None":
        """The few points; None for states or points that are not so simple.

        Args: x (k, d), checked, on the CPU and without a graph; state, whose factor is float64.
        """
        few = x.dim() == 2 and len(x) * state.distinct <= state.run.online.numpy_pairs
        prior, numbers = state.numpy_prior if few else None, plain_array(x)
        return None if prior is None or numbers is None else cls(state, prior, numbers)

    @property
    def half(self) -> Array:
        """L^-1 k(x, x_i) of each point as a row, (k, n). Cost: n^2 flops a point."""
        if self._solved is None:
            with quiet_openblas(), numpy.errstate(all="ignore"):
                self._solved = _half(self._state.factor, self._cross)
        return self._solved

    def mean(self) -> Tensor:
        """(k, outputs or 1)."""
        z = self._state.whitened_for_mean
        # As quick as the weights, and what the variance needs.
        centred = self._cross @ self._state.representer_weights.numpy() if z is None else self.half @ z.numpy()
        return torch.from_numpy(centred + self._prior.mean)

    def variance(self) -> tuple[Tensor, Tensor]:
        """Variance of the prior, and the part that the data explain, (k,) each."""
        explained = numpy.einsum("ij,ij->i", self.half, self.half)
        return torch.from_numpy(self._prior.covariance.diagonal(self._rows)), torch.from_numpy(explained)


def _half(factor: TriangularFactor | None, cross: Array) -> Array:
    assert factor is not None
    if len(cross) == 1:
        panels = PanelFactor.of(factor)
        if panels.takes_vectors:
            return panels.half_solve_vector(cross[0].copy())[None]
    solved: Array = factor.half_solve(torch.from_numpy(cross).mT).mT.numpy()
    return solved
