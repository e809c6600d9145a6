"""Outputs with noise of their own are as many models of one output that share the covariance function's parameters."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.files import container
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.inference.output_states import OutputStates, joined_report

F64 = torch.float64
NOISE = torch.tensor([0.05, 30.0], dtype=F64)
MEANS = torch.tensor([0.3, -1.0], dtype=F64)
ROUTES: dict[str, dict[str, Any]] = {
    "few rows": {},
    "float64 factor": {"dtype": torch.float64},
    "float32 factor": {"dtype": torch.float32},
    "conjugate gradients": {"solver": "cg"},
}
by_route = pytest.mark.parametrize("route", list(ROUTES))
by_factor = pytest.mark.parametrize("route", ["few rows", "float32 factor"])


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
@pytest.mark.parametrize("joined", [False, True])
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


@by_route
def test_rows_with_noise_or_weight_of_their_own(route: str) -> None:
    x, y = table()
    at, y_at = table(7, seed=1)
    generator = torch.Generator().manual_seed(3)
    for name in ("row_variance", "row_weight"):
        rows = {name: torch.rand(60, generator=generator, dtype=F64) + 0.1}
        post = together(**rows).condition(x, y, **ROUTES[route])
        check(post, [alone(j, **rows).condition(x, y[:, j], **ROUTES[route]) for j in range(2)], at, y_at)


def chain(post: fgp.Posterior, x: Tensor, y: Tensor) -> fgp.Posterior:
    """Every kind of update."""
    post = post.append(x[:1], y[:1]).append(x[1:4], y[1:4]).drop([0, 7, 61]).slide(x[4:6], y[4:6])
    return post.replace([3], x[6:7], y[6:7]).append(x[7:9], y[7:9], row_weight=torch.tensor([0.5, 2.0], dtype=F64))


@by_route
@pytest.mark.parametrize("joined", [False, True])
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


def test_an_update_that_fails_for_one_output_changes_none() -> None:
    x, y = table(20)
    post = together().condition(x, y)
    with pytest.raises(ShapeError, match=r"\(\*batch, n, 2\)"):
        post.append(x[:1], y[:1, 0])
    with pytest.raises(DomainError, match="finite"):
        post.append(x[:1], torch.tensor([[1.0, torch.inf]], dtype=F64))
    with pytest.raises(DomainError, match="row_variance"):
        together(row_variance=torch.ones(20)).condition(x, y).append(x[:1], y[:1])
    assert post.count == 20


def test_fantasies_are_those_of_separate_models() -> None:
    x, y = table()
    at, _ = table(5, seed=1)
    new = torch.rand(3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    targets = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(2), dtype=F64)
    post = together().condition(x, y)
    found = post.fantasize(new, targets).predict(at)
    wanted = [
        alone(j).condition(x, y[:, j]).fantasize(new, targets[..., j]).predict(at) for j in range(2)
    ]  # fmt: skip
    for name in ("mean", "variance", "observation_variance"):
        close(getattr(found, name), beside([getattr(one, name) for one in wanted]))
    drawn = post.fantasize(new, samples=2000, seed=3)
    assert drawn.y.shape == (2000, 3, 2, 2)
    assert torch.equal(drawn.y, post.fantasize(new, samples=2000, seed=3).y)
    assert drawn.posterior is post
    p = post.predict(new[0])
    deviations = (drawn.y[:, 0] - p.mean) / p.observation_variance.sqrt()
    assert (deviations.mean(0).abs() < 4 / 2000**0.5).all()
    assert ((deviations.square().mean(0) - 1).abs() < 4 * (2 / 2000) ** 0.5).all()
    assert ((deviations[..., 0] * deviations[..., 1]).mean(0).abs() < 4 / 2000**0.5).all(), "independent outputs"


@by_route
@pytest.mark.parametrize("kind", ["samples", "observations", "paths"])
def test_draws_have_the_moments_of_each_output(route: str, kind: str) -> None:
    """Within four standard errors, and independent of the other output's."""
    count = 1000 if kind == "paths" else 4000
    x, y = table()
    at, _ = table(3, seed=1)
    post = together().condition(x, y, **ROUTES[route])
    p = post.predict(at)
    if kind == "paths":
        paths = post.paths(count, seed=1, features=1024)
        drawn, error = paths(at), paths.prior_error or 0.0
        assert torch.equal(drawn, post.paths(count, seed=1, features=1024)(at))
    else:
        drawn, error = p.sample(count, observed=kind == "observations", seed=1), 0.0
    variance = p.observation_variance if kind == "observations" else p.variance
    assert drawn.shape == (count, 3, 2)
    deviations = (drawn - p.mean) / variance.sqrt()
    assert (deviations.mean(0).abs() < 4 / count**0.5).all()
    allowed = 4 * (2 / count) ** 0.5 + 4 * error * 1.7 / variance
    assert ((deviations.square().mean(0) - 1).abs() < allowed).all()
    assert ((deviations[..., 0] * deviations[..., 1]).mean(0).abs() < 4 / count**0.5).all()
    if kind != "paths":
        joint = p.covariance(observed=kind == "observations")
        centred = drawn - p.mean
        for j in range(2):
            found = centred[..., j].mT @ centred[..., j] / count
            diagonal = joint[j].diagonal()
            spread = (joint[j].square() + diagonal[:, None] * diagonal) / count
            assert ((found - joint[j]).abs() < 4 * spread.sqrt()).all()


