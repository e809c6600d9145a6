"""Outputs with noise of their own are as many models of one output that share the covariance function's parameters."""

from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError

F64 = torch.float64
NOISE = torch.tensor([0.05, 30.0], dtype=F64)
MEANS = torch.tensor([0.3, -1.0], dtype=F64)
ROUTES: dict[str, dict[str, Any]] = {
    "few rows": {},
    "float64 factor": {"dtype": torch.float64},
    "float32 factor": {"dtype": torch.float32},
    "conjugate gradients": {"solver": "cg"},
}
by_route = pytest.mark.parametrize(
    ("route", "joined"),
    [("few rows", True), ("float64 factor", False), ("float32 factor", True), ("conjugate gradients", False)],
)


def table(n: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The case of a trial: two functions, noise variances 0.05 and 30."""
    generator = torch.Generator().manual_seed(seed)
    x = 5.0 * torch.rand(n, 2, generator=generator, dtype=F64)
    f = torch.stack([x[:, 0].sin() + x[:, 1].cos(), 2.0 * x.sum(1).sin()], dim=-1)
    return x, f + NOISE.sqrt() * torch.randn(n, 2, generator=generator, dtype=F64)


def kernel(lengthscale: Any = 0.9) -> fgp.kernels.Kernel:
    return 1.7 * fgp.kernels.Matern(1.5, lengthscale)


def together(**rows: Any) -> fgp.GP:
    noise = fgp.likelihoods.Gaussian(NOISE, outputs=2, **rows)
    return fgp.GP(kernel(), fgp.means.Constant(MEANS, outputs=2), noise, outputs=2)


def alone(j: int, **rows: Any) -> fgp.GP:
    return fgp.GP(kernel(), fgp.means.Constant(float(MEANS[j])), fgp.likelihoods.Gaussian(float(NOISE[j]), **rows))


def beside(each: list[Tensor], dim: int = -1) -> Tensor:
    return torch.stack(each, dim=dim)


def close(found: Tensor, wanted: Tensor) -> None:
    """The same computation on the same numbers: up to the rounding of a logarithm of the noise and its exponential."""
    scale = wanted.detach().abs().max().clamp_min(torch.finfo(F64).tiny)
    assert found.shape == wanted.shape
    assert float(((found - wanted) / scale).detach().abs().max()) < 1e-9


def check(post: fgp.Posterior, each: list[fgp.Posterior], at: Tensor, y_at: Tensor) -> None:
    """Whatever a posterior answers, against those of single outputs."""
    p, parts = post.predict(at), [one.predict(at) for one in each]
    for name in ("mean", "variance", "observation_mean", "observation_variance"):
        close(getattr(p, name), beside([getattr(part, name) for part in parts]))
    close(p.quantile(0.1), beside([part.quantile(0.1) for part in parts]))
    for found, wanted in zip(p.interval(0.9), zip(*(part.interval(0.9) for part in parts), strict=True), strict=True):
        close(found, beside(list(wanted)))
    close(p.log_prob(y_at), beside([part.log_prob(y_at[:, j]) for j, part in enumerate(parts)]))
    close(p.joint_log_prob(y_at), beside([part.joint_log_prob(y_at[:, j]) for j, part in enumerate(parts)]).sum(-1))
    for observed in (False, True):
        covariances = [part.covariance(observed=observed) for part in parts]
        close(p.covariance(observed=observed), beside(covariances, dim=0))
    close(post.log_marginal_likelihood(), beside([one.log_marginal_likelihood() for one in each]).sum(-1))
    close(post.representer_weights, torch.cat([one.representer_weights for one in each], dim=-1))
    close(post.residual, torch.cat([one.residual for one in each], dim=-1))
    close(post.noise, beside([one.noise for one in each]))
    assert torch.equal(post.y, beside([one.y for one in each]))
    assert (post.x is not None, post.count, post.distinct) == (True, each[0].count, each[0].distinct)


@by_route
def test_outputs_are_separate_models_by_every_route(route: str, joined: bool) -> None:
    x, y = table()
    if joined:
        x, y = torch.cat([x, x[:20]]), torch.cat([y, y[:20] + 0.5])
    at, y_at = table(7, seed=1)
    post = together().condition(x, y, **ROUTES[route])
    each = [alone(j).condition(x, y[:, j], **ROUTES[route]) for j in range(2)]
    check(post, each, at, y_at)
    assert post.report.route == each[0].report.route
    assert (post.replicates is not None) == joined
    if route != "conjugate gradients":
        found, wanted = post.leave_one_out(), [one.leave_one_out() for one in each]
        for name in ("mean", "variance", "log_prob"):
            close(getattr(found, name), beside([getattr(one, name) for one in wanted]))
    assert len(post.by_output) == 2
    close(post.by_output[1].predict(at).variance, each[1].predict(at).variance)
    with pytest.raises(DomainError, match=r"by_output\[j\]\.factor"):
        post.factor  # noqa: B018
    assert "likelihood.noise_variance" in repr(post)
    assert "route" in repr(post.predict(at)) + post._repr_html_()


def test_the_two_outputs_of_a_trial_are_covered() -> None:
    """True noise 0.05 and 30: with one noise variance 95 % intervals hold 100 % and 84 %."""
    x, y = table(400)
    gp = fgp.GP(1.0 * fgp.kernels.RBF(torch.ones(2)), outputs=2)
    fit = fgp.fit(gp, x[:150], y[:150], starts=1)
    noise = fit.gp.likelihood.noise_variance.value
    assert noise.shape == (2,)
    assert ((noise / NOISE).log().abs() < 0.5).all(), "of 150 rows, some of which the function takes"
    lower, upper = fit.posterior.predict(x[150:]).interval(0.95)
    inside = ((y[150:] > lower) & (y[150:] < upper)).double().mean(0)
    # 250 rows: a standard error of 1.4 %, and the parameters are estimated.
    assert ((inside > 0.89) & (inside < 0.99)).all()


def chain(post: fgp.Posterior, x: Tensor, y: Tensor) -> fgp.Posterior:
    """Every kind of update."""
    post = post.append(x[:1], y[:1]).append(x[1:4], y[1:4]).drop([0, 7, 61]).slide(x[4:6], y[4:6])
    return post.replace([3], x[6:7], y[6:7]).append(x[7:9], y[7:9], row_weight=torch.tensor([0.5, 2.0], dtype=F64))


@by_route
def test_updates_are_those_of_separate_models(route: str, joined: bool) -> None:
    x, y = table()
    if joined:
        x, y = torch.cat([x, x[:20]]), torch.cat([y, y[:20] + 0.5])
    more, y_more = table(9, seed=2)
    at, y_at = table(7, seed=1)
    before = together().condition(x, y, **ROUTES[route])
    each = [chain(alone(j).condition(x, y[:, j], **ROUTES[route]), more, y_more[:, j]) for j in range(2)]
    post = chain(before, more, y_more)
    check(post, each, at, y_at)
    assert torch.equal(post.x, each[0].x)
    assert before.count == len(x), "the first one stays what it is"
    empty = post.drop(range(post.count))
    close(empty.predict(at).mean, MEANS.expand(7, 2))
    again = empty.append(more, y_more)
    close(again.predict(at).variance, together().condition(more, y_more).predict(at).variance)


def test_sampled_variances_are_those_of_separate_models() -> None:
    route = "conjugate gradients"
    x, y = table()
    at, _ = table(7, seed=1)
    found = together().condition(x, y, **ROUTES[route]).predict(at, variance="sampled")
    each = [alone(j).condition(x, y[:, j], **ROUTES[route]).predict(at, variance="sampled") for j in range(2)]
    close(found.variance, beside([one.variance for one in each]))
    close(found.variance_standard_error, beside([one.variance_standard_error for one in each]))
    for bound, others in zip(
        found.variance_interval, zip(*(one.variance_interval for one in each), strict=True), strict=True
    ):
        close(bound, beside(list(others)))


def gradients(value: Tensor, gp: fgp.GP) -> dict[str, Tensor]:
    names, tensors = zip(*gp.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, tensors), strict=True))


def test_a_stream_scores_each_output_by_its_own_noise() -> None:
    x, y = table(40)
    weight = torch.linspace(0.5, 2.0, 5, dtype=F64)
    stream = fgp.Stream(together().condition(x[:30], y[:30]), window=31, refine_every=6, refine_steps=1)
    each = [fgp.Stream(alone(j).condition(x[:30], y[:30, j]), window=31) for j in range(2)]
    for i in range(30, 35):
        step = stream.step(x[i], y[i], row_weight=weight[i - 30 : i - 29])
        parts = [one.step(x[i], y[i, j : j + 1], row_weight=weight[i - 30 : i - 29]) for j, one in enumerate(each)]
        close(step.variance, beside([part.variance for part in parts]))
        close(step.mean, beside([part.mean for part in parts]))
    assert stream.metrics.nll == pytest.approx(sum(one.metrics.nll for one in each) / 2)
    assert stream.metrics.coverage == pytest.approx(sum(one.metrics.coverage for one in each) / 2)
    before = stream.posterior.gp.likelihood.noise_variance.value.detach()
    list(stream.consume(zip(x[35:], y[35:], strict=True)))
    after = stream.posterior.gp.likelihood.noise_variance.value.detach()
    assert (before != after).all(), "each is refined"
    assert stream.metrics.refinements == 1
    assert stream.posterior.state.parts[1].online.refined == 1
    assert stream.posterior.count == 31


@pytest.mark.parametrize("route", ["direct", "refined", "stored"])
def test_a_plan_prices_a_factor_of_each_output(route: str) -> None:
    n, outputs = 1000, 3
    shape = {"n": n, "d": 2}
    noise = torch.tensor([0.05, 0.5, 5.0], dtype=F64)
    gp = fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(noise, outputs=outputs), outputs=outputs)
    common = fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(0.5, shared=True), outputs=outputs)
    one = fgp.plan(alone(0), **shape, route=route)
    plan, shared = fgp.plan(gp, **shape, route=route), fgp.plan(common, **shape, route=route)
    assert (plan.factors, plan.outputs, shared.factors) == (outputs, outputs, 1)
    assert plan.seconds == pytest.approx(outputs * one.seconds)
    assert plan.fit_step_seconds == pytest.approx(outputs * one.fit_step_seconds)
    assert fgp.Plan.from_json(plan.to_json()) == plan
    assert "each with noise of its own" in str(plan)
    size = {"direct": 8, "refined": 4}.get(route)
    if size:
        assert plan.peak_bytes - shared.peak_bytes == (outputs - 1) * size * n * n
        assert plan.training_bytes == shared.training_bytes, "training needs one at a time"
    x, y = table(n)
    y = torch.cat([y, y[:, :1]], dim=-1)
    post = gp.condition(x, y, plan=plan)
    assert post.report.route == route
    assert post.report.peak_bytes <= plan.peak_bytes
    if size:
        assert post.report.peak_bytes >= outputs * size * n * n, "a factor of each is kept"
    with pytest.raises(DomainError, match="share their noise"):
        common.condition(x, y, plan=plan)
    with pytest.raises(DomainError, match="noise of their own"):
        gp.condition(x, y, plan=shared)


def test_what_may_mean_two_things_is_asked_about() -> None:
    two, likelihood = torch.tensor([0.1, 0.2]), fgp.likelihoods.Gaussian
    with pytest.raises(DomainError, match=r"outputs or a batch.*outputs=2\).*shared=True"):
        fgp.GP(kernel(), likelihood=likelihood(two), outputs=2)
    with pytest.raises(DomainError, match=r"one Parameter.*outputs=2\).*shared=True"):
        fgp.GP(kernel(), likelihood=likelihood(fgp.Parameter(0.1)), outputs=2)
    x, y = table(10)
    each = fgp.GP(kernel(), likelihood=likelihood(two, outputs=2), outputs=2).condition(x, y)
    batch = fgp.GP(kernel(), likelihood=likelihood(two, shared=True), outputs=2).condition(x, y)
    assert (each.batch_shape, batch.batch_shape) == ((), (2,))
    parameter = fgp.Parameter(two.double(), prior=torch.distributions.LogNormal(two.double(), 1.0))
    given = fgp.GP(kernel(), likelihood=likelihood(parameter, outputs=2), outputs=2)
    assert given.likelihood.noise_variance is parameter
    part = given.condition(x, y).by_output[1].gp.likelihood.noise_variance
    assert (part.value, part.prior.loc) == (parameter.value[1], two.double()[1])


@pytest.mark.parametrize(
    ("arguments", "outputs", "error", "match"),
    [
        ({"outputs": 2}, 3, DomainError, "outputs=3 like the GP, got .*outputs=2"),
        ({"outputs": 2}, None, DomainError, "outputs=None like the GP"),
        ({"outputs": 2, "shared": True}, 2, DomainError, "`shared` must be False"),
        ({"noise_variance": torch.ones(3), "outputs": 2}, 2, ShapeError, r"\(\*batch, 2\).*\(3,\)"),
        ({"outputs": 0}, 2, DomainError, "`outputs`"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: dict[str, Any], outputs: int | None, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(**arguments), outputs=outputs)


def test_predictions_at_many_points_by_a_plan() -> None:
    x, y = table(80)
    at = table(200, seed=1)[0]
    gp = together()
    post = gp.condition(x, y)
    plan = fgp.plan(gp, n=80, d=2, n_test=200)
    p = post.predict(at, plan=plan)
    close(p.variance, post.predict(at).variance)
    close(p.mean, post.predict(at).mean)
    one = fgp.plan(alone(0), n=80, d=2, n_test=200)
    assert plan.seconds == pytest.approx(2 * one.seconds)
    assert p.report.predicted_seconds == pytest.approx(plan.seconds)
    with pytest.raises(DomainError, match="is for n_test, n, outputs"):
        post.predict(at, plan=one)
