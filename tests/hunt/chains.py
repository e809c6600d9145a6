"""Chains of online operations: append, drop, slide, replace, fantasize, copies and files, against conditioning anew."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch

import flashgp as fgp
from hunt import specs
from hunt.cases import ANY_NOISE, ANY_POINTS, Noise, Points, result_dtype, targets, typical, without_axis
from hunt.differences import Findings
from hunt.layouts import carried, cast, context, laid_out
from hunt.reference import Data, NotDefiniteError, Reference
from hunt.rounding import Rounded, stacked

UPDATES = ("append one", "append", "drop", "slide", "replace", "drop one", "slide one")
OPERATIONS = (*UPDATES, "fantasize", "carry")
RARE = 0.15  # share of fantasies and copies among updates, which take less time


@dataclass
class Table:
    """The rows that the posterior should have, in order; unit, of their weights: that of the rows conditioned on."""

    x: numpy.ndarray
    y: numpy.ndarray
    variances: numpy.ndarray | None
    weights: numpy.ndarray | None
    unit: float = 1.0

    def without(self, gone: list[int]) -> "Table":
        def kept(rows: Any) -> Any:
            return None if rows is None else numpy.delete(rows, gone, axis=0)

        return Table(kept(self.x), kept(self.y), kept(self.variances), kept(self.weights), self.unit)

    def followed_by(self, new: "Table") -> "Table":
        def both(a: Any, b: Any) -> Any:
            return None if a is None else numpy.concatenate([a, b])

        x, y = both(self.x, new.x), both(self.y, new.y)
        return Table(x, y, both(self.variances, new.variances), both(self.weights, new.weights), self.unit)


@dataclass(frozen=True)
class ChainCase:
    """A posterior of n rows that changes `operations` times, compared every `every` operations and at the end."""

    kernel: specs.Spec = specs.ANY_KERNEL
    points: Points = ANY_POINTS
    n: int = 5
    operations: int = 20
    every: int = 10
    most: int = 30
    mean: specs.Mean = specs.ZERO
    noise: Noise = ANY_NOISE
    outputs: int | None = None
    y_scale: float = 1.0
    dtype: str = "float64"
    layout: str = "tensor"
    context: str = "plain"
    kinds: tuple[str, ...] = OPERATIONS
    deterministic: bool = False

    def check(self) -> Findings:
        found = Findings()
        rng = numpy.random.default_rng([self.points.seed, 9])
        table = self._rows(self.n, 0)
        table.unit = typical(table.weights)
        post: Any = None
        refusals = () if self._tells(table) else (fgp.NotPositiveDefiniteError,)
        with found.watched("condition", refusals), context(self.context):
            likelihood = fgp.likelihoods.Gaussian(self.noise.variance, table.variances, table.weights)
            gp = fgp.GP(specs.Maker().kernel(self.kernel), self.mean.build(self.outputs), likelihood, self.outputs)
            post = gp.condition(
                laid_out(table.x, self.dtype, self.layout), laid_out(table.y, self.dtype, "tensor"),
                deterministic=self.deterministic,
            )  # fmt: skip
        if post is None:
            return found
        steps: list[str] = []
        for step in range(1, self.operations + 1):
            kinds = self.kinds if rng.random() < RARE else [k for k in self.kinds if k in UPDATES] or self.kinds
            kind = kinds[int(rng.integers(len(kinds)))]
            before, after = post, None
            found.operations += 1
            act, wanted = self._planned(kind, post, table, rng, step, found)
            with found.watched(f"{kind}, operation {step}"), context(self.context):
                try:
                    after, table = act(), wanted
                except fgp.NotPositiveDefiniteError:
                    if kind in ("carry", "fantasize") or self._tells(wanted):
                        raise
                    found.refused.append(kind)
                    after = post  # as it was
            if after is None or found.differences:
                return found
            post = after
            steps.append(kind)
            if step % self.every == 0 or step == self.operations:
                self._compare(found, post, table, f"after {step}, {kind}")
                if kind != "carry":
                    found.equal("count before", before.count, len(before.x))
            if found.differences:
                return found
        return found

    # -- work ---------------------------------------------------------------------------------------------------------
    def _rows(self, k: int, stream: int) -> Table:
        x = self.points.cast(k, stream, (), self.dtype)
        y = cast(targets(x, self.points.seed, stream, self.outputs, self.y_scale), self.dtype)
        variances, weights = self.noise.draw(k, self.points.seed + stream)
        return Table(x, y, variances, weights)

    def _given(self, new: Table) -> tuple[list[Any], dict[str, Any]]:
        x, y = laid_out(new.x, self.dtype, self.layout), laid_out(new.y, self.dtype, self.layout)
        rows = {"row_variance": new.variances, "row_weight": new.weights}
        return [x, y], {name: value for name, value in rows.items() if value is not None}

    def _planned(
        self, kind: str, post: Any, table: Table, rng: numpy.random.Generator, step: int, found: Findings
    ) -> tuple[Callable[[], Any], Table]:
        """What to do, and the table that there should be then."""
        n = len(table.x)
        few = int(rng.integers(1, 4))
        if kind.startswith("append") and n >= self.most:
            kind = "slide" + kind.removeprefix("append")
        name, k = kind.split()[0], 1 if kind.endswith("one") else few
        if name == "carry":
            way = ("deepcopy", "pickle", "file")[int(rng.integers(3))]
            return lambda: carried(post, way), table
        if name == "fantasize":
            return lambda: self._fantasize(post, table, step, found) or post, table
        if name != "append":
            k = min(n, k)
        new = self._rows(k, step)
        given, rows = self._given(new)
        gone = rng.permutation(n)[:k].tolist()
        match name:
            case "append":
                return lambda: post.append(*given, **rows), table.followed_by(new)
            case "drop":
                return lambda: post.drop(gone), table.without(gone)
            case "slide":
                return lambda: post.slide(*given, **rows), table.without(list(range(k))).followed_by(new)
        return lambda: post.replace(gone, *given, **rows), table.without(gone).followed_by(new)

    def _tells(self, table: Table) -> bool:
        """Whether float64 can tell what a posterior of these rows says."""
        try:
            self._reference(table, True)
        except NotDefiniteError:
            return False
        return True

    def _reference(self, table: Table, updated: bool, jitter: float = 0.0) -> Reference:
        y = table.y[:, None] if self.outputs is None else table.y
        noise = self.noise.of_rows(len(table.x), table.variances, table.weights, table.unit) + jitter
        return Reference(Data(self.kernel, self.mean, table.x, y, noise, self.noise.of_new(), updated))

    def _fantasize(self, post: Any, table: Table, step: int, found: Findings) -> None:
        """Two members with two rows each against conditioning on table and rows."""
        if self.noise.variance is None:
            return
        x = self.points.cast(2, step, (2,), self.dtype)
        y = cast(targets(x, self.points.seed, step, self.outputs, self.y_scale), self.dtype)
        x_test = self.points.cast(3, step + 1, (), self.dtype)
        references = []
        for member in range(2):
            new = Table(x[member], y[member], None, None)
            if table.variances is not None:
                new.variances = numpy.zeros(2)
            if table.weights is not None:
                new.weights = numpy.full(2, table.unit)
            with contextlib.suppress(NotDefiniteError):
                references.append(self._reference(table.followed_by(new), True))
        try:
            made = post.fantasize(laid_out(x, self.dtype, "tensor"), laid_out(y, self.dtype, "tensor"))
            p = made.predict(laid_out(x_test, self.dtype, "tensor"))
        except fgp.NotPositiveDefiniteError:
            if len(references) == 2:
                raise
        if len(references) < 2:
            found.skipped.append("ill-conditioned")
            return
        means, variances = [], []
        for r in references:
            means.append(without_axis(r.predict_mean(x_test), self.outputs))
            variance = r.predict_variance(x_test)
            variance = Rounded(numpy.maximum(variance.value, 0.0), variance.error)
            variances.append(without_axis(stacked([variance] * r.p, -1), self.outputs))
        found.compare("fantasy mean", p.mean, stacked(means), dtype=result_dtype(self.dtype))
        found.compare("fantasy variance", p.variance, stacked(variances), dtype=result_dtype(self.dtype))

    def _compare(self, found: Findings, post: Any, table: Table, when: str) -> None:
        found.equal(f"x {when}", post.x, torch.from_numpy(table.x).to(post.x.dtype))
        found.equal(f"y {when}", post.y, torch.from_numpy(table.y).to(post.y.dtype))
        answers: dict[str, Any] = {}
        x_test = self.points.cast(3, 999, (), self.dtype)
        refusals: tuple[type[Exception], ...] = ()
        jitter = post.report.jitter or 0.0  # of rows that may have gone since
        if isinstance(jitter, list):
            found.skipped.append("a jitter of each output")
            return
        try:
            r = self._reference(table, True, jitter)
        except NotDefiniteError:
            found.skipped.append("ill-conditioned")
            refusals = (fgp.NotPositiveDefiniteError,)
        with found.watched(when, refusals), context(self.context):
            p = post.predict(laid_out(x_test, self.dtype, self.layout))
            answers = {
                "mean": p.mean, "variance": p.variance, "evidence": post.log_marginal_likelihood(),
                "loo": post.leave_one_out().mean,
            }  # fmt: skip
        if refusals or not answers:
            return
        dtype = result_dtype(self.dtype)
        variance = r.predict_variance(x_test)
        variance = Rounded(numpy.maximum(variance.value, 0.0), variance.error)
        found.compare(f"mean {when}", answers["mean"], without_axis(r.predict_mean(x_test), self.outputs), dtype=dtype)
        wanted = without_axis(stacked([variance] * r.p, -1), self.outputs)
        found.compare(f"variance {when}", answers["variance"], wanted, dtype=dtype)
        found.compare(f"log_marginal_likelihood {when}", answers["evidence"], r.log_marginal_likelihood())
        loo = without_axis(r.leave_one_out()[0], self.outputs)
        found.compare(f"leave_one_out {when}", answers["loo"], loo, dtype=dtype)


__all__ = ["OPERATIONS", "UPDATES", "ChainCase"]
