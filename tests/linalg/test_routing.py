"""Calls that leave their device and come back: with a second CPU in the accelerator's place, and one that breaks."""

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.linalg import LinAlgError

import flashgp as fgp
from flashgp import linalg
from flashgp.foundations.accelerator import accelerator, using_accelerator
from flashgp.foundations.determinism import deterministically
from flashgp.foundations.errors import (
    BackendUnavailableError,
    DomainError,
    FlashGPWarning,
    NotPositiveDefiniteError,
    ShapeError,
)
from flashgp.foundations.profile import BUILT_IN
from flashgp.foundations.profile_store import keep_profile
from flashgp.linalg import routing
from flashgp.linalg.routing import Speeds
from linalg.test_decision import CPU_RATES, GPU, profile

CUDA = torch.device("cuda")


def matrix(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def definite(n: int, *batch: int) -> Tensor:
    a = matrix(*batch, n, n)
    return a @ a.mT + n * torch.eye(n, dtype=a.dtype)


class Fake(routing.Transfers):
    """A second CPU where the accelerator would be: what was carried there and back, and what happens to it."""

    def __init__(self, lie_on: str | None = None) -> None:
        super().__init__()
        self.lie_on = lie_on
        self.known: Speeds | None = Speeds(CPU_RATES, GPU)
        self.carried: list[torch.device] = []
        self.fails: Callable[[], None] | None = None

    def home(self, A: Tensor) -> str | None:
        return self.lie_on or super().home(A)

    def speeds(self, operation: str, dtype: torch.dtype) -> Speeds | None:
        return self.known

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


def test_auto_goes_where_it_is_quicker(fake: Fake) -> None:
    linalg.qr(matrix(50, 50))
    assert fake.trips == (0, 0)
    linalg.qr(matrix(600, 600))
    assert fake.trips == (1, 2)
    linalg.qr(matrix(2, 600, 600), mode="r")
    assert fake.trips == (2, 4)
    linalg.solve_triangular(torch.eye(600, dtype=torch.float64), matrix(600, 16), upper=False)
    assert fake.trips == (2, 4)
    linalg.solve_triangular(torch.eye(1200, dtype=torch.float64), matrix(3, 1200).contiguous(), upper=True, left=False)
    assert fake.trips == (2, 4), "three right-hand sides, not 1,200"
    linalg.solve_triangular(torch.eye(1200, dtype=torch.float64), matrix(1200, 1200), upper=True, left=False)
    assert fake.trips == (4, 5)


def test_right_hand_sides_of_a_batch_are_those_of_its_systems(fake: Fake) -> None:
    asked = []

    class Asked(Speeds):
        def quicker(self, operation: str, dtype: torch.dtype, *size: Any) -> str:
            asked.append(size[:3])
            return "cpu"

    fake.known = Asked(CPU_RATES, GPU)
    A = torch.eye(60, dtype=torch.float64)
    for systems, right in (
        ((), (60, 12)),
        ((3,), (60, 12)),
        ((3,), (5, 3, 60, 12)),
        ((), (7, 60, 12)),
        ((3,), (1, 60, 12)),
    ):
        linalg.solve_triangular(A.expand(*systems, 60, 60), matrix(*right), upper=False)
    assert asked == [(60, 12, 1), (60, 12, 3), (60, 60, 3), (60, 84, 1), (60, 12, 3)]
    linalg.solve_triangular(A.expand(3, 60, 60), matrix(5, 3, 12, 60), upper=False, left=False)
    assert asked[-1] == (60, 60, 3)
    assert torch.equal(
        linalg.solve_triangular(A.expand(0, 60, 60), matrix(5, 0, 60, 12), upper=False), matrix(5, 0, 60, 12)
    )


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


def test_an_accelerator_that_is_full_is_asked_again(fake: Fake) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    fake.fails = full
    with pytest.warns(FlashGPWarning, match="asked again next time"):
        linalg.eigh(definite(600))
    assert accelerator() == CUDA
    fake.fails = None
    linalg.eigh(definite(600))
    assert fake.trips[1] == 2


def test_errors_of_arguments_are_the_same_there(fake: Fake) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotPositiveDefiniteError, match="pivot 3 is -"):
            linalg.cholesky(torch.diag(torch.tensor([1.0, 2, 3, -4, 5])), device="cuda")
        with pytest.raises(ShapeError, match="`B` must have shape"):
            linalg.solve_triangular(definite(5), matrix(4, 2), upper=True, device="cuda")
        with pytest.raises(DomainError, match="`mode` must be one of"):
            linalg.qr(definite(5), mode="thin", device="cuda")
    asked = []

    def singular(a: Tensor) -> Tensor:
        asked.append(a)
        raise LinAlgError("not positive definite")

    with pytest.raises(LinAlgError):
        routing.run_there("cholesky", singular, (definite(3),), CUDA)
    assert len(asked) == 1, "the same matrix is not factorised again"
    assert accelerator() == CUDA, "none of this is the accelerator's fault"


# -- data that lie on the accelerator ----------------------------------------------------------------------------------
def test_small_problems_of_an_accelerator_come_to_the_cpu(fake: Fake) -> None:
    fake.lie_on = "cuda"
    linalg.eigh(definite(12))
    assert fake.carried[0] == torch.device("cpu")
    before = len(fake.carried)
    linalg.eigh(definite(700))
    linalg.eigh(definite(12), device="cuda")
    assert len(fake.carried) == before


# -- where rates come from ------------------------------------------------------------------------------------------
class Named(routing.Transfers):
    """A process that has chosen nothing yet, with an accelerator of that name."""

    def __init__(self, name: str = "made up") -> None:
        super().__init__()
        self.name = name

    def accelerator_name(self) -> str:
        return self.name


@pytest.fixture
def named(profiles: Path) -> Iterator[Named]:
    made = Named()
    with using_accelerator(CUDA), routing.using_transfers(made):
        yield made


def test_rates_of_the_profile_are_taken(named: Named) -> None:
    keep_profile(profile())
    found = named.speeds("qr", torch.float64)
    assert found is not None
    assert (found.accelerator, found.source) == (GPU, "measured")
    assert named.speeds("eigh", torch.float64) is found
    assert fgp.linalg.explain("qr", 2000).rates == "measured"


def test_a_profile_of_another_accelerator_is_said_and_not_used(named: Named) -> None:
    keep_profile(profile())
    named.name = "another one"
    with pytest.warns(FlashGPWarning, match="measured with made up, and this machine has another one") as said:
        found = named.speeds("qr", torch.float64)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert named.speeds("qr", torch.float64) is found is None


@pytest.mark.usefixtures("named")
def test_without_measured_rates_data_stay() -> None:
    keep_profile(BUILT_IN)
    assert routing.Transfers().speeds("qr", torch.float64) is None
    assert fgp.linalg.explain("eigh", 2000, home="cuda").device == "cuda"
    assert fgp.linalg.explain("eigh", 2000).device == "cpu"


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
