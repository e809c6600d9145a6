"""Posteriors of rows that were read: dense references (M-165), paths (M-166), and what they refuse."""

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from flashgp.foundations.events import EventKind, of_kind
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


def test_with_every_row_as_inducing_point_every_answer_is_the_exact_one() -> None:
    """To the floor of 1e-8."""
    x, y, t = table(60)
    exact, found = model().condition(x, y), read(model(), x, y, x)
    p, q = exact.predict(t), found.predict(t)
    assert close(q.mean, p.mean, 1e-5)
    assert close(q.variance, p.variance, 1e-5)
    assert close(found.log_marginal_likelihood(), exact.log_marginal_likelihood(), 1e-5)
    assert found.bound.lower <= float(exact.log_marginal_likelihood()) + 1e-5
    assert found.bound.nats < 1e-4
    assert "at most" in str(found.bound)


def test_rows_that_are_read_and_rows_that_are_held_are_one_posterior() -> None:
    x, y, t = table()
    held = model().condition(x, y, approximation="sparse", inducing=10)
    found = read(model(), x, y)
    assert held.can("bound") is None
    assert held.count == found.count == found.distinct == 90
    assert torch.equal(held.inducing, found.inducing)
    assert close(held.predict(t).mean, found.predict(t).mean, 1e-10)
    assert found.report.route == "streamed"
    assert of_kind(found.report.events, EventKind.STREAMED)
    assert "Posterior of 90 rows" in repr(found)


def test_several_outputs_and_float32() -> None:
    x, y, t = table()
    gp = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2)
    one = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07))
    both = read(gp, x, torch.stack([y, y.exp()], 1)).predict(t)
    assert both.mean.shape == both.variance.shape == (9, 2)
    assert close(both.mean[:, 1], read(one, x, y.exp()).predict(t).mean, 1e-10)
    single = read(model(), x.float(), y.float()).predict(t.float())
    assert single.mean.dtype == torch.float32
    assert close(single.mean.double(), read(model(), x, y).predict(t).mean, 1e-4)


def test_predictions_are_differentiable_in_the_points() -> None:
    x, y, t = table()
    post = read(model(), x, y)

    def value(points: Tensor) -> Tensor:
        p = post.predict(points)
        return p.mean.sum() + p.variance.sum()

    assert torch.autograd.gradcheck(value, t.requires_grad_())


def test_paths_have_the_mean_and_the_variance_of_the_posterior() -> None:
    """(M-166), within four standard errors."""
    x, y, t = table()
    post = read(model(), x, y)
    values, p = post.paths(4000, features=4096, seed=0)(t), post.predict(t)
    assert values.shape == (4000, 9)
    assert bool(((values.mean(0) - p.mean).abs() < 4 * (p.variance / 4000).sqrt()).all())
    ratio = values.var(0) / p.variance
    assert bool(((ratio - 1).abs() < 4 * (2 / 4000) ** 0.5 + 0.05).all())
    assert torch.equal(post.paths(3, seed=1)(t), post.paths(3, seed=1)(t))


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


def test_rows_that_repeat_and_columns_of_constants() -> None:
    x, y, t = table(40)
    x[:, 1] = 4.0
    x[20:] = x[:20]
    found = read(model(), x, y, 40)
    assert bool(found.predict(t).mean.isfinite().all())
    assert bool((found.predict(x).variance >= 0).all())


def test_what_asks_for_rows_is_refused() -> None:
    x, y, t = table(30)
    post = read(model(), x, y)
    for name in ("x", "y", "points", "residual", "representer_weights"):
        with pytest.raises(DomainError, match=f"`{name}`"):
            getattr(post, name)
    for name, args in (("leave_one_out", ()), ("drop", ([0],)), ("refine", ())):
        with pytest.raises(DomainError, match=f"`{name}`"):
            getattr(post, name)(*args)
    with pytest.raises(DomainError, match="variance"):
        post.predict(t, variance="sampled")
    with pytest.raises(ShapeError):
        post.predict(t[None])


VARIANCE = torch.linspace(0.01, 0.6, 60, dtype=F64)


def with_variances() -> tuple[fgp.GP, fgp.GP]:
    """A model that knows the variances of 60 rows, and the same without."""
    noise = fgp.Parameter(0.05)
    return tuple(fgp.GP(model().kernel, likelihood=lik.Gaussian(noise, known)) for known in (VARIANCE, None))


def test_known_variances_of_rows_that_are_read_and_held() -> None:
    """With every row as inducing point every answer is the exact one, to the floor of 1e-8."""
    (x, y, t), (known, alike) = table(60), with_variances()
    exact, held = known.condition(x, y), known.condition(x, y, approximation="sparse", inducing=x)
    batches = list(zip(x.split(25), y.split(25), VARIANCE.split(25), strict=True))
    found = alike.condition(batches, inducing=x)
    for post in (held, found):
        assert close(post.predict(t).mean, exact.predict(t).mean, 1e-5)
        assert close(post.predict(t).variance, exact.predict(t).variance, 1e-5)
        assert close(post.predict(t).observation_variance, exact.predict(t).observation_variance, 1e-5)
        assert close(post.log_marginal_likelihood(), exact.log_marginal_likelihood(), 1e-5)
    assert torch.equal(held.gp.likelihood.row_variance, VARIANCE)
    assert close(held.noise, exact.noise, 1e-12)
    assert close(found.noise, torch.tensor([0.05], dtype=F64), 1e-12)


