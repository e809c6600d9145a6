"""Calls that leave their device and come back: with a second CPU in the accelerator's place, and one that breaks."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.errors import (
    BackendUnavailableError,
    DomainError,
    FlashGPWarning,
)
from flashgp.foundations.machine import accelerator, using_accelerator
from flashgp.foundations.profile import BUILT_IN, Crossover, MachineProfile
from flashgp.foundations.profile_store import keep_profile
from flashgp.linalg import routing
from flashgp.linalg.measuring import DenseSettings, measured_crossover

CUDA = torch.device("cuda")
ORDERS = {"qr": {"cpu": 500, "cuda": 100}, "cholesky": {"cuda": 50}, "eigh": {"cpu": 300, "cuda": 200}}
PROFILE = replace(
    BUILT_IN, name="measured", accelerator_name="made up", crossovers=tuple(
        Crossover(operation, "float64", home, order) for operation, own in ORDERS.items() for home, order in own.items()
    ),
)  # fmt: skip


def matrix(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def definite(n: int, *batch: int) -> Tensor:
    a = matrix(*batch, n, n)
    return a @ a.mT + n * torch.eye(n, dtype=a.dtype)


class Fake(routing.Transfers):
    """A second CPU where the accelerator would be: what was carried there and back, and what happens to it."""

    def __init__(self, lie_on: str | None = None) -> None:
        self.lie_on = lie_on
        self.carried: list[torch.device] = []
        self.fails: Callable[[], None] | None = None

    def home(self, A: Tensor) -> str | None:
        return self.lie_on or super().home(A)

    def crossover(self, operation: str, dtype: torch.dtype, home: str) -> float | None:
        return PROFILE.crossover(operation, dtype, home)

    def move(self, tensor: Tensor, device: torch.device) -> Tensor:
        self.carried.append(device)
        if self.fails is not None and device.type == "cuda":
            self.fails()
        return tensor.clone()

    @property
    def trips(self) -> tuple[int, int]:
        there = sum(device.type == "cuda" for device in self.carried)
        return there, len(self.carried) - there


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    with using_accelerator(CUDA), routing.using_transfers(made):
        yield made


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[int], tuple[Tensor, ...]], dict[str, Any]]] = {
    "qr": (linalg.qr, torch.linalg.qr, lambda n: (matrix(n, n),), {}),
    "cholesky": (linalg.cholesky, torch.linalg.cholesky, lambda n: (definite(n),), {}),
    "eigh": (linalg.eigh, torch.linalg.eigh, lambda n: (definite(n),), {}),
    "triangular": (
        linalg.solve_triangular,
        torch.linalg.solve_triangular,
        lambda n: (matrix(n, n).tril_() + n * torch.eye(n, dtype=torch.float64), matrix(n, 5)),
        {"upper": False},
    ),
}


def tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_on_the_accelerator_brings_its_result_back(fake: Fake, name: str) -> None:
    ours, torchs, make, options = CALLS[name]
    operands = make(12)
    found, wanted = ours(*operands, device="cuda", **options), torchs(*operands, **options)
    assert type(found) is type(wanted)
    for a, b in zip(tensors(found), tensors(wanted), strict=True):
        assert torch.equal(a, b)
    assert fake.trips == (len(operands), len(tensors(wanted)))
    before = len(fake.carried)
    ours(*operands, device="cpu", **options)
    ours(*operands, crossover=13, **options)
    assert len(fake.carried) == before, "data that stay are not carried"
    ours(*operands, crossover=12, **options)
    assert len(fake.carried) > before


@pytest.mark.parametrize("name", CALLS)
def test_gradients_pass_through(fake: Fake, name: str) -> None:
    ours, torchs, make, options = CALLS[name]
    gradients = []
    for function, where in ((ours, {"device": "cuda"}), (torchs, {})):
        operands = [one.clone().requires_grad_() for one in make(6)]
        result = function(*operands, **options, **where)
        sum(
            (one.square() * torch.arange(1.0, one.numel() + 1).view(one.shape)).sum() for one in tensors(result)
        ).backward()
        gradients.append([one.grad for one in operands])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)
        assert float(a.abs().max()) > 0.0


def test_auto_goes_to_the_accelerator_from_the_measured_order_on(fake: Fake) -> None:
    """By entries: a tall matrix and a batch count as the square matrix of as many."""
    for shape in ((50, 50), (499, 499), (10, 158, 158), (5000, 49)):
        linalg.qr(matrix(*shape))
    assert fake.trips == (0, 0)
    for trips, shape in enumerate(((500, 500), (10, 159, 159), (5000, 51)), 1):
        linalg.qr(matrix(*shape), mode="r")
        assert fake.trips == (trips, 2 * trips), shape
    linalg.cholesky(definite(600))
    linalg.qr(matrix(600, 600).float())
    assert fake.trips == (3, 6), "stays where no order was found or measured"


def test_what_keeps_data_where_they_are(fake: Fake) -> None:
    big = matrix(600, 600)
    with deterministically():
        linalg.qr(big)
    torch.func.vmap(linalg.qr)(big.expand(2, 600, 600))
    linalg.qr(big, device=linalg.own_device(big))
    linalg.qr(big, crossover=math.inf)
    linalg.qr(matrix(0, 5))
    linalg.qr(torch.empty(600, 600, device="meta"))
    with pytest.raises(DomainError, match='`device` must be "auto" for data on meta'):
        linalg.qr(torch.empty(600, 600, device="meta"), device="cuda")
    assert fake.trips == (0, 0)


# -- an accelerator that fails ---------------------------------------------------------------------------------------
def test_an_accelerator_that_is_lost_costs_one_warning(fake: Fake) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: device has been removed\nmore")

    fake.fails = lost
    big = definite(600)
    with pytest.warns(FlashGPWarning, match=r"qr failed on cuda \(CUDA error: device has been removed\)") as said:
        found = linalg.qr(big)
    assert len(said) == 1
    assert torch.equal(found.R, torch.linalg.qr(big).R)
    assert accelerator() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linalg.cholesky(big)
    with pytest.raises(BackendUnavailableError, match="no CUDA device that answers"):
        linalg.cholesky(big, device="cuda")


# -- data that lie on the accelerator ----------------------------------------------------------------------------------
def test_small_problems_of_an_accelerator_come_to_the_cpu(fake: Fake) -> None:
    fake.lie_on = "cuda"
    linalg.eigh(definite(12))
    assert fake.carried[0] == torch.device("cpu")
    before = len(fake.carried)
    linalg.eigh(definite(700))
    linalg.eigh(definite(12), device="cuda")
    assert len(fake.carried) == before


# -- where orders come from ------------------------------------------------------------------------------------------
def test_the_profile_of_this_machine_is_asked(profiles: Path) -> None:
    transfers = routing.Transfers()
    keep_profile(BUILT_IN)
    assert transfers.crossover("qr", torch.float64, "cpu") is None, "without measured orders data stay"
    again = MachineProfile.from_json(PROFILE.to_json())
    assert again == PROFILE
    keep_profile(again)
    assert transfers.crossover("qr", torch.float64, "cpu") == 500
    assert transfers.crossover("qr", torch.float64, "cuda") == 100
    assert transfers.crossover("cholesky", torch.float64, "cpu") is None
    assert ("qr, float64, data on the CPU", "on the GPU from order 500") in again.lines()


@pytest.mark.parametrize(("home", "wins", "order"), [
    ("cpu", 64, 64), ("cpu", 16, 16), ("cpu", math.inf, None), ("cuda", 64, 64), ("cuda", math.inf, 129),
])  # fmt: skip
def test_the_order_is_the_least_at_which_the_accelerator_is_quicker(home: str, wins: float, order: int | None) -> None:
    @dataclass(frozen=True)
    class Timed(DenseSettings):
        def seconds(self, call: Any, device: torch.device) -> float:
            return 1e-3 if call.keywords["device"] == "cpu" or call.args[0].shape[-1] < wins else 1e-4

    settings = Timed(crossover_orders=(16, 32, 64, 128))
    found = measured_crossover("qr", torch.float64, home, torch.device("cpu"), settings)
    assert (found and found.order) == order


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_on_a_real_accelerator(name: str) -> None:
    ours, torchs, make, options = CALLS[name]
    for home in ("cpu", "cuda"):
        operands = [one.to(home) for one in make(300)]
        for device in ("auto", "cpu", "cuda"):
            found = ours(*operands, device=device, **options)
            assert {one.device.type for one in tensors(found)} == {home}
            if name in ("cholesky", "triangular"):
                wanted = torchs(*operands, **options)
                assert float((found - wanted).norm() / wanted.norm()) < 1e-10
