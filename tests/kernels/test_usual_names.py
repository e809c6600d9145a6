"""Names of arguments from other libraries, for every kernel: the advice is followed, and gives what was asked for."""

import re
from typing import Any

import pytest
import torch

from flashgp import kernels as k
from flashgp.foundations.errors import DomainError
from flashgp.foundations.usual_names import USUAL

VALUES: dict[str, Any] = {
    "kernel": k.RBF(0.6), "count": 4, "degree": 3, "nu": 2.5, "lengthscale": torch.tensor([0.7, 0.7]), "period": 0.7,
    "variance": 0.7, "offset": 0.7, "scale_mixture": 0.7,
}  # fmt: skip
DEVIATIONS = {"sigma", "sigma_0", "amplitude", "sigma_n", "obs_stddev"}
SCALES = {"outputscale", "output_scale", "signal_variance", "amplitude", "constant_value", "sigma"}
NAMES = {*USUAL, *(name for names in USUAL.values() for name in names)}
# Custom names its parameters itself: any name is one of them.
NAMED = [name for name in k.REGISTRY if name != "Custom"]


def build(example: k.Kernel, **given: Any) -> k.Kernel:
    """The example again with other arguments."""
    if isinstance(example, k.Sum | k.Product):
        return type(example)(*example.parts, **given)
    made = type(example)(**{**example.arguments(), **given})
    assert isinstance(made, k.Kernel)
    return made


def matrix(kernel: k.Kernel) -> torch.Tensor:
    x = torch.tensor([[0.0, 1.0], [1.0, 1.0], [3.0, 2.0], [2.0, 0.0]], dtype=torch.float64)
    return kernel(x).to_dense().detach()


def check_advice(example: k.Kernel, usual: str, advice: str) -> None:
    """Do what the message says."""
    columns = [0] if isinstance(example, k.Coregionalization) else [0, 1]
    each = re.search(r"(\w+)=torch\.ones\(d\) is one for each column$", advice)
    named = re.search(r"; (?:it is called )?`(\w+)`( is its square)? here$", advice)
    if each:
        matrix(build(example, **{each[1]: torch.ones(2)}))
    elif named:
        name = named[1]
        assert bool(named[2]) == (usual in DEVIATIONS)
        one = matrix(build(example, **{name: VALUES.get(name, columns)}))
        if usual in SCALES:
            assert torch.allclose(matrix(build(example, **{name: 2.0 * VALUES[name]})), 2.0 * one)
    elif usual in SCALES:
        assert "; a number times a kernel, 2.0 * kernel, has that variance" in advice
        assert advice.endswith("its square") == (usual in DEVIATIONS)
    elif usual == "input_dim" and "; leave it out for all columns of x; active_dims= takes the numbers" in advice:
        matrix(build(example, active_dims=columns))
    else:
        assert advice.endswith("; leave it out")


@pytest.mark.parametrize("name", NAMED)
def test_the_advice_works_for_every_kernel(name: str) -> None:
    example = k.REGISTRY[name].examples(2)[0]
    for usual in sorted(NAMES - set(example.arguments())):
        with pytest.raises(DomainError, match=rf"^`{usual}` is no argument of {type(example).__name__}, ") as caught:
            build(example, **{usual: 1.0})
        check_advice(example, usual, str(caught.value))


@pytest.mark.parametrize("kernel", [k.Linear, k.Polynomial])
def test_slope_variances_are_one_for_each_column_and_no_scale_of_the_output(kernel: type[k.Kernel]) -> None:
    with pytest.raises(DomainError, match=r"variance=torch\.ones\(d\) is one for each column"):
        kernel(ard_num_dims=2)
    with pytest.raises(DomainError, match=r"2\.0 \* kernel"):
        kernel(outputscale=2.0)


def test_several_kernels_have_no_name() -> None:
    with pytest.raises(DomainError, match=r"`kernels` is no argument of Sum, which takes \*kernels; leave it out"):
        k.Sum(kernels=[k.RBF()])  # type: ignore[call-arg]
