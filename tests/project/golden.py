"""The values that no refactoring may change: every scenario calls the public interface and returns numbers.

    python tests/project/golden.py --check            # beside golden.json, in a fresh process; --reverse, --threads 1
    python tests/project/golden.py --against main     # beside another revision, on this machine, bit for bit; names of
                                                      # scenarios choose, here and below
    python tests/project/golden.py --write            # golden.json anew, on purpose, reviewed
    python tests/project/golden.py --write-model      # model_format_1.safetensors anew

golden.json holds on every machine, so its tolerances leave room for other processors, libraries and numbers of threads:
neither the name of a processor nor its instruction set tells the last bits. Bit for bit is a comparison of two runs on
one machine: of two checkouts (`--against`), or of the same scenario twice (test_golden.py).
Data are made of products and sums of numbers from NumPy's bit generator, so that they are the same everywhere.
"""

import argparse
import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["FLASHGP_PROFILE"] = "built-in"  # as conftest.py: no value may depend on what `flashgp tune` measured here

import numpy
import torch

import flashgp as fgp

HERE = Path(__file__).resolve().parent
VALUES = HERE / "golden.json"
MODEL = HERE / "model_format_1.safetensors"
F64 = torch.float64
HERE_ONLY = "here: "  # begins the names of arrays that golden.json does not hold
MEMORY = "4GiB"  # given, so that no route depends on what is free

Values = dict[str, Any]
Arrays = Mapping[str, numpy.ndarray]


@dataclass(frozen=True)
class Scenario:
    """What is computed, and how near it must be.

    Fields: run, without arguments; tolerance, of golden.json on any machine, relative to each array's largest entry;
    against, the same of two checkouts on one machine, 0 for every bit. Arrays whose names begin with "here: ", such as
    counts of iterations, are only compared on one machine.
    """

    run: Callable[[], Values]
    tolerance: float
    against: float


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *, deterministic: bool = False, tolerance: float = 1e-9, against: float = 1e-12
) -> Callable[[Callable[[], Values]], Callable[[], Values]]:
    def add(run: Callable[[], Values]) -> Callable[[], Values]:
        SCENARIOS[run.__name__] = Scenario(run, tolerance, 0.0 if deterministic else against)
        return run

    return add


# -- data and what is read from a result ------------------------------------------------------------------------------
def points(n: int, d: int, seed: int = 0) -> torch.Tensor:
    """(n, d) in [0, 3)."""
    return torch.from_numpy(3.0 * numpy.random.Generator(numpy.random.PCG64(seed)).random((n, d)))


def response(x: torch.Tensor, seed: int = 1, noise: float = 0.2) -> torch.Tensor:
    """A smooth function of the columns, and noise, by sums and products alone."""
    a = x.numpy()
    t, last = a[..., 0] - 1.5, a[..., -1]
    smooth = t * (2.0 - t * t) + 0.3 * last * (t - 0.5) + 0.1
    uniform = numpy.random.Generator(numpy.random.PCG64(seed)).random((4, *smooth.shape))
    return torch.from_numpy(smooth + noise * ((uniform[0] + uniform[1]) - (uniform[2] + uniform[3])))


def table(n: int, d: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = points(n, d, seed)
    return x, response(x, seed + 100)


def matern(variance: float = 1.3) -> fgp.kernels.Kernel:
    return variance * fgp.kernels.Matern(nu=2.5, lengthscale=[0.8, 1.1])


def model(kernel: fgp.kernels.Kernel | None = None, noise: float = 0.05, **options: Any) -> fgp.GP:
    return fgp.GP(kernel or matern(), likelihood=fgp.likelihoods.Gaussian(noise_variance=noise), **options)


def raw(gp: fgp.GP) -> Values:
    """Unconstrained parameter values by name."""
    return {f"raw {name}": value.detach() for name, value in gp.named_parameters()}


def answers(post: fgp.Posterior, at: torch.Tensor) -> Values:
    p = post.predict(at)
    return {"mean": p.mean, "variance": p.variance}


def fitted(fit: fgp.Posterior, at: torch.Tensor) -> Values:
    """Parameters, the trajectory's length and last value, and what the posterior says."""
    last = fit.history[-1]
    return {
        **raw(fit.gp),
        "here: evaluations": [len(fit.history)],
        "here: last evaluation": [last.value, last.gradient_norm],
        "log marginal likelihood": fit.posterior.log_marginal_likelihood(),
        **answers(fit.posterior, at),
    }


def gradients(value: torch.Tensor, of: Mapping[str, torch.Tensor]) -> Values:
    return dict(zip((f"d {name}" for name in of), torch.autograd.grad(value, list(of.values())), strict=True))


# -- fitting ----------------------------------------------------------------------------------------------------------
@scenario(deterministic=True, tolerance=1e-6)
def fit_small() -> Values:
    x, y = table(60)
    fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=[1.0, 1.0])), x, y, deterministic=True)
    return fitted(fit, points(5, 2, 9))


