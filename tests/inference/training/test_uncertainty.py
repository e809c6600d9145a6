"""Draws of hyperparameters: Laplace's approximation, M-381, NUTS, M-383, and what the mixture answers, M-382."""

import dataclasses
import math
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor
from torch.distributions import LogNormal, Normal

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import EventKind, NoDraws, of_kind
from flashgp.inference.data import Data
from flashgp.inference.exact.mixture import MixtureState, batch_of
from flashgp.inference.predict.leave_one_out import LeaveOneOut, mixed
from flashgp.inference.training.exact_fit import ExactFit
from flashgp.inference.training.initial import LargePrior
from flashgp.inference.training.nuts import NutsSettings, convergence, nuts
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.uncertainty import Laplace, Target, UncertaintySettings, begun
from flashgp.kernels.default import default_for

F64 = torch.float64


def table(n: int = 30, d: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=F64)
    return x, torch.sin(2.0 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=F64)


def prior(d: int = 2) -> fgp.GP:
    return fgp.GP(1.0 * fgp.kernels.Matern(1.5, torch.ones(d, dtype=F64)) + fgp.kernels.Linear(0.1))


def fitted(uncertainty: str = "laplace", *, draws: int = 15, seed: int = 0, n: int = 30) -> fgp.Fit:
    settings = FitSettings(uncertainty=UncertaintySettings(draws=draws))
    x, y = table(n)
    return fgp.fit(prior(), x, y, starts=1, uncertainty=uncertainty, settings=settings, seed=seed)


@pytest.fixture(scope="module")
def laplace() -> fgp.Fit:
    return fitted()


def state_of(fit: fgp.Fit) -> MixtureState:
    state = fit.posterior.state
    assert isinstance(state, MixtureState)
    return state


def with_priors() -> fgp.GP:
    def positive(value: float) -> fgp.Parameter:
        return fgp.Parameter(value, prior=LogNormal(torch.tensor(math.log(value), dtype=F64), 0.7))

    mean = fgp.means.Constant(fgp.Parameter(0.1, prior=Normal(torch.zeros((), dtype=F64), 1.0)))
    return fgp.GP(positive(1.2) * fgp.kernels.RBF(positive(0.8)), mean, fgp.likelihoods.Gaussian(positive(0.02)))


def target_of(gp: fgp.GP, x: Tensor, y: Tensor) -> Target:
    return Target(LogJoint(ExactFit(gp, Data.of(gp, x, y), FitOptions(priors="given")).problem))


def test_the_density_and_its_curvature_are_those_of_the_log_joint() -> None:
    """M-381, with Jacobians of user's priors; second derivatives by autograd."""
    gp, (x, y) = with_priors(), table()
    target = target_of(gp, x, y)
    theta = target.parameters.values()
    names = [slot.name for slot in target.parameters.slots]

    def log_joint(flat: Tensor) -> Tensor:
        return gp.log_joint(x, y, theta=dict(zip(names, flat.unbind(), strict=True)), jacobian=True)

    flat = torch.from_numpy(theta)
    value, gradient = target(theta)
    assert abs(value - float(log_joint(flat))) < 1e-8
    assert numpy.allclose(gradient, torch.func.grad(log_joint)(flat).numpy(), atol=1e-7)
    wanted = -torch.autograd.functional.hessian(log_joint, flat).numpy()
    found = Laplace.at(target, theta, UncertaintySettings(step=1e-5)).curvature
    assert numpy.allclose(found, wanted, atol=1e-3 * numpy.abs(wanted).max())


def test_draws_of_laplace_have_its_moments() -> None:
    gp, (x, y) = with_priors(), table()
    found = Laplace.at(target_of(gp, x, y), target_of(gp, x, y).parameters.values(), UncertaintySettings())
    draws, log_density = found.draws(4096, 0)
    covariance = found.root @ found.root.T
    assert numpy.abs((draws.mean(0) - found.centre) / numpy.sqrt(numpy.diag(covariance))).max() < 0.01
    assert numpy.allclose(numpy.cov(draws.T), covariance, atol=0.03 * numpy.abs(covariance).max())
    assert abs(log_density.mean() + 0.5 * len(found.centre)) < 0.1


