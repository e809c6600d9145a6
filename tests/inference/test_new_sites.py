"""Rows that join where sites are found by iteration, (M-275), and leave-one-out of observations from cavities."""

from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import local_sites
from flashgp.likelihoods import Bernoulli, Gaussian, Poisson
from inference.iterated import Iterated, labels, model, table

F64 = torch.float64
ENGINES: dict[str, dict[str, Any]] = {
    "dense": {},
    "full scale": {"approximation": "full_scale", "inducing": 10, "neighbours": 29},
    "sparse": {"approximation": "sparse", "inducing": table()[0][:20]},
}


def moved(post: fgp.Posterior) -> float:
    (event,) = (event for event in post.report.events if event.kind is EventKind.UPDATED)
    return float(event.fields["moved"])


def test_a_local_step_has_the_best_site_of_a_row() -> None:
    """(M-275): no other q(f) of a row has a greater bound, whatever the prediction is."""
    y = torch.tensor([0.0, 3.0, 250.0, 2.0], dtype=F64)
    before = Marginals(torch.tensor([0.0, 1.0, -2.0, 8.0], dtype=F64), torch.tensor([1.0, 4.0, 9.0, 0.1], dtype=F64))
    sites, at = local_sites(Poisson(), y, before)
    rate = (at.mean + 0.5 * at.variance).exp()
    torch.testing.assert_close(1.0 / at.variance, 1.0 / before.variance + rate, rtol=1e-3, atol=0.0)
    torch.testing.assert_close(at.mean, before.mean + before.variance * (y - rate), rtol=0.0, atol=1e-2)
    torch.testing.assert_close(1.0 / sites.variance, rate, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_join_are_near_those_of_all(engine: str) -> None:
    """What sites of the rows before lose is of the order that the report tells."""
    x, y, at = table()
    options = ENGINES[engine]
    few = model(Poisson()).condition(x[:36], y[:36], **options)
    post = few
    for row in range(36, 40):
        post = post.append(x[row : row + 1], y[row : row + 1])
    whole = model(Poisson()).condition(x, y, **options)
    assert post.count == 40
    assert moved(post) < 2.0
    p, q, r = post.predict(at), whole.predict(at), few.predict(at)
    spread = float((r.mean - q.mean).abs().max())
    assert float((p.mean - q.mean).abs().max()) < 0.3 * spread + 0.01
    torch.testing.assert_close(p.variance, q.variance, rtol=0.15, atol=0.0)
    for question in ("log_marginal_likelihood", "leave_one_out"):
        assert post.can(question) is not None
        with pytest.raises(DomainError, match="settled together"):
            getattr(post, question)()
    assert whole.can("log_marginal_likelihood") is None


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_join_together_as_one_after_the_other(engine: str) -> None:
    """Seen red: thirty rows at one x each took the prediction before them, 17 deviations off."""
    x, y, at = table()
    post = one = model(Poisson()).condition(x, y, **ENGINES[engine])
    more, counts = x[:1].expand(6, -1) + 1e-3 * torch.arange(6, dtype=F64)[:, None], torch.full((6,), 40.0, dtype=F64)
    together = post.append(more, counts)
    for row in range(6):
        one = one.append(more[row : row + 1], counts[row : row + 1])
    torch.testing.assert_close(together.predict(at).mean, one.predict(at).mean, rtol=1e-9, atol=1e-9)
    assert moved(together) == pytest.approx(moved(one), rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_a_gaussian_likelihood_that_iterates_join_as_of_regression(engine: str) -> None:
    x, y, at = table()
    posts = []
    for kind in (Gaussian, Iterated):
        post = model(kind(0.3)).condition(x[:30], y[:30], **ENGINES[engine])
        posts.append(post.append(x[30:31], y[30:31]).append(x[31:], y[31:]))
    known, found = posts
    torch.testing.assert_close(found.predict(at).mean, known.predict(at).mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.predict(at).variance, known.predict(at).variance, rtol=1e-9, atol=1e-9)


def test_rows_leave_with_their_sites() -> None:
    x, y, at = table()
    post = model(Poisson()).condition(x[:37], y[:37])
    slid = post.slide(x[37:], y[37:])
    apart = post.append(x[37:], y[37:]).drop([0, 1, 2])
    other = post.replace([0, 1, 2], x[37:], y[37:])
    for one in (slid, other):
        torch.testing.assert_close(one.predict(at).mean, apart.predict(at).mean, rtol=1e-9, atol=1e-9)
        assert moved(one) == moved(apart) > 0.0
    whole = model(Poisson()).condition(x[3:], y[3:])
    torch.testing.assert_close(slid.predict(at).mean, whole.predict(at).mean, rtol=0.0, atol=0.1)
    again = slid.refine(1)
    assert next(event for event in again.report.events if event.kind is EventKind.UPDATED).fields.get("moved") is None
    assert again.gp.condition(x[3:], y[3:]).predict(at).mean == pytest.approx(again.predict(at).mean, abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_leave_one_out_is_of_observations(engine: str) -> None:
    """From cavities, (M-268): close to conditioning on the others, where sites are their own."""
    x, y, _ = table()
    gp, options = model(Poisson()), ENGINES[engine]
    left = gp.condition(x, y, **options).leave_one_out()
    for row in (0, 7, 21):
        others = torch.arange(len(x)) != row
        found = gp.condition(x[others], y[others], **options).predict(x[row : row + 1]).distribution
        assert float(left.mean[row]) == pytest.approx(float(found.mean), rel=0.05)
        assert float(left.log_prob[row]) == pytest.approx(float(found.log_prob(y[row : row + 1])), abs=0.05)


@pytest.mark.parametrize("engine", ENGINES)
def test_leave_one_out_has_the_dtype_of_the_rows(engine: str) -> None:
    x, y, at = table()
    options = ENGINES[engine] | ({"inducing": x[:20].float()} if engine == "sparse" else {})
    post = model(Poisson()).condition(x.float(), y.float(), **options)
    assert post.leave_one_out().mean.dtype == post.predict(at.float()).mean.dtype == torch.float32


def test_leave_one_out_has_positive_variances_where_neighbours_know_little() -> None:
    x, y = labels(300)

    likelihood = Bernoulli("logit", method="variational")
    gp = fgp.GP(30.0 * fgp.kernels.Matern(nu=1.5, lengthscale=0.1), fgp.means.Zero(), likelihood)
    left = gp.condition(x, y, approximation="full_scale", inducing=8, neighbours=12).leave_one_out()
    assert bool(left.variance.isfinite().all())


@pytest.mark.parametrize("engine", ENGINES)
def test_leave_one_out_of_a_gaussian_likelihood_that_iterates(engine: str) -> None:
    x, y, _ = table()
    options = ENGINES[engine] | ({"neighbours": 40} if engine == "full scale" else {})
    known, found = (model(kind(0.3)).condition(x, y, **options).leave_one_out() for kind in (Gaussian, Iterated))
    for name in ("mean", "variance", "log_prob"):
        torch.testing.assert_close(getattr(found, name), getattr(known, name), rtol=1e-7, atol=1e-7)


def test_a_new_row_of_moments_has_its_site_in_one_step() -> None:
    """(M-291): q(f) with it has the moments of the prediction times the likelihood."""
    before = Marginals(torch.tensor([0.4, -2.0], dtype=torch.float64), torch.tensor([2.0, 9.0], dtype=torch.float64))
    likelihood, y = Bernoulli(), torch.tensor([1.0, 1.0], dtype=torch.float64)
    _, at = local_sites(likelihood, y, before)
    f = before.mean[:, None] + before.variance.sqrt()[:, None] * torch.linspace(-9.0, 9.0, 4001, dtype=torch.float64)
    density = (-0.5 * (f - before.mean[:, None]).square() / before.variance[:, None]).exp() * torch.special.ndtr(f)
    density /= density.sum(-1, keepdim=True)
    mean = (density * f).sum(-1)
    torch.testing.assert_close(at.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(at.variance, (density * (f - mean[:, None]).square()).sum(-1), rtol=1e-9, atol=1e-9)
