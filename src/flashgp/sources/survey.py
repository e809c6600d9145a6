"""The first pass over rows that are read, and every pass after it, which has to see the same rows.

The first pass counts the rows, takes their checksum, mean and spread, and keeps a random sample. Later passes give
blocks of a size of their own, however the rows are cut into batches, and compare count and checksum at their end:
the order may change, the rows may not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.checks import check_points, check_targets
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.sources.checksum import checksum, combined
from flashgp.sources.sample import Sampler
from flashgp.sources.source import RowSource
from flashgp.sources.statistics import Moments

__all__ = ["Survey", "surveyed"]

F64 = torch.float64


@dataclass(frozen=True, eq=False)
class Survey:
    """What the first pass saw.

    Fields: source; outputs, columns of y, None for one without an axis; count of rows; width, columns of x; dtype and
    device of x; checksum; x_moments and y_moments, of the columns; x, y, the sample, float64.
    """

    source: RowSource
    outputs: int | None
    count: int
    width: int
    dtype: torch.dtype
    device: torch.device
    checksum: int
    x_moments: Moments
    y_moments: Moments
    x: Tensor
    y: Tensor

    def blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One more pass: (x, y) of so many rows at a time, float64, in the order in which they come.

        Raises: DomainError at its end where it did not see the rows of the first pass; as the first pass.
        """
        count, total = 0, 0
        waiting: list[tuple[Tensor, Tensor]] = []
        held = 0
        for _, x, y in checked(self.source, self.outputs, self.width):
            count, total = count + len(x), combined(total, _checksum(x, y))
            if count > self.count:
                break
            waiting.append((x, y))
            held += len(x)
            while held >= size:
                whole = _joined(waiting)
                yield whole[0][:size], whole[1][:size]
                waiting, held = [(whole[0][size:], whole[1][size:])], held - size
        if count != self.count or total != self.checksum:
            seen = f"{count:,} rows" if count != self.count else "other values"
            raise DomainError(
                f"`rows` must have the same rows in every pass, got {self.count:,} rows in the first and {seen} in a "
                "later one; leave out random changes, and do not write to files that are read"
            )
        if held:
            yield _joined(waiting)


def surveyed(source: RowSource, outputs: int | None, sample: int, seed: int) -> Survey:
    """The first pass.

    Args: outputs: columns of y, None for y of shape (n,); sample, rows that are kept; seed, of the sample.
    Raises: ShapeError, DomainError for batches that do not fit each other or are not finite, and for no rows.
    """
    count, total, width, dtype, device = 0, 0, None, F64, torch.device("cpu")
    moments: tuple[Moments, Moments] | None = None
    sampler = Sampler(sample, seed)
    for first, x, y in checked(source, outputs, None):
        if width is None:
            width, dtype, device = x.shape[-1], first, x.device
        count, total = count + len(x), combined(total, _checksum(x, y))
        here = Moments.of(x), Moments.of(y.reshape(len(y), -1))
        moments = here if moments is None else (moments[0].joined(here[0]), moments[1].joined(here[1]))
        sampler.add(x, y)
    if moments is None or width is None:
        raise ShapeError(
            "`rows` must have at least one row, got none; check that the source can be read more than once"
        )
    return Survey(source, outputs, count, width, dtype, device, total, *moments, *sampler.rows)


def checked(source: RowSource, outputs: int | None, width: int | None) -> Iterator[tuple[torch.dtype, Tensor, Tensor]]:
    """The batches of one pass that have rows: the dtype of x as it came, and (x, y) in float64."""
    device: torch.device | None = None
    for place, x, y in source.batches():
        names = (f"{name} of {place}" if place else name for name in ("x", "y"))
        x_name, y_name = names
        x = check_points(x, x_name).detach()
        if x.dim() != 2:
            raise ShapeError(f"`{x_name}` must have shape (n, d), got {tuple(x.shape)}; pass one table of rows")
        y = check_targets(y, y_name, x, outputs).detach()
        if y.dim() != (1 if outputs is None else 2):
            raise ShapeError(f"`{y_name}` must be of one table, got shape {tuple(y.shape)}; leave out the batch")
        width, device = x.shape[-1] if width is None else width, x.device if device is None else device
        if x.shape[-1] != width:
            raise ShapeError(
                f"`{x_name}` must have {width} columns like the batches before, got shape {tuple(x.shape)}; give every "
                "batch the same columns"
            )
        if x.device != device:
            raise DomainError(f"`{x_name}` must be on {device} like the batches before, got {x.device}; move it")
        if len(x):
            yield x.dtype, x.to(F64, copy=True), y.to(F64, copy=True)  # whose buffer may be used again


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    if len(parts) == 1:
        return parts[0]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def _checksum(x: Tensor, y: Tensor) -> int:
    table = torch.cat([x, y.reshape(len(y), -1)], dim=1)
    return checksum(table.numpy(force=True))
