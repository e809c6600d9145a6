"""Several grids side by side, one for each set of columns that terms of a sum have, eqs. (M-425), (M-426).

    f = sum_g f_g,   E = (E_1, E_2, ...),   T_gh = E_g* S^-1 E_h = V_g C_gh V_h*,   C_gh = Psi_g' S^-1 Psi_h

Arrays hold the halves of the grids one after the other. With V of (M-446) and the real functions Psi = E V of its
coordinates, T is known by C: within a grid by its Toeplitz sums, across two by those of their product, a grid of the
columns of both, or by products of the functions at the rows. There is always a factor.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flashgp.inference.fourier.domain_basis import Domain, domain_of, least_coordinates, prolate_domain
from flashgp.inference.fourier.grid import C128, Gram, Grid

F64 = torch.float64
BLOCK_NUMBERS = 2**22  # of functions at rows, at once
MOST_AXES = 3  # of a transform
PAIRED = 2**20  # frequencies of the transform of two grids, at most
NUMBER_FLOPS = 800.0  # for which a number of a transform's grid is reckoned


@dataclass(frozen=True)
class Grids:
    """Fields: parts, grids of different columns. Others as `Grid`."""

    parts: tuple[Grid, ...]

    @property
    def d(self) -> int:
        """Columns of a grid, at most."""
        return max(part.d for part in self.parts)

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(sorted({column for part in self.parts for column in part.columns}))

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @cached_property
    def widths(self) -> list[int]:
        """Numbers that arrays hold of each grid."""
        return [math.prod(part.shape) for part in self.parts]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(self.widths),)

    @property
    def zero(self) -> Any:
        """Place of the frequency 0 of the first grid."""
        first = self.parts[0]
        return ..., sum(m * math.prod(first.shape[k + 1 :]) for k, m in enumerate(first.orders[:-1]))

    @cached_property
    def multiplicity(self) -> Tensor:
        return self.joined([part.multiplicity.expand(part.shape) for part in self.parts])

    def split(self, arrays: Tensor) -> list[Tensor]:
        """Those of each grid, (*batch, *shape_g)."""
        each = arrays.split(self.widths, -1)
        return [one.reshape(*one.shape[:-1], *part.shape) for one, part in zip(each, self.parts, strict=True)]

    def joined(self, each: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`."""
        return torch.cat([one.flatten(-part.d) for one, part in zip(each, self.parts, strict=True)], -1)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return ((a.real * b.real + a.imag * b.imag) * self.multiplicity).sum(-1)

    def total(self, values: Tensor) -> Tensor:
        return (values * self.multiplicity).sum(-1)

    def normal(self, count: int, generator: torch.Generator) -> Tensor:
        return self.joined([part.normal(count, generator) for part in self.parts])

    # -- rows ------------------------------------------------------------------------------------------------------
    def waves(self, x: Tensor) -> Tensor:
        return self.joined([part.waves(x) for part in self.parts])

    def forward(self, x: Tensor, coefficients: Tensor) -> Tensor:
        each = zip(self.parts, self.split(coefficients), strict=True)
        return torch.stack([part.forward(x, own.contiguous()) for part, own in each]).sum(0)

    def sums(self, x: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
        """C by the first of some strengths (k, n), and the adjoint of the others.

        Cost: a transform of the rows for each grid and for most pairs, n q_g q_h for the others, (M-427).
        """
        domains, projected = self.domains, list[Tensor]()
        gram = torch.zeros(domains.size, domains.size, dtype=F64)
        for domain, own in zip(domains.parts, domains.places, strict=True):
            entries, inner = domain.grid.sums(x, strengths)
            gram[own, own] = domain.form(entries, 2)
            projected.append(inner)
        pairs = domains.pairs(len(x))
        for (one, other), pair in pairs.items():
            if pair is not None:
                found = pair.analysis(pair.grid.adjoint(x, strengths[:1]))
                gram[domains.places[one], domains.places[other]] = found.view(domains.parts[one].size, -1)
        by_functions = [two for two, pair in pairs.items() if pair is None]
        needed = sorted({k for two in by_functions for k in two})
        for start in range(0, len(x) if needed else 0, step := max(1, BLOCK_NUMBERS // domains.size)):
            some, precision = (t[start : start + step].cpu() for t in (x, strengths[0].double()))
            functions = {k: domains.parts[k].at(some) for k in needed}
            for one, other in by_functions:
                gram[domains.places[one], domains.places[other]] += (functions[one].mT * precision) @ functions[other]
        return gram.triu() + gram.triu(1).mT, self.joined(projected)

    def ones(self, entries: Tensor) -> Tensor:
        return self.gram(entries).of_constant

    def gram(self, entries: Tensor) -> "JointGram":
        return JointGram(self, entries)

    @cached_property
    def domains(self) -> "Domains":
        found = [prolate_domain(part) for part in self.parts]
        return Domains(self, tuple(one for one in found if one is not None))


@dataclass(frozen=True, eq=False)
class Domains:
    """V of several grids, coordinates of one after those of the other. See `Domain`."""

    grid: Grids
    parts: tuple[Domain, ...]

    @cached_property
    def places(self) -> list[slice]:
        """Where the coordinates of each grid are."""
        found, start = list[slice](), 0
        for part in self.parts:
            found.append(slice(start, start + part.size))
            start += part.size
        return found

    @property
    def size(self) -> int:
        return self.places[-1].stop

    def pairs(self, rows: int) -> dict[tuple[int, int], Domain | None]:
        """Every two grids, with the domain of both side by side where its transform of so many rows is quicker than
        products of functions, (M-427)."""
        return {
            two: pair if pair and quicker(pair, rows) else None
            for two, pair in zip(itertools.combinations(range(len(self.parts)), 2), self._products, strict=True)
        }

    @cached_property
    def _products(self) -> list[Domain | None]:
        found = list[Domain | None]()
        for g, h in itertools.combinations(self.parts, 2):
            both = Grid(*(getattr(g.grid, f.name) + getattr(h.grid, f.name) for f in fields(Grid)))
            small = both.d <= MOST_AXES and both.size <= PAIRED
            found.append(Domain(both, g.vectors + h.vectors, g.odd + h.odd) if small else None)
        return found

    def at(self, x: Tensor) -> Tensor:
        """Psi of points (n, columns), (n, size)."""
        return torch.cat([part.at(x) for part in self.parts], 1)

    def analysis(self, half: Tensor) -> Tensor:
        return torch.cat([part.analysis(own) for part, own in zip(self.parts, self.grid.split(half), strict=True)], 1)

    def synthesis(self, coordinates: Tensor) -> Tensor:
        return self.grid.joined(
            [part.synthesis(coordinates[:, own]) for part, own in zip(self.parts, self.places, strict=True)]
        )

    def form(self, half: Tensor, times: int) -> Tensor:
        """V* A V of a diagonal A for `times` 0; of T for 2, which is known by nothing else."""
        if times:
            return half
        each = zip(self.parts, self.grid.split(half), strict=True)
        return torch.block_diag(*(part.form(own, 0) for part, own in each))

    def diagonal(self, matrix: Tensor) -> Tensor:
        return self.grid.joined(
            [part.diagonal(matrix[own, own]) for part, own in zip(self.parts, self.places, strict=True)]
        )


def quicker(pair: Domain, rows: int) -> bool:
    """Whether a transform of rows takes less time than products of functions at them."""
    return 2.0 * rows * pair.size > NUMBER_FLOPS * pair.grid.size * 2**pair.grid.d


@dataclass(frozen=True, eq=False)
class JointGram(Gram):
    """T of several grids as a function of vectors. Args: grid; entries, C."""

    grid: Grids
    entries: Tensor

    @cached_property
    def of_constant(self) -> Tensor:
        """T of the function 1, by the first grid."""
        constant = torch.zeros(1, *self.grid.shape, dtype=C128)
        constant[self.grid.zero] = 1.0
        return self(constant)[0]

    @property
    def diagonal(self) -> float:
        return float(self.of_constant[self.grid.zero].real)

    def __call__(self, vectors: Tensor) -> Tensor:
        domains = self.grid.domains
        return domains.synthesis(domains.analysis(vectors) @ self.entries)


Series = Grid | Grids


def series_of(parts: Sequence[Grid]) -> Series:
    """One grid, or several side by side."""
    return parts[0] if len(parts) == 1 else Grids(tuple(parts))


def basis_domain(grid: Series, most: int) -> Domain | Domains | None:
    """See `domain_of`; of several grids it is there where they have no more coordinates than `most`."""
    if isinstance(grid, Grid):
        return domain_of(grid, most)
    if sum(map(least_coordinates, grid.parts)) > most or any(prolate_domain(part) is None for part in grid.parts):
        return None
    return grid.domains if grid.domains.size <= most else None


def coordinates_of(grid: Series, most: int) -> int:
    """Rows of a factor of B; 0 where they would be more than `most`."""
    domain = basis_domain(grid, most)
    return domain.size if domain is not None else grid.size if isinstance(grid, Grid) and grid.size <= most else 0
