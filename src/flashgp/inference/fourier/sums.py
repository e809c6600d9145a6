"""Sums over rows, all that inference in weight space asks of them: one pass, whatever their number, eq. (M-432).

    t_j = sum_n exp(-2 pi i nu_j . x_n) / s_n,   g_j = sum_n exp(-2 pi i nu_j . x_n) r_n / s_n,   r = y - m(x)

and the squares and logarithms of the likelihood. Sums of parts of the rows, or of ranks, add up.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.fourier.grids import Series
from flashgp.inference.fourier.system import Solution, SolveSettings, WeightSystem
from flashgp.processes.gradient_shares import sum_together
from flashgp.processes.group import ALONE, Group

F64 = torch.float64


@dataclass(frozen=True, eq=False)
class FourierSums:
    """Fields: grid; count of rows; entries, t, a half of twice the orders, or C of several grids, (M-426); projected,
    g of each output, (p, *shape); squares, r^2 / s, (p,); logs, log s, less 2 nats for each that a likelihood has
    beside its sites, (M-453)."""

    grid: Series
    count: int
    entries: Tensor
    projected: Tensor
    squares: Tensor
    logs: float

    @classmethod
    def none(cls, grid: Series, outputs: int) -> "FourierSums":
        """Sums of no rows."""
        sums = grid.sums(torch.zeros(0, grid.columns[-1] + 1, dtype=F64), torch.zeros(1 + outputs, 0, dtype=F64))
        return cls(grid, 0, *sums, torch.zeros(outputs, dtype=F64), 0.0)

    def added(self, x: Tensor, residual: Tensor, variance: Tensor, beyond: float = 0.0) -> "FourierSums":
        """Sums with more rows. Args: x (n, d); residual (n, p); variance, s of each row, (n,) or (1,); beyond, nats
        that their likelihood has beside the density of its sites, of one output."""
        precision = (1.0 / variance.double()).expand(len(x))
        weighted = residual.double() * precision.unsqueeze(-1)
        entries, projected = self.grid.sums(x, torch.cat([precision.unsqueeze(0), weighted.mT]))
        return replace(
            self, count=self.count + len(x), entries=self.entries + entries, projected=self.projected + projected,
            squares=self.squares + (weighted * residual).sum(0).cpu(),
            logs=self.logs - float(precision.log().sum()) - 2.0 * beyond,
        )  # fmt: skip

    @classmethod
    def of(cls, grid: Series, blocks: Iterable[tuple[Any, ...]], outputs: int, group: Group = ALONE) -> "FourierSums":
        """Sums over blocks, arguments of `added`, one after the other, of all ranks."""
        found = cls.none(grid, outputs)
        for block in blocks:
            found = found.added(*block)
        return found.over(group)

    def over(self, group: Group) -> "FourierSums":
        """Sums over the rows of all ranks, from those of each, by one all-reduce, (M-452)."""
        if group.size == 1:
            return self
        own = self.entries
        projected, entries, squares, numbers = sum_together(group, [  # complex ones lie at even places
            torch.view_as_real(self.projected), torch.view_as_real(own) if own.is_complex() else own, self.squares,
            torch.tensor([self.count, self.logs], dtype=F64),
        ])  # fmt: skip
        entries = torch.view_as_complex(entries) if own.is_complex() else entries
        projected, (count, logs) = torch.view_as_complex(projected), numbers.tolist()
        return replace(self, count=int(count), entries=entries, projected=projected, squares=squares, logs=logs)

    def times(self, factor: float) -> "FourierSums":
        """Sums where each row counts so many times."""
        return FourierSums(
            self.grid, round(factor * self.count), factor * self.entries, factor * self.projected,
            factor * self.squares, factor * self.logs,
        )  # fmt: skip

    def towards(self, other: "FourierSums", share: float) -> "FourierSums":
        """Sums so far from here to others, in what the weights follow from."""
        entries, projected = (
            torch.lerp(one, its, share)
            for one, its in ((self.entries, other.entries), (self.projected, other.projected))
        )
        return replace(other, entries=entries, projected=projected)

    @property
    def ones(self) -> Tensor:
        """g of a residual of ones, (*shape)."""
        return self.grid.ones(self.entries)

    def scaled(self, variance: float, shift: Tensor) -> "FourierSums":
        """Sums at another noise variance of all rows and a mean that lies so much higher, (p,), from those of variance
        one: what changes of rows alike while parameters move."""
        total = self.projected[self.grid.zero].real
        squares = self.squares - 2.0 * shift * total + self.count * shift.square()
        moved = self.projected - shift.view(-1, *(1,) * len(self.grid.shape)) * self.ones
        return replace(
            self, entries=self.entries / variance, projected=moved / variance, squares=squares / variance,
            logs=self.count * math.log(variance),
        )  # fmt: skip

    def system(self, spectrum: Tensor, settings: SolveSettings, deadline: Deadline = NO_DEADLINE) -> "WeightSystem":
        return WeightSystem(spectrum, self.grid.gram(self.entries), settings, deadline)


@dataclass(frozen=True, eq=False)
class WeightPosterior:
    """Weights of the posterior under a spectrum: f = m + sum_j w_j b_j exp(...), b ~ N(mean, B^-1).

    Fields: sums; system; solution, B^-1 W g of each output.
    """

    sums: FourierSums
    system: WeightSystem
    solution: Solution

    @classmethod
    def of(cls, sums: FourierSums, system: WeightSystem, goal: float, start: Tensor | None = None) -> "WeightPosterior":
        """Args: goal, of |B^-1 W g - mean|_B; start, weights near the answer."""
        rhs = system.root * sums.projected
        if start is None or system.dense:
            return cls(sums, system, system.solve(rhs, goal))
        found = system.solve(rhs - system(start), goal)
        return cls(sums, system, replace(found, value=start + found.value))

    def of_first(self, group: Group) -> "WeightPosterior":
        """Rank 0's weights: a clock may have ended the solve of another one elsewhere."""
        if group.size == 1:
            return self
        value = torch.view_as_complex(group.from_first(torch.view_as_real(self.solution.value)))
        return replace(self, solution=replace(self.solution, value=value, error=group.from_first(self.solution.error)))

    @property
    def error(self) -> float:
        """Bound of |B^-1 W g - mean|_B: the error of the mean at any point, in standard deviations of f there, at most,
        (M-434)."""
        return float(self.solution.error.max()) if len(self.solution.error) else 0.0

    @property
    def dual(self) -> Tensor:
        """E* (K + S)^-1 r, (p, *shape)."""
        return self.sums.projected - self.system.gram(self.system.root * self.solution.value)

    @property
    def quadratic(self) -> Tensor:
        """r' (K + S)^-1 r of each output, (p,), which errs by the square of the solve's error."""
        rhs, b = self.system.root * self.sums.projected, self.solution.value
        return self.sums.squares - self.system.grid.dot(b, 2.0 * rhs - self.system(b))

    def log_likelihood(self, log_determinant: float) -> float:
        """log N(r; 0, K + S), nats. Args: log_determinant, log|B|."""
        outputs = len(self.sums.squares)
        common = self.sums.logs + log_determinant + self.sums.count * LOG_2PI
        return -0.5 * (outputs * common + float(self.quadratic.sum()))
