"""First derivatives along one direction: of the log joint, of products, of predictions by their points."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch

import flashgp as fgp
from hunt import specs
from hunt.cases import ANY_NOISE, ANY_POINTS, Noise, Points, columns, targets, typical
from hunt.differences import Findings
from hunt.reference import PI, Data, NotDefiniteError, Reference, covariance, prior_mean, sines, sizes
from hunt.rounding import EPS, LD, Rounded, rounded

STEP = LD(2.0**-9)
# Central differences of eighth and sixth order, and of steps twice as long: their difference says how far the first may
# be off. Where a step crosses a row, at which Matern-3/2 has a kink in its third derivative, orders alone do not.
EIGHTH = ((1, 4 / LD(5)), (2, -1 / LD(5)), (3, 4 / LD(105)), (4, -1 / LD(280)))
SIXTH = ((1, 3 / LD(4)), (2, -3 / LD(20)), (3, 1 / LD(60)))


def derivative(f: Callable[[Any], numpy.ndarray]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """f'(0) and how far it may be off, for values in extended precision."""
    values = {k: f(k * STEP) - f(-k * STEP) for k in (1, 2, 3, 4, 6, 8)}
    eighth, sixth = (sum(c * values[k] for k, c in rule) / STEP for rule in (EIGHTH, SIXTH))
    longer = sum(c * values[2 * k] for k, c in EIGHTH) / (2 * STEP)
    rounding = 4 * numpy.finfo(LD).eps / STEP * abs(f(LD(0)))
    return eighth, abs(eighth - sixth) + abs(eighth - longer) + rounding


