"""Rows in standard units, by the mean and spread of every column that one pass over them finds."""

from collections.abc import Iterator
from typing import Any

from flashgp.foundations.checks import as_float_tensor
from flashgp.processes.group import Group
from flashgp.sources.group_survey import surveyed_over
from flashgp.sources.source import UNNAMED, Batch, RowSource, source_of
from flashgp.targets import Number
from flashgp.units import Scaling, check_scales


class StandardisedRows(RowSource):
    """Rows in standard units, made by `standardised`.

    Attributes:
        rows: the source in its own units.
        scaling: from these units and back.
        columns: their names.
    """

    def __init__(self, rows: RowSource, scaling: Scaling) -> None:
        self.rows, self.scaling, self.columns = rows, scaling, rows.columns

    @property
    def length(self) -> int | None:
        return self.rows.length

    def shard(self, group: Group) -> "StandardisedRows":
        return StandardisedRows(self.rows.shard(group), self.scaling)

    def batches(self) -> Iterator[Batch]:
        return self._scaled(self.rows.batches())

    def shuffled(self, seed: int) -> Iterator[Batch]:
        return self._scaled(self.rows.shuffled(seed))

    def _scaled(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for place, x, y, numbers in batches:
            x, y = (as_float_tensor(values, f"{name} of {place}").double() for name, values in (("x", x), ("y", y)))
            _, scale = self.scaling.target.sizes
            variances = {
                name: as_float_tensor(numbers[name], f"row_variance of {place}").double() / scale**2
                for name in (UNNAMED, "row_variance")
                if name in numbers
            }
            yield place, self.scaling.x(x), self.scaling.y(y), {**numbers, **variances}

    def __repr__(self) -> str:
        return f"{self.rows!r}, in standard units"


def standardised(rows: Any, *, group: Any = None) -> StandardisedRows:
    """Rows whose columns of x, and one target, have mean 0 and standard deviation 1; (M-164).

    Their `scaling` takes points to standard units, `scaling.x(x)`, and answers back to those of y,
    `scaling.target.mean(p.mean)` and `scaling.target.std(p.variance.sqrt())`. A column that does not vary is only
    shifted.

    Args:
        rows: as `fgp.fit` takes them; the third of a batch is divided by the variance of y, as a noise variance is,
            unless it has another name, as of `fgp.data.parquet(row_weight=)`.
        group: as `fgp.fit` takes it; mean and deviation are of all ranks' rows.

    Raises:
        DomainError: for a column whose squares overflow; other errors as a pass of `fgp.fit`.
    Cost: one pass.

    Example:
        >>> x = torch.linspace(0, 5, 200, dtype=torch.float64)[:, None]
        >>> rows = fgp.data.standardised([(1e6 + part, 1e3 * part[:, 0].sin()) for part in x.split(64)])
        >>> post = fgp.GP(fgp.kernels.Matern(), likelihood=fgp.likelihoods.Gaussian(0.01)).condition(rows, inducing=30)
        >>> p = post.predict(rows.scaling.x(1e6 + x[:4]))
        >>> bool((rows.scaling.target.mean(p.mean) - 1e3 * x[:4, 0].sin()).abs().max() < 20.0)
        True
    """
    ranks = Group.of(group)
    with ranks.together():
        source = source_of(rows).shard(ranks)
        survey = surveyed_over(ranks, source, None, 0, seed=0)
    x, y = survey.x_moments, survey.y_moments
    scaling = Scaling(tuple(x.mean.tolist()), tuple(x.scale.tolist()), Number(float(y.mean), float(y.scale)))
    names = source.columns or [f"{j} of x" for j in range(survey.width)]
    check_scales(scaling, [*names, "y"])
    return StandardisedRows(source, scaling)
