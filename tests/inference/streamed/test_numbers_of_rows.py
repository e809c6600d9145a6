"""Inducing points of rows with exposures or weights: of all rows exact, and weights are repeated rows, (M-273)."""

import pytest
import torch

import flashgp as fgp
from flashgp import likelihoods as L

F64 = torch.float64


@pytest.mark.parametrize("approximation", [None, "sparse"])
def test_weights_are_repeated_rows(approximation: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(30, 2, generator=generator, dtype=F64)
    y = torch.poisson((1.0 + torch.sin(5.0 * x[:, 0])).exp(), generator)
    weight, hours = 1.0 + torch.arange(30) % 3, 1.0 + torch.rand(30, generator=generator, dtype=F64)
    kernel = 2.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5)
    options = {} if approximation is None else {"approximation": approximation, "inducing": x}
    again = torch.arange(30).repeat_interleave(weight.long())
    weighted = fgp.GP(kernel, likelihood=L.Poisson(exposure=hours, row_weight=weight)).condition(x, y, **options)
    repeated = fgp.GP(kernel, likelihood=L.Poisson(exposure=hours[again])).condition(x[again], y[again], **options)
    exact = fgp.GP(kernel, likelihood=L.Poisson(exposure=hours, row_weight=weight)).condition(x, y)
    for other in (repeated, exact):
        torch.testing.assert_close(weighted.predict(x).mean, other.predict(x).mean, rtol=0.0, atol=2e-3)
        torch.testing.assert_close(weighted.predict(x).variance, other.predict(x).variance, rtol=2e-3, atol=0.0)
        assert float(weighted.log_marginal_likelihood()) == pytest.approx(
            float(other.log_marginal_likelihood()), abs=5e-3
        )