def test_one_draw_at_the_optimum_is_the_plain_fit() -> None:
    plain, one = fgp.fit(prior(), *table(), starts=1, priors="sparse"), fitted(draws=0)
    at = table(5, seed=3)[0]
    p, q = plain.posterior.predict(at), one.posterior.predict(at)
    y = torch.linspace(-1.0, 1.0, 5, dtype=F64)
    left, again = plain.posterior.leave_one_out(), one.posterior.leave_one_out()
    for a, b in (
        (p.mean, q.mean), (p.variance, q.variance), (p.observation_variance, q.observation_variance),
        (p.quantile(0.9), q.quantile(0.9)), (p.log_prob(y), q.log_prob(y)), (p.covariance(), q.covariance()),
        (p.joint_log_prob(y), q.joint_log_prob(y)), (left.mean, again.mean), (left.variance, again.variance),
        (left.log_prob, again.log_prob), (plain.posterior.representer_weights, one.posterior.representer_weights),
    ):  # fmt: skip
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-9)


def test_answers_are_those_of_the_draws_averaged(laplace: fgp.Fit) -> None:
    """M-380 and M-382, each draw conditioned alone."""
    state, (x, y) = state_of(laplace), table()
    at, wanted = table(4, seed=3)
    named = dict(state.each.prior.named_parameters())
    each = []
    for k in range(len(state.log_weights)):
        alone = batch_of(laplace.gp, {name: value.detach()[k] for name, value in named.items()})
        each.append(alone.condition(x, y))
    p = laplace.posterior.predict(at)
    predicted = [one.predict(at) for one in each]
    mean = torch.stack([one.mean for one in predicted]).mean(0)
    assert torch.allclose(p.mean, mean, atol=1e-8)
    square = torch.stack([one.variance + one.mean.square() for one in predicted]).mean(0)
    assert torch.allclose(p.variance, square - mean.square(), atol=1e-8)
    joint = torch.stack([one.covariance() + torch.outer(one.mean - mean, one.mean - mean) for one in predicted]).mean(0)
    assert torch.allclose(p.covariance(), joint, atol=1e-8)
    for density, of in ((p.log_prob(wanted), "log_prob"), (p.joint_log_prob(wanted), "joint_log_prob")):
        values = torch.stack([getattr(one, of)(wanted) for one in predicted])
        assert torch.allclose(density, values.logsumexp(0) - math.log(len(each)), atol=1e-7)
    left = torch.stack([one.leave_one_out().log_prob for one in each])
    assert torch.allclose(laplace.posterior.leave_one_out().log_prob, math.log(len(each)) - (-left).logsumexp(0))
    assert torch.equal(laplace.posterior.gp.kernel.theta()[0], laplace.gp.kernel.theta()[0].detach())


def of_outputs(*, shared: bool, missing: bool = False) -> tuple[fgp.Fit, Tensor, Tensor]:
    x, first = table(24)
    y = torch.stack([first, x[:, 1] + 0.3 * torch.randn(24, generator=torch.Generator().manual_seed(1))], dim=1)
    if missing:
        y[2, 0] = y[5, 1] = math.nan
    noise = fgp.likelihoods.Gaussian(0.1, shared=shared)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(1.5, torch.ones(2, dtype=F64)), likelihood=noise, outputs=2)
    settings = FitSettings(uncertainty=UncertaintySettings(draws=7))
    return fgp.fit(gp, x, y, starts=1, uncertainty="laplace", settings=settings), x, y


