"""Several classes: expectations of the softmax, (M-306), sites, (M-307), the gradient of the bound, predictions."""

from pathlib import Path

import numpy
import pytest
import sklearn.datasets
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.likelihoods.softmax import GAMMA, softmax_expectations
from flashgp.pairwise.torch.tiles import TorchTiles

F64 = torch.float64


def table(n: int = 40, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    score = torch.stack([torch.sin(4.0 * x[:, 0] + c) * torch.cos(3.0 * x[:, 1] - c) for c in range(classes)], 1)
    noise = torch.rand(n, classes, generator=generator, dtype=F64)
    return x, (4.0 * score - (-noise.log()).log()).argmax(1).double()


def model(classes: int = 3) -> fgp.GP:
    kernel = 4.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5)
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Categorical(classes))


def by_fine_grids(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The integrals of one row, F_c from a fine grid of f."""
    sd, z = variance.sqrt(), torch.linspace(-8.5, 8.5, 401, dtype=F64)
    weight = (-0.5 * z.square()).exp() / (-0.5 * z.square()).exp().sum()
    low, high = float((mean - 9.0 * sd).min()) - 5.0, float((mean + 9.0 * sd).max()) + 38.0
    t = torch.arange(low, high, 0.1, dtype=F64)
    e = ((mean[:, None] + sd[:, None] * z).unsqueeze(-1) - t).clamp(max=300.0).exp()  # (C, f, t)
    inside = (-e).exp()
    cdf, density, slope = (
        torch.einsum("f,cft->ct", weight, part) for part in (inside, e * inside, e * (e - 1.0) * inside)
    )
    others = torch.stack([torch.cat([cdf[:c], cdf[c + 1 :]]).prod(0) for c in range(len(mean))])
    by_class = density * others
    return 0.1 * (by_class @ t).sum() - GAMMA, 0.1 * by_class.sum(1), -0.1 * (slope * others).sum(1)


@pytest.mark.parametrize(("classes", "least", "most", "spread"), [(4, -6, 2, 2), (10, -4, 3, 2), (3, -14, -8, 0.5)])
def test_expectations_are_those_of_fine_grids(classes: int, least: float, most: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(classes)
    mean = spread * torch.randn(3, classes, generator=generator, dtype=F64)
    variance = (least + (most - least) * torch.rand(3, classes, generator=generator, dtype=F64)).exp()
    found = softmax_expectations(mean, variance)
    for row in range(3):
        for value, other in zip(found, by_fine_grids(mean[row], variance[row]), strict=True):
            torch.testing.assert_close(value[row], other, rtol=0.0, atol=2e-8)


def test_rows_do_not_depend_on_others() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = 3.0 * torch.randn(60, 10, generator=generator, dtype=F64)
    variance = (0.5 * torch.randn(60, 10, generator=generator, dtype=F64) - 3.0).exp()
    together = softmax_expectations(mean, variance)
    torch.testing.assert_close(together[1].sum(1), torch.ones(60, dtype=F64), rtol=0.0, atol=1e-8)
    for row in (7, 31):
        for value, other in zip(together, softmax_expectations(mean[[row]], variance[[row]]), strict=True):
            torch.testing.assert_close(value[row], other[0], rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("variance", [1.0, 1e2, 1e4, 1e6])
def test_classes_that_are_all_but_impossible_have_probabilities_with_logarithms(variance: float) -> None:
    """Integrals of 0 end at -1e-16 by rounding."""
    generator = torch.Generator().manual_seed(0)
    mean = 20.0 * variance**0.5 * torch.randn(10, 50, generator=generator, dtype=F64)
    found = fgp.likelihoods.Categorical(10).predictive(mean, torch.full_like(mean, variance))
    assert bool((found.probability > 0.0).all())
    torch.testing.assert_close(found.probability.sum(-1), torch.ones(50, dtype=F64), rtol=0.0, atol=1e-14)
    assert bool(found.log_prob(1.0 - torch.nn.functional.one_hot(mean.argmax(0), 10).T.double()).lt(-100.0).all())


def test_a_shift_of_all_functions_changes_the_sum_alone() -> None:
    mean, variance = (
        torch.randn(6, 4, dtype=F64, generator=torch.Generator().manual_seed(0)),
        torch.ones(6, 4, dtype=F64),
    )
    value, probability, spread = softmax_expectations(mean, variance)
    shifted = softmax_expectations(mean + 250.0, variance)
    for one, other in zip(shifted, (value + 250.0, probability, spread), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-9)


def objective(y: Tensor, x: Tensor) -> LogJoint:
    gp = model()
    y = gp.likelihood.encoded(y, "y")
    sites = IteratedSites.of(gp, x, y, SiteSettings(search=1e-12))
    return LogJoint(Problem(gp, x, y, DirectSettings(TorchTiles()), sites=sites))


def test_the_gradient_of_the_bound_is_that_of_differences() -> None:
    x, y = table()
    of, theta = objective(y, x), numpy.array([0.9, -0.5])
    gradient = of(theta).gradient
    for k, step in enumerate(1e-4 * numpy.eye(2)):
        upper, lower = of(theta + step).value, of(theta - step).value
        assert upper is not None
        assert lower is not None
        assert abs((upper - lower) / 2e-4 - gradient[k]) < 1e-6


def test_classes_in_another_order_have_the_same_bound_and_probabilities() -> None:
    x, y = table()
    order = torch.tensor([2, 0, 1])
    one, other = model().condition(x, y), model().condition(x, order[y.long()].double())
    assert abs(float(one.log_marginal_likelihood() - other.log_marginal_likelihood())) < 1e-8
    probability = [post.predict(x[:5]).distribution.probability for post in (one, other)]
    torch.testing.assert_close(probability[0], probability[1][:, order], rtol=0.0, atol=1e-9)


def test_the_bound_lies_below_the_likelihood_of_two_rows() -> None:
    x, y = torch.tensor([[0.0], [0.7]], dtype=F64), torch.tensor([0.0, 2.0], dtype=F64)
    gp = model()
    bound = float(gp.condition(x, y).log_marginal_likelihood())
    root = torch.linalg.cholesky(gp.kernel(x).to_dense().detach())
    draws = torch.randn(200_000, 3, 2, generator=torch.Generator().manual_seed(0), dtype=F64) @ root.mT
    truth = float((draws.log_softmax(1)[:, y.long(), [0, 1]]).sum(1).exp().mean().log())
    assert truth - 0.2 < bound < truth


def test_fits_learn_classes_and_leave_rows_out() -> None:
    x, y = table(120)
    fit = fgp.fit(model(), x[:90], y[:90], starts=1)
    prediction = fit.posterior.predict(x[90:])
    share = torch.bincount(y[:90].long()).double() / 90.0
    assert prediction.log_prob(y[90:]).mean() > share.log()[y[90:].long()].mean() + 0.1
    torch.testing.assert_close(prediction.distribution.probability.sum(1), torch.ones(30, dtype=F64))
    assert fit.posterior.leave_one_out().log_prob.shape == (90,)
    drawn = prediction.sample(3, observed=True, seed=0)
    assert drawn.shape == (3, 30, 3)
    assert bool((drawn.sum(-1) == 1).all())


def test_rows_that_join_are_as_those_that_were_there() -> None:
    x, y = table()
    z, label = torch.tensor([[0.2, 0.3], [0.8, 0.1]], dtype=F64), torch.tensor([1.0, 2.0], dtype=F64)
    before = model().condition(x, y).predict(z).mean
    joined = model().condition(x, y).append(z, label).predict(z).mean
    together = model().condition(torch.cat([x, z]), torch.cat([y, label])).predict(z).mean
    assert float((joined - together).abs().max()) < 0.3 * float((together - before).abs().max())


def test_probabilities_have_gradients_by_points() -> None:
    post = model().condition(*table())
    z = torch.tensor([[0.2, 0.3]], dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(post.predict(z).distribution.probability[0, 1], z)
    for k, step in enumerate(1e-5 * torch.eye(2, dtype=F64)):
        upper, lower = (post.predict((z + s).detach()).distribution.probability[0, 1] for s in (step, -step))
        assert abs(float((upper - lower) / 2e-5 - slope[0, k])) < 1e-6


@pytest.mark.parametrize(("labels", "message"), [([0.0, 3.0], "got 3 in row 1"), ([0.5, 1.0], "got 0.5 in row 0")])
def test_labels_that_are_no_classes_are_named(labels: list[float], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        model().condition(torch.zeros(2, 1, dtype=F64), torch.tensor(labels, dtype=F64))


def test_a_mean_other_than_zero_is_refused() -> None:
    with pytest.raises(DomainError, match="must be Zero"):
        fgp.GP(fgp.kernels.Matern(), fgp.means.Constant(), fgp.likelihoods.Categorical(3))


def test_steps_do_not_go_to_and_fro_for_ever() -> None:
    """Where whole steps of all classes turn, shorter ones stay: not one rejected for each that is taken."""
    data = sklearn.datasets.load_iris()
    report = fgp.GPClassifier().fit(data.data[::2], data.target[::2]).report_
    (event,) = (e for e in report.events if e.kind is fgp.EventKind.FIT_SITES)
    assert event.fields["steps"] <= 30 * event.fields["evaluations"]


def test_rows_that_are_no_indicators_are_named() -> None:
    y = torch.tensor([[1.0, 0.0, 0.0], [0.3, 0.3, 0.4]], dtype=F64)
    with pytest.raises(DomainError, match=r"one 1 among zeros for Categorical, .* in row 1; pass classes"):
        model().condition(torch.zeros(2, 1, dtype=F64), y)


def test_a_row_of_weight_two_is_that_row_twice(tmp_path: Path) -> None:
    """Exactly and by full scale, in bound and probabilities; halves are between."""
    x, y = table(30)
    weight = 1.0 + (torch.arange(30) % 2).double()
    twice = torch.arange(30).repeat_interleave(weight.long())
    at = torch.rand(5, 2, generator=torch.Generator().manual_seed(3), dtype=F64)
    wanted, once = model().condition(x[twice], y[twice]), model().condition(x, y)
    weighted = fgp.GP(model().kernel, likelihood=fgp.likelihoods.Categorical(3, row_weight=weight))
    for options in ({}, {"approximation": "full_scale", "inducing": 5, "neighbours": 30}):
        post = weighted.condition(x, y, **options)
        torch.testing.assert_close(post.predict(at).probability, wanted.predict(at).probability, rtol=0.0, atol=2e-4)
        assert abs(float(post.log_marginal_likelihood() - wanted.log_marginal_likelihood())) < 1e-3
    fgp.save(post, tmp_path / "m.safetensors")
    torch.testing.assert_close(fgp.load(tmp_path / "m.safetensors").predict(at).mean, post.predict(at).mean)
    half = fgp.GP(model().kernel, likelihood=fgp.likelihoods.Categorical(3, row_weight=0.5 * (1.0 + weight)))
    bounds = [float(one.log_marginal_likelihood()) for one in (once, half.condition(x, y), wanted)]
    assert bounds == sorted(bounds, reverse=True)


def test_weights_of_other_rows_are_refused() -> None:
    x, y = table(30)
    gp = fgp.GP(model().kernel, likelihood=fgp.likelihoods.Categorical(3, row_weight=torch.ones(29)))
    with pytest.raises(ShapeError, match=r"`row_weight` must have .* \(30\), got shape \(29,\)"):
        gp.condition(x, y)
