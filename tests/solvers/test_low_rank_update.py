"""A low-rank preconditioner that rows leave and join, eqs. (M-115) and (M-116), against dense algebra."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flashgp.solvers import Goal
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.preconditioners import low_rank, low_rank_update
from flashgp.solvers.preconditioners.carried_basis import CarriedBasis
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.low_rank_update import LITTLE_KNOWN, carried
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import DEFAULTS, LowRankSettings
from solvers.dense_system import F64, DenseSystem, matern, normal, points

MOST = 60
DOUBLE = replace(DEFAULTS, single=False)
EPS = torch.finfo(F64).eps


class Table:
    """Rows of a larger table, the points that are pivots, and the preconditioner as rows come and go."""

    def __init__(
        self, x: Tensor, noise: Tensor, count: int, rank: int, settings: LowRankSettings = DEFAULTS.low_rank
    ) -> None:
        self.x, self.K, self.noise, self.rows = x, matern(x, 0.3), noise, torch.arange(count)
        system = DenseSystem(self.K[:count, :count], noise[:count])
        partial = partial_cholesky(system, limit=rank, share=0.0)
        self.low, self.pivots = LowRank(partial, system.noise, settings), partial.pivots

    def change(self, stay: Tensor, new: Tensor) -> None:
        """Rows at positions stay, the others at their end."""
        self.rows = torch.cat([self.rows[stay], new])
        n, m = len(self.rows), len(stay)
        found = carried(
            self.low, stay, torch.arange(m), torch.arange(m, n), self.K[new][:, self.pivots], self.K.diagonal()[new],
            self.noise[self.rows], lambda index: self.K[self.rows][:, self.rows[index]], MOST,
        )  # fmt: skip
        assert found is not None, "worn"
        self.low, pivots = found
        self.pivots = torch.cat([self.pivots, self.rows[pivots]])

    @property
    def features(self) -> Tensor:
        """F F^T by its definition."""
        K_xp, K_pp = self.K[self.rows][:, self.pivots], self.K[self.pivots][:, self.pivots]
        return K_xp @ torch.linalg.solve(K_pp, K_xp.mT)

    def check(self, tolerance: float) -> None:
        n, low, noise = len(self.rows), self.low, self.noise[self.rows]
        P, v = self.features + torch.diag(noise), normal(n, 3)
        K = self.K[self.rows][:, self.rows]
        assert torch.allclose(low.solve(P @ v), v, atol=tolerance)
        assert torch.allclose(
            low.half_solve_transposed(low.half_solve(v)), low.solve(v), atol=1e-9 / float(noise.min())
        )
        assert low.log_determinant == pytest.approx(float(torch.logdet(P)), abs=n * tolerance)
        assert torch.allclose(low.left, (K - self.features).diagonal(), atol=1e-9)
        assert low.slack == pytest.approx(1.0)
        gap = torch.linalg.eigvalsh(K + torch.diag(noise) - P)
        assert float(gap.min()) > -1e-9, "P <= A, which the bound of the error rests on"
        Q = low.basis @ torch.eye(low.inner.shape[0], dtype=F64)
        defect = float((Q.mT @ Q - torch.eye(Q.shape[1], dtype=F64)).norm())
        assert defect < low_rank_update.DEFECT
        found = EPS * low_rank.defect(low.basis, torch.eye(Q.shape[1], dtype=F64))
        assert defect / 10.0 < found < max(3.0 * defect, 1e-13), "what is measured, by four probes"
        values, U = torch.linalg.eigh(low.inner @ low.inner.mT)
        leak = (Q.mT @ (Q @ U) - U).norm(dim=0) * (1.0 + values) / (1.0 + values[-1])
        assert EPS * low.skew > float(leak.max()) / 10.0
        assert torch.allclose(low.basis.mT @ v, Q.mT @ v, atol=1e-10)
        assert torch.allclose(low.basis.taken(torch.arange(n).flip(0)), Q.flip(0), atol=1e-12)


@pytest.fixture(params=["householder", "eigenvectors"])
def table(request: pytest.FixtureRequest) -> Table:
    """Changed from either basis that a preconditioner begins with."""
    settings = LowRankSettings(min_gram_flops=0 if request.param == "eigenvectors" else 2**40)
    x = points(200, 2)
    x = x[torch.randperm(200, generator=torch.Generator().manual_seed(1))]
    made = Table(x, 0.01 + 0.1 * points(200, 1, seed=3)[:, 0], 150, 30, settings)
    assert (made.low.skew > 1.0) == (request.param == "eigenvectors")
    return made


@pytest.mark.parametrize("new", [0, 1, 20])
@pytest.mark.parametrize("gone", [[], [0], [149], list(range(3, 150, 7))], ids=len)
def test_one_change(table: Table, gone: list[int], new: int) -> None:
    stay = torch.tensor([i for i in range(150) if i not in gone])
    table.change(stay, torch.arange(150, 150 + new))
    table.check(1e-9)


def test_many_changes(table: Table) -> None:
    """Each on the last: rows of the base, new rows and pivots leave, also all rows that were pivots."""
    generator = torch.Generator().manual_seed(0)
    table.change(torch.tensor([i for i in range(150) if i not in set(table.pivots.tolist())]), torch.arange(150, 160))
    for start in range(160, 200, 5):
        stay = torch.randperm(len(table.rows), generator=generator)[6:].sort().values
        table.change(stay, torch.arange(start, start + 5))
        table.check(1e-6)
    assert table.low.basis.foreign > 20


def test_rows_that_the_pivots_know_little_of_become_pivots(table: Table) -> None:
    table.x[190:] += 3.0
    table.K = matern(table.x, 0.3)
    before = table.low.rank
    table.change(torch.arange(150), torch.arange(150, 160))
    assert table.low.rank == before, "rows among the others do not"
    table.change(torch.arange(160), torch.arange(188, 194))
    assert set(table.pivots[before:].tolist()) == {190, 191, 192, 193}
    assert float(table.low.left[-4:].max()) < 1e-9
    table.check(1e-9)
    table.change(torch.arange(0, 166, 2), torch.arange(194, 200))
    table.check(1e-6)
    assert LITTLE_KNOWN > 1.0


def test_no_more_pivots_than_there_is_room_for(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.x[180:] += 3.0 * torch.arange(20, dtype=F64).unsqueeze(-1)
    table.K = matern(table.x, 0.3)
    monkeypatch.setitem(globals(), "MOST", 33)
    table.change(torch.arange(150), torch.arange(180, 200))
    assert table.low.rank == 33
    table.check(1e-9)


def test_new_columns_are_orthogonal_to_the_others(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where hardly anything of them is left."""
    monkeypatch.setattr(low_rank_update, "LITTLE_KNOWN", 0.0)
    table.noise = table.noise * 1e-9
    low = Table(table.x, table.noise, 150, 30)
    low.change(torch.arange(150), torch.arange(150, 170))
    assert low.low.rank == 50
    Q = low.low.basis @ torch.eye(50, dtype=F64)
    assert torch.allclose(Q.mT @ Q, torch.eye(50, dtype=F64), atol=1e-13)


