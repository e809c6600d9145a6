"""Two classes: Bernoulli likelihoods through inference, their predictions, and what they refuse."""

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.likelihoods import Bernoulli

F64 = torch.float64
X = torch.linspace(0.0, 1.0, 24, dtype=F64)[:, None]
Y = (torch.sin(9.0 * X[:, 0]) > 0.2).to(F64)


def model(likelihood: Bernoulli) -> fgp.GP:
    return fgp.GP(4.0 * fgp.kernels.Matern(lengthscale=0.3), fgp.means.Constant(0.1), likelihood)


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_a_row_twice_is_a_row_of_weight_two(link: str) -> None:
    weight = 1.0 + (torch.arange(24) % 2)
    index = torch.arange(24).repeat_interleave(weight.long())
    weighted = model(Bernoulli(link, row_weight=weight)).condition(X, Y)  # type: ignore[arg-type]
    twice = model(Bernoulli(link)).condition(X[index], Y[index])  # type: ignore[arg-type]
    one, other = (post.predict(X[:5] + 0.01) for post in (weighted, twice))
    assert torch.allclose(one.mean, other.mean, rtol=0.0, atol=2e-3)
    assert torch.allclose(one.probability, other.probability, rtol=0.0, atol=2e-4)
    bounds = [float(post.log_marginal_likelihood()) for post in (weighted, twice)]
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-3)


def test_predictions_are_of_classes() -> None:
    p = model(Bernoulli()).condition(X, Y).predict(X)
    right = torch.special.ndtr(p.mean / (1.0 + p.variance).sqrt())
    assert torch.allclose(p.probability, right, rtol=1e-12)
    assert torch.equal(p.observation_mean, p.probability)
    assert torch.allclose(p.observation_variance, right * (1.0 - right), rtol=1e-9)
    assert torch.allclose(p.log_prob(Y).exp(), torch.where(Y == 1.0, right, 1.0 - right), rtol=1e-9)
    assert torch.equal(p.quantile(0.5), (right > 0.5).to(F64))
    drawn = p.sample(2000, observed=True, seed=0)
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    assert float((drawn.mean(0) - right).abs().max()) < 4.0 * 0.5 / 2000**0.5
    assert model(Bernoulli()).condition(X, Y).leave_one_out().log_prob.max() < 0.0


def test_a_likelihood_says_what_it_is() -> None:
    assert repr(Bernoulli("logit")).startswith("Bernoulli(link='logit'")
    likelihood = Bernoulli()
    likelihood.set_params(link="logit")
    assert likelihood.get_params()["link"] == "logit"


def test_probabilities_belong_to_classes() -> None:
    with pytest.raises(DomainError, match="must be of classes"):
        _ = fgp.GP(fgp.kernels.Matern()).condition(X, Y).predict(X).probability


def test_labels_and_weights_are_checked_by_row() -> None:
    labels = Y.clone()
    labels[3] = 2.0
    post = model(Bernoulli()).condition(X, Y)
    for call in (
        lambda: model(Bernoulli()).condition(X, labels),
        lambda: fgp.fit(model(Bernoulli()), X, labels),
        lambda: post.append(X[:4], labels[:4]),
        lambda: post.predict(X).log_prob(labels),
    ):
        with pytest.raises(DomainError, match=r"must be 0 or 1 for Bernoulli, got 2 in row 3; .*labels.max"):
            call()
    with pytest.raises(DomainError, match="0 or more, got -1 at row 1"):
        Bernoulli(row_weight=[1.0, -1.0])
    with pytest.raises(DomainError, match="positive somewhere, got 2 zeros"):
        Bernoulli(row_weight=[0.0, 0.0])
    with pytest.raises(ShapeError, match="one entry per training row"):
        model(Bernoulli(row_weight=torch.ones(3))).condition(X, Y)
    with pytest.raises(DomainError, match="'probit' or 'logit'"):
        Bernoulli("cloglog")  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [1, 17])
def test_labels_that_are_read_are_checked_by_row(row: int) -> None:
    labels = Y.clone()
    labels[row] = 3.0
    batches = [(X[:10], labels[:10]), (X[10:], labels[10:])]
    with pytest.raises(DomainError, match=f"got 3 in row {row}; number the classes"):
        model(Bernoulli()).condition(batches, inducing=6)


def test_a_row_of_weight_zero_says_nothing_whatever_its_label() -> None:
    weight = torch.ones(24, dtype=F64)
    weight[5], labels = 0.0, Y.clone()
    labels[5] = 1.0 - labels[5]
    kept = torch.arange(24) != 5
    one = model(Bernoulli(row_weight=weight)).condition(X, labels).predict(X).mean
    other = model(Bernoulli()).condition(X[kept], Y[kept]).predict(X).mean
    assert torch.allclose(one, other, rtol=0.0, atol=1e-3)


def test_appended_rows_have_weights() -> None:
    one, other = (
        model(Bernoulli(row_weight=torch.ones(20))).condition(X[:20], Y[:20]).append(X[20:], Y[20:], row_weight=weight)
        for weight in (torch.full((4,), 5.0), torch.ones(4))
    )
    sure, less = (post.predict(X[21:23]).probability for post in (one, other))
    assert torch.equal(sure > 0.5, less > 0.5)
    assert bool(((sure - 0.5).abs() > (less - 0.5).abs() + 0.02).all())
