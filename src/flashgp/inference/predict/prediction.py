"""Prediction: mean, variance, intervals, samples and densities at test points, computed when asked for.

It asks a predictor for the latent function and the likelihood for observations, and keeps what it was told.
"""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.cells import aligned, html_table
from flashgp.foundations.checks import check_count, check_flag, check_targets
from flashgp.foundations.contexts import entered, methods_outside_compile
from flashgp.foundations.errors import DomainError, ShapeError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.normal import LOG_2PI, check_probability
from flashgp.foundations.report import Report
from flashgp.foundations.transforms import is_transformed
from flashgp.inference.predict.predictor import Predictor, Variance
from flashgp.inference.predict.prior_draws import draw_seed
from flashgp.likelihoods.base import Likelihood, PredictiveDistribution
from flashgp.likelihoods.finite_mixture import FiniteMixture
from flashgp.solvers.direct.cholesky import Factor, factorise_keeping

SHOWN = 6  # points in a text
LARGEST_PROBABILITY = math.nextafter(1.0, 0.0)


@methods_outside_compile
class Prediction:
    """The posterior at n_test points. Everything is computed on first use and kept.

    Shapes: mean, variance (*batch, n_test), or (*batch, n_test, outputs); in x's dtype and device.

    Args:
        predictor: of the latent function.
        x: points (*batch, n_test, d).
        likelihood: of observations.
        outputs: columns of y; None for one without an axis.
        log_weights: logarithms of the probabilities of k models, (k,), the first dimension of what the predictor says,
            of which the prediction is a mixture, eq. (M-380); None for one model.

    Example:
        >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
        >>> p = fgp.GP(fgp.kernels.Matern()).condition(x, torch.sin(x[:, 0])).predict(x[:3])
        >>> isinstance(p, fgp.Prediction), p.mean.shape, p.interval(0.95)[0].shape
        (True, torch.Size([3]), torch.Size([3]))
    """

    def __init__(
        self,
        predictor: Predictor,
        x: Tensor,
        likelihood: Likelihood,
        outputs: int | None,
        log_weights: Tensor | None = None,
    ) -> None:
        self._predictor, self._x, self._likelihood, self._outputs = predictor, x, likelihood, outputs
        self._log_weights = log_weights
        self._mean: Tensor | None = None
        self._variance: Variance | None = None
        self._of_rows: Likelihood | None = None  # with numbers of these points
        self._graph = False  # whether what is kept carries gradients

    def given(self, **numbers: Any) -> "Prediction":
        """The prediction of observations whose likelihood has a number for each, such as `exposure`, or `trials`.

        Args:
            numbers: by name, (n_test,), or one for all; left out, an observation has 1.

        Raises:
            DomainError: for a number that the likelihood does not have.
            ShapeError: for another number of them than of points.

        Example:
            >>> x = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
            >>> post = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Poisson()).condition(x, torch.arange(9.0))
            >>> p = post.predict(x[:2])
            >>> (p.given(exposure=[1.0, 24.0]).observation_mean / p.observation_mean).round()
            tensor([ 1., 24.], dtype=torch.float64)
        """
        found = copy.copy(self)
        points = self._x.shape[-2]
        each = {name: points * [one] if isinstance(one, int | float) else one for name, one in numbers.items()}
        found._of_rows = self._likelihood.underlying.with_numbers(**each)
        for name in numbers:
            if len(value := getattr(found._of_rows, name)) != points:
                raise ShapeError(
                    f"`{name}` must have one entry per point ({points}), got shape {tuple(value.shape)}; pass it for "
                    "the points that are predicted"
                )
        return found

    def asking(self, function: Callable[[Predictor], Predictor]) -> "Prediction":
        """The prediction by a function of its predictor."""
        return Prediction(function(self._predictor), self._x, self._likelihood, self._outputs, self._log_weights)

    def mixed(self, log_weights: Float64[Tensor, "k"]) -> "Prediction":
        """The mixture of k models whose predictions these are, (k, n_test[, outputs])."""
        return Prediction(self._predictor, self._x, self._likelihood, self._outputs, log_weights)

    @property
    def report(self) -> Report:
        """Report of the prediction: its computation and accuracy."""
        return self._predictor.report

    # -- latent function ----------------------------------------------------------------------------------------
    @property
    def mean(self) -> Float[Tensor, "*shape"]:
        """E f(x*), units of y."""
        return self._given(self._averaged(self._means()))

    @property
    def variance(self) -> Float[Tensor, "*shape"]:
        """Var f(x*) of the latent function, units of y squared; of outputs that share their noise the same for all."""
        value = self._variances().value
        if self._log_weights is not None:
            means = self._means()
            value = self._averaged(value + (means - self._averaged(means)).square())
        return self._given(value)

    @property
    def std(self) -> Float[Tensor, "*shape"]:
        """Standard deviation of f(x*), units of y; that of an observation is `observation_std`."""
        return self.variance.sqrt()

    @property
    def variance_standard_error(self) -> Float[Tensor, "*shape"] | None:
        """Standard error of a sampled variance, point by point, eq. (M-97), in its units and shape; None if it is
        exact.
        """
        error = self._variances().standard_error
        return None if error is None else self._given(error)

    @property
    def variance_interval(self) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]] | None:
        """Interval that holds the exact variance with a probability of 95 %, each of the shape of `variance`, eq.
        (M-97).

        Not two standard errors to each side, since the likelihood is skewed. None where the variance is exact.
        """
        found = self._variances()
        lower, upper = found.lower, found.upper
        return None if lower is None or upper is None else (self._given(lower), self._given(upper))

    # -- observations -------------------------------------------------------------------------------------------
    @property
    def distribution(self) -> PredictiveDistribution:
        """Distribution of new observations, each on its own, float64: (*batch, n_test), of outputs (outputs, *batch,
        n_test).
        """
        return self._observations()

    @property
    def observation_mean(self) -> Float[Tensor, "*shape"]:
        """Mean of a new observation at x*."""
        return self._of_observations(self._observations().mean)

    @property
    def observation_variance(self) -> Float[Tensor, "*shape"]:
        """Variance of a new observation at x*: of a Gaussian likelihood, variance plus noise_variance."""
        return self._of_observations(self._observations().variance)

    @property
    def observation_std(self) -> Float[Tensor, "*shape"]:
        """Standard deviation of a new observation at x*; `std` is that of the function."""
        return self.observation_variance.sqrt()

    @property
    def probability(self) -> Float[Tensor, "..."]:
        """Probability of the classes of a new observation at x*: of 1, (n_test,), or of every level, (n_test, levels).

        Raises:
            DomainError: for a likelihood whose observations are no classes.
        """
        found: Tensor | None = getattr(self._observations(), "probability", None)
        if found is None:
            raise DomainError(
                f"`likelihood` must be of classes for this, such as Bernoulli, got {self._likelihood.name}; ask for "
                "observation_mean, or for quantile(q)"
            )
        return found.to(self._x.dtype)

    def quantile(self, q: float) -> Float[Tensor, "*shape"]:
        """The q-quantile of a new observation.

        Args:
            q: probability, 0 < q < 1.
        """
        return self._of_observations(self._observations().quantile(check_probability(q, "q")))

    def interval(self, level: float = 0.95) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """The central interval that holds a new observation with that probability.

        Args:
            level: probability, 0 < level < 1.
        """
        tail = (1.0 - check_probability(level, "level")) / 2.0
        return self.quantile(tail), self.quantile(min(1.0 - tail, LARGEST_PROBABILITY))

    def log_prob(self, y: Tensor) -> Float[Tensor, "*shape"]:
        """Log density of each new observation on its own, nats, eq. (M-43).

        Args:
            y: observations, of the shape of `mean`.
        """
        y = check_targets(self._likelihood.encoded(y, "y"), "y", self._x, self._outputs).double()
        (self._of_rows or self._likelihood.underlying.with_rows()).check_targets(y)
        if self._outputs is None:
            return self._of_observations(self._observations().log_prob(y))
        dims = max(y.dim(), self.mean.dim())
        y = y[(None,) * (dims - y.dim())].movedim(-1, 0)
        return self._of_observations(self._observations(dims).log_prob(y))

    @entered(lambda self, *_, **__: self._predictor.deterministic)
    def joint_log_prob(self, y: Tensor) -> Float64[Tensor, "*batch"]:
        """Log density of all new observations together, (*batch,), nats.

        Args:
            y: observations, of the shape of `mean`.

        Raises:
            DomainError: for a likelihood that is no noise added to f.
        Cost: n_test^3 / 3 flops.
        """
        y = check_targets(y, "y", self._x, self._outputs).double()
        error = (y if self._outputs is not None else y.unsqueeze(-1)) - self._rounded(self._means())
        factor = self._joint_factor(self._joint(observed=True))
        if bool((factor.jitter > 0).any()):
            warn(
                f"the joint covariance of these observations was not positive definite; a jitter of "
                f"{float(factor.jitter.max()):.2e} was added to it, and the density is that of so much more noise"
            )
        n, p = error.shape[-2:]
        if self._predictor.separate:  # (*batch, outputs, n_test, 1)
            solved, log_determinant = (
                factor.half_solve(error.mT.unsqueeze(-1)).squeeze(-1),
                factor.log_determinant.sum(-1),
            )
        else:
            solved, log_determinant = factor.half_solve(error), p * factor.log_determinant
        value = -0.5 * (solved.square().sum((-2, -1)) + log_determinant + n * p * LOG_2PI)
        return value if self._log_weights is None else torch.logsumexp(self._log_weights + value, 0)

    # -- joint --------------------------------------------------------------------------------------------------
    def covariance(self, *, observed: bool = False) -> Float[Tensor, "*batch n_test n_test"]:
        """The joint covariance of the latent values, (*batch, n_test, n_test).

        Outputs are independent of each other. Those that share their noise share the covariance; with noise of their
        own, and of a mixture, it is that of each output, (*batch, outputs, n_test, n_test).

        Args:
            observed: True for new observations in place of latent values.

        Raises:
            MemoryBudgetError: where it exceeds what is free: three to four such matrices, and two to three of n x
                n_test numbers.
            DomainError: with `observed` for a likelihood that is no noise added to f.
        Cost: n^2 n_test + n n_test^2 flops.
        """
        joint = self._joint(observed=observed)
        if self._log_weights is not None:
            means = self._means()
            apart = means - self._averaged(means)
            apart = apart.mT.squeeze(-2) if self._outputs is None else apart.mT  # (k, n_test), or (k, outputs, n_test)
            joint = joint if self._outputs is None or self._predictor.separate else joint.unsqueeze(-3)
            joint = self._averaged(joint + apart.unsqueeze(-1) * apart.unsqueeze(-2))
        return joint.to(self._x.dtype)

    @entered(lambda self, *_, **__: self._predictor.deterministic)
    def sample(
        self, count: int = 1, *, observed: bool = False, seed: int | None = None
    ) -> Float[Tensor, "{count} *shape"]:
        """Joint samples of the latent function, (count, *batch, n_test[, outputs]).

        Args:
            count: of samples.
            observed: True for new observations in place of latent values.
            seed: of the draws; without one a single integer is drawn from torch's default generator.
        Cost: n_test^3 / 3 flops.
        """
        count, observed = check_count(count, "count", 0), check_flag(observed, "observed")
        mean = self._rounded(self._means())
        generator = torch.Generator(device=mean.device).manual_seed(draw_seed(seed))
        if self._log_weights is not None:
            return self._given(self._mixed_sample(count, mean, self._joint_root(observed=observed), generator))
        if mean.shape[-2] == 0:
            return self._given(mean.expand(count, *mean.shape))
        added = observed and self._likelihood.additive_noise(mean.device) is not None
        root = self._joint_root(observed=added)
        normal = torch.randn((count, *mean.shape), generator=generator, dtype=torch.float64, device=mean.device)
        values = mean + self._rooted(root, normal)
        if observed and not added:
            latent = values.movedim(-1, 0)
            drawn = self._predictive(latent, torch.zeros_like(latent)).sample(generator)
            if self._likelihood.underlying.one_observation:
                return drawn.to(self._x.dtype)
            values = drawn.movedim(0, -1)
        return self._given(values)

    # -- work ---------------------------------------------------------------------------------------------------
    def _means(self) -> Tensor:
        """E f of every model, (*batch, n_test, outputs or 1)."""
        self._forget_without_graph()
        if self._mean is None:
            self._mean = self._predictor.mean(self._x)
        return self._mean

    def _variances(self) -> Variance:
        """Var f of every model."""
        self._forget_without_graph()
        if self._variance is None:
            self._variance = self._predictor.variance(self._x)
        return self._variance

    def _averaged(self, values: Tensor) -> Tensor:
        """The mean over the models of a mixture."""
        if self._log_weights is None:
            return values
        return (self._log_weights.exp().reshape(-1, *(1,) * (values.dim() - 1)) * values).sum(0)

    def _mixed_sample(self, count: int, mean: Tensor, root: Tensor, generator: torch.Generator) -> Tensor:
        """Joint samples of a mixture, each of a model that is drawn first: (count, n_test, outputs or 1)."""
        assert self._log_weights is not None
        weights = self._log_weights.exp()
        values = torch.randn((count, *mean.shape[1:]), generator=generator, dtype=torch.float64, device=mean.device)
        drawn = torch.multinomial(weights, count, replacement=True, generator=generator) if count else values.long()
        for k in drawn.unique().tolist():
            of_model = drawn == k
            values[of_model] = mean[k] + self._rooted(root[k], values[of_model])
        return values

    def _rooted(self, root: Tensor, normal: Tensor) -> Tensor:
        """A root of the covariance times normal numbers (*s, n_test, outputs or 1); of each output its own root."""
        if not self._predictor.separate:
            return root @ normal
        return (root @ normal.mT.unsqueeze(-1)).squeeze(-1).mT

    def _rounded(self, values: Tensor) -> Tensor:
        """Values as they are given, in float64."""
        return values.to(self._x.dtype).double()

    def _given(self, values: Tensor) -> Tensor:
        """Values (*batch, n_test, outputs or 1) the way the user wants them; a copy, since they are kept."""
        return (values if self._outputs is not None else values.squeeze(-1)).to(self._x.dtype, copy=True)

    def _observations(self, dims: int = 0) -> PredictiveDistribution:
        """New observations, (*batch, n_test), with outputs (outputs, *batch, n_test) of so many dimensions at least."""
        mean, variance = self._rounded(self._means()), self._rounded(self._variances().value)
        if self._outputs is None:
            found = self._predictive(mean.squeeze(-1), variance.squeeze(-1))
        else:
            more = (None,) * (dims + (self._log_weights is not None) - mean.dim())
            found = self._predictive(mean[more].movedim(-1, 0), variance[more].movedim(-1, 0))
        return found if self._log_weights is None else FiniteMixture(found, self._log_weights)

    def _predictive(self, mean: Tensor, variance: Tensor) -> PredictiveDistribution:
        if self._of_rows is not None:
            return self._of_rows.predictive_of_rows(mean, variance)
        return self._likelihood.predictive(mean, variance)

    def _of_observations(self, values: Tensor) -> Tensor:
        return self._of_axes(values).to(self._x.dtype)

    def _of_axes(self, values: Tensor) -> Tensor:
        """Observations with outputs behind, where these have an axis."""
        return values if self._outputs is None or self._likelihood.underlying.one_observation else values.movedim(0, -1)

    def _forget_without_graph(self) -> None:
        """Forget values computed without gradients, which are computed again once gradients are asked for."""
        if self._predictor.wants_graph(self._x) and not self._graph:
            self._mean = self._variance = None
            self._predictor.forget()
            self._graph = True

    def _joint(self, *, observed: bool) -> Tensor:
        self._forget_without_graph()
        joint = self._predictor.covariance(self._x)
        if not observed:
            return joint
        noise = self._likelihood.additive_noise(joint.device)
        if noise is None:
            raise DomainError(
                f"`likelihood` must add noise to f for this, got {self._likelihood.name}; ask for samples, or for the "
                "latent function"
            )
        with torch.set_grad_enabled(self._predictor.wants_graph(self._x)):
            return joint + torch.diag_embed(noise.unsqueeze(-1).expand(*joint.shape[:-1]))

    @entered(lambda self, *_, **__: self._predictor.deterministic)
    def _joint_root(self, *, observed: bool) -> Tensor:
        """L with L L^T the joint covariance: its lower factor, or 0 where it is exactly 0, as at x = 0 of a slope."""
        joint = self._joint(observed=observed)
        certain = (joint == 0).all(-1).all(-1)[..., None, None]
        if not bool(certain.any()):
            return self._joint_factor(joint).lower
        one = torch.eye(joint.shape[-1], dtype=joint.dtype, device=joint.device)
        return torch.where(certain, 0.0, self._joint_factor(torch.where(certain, one, joint)).lower)

    @entered(lambda self, *_, **__: self._predictor.deterministic)
    def _joint_factor(self, joint: Tensor) -> Factor:
        """The factor of a joint covariance."""
        factor = factorise_keeping(joint, rounding=self._predictor.rounding(self._x).expand(joint.shape[:-2]))
        if bool((factor.jitter > 0).any()):
            self.report.events.append(Event(EventKind.JOINT_JITTER, jitter=float(factor.jitter.max())))
        return factor

    # -- as text --------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        title, head, rows = self._table()
        return "\n".join([title, *([aligned(head, rows)] if rows else []), str(self.report)])

    def _repr_html_(self) -> str:
        title, head, rows = self._table()
        return html_table(rows, head, title) + self.report._repr_html_()

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, head and rows of the first points: the function f, and a new observation y. Of a prediction that takes
        solves only what was asked for before."""
        title, points = f"Prediction at {self._x.shape[-2]:,} points", self._x.shape[-2]
        if is_transformed(self._x) or not points:
            return title, [], []
        with torch.no_grad():
            columns = self._first_points()._columns(self._predictor.quick)
        if not columns:
            return f"{title}; ask for mean, std, quantile(q) or sample(count)", [], []
        shape = next(iter(columns.values())).shape
        more = points > SHOWN or shape.numel() > SHOWN
        places = ["[" + ", ".join(map(str, at)) + "]" for at in itertools.product(*map(range, shape))][:SHOWN]
        rows = [
            [place, *(f"{value:.4g}" for value in values)]
            for place, *values in zip(places, *(c.reshape(-1).tolist() for c in columns.values()), strict=False)
        ]
        return title, ["", *columns], rows + [["...", *[""] * len(columns)]] * more

    def _first_points(self) -> "Prediction":
        """The prediction at the first points, with what is known of them."""
        found = copy.copy(self)
        found._predictor = self._predictor.aside()
        if self._x.shape[-2] <= SHOWN:
            return found
        axis = -2  # of points in (*batch, n_test, outputs or 1)
        found._x = self._x[..., :SHOWN, :]
        found._of_rows = None if self._of_rows is None else self._of_rows.rows(torch.arange(SHOWN))
        found._mean = None if self._mean is None else self._mean.narrow(axis, 0, SHOWN)
        known = self._variance
        found._variance = None if known is None else known.mapped(lambda part: part.narrow(axis, 0, SHOWN))
        return found

    def _columns(self, quick: bool) -> dict[str, Tensor]:
        """Numbers by name, of one shape. Args: quick, whether what is not known yet is computed."""
        found = {"mean of f": self.mean} if quick or self._mean is not None else {}
        if not quick and self._variance is None:
            return found
        found["std of f"] = self.std
        if getattr(self._observations(), "probability", None) is not None:
            probability = self.probability
            if probability.shape == self.std.shape:
                return {**found, "probability" if self._outputs else "probability of y = 1": probability}
            return {
                f"probability of {level}": probability[..., level] for level in range(probability.shape[-1])[:SHOWN]
            }
        lower, upper = self.interval()
        noise = self._likelihood.additive_noise(self._x.device)
        if noise is not None and not bool(noise.any()):  # y is f
            return {**found, "2.5 % of f": lower, "97.5 % of f": upper}
        observed = {"mean of y": self.observation_mean, "std of y": self.observation_std,
                    "2.5 % of y": lower, "97.5 % of y": upper}  # fmt: skip
        return observed if lower.shape != self.std.shape else {**found, **observed}
