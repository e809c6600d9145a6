"""Approximations on a device beside the CPU: every tensor is where the rows are, and the numbers are the same.

Without autograd, which the second device does not have: gradients are those by hand.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.training.objective import Problem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Sizes
from inference.plain_gp import data, model
from second_device import DEVICE, SecondDevice, held

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
