"""Two kinds of cases, judged as users judge: by what they have anyway (a sinusoid, a constant, scikit-learn, a clock),
and by answers that must not change with how the same thing is said (weights, dates, modes of modules, draws).
"""

import copy
import datetime
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

import flashgp as fgp
from flashgp.inference.findings import why_unfinished
from hunt import specs
from hunt.cases import ANY_POINTS, Points, targets
from hunt.differences import Findings
from hunt.table_models import written

K = fgp.kernels
PERIODIC = {
    "periodic": lambda: 1.0 * K.Periodic(1.0, 1.0),
    "cosine": lambda: 1.0 * K.Cosine(1.0),
    "local": lambda: 1.0 * K.Periodic(1.0, 1.0) * K.RBF(1.0),
    "beside": lambda: 1.0 * K.Periodic(1.0, 1.0) + 1.0 * K.RBF(1.0),
    "with a trend": lambda: 1.0 * K.Periodic(1.0, 1.0) + 1.0 * K.RBF(1.0) + K.Linear(),
}
FUNCTIONS = ("smooth", "rough", "step", "line", "noise", "ratio")
ROUTES = ("exact", "auto", "sparse", "full_scale", "estimator", "table")
DATES = (
    "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%b %d %Y", "%d %B %Y", "%Y%m%d", "%Y-%m", "%b %Y",
    "%d/%m/%y", "%m/%d/%y", "%d-%b-%y", "%Y-%m-%dT%H:%M",
)  # fmt: skip
DRAWS = 2000
LAPLACE = specs.Custom()


def explained(got: Any, truth: numpy.ndarray) -> float:
    """Share of the variance of truth, (n,): 0 for its mean, 1 for all of it."""
    return 1.0 - float(((numpy.asarray(got) - truth) ** 2).mean() / truth.var())


def short_of(found: Findings, name: str, got: float, least: float) -> None:
    found.compared += 1
    if not got >= least:
        found.differences[name] = f"{got:.4g}, at least {least:.4g} was to be had"


# -- kind "useful" -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PeriodCase:
    """A default fit of a sinusoid explains what least squares with its period explains, between rows in 0 to 10."""

    seed: int = 0
    kernel: str = "periodic"
    n: int = 60
    period: float = 3.0
    noise: float = 0.1
    scattered: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def check(self) -> Findings:
        found = Findings()
        rng = numpy.random.default_rng([self.seed, 11])
        x = rng.uniform(0, 10, self.n) if self.scattered else numpy.linspace(0, 10, self.n)
        points, slope = rng.uniform(x.min(), x.max(), 200), 0.5 * (self.kernel == "with a trend")
        phase = rng.uniform(0, 2 * numpy.pi)

        def basis(at: numpy.ndarray) -> numpy.ndarray:
            angle = 2 * numpy.pi * at / self.period + phase
            return numpy.stack([numpy.sin(angle), numpy.cos(angle), numpy.ones_like(at), at], axis=1)

        truth_of = numpy.array([1.0, 0.0, 2.0, slope])
        y = basis(x) @ truth_of + self.noise * rng.normal(size=self.n)
        plain = basis(points) @ numpy.linalg.lstsq(basis(x), y, rcond=None)[0]
        truth = basis(points) @ truth_of
        with found.watched("fit"):
            gp = fgp.GP(PERIODIC[self.kernel]())
            fit = fgp.fit(gp, torch.from_numpy(x)[:, None], torch.from_numpy(y), **dict(self.options))
            mean = fit.posterior.predict(torch.from_numpy(points)[:, None]).mean
            room = 0.02 + 30 * self.noise**2 / self.n
            short_of(found, "explained variance", explained(mean, truth), explained(plain, truth) - room)
        return found


