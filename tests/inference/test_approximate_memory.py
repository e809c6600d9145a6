"""What plans of approximations say is allocated, against every tensor that is made: eq. (M-183)."""

from collections.abc import Callable

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.threads import single_thread
from flashgp.inference.training.parameter_vector import ParameterVector
from inference.allocations import Allocations
from inference.full_scale import test_factor as full_scale
from inference.streamed import test_bound as streamed

SMALL = 3 * 2**20  # buffers of plans as small as these
GP = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(3)), likelihood=fgp.likelihoods.Gaussian(0.05))


def table(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, torch.sin(4.0 * x.sum(1))


def counted(run: Callable[[], object]) -> int:
    run()  # what is loaded once
    with single_thread(), Allocations(2**12) as seen:  # which sees the tensors of its own thread
        result = run()
    del result
    return seen.peak


@pytest.mark.parametrize(("kind", "n", "m", "q"), [
    ("full_scale", 4000, 300, 48), ("full_scale", 5000, 100, 96), ("full_scale", 2000, 300, 256),
    ("sparse", 3000, 400, 0), ("sparse", 20_000, 200, 0),
])  # fmt: skip
def test_tensors_stay_within_the_plan(kind: str, n: int, m: int, q: int) -> None:
    """Conditioning, and one value with its gradient; and no plan asks for much more than is used."""
    x, y = table(n)
    sizes = {"inducing": m} | ({"neighbours": q} if q else {})
    plan = fgp.plan(GP, n=n, d=3, approximation=kind, **sizes)
    peak = counted(lambda: GP.condition(x, y, approximation=kind, **sizes))
    assert peak <= max(1.1 * plan.peak_bytes, plan.peak_bytes + SMALL), f"{peak / 2**20:.1f}"
    assert plan.peak_bytes <= 1.5 * peak + SMALL
    if kind == "full_scale":
        objective = full_scale.objective(GP, x, y, full_scale.layout(GP, x, m, plan.block, q))
    else:
        objective = streamed.objective(GP, x, y, x[:m])
    theta = ParameterVector(objective.problem.prior, objective.problem.roles).values()
    peak = counted(lambda: objective(theta))
    gradient = sum(one.bytes for one in plan.allocations if one.during in ("all of it", "a gradient"))
    assert peak <= max(1.1 * gradient, gradient + SMALL), f"{peak / 2**20:.1f}"
    assert gradient <= 1.5 * peak + SMALL
