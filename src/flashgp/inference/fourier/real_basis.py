"""Real coordinates of some frequencies, in which T is a real symmetric matrix, eq. (M-432).

A vector a with a_-j the conjugate of a_j has the coordinates a_0, sqrt(2) Re a_j and sqrt(2) Im a_j, j in one half of
the frequencies: inner products stay what they are.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flashgp.inference.fourier.grid import C128, Gram, Grid, Toeplitz


@dataclass(frozen=True)
class RealBasis:
    """Frequencies |j_c| <= orders_c of a grid."""

    grid: Grid
    orders: tuple[int, ...]

    @classmethod
    def leading(cls, grid: Grid, most: int) -> "RealBasis":
        """The lowest frequencies, at most so many, of a box of the grid's shape."""
        share = min(1.0, (most / grid.size) ** (1.0 / grid.d))
        while True:
            orders = tuple(math.floor(share * m) for m in grid.orders)
            if math.prod(2 * m + 1 for m in orders) <= most:
                return cls(grid, orders)
            share *= 0.98

    @property
    def size(self) -> int:
        return math.prod(2 * m + 1 for m in self.orders)

    @cached_property
    def _half(self) -> Tensor:
        """Frequencies of one half but for 0, (h, d)."""
        axes = [torch.arange(-m, m + 1) for m in self.orders]
        index = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, self.grid.d)
        sign = torch.zeros(len(index), dtype=torch.int64)
        for column in index.flip(-1).unbind(-1):  # of the last that is not 0
            sign = torch.where(sign == 0, column.sign(), sign)
        return index[sign > 0]

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor, Tensor]:
        """Flat positions in the grid's arrays: of the half, and of mirrored ones with whose they mirror."""
        shape, orders = self.grid.shape, self.grid.orders
        moved = torch.tensor([*orders[:-1], 0])
        strides = torch.tensor([math.prod(shape[k + 1 :]) for k in range(len(shape))])
        own = ((self._half + moved) * strides).sum(-1)
        flat = (self._half[:, -1] == 0).nonzero()[:, 0]
        mirrored = ((moved - self._half[flat]) * strides).sum(-1)
        return own, mirrored, flat

    @property
    def _zero(self) -> int:
        shape = self.grid.shape
        return sum(m * math.prod(shape[k + 1 :]) for k, m in enumerate(self.grid.orders[:-1]))

    def coordinates(self, vectors: Tensor) -> Tensor:
        """Of (k, *shape), (k, size)."""
        flat = vectors.reshape(len(vectors), -1)
        own = flat[:, self._places[0]] * math.sqrt(2.0)
        return torch.cat([flat[:, self._zero : self._zero + 1].real, own.real, own.imag], 1)

    def put(self, vectors: Tensor, coordinates: Tensor) -> Tensor:
        """The vectors (k, *shape) with these coordinates, in place."""
        own, mirrored, of = self._places
        flat, count = vectors.view(len(vectors), -1), len(own)
        values = torch.complex(coordinates[:, 1 : 1 + count], coordinates[:, 1 + count :]) * math.sqrt(0.5)
        flat[:, self._zero] = coordinates[:, 0].to(C128)
        flat[:, own] = values
        flat[:, mirrored] = torch.conj(values[:, of])
        return vectors

    def powers(self, matrix: Tensor) -> Tensor:
        """Of each frequency the mean of what its two coordinates have on a diagonal, of the grid's shape, where the
        basis is all."""
        squares = matrix.diagonal()
        own, mirrored, of = self._places
        found = torch.empty(math.prod(self.grid.shape), dtype=squares.dtype)
        both = 0.5 * (squares[1 : 1 + len(own)] + squares[1 + len(own) :])
        found[self._zero] = squares[0]
        found[own], found[mirrored] = both, both[of]
        return found.view(self.grid.shape)

    def matrix(self, gram: Gram, root: Tensor) -> Tensor:
        """I + W T W of these frequencies, (size, size). Args: root, W, of the grid's shape."""
        half, count, size = self._half, len(self._half), self.size
        found = torch.empty(size, size, dtype=torch.float64)
        assert isinstance(gram, Toeplitz)
        at, own = gram.at, slice(1, 1 + count)
        step = max(1, 2**20 // max(1, count))
        for start in range(0, count, step):
            some = half[start : start + step]
            apart, joined = at(some.unsqueeze(1) - half), at(some.unsqueeze(1) + half)
            real, imag = (
                slice(1 + start, 1 + start + len(some)),
                slice(1 + count + start, 1 + count + start + len(some)),
            )
            found[real, own] = apart.real + joined.real
            found[real, 1 + count :] = joined.imag - apart.imag
            found[imag, own] = apart.imag + joined.imag
            found[imag, 1 + count :] = apart.real - joined.real
        edge = at(half) * math.sqrt(2.0)
        found[0, 0] = gram.diagonal
        found[0, 1:] = found[1:, 0] = torch.cat([edge.real, edge.imag])
        scale = root.reshape(-1)[torch.cat([torch.tensor([self._zero]), self._places[0], self._places[0]])]
        found.mul_(scale).mul_(scale.unsqueeze(1))
        found.diagonal().add_(1.0)
        return found
