"""Rows that join with numbers of their own, such as exposures and trials."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError

F64 = torch.float64
likelihoods = fgp.likelihoods
Make = Callable[[Tensor], fgp.likelihoods.Likelihood]
MADE: dict[str, tuple[str, Make]] = {
    "Poisson": ("exposure", lambda e: likelihoods.Poisson(exposure=e)),
    "NegativeBinomial": ("exposure", lambda e: likelihoods.NegativeBinomial(0.2, exposure=e)),
    "Binomial": ("trials", lambda e: likelihoods.Binomial(e)),
}


def rows(n: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 6.0 * torch.rand(n, 1, generator=generator, dtype=F64)
    number = torch.randint(3, 9, (n,), generator=generator).double()
    y = torch.binomial(number, torch.sigmoid(torch.sin(x[:, 0])), generator=generator)
    return x, y, number


def prior(likelihood: fgp.likelihoods.Likelihood) -> fgp.GP:
    return fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), fgp.means.Constant(), likelihood)


@pytest.mark.parametrize("engine", [{}, {"approximation": "full_scale", "inducing": 12, "neighbours": 24}])
@pytest.mark.parametrize("name", list(MADE))
def test_rows_join_as_if_they_had_been_there(name: str, engine: dict[str, object]) -> None:
    (number, make), (x, y, numbers) = MADE[name], rows()
    joined = prior(make(numbers[:26])).condition(x[:26], y[:26], **engine)  # type: ignore[arg-type]
    joined = joined.append(x[26:], y[26:], **{number: numbers[26:]})
    whole = prior(make(numbers)).condition(x, y, **engine)  # type: ignore[arg-type]
    at = torch.linspace(0.0, 6.0, 9, dtype=F64)[:, None]
    assert torch.allclose(joined.predict(at).mean, whole.predict(at).mean, atol=0.1)
    assert torch.equal(getattr(joined.gp.likelihood, number), numbers)


def test_rows_slide_and_are_replaced_with_theirs() -> None:
    x, y, exposure = rows()
    before = prior(likelihoods.Poisson(exposure=exposure[:26])).condition(x[:26], y[:26])
    slid = before.slide(x[26:], y[26:], exposure=exposure[26:])
    whole = prior(likelihoods.Poisson(exposure=exposure[4:])).condition(x[4:], y[4:])
    at = torch.linspace(0.0, 6.0, 9, dtype=F64)[:, None]
    assert torch.allclose(slid.predict(at).mean, whole.predict(at).mean, atol=0.1)
    replaced = before.replace([0, 1, 2, 3], x[26:], y[26:], exposure=exposure[26:])
    assert torch.allclose(replaced.predict(at).mean, slid.predict(at).mean, atol=1e-6)
    assert torch.equal(slid.gp.likelihood.exposure, exposure[4:])


def test_numbers_that_are_missing_or_unknown_are_refused() -> None:
    x, y, exposure = rows()
    plain = prior(likelihoods.Poisson()).condition(x[:20], y[:20])
    with pytest.raises(DomainError, match="`exposure` must be known of all rows or of none, got none of the 20 before"):
        plain.append(x[20:], y[20:], exposure=exposure[20:])
    known = prior(likelihoods.Poisson(exposure=exposure[:20])).condition(x[:20], y[:20])
    with pytest.raises(DomainError, match="got that of the 20 before alone; pass exposure= with them"):
        known.append(x[20:], y[20:])
    with pytest.raises(ShapeError, match="`exposure` must have one entry per new row"):
        known.append(x[20:], y[20:], exposure=exposure[:3])
    with pytest.raises(DomainError, match="`depth` is no number of rows of Poisson"):
        known.append(x[20:], y[20:], depth=exposure[20:])
    with pytest.raises(DomainError, match="`exposure` is no number of rows that Gaussian takes"):
        prior(likelihoods.Gaussian(0.1)).condition(x[:20], y[:20]).append(x[20:], y[20:], exposure=exposure[20:])
    trials = prior(likelihoods.Binomial(exposure[:20])).condition(x[:20], y[:20])
    with pytest.raises(DomainError, match="must be a whole number from 0 to trials"):
        trials.append(x[20:21], exposure[20:21] + 1.0, trials=exposure[20:21])


def test_a_number_of_trials_for_all_rows_is_not_that_of_new_observations() -> None:
    x, y, _ = rows()
    post = prior(likelihoods.Binomial(9)).condition(x, y)
    p, others = post.predict(x[:2]), torch.tensor([1.0, 36.0], dtype=F64)
    found = p.given(trials=others)
    torch.testing.assert_close(found.observation_mean, p.observation_mean * others / 9.0)
    each = prior(likelihoods.Binomial(torch.full((30,), 9.0))).condition(x, y).predict(x[:2]).given(trials=others)
    torch.testing.assert_close(found.log_prob(others), each.log_prob(others))
    assert torch.equal(found.quantile(0.9), each.quantile(0.9))
    torch.testing.assert_close(post.predict(x[:2]).observation_mean, p.observation_mean)  # it stays 9
    with pytest.raises(DomainError, match=r"`trials` must be whole numbers, got 1.5 at row 0"):
        p.given(trials=[1.5, 2.0])
    with pytest.raises(DomainError, match="`trials` is no number of rows of Binomial"):
        post.append(x[:1], y[:1], trials=[12])
