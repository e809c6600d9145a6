"""Gaussian process regression a third time: dense textbook formulas in extended precision, with error bounds.

Nothing of the library's numerics is used. Every answer is a `Rounded`: a value, and in units of eps what a float64
computation may be off by. Bounds are first-order perturbation theory, entry by entry: with K^ perturbed by F,
|F_ij| <= E_ij + c sqrt(K_ii K_jj) (E: rounding of the formula at data and parameters that are rounded themselves; c:
of the factorisation, Higham (2002), theorem 10.3),

    |d alpha| <= |P| F |alpha|,   |d P| <= |P| F |P|,   P = K^-1,   and so on through each formula.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy

from hunt import specs
from hunt.rounding import EPS, LD, Rounded, rounded, stacked

PI = LD("3.14159265358979323846264338327950288")
LOG_2PI = numpy.log(2 * PI)
CANCELLATION_BUDGET = 1e-11  # what the library may lose of a squared distance, in its documents (M-22)


# -- covariance functions ----------------------------------------------------------------------------------------------
def positive(value: Any) -> Rounded:
    """A parameter of a half-line, which is exp(log(value)) in float64."""
    array = numpy.asarray(value, LD)
    return Rounded(array, abs(array) * (1 + abs(numpy.log(array))))


def differences(x: Rounded, z: Rounded) -> Rounded:
    """x_i - z_j, (n, m, d), as far as the rounded columns let it be known; exactly 0 for equal numbers."""
    a, b = x.value[:, None, :], z.value[None, :, :]
    error = abs(a) + abs(b) + x.error[:, None, :] + z.error[None, :, :]
    return Rounded(a - b, numpy.where(a == b, 0.0, error))


def squared_distance(x: Rounded, z: Rounded, lengthscale: Rounded, smooth: bool) -> Rounded:
    scaled = differences(x, z) / lengthscale
    q = (scaled * scaled).sum(-1)
    equal = (x.value[:, None, :] == z.value[None, :, :]).all(-1)
    extra: Any = 0.0
    if smooth and q.value.size:
        u = numpy.concatenate([x.value, z.value]) / lengthscale.value
        radius = ((u - (u.max(0) + u.min(0)) / 2) ** 2).sum(-1).max()
        extra = min(4 * (3 * x.shape[-1] + 4) * radius, CANCELLATION_BUDGET / EPS)
    return Rounded(q.value, numpy.where(equal, 0.0, q.error + extra))


def covariance(spec: specs.Spec, x: Any, z: Any) -> Rounded:
    """k(x_i, z_j), (n, m)."""
    x, z = rounded(x), rounded(z)
    match spec:
        case specs.Sum():
            return covariance(spec.left, x, z) + covariance(spec.right, x, z)
        case specs.Product():
            return covariance(spec.left, x, z) * covariance(spec.right, x, z)
        case specs.Scaled():
            return positive(spec.variance) * covariance(spec.kernel, x, z)
        case specs.Constant():
            return positive(numpy.full((len(x.value), len(z.value)), spec.variance))
    if spec.dims is not None:
        x, z = x[:, list(spec.dims)], z[:, list(spec.dims)]
    match spec:
        case specs.Warped():
            return covariance(spec.kernel, sines(x), sines(z))
        case specs.SquaredExponential():
            return (squared_distance(x, z, positive(spec.lengthscale), True) * -0.5).exp()
        case specs.Matern():
            q = squared_distance(x, z, positive(spec.lengthscale), spec.nu != 0.5)
            equal = q.error == 0.0
            if spec.nu == 0.5:
                r = q.sqrt()
                return (-Rounded(r.value, numpy.where(equal, 0.0, r.error))).exp()
            s = (q * (2 * spec.nu)).sqrt()
            s = Rounded(s.value, numpy.where(equal, 0.0, s.error))
            polynomial = 1 + s if spec.nu == 1.5 else 1 + s + s * s / 3
            # The slope by r is 0 at 0: what rounding makes of r there counts squared.
            decay = (-s).exp()
            value = polynomial * decay
            slope = s.value * decay.value if spec.nu == 1.5 else s.value * (1 + s.value) / 3 * decay.value
            second = EPS * s.error**2
            return Rounded(value.value, slope * s.error + second + 8 * polynomial.value * decay.value)
        case specs.RationalQuadratic():
            a = positive(spec.scale_mixture)
            q = squared_distance(x, z, positive(spec.lengthscale), True)
            ratio = q / (2 * a)
            log = Rounded(numpy.log1p(ratio.value), ratio.error / (1 + ratio.value) + numpy.log1p(ratio.value))
            return (-(a * log)).exp()
        case specs.Periodic():
            difference, period = differences(x, z), positive(spec.period)
            wave = difference * PI / period
            equal = difference.error == 0.0
            # The library's features cos and sin round on their own, and their angles by |2 pi x / p|.
            wave = wave.sin()
            wave = Rounded(wave.value, numpy.where(equal, 0.0, wave.error + 4.0)) / positive(spec.lengthscale)
            return ((wave * wave).sum(-1) * -2.0).exp()
        case specs.Cosine():
            w = Rounded(spec.frequency)
            angle = (differences(x, z) * w).sum(-1) * (2 * PI)
            size = 2 * PI * (abs(x.value * w.value).sum(-1)[:, None] + abs(z.value * w.value).sum(-1)[None, :])
            return angle.widened((x.shape[-1] + 2) * size).cos().widened(4.0)
        case specs.SpectralMixture():
            total = Rounded(numpy.zeros((len(x.value), len(z.value))))
            for weight, mean, scale in zip(spec.weights, spec.means, spec.scales, strict=True):
                w = numpy.asarray(mean, LD)
                angle = (differences(x, z) * mean).sum(-1) * (2 * PI)
                size = 2 * PI * (abs(x.value * w).sum(-1)[:, None] + abs(z.value * w).sum(-1)[None, :])
                wave = angle.widened((x.shape[-1] + 2) * size).cos().widened(4.0)
                q = squared_distance(x, z, 1 / (positive(scale) * (2 * PI)), True)
                total = total + positive(weight) * (q * -0.5).exp() * wave
            return total
        case specs.Linear():
            return inner(x, z, spec.variance)
        case specs.Polynomial():
            return (inner(x, z, spec.variance) + positive(spec.offset)).power(spec.degree)
        case specs.Categorical():
            differ = Rounded((x.value[:, None, :] != z.value[None, :, :]).astype(LD))
            return (-(differ / positive(spec.lengthscale)).sum(-1)).exp()
        case specs.Coregionalization():
            W = numpy.asarray(spec.factor, LD)
            B = Rounded(W @ W.T, W.shape[1] * abs(W) @ abs(W).T)
            i, j = x.value[:, 0].astype(int), z.value[:, 0].astype(int)
            own = positive(spec.diagonal)[i]
            same = i[:, None] == j[None, :]
            column = own[:, None]
            diagonal = Rounded(numpy.where(same, column.value, 0.0), numpy.where(same, 4 * column.error, 0.0))
            return B[i][:, j] + diagonal
        case specs.Custom():
            return custom(spec.name, x, z, positive(spec.scale))
    raise AssertionError(f"no formula is written down for {type(spec).__name__}")


def inner(x: Rounded, z: Rounded, variance: Any) -> Rounded:
    terms = x[:, None, :] * z[None, :, :] * positive(variance)
    return terms.widened(3 * abs(terms.value)).sum(-1)  # of its roots


def sines(x: Rounded) -> Rounded:
    half, third = (x / 2).sin(), x[:, :1] / 3
    return Rounded(numpy.concatenate([half.value, third.value], -1), numpy.concatenate([half.error, third.error], -1))


def custom(name: str, x: Rounded, z: Rounded, scale: Rounded) -> Rounded:
    match name:
        case "laplace":
            return (-(differences(x, z) / scale).abs().sum(-1)).exp()
        case "brownian":
            a, b = (x / scale).exp(), (z / scale).exp()
            return a[:, None, :].minimum(b[None, :, :]).sum(-1)
        case "waves":
            a, b = ((v / scale).sin().sum(-1) for v in (x, z))
            a, b = 1 + a * a, 1 + b * b
            return a[:, None] * b[None, :] + (x[:, None, :] * z[None, :, :]).sum(-1) / (scale * scale)
    raise AssertionError(name)


def prior_mean(mean: specs.Mean, x: Any, outputs: int) -> Rounded:
    """m(x), (n, outputs)."""
    n = x.shape[0]
    match mean.kind:
        case "zero":
            column = Rounded(numpy.zeros(n))
        case "linear":
            column = (Rounded(x) * numpy.asarray(mean.slope)).sum(-1) + mean.intercept
        case "bowl":
            column = Rounded(x)[:, 0] * Rounded(x)[:, 0] / 2
        case _:
            values = numpy.broadcast_to(numpy.asarray(mean.intercept, LD), (outputs,))
            return Rounded(numpy.broadcast_to(values, (n, outputs)))
    return stacked([column] * outputs, axis=-1)


# -- dense algebra -----------------------------------------------------------------------------------------------------
def cholesky(A: numpy.ndarray) -> numpy.ndarray | None:
    """Lower factor in extended precision; None where A is not positive definite."""
    n = len(A)
    L = numpy.zeros_like(A)
    for j in range(n):
        column = A[j:, j] - L[j:, :j] @ L[j, :j]
        if not column[0] > 0 or not numpy.isfinite(column[0]):
            return None
        L[j:, j] = column / numpy.sqrt(column[0])
    return L


def inverse(L: numpy.ndarray) -> numpy.ndarray:
    """(L L^T)^-1."""
    n = len(L)
    M = numpy.zeros_like(L)
    for i in range(n):
        M[i] = -(L[i, :i] @ M[:i]) / L[i, i]
        M[i, i] = 1 / L[i, i]
    return M.T @ M


def solve(L: numpy.ndarray, B: numpy.ndarray) -> numpy.ndarray:
    """(L L^T)^-1 B, which a factor gives to more digits than an inverse."""
    X = numpy.zeros_like(B)
    for i in range(len(L)):
        X[i] = (B[i] - L[i, :i] @ X[:i]) / L[i, i]
    for i in reversed(range(len(L))):
        X[i] = (X[i] - L[i + 1 :, i] @ X[i + 1 :]) / L[i, i]
    return X


def sizes(A: numpy.ndarray) -> numpy.ndarray:
    """sqrt(A_ii A_jj)."""
    root = numpy.sqrt(numpy.maximum(A.diagonal(), 0))
    return root[:, None] * root[None, :]


class NotDefiniteError(Exception):
    """The matrix is singular as far as float64 can tell: no answer is asked for."""


@dataclass
class Data:
    """One model with rows: kernel, mean, x (n, d), y (n, p), noise of each row (n,) and of a new one (), `Rounded`."""

    kernel: specs.Spec
    mean: specs.Mean
    x: Any
    y: Any
    noise: Rounded
    new_noise: Rounded
    updated: bool = False  # by appending and dropping, which may leave a drift of 100 sqrt(n) eps, eq. (M-113)


class Reference:
    """What a Gaussian process says, eqs. (M-30) to (M-43). Raises: NotDefiniteError where float64 cannot tell."""

    def __init__(self, data: Data) -> None:
        self.data = data
        n, self.p = data.y.shape
        K = covariance(data.kernel, data.x, data.x)
        A = K.value + numpy.diag(data.noise.value)
        own = sizes(A)
        steps = max((3 * n + 2) / 2, 100 * math.sqrt(n) if data.updated else 0.0)
        self.F = K.error + numpy.diag(data.noise.error + A.diagonal()) + steps * own
        if not numpy.isfinite(A.astype(float)).all():
            raise NotDefiniteError("overflow")
        L = cholesky(A)
        if L is None:
            raise NotDefiniteError("not positive definite")
        self.A, self.L, self.P = A, L, inverse(L)
        self.log_determinant = 2 * numpy.log(L.diagonal()).sum()
        self.margin = float(EPS * (abs(self.P) @ self.F).sum(-1).max()) if n else 0.0
        if self.margin > 0.01:
            raise NotDefiniteError(f"first-order bounds do not hold: {self.margin:.1e}")
        m = prior_mean(data.mean, data.x, self.p)
        self.residual = rounded(data.y) - m
        self.alpha = solve(L, self.residual.value)
        self.d_alpha = abs(self.P) @ (self.F @ abs(self.alpha) + self.residual.error + abs(self.residual.value))

    def weights(self) -> Rounded:
        return Rounded(self.alpha, self.d_alpha + abs(self.alpha))

    def log_marginal_likelihood(self) -> Rounded:
        return self._density(self.alpha, self.residual, self.P, self.F, self.log_determinant)

    def _density(self, alpha: Any, residual: Rounded, P: Any, F: Any, log_determinant: Any) -> Rounded:
        n, p = residual.shape
        quadratic = (residual.value * alpha).sum()
        value = -(quadratic + p * (log_determinant + n * LOG_2PI)) / 2
        error = (abs(alpha) * (F @ abs(alpha))).sum() + 2 * (abs(alpha) * residual.error).sum()
        error = error + p * (abs(P) * F).sum() + n * abs(quadratic) + p * n * (abs(log_determinant) + 4 * n)
        return Rounded(value, error / 2 + abs(value))

    def _cross(self, x_test: numpy.ndarray) -> tuple[Rounded, numpy.ndarray]:
        K = covariance(self.data.kernel, x_test, self.data.x)
        return K, solve(self.L, K.value.T).T

    def predict_mean(self, x_test: numpy.ndarray) -> Rounded:
        """(m, p)."""
        K, W = self._cross(x_test)
        m = prior_mean(self.data.mean, x_test, self.p)
        value = m.value + K.value @ self.alpha
        n = len(self.P)
        error = K.error @ abs(self.alpha) + abs(W) @ (self.F @ abs(self.alpha) + self.residual.error)
        error = error + m.error + n * abs(K.value) @ abs(self.alpha) + abs(m.value) + abs(value)
        return Rounded(value, error)

    def predict_covariance(self, x_test: numpy.ndarray) -> Rounded:
        """(m, m), latent."""
        K, W = self._cross(x_test)
        prior = covariance(self.data.kernel, x_test, x_test)
        value = prior.value - W @ K.value.T
        cross = abs(W) @ K.error.T
        error = prior.error + cross + cross.T + abs(W) @ self.F @ abs(W).T
        error = error + (2 * len(self.P) + 2) * sizes(prior.value)
        return Rounded(value, error)

    def predict_variance(self, x_test: numpy.ndarray) -> Rounded:
        """(m,), latent."""
        joint = self.predict_covariance(x_test)
        return Rounded(joint.value.diagonal(), joint.error.diagonal())

    def joint_log_prob(self, x_test: numpy.ndarray, y: numpy.ndarray) -> Rounded:
        """Of new observations (m, p) together."""
        joint, mean = self.predict_covariance(x_test), self.predict_mean(x_test)
        A = joint.value + numpy.diag(numpy.full(len(x_test), self.data.new_noise.value))
        F = joint.error + (3 * len(A) + 2) * sizes(A) + numpy.diag(numpy.full(len(x_test), self.data.new_noise.error))
        L = cholesky(A)
        if L is None or (len(A) and EPS * (abs(inverse(L)) @ F).sum(-1).max() > 0.01):
            raise NotDefiniteError("joint covariance")
        P = inverse(L)
        residual = Rounded(y) - mean
        return self._density(solve(L, residual.value), residual, P, F, 2 * numpy.log(L.diagonal()).sum())

    def leave_one_out(self) -> tuple[Rounded, Rounded, Rounded]:
        """mean (n, p), variance (n,), log density (n, p), eqs. (M-39), (M-40)."""
        d_P = (abs(self.P) @ self.F @ abs(self.P)).diagonal()
        precision = Rounded(self.P.diagonal(), d_P + len(self.P) * self.P.diagonal())
        variance = 1 / precision
        error = self.weights() / precision[:, None]
        mean = Rounded(self.data.y) - error
        return mean, variance, log_normal(error, variance[:, None])


def log_normal(error: Rounded, variance: Rounded) -> Rounded:
    """log N(error; 0, variance)."""
    return -0.5 * (error * error / variance + variance.log() + LOG_2PI)
