"""A trial before the most expensive stages: the loss of inducing points, of an eighth of them, and of full scale on a
part of the rows, eq. (M-245).

At the parameters of the first rows, on rows that none of them has. The prior alone does not tell, since f may be much
smoother than it says. Full scale is tried as it predicts, (M-154), with the inducing values that the sample gives.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.full_scale.factor import Basis
from flashgp.inference.full_scale.layout import FEWER, NEGLIGIBLE, scaled_points
from flashgp.inference.training.objective import Problem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem

F64 = torch.float64
TEST_SHARE = 0.2  # of the sample, that nothing is learned from
LEARNED_ROWS, TEST_ROWS = 4096, 200  # of the sample where full scale is tried too, at most
NEAREST = 128  # neighbours of a point there, at most
AT_ONCE = 16  # points whose matrices are made together
CHUNK = 2**15  # rows whose distances to the points are made together


@dataclass(frozen=True)
class Part:
    """Rows that full scale has time for, and the neighbours of a point."""

    rows: int
    neighbours: int

    def like_rows(self, inducing: int) -> int:
        """Rows of which an exact value with its gradient, 2 n^3 flops, takes as many as a trial beside the points."""
        q, m = min(self.neighbours, NEAREST), inducing
        return round((10.0 * m**3 + LEARNED_ROWS * m**2 + 0.5 * TEST_ROWS * q**2 * (2.0 * m + q)) ** (1 / 3))


@dataclass(frozen=True)
class Trial:
    """Mean squared errors of targets of the sample.

    Fields: points and few, of all inducing points and of the first eighth of them; near, of full scale on near_rows
    random rows, infinite without any; noise, the variance of an observation; inducing, how many points.
    """

    points: float
    few: float
    near: float
    near_rows: int
    noise: float
    inducing: int

    @classmethod
    @torch.no_grad()
    def of(cls, problem: Problem, points: Tensor, learned: int, part: Part | None, seed: int) -> "Trial | None":
        """Trial at the parameters that the prior has; None where nothing tells.

        Args: problem, of rows that are held; points, (m, d); learned, rows of all that these will learn; part, of full
            scale; seed, of the sample.
        Cost: 2 m^2 flops for each row of the sample; with a part of q neighbours 2 m q^2 for each row held out, and its
            distances to all rows of the part.
        """
        order = torch.randperm(problem.rows, generator=torch.Generator().manual_seed(seed)).to(problem.x.device)
        out = int(TEST_SHARE * problem.rows)
        test, others = order[problem.rows - out :], order[: problem.rows - out]
        train = others
        if part is not None:
            test, train = test[:TEST_ROWS], others[:LEARNED_ROWS]
        if not out or not len(points):
            return None
        kernel, sites = problem.prior.kernel, problem.prior.sites(problem.y)
        residual = problem.prior.residual(problem.x, sites.targets).reshape(problem.rows, -1)
        noise = float(sites.variance.mean())
        few, near = -(-len(points) // FEWER), math.inf
        try:
            basis = Basis.of(kernel.form, kernel.theta(), kernel.rows(points), problem.direct.workspace)
            a, a_test = (basis(kernel.rows(problem.x[some])) for some in (train, test))
            r, r_test = residual[train], residual[test]
            weights, fewer = (_learned(some, r, torch.full_like(r[:, :1], noise))[1] for some in (a, a[:, :few]))
            counts = 1.0 / len(train) - 1.0 / max(learned, len(train))
            by_points = _squares(r_test - a_test @ weights) - a.shape[1] * noise * counts
            by_few = _squares(r_test - a_test[:, :few] @ fewer) - few * noise * counts
            if part is not None:
                some = slice(min(part.rows, len(train)))
                prior_variance = kernel.operator(problem.x[train[some]]).diagonal()
                apart = (prior_variance - a[some].square().sum(-1)).clamp_min(0.0).add(noise)
                by_part = _learned(a[some], r[some], apart.unsqueeze(-1))
                sets, nearest = (test, others[: part.rows]), min(part.neighbours, NEAREST)
                near = _left_by_neighbours(problem, basis, sets, residual, noise, by_part, nearest)
        except NotPositiveDefiniteError:
            return None
        return cls(by_points, by_few, near, 0 if part is None else part.rows, noise, len(points))

    @property
    def points_are_better(self) -> bool:
        return self.points < self.near

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
            part=math.sqrt(max(0.0, self.near)), rows=self.near_rows, full_scale=True,
            taken=not self.points_are_better or None,
        )  # fmt: skip


def _squares(error: Tensor) -> float:
    return float(error.square().mean())


def _learned(a: Tensor, r: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factor of I + A^T V^-1 A, and the inducing values, given A of rows and V, (n, 1).

    Raises: NotPositiveDefiniteError.
    """
    system = a.mT @ (a / variance)
    system.diagonal().add_(1.0)
    lower = _factor(system)
    return lower, torch.cholesky_solve(a.mT @ (r / variance), lower)