@pytest.mark.parametrize(("shared", "missing"), [(True, False), (False, False), (False, True)])
def test_outputs_average_over_draws_that_they_share(shared: bool, missing: bool, tmp_path: Path) -> None:
    """M-380, M-382 (of rows with all their outputs) and M-424, each draw conditioned alone."""
    fit, x, y = of_outputs(shared=shared, missing=missing)
    post, (at, first) = fit.posterior, table(4, seed=3)
    wanted, log_k = torch.stack([first, first], dim=1), math.log(8)
    named = dict(state_of(fit).each.prior.named_parameters())
    alone = [batch_of(fit.gp, {name: value.detach()[k] for name, value in named.items()}) for k in range(8)]
    each = [gp.condition(x, y) for gp in alone]
    p, predicted = post.predict(at), [one.predict(at) for one in each]
    mean = torch.stack([one.mean for one in predicted]).mean(0)
    assert torch.allclose(p.mean, mean, atol=1e-8)
    square = torch.stack([one.variance + one.mean.square() for one in predicted]).mean(0)
    assert torch.allclose(p.variance, square - mean.square(), atol=1e-8)
    assert torch.allclose(p.covariance().diagonal(dim1=-2, dim2=-1), p.variance.mT, atol=1e-8)
    for of in ("log_prob", "joint_log_prob"):
        values = torch.stack([getattr(one, of)(wanted) for one in predicted])
        assert torch.allclose(getattr(p, of)(wanted), values.logsumexp(0) - log_k, atol=1e-7)
    low, high = p.interval(0.9)
    held = p.distribution.cdf(high.mT) - p.distribution.cdf(low.mT)
    assert torch.allclose(held, torch.full_like(held, 0.9), atol=1e-9)
    left = torch.stack([one.leave_one_out().log_prob for one in each])
    weights = torch.softmax(-left.nansum(-1), 0)
    found = post.leave_one_out().log_prob
    assert torch.allclose(found, (weights[..., None] * left.exp()).sum(0).log(), atol=1e-7, equal_nan=True)
    drawn = p.sample(4000, seed=1)
    assert float(((drawn.mean(0) - p.mean) / p.std).abs().max()) < 4.0 / len(drawn) ** 0.5
    assert float((drawn.var(0) / p.variance - 1.0).abs().max()) < 15.0 / len(drawn) ** 0.5
    longer = post.append(at, wanted)
    density = torch.stack([one.joint_log_prob(wanted) for one in predicted])
    assert torch.allclose(longer.state.log_weights, torch.log_softmax(density, 0), atol=1e-7)
    assert torch.allclose(longer.drop(range(24, 28)).predict(at).mean, p.mean, atol=1e-7)
    assert [torch.equal(one.predict(at).mean, p.mean[:, j]) for j, one in enumerate(post.by_output)] == [True] * (
        0 if shared else 2
    )
    assert "Not judged" not in str(fit.verdict)
    if missing:
        return
    functions = post.paths(400, features=512, seed=2)(at)
    assert functions.shape == (400, 4, 2)
    assert float(((functions.mean(0) - p.mean) / p.std).abs().max()) < 4.0 / 20.0
    fgp.save(fit, tmp_path / "model.safetensors")
    again = fgp.load(tmp_path / "model.safetensors")
    assert torch.equal(again.predict(at).quantile(0.1), p.quantile(0.1))
    assert torch.equal(again.leave_one_out().log_prob, found)


@pytest.mark.parametrize("outputs", [None, 2])
def test_fantasies_of_a_mixture_are_those_of_rows_that_join(laplace: fgp.Fit, outputs: int | None) -> None:
    """M-114 of each draw, weighed by M-424."""
    post = (laplace if outputs is None else of_outputs(shared=False)[0]).posterior
    new, at = table(4, seed=7)[0].reshape(2, 2, 2), table(5, seed=3)[0]
    found = post.fantasize(new, samples=3, seed=1)
    assert torch.equal(found.y, post.fantasize(new, samples=3, seed=1).y)
    p = found.predict(at)
    given = post.fantasize(new, found.y).predict(at)
    for s, b in ((0, 0), (1, 1), (2, 0)):
        wanted = post.append(new[b], found.y[s, b]).predict(at)
        for of in ("mean", "variance", "observation_variance"):
            assert torch.allclose(getattr(p, of)[s, b], getattr(wanted, of), atol=1e-7)
            assert torch.allclose(getattr(given, of)[s, b], getattr(wanted, of), atol=1e-7)


def test_targets_of_fantasies_are_drawn_from_the_mixture(laplace: fgp.Fit) -> None:
    post, new = laplace.posterior, table(3, seed=7)[0]
    y, p = post.fantasize(new, samples=20_000, seed=3).y, post.predict(new)
    assert float(((y.mean(0) - p.mean) / p.observation_std).abs().max()) < 4.5 / 20_000**0.5
    spread = p.covariance(observed=True)
    assert float((y.T.cov() - spread).abs().max() / spread.diagonal().max()) < 0.05


def test_densities_of_many_observations_are_of_each(laplace: fgp.Fit) -> None:
    """As many as there are draws, with which they are not to be confused."""
    p, draws = laplace.posterior.predict(table(4, seed=3)[0]), len(state_of(laplace).log_weights)
    y = torch.linspace(-1.0, 1.0, 4 * draws, dtype=F64).reshape(draws, 4)
    assert torch.equal(p.log_prob(y), torch.stack([p.log_prob(row) for row in y]))


