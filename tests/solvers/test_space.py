"""Two processes' worth of rows in two threads: solvers see sums over rows only through their space."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flashgp.foundations.workspace import Workspace
from flashgp.solvers.contract import Goal, Index, Limits, System
from flashgp.solvers.iterative.conjugate_gradients import PreparedConjugateGradients
from flashgp.solvers.iterative.lanczos import log_determinant
from flashgp.solvers.preconditioners.low_rank import LowRank
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import DEFAULTS, LowRankSettings
from flashgp.solvers.space import LocalSpace, RowExchange, Space
from solvers.dense_system import DenseSystem, matern, normal, points

N, SPLIT = 240, 100  # rows, and how many of them the first place has


class Exchange:
    """All-gather between two threads."""

    def __init__(self) -> None:
        self.barrier, self.parts = threading.Barrier(2, timeout=60), [torch.empty(0)] * 2

    def gather(self, place: int, part: Tensor) -> list[Tensor]:
        self.parts[place] = part
        self.barrier.wait()
        parts = [one.clone() for one in self.parts]  # which the other place may go on to overwrite
        self.barrier.wait()
        return parts


class SplitSpace(Space):
    """The rows of one of two places."""

    def __init__(self, exchange: Exchange, place: int) -> None:
        self.places, self.place = exchange, place
        self.rows = slice(0, SPLIT) if place == 0 else slice(SPLIT, N)

    def gather(self, part: Tensor) -> list[Tensor]:
        return self.places.gather(self.place, part)

    def total(self, part: Tensor) -> Tensor:
        first, second = self.gather(part)
        return first + second

    def largest(self, part: Tensor) -> Tensor:
        return torch.maximum(*self.gather(part))

    def qr(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Of each part, then of both triangles."""
        own, triangle = torch.linalg.qr(v)
        triangles = self.gather(triangle)
        Q, R = torch.linalg.qr(torch.cat(triangles))
        before = 0 if self.place == 0 else len(triangles[0])
        return own @ Q[before : before + len(triangle)], R

    def pick(self, weights: Tensor, uniform: Tensor) -> Tensor:
        return LocalSpace().pick(torch.cat(self.gather(weights)), uniform)

    def local(self, v: Tensor) -> Tensor:
        return v[self.rows]

    def everywhere(self, v: Tensor) -> Tensor:
        return torch.cat(self.gather(v))

    def take(self, v: Tensor, index: Tensor) -> Tensor:
        return torch.cat(self.gather(v), -1)[..., index]

    def put(self, v: Tensor, index: Tensor, value: float) -> None:
        mine = (index >= self.rows.start) & (index < self.rows.stop)
        v[index[mine] - self.rows.start] = value

    def exchange(self, wanted: Tensor) -> RowExchange:
        raise NotImplementedError("for full scale, which these systems have no points for")

    def share(self, count: int) -> slice:
        return slice(0, count // 2) if self.place == 0 else slice(count // 2, count)

    def joined(self, v: Tensor) -> Tensor:
        return torch.cat(self.gather(v))

    def agreed(self, v: Tensor) -> Tensor:
        return self.gather(v)[0]

    def together(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


class SplitSystem(System):
    """The rows of a dense system that one place has."""

    def __init__(self, whole: DenseSystem, space: SplitSpace) -> None:
        self.K, self.space = whole.K, space
        self.noise, self.device, self.workspace = whole.noise[space.rows], whole.device, Workspace()
        self.count = len(self.noise)

    def diagonal(self) -> Tensor:
        return self.K.diagonal()[self.space.rows].clone()

    def multiply(self, v: Tensor) -> Tensor:
        assert isinstance(self.space, SplitSpace)
        every = torch.cat(self.space.gather(v))
        return self.K[self.space.rows].to(v.dtype) @ every + self.noise.to(v.dtype).unsqueeze(-1) * v

    def columns(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return self.K[self.space.rows][:, index].to(dtype)

    def block(self, index: Index, dtype: torch.dtype) -> Tensor:
        return self.K[index][:, index].to(dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError


def in_both_places(work: Callable[[SplitSpace], Any]) -> list[Any]:
    exchange, found = Exchange(), [None, None]
    failures: list[BaseException] = []

    def run(place: int) -> None:
        try:
            found[place] = work(SplitSpace(exchange, place))
        except BaseException as error:
            failures.append(error)
            exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


@pytest.mark.parametrize("gram", [False, True], ids=["householder", "gram"])
@pytest.mark.parametrize("noise", ["uniform", "by row"])
def test_two_places_give_what_one_gives(gram: bool, noise: str) -> None:
    """Pivots, iterates, log determinants: to rounding; the solution: to the goal."""
    by_row = 10.0 ** (-1.0 - points(N, 1, seed=3)[:, 0])
    whole = DenseSystem(matern(points(N, 2), 0.2), 0.1 if noise == "uniform" else by_row)
    rhs = normal(N, 3)
    settings = LowRankSettings(min_gram_flops=0 if gram else 2**60, block=7, trace_share=1e-3)

    def work(system: System, rhs: Tensor) -> dict[str, Any]:
        partial = partial_cholesky(system, limit=40, settings=settings)
        low = LowRank(partial, system.noise, settings)
        method = PreparedConjugateGradients(system, low, replace(DEFAULTS, single=False))
        values = [method.solve(rhs, Goal(1e-12), limits=Limits(iterations=k)).value for k in (2, 3, 5)]
        solution = method.solve(rhs, Goal(1e-6))
        return {
            "pivots": partial.pivots, "rank": partial.rank, "trace": partial.trace, "slack": low.slack,
            "determinant": low.log_determinant, "stopped": solution.stopped,
            "likelihood": log_determinant(system, low).value, "values": values, "solution": solution.value,
        }  # fmt: skip

    wanted = work(whole, rhs)
    parts = in_both_places(lambda space: work(SplitSystem(whole, space), rhs[space.rows]))
    for found in parts:
        assert torch.equal(found["pivots"], wanted["pivots"])
        for name in ("rank", "stopped"):
            assert found[name] == wanted[name]
        for name in ("trace", "slack", "determinant", "likelihood"):
            assert found[name] == pytest.approx(wanted[name], rel=1e-9), name
    for first, second, value in zip(parts[0]["values"], parts[1]["values"], wanted["values"], strict=True):
        assert torch.allclose(torch.cat([first, second]), value, rtol=0.0, atol=1e-11 * float(value.abs().max()))
    solution = torch.cat([found["solution"] for found in parts])
    assert bool(((rhs - whole.A @ solution).norm(dim=0) <= 1e-6 * rhs.norm(dim=0)).all())


class UnequalSpace(SplitSpace):
    """Places whose processors round differently."""

    def total(self, part: Tensor) -> Tensor:
        return super().total(part) * (1.0 + 4.0 * torch.finfo(torch.float64).eps * self.place)


def test_the_low_rank_is_decomposed_in_one_place() -> None:
    """Each place applies its rows of one Q, whatever eigenvectors it would find itself."""
    whole, settings = DenseSystem(matern(points(N, 2), 0.2), 0.1), LowRankSettings(min_gram_flops=0)

    def work(space: SplitSpace) -> LowRank:
        system = SplitSystem(whole, UnequalSpace(space.places, space.place))
        return LowRank(partial_cholesky(system, limit=40, settings=settings), system.noise, settings)

    one, other = in_both_places(work)
    assert torch.equal(one.inner, other.inner)
    basis = torch.cat([one.basis, other.basis])
    rounding = one.skew * N * torch.finfo(torch.float64).eps
    torch.testing.assert_close(basis.mT @ basis, torch.eye(one.rank, dtype=torch.float64), rtol=0.0, atol=rounding)