@by_route
def test_sampled_variances_are_those_of_separate_models(route: str) -> None:
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


@pytest.mark.parametrize("n", [40, 500])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32}, {"jitter": 1e-6}], ids=str)
def test_the_likelihood_and_its_gradient_are_sums_over_the_outputs(n: int, options: dict[str, Any]) -> None:
    x, y = table(n)
    gp = together()
    value = gp.log_marginal_likelihood(x, y, **options)
    found = gradients(value, gp)
    total, shared = torch.zeros((), dtype=F64), {"kernel.variance.raw": 0.0, "kernel.kernel.lengthscale.raw": 0.0}
    for j in range(2):
        one = alone(j)
        part = one.log_marginal_likelihood(x, y[:, j], **options)
        total, slopes = total + part.detach(), gradients(part, one)
        shared = {name: slope + slopes[name] for name, slope in shared.items()}
        for name in ("mean.value.raw", "likelihood.noise_variance.raw"):
            close(found[name][j], slopes[name])
    close(value, total)
    for name, slope in shared.items():
        close(found[name], slope)
    close(gp.log_joint(x, y, **options), total)


def test_chains_of_parameters_and_batches() -> None:
    x, y = table(30)
    gp = together()
    chains = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=F64, requires_grad=True)
    found = gp.log_marginal_likelihood(x, y, theta={"likelihood.noise_variance.raw": chains})
    assert found.shape == (4,)
    (slope,) = torch.autograd.grad(found.sum(), chains)
    for i in range(4):
        gp.likelihood.noise_variance.value = chains[i].detach().exp()
        one = gp.log_marginal_likelihood(x, y)
        close(found[i], one)
        close(slope[i], gradients(one, gp)["likelihood.noise_variance.raw"])
    noise = torch.tensor([[0.1, 1.0], [0.2, 2.0], [0.3, 3.0]], dtype=F64)
    tables = y + torch.arange(3, dtype=F64)[:, None, None]
    batch = fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(noise, outputs=2), outputs=2)
    post = batch.condition(x, tables)
    p, at = post.predict(x[:4]), x[:4]
    values = batch.log_marginal_likelihood(x, tables)
    assert post.batch_shape == (3,)
    for i in range(3):
        single = fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(noise[i], outputs=2), outputs=2)
        one = single.condition(x, tables[i]).predict(at)
        for name in ("mean", "variance", "observation_variance"):
            close(getattr(p, name)[i], getattr(one, name))
        close(p.log_prob(tables[:, :4])[i], one.log_prob(tables[i, :4]))
        close(p.joint_log_prob(tables[:, :4])[i], one.joint_log_prob(tables[i, :4]))
        close(p.covariance(observed=True)[i], one.covariance(observed=True))
        close(values[i], single.log_marginal_likelihood(x, tables[i]))
        close(post.leave_one_out().variance[i], single.condition(x, tables[i]).leave_one_out().variance)
    assert p.sample(5, observed=True, seed=0).shape == (5, 3, 4, 2)
    assert post.paths(5, seed=0)(at).shape == (5, 3, 4, 2)