def test_intervals_hold_their_level(laplace: fgp.Fit) -> None:
    p = laplace.posterior.predict(table(6, seed=4)[0])
    low, high = p.interval(0.9)
    held = p.distribution.cdf(high) - p.distribution.cdf(low)
    assert torch.allclose(held, torch.full_like(held, 0.9), atol=1e-9)


def test_samples_and_paths_have_the_moments(laplace: fgp.Fit) -> None:
    p = laplace.posterior.predict(at := table(3, seed=5)[0])
    for drawn in (p.sample(4000, seed=1), laplace.posterior.paths(400, features=512, seed=2)(at)):
        assert drawn.shape[1:] == (3,)
        assert float(((drawn.mean(0) - p.mean) / p.std).abs().max()) < 4.0 / len(drawn) ** 0.5
        assert float((drawn.var(0) / p.variance - 1.0).abs().max()) < 15.0 / len(drawn) ** 0.5
    observed = p.sample(4000, observed=True, seed=3)
    assert float((observed.var(0) / p.observation_variance - 1.0).abs().max()) < 0.2


def test_the_same_seed_gives_the_same_draws(laplace: fgp.Fit) -> None:
    at = table(4, seed=3)[0]
    assert torch.equal(fitted().posterior.predict(at).mean, laplace.posterior.predict(at).mean)
    assert not torch.equal(fitted(seed=1).posterior.predict(at).mean, laplace.posterior.predict(at).mean)


def test_a_file_gives_it_back_to_the_bit(laplace: fgp.Fit, tmp_path: Path) -> None:
    fgp.save(laplace, tmp_path / "model.safetensors")
    again, at = fgp.load(tmp_path / "model.safetensors"), table(40, seed=3)[0]
    p, q = laplace.posterior.predict(at), again.predict(at)
    assert torch.equal(p.mean, q.mean)
    assert torch.equal(p.quantile(0.1), q.quantile(0.1))
    assert torch.equal(laplace.posterior.leave_one_out().log_prob, again.leave_one_out().log_prob)
    assert of_kind(again.report.events, EventKind.HYPERPARAMETERS_DRAWN)


def test_repeated_rows_are_joined_as_without_draws() -> None:
    x, y = table(20)
    x, y = torch.cat([x, x[:5]]), torch.cat([y, y[:5] + 0.1])
    settings = FitSettings(uncertainty=UncertaintySettings(draws=0))
    plain = fgp.fit(prior(), x, y, starts=1, priors="sparse").posterior
    drawn = fgp.fit(prior(), x, y, starts=1, uncertainty="laplace", settings=settings).posterior
    assert torch.allclose(plain.leave_one_out().log_prob, drawn.leave_one_out().log_prob, atol=1e-7)
    assert torch.allclose(plain.predict(x).variance, drawn.predict(x).variance, atol=1e-9)


def test_rows_join_and_leave_a_mixture(laplace: fgp.Fit, tmp_path: Path) -> None:
    """M-424: each draw conditioned alone on all rows, weighed by how well it predicted the new ones."""
    (x, y), (more, targets) = table(), table(4, seed=9)
    post, at = laplace.posterior, table(5, seed=3)[0]
    longer = post.append(more, targets)
    named = dict(state_of(laplace).each.prior.named_parameters())
    alone = [
        batch_of(laplace.gp, {name: value.detach()[k] for name, value in named.items()})
        for k in range(len(state_of(laplace).log_weights))
    ]
    density = torch.stack([one.condition(x, y).predict(more).joint_log_prob(targets) for one in alone])
    weights = torch.softmax(density, 0)
    means = torch.stack(
        [one.condition(torch.cat([x, more]), torch.cat([y, targets])).predict(at).mean for one in alone]
    )
    assert torch.allclose(longer.predict(at).mean, (weights[:, None] * means).sum(0), atol=1e-7)
    assert torch.allclose(longer.state.log_weights.exp(), weights, atol=1e-7)
    assert longer.count == 34
    assert of_kind(longer.report.events, EventKind.HYPERPARAMETERS_DRAWN)
    one_by_one = post.append(more[:1], targets[:1]).append(more[1:], targets[1:])
    again = longer.drop(range(30, 34))
    for found, wanted in ((one_by_one, longer), (again, post), (post.slide(more, targets), longer.drop(range(4)))):
        assert torch.allclose(found.predict(at).mean, wanted.predict(at).mean, atol=1e-7)
        assert torch.allclose(found.state.log_weights, wanted.state.log_weights, atol=1e-6)
    assert post.append(more[:0], targets[:0]).count == 30
    stream, before = fgp.Stream(post), post.predict(more)
    step = stream.step(more, targets)  # with the noise of each draw
    assert torch.equal(step.variance, before.observation_variance)
    assert stream.metrics.nll == pytest.approx(-float(before.log_prob(targets).mean()))
    fgp.save(longer, tmp_path / "longer.safetensors")
    assert torch.equal(fgp.load(tmp_path / "longer.safetensors").predict(x).mean, longer.predict(x).mean)
    with pytest.raises(DomainError, match="`refine` needs one set of hyperparameters, got a mixture of 16"):
        post.refine()
    assert post.can("append") is post.can("paths") is None
    with pytest.raises(ShapeError, match=r"must be of shape \(n_test, d\) for a mixture"):
        post.predict(x[None])