@dataclass(frozen=True)
class DensityCase:
    """Held-out log densities of GPRegressor, beside scikit-learn's regressor with a Matern kernel and a constant."""

    seed: int = 0
    of: str = "smooth"
    n: int = 30
    d: int = 1
    noise: float = 0.1
    x_scale: float = 1.0
    y_scale: float = 1.0
    room: float = 0.3  # nats a row, beside three standard errors

    def check(self) -> Findings:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        found = Findings()
        if self.n < 15:
            found.skipped.append("too few rows for densities")
            return found
        rng = numpy.random.default_rng([self.seed, 13])
        x = rng.uniform(-2, 2, (self.n + 300, self.d))
        y = self.y_scale * (function_of(x, self.of) + self.noise * rng.normal(size=len(x)))
        rows, points = self.x_scale * x[: self.n], self.x_scale * x[self.n :]
        y, new = y[: self.n], y[self.n :]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = ConstantKernel() * Matern(numpy.ones(self.d), nu=1.5) + WhiteKernel(0.1)
            peer = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
            mean, std = peer.fit(rows / self.x_scale, y).predict(points / self.x_scale, return_std=True)
        with found.watched("fit"):
            model = fgp.GPRegressor().fit(rows, y)
            got = model.predict_distribution(points).log_prob(new)
            if y.min() > 0.0:  # the target may be fitted by its logarithm, which no other values have
                mean, std, got, new, points = (part[new > 0.0] for part in (mean, std, got, new, points))
            for name, other in (("scikit-learn", (mean, std)), ("a constant", (y.mean(), y.std()))):
                less = log_normal(new, *other) - got
                least = float(-self.room - 3 * less.std() / len(new) ** 0.5)
                short_of(found, f"nats a row beside {name}", -float(less.mean()), least)
            room = 0.5 if self.of == "noise" else 0.1  # chance: of 24 such tables either fits 5 to less than -.15
            least = min(explained(mean, new), -1 / self.n) - room
            short_of(found, "explained variance", explained(model.predict(points), new), least)
        return found


@dataclass(frozen=True)
class LimitCase:
    """A fit with a time limit ends within it and a tenth and 2 s, beats a constant, and says by type what ended it.

    Fields: room, seconds beside these; of wall time and this process' own the lesser counts, for busy machines.
    """

    seed: int = 0
    route: str = "exact"
    n: int = 300
    d: int = 2
    limit: float = 2.0
    room: float = 1.0

    def check(self) -> Findings:
        found = Findings()
        rng = numpy.random.default_rng([self.seed, 17])
        x = rng.uniform(-2, 2, (self.n + 200, self.d))
        truth = function_of(x, "smooth")
        rows, points, truth, y = x[: self.n], x[self.n :], truth[self.n :], truth[: self.n]
        y = y + 0.2 * rng.normal(size=self.n)
        own, wall = time.process_time(), time.monotonic()
        with found.watched("fit"):
            mean, reason = self._answer(rows, y, points)
            seconds, passed = sorted((time.process_time() - own, time.monotonic() - wall))
            if passed > 1.1 * self.limit + 2.0 + self.room:
                found.skipped.append("beyond the limit by wall time alone")
            short_of(found, "seconds kept", -seconds, -(1.1 * self.limit + 2.0 + self.room))
            short_of(found, "explained variance", explained(mean, truth), 0.3)
            if seconds > 1.1 * self.limit and reason is None:
                found.differences["reason"] = f"none after {seconds:.2f} s of {self.limit:g} s"
        return found

    def _answer(self, x: numpy.ndarray, y: numpy.ndarray, points: numpy.ndarray) -> tuple[Any, Any]:
        if self.route == "estimator":
            model = fgp.GPRegressor(time_limit=self.limit).fit(x, y)
            return model.predict(points), why_unfinished(model.report_.events, interrupted=False)
        if self.route == "table":
            names = [f"x{j}" for j in range(self.d)]
            table = dict(zip(names, x.T, strict=True)) | {"y": y}
            of_table = fgp.TableModel(time_limit=self.limit).fit(table, "y")
            reason = None if of_table.training is None else of_table.training.unfinished
            return of_table.predict(dict(zip(names, points.T, strict=True))).mean, reason
        approximation = None if self.route == "exact" else self.route
        gp = fgp.GP(1.0 * K.Matern(1.5, torch.ones(self.d)))
        fit = fgp.fit(gp, torch.from_numpy(x), torch.from_numpy(y), time_limit=self.limit, approximation=approximation)
        return fit.posterior.predict(torch.from_numpy(points)).mean, fit.unfinished


