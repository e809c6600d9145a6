"""Sites that passes over rows make anew from q(u): bound, gradient, fits, rows that are read, (M-273) and (M-274)."""

import dataclasses
import math
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import ConvergenceError, DomainError
from flashgp.foundations.events import EventKind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.streamed.bound import StreamedBound
from flashgp.inference.streamed.objective import StreamedLogJoint, first_values
from flashgp.inference.streamed.rows import inputs_of
from flashgp.inference.streamed.steps import InducingValues, Pass, settled_pass
from flashgp.inference.training.history import Stage
from flashgp.inference.training.objective import Problem
from flashgp.likelihoods import Bernoulli, Gaussian, Likelihood, Poisson
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.processes.group import ALONE
from flashgp.sources.source import Held
from flashgp.sources.survey import Block, surveyed
from inference.full_scale.test_factor import differences
from inference.iterated import Iterated, labels, model, table
from inference.training.test_fit_by_sites import Scattered

F64 = torch.float64


def objective(likelihood: Likelihood, x: Tensor, y: Tensor, points: Tensor, times: int = 1) -> StreamedLogJoint:
    settings = SiteSettings(search=1e-12)
    prior = model(likelihood)
    sites = IteratedSites.of(prior, x, y, settings)
    problem = Problem(prior, x, y, DirectSettings(TorchTiles()), sites=sites)
    return StreamedLogJoint(problem, surveyed(Held(x, y), None, len(x), 0), points, times * len(x))


def test_a_pass_has_the_bound_at_a_q_of_inducing_values() -> None:
    """(M-274), against sums over rows of what it is made of, (M-273)."""
    x, y, _ = table(50)
    prior = model(Poisson())
    with torch.no_grad():
        bound = StreamedBound(prior, prior.kernel.rows(x[:6]), len(x), Workspace())

        def sums_at(values: InducingValues) -> Any:
            return bound.sums(inputs_of(prior, [Block(x[:21], y[:21]), Block(x[21:], y[21:])], x.device, values=values))

        prior_of_values = InducingValues.of_prior(bound.basis, bound.floor)
        q = prior_of_values.towards(sums_at(prior_of_values), 0.3)
        found = sums_at(q).lower_at(q.sums)
        sites, at, _ = q.sites(prior, x, y, prior.kernel.rows(x))
        a = bound.basis(prior.kernel.rows(x))
        left = prior.kernel(x).diagonal() - a.square().sum(-1)
        own = at.variance - (a @ q.sums.covariance * a).sum(-1)
        torch.testing.assert_close(own, left * sites.variance / (left + sites.variance), rtol=1e-7, atol=1e-13)
        beside_points = 0.5 * (own / left - 1.0 - (own / left).log()).sum()
        normal = torch.distributions.MultivariateNormal
        of_values = normal(q.sums.weights[:, 0], q.sums.covariance)
        divergence = torch.distributions.kl_divergence(
            of_values, normal(torch.zeros(6, dtype=F64), torch.eye(6, dtype=F64))
        )
        expected = prior.likelihood.expected_log_prob(y, at.mean, at.variance).sum()
    assert found == pytest.approx(float(expected - beside_points - divergence), rel=1e-11)
    assert q.divergence(prior_of_values) == pytest.approx(float(divergence), rel=1e-10)


def test_passes_begin_where_the_sample_ends_if_most_rows_are_not_in_it() -> None:
    """(M-360): nearer by orders of magnitude, and to the same q(u)."""
    x, y, _ = table(3000)
    prior, points, settings = model(Poisson()), x[:6], SiteSettings(search=1e-6)
    bound = StreamedBound(prior, prior.kernel.rows(points), len(x), Workspace())

    def settled(start: InducingValues) -> Pass:
        def sums_at(values: InducingValues) -> Any:
            return bound.sums(inputs_of(prior, [Block(x, y)], x.device, values=values))

        return settled_pass(prior.likelihood, start, sums_at, -math.inf, 1e-6, settings, ALONE)

    with torch.no_grad():
        of_prior = InducingValues.of_prior(bound.basis, bound.floor)
        begun, whole = (
            first_values(bound, surveyed(Held(x, y), None, k, 0), points, settings, NO_DEADLINE) for k in (600, 2000)
        )
        one, other = settled(of_prior), settled(begun)
    assert begun.divergence(one.before) < 0.01 * of_prior.divergence(one.before)
    assert float(begun.sums.gram.trace()) == pytest.approx(float(one.sums.gram.trace()), rel=0.2)  # of all rows
    assert other.before.divergence(one.before) < 1e-4
    assert other.steps < one.steps
    assert whole.sums.count == 0
    late = first_values(bound, surveyed(Held(x, y), None, 600, 0), points, settings, Deadline.after(0.0))
    assert late.sums.count == 0