@scenario(deterministic=True, tolerance=1e-6)
def fit_several_starts() -> Values:
    x, y = table(50, seed=3)
    kernel = fgp.kernels.RationalQuadratic(lengthscale=[1.0, 1.0]) + fgp.kernels.Linear()
    fit = fgp.fit(fgp.GP(1.0 * kernel), x, y, starts=3, seed=5, max_iterations=40, deterministic=True)
    return fitted(fit, points(5, 2, 9))


@scenario(deterministic=True, tolerance=1e-6)
def fit_given_start_and_priors() -> Values:
    x, y = table(40, seed=4)
    prior = torch.distributions.LogNormal(0.0, 1.0)
    scale = fgp.Parameter(0.7, torch.distributions.constraints.positive, prior=prior)
    gp = fgp.GP(
        1.0 * fgp.kernels.SquaredExponential(lengthscale=scale), mean=fgp.means.Linear(slope=torch.zeros(2, dtype=F64))
    )
    return fitted(fgp.fit(gp, x, y, initial="given", priors="given", deterministic=True), points(5, 2, 9))


@scenario(deterministic=True, tolerance=1e-6)
def fit_ard_matern_300() -> Values:
    x, y = table(300, 4)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(4)))
    return fitted(fgp.fit(gp, x, y, starts=1, max_iterations=25, deterministic=True), points(5, 4, 9))


@scenario(tolerance=1e-6, against=1e-8)  # the optimiser stops by its own tolerance
def fit_default_route() -> Values:
    """What users run: small problems in NumPy or compiled loops, all starts together."""
    x, y = table(60)
    fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=[1.0, 1.0])), x, y)
    return {
        **raw(fit.gp),
        "likelihood": fit.posterior.log_marginal_likelihood(),
        **answers(fit.posterior, points(5, 2)),
    }


@scenario(deterministic=True, tolerance=2e-2)
def fit_estimated_gradients() -> Values:
    """The path of many rows, by stochastic gradients: a plan asks for it at any size.

    Its last steps go where rounding sends them, along directions in which the likelihood is flat: what the posterior
    says holds anywhere, parameters on one machine.
    """
    x, y = table(420)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=[1.0, 1.0]))
    plan = fgp.plan(gp, n=420, d=2, memory=MEMORY, deterministic=True)
    plan = dataclasses.replace(plan, training="stored")
    found = fitted(fgp.fit(gp, x, y, plan=plan, starts=1, seed=2, deterministic=True), points(5, 2, 9))
    return {f"{HERE_ONLY}{name}" if name.startswith("raw ") else name: value for name, value in found.items()}


# -- conditioning and predicting --------------------------------------------------------------------------------------
@scenario(deterministic=True)
def condition_cholesky() -> Values:
    x, y = table(150)
    post = model().condition(x, y, solver="cholesky", dtype=F64, memory=MEMORY, deterministic=True)
    return {
        "weights": post.representer_weights[::10],
        "log marginal likelihood": post.log_marginal_likelihood(),
        "here: residual, bound, jitter": [
            post.report.relative_residual,
            post.report.error_bound,
            post.report.jitter or 0.0,
        ],
        **answers(post, points(7, 2, 9)),
    }


@scenario(deterministic=True, tolerance=1e-4)
def condition_float32_factor() -> Values:
    x, y = table(300)
    post = model().condition(x, y, dtype=torch.float32, memory=MEMORY, deterministic=True)
    return {
        "weights": post.representer_weights[::20],
        "log marginal likelihood": post.log_marginal_likelihood(),
        "here: iterations": [post.report.iterations],
        **answers(post, points(7, 2, 9)),
    }


def solved(solver: str) -> Values:
    x, y = table(300)
    post = model().condition(x, y, solver=solver, seed=3, memory=MEMORY, deterministic=True)
    at = points(7, 2, 9)
    sampled = post.predict(at, variance="sampled")
    return {
        "weights": post.representer_weights[::20],
        "here: iterations": [post.report.iterations],
        "log marginal likelihood": post.log_marginal_likelihood(),
        "sampled variance": sampled.variance,
        "its standard error": sampled.variance_standard_error,
        "exact variance": post.predict(at, variance="exact").variance,
        **answers(post, at),
        "paths": post.paths(2, features=256, seed=1)(at),
    }


@scenario(deterministic=True, tolerance=1e-2)
def condition_conjugate_gradients() -> Values:
    return solved("cg")


