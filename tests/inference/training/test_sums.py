"""Sums of kernels: initial values that differ in scale, and priors that do not decide what data can decide."""

import math

import pytest
import torch
from sums import PROBLEMS

import flashgp as fgp
from flashgp.inference.training.initial import DataFacts, RoleStart, role_starts
from flashgp.inference.training.parameter_vector import ParameterVector
from flashgp.kernels import Kernel, Linear, Matern, Periodic, Scaled, SquaredExponential, Warped


def starts(kernel: Kernel, x: torch.Tensor, y: torch.Tensor) -> dict[str, RoleStart]:
    gp = fgp.GP(kernel)
    found = role_starts(gp, DataFacts.of(x, y, None))
    return {name: found[p] for name, p in gp.kernel.named_modules() if p in found}


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 2, 3.0])
    return x, 5.0 * x[:, 0].sin()


def test_terms_of_a_sum_start_at_scales_of_their_own_in_the_order_their_user_gave(data) -> None:
    """Eq. (M-44): of r rivals the j-th longest starts at n^(-j / (r d)) of one alone; priors are r times as wide."""
    x, y = data
    alone = starts(Matern(nu=1.5), x, y)["lengthscale"]
    kernel = Matern(nu=1.5, lengthscale=0.3) + 2.0 * SquaredExponential(lengthscale=7.0) + Matern(nu=0.5) * Matern()
    found = starts(kernel, x, y)
    rungs = {"kernels.0.lengthscale": 2, "kernels.1.kernel.lengthscale": 0}
    rungs |= {f"kernels.2.kernels.{i}.lengthscale": 1 for i in (0, 1)}
    for name, rung in rungs.items():
        assert float(found[name].start) == pytest.approx(float(alone.start) * 200 ** (-rung / 9), rel=1e-12)
        assert float(found[name].log_prior[0]) == pytest.approx(float(alone.log_prior[0]), rel=1e-12)
        assert found[name].log_prior[1] == pytest.approx(3.0 * alone.log_prior[1], rel=1e-12)


def test_priors_of_variances_widen_with_the_terms_of_a_sum(data) -> None:
    """Eq. (M-45)."""
    x, y = data
    for kernel, width in (
        (2.0 * Matern(nu=1.5), 2.0),
        (2.0 * Matern(nu=1.5) + Linear(), 4.0),
        (2.0 * Matern(nu=1.5) + 1.0 * Periodic() + 1.0, 6.0),
        (2.0 * (Matern(nu=1.5) * (1.0 * SquaredExponential() + 1.0 * Periodic())), 4.0),
    ):
        found = [one for name, one in starts(kernel, x, y).items() if name.endswith("variance")]
        widths = [one.log_prior[1] for one in found]
        assert max(widths) == width
        assert min(widths) == (2.0 if isinstance(kernel, Scaled) else width)


def test_a_period_starts_where_its_user_put_it_and_moves_in_turns_over_all_rows(data) -> None:
    """In units of the period over the range of its column, so that no first step leaves it."""
    x, y = data
    gp = fgp.GP(Periodic(period=torch.tensor([0.5, 0.5, 50.0])) + Matern() * Periodic(period=0.25) + Matern())
    found = starts(gp.kernel, x, y)
    assert found["kernels.0.period"].start.tolist() == pytest.approx([0.5, 0.5, 50.0])
    vector = ParameterVector(gp, role_starts(gp, DataFacts.of(x, y, None)))
    units = dict(zip(vector.names(), vector.units().tolist(), strict=True))
    assert [units[f"kernel.kernels.0.period[{k}]"] for k in range(3)] == [2.0**-3, 2.0**-4, 1.0]
    assert units["kernel.kernels.1.kernels.1.period"] == 2.0**-5
    at = vector.values()
    at[vector.names().index("kernel.kernels.1.kernels.1.period")] += math.log(4.0)
    assert vector.units(at)[vector.names().index("kernel.kernels.1.kernels.1.period")] == 2.0**-3
    assert found["kernels.1.kernels.0.lengthscale"].log_prior[1] == found["kernels.2.lengthscale"].log_prior[1]
    gp = fgp.fit(fgp.GP(Periodic(period=0.5)), x[:, :1], torch.sin(4.0 * math.pi * x[:, 0])).gp
    assert float(gp.kernel.period.value) == pytest.approx(0.5, rel=1e-3)


def test_terms_of_other_columns_and_of_learned_inputs_are_no_rivals(data) -> None:
    x, y = data
    alone = starts(Matern(nu=1.5, active_dims=0), x, y)["lengthscale"]
    additive = starts(Matern(nu=1.5, active_dims=0) + Matern(nu=1.5, active_dims=1), x, y)
    assert float(additive["kernels.0.lengthscale"].start) == float(alone.start)
    assert additive["kernels.0.lengthscale"].log_prior[1] == alone.log_prior[1]
    network = torch.nn.Linear(3, 2, dtype=torch.float64)
    assert list(starts(Warped(network, Matern(nu=1.5) + Matern()), x, y)) == []


@pytest.mark.parametrize(("name", "less"), {**dict.fromkeys(PROBLEMS, 0.3), "line and rest": 3.0}.items())
def test_a_sum_is_as_likely_as_at_the_maximum_near_the_values_its_user_gave(name: str, less: float) -> None:
    """Within so many nats, or more likely; the rest beside the line is too faint for 300 rows to see."""
    gp, x, y = PROBLEMS[name]()
    x, y = (t[:: 1 + len(x) // 400] for t in (x, y))
    found = fgp.fit(gp, x, y)
    given = fgp.fit(gp, x, y, initial="given", priors="given")
    likelihoods = [float(fit.posterior.log_marginal_likelihood().detach()) for fit in (found, given)]
    assert likelihoods[0] > likelihoods[1] - less
