"""A trial on rows of the sample, before what takes the time: what inducing points leave, what an eighth of them, and
what exact inference on a random part of the rows, eq. (M-245).

At the parameters of the first rows, on rows that none of them has: one factor of the part, one of the points. The prior
alone does not tell, since f may be much smoother than it says. Does not do: full scale, whose fit is another one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.full_scale.factor import Basis
from flashgp.inference.full_scale.layout import FEWER, NEGLIGIBLE
from flashgp.inference.training.objective import Problem

F64 = torch.float64
TEST_SHARE = 0.2  # of the sample, that nothing is learned from
GROWTH = 1.1  # of numbers of rows that are priced


def largest_part(price: Callable[[int], float], evaluations: float, seconds: float, least: int, most: int) -> int:
    """The most rows, `least` at least, of which so many exact evaluations take so many seconds; 0 where `most` is less.

    Args: price, seconds of an exact evaluation of so many rows.
    """
    if least > most:
        return 0
    rows = least
    while (more := math.ceil(rows * GROWTH)) <= most and evaluations * price(more) <= seconds:
        rows = more
    return rows


@dataclass(frozen=True)
class Trial:
    """Mean squared errors of targets of the sample.

    Fields: points and few, of all inducing points and of the first eighth of them; part, of exact inference on
    part_rows random rows, infinite without any; noise, the variance of an observation; inducing, how many points.
    """

    points: float
    few: float
    part: float
    part_rows: int
    noise: float
    inducing: int

    @classmethod
    @torch.no_grad()
    def of(cls, problem: Problem, points: Tensor, learned: int, part: int, seed: int) -> "Trial | None":
        """Trial at the parameters that the prior has; None where nothing tells.

        Args: problem, of the sample; points, (m, d); learned, rows of all that these will learn; part, rows of the
            exact part, 0 for none; seed, of its rows.
        Cost: part^3 / 3 flops, and 2 m^2 for each row of the sample.
        """
        order = torch.randperm(problem.rows, generator=torch.Generator().manual_seed(seed)).to(problem.x.device)
        count = problem.rows - int(TEST_SHARE * problem.rows)
        if count == problem.rows or not len(points):
            return None
        kernel, sites = problem.prior.kernel, problem.prior.sites(problem.y)
        residual = problem.prior.residual(problem.x, sites.targets)
        noise = float(sites.variance.mean())
        few, exact = -(-len(points) // FEWER), math.inf
        try:
            basis = Basis.of(kernel.form, kernel.theta(), kernel.rows(points), problem.direct.workspace)
            a = basis(kernel.rows(problem.x))[order]
            r = residual[order]
            by_points = _left_by_points(a, r, count, noise, learned)
            by_few = _left_by_points(a[:, :few], r, count, noise, learned)
            if part:
                exact = _left_by_part(problem, order, r, part, noise, count)
        except NotPositiveDefiniteError:
            return None
        return cls(by_points, by_few, exact, part, noise, len(points))

    @property
    def part_is_better(self) -> bool:
        return self.part < self.points

    @property
    def suffice(self) -> Event | None:
        """Event if an eighth of the points suffices, since the others would add few nats a row; None otherwise."""
        kept, gain = -(-self.inducing // FEWER), 0.5 * (self.few - self.points) / self.noise
        if gain > NEGLIGIBLE or kept == self.inducing:
            return None
        return Event(
            EventKind.FEWER_POINTS_SUFFICE, kept=kept, planned=self.inducing, gain=gain if gain > 0.0 else None
        )

    @property
    def event(self) -> Event:
        return Event(
            EventKind.PART_TRIED, inducing=self.inducing, points=math.sqrt(max(0.0, self.points)),
            part=math.sqrt(self.part), rows=self.part_rows, taken=self.part_is_better or None,
        )  # fmt: skip


def _left_by_points(a: Tensor, r: Tensor, count: int, noise: float, learned: int) -> float:
    """The mean squared error behind the first rows, which q(u) has learned, less what more rows take from it."""
    system = a[:count].mT @ a[:count]
    system.diagonal().add_(noise)
    weights = _solved(system, a[:count].mT @ r[:count].reshape(count, -1))
    error = r[count:].reshape(len(r) - count, -1) - a[count:] @ weights
    return float(error.square().mean()) - a.shape[1] * noise * (1.0 / count - 1.0 / max(learned, count))


def _left_by_part(problem: Problem, order: Tensor, r: Tensor, part: int, noise: float, count: int) -> float:
    """The mean squared error of the same rows by exact inference on the first ones."""
    kernel, x, x_test = problem.prior.kernel, problem.x[order[:part]], problem.x[order[count:]]
    system = kernel.operator(x).to_dense(dtype=F64)
    system.diagonal().add_(noise)
    mean = kernel.operator(x_test, x).to_dense(dtype=F64) @ _solved(system, r[:part].reshape(part, -1))
    return float((r[count:].reshape(len(mean), -1) - mean).square().mean())


def _solved(system: Tensor, rhs: Tensor) -> Tensor:
    lower, info = torch.linalg.cholesky_ex(system)
    if int(info):
        raise NotPositiveDefiniteError(f"a covariance of {len(system):,} rows has no Cholesky factor")
    return torch.cholesky_solve(rhs, lower)
