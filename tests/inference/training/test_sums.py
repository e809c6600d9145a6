"""Sums of kernels: initial values that differ in scale, and priors that do not decide what data can decide."""

import pytest
import torch
from sums import PROBLEMS

import flashgp as fgp
from flashgp.inference.training.initial import DataFacts, RoleStart, role_starts
from flashgp.kernels import Kernel, Linear, Matern, Periodic, Scaled, SquaredExponential


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
        assert float(found[name].prior.mean) == pytest.approx(float(alone.prior.mean), rel=1e-12)
        assert found[name].prior.sd == pytest.approx(3.0 * alone.prior.sd, rel=1e-12)


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
        widths = [one.prior.sd for one in found]
        assert max(widths) == width
        assert min(widths) == (2.0 if isinstance(kernel, Scaled) else width)


@pytest.mark.parametrize(("name", "less"), [*((name, 0.3) for name in list(PROBLEMS)[:2]), ("line and rest", 3.0)])
def test_a_sum_is_as_likely_as_at_the_maximum_near_the_values_its_user_gave(name: str, less: float) -> None:
    """Within so many nats, or more likely; the rest beside the line is too faint for 300 rows to see."""
    gp, x, y = PROBLEMS[name]()
    x, y = (t[:: 1 + len(x) // 200] for t in (x, y))
    found = fgp.fit(gp, x, y)
    given = fgp.fit(gp, x, y, initial="given", priors="given")
    likelihoods = [float(fit.posterior.log_marginal_likelihood().detach()) for fit in (found, given)]
    assert likelihoods[0] > likelihoods[1] - less
