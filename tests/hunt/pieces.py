"""Smaller public pieces: likelihoods, means, parameters, dense factorisations, streams, fits, estimators."""

import math
import warnings
from dataclasses import dataclass

import numpy
import torch

import flashgp as fgp
from hunt import specs
from hunt.cases import ANY_NOISE, ANY_POINTS, Noise, Points, targets
from hunt.differences import Findings
from hunt.reference import Data, NotDefiniteError, Reference, log_normal, prior_mean
from hunt.rounding import LD, Rounded


@dataclass(frozen=True)
class LikelihoodCase:
    """Densities and distributions of the Gaussian likelihood, and a prior mean, at plain numbers."""

    points: Points = ANY_POINTS
    n: int = 4
    noise: float = 0.1
    mean: specs.Mean = specs.ZERO
    outputs: int | None = None
    scale: float = 1.0

    def check(self) -> Findings:
        found = Findings()
        rng = numpy.random.default_rng([self.points.seed, 3])
        y, f = self.scale * rng.normal(size=(2, self.n))
        v = self.scale**2 * rng.random(self.n)
        x = self.points.draw(self.n)
        ty, tf, tv = (torch.from_numpy(a) for a in (y, f, v))
        s = Rounded(LD(self.noise), LD(self.noise) * (1 + abs(numpy.log(LD(self.noise)))))
        with found.watched("likelihood"):
            likelihood = fgp.likelihoods.Gaussian(self.noise)
            error = Rounded(y) - f
            found.compare("log_prob", likelihood.log_prob(ty, tf), log_normal(error, s))
            expected = log_normal(error, s) - Rounded(v) / (2 * s)
            found.compare("expected_log_prob", likelihood.expected_log_prob(ty, tf, tv), expected)
            new = likelihood.predictive(tf, tv)
            found.compare("predictive mean", new.mean, Rounded(f))
            found.compare("predictive variance", new.variance, Rounded(v) + s)
            found.compare("predictive log_prob", new.log_prob(ty), log_normal(error, Rounded(v) + s))
        with found.watched("mean"):
            mean = self.mean.build(self.outputs)
            gp = fgp.GP(fgp.kernels.Matern(), mean, outputs=self.outputs)
            wanted = prior_mean(self.mean, x, self.outputs or 1)
            found.compare("mean", gp.mean_at(torch.from_numpy(x)).expand(wanted.shape), wanted)
        return found


