"""Gaussian process regression written a second time: an inverse, a determinant, only parameters from the library.

Differentiable in parameters, x and y by plain torch autograd; leave-one-out really leaves out.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.inference.predict.exact_predictor import ExactPredictor
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.variance import PredictOptions
from kernels.plain_formulas import plain

F64 = torch.float64


class PlainGP:
    """A GP with data: x (n, d), y (n,), float64."""

    def __init__(self, gp: fgp.GP, x: Tensor, y: Tensor) -> None:
        self.gp, self.x, self.y = gp, x, y
        self.K = plain(gp.kernel, x, x) + torch.diag(self.noise())
        self.inverse = torch.linalg.inv(self.K)

    def noise(self) -> Tensor:
        """The noise variance of each training row, eq. (M-28)."""
        likelihood, n = self.gp.likelihood, len(self.x)
        noise = self.new_noise() * torch.ones(n, dtype=F64)
        if likelihood.row_weight is not None:
            noise = noise / likelihood.row_weight
        return noise if likelihood.row_variance is None else noise + likelihood.row_variance

    def new_noise(self) -> Tensor:
        noise = self.gp.likelihood.noise_variance
        return torch.zeros((), dtype=F64) if noise is None else noise.value

    def mean(self, x: Tensor) -> Tensor:
        """The prior mean, eq. (M-27)."""
        match mean := self.gp.mean:
            case fgp.means.Zero():
                return torch.zeros(len(x), dtype=F64)
            case fgp.means.Constant():
                return mean.value.value * torch.ones(len(x), dtype=F64)
            case fgp.means.Linear():
                return mean.intercept.value + (x * mean.slope.value).sum(-1)
        return mean(x).reshape(-1)

    def log_marginal_likelihood(self) -> Tensor:
        """Eq. (M-33)."""
        r = self.y - self.mean(self.x)
        _, log_determinant = torch.linalg.slogdet(self.K)
        return -0.5 * (r @ self.inverse @ r + log_determinant + len(r) * math.log(2 * math.pi))

    def predict(self, x_test: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and joint covariance of the latent values, eqs. (M-41) and (M-42)."""
        K_sx = plain(self.gp.kernel, x_test, self.x)
        mean = self.mean(x_test) + K_sx @ self.inverse @ (self.y - self.mean(self.x))
        return mean, plain(self.gp.kernel, x_test, x_test) - K_sx @ self.inverse @ K_sx.mT

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each observation given all the others, by leaving it out: eqs. (M-39), (M-40)."""
        means, variances = [], []
        for i in range(len(self.x)):
            keep = torch.tensor([j for j in range(len(self.x)) if j != i])
            inverse = torch.linalg.inv(self.K[keep][:, keep])
            k = self.K[i, keep]
            r = (self.y - self.mean(self.x))[keep]
            means.append(self.mean(self.x)[i] + k @ inverse @ r)
            variances.append(self.K[i, i] - k @ inverse @ k)
        return torch.stack(means), torch.stack(variances)


def data(n: int = 12, d: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (n, d) and targets (n,), float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=F64)
    y = torch.sin(x.sum(-1)) + 0.3 * torch.randn(n, generator=generator, dtype=F64)
    return x, y


def rough(n: int, d: int = 4) -> tuple[Tensor, Tensor]:
    """Rows of a function of all columns, nearly without noise: far rows still say something."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(n, d, generator=draw, dtype=F64)
    y = (2.0 * x @ torch.randn(d, 5, generator=draw, dtype=F64)).sin().sum(1)
    return x, y + 1e-3 * torch.randn(n, generator=draw, dtype=F64)


def model(d: int = 2) -> fgp.GP:
    """A Matern-5/2 ARD model with numbers that are all different."""
    kernel = 1.7 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.linspace(0.7, 1.9, d))
    return fgp.GP(kernel, fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(0.07))


def predicted(
    post: fgp.Posterior, x: Tensor, variance: str = "auto", deterministic: bool = False, **options: Any
) -> Prediction:
    """As `post.predict`, with settings that it does not take."""
    run = replace(post.state.run, deterministic=deterministic)
    made = ExactPredictor(post.state, PredictOptions(variance, run=run, **options))
    return Prediction(made, x, post.gp.likelihood, post.gp.outputs)


def relative(found: Tensor, wanted: Tensor) -> float:
    """The largest difference relative to the largest entry wanted."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)} is not {tuple(wanted.shape)}"
    if wanted.numel() == 0:
        return 0.0
    scale = float(wanted.detach().double().abs().max())
    return float((found.detach().double() - wanted.detach().double()).abs().max()) / (scale or 1.0)


def condition_number(K: Tensor) -> float:
    return float(torch.linalg.cond(K.detach()))
