"""Inducing points of rows with exposures or weights: of all rows exact, and weights are repeated rows, (M-273)."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp import likelihoods as L
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximation import Approximation
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.fit import Fit
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import SiteSettings
from flashgp.inference.streamed.bound import StreamedBound
from flashgp.inference.streamed.condition import condition
from flashgp.inference.streamed.objective import StreamedLogJoint, first_values
from flashgp.inference.streamed.rows import inputs_of
from flashgp.inference.streamed.steps import InducingValues, settled_pass
from flashgp.inference.training.history import Stage
from flashgp.inference.training.objective import Problem
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SampleSettings, StochasticSettings
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.processes.group import ALONE
from flashgp.sources.source import Held
from flashgp.sources.survey import Block, surveyed
from inference.full_scale.test_factor import differences

F64 = torch.float64
FEW = FitSettings(stochastic=StochasticSettings(first_rows=100))  # of which the sample is
ALONE_OF_ALL = SampleSettings(min_evaluations=1e12)  # passes over all rows would be too many


def hours_of(x: Tensor) -> Tensor:
    return 0.2 + 9.0 * x[:, 1].square()


def counts(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, counts with the exposures of `hours_of`, and weights."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    y = torch.poisson(hours_of(x) * (1.0 + torch.sin(5.0 * x[:, 0])).exp(), generator)
    return x, y, 1.0 + torch.arange(n, dtype=F64) % 3


def model(likelihood: Any) -> fgp.GP:
    return fgp.GP(2.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=likelihood)


def fitted(likelihood: Any, x: Tensor, y: Tensor, **options: Any) -> Fit:
    how = {"approximation": "sparse", "starts": 1, "priors": "given", **options}
    return fgp.fit(model(likelihood), x, y, **how)


def evidence(found: Any) -> float:
    return float(found.log_marginal_likelihood())


@pytest.mark.parametrize("approximation", [None, "sparse"])
def test_weights_are_repeated_rows(approximation: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(30, 2, generator=generator, dtype=F64)
    y = torch.poisson((1.0 + torch.sin(5.0 * x[:, 0])).exp(), generator)
    weight, hours = 1.0 + torch.arange(30) % 3, 1.0 + torch.rand(30, generator=generator, dtype=F64)
    kernel = 2.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5)
    options = {} if approximation is None else {"approximation": approximation, "inducing": x}
    again = torch.arange(30).repeat_interleave(weight.long())
    weighted = fgp.GP(kernel, likelihood=L.Poisson(exposure=hours, row_weight=weight)).condition(x, y, **options)
    repeated = fgp.GP(kernel, likelihood=L.Poisson(exposure=hours[again])).condition(x[again], y[again], **options)
    exact = fgp.GP(kernel, likelihood=L.Poisson(exposure=hours, row_weight=weight)).condition(x, y)
    for other in (repeated, exact):
        torch.testing.assert_close(weighted.predict(x).mean, other.predict(x).mean, rtol=0.0, atol=2e-3)
        torch.testing.assert_close(weighted.predict(x).variance, other.predict(x).variance, rtol=2e-3, atol=0.0)
        assert float(weighted.log_marginal_likelihood()) == pytest.approx(
            float(other.log_marginal_likelihood()), abs=5e-3
        )


def test_a_fit_is_the_exact_one_where_all_rows_are_points_and_that_of_repeated_rows() -> None:
    x, y, weight = counts(40)
    again = torch.arange(40).repeat_interleave(weight.long())
    of_rows = L.Poisson(exposure=hours_of(x), row_weight=weight)
    found = fitted(of_rows, x, y, inducing=x)
    exact = fitted(of_rows, x, y, approximation=None)
    repeated = fitted(L.Poisson(exposure=hours_of(x)[again]), x[again], y[again], inducing=x)
    for other in (exact, repeated):
        assert evidence(found.posterior) == pytest.approx(evidence(other.posterior), abs=5e-3)
        torch.testing.assert_close(
            found.posterior.predict(x).mean, other.posterior.predict(x).mean, rtol=0.0, atol=5e-3
        )


@functools.cache
def exact_evidence() -> float:
    """Of the fit of 600 rows."""
    x, y, weight = counts(600)
    likelihood = L.Poisson(exposure=hours_of(x), row_weight=weight)
    return evidence(fitted(likelihood, x, y, approximation=None).posterior)


@pytest.mark.parametrize("limit", [None, 1e5])
def test_the_order_of_rows_with_their_numbers_changes_little(limit: float | None) -> None:
    """Of passes over all rows and, under a limit, of a sample that stands for them: a sixth of them."""
    x, y, weight = counts(600)
    settings = FEW if limit is None else FitSettings(stochastic=FEW.stochastic, sample=ALONE_OF_ALL)
    points, more = x[:30], {"settings": settings, "time_limit": limit}
    best = exact_evidence()
    values = []
    for order in (torch.arange(600), torch.arange(600).flip(0)):
        rows = x[order], y[order]
        found = fitted(L.Poisson(exposure=hours_of(rows[0]), row_weight=weight[order]), *rows, inducing=points, **more)
        assert found.history[-1].run.stage is (Stage.APPROXIMATE if limit is None else Stage.WEIGHTED)
        again = found.gp.condition(*rows, approximation="sparse", inducing=points)
        assert evidence(found.posterior) == pytest.approx(evidence(again), abs=0.05)
        assert evidence(found.gp.condition(*rows)) == pytest.approx(best, abs=5.0 if limit is None else 8.0)
        assert torch.equal(found.posterior.gp.likelihood.exposure, hours_of(rows[0]))
        assert torch.equal(found.gp.likelihood.row_weight, weight[order])
        values.append(evidence(found.posterior))
    assert values[0] == pytest.approx(values[1], abs=0.05 if limit is None else 20.0)


def test_weights_of_labels_and_trials_are_fitted_and_rows_join() -> None:
    x, y, weight = counts(200)
    for likelihood, targets in (
        (L.Bernoulli(row_weight=weight), (y > y.median()).double()),
        (L.Binomial(trials=y + 2.0), y),
    ):
        found = fitted(likelihood, x, targets, inducing=12, settings=FEW, max_iterations=2)
        again = found.gp.condition(x, targets, approximation="sparse", inducing=found.posterior.inducing)
        assert evidence(found.posterior) == pytest.approx(evidence(again), abs=0.05)
        if not likelihood.numbers_of_rows:
            assert len(found.posterior.append(x[:2], targets[:2]).gp.likelihood.row_weight) == 202
        plan = fgp.plan(found.gp, 200, 2, approximation="sparse", inducing=12)
        assert plan.approximation == "sparse"


def test_more_rows_than_the_sample_has() -> None:
    """Points are chosen among rows with their own numbers, and passes begin near where they end, (M-360)."""
    x, y, _ = counts(2500)
    for likelihood in (L.Poisson(exposure=hours_of(x)), L.Binomial(trials=y + 2.0)):
        found = model(likelihood).condition(x, y, approximation="sparse", inducing=8)
        again = model(likelihood).condition(x, y, approximation="sparse", inducing=found.inducing)
        assert evidence(found) == pytest.approx(evidence(again), abs=0.05)
    with pytest.raises(DomainError, match="in row 2400"):
        y[2400] = 0.5
        model(likelihood).condition(x, y, approximation="sparse", inducing=8)


def test_passes_begin_where_the_sample_with_its_own_numbers_ends() -> None:
    x, y, _ = counts(1000)
    prior, points, settings = model(L.Poisson()), x[:6], SiteSettings()
    rows = Held(x, y, {"exposure": hours_of(x)})
    with torch.no_grad():
        bound = StreamedBound(prior, prior.kernel.rows(points), len(x), Workspace())

        def sums_at(values: InducingValues) -> Any:
            return bound.sums(inputs_of(prior, [Block(x, y, rows.numbers)], x.device, values=values))

        start = InducingValues.of_prior(bound.basis, bound.floor)
        end = settled_pass(prior.likelihood, start, sums_at, -math.inf, 1e-6, settings, ALONE).before
        begun = first_values(bound, surveyed(rows, None, 300, 0), points, settings, NO_DEADLINE)
    assert begun.divergence(end) < 0.01 * start.divergence(end)


def test_a_part_of_the_rows_has_its_own_numbers() -> None:
    """Where time ends after the first pass."""
    x, y, _ = counts(2500)
    ticks = iter(range(10**6))
    settings = ConditionSettings(run=Run(deadline=Deadline(1.0, 1.0, lambda: next(ticks))))
    with pytest.warns(UserWarning, match="of 400 random"):
        state = condition(Approximation("sparse", 8), model(L.Poisson(exposure=hours_of(x))), Held(x, y), settings)
    assert torch.equal(state.prior.likelihood.exposure, hours_of(state.x))


def test_numbers_of_a_likelihood_are_of_rows_that_are_held() -> None:
    x, y, weight = counts(30)
    for likelihood in (L.Poisson(exposure=hours_of(x)), L.Gaussian(0.1, row_weight=weight)):
        with pytest.raises(DomainError, match="treats all rows alike"):
            fgp.fit(model(likelihood), [(x, y)], inducing=5)
    with pytest.raises(ShapeError, match="`exposure` must have one entry per training row"):
        model(L.Poisson(exposure=hours_of(x)[1:])).condition(x, y, approximation="sparse", inducing=5)


READ = {
    "exposure": (L.Poisson(), lambda hours: L.Poisson(exposure=hours), hours_of),
    "trials": (L.Binomial(), lambda trials: L.Binomial(trials), lambda x: 3.0 + (20.0 * x[:, 1]).floor()),
}


@pytest.mark.parametrize("name", READ)
def test_rows_that_are_read_bring_numbers_of_theirs(name: str) -> None:
    """As those of rows that are held: fits, rows that join, what is predicted, left out and judged."""
    alone, of, numbers_of = READ[name]
    x, y, _ = counts(60)
    numbers = numbers_of(x)
    y = torch.minimum(y, numbers.floor())
    rows = [(x[part], y[part], {name: numbers[part]}) for part in torch.arange(60).split(25)]
    options: dict[str, Any] = {"priors": "given", "starts": 1, "max_iterations": 3, "inducing": x[:20]}
    read = fgp.fit(model(alone), rows, **options)
    held = fgp.fit(model(of(numbers)), x, y, approximation="sparse", **options)
    assert evidence(read.posterior) == pytest.approx(evidence(held.posterior), abs=1e-4)
    assert read.gp.likelihood.rows_alike
    at, more = x[:3] + 0.01, {name: numbers[5:8]}
    longer, other = (one.append(x[5:8], y[5:8], **more) for one in (read.posterior, held.posterior))
    again = read.posterior.append([(x[5:8], y[5:8], more)])
    for one in (longer, again):
        torch.testing.assert_close(one.predict(at).mean, other.predict(at).mean, rtol=0.0, atol=1e-4)
    assert getattr(other.gp.likelihood, name)[60:].tolist() == more[name].tolist()
    one, two = (post.predict(at).given(**more) for post in (read.posterior, held.posterior))
    torch.testing.assert_close(one.observation_mean, two.observation_mean, rtol=1e-4, atol=0.0)
    left = held.posterior.leave_one_out().log_prob
    torch.testing.assert_close(read.posterior.leave_out(x, y, **{name: numbers}).log_prob, left, rtol=0, atol=1e-4)
    verdicts = [post.judge() for post in (read.posterior, held.posterior)]
    assert verdicts[0].explained == verdicts[1].explained
    for wrong in ({}, {name: -numbers}, {"hours": numbers}):
        with pytest.raises(DomainError, match=f"`({name}|hours)"):
            read.posterior.append([(x, y, wrong)])


def test_files_keep_numbers_of_the_sample(tmp_path: Path) -> None:
    x, y, weight = counts(60)
    hours = hours_of(x)
    posts = [
        model(L.Poisson()).condition([(x, y, {"exposure": hours, "row_weight": weight})], inducing=9),
        model(L.Poisson(hours, weight)).condition(x, y, approximation="sparse", inducing=9),
        model(L.Gaussian(0.1, hours, weight)).condition(x, y, approximation="sparse", inducing=9),
    ]
    for post in posts:
        fgp.save(post, tmp_path / "m.safetensors")
        again = fgp.load(tmp_path / "m.safetensors")
        assert again.state.sample.numbers.keys() == post.state.sample.numbers.keys()
        for name, numbers in post.state.sample.numbers.items():
            assert torch.equal(again.state.sample.numbers[name], numbers)
        assert torch.equal(again.predict(x).mean, post.predict(x).mean)
    torch.testing.assert_close(posts[0].predict(x).mean, posts[1].predict(x).mean)


@pytest.mark.parametrize("known", [None, 0.05])
def test_weights_of_a_noise_divide_it(known: float | None) -> None:
    """Its gradient and posterior by few points, whose choice looks at them; rows join with theirs."""
    x, y, weight = counts(40)
    y, beside = y.log1p(), None if known is None else known * (1.0 + x[:, 0])
    gp = model(L.Gaussian(0.1, beside, row_weight=weight))
    noise = gp.likelihood.sites(y, None).variance.detach()
    as_noise = model(L.Gaussian(None, noise))
    found, wanted = (one.condition(x, y, approximation="sparse", inducing=9) for one in (gp, as_noise))
    assert torch.equal(found.inducing, wanted.inducing)
    torch.testing.assert_close(found.predict(x).mean, wanted.predict(x).mean, rtol=1e-10, atol=1e-10)
    assert evidence(found) == pytest.approx(evidence(wanted), rel=1e-10)
    problem = Problem(gp, x, y, DirectSettings(TorchTiles()))
    of = StreamedLogJoint(problem, surveyed(Held(x, y, gp.likelihood.row_tensors), None, 40, 0), x[:9])
    theta = of.parameters.values()
    slopes = differences(of, theta)
    assert abs(of(theta).gradient - slopes).max() <= 1e-6 * (1.0 + abs(slopes).max())
    last = None if beside is None else beside[30:]
    first = L.Gaussian(0.1, None if beside is None else beside[:30], row_weight=weight[:30])
    few = model(first).condition(x[:30], y[:30], approximation="sparse", inducing=x[:9])
    longer = few.append(x[30:], y[30:], row_variance=last, row_weight=weight[30:])
    likelihood = longer.gp.likelihood
    whole = fgp.GP(gp.kernel, likelihood=likelihood).condition(x, y, approximation="sparse", inducing=x[:9])
    assert evidence(longer) == pytest.approx(evidence(whole), rel=1e-9)


def test_fits_of_weights_are_exact_where_all_rows_are_points() -> None:
    x, y, weight = counts(60)
    y, likelihood = y.log1p(), L.Gaussian(0.1, row_weight=weight)
    found = fitted(likelihood, x, y, inducing=x).gp.state_dict()
    for name, value in fgp.fit(model(likelihood), x, y, starts=1, priors="given").gp.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3)
