"""Anderson mixing of the steps that find sites, eq. (M-340).

Steps (M-267) of several classes, or of labels under a large variance, leave nine tenths of their error each; what the
last few of them have in common says where they lead.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from flashgp.inference.site_methods import Marginals
from flashgp.likelihoods import Sites

LEAST_SHARE = 0.1  # of the precisions of a site and of its next one, that a mixed one has
RIDGE = 1e-12  # of the mean square of the differences of errors


class _Step(NamedTuple):
    """Natural parameters of sites, and what a whole step adds to them: (n,) or (n, outputs) each."""

    linear: Tensor
    precision: Tensor
    by_linear: Tensor
    by_precision: Tensor


@dataclass
class Anderson:
    """Sites that the last steps lead to.

    Args: size, of a step; most, steps that are kept beside the last one. Memory: 4 (most + 1) numbers for each site.
    Source: Walker & Ni (2011), Anderson acceleration for fixed-point iterations.
    """

    size: float
    most: int
    _steps: list[_Step] = field(default_factory=list, init=False)

    def add(self, sites: Sites, coming: Sites) -> None:
        """Sites where steps have come to, and those of a whole step from there."""
        before, after = 1.0 / sites.variance, 1.0 / coming.variance
        linear = sites.targets * before
        step = _Step(linear, before, coming.targets * after - linear, after - before)
        self._steps = [*self._steps, step][-self.most - 1 :]

    def forget(self) -> None:
        """All but the last step."""
        self._steps = self._steps[-1:]

    def mixed(self, at: Marginals) -> Sites | None:
        """Sites that the steps lead to; None of a single one, and where they say nothing.

        Args: at, q(f) under the last sites.
        """
        *others, last = self._steps
        if not others:
            return None
        differences = [_Step(*(a - b for a, b in zip(last, one, strict=True))) for one in others]
        errors = torch.stack([_error(one, at) for one in differences])
        gram = errors @ errors.mT
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        shares, info = torch.linalg.solve_ex(gram, errors @ _error(last, at))
        if bool(info) or not bool(shares.isfinite().all()):
            return None
        linear, precision = (
            value
            + self.size * by
            - sum(c * (one[k] + self.size * one[k + 2]) for c, one in zip(shares, differences, strict=True))
            for k, value, by in ((0, last.linear, last.by_linear), (1, last.precision, last.by_precision))
        )
        least = LEAST_SHARE * torch.minimum(last.precision, last.precision + last.by_precision)
        precision = torch.maximum(precision, least)
        return Sites(linear / precision, 1.0 / precision)


def _error(step: _Step, at: Marginals) -> Tensor:
    """What a step would move, each site by itself, whose square is twice the divergence to second order."""
    shift = (step.by_linear - step.by_precision * at.mean) * at.variance.sqrt()
    return torch.cat([shift.reshape(-1), 0.5**0.5 * (step.by_precision * at.variance).reshape(-1)])