def everything(post: fgp.Posterior, at: torch.Tensor) -> Values:
    y = response(at, 7)
    p = post.predict(at)
    lower, upper = p.interval(0.9)
    return {
        "mean": p.mean,
        "variance": p.variance,
        "observation variance": p.observation_variance,
        "covariance": p.covariance(),
        "covariance of observations": p.covariance(observed=True),
        "quantile": p.quantile(0.2),
        "lower": lower,
        "upper": upper,
        "log density": p.log_prob(y),
        "joint log density": p.joint_log_prob(y),
        "samples": p.sample(3, seed=4),
        "samples of observations": p.sample(2, observed=True, seed=4),
    }


@scenario(deterministic=True)
def predict_deterministic() -> Values:
    return everything(model().condition(*table(80), deterministic=True), points(9, 2, 9))


@scenario()
def predict_few_points() -> Values:
    """The short way for a handful of points, and the strips that many take."""
    post = model().condition(*table(80))
    many = post.predict(points(700, 2, 8))
    return {
        **everything(post, points(9, 2, 9)),
        "one mean": post.predict(points(1, 2, 9)).mean,
        "many means": many.mean[::50],
        "many variances": many.variance[::50],
    }


@scenario(deterministic=True)
def leave_one_out() -> Values:
    x, y = table(90)
    x = torch.cat([x, x[:10]])
    y = torch.cat([y, y[:10] + 0.1])
    out = model().condition(x, y, deterministic=True).leave_one_out()
    return {"mean": out.mean[::7], "variance": out.variance[::7], "log density": out.log_prob[::7]}


@scenario(deterministic=True, tolerance=1e-7)
def posterior_functions() -> Values:
    post = model().condition(*table(100), deterministic=True)
    functions = post.paths(3, features=512, seed=11)
    values = functions(points(6, 2, 9))
    return {"values": values, "error of the prior": [functions.prior_error]}


@scenario(deterministic=True)
def two_outputs() -> Values:
    x, y = table(70)
    y = torch.stack([y, 0.5 * response(x, 5)], -1)
    gp = fgp.GP(matern(), likelihood=fgp.likelihoods.Gaussian(noise_variance=0.05, shared=True), outputs=2)
    post = gp.condition(x, y, deterministic=True)
    p = post.predict(points(5, 2, 9))
    return {
        "mean": p.mean,
        "variance": p.variance,
        "samples": p.sample(2, seed=1),
        "paths": post.paths(2, features=128, seed=2)(points(4, 2, 9)),
        "left out": post.leave_one_out().mean[::10],
        "log marginal likelihood": post.log_marginal_likelihood(),
        **{f"fit: {name}": v for name, v in raw(fgp.fit(gp, x, y, starts=1, deterministic=True).gp).items()},
    }


@scenario(deterministic=True, tolerance=1e-6)
def batch_of_three() -> Values:
    x = torch.stack([points(40, 2, seed) for seed in (20, 21, 22)])
    y = response(x, 23)
    scales = torch.tensor([[0.5, 0.9], [0.8, 0.8], [1.4, 0.6]], dtype=F64)
    variance = torch.tensor([0.8, 1.0, 1.7], dtype=F64)
    noise = torch.tensor([0.02, 0.05, 0.1], dtype=F64)
    gp = fgp.GP(
        variance * fgp.kernels.Matern(nu=1.5, lengthscale=scales),
        mean=fgp.means.Zero(),
        likelihood=fgp.likelihoods.Gaussian(noise_variance=noise),
    )
    post = gp.condition(x, y, deterministic=True)
    p = post.predict(points(4, 2, 9))
    return {
        "mean": p.mean,
        "variance": p.variance,
        "log marginal likelihood": post.log_marginal_likelihood(),
        "samples": p.sample(1, seed=6),
        **{f"fit: {n}": v for n, v in raw(fgp.fit(gp, x, y, max_iterations=15, deterministic=True).gp).items()},
    }


@scenario(deterministic=True, tolerance=1e-6)
def repeated_rows() -> Values:
    x = points(40, 2)[torch.arange(100) % 40]
    y = response(x, 31)
    variances = 0.02 + 0.05 * points(100, 1, 32)[:, 0]
    weights = 1.0 + (torch.arange(100) % 3).double()
    at = points(5, 2, 9)
    known = fgp.GP(matern(), likelihood=fgp.likelihoods.Gaussian(noise_variance=0.03).with_rows(variances, weights))
    post = known.condition(x, y, deterministic=True)
    return {
        **answers(post, at),
        "log marginal likelihood": post.log_marginal_likelihood(),
        "left out": post.leave_one_out().log_prob[::9],
        **{f"fit: {name}": v for name, v in fitted(fgp.fit(known, x, y, starts=1, deterministic=True), at).items()},
    }


@scenario(deterministic=True)
def float32_data() -> Values:
    x, y = table(60)
    post = model().condition(x.float(), y.float(), deterministic=True)
    return {**answers(post, points(5, 2, 9).float()), "log marginal likelihood": post.log_marginal_likelihood()}


