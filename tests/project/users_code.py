"""A user's code, which mypy checks as strictly as it can (pyproject, [tool.mypy]); nothing here runs."""

from pathlib import Path
from typing import assert_type

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import flashgp as fgp
from flashgp.kernels import RBF, Kernel, Matern, Periodic

Array = npt.NDArray[np.floating]


class Shifted(nn.Module):
    """A mean of the user's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(-1)


def described() -> fgp.GP:
    kernel = 1.5 * Matern(nu=2.5, lengthscale=torch.ones(2)) + Periodic(active_dims=[0]) * RBF() ** 2
    assert_type(kernel, Kernel)
    noise = fgp.Parameter(0.1, prior=torch.distributions.LogNormal(-2.0, 1.0))
    return fgp.GP(kernel, Shifted(), fgp.likelihoods.Gaussian(noise))


def fits(folder: Path) -> None:
    x = torch.linspace(0.0, 1.0, 24, dtype=torch.float64).reshape(12, 2)
    y, gp = torch.sin(6.0 * x[:, 0]), described()
    assert_type(fgp.plan(gp, 1000, 2), fgp.Plan)
    assert_type(gp.log_marginal_likelihood(x, y), Tensor)
    fit = fgp.fit(gp, x, y, starts=1, time_limit=60.0, progress=False)
    assert_type(fit, fgp.Fit)
    assert_type(fit.verdict, fgp.Verdict)
    assert_type(fit.report, fgp.Report)
    assert_type(fit.posterior, fgp.Posterior)
    prediction = fit.posterior.predict(x)
    assert_type(prediction, fgp.Prediction)
    assert_type(prediction.mean, Tensor)
    assert_type(prediction.sample(3, seed=0), Tensor)
    lower, upper = prediction.interval(0.95)
    assert_type(upper - lower, Tensor)
    assert_type(fit.posterior.append(x[:1] + 1.0, y[:1]), fgp.Posterior)
    assert_type(fit.posterior.paths(3)(x), Tensor)
    fgp.save(fit, folder / "model.safetensors")
    again: fgp.Posterior = fgp.load(folder / "model.safetensors")
    assert_type(again.predict(x).mean, Tensor)


def tables_and_estimators() -> None:
    x = np.linspace(0.0, 1.0, 12)[:, None]
    model = fgp.TableModel(starts=1, time_limit=1.0).fit({"a": x[:, 0], "b": x[:, 0] ** 2}, "b")
    assert_type(model, fgp.TableModel)
    means: Array = model.predict({"a": [0.5]}).mean
    regressor = fgp.GPRegressor(kernel=RBF(), starts=1).fit(x, x[:, 0])
    assert_type(regressor, fgp.GPRegressor)
    assert_type(regressor.predict(x), Array)
    mean, std = regressor.predict(x, return_std=True)
    lowest: Array = mean - 2.0 * std - means
    classifier = fgp.GPClassifier(kernel=RBF()).fit(x, x[:, 0] > 0.5)
    lowest = classifier.predict_proba(x) - lowest[:, None]
