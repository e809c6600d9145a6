"""The certificate: |mean error| is below the reported bound, eq. (M-37); float32 is refined to it, eq. (M-32)."""

import dataclasses
import math
import warnings

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from inference.plain_gp import F64, data, model, relative
from inside_torch import InsideTorch, Operation

k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods


def solves_off_by(size: float) -> InsideTorch:
    """Inside, solves with the transposed factor, the last step of every solve, are off by that much."""

    def last_step(operation: Operation) -> bool:
        return operation.function is torch.ops.aten.linalg_solve_triangular.default and operation.kwargs["upper"]

    def off(_: int, out: Tensor) -> None:
        out += size * torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=F64)

    return InsideTorch(last_step, off)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-2, 1.0])
@pytest.mark.parametrize(
    "gp",
    [
        model(),
        fgp.GP(1.7 * k.RBF(), m.Zero(), lik.Gaussian(1e-3, row_variance=torch.linspace(0.0, 0.1, 12))),
        fgp.GP(1.7 * k.RBF(), m.Zero(), lik.Gaussian(1.0, row_weight=torch.linspace(0.5, 900.0, 12))),
        fgp.GP(k.Linear(0.7) + 0.2, m.Zero(), lik.Gaussian(0.1)),
        fgp.GP(torch.tensor([0.1, 3.0]) * k.Matern(1.5), m.Zero(), lik.Gaussian(torch.tensor([0.5, 0.01]))),
    ],
    ids=["matern", "row variance", "row weight", "linear", "batch"],
)
def test_the_bound_bounds(gp: fgp.GP, size: float) -> None:
    x, y = data(12)
    x_test = torch.cat([data(200, seed=4)[0], x, 30.0 * x])  # at the data, between, and far beyond
    exact = gp.condition(x, y).predict(x_test).mean
    with solves_off_by(size):
        posterior = gp.condition(x, y)
    found = posterior.predict(x_test)
    error = float((found.mean - exact).abs().max())
    assert 0.0 < error <= found.report.error_bound
    assert error > 1e-4 * found.report.error_bound, "a bound a thousand times too wide would say nothing"


def test_the_bound_is_sharp() -> None:
    """One row, k = s: weights off by delta move the mean by k delta, and the bound is (k + s) delta: twice that."""
    x, y = data(1)
    gp = fgp.GP(0.5 * k.RBF(), m.Zero(), lik.Gaussian(0.5))
    with solves_off_by(0.1):
        posterior = gp.condition(x, y)
    found = posterior.predict(x)
    error = float((found.mean - 0.5 * y).abs())
    assert found.report.error_bound == pytest.approx(2.0 * error, rel=1e-9)


def test_without_noise_there_is_no_bound() -> None:
    x, y = data(6)
    assert fgp.GP(k.Matern(0.5), m.Zero(), lik.Gaussian(0.0)).condition(x, y).report.error_bound is None


def test_float64_is_measured_too() -> None:
    x, y = data(12)
    report = model().condition(x, y).report
    assert report.dtype == "float64"
    assert 0.0 <= report.relative_residual < 1e-12
    assert report.error_bound < 1e-11
    assert report.iterations is None


@pytest.mark.parametrize("noise", [0.1, 1e-3, 1e-5])
def test_float32_within_its_bound(noise: float) -> None:
    x, y = data(60, 2)
    x_test, _ = data(40, seed=3)
    gp = fgp.GP(1.7 * k.RBF(torch.tensor([0.7, 1.2])), m.Constant(0.3), lik.Gaussian(noise))
    exact = gp.condition(x, y)
    found = gp.condition(x, y, dtype=torch.float32)
    report = found.report
    assert report.dtype == "float32"
    assert report.iterations >= 1
    assert of_kind(report.events, EventKind.REFINED)
    # The default tolerance, 1e-3 standard deviations of an observation, is reached.
    assert report.error_bound <= 1e-3 * math.sqrt(noise)
    error = float((found.predict(x_test).mean - exact.predict(x_test).mean).abs().max())
    assert error <= report.error_bound + 1e-12
    # The variance comes from the float32 factor: its error is a small factor of eps times the condition number.
    wanted = exact.predict(x_test).variance
    eps = torch.finfo(torch.float32).eps
    assert float((found.predict(x_test).variance - wanted).abs().max()) <= 60 * eps * 1.7 * min(1.0 / noise, 1e3)
    loo, exact_loo = found.leave_one_out(), exact.leave_one_out()
    assert relative(loo.mean, exact_loo.mean) < 60 * eps / noise


def test_a_tighter_tolerance_takes_more_corrections() -> None:
    x, y = data(60, 2)
    gp = fgp.GP(1.7 * k.RBF(torch.tensor([0.7, 1.2])), m.Constant(0.3), lik.Gaussian(1e-4))
    loose = gp.condition(x, y, dtype=torch.float32, tolerance=0.5).report
    tight = gp.condition(x, y, dtype=torch.float32, tolerance=1e-6).report
    assert tight.iterations > loose.iterations
    assert tight.error_bound <= 1e-6 * 1e-2
    for tolerance in (0.0, -1.0, math.nan):
        with pytest.raises(fgp.DomainError, match="`tolerance` must be positive"):
            gp.condition(x, y, tolerance=tolerance)


def test_what_float32_cannot_reach_is_said() -> None:
    """Noise far below float32's rounding: the matrix needs a jitter there, and the report says how far off that is."""
    x = torch.linspace(0, 1, 80, dtype=F64)[:, None]
    y = torch.sin(6 * x[:, 0])
    gp = fgp.GP(k.RBF(0.5), m.Zero(), lik.Gaussian(1e-9))
    plan = fgp.plan(gp, n=80, d=1, dtype=torch.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = gp.condition(x, y, plan=dataclasses.replace(plan, alternatives=()))
        variance = found.predict(x).variance
    assert any(issubclass(w.category, fgp.FlashGPWarning) for w in caught)
    assert found.report.jitter > 0
    (event,) = of_kind(found.report.events, EventKind.JITTER)
    assert event.fields["factor_only"]
    assert variance.isfinite().all()
    with pytest.warns(
        fgp.FlashGPWarning, match=r"tried: none\); the next jitter.* A float64 Cholesky factor of all rows"
    ):
        found = gp.condition(x, y, plan=plan)
    assert (found.report.dtype, found.report.jitter) == ("float64", None)


def test_likelihood_in_float32() -> None:
    x, y = data(60, 2)
    gp = model()
    value = gp.log_marginal_likelihood(x, y)
    single = gp.log_marginal_likelihood(x, y, dtype=torch.float32)
    assert single.dtype == F64
    assert relative(single, value) < 1e-5
    exact = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(gp.parameters()))])
    found = torch.cat([g.reshape(-1) for g in torch.autograd.grad(single, list(gp.parameters()))])
    assert relative(found, exact) < 1e-4


def test_float32_data_are_computed_in_float64() -> None:
    """The dtype of x is that of the results, not of the computation."""
    x, y = (t.float() for t in data(15))
    x_test = data(4, seed=3)[0].float()
    found = model().condition(x, y).predict(x_test)
    exact = model().condition(x.double(), y.double()).predict(x_test.double())
    assert found.mean.dtype == found.variance.dtype == torch.float32
    assert torch.equal(found.mean, exact.mean.float())
    assert torch.equal(found.variance, exact.variance.float())
    assert (
        torch.equal(found.quantile(0.9), exact.quantile(0.9).float())
        or relative(found.quantile(0.9), exact.quantile(0.9)) < 2e-7
    )
