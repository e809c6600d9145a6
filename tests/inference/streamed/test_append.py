"""Rows join inducing points: appending equals conditioning on all rows with the same points, eq. (M-175)."""

import math

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import EventKind, of_kind
from inference.plain_gp import data, model
from inference.streamed.test_posterior import close, read, table

lik = fgp.likelihoods


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


@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (3, 0, 30, 7)])
def test_appending_is_conditioning_on_all_rows(sizes: tuple[int, ...]) -> None:
    x, y, t = table(90)
    whole = read(model(), x, y, x[:12])
    before = read(model(), x[:50], y[:50], x[:12])
    mean, bound, found = before.predict(t).mean, before.bound, before
    for part in zip(x[50:].split(list(sizes)), y[50:].split(list(sizes)), strict=True):
        found = found.append(*part)
    agree(found, whole, t)
    assert (before.count, before.bound) == (50, bound)
    assert torch.equal(before.predict(t).mean, mean)
    (event,) = of_kind(found.report.events, EventKind.UPDATED)
    assert event.fields["appended"] == 40


def test_rows_that_are_read_join_in_one_pass() -> None:
    x, y, t = table(90)
    before = model().condition(x[:50], y[:50], approximation="sparse", inducing=x[:12])
    found = before.append(list(zip(x[50:].split(17), y[50:].split(17), strict=True)))
    agree(found, before.append(x[50:], y[50:]), t, 1e-12)
    assert before.append(x[:0], y[:0]) is before


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


def test_outputs_and_float32() -> None:
    x, y, t = table(60)
    both = torch.stack([y, y.exp()], 1)
    gp = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2)
    agree(read(gp, x[:40], both[:40], x[:9]).append(x[40:], both[40:]), read(gp, x, both, x[:9]), t)
    single = read(model(), x[:40].float(), y[:40].float(), x[:9].float()).append(x[40:].float(), y[40:].float())
    assert single.predict(t.float()).mean.dtype == torch.float32
    agree(single, read(model(), x.float(), y.float(), x[:9].float()), t.float())
    assert single.append(torch.ones(1, 2, dtype=torch.int64), [1]).count == 61


def test_without_noise_the_predictions_are_those_and_the_bound_is_one() -> None:
    x, y, t = table(60)
    gp = fgp.GP(model().kernel, likelihood=lik.Gaussian(None))
    before, whole = read(gp, x[:10], y[:10], x[:9]), read(gp, x, y, x[:9])
    found = before.append(x[10:], y[10:])
    assert close(found.predict(t).mean, whole.predict(t).mean, 1e-6)
    assert found.bound.lower <= whole.bound.lower + 1e-6 * abs(whole.bound.lower)


def test_more_noise_by_rounding_leaves_the_bound_one() -> None:
    x, y, _ = table(60)
    few, many = (fgp.GP(model().kernel, likelihood=lik.Gaussian(noise)) for noise in (0.07, 0.14))
    found, wanted = read(few, x, y, x[:9]).state.sums.with_more_noise(2.0), read(many, x, y, x[:9]).state.sums
    assert found.upper == pytest.approx(wanted.upper, rel=1e-9)
    assert wanted.lower - 30 * math.log(2.0) < found.lower < wanted.lower
    found, wanted = read(few, x, y, x).state.sums.with_more_noise(2.0), read(many, x, y, x).state.sums
    assert found.lower == pytest.approx(wanted.lower, rel=1e-6)  # nothing is left


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


def test_rows_that_do_not_fit_are_refused() -> None:
    x, y, _ = table(30)
    post = read(model(), x, y, 5)
    with pytest.raises(ShapeError, match="`x`"):
        post.append(x[:, :1], y)
    with pytest.raises(ShapeError, match="`y`"):
        post.append(x, y[:3])
    with pytest.raises(DomainError, match="`x`"):
        post.append(x * torch.nan, y)
    for name in ("row_variance", "row_weight"):
        with pytest.raises(DomainError, match=f"`{name}`"):
            post.append(x, y, **{name: y.square()})
    with pytest.raises(DomainError, match="`row_variance`"):
        post.append([(x, y, y.square())])
    with pytest.raises(ShapeError, match="2 columns"):
        post.append([(x, y), (x[:, :1], y)])
    with pytest.raises(DomainError, match="`y` must be given beside x"):
        post.append(x)
    assert post.count == 30
