"""Fantasies equal conditioning on the rows and on each member's own; the base posterior is never written, M-114."""

from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError, ShapeError
from inference.plain_gp import data, model, relative

F64 = torch.float64


def table(n: int = 40, outputs: int | None = None) -> tuple[fgp.GP, Tensor, Tensor]:
    x, y = data(n, 3)
    gp = model(3)
    if outputs:
        y = torch.stack([y, 0.5 - y], dim=-1)
        gp = fgp.GP(gp.kernel, gp.mean, gp.likelihood, outputs=outputs)
    return gp, x, y


def hypothetical(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)


def check(gp: fgp.GP, x: Tensor, y: Tensor, found: Any, at: Tensor) -> None:
    """Every member against conditioning on its rows."""
    p = found.predict(at)
    batch = found.x.shape[:-2]
    members = found.x.reshape(-1, *found.x.shape[-2:])
    tail = 1 if gp.outputs is None else 2
    lead = found.y.shape[: found.y.dim() - tail - len(batch)]
    targets = found.y.reshape(-1, len(members), *found.y.shape[found.y.dim() - tail :])
    means = p.mean.reshape(len(targets), len(members), *p.mean.shape[p.mean.dim() - tail :])
    variances = p.variance.reshape(len(members), *p.variance.shape[len(batch) :])
    for b, rows in enumerate(members):
        own = at if at.dim() == 2 else at.reshape(len(members), *at.shape[-2:])[b]
        for s in range(len(targets)):
            wanted = gp.condition(torch.cat([x, rows]), torch.cat([y, targets[s, b]])).predict(own)
            assert relative(means[s, b], wanted.mean) < 1e-9
        assert float((variances[b] - wanted.variance).abs().max()) < 1e-9
    assert p.mean.shape[: len(lead) + len(batch)] == (*lead, *batch)
    assert (
        relative(p.observation_variance - p.variance, gp.likelihood.variance(x.device).expand(p.variance.shape)) < 1e-9
    )


@pytest.mark.parametrize(
    ("shape", "outputs", "online"),
    [((3,), None, False), ((1, 1), 2, True), ((4, 3), None, True), ((2, 3, 2), 2, False)],
    ids=str,
)
@pytest.mark.parametrize("shared", [True, False])
def test_fantasies_equal_conditioning(shape: tuple[int, ...], outputs: int | None, online: bool, shared: bool) -> None:
    gp, x, y = table(outputs=outputs)
    if shared:
        gp.likelihood = fgp.likelihoods.Gaussian(float(model(3).likelihood.noise_variance.value), shared=True)
    post = gp.condition(x[:30], y[:30]).append(x[30:], y[30:]) if online else gp.condition(x, y)
    new = hypothetical(*shape)
    targets = new.sum(-1) if outputs is None else torch.stack([new.sum(-1), new.prod(-1)], dim=-1)
    found = post.fantasize(new, targets)
    assert found.posterior is post
    check(gp, x, y, found, hypothetical(6, seed=8))
    check(gp, x, y, found, hypothetical(*shape[:-1], 5, seed=9))
    several = post.fantasize(new, torch.stack([targets, -targets, 2 * targets]))
    check(gp, x, y, several, hypothetical(6, seed=8))


def test_no_rows_and_repeated_rows() -> None:
    gp, x, y = table()
    new = hypothetical(2, 3)
    check(gp, x[:0], y[:0], gp.condition(x[:0], y[:0]).fantasize(new, new.sum(-1)), x[:4])
    again, values = torch.cat([x, x[:7]]), torch.cat([y, y[:7] + 0.3])
    check(gp, again, values, gp.condition(again, values).fantasize(new, new.sum(-1)), x[:4])
    beside = torch.cat([x[None, :1].expand(2, 1, 3), new], dim=1)  # a fantasy of a row that is there
    check(gp, x, y, gp.condition(x, y).fantasize(beside, beside.sum(-1)), x[:4])


def test_sampled_targets_have_the_posterior_s_moments() -> None:
    gp, x, y = table()
    post, new = gp.condition(x, y), hypothetical(2, 3)
    found = post.fantasize(new, samples=20_000, seed=3)
    assert found.y.shape == (20_000, 2, 3)
    for b in range(2):
        p = post.predict(new[b])
        mean, spread = p.mean, p.covariance(observed=True)
        error = spread.diagonal().sqrt() / 20_000**0.5
        assert bool(((found.y[:, b].mean(0) - mean).abs() < 4.5 * error).all())
        assert relative(found.y[:, b].T.cov(), spread) < 0.05
    few = post.fantasize(new, samples=3, seed=3)
    check(gp, x, y, few, hypothetical(4, seed=8))
    assert torch.equal(few.y, post.fantasize(new, samples=3, seed=3).y)
    assert not torch.equal(few.y, post.fantasize(new, samples=3, seed=4).y)
    # The mean over samples is the posterior's own: eq. (M-114) is a martingale.
    at = hypothetical(4, seed=8)
    assert relative(found.predict(at).mean.mean(0), post.predict(at).mean.expand(2, -1)) < 0.03