def test_more_points_raise_the_bound_to_the_exact_one() -> None:
    x, y, _ = table(50)
    exact = float(model(Poisson()).condition(x, y).log_marginal_likelihood())
    bounds = [
        float(model(Poisson()).condition(x, y, approximation="sparse", inducing=x[:m]).log_marginal_likelihood())
        for m in (5, 15, 30, 50)
    ]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(exact, abs=1e-3)
    assert bounds[-2] < exact - 0.05


def test_the_gradient_is_that_of_the_bound() -> None:
    """(M-271) by passes, with parameters of the likelihood, and of rows that stand for others."""
    x, y, _ = table(50)
    of = objective(Scattered(), x, y, x[:9], times=3)
    theta = of.parameters.values()
    found, wanted = of(theta).gradient, differences(of, theta)
    assert numpy.abs(found - wanted).max() <= 1e-5 * (1.0 + numpy.abs(wanted).max())


def test_where_the_last_evaluation_was_does_not_matter() -> None:
    x, y, _ = table(50)
    of = objective(Poisson(), x, y, x[:9])
    here = of.parameters.values()
    first = of(here)
    for far in (here + 3.0, here - 3.0):
        of(far)
        again = of(here)
        assert again.value == pytest.approx(first.value, abs=1e-8)
        numpy.testing.assert_allclose(again.gradient, first.gradient, atol=1e-6)


def test_a_gaussian_likelihood_that_iterates_is_regression() -> None:
    x, y, at = table(50)
    for options in ({"approximation": "sparse", "inducing": x[:8]}, {"inducing": x[:8]}):
        rows = (x, y) if "approximation" in options else ([(x[:20], y[:20]), (x[20:], y[20:])],)
        known, found = (model(kind(0.3)).condition(*rows, **options) for kind in (Gaussian, Iterated))
        torch.testing.assert_close(found.predict(at).mean, known.predict(at).mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.predict(at).variance, known.predict(at).variance, rtol=1e-12, atol=1e-12)
        assert float(found.log_marginal_likelihood()) == pytest.approx(
            float(known.log_marginal_likelihood()), rel=1e-12
        )