# -- gradients ----------------------------------------------------------------------------------------------------
@scenario()
def gradient_of_condition() -> Values:
    x, y = table(50)
    gp = model()
    x, y, at = x.requires_grad_(), y.requires_grad_(), points(4, 2, 9).requires_grad_()
    p = gp.condition(x, y, differentiable=True).predict(at)
    total = (p.mean * torch.arange(1.0, 5.0, dtype=F64)).sum() + p.variance.sum()
    found = gradients(total, {"at": at, "x": x, "y": y, **dict(gp.named_parameters())})
    return {"total": total, **{name: value[::5] if value.dim() else value for name, value in found.items()}}


@scenario()
def gradient_of_prediction() -> Values:
    post = model(1.2 * fgp.kernels.SquaredExponential(lengthscale=[0.9, 1.2]), noise=0.1).condition(*table(60))
    at = points(4, 2, 9).requires_grad_()
    p, f = post.predict(at), post.paths(2, features=64, seed=3)
    return {
        **{f"mean {k}": v for k, v in gradients(p.mean.sum(), {"at": at}).items()},
        **{f"variance {k}": v for k, v in gradients(p.variance.sum(), {"at": at}).items()},
        **{f"paths {k}": v for k, v in gradients(f(at).sum(), {"at": at}).items()},
    }


@scenario()
def gradient_of_likelihood() -> Values:
    """On both sides of the size up to which small problems go their own way, with priors, and in chains."""
    out: Values = {}
    prior = torch.distributions.LogNormal(0.0, 1.0)
    for n in (60, 300):
        x, y = table(n)
        scale = fgp.Parameter(
            torch.tensor([0.8, 1.1], dtype=F64), torch.distributions.constraints.positive, prior=prior
        )
        gp = model(1.3 * fgp.kernels.Matern(nu=1.5, lengthscale=scale))
        likelihood, joint = gp.log_marginal_likelihood(x, y), gp.log_joint(x, y, jacobian=True)
        out |= {f"likelihood, n = {n}": likelihood, f"log joint, n = {n}": joint}
        out |= {f"{k}, n = {n}": v for k, v in gradients(likelihood, dict(gp.named_parameters())).items()}
        out |= {f"joint: {k}, n = {n}": v for k, v in gradients(joint, dict(gp.named_parameters())).items()}
    theta = {name: value.detach() + 0.1 * torch.arange(3.0, dtype=F64).reshape(3, *(1,) * value.dim())
             for name, value in gp.named_parameters()}  # fmt: skip
    out["chains"] = gp.log_joint(x[:60], y[:60], theta=theta)
    return out


# -- online -------------------------------------------------------------------------------------------------------
def chain(post: fgp.Posterior, new: tuple[torch.Tensor, torch.Tensor]) -> Iterator[tuple[str, fgp.Posterior]]:
    x, y = new
    post = post.append(x[:1], y[:1])
    yield "append one", post
    post = post.append(x[1:5], y[1:5])
    yield "append four", post
    post = post.drop([0, 7, 30])
    yield "drop", post
    post = post.slide(x[5:8], y[5:8])
    yield "slide", post
    yield "replace", post.replace([3, 4], x[8:10], y[8:10])


def chained(**options: Any) -> Values:
    start = model().condition(*table(80), memory=MEMORY, **options)
    out: Values = {}
    for name, post in chain(start, table(10, seed=40)):
        out |= {f"{name}: {k}": v for k, v in answers(post, points(4, 2, 9)).items()}
        out[f"{name}: log marginal likelihood"] = post.log_marginal_likelihood()
    out["last weights"] = post.representer_weights[::10]
    return out


@scenario()
def online_chain() -> Values:
    return chained()


@scenario(deterministic=True)
def online_chain_deterministic() -> Values:
    return chained(deterministic=True)


@scenario(deterministic=True, tolerance=1e-2)
def online_chain_conjugate_gradients() -> Values:
    return chained(solver="cg", seed=1, deterministic=True)


@scenario(deterministic=True, tolerance=1e-4)
def online_chain_float32_factor() -> Values:
    return chained(dtype=torch.float32, deterministic=True)


@scenario()
def online_one_by_one() -> Values:
    """The short way of a single row, many times, with a window: what a stream does, and its figures."""
    stream = fgp.Stream(model().condition(*table(40)), window=45)
    steps = list(stream.consume(zip(*table(25, seed=41), strict=True)))
    figures = stream.metrics
    return {
        "means": torch.cat([step.mean for step in steps]),
        "variances": torch.cat([step.variance for step in steps]),
        "figures": [figures.rows, figures.rmse, figures.nll, figures.coverage],
        **answers(stream.posterior, points(4, 2, 9)),
    }


