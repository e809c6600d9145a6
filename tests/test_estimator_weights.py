"""sample_weight of GPRegressor: relative precisions, eq. (M-251), or counts, eq. (M-87), and which the report says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind


def table(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, targets whose standard deviations differ by row, and these."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 4.0, (n, 2))
    error = 0.001 + 0.05 * rng.uniform(size=n)
    return x, np.sin(2.0 * x[:, 0]) + error * rng.normal(size=n), error


def quick(**options: Any) -> fgp.GPRegressor:
    return fgp.GPRegressor(**{"starts": 1, "target_transform": "none", **options})


AT = np.random.default_rng(1).uniform(0.5, 3.5, (50, 2))


@pytest.mark.parametrize("scale", [1e-6, 2.0, 1e3, 1e6])
def test_a_constant_weight_has_no_effect(scale: float) -> None:
    x, y, _ = table()
    model, plain = quick().fit(x, y, np.full(40, scale)), quick().fit(x, y)
    np.testing.assert_array_equal(model.predict(AT, return_std=True), plain.predict(AT, return_std=True))
    (event,) = of_kind(model.report_.events, EventKind.WEIGHTS_EQUAL)
    assert event.fields["weight"] == scale


def test_inverse_variances_are_as_good_as_known_variances() -> None:
    x, y, error = table(80)
    known = fgp.likelihoods.Gaussian(None, row_variance=error**2)
    wanted = quick(likelihood=known).fit(x, y).predict(AT)
    model = quick().fit(x, y, 1.0 / error**2)
    np.testing.assert_allclose(model.predict(AT), wanted, atol=0.02 * y.std())
    assert len(of_kind(model.report_.events, EventKind.WEIGHTS_RELATIVE)) == 1
    again = quick().fit(x, y, 1e-3 / error**2)
    np.testing.assert_allclose(again.predict(AT), model.predict(AT), rtol=1e-6, atol=1e-9)
    noise = model.gp_.likelihood.noise_variance.value.item() * y.var()  # of a typical row
    assert 0.5 < noise / np.exp(np.log(error**2).mean()) < 2.0


def test_weights_of_a_wrong_noise_do_no_harm() -> None:
    """Errors that were told too small and are not those of the targets, as in a user's table: .62 as counts."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 4, (40, 2))
    y, at = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=40), rng.uniform(0.5, 3.5, (50, 2))
    error = 0.001 + 0.05 * rng.uniform(size=40)
    mean = quick().fit(x, y, 1 / error**2).predict(at)
    assert np.sqrt(np.mean((mean - np.sin(2 * at[:, 0])) ** 2)) < 0.08


def test_whole_numbers_from_one_are_counts() -> None:
    x, y, _ = table(20)
    fixed = {"optimise": False, "kernel": fgp.kernels.Matern(1.5)}
    counts = np.arange(20) % 4  # rows of weight 0 are left out
    weighted, repeated = quick(**fixed).fit(x, y, counts), quick(**fixed).fit(x.repeat(counts, 0), y.repeat(counts))
    np.testing.assert_allclose(weighted.predict(AT), repeated.predict(AT), rtol=1e-12)
    (event,) = of_kind(weighted.report_.events, EventKind.WEIGHTS_COUNTED)
    assert event.fields["most"] == 3.0
    for other in (counts / 2, 10 * counts, counts + 1.5 * (counts > 0)):
        assert len(of_kind(quick(**fixed).fit(x, y, other).report_.events, EventKind.WEIGHTS_RELATIVE)) == 1
    halved = quick(**fixed).fit(x, y, counts / 2)  # the way out that the report names
    np.testing.assert_allclose(quick(**fixed).fit(x, y, counts / 7).predict(AT), halved.predict(AT), rtol=1e-9)


def test_weights_beside_those_of_the_likelihood() -> None:
    x, y, error = table(30)
    own = np.linspace(1.0, 9.0, 30)
    both = quick(likelihood=fgp.likelihoods.Gaussian(0.1, row_weight=own), optimise=False).fit(x, y, 1 / error**2)
    product = quick(likelihood=fgp.likelihoods.Gaussian(0.1), optimise=False).fit(x, y, own / error**2)
    np.testing.assert_allclose(both.predict(AT), product.predict(AT), rtol=1e-10)
    alone = quick(likelihood=fgp.likelihoods.Gaussian(None, row_variance=error**2))
    with pytest.raises(fgp.DomainError, match="`sample_weight` needs a noise_variance, which it divides"):
        alone.fit(x, y, own)
    out = quick(likelihood=fgp.likelihoods.Gaussian(0.1, row_variance=error**2), optimise=False)
    assert np.isfinite(out.fit(x, y, own).predict(AT)).all()  # the way out
    np.testing.assert_array_equal(alone.fit(x, y, np.ones(30)).predict(AT), alone.fit(x, y).predict(AT))


@pytest.mark.parametrize("likelihood", [None, fgp.likelihoods.Gaussian(0.2)])
def test_weights_of_a_fit_are_no_argument_of_the_next(likelihood: Any, tmp_path: Path) -> None:
    x, y, error = table(30)
    model = quick(likelihood=likelihood, optimise=False).fit(x, y, 1 / error**2)
    fgp.save(model, tmp_path / "model.safetensors")
    loaded = fgp.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(AT), model.predict(AT))
    np.testing.assert_allclose(loaded.fit(x, y, 1 / error**2).predict(AT), model.predict(AT), rtol=1e-12)
    if likelihood is not None:
        assert loaded.likelihood.row_weight is None


def test_weights_of_an_approximation() -> None:
    x, y, error = table(60)
    options = {"optimise": False, "likelihood": fgp.likelihoods.Gaussian(0.05, shared=True)}
    exact = quick(**options).fit(x, y, 1 / error**2).predict(AT)
    for how in ({"approximation": "full_scale", "neighbours": 60}, {"approximation": "sparse"}):
        near = quick(**options, **how, inducing=60).fit(x, y, 1 / error**2).predict(AT)
        np.testing.assert_allclose(near, exact, atol=1e-3)
    same = quick(**options, approximation="sparse", inducing=20).fit(x, y, np.full(60, 7.0)).predict(AT)
    np.testing.assert_array_equal(same, quick(**options, approximation="sparse", inducing=20).fit(x, y).predict(AT))