def test_gradients_by_points_and_targets() -> None:
    gp, x, y = table(8)
    post = gp.condition(x[:6], y[:6]).append(x[6:], y[6:])
    new, targets, at = hypothetical(2, 2), hypothetical(2, 2).sum(-1), hypothetical(2, seed=8)

    def answers(new: Tensor, targets: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        p = post.fantasize(new, targets).predict(at)
        return p.mean, p.variance

    arguments = tuple(t.clone().requires_grad_() for t in (new, targets, at))
    assert torch.autograd.gradcheck(answers, arguments)
    same = new[:1].expand(2, 2, 3).clone().requires_grad_()  # equal points of two members, a derivative for each
    assert torch.autograd.gradcheck(answers, (same, targets.clone().requires_grad_(), at.clone().requires_grad_()))
    drawn = post.fantasize(arguments[0], samples=2, seed=1)
    (slope,) = torch.autograd.grad(drawn.predict(at).mean.sum() + drawn.y.sum(), arguments[0])
    assert slope.isfinite().all()


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1), (4, 2, 3)], ids=str)
def test_joint_moments_of_points_whose_batch_goes_with_that_of_the_targets(batch: tuple[int, ...]) -> None:
    gp, x, y = table()
    new, targets, noise = hypothetical(3, 2), hypothetical(2, 3, 2, seed=6).sum(-1), torch.rand(3, 2, dtype=F64)
    at = hypothetical(*batch, 5, seed=9)
    mean, covariance = gp.condition(x, y).fantasize(new, targets, row_variance=noise).joint(at)
    whole = (*torch.broadcast_shapes(batch, (2, 3)), 5)
    means, joints = mean.expand(whole), covariance.expand(*whole, 5)
    for s, b in ((0, 2), (1, 0)):
        likelihood = fgp.likelihoods.Gaussian(
            gp.likelihood.noise_variance, row_variance=torch.cat([torch.zeros(40, dtype=F64), noise[b]])
        )
        both = torch.cat([x, new[b]]), torch.cat([y, targets[s, b]])
        wanted = gp.with_likelihood(likelihood).condition(*both).predict(at.expand(*whole, 3)[..., s, b, :, :])
        assert relative(means[..., s, b, :], wanted.mean) < 1e-9
        assert relative(joints[..., s, b, :, :], wanted.covariance()) < 1e-9


def test_bad_fantasies() -> None:
    gp, x, y = table()
    post, new = gp.condition(x, y), hypothetical(2, 3)
    for arguments, error, text in (
        ((new,), DomainError, "`y` or `samples`"),
        ((new, new.sum(-1), 2), DomainError, "`y` or `samples`"),
        ((new, None, 0), DomainError, "`samples` must be"),
        ((new, None, True), DomainError, "`samples` must be"),
        ((new, new.sum(-1)[:, :2]), ShapeError, "`y`"),
        ((new, new.sum(-1)[0]), ShapeError, "`y`"),
        ((new[..., :2], new.sum(-1)), ShapeError, "`x` must have 3 columns"),
        ((new * torch.nan, new.sum(-1)), DomainError, "`x`"),
    ):
        given = dict(zip(("x", "y", "samples"), arguments, strict=False))
        with pytest.raises(error, match=text):
            post.fantasize(**given)
    with pytest.raises(ShapeError, match=r"`row_variance` must have shape \(2, 3\)"):
        post.fantasize(new, new.sum(-1), row_variance=torch.ones(3))
    with pytest.raises(DomainError, match="`row_variance` must not be negative"):
        post.fantasize(new, new.sum(-1), row_variance=-torch.ones(2, 3))
    with pytest.raises(ShapeError, match="`x_test` must have shape"):
        post.fantasize(new, samples=1).predict(hypothetical(3, 2))
    with pytest.raises(DomainError, match="float64 factor"):
        gp.condition(x, y, dtype=torch.float32).fantasize(new, samples=1)
    free = fgp.GP(gp.kernel, gp.mean, fgp.likelihoods.Gaussian(0.0))
    twice = torch.cat([new, x[None, :1].expand(2, 1, 3)], dim=1)
    with pytest.raises(NotPositiveDefiniteError, match="member 0 has a row"):
        free.condition(x, y).fantasize(twice, samples=1)
