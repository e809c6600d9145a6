"""Data and parameters of extreme scale: the answer of ordinary data where float64 can hold it, else one sentence."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.inference.extent import check_answer
from inference.plain_gp import F64, relative

k, lik = fgp.kernels, fgp.likelihoods
HUGE, TINY = 2.0**498, 2.0**-498  # 8e149 and 1e-150: powers of two, so that scaling rounds nothing


def table(n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    return x, (4 * x[:, 0]).sin() + 0.1 * torch.randn(n, generator=generator, dtype=F64)


KERNELS = {
    "matern": lambda: 1.0 * k.Matern(),
    "default": lambda: 1.0 * k.Matern() + k.Linear(),
    "rational quadratic": lambda: 1.0 * k.RationalQuadratic(),
}


# -- fits ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("of_x", "of_y"), [*itertools.product((HUGE, TINY), (1.0, HUGE, TINY)), (1.0, HUGE), (1.0, TINY)]
)
def test_a_fit_of_scaled_data_is_that_of_the_data(kernel: str, of_x: float, of_y: float) -> None:
    """To the tolerance of its search; a slope of 1e300 has no variance, and that is said."""
    x, y = table()

    def mean(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return fgp.fit(fgp.GP(KERNELS[kernel]()), x, y, starts=1).posterior.predict(x[:5]).mean / scale

    if kernel == "default" and {of_x, of_y} == {HUGE, TINY}:
        with pytest.raises(fgp.DomainError, match="`x` and `y` must be of scales"):
            mean(x * of_x, y * of_y, of_y)
    else:
        assert relative(mean(x * of_x, y * of_y, of_y), mean(x, y, 1.0)) < 1e-3


@pytest.mark.parametrize("scale", [1e160, 1e200, 1e300, 1e-160, 1e-300])
def test_a_fit_of_targets_whose_variance_is_no_number_is_refused(scale: float) -> None:
    x, y = table()
    with pytest.raises(fgp.DomainError, match="`y` must have a variance that float64 holds"):
        fgp.fit(fgp.GP(k.Matern()), x, y * scale, starts=1)


@pytest.mark.parametrize("scale", [1e160, 1e300, 1e-160, 1e-300])
def test_a_fit_of_inputs_whose_squares_are_no_numbers(scale: float) -> None:
    x, y = table()
    wanted = fgp.fit(fgp.GP(1.0 * k.Matern()), x, y, starts=1).posterior.predict(x[:5]).mean
    found = fgp.fit(fgp.GP(1.0 * k.Matern()), x * scale, y, starts=1).posterior.predict(x[:5] * scale).mean
    assert relative(found, wanted) < 1e-3


@pytest.mark.parametrize("name", ["regressor", "x"])
@pytest.mark.parametrize("scale", [1e160, 1e300, 1e-160, 1e-300])
def test_an_estimator_takes_every_scale(name: str, scale: float) -> None:
    x, y = (t.numpy() for t in table())
    of_x, of_y = (scale, 1.0) if name == "x" else (1.0, scale)
    wanted = fgp.GPRegressor(starts=1).fit(x, y).predict(x[:5])
    found = fgp.GPRegressor(starts=1).fit(x * of_x, y * of_y).predict(x[:5] * of_x) / of_y
    assert abs(found - wanted).max() < 1e-3


# -- given parameters ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_rows_far_apart_have_the_posterior_of_independent_ones(solver: str) -> None:
    """1e150 lengthscales apart; a float32 product overflows there."""
    x, y = table()
    post = fgp.GP(k.Matern(), likelihood=lik.Gaussian(0.1)).condition(x * HUGE, y, solver=solver)
    assert relative(post.predict(x[:5] * HUGE).mean, y[:5] / 1.1) < 1e-3


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("kernel", [k.Matern, k.Linear, lambda: k.Matern() + k.Linear(), lambda: k.Polynomial(2)])
def test_what_has_no_covariance_is_refused(kernel: Callable[[], k.Kernel], solver: str) -> None:
    x, y = table()
    with pytest.raises(fgp.DomainError, match=r"`x` .* must have a square that float64 holds, got 9.9.*e.159 at row"):
        fgp.GP(kernel()).condition(x * 1e160, y, solver=solver)
    post = fgp.GP(kernel()).condition(x, y, solver=solver)
    for answer in ("mean", "variance"):
        for points in (x[:3], x):  # few points go another way
            with pytest.raises(fgp.DomainError, match="`x_test`"):
                getattr(post.predict(points * 1e160), answer)


def test_a_covariance_that_overflows_is_refused() -> None:
    x, y = table()
    for solver in ("cholesky", "cg"):
        post = fgp.GP(k.Polynomial(2)).condition(x, y, solver=solver)
        with pytest.raises(fgp.DomainError, match="`x_test` must be points at which covariances are float64 numbers"):
            post.predict(x * 1e150).variance  # noqa: B018 - computed when asked for


def test_answers_whose_sum_alone_overflows_are_given() -> None:
    answers = torch.full((2, 3, 1), 1e308, dtype=F64)
    check_answer(answers, "x_test")
    answers[1, 2] = torch.inf
    with pytest.raises(fgp.DomainError, match="without mean or variance at row 2"):
        check_answer(answers, "x_test")
    check_answer(answers[:0], "x_test")


# -- parameters that leave float64 --------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [1e-300, 1e300])
def test_a_fit_of_few_rows_that_say_nothing(given: float) -> None:
    """Steps to lengthscales of 0 and variances of 1e300 are rejected points of the search, not errors of Python."""
    generator = torch.Generator().manual_seed(445)
    codes, more = torch.randint(0, 2, (7, 2), generator=generator), torch.rand(7, 1, generator=generator, dtype=F64)
    x, y = torch.cat([codes, more], dim=1), torch.randn(7, generator=generator, dtype=F64)
    for kernel, likelihood in (
        (k.Coregionalization(3, active_dims=[0]) * k.Categorical(active_dims=[1]), lik.Gaussian(1e-308)),
        (k.Categorical(active_dims=[1]) * k.Constant(given), lik.Gaussian(None, row_variance=torch.full((7,), 0.1))),
        (given * k.RationalQuadratic(active_dims=[2]) * k.Matern(nu=0.5), lik.Gaussian(0.1)),
    ):
        for rows, initial in ((x, "data"), (x * 1e300, "given")):
            gp = fgp.GP(kernel, likelihood=likelihood)
            try:
                fit = fgp.fit(gp, rows.clamp(max=1e300), y, starts=2, initial=initial, priors="given", max_iterations=8)
            except (fgp.NotPositiveDefiniteError, fgp.DomainError):
                continue
            assert bool(fit.posterior.predict(rows).mean.isfinite().all())
