"""Posteriors of rows that were read: dense references (M-165), rows that join (M-175), and what they refuse."""

import math

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from inference.plain_gp import F64, data, model

lik = fgp.likelihoods


def read(gp: fgp.GP, x: Tensor, y: Tensor, inducing: object = 10, size: int = 17, **options: object) -> fgp.Posterior:
    found = gp.condition(list(zip(x.split(size), y.split(size), strict=True)), inducing=inducing, **options)
    assert found.can("bound") is None
    return found


def close(found: Tensor, wanted: Tensor, off: float = 1e-8) -> bool:
    return bool((found - wanted).abs().max() <= off * wanted.abs().max())


def table(n: int = 90) -> tuple[Tensor, Tensor, Tensor]:
    x, y = data(n)
    return x, y, data(9, seed=5)[0]


def test_predictions_are_those_of_dense_matrices() -> None:
    """(M-165)"""
    gp, (x, y, t) = model(), table()
    post = read(gp, x, y)
    with torch.no_grad():
        z, noise = post.inducing, float(gp.likelihood.variance(x.device))
        at = gp.kernel.operator(z).to_dense()
        at = at + 1e-8 * at.diagonal().mean() * torch.eye(len(z), dtype=F64)
        cross, far = gp.kernel.operator(z, x).to_dense(), gp.kernel.operator(z, t).to_dense()
        both = torch.linalg.inv(at + cross @ cross.mT / noise)
        mean = gp.mean_at(t)[:, 0] + far.mT @ both @ cross @ gp.residual(x, y)[:, 0] / noise
        covariance = gp.kernel.operator(t).to_dense() - far.mT @ (torch.linalg.inv(at) - both) @ far
    found = post.predict(t)
    assert close(found.mean, mean)
    assert close(found.covariance(), covariance, 1e-7)
    assert close(found.variance, covariance.diagonal(), 1e-7)
    assert close(found.variance, found.covariance().diagonal(), 1e-12)


def test_more_inducing_points_than_rows_and_points_of_the_caller() -> None:
    x, y, t = table(30)
    with pytest.raises(DomainError, match="at most the 30 rows"):
        read(model(), x, y, 31)
    assert len(read(model(), x, y, "auto").inducing) <= 30
    far = read(model(), x, y, t + 100.0)
    assert close(far.predict(t).mean, model().condition(x[:0], y[:0]).predict(t).mean, 1e-6)
    with pytest.raises(ShapeError, match="inducing"):
        read(model(), x, y, t[:, :1])
    with pytest.raises(DomainError, match="at least 1"):
        read(model(), x, y, 0)


VARIANCE = torch.linspace(0.01, 0.6, 60, dtype=F64)


def with_variances() -> tuple[fgp.GP, fgp.GP]:
    """A model that knows the variances of 60 rows, and the same without."""
    noise = fgp.Parameter(0.05)
    return tuple(fgp.GP(model().kernel, likelihood=lik.Gaussian(noise, known)) for known in (VARIANCE, None))


def test_what_rows_that_are_read_cannot_have_is_refused() -> None:
    x, y, _ = table(30)
    with pytest.raises(DomainError, match="full_scale"):
        read(model(), x, y, approximation="full_scale")
    with pytest.raises(DomainError, match="neighbours"):
        read(model(), x, y, neighbours=5)
    with pytest.raises(DomainError, match="alike"):
        read(fgp.GP(model().kernel, likelihood=lik.Gaussian(0.1, row_variance=torch.ones(30))), x, y)
    with pytest.raises(DomainError, match="`row_variance of batch 0` must be 0 or more"):
        model().condition([(x, y, -y.abs())], inducing=2)
    weighted = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.1, row_weight=torch.ones(30)))
    with pytest.raises(DomainError, match="row_weight"):
        read(weighted, x, y)
    with pytest.raises(MemoryBudgetError, match="inducing"):
        read(model(), x, y, memory="10KiB")
    for option in ({"solver": "cg"}, {"jitter": 1e-6}, {"differentiable": True}):
        with pytest.raises(DomainError, match=next(iter(option))):
            read(model(), x, y, **option)
    with pytest.raises(DomainError, match="`y` must be given"):
        model().condition(x)