@scenario(deterministic=True, tolerance=1e-5)
def stream_refined() -> Values:
    stream = fgp.Stream(model().condition(*table(40), deterministic=True), window=42, refine_every=5, refine_steps=2)
    steps = list(stream.consume(zip(*table(12, seed=42), strict=True)))
    return {
        "means": torch.cat([step.mean for step in steps]),
        "figures": [stream.metrics.rmse, stream.metrics.nll, stream.metrics.refinements],
        **raw(stream.posterior.gp),
        **answers(stream.posterior, points(4, 2, 9)),
    }


@scenario(deterministic=True)
def fantasies() -> Values:
    post = model().condition(*table(60), deterministic=True)
    candidates = points(12, 2, 50).reshape(4, 3, 2)
    drawn = post.fantasize(candidates, samples=2, seed=0)
    given = post.fantasize(candidates, response(candidates, 51)).predict(points(5, 2, 9))
    p = drawn.predict(points(5, 2, 9))
    return {
        "targets": drawn.y,
        "mean": p.mean,
        "variance": p.variance,
        "observation variance": p.observation_variance,
        "mean, targets given": given.mean,
    }


# -- files and the estimator ------------------------------------------------------------------------------------------
def saved_model() -> fgp.Posterior:
    """What model_format_1.safetensors holds: rows that repeat, a code, a prior, all kinds of composition."""
    x = torch.cat([points(22, 2), (torch.arange(22) % 3).double()[:, None]], -1)[torch.arange(24) % 22]
    prior = torch.distributions.LogNormal(0.0, 1.0)
    scale = fgp.Parameter(0.9, torch.distributions.constraints.positive, prior=prior)
    smooth = 1.2 * fgp.kernels.Matern(nu=2.5, lengthscale=scale, active_dims=[0, 1])
    tasks = fgp.kernels.Coregionalization(3, rank=1, active_dims=2)
    wave = 0.3 * fgp.kernels.Periodic(period=1.5, lengthscale=0.8, active_dims=0)
    gp = model(smooth * tasks + wave + fgp.kernels.Linear(variance=0.1, active_dims=[1]) + 0.5)
    return gp.condition(x, response(x[:, :2], 60), deterministic=True)


def questions(post: fgp.Posterior) -> Values:
    at = torch.cat([points(6, 2, 9), (torch.arange(6) % 3).double()[:, None]], -1)
    one = torch.cat([points(1, 2, 61), torch.ones(1, 1, dtype=F64)], -1)
    p = post.predict(at)
    return {
        **raw(post.gp),
        "mean": p.mean,
        "variance": p.variance,
        "samples": p.sample(2, seed=1),
        "log marginal likelihood": post.log_marginal_likelihood(),
        "left out": post.leave_one_out().mean,
        "appended": post.append(one, response(one[:, :2], 62)).predict(at).mean,
    }


@scenario(deterministic=True)
def save_and_load() -> Values:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        fgp.save(saved_model(), path)
        return questions(fgp.load(path))


@scenario(deterministic=True)
def model_file() -> Values:
    """The committed file: later versions must read it, and answer the same."""
    return questions(fgp.load(MODEL))


@scenario(deterministic=True, tolerance=1e-6)
def estimator() -> Values:
    x, y = (a.numpy() for a in table(60))
    x = x * numpy.array([10.0, 0.1]) + 5.0
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=[1.0, 1.0])  # named: a better default is no change of values
    found = fgp.GPRegressor(kernel, deterministic=True, starts=2, max_iterations=30).fit(x, 4.0 * y - 2.0)
    mean, std = found.predict(x[:6] + 0.01, return_std=True)
    _, covariance = found.predict(x[:3] + 0.01, return_cov=True)
    return {
        "mean": mean,
        "std": std,
        "covariance": covariance,
        "log marginal likelihood": [found.log_marginal_likelihood_value_],
        "samples": found.sample_y(x[:4] + 0.01, 2, random_state=1),
        "score": [found.score(x, 4.0 * y - 2.0)],
    }


# -- covariance functions -----------------------------------------------------------------------------------------
def decaying(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((a - b) / scale).square().sum().sqrt())


