"""Approximations on a device beside the CPU: every tensor is where the rows are, and the numbers are the same.

Without autograd, which the second device does not have: gradients are those by hand.
"""

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.training.objective import Problem
from flashgp.kernels import Matern, SquaredExponential
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Sizes
from inference.plain_gp import data, model
from second_device import DEVICE, SecondDevice, held, transforms

KINDS = {
    "full scale": {"approximation": "full_scale", "inducing": 20, "neighbours": 24},
    "vecchia": {"approximation": "full_scale", "inducing": 0, "neighbours": 24},
    "sparse": {"approximation": "sparse", "inducing": 20},
}
Place = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def second() -> Iterator[None]:
    with SecondDevice(), torch.no_grad():
        yield


def agree(answers: Callable[[Place], list[Tensor]]) -> None:
    """The numbers of a device are those of the CPU, and are on the device."""
    here, there = answers(lambda tensor: tensor), answers(held)
    assert {tensor.device for tensor in there} == {DEVICE}
    for one, two in zip(here, there, strict=True):
        torch.testing.assert_close(two.cpu(), one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_posterior_is_where_its_rows_are(kind: str) -> None:
    def answers(place: Place) -> list[Tensor]:
        x, y = data(160)
        x, y, test = place(x), place(y), place(x[:7] + 0.01)
        posterior = model().to(x.device).condition(x, y, **KINDS[kind])
        prediction = posterior.predict(test)
        appended = posterior.append(test, y[:7])
        made = [prediction.mean, prediction.variance, prediction.covariance(), appended.predict(test).mean]
        return [*made, posterior.log_marginal_likelihood(), posterior.paths(2, seed=0)(test)]

    agree(answers)


def test_the_gradient_of_full_scale_is_where_its_rows_are() -> None:
    """Eqs. (M-148) to (M-150)."""

    def answers(place: Place) -> list[Tensor]:
        x, y = map(place, data(160))
        problem = Problem(model().to(x.device).released(), x, y, DirectSettings(TorchTiles()))
        noise = problem.prior.sites(y).variance
        of = FullScaleLogJoint(problem, layout_of(problem.prior, x, noise, Sizes(20, 8, 24, 96), 0))
        residual, noise, rows, theta = of.likelihood_inputs()
        tensors = [residual, noise, *rows.tensors, *theta]
        _, found = of.likelihood(rows, tensors, [True] * len(tensors))
        return [slope for slope in found if slope is not None]

    agree(answers)


SERIES = {
    "one column": lambda: 1.0 * Matern(2.5, 0.5, active_dims=[0]),
    "two columns": lambda: 1.0 * Matern(2.5, 0.5, active_dims=[0, 1]),
    "three columns, without a factor": lambda: 1.0 * SquaredExponential(0.16),
    "terms in different columns": lambda: Matern(2.5, 0.5, active_dims=[0]) + Matern(2.5, 0.5, active_dims=[1]),
}


@pytest.mark.parametrize("name", list(SERIES))
@pytest.mark.parametrize("read", [False, True])
def test_a_series_is_transformed_where_its_rows_are(name: str, read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By cufinufft, whose place finufft takes here."""
    monkeypatch.setitem(sys.modules, "cufinufft", transforms())
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(120, 3, generator=generator, dtype=torch.float64)
    y = torch.sin(4.0 * x.sum(1)) + 0.1 * torch.randn(120, generator=generator, dtype=torch.float64)

    def answers(place: Place) -> list[Tensor]:
        rows, targets, test = place(x), place(y), place(0.9 * x[:7] + 0.05)
        gp = fgp.GP(SERIES[name](), likelihood=fgp.likelihoods.Gaussian(0.1)).to(rows.device)
        given = ([(rows[:100], targets[:100]), (rows[100:], targets[100:])],) if read else (rows, targets)
        posterior = gp.condition(*given, approximation="fourier")
        assert (posterior.report.device, posterior.report.backend) == (
            ("cpu", "finufft") if rows.device.type == "cpu" else (str(DEVICE), "cufinufft")
        )
        prediction, appended = posterior.predict(test), posterior.append(test, targets[:7])
        made = [prediction.mean, prediction.variance, prediction.covariance(), appended.predict(test).mean]
        if not read:
            found = posterior.leave_one_out()
            made += [posterior.paths(2, seed=0)(test), found.mean, found.variance]
        return made

    agree(answers)


def test_a_series_needs_the_library_of_the_device_and_rows_there() -> None:
    x, y = data(60)
    gp = fgp.GP(Matern(1.5), likelihood=fgp.likelihoods.Gaussian(0.1))
    with pytest.raises(BackendUnavailableError, match=r"needs cufinufft.*flashgp\[fourier-cuda\]"):
        gp.to(DEVICE).condition(held(x), held(y), approximation="fourier")
    with pytest.raises(DomainError, match=r"`device` of Fourier series is that of the rows, got 'cuda:0'"):
        gp.condition(x, y, approximation="fourier", device="cuda:0")


def test_the_second_device_refuses_what_an_accelerator_refuses() -> None:
    one, two = held(torch.ones(3)), torch.ones(3)
    with pytest.raises(RuntimeError, match="all tensors"):
        one + two
    with pytest.raises(RuntimeError, match="all tensors"):
        one[:] = two
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())
    with pytest.raises(TypeError, match="numpy"):
        one.numpy()
    assert (one * 2.0).device == torch.zeros(2, device=DEVICE).device == DEVICE
    assert one.cpu().device.type == "cpu"
    one[1:] = 5.0
    one.mul_(torch.tensor(2.0))
    assert one.tolist() == [2.0, 10.0, 10.0]
