"""What ranks do in tests of shared rows: spaces, products, gradients and solves."""

from dataclasses import replace
from typing import Any

import torch

import flashgp as fgp
from flashgp.inference.group_system import GroupRows, GroupSystem
from flashgp.inference.system import CovarianceSystem
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.sharing import share_of_tiles, shared_operator, summed_gradient
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares
from flashgp.solvers.contract import Goal, Limits, System
from flashgp.solvers.group_space import GroupSpace
from flashgp.solvers.iterative.conjugate_gradients import ConjugateGradients
from flashgp.solvers.iterative.lanczos import log_determinant
from flashgp.solvers.settings import DEFAULTS, LowRankSettings
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


def operator(kernel: str, n: int, d: int, dtype: torch.dtype = F64) -> CovarianceOperator:
    one = {
        "matern": lambda: 1.3 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.linspace(0.3, 0.5, d)),
        "sum": lambda: fgp.kernels.SquaredExponential(0.4) + 0.5 * fgp.kernels.Linear(),
        "custom": lambda: fgp.kernels.Custom(
            lambda x, z, scale: scale * torch.minimum(x[..., 0], z[..., 0]), scale=torch.tensor(1.3)
        ),
        "periodic": lambda: fgp.kernels.Periodic(0.7) * fgp.kernels.RationalQuadratic(0.9),
    }[kernel]()
    x = points(n, d)
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
    kept = share.stored_tiles(whole.workspace, F64)
    torch.testing.assert_close(group.sum(kept @ v), wanted, rtol=0.0, atol=1e-13 * n * float(wanted.abs().max()))
    near = share_of_tiles(n, group.rank, group.size)
    i, j = near.pairs.T
    rows = torch.minimum(torch.tensor(near.size), n - near.size * torch.tensor(i))
    cols = torch.minimum(torch.tensor(near.size), n - near.size * torch.tensor(j))
    return {"evaluated": int((rows * cols).sum()), "stored": sum(tile.numel() for *_, tile in kept.panels)}


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
