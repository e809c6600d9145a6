"""Learning one more row, and predicting a point right after it: what every step of online learning takes.

Each run appends to the same posterior, since a comparison must be able to repeat its call. `benchmark/claim_online.py`
in the repository has whole streams, windows and fantasies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashgp.bench.suites.baselines import PLAIN, exact, missing_peer, peer, smooth_data
from flashgp.bench.suites.suite import DTYPES, Comparisons, Options, Problem, Suite, measure
from flashgp.inference.gp import GP
from flashgp.kernels import SquaredExponential
from flashgp.likelihoods import Gaussian
from flashgp.means import Zero

__all__ = ["SUITE", "GPyTorchModel"]

LENGTHSCALE, NOISE = 1.0, 0.01
D = 4
TOLERANCE = 1e-6
Answer = tuple[Tensor, Tensor]


class GPyTorchModel:
    """GPyTorch's exact model at given hyperparameters, which factorises by Cholesky whatever the size.

    Args: base, its kernel without a scale; x, y, training rows, float64; point, predicted once, so that all is cached.
    """

    def __init__(self, gpytorch: Any, base: Any, x: Tensor, y: Tensor, noise: float, point: Tensor) -> None:
        class Model(gpytorch.models.ExactGP):
            def __init__(self) -> None:
                super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(base)

            def forward(self, points: Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))

        self.settings = gpytorch.settings
        self.model = Model().to(x.device, torch.float64)
        self.model.covar_module.outputscale = 1.0
        self.model.likelihood.noise = noise
        self.model.eval()
        self.model.likelihood.eval()
        self.answer(self.model, point)

    def add(self, x: Tensor, y: Tensor) -> Any:
        """The model with more rows."""
        with torch.no_grad(), self.settings.max_cholesky_size(100_000):
            return self.model.get_fantasy_model(x, y)

    def answer(self, model: Any, point: Tensor) -> Answer:
        """Mean and variance there."""
        with torch.no_grad(), self.settings.max_cholesky_size(100_000):
            prediction = model(point)
            mean: Tensor = prediction.mean
            return mean, prediction.variance

    def predict(self, model: Any, point: Tensor) -> Tensor:
        """The mean there; the variance is computed too."""
        return self.answer(model, point)[0]


def _from_nothing(k: Callable[[Tensor, Tensor, float], Tensor], x: Tensor, y: Tensor) -> Callable[..., Answer]:
    """Plain torch has nothing to update: the factor of all rows again."""

    def step(x_new: Tensor, y_new: Tensor, point: Tensor) -> Answer:
        rows, targets = torch.cat([x.to(x_new), x_new]), torch.cat([y.to(y_new), y_new])
        full = k(rows, rows, LENGTHSCALE)
        full.diagonal().add_(NOISE)
        lower = torch.linalg.cholesky(full)
        cross = k(point, rows, LENGTHSCALE)
        half = torch.linalg.solve_triangular(lower, torch.cat([targets[:, None], cross.mT], 1), upper=False)
        return half[:, 1:].mT @ half[:, 0], 1.0 - half[:, 1:].square().sum(0)

    return step


def run(options: Options) -> Comparisons:
    """Every size and device; see Suite."""
    findings = []
    gpytorch = peer("gpytorch") if options.peers else None
    kernel = SquaredExponential(torch.full((D,), LENGTHSCALE, dtype=torch.float64))
    gp = GP(1.0 * kernel, Zero(), Gaussian(NOISE))
    for device, name, n in options.problems:
        x, y = (tensor.to(device, DTYPES[name]) for tensor in smooth_data(n + 2, D, DTYPES[name]))
        given, row, point = (x[:n], y[:n]), (x[n : n + 1], y[n : n + 1]), x[n + 1 :]
        post = gp.condition(*given)

        def ours(x_new: Tensor, y_new: Tensor, point: Tensor, post: Any = post) -> Answer:
            prediction = post.append(x_new, y_new).predict(point)
            return prediction.mean, prediction.variance

        def again(x_new: Tensor, y_new: Tensor, point: Tensor, given: Any = given) -> Answer:
            rows, targets = (torch.cat(pair) for pair in zip(given, (x_new, y_new), strict=True))
            prediction = gp.condition(rows, targets).predict(point)
            return prediction.mean, prediction.variance

        candidates: dict[str, Callable[..., Answer]] = {
            "FlashGP, append": ours,
            "FlashGP, conditioned again": again,
            **{plain: _from_nothing(k, *given) for plain, k in PLAIN.items()},
        }
        if gpytorch is not None:
            base = gpytorch.kernels.RBFKernel(ard_num_dims=D)
            base.lengthscale = LENGTHSCALE
            model = GPyTorchModel(gpytorch, base, *given, NOISE, point)
            candidates["GPyTorch, fantasy model"] = lambda x_new, y_new, point, model=model: model.answer(
                model.add(x_new, y_new), point
            )
        truth = _from_nothing(exact, *(tensor.cpu() for tensor in given))
        problem = Problem(
            f"one row, then one point, d={D}, {name}, {device}",
            n,
            (*row, point),
            lambda *inputs, truth=truth: truth(*(tensor.cpu() for tensor in inputs)),
            TOLERANCE,
            dict.fromkeys(PLAIN, 3 * n * n * D * 8),
        )
        findings.append(measure(problem, candidates, options))
    return Comparisons(SUITE, findings, [missing_peer("GPyTorch")] if options.peers and gpytorch is None else [])


SUITE = Suite(
    "online",
    "Learning one more row",
    "How long does one more row take, with a prediction right after it?",
    sizes=(300, 1000),
    dtypes=("float64",),
    run=run,
    allowed=("float64",),
)
