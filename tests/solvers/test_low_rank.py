"""The partial Cholesky factor stays below K; the preconditioner made of it is what it says, also at tiny noise."""

import math

import pytest
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import LowRankSettings
from solvers.dense_system import F64, DenseSystem, matern, normal, points

EPS = torch.finfo(F64).eps
GRAM = LowRankSettings(min_gram_flops=0)
ALL = LowRankSettings(trace_share=0.0)  # as many columns as the limit allows


def smallest(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[0])


def columns(low: LowRank) -> Tensor:
    """Q, (n, rank)."""
    return low.basis


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [1, 5, 60, 150])
def test_it_stays_below_the_matrix(limit: int, seed: int) -> None:
    """Eq. (M-77): F F^T <= K, equal at the pivots, and what is left is the diagonal of the rest."""
    system = DenseSystem(matern(points(200, 2), 0.3), 1e-6)
    partial = partial_cholesky(system, limit=limit, seed=seed)
    rest = system.K - partial.factor @ partial.factor.mT
    assert partial.rank == len(partial.pivots) == len(set(partial.pivots.tolist())) == limit
    assert smallest(rest) > -1e-12
    assert float(rest[:, partial.pivots].abs().max()) < 1e-9
    assert torch.allclose(partial.left, rest.diagonal(), atol=1e-12)
    assert partial.trace == pytest.approx(float(rest.trace()), abs=1e-10)
    again = partial_cholesky(system, limit=limit, seed=seed)
    assert torch.equal(again.factor, partial.factor)


def test_why_it_ends() -> None:
    """At a share of the noise, at the limit, without decay, or when nothing is left; eq. (M-77)."""
    smooth = DenseSystem(matern(points(300, 1), 3.0), 1e-2)
    partial = partial_cholesky(smooth, limit=300)
    assert partial.rank < min(150, partial_cholesky(smooth, limit=300, settings=ALL).rank)
    assert partial.trace <= LowRankSettings().trace_share * float(smooth.noise.sum())
    assert partial_cholesky(smooth, limit=3, settings=ALL).rank == 3
    identity = DenseSystem(torch.eye(400, dtype=F64), 1e-2)
    flat = partial_cholesky(identity, limit=400)
    assert 0 < flat.rank <= 128, "one block, which gains no more than its share"
    ones = partial_cholesky(DenseSystem(torch.ones(50, 50, dtype=F64), 0.0), limit=50)
    assert (ones.rank, ones.trace) == (1, 0.0), "equal rows: one pivot takes everything, exactly"
    low = normal(60, 3)
    exhausted = partial_cholesky(DenseSystem(low @ low.mT, 0.0), limit=60)
    assert 3 <= exhausted.rank <= 6, "three, and rounding"
    assert partial_cholesky(DenseSystem(torch.zeros(5, 5, dtype=F64), 1.0), limit=5).rank == 0
    assert partial_cholesky(smooth, limit=0).rank == 0
    for limit, share in ((-1, 0.1), (1, -0.1), (1, math.nan)):
        with pytest.raises(DomainError, match="`limit` and `trace_share` must be at least 0"):
            partial_cholesky(smooth, limit=limit, settings=LowRankSettings(trace_share=share))


def test_the_share_of_each_pivot() -> None:
    """The first pivot is i with probability K_ii / tr K, within four standard errors."""
    K = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64))
    draws = 800
    first = [int(partial_cholesky(DenseSystem(K, 0.0), limit=1, seed=s).pivots[0]) for s in range(draws)]
    share = torch.bincount(torch.tensor(first), minlength=4) / draws
    wanted = K.diagonal() / K.trace()
    assert bool(((share - wanted).abs() <= 4 * (wanted * (1 - wanted) / draws).sqrt()).all())


def test_given_pivots() -> None:
    """The same pivots give the same factor, smoothly in the matrix: differences of K become differences of F F^T."""
    x = points(120, 2)
    system = DenseSystem(matern(x, 0.3), 1e-4)
    pivots = partial_cholesky(system, limit=40, settings=ALL).pivots
    partial = partial_cholesky(system, limit=0, pivots=pivots)
    assert partial.rank == 40
    wanted = system.K[:, pivots] @ torch.linalg.solve(system.K[pivots][:, pivots], system.K[pivots])
    assert torch.allclose(partial.factor @ partial.factor.mT, wanted, atol=1e-10)
    step = 1e-5
    values = [
        partial_cholesky(DenseSystem(matern(x, 0.3 + k * step), 1e-4), limit=0, pivots=pivots).factor
        for k in (-1, 0, 1)
    ]
    curvature = values[0] - 2 * values[1] + values[2]
    assert float(curvature.abs().max()) < 1e-7
    with pytest.raises(NotPositiveDefiniteError, match="covariance of 2 pivots"):
        partial_cholesky(DenseSystem(torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=F64), 1.0), limit=0,
                         pivots=torch.tensor([0, 1]))  # fmt: skip