@dataclass(frozen=True)
class GradientCase:
    """of: "evidence", "joint", "product" or "prediction"; along: "kernel", "noise", "mean", "x" or "y"."""

    kernel: specs.Spec = specs.ANY_KERNEL
    points: Points = ANY_POINTS
    n: int = 5
    of: str = "evidence"
    along: str = "kernel"
    way: str = "backward"  # or "theta", "functional", "forward"
    mean: specs.Mean = specs.ZERO
    noise: Noise = ANY_NOISE
    outputs: int | None = None
    y_scale: float = 1.0
    float32: bool = False

    def check(self) -> Findings:
        found = Findings()
        x = self.points.draw(self.n)
        y = targets(x, self.points.seed, 0, self.outputs, self.y_scale)
        z = self.points.draw(3, 1)
        variances, weights = self.noise.draw(self.n, self.points.seed)
        along = self._direction(x, y, z)
        if along is None or (self.along == "x" and not self._smooth(x)):
            found.skipped.append("no derivative")
            return found
        maker = specs.Maker(priors=self.of == "joint")
        got: Any = None
        with found.watched(f"{self.of} along {self.along} by {self.way}", (fgp.NotPositiveDefiniteError,)):
            gp = fgp.GP(
                maker.kernel(self.kernel), self.mean.build(self.outputs),
                fgp.likelihoods.Gaussian(self.noise.variance, variances, weights), self.outputs,
            )  # fmt: skip
            got = self._asked(gp, maker, x, y, z, along)
        if got is None:
            return found
        try:
            value, slope, room = self._wanted(x, y, z, variances, weights, along)
        except NotDefiniteError:
            found.skipped.append("ill-conditioned")
            return found
        if self.of != "prediction":
            found.compare("value", got[0], value)
        if room > 100 * EPS * slope.error:
            found.skipped.append("a difference quotient that says too little")
            return found
        found.compare("slope", got[1], slope, room=room)
        return found

    # -- the direction ------------------------------------------------------------------------------------------------
    def _direction(self, x: Any, y: Any, z: Any) -> Any:
        rng = numpy.random.default_rng([self.points.seed, 31])
        match self.along:
            case "kernel":
                out = {}
                for path, spec in specs.nodes(self.kernel):
                    for name in spec.parameters():
                        out[path, name] = rng.normal(size=numpy.shape(getattr(spec, name)))
                return out or None
            case "noise":
                return None if self.noise.variance is None else 1.0
            case "mean":
                return None if self.mean.kind in ("zero", "bowl") else rng.normal(size=numpy.shape(self.mean.intercept))
            case "x":
                step = rng.normal(size=(z if self.of == "prediction" else x).shape) * self.points.scale
                step[..., self.points.real :] = 0.0
                return step
        return rng.normal(size=y.shape) * self.y_scale

    def _smooth(self, x: numpy.ndarray) -> bool:
        """Whether the covariance function has a derivative by these points."""
        rough = any(
            isinstance(s, specs.Custom) or (isinstance(s, specs.Matern) and s.nu == 0.5)
            for _, s in specs.nodes(self.kernel)
        )
        if not rough:
            return True
        every = numpy.concatenate([x, self.points.draw(3, 1)])[:, : self.points.real]
        return all(len(numpy.unique(column)) == len(column) for column in every.T)

    def _moved(self, along: Any, h: Any) -> specs.Spec:
        """The kernel a step of the unconstrained values away."""
        kernel = self.kernel
        if self.along == "kernel":
            for (path, name), step in along.items():
                spec = dict(specs.nodes(self.kernel))[path]
                value = numpy.asarray(getattr(spec, name), LD)
                value = value * numpy.exp(h * step) if name in spec.positive else value + h * step
                kernel = specs.with_value(kernel, path, name, value)
        return kernel

    # -- the reference ------------------------------------------------------------------------------------------------
    def _wanted(self, x: Any, y: Any, z: Any, variances: Any, weights: Any, along: Any) -> tuple[Rounded, Rounded, Any]:
        """Value, slope, and how far off the difference quotient may be."""
        moves_x = along if self.along == "x" else 0.0
        lost = 0.0
        if self.of != "prediction" and self.along in ("kernel", "x"):
            lost = cancelled(lambda h: features(self._moved(along, h), x + h * moves_x))
        if self.of == "product":
            U, V = self._sides()
            C = covariance(self.kernel, x, x)
            W = U @ V.T
            d, off = derivative(lambda h: covariance(self._moved(along, h), x + h * moves_x, x + h * moves_x).value)
            value = Rounded((W * C.value).sum(), (abs(W) * (C.error + (self.n + 4) * abs(C.value))).sum())
            error = (abs(W) * _slope_error(C, d, sizes(C.value), lost)).sum() + self.n**2 * (
                abs(W) * abs(d)
            ).sum() * 0.1
            return value, Rounded((W * d).sum(), error), (abs(W) * off).sum()
        noise = self.noise.of_rows(self.n, variances, weights)
        r = Reference(Data(self.kernel, self.mean, x, columns(y, self.outputs), noise, self.noise.of_new()))
        if self.of == "prediction":
            return self._prediction(r, x, z, along)
        C = covariance(self.kernel, x, x)
        d, off = numpy.zeros_like(C.value), numpy.zeros_like(C.value)
        dr = numpy.zeros_like(r.alpha)
        if self.along in ("kernel", "x"):
            d, off = derivative(lambda h: covariance(self._moved(along, h), x + h * moves_x, x + h * moves_x).value)
        if self.along == "x":
            dm, _ = derivative(lambda h: prior_mean(self.mean, x + h * moves_x, r.p).value)
            dr = -dm
        if self.along == "noise":
            own = self.noise.of_new().value * numpy.ones(self.n)
            d = numpy.diag(own / (1 if weights is None else numpy.asarray(weights, LD) / typical(weights)))
        if self.along == "mean":
            dr = -numpy.broadcast_to(along, r.alpha.shape)
        if self.along == "y":
            dr = columns(along, self.outputs)
        S = r.alpha @ r.alpha.T - r.p * r.P
        slope = (S * d).sum() / 2 - (r.alpha * dr).sum()
        d_error = _slope_error(C, d, sizes(r.A), lost) if self.along in ("kernel", "x") else 4 * abs(d)
        PFP = abs(r.P) @ r.F @ abs(r.P)
        error = (abs(r.alpha) * (abs(d) @ r.d_alpha)).sum() + r.p * (abs(d) * PFP).sum() / 2
        error = error + ((abs(r.alpha) @ abs(r.alpha).T + r.p * abs(r.P)) * (d_error + self.n * abs(d))).sum() / 2
        error = error + (r.d_alpha * abs(dr)).sum() + self.n * (abs(r.alpha) * abs(dr)).sum()
        value = r.log_marginal_likelihood()
        if self.of == "joint":
            more, more_slope = self._log_prior(along)
            value = value + more
            slope, error = slope + more_slope.value, error + more_slope.error
        return value, Rounded(slope, error + abs(slope)), (abs(S) * off).sum() / 2

    def _prediction(self, r: Reference, x: Any, z: Any, along: Any) -> tuple[Rounded, Rounded, Any]:
        """Of sum_i mean_i + variance_i by the test points."""
        K = covariance(self.kernel, z, x)
        d, off = derivative(lambda h: covariance(self.kernel, z + h * along, x).value)
        prior = covariance(self.kernel, z, z)
        d_own, off_own = derivative(lambda h: covariance(self.kernel, z + h * along, z + h * along).value.diagonal())
        dm, off_m = derivative(lambda h: prior_mean(self.mean, z + h * along, r.p).value)
        W = K.value @ r.P
        square = self.y_scale**-1.0
        slope = square * (dm.sum() + (d @ r.alpha).sum()) + square**2 * r.p * (d_own.sum() - 2 * (W * d).sum())
        scale = numpy.sqrt(prior.value.diagonal())[:, None] * numpy.sqrt(r.A.diagonal())[None, :]
        lost = cancelled(lambda h: features(self.kernel, numpy.concatenate([z + h * along, x])))
        d_error = _slope_error(K, d, scale, lost) + 2 * abs(d)
        own_error = _slope_error(prior, numpy.diag(d_own), sizes(prior.value)).diagonal()
        error = square * ((d_error @ abs(r.alpha)).sum() + (abs(d) @ r.d_alpha).sum() + 8 * abs(dm).sum())
        dW = (K.error + abs(W) @ r.F) @ abs(r.P) + (r.p + self.n) * abs(W)
        error = error + square**2 * r.p * (own_error.sum() + 2 * (abs(W) * d_error + dW * abs(d)).sum())
        room = square * ((off @ abs(r.alpha)).sum() + off_m.sum()) + square**2 * r.p * (
            off_own.sum() + 2 * (abs(W) * off).sum()
        )
        return Rounded(0.0), Rounded(slope, error + self.n * abs(slope)), room

    def _log_prior(self, along: Any) -> tuple[Rounded, Rounded]:
        """Of log-normal and normal priors, with the Jacobian of the unconstrained values, eq. (M-38)."""
        total, slope = Rounded(0.0), Rounded(0.0)
        mu, sd = specs.LOG_MEAN, specs.LOG_SD
        for path, spec in specs.nodes(self.kernel):
            for name in spec.parameters():
                value = numpy.asarray(getattr(spec, name), LD)
                step = along[path, name] if self.along == "kernel" else numpy.zeros(value.shape)
                if name in spec.positive:
                    raw = numpy.log(value)  # the density of a normal variable, after the Jacobian
                    z = Rounded(raw, abs(raw) + 1) - mu
                else:
                    z = Rounded(value) - 0.2
                spread = sd if name in spec.positive else 1.5
                density = -0.5 * (z / spread) * (z / spread) - float(numpy.log(spread * numpy.sqrt(2 * numpy.pi)))
                flat = Rounded(density.value.reshape(-1), density.error.reshape(-1) + 8)
                total = total + flat.sum()
                part = z / (-(spread**2)) * step
                slope = slope + Rounded(part.value.reshape(-1), part.error.reshape(-1)).sum()
        if self.noise.variance is not None:  # without a prior it still has a Jacobian
            raw = numpy.log(LD(self.noise.variance))
            count = self.outputs or 1  # each output has its own
            total = total + count * Rounded(raw, abs(raw) + 1)
            slope = slope + (count if self.along == "noise" else 0.0)
        return total, slope

    # -- the library --------------------------------------------------------------------------------------------------
    def _sides(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        rng = numpy.random.default_rng([self.points.seed, 41])
        return rng.normal(size=(self.n, 2)), rng.normal(size=(self.n, 2))

    def _asked(self, gp: Any, maker: Any, x: Any, y: Any, z: Any, along: Any) -> tuple[Any, Any]:
        tx, ty, tz = (torch.from_numpy(v.copy()) for v in (x, y, z))
        leaves = self._leaves(gp, maker, along)
        if self.of == "prediction":
            post = gp.condition(tx, ty)
            tz.requires_grad_()
            p = post.predict(tz)
            total = (
                p.mean.sum() / self.y_scale
                + (1 if self.outputs is None else self.outputs)
                * (p.variance.sum() / (1 if self.outputs is None or p.variance.shape[-1] == 1 else self.outputs))
                / self.y_scale**2
            )
            slope = torch.autograd.grad(total, tz)[0] if total.requires_grad else torch.zeros_like(tz)
            return total.detach() * 0.0, (slope * torch.from_numpy(along)).sum()
        if self.along == "x":
            leaves = [(tx.requires_grad_(), torch.from_numpy(along))]
        if self.along == "y":
            leaves = [(ty.requires_grad_(), torch.from_numpy(along))]
        if self.way in ("theta", "functional") and self.along in ("kernel", "noise", "mean") and self.of != "product":
            return self._by_theta(gp, tx, ty, leaves)
        if self.of == "product":
            U, V = (torch.from_numpy(side) for side in self._sides())
            total = (U * (gp.kernel.operator(tx) @ V)).sum()
        elif self.of == "joint":
            total = gp.log_joint(tx, ty, jacobian=True)
        else:
            total = gp.log_marginal_likelihood(tx, ty)
        if not total.requires_grad:  # of x where nothing depends on it
            return total.detach(), torch.zeros((), dtype=torch.float64)
        slopes = torch.autograd.grad(total, [leaf for leaf, _ in leaves], allow_unused=True)
        parts = [(s * d.reshape(s.shape)).sum() for s, (_, d) in zip(slopes, leaves, strict=True) if s is not None]
        return total.detach(), sum(parts, torch.zeros((), dtype=torch.float64))

    def _by_theta(self, gp: Any, x: Any, y: Any, leaves: Any) -> tuple[Any, Any]:
        """With theta= and two chains, or torch.func.functional_call; both give the gradient of the first."""
        names = {id(tensor): name for name, tensor in gp.named_parameters()}

        def asked(theta: Any) -> Any:
            if self.of == "joint":
                return gp.log_joint(x, y, theta=theta, jacobian=True)
            return gp.log_marginal_likelihood(x, y, theta=theta)

        chains = 2 if self.way == "theta" else 0
        theta = {}
        for leaf, _ in leaves:
            value = leaf.detach().clone()
            value = torch.stack([value, value + 0.1]) if chains else value
            theta[names[id(leaf)]] = value.requires_grad_()
        out = asked(theta)
        first = out[0] if chains else out
        slopes = torch.autograd.grad(first, list(theta.values()), allow_unused=True)
        total = torch.zeros((), dtype=torch.float64)
        for s, (leaf, d) in zip(slopes, leaves, strict=True):
            if s is not None:
                total = total + ((s[0] if chains else s) * d.reshape(leaf.shape)).sum()
        return first.detach(), total

    def _leaves(self, gp: Any, maker: Any, along: Any) -> list[tuple[Any, Any]]:
        match self.along:
            case "kernel":
                return [(maker.made[key].raw, torch.as_tensor(step)) for key, step in along.items()]
            case "noise":
                raw = gp.likelihood.noise_variance.raw
                return [(raw, torch.ones_like(raw))]
            case "mean":
                value = gp.mean.value if self.mean.kind == "constant" else gp.mean.intercept
                return [(value.raw, torch.as_tensor(along))]
        return []


FAR_SQUARED = 1e-9 / EPS  # from where on (M-24) sums differences
STEEPEST = 1.5  # |dg/dq| at 0 of Matern-3/2, relative to its variance; of the others it is less


def features(spec: specs.Spec, x: Any) -> list[numpy.ndarray]:
    """Those whose squared distances smooth kernels are of, one array for each."""
    if isinstance(spec, specs.Sum | specs.Product | specs.Scaled):
        return [u for part in spec.parts() for u in features(part, x)]
    x = numpy.asarray(x, LD)
    x = x if getattr(spec, "dims", None) is None else x[:, list(spec.dims)]
    match spec:
        case specs.Warped():
            return features(spec.kernel, sines(rounded(x)).value)
        case specs.Periodic():
            angle = 2 * PI * x / numpy.asarray(spec.period, LD)
            return [
                numpy.concatenate(
                    [w / numpy.asarray(spec.lengthscale, LD) for w in (numpy.cos(angle), numpy.sin(angle))], -1
                )
            ]
        case specs.SpectralMixture():
            return [2 * PI * x * numpy.asarray(scale, LD) for scale in spec.scales]
        case specs.SquaredExponential() | specs.RationalQuadratic() | specs.Matern():
            return [] if getattr(spec, "nu", 2.5) == 0.5 else [x / numpy.asarray(spec.lengthscale, LD)]
    return []


def cancelled(of: Callable[[Any], list[numpy.ndarray]]) -> float:
    """What the difference of two sums of (M-24) may lose, in units of EPS, weights and variances; of: features."""
    lost = 0.0
    for u, ahead, behind in zip(of(LD(0)), of(STEP), of(-STEP), strict=True):
        radius = ((u - u.mean(0)) ** 2).sum(-1).max(initial=0.0)
        if radius <= FAR_SQUARED:
            lost += 8 * STEEPEST * numpy.sqrt(radius * (((ahead - behind) / (2 * STEP)) ** 2).sum(-1).max(initial=0.0))
    return lost


def _slope_error(C: Rounded, d: numpy.ndarray, scale: numpy.ndarray, lost: float = 0.0) -> numpy.ndarray:
    """Of a derivative's entries: as much as those of the matrix themselves, relative to the largest; `cancelled`."""
    with numpy.errstate(all="ignore"):
        relative = numpy.where(scale > 0, abs(d) / scale, 0.0).max(initial=0.0)
        share = numpy.where(scale > 0, C.error / scale, 0.0)
    return ((share + 16) * relative + lost) * scale


__all__ = ["GradientCase"]
