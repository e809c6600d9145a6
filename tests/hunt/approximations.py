"""A kind of case: fits by an approximation never fail, and are never worse than a constant."""

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

import flashgp as fgp
from hunt.differences import Findings

TABLES = ("smooth", "rough", "steps", "noise", "constant", "line", "outliers")
ROOM = 0.02  # of the spread of y, by which a fit may be worse than a constant


@dataclass(frozen=True)
class ApproximateCase:
    """A fit of a table, what its posterior says, and rows that join it.

    Fields: of, one of TABLES; d columns with spreads from `small` to `large`; repeated, the share of rows that repeat
    others; constant, columns that are; y_scale; inducing and neighbours, numbers or "auto"; rows that are appended.
    """

    seed: int = 0
    kind: str = "full_scale"
    of: str = "smooth"
    n: int = 20
    d: int = 2
    small: float = 1.0
    large: float = 1.0
    offset: float = 0.0
    repeated: float = 0.0
    constant: int = 0
    y_scale: float = 1.0
    noise: float = 0.1
    inducing: int | str = "auto"
    neighbours: int | str = "auto"
    appended: int = 0
    nu: float = 1.5

    def check(self) -> Findings:
        found = Findings()
        x, y = self._table(self.n, 0)
        test, y_test = self._table(200, 1)
        options: dict[str, Any] = {"approximation": self.kind, "inducing": self.inducing}
        if self.kind == "full_scale":
            options["neighbours"] = self.neighbours
        sizes = [size for size in (self.inducing, options.get("neighbours", 0)) if isinstance(size, int)]
        nothing = self.inducing == 0 and (self.neighbours == 0 or self.kind == "sparse")
        refusals = (fgp.DomainError,) if max(sizes, default=0) > self.n or nothing else ()
        post: fgp.Posterior | None = None
        with found.watched("fit", refusals):
            fit = fgp.fit(fgp.GP(self._kernel()), x, y, starts=1, max_iterations=25, **options)
            post = fit.posterior
            if post.report.jitter or fit.report.jitter:
                found.differences["jitter"] = f"{post.report.jitter}, {fit.report.jitter}"
        if post is None:
            return found
        self._answers(found, "fit", post, x, y, test, y_test)
        if self.appended:
            with found.watched("append"):
                more, y_more = self._table(self.appended, 2)
                for part in zip(more[:3].split(1), y_more[:3].split(1), strict=True):
                    post = post.append(*part)
                post = post.append(more[3:], y_more[3:])
            self._answers(found, "append", post, torch.cat([x, more]), torch.cat([y, y_more]), test, y_test)
        return found

    def _answers(
        self, found: Findings, when: str, post: fgp.Posterior, x: Tensor, y: Tensor, test: Tensor, y_test: Tensor
    ) -> None:
        far = test[:5] + 100.0 * (x.amax(0) - x.amin(0) + self.large)
        with found.watched(f"answers after {when}"):
            for at in (x[:50], test, far):
                p = post.predict(at)
                finite = (p.mean, p.variance, p.observation_variance, p.log_prob(y[:1].expand(len(at))))
                found.compared += sum(len(t) for t in finite)
                if not all(bool(t.isfinite().all()) for t in finite):
                    found.differences[f"not finite after {when}"] = f"{[int((~t.isfinite()).sum()) for t in finite]}"
                if bool((p.variance < 0).any()) or bool((p.observation_variance < 0).any()):
                    found.differences[f"variance after {when}"] = f"{float(p.variance.min())}"
            p = post.predict(test[:20])
            joint = p.covariance()
            with torch.no_grad():
                prior = float(post.gp.kernel.operator(test[:20]).diagonal().max())
            if not float(torch.linalg.eigvalsh(joint)[0]) >= -1e-12 * prior:
                found.differences[f"covariance after {when}"] = f"{float(torch.linalg.eigvalsh(joint)[0])}"
            drawn = (p.sample(3, seed=0), post.paths(2, seed=0)(test[:5]))
            lost = (post.lost.nats, float(post.log_marginal_likelihood()))
            if not (all(bool(t.isfinite().all()) for t in drawn) and bool(numpy.isfinite(lost).all())):
                found.differences[f"draws, loss or evidence after {when}"] = f"{lost}"
            if self.kind == "full_scale":
                left = post.leave_one_out()
                if not bool(left.log_prob.isfinite().all() & (left.variance >= 0).all()):
                    found.differences[f"leave-one-out after {when}"] = f"{float(left.variance.min())}"
            if when != "fit":  # whose parameters are those of fewer rows
                return
            spread = float(y.std()) if len(y) > 1 else 0.0
            truth = y_test - y.mean()
            plain = float(truth.square().mean().sqrt())
            error = float((post.predict(test).mean - y_test).square().mean().sqrt())
            # Few rows of noise mislead the evidence: what is worse than a constant is no worse than exact inference,
            # which may start where the approximation has ended.
            room = ROOM * max(spread, float(y_test.std())) + 1e-6 * float(y_test.abs().max())
            worse = len(x.unique(dim=0)) >= 10 and self.of != "outliers" and error > plain + room
            if worse and error > self._exact(post.gp, x, y, test, y_test) + room:
                found.differences[f"rmse after {when}"] = f"{error:.4g}, a constant has {plain:.4g}"

    def _exact(self, gp: fgp.GP, x: Tensor, y: Tensor, test: Tensor, y_test: Tensor) -> float:
        """The error of the exact fit with the higher log joint: of its own start, or of one from a trained GP."""
        asked = {"starts": 1, "max_iterations": 25}
        fits = [fgp.fit(fgp.GP(self._kernel()), x, y, **asked), fgp.fit(gp, x, y, initial="given", **asked)]
        best = max(fits, key=lambda fit: float(fit.posterior.log_marginal_likelihood()) + fit.log_prior)
        return float((best.posterior.predict(test).mean - y_test).square().mean().sqrt())

    def _kernel(self) -> fgp.kernels.Kernel:
        return 1.0 * fgp.kernels.Matern(nu=self.nu, lengthscale=torch.ones(self.d))

    def _table(self, n: int, part: int) -> tuple[Tensor, Tensor]:
        rng = numpy.random.default_rng((self.seed, part))
        shared = numpy.random.default_rng((self.seed, 9))
        spreads = numpy.exp(shared.uniform(numpy.log(self.small), numpy.log(self.large), self.d))
        slopes = shared.normal(size=self.d) * 2.0
        u = rng.uniform(-1, 1, size=(n, self.d))
        u[:, : self.constant] = 0.5
        again = int(self.repeated * n)
        if again and n > again:
            u[n - again :] = u[rng.integers(0, n - again, again)]
        f = u @ slopes
        noise = rng.normal(size=n)
        match self.of:
            case "smooth":
                y = numpy.sin(f) + self.noise * noise
            case "rough":
                y = numpy.sin(15 * f) + self.noise * noise
            case "steps":
                y = numpy.sign(f) + self.noise * noise
            case "noise":
                y = noise
            case "constant":
                y = numpy.full(n, 3.0)
            case "line":
                y = f + self.noise * noise
            case _:
                y = numpy.sin(f) + numpy.where(rng.random(n) < 0.05, 1e3, 0.1) * noise
        return torch.from_numpy(u * spreads + self.offset), torch.from_numpy(self.y_scale * y)


__all__ = ["TABLES", "ApproximateCase"]