def test_what_is_worn_is_not_carried_over_where_rows_leave(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank_update, "WORN", 0.0)
    table.change(torch.arange(150), torch.arange(150, 160))  # rows only come
    with pytest.raises(AssertionError, match="worn"):
        table.change(torch.arange(1, 160), torch.arange(160, 161))


def test_every_direction_may_leave() -> None:
    """Of rows that know nothing of each other, all pivots: P is the noise of the others."""
    system, some = DenseSystem(torch.eye(40, dtype=F64), 0.1), torch.arange(10)
    low = LowRank(partial_cholesky(system, limit=0, pivots=some), system.noise)
    none = torch.zeros(0, dtype=F64)
    found = carried(
        low, torch.arange(10, 40), torch.arange(30), some[:0], torch.zeros(0, 10, dtype=F64), none, system.noise[10:],
        lambda index: torch.eye(30, dtype=F64)[:, index], 20,
    )  # fmt: skip
    assert found is not None
    v = normal(30, 2)
    assert torch.allclose(found[0].solve(v), v / 0.1, rtol=1e-12)


@pytest.mark.parametrize(
    ("friend", "scale", "kept"), [(1e-2, 1.0, 10), (1e-5, 1.0, 0), (1e-2, 1.0 + 1e-10, 0), (1e-2, math.nan, None)]
)
def test_directions_of_which_little_stays_are_given_up(friend: float, scale: float, kept: int | None) -> None:
    """Pivots that leave, each with a covariance of `friend` with one row that stays: friend^2 of its column does. What
    is given up depends on how orthonormal the others are, (M-116)."""
    K = torch.eye(40, dtype=F64)
    K[:10, 10:20].diagonal().fill_(friend)
    K[10:20, :10].diagonal().fill_(friend)
    system, some = DenseSystem(K, 0.1), torch.arange(10)
    low = LowRank(partial_cholesky(system, limit=0, pivots=some), system.noise)
    assert isinstance(low._base, Tensor)
    low._base = low._base * scale
    none = torch.zeros(0, dtype=F64)
    found = carried(
        low, torch.arange(10, 40), torch.arange(30), some[:0], torch.zeros(0, 10, dtype=F64), none, system.noise[10:],
        lambda index: K[10:, 10:][:, index], 20,
    )  # fmt: skip
    assert (None if found is None else found[0].inner.shape[0]) == kept


def test_few_more_iterations_than_a_fresh_one(table: Table) -> None:
    table.change(torch.arange(10, 150), torch.arange(150, 160))
    rows = table.rows
    system = DenseSystem(table.K[rows][:, rows], table.noise[rows])
    fresh = LowRank(partial_cholesky(system, limit=30, share=0.0), system.noise)
    taken = [
        PreparedConjugateGradients(system, low, DOUBLE).solve(normal(150, 1), Goal(1e-8)).iterations
        for low in (table.low, fresh)
    ]
    assert taken[0] <= taken[1] + 3


def test_a_basis_of_no_columns() -> None:
    basis = CarriedBasis.of(torch.zeros(5, 0, dtype=F64))
    assert (basis @ torch.zeros(0, 2, dtype=F64)).shape == (5, 2)
    assert (basis.mT @ normal(5, 2)).shape == (0, 2)
