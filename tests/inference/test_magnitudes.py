"""Covariances of any magnitude beside the noise: an answer is within its tolerance, or an event says so, eq. (M-147).

The references take the same numbers to 60 digits: beside covariances of 1e20 a float64 factor knows nothing of the
noise. Data are float32, and so are the answers; the factor is in float64, or in float32 with float64 corrections.
"""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind

F64 = torch.float64
N, M, NOISE = 18, 4, 0.1
TOLERANCE = 1e-3  # of means, in standard deviations of an observation: the default of `condition`
SHARE = 0.01  # of variances by solves
FLOAT32 = 4 * torch.finfo(torch.float32).eps  # of the answers themselves
# Each says in words and numbers that an answer may be off by more than its tolerance.
SAID = {
    EventKind.ROUNDED, EventKind.JITTER, EventKind.SOLVE_ENDED, EventKind.ROUNDING_REACHED, EventKind.JOINT_JITTER,
    EventKind.LIKELIHOOD_UNCERTAIN,
}  # fmt: skip

Pair = Callable[[list[Any], list[Any]], Any]


def _dot(x: list[Any], z: list[Any]) -> Any:
    return mpmath.fsum(a * b for a, b in zip(x, z, strict=True))


def _distance(x: list[Any], z: list[Any]) -> Any:
    return mpmath.sqrt(mpmath.fsum((a - b) ** 2 for a, b in zip(x, z, strict=True)))


def polynomial(degree: int) -> tuple[fgp.kernels.Kernel, Pair]:
    return fgp.kernels.Polynomial(degree), lambda x, z: (1 + _dot(x, z)) ** degree


def scaled_matern(variance: float) -> tuple[fgp.kernels.Kernel, Pair]:
    kernel = variance * fgp.kernels.Matern(0.5, 2.0)
    return kernel, lambda x, z: mpmath.mpf(kernel.variance.value.item()) * mpmath.exp(-_distance(x, z) / 2)


def product_of_sums(scale: float) -> tuple[fgp.kernels.Kernel, Pair]:
    kernel = (scale * fgp.kernels.Linear() + 1.0) * (fgp.kernels.Polynomial(2) + fgp.kernels.Matern(0.5))
    slope = mpmath.mpf(kernel.parts[0].parts[0].variance.value.item())

    def plain(x: list[Any], z: list[Any]) -> Any:
        return (slope * _dot(x, z) + 1) * ((1 + _dot(x, z)) ** 2 + mpmath.exp(-_distance(x, z)))

    return kernel, plain


# Kernels, and the magnitude of the inputs.
CASES = {
    **{f"polynomial {p}, inputs of {size}": (polynomial, p, size) for p in (1, 4, 5) for size in (1, 30)},
    **{f"Matern of {v:g}": (scaled_matern, v, 10) for v in (1.0, 1e12)},
    **{f"product of sums, slope {v:g}": (product_of_sums, v, 10) for v in (1e8,)},
}


@dataclass(frozen=True)
class Exact:
    """What the posterior says, to 60 digits and then rounded to float64."""

    mean: Tensor
    covariance: Tensor
    log_likelihood: float
    left_mean: Tensor
    left_variance: Tensor
    log_density: float


def _numbers(tensor: Tensor) -> list[Any]:
    return [mpmath.mpf(value) for value in tensor.double().tolist()]


def _rounded(values: Any) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=F64)


def _log_normal(factor: Any, error: Any) -> Any:
    """log N(error; 0, L L^T)."""
    half = mpmath.lu_solve(factor, error)
    logs = mpmath.fsum(mpmath.log(factor[i, i]) for i in range(factor.rows))
    return -(half.T * half)[0] / 2 - logs - factor.rows * mpmath.log(2 * mpmath.pi) / 2


