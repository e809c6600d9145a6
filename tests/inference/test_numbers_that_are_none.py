"""Modules that return nan, parameters that overflow, bounds that are reached, transforms of torch.func: said."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import EventKind, of_kind

F64 = torch.float64
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
