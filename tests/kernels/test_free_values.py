"""The form of a user's function follows what the function takes from outside."""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from flashgp.kernels import Custom
from flashgp.kernels.free_values import free_values

X = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
RATE = 1.0
TABLE = {"rates": [1.0, 2.0]}
HOLDER = types.SimpleNamespace(rate=1.0, rates=numpy.array([1.0]))
SETTINGS = types.ModuleType("settings_of_the_user")
SETTINGS.rate = 1.0  # type: ignore[attr-defined]


def decay(x: Tensor, z: Tensor, rate: Any) -> Tensor:
    return torch.exp(-rate * (x - z).square().sum())


def of_global(x: Tensor, z: Tensor) -> Tensor:
    return decay(x, z, RATE)


def of_helper(x: Tensor, z: Tensor) -> Tensor:
    return of_global(x, z) + 0.0


def of_container(x: Tensor, z: Tensor) -> Tensor:
    return decay(x, z, TABLE["rates"][0])


def of_module(x: Tensor, z: Tensor) -> Tensor:
    return decay(x, z, SETTINGS.rate)  # type: ignore[attr-defined]


def of_attribute(x: Tensor, z: Tensor) -> Tensor:
    return decay(x, z, HOLDER.rate)


def of_array(x: Tensor, z: Tensor) -> Tensor:
    return decay(x, z, float(HOLDER.rates[0]))


def of_default(x: Tensor, z: Tensor, *, rate: float = 1.0) -> Tensor:
    return decay(x, z, rate)


class Model:
    def __init__(self) -> None:
        self.rate = 1.0

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        return decay(x, z, self.rate)

    method = __call__


MODEL = Model()
ROWS: list[float] = [1.0]
BOUND = functools.partial(lambda x, z, rates: decay(x, z, rates[0]), rates=ROWS)


def closure() -> tuple[Callable[..., Tensor], Callable[[float], None]]:
    rate = 1.0

    def function(x: Tensor, z: Tensor) -> Tensor:
        return decay(x, z, rate)

    def change(value: float) -> None:
        nonlocal rate
        rate = value

    return function, change


CLOSED, CHANGE = closure()


def put(holder: Any, name: str) -> Callable[[float], None]:
    return lambda value: setattr(holder, name, value)


CASES: dict[str, tuple[Callable[..., Tensor], Callable[[float], None]]] = {
    "a global": (of_global, lambda value: globals().update(RATE=value)),
    "a global of a function it calls": (of_helper, lambda value: globals().update(RATE=value)),
    "an entry of a global": (of_container, lambda value: TABLE["rates"].__setitem__(0, value)),
    "an attribute of a module": (of_module, put(SETTINGS, "rate")),
    "an attribute of an object": (of_attribute, put(HOLDER, "rate")),
    "an array": (of_array, lambda value: HOLDER.rates.__setitem__(0, value)),
    "a default": (of_default, lambda value: of_default.__kwdefaults__.update(rate=value)),
    "a closure": (CLOSED, CHANGE),
    "a method": (MODEL.method, put(MODEL, "rate")),
    "a callable object": (MODEL, put(MODEL, "rate")),
    "an argument bound before": (BOUND, lambda value: ROWS.__setitem__(0, value)),
}


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[..., Tensor], Callable[[float], None]]]:
    function, change = CASES[request.param]
    change(1.0)
    yield function, change
    change(1.0)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_number_from_outside_is_followed(case: Any) -> None:
    """By the kernel that was there, by a new one, and back; what did not change keeps its key."""
    function, change = case
    kernel = Custom(function)
    assert kernel.fusion == "fused"
    key = free_values(function)
    assert free_values(function) == key
    for value in (1.0, 3.0, 1.0):
        change(value)
        wanted = float(function(X[0], X[1]))
        assert wanted == pytest.approx(numpy.exp(-value), rel=1e-14)
        for found in (kernel, Custom(function)):
            assert float(found.operator(X).to_dense()[0, 1]) == pytest.approx(wanted, rel=1e-14)
        assert (free_values(function) == key) == (value == 1.0)


class Hidden:
    """A number that no key sees."""

    __slots__ = ("rate",)


HIDDEN = Hidden()


def of_hidden(x: Tensor, z: Tensor) -> Tensor:
    return decay(x, z, HIDDEN.rate)


def test_what_is_not_seen_is_read_again_when_asked() -> None:
    HIDDEN.rate = 1.0
    kernel = Custom(of_hidden)
    HIDDEN.rate = 3.0
    wanted = pytest.approx(float(of_hidden(X[0], X[1])), rel=1e-14)
    assert float(Custom(of_hidden).operator(X).to_dense()[0, 1]) == wanted
    kernel.forget()
    assert float(kernel.operator(X).to_dense()[0, 1]) == wanted


def test_keys_tell_numbers_apart_and_end_on_cycles() -> None:
    def with_default(value: Any) -> Any:
        return free_values(lambda x, z, value=value: value)

    def made(value: Any) -> Any:
        return lambda: value

    assert len({free_values(made(v)) for v in (1, 1.0, True, 0.0, -0.0, "1", (1,), (1.0,))}) == 8
    circular: list[Any] = [1.0]
    circular.append(circular)

    def recursive(x: Any, z: Any) -> Any:
        return recursive(z, x) if circular else None

    key = free_values(recursive)
    assert free_values(recursive) == key
    circular[0] = 2.0
    assert free_values(recursive) != key
    assert with_default(1) != with_default(2)
