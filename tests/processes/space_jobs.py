"""What ranks do in tests of shared rows: spaces, products, gradients and solves."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.inference.group_system import GroupRows, GroupSystem
from flashgp.inference.system import CovarianceSystem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.sharing import share_of_tiles, shared_operator, summed_gradient
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares
from flashgp.solvers.contract import Goal, Limits, System
from flashgp.solvers.group_space import GroupSpace
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients, PreparedConjugateGradients
from flashgp.solvers.iterative.lanczos import log_determinant
from flashgp.solvers.preconditioners.candidate import Compared, low_rank
from flashgp.solvers.preconditioners.full_scale import FullScale
from flashgp.solvers.preconditioners.pivoted_cholesky import partial_cholesky
from flashgp.solvers.settings import DEFAULTS, ComparisonSettings, FullScaleSettings, LowRankSettings
from flashgp.solvers.space import LOCAL_SPACE
from solvers.dense_system import normal, points

F64 = torch.float64


def space_laws(process_group: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    """Every method against the space of one process on the joined rows, (M-200)."""
    group, shares = Group.of(process_group), Shares(counts)
    space, n = GroupSpace(group, shares), shares.total
    here = shares.slice(group.rank)
    v, w = normal(n, 3), normal(n, 3, seed=2)
    assert space.count(v[here]) == n
    close = {"rtol": 1e-13, "atol": 1e-13}
    for name in ("sum", "max", "norm"):
        torch.testing.assert_close(getattr(space, name)(v[here]), getattr(LOCAL_SPACE, name)(v), **close)
    torch.testing.assert_close(space.inner(v[here], w[here]), LOCAL_SPACE.inner(v, w), **close)
    assert space.all(v[here] < 9.0)
    assert not space.all(v[here] < v.max())
    assert torch.equal(space.local(v), v[here])
    assert torch.equal(space.everywhere(v[here]), v)
    index = torch.tensor([n - 1, 0, n // 2, 0])
    assert torch.equal(space.take(v.mT[:, here], index), v.mT[:, index])
    mine, all_of_it = v[here, 0].clone(), v[:, 0].clone()
    space.put(mine, index, 7.0)
    LOCAL_SPACE.put(all_of_it, index, 7.0)
    assert torch.equal(mine, all_of_it[here])
    wanted = torch.arange(n).roll(group.rank)[: n - group.rank]
    exchange, wants = space.exchange(wanted), torch.zeros(n)
    assert torch.equal(exchange.bring(v[here]), v[wanted])
    wants[wanted] = 1.0
    assert torch.equal(exchange.give(v[wanted])[:, 0], (v[:, 0] * group.sum(wants))[here])
    assert torch.equal(space.joined(v[: group.rank]), torch.cat([v[:r] for r in range(group.size)]))
    assert float(space.agreed(torch.tensor(group.rank))) == space.number(group.rank) == 0.0
    dealt = space.joined(torch.arange(7)[space.share(7)])
    assert dealt.tolist() == list(range(7))
    weights = torch.where(w[:, 0] > 0.0, w[:, 1].square(), 0.0)
    uniform = torch.linspace(0.0, 1.0 - 1e-12, 64, dtype=F64)
    picked = space.pick(weights[here], uniform)
    assert torch.equal(picked, LOCAL_SPACE.pick(weights, uniform))
    assert bool((weights[picked] > 0.0).all())
    assert not len(space.pick(torch.zeros_like(weights[here]), uniform))
    out = {}
    for t in (1, 3, n + 2):
        block = normal(n, t, seed=3)
        Q, R = space.qr(block[here])
        whole = space.everywhere(Q)
        assert Q.shape == (len(block[here]), min(n, t))
        assert R.shape == (min(n, t), t)
        torch.testing.assert_close(whole @ R, block, rtol=0.0, atol=1e-13 * float(block.norm()))
        torch.testing.assert_close(whole.mT @ whole, torch.eye(min(n, t), dtype=F64), rtol=0.0, atol=1e-13)
        out[f"R{t}"] = R.numpy()
    return out


def operator(kernel: str, n: int, d: int, dtype: torch.dtype = F64, x: Tensor | None = None) -> CovarianceOperator:
    one = {
        "short": lambda: fgp.kernels.Matern(nu=1.5, lengthscale=0.03),
        "matern": lambda: 1.3 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.linspace(0.3, 0.5, d)),
        "sum": lambda: fgp.kernels.SquaredExponential(0.4) + 0.5 * fgp.kernels.Linear(),
        "custom": lambda: fgp.kernels.Custom(
            lambda x, z, scale: scale * torch.minimum(x[..., 0], z[..., 0]), scale=torch.tensor(1.3)
        ),
        "periodic": lambda: fgp.kernels.Periodic(0.7) * fgp.kernels.RationalQuadratic(0.9),
    }[kernel]()
    x = points(n, d) if x is None else x
    theta = [t.detach() for t in one.theta()]
    return CovarianceOperator.of(one.form, theta, one.rows(x).detach(), dtype=dtype)


def products(process_group: Any, kernel: str, n: int) -> dict[str, Any]:
    """K V and the gradient of sum(U * K V), (M-201), against one process; the pairs of every share."""
    group = Group.of(process_group)
    whole = operator(kernel, n, 3)
    share = shared_operator(whole, group)
    u, v = normal(n, 4), normal(n, 4, seed=2)
    wanted, found = whole.times(v), group.sum(share.times(v))
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-13 * n * float(wanted.abs().max()))
    gradient = summed_gradient(share.pulled_back(u, v), group)
    exact = whole.pulled_back(u, v)
    for name in ("rows", "cols", "theta"):
        for one, two in zip(getattr(gradient, name), getattr(exact, name), strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                scale = 1.0 + float(two.abs().max())
                torch.testing.assert_close(one, two, rtol=0.0, atol=1e-11 * scale)
    kept = share.stored_tiles(whole.workspace)
    torch.testing.assert_close(group.sum(kept @ v), wanted, rtol=0.0, atol=1e-7 * n * float(wanted.abs().max()))
    near = share_of_tiles(n, group.rank, group.size)
    i, j = near.pairs.T
    rows = torch.minimum(torch.tensor(near.size), n - near.size * torch.tensor(i))
    cols = torch.minimum(torch.tensor(near.size), n - near.size * torch.tensor(j))
    return {"evaluated": int((rows * cols).sum()), "stored": sum(tile.numel() for *_, tile in kept.panels)}


def system_of(group: Group, kernel: str, x: Tensor) -> System:
    """The rows that this rank has."""
    covariance, noise = operator(kernel, len(x), x.shape[1], x=x), torch.full((len(x),), 0.01, dtype=F64)
    if group.size == 1:
        return CovarianceSystem(covariance, noise)
    return GroupRows(GroupSystem(covariance, noise, group), group)


def together(job: Callable[..., Any]) -> Callable[..., Any]:
    """A job in which one rank's error is every rank's; with no group of this process."""

    @functools.wraps(job)
    def run(process_group: Any, *arguments: Any) -> Any:
        with (ALONE if process_group is None else Group.of(process_group)).together() as group:
            return job(group, *arguments)

    return run


@together
def full_scale_laws(group: Group, kind: str, n: int, rank: int, sizes: tuple[int, int]) -> dict[str, Any]:
    """The full-scale preconditioner, (M-203), with a low rank as one process makes it."""
    x = points(n, 2) if kind == "points" else torch.cartesian_prod(*2 * [torch.arange(-(-n // 20)).double()])[:n]
    system = system_of(group, "matern", x)
    partial = partial_cholesky(system, limit=rank, settings=LowRankSettings(trace_share=0.0))
    batches = 2**16  # several; and float32 weights would round other float64 ones to other numbers
    settings = FullScaleSettings(*sizes, candidates=8 * sizes[0], batch_bytes=batches, dtype=F64)
    made = FullScale(system, partial.factor.clone(), settings, seed=1)
    space, v = system.space, normal(n, 3)
    out = {
        "half": made.half_solve(space.local(v)), "transposed": made.half_solve_transposed(space.local(v)),
        "solve": made.solve(space.local(v)),
    }  # fmt: skip
    found: dict[str, Any] = {name: space.everywhere(value).numpy() for name, value in out.items()}
    return found | {"determinant": made.log_determinant, "reduced": made.reduced, "rank": made.rank}


@together
def comparisons(group: Group, n: int, refused: str, goal: float, at_once: float) -> dict[str, Any]:
    """Slow solves, which try the full-scale preconditioner, also where one rank refuses to make it, or fails."""
    system = system_of(group, "short", points(n, 2))
    space, v = system.space, normal(n, 2)
    comparison = ComparisonSettings(interval=20, min_left=30, pair_flops=math.inf, at_once=at_once)
    too_many = [refused == "both", refused != ""] if group.rank == group.size - 1 else [False, False]
    sizes = tuple(FullScaleSettings(16 * 2**i, 2**40 if many else 48 * 2**i) for i, many in enumerate(too_many))
    low = low_rank(system, 32, 0, replace(DEFAULTS, comparison=comparison, full_scale=sizes))
    assert isinstance(low, Compared)
    method = PreparedConjugateGradients(system, low, replace(DEFAULTS, single=False))
    found = method.solve(space.local(v), Goal(goal))
    kinds = [(str(event.kind), event.fields.get("kept")) for event in found.events]
    return {
        "value": space.everywhere(found.value).numpy(), "iterations": found.iterations, "events": kinds,
        "outcome": low.candidate.outcome, "size": low.candidate.size, "why": low.candidate.why,
    }  # fmt: skip


def solves(process_group: Any, n: int, single: bool) -> dict[str, Any]:
    """Conjugate gradients, their preconditioner and Lanczos on shared rows; with no group, of one process."""
    group = ALONE if process_group is None else Group.of(process_group)
    whole = operator("matern", n, 2)
    noise = torch.full((n,), 0.05, dtype=F64)
    one = GroupSystem(whole, noise, group) if group.size > 1 else CovarianceSystem(whole, noise)
    system: System = GroupRows(one, group) if group.size > 1 else one
    space = system.space
    low_rank = LowRankSettings(max_rank=40, block=16, trace_share=1e-3, min_gram_flops=2**60 if single else 0)
    settings = replace(DEFAULTS, compare=False, single=single, low_rank=low_rank)
    prepared = ConjugateGradients(settings=settings).prepare(system)
    rhs = normal(n, 3)
    solution = prepared.solve(space.local(rhs), Goal(1e-9), limits=Limits(iterations=500))
    value = space.everywhere(solution.value)
    residual = (rhs - one.multiply(value)).norm(dim=0) / rhs.norm(dim=0)
    low = prepared.preconditioner
    sample = low.sample(torch.Generator().manual_seed(3), 2)
    determinant = log_determinant(system, low, replace(settings.lanczos, probes=4, max_steps=10), seed=5)
    return {
        "value": value.numpy(), "iterations": solution.iterations, "residual": float(residual.max()),
        "stopped": str(solution.stopped), "rank": low.rank, "low": low.log_determinant, "slack": low.slack,
        "determinant": determinant.value, "error": determinant.standard_error,
        "sample": space.everywhere(sample).numpy(), "sent": group.bytes_sent,
    }  # fmt: skip
