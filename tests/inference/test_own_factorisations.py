"""Small factorisations and solves of the library's own go where fgp.linalg finds them quicker, and change nothing."""

import contextlib
from collections.abc import Iterator

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.machine import using_accelerator
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.predict.growing_draws import GrowingDraws
from flashgp.inference.training.fisher_scoring import fisher_information
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.linalg import routing
from flashgp.pairwise.torch.tiles import TorchTiles
from inference.plain_gp import data, model

F64 = torch.float64


class Away(routing.Transfers):
    """Data lie on an accelerator that is a second CPU; it records the shapes of what is carried."""

    def __init__(self) -> None:
        self.carried: list[tuple[int, ...]] = []

    def home(self, A: Tensor) -> str:
        return "cuda"

    def move(self, tensor: Tensor, device: torch.device) -> Tensor:
        self.carried.append(tuple(tensor.shape))
        return tensor.clone()

    def crossover(self, operation: str, dtype: torch.dtype, home: str) -> float:
        return 1000.0


@contextlib.contextmanager
def away() -> Iterator[list[tuple[int, ...]]]:
    """Gives the shapes of what is carried."""
    transfers = Away()
    with using_accelerator(torch.device("cuda")), routing.using_transfers(transfers):
        yield transfers.carried


def test_fantasies() -> None:
    x, y = data(12, 3)
    post = model(3).condition(x, y)
    generator = torch.Generator().manual_seed(1)
    points, at = (torch.randn(*shape, generator=generator, dtype=F64) for shape in ((2, 4, 3), (5, 3)))

    def answers() -> list[Tensor]:
        new, own = points.clone().requires_grad_(), at.clone().requires_grad_()
        given = post.fantasize(new, torch.stack([new.sum(-1), new.prod(-1), new[..., 0]]))
        p = given.predict(own)
        slopes = torch.autograd.grad(p.mean.square().sum() + p.variance.sum(), (new, own))
        return [p.mean.detach(), p.variance.detach(), *slopes]

    wanted = answers()
    with away() as carried:
        found = answers()
    # The corners C, scores of three sets of targets, and W of five points: what goes, and what comes back.
    assert carried == [(2, 4, 4)] * 2 + [(2, 4, 4), (3, 2, 4, 1), (3, 2, 4, 1), (2, 4, 4), (2, 4, 5), (2, 4, 5)]
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


def test_a_member_that_cannot_be_factorised_is_named() -> None:
    x, y = data(12, 3)
    prior = model(3)
    post = fgp.GP(prior.kernel, prior.mean, fgp.likelihoods.Gaussian(0.0)).condition(x, y)
    new = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    new[1, 1] = new[1, 0]
    new[2, 0] = x[4]
    with pytest.raises(NotPositiveDefiniteError, match="member 1 has a row") as raised:
        post.fantasize(new, samples=1)
    assert raised.value.indices == ((1,),)


def test_draws_where_they_are_asked_for() -> None:
    x, _ = data(9)
    there = torch.linspace(-2.0, 2.0, 14, dtype=F64).reshape(7, 2)

    def answers() -> list[Tensor]:
        draws = GrowingDraws(model(), x, torch.Size(), 3, torch.Generator().manual_seed(0), 2**20)
        return [draws(x).detach(), draws(there).detach()]

    wanted = answers()
    with away() as carried:
        found = answers()
    first, grown = [(9, 9), (9, 3), (9, 3)], [(16, 16), (16, 3), (16, 3)]
    assert carried == [*first, *first, (9, 9), (9, 7), (9, 7), *grown, *grown]
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


def test_simulated_scores() -> None:
    x, y = data(15)
    objective = LogJoint(Problem(model(), x, y, DirectSettings(TorchTiles())))
    theta = objective.parameters.values()
    wanted = fisher_information(objective, theta, 10, 0)
    with away() as carried:
        assert numpy.array_equal(fisher_information(objective, theta, 10, 0), wanted)
    assert carried == [(15, 15), (15, 10), (15, 10)]
