"""What the rounding of a covariance matrix does to means and likelihoods is said, eqs. (M-147), (M-259), (M-260).

The references take the same numbers to 60 digits.
"""

import math
import warnings
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind

F64 = torch.float64
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