def capped(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Not of the form that is fused: min(a, b) + 1 of every column."""
    return (torch.minimum(a, b) / scale + 1.0).prod()


def positive(value: float) -> fgp.Parameter:
    return fgp.Parameter(value, torch.distributions.constraints.positive)


def warp() -> torch.nn.Module:
    layer = torch.nn.Linear(2, 2, dtype=F64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.9, 0.2], [-0.3, 1.1]]))
        layer.bias.copy_(torch.tensor([0.1, -0.2]))
    return torch.nn.Sequential(layer, torch.nn.Tanh())


def kernels() -> dict[str, fgp.kernels.Kernel]:
    """Of points of two columns and one of codes 0, 1, 2."""
    k = fgp.kernels
    both = {"active_dims": [0, 1]}
    frequencies, widths = torch.tensor([[0.2, 0.1], [0.5, 0.4]]), torch.tensor([[0.2, 0.3], [0.1, 0.2]])
    return {
        "squared exponential": 1.3 * k.SquaredExponential(lengthscale=[0.7, 1.2], **both),
        "Matern-1/2": 0.8 * k.Matern(nu=0.5, lengthscale=0.9, **both),
        "rational quadratic": 1.1 * k.RationalQuadratic(lengthscale=[0.7, 1.2], **both),
        "linear + periodic": k.Linear(variance=0.4, **both) + 0.9 * k.Periodic(1.4, 0.8, active_dims=0),
        "polynomial + cosine": 0.1 * k.Polynomial(degree=2, **both) + k.Cosine(torch.tensor([0.3, 0.2]), **both),
        "spectral mixture": k.SpectralMixture([0.7, 0.5], frequencies, widths, **both),
        "categorical": 1.2 * k.Matern(nu=1.5, lengthscale=0.9, **both) * k.Categorical(0.6, active_dims=2),
        "coregionalization": k.SquaredExponential(lengthscale=0.8, **both) * k.Coregionalization(3, 2, active_dims=2),
        "custom, fused": 1.1 * k.Custom(decaying, scale=positive(1.5), **both),
        "custom, tiled": 0.2 * k.Custom(capped, scale=positive(2.0), **both),
        "warped": 1.4 * k.Warped(warp(), k.Matern(nu=2.5, lengthscale=0.5), **both),
        "constant": k.Matern(nu=2.5, lengthscale=1.0, **both) + 0.5,
    }


def coded(n: int, seed: int) -> torch.Tensor:
    return torch.cat([points(n, 2, seed), (torch.arange(n) % 3).double()[:, None]], -1)


@scenario(deterministic=True)
def every_kernel_conditioned() -> Values:
    """Composite, categorical, spectral, of your own: the same small table, and the seconds of few evaluations."""
    x, at = coded(30, 70), coded(3, 71)
    y = response(x[:, :2], 72)
    out: Values = {}
    for name, kernel in kernels().items():
        post = model(kernel, noise=0.1).condition(x, y, deterministic=True)
        out |= {f"{name}: {k}": v for k, v in answers(post, at).items()}
        out[f"{name}: log marginal likelihood"] = post.log_marginal_likelihood()
    return out


@scenario()
def every_kernel_as_operator() -> Values:
    """Products, blocks, diagonals, and what flows back to parameters and points."""
    x, z, v = coded(40, 70), coded(5, 71), points(5, 2, 72)
    out: Values = {}
    for name, kernel in kernels().items():
        inputs = x[:, :2].clone().requires_grad_()
        product = kernel.operator(torch.cat([inputs, x[:, 2:]], -1), z) @ v
        weights = torch.linspace(-1.0, 1.0, product.numel(), dtype=F64).reshape(product.shape)
        of = {"x": inputs, **dict(kernel.named_parameters())}
        out |= {
            f"{name}: {k}": v_[:3] if k == "d x" else v_ for k, v_ in gradients((product * weights).sum(), of).items()
        }
        out[f"{name}: product"] = product[::8]
        out[f"{name}: block"] = kernel.operator(x)[2:5, 30:33].to_dense()
        out[f"{name}: diagonal"] = kernel.operator(x).diagonal()[:3]
    return out


@scenario(deterministic=True, tolerance=1e-5)
def float32_products() -> Values:
    """Tiles in float32, with noise on the diagonal, and with far tiles left out."""
    x = points(700, 2, 80).float()
    v = points(700, 3, 81).float()
    kernel = 1.3 * fgp.kernels.Matern(nu=1.5, lengthscale=[0.3, 0.4])
    plain = kernel.operator(x, deterministic=True, memory=MEMORY)
    near = fgp.kernels.SquaredExponential(lengthscale=0.05).operator(x, deterministic=True, skip_below=1e-4).product(v)
    return {
        "product": (plain @ v)[::60],
        "with noise": (plain.with_noise(0.1) @ v)[::60],
        "near": near.value[::60],
        "its bound": near.error_bound.reshape(-1)[::60],
    }


@scenario(deterministic=True, tolerance=1e-6)
def spectral_mixture_from_data() -> Values:
    x = points(80, 1, 90)
    y = response(x, 91)
    kernel = fgp.kernels.SpectralMixture.from_data(x, y, components=2)
    start = {f"start: {name}": value.detach() for name, value in kernel.named_parameters()}
    fit = fgp.fit(fgp.GP(kernel), x, y, initial="given", max_iterations=10, deterministic=True)
    return {**start, **fitted(fit, points(4, 1, 9))}


@scenario()
def factorisations() -> Values:
    a = points(30, 12, 95)
    spd = a.mT @ a + torch.eye(12, dtype=F64)
    lower = fgp.linalg.cholesky(spd)
    return {
        "R": fgp.linalg.qr(a)[1].diagonal().abs(),
        "cholesky": lower[-1],
        "eigenvalues": fgp.linalg.eigh(spd)[0],
        "solved": fgp.linalg.solve_triangular(lower, a[:12, :2], upper=False),
    }


# -- approximations, several outputs, two ranks ---------------------------------------------------------------------
def approximated(kind: str, **options: Any) -> dict[str, Any]:
    sizes = {"inducing": 40} | ({"neighbours": 12} if kind == "full_scale" else {})
    return {"approximation": kind, "memory": MEMORY, "deterministic": True, "seed": 5, **sizes, **options}


def approximate_questions(kind: str) -> Values:
    """Conditioning, what is left out, rows that come, functions of the posterior, and a file."""
    x, y = table(260)
    at = points(6, 2, 9)
    post = model().condition(x, y, **approximated(kind))
    later = post.append(points(7, 2, 30), response(points(7, 2, 30), 31))
    with tempfile.TemporaryDirectory() as folder:
        fgp.save(post, Path(folder) / "post.fgp")
        again = fgp.load(Path(folder) / "post.fgp").predict(at)
    left_out = {} if kind == "sparse" else {"left out": post.leave_one_out().mean[::20]}
    return {
        **answers(post, at),
        **left_out,
        "log marginal likelihood": post.log_marginal_likelihood(),
        "paths": post.paths(2, features=128, seed=3)(at),
        **{f"appended: {name}": value for name, value in answers(later, at).items()},
        "appended: log marginal likelihood": later.log_marginal_likelihood(),
        "loaded: mean": again.mean,
        "loaded: variance": again.variance,
    }


def approximate_fit(kind: str) -> Values:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=[1.0, 1.0]))
    options = approximated(kind, starts=1, max_iterations=8, progress=False)
    return fitted(fgp.fit(gp, *table(600), **options), points(5, 2, 9))


@scenario(deterministic=True)
def full_scale_posterior() -> Values:
    return approximate_questions("full_scale")


@scenario(deterministic=True)
def sparse_posterior() -> Values:
    return approximate_questions("sparse")


@scenario(deterministic=True, tolerance=1e-6)
def full_scale_fit() -> Values:
    return approximate_fit("full_scale")


@scenario(deterministic=True, tolerance=1e-6)
def sparse_fit() -> Values:
    return approximate_fit("sparse")


@scenario(deterministic=True, tolerance=1e-6)
def fit_of_outputs() -> Values:
    """Exact, each output with a noise variance of its own, cells missing."""
    x, y = table(70)
    y = torch.stack([y, 0.5 * response(x, 5)], -1)
    y[3, 0] = y[5:9, 1] = math.nan
    gp = fgp.GP(matern(), likelihood=fgp.likelihoods.Gaussian(noise_variance=0.05), outputs=2)
    fit = fgp.fit(gp, x, y, starts=1, max_iterations=8, deterministic=True, progress=False)
    return {**raw(fit.gp), **answers(fit.posterior, points(5, 2, 9))}


def of_rank() -> Values:
    """What each of two processes does: a fit by every engine and its posterior, rows dealt out in turn."""
    group = torch.distributed.group.WORLD
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    x, y = table(300)
    found: Values = {}
    for kind in ("exact", "full_scale", "sparse"):
        gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=[1.0, 1.0]))
        own: dict[str, Any] = {"memory": MEMORY, "deterministic": True} if kind == "exact" else approximated(kind)
        own |= {"starts": 1, "max_iterations": 4, "progress": False, "group": group}
        fit = fgp.fit(gp, x[rank::size], y[rank::size], **own)
        found |= {f"{kind}: {name}": value for name, value in fitted(fit, points(5, 2, 9)).items()}
    return found


@scenario(tolerance=1e-6, against=1e-14)  # the same bits too, but two processes twice take long
def two_ranks() -> Values:
    """Rank 0's values, from two processes."""
    script = """import pickle, sys, warnings, golden, torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
store, out, rank = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=int(rank), world_size=2)
values = golden.of_rank()
if rank == "0":
    pickle.dump(values, open(out, "wb"))
torch.distributed.destroy_process_group()
"""
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        store, out = Path(folder) / "store", Path(folder) / "values.pickle"
        command = [sys.executable, "-c", script, str(store), str(out)]
        ranks = [subprocess.Popen([*command, str(r)], env={**os.environ, "PYTHONPATH": paths}) for r in range(2)]
        codes = [rank.wait(timeout=600) for rank in ranks]
        if any(codes):
            raise RuntimeError(f"ranks ended with exit codes {codes}")
        found: Values = pickle.loads(out.read_bytes())
    return found


# -- the file, and other checkouts --------------------------------------------------------------------------------
def computed(name: str) -> Arrays:
    """The values of a scenario, float64 arrays by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)  # that variances are sampled, and the like
        values = SCENARIOS[name].run()
    return {
        key: numpy.asarray(value.detach() if isinstance(value, torch.Tensor) else value, dtype=numpy.float64)
        for key, value in values.items()
    }


def portable(arrays: Arrays) -> Arrays:
    """Those that hold on every machine."""
    return {key: array for key, array in arrays.items() if not key.startswith(HERE_ONLY)}


def written() -> dict[str, Arrays]:
    """The values of golden.json."""
    return {
        name: {
            key: numpy.array([float.fromhex(text) for text in entry["values"].split()]).reshape(entry["shape"])
            for key, entry in arrays.items()
        }
        for name, arrays in json.loads(VALUES.read_text()).items()
    }


def write(values: Mapping[str, Arrays]) -> None:
    """One array a line, so that a difference shows which one changed."""
    lines = ["{"]
    for name, arrays in values.items():
        entries = [
            f"  {json.dumps(key)}: "
            + json.dumps({"shape": list(array.shape), "values": " ".join(float(v).hex() for v in array.ravel())})
            for key, array in portable(arrays).items()
        ]
        lines += [f" {json.dumps(name)}: {{", ",\n".join(entries), " },"]
    lines[-1] = " }"
    VALUES.write_text("\n".join([*lines, "}"]) + "\n")


def of_revision(revision: str, names: Sequence[str]) -> dict[str, Arrays]:
    """What these scenarios give with the sources of another revision, in a process of its own on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        checkout, out = Path(folder) / "checkout", Path(folder) / "values.pickle"
        git = ["git", "-C", str(HERE)]
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(checkout), revision], check=True)
        try:
            script = "import pickle, sys; from golden import computed\n"
            script += "pickle.dump({n: computed(n) for n in sys.argv[2:]}, open(sys.argv[1], 'wb'))"
            paths = os.pathsep.join([str(checkout / "src"), str(HERE)])
            command = [sys.executable, "-c", script, str(out), *names]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})
            found: dict[str, Arrays] = pickle.loads(out.read_bytes())
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(checkout)], check=True)
    return found