# -- kind "meaning" ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WeightCase:
    """The scale of weights means nothing, equal ones mean nothing, and 1 / variance is as good as known variances."""

    seed: int = 0
    n: int = 30
    d: int = 1
    scale: float = 1.0
    equal: bool = False
    spread: float = 10.0  # of the standard deviations of the rows

    def check(self) -> Findings:
        found = Findings()
        rng = numpy.random.default_rng([self.seed, 19])
        x = rng.uniform(-2, 2, (self.n + 100, self.d))
        truth = function_of(x, "smooth")
        std = 0.3 * self.spread ** -rng.uniform(0, 1, self.n) * numpy.ones(self.n)
        std = numpy.full(self.n, 0.1) if self.equal else std
        rows, points, y = x[: self.n], x[self.n :], truth[: self.n] + std * rng.normal(size=self.n)
        with found.watched("weights"):
            plain = self.means(rows, y, points, None if self.equal else std**-2)
            scaled = self.means(rows, y, points, self.scale * std**-2)
            likelihood = fgp.likelihoods.Gaussian(1e-4, row_variance=std**2)
            known = fgp.GPRegressor(likelihood=likelihood, target_transform="none").fit(rows, y).predict(points)
            off = float(abs(scaled - plain).max())
            short_of(found, "equal answers", -off, -1e-6)
            least = explained(known, truth[self.n :])
            short_of(found, "explained variance", explained(plain, truth[self.n :]), least - 0.05 - (1 - least))
        return found

    def means(self, x: Any, y: Any, points: Any, weight: Any) -> numpy.ndarray:
        return fgp.GPRegressor(target_transform="none").fit(x, y, weight).predict(points)


