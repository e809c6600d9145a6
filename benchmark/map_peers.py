"""Whole fits of a map, rows held: Fourier series, "auto" and full scale beside KISS-GP, SVGP and GPBoost's Vecchia.

Matern-3/2 with a lengthscale per column, noise found. Each peer as its own documentation has it: KISS-GP (GPyTorch)
with the grid that it chooses and Adam at rate .1, of whose hundred steps the first are timed, SVGP (GPyTorch) with 512
inducing points, batches of 1,024 rows and twenty epochs at .01, GPBoost with its defaults. Scores are of 2,000 new
points.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from cells import Cell, Entry, Speaker
from common import scores

import flashgp as fgp
from flashgp.bench.memory import PeakMeter
from flashgp.bench.suite import peer
from flashgp.foundations.errors import BackendUnavailableError

F64 = torch.float64
Fitted = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # mean and variance of an observation at points
OURS = {"fourier": "fourier", "auto": "auto", "full_scale": "full_scale"}
STEPS, EPOCHS, INDUCING, BATCH = 10, 20, 512, 1024


def fitted_map(cell: Cell, function: Callable[[Any], Any]) -> Entry:
    """Scores and seconds of a method at n rows of a function in two columns with noise of deviation .1."""
    n, method, generator = cell["n"], cell["method"], numpy.random.default_rng(4)
    x = generator.random((n + 2_000, 2))
    truth = torch.from_numpy(function(x))
    y, x = truth + 0.1 * torch.from_numpy(generator.standard_normal(len(x))), torch.from_numpy(x)
    package = {"kiss_gp": "gpytorch", "svgp": "gpytorch", "gpboost": "gpboost"}.get(method)
    if package is not None and peer(package) is None:
        raise BackendUnavailableError(f"{package} is not installed; pip install 'flashgp[peers]'")
    with PeakMeter() as meter:
        began, own = time.perf_counter(), time.process_time()
        predict = METHODS[method](x[:n], y[:n], cell)
        done, used = time.perf_counter(), time.process_time()
        mean, variance = predict(x[n:])
        ended = time.perf_counter()
    return {
        "fit_seconds": done - began, "cpu_seconds": used - own, "predict_seconds": ended - done,
        "peak_bytes": meter.peak_bytes, "peak_method": meter.method,
        "rmse": float((mean - truth[n:]).square().mean().sqrt()),
        "log_loss": scores(mean, variance, y[n:])["nll"],
        "true_loss": scores(truth[n:], torch.full_like(mean, 0.01), y[n:])["nll"],
    }  # fmt: skip


def _flashgp(x: torch.Tensor, y: torch.Tensor, cell: Cell) -> Fitted:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2, dtype=F64)))
    fit = fgp.fit(gp, x, y, approximation=OURS[cell["method"]], progress=Speaker(cell.key).training)

    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = fit.posterior.predict(points)
        return found.mean, found.observation_variance

    return predict


def _kiss_gp(x: torch.Tensor, y: torch.Tensor, cell: Cell) -> Fitted:
    import gpytorch

    grid = gpytorch.utils.grid.choose_grid_size(x, kronecker_structure=True)

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x.float(), y.float(), likelihood)
            self.mean = gpytorch.means.ConstantMean()
            matern = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2))
            self.kernel = gpytorch.kernels.GridInterpolationKernel(matern, grid_size=grid, num_dims=2)

        def forward(self, points: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model, speaker = Model(likelihood), Speaker(cell.key)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    likelihood.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(cell["steps"]):
            optimiser.zero_grad()
            (-objective(model(x.float()), y.float())).backward()
            optimiser.step()
            speaker(f"step {step + 1} of {cell['steps']}")
    return _of_gpytorch(model, likelihood)


def _svgp(x: torch.Tensor, y: torch.Tensor, cell: Cell) -> Fitted:
    import gpytorch

    torch.manual_seed(0)
    z = x[torch.randperm(len(x))[:INDUCING]].float()

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(z))
            strategy = gpytorch.variational.VariationalStrategy
            super().__init__(strategy(self, z, q, learn_inducing_locations=True))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2))

        def forward(self, points: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    model, likelihood, speaker = Model(), gpytorch.likelihoods.GaussianLikelihood(), Speaker(cell.key)
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    model.train()
    likelihood.train()
    for epoch in range(cell["epochs"]):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            (-objective(model(x[rows].float()), y[rows].float())).backward()
            optimiser.step()
        speaker(f"epoch {epoch + 1} of {cell['epochs']}")
    return _of_gpytorch(model, likelihood)


def _of_gpytorch(model: Any, likelihood: Any) -> Fitted:
    import gpytorch

    model.eval()
    likelihood.eval()

    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad(), warnings.catch_warnings(), gpytorch.settings.fast_pred_var():
            warnings.simplefilter("ignore")
            found = likelihood(model(points.float()))
            return found.mean.double(), found.variance.double()

    return predict


def _gpboost(x: torch.Tensor, y: torch.Tensor, cell: Cell) -> Fitted:
    import gpboost

    model = gpboost.GPModel(
        gp_coords=x.numpy(), cov_function="matern_ard", cov_fct_shape=1.5, gp_approx="vecchia",
        num_parallel_threads=torch.get_num_threads(),
    )  # fmt: skip
    model.fit(y=y.numpy())

    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = model.predict(gp_coords_pred=points.numpy(), predict_var=True, predict_response=True)
        return torch.from_numpy(numpy.asarray(found["mu"])), torch.from_numpy(numpy.asarray(found["var"]))

    return predict


METHODS: dict[str, Callable[[torch.Tensor, torch.Tensor, Cell], Fitted]] = {
    **dict.fromkeys(OURS, _flashgp), "kiss_gp": _kiss_gp, "svgp": _svgp, "gpboost": _gpboost,
}  # fmt: skip
TITLES = {
    "kiss_gp": f"KISS-GP of GPyTorch, {STEPS} steps of a hundred",
    "svgp": "SVGP of GPyTorch",
    "gpboost": "Vecchia of GPBoost",
}
