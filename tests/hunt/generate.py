"""Random cases by seed: `case_of(seed)` is the same case in every run."""

import math
from dataclasses import replace
from typing import Any

import numpy
import torch

from hunt import specs, usefulness
from hunt.approximations import TABLES, ApproximateCase
from hunt.calls import CALLS, WRONG, CallCase
from hunt.cases import SHAPES, Noise, OperatorCase, Points, PosteriorCase
from hunt.chains import OPERATIONS, UPDATES, ChainCase
from hunt.layouts import CONTEXTS, LAYOUTS, WAYS
from hunt.usefulness import PERIODIC, ROUTES

EXTRAS = (
    "log_marginal_likelihood", "leave_one_out", "representer_weights", "covariance", "joint_log_prob", "log_prob",
    "interval", "evidence", "sample", "paths", "text",
)  # fmt: skip


class Random:
    """Draws that are Python values of few digits, so that a case can be read."""

    def __init__(self, seed: int) -> None:
        self.rng = numpy.random.default_rng(seed)

    def of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def normal(self, scale: float = 1.0) -> float:
        return short(scale * self.rng.normal())

    def log_uniform(self, low: float, high: float) -> float:
        return short(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def mostly(self, usual: Any, *others: Any, often: float = 0.7) -> Any:
        return usual if self.chance(often) else self.of(*others)


def short(value: float) -> float:
    return float(f"{value:.4g}")


def points(r: Random, seed: int, extreme: bool) -> Points:
    real, codes = r.integer(1, 3), r.mostly(0, 1, 2)
    scale = r.mostly(1.0, 1e-3, 1e3, 1e-8, 1e8) if not extreme else r.of(1e-150, 1e-100, 1e-30, 1e30, 1e100, 1e150)
    return Points(seed, real, tuple(r.integer(1, 4) for _ in range(codes)), r.mostly("normal", *SHAPES), scale)


class Kernels:
    """Random expressions for points, unit variance at first."""

    def __init__(self, r: Random, p: Points, batch: int = 0, custom: float = 0.03) -> None:
        self.r, self.p, self.batch, self.custom = r, p, batch, custom

    def each(self, draw: Any) -> Any:
        """A value, or one for each member of a batch."""
        if self.batch and self.r.chance(0.3):
            return specs.Each(tuple(draw() for _ in range(self.batch)))
        return draw()

    def expression(self, depth: int) -> specs.Spec:
        r = self.r
        if depth <= 0 or r.chance(0.35):
            return self.leaf()
        match r.of("sum", "sum", "product", "product", "scaled"):
            case "sum":
                return specs.Sum(self.expression(depth - 1), self.expression(depth - 1))
            case "product":
                return specs.Product(self.expression(depth - 1), self.expression(depth - 1))
        return specs.Scaled(self.each(lambda: r.log_uniform(0.2, 5.0)), self.expression(depth - 1))

    def dims(self) -> tuple[int, ...]:
        chosen = self.r.rng.permutation(self.p.real)[: self.r.integer(1, self.p.real)]
        return tuple(int(i) for i in chosen)

    def per_column(self, k: int, draw: Any) -> Any:
        if self.r.chance(0.5):
            return self.each(draw)
        return self.each(lambda: tuple(draw() for _ in range(k)))

    def leaf(self) -> specs.Spec:
        r, scale = self.r, self.p.scale
        dims = self.dims()
        k = len(dims)
        whole = dims if self.p.levels or r.chance(0.5) or k < self.p.real else None

        def length() -> float:
            return short(scale * r.log_uniform(0.2, 5.0)) if r.chance(0.9) else short(scale * r.log_uniform(1e-3, 1e3))

        def slope() -> float:
            return short(r.log_uniform(0.2, 5.0) / scale**2)

        if self.p.levels and r.chance(0.3):
            return self.of_codes()
        if r.chance(self.custom) and 1e-30 < scale < 1e30:
            columns = self.p.real if whole is None else k
            return specs.Custom(r.of(*specs.FUNCTIONS), columns, short(scale * r.log_uniform(0.5, 4.0)), whole)
        kinds = ["se", "matern", "matern", "matern", "rq", "periodic", "cosine", "mixture", "constant"]
        if 1e-120 < scale < 1e120:
            kinds += ["linear", "polynomial"]
        match r.of(*kinds):
            case "se":
                return specs.SquaredExponential(self.per_column(k, length), whole)
            case "matern":
                return specs.Matern(r.of(0.5, 1.5, 2.5), self.per_column(k, length), whole)
            case "rq":
                mixture = self.each(lambda: r.log_uniform(0.1, 10.0))
                return specs.RationalQuadratic(mixture, self.per_column(k, length), whole)
            case "periodic":
                return specs.Periodic(
                    self.per_column(k, lambda: short(scale * r.log_uniform(0.5, 8.0))),
                    self.per_column(k, lambda: r.log_uniform(0.3, 3.0)), whole,
                )  # fmt: skip
            case "cosine":
                return specs.Cosine(self.per_column(k, lambda: short(r.normal(0.5) / scale)), whole)
            case "mixture":
                q = r.integer(1, 3)
                return specs.SpectralMixture(
                    tuple(r.log_uniform(0.1, 2.0) for _ in range(q)),
                    tuple(tuple(short(r.normal(0.3) / scale) for _ in range(k)) for _ in range(q)),
                    tuple(tuple(short(r.log_uniform(0.02, 0.5) / scale) for _ in range(k)) for _ in range(q)), whole,
                )  # fmt: skip
            case "constant":
                return specs.Constant(self.each(lambda: r.log_uniform(0.1, 5.0)))
            case "linear":
                return specs.Linear(self.per_column(k, slope), whole)
        degree = r.mostly(2, 1, 3, 5)
        return specs.Polynomial(degree, self.each(lambda: r.log_uniform(0.2, 3.0)), self.per_column(k, slope), whole)

    def of_codes(self) -> specs.Spec:
        r, p = self.r, self.p
        column = r.integer(0, len(p.levels) - 1)
        place = p.real + column
        if r.chance(0.5):
            rank = r.integer(1, 2)
            count = p.levels[column]
            return specs.Coregionalization(
                count, tuple(tuple(r.normal() for _ in range(rank)) for _ in range(count)),
                tuple(r.log_uniform(0.1, 2.0) for _ in range(count)), (place,),
            )  # fmt: skip
        if len(p.levels) > 1 and r.chance(0.5):
            dims = tuple(range(p.real, p.real + len(p.levels)))
            return specs.Categorical(tuple(r.log_uniform(0.2, 4.0) for _ in dims), dims)
        return specs.Categorical(r.log_uniform(0.2, 4.0), (place,))

    def scaled(self, variance: float, depth: int) -> specs.Spec:
        inner = self.expression(depth)
        if self.p.levels == () and self.r.chance(0.05) and self.p.scale == 1.0:
            inner = specs.Sum(inner, specs.Warped(specs.Matern(2.5, 0.8), self.dims()))
        return specs.Scaled(self.each(lambda: short(variance * self.r.log_uniform(0.3, 3.0))), inner)


def mean_of(r: Random, p: Points, outputs: int | None, y_scale: float) -> specs.Mean:
    match r.mostly("zero", "constant", "linear", "bowl", often=0.3):
        case "constant":
            values = tuple(short(y_scale * r.normal()) for _ in range(outputs or 1))
            return specs.Mean("constant", values if outputs else values[0])
        case "linear":
            columns = p.real + len(p.levels)
            slope = tuple(short(y_scale * r.normal() / (p.scale if i < p.real else 1.0)) for i in range(columns))
            return specs.Mean("linear", short(y_scale * r.normal()), slope)
        case "bowl" if p.scale == 1.0 and y_scale == 1.0:
            return specs.Mean("bowl")
    return specs.Mean()


def noise_of(r: Random, y_scale: float, rows: bool) -> Noise:
    square = y_scale**2
    variance: float | None = short(square * r.log_uniform(1e-4, 1.0))
    if not rows or r.chance(0.75):
        return Noise(variance if r.chance(0.95) else None)
    known = short(square * r.log_uniform(1e-2, 1.0)) if r.chance(0.7) else None
    weights = known is None or r.chance(0.4)
    alone = known is not None and r.chance(0.3)  # weights would divide nothing
    return Noise(None if alone else variance, known, weights and not alone)


def y_scale_of(r: Random, extreme: bool) -> float:
    if extreme and r.chance(0.6):
        return r.of(1e-150, 1e-100, 1e-30, 1e30, 1e100, 1e150)
    return r.mostly(1.0, 1e-4, 1e4, often=0.8)


def posterior_case(seed: int) -> PosteriorCase:
    r = Random(seed)
    extreme = r.chance(0.06)
    p, y_scale = points(r, seed, extreme), y_scale_of(r, extreme)
    outputs = r.mostly(None, 1, 2, 3, often=0.8)
    batch = r.mostly((), (1,), (2,), (3,), (2, 2), (0,), often=0.85)
    count = math.prod(batch)
    kernels = Kernels(r, p, count if len(batch) == 1 and count > 1 else 0)
    n = r.mostly(r.integer(2, 12), 0, 1, 2, r.integer(13, 40), often=0.6)
    usual = "float64" if extreme or p.scale not in (1.0, 1e-3) or y_scale != 1.0 else None
    options: list[tuple[str, Any]] = []
    if r.chance(0.05):
        options.append(("deterministic", True))
    if r.chance(0.1):
        options.append(("solver", "cholesky"))
    if r.chance(0.03):
        options.append(("dtype", torch.float64))
    if r.chance(0.03):
        options.append(("jitter", 0.0))
    return PosteriorCase(
        kernels.scaled(y_scale**2, r.integer(0, 3)), p, n, r.mostly(r.integer(1, 5), 0, 1, 20),
        mean_of(r, p, outputs, y_scale), noise_of(r, y_scale, not batch), outputs, batch, y_scale,
        usual or r.mostly("float64", "float32", "float16", "bfloat16", "int64"),
        usual or r.mostly("float64", "float32", "float16", "bfloat16", "int64", "bool"),
        usual or r.mostly("float64", "float32", "int64"),
        r.mostly("tensor", *LAYOUTS), r.mostly("tensor", *LAYOUTS), r.mostly("tensor", *LAYOUTS),
        r.mostly("plain", *CONTEXTS), r.mostly("plain", *CONTEXTS), r.mostly("none", *WAYS, often=0.85), tuple(options),
        tuple(name for name in EXTRAS if r.chance(0.3)),
    )  # fmt: skip


def operator_case(seed: int) -> OperatorCase:
    r = Random(seed)
    extreme = r.chance(0.06)
    p = points(r, seed, extreme)
    batch = r.mostly((), (1,), (2,), (3,), (2, 2), (0,), often=0.85)
    count = math.prod(batch)
    kernels = Kernels(r, p, count if len(batch) == 1 and count > 1 else 0)
    m = r.of(None, -1, r.integer(0, 12), r.integer(1, 30))
    sides = ("all", "even", "head", "none", "tail", "picked")
    n = r.mostly(r.integer(2, 12), 0, 1, 2, r.integer(13, 40), often=0.6)
    case = OperatorCase(
        kernels.scaled(1.0, r.integer(0, 3)), p, n, m, r.mostly(2, 0, 1, 5), r.mostly(None, 0.0, 0.3),
        batch, r.mostly("float64", "float32", "float16", "int64") if p.scale in (1.0, 1e-3) else "float64",
        r.mostly("tensor", *LAYOUTS), r.mostly("tensor", *LAYOUTS), r.mostly("tensor", *LAYOUTS),
        r.mostly("plain", *CONTEXTS), r.mostly(None, (r.of(*sides), r.of(*sides)), often=0.75),
        (("deterministic", True),) if r.chance(0.05) else (),
    )  # fmt: skip
    if not batch and r.chance(0.1):
        case = replace(case, noise=None, part=None, context="plain", compiled=True)
    return case


def chain_case(seed: int) -> ChainCase:
    r = Random(seed)
    extreme = r.chance(0.04)
    p, y_scale = points(r, seed, extreme), y_scale_of(r, extreme)
    outputs = r.mostly(None, 1, 2, often=0.8)
    kernels = Kernels(r, p, custom=0.01)
    usual = p.scale in (1.0, 1e3, 1e-3) and y_scale == 1.0
    dtype = r.mostly("float64", "float32") if usual else "float64"
    kinds = r.mostly(OPERATIONS, UPDATES, ("append one", "drop one", "slide one"), ("slide one",), ("append",))
    operations = r.mostly(60, 150, 10)
    return ChainCase(
        kernels.scaled(y_scale**2, r.integer(0, 2)), p, r.mostly(r.integer(0, 8), 1, 20), operations, r.of(5, 10, 20),
        r.mostly(20, 8, 40), mean_of(r, p, outputs, y_scale), noise_of(r, y_scale, True), outputs, y_scale, dtype,
        r.mostly("tensor", *LAYOUTS), r.mostly("plain", *CONTEXTS), kinds, deterministic=r.chance(0.05),
    )  # fmt: skip


def call_case(seed: int) -> CallCase:
    """Every call with every argument and every wrong value, one after the other in random order."""
    every = [(call, name, value) for call, (_, names) in CALLS.items() for name in names for value in WRONG]
    order = numpy.random.default_rng(0).permutation(len(every))
    return CallCase(*every[int(order[seed % len(every)])])


def approximate_case(seed: int) -> ApproximateCase:
    r = Random(seed)
    n, d = r.mostly(r.integer(2, 60), 1, 2, r.integer(60, 300), often=0.5), r.integer(1, 4)
    kind = r.of("full_scale", "sparse")
    low, high = r.mostly((1.0, 1.0), (1e-6, 1e6), (1e-6, 1e-6), (1e6, 1e6), often=0.4)
    inducing = r.mostly("auto", r.integer(1, 12), 0 if kind == "full_scale" else 1, 320)
    return ApproximateCase(
        seed, kind, r.of(*TABLES), n, d, low, high, r.mostly(0.0, 1e3 * high, often=0.85),
        r.mostly(0.0, 0.3, 0.9, often=0.6), r.mostly(0, 1, d, often=0.7), r.mostly(1.0, 1e-6, 1e6, often=0.5),
        r.mostly(0.1, 0.0, 1e-4, often=0.6), inducing, r.mostly("auto", r.integer(1, 20), 0, 320),
        r.mostly(0, r.integer(4, 30)), r.of(0.5, 1.5, 2.5),
    )  # fmt: skip


def useful_case(seed: int) -> Any:
    r = Random(seed)
    match seed % 3:
        case 0:
            n, scattered = r.integer(40, 150), r.chance(0.5)
            period = r.log_uniform(max(0.5, (40.0 if scattered else 30.0) / n), 6.0)
            return usefulness.PeriodCase(seed, r.of(*PERIODIC), n, period, r.of(0.05, 0.1, 0.2), scattered)
        case 1:
            of, d = r.of(*usefulness.FUNCTIONS), r.integer(1, 3)
            d = 1 if of == "rough" else d  # of more columns so few rows look like noise
            return usefulness.DensityCase(
                seed, of, r.integer(20, 100), d, r.of(0.05, 0.1, 0.5),
                r.mostly(1.0, 1e-6, 1e6), r.mostly(1.0, 1e-6, 1e6),
            )  # fmt: skip
    route = r.of(*ROUTES)
    n = r.of(300, 1000, 3000) if route in ("exact", "estimator", "table") else r.of(300, 3000, 20_000)
    return usefulness.LimitCase(seed, route, n, r.integer(1, 3), r.of(0.5, 1.0, 2.0, 4.0))


KINDS = {
    "posterior": posterior_case,
    "operator": operator_case,
    "chain": chain_case,
    "call": call_case,
    "approximate": approximate_case,
    "useful": useful_case,
}


def case_of(kind: str, seed: int) -> Any:
    return KINDS[kind](seed)
