"""Inducing points that add nothing to what neighbours explain are left out, eq. (M-207)."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.full_scale.layout import Layout, drop_redundant_points
from flashgp.planner.plan import Sizes
from solvers.dense_system import matern

F64 = torch.float64
k = fgp.kernels


def rough(n: int) -> tuple[fgp.GP, Tensor, Tensor]:
    """A draw in two dimensions, with a lengthscale that the neighbours of a block span."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=F64)
    covariance = matern(x, 0.1).diagonal_scatter(torch.full((n,), 1.01, dtype=F64))
    y = torch.linalg.cholesky(covariance) @ torch.randn(n, generator=generator, dtype=F64)
    return fgp.GP(1.0 * k.Matern(1.5, 0.1), likelihood=fgp.likelihoods.Gaussian(0.01)), x, y


def smooth(n: int) -> tuple[fgp.GP, Tensor, Tensor]:
    """In six dimensions, with waves longer than any neighbourhood and little noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 6, generator=generator, dtype=F64)
    y = torch.sin(2.0 * x.sum(-1)) + 0.01 * torch.randn(n, generator=generator, dtype=F64)
    return fgp.GP(4.0 * k.Matern(1.5, 2.5), likelihood=fgp.likelihoods.Gaussian(1e-4)), x, y


def test_where_neighbours_explain_everything_an_eighth_serves() -> None:
    gp, x, y = rough(1500)
    found = gp.condition(x, y, approximation="full_scale")
    (event,) = of_kind(found.report.events, EventKind.FEWER_POINTS_SUFFICE)
    assert (event.fields["kept"], event.fields["planned"]) == (64, 512)
    assert found.state.sizes.inducing == len(found.state.layout.inducing) == 64
    assert "inducing=512 keeps them all" in str(event)
    every = gp.condition(x, y, approximation="full_scale", inducing=512)
    assert not of_kind(every.report.events, EventKind.FEWER_POINTS_SUFFICE), "what was asked for is kept"
    lost = float(every.log_marginal_likelihood() - found.log_marginal_likelihood()) / len(x)
    assert lost <= 1e-3
    assert event.fields["gain"] is None or event.fields["gain"] == pytest.approx(lost, rel=1e-6)
    a, b = (one.predict(x[:50] + 0.003) for one in (found, every))
    assert float(((a.mean - b.mean) / b.variance.sqrt()).abs().max()) < 0.2


def test_where_waves_are_long_all_points_stay() -> None:
    gp, x, y = smooth(1500)
    found = gp.condition(x, y, approximation="full_scale")
    assert not of_kind(found.report.events, EventKind.FEWER_POINTS_SUFFICE)
    assert found.state.sizes.inducing == 512
    few = gp.condition(x, y, approximation="full_scale", inducing=64)
    assert float(found.log_marginal_likelihood() - few.log_marginal_likelihood()) / len(x) > 1e-3


def test_a_fit_settles_it_for_its_posterior() -> None:
    gp, x, y = rough(2400)
    fit = fgp.fit(gp, x, y, approximation="full_scale", starts=1, progress=False)
    assert len(of_kind(fit.report.events, EventKind.FEWER_POINTS_SUFFICE)) == 1
    assert len(of_kind(fit.posterior.report.events, EventKind.FEWER_POINTS_SUFFICE)) == 1
    assert fit.posterior.state.sizes.inducing == 64
    again = fit.gp.condition(x, y, approximation="full_scale")
    assert float(again.log_marginal_likelihood()) == pytest.approx(
        float(fit.posterior.log_marginal_likelihood()), abs=1e-3 * len(x)
    )


@pytest.mark.parametrize(("few", "kept"), [
    (1000.0 - 0.9, 2), (1000.0 - 1.1, 16), (1001.0, 2), (float("nan"), 16),
])  # fmt: skip
def test_a_thousandth_of_a_nat_a_row_is_the_limit(few: float, kept: int) -> None:
    """Of 1,000 rows; Vecchia is no bound, so that fewer points may say more."""
    whole = Layout(torch.zeros(16, 1, dtype=F64), cast(Any, None), Sizes(16, 8, 8, 8))
    values = {16: 1000.0, 2: few}
    layout, made, event = drop_redundant_points(whole, lambda one: (len(one.inducing), values[len(one.inducing)]), 1000)
    assert len(layout.inducing) == layout.sizes.inducing == made == kept
    assert (event is not None) == (kept == 2)


def test_fewer_points_without_a_factor_are_passed_over() -> None:
    whole = Layout(torch.zeros(16, 1, dtype=F64), cast(Any, None), Sizes(16, 8, 8, 8))

    def make(one: Layout) -> tuple[str, float]:
        if len(one.inducing) < 16:
            raise fgp.NotPositiveDefiniteError("none")
        return "whole", 0.0

    assert drop_redundant_points(whole, make, 1000) == (whole, "whole", None)


@pytest.mark.parametrize("n", [0, 1, 300])
def test_where_an_eighth_is_not_fewer_nothing_is_tried(n: int) -> None:
    """No rows, one, and a kernel that has one pivot whatever the rows."""
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    kernel = k.Constant(1.0) if n == 300 else k.Matern(1.5, 0.1)
    found = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.1)).condition(
        x, torch.sin(x[:, 0]), approximation="full_scale"
    )
    assert not of_kind(found.report.events, EventKind.FEWER_POINTS_SUFFICE)
    assert len(of_kind(found.report.events, EventKind.FEWER_POINTS)) == (n == 300)