def test_a_differentiable_posterior_keeps_gradients_to_the_noise_of_each_output() -> None:
    x, y = table(25)
    at = table(4, seed=1)[0]

    def answer(gp: fgp.GP, y: Tensor) -> Tensor:
        p = gp.condition(x, y, differentiable=True).predict(at)
        return (p.mean.sin() + p.observation_variance.log()).sum()

    gp = together()
    found = gradients(answer(gp, y), gp)
    each = [gradients(answer(one, y[:, j]), one) for j, one in enumerate([alone(0), alone(1)])]
    for name in ("mean.value.raw", "likelihood.noise_variance.raw"):
        close(found[name], beside([one[name] for one in each]))
    for name in ("kernel.variance.raw", "kernel.kernel.lengthscale.raw"):
        close(found[name], each[0][name] + each[1][name])
    at.requires_grad_()
    post = together().condition(x, y)
    (slope,) = torch.autograd.grad(post.predict(at).variance.sum() + post.paths(2, seed=0)(at).sum(), at)
    assert bool(slope.abs().max() > 0)


class Trend(torch.nn.Module):
    """A mean of a user's own, of both outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, -0.2], dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :1] * self.slopes


@pytest.mark.parametrize("name", ["likelihood.noise_variance.raw", "mean.value.raw", "kernel.kernel.lengthscale.raw"])
@pytest.mark.parametrize("output", [0, 1])
def test_a_differentiable_posterior_knows_that_parameters_of_an_output_have_changed(name: str, output: int) -> None:
    x, y = table()
    gp = together()
    post = gp.condition(x, y, differentiable=True)
    with torch.no_grad():
        dict(gp.named_parameters())[name].add_(0.3)
    for changed in (post, post.by_output[output]):
        with pytest.raises(DomainError, match="changed since; condition again"):
            changed.predict(x[:3])


@pytest.mark.parametrize("mean", [fgp.means.Zero, lambda: fgp.means.Linear(torch.ones(2)), Trend])
def test_means_of_every_kind(mean: Callable[[], torch.nn.Module]) -> None:
    x, y = table(30)
    gp = fgp.GP(kernel(), mean(), fgp.likelihoods.Gaussian(NOISE, outputs=2), outputs=2)
    p, value = gp.condition(x, y).predict(x[:4]), gp.log_marginal_likelihood(x, y)
    gradients(value, gp)
    total = 0.0
    for j in range(2):
        noise = fgp.likelihoods.Gaussian(float(NOISE[j]))
        own = mean()
        offset = own(x)[:, j].detach() if isinstance(own, Trend) else torch.zeros(30, dtype=F64)
        one = fgp.GP(kernel(), fgp.means.Zero() if isinstance(own, Trend) else own, noise)
        close(p.mean[:, j], one.condition(x, y[:, j] - offset).predict(x[:4]).mean + offset[:4])
        total = total + one.log_marginal_likelihood(x, y[:, j] - offset).detach()
    close(value.detach(), total)


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


@pytest.mark.parametrize("route", ["direct", "refined", "stored", "recomputed"])
def test_a_plan_prices_a_factor_of_each_output(route: str) -> None:
    n, outputs = 1500, 3
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


def test_outputs_are_solved_for_on_the_same_tiles() -> None:
    x, y = table(300)
    gp = together()
    post = gp.condition(x, y, plan=fgp.plan(gp, n=300, d=2, route="stored"))
    first, second = (part.solves.system.tiles for part in post.state.parts)
    assert first is second is not None


def test_one_factor_where_outputs_share_their_noise() -> None:
    x, y = table()
    gp = fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(0.5, shared=True), outputs=2)
    post = gp.condition(x, y)
    assert post.factor.lower.shape == (60, 60)
    assert post.by_output == ()
    assert post.predict(x[:3]).covariance().shape == (3, 3)
    assert gp.likelihood.noise_variance.value.shape == ()
    noise_free = fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(None, row_variance=torch.ones(60)), outputs=2)
    assert noise_free.condition(x, y).factor is not None, "known variances are of the rows, not of the outputs"


def test_a_number_is_where_the_noise_of_each_output_begins() -> None:
    gp = fgp.GP(kernel(), likelihood=fgp.likelihoods.Gaussian(0.3), outputs=3)
    assert torch.equal(gp.likelihood.noise_variance.value, torch.full((3,), 0.3, dtype=F64))
    gp.likelihood = fgp.likelihoods.Gaussian(0.4)
    assert gp.likelihood.noise_variance.value.shape == (3,), "also when it is set later"
    assert fgp.GP(kernel(), outputs=3).likelihood.outputs == 3
    given = fgp.likelihoods.Gaussian(0.3)
    gp.likelihood = given
    gp.likelihood.row_variance = torch.ones(4, dtype=F64)
    assert given.row_variance is None, "the argument is not changed"
    assert fgp.GP(kernel(), outputs=1).likelihood.noise_variance.value.shape == ()
    number = fgp.likelihoods.Gaussian(0.3, outputs=2)
    assert number.noise_variance.value.shape == (2,)


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


def test_the_density_of_each_output_has_its_own_noise() -> None:
    """Eqs. (M-28) and (M-29), outputs first."""
    likelihood = fgp.likelihoods.Gaussian(NOISE, outputs=2)
    generator = torch.Generator().manual_seed(0)
    y, f, variance = (torch.randn(2, 3, 5, generator=generator, dtype=F64) for _ in range(3))
    variance = variance.square()
    for j in range(2):
        one = fgp.likelihoods.Gaussian(float(NOISE[j]))
        close(likelihood.log_prob(y, f)[j], one.log_prob(y[j], f[j]))
        close(likelihood.expected_log_prob(y, f, variance)[j], one.expected_log_prob(y[j], f[j], variance[j]))
        close(likelihood.predictive(f, variance).variance[j], one.predictive(f[j], variance[j]).variance)


@pytest.mark.parametrize("case", ["few rows", "float32 factor", "conjugate gradients", "joined", "updated", "weighted"])
def test_a_file_keeps_the_noise_of_each_output(case: str, tmp_path: Any) -> None:
    x, y = table()
    at, y_at = table(7, seed=1)
    rows = {"row_weight": torch.linspace(0.5, 2.0, 60, dtype=F64)} if case == "weighted" else {}
    if case == "joined":
        x, y = torch.cat([x, x[:20]]), torch.cat([y, y[:20] + 0.5])
    post = together(**rows).condition(x, y, **ROUTES.get(case, {}))
    if case == "updated":
        post = post.append(at, y_at).drop([3])
    fgp.save(post, tmp_path / "model.safetensors")
    loaded = fgp.load(tmp_path / "model.safetensors")
    assert isinstance(loaded.state, OutputStates)
    p, found = post.predict(at), loaded.predict(at)
    for name in ("mean", "variance", "observation_variance"):
        if case == "updated":  # where the mean comes from L^-1 y until the weights are asked for
            close(getattr(found, name), getattr(p, name))
        else:
            assert torch.equal(getattr(found, name), getattr(p, name))
    more = loaded.append(at, y_at, **({"row_weight": torch.ones(7)} if rows else {}))
    wanted = post.append(at, y_at, **({"row_weight": torch.ones(7)} if rows else {}))
    close(more.predict(at).variance, wanted.predict(at).variance)
    close(loaded.log_marginal_likelihood(), post.log_marginal_likelihood())
    assert loaded.gp.likelihood.outputs == 2
    fgp.save(post.by_output[1], tmp_path / "one.safetensors")
    close(fgp.load(tmp_path / "one.safetensors").predict(at).variance, p.variance[:, 1])


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("outputs", None),
        ("outputs", 3),
        ("outputs", -1),
        ("outputs", 2.0),
        ("outputs", True),
        ("shared", True),
        ("shared", 1),
    ],
)
def test_a_file_that_lies_about_the_noise_is_refused(change: str, value: Any, tmp_path: Any) -> None:
    x, y = table(20)
    path = tmp_path / "model.safetensors"
    fgp.save(together().condition(x, y), path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    texts = header.pop("__metadata__")
    config = json.loads(texts["config"])
    config["likelihood"]["options"][change] = value
    del texts["sha256"]
    texts["config"] = json.dumps(config)
    texts["sha256"] = container._seal(texts, header)
    text = json.dumps({"__metadata__": texts, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    with pytest.raises(fgp.ModelFileError, match="is refused"):
        fgp.load(path)


def test_errors_of_independent_outputs_add_in_squares() -> None:
    x, y = table(20)
    reports = [part.report for part in together().condition(x, y).by_output]
    reports[0].standard_error, reports[1].standard_error = 3.0, 4.0
    assert joined_report(reports).standard_error == pytest.approx(5.0)