def test_rows_that_are_read_are_rows_that_are_held() -> None:
    """In any batches and any order; nothing of a row is kept."""
    x, y = labels(300)
    gp = fgp.GP(
        4.0 * fgp.kernels.Matern(nu=1.5, lengthscale=0.2), fgp.means.Zero(), Bernoulli("logit", method="variational")
    )
    at = labels(310)[0][:5]
    held = gp.condition(x, y, approximation="sparse", inducing=x[:40])
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    batches = [(x[part], y[part]) for part in order.split(70)]
    read = gp.condition(batches, inducing=x[:40])
    torch.testing.assert_close(read.predict(at).mean, held.predict(at).mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(read.predict(at).variance, held.predict(at).variance, rtol=1e-9, atol=1e-9)
    (event,) = (event for event in read.report.events if event.kind is EventKind.SITES)
    assert event.fields["steps"] <= 15
    with pytest.raises(
        DomainError, match=r"`bound` of inducing points needs sites that are observations, .* take post"
    ):
        read.bound  # noqa: B018 - its upper one is of targets of sites
    assert dataclasses.asdict(held.report)["events"]


def test_rows_that_are_read_bring_weights() -> None:
    """A weight multiplies log p of its row: as one that the likelihood of held rows knows, and as rows repeated."""
    x, y, at = table(60)
    weight = (torch.arange(60) % 3).double()
    read = [(x[i : i + 25], y[i : i + 25], weight[i : i + 25]) for i in range(0, 60, 25)]
    options: dict[str, Any] = {"priors": "given", "starts": 1, "max_iterations": 3, "inducing": x}
    found = fgp.fit(model(Poisson()), read, **options)
    known = fgp.fit(model(Poisson(row_weight=weight)), x, y, approximation="sparse", **options)
    again = torch.arange(60).repeat_interleave(weight.long())
    repeated = found.gp.condition(x[again], y[again], approximation="sparse", inducing=x)
    new = found.posterior.append([(at[:2], y[:2], weight[1:3])])
    held = known.posterior.append(at[:2], y[:2], row_weight=weight[1:3])
    for one, other in ((found.posterior, known.posterior), (new, held), (found.posterior, repeated)):
        torch.testing.assert_close(one.predict(at).mean, other.predict(at).mean, rtol=0.0, atol=2e-4)
    evidence = [float(one.log_marginal_likelihood()) for one in (found.posterior, known.posterior, repeated)]
    assert evidence == pytest.approx(evidence[:1] * 3, abs=1e-3)
    assert found.gp.likelihood.rows_alike  # rows that were read are not held, nor their weights


def test_weights_of_rows_that_are_read_are_refused_where_they_say_nothing() -> None:
    x, y, _ = table()
    zeros, weight = torch.zeros_like(y), torch.ones_like(y)
    for rows, gp, message in (
        ([(x, y, zeros)], model(Poisson()), "`row_weight` must be positive somewhere, got 40 zeros"),
        ([(x, y, -weight)], model(Poisson()), "`row_weight of batch 0` must be 0 or more"),
        ([(x, y, weight), (x, y)], model(Poisson()), "`row_weight of batch 1` must be given .* pass ones for none"),
        ([(x, y)], model(Poisson(row_weight=weight)), r"give them with the rows, as \(x, y, row_weight\)"),
    ):
        with pytest.raises(DomainError, match=message):
            gp.condition(rows, inducing=5)


def test_a_prior_that_leaves_nothing_to_points_is_the_posterior() -> None:
    """Rows say less than rounding: no pivot is taken."""
    x, y = labels(50)
    gp = fgp.GP(1e-12 * fgp.kernels.Matern(nu=1.5), fgp.means.Zero(), Bernoulli("logit", method="variational"))
    for one in (gp, fgp.GP(gp.kernel, fgp.means.Zero(), Gaussian(1.0))):
        post = one.condition(x, y, approximation="sparse", inducing=5)
        assert len(post.inducing) == 0
        exact = float(one.condition(x, y).log_marginal_likelihood())
        assert float(post.log_marginal_likelihood()) == pytest.approx(exact, rel=1e-6)


def test_a_fit_of_rows_that_are_read() -> None:
    x, y = labels(200)
    gp = fgp.GP(
        1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=0.3), fgp.means.Zero(), Bernoulli("logit", method="variational")
    )
    batches = [(x[part], y[part]) for part in torch.arange(200).split(80)]
    how: dict[str, Any] = {"inducing": 20, "starts": 1, "priors": "given", "max_iterations": 4}
    read, held = fgp.fit(gp, batches, **how), fgp.fit(gp, x, y, approximation="sparse", **how)
    evidence = float(read.posterior.log_marginal_likelihood())
    assert evidence == pytest.approx(float(held.posterior.log_marginal_likelihood()), abs=1e-6)
    passes = [entry.value for entry in read.history if entry.run.stage is Stage.APPROXIMATE]
    assert evidence == pytest.approx(max(passes), abs=1e-6)
    assert read.gp.condition(x, y).log_marginal_likelihood() > evidence


def test_steps_that_are_cut_to_nothing_have_not_settled() -> None:
    """Whole steps overflow under a wide prior that few points leave free; the evidence of counts is never above 0."""
    generator = torch.Generator().manual_seed(1)
    x = 6.0 * torch.rand(60, 1, generator=generator, dtype=torch.float64)
    y = torch.poisson((1.0 + (2.0 * x[:, 0]).sin()).exp(), generator=generator)
    kernel = 134.0 * fgp.kernels.Matern(nu=1.5, lengthscale=1.0)
    gp = fgp.GP(kernel, fgp.means.Constant(-9.9), fgp.likelihoods.Poisson())
    with pytest.raises(ConvergenceError, match="a whole one takes the bound"):
        gp.condition(x, y, approximation="sparse", inducing=9)
    assert float(gp.condition(x, y, approximation="sparse", inducing=30).log_marginal_likelihood()) < 0.0