def test_rows_with_variances_of_their_own_join_a_mixture() -> None:
    (x, y), (more, targets) = table(20), table(2, seed=9)
    known = torch.linspace(0.01, 0.2, 22, dtype=F64)
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(0.01, row_variance=known[:20]))
    settings = FitSettings(uncertainty=UncertaintySettings(draws=3))
    post = fgp.fit(gp, x, y, starts=1, uncertainty="laplace", settings=settings).posterior
    longer = post.append(more, targets, row_variance=known[20:])
    assert torch.allclose(longer.state.each.prior.likelihood.row_variance, known)
    assert torch.allclose(longer.drop([20, 21]).predict(x).mean, post.predict(x).mean, atol=1e-7)


def test_what_has_no_draws_is_refused_or_left_as_it_is() -> None:
    x, y = table(20)
    counts = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Poisson())
    with pytest.raises(DomainError, match="where the likelihood is not Gaussian"):
        fgp.fit(counts, x, y.round().abs(), uncertainty="nuts")
    with pytest.raises(DomainError, match="inference is approximate"):
        fgp.fit(prior(), x, y, uncertainty="laplace", approximation="sparse")
    with pytest.raises(DomainError, match="`uncertainty` must be None or one of 'laplace', 'nuts', 'auto', got 'mc'"):
        fgp.fit(prior(), x, y, uncertainty="mc")
    batch = fgp.GP(fgp.kernels.RBF())
    with pytest.raises(DomainError, match="where there are several tables, or a batch of models"):
        fgp.fit(batch, x.expand(2, -1, -1), torch.stack([y, -y]), starts=1, uncertainty="laplace")
    fit = fgp.fit(batch, x.expand(2, -1, -1), torch.stack([y, -y]), starts=1, uncertainty="auto")
    (event,) = of_kind(fit.report.events, EventKind.HYPERPARAMETERS_FIXED)
    assert event.fields["reason"] == NoDraws.TABLES


def test_auto_leaves_what_would_take_longer_than_the_fit() -> None:
    settings = FitSettings(uncertainty=UncertaintySettings(share=0.0))
    fit = fgp.fit(prior(), *table(), starts=1, uncertainty="auto", settings=settings)
    (event,) = of_kind(fit.report.events, EventKind.HYPERPARAMETERS_FIXED)
    assert event.fields["reason"] == NoDraws.SECONDS
    plain = fgp.fit(prior(), *table(), starts=1, priors="sparse")
    assert torch.equal(fit.posterior.predict(table()[0]).mean, plain.posterior.predict(table()[0]).mean)


def test_a_time_limit_leaves_draws_out() -> None:
    settings = FitSettings(uncertainty=UncertaintySettings(chains=10**6))
    fit = fgp.fit(prior(), *table(), starts=1, uncertainty="nuts", settings=settings, time_limit=60.0)
    (event,) = of_kind(fit.report.events, EventKind.HYPERPARAMETERS_FIXED)
    assert event.fields["reason"] == NoDraws.TIME