NOISES = [1e-1, 1e-6, 1e-12, 10.0 ** (-8 * points(150, 1, seed=4)[:, 0])]


@pytest.mark.parametrize("noise", NOISES, ids=["large", "small", "tiny", "of each row"])
def test_the_preconditioner(noise: Tensor | float) -> None:
    """Eqs. (M-78) and (M-79): inverse, halves, determinant and order, against dense algebra.

    The inverse is compared through P P^-1 v = v where v = P w: where P is large, P^-1 must be small, to the last
    digits that a backward stable solve keeps.
    """
    system = DenseSystem(matern(points(150, 2), 1.0), noise)
    partial = partial_cholesky(system, limit=60, settings=ALL)
    low = LowRank(partial, system.noise)
    P = partial.factor @ partial.factor.mT + torch.diag(system.noise)
    assert (low.rank, low.slack) == (60, 1.0)
    assert smallest(system.A - P) > -1e-12
    for w in (normal(150, 3), torch.linalg.eigh(P)[1][:, -3:]):
        found = low.solve(P @ w)
        assert float((P @ (found - w)).norm()) <= (1e-11 if low._twice else GRAM.lost) * float((P @ w).norm())
    v = normal(150, 2)
    half = low.half_solve(v)
    assert torch.allclose(
        low.half_solve_transposed(half), low.solve(v), rtol=1e-8, atol=1e-8 * float(low.solve(v).abs().max())
    )
    energy = (v * torch.linalg.solve(P, v)).sum(0) if float(system.noise.min()) > 1e-9 else half.square().sum(0)
    assert torch.allclose(half.square().sum(0), energy, rtol=1e-6)
    values = torch.linalg.eigvalsh(P)
    if float(system.noise.min()) > 1e-9:
        assert low.log_determinant == pytest.approx(float(values.log().sum()), rel=1e-8)


def test_rows_without_noise() -> None:
    """A floor in the preconditioner only, and no bound from it, eq. (M-79)."""
    noise = torch.full((80,), 1e-2, dtype=F64)
    noise[7] = 0.0
    system = DenseSystem(matern(points(80, 2), 0.3), noise)
    partial = partial_cholesky(system, limit=10)
    low = LowRank(partial, system.noise)
    assert math.isinf(low.slack)
    assert float(low.noise[7]) == pytest.approx(partial.trace / 80)
    assert torch.equal(low.noise[8:], noise[8:])
    assert float(system.noise[7]) == 0.0
    tiny = LowRank(partial_cholesky(DenseSystem(system.K, 1e-16), limit=10), torch.full((80,), 1e-16, dtype=F64))
    assert tiny.slack == pytest.approx(float(tiny.noise[0]) / 1e-16)
    assert tiny.slack > 1


def test_samples() -> None:
    """Their covariance is P within four standard errors, eq. (M-78)."""
    system = DenseSystem(matern(points(20, 2), 0.5), 10.0 ** (-2 * points(20, 1, seed=2)[:, 0]))
    partial = partial_cholesky(system, limit=6, settings=ALL)
    low = LowRank(partial, system.noise)
    count = 40_000
    draws = low.sample(torch.Generator().manual_seed(0), count)
    P = partial.factor @ partial.factor.mT + torch.diag(system.noise)
    error = (P.square() + P.diagonal().outer(P.diagonal())).sqrt() / count**0.5
    found = draws @ draws.mT / count
    assert float(((found - P) / error).abs().max()) < 4.5
    assert torch.equal(draws[:, :5], low.sample(torch.Generator().manual_seed(0), count)[:, :5])


@pytest.mark.parametrize("limit", [0, 1, 60])
def test_a_basis_is_orthonormal_whatever_the_condition(limit: int) -> None:
    """Of one column and 60 pivots the condition of F^T D^-1 F takes more digits than Q may lose: by Householder."""
    noise = torch.full((150,), 1e-6, dtype=F64)
    low = LowRank(
        partial_cholesky(DenseSystem(matern(points(150, 1), 0.5), noise), limit=limit, settings=ALL), noise, GRAM
    )
    Q = columns(low)
    assert float((Q.mT @ Q - torch.eye(low.rank, dtype=F64)).abs().sum()) < 1e-11
    if limit == 60:
        values = torch.linalg.svdvals(low.inner)
        assert EPS * float(values[0] / values[-1]) ** 2 > GRAM.max_defect, "this test is of such a factor"
