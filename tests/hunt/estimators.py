"""A kind of case: GPRegressor at given hyperparameters, in the units of its table."""

from dataclasses import dataclass

import numpy
import torch

import flashgp as fgp
from hunt import specs
from hunt.cases import ANY_POINTS, Points, targets
from hunt.differences import Findings
from hunt.layouts import laid_out
from hunt.reference import Data, NotDefiniteError, Reference
from hunt.rounding import LD, Rounded


@dataclass(frozen=True)
class EstimatorCase:
    """Fit without optimising, and predict; against the dense formulas of standardised rows.

    Fields: noise, a variance in standard units; standardise, as of GPRegressor.
    """

    kernel: specs.Spec = specs.ANY_KERNEL
    points: Points = ANY_POINTS
    n: int = 6
    n_test: int = 3
    noise: float = 0.1
    standardise: str = "both"
    y_scale: float = 1.0
    x_layout: str = "tensor"

    def check(self) -> Findings:
        found = Findings()
        x, x_test = self.points.cast(self.n, 0, (), "float64"), self.points.cast(self.n_test, 1, (), "float64")
        y = targets(x, self.points.seed, 0, None, self.y_scale)
        of_x = _standard_units(x, self.standardise in ("both", "x"))
        of_y = _standard_units(y[:, None], self.standardise in ("both", "y"), constant=abs(y[0]) or 1.0)
        rows, answers = _standardised(x, of_x), _standardised(y[:, None], of_y)
        noise = Rounded(numpy.full(self.n, self.noise))
        refusals: tuple[type[Exception], ...] = ()
        reference = None
        try:
            reference = Reference(Data(self.kernel, specs.Mean("zero"), rows, answers, noise, noise[:1][0]))
        except NotDefiniteError:
            found.skipped.append("ill-conditioned")
            refusals = (fgp.NotPositiveDefiniteError, fgp.DomainError)
        with found.watched("estimator", refusals):
            model = fgp.GPRegressor(
                specs.Maker().kernel(self.kernel), mean=fgp.means.Zero(),
                likelihood=fgp.likelihoods.Gaussian(self.noise), standardise=self.standardise,  # type: ignore[arg-type]
                target_transform="none", optimise=False,
            ).fit(laid_out(x, "float64", self.x_layout), y)  # fmt: skip
            mean, std = model.predict(x_test, return_std=True)
            latent = model.predict(x_test, return_std=True, latent=True)[1]
        if reference is None or "estimator" in {key.split()[-1] for key in found.differences}:
            return found
        offset, scale = of_y[0][0], of_y[1][0]
        points = _standardised(x_test, of_x)
        joint = reference.predict_covariance(points)
        variance = Rounded(numpy.maximum(joint.value.diagonal(), 0.0), joint.error.diagonal())
        wanted = {
            "mean": reference.predict_mean(points)[:, 0] * scale + offset,
            "std": (variance + self.noise).sqrt() * scale,
            "latent std": variance.sqrt() * scale,
        }
        for name, got in (("mean", mean), ("std", std), ("latent std", latent)):
            found.compare(name, torch.from_numpy(numpy.asarray(got)), wanted[name])
        return found


def _standard_units(values: numpy.ndarray, asked: bool, constant: float = 1.0) -> tuple[Rounded, Rounded]:
    """Offset and scale of each column: its mean and standard deviation, by n; 0 and 1 where that is not asked for.

    Args: constant, the scale of a column that does not vary.
    """
    n, columns = values.shape
    if not asked:
        return Rounded(numpy.zeros(columns)), Rounded(numpy.ones(columns))
    exact = values.astype(LD)
    mean, std = exact.mean(axis=0), exact.std(axis=0)
    largest = abs(exact).max(axis=0)
    same = exact.min(axis=0) == exact.max(axis=0)
    mean, std = numpy.where(same, exact[0], mean), numpy.where(same, constant, std)
    d_mean, d_std = (numpy.where(same, 0.0, error) for error in (4 * largest, n * std + 8 * largest))
    return Rounded(mean, d_mean), Rounded(std, d_std)


def _standardised(values: numpy.ndarray, units: tuple[Rounded, Rounded]) -> Rounded:
    return (Rounded(values) - units[0]) / units[1]


__all__ = ["EstimatorCase"]
