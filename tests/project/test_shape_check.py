"""The shape checker finds what it is for, and lets the library's own errors through."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import shape_check

jaxtyping = pytest.importorskip("jaxtyping")
pytest.importorskip("beartype", reason="shapes are checked by beartype, from the [dev] extra")

MODULE = """
from dataclasses import dataclass
import torch
from jaxtyping import Float
from torch import Tensor


def add(x: Float[Tensor, "*batch n"], y: Float[Tensor, "*batch n"], scale: float = 1.0) -> Float[Tensor, "*batch n"]:
    return x + scale * y


def refuse(x: Float[Tensor, "n"]) -> None:
    if x.ndim != 1:
        raise ValueError("`x` must be a vector")


def wrong(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x[1:]


def bare(x: Tensor) -> Tensor:
    return x


def several(parts: tuple[Float[Tensor, "n"], int], more: dict[str, Float[Tensor, "n"]], count: int = 2) -> Float[
    Tensor, "{count} n"
]:
    return torch.stack([parts[0], more["x"]][:count] * (count > 0))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return 2 * x

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: object, gradient: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return 2 * gradient


@dataclass(frozen=True)
class Pair:
    x: Float[Tensor, "n"]
    y: Float[Tensor, "n"]
"""


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shaped_example.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with shape_check.install(["shaped_example"]):
        yield importlib.import_module("shaped_example")
    sys.modules.pop("shaped_example", None)


def test_shapes_are_compared_across_arguments_and_result(checked) -> None:
    assert checked.add(torch.ones(2, 3), torch.ones(2, 3), 2).shape == (2, 3)  # an int is a float
    for x, y in [(torch.ones(3), torch.ones(1)), (torch.ones(3), torch.ones(2, 3)), (torch.ones(3), torch.arange(3))]:
        for _ in range(2):
            with pytest.raises(jaxtyping.TypeCheckError, match="argument `y` of add"):
                checked.add(x, y)
            checked.add(x, x)  # what was right before is not compared again
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        checked.wrong(torch.ones(3))


def test_own_errors_come_first(checked) -> None:
    with pytest.raises(ValueError, match="must be a vector"):
        checked.refuse(torch.ones(2, 3))
    checked.refuse(torch.ones(2))
    with pytest.raises(jaxtyping.TypeCheckError):
        checked.refuse(torch.arange(2))  # accepted in silence, against the annotation


def test_parts_fields_and_named_sizes_are_compared_and_functions_without_shapes_left_as_they_are(checked) -> None:
    one, two = torch.ones(3), torch.ones(2)
    assert checked.several((one, 1), {"x": one}).shape == (2, 3)
    for parts, more, count in [((one, 1), {"x": two}, 1), ((one, "1"), {"x": one}, 2), ((one, 1), {"x": one}, 3)]:
        with pytest.raises(jaxtyping.TypeCheckError):
            checked.several(parts, more, count)
    checked.Pair(one, one)
    with pytest.raises(jaxtyping.TypeCheckError):
        checked.Pair(one, two)
    assert checked.Double.apply(one).shape == (3,)
    assert not hasattr(checked.bare, "__wrapped__")
