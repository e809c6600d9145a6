"""A random sample of rows that are read once, of a size that is known beforehand."""

import numpy
import torch
from torch import Tensor

__all__ = ["Sampler"]


class Sampler:
    """Keeps the rows with the smallest of as many uniform random numbers as there are rows: each set of rows is as
    likely as any other, however the rows are cut into batches.

    Args: size, of the sample; seed.
    Source: Vitter (1985), Random sampling with a reservoir; by random keys as in Efraimidis & Spirakis (2006).
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._draws, self._seen = size, numpy.random.default_rng(abs(seed)), 0
        self._keys, self._places = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        self._x: Tensor | None = None
        self._y: Tensor | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        """The next rows, (n, d) and (n, ...)."""
        keys = torch.from_numpy(self._draws.random(len(x)))
        places = torch.arange(self._seen, self._seen + len(x))
        self._seen += len(x)
        if len(self._keys) == self.size and self.size:
            near = (keys < self._keys.max()).nonzero()[:, 0]
            keys, places, x, y = keys[near], places[near], x[near.to(x.device)], y[near.to(y.device)]
        if self._x is not None and self._y is not None:
            x, y = torch.cat([self._x, x]), torch.cat([self._y, y])
        keys, places = torch.cat([self._keys, keys]), torch.cat([self._places, places])
        if len(keys) > self.size:
            kept = keys.topk(self.size, largest=False).indices.sort().values
            keys, places, x, y = keys[kept], places[kept], x[kept.to(x.device)], y[kept.to(y.device)]
        self._keys, self._places, self._x, self._y = keys, places, x.clone(), y.clone()

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """(x, y) of the sample, in the order in which they were read. Raises: AssertionError before any row."""
        assert self._x is not None
        assert self._y is not None
        order = self._places.argsort()
        return self._x[order.to(self._x.device)], self._y[order.to(self._y.device)]
