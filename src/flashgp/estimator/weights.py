"""What sample_weight means: relative precisions of the rows, or how often each of them stands there.

Relative precisions are the rule, eq. (M-251): an overall scale changes nothing, and equal weights mean nothing. Whole
numbers that differ and begin at 1 are counts, as scikit-learn has them: a row of weight w is w equal rows, eq. (M-87).
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.likelihoods import Gaussian
from flashgp.likelihoods.gaussian import repeated

Array = npt.NDArray[np.float64]


def weighed(likelihood: Gaussian, weight: Array | None) -> tuple[Gaussian, Tensor | None, Event | None]:
    """The likelihood of rows with weights (n,), positive; how often each row counts, (n,), None for once; what the
    weights were taken for.

    Raises: DomainError for weights that differ where there is no trained noise variance that they divide, or whose
        ratios float64 does not hold.
    """
    if weight is None:
        return likelihood, None, None
    least, most = float(weight.min()), float(weight.max())
    if least == most:
        return likelihood, None, None if least == 1.0 else Event(EventKind.WEIGHTS_EQUAL, weight=least)
    if likelihood.noise_variance is None:
        raise DomainError(
            "`sample_weight` needs a noise_variance, which it divides, got weights beside known variances of all rows; "
            "leave it out, or pass likelihood=Gaussian(row_variance=...) with a noise_variance"
        )
    if likelihood.rows_alike and least == 1.0 and bool((weight == np.floor(weight)).all()):
        counts = torch.from_numpy(weight)
        return repeated(likelihood, counts), counts, Event(EventKind.WEIGHTS_COUNTED, rows=len(weight), most=most)
    own = likelihood.row_weight
    relative = likelihood.weighted(
        torch.from_numpy(weight) if own is None else own * torch.from_numpy(weight), likelihood.row_variance
    )
    assert relative.row_weight is not None
    low, high = float(relative.row_weight.min()), float(relative.row_weight.max())
    return relative, None, Event(EventKind.WEIGHTS_RELATIVE, least=low, most=high)
