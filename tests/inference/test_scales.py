"""Data and parameters of extreme scale, or no numbers at all: the answer of ordinary data, or one sentence."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind, of_kind
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


# -- parameters that leave float64 --------------------------------------------------------------------------------


X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
Y = torch.sin(3 * X[:, 0])


class NanAt(nn.Module):
    """Columns, or the first one, with nan at row 7."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        x = torch.where(torch.arange(len(x))[:, None] == 7, math.nan, x)
        return x[:, 0] if self.mean else x


def in_the_kernel() -> fgp.GP:
    return fgp.GP(1.0 * fgp.kernels.Warped(NanAt(mean=False), fgp.kernels.RBF()))


def in_the_mean() -> fgp.GP:
    return fgp.GP(1.0 * fgp.kernels.RBF(), mean=NanAt(mean=True))


DOORS: dict[str, Callable[[fgp.GP], Any]] = {
    "condition": lambda gp: gp.condition(X, Y),
    "full scale": lambda gp: gp.condition(X, Y, approximation="full_scale"),
    "sparse": lambda gp: gp.condition(X, Y, approximation="sparse", inducing=10),
    "log_marginal_likelihood": lambda gp: gp.log_marginal_likelihood(X, Y),
    "log_joint": lambda gp: gp.log_joint(X, Y),
    "collapsed_bound": lambda gp: gp.collapsed_bound(X, Y, inducing=X[:5]),
    "minibatch_bound": lambda gp: gp.minibatch_bound(X, Y, count=100, inducing=X[:5]),
    "fit": lambda gp: fgp.fit(gp, X, Y, starts=1, max_iterations=1),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("build", "names"), [(in_the_kernel, "`x`"), (in_the_mean, "`mean`")])
def test_a_module_that_returns_nan_is_refused_with_its_row(build: Callable[[], fgp.GP], names: str, door: str) -> None:
    with pytest.raises(DomainError, match=rf"{names} must .*row 7"):
        DOORS[door](build())


@pytest.mark.parametrize("raw", [1e4, -1e4, math.nan])
@pytest.mark.parametrize("name", ["kernel.variance", "kernel.kernel.lengthscale", "likelihood.noise_variance"])
@pytest.mark.parametrize("door", [name for name in DOORS if name != "fit"])
def test_a_parameter_that_overflows_is_named(door: str, name: str, raw: float) -> None:
    gp = fgp.GP(1.0 * fgp.kernels.RBF(torch.ones(2)))
    gp.get_submodule(name).raw.data.fill_(raw)
    with pytest.raises(DomainError, match=f"`{name}` must be finite and positive"):
        DOORS[door](gp)
    if name.startswith("kernel"):
        with pytest.raises(DomainError, match=f"`{name.removeprefix('kernel.')}` must be finite"):
            gp.kernel(X)
        chains = {f"{name}.raw": torch.zeros(3, *gp.get_submodule(name).raw.shape, dtype=F64) + raw}
        with pytest.raises(DomainError, match="must be finite"):
            gp.log_marginal_likelihood(X, Y, theta=chains)


@pytest.mark.parametrize(
    ("domain", "start", "bound"),
    [
        (torch.distributions.constraints.interval(1.9, 2.1), 2.0, 1.9),
        (torch.distributions.constraints.interval(0.01, 0.1), 0.05, 0.1),
        (torch.distributions.constraints.greater_than(3.0), 4.0, 3.0),
        (torch.distributions.constraints.interval(0.1, 30.0), 1.0, None),
    ],
)
def test_a_bound_of_the_user_that_a_fit_reaches_is_an_event(domain: Any, start: float, bound: float | None) -> None:
    x = torch.linspace(0, 6, 40, dtype=F64)[:, None]
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=F64)
    found = fgp.fit(fgp.GP(1.0 * fgp.kernels.RBF(fgp.Parameter(start, domain))), x, y, starts=1)
    events = [e for e in of_kind(found.report.events, EventKind.ON_BOUND) if "bound" in e.fields]
    wanted = [] if bound is None else [("kernel.kernel.lengthscale", bound)]
    assert [(e.fields["parameter"], e.fields["bound"]) for e in events] == wanted
    if bound is not None:
        assert f"{bound:g}" in str(events[0])


def test_fewer_inducing_points_than_asked_for_are_said() -> None:
    gp = fgp.GP(fgp.kernels.RBF())
    with pytest.warns(fgp.FlashGPWarning, match="inducing points of the 30 asked for"):
        assert len(gp.inducing_points(X, 30)) < 30


def test_transforms_of_torch_func_are_refused_and_the_ways_out_work() -> None:
    gp = fgp.GP(1.0 * fgp.kernels.RBF())
    many = torch.stack([Y, 2 * Y, Y**2])
    post = gp.condition(X, Y)
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda y: gp.condition(X, y).predict(X[:2]).mean,
        lambda y: gp.condition(y[:, None] * X, Y).predict(X[:2]).mean,
        lambda y: fgp.fit(gp, X, y).posterior.predict(X[:2]).mean,
        lambda y: post.append(X[:1] + 3.0, y[:1]).predict(X[:2]).mean,
        lambda y: post.slide(X[:1] + 3.0, y[:1]).predict(X[:2]).mean,
    ]
    for call in calls:
        with pytest.raises(DomainError, match="outside of transforms"):
            torch.func.vmap(call)(many)
    with pytest.raises(DomainError, match="outside of transforms"):
        torch.func.grad(lambda y: gp.condition(X, y).predict(X[:2]).mean.sum())(Y)
    assert torch.allclose(gp.condition(X, many).predict(X[:2]).mean[0], post.predict(X[:2]).mean)
    fantasies = post.fantasize(X[:1] + 3.0, many[:, :1])
    assert torch.allclose(fantasies.predict(X[:2]).mean[0], post.append(X[:1] + 3.0, Y[:1]).predict(X[:2]).mean)
    slopes = torch.func.jacrev(lambda y: gp.condition(X, y, differentiable=True).predict(X[:2]).mean)(Y)
    assert slopes.shape == (2, len(Y))