def test_nuts_samples_a_normal_density() -> None:
    """M-383: means and covariances within four standard errors, by the effective number of draws, M-384."""
    covariance = numpy.array([[1.0, 0.8, 0.0], [0.8, 1.5, -0.3], [0.0, -0.3, 0.4]])
    precision, mean = numpy.linalg.inv(covariance), numpy.array([1.0, -2.0, 0.5])

    def density(z: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        slope = -precision @ (z - mean)
        return 0.5 * float(slope @ (z - mean)), slope

    settings = NutsSettings(warm_up=100)
    chains = [nuts(density, numpy.zeros(3), 500, numpy.random.default_rng(k), settings) for k in range(4)]
    draws = numpy.array([chain.draws for chain in chains])
    r_hat, effective = convergence(draws)
    assert r_hat.max() < 1.02
    assert effective.min() > 400
    every = draws.reshape(-1, 3)
    assert (numpy.abs(every.mean(0) - mean) < 4.0 * numpy.sqrt(numpy.diag(covariance) / effective)).all()
    products = (draws - mean)[..., :, None] * (draws - mean)[..., None, :]
    _, of_products = convergence(products.reshape(4, 500, 9))
    error = products.reshape(-1, 9).std(0) / numpy.sqrt(of_products)
    assert (numpy.abs(products.reshape(-1, 9).mean(0) - covariance.ravel()) < 4.0 * error).all()
    assert not any(chain.divergences for chain in chains)


def test_convergence_sees_chains_apart_and_slow_ones() -> None:
    generator = numpy.random.default_rng(0)
    noise = generator.standard_normal((4, 400, 2))
    apart = noise + numpy.array([0.0, 0.0, 3.0, 3.0])[:, None, None]
    assert convergence(apart)[0].min() > 1.5
    slow = numpy.zeros_like(noise)
    for t in range(1, 400):
        slow[:, t] = 0.9 * slow[:, t - 1] + noise[:, t]
    assert numpy.abs(convergence(noise)[1] / 1600 - 1.0).max() < 0.25
    assert numpy.abs(convergence(slow)[1] / (1600 / 19) - 1.0).max() < 0.6


@pytest.mark.filterwarnings("ignore:Predictions average")
def test_samples_by_nuts_are_near_laplace() -> None:
    settings = UncertaintySettings(chains=2, transitions=15, nuts=dataclasses.replace(NutsSettings(), warm_up=15))
    x, y = table()
    fit = fgp.fit(with_priors(), x, y, starts=1, uncertainty="nuts", settings=FitSettings(uncertainty=settings))
    (event,) = of_kind(fit.report.events, EventKind.HYPERPARAMETERS_SAMPLED)
    assert event.fields["chains"] == 2
    other = fgp.fit(with_priors(), x, y, starts=1, uncertainty="laplace").posterior.predict(x)
    found = fit.posterior.predict(x)
    assert float((found.mean - other.mean).abs().max()) < 0.1
    assert float((found.std / other.std).log().abs().max()) < 0.5


@pytest.mark.parametrize("slope", [0.0, 2.0])
def test_chains_begin_where_the_optimum_is_on_a_bound(slope: float) -> None:
    x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64)[:, None]
    few = UncertaintySettings(chains=1, transitions=4, nuts=NutsSettings(warm_up=4, max_depth=3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fgp.fit(
            fgp.GP(fgp.kernels.RBF()), x, slope * x[:, 0] + 1.0, uncertainty="nuts", starts=1,
            settings=FitSettings(uncertainty=few),
        )  # fmt: skip
    assert bool(fit.posterior.predict(x).mean.isfinite().all())


def test_a_chain_begins_at_the_centre_where_all_around_has_no_density() -> None:
    asked = []

    def density(z: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        asked.append(z)
        return (0.0 if not z.any() else -math.inf), numpy.zeros_like(z)

    assert not begun(density, numpy.ones(2)).any()
    assert len(asked) < 30
    assert begun(lambda z: (-1.0, z), numpy.ones(2)).tolist() == [1.0, 1.0]


def test_rows_whose_weights_leave_few_draws_take_equal_ones() -> None:
    mean = torch.zeros(32, 2, dtype=torch.float64)
    log_prob = torch.zeros(32, 2, dtype=torch.float64)
    log_prob[0, 1] = -40.0  # of the others the first draw says nothing but that this row is impossible
    log_prob[0, 0] = -0.5
    equal = torch.full((32,), -math.log(32.0), dtype=torch.float64)
    found = mixed(LeaveOneOut(mean, torch.ones_like(mean), log_prob), equal)
    assert found.distribution is not None
    weights = found.distribution.weights
    torch.testing.assert_close(weights[:, 1], equal.exp())
    assert float(weights[0, 0]) > float(weights[1, 0])


def test_a_model_whose_parameters_stay_has_no_draws() -> None:
    gp = fgp.GP(fgp.kernels.RBF()).requires_grad_(False)
    x = torch.linspace(0.0, 6.0, 20, dtype=torch.float64)[:, None]
    with pytest.raises(fgp.DomainError, match="no parameter is fitted"):
        fgp.fit(gp, x, x[:, 0].sin(), uncertainty="laplace")


def test_the_variance_of_a_sparse_model_has_room_for_trends() -> None:
    """M-423: the density of its logarithm, beside torch's; of a term of a sum as before."""
    x, y = table()
    options = FitOptions(priors="sparse")
    for kernel, large in (
        (2.0 * fgp.kernels.RBF(torch.ones(2, dtype=F64)), True),
        (2.0 * fgp.kernels.RBF(torch.ones(2, dtype=F64)) + 1.0 * fgp.kernels.Periodic(1.0, active_dims=0), False),
    ):
        gp = fgp.GP(kernel)
        engine = ExactFit(gp, Data.of(gp, x, y), options)
        objective = LogJoint(engine.problem)
        theta = objective.parameters.values()
        (slot, *_) = [one for one in objective.parameters.slots if one.name.endswith("variance.raw")]
        assert isinstance(slot.weak_prior, LargePrior) is large
        if not large:
            continue
        (at,) = range(*slot.entries.indices(len(theta)))
        v = float(y.var(correction=0))
        density = torch.distributions.Gamma(torch.tensor(2.0, dtype=F64), torch.tensor(0.15, dtype=F64))
        values = []
        for log_s in (0.0, 1.5):
            moved = theta.copy()
            moved[at] = log_s
            values.append(objective.priors.value_and_gradient(moved)[0])
        s = torch.tensor([0.0, 1.5], dtype=F64).exp() / v
        wanted = density.log_prob(s) + s.log()
        assert values[1] - values[0] == pytest.approx(float(wanted[1] - wanted[0]), rel=1e-9)
        step = 1e-6
        up, down = theta.copy(), theta.copy()
        up[at] += step
        down[at] -= step
        slope = (objective.priors.value_and_gradient(up)[0] - objective.priors.value_and_gradient(down)[0]) / (2 * step)
        assert objective.priors.value_and_gradient(theta)[1][at] == pytest.approx(slope, rel=1e-6)
    assert fgp.fit(fgp.GP(2.0 * fgp.kernels.RBF()), x, y, starts=1, priors="sparse").priors["kernel.variance"]


def test_few_rows_with_draws_have_a_smooth_default() -> None:
    x, y = table(20)
    rows, targets = x.numpy(), y.numpy()
    smooth = fgp.GPRegressor(uncertainty="laplace", starts=1, max_iterations=5).fit(rows, targets)
    assert isinstance(smooth.posterior_.state, MixtureState)
    assert "Linear" not in repr(smooth.kernel_)
    assert "Linear" in repr(fgp.GPRegressor(starts=1, max_iterations=5).fit(rows, targets).kernel_)
    mean, std = smooth.predict(rows, return_std=True)
    assert mean.shape == std.shape == (20,)
    weighted = fgp.GPRegressor(uncertainty="laplace", starts=1, max_iterations=5)
    counts = numpy.arange(20) % 3 + 1
    repeated = weighted.fit(rows, targets, sample_weight=counts)
    assert bool(numpy.isfinite(repeated.predict(rows)).all())
    assert isinstance(repeated.posterior_.state, MixtureState)
    assert default_for(None, 501, 2, "laplace").linear
    assert default_for(None, 20, 5, "laplace").linear
    assert not default_for(None, 25, 5, "auto").linear


def test_auto_takes_the_same_way_again() -> None:
    """It counts gradients, and no clock."""
    settings = FitSettings(uncertainty=UncertaintySettings(draws=15))
    kinds = [
        {
            event.kind
            for event in fgp.fit(prior(), *table(), starts=1, uncertainty="auto", settings=settings).report.events
        }
        for _ in range(2)
    ]
    assert kinds[0] == kinds[1]
