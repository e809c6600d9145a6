"""The numbers of GPRegressor: against scikit-learn's, against closed forms, and in any units."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.kernels.default import DEFAULT
from flashgp.units import ColumnScaling

GENERATOR_SEED = 3


def table(n: int = 30, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(GENERATOR_SEED)
    x = generator.uniform(-2.0, 2.0, (n, d))
    return x, np.sin(2.0 * x[:, 0]) + 0.5 * x[:, -1] + 0.1 * generator.standard_normal(n)


class Rates(fgp.likelihoods.Likelihood):
    """Another likelihood than Gaussian noise."""

    log_prob = predictive = expected_log_prob = None


def given(noise: float = 0.05, d: int = 3, **options: Any) -> fgp.GPRegressor:
    """Fixed parameters."""
    kernel = 1.7 * fgp.kernels.Matern(2.5, torch.linspace(0.8, 1.6, d))
    likelihood = fgp.likelihoods.Gaussian(noise)
    return fgp.GPRegressor(kernel, mean=fgp.means.Zero(), likelihood=likelihood, optimise=False, **options)


@pytest.fixture(scope="module")
def diabetes() -> tuple[np.ndarray, ...]:
    x, y = load_diabetes(return_X_y=True)
    x = (x - x[:150].mean(0)) / x[:150].std(0)
    return x[:150], y[:150], x[150:200]


def test_equals_scikit_learn_at_equal_parameters(diabetes: tuple[np.ndarray, ...]) -> None:
    x, y, x_test = diabetes
    scales = np.linspace(2.0, 5.0, 10)
    theirs = GaussianProcessRegressor(
        ConstantKernel(1.3) * Matern(scales, nu=2.5) + WhiteKernel(0.4), alpha=0.0, optimizer=None, normalize_y=True
    ).fit(x, y)
    ours = fgp.GPRegressor(
        1.3 * fgp.kernels.Matern(2.5, torch.from_numpy(scales)), mean=fgp.means.Zero(),
        likelihood=fgp.likelihoods.Gaussian(0.4), optimise=False,
    ).fit(x, y)  # fmt: skip
    for option in ("return_std", "return_cov"):
        for got, wanted in zip(
            ours.predict(x_test, **{option: True}), theirs.predict(x_test, **{option: True}), strict=True
        ):
            rounding = 100 * np.finfo(float).eps * np.abs(wanted).max()  # small entries are differences of large ones
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=rounding)
    np.testing.assert_allclose(ours.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_, rtol=1e-10)
    theta = theirs.kernel_.theta + np.linspace(-0.3, 0.4, 12)
    for got, wanted in zip(
        ours.log_marginal_likelihood(theta, True), theirs.log_marginal_likelihood(theta, True), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-8)
    assert ours.log_marginal_likelihood(theirs.kernel_.theta) == pytest.approx(
        ours.log_marginal_likelihood(), rel=1e-12
    )
    assert ours.log_marginal_likelihood(eval_gradient=True)[1].shape == (12,)


def test_latent_and_observed() -> None:
    x, y = table()
    model = given(0.3).fit(x, y)
    noise = 0.3 * y.var()
    observed, latent = (model.predict(x[:4] + 0.1, return_std=True, latent=flag)[1] for flag in (False, True))
    np.testing.assert_allclose(observed**2 - latent**2, noise)
    covariance = model.predict(x[:4] + 0.1, return_cov=True)[1]
    np.testing.assert_allclose(covariance.diagonal(), observed**2)
    np.testing.assert_allclose(
        covariance - model.predict(x[:4] + 0.1, return_cov=True, latent=True)[1], noise * np.eye(4), atol=1e-12
    )
    with pytest.raises(RuntimeError, match="must not both"):
        model.predict(x, return_std=True, return_cov=True)


def test_the_report_has_the_standard_error_of_the_likelihood() -> None:
    x, y = table(120)
    iterative = given(0.05, solver="cg").fit(x, y)
    assert iterative.report_.standard_error > 0.0
    assert len(of_kind(iterative.report_.events, EventKind.LOG_DETERMINANT)) == 1
    assert given(0.05).fit(x, y).report_.standard_error is None
    limited = given(0.05, solver="cg", time_limit=60.0).fit(x, y)
    assert limited.report_.standard_error is None, "estimated when it is asked for, which no time limit counts"
    assert limited.log_marginal_likelihood_value_ == iterative.log_marginal_likelihood_value_
    assert limited.report_.standard_error == iterative.report_.standard_error


def test_deviations_come_as_they_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    x, y = table(120)
    model = given(0.05, solver="cg").fit(x, 3.0 * y)
    exact = model.predict(x[:20] + 0.1, return_std=True, variance="exact")
    assert not caplog.records
    with caplog.at_level("INFO", logger="flashgp.predict"):
        mean, sampled = model.predict(x[:20] + 0.1, return_std=True, latent=True, variance="sampled")
    assert caplog.records[-1].args[0].kind is EventKind.VARIANCE_BY_SAMPLES
    np.testing.assert_array_equal(mean, exact[0])
    wanted = model.predict(x[:20] + 0.1, return_std=True, latent=True)[1]
    assert not np.array_equal(sampled, wanted)
    np.testing.assert_allclose(sampled, wanted, rtol=0.4)
    for options in ({"return_std": True, "variance": "quick"}, {"return_cov": True, "variance": "sampled"}):
        with pytest.raises(ValueError, match="`variance` must be"):
            model.predict(x, **options)
    unfitted = fgp.GPRegressor().predict(x, return_std=True, latent=True, variance="sampled")[1]
    prior = DEFAULT.build(x.shape[1])(torch.from_numpy(x)).diagonal().detach()
    np.testing.assert_allclose(unfitted**2, prior, rtol=1e-12)


# -- weights ----------------------------------------------------------------------------------------------------
def test_a_weight_is_a_repetition() -> None:
    x, y = table(20)
    counts = np.arange(20) % 4
    repeated_x, repeated_y = x.repeat(counts, axis=0), y.repeat(counts)
    weighted, repeated = given().fit(x, y, counts), given().fit(repeated_x, repeated_y)
    np.testing.assert_array_equal(weighted.predict(x), repeated.predict(x))
    # ... and the repetition is what the GP says of all rows, likelihood and gradient included.
    units = repeated.scaling_
    x_all, y_all = torch.from_numpy(units.x(repeated_x)), torch.from_numpy(units.y(repeated_y))
    np.testing.assert_allclose((y_all.mean(), y_all.std(correction=0)), (0.0, 1.0), atol=1e-12)
    plain = repeated.gp_
    plain = fgp.GP(plain.kernel, plain.mean, fgp.likelihoods.Gaussian(plain.likelihood.noise_variance))
    exact = plain.log_marginal_likelihood(x_all, y_all)
    assert repeated.log_marginal_likelihood_value_ == pytest.approx(exact.item(), rel=1e-10)
    exact.backward()
    wanted = torch.cat([p.grad.reshape(-1) for p in plain.parameters()]).numpy()
    np.testing.assert_allclose(repeated.log_marginal_likelihood(eval_gradient=True)[1], wanted, rtol=1e-8)
    np.testing.assert_allclose(
        repeated.predict(x),
        units.target.mean(plain.condition(x_all, y_all).predict(units.x(x)).mean.numpy()),
        rtol=1e-9,
    )
    assert weighted.X_train_.shape == (15, 3)
    assert of_kind(repeated.report_.events, EventKind.ROWS_JOINED)[0].fields["distinct"] == 15


def test_row_variances_are_for_the_rows_passed() -> None:
    x, y = table(12)
    variances = np.linspace(0.0, 3.0, 12)
    noisy = fgp.GPRegressor(
        fgp.kernels.RBF(1.0), likelihood=fgp.likelihoods.Gaussian(0.1, row_variance=variances), optimise=False
    )
    gap = y.copy()
    gap[3] = np.nan
    with pytest.warns(fgp.FlashGPWarning, match="the first is row 3"):
        dropped = copy.deepcopy(noisy).set_params(missing="drop").fit(x, gap)
    kept = dropped.gp_.likelihood.row_variance.numpy() * dropped.scaling_.target.scale**2
    np.testing.assert_allclose(kept, np.delete(variances, 3), rtol=1e-14)
    weighted = copy.deepcopy(noisy).fit(x, y, np.arange(12.0) % 2)
    kept = weighted.gp_.likelihood.row_variance.numpy() * weighted.scaling_.target.scale**2
    np.testing.assert_allclose(kept, variances[1::2], rtol=1e-14)
    assert noisy.likelihood.row_variance.shape == (12,)
    with pytest.raises(fgp.ShapeError, match="row_variance"):
        noisy.fit(x[:5], y[:5])


def test_row_variances_are_in_units_of_y_squared() -> None:
    """Equal row variances are that noise variance, in units of y; and units of y change no answer but its own."""
    x, y = table(25)
    noise = 0.04
    for scale in (1.0, 1e3):
        known = fgp.GPRegressor(
            1.7 * fgp.kernels.Matern(2.5, torch.linspace(0.8, 1.6, 3)), mean=fgp.means.Zero(), optimise=False,
            likelihood=fgp.likelihoods.Gaussian(None, row_variance=np.full(25, noise * scale**2)),
        ).fit(x, scale * y)  # fmt: skip
        wanted = given(noise / y.var()).fit(x, scale * y)
        for got, expected in zip(
            known.predict(x + 0.1, return_std=True, latent=True),
            wanted.predict(x + 0.1, return_std=True, latent=True), strict=True,
        ):  # fmt: skip
            np.testing.assert_allclose(got, expected, rtol=1e-9)
    rows = {"likelihood": fgp.likelihoods.Gaussian(0.1, row_variance=np.ones(25))}
    with pytest.raises(fgp.DomainError, match='`target_transform` must be "auto" or "none" beside a row_variance'):
        fgp.GPRegressor(target_transform="log", **rows).fit(x, np.exp(y))
    with pytest.raises(fgp.DomainError, match="standardised one by one, got scales"):
        fgp.GPRegressor(**rows).fit(x, np.stack([y, 9.0 * y], axis=1))
    same = fgp.GPRegressor(standardise="x", optimise=False, **rows).fit(x, np.stack([y, 9.0 * y], axis=1))
    np.testing.assert_array_equal(same.gp_.likelihood.row_variance.numpy(), np.ones(25))


# -- units ------------------------------------------------------------------------------------------------------
def test_answers_do_not_depend_on_units() -> None:
    x, y = table(25, 4)
    expected = fgp.GPRegressor(starts=1, max_iterations=30).fit(x, y).predict(x[:7] + 0.05, return_std=True)
    scales = np.array([1e-8, 1e8, 1.0, 1e-3])
    model = fgp.GPRegressor(starts=1, max_iterations=30).fit(x * scales, y * 1e12 + 1e15)
    mean, std = model.predict((x[:7] + 0.05) * scales, return_std=True)
    np.testing.assert_allclose((mean - 1e15) / 1e12, expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(std / 1e12, expected[1], rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, -1e-9, 3e300])
def test_constant_targets(value: float) -> None:
    x, _ = table(10)
    mean, std = (
        fgp.GPRegressor(starts=1, max_iterations=20).fit(x, np.full(10, value)).predict(x + 0.5, return_std=True)
    )
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    assert np.isfinite(std).all()
    assert (std < max(abs(value), 1.0) * 2.0).all()


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_rows(count: int) -> None:
    x, y = table(count)
    mean, std = fgp.GPRegressor().fit(x, y).predict(x, return_std=True)
    assert np.isfinite([mean, std]).all()
    if count == 1:
        np.testing.assert_allclose(mean, y)


def test_standardisation_options() -> None:
    x, y = table(20)
    x, y = 50.0 + 3.0 * x, 7.0 + 4.0 * y
    for option, centred_x, centred_y in (
        ("both", True, True),
        ("x", True, False),
        ("y", False, True),
        ("none", False, False),
    ):
        post = given(standardise=option).fit(x, y).posterior_
        np.testing.assert_allclose(post.x.mean(0), 0.0 if centred_x else x.mean(0), atol=1e-12)
        np.testing.assert_allclose(post.y.std(correction=0), 1.0 if centred_y else y.std())


def test_code_columns_keep_their_codes() -> None:
    x, y = table(20, 2)
    codes = np.arange(20.0) % 3
    rows = np.column_stack([x, codes])
    kernel = fgp.kernels.Matern(2.5, 1.0, active_dims=[0, 1]) * fgp.kernels.Categorical(1.0, active_dims=[-1])
    model = fgp.GPRegressor(kernel, starts=1, max_iterations=5).fit(rows, y + codes)
    np.testing.assert_array_equal(model.posterior_.x[:, 2], codes)
    assert abs(float(model.posterior_.x[:, 0].mean())) < 1e-12
    assert model.score(rows, y + codes) > 0.5


def test_standardisation_keeps_digits_at_the_ends_of_the_range() -> None:
    base = np.random.default_rng(0).standard_normal((50, 1))
    for scale, offset in ((1.0, 1e12), (1e300, 0.0), (1e-300, 0.0), (1e-8, 1e-3)):
        values = base * scale + offset
        units = ColumnScaling.of(values)
        standard = units.apply(values)
        assert abs(standard.mean()) < 1e-12 + np.finfo(float).eps * offset / scale  # of the offset itself
        assert standard.std() == pytest.approx(1.0, rel=1e-12 + (np.finfo(float).eps * offset / scale) ** 2)
        np.testing.assert_allclose(units.undo(standard), values, rtol=1e-15, atol=4e-16 * abs(scale))
    many = 1e6 + np.random.default_rng(0).standard_normal((200_000, 2))
    assert abs(ColumnScaling.of(many).offset[0] - math.fsum(many[:, 0]) / 200_000) <= 2.0 * math.ulp(1e6)
    counts = np.arange(1, 51)
    repeated = ColumnScaling.of(base.repeat(counts, axis=0))
    weighted = ColumnScaling.of(base, counts.astype(float))
    np.testing.assert_allclose((weighted.offset, weighted.scale), (repeated.offset, repeated.scale), rtol=1e-13)


# -- dtypes, missing rows, refusals -----------------------------------------------------------------------------
def test_answers_have_the_precision_of_the_points() -> None:
    x, y = table()
    model = given().fit(x.astype(np.float32), y.astype(np.float32))
    for answer in (*model.predict(x.astype(np.float32), return_std=True), model.sample_y(x[:2].astype(np.float32))):
        assert answer.dtype == np.float32
    assert model.predict(x).dtype == np.float64
    assert model.predict(x[:0]).shape == (0,)
    whole = given().fit(np.rint(x).astype(int), y)
    assert whole.predict(np.rint(x).astype(np.int32)).dtype == np.float64
    np.testing.assert_allclose(given(dtype="float32").fit(x, y).predict(x), given().fit(x, y).predict(x), atol=1e-4)
    assert given(dtype=torch.float32).fit(x, y).report_.dtype == "float32"


def test_missing_rows_are_dropped_on_request() -> None:
    x, y = table(12)
    broken_x, broken_y, weights = x.copy(), y.copy(), np.full(12, 2.0)
    broken_x[4, 1], broken_y[9], weights[10] = np.nan, np.nan, np.nan
    with pytest.warns(
        fgp.FlashGPWarning, match="3 of 12 rows have a missing value and were dropped, the first is row 4"
    ):
        model = given(missing="drop").fit(broken_x, broken_y, weights)
    kept = [0, 1, 2, 3, 5, 6, 7, 8, 11]
    np.testing.assert_array_equal(model.X_train_, x[kept])
    np.testing.assert_array_equal(model.y_train_, y[kept])
    np.testing.assert_array_equal(model.predict(x), given().fit(x[kept], y[kept], weights[kept]).predict(x))
    with pytest.warns(fgp.FlashGPWarning, match="1 of 12 rows have a missing value and get NaN, the first is row 4"):
        mean, covariance = model.predict(broken_x, return_cov=True)
    expected = model.predict(x, return_cov=True)
    others = np.arange(12) != 4
    assert np.isnan(mean[4])
    assert np.isnan(covariance[4]).all()
    assert np.isnan(covariance[:, 4]).all()
    np.testing.assert_allclose(mean[others], expected[0][others], rtol=1e-12)
    np.testing.assert_allclose(covariance[np.ix_(others, others)], expected[1][np.ix_(others, others)], atol=1e-12)
    with pytest.warns(fgp.FlashGPWarning, match="get NaN"):
        assert np.isnan(model.sample_y(broken_x, 2)).sum() == 2
    with pytest.raises(fgp.DomainError, match=r"got NaN at row 4 and column 1; fill it in, or pass missing"):
        given().fit(x, y).predict(broken_x)
    broken_x[0, 0] = np.inf
    with pytest.raises(fgp.DomainError, match="got inf at row 0 and column 0"), pytest.warns(fgp.FlashGPWarning):
        given(missing="drop").fit(broken_x, broken_y)
    with pytest.raises(fgp.DomainError, match="at least one row without a missing value"):
        given(missing="drop").fit(np.full((4, 3), np.nan), y[:4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: given().fit(x, np.full((30, 2), np.nan)), "must have a value in every row, got none in row 0"),
        (lambda x, y: given().fit(x, y, -np.ones(30)), "`sample_weight` must be 0 or more, got -1 at row 0"),
        (lambda x, y: given().fit(x, y, np.zeros(30)), "positive for at least one row"),
        (lambda x, y: given().fit(x, y, np.ones((30, 1))), r"`sample_weight` must have shape \(30,\)"),
        (lambda x, y: given().fit(x, y, np.full(30, np.nan)), "`sample_weight` must be finite, got NaN at row 0"),
        (lambda x, y: given(d=2).fit(x, y), "`lengthscale` of Matern must have one entry or 3"),
        (lambda x, y: given(missing="ignore").fit(x, y), r"`missing` must be one of \('error', 'drop'\), got 'ignore'"),
        (lambda x, y: given(dtype="float16").fit(x, y), "`dtype` must be None, 'float64' or 'float32', got 'float16'"),
        (
            lambda x, y: fgp.GPRegressor(likelihood=Rates()).fit(x, y),
            "`likelihood` must be None or .* got Rates; fit classes",
        ),
        (lambda x, y: fgp.GPRegressor("matern").fit(x, y), "`kernel` must be a covariance function, got str"),
        (
            lambda x, y: fgp.GPRegressor(torch.ones(2) * fgp.kernels.RBF(1.0)).fit(x, y),
            r"must describe one model, got parameters of batch shape \(2,\)",
        ),
        (lambda x, y: given().fit(x, y).predict(x[:, :2]), "X has 2 features, but GPRegressor is expecting 3"),
        (lambda x, y: given().fit(x, y).log_marginal_likelihood([0.0]), r"`theta` must have shape \(5,\)"),
    ],
)
def test_refusals(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change(*table())


def test_noise_free_conflicts_are_refused() -> None:
    x = np.zeros((4, 1))
    with pytest.raises(fgp.NotPositiveDefiniteError):
        given(0.0, d=1).fit(x, np.arange(4.0))
    model = given(0.0, d=1, jitter=1e-6).fit(x, np.arange(4.0))
    np.testing.assert_allclose(model.predict([[0.0]]), 1.5)


def test_a_solver_by_name() -> None:
    """Iterative solves give the predictions of a factor, to the tolerance."""
    x, y = table()
    exact, iterative = given().fit(x, y), given(solver="cg", tolerance=1e-6).fit(x, y)
    assert iterative.posterior_.plan.solver == "cg"
    assert iterative.posterior_.factor is None
    np.testing.assert_allclose(iterative.predict(x), exact.predict(x), atol=1e-5 * y.std())
    deviation = iterative.predict(x, return_std=True)[1]
    np.testing.assert_allclose(deviation, exact.predict(x, return_std=True)[1], rtol=0.01)
    with pytest.raises(fgp.DomainError, match="`solver` must be one of"):
        given(solver="quick").fit(x, y)


@pytest.mark.parametrize("case", ["repeated rows", "log"])
def test_columns_of_y_have_noise_of_their_own(case: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(0.0, 6.0, (120, 1))
    x = x.round(0) if case == "repeated rows" else x
    noise = np.array([0.05, 1.0])
    y = np.stack([np.sin(x[:, 0]), np.cos(x[:, 0])], axis=-1) + noise * generator.standard_normal((120, 2))
    if case == "log":
        y = np.exp(y)
    transform = "log" if case == "log" else "none"
    model = fgp.GPRegressor(starts=1, target_transform=transform).fit(x, y)
    found = model.gp_.likelihood.noise_variance.value.detach().numpy()
    scales = np.array([scaling.target.scale for scaling in model.scaling_])
    np.testing.assert_allclose(np.sqrt(found) * scales, noise, rtol=0.6)
    at = np.linspace(0.5, 5.5, 7)[:, None]
    _, latent = model.predict(at, return_std=True, latent=True)
    mean, std = model.predict(at, return_std=True)
    assert mean.shape == std.shape == latent.shape == (7, 2)
    _, covariance = model.predict(at, return_cov=True)
    assert covariance.shape == (7, 7, 2)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance).T), std, rtol=1e-6)
    assert model.sample_y(at, 3).shape == (7, 2, 3)
    assert len(model.predict_distribution(at)) == 2
    value = model.log_marginal_likelihood()
    again, gradient = model.log_marginal_likelihood(eval_gradient=True)
    assert again == pytest.approx(value, rel=1e-9)
    assert gradient.shape == (sum(p.numel() for p in model.gp_.parameters()),)
    if case != "log":
        np.testing.assert_allclose(std**2 - latent**2, np.broadcast_to(found * scales**2, (7, 2)), rtol=1e-6)
    shared = fgp.GPRegressor(likelihood=fgp.likelihoods.Gaussian(0.1, shared=True), starts=1).fit(x, y)
    assert shared.gp_.likelihood.noise_variance.value.shape == ()
    assert shared.posterior_.by_output == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_tensors_count_as_their_numbers(dtype: torch.dtype) -> None:
    """Also with a gradient, which numpy() refuses, and in bfloat16, which NumPy has not."""
    x = torch.arange(12).reshape(6, 2).remainder(5).to(dtype)
    y, weight = x.sum(1).double().sqrt(), torch.ones(6)
    x, y = (t.requires_grad_() if t.is_floating_point() else t for t in (x, y))
    model = fgp.GPRegressor(fgp.kernels.RBF(), optimise=False).fit(x, y, weight)  # type: ignore[arg-type]
    plain = x.detach().double().numpy()
    same = fgp.GPRegressor(fgp.kernels.RBF(), optimise=False).fit(plain, y.detach().numpy(), weight.numpy())
    assert np.allclose(model.predict(x), same.predict(plain), rtol=1e-6)


def test_weights_are_repetitions_where_columns_have_noise_of_their_own() -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(0.0, 6.0, (30, 1))
    y = generator.standard_normal((30, 2))
    weights = generator.integers(1, 4, 30)
    noise = fgp.likelihoods.Gaussian(torch.tensor([0.05, 1.0]), outputs=2)
    options = {"kernel": fgp.kernels.Matern(1.5), "likelihood": noise, "optimise": False, "target_transform": "none"}
    weighted = fgp.GPRegressor(**options).fit(x, y, weights)
    repeated = fgp.GPRegressor(**options).fit(x.repeat(weights, 0), y.repeat(weights, 0))
    at = np.linspace(0.5, 5.5, 7)[:, None]
    for one, other in zip(weighted.predict(at, return_std=True), repeated.predict(at, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    values = [model.log_marginal_likelihood(eval_gradient=True) for model in (weighted, repeated)]
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-9)
    np.testing.assert_allclose(values[0][1], values[1][1], rtol=1e-8)
    assert weighted.posterior_.gp.likelihood.outputs == 2
