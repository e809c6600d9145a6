"""The bound on minibatches and natural-gradient steps, eqs. (M-190) to (M-195): dense reference, laws, step sizes."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.streamed.minibatch import InducingValues, MinibatchBound
from inference.plain_gp import F64, data, model
from inference.streamed.test_bound import objective
from inference.streamed.test_collapsed import deep
from pairwise.pair_cases import ONE_CASE_EACH, Case

k, lik = fgp.kernels, fgp.likelihoods


def step(
    gp: fgp.GP, x: Tensor, y: Tensor, z: Tensor, q: InducingValues | None = None, n: int | None = None
) -> MinibatchBound:
    return gp.minibatch_bound(x, y, count=n or len(x), inducing=z, q=q)


def passed(gp: fgp.GP, x: Tensor, y: Tensor, z: Tensor, sizes: list[int]) -> InducingValues:
    """q after one pass over batches of these sizes."""
    q = None
    with torch.no_grad():
        for batch, targets in zip(x.split(sizes), y.split(sizes), strict=True):
            q = step(gp, batch, targets, z, q, len(x)).q
    assert q is not None
    return q


def dense(gp: fgp.GP, x: Tensor, y: Tensor, z: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """(M-190) of one output by its definition, as a function of E u, (m,), and E u u^T, (m, m)."""
    with torch.no_grad():
        noise = float(gp.likelihood.variance(x.device))
        at = gp.kernel.operator(z).to_dense()
        at = at + 1e-8 * at.diagonal().mean() * torch.eye(len(z), dtype=F64)
        a = torch.linalg.solve_triangular(
            torch.linalg.cholesky(at), gp.kernel.operator(z, x).to_dense(), upper=False
        ).mT
        left = gp.kernel.operator(x).diagonal() - a.square().sum(-1)
        r = gp.residual(x, y)[:, 0]
    covariance = second - torch.outer(first, first)
    fit = (r - a @ first).square() + (a @ covariance * a).sum(-1)
    likely = -0.5 * (math.log(2 * math.pi) + (noise + left).log() + fit / noise).sum()
    divergence = 0.5 * (second.diagonal().sum() - len(z) - torch.logdet(covariance))
    return likely - divergence


def moments(q: InducingValues) -> tuple[Tensor, Tensor]:
    first = q.mean[:, 0]
    return first, q.covariance + torch.outer(first, first)


def test_the_value_is_that_of_dense_matrices() -> None:
    """(M-190), at a q(u) that other targets have made."""
    x, y = data(50)
    for gp in (model(), deep()):
        q = step(gp, x[:20], y[:20].cos(), x[:7], n=50).q
        found = step(gp, x, y, x[:7], q).value.item()
        assert found == pytest.approx(dense(gp, x, y, x[:7], *moments(q)).item(), rel=1e-8)


@pytest.mark.parametrize("gp", [model(), deep()], ids=["plain", "network"])
def test_one_natural_step_on_all_rows_is_the_optimum(gp: fgp.GP) -> None:
    """(M-192) with a step of size 1, whatever q was: the collapsed bound (M-160), and its gradient."""
    x, y = data(60)
    z = x[:9]
    _, sums = objective(gp, x, y, z).bound()
    before = step(gp, x[:20], y[:20].cos(), z, n=60).q
    for q in (None, before):
        after = step(gp, x, y, z, q).q
        assert after.step_size == 1.0
        assert torch.allclose(after.mean, sums.weights, rtol=1e-9, atol=1e-9)
        assert torch.allclose(after.covariance, torch.cholesky_inverse(sums.inner), rtol=1e-9, atol=1e-9)
    parameters = list(gp.parameters())
    best = gp.collapsed_bound(x, y, inducing=z)
    for q in (None, after):
        found = step(gp, x, y, z, q).value
        assert found.item() == pytest.approx(best.item(), rel=1e-9)
        wanted = torch.autograd.grad(best, parameters, retain_graph=True)
        for one, other in zip(torch.autograd.grad(found, parameters), wanted, strict=True):
            assert bool((one - other).abs().max() <= 1e-8 * (1.0 + other.abs().max()))
    assert step(gp, x, y, z, before).value.item() < best.item()


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_gradients_agree_with_differences(case: Case) -> None:
    """Of every kernel, at a q(u) that is not the best, (M-191)."""
    gp = fgp.GP(case.kernel, fgp.means.Linear(torch.full((case.d,), 0.2)), lik.Gaussian(0.1))
    x, z = case.points(30, seed=1), case.points(6, seed=4)
    y = torch.sin(x.sum(-1)) + data(30, seed=2)[1]
    q = step(gp, x[:10], y[:10].cos(), z, n=90).q
    step(gp, x, y, z, q, 90).value.backward()
    for parameter in gp.parameters():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        flat, wanted = parameter.data.view(-1), torch.empty_like(parameter).view(-1)
        with torch.no_grad():
            for j in range(len(flat)):
                at, values = float(flat[j]), []
                for by in (1e-5, -1e-5):
                    flat[j] = at + by
                    values.append(step(gp, x, y, z, q, 90).value.item())
                flat[j] = at
                wanted[j] = (values[0] - values[1]) / 2e-5
        assert bool((found.view(-1) - wanted).abs().max() <= 1e-6 * (1.0 + wanted.abs().max()))


def test_a_step_follows_the_natural_gradient() -> None:
    """(M-192): natural parameters move by the step size times the gradient by E u and E u u^T."""
    gp, (x, y) = model(), data(60)
    z = x[:6]
    q = step(gp, x[:20], y[:20].cos(), z, n=60).q
    first, second = (t.detach().requires_grad_() for t in moments(q))
    likely = dense(gp, x[20:50], y[20:50], z, first, second)
    # The batch stands for all rows; the divergence counts once.
    covariance = second - torch.outer(first, first)
    divergence = 0.5 * (second.diagonal().sum() - len(z) - torch.logdet(covariance))
    by_first, by_second = torch.autograd.grad(2.0 * (likely + divergence) - divergence, (first, second))
    after = step(gp, x[20:50], y[20:50], z, q, 60).q
    before_precision, precision = torch.linalg.inv(q.covariance), torch.linalg.inv(after.covariance)
    moved = precision @ after.mean[:, 0] - before_precision @ q.mean[:, 0]
    assert 0.0 < after.step_size < 1.0
    assert torch.allclose(moved, after.step_size * by_first, rtol=1e-7, atol=1e-7 * moved.abs().max().item())
    half = -0.5 * (precision - before_precision)
    assert torch.allclose(half, after.step_size * by_second, rtol=1e-7, atol=1e-7 * half.abs().max().item())


@pytest.mark.parametrize("sizes", [[20, 20, 20], [1, 9, 30, 20], [59, 1]])
def test_one_pass_at_the_same_parameters_is_the_optimum(sizes: list[int]) -> None:
    """(M-193) without drift: step sizes b / (rows seen), and q(u) that of all rows however they are cut."""
    gp, (x, y) = deep(), data(60)
    z = x[:9]
    q = passed(gp, x, y, z, sizes)
    _, sums = objective(gp, x, y, z).bound()
    assert q.step_size == pytest.approx(sizes[-1] / 60)
    assert q.remembered == q.seen == 60
    assert torch.allclose(q.mean, sums.weights, rtol=1e-8, atol=1e-8)
    assert q.sums.lower == pytest.approx(sums.lower, rel=1e-10)
    post = gp.condition(q)
    wanted = gp.condition(x, y, approximation="sparse", inducing=z)
    t = data(9, seed=5)[0]
    found, other = post.predict(t), wanted.predict(t)
    assert torch.allclose(found.mean, other.mean, rtol=1e-8, atol=1e-9)
    assert torch.allclose(found.variance, other.variance, rtol=1e-7, atol=1e-9)
    assert post.bound.lower == pytest.approx(wanted.bound.lower, rel=1e-10)
    assert post.bound.upper == pytest.approx(wanted.bound.upper, rel=1e-10)
    event = of_kind(post.report.events, EventKind.MINIBATCHES)[0]
    assert event.fields["seen"] == 60
    assert post.paths(2, seed=0)(t).shape == (2, 9)


def test_the_gap_shrinks_as_rows_are_seen() -> None:
    """(M-195)"""
    gp, (x, y) = model(), data(2000)
    z = x[:10]
    early, late = passed(gp, x[:80], y[:80], z, [40, 40]), passed(gp, x, y, z, [40] * 50)
    assert step(gp, x[:40], y[:40], z, n=2000).q.gap is None
    assert early.gap > late.gap >= 0.0
    assert late.gap < 0.2
    assert "nats a row below" in str(of_kind(gp.condition(late).report.events, EventKind.MINIBATCHES)[0])


def test_what_does_not_fit_is_refused() -> None:
    gp, (x, y) = model(), data(20)
    q = step(gp, x, y, x[:4], n=50).q
    with pytest.raises(fgp.DomainError, match="`count`"):
        step(gp, x, y, x[:4], n=19)
    with pytest.raises(fgp.DomainError, match="`count`"):
        step(gp, x, y, x[:4], q, 60)
    with pytest.raises(fgp.ShapeError, match="`q`"):
        step(gp, x, y, x[:5], q, 50)
    with pytest.raises(fgp.DomainError, match="`q`"):
        step(gp, x, y, x[:4], q.means, 50)
    with pytest.raises(fgp.DomainError, match="inducing"):
        gp.condition(q, inducing=30)
    with pytest.raises(fgp.DomainError, match="solver"):
        gp.condition(q, solver="cg")
    with pytest.raises(fgp.ShapeError, match="outputs"):
        fgp.GP(gp.kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2).condition(q)
    assert "remembered" in repr(q)


@pytest.mark.parametrize("speed", [0.0, 1e-2])
def test_the_step_size_is_near_the_best_constant_one(speed: float) -> None:
    """(M-193) and (M-194): the mean that is kept follows that of all rows, as parameters move at some speed, about as
    well as the best of constant step sizes, which nobody knows beforehand."""
    gp, (x, y) = model(), data(600)
    z, b, batches = x[:8], 40, 60
    generator = torch.Generator().manual_seed(1)
    means, true, sizes, q = [], [], [], None
    with torch.no_grad():
        for t in range(batches):
            gp.mean.value.raw.add_(speed if (t // 50) % 2 == 0 else -speed)
            gp.kernel.variance.raw.add_(speed)
            index = torch.randperm(600, generator=generator)[:b]
            alone = step(gp, x[index], y[index], z, n=600).q.means
            q = step(gp, x[index], y[index], z, q, 600).q
            means.append(alone)
            true.append(step(gp, x, y, z).q.means)
            sizes.append((q.step_size, q.means.apart(true[-1])))
    found = sum(off for _, off in sizes[20:])

    def of_constant(share: float) -> float:
        kept, off = means[0], 0.0
        for t, (mean, wanted) in enumerate(itertools.islice(zip(means, true, strict=True), 1, None), 1):
            kept = kept.moved(mean, max(share, 1.0 / (t + 1)))
            off += kept.apart(wanted) if t >= 20 else 0.0
        return off

    best = min(map(of_constant, (0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 1.0)))
    assert found <= 2.0 * best
    if not speed:
        assert q.step_size == pytest.approx(1.0 / batches)
