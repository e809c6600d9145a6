"""A random sample of rows that are read once, of a size that is known beforehand."""

import numpy
import torch
from torch import Tensor


class Sampler:
    """Keeps the rows with the smallest of as many uniform random numbers as there are rows: each set of rows is as
    likely as any other, however the rows are cut into batches.

    Args: size, of the sample; seed; first, number of the first row: rows of a part of a table get the keys that they
        have in all of it.
    Source: Vitter (1985), Random sampling with a reservoir; by random keys as in Efraimidis & Spirakis (2006).
    """

    def __init__(self, size: int, seed: int, first: int = 0) -> None:
        generator = numpy.random.PCG64(abs(seed))
        generator.advance(first)  # a number for each row
        self.size, self._draws, self._seen = size, numpy.random.Generator(generator), first
        self._keys, self._places = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        self._rows: list[Tensor] | None = None

    def add(self, *columns: Tensor) -> None:
        """The next rows: as many tensors each time, (n, ...) each."""
        count = len(columns[0])
        keys = torch.from_numpy(self._draws.random(count))
        places = torch.arange(self._seen, self._seen + count)
        self._seen += count
        rows = list(columns)
        if len(self._keys) == self.size and self.size:
            near = (keys < self._keys.max()).nonzero()[:, 0]
            keys, places, rows = keys[near], places[near], _taken(rows, near)
        if self._rows is not None:
            rows = [torch.cat(pair) for pair in zip(self._rows, rows, strict=True)]
        keys, places = torch.cat([self._keys, keys]), torch.cat([self._places, places])
        if len(keys) > self.size:
            kept = keys.topk(self.size, largest=False).indices.sort().values
            keys, places, rows = keys[kept], places[kept], _taken(rows, kept)
        self._keys, self._places, self._rows = keys, places, [column.clone() for column in rows]

    @property
    def candidates(self) -> tuple[Tensor, Tensor, list[Tensor] | None]:
        """Keys and numbers of the rows that are kept so far, and these; None before any row."""
        return self._keys, self._places, self._rows

    @property
    def rows(self) -> list[Tensor]:
        """Those of the sample, in the order in which they were read. Raises: AssertionError before any row."""
        assert self._rows is not None
        return _taken(self._rows, self._places.argsort())


def _taken(columns: list[Tensor], index: Tensor) -> list[Tensor]:
    return [column[index.to(column.device)] for column in columns]
