"""Approximations on a device: the same numbers as on the CPU, and seconds of an evaluation. Parts of gpu_check.py."""

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.full_scale.objective import FullScaleLogJoint
from flashgp.inference.streamed.objective import StreamedLogJoint
from flashgp.inference.training.objective import LogJoint, Problem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Sizes
from flashgp.sources.source import Held
from flashgp.sources.survey import surveyed

NOISE, SEED = 0.01, 0
FEW = Sizes(64, 16, 24, 96)
MANY = Sizes(512, 32, 96, 384)


def prior(d: int) -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((d,), 0.5 * d**0.5, dtype=torch.float64))
    return fgp.GP(kernel, fgp.means.Constant(0.0), fgp.likelihoods.Gaussian(NOISE))


def data(n: int, d: int) -> tuple[Tensor, Tensor]:
    """Rows and noisy values of a smooth function of them."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(3.0 * x.sum(-1)) + NOISE**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y


def objective(kind: str, x: Tensor, y: Tensor, sizes: Sizes) -> LogJoint:
    """Minus the log joint of an approximation, with its gradient, where x is."""
    gp, points = prior(x.shape[-1]).to(x.device), x[: sizes.inducing].clone()
    if kind == "sparse":
        survey = surveyed(Held(x, y), None, 2000, seed=SEED)
        problem = Problem(gp.released(), survey.x, survey.y, DirectSettings(TorchTiles()))
        return StreamedLogJoint(problem, survey, points)
    problem = Problem(gp.released(), x, y, DirectSettings(TorchTiles()))
    noise = problem.prior.sites(y).variance.detach()
    layout = layout_of(problem.prior, x, noise, sizes, SEED, points)
    return FullScaleLogJoint(problem, layout)


def agreement_of_series(device: str, n: int = 20_000, d: int = 2) -> dict[str, float]:
    """As `agreement`, of Fourier series, whose gradients are those of their fit."""
    x, y = data(n, d)
    test = data(50, d)[0] * 0.9 + 0.05

    def answers(place: str) -> list[Tensor]:
        here, targets = x.to(place), y.to(place)
        prediction = prior(d).to(place).condition(here, targets, approximation="fourier").predict(test.to(place))
        fit = fgp.fit(
            prior(d).to(place), here, targets, approximation="fourier", starts=1, max_iterations=3, progress=False
        )
        reached = fit.posterior.log_marginal_likelihood().cpu().reshape(1) / n
        return [prediction.mean.cpu(), prediction.variance.cpu(), reached]

    wanted, found = answers("cpu"), answers(device)
    errors = [float((b - a).abs().max() / a.abs().max()) for a, b in zip(wanted, found, strict=True)]
    return {"mean": errors[0], "variance": errors[1], "fit": float((found[-1] - wanted[-1]).abs())}


def agreement(kind: str, device: str, n: int = 2000, d: int = 3) -> dict[str, float]:
    """The largest differences between a device and the CPU: of a value, a gradient, means and variances, each of the
    largest number there, and of a fit's log likelihood, nats a row."""
    x, y = data(n, d)
    test = data(50, d)[0] + 0.003
    sizes = {"inducing": x[: FEW.inducing]} | ({} if kind == "sparse" else {"neighbours": FEW.neighbours})

    def answers(place: str) -> list[Tensor]:
        here, targets = x.to(place), y.to(place)
        of = objective(kind, here, targets, FEW)
        found = of(of.parameters.values())
        options = {"approximation": kind, **sizes, "inducing": sizes["inducing"].to(place)}
        posterior = prior(d).to(place).condition(here, targets, **options)
        prediction = posterior.predict(test.to(place))
        fit = fgp.fit(prior(d).to(place), here, targets, starts=1, max_iterations=3, progress=False, **options)
        value = torch.tensor([found.value], dtype=torch.float64)
        reached = fit.posterior.log_marginal_likelihood().cpu().reshape(1) / n
        return [value, torch.from_numpy(found.gradient), prediction.mean.cpu(), prediction.variance.cpu(), reached]

    names = ("value", "gradient", "mean", "variance")
    wanted, found = answers("cpu"), answers(device)
    errors = {
        name: float((b - a).abs().max() / a.abs().max()) for name, a, b in zip(names, wanted, found, strict=False)
    }
    return {**errors, "fit": float((found[-1] - wanted[-1]).abs())}