def distance(found: numpy.ndarray, wanted: numpy.ndarray) -> float:
    """0 where every bit is the same; else the largest difference relative to the largest entry, inf if unlike."""
    if found.shape != wanted.shape:
        return math.inf
    if found.tobytes() == wanted.tobytes():
        return 0.0
    finite = numpy.isfinite(wanted)
    if (
        not numpy.array_equal(found[~finite], wanted[~finite], equal_nan=True)
        or not numpy.isfinite(found[finite]).all()
    ):
        return math.inf
    largest = float(numpy.abs(wanted[finite]).max(initial=0.0))
    off = float(numpy.abs(found[finite] - wanted[finite]).max(initial=0.0))
    return max(off / largest, sys.float_info.min) if largest else (math.inf if off else sys.float_info.min)


def differences(found: Arrays, wanted: Arrays) -> dict[str, float]:
    """The distance of each array that is not the same in every bit, the largest first; one that is missing is inf."""
    off = {
        name: distance(found[name], wanted[name]) if name in found and name in wanted else math.inf
        for name in {**wanted, **found}
    }
    return dict(sorted(((name, value) for name, value in off.items() if value), key=lambda pair: -pair[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of scenarios; all by default")
    parser.add_argument("--write", action="store_true", help="golden.json")
    parser.add_argument("--write-model", action="store_true", help="model_format_1.safetensors")
    parser.add_argument("--check", action="store_true", help="compare with golden.json; the default")
    parser.add_argument("--against", metavar="REVISION", help="compare with another revision, on this machine")
    parser.add_argument("--reverse", action="store_true", help="the last scenario first")
    parser.add_argument("--threads", type=int, help="of torch")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.write_model:
        fgp.save(saved_model(), MODEL)
    names = options.names or list(SCENARIOS)
    kept = written() if VALUES.exists() else {}
    wanted = of_revision(options.against, names) if options.against else kept
    new, failed = {}, 0
    for name in reversed(names) if options.reverse else names:
        began = time.perf_counter()
        new[name] = computed(name)
        seconds = time.perf_counter() - began
        case = SCENARIOS[name]
        allowed = case.against if options.against else case.tolerance
        off = differences(new[name] if options.against else portable(new[name]), wanted.get(name, {}))
        failed += max(off.values(), default=0.0) > allowed
        worst = ", ".join(f"{key} {value:.1e}" for key, value in list(off.items())[:2])
        sys.stdout.write(f"{seconds:6.2f} s  {name:36s} allowed {allowed:.0e}  {worst or 'the same bits'}\n")
    if options.write:
        write({name: new.get(name, kept.get(name, {})) for name in SCENARIOS if name in new or name in kept})
        return 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
