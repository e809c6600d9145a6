"""Samples have the distribution they claim, and take from the caller's random numbers exactly what is said."""

import pytest
import torch

import flashgp as fgp
from inference.plain_gp import F64, data, model

COUNT = 4000


@pytest.mark.parametrize("observed", [False, True])
def test_moments_within_four_standard_errors(observed: bool) -> None:
    x, y = data(8)
    x_test, _ = data(5, seed=3)
    found = model().condition(x, y).predict(x_test)
    samples = found.sample(COUNT, observed=observed, seed=11)
    covariance = found.covariance(observed=observed)
    variance = covariance.diagonal()
    assert samples.shape == (COUNT, 5)
    assert bool(((samples.mean(0) - found.mean).abs() <= 4 * (variance / COUNT).sqrt()).all())
    centred = samples - found.mean
    measured = centred.mT @ centred / COUNT
    error = ((variance[:, None] * variance + covariance**2) / COUNT).sqrt()
    assert bool(((measured - covariance).abs() <= 4 * error).all())
    assert bool((measured - covariance).abs().max() > 0.1 * error.min()), "the test must be able to see an error"


def test_coverage_of_an_interval() -> None:
    """New observations fall into their 90 % interval as often as they should."""
    x, y = data(8)
    found = model().condition(x, y).predict(data(5, seed=3)[0])
    low, high = found.interval(0.9)
    samples = found.sample(COUNT, observed=True, seed=5)
    share = ((samples > low) & (samples < high)).double().mean(0)
    assert bool(((share - 0.9).abs() < 4 * (0.09 / COUNT) ** 0.5).all())


def test_outputs_and_batches_are_independent() -> None:
    x, y = data(6)
    gp = fgp.GP(torch.ones(2) * fgp.kernels.RBF(), outputs=2)
    samples = gp.condition(x, torch.stack([y, y], -1)).predict(data(3, seed=3)[0]).sample(COUNT, seed=1)
    assert samples.shape == (COUNT, 2, 3, 2)
    flat = samples[:, :, 0, :].reshape(COUNT, 4)  # one point, two models, two outputs
    correlation = torch.corrcoef(flat.mT) - torch.eye(4, dtype=F64)
    assert float(correlation.abs().max()) < 4 / COUNT**0.5


def test_a_seed_leaves_the_default_generator_alone() -> None:
    x, y = data(6)
    found = model().condition(x, y).predict(x)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, two = found.sample(3, seed=9), found.sample(3, seed=9)
    assert torch.equal(one, two)
    assert not torch.equal(one, found.sample(3, seed=10))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_one_integer_is_drawn() -> None:
    x, y = data(6)
    found = model().condition(x, y).predict(x)
    torch.manual_seed(3)
    samples = found.sample(3)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    drawn = int(torch.randint(2**63 - 1, ()).item())
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(samples, found.sample(3, seed=drawn))
    assert not torch.equal(samples, found.sample(3))


def test_all_else_draws_nothing() -> None:
    x, y = data(6)
    before = torch.get_rng_state()
    gp = model()
    posterior = gp.condition(x, y)
    found = posterior.predict(x)
    found.joint_log_prob(y)
    found.covariance()
    posterior.leave_one_out()
    gp.log_joint(x, y)
    fgp.fit(gp, x, y, max_iterations=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_counts() -> None:
    x, y = data(4)
    found = model().condition(x, y).predict(x)
    assert found.sample(0).shape == (0, 4)
    assert found.sample().shape == (1, 4)
    with pytest.raises(fgp.DomainError, match="`count` must be a whole number, 0 or more"):
        found.sample(-1)


@pytest.mark.parametrize("outputs", [None, 2])
def test_samples_of_what_is_certain_are_the_mean(outputs: int | None) -> None:
    """A line through 0 has no variance there; beside it, in a batch, points that have one are sampled as always."""
    x, y = data(4, 1)
    y = y if outputs is None else torch.stack([y, -y], -1)
    posterior = fgp.GP(2.0 * fgp.kernels.Linear(), fgp.means.Constant(0.5), outputs=outputs).condition(x, y)
    nothing = posterior.predict(torch.zeros(3, 1, dtype=F64))
    assert torch.equal(nothing.sample(2, seed=1), nothing.mean.expand(2, *nothing.mean.shape))
    assert bool((nothing.sample(2, observed=True, seed=1) != nothing.mean).all())
    both = torch.stack([torch.zeros(1, 1, dtype=F64), torch.ones(1, 1, dtype=F64)])
    samples = posterior.predict(both).sample(2, seed=1)
    assert torch.equal(samples[:, 0], posterior.predict(both).mean[0].expand(2, *samples.shape[2:]))
    assert bool((samples[:, 1] != posterior.predict(both).mean[1]).all())