def test_known_variances_are_part_of_a_fit() -> None:
    (x, y, _), (known, alike) = table(60), with_variances()
    exact = fgp.fit(known, x, y)
    held = fgp.fit(known, x, y, approximation="sparse", inducing=60)
    found = fgp.fit(alike, [(x, y, VARIANCE)], inducing=60)
    assert torch.equal(held.gp.likelihood.row_variance, VARIANCE)
    with torch.no_grad():
        best = float(exact.gp.log_joint(x, y))
        assert best - float(held.gp.log_joint(x, y)) < 0.05
        found.gp.likelihood = found.gp.likelihood.with_rows(VARIANCE)
        assert best - float(found.gp.log_joint(x, y)) < 0.05


@pytest.mark.parametrize("which", ["alike", "known"])
def test_leave_one_out_leaves_rows_out(which: str) -> None:
    """(M-167): as conditioning on the others with the same inducing points does; of outputs too."""
    (x, y, _), (known, alike) = table(60), with_variances()
    post = (known if which == "known" else alike).condition(x, y, approximation="sparse", inducing=12)
    left = post.leave_one_out()
    for i in (0, 17, 59):
        others = torch.arange(60) != i
        rows = (x[others], y[others], *([VARIANCE[others]] if which == "known" else []))
        without = alike.condition([rows], inducing=post.inducing).predict(x[i : i + 1])
        more = VARIANCE[i] if which == "known" else 0.0
        variance = without.observation_variance + more
        assert close(left.mean[i], without.mean[0])
        assert close(left.variance[i], variance[0])
        wanted = torch.distributions.Normal(without.mean, variance.sqrt()).log_prob(y[i])
        assert close(left.log_prob[i], wanted[0])


def test_leave_one_out_with_every_row_as_inducing_point_is_the_exact_one() -> None:
    """(M-167), to the floor of 1e-8; of several outputs and float32."""
    x, y, _ = table(60)
    gp = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2)
    targets = torch.stack([y, y.exp()], 1)
    exact = gp.condition(x, targets).leave_one_out()
    found = gp.condition(x, targets, approximation="sparse", inducing=x).leave_one_out()
    for name in ("mean", "variance", "log_prob"):
        assert close(getattr(found, name), getattr(exact, name), 1e-5)
    single = model().condition(x.float(), y.float(), approximation="sparse", inducing=12).leave_one_out()
    assert single.mean.dtype == torch.float32


def test_rows_that_are_held_are_kept_and_copied() -> None:
    x, y, _ = table(30)
    given = x.clone(), y.clone()
    post = model().condition(*given, approximation="sparse", inducing=5)
    given[0].zero_()
    given[1].zero_()
    assert torch.equal(post.x, x)
    assert torch.equal(post.points, x)
    assert torch.equal(post.y, y)
    assert close(post.residual[:, 0], y - post.gp.mean_at(x)[:, 0], 1e-12)
    with pytest.raises(DomainError, match="representer_weights"):
        _ = post.representer_weights


def test_what_rows_that_are_read_cannot_have_is_refused() -> None:
    x, y, _ = table(30)
    with pytest.raises(DomainError, match="full_scale"):
        read(model(), x, y, approximation="full_scale")
    with pytest.raises(DomainError, match="neighbours"):
        read(model(), x, y, neighbours=5)
    with pytest.raises(DomainError, match="alike"):
        read(fgp.GP(model().kernel, likelihood=lik.Gaussian(0.1, row_variance=torch.ones(30))), x, y)
    weighted = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.1, row_weight=torch.ones(30)))
    with pytest.raises(DomainError, match="row_weight"):
        fgp.fit(weighted, x, y, approximation="sparse")
    with pytest.raises(DomainError, match="share"):
        read(fgp.GP(model().kernel, outputs=2), x, torch.stack([y, y], 1))
    with pytest.raises(MemoryBudgetError, match="inducing"):
        read(model(), x, y, memory="10KiB")
    for option in ({"solver": "cg"}, {"jitter": 1e-6}, {"differentiable": True}):
        with pytest.raises(DomainError, match=next(iter(option))):
            read(model(), x, y, **option)
    with pytest.raises(DomainError, match="`y` must be given"):
        model().condition(x)


def test_rows_that_are_left_out_have_what_the_rows_have() -> None:
    """Without its variance a row would weigh as others do."""
    (x, y, _), v = table(40), torch.full((40,), 0.3, dtype=F64)
    with pytest.raises(DomainError, match="row_variance"):
        read(model(), x, y).leave_out(x[:3], y[:3], row_variance=v[:3])
    known = model().condition([(x, y, v)], inducing=8)
    assert known.can("bound") is None
    with pytest.raises(DomainError, match="row_variance"):
        known.leave_out(x[:3], y[:3])


def test_no_inducing_points_are_none() -> None:
    x, y, _ = table(40)
    with pytest.raises(DomainError, match="at least 1"):
        read(model(), x, y, x[:0])


def test_of_no_rows_the_posterior_is_the_prior() -> None:
    """As exact inference has it; a fit of none is refused as every fit."""
    x, y = data(5)
    gp = model()
    exact, found = gp.condition(x[:0], y[:0]), gp.condition(x[:0], y[:0], approximation="sparse", inducing=3)
    assert found.count == 0
    assert torch.equal(found.predict(x).mean, exact.predict(x).mean)
    assert torch.equal(found.predict(x).variance, exact.predict(x).variance)
    assert of_kind(found.report.events, EventKind.NO_DATA)
    with pytest.raises(fgp.ShapeError, match="at least one row"):
        fgp.fit(gp, x[:0], y[:0], approximation="sparse")
    with pytest.raises(fgp.ShapeError, match="inducing"):
        gp.condition(x[:0], y[:0], approximation="sparse", inducing=torch.zeros(3, 7))