def exactly(plain: Pair, noise: float, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> Exact:
    """Eqs. (M-33), (M-39) to (M-42) with zero mean, by an inverse."""
    with mpmath.workdps(60):
        rows, new = [_numbers(row) for row in x], [_numbers(row) for row in x_test]
        n, m = len(rows), len(new)
        A = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                A[i, j] = plain(rows[i], rows[j]) + (mpmath.mpf(noise) if i == j else 0)
        inverse, targets = A**-1, mpmath.matrix(_numbers(y))
        weights = inverse * targets
        cross = mpmath.matrix([[plain(a, b) for b in rows] for a in new])
        mean = cross * weights
        covariance = mpmath.matrix([[plain(a, b) for b in new] for a in new]) - cross * inverse * cross.T
        observed = covariance + mpmath.mpf(noise) * mpmath.eye(m)
        precision = [inverse[i, i] for i in range(n)]
        return Exact(
            _rounded(mean), torch.stack([_rounded(covariance[i, :]) for i in range(m)]),
            float(_log_normal(mpmath.cholesky(A), targets)),
            _rounded([targets[i] - weights[i] / precision[i] for i in range(n)]),
            _rounded([1 / value for value in precision]),
            float(_log_normal(mpmath.cholesky(observed), mpmath.matrix(_numbers(y_test)) - mean)),
        )  # fmt: skip


def within(found: Tensor | float, wanted: Tensor | float, allowed: Tensor | float) -> bool:
    return bool((torch.as_tensor(found, dtype=F64) - wanted).abs().le(torch.as_tensor(allowed)).all())


@functools.cache
def problem(case: str, columns: int) -> tuple[fgp.GP, Tensor, Tensor, Tensor, Tensor, Exact]:
    """The prior, rows, targets, points and theirs, and the answers in extended precision."""
    make, number, size = CASES[case]
    kernel, plain = make(number)
    g = torch.Generator().manual_seed(3)
    x, x_test = (size * torch.rand(count, columns, generator=g) for count in (N, M))
    y, y_test = (
        3.0 * (at / size).sum(-1).sin() + math.sqrt(NOISE) * torch.randn(len(at), generator=g) for at in (x, x_test)
    )
    gp = fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(NOISE))
    noise = float(gp.likelihood.noise_variance.value.detach())
    return gp, x, y, x_test, y_test, exactly(plain, noise, x, y, x_test, y_test)


@pytest.mark.parametrize(("columns", "dtype"), [(4, torch.float64), (1, torch.float32), (4, torch.float32)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_answers_are_within_their_tolerance_or_an_event_says_otherwise(
    case: str, columns: int, dtype: torch.dtype
) -> None:
    gp, x, y, x_test, y_test, wanted = problem(case, columns)
    noise = float(gp.likelihood.noise_variance.value.detach())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = gp.condition(x, y, dtype=dtype)
        p, left, likelihood = posterior.predict(x_test), posterior.leave_one_out(), posterior.log_marginal_likelihood()
        variance, covariance, density = p.variance.double(), p.covariance().double(), float(p.joint_log_prob(y_test))
        draws = p.sample(4096, seed=0).double()
    sd = (wanted.covariance.diagonal() + noise).sqrt()
    spread = sd[:, None] * sd
    left_sd = wanted.left_variance.sqrt()
    errors = 4.0 * (posterior.report.standard_error or 0.0) + 1e-4 * N
    checked = {
        "mean": within(p.mean.double(), wanted.mean, 2 * TOLERANCE * sd + FLOAT32 * wanted.mean.abs()),
        "variance": within(variance, wanted.covariance.diagonal(), SHARE * spread.diagonal()),
        "joint covariance": within(covariance, wanted.covariance, 2 * SHARE * spread),
        "log density": within(density, wanted.log_density, 2 * SHARE * M),
        "log marginal likelihood": within(likelihood, wanted.log_likelihood, errors),
        "leave-one-out mean": within(left.mean.double(), wanted.left_mean, SHARE * left_sd + FLOAT32 * 10.0),
        "leave-one-out variance": within(left.variance.double(), wanted.left_variance, SHARE * wanted.left_variance),
        "mean of samples": within(draws.mean(0), wanted.mean, (2 * TOLERANCE + 5.0 / 64.0) * sd),
        "covariance of samples": within(draws.T.cov(), wanted.covariance, (2 * SHARE + 10.0 / 64.0) * spread),
    }
    events = [*posterior.report.events, *p.report.events]
    said = {event.kind for event in events} & SAID
    shares = {kind: [e.fields["share"] for e in events if e.kind is kind]
              for kind in (EventKind.LEFT_OUT, EventKind.VARIANCE_BY_SOLVES)}  # fmt: skip
    said |= {kind for kind, found in shares.items() if max(found, default=0.0) > SHARE}
    wrong = sorted(name for name, right in checked.items() if not right)
    assert not wrong or said, wrong
    if wrong:
        assert any(issubclass(w.category, fgp.FlashGPWarning) for w in caught), "an event of that weight is a warning"
