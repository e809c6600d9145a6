"""Prediction again and again: mean and variance of one new point by a posterior that is there already.

Every candidate may keep whatever it likes of the training data; the point is another one in every run.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashgp.bench.claims.peers import peer, smooth_data, takes_no_part
from flashgp.bench.claims.plain import PLAIN, exact
from flashgp.bench.claims.suite import DTYPES, Finding, Options, Outcome, Speaker, Suite, measure
from flashgp.inference.gp import GP
from flashgp.kernels import SquaredExponential
from flashgp.likelihoods import Gaussian
from flashgp.means import Zero

__all__ = ["LENGTHSCALE", "NOISE", "SUITE", "VARIANCE", "gpytorch_model", "posterior"]

LENGTHSCALE, VARIANCE, NOISE = 1.7, 1.3, 0.05
D = 6
TOLERANCE = 1e-6  # float64, but the variance is a small difference of larger numbers
Answer = tuple[Tensor, Tensor]


def posterior(n: int, d: int = D, device: str = "cpu") -> Any:
    """FlashGP's posterior of smooth data, float64."""
    x, y = (tensor.to(device) for tensor in smooth_data(n, d, torch.float64))
    kernel = VARIANCE * SquaredExponential(torch.full((d,), LENGTHSCALE, dtype=torch.float64))
    return GP(kernel, Zero(), Gaussian(NOISE)).condition(x, y)


def gpytorch_model(gpytorch: Any, x: Tensor, y: Tensor) -> Any:
    """GPyTorch's exact model at the same hyperparameters, ready to predict."""

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[-1]))

        def forward(self, z: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(z), self.kernel(z))

    model = Model(gpytorch.likelihoods.GaussianLikelihood()).to(x.device, torch.float64)
    model.kernel.base_kernel.lengthscale = LENGTHSCALE
    model.kernel.outputscale = VARIANCE
    model.likelihood.noise = NOISE
    model.eval()
    return model


class _Factored:
    """Weights and a Cholesky factor of the training rows, and a covariance function of two sets of points."""

    def __init__(self, k: Callable[[Tensor, Tensor, float], Tensor], x: Tensor, y: Tensor) -> None:
        self.k, self.x = k, x
        full = VARIANCE * k(x, x, LENGTHSCALE) + NOISE * torch.eye(len(x), dtype=x.dtype, device=x.device)
        self.lower = torch.linalg.cholesky(full)
        self.weights = torch.cholesky_solve(y[:, None], self.lower)

    def __call__(self, z: Tensor) -> Answer:
        cross = VARIANCE * self.k(z, self.x, LENGTHSCALE)
        half = torch.linalg.solve_triangular(self.lower, cross.mT, upper=False)
        return (cross @ self.weights).squeeze(-1), VARIANCE - half.square().sum(0)


def run(options: Options, say: Speaker) -> Outcome:
    """Every size and device; see Suite."""
    findings: list[Finding] = []
    notes: list[str] = []
    gpytorch = peer("gpytorch") if options.peers else None
    for device, name, n in options.problems:
        post = posterior(n, D, device)
        x, y = post.x, post.y
        point = torch.randn(1, D, generator=torch.Generator().manual_seed(1), dtype=DTYPES[name]).to(device)

        def ours(z: Tensor, post: Any = post) -> Answer:
            prediction = post.predict(z)
            return prediction.mean, prediction.variance

        candidates: dict[str, Callable[[Tensor], Answer]] = {"FlashGP": ours}
        candidates |= {plain: _Factored(k, x, y) for plain, k in PLAIN.items()}
        if options.peers and device == "cpu":
            candidates["scikit-learn"] = _sklearn(x, y)
        if gpytorch is not None:
            candidates["GPyTorch"] = _answers(gpytorch_model(gpytorch, x, y))
        reference = _Factored(exact, x.cpu(), y.cpu())
        finding, said = measure(
            f"one point, d={D}, {name}, {device}", n, candidates, (point,),
            lambda z, reference=reference: reference(z.cpu()), TOLERANCE, options, say=say,
        )  # fmt: skip
        findings.append(finding)
        notes += said
    if options.peers and gpytorch is None:
        notes.append(takes_no_part("GPyTorch"))
    return SUITE.outcome(findings, notes)


def _answers(model: Any) -> Callable[[Tensor], Answer]:
    def theirs(z: Tensor) -> Answer:
        prediction = model(z)
        return prediction.mean, prediction.variance

    return theirs


def _sklearn(x: Tensor, y: Tensor) -> Callable[[Tensor], Answer]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(VARIANCE) * RBF(LENGTHSCALE)
    model = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(x.numpy(), y.numpy())

    def theirs(z: Tensor) -> Answer:
        mean, std = model.predict(z.numpy(), return_std=True)
        return torch.from_numpy(mean), torch.from_numpy(std).square()

    return theirs


SUITE = Suite(
    "prediction",
    "Prediction of one point",
    "How long do mean and variance of a new point take, given a posterior?",
    sizes=(500, 2000),
    dtypes=("float64",),
    run=run,
    allowed=("float64",),
)
