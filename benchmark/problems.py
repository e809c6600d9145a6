"""What the long benchmarks compute with, and the float64 answers they are compared with: plain NumPy and SciPy.

Nothing here uses the library that is measured. Covariances come from their formulas by direct differences, strip by
strip; the factor is LAPACK's, in the one n x n buffer there is, so that 36,000 rows take 10.4 GB.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy

Array = Any  # numpy arrays, float64

ROOT3 = math.sqrt(3.0)
PANEL = 1024  # columns factorised at once
STRIP_NUMBERS = 2**22  # of a covariance computed at once: 32 MiB
FEATURES = 4096  # of a draw of the prior
# Stationary covariance functions of unit variance by the distance r of rows divided by lengthscales.
PROFILES: dict[str, Callable[[Array], Array]] = {
    "squared exponential": lambda r: numpy.exp(-0.5 * r * r),
    "Matern-1/2": lambda r: numpy.exp(-r),
    "Matern-3/2": lambda r: (1.0 + ROOT3 * r) * numpy.exp(-ROOT3 * r),
}


class Table(NamedTuple):
    """Rows, targets, test points, and where it is known the function at the test points; float64."""

    x: Array
    y: Array
    x_test: Array
    f_test: Array


def prior_draw(x: Array, lengthscale: float, seed: int, features: int = FEATURES) -> Array:
    """A function of a Matern-3/2 prior of unit variance by random features, at rows x (n, d): (n,).

    Its spectral density is a multivariate t of 3 degrees of freedom over the lengthscale.
    Cost: n features d flops. Source: Rahimi & Recht (2007); Rasmussen & Williams (2006), eq. 4.15.
    """
    generator = numpy.random.default_rng(seed)
    normal = generator.standard_normal((x.shape[1], features))
    frequency = normal / numpy.sqrt(generator.chisquare(3.0, features) / 3.0) / lengthscale
    phase = generator.uniform(0.0, 2.0 * math.pi, features)
    weight = generator.standard_normal(features) * math.sqrt(2.0 / features)
    values = numpy.empty(len(x))
    step = max(1, STRIP_NUMBERS // features)
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        values[part] = numpy.cos(x[part] @ frequency + phase) @ weight
    return values


def drawn_table(n: int, n_test: int, d: int, lengthscale: float, noise_variance: float, seed: int = 0) -> Table:
    """Rows and test points uniform in the unit cube, a draw of the prior there, and targets with noise.

    The same seed gives the same function and test points whatever n is.
    """
    rows, points, errors = (numpy.random.default_rng([seed, k]) for k in range(3))
    x, x_test = rows.random((n, d)), points.random((n_test, d))
    y = prior_draw(x, lengthscale, seed) + math.sqrt(noise_variance) * errors.standard_normal(n)
    return Table(x, y, x_test, prior_draw(x_test, lengthscale, seed))


def covariance(
    kernel: str, x1: Array, x2: Array, out: Array | None = None, strip_numbers: int = STRIP_NUMBERS
) -> Array:
    """K (n, m) of rows that are divided by the lengthscales, by direct differences; into `out` where it is given."""
    from scipy.spatial.distance import cdist

    block = numpy.empty((len(x1), len(x2))) if out is None else out
    step = max(1, strip_numbers // max(1, len(x2)))
    for start in range(0, len(x1), step):
        part = slice(start, start + step)
        block[part] = PROFILES[kernel](cdist(x1[part], x2))
    return block


def factorised(matrix: Array, panel: int = PANEL) -> Array:
    """The lower Cholesky factor of a symmetric matrix, (n, n) in Fortran order, in its own lower triangle.

    Panel by panel, each by LAPACK: SciPy's own dpotrf ends the process at 16,000 rows.
    Raises: numpy.linalg.LinAlgError if it is not positive definite. Cost: n^3 / 3 flops, one panel beside it.
    """
    from scipy.linalg.blas import dtrsm
    from scipy.linalg.lapack import dpotrf

    n = len(matrix)
    for start in range(0, n, panel):
        stop = min(n, start + panel)
        matrix[start:, start:stop] -= matrix[start:, :start] @ matrix[start:stop, :start].T
        corner, failed = dpotrf(matrix[start:stop, start:stop], lower=1, clean=1)
        if failed:
            raise numpy.linalg.LinAlgError(f"pivot {start + failed} of {n} is not positive")
        matrix[start:stop, start:stop] = corner
        if stop < n:
            matrix[stop:, start:stop] = dtrsm(1.0, corner, matrix[stop:, start:stop], side=1, lower=1, trans_a=1)
    return matrix


class Reference:
    """The posterior of zero mean given rows, by a float64 Cholesky factor.

    Args: x, (n, d), divided by the lengthscales; y, (n,). Fields: weights K^-1 y; log_marginal_likelihood, nats.
    Raises: numpy.linalg.LinAlgError if K is not positive definite. Cost: n^3 / 3 flops, one n x n buffer.
    """

    def __init__(
        self,
        kernel: str,
        x: Array,
        y: Array,
        noise_variance: float,
        *,
        panel: int = PANEL,
        strip_numbers: int = STRIP_NUMBERS,
    ) -> None:
        from scipy.linalg.lapack import dpotrs

        self.kernel, self.x, self.strip_numbers = kernel, x, strip_numbers
        matrix = covariance(kernel, x, x, strip_numbers=strip_numbers)
        matrix.flat[:: len(x) + 1] += noise_variance
        # The transpose of a symmetric matrix in C order is in the order that LAPACK writes to: no copy.
        self.lower = factorised(matrix.T, panel)
        self.weights = dpotrs(self.lower, y, lower=1)[0].reshape(-1)
        self.log_determinant = 2.0 * float(numpy.log(numpy.diagonal(self.lower)).sum())
        fit = float(y @ self.weights)
        self.log_marginal_likelihood = -0.5 * (fit + self.log_determinant + len(x) * math.log(2.0 * math.pi))

    def mean(self, x_test: Array) -> Array:
        """(n_test,)"""
        step = max(1, self.strip_numbers // len(self.x))
        parts = [
            covariance(self.kernel, x_test[s : s + step], self.x) @ self.weights for s in range(0, len(x_test), step)
        ]
        return numpy.concatenate(parts)

    def variance(self, x_test: Array) -> Array:
        """Of the latent function, (n_test,). Cost: n^2 n_test flops."""
        from scipy.linalg.blas import dtrsm

        parts = []
        step = max(1, self.strip_numbers // len(self.x))
        for start in range(0, len(x_test), step):
            cross = covariance(self.kernel, x_test[start : start + step], self.x)
            half = dtrsm(1.0, self.lower, cross.T, lower=1, overwrite_b=1)
            parts.append(1.0 - numpy.square(half).sum(0))
        return numpy.concatenate(parts)


def matern_gradient(
    x: Array, y: Array, lengthscale: Array, variance: float, noise_variance: float, mean: float,
    strip_numbers: int = STRIP_NUMBERS,
) -> Any:  # fmt: skip
    """The gradient of the log marginal likelihood by (log lengthscales, log variance, log noise_variance, mean).

    With a = K^-1 (y - mean), W = (a a' - K^-1) / 2 and s = sqrt(3) r:  dL = sum W dK,  where for Matern-3/2

        dk / d log lengthscale_k = 3 variance r_k^2 exp(-s),   r_k the difference in column k over its lengthscale.

    Cost: n^3 flops, two n x n buffers. Source: Rasmussen & Williams (2006), eq. 5.9.
    """
    from scipy.linalg.lapack import dpotri
    from scipy.spatial.distance import cdist

    n, scaled = len(x), x / lengthscale
    reference = Reference("Matern-3/2", scaled, (y - mean) / math.sqrt(variance), noise_variance / variance)
    inverse, failed = dpotri(reference.lower, lower=1, overwrite_c=1)
    assert not failed
    a = reference.weights / math.sqrt(variance)
    total = numpy.zeros(len(lengthscale) + 3)
    step = max(1, strip_numbers // n)
    for start in range(0, n, step):
        part = slice(start, min(n, start + step))
        # Only the lower triangle of the inverse is filled: the rest of these rows stands in its columns.
        rows = numpy.where(numpy.arange(n)[None, :] <= numpy.arange(n)[part, None], inverse[part], inverse[:, part].T)
        weights = 0.5 * (numpy.outer(a[part], a) - rows / variance)
        s = ROOT3 * cdist(scaled[part], scaled)
        decay = weights * numpy.exp(-s)
        for k in range(len(lengthscale)):
            difference = scaled[part, k, None] - scaled[None, :, k]
            total[k] += 3.0 * variance * float((decay * difference**2).sum())
        total[-3] += variance * float((decay * (1.0 + s)).sum())
        total[-2] += noise_variance * float(numpy.trace(weights, offset=start))
    total[-1] = a.sum()
    return total


def kept(path: Path, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Arrays from a file, or made now and put there, whole or not at all."""
    if path.exists():
        with numpy.load(path) as file:
            return dict(file)
    arrays = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    numpy.savez(partial, **arrays)
    partial.replace(path)
    return arrays
