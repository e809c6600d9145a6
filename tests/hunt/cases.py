"""Cases: small values whose repr runs. `case.check()` asks the library and the reference, and gives the findings."""

from dataclasses import dataclass
from typing import Any

import numpy
import torch

import flashgp as fgp
from hunt import specs
from hunt.differences import Findings
from hunt.layouts import carried, cast, context, laid_out
from hunt.reference import Data, NotDefiniteError, Reference, covariance, log_normal, positive
from hunt.rounding import Rounded, stacked

SHAPES = ("normal", "uniform", "grid", "duplicates", "clustered", "constant", "offset", "zeros", "integers", "wide")


@dataclass(frozen=True)
class Points:
    """Inputs by seed: `real` columns of some shape and scale, then one column of codes for each number of levels."""

    seed: int = 0
    real: int = 1
    levels: tuple[int, ...] = ()
    shape: str = "normal"
    scale: float = 1.0

    def draw(self, n: int, stream: int = 0, batch: tuple[int, ...] = ()) -> numpy.ndarray:
        """(*batch, n, real + len(levels)), float64; other streams are other points of the same place."""
        place, rng = numpy.random.default_rng(self.seed), numpy.random.default_rng([self.seed, stream])
        shape = (*batch, n, self.real)
        match self.shape:
            case "uniform":
                x = rng.random(shape)
            case "grid":
                x = numpy.broadcast_to(numpy.arange(n)[:, None] / 4.0 + 0.125 * stream, shape).copy()
            case "duplicates":
                x = place.normal(size=(max(1, n // 2), self.real))[rng.integers(max(1, n // 2), size=shape[:-1])]
            case "clustered":
                x = place.normal(size=(3, self.real))[rng.integers(3, size=shape[:-1])] + 1e-4 * rng.normal(size=shape)
            case "constant":
                x = numpy.broadcast_to(place.normal(size=self.real), shape).copy()
            case "offset":
                x = rng.normal(size=shape) + 1e4
            case "zeros":
                x = rng.normal(size=shape) * rng.integers(2, size=shape)
            case "integers":
                x = rng.integers(-3, 4, size=shape).astype(float)
            case "wide":
                x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, size=shape)
            case _:
                x = rng.normal(size=shape)
        codes = [rng.integers(count, size=(*batch, n, 1)).astype(float) for count in self.levels]
        return numpy.concatenate([x * self.scale, *codes], axis=-1)

    def cast(self, n: int, stream: int, batch: tuple[int, ...], dtype: str) -> numpy.ndarray:
        """As `draw`, as a dtype can hold them."""
        x = self.draw(n, stream, batch)
        return numpy.concatenate([cast(x[..., : self.real], dtype), x[..., self.real :]], axis=-1)


@dataclass(frozen=True)
class Noise:
    """variance (None for none beside rows), and by seed variances and weights of single rows."""

    variance: float | None = 0.1
    rows: float | None = None  # scale of the row variances
    weights: bool = False

    def draw(self, n: int, seed: int) -> tuple[numpy.ndarray | None, numpy.ndarray | None]:
        rng = numpy.random.default_rng([seed, 77])
        variances = self.rows * rng.random(n) if self.rows is not None else None
        weights = rng.integers(1, 5, size=n) / 2.0
        return variances, weights if self.weights else None

    def of_rows(self, n: int, variances: Any, weights: Any, unit: float | None = None) -> Rounded:
        """Weights are relative precisions, (M-251): to their geometric mean, or to that of the rows conditioned on."""
        total = self.of_new() * numpy.ones(n)
        if weights is not None:
            total = total / (weights / (typical(weights) if unit is None else unit))
        return total if variances is None else total + variances

    def of_new(self) -> Rounded:
        return Rounded(0.0) if self.variance is None else positive(self.variance)


def typical(weights: numpy.ndarray | None) -> float:
    """The geometric mean of weights; 1 of none."""
    return 1.0 if weights is None or not len(weights) else float(numpy.exp(numpy.log(weights).mean()))


ANY_POINTS, ANY_NOISE = Points(), Noise()


def targets(x: numpy.ndarray, seed: int, stream: int, outputs: int | None, scale: float) -> numpy.ndarray:
    rng = numpy.random.default_rng([seed, 1000 + stream])
    shape = x.shape[:-1] if outputs is None else (*x.shape[:-1], outputs)
    return scale * rng.normal(size=shape)


def columns(y: numpy.ndarray, outputs: int | None) -> numpy.ndarray:
    return y[:, None] if outputs is None else y


def without_axis(values: Rounded, outputs: int | None) -> Rounded:
    return values[..., 0] if outputs is None else values


@dataclass(frozen=True)
class PosteriorCase:
    """Condition, and ask for everything; against the dense formulas."""

    kernel: specs.Spec = specs.ANY_KERNEL
    points: Points = ANY_POINTS
    n: int = 5
    n_test: int = 3
    mean: specs.Mean = specs.ZERO
    noise: Noise = ANY_NOISE
    outputs: int | None = None
    batch: tuple[int, ...] = ()
    y_scale: float = 1.0
    x_dtype: str = "float64"
    y_dtype: str = "float64"
    test_dtype: str = "float64"
    x_layout: str = "tensor"
    y_layout: str = "tensor"
    test_layout: str = "tensor"
    context: str = "plain"
    test_context: str = "plain"
    way: str = "none"
    options: tuple[tuple[str, Any], ...] = ()
    extras: tuple[str, ...] = ()

    def check(self) -> Findings:
        found = Findings()
        x = self.points.cast(self.n, 0, self.batch, self.x_dtype)
        y = cast(targets(x, self.points.seed, 0, self.outputs, self.y_scale), self.y_dtype)
        x_test = self.points.cast(self.n_test, 1, self.batch, self.test_dtype)
        variances, weights = self.noise.draw(self.n, self.points.seed)
        references = self._references(x, y, variances, weights)
        refusals: tuple[type[Exception], ...] = ()
        if any(isinstance(r, NotDefiniteError) for r in references):
            found.skipped.append("ill-conditioned")
            refusals = (fgp.NotPositiveDefiniteError, fgp.DomainError)
        answers: dict[str, Any] = {}
        given = [laid_out(x, self.x_dtype, self.x_layout), laid_out(y, self.y_dtype, self.y_layout)]
        test = laid_out(x_test, self.test_dtype, self.test_layout)
        with found.watched("condition", refusals):
            gp = fgp.GP(
                specs.Maker().kernel(self.kernel),
                self.mean.build(self.outputs),
                fgp.likelihoods.Gaussian(self.noise.variance, variances, weights),
                self.outputs,
            )
            with context(self.context):
                post = gp.condition(*given, **dict(self.options))
            answers["post"] = post
        if "post" not in answers:
            return found
        with found.watched(self.way, refusals):
            post = carried(answers["post"], self.way)
        self._unchanged(found, given, x, y)
        with found.watched("predict", refusals), context(self.test_context):
            p = post.predict(test)
            answers |= {"mean": p.mean, "variance": p.variance, "observed": p.observation_variance}
        for name, ask in (
            ("log_marginal_likelihood", lambda: post.log_marginal_likelihood()),
            ("leave_one_out", lambda: post.leave_one_out()),
            ("representer_weights", lambda: post.representer_weights if not post.replicates else None),
            ("covariance", lambda: post.predict(test).covariance()),
            ("joint_log_prob", lambda: post.predict(test).joint_log_prob(self._new_targets(x_test))),
            ("log_prob", lambda: post.predict(test).log_prob(self._new_targets(x_test))),
            ("interval", lambda: post.predict(test).interval(0.9)),
            ("evidence", lambda: gp.log_marginal_likelihood(*given)),
            ("sample", lambda: post.predict(test).sample(2, seed=1)),
            ("paths", lambda: post.paths(2, features=8, seed=1)(test)),
            ("text", lambda: (repr(post), repr(post.predict(test)), post._repr_html_(), repr(gp))),
        ):
            if name in self.extras:
                with found.watched(name, refusals), context(self.test_context):
                    answers[name] = ask()
        if not refusals:
            self._compare(found, references, answers, x_test)
        self._unchanged(found, given, x, y)
        return found

    # -- work ---------------------------------------------------------------------------------------------------------
    def _new_targets(self, x_test: numpy.ndarray) -> torch.Tensor:
        return torch.from_numpy(targets(x_test, self.points.seed, 1, self.outputs, self.y_scale))

    def _references(self, x: Any, y: Any, variances: Any, weights: Any) -> list[Any]:
        out: list[Any] = []
        for index, place in enumerate(numpy.ndindex(*self.batch)):
            data = Data(
                specs.member(self.kernel, index), self.mean, x[place], columns(y[place], self.outputs),
                self.noise.of_rows(self.n, variances, weights), self.noise.of_new(),
            )  # fmt: skip
            try:
                out.append(Reference(data))
            except NotDefiniteError as error:
                out.append(error)
        return out

    def _unchanged(self, found: Findings, given: list[Any], x: numpy.ndarray, y: numpy.ndarray) -> None:
        """Arguments are as they were."""
        for name, value, before in zip("xy", given, (x, y), strict=True):
            now = value.detach().double().numpy() if isinstance(value, torch.Tensor) else numpy.asarray(value, float)
            if not numpy.array_equal(now, before):
                found.differences[f"argument {name}"] = "was changed"

    def _compare(self, found: Findings, references: list[Any], answers: dict[str, Any], x_test: numpy.ndarray) -> None:
        dtype = result_dtype(self.test_dtype)
        row_dtype = result_dtype(self.x_dtype)
        count = len(references)
        z = x_test.reshape(count, *x_test.shape[-2:])
        new = self._new_targets(x_test).numpy()
        new = new.reshape(count, *new.shape[len(self.batch) :])
        tolerance = dict(self.options).get("tolerance", 1e-3)
        rough = dict(self.options).get("dtype") is torch.float32 or dict(self.options).get("solver") == "cg"
        shared = self.outputs in (None, 1) or self.noise.variance is None  # each output with noise of its own has one
        wanted: dict[str, list[Rounded]] = {}
        for r, points, fresh in zip(references, z, new, strict=True):
            mean = r.predict_mean(points)
            joint = r.predict_covariance(points)
            variance = Rounded(numpy.maximum(joint.value.diagonal(), 0.0), joint.error.diagonal())
            noisy = variance + r.data.new_noise
            p = r.p
            out = {
                "mean": without_axis(mean, self.outputs),
                "variance": without_axis(stacked([variance] * p, -1), self.outputs),
                "observed": without_axis(stacked([noisy] * p, -1), self.outputs),
                "covariance": joint if shared else stacked([joint] * p),
            }
            if "log_marginal_likelihood" in answers or "evidence" in answers:
                out["log_marginal_likelihood"] = out["evidence"] = r.log_marginal_likelihood()
            if "representer_weights" in answers and answers["representer_weights"] is not None:
                out["representer_weights"] = r.weights()
            if "leave_one_out" in answers:
                m, v, density = r.leave_one_out()
                out["loo mean"] = without_axis(m, self.outputs)
                out["loo variance"] = without_axis(stacked([v] * p, -1), self.outputs)
                out["loo log_prob"] = without_axis(density, self.outputs)
            if self.noise.variance is not None:
                spread = stacked([noisy] * p, -1)
                out["log_prob"] = without_axis(
                    log_normal(Rounded(columns(fresh, self.outputs)) - mean, spread), self.outputs
                )
                half = spread.sqrt() * Rounded(1.6448536269514722, 8.0)
                out["interval low"] = without_axis(mean - half, self.outputs)
                out["interval high"] = without_axis(mean + half, self.outputs)
                try:
                    out["joint_log_prob"] = r.joint_log_prob(points, columns(fresh, self.outputs))
                except NotDefiniteError:
                    answers.pop("joint_log_prob", None)
            for name, value in out.items():
                wanted.setdefault(name, []).append(value)
        if "leave_one_out" in answers:
            loo = answers["leave_one_out"]
            answers |= {"loo mean": loo.mean, "loo variance": loo.variance, "loo log_prob": loo.log_prob}
        if "interval" in answers:
            answers["interval low"], answers["interval high"] = answers["interval"]
        for name, values in wanted.items():
            if name not in answers or answers[name] is None:
                continue
            together = stacked(values)
            shape = (*self.batch, *values[0].shape)
            together = Rounded(together.value.reshape(shape), together.error.reshape(shape))
            kind = dtype
            if name in ("log_marginal_likelihood", "evidence", "representer_weights", "joint_log_prob"):
                kind = torch.float64
            if name.startswith("loo"):
                kind = row_dtype
            room: Any = 0.0
            if rough:
                if name not in ("mean", "variance"):
                    continue
                room = self._rough_room(name, together, tolerance)
            self._with_dtype(found, name, answers[name], together, kind, room)

    def _rough_room(self, name: str, wanted: Rounded, tolerance: float) -> Any:
        """What an iterative solve may be off by: of the mean `tolerance` standard deviations of an observation."""
        noise = self.noise.variance or 0.0
        return tolerance * numpy.sqrt(noise) if name == "mean" else 2e-3 * (abs(wanted.value) + noise)

    def _with_dtype(self, found: Findings, name: str, got: Any, wanted: Rounded, dtype: torch.dtype, room: Any) -> None:
        if self.test_dtype not in ("float64", "int64") and name in FROM_ROUNDED:
            # They come from a mean and a variance that were rounded to float32.
            found.skipped.append(f"{name} in float32")
            return
        found.compare(name, got, wanted, dtype=dtype, room=room)


FROM_ROUNDED = ("log_prob", "joint_log_prob", "interval low", "interval high")


def result_dtype(dtype: str) -> torch.dtype:
    return torch.float32 if dtype in ("float32", "float16", "bfloat16") else torch.float64


@dataclass(frozen=True)
class OperatorCase:
    """Products, blocks, diagonals, parts of K and of sums with noise."""

    kernel: specs.Spec = specs.ANY_KERNEL
    points: Points = ANY_POINTS
    n: int = 5
    m: int | None = None  # None: the rows themselves; -1: the same tensor twice
    t: int = 2
    noise: float | None = None
    batch: tuple[int, ...] = ()
    x_dtype: str = "float64"
    x_layout: str = "tensor"
    z_layout: str = "tensor"
    v_layout: str = "tensor"
    context: str = "plain"
    part: tuple[str, str] | None = None
    options: tuple[tuple[str, Any], ...] = ()
    compiled: bool = False  # also a product inside torch.compile, without noise and of all rows

    def check(self) -> Findings:
        found = Findings()
        x = self.points.cast(self.n, 0, self.batch, self.x_dtype)
        other = self.m is not None and self.m >= 0
        z = self.points.cast(self.m, 1, self.batch, self.x_dtype) if other else x  # type: ignore[arg-type]
        dtype = result_dtype(self.x_dtype)
        name = str(dtype).removeprefix("torch.")
        rng = numpy.random.default_rng([self.points.seed, 5])
        V = cast(rng.normal(size=(z.shape[-2], self.t)), name)
        U = cast(rng.normal(size=(self.t, x.shape[-2])), name)
        if self.part is not None:
            V, U = V[_index(self.part[1], len(V))], U[:, _index(self.part[0], U.shape[1])]
        answers: dict[str, Any] = {}
        with found.watched("operator"), context(self.context):
            first = laid_out(x, self.x_dtype, self.x_layout)
            second = first if self.m == -1 else laid_out(z, self.x_dtype, self.z_layout) if other else None
            kernel = specs.Maker().kernel(self.kernel)
            K: Any = kernel.operator(first, second, **dict(self.options))
            if self.noise is not None and not other:
                K = K.with_noise(self.noise)
            if self.part is not None:
                K = K[_index(self.part[0], x.shape[-2]), _index(self.part[1], z.shape[-2])]
            right, left = laid_out(V, name, self.v_layout), laid_out(U, name, "tensor")
            if not isinstance(right, torch.Tensor):
                right = laid_out(V, name, "transposed")
            answers = {
                "dense": K.to_dense(), "product": K @ right, "left product": left @ K,
                "transposed": K.T.to_dense(), "vector": K @ right[:, 0] if self.t else None,
                "product with bound": K.product(right).value,
            }  # fmt: skip
            if self.compiled and isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor | None):
                torch.compiler.reset()
                multiply = torch.compile(
                    lambda x, z, v: torch.matmul(kernel.operator(x, z), v), fullgraph=True, backend="aot_eager"
                )
                answers["compiled product"] = multiply(first, second, right)
            if self.m is None and (self.part is None or self.part[0] == self.part[1] != "picked"):
                answers["diagonal"] = K.diagonal()
        wanted: dict[str, list[Rounded]] = {}
        for index, place in enumerate(numpy.ndindex(*self.batch)):
            C = covariance(specs.member(self.kernel, index), x[place], z[place])
            if self.noise is not None and not other:
                n = len(C.value)
                C = C + Rounded(numpy.eye(n) * self.noise)
            if self.part is not None:
                C = C[_index(self.part[0], x.shape[-2])][:, _index(self.part[1], z.shape[-2])]
            k = min(C.shape)
            out = {"dense": C, "product": product(C, V), "left product": product(C.T, U.T).T}
            out |= {"transposed": C.T, "diagonal": C[range(k), range(k)], "product with bound": out["product"]}
            out["compiled product"] = out["product"]
            if self.t:
                out["vector"] = out["product"][:, 0]
            for key, value in out.items():
                wanted.setdefault(key, []).append(value)
        for key, values in wanted.items():
            if key in answers:
                both = stacked(values)
                shape = (*self.batch, *values[0].shape)
                error = both.error.reshape(shape)
                if dtype == torch.float32:
                    error = error * (torch.finfo(dtype).eps / torch.finfo(torch.float64).eps)
                found.compare(key, answers[key], Rounded(both.value.reshape(shape), error), dtype=dtype)
        return found


def _index(text: str, n: int) -> Any:
    """A part of n rows, written as Python: a slice or a list of numbers."""
    match text:
        case "even":
            return slice(None, None, 2)
        case "head":
            return slice(0, n // 2)
        case "none":
            return slice(0, 0)
        case "tail":
            return slice(-max(1, n // 3), None)
        case "picked":
            return [n - 1, 0, 0] if n else []
    return slice(None)


def product(C: Rounded, V: numpy.ndarray) -> Rounded:
    m = len(V)
    return Rounded(C.value @ V, C.error @ abs(V) + (m + 2) * abs(C.value) @ abs(V))


__all__ = ["ANY_NOISE", "ANY_POINTS", "SHAPES", "Noise", "OperatorCase", "Points", "PosteriorCase"]
