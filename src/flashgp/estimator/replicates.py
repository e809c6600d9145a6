"""Rows that count more than once: equal rows of x join into one row with a weight, and nothing is lost.

W observations at one x, mean y' and squared deviations s around it, under noise of variance v:

    prod_i N(y_i | f, v)^w_i = N(y' | f, v / W) (2 pi v)^(-(W - 1) / 2) W^(-1/2) exp(-s / (2 v))      W = sum_i w_i

So the posterior needs one row with noise v / W, and the marginal likelihood the factor behind it, which holds what
the repeats say about v. A row of weight w is a row that stands there w times: scikit-learn's meaning of
`sample_weight`, to the last bit, and n counts distinct rows only.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.inference.gp import GP

__all__ = ["Distinct", "ReplicatedGP", "distinct_rows"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Distinct:
    """The distinct rows of a table, in lexicographic order, so that the order of the table's rows has no influence.

    Fields: x, shape (u, d); y, shape (u, p), weighted means; weight, shape (u,); scatter, shape (p,), the squared
    deviations around those means, summed over all rows.
    """

    x: Array
    y: Array
    weight: Array
    scatter: Array


def distinct_rows(x: Array, y: Array, weight: Array | None) -> Distinct | None:
    """Join rows of equal x; None when every row is distinct and counts once (the table is then best left alone).

    Args: x, shape (n, d); y, shape (n, p); weight, shape (n,), positive, None for ones.
    Cost: a sort of the rows.
    """
    found, group = np.unique(x, axis=0, return_inverse=True)
    group = group.reshape(-1)
    weight = None if weight is None or bool((weight == 1.0).all()) else weight
    if weight is None:
        if len(found) == len(x):
            return None
        weight = np.ones(len(x))
    total: Array = np.bincount(group, weights=weight).astype(np.float64)
    # Around a member of each group, so that the mean of equal targets is that target.
    first = np.empty((len(found), y.shape[1]))
    first[group[::-1]] = y[::-1]
    share = (weight / total[group])[:, None]
    mean = first + _sums(group, share * (y - first[group]))
    scatter = (weight[:, None] * np.square(y - mean[group])).sum(axis=0)
    return Distinct(found, mean, total, scatter)


def _sums(group: npt.NDArray[np.intp], values: Array) -> Array:
    return np.stack([np.bincount(group, weights=column) for column in values.T], axis=1)


class ReplicatedGP(GP):
    """A GP whose rows stand for `row_weight` observations each: the marginal likelihood is that of all of them.

    Args:
        gp: with a likelihood of one noise variance and row weights; its modules are shared, not copied.
        scatter: squared deviations of the observations around the rows' targets, all outputs together, units of y^2.
    """

    def __init__(self, gp: GP, scatter: float) -> None:
        super().__init__(gp.kernel, gp.mean, gp.likelihood, gp.outputs)
        weight = gp.likelihood.row_weight
        assert weight is not None
        self.scatter_per_row = scatter / weight.shape[-1]  # of a subset of the rows: its share

    def beyond_matrix(self, device: torch.device) -> Tensor:
        """The log of the factor behind N(y' | f, v / W), over all rows; shape (*batch,), nats."""
        weight = self.likelihood.row_weight
        assert weight is not None
        variance = self.likelihood.variance(device)
        p = self.outputs or 1
        rows = weight.shape[-1]
        excess = float(weight.sum()) - rows
        constant = p * (excess * math.log(2.0 * math.pi) + float(weight.log().sum()))
        return -0.5 * (constant + p * excess * variance.log() + self.scatter_per_row * rows / variance)