@dataclass(frozen=True)
class LinalgCase:
    """Dense factorisations: what they must give back, up to n eps."""

    seed: int = 0
    n: int = 4
    m: int = 3
    scale: float = 1.0
    dtype: str = "float64"
    batch: tuple[int, ...] = ()

    def check(self) -> Findings:
        found = Findings()
        rng = numpy.random.default_rng(self.seed)
        kind = getattr(torch, self.dtype)
        unit = torch.finfo(kind).eps / torch.finfo(torch.float64).eps
        A = torch.from_numpy(self.scale * rng.normal(size=(*self.batch, self.n, self.m))).to(kind)
        G = torch.from_numpy(rng.normal(size=(*self.batch, self.n, self.n))).to(kind)
        S = G @ G.mT / max(self.n, 1) + torch.eye(self.n, dtype=kind)

        def close(name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
            size = numpy.full(wanted.shape, float(wanted.double().norm(dim=(-2, -1)).max()) if wanted.numel() else 0.0)
            bound = 8 * unit * (self.n + self.m) * size
            found.compare(name, got, Rounded(wanted.double().numpy(), bound), dtype=kind)

        with found.watched("linalg"):
            L = fgp.linalg.cholesky(S)
            close("cholesky", L @ L.mT, S)
            Q, R = fgp.linalg.qr(A)
            close("qr", Q @ R, A)
            values, vectors = fgp.linalg.eigh(S)
            close("eigh", vectors @ (values.unsqueeze(-1) * vectors.mT), S)
            X = fgp.linalg.solve_triangular(L, A, upper=False)
            close("solve_triangular", L @ X, A)
        return found


@dataclass(frozen=True)
class StreamCase:
    """Rows one by one: each is predicted from those before, within a window; the metrics are those of these."""

    kernel: specs.Spec = specs.ANY_KERNEL
    points: Points = ANY_POINTS
    n: int = 4
    steps: int = 10
    window: int | None = None
    at_once: int = 1
    noise: Noise = ANY_NOISE

    def check(self) -> Findings:
        found = Findings()
        x, y = self.points.draw(self.n), targets(self.points.draw(self.n), self.points.seed, 0, None, 1.0)
        squares, rows = LD(0), 0
        with found.watched("stream"):
            gp = fgp.GP(
                specs.Maker().kernel(self.kernel), fgp.means.Zero(), fgp.likelihoods.Gaussian(self.noise.variance)
            )
            stream = fgp.Stream(gp.condition(torch.from_numpy(x), torch.from_numpy(y)), window=self.window)
            for step in range(1, self.steps + 1):
                if self.window is not None:
                    x, y = x[len(x) - min(len(x), self.window) :], y[len(y) - min(len(y), self.window) :]
                new = self.points.draw(self.at_once, step)
                y_new = targets(new, self.points.seed, step, None, 1.0)
                try:
                    longer = numpy.concatenate([x, new]), numpy.concatenate([y, y_new])
                    r, _ = (self._reference(*table) for table in ((x, y), longer))  # which it has to hold too
                except NotDefiniteError:
                    found.skipped.append("ill-conditioned")
                    return found
                made = stream.step(torch.from_numpy(new), torch.from_numpy(y_new))
                found.operations += 1
                mean, variance = r.predict_mean(new)[..., 0], r.predict_variance(new)
                variance = Rounded(numpy.maximum(variance.value, 0.0), variance.error) + self.noise.of_new()
                found.compare(f"mean of step {step}", made.mean, mean)
                found.compare(f"variance of step {step}", made.variance, variance)
                squares, rows = squares + ((y_new - mean.value) ** 2).sum(), rows + len(new)
                x, y = longer
                if found.differences:
                    return found
            found.equal("rows", stream.metrics.rows, rows)
            if not math.isclose(stream.metrics.rmse, float(numpy.sqrt(squares / max(rows, 1))), rel_tol=1e-6):
                found.differences["rmse"] = f"{stream.metrics.rmse}, wanted {float(numpy.sqrt(squares / rows))}"
        return found

    def _reference(self, x: numpy.ndarray, y: numpy.ndarray) -> Reference:
        noise = self.noise.of_rows(len(x), None, None)
        return Reference(Data(self.kernel, specs.ZERO, x, y[:, None], noise, self.noise.of_new(), True))


@dataclass(frozen=True)
class FitCase:
    """A few iterations: the log joint does not fall, and the posterior is that of the parameters found."""

    kernel: specs.Spec = specs.ANY_KERNEL
    points: Points = ANY_POINTS
    n: int = 6
    iterations: int = 3
    noise: Noise = ANY_NOISE
    outputs: int | None = None

    def check(self) -> Findings:
        found = Findings()
        x = self.points.draw(self.n)
        y = targets(x, self.points.seed, 0, self.outputs, 1.0)
        tx, ty, x_test = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(self.points.draw(3, 1))
        with found.watched("fit", (fgp.NotPositiveDefiniteError,)), warnings.catch_warnings():
            gp = fgp.GP(
                specs.Maker().kernel(self.kernel), likelihood=fgp.likelihoods.Gaussian(self.noise.variance),
                outputs=self.outputs,
            )  # fmt: skip
            before = gp.log_joint(tx, ty).detach()
            given = {name: value.detach().clone() for name, value in gp.state_dict().items()}
            fit = fgp.fit(
                gp, tx, ty, initial="given", priors="given", max_iterations=self.iterations, progress=False, starts=1
            )
            after = fit.gp.log_joint(tx, ty).detach()
            again = fit.gp.condition(tx, ty)
            for name, value in gp.state_dict().items():
                if not torch.equal(value, given[name]):
                    found.differences["argument gp"] = f"{name} was changed"
            if not float(after) >= float(before) - 1e-6 * (1 + abs(float(before))):
                found.differences["log joint"] = f"fell from {float(before)} to {float(after)}"
            found.equal("mean of the fit's posterior", fit.posterior.predict(x_test).mean, again.predict(x_test).mean)
            found.equal("text", bool(repr(fit) and str(fit.report)), True)
        return found


__all__ = ["FitCase", "LikelihoodCase", "LinalgCase", "StreamCase"]