def _left_by_neighbours(
    problem: Problem,
    basis: Basis,
    sets: tuple[Tensor, Tensor],
    residual: Tensor,
    noise: float,
    learned: tuple[Tensor, Tensor],
    neighbours: int,
) -> float:
    """The mean squared error of full scale at test rows, less what more rows take from that of its inducing values.

    Args: sets, indices of test rows and of the rows of the part; learned, of its first rows, as `_learned` gives it.
    """
    kernel, (test, rows), (lower, weights) = problem.prior.kernel, sets, learned
    form, theta, x = kernel.form, kernel.theta(), problem.x
    near = rows[_nearest(problem, test, rows, min(neighbours, len(rows)))]
    squares, uncertain = residual.new_zeros(()), residual.new_zeros(())
    for points, own in zip(test.split(AT_ONCE), near.split(AT_ONCE), strict=True):
        s, q = own.shape
        here, there = kernel.rows(x[own.reshape(-1)]), kernel.rows(x[points])
        known, at = basis(here).reshape(s, q, -1), basis(there)
        sets_of = here.sets(torch.arange(s * q, device=x.device).reshape(s, q))
        alone = there.sets(torch.arange(s, device=x.device).unsqueeze(1))
        matrix = CovarianceOperator(PairProblem(form, theta, sets_of), F64).to_dense()
        matrix = matrix.expand(s, q, q).baddbmm(known, known.mT, alpha=-1.0)
        matrix.diagonal(dim1=-2, dim2=-1).add_(noise)
        cross = CovarianceOperator(PairProblem(form, theta, sets_of, alone), F64).to_dense().expand(s, q, 1)
        cross = cross - known @ at.unsqueeze(-1)
        solved = torch.cholesky_solve(cross, _factor(matrix)).mT  # (s, 1, q)
        inner = at - (solved @ known).squeeze(1)
        error = residual[points] - (solved @ residual[own]).squeeze(1) - inner @ weights
        squares += error.square().sum()
        uncertain += torch.linalg.solve_triangular(lower, inner.mT, upper=False).square().sum()
    more = 1.0 - LEARNED_ROWS / max(len(rows), LEARNED_ROWS)
    return float(squares) / residual[test].numel() - more * float(uncertain) / len(test)


def _nearest(problem: Problem, test: Tensor, rows: Tensor, count: int) -> Tensor:
    """Indices among the rows of the nearest ones to each test row, (t, count)."""
    kernel, prior, x = problem.prior.kernel, problem.prior, problem.x

    def scaled(some: Tensor) -> Tensor:
        return scaled_points(prior, kernel.rows(x[some]), x[some])

    at, best, index = scaled(test), None, torch.arange(0, device=x.device)
    for begin in range(0, len(rows), CHUNK):
        own = torch.cdist(at, scaled(rows[begin : begin + CHUNK]))
        own_index = torch.arange(begin, begin + own.shape[1], device=x.device).expand_as(own)
        if best is not None:
            own, own_index = torch.cat([best, own], 1), torch.cat([index, own_index], 1)
        best, place = own.topk(min(count, own.shape[1]), largest=False)
        index = own_index.gather(1, place)
    return index


def _factor(system: Tensor) -> Tensor:
    lower, info = torch.linalg.cholesky_ex(system)
    if bool(info.any()):
        raise NotPositiveDefiniteError(f"a covariance of {system.shape[-1]:,} rows has no Cholesky factor")
    return lower
