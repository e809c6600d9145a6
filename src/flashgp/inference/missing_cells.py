"""Missing cells of several outputs: NaN in y, (n, outputs), is a row that this output alone was not observed in.

Outputs with noise of their own have a covariance matrix each, and so rows each, eq. (M-252). Outputs that share their
noise have one matrix for all, and complete rows.
"""

from jaxtyping import Bool, Int
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.transforms import is_transformed
from flashgp.inference.prior import Prior


def observed(y: Tensor, outputs: int | None) -> Bool[Tensor, "n outputs"] | None:
    """Mask of cells with a value; None if all have one."""
    if outputs is None or y.dim() != 2 or y.is_meta or is_transformed(y):
        return None
    cells = ~y.isnan()
    return None if bool(cells.all()) else cells


def check_observed(prior: Prior, cells: Bool[Tensor, "n outputs"]) -> None:
    """Raises: DomainError for an output without a value, or a likelihood whose rows count."""
    if not bool(cells.any(0).all()):
        empty = int((~cells.any(0)).nonzero()[0])
        raise DomainError(f"`y` must have a value of every output, got none of output {empty}; leave that output out")
    if prior.likelihood.counts is not None:
        raise DomainError(
            "`y` must have no missing cells where weights are counts of rows, got NaN beside whole-number weights; "
            "halve the weights, which makes them relative precisions"
        )


def rows_of_output(cells: Bool[Tensor, "n outputs"], index: int) -> Int[Tensor, "some"]:
    """The numbers of the rows that an output was observed in."""
    return cells[:, index].nonzero().squeeze(-1)


def of_observed(prior: Prior, x: Tensor, y: Tensor, index: int, *, live: bool = False) -> tuple[Prior, Tensor, Tensor]:
    """The prior of one output, x and y of the rows that it was observed in, as `Prior.output`."""
    one, column = prior.output(index, live=live), y[..., index]
    cells = observed(y, prior.outputs)
    if cells is None:
        return one, x, column
    rows = rows_of_output(cells, index)
    return one.with_likelihood(one.likelihood.rows(rows)), x[rows], column[rows]
