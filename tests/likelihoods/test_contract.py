"""What every likelihood of the registry with one latent function promises, (M-276) to (M-279), (M-283)."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.likelihoods import REGISTRY
from flashgp.likelihoods.mixture import Mixture
from flashgp.likelihoods.non_gaussian import ROWS, NonGaussian
from flashgp.likelihoods.student_t import ScatteredNormal
from likelihoods.cases import CASES

F64 = torch.float64
lik = fgp.likelihoods


MEANS = (-300.0, -7.0, 0.3, 4.0, 300.0)
VARIANCES = (1e-6, 0.3, 10.0, 1e4)
case_by_name = pytest.mark.parametrize("name", CASES)


def test_every_likelihood_has_a_case() -> None:
    assert {name.split(",")[0] for name in CASES} | {"Categorical", "Gaussian", "HeteroscedasticGaussian"} == set(
        REGISTRY
    )


def slopes(likelihood: NonGaussian, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    f = f.detach().requires_grad_()
    value = likelihood.log_prob(y, f)
    (first,) = torch.autograd.grad(value.sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), f)
    return value.detach(), first.detach(), second


@case_by_name
def test_expectations_are_right_for_every_mean_and_variance(name: str) -> None:
    """E log p, and its derivatives by Bonnet and Price, against 6,000 equal steps where they resolve log p."""
    case = CASES[name]
    likelihood, worst = case.make(), 0.0
    for mean in MEANS:
        for variance in VARIANCES:
            deviation = math.sqrt(variance)
            if case.grows * mean + 0.5 * case.grows**2 * variance > 600.0:  # beyond what float64 holds
                continue
            y = torch.tensor(case.targets, dtype=F64)[:, None]
            shift = case.grows * deviation  # where exp(grows f) N(f) has its mass
            steps = 40_001 if deviation > 50.0 else 6_001
            t = torch.linspace(min(-9.0, shift - 9.0), max(9.0, shift + 9.0), steps, dtype=F64)
            weights = torch.softmax(-0.5 * t.square(), 0)
            f = mean + deviation * t
            right = [q @ weights for q in slopes(likelihood, y.expand(-1, len(t)), f.expand(len(y), -1).contiguous())]
            ones = torch.ones(len(y), dtype=F64)
            found = likelihood.expectations(y.squeeze(-1), mean * ones, variance * ones)
            for one, other, half in zip(found, right, (1.0, 1.0, 0.5), strict=True):
                worst = max(worst, float(((one - half * other).abs() / other.abs().clamp_min(1.0)).max()))
    assert worst < case.slack  # autograd's second derivative of log Phi cancels in its tail


@case_by_name
def test_log_probabilities_are_concave_where_that_is_claimed(name: str) -> None:
    likelihood = CASES[name].make()
    f = torch.linspace(-30.0, 30.0, 4001, dtype=F64)
    bends = torch.stack([slopes(likelihood, torch.full_like(f, y), f)[2] for y in CASES[name].targets])
    if likelihood.log_concave:
        assert float(bends.max()) < 1e-9
    else:
        assert float(bends.max()) > 1e-3


def line(likelihood: NonGaussian) -> tuple[Tensor, Tensor]:
    """Observations along the line of a likelihood, and log dy/dz."""
    z = torch.linspace(-60.0, 60.0, 6_001, dtype=F64).requires_grad_()
    y = likelihood.from_line(z)
    (slope,) = torch.autograd.grad(y.sum(), z)
    return y.detach(), slope.log()


@pytest.mark.parametrize("moments", [(0.4, 1e-4), (-1.0, 0.5), (0.5, 4.0)])
@case_by_name
def test_predictive_distributions_are_whole(name: str, moments: tuple[float, float]) -> None:
    """They sum to one, and have the mean and the variance that they say, (M-281) and (M-282)."""
    likelihood = CASES[name].make()
    mean, variance = (torch.tensor([t], dtype=F64) for t in moments)
    p = likelihood.predictive(mean, variance)
    if isinstance(p, Mixture | ScatteredNormal) and not likelihood.discrete:
        y, log_slope = line(likelihood)
        if name == "StudentT":
            y, log_slope = 30.0 * torch.sinh(y / 6.0), (5.0 * torch.cosh(y / 6.0)).log()
        inside = likelihood.allowed(y)
        y, log_slope = y[inside], log_slope[inside]
        density = likelihood.predictive(mean.expand(len(y)), variance.expand(len(y)))
        each, whole = (density.log_prob(y) + log_slope).exp() * 0.02, 1.0
        if name == "Beta":  # some of its mass is nearer to an end than float64 resolves
            whole = float(p.cdf(y[-1:]) - p.cdf(y[:1]))
    else:
        y = torch.arange(0.0, 3000.0 if likelihood.discrete else 4.0, dtype=F64)
        y = y[likelihood.allowed(y)]
        each = likelihood.predictive(mean.expand(len(y)), variance.expand(len(y))).log_prob(y).exp()
        whole = float(p.cdf(y[-1:])) if isinstance(p, Mixture) else 1.0
    if name == "Custom":
        return
    assert float(each.detach().sum()) == pytest.approx(whole, abs=1e-3 if name == "Beta" else 2e-6)
    if whole > 1.0 - 1e-12:
        each = each.detach()
        first = float((each * y).sum())
        assert first == pytest.approx(float(p.mean.detach()), abs=1e-5)
        second = float((each * (y - first).square()).sum())
        assert second == pytest.approx(float(p.variance.detach()), rel=1e-2 if name == "StudentT" else 1e-4)


@pytest.mark.parametrize("q", [0.003, 0.5, 0.9])
@case_by_name
def test_quantiles_are_those_of_the_distribution_function(name: str, q: float) -> None:
    likelihood = CASES[name].make()
    mean, variance = torch.tensor([-2.0, 0.4, 1.0, 3.0], dtype=F64), torch.tensor([1.0, 1e-5, 4.0, 0.2], dtype=F64)
    p = likelihood.predictive(mean, variance)
    if name == "Custom":
        with pytest.raises(DomainError, match="`cdf` of Custom must be given"):
            p.quantile(q)
        return
    y = p.quantile(q)
    if isinstance(p, Mixture | ScatteredNormal):
        at, before = p.cdf(y), p.cdf(y - 1.0) if likelihood.discrete else None
    else:
        levels = torch.arange(0.0, 4.0, dtype=F64)[likelihood.allowed(torch.arange(0.0, 4.0, dtype=F64))]
        each = torch.stack([p.log_prob(level.expand(4)).exp() for level in levels], -1)
        at, before = (torch.where(levels <= (y - less)[:, None], each, 0.0).sum(-1) for less in (0.0, 1.0))
    if before is None:
        assert torch.allclose(at, torch.full_like(at, q), rtol=0.0, atol=1e-8)
    else:
        assert bool((at >= q - 1e-9).all())
        assert bool(((before < q + 1e-9) | (y == 0.0)).all())


@case_by_name
def test_rows_inside_are_those_between_the_quantiles(name: str) -> None:
    likelihood = CASES[name].make()
    if name == "Custom":
        return
    generator = torch.Generator().manual_seed(0)
    mean = 2.0 * torch.randn(60, generator=generator, dtype=F64)
    p = likelihood.predictive(mean, torch.rand(60, generator=generator, dtype=F64) + 0.1)
    y, level = p.sample(generator), 0.6
    expected = (p.quantile(0.2) <= y) & (y <= p.quantile(0.8))
    assert torch.equal(p.inside(y, level), expected)
    assert 0.3 < float(expected.double().mean()) <= 1.0


@pytest.mark.parametrize("name", ["Beta", "Gamma", "StudentT"])
def test_quantiles_follow_the_moments_of_f(name: str) -> None:
    likelihood, step = CASES[name].make(), 1e-4
    at = (torch.tensor([0.3, -1.0], dtype=F64), torch.tensor([0.5, 2.0], dtype=F64))
    given = [t.clone().requires_grad_() for t in at]
    slopes_of = torch.autograd.grad(likelihood.predictive(*given).quantile(0.8).sum(), given)
    for i, slope in enumerate(slopes_of):
        up, down = ([t + sign * step * (j == i) for j, t in enumerate(at)] for sign in (1.0, -1.0))
        change = likelihood.predictive(*up).quantile(0.8) - likelihood.predictive(*down).quantile(0.8)
        assert torch.allclose(slope, change.detach() / (2.0 * step), rtol=1e-5, atol=1e-7)


def test_numbers_that_rows_do_not_have_are_refused() -> None:
    with pytest.raises(DomainError, match="`exposures` is no number of rows of Poisson, which has exposure"):
        lik.Poisson().predictive(torch.zeros(1), torch.ones(1), exposures=torch.ones(1))


@case_by_name
def test_draws_have_the_moments_of_the_distribution(name: str) -> None:
    likelihood, count = CASES[name].make(), 20_000
    p = likelihood.predictive(torch.full((count,), 0.4, dtype=F64), torch.full((count,), 0.3, dtype=F64))
    if name == "Custom":
        with pytest.raises(DomainError, match="`draw` of Custom must be given"):
            p.sample(torch.Generator())
        return
    drawn = p.sample(torch.Generator().manual_seed(0))
    assert bool(likelihood.allowed(drawn).all())
    error = (p.variance[0] / count).sqrt()
    assert float((drawn.mean() - p.mean[0]).abs() / error) < 4.0
    assert float(drawn.var() / p.variance[0]) == pytest.approx(1.0, abs=0.5 if name == "StudentT" else 0.08)
    again = p.sample(torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


@case_by_name
def test_targets_are_checked_by_row(name: str) -> None:
    likelihood = CASES[name].make()
    y = torch.tensor([*CASES[name].targets, CASES[name].wrong], dtype=F64)
    with pytest.raises(DomainError, match=f"in row {len(y) - 1}; "):
        likelihood.check_targets(y)
    likelihood.check_targets(y[:-1])


# -- counts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("likelihood", [lik.Poisson(), lik.NegativeBinomial(0.02), lik.Binomial(3_000_000)])
def test_large_counts_have_the_densities_of_their_distribution_function(likelihood: NonGaussian) -> None:
    """P(y) = P(<= y) - P(<= y - 1), (M-279), where p(y | f) is a thousandth as wide as f."""
    y = torch.tensor([1e6, 1e6, 20.0], dtype=F64)
    centre = torch.tensor([13.8, 13.0, 3.0], dtype=F64)
    mean = centre if not isinstance(likelihood, lik.Binomial) else torch.tensor([-0.7, -1.5, -11.0], dtype=F64)
    p = likelihood.predictive(mean, torch.tensor([1e-6, 2.0, 0.5], dtype=F64))
    assert isinstance(p, Mixture)
    right = p.cdf(y) - p.cdf(y - 1.0)
    assert torch.allclose(p.log_prob(y).exp(), right, rtol=1e-6, atol=1e-12)
    assert float(p.cdf(p.quantile(0.7))[1]) == pytest.approx(0.7, abs=1e-5)


def test_densities_are_right_however_small() -> None:
    """log E exp(y f - exp(f)) by steps in logarithms, far from the mean of f, (M-279)."""
    t = torch.linspace(-60.0, 60.0, 400_001, dtype=F64)
    for mean, deviation, y in ((0.0, 0.5, 1000.0), (3.0, 0.01, 0.0), (-5.0, 2.0, 40.0)):
        logs = lik.Poisson().log_prob(torch.tensor(y, dtype=F64), mean + deviation * t) - 0.5 * t.square()
        right = float(torch.logsumexp(logs, 0) - torch.logsumexp(-0.5 * t.square(), 0))
        found = lik.Poisson().predictive(torch.tensor([mean]), torch.tensor([deviation**2], dtype=F64))
        assert float(found.log_prob(torch.tensor([y]))) == pytest.approx(right, rel=1e-9)


def test_exposures_and_trials_are_of_rows() -> None:
    """(M-280): of twice the exposure twice the count; predictions of training rows know theirs, new ones have 1."""
    exposure = torch.tensor([1.0, 2.0, 50.0], dtype=F64)
    mean, variance = torch.zeros(3, dtype=F64), torch.full((3,), 0.1, dtype=F64)
    for kind in (lik.Poisson, lik.NegativeBinomial):
        likelihood = kind(exposure=exposure)
        rate = likelihood.predictive(mean, variance).mean
        told = likelihood.predictive(mean, variance, exposure=exposure)
        for p in (told, likelihood.predictive_of_rows(mean, variance)):
            assert torch.allclose(p.mean, exposure * rate)
        moved, y = likelihood.predictive(exposure.log(), variance), torch.tensor([1.0, 0.0, 40.0])
        assert torch.allclose(told.log_prob(y), moved.log_prob(y))
    trials = torch.tensor([3.0, 1.0, 10.0])
    p = lik.Binomial(trials).predictive_of_rows(mean, variance)
    assert torch.allclose(p.mean, 0.5 * trials.double())
    assert torch.allclose(lik.Binomial(trials).predictive(mean, variance).mean, torch.full((3,), 0.5, dtype=F64))
    with pytest.raises(DomainError, match=r"from 0 to trials for Binomial, got 2 in row 1; .*trials=\(n,\)"):
        lik.Binomial(trials).check_targets(torch.tensor([2.0, 2.0, 2.0]))
    with pytest.raises(DomainError, match=r"must be whole numbers, got 2\.5 at row 1; round it"):
        lik.Binomial([3.0, 2.5])
    with pytest.raises(DomainError, match="`exposure` must be known of all rows"):
        likelihood.extended(3, 1)


def test_many_rows_are_taken_in_parts() -> None:
    n = ROWS + 3
    exposure, y = torch.linspace(0.5, 2.0, n, dtype=F64), torch.arange(n).remainder(5).double()
    mean, variance = torch.linspace(-1.0, 1.0, n, dtype=F64), torch.full((n,), 0.1, dtype=F64)
    found = lik.NegativeBinomial(exposure=exposure).expectations(y, mean, variance)
    last = lik.NegativeBinomial(exposure=exposure[-5:]).expectations(y[-5:], mean[-5:], variance[-5:])
    for one, other in zip(found, last, strict=True):
        assert torch.allclose(one[-5:], other, rtol=1e-9, atol=1e-9)


def test_the_peak_of_a_density_is_found_however_steep_it_is_where_f_is() -> None:
    """log p falls as -exp(-f) y from a mean at which that is 1e57."""
    gamma, y = lik.Gamma(1.0), torch.tensor([2.6e-9], dtype=F64)
    mean = torch.tensor([-153.0], dtype=F64).requires_grad_()
    value = gamma.predictive(mean, torch.tensor([167.0], dtype=F64)).log_prob(y)
    (slope,) = torch.autograd.grad(value.sum(), mean)
    f = torch.linspace(-60.0, 20.0, 80_001, dtype=F64)
    logs = gamma.log_prob(y, f) - 0.5 * ((f + 153.0).square() / 167.0 + math.log(2.0 * math.pi * 167.0))
    assert float(value) == pytest.approx(float(torch.logsumexp(logs, 0) + math.log(1e-3)), rel=1e-9)
    assert float(slope) == pytest.approx(float((torch.softmax(logs, 0) * (f + 153.0)).sum() / 167.0), rel=1e-7)


# -- Custom ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("custom", "name"),
    [
        (lambda: lik.Custom(lambda y, f: y * f - f.exp() - (y + 1.0).lgamma()), "Poisson"),
        (lambda: lik.Custom(student, log_concave=False, nu=4.0, scale=0.3), "StudentT"),
        (lambda: lik.Custom(lambda y, f: torch.nn.functional.logsigmoid((2.0 * y - 1.0) * f)), "Bernoulli, logit"),
    ],
    ids=["Poisson", "StudentT", "Bernoulli"],
)
def test_custom_is_the_likelihood_that_it_writes(custom: Callable[[], NonGaussian], name: str) -> None:
    own, built_in = custom(), CASES[name].make()
    y = torch.tensor(CASES[name].targets, dtype=F64).repeat(4)
    mean = torch.linspace(-3.0, 2.0, len(y), dtype=F64)
    variance = torch.tensor([1e-4, 0.3, 4.0, 40.0], dtype=F64).repeat_interleave(len(y) // 4)
    for one, other in zip(own.expectations(y, mean, variance), built_in.expectations(y, mean, variance), strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8)
    one, other = (likelihood.predictive(mean, variance).log_prob(y) for likelihood in (own, built_in))
    assert torch.allclose(one, other, rtol=1e-8, atol=1e-8)


def student(y: Tensor, f: Tensor, nu: Tensor, scale: Tensor) -> Tensor:
    half = 0.5 * (nu + 1.0)
    constant = half.lgamma() - (0.5 * nu).lgamma() - 0.5 * (math.pi * nu).log() - scale.log()
    return constant - half * torch.log1p(((y - f) / scale).square() / nu)


def test_custom_gives_what_it_is_given() -> None:
    """Moments, quantiles and draws by functions given f: those of a Poisson likelihood again."""
    whole = lik.Poisson()
    own = lik.Custom(
        lambda y, f: y * f - f.exp() - (y + 1.0).lgamma(), mean=torch.exp, variance=torch.exp, cdf=whole.cdf,
        draw=whole.draw, discrete=True,
    )  # fmt: skip
    mean, variance = torch.tensor([0.3, 1.0], dtype=F64), torch.tensor([0.4, 1e-3], dtype=F64)
    one, other = own.predictive(mean, variance), whole.predictive(mean, variance)
    assert torch.allclose(one.mean, other.mean, rtol=1e-9)
    assert torch.allclose(one.variance, other.variance, rtol=1e-9)
    generators = (torch.Generator().manual_seed(0) for _ in range(2))
    assert torch.equal(*(p.sample(generator) for p, generator in zip((one, other), generators, strict=True)))


def test_functions_that_do_not_answer_are_refused() -> None:
    with pytest.raises(DomainError, match="must answer entry by entry, shape"):
        lik.Custom(lambda y, f: (y - f).square().sum())
    with pytest.raises(DomainError, match="must take y, f, scale"):
        lik.Custom(lambda y, f: y - f, scale=1.0)
    with pytest.raises(DomainError, match="must not name a parameter 'rows'"):
        lik.Custom(lambda y, f, rows: y - f, rows=1.0)
    kink = lik.Custom(lambda y, f: torch.where(f > 0.123, 0.0, -1.0) - 0.0 * y)
    with pytest.raises(fgp.ConvergenceError, match="must be smooth in f, got one of row 0"):
        kink.expected(torch.zeros(1), torch.zeros(1), torch.ones(1))
