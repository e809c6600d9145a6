"""The certificate, eqs. (M-37) and (M-32), and what is said of the rounding of a matrix, (M-147), (M-259), (M-260)."""

import math
import warnings
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from inference.plain_gp import F64, data, model
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


AT = torch.tensor([0.013, 0.3317, 0.987, 1.0, 1.2], dtype=F64)[:, None]
TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "smooth": lambda x: x.square(),
    "not explained": lambda x: (6 * x).sin(),
    "noise": lambda x: torch.randn(len(x), generator=torch.Generator().manual_seed(0), dtype=F64),
}


def _gp(lengthscale: float, noise: float) -> fgp.GP:
    return fgp.GP(fgp.kernels.RBF(lengthscale), fgp.means.Zero(), fgp.likelihoods.Gaussian(noise))


def exactly(gp: fgp.GP, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """The means at AT and the log likelihood, (M-33)."""
    with mpmath.workdps(60):
        lengthscale, noise = (mpmath.mpf(p.value.item()) for p in (gp.kernel.lengthscale, gp.likelihood.noise_variance))

        def k(a: float, b: float) -> mpmath.mpf:
            return mpmath.exp(-((mpmath.mpf(a) - mpmath.mpf(b)) ** 2) / (2 * lengthscale**2))

        rows = x[:, 0].tolist()
        A = mpmath.matrix(
            [[k(a, b) + (noise if i == j else 0) for j, b in enumerate(rows)] for i, a in enumerate(rows)]
        )
        L, targets = mpmath.cholesky(A), mpmath.matrix(y.tolist())
        weights = mpmath.lu_solve(A, targets)
        means = [mpmath.fsum(k(at, a) * w for a, w in zip(rows, weights, strict=True)) for at in AT[:, 0].tolist()]
        logs = mpmath.fsum(mpmath.log(L[i, i]) for i in range(len(rows)))
        value = -(targets.T * weights)[0] / 2 - logs - len(rows) * mpmath.log(2 * mpmath.pi) / 2
        return torch.tensor([float(m) for m in means], dtype=F64), float(value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "lengthscale"), [(12, 1.0), (12, 3.0), (25, 2.0)])
@pytest.mark.parametrize("noise", [1e-8, 1e-11, 1e-13, 1e-15])
def test_the_numbers_of_the_warning_are_about_the_error_or_above(
    n: int, lengthscale: float, noise: float, target: str
) -> None:
    x = torch.linspace(0.0, 1.0, n, dtype=F64)[:, None]
    y, gp = TARGETS[target](x[:, 0]), _gp(lengthscale, noise)
    means, value = exactly(gp, x, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = gp.condition(x, y)
        p, found = posterior.predict(AT), float(posterior.log_marginal_likelihood())
    error = float(((p.mean - means).abs() / p.observation_variance.sqrt()).max())
    events = of_kind(posterior.report.events, EventKind.ROUNDED)
    assert bool(events) == any(issubclass(w.category, fgp.FlashGPWarning) for w in caught)
    if events:
        assert error <= events[0].fields["share"] <= 1e3 * error  # (M-259)
        assert abs(found - value) <= events[0].fields["nats"]  # (M-260)
    else:
        assert error <= 1e-3
        assert abs(found - value) <= 1e-3 * max(1.0, abs(value))


@pytest.mark.parametrize("gradient", [True, False])
def test_a_likelihood_alone_says_what_rounding_may_do_to_it(gradient: bool) -> None:
    x = torch.linspace(0.0, 1.0, 25, dtype=F64)[:, None]
    y = (6 * x[:, 0]).sin()
    with torch.set_grad_enabled(gradient):
        with pytest.warns(fgp.FlashGPWarning, match="may move the log likelihood"):
            _gp(3.0, 1e-15).log_marginal_likelihood(x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _gp(3.0, 1e-8).log_marginal_likelihood(x, y)


def test_ordinary_problems_have_no_warning() -> None:
    g = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fgp.FlashGPWarning)
        for number in range(60):
            n, d = (int(torch.randint(low, high, (), generator=g)) for low, high in ((5, 120), (1, 4)))
            noise = 10 ** -(2 + 4 * float(torch.rand((), generator=g)))
            x = torch.rand(n, d, generator=g, dtype=F64)
            y = (4 * x.sum(1)).sin() + math.sqrt(noise) * torch.randn(n, generator=g, dtype=F64)
            kernel = fgp.kernels.RBF(0.5) if number % 4 == 0 else fgp.kernels.Matern(2.5, 0.3 + 0.5 * (number % 3))
            gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise))
            gp.condition(x, y)
            gp.log_marginal_likelihood(x, y)
