"""A factor whose oldest rows leave lazily against torch's own factor of the same matrix, eqs. (M-118) to (M-120)."""

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.solvers.direct import strided
from flashgp.solvers.direct.cholesky import factorise
from flashgp.solvers.growing import window
from flashgp.solvers.growing.downdate import BLOCK, Going, fold, group_of, quota
from flashgp.solvers.growing.panels import PanelFactor
from flashgp.solvers.growing.rotations import rotations
from flashgp.solvers.growing.window import WindowFactor, window_capacity

F64 = torch.float64
EPS = torch.finfo(F64).eps


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows from a few rows on."""
    monkeypatch.setattr(window, "LEAST_ROWS", 4)


@pytest.fixture(params=["compiled", "blas"])
def way(request: pytest.FixtureRequest) -> bool:
    if request.param == "compiled" and not rotations.wait():
        pytest.skip("needs numba")
    return bool(request.param == "compiled")


def matrix(n: int, seed: int = 0, noise: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=generator, dtype=F64)
    return torch.exp(-torch.cdist(x, x)) + noise * torch.eye(n, dtype=F64)


def residual_of(n: int, p: int = 2) -> Tensor:
    return torch.randn(n, p, dtype=F64, generator=torch.Generator().manual_seed(9))


class Tracked:
    """A factor, the rows of K that it is of, those that left, and what conditioning on them gives."""

    def __init__(self, K: Tensor, r: Tensor, factor: WindowFactor, rows: list[int], left: list[int]) -> None:
        self.K, self.r, self.factor, self.rows, self.left = K, r, factor, rows, left
        assert factor.pending <= len(left)

    @property
    def known(self) -> list[int]:
        """All rows that are in the factor, in the order of time."""
        return self.left[len(self.left) - self.factor.pending :] + self.rows

    @classmethod
    def begun(cls, K: Tensor, r: Tensor, n: int) -> "Tracked":
        panels = PanelFactor.of(factorise(lambda: K[: n + 1, : n + 1].clone()))
        panels = panels.part(torch.arange(1, n + 1), spare=window_capacity(n) - n)
        rows = list(range(1, n + 1))
        factor = WindowFactor.begun(panels, panels.half_solve(r[rows]))
        assert factor is not None
        return cls(K, r, factor, rows, [])

    def moved(self, gone: int, new: list[int], compiled: bool = False) -> "Tracked":
        staying, left = self.rows[gone:], self.left + self.rows[:gone]
        assert self.factor.takes(gone, len(new))
        if new:
            border = self.K[new][:, self.known], self.K[new][:, new], self.r[new]
            factor = self.factor.moved(gone, *border, compiled=compiled)
        else:
            factor = self.factor.moved(gone, compiled=compiled)
        return Tracked(self.K, self.r, factor, staying + new, left)

    @property
    def own(self) -> Tensor:
        return self.K[self.rows][:, self.rows]

    def check(self, tolerance: float = 1e-11) -> None:
        """Everything that the factor answers."""
        K, r, factor = self.own, self.r[self.rows], self.factor
        n = len(self.rows)
        assert factor.count == n
        rhs = residual_of(n, 3)
        half = factor.half_solve(rhs)
        solved = torch.linalg.solve(K, rhs)
        assert close(half.mT @ half, rhs.mT @ solved, tolerance)
        assert close(factor.solve(rhs), solved, tolerance)
        assert close(factor.back_solve(half), solved, tolerance)
        assert close(factor.whitened, factor.half_solve(r), tolerance)
        rows = factor.some_rows(0, n)
        assert close(rows @ rows.mT, K, tolerance)
        assert close(rows @ factor.whitened, r, tolerance)
        assert close(factor.some_rows(n // 3, n // 2), rows[n // 3 : n // 2, : factor.pending + n // 2], 1e-13)
        assert float(factor.log_determinant) == pytest.approx(float(torch.logdet(K)), rel=tolerance)
        assert close(factor.lower, torch.linalg.cholesky(K), tolerance)
        assert bool((factor.lower.triu(1) == 0.0).all())


def close(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return float((found - wanted).abs().max()) <= tolerance * float(wanted.abs().max())


def test_rows_that_leave_become_pending_columns() -> None:
    # M-118, against dense algebra, with no sweep yet.
    now = Tracked.begun(matrix(80), residual_of(80), 60)
    now.check()
    for gone in (1, 2, 1):
        now = now.moved(gone, [])
        now.check()
    assert now.factor.pending == 4


def test_rows_that_come_are_bordered_with_those_that_left() -> None:
    # M-119: F is a factor of all rows that are in it, E is F^-1 of unit vectors, z is F^-1 r.
    now = Tracked.begun(matrix(80), residual_of(80), 60).moved(3, []).moved(1, [61, 62]).moved(0, [63])
    F, E = torch.from_numpy(now.factor._triangle.rows(0, 63)), now.factor._E
    known = now.known
    assert known == list(range(1, 64))
    assert close(F, torch.linalg.cholesky(now.K[known][:, known]), 1e-12)
    wanted = torch.cat([torch.eye(63, 4, dtype=F64), now.r[known]], 1)
    image = torch.from_numpy(now.factor._image)
    assert close(F @ image, wanted, 1e-12)
    assert close(torch.from_numpy(now.factor._gram), E.mT @ image, 1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_a_window_slides(k: int, way: bool) -> None:
    # M-118 to M-120 through several sweeps, checked in every state.
    K, r = matrix(300), residual_of(300)
    now, sweeps, mixed = Tracked.begun(K, r, 60), 0, 0
    for i in range(61, 300 - k, k):
        before = now.factor._going is not None
        now = now.moved(k, list(range(i, i + k)), way)
        now.check()
        sweeps += before and now.factor._going is None
        mixed += now.factor._triangle.right is not None
        assert now.factor.pending <= 3 * group_of(60) + 3 * k
    assert sweeps >= 5
    assert mixed > 20


def test_a_large_window_slides_in_blocks(way: bool) -> None:
    n = 700
    K, r = matrix(n + 110), residual_of(n + 110, 1)
    now = Tracked.begun(K, r, n)
    for i in range(n + 1, n + 105):
        now = now.moved(1, [i], way)
    now.check()


def test_random_sequences_leave_the_older_ones(way: bool) -> None:
    K, r = matrix(700, 3), residual_of(700)
    generator = torch.Generator().manual_seed(5)

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    now, following, older = Tracked.begun(K, r, 70), 71, []
    for step in range(250):
        gone, more = number(0, 3), number(0, 3)
        if len(now.rows) < 40:
            gone = 0
        if len(now.rows) > 100:
            more = 0
        if not gone and not more:
            continue
        if not now.factor.takes(gone, more):
            panels = now.factor.flushed().part(torch.arange(1, len(now.rows)), spare=100)
            rows = now.rows[1:]
            factor = WindowFactor.begun(panels, panels.half_solve(r[rows]))
            assert factor is not None
            now = Tracked(K, r, factor, rows, [])
        now = now.moved(gone, list(range(following, following + more)), way)
        following += more
        if step % 10 == 0:
            older.append((now, now.factor.half_solve(residual_of(len(now.rows))), now.factor.log_determinant))
    now.check(1e-10)
    for before, half, determinant in older:
        assert torch.equal(before.factor.half_solve(residual_of(len(before.rows))), half)
        assert torch.equal(before.factor.log_determinant, determinant)
    for before, _, _ in older[::5]:
        before.check(1e-10)
        before.moved(1, [699]).check(1e-10)


def test_children_do_not_see_each_other() -> None:
    K, r = matrix(200), residual_of(200)
    now = Tracked.begun(K, r, 60)
    for i in range(61, 90):
        children = [now.moved(1, [other]) for other in (i, 150, 160)]
        children.append(now.moved(2, []))
        for child in children:
            child.moved(1, [170]).check()
        for child in children:
            child.check()
        now = children[0]


def test_children_that_only_drop_take_columns_of_their_own() -> None:
    K, r = matrix(200), residual_of(200)
    now = Tracked.begun(K, r, 90)
    while now.factor._triangle.right is None:
        now = now.moved(1, [])
    first, second = now.moved(1, []), now.moved(3, [])
    assert second.factor._triangle.left is not first.factor._triangle.left
    for _ in range(3):
        first, second = first.moved(1, []), second.moved(2, [])
        first.check()
        second.check()


def test_threads_each_get_their_own_child() -> None:
    K, r = matrix(400), residual_of(400)
    base = Tracked.begun(K, r, 60)
    for i in range(61, 75):
        base = base.moved(1, [i])
    assert base.factor._triangle.right is not None
    found: dict[int, Tracked] = {}
    ready = threading.Barrier(6)

    def work(worker: int) -> None:
        ready.wait()
        now = base
        for i in range(80 + worker, 250, 6):
            now = now.moved(1, [i])
        found[worker] = now

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for now in found.values():
        now.check()
    base.check()


def test_a_row_that_is_refused_leaves_everything_as_it_is() -> None:
    K, r = matrix(200, noise=0.0), residual_of(200)
    now = Tracked.begun(K, r, 60)
    for i in range(61, 80):
        place = now.factor._triangle.left.numbers.data_ptr()
        with pytest.raises(NotPositiveDefiniteError, match="repeats one of them"):
            now.moved(1, [now.rows[30]])
        with pytest.raises(NotPositiveDefiniteError, match="new row 1"):
            now.moved(1, [i, now.rows[20]])
        now.check(1e-9)
        before, now = now, now.moved(1, [i])
        now.check(1e-9)
        same = now.factor._triangle.left.numbers.data_ptr() == place
        assert same or now.factor._triangle.right is before.factor._triangle.left, "copied though nobody was first"


def test_no_entry_of_a_dropped_row_reaches_some() -> None:
    # Reflections leave columns alone where V is zero: their sign must still be right.
    K = torch.block_diag(matrix(30), matrix(90, seed=1))
    now = Tracked.begun(K, residual_of(120), 50)
    for i in range(51, 120):
        now = now.moved(1, [i])
        now.check()
    assert bool((now.factor.lower.diagonal() > 0).all())


@pytest.mark.parametrize("noise", [1e-3, 1e-6])
def test_little_noise(noise: float) -> None:
    # To eps times the condition number.
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(400, 2, generator=generator, dtype=F64)
    K = torch.exp(-2.0 * torch.cdist(x, x).square()) + noise * torch.eye(400, dtype=F64)
    now = Tracked.begun(K, residual_of(400), 100)
    for i in range(101, 400):
        now = now.moved(1, [i])
    rows = now.factor.some_rows(0, 100)
    size = rows.abs() @ rows.abs().mT
    assert float(((rows @ rows.mT - now.own).abs() / size).max()) < 100 * 10 * EPS
    rhs = residual_of(100)
    assert close(now.factor.solve(rhs), torch.linalg.solve(now.own, rhs), 100 * EPS * 100 / noise)


def test_a_window_takes_its_buffers_in_turns() -> None:
    K, r = matrix(400), residual_of(400)
    now, places = Tracked.begun(K, r, 80), []
    for i in range(81, 400):
        now = now.moved(1, [i])
        places.append(now.factor._triangle.left.numbers.data_ptr())
    assert len(set(places[-100:])) == 2


def test_it_ends_as_one_panel_where_nothing_is_pending() -> None:
    K, r = matrix(400), residual_of(400)
    now = Tracked.begun(K, r, 80).moved(1, [81])
    following = 82
    while now.factor.pending:
        assert now.factor.takes(0, 1)
        now = now.moved(0, [following])
        following += 1
    panels = now.factor.flushed()
    assert panels.only_memory is now.factor._triangle.left
    assert close(panels.lower, torch.linalg.cholesky(now.own), 1e-12)
    more, _, _ = panels.bordered(K[390:391, now.rows], K[390:391, 390:391])
    assert more.only_memory is panels.only_memory
    now.moved(1, [391]).check()


@pytest.mark.parametrize("steps", [3, 12, 30])
def test_copies_and_pickles_go_on(steps: int) -> None:
    K, r = matrix(200), residual_of(200)
    now = Tracked.begun(K, r, 60)
    for i in range(61, 61 + steps):
        now = now.moved(1, [i])
    for factor in (copy.deepcopy(now.factor), pickle.loads(pickle.dumps(now.factor))):
        again = Tracked(K, r, factor, now.rows, now.left)
        assert close(factor.whitened, now.factor.whitened, 1e-15)
        again.check()
        for i in range(150, 180):
            again = again.moved(1, [i])
        again.check()


def test_solves_have_derivatives_of_every_kind() -> None:
    now = Tracked.begun(matrix(30), residual_of(30), 10).moved(2, [20])
    rhs = residual_of(9).requires_grad_()
    torch.autograd.gradcheck(now.factor.half_solve, rhs, check_forward_ad=True)
    torch.autograd.gradgradcheck(now.factor.back_solve, residual_of(11).requires_grad_())
    mapped = torch.func.vmap(now.factor.half_solve)(torch.stack([rhs, 2 * rhs]))
    assert close(mapped[1], 2 * now.factor.half_solve(rhs), 1e-14)


def test_what_it_does_not_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    K, r = matrix(100), residual_of(100)
    now = Tracked.begun(K, r, 60)
    assert not now.factor.takes(window.MOST_AT_ONCE + 1, 1)
    assert not now.factor.takes(1, window.MOST_AT_ONCE + 1)
    monkeypatch.setattr(window, "LEAST_ROWS", 200)
    assert not now.factor.takes(1, 1)
    panels = now.factor.flushed()
    assert WindowFactor.begun(panels, r[now.rows]) is None
    monkeypatch.setattr(window, "LEAST_ROWS", 4)
    fresh = PanelFactor.of(factorise(lambda: K.clone()))
    assert WindowFactor.begun(fresh, r) is None, "a factor of columns"
    assert WindowFactor.begun(fresh.part(torch.arange(1, 100)), r[1:]) is None, "no room"
    monkeypatch.setattr(strided, "_routines", dict)
    assert WindowFactor.begun(panels, r[now.rows]) is None


@pytest.mark.parametrize("size", [1, 7, BLOCK])
@pytest.mark.parametrize("g", [1, 8, 30])
def test_fold_is_orthogonal(size: int, g: int) -> None:
    # M-120: F F^T stays what it is while rows that go move behind a block, and what F^-1 was multiplied by follows.
    n, start = 120, 30
    order = [*range(g, g + start), *range(g), *range(g + start, g + n)]
    K = matrix(g + n)
    whole = torch.linalg.cholesky(K[order][:, order])
    source = torch.full((n, n), torch.nan, dtype=F64)
    source[start:, start:] = whole[g + start :, g + start :]
    target = torch.full((n, n), torch.nan, dtype=F64)
    target[:start, :start] = whole[:start, :start]
    target[start:, :start] = whole[g + start :, :start]
    rows = torch.full((g, n), torch.nan, dtype=F64)
    moving = slice(start, start + g)
    rows[:, :start] = whole[moving, :start]
    going = Going(whole[g + start :, moving].numpy(), rows.numpy(), whole[moving, moving].numpy())
    right = residual_of(g + n, 3)
    image = torch.linalg.solve_triangular(whole, right[order], upper=False)
    image = torch.cat([image[moving], image[:start], image[start + g :]])
    stop = start + size
    after = fold(source.numpy(), target.numpy(), going, image.numpy(), start, stop)
    F = torch.zeros(g + n, g + n, dtype=F64)
    F[:g, :g], F[:g, g : g + stop] = torch.from_numpy(after.corner), torch.from_numpy(after.rows[:, :stop])
    F[g + stop :, :g] = torch.from_numpy(after.columns)
    F[g:, g : g + stop] = target[:, :stop].tril()
    F[g + stop :, g + stop :] = source[stop:, stop:].tril()
    assert close(F @ F.mT, K, 1e-13)
    assert close(F @ image, right, 1e-12)
    assert bool((target.diagonal()[:stop] > 0).all())


def test_steps_of_a_sweep_cost_the_same() -> None:
    n, work, finished, steps = 2000, [], 0, 0
    while finished < n:
        stop = quota(n, finished, 1, 1)
        work.append(sum(n - j + 0.25 * n for j in range(finished, stop)))
        assert stop > finished
        finished, steps = stop, steps + 1
    assert abs(steps - group_of(n)) <= 1
    assert max(work) < 1.1 * min(work[:-1])
    assert quota(n, n - 1, 1, 1) == n
    assert quota(50, 0, 1, 20) == 20
