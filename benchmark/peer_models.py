"""Models of GPyTorch and GPBoost that benchmarks compare with, and their training loops.

A library is imported where its model is made. A model of GPyTorch comes as its objective, with `model` (`mean`,
`kernel`) and `likelihood`, in the dtype of its rows.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from common import peer

from flashgp.foundations.errors import BackendUnavailableError

Fitted = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # mean and variance of an observation at points


def library(name: str) -> Any:
    """Raises: BackendUnavailableError where it is not installed."""
    found = peer(name)
    if found is None:
        raise BackendUnavailableError(f"{name} is not installed; pip install 'flashgp[peers]'")
    return found


# -- GPyTorch ---------------------------------------------------------------------------------------------------------
def matern(d: int, nu: float = 1.5) -> Any:
    """A variance times Matern with a lengthscale per column."""
    kernels = library("gpytorch").kernels
    return kernels.ScaleKernel(kernels.MaternKernel(nu=nu, ard_num_dims=d))


def exact(x: torch.Tensor, y: torch.Tensor, kernel: Any, mean: Any = None, likelihood: Any = None) -> Any:
    """The marginal likelihood of an exact model; its mean is a constant unless given."""
    gpytorch = library("gpytorch")
    likelihood = likelihood or gpytorch.likelihoods.GaussianLikelihood()

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.mean, self.kernel = mean or gpytorch.means.ConstantMean(), kernel

        def forward(self, points: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    return gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, Model()).to(x.device, x.dtype)


def svgp(z: torch.Tensor, kernel: Any, count: int, likelihood: Any = None, learn: bool = True, **q: Any) -> Any:
    """The bound on so many rows by whitened inducing values at z, the Cholesky factor of S among its parameters.

    Args: learn: whether z is one of them; q, more about the distribution of the inducing values.
    """
    gpytorch = library("gpytorch")

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            density = gpytorch.variational.CholeskyVariationalDistribution(len(z), **q)
            strategy = gpytorch.variational.VariationalStrategy
            super().__init__(strategy(self, z, density, learn_inducing_locations=learn))
            self.mean, self.kernel = gpytorch.means.ConstantMean(), kernel

        def forward(self, points: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    likelihood = likelihood or gpytorch.likelihoods.GaussianLikelihood()
    return gpytorch.mlls.VariationalELBO(likelihood, Model(), num_data=count).to(z.dtype)


def adam(objective: Any, rate: float, prior: Callable[[], Any] = float) -> Callable[..., None]:
    """A step of Adam towards more of the objective at rows and of `prior()`, which is 0 unless given."""
    optimiser = torch.optim.Adam(objective.parameters(), lr=rate)
    objective.train()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimiser.zero_grad()
        (-objective(objective.model(x), y) - prior()).backward()
        optimiser.step()

    return step


def epochs(
    step: Callable[..., None], x: torch.Tensor, y: torch.Tensor, *, batch: int, count: int,
    said: Callable[[str], None] = lambda _: None, generator: torch.Generator | None = None,
) -> None:  # fmt: skip
    """So many times a step with each batch of the rows in random order."""
    for epoch in range(count):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            step(x[rows], y[rows])
        said(f"epoch {epoch + 1} of {count}")


def predicted(objective: Any, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of an observation at points, float64."""
    objective.eval()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        found = objective.likelihood(objective.model(points))
        return found.mean.double(), found.variance.double()


# -- GPBoost ----------------------------------------------------------------------------------------------------------
def gpboost(x: Any, approximation: str, **more: Any) -> Any:
    """A model of rows (n, d), Matern-3/2 with a lengthscale per column, on as many threads as torch has."""
    return library("gpboost").GPModel(
        gp_coords=x, cov_function="matern_ard", cov_fct_shape=1.5, gp_approx=approximation,
        num_parallel_threads=torch.get_num_threads(), **more,
    )  # fmt: skip


def vecchia(x: torch.Tensor, y: torch.Tensor) -> Fitted:
    """A fit by its Vecchia approximation at its defaults."""
    model = gpboost(x.numpy(), "vecchia")
    model.fit(y=y.numpy())

    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = model.predict(gp_coords_pred=points.numpy(), predict_var=True, predict_response=True)
        return torch.from_numpy(numpy.asarray(found["mu"])), torch.from_numpy(numpy.asarray(found["var"]))

    return predict