@dataclass(frozen=True)
class DateCase:
    """A table with dates in one of DATES is the table with ISO dates, perhaps after a question that `dates` answers."""

    seed: int = 0
    of: str = "%d.%m.%Y"
    n: int = 24
    each: int = 1  # rows of one date
    step: int = 17  # days
    form: str = "dict"

    def check(self) -> Findings:
        found = Findings()
        first = datetime.datetime(1990, 1, 1) + datetime.timedelta(days=self.seed * 37 % 12000)
        days = [first + datetime.timedelta(days=self.step * (i // self.each)) for i in range(self.n + 5)]
        if "%d" not in self.of:
            days = [day.replace(day=1) for day in days]
        rng = numpy.random.default_rng([self.seed, 23])
        share, y = rng.normal(size=self.n + 5), numpy.arange(self.n + 5.0) + rng.normal(size=self.n + 5)
        order = "mdy" if self.of.startswith("%m") else "dmy"

        def answer(of: str, **options: Any) -> numpy.ndarray:
            with tempfile.TemporaryDirectory() as folder:
                tables = [
                    written(
                        {"day": [d.strftime(of) for d in days[part]], "share": share[part], "y": y[part]},
                        self.form,
                        Path(folder) / name,
                    )
                    for name, part in (("rows", slice(self.n)), ("points", slice(self.n, None)))
                ]
                model = fgp.TableModel(starts=1).fit(tables[0], "y", **options)
                return numpy.asarray(model.predict(tables[1]).mean)

        with found.watched("dates"):
            iso = answer("%Y-%m-%dT%H:%M" if "T" in self.of else "%Y-%m-%d")
            try:
                got = answer(self.of)
            except fgp.DomainError as question:
                if order not in str(question):
                    raise
                found.refused.append("dates: asked for the order")
                got = answer(self.of, dates=order)
            short_of(found, "equal answers", -float(abs(got - iso).max()), -1e-6 * float(abs(y).max()))
        return found


@dataclass(frozen=True)
class ModeCase:
    """Modules in training mode answer twice alike, as in evaluation mode, and are left as they were."""

    seed: int = 0
    n: int = 12
    of_mean: bool = False
    normalised: bool = False
    fitted: bool = False

    def check(self) -> Findings:
        found = Findings()
        torch.manual_seed(self.seed)
        x, points = torch.rand(self.n, 2, dtype=torch.float64), torch.rand(7, 2, dtype=torch.float64)
        y = torch.sin(3 * x[:, 0])
        net = self.net()
        gp = fgp.GP(K.Matern(), net) if self.of_mean else fgp.GP(K.Warped(net, K.Matern()))
        before = [(name, part.training) for name, part in gp.named_modules()]
        buffers = copy.deepcopy(dict(net.named_buffers()))
        with found.watched("modes"):
            if self.fitted:
                gp = fgp.fit(gp, x, y, max_iterations=2).gp
            twice = [gp.condition(x, y).predict(points) for _ in range(2)]
            found.equal("mean again", twice[1].mean, twice[0].mean)
            found.equal("mean read again", twice[0].mean, twice[0].mean)
            found.equal("evidence again", gp.log_marginal_likelihood(x, y), gp.log_marginal_likelihood(x, y))
            found.equal("modes", [(name, part.training) for name, part in gp.named_modules()], before)
            for name, value in buffers.items():
                found.equal(f"buffer {name}", dict(net.named_buffers())[name], value)
            evaluated = copy.deepcopy(gp).eval().condition(x, y).predict(points)
            found.equal("mean in evaluation mode", evaluated.mean, twice[0].mean)
        return found

    def net(self) -> torch.nn.Sequential:
        layers = [torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(4, 1)]
        if self.normalised:
            layers.insert(1, torch.nn.BatchNorm1d(4))
        if self.of_mean:
            layers.append(torch.nn.Flatten(-2))
        return torch.nn.Sequential(*layers).double().train()


@dataclass(frozen=True)
class DrawCase:
    """The variance of posterior functions is the posterior's, .9 to 1.1 of it and four standard errors."""

    kernel: specs.Spec = LAPLACE
    points: Points = ANY_POINTS
    n: int = 12
    n_test: int = 6
    noise: float = 0.01

    def check(self) -> Findings:
        found = Findings()
        x, x_test = self.points.draw(self.n), self.points.draw(self.n_test, 1)
        y = torch.from_numpy(targets(x, self.points.seed, 0, None, 1.0))
        likelihood = fgp.likelihoods.Gaussian(self.noise)
        with found.watched("paths", (fgp.DomainError,)):
            gp = fgp.GP(specs.Maker().kernel(self.kernel), likelihood=likelihood)
            post = gp.condition(torch.from_numpy(x), y)
            test = torch.from_numpy(x_test)
            variance = post.predict(test).variance
            ratio = self.draws(post, test).var(0) / variance
            ratio = ratio[variance > 1e-8 * variance.max()]
            error = 4 * (2 / DRAWS) ** 0.5
            short_of(found, "least variance", float(ratio.min()), 0.9 - error)
            short_of(found, "most variance", -float(ratio.max()), -1.1 - error)
        return found

    def draws(self, post: fgp.Posterior, x: torch.Tensor) -> torch.Tensor:
        return post.paths(DRAWS, seed=self.points.seed)(x)


# -- work --------------------------------------------------------------------------------------------------------------
def function_of(x: numpy.ndarray, of: str) -> numpy.ndarray:
    """One of FUNCTIONS at rows within -2 and 2, (n,), of spread about 1."""
    s = x.sum(axis=1) / x.shape[1] ** 0.5
    match of:
        case "rough":
            return numpy.sin(6 * s) + 0.5 * numpy.sin(15 * s)
        case "step":
            return numpy.sign(s)
        case "line":
            return s
        case "noise":
            return numpy.zeros(len(x))
        case "ratio":
            return numpy.exp(s)
    return numpy.sin(2 * s) + 0.3 * x[:, 0]


def log_normal(y: numpy.ndarray, mean: Any, std: Any) -> numpy.ndarray:
    return -0.5 * ((y - mean) / std) ** 2 - numpy.log(std) - 0.5 * numpy.log(2 * numpy.pi)


__all__ = [
    "DATES", "FUNCTIONS", "PERIODIC", "ROUTES", "DateCase", "DensityCase", "DrawCase", "LimitCase", "ModeCase",
    "PeriodCase", "WeightCase",
]  # fmt: skip
