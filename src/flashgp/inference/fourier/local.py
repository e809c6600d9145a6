"""Variances without a factor of all frequencies: of each part of the box by the rows in a window of it, eq. (M-445).

The symbol of T is the density of the rows, weighted by precisions, on a lattice: what lies in a window of it, faded out
at the edges, is a T of fewer frequencies, of which there is a factor. Windows lack the highest frequencies and what is
far: solves of some points, from the least variance to the largest, give the line by which theirs are mended, and what
is left of the error.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from flashgp.inference.fourier.grid import Grid, Toeplitz
from flashgp.inference.fourier.spectrum import coefficients, correlation
from flashgp.inference.fourier.system import WeightSystem
from flashgp.kernels.base import Kernel

F64 = torch.float64


@dataclass(frozen=True)
class WindowSettings:
    """Fields: frequencies of a window, at most, tried in turn; middle, the part of it along an axis whose points are
    answered; faded, parts at each edge; correlated, the largest correlation over half a window; points, at once;
    checked, points that are solved; enough and most_error, relative errors, at which windows are small enough, and
    beyond which they do not serve."""

    frequencies: tuple[int, ...] = (1300, 2600)
    middle: float = 1.0 / 3.0
    faded: float = 0.3
    correlated: float = 0.3
    points: int = 2048
    checked: int = 16
    enough: float = 0.02
    most_error: float = 0.1


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of a system. Fields: system; kernel and d, whose spectrum it has; frequencies of a window, at most;
    settings."""

    system: WeightSystem
    kernel: Kernel
    d: int
    frequencies: int
    settings: WindowSettings

    @property
    def _lattice(self) -> tuple[int, ...]:
        """Points of the lattice along each axis."""
        return self.system.toeplitz.padded

    @cached_property
    def _steps(self) -> list[float]:
        return [length / count for length, count in zip(self.system.toeplitz.grid.lengths, self._lattice, strict=True)]

    @cached_property
    def sizes(self) -> list[int]:
        """Points of a window along each axis: all, or an even number that is the same where it is fewer."""
        orders = self.system.toeplitz.grid.orders

        def sized(most: int) -> list[int]:
            return [count if count <= most else most for count in self._lattice]

        def frequencies(sizes: list[int]) -> int:
            return math.prod(2 * m + 1 for m in self._orders_of(sizes, orders))

        most = max(self._lattice)
        while most > 4 and frequencies(sized(most)) > self.frequencies:
            most -= 2
        return sized(most)

    def _orders_of(self, sizes: list[int], orders: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            m if size == count else m * size // count
            for m, size, count in zip(orders, sizes, self._lattice, strict=True)
        )

    @cached_property
    def serve(self) -> bool:
        """Whether what decays does so within half a window along each axis that has windows."""
        grid = self.system.toeplitz.grid
        return all(
            size == count or correlation(self.kernel, column, self.d, 0.5 * size * step) <= self.settings.correlated
            for column, size, count, step in zip(grid.columns, self.sizes, self._lattice, self._steps, strict=True)
        )

    @cached_property
    def _grid(self) -> Grid:
        """That of a window at the centre of the box."""
        grid, sizes = self.system.toeplitz.grid, self.sizes
        lengths = tuple(size * step for size, step in zip(sizes, self._steps, strict=True))
        return replace(grid, lengths=lengths, reach=lengths, orders=self._orders_of(sizes, grid.orders))

    @cached_property
    def _spectrum(self) -> Tensor:
        return coefficients(self.kernel, self._grid, self.d).detach()

    @cached_property
    def _fading(self) -> Tensor:
        """Weights of the lattice points of a window, of its sizes."""
        found = torch.ones(self.sizes, dtype=F64)
        for axis, (size, count) in enumerate(zip(self.sizes, self._lattice, strict=True)):
            if size < count:
                edge = max(1, int(self.settings.faded * size))
                ramp = 0.5 - 0.5 * torch.cos(math.pi * (torch.arange(edge, dtype=F64) + 0.5) / edge)
                weights = torch.cat([ramp, torch.ones(size - 2 * edge, dtype=F64), ramp.flip(0)])
                found *= weights.view(*(-1 if axis == k else 1 for k in range(len(self.sizes))))
        return found

    @cached_property
    def _share(self) -> float:
        """Part of the box that a window has, with its weights."""
        return float(self._fading.sum()) / math.prod(self._lattice)

    @property
    def flops(self) -> float:
        """About those of the factors of all windows that have rows."""
        reach, middle = self.system.toeplitz.grid.reach, self.settings.middle
        tiles = (
            1 if size == count else math.ceil(length / step / max(1, int(middle * size)))
            for length, step, size, count in zip(reach, self._steps, self.sizes, self._lattice, strict=True)
        )
        return 3.0 * math.prod(tiles) * self._grid.size**3

    def _tiles(self, x: Tensor) -> Tensor:
        """Lattice points at the centres of the windows of points, (n, axes)."""
        found = []
        grid = self.system.toeplitz.grid
        for column, centre, size, count, step in zip(
            grid.columns, grid.centre, self.sizes, self._lattice, self._steps, strict=True
        ):
            wide = max(1, int(self.settings.middle * size))
            place = ((x[:, column].double() - centre) / step / wide).round().long() * wide
            found.append(torch.zeros_like(place) if size == count else place)
        return torch.stack(found, -1)

    def _at(self, tile: list[int]) -> WeightSystem:
        """The system of the rows in a window."""
        inside, axes = self.system.toeplitz.symbol, [*range(len(tile))]
        for axis, (place, size, count) in enumerate(zip(tile, self.sizes, self._lattice, strict=True)):
            steps = torch.arange(size)
            inside = inside.index_select(axis, (steps - torch.where(steps > size // 2, size, 0) + place) % count)
        faded = inside * torch.fft.ifftshift(self._fading, dim=axes)
        entries = torch.fft.rfftn(faded) / math.prod(self._lattice)
        moved = (c + place * step for c, place, step in zip(self._grid.centre, tile, self._steps, strict=True))
        grid = replace(self._grid, centre=tuple(moved))
        for axis, (m, size) in enumerate(zip(grid.orders[:-1], self.sizes[:-1], strict=True)):
            entries = entries.index_select(axis, torch.arange(-2 * m, 2 * m + 1) % size)
        entries = entries[..., : 2 * grid.orders[-1] + 1].contiguous()
        settings = replace(self.system.settings, dense=max(self.system.settings.dense, grid.size))
        return WeightSystem(self._spectrum, Toeplitz(grid, entries), settings, self.system.deadline)

    @cached_property
    def _beyond(self) -> Tensor:
        """c of the frequencies of the grid that are higher than those of windows, each as often as it counts."""
        grid, higher = self.system.toeplitz.grid, torch.zeros(self.system.toeplitz.grid.shape, dtype=torch.bool)
        last = len(grid.orders) - 1
        for axis, (m, own, wide, window) in enumerate(
            zip(grid.orders, self._grid.orders, grid.lengths, self._grid.lengths, strict=True)
        ):
            steps = torch.arange(0 if axis == last else -m, m + 1).abs()
            outside = steps / wide > (own + 0.5) / window
            higher |= outside.view(*(-1 if axis == k else 1 for k in range(last + 1)))
        return torch.stack([self.system.spectrum, grid.multiplicity.expand(grid.shape)], -1)[higher]

    def _parts(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        tiles, of = torch.unique(self._tiles(x), dim=0, return_inverse=True)
        order = of.argsort(stable=True)
        for tile, rows in zip(tiles.tolist(), order.split(of.bincount(minlength=len(tiles)).tolist()), strict=True):
            system = self._at(tile)
            dense = max(0.0, system.toeplitz.diagonal / self._share)
            spectrum, times = self._beyond.unbind(-1)
            higher = (times * spectrum / (1.0 + spectrum * dense)).sum()
            for some in rows.split(self.settings.points):
                yield some, system.inverse_variance_at(x[some]) + higher

    def _checked(self, value: Tensor) -> Tensor:
        """Some points, evenly by the ranks of their values and by the logarithms of these."""
        ordered, order = value.clamp_min(torch.finfo(F64).tiny).log().sort()
        half = min(len(value), self.settings.checked // 2)
        by_rank = torch.linspace(0, len(value) - 1, half).round().long()
        by_size = torch.searchsorted(ordered, torch.linspace(float(ordered[0]), float(ordered[-1]), half, dtype=F64))
        return order[torch.cat([by_rank, by_size.clamp_max(len(value) - 1)]).unique()]

    def variance(self, x: Tensor, tail: float) -> tuple[Tensor, float]:
        """phi* B^-1 phi at points (n, columns), (n,), and its error relative to it with the tail; infinite where a
        window has no factor. Cost: a factor of each window that has points, and a solve of each point in it."""
        value = torch.zeros(len(x), dtype=F64)
        try:
            for rows, found in self._parts(x):
                value[rows] = found
        except LinAlgError:
            return value, math.inf
        some = self._checked(value)
        exact = self.system.inverse_variance_at(x[some])
        scale = (exact + tail).unsqueeze(-1)
        near = torch.stack([value[some], torch.ones_like(exact)], -1)[:, : 2 if len(some) > 2 else 1]
        line = torch.linalg.lstsq(near / scale, exact.unsqueeze(-1) / scale, driver="gelsd").solution
        error = float(((near @ line - exact.unsqueeze(-1)) / scale).abs().max())
        return (line[0] * value + (line[1] if len(line) > 1 else 0.0)).clamp_min(0.0), error


def near_variance(
    system: WeightSystem, kernel: Kernel, x: Tensor, tail: float, settings: WindowSettings
) -> tuple[Tensor, float] | None:
    """phi* B^-1 phi at points (n, columns) by windows, (n,), and its relative error; None where they do not serve."""
    best: tuple[Tensor, float] | None = None
    for windows in windows_that_serve(system, kernel, x.shape[-1], settings):
        found = windows.variance(x, tail)
        if found[1] <= min(settings.most_error, best[1] if best else math.inf):
            best = found
        if best and best[1] <= settings.enough:
            break
    return best


def windows_that_serve(system: WeightSystem, kernel: Kernel, d: int, settings: WindowSettings) -> list[Windows]:
    """Windows that variances may be by, in the order in which they are tried."""
    all_of_them = (Windows(system, kernel, d, most, settings) for most in settings.frequencies)
    return [windows for windows in all_of_them if windows.serve]