def agree(found: fgp.Posterior, wanted: fgp.Posterior, at: Tensor, off: float = 1e-9) -> None:
    """Every answer that does not depend on a sample of the rows."""
    p, q = found.predict(at), wanted.predict(at)
    assert found.count == wanted.count
    assert close(p.mean, q.mean, off)
    assert close(p.variance, q.variance, off)
    assert close(p.covariance(), q.covariance(), off)
    assert found.bound.lower == pytest.approx(wanted.bound.lower, rel=off)
    assert found.bound.upper == pytest.approx(wanted.bound.upper, rel=off)
    assert close(found.paths(3, seed=0)(at), wanted.paths(3, seed=0)(at), 1e-7)


def test_rows_with_known_variances_join_those_that_have_them() -> None:
    x, y, t = table(90)
    v = 0.3 * x[:, 0].square()
    whole = model().condition([(x, y, v)], inducing=x[:12])
    before = model().condition([(x[:50], y[:50], v[:50])], inducing=x[:12])
    agree(before.append([(x[50:], y[50:], v[50:])]), whole, t)
    agree(before.append(x[50:70], y[50:70], row_variance=v[50:70]).append([(x[70:], y[70:], v[70:])]), whole, t)
    with pytest.raises(DomainError, match="`row_variance`"):
        before.append(x, y)


def test_rows_that_are_held_stay_held_where_rows_are_given() -> None:
    x, y, _ = table(60)
    gp = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.05, x[:, 0].square()))
    part = fgp.GP(gp.kernel, gp.mean, lik.Gaussian(0.05, x[:40, 0].square()))
    whole = gp.condition(x, y, approximation="sparse", inducing=x[:9])
    before = part.condition(x[:40], y[:40], approximation="sparse", inducing=x[:9])
    found = before.append(x[40:], y[40:], row_variance=x[40:, 0].square())
    assert torch.equal(found.x, x)
    assert torch.equal(found.gp.likelihood.row_variance, x[:, 0].square())
    assert close(found.leave_one_out().log_prob, whole.leave_one_out().log_prob, 1e-9)
    read_on = before.append([(x[40:], y[40:], x[40:, 0].square())])
    assert close(read_on.predict(x).mean, whole.predict(x).mean, 1e-9)
    with pytest.raises(DomainError, match="`leave_one_out`"):
        read_on.leave_one_out()


def test_the_sample_stays_one_of_all_rows() -> None:
    """Of a kernel without random features, whose paths take pivots of a sample; each row as likely as any other."""
    x, y, _ = table(30)
    post = read(model(), x, y, x[:5]).append(x[:2] + 9.0, y[:2])
    assert torch.equal(post.state.sample.x, torch.cat([x, x[:2] + 9.0]))
    x, y = data(3000, 1)
    post = read(model(1), x[:1000], y[:1000], x[:5], 1000).append(x[1000:1500], y[1000:1500])
    rest = list(zip(x[1500:].split(250), y[1500:].split(250), strict=True))
    sample = post.append(rest).state.sample.x
    assert len(sample) == 2000
    places = torch.isin(x[:, 0], sample[:, 0]).double()
    assert places.sum() == 2000
    for part in places.split(500):  # a share of 2/3, four standard errors
        assert abs(float(part.mean()) - 2 / 3) < 4 * (2 / 9 / 500) ** 0.5


def test_more_noise_by_rounding_leaves_the_bound_one() -> None:
    x, y, _ = table(60)
    few, many = (fgp.GP(model().kernel, likelihood=lik.Gaussian(noise)) for noise in (0.07, 0.14))
    found, wanted = read(few, x, y, x[:9]).state.sums.with_more_noise(2.0), read(many, x, y, x[:9]).state.sums
    assert found.upper == pytest.approx(wanted.upper, rel=1e-9)
    assert wanted.lower - 30 * math.log(2.0) < found.lower < wanted.lower
    found, wanted = read(few, x, y, x).state.sums.with_more_noise(2.0), read(many, x, y, x).state.sums
    assert found.lower == pytest.approx(wanted.lower, rel=1e-6)  # nothing is left
