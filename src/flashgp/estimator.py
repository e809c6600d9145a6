"""GPRegressor: Gaussian process regression of arrays and frames behind scikit-learn's estimator contract.

What it is given becomes finite numbers (`flashgp.table.arrays`), which are fitted as tables are (`flashgp.table_fit`);
predictions come back in the units of y. Frames go through scikit-learn and narwhals: neither pandas nor polars is
imported. Its model files are `flashgp.model_files`' matter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from flashgp.estimator_base import DEFAULT_SEED, Array, RandomState, TableEstimator, drawn_seed
from flashgp.fitted_table import FittedTable, TableSettings
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.inference.gp import GP
from flashgp.inference.missing_cells import check_observed, observed
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import join
from flashgp.kernels import Kernel
from flashgp.likelihoods import Gaussian
from flashgp.likelihoods.gaussian import repeated
from flashgp.table.arrays import training_rows, weighed
from flashgp.table_fit import TrainingRows
from flashgp.target_transform import WarpedNormal
from flashgp.targets import Number, Placed
from flashgp.units import Scaling


class GPRegressor(MultiOutputMixin, RegressorMixin, TableEstimator):
    """Exact Gaussian process regression as a scikit-learn estimator.

    Inside, every column of X and every output has mean 0 and standard deviation 1 (columns of integer codes that a
    Categorical or Coregionalization kernel reads stay as they are; a constant column is only centred; columns in one
    unit, such as pixels, most of which have the same least and greatest value, have these together). `kernel`,
    `mean` and `likelihood` are in those standard units: a lengthscale of 1 is one standard deviation of its column, a
    noise_variance of 0.1 is a tenth of the variance of y. So are `kernel_`, `gp_`, `posterior_` and the log marginal
    likelihood. Predictions, their deviations and samples are in the units of y. Nothing passed in is ever changed.
    Columns of y have a noise variance each, unless `likelihood` is Gaussian(..., shared=True). Cells of y may then be
    NaN: a row is left out for the columns that miss it, and kept for the others.

    With a `target_transform` a monotone T(y) is what is standardised and modelled, eq. (M-140). Predictions of y are
    then no normal distributions: `predict` gives their mean and deviation, by quadrature, and `predict_distribution`
    quantiles, intervals and densities.

    A frame (pandas, polars, pyarrow) may have columns of text, categories, booleans and dates: text and categories
    become codes that the default kernel reads with Categorical, and one of yours has to; dates are days. Such frames
    need pyarrow (flashgp[table]), and `predict` matches their columns by name. The same rows give the numbers of
    `TableModel` and of the command line, which leave out columns that do not vary, and take whole numbers that are all
    dates such as 20000105 for dates.

    Weights of rows are relative precisions, such as 1 / variance: the noise variance of a row is divided by its weight,
    and an overall scale of the weights changes nothing, eq. (M-251). Whole numbers that differ and begin at 1 are
    counts, as scikit-learn has them: a row of weight w is w equal rows, eq. (M-87). `report_` says which. For known
    variances of rows pass `likelihood=flashgp.likelihoods.Gaussian(row_variance=...)`, in units of y squared. Rows of
    equal X are joined into one, without loss.

    Before `fit`, `predict` and `sample_y` answer from the prior: X, and the answer, are then in standard units.

    Args:
        kernel: covariance function in standard units; None for variance * Matern(1.5) with one lengthscale per column,
            plus Linear: far from the data a prediction goes on along their linear trend. "auto" takes the best of
            five by leave-one-out log density on 300 rows, and the default unless another is clearly better
            (`flashgp.choices`); which and why is an event of `report_`.
        mean: prior mean in standard units, a flashgp mean or any nn.Module; None for a constant.
        likelihood: `flashgp.likelihoods.Gaussian` with noise variances in standard units; None for one of each output.
            Row variances, in units of y squared, and weights in it belong to the rows of X as passed to `fit`.
        standardise: "both", "x", "y" or "none": what is put in standard units; the rest keeps its own.
        target_transform: "auto" takes the best of the following on 300 rows, and none unless its evidence is clearly
            higher (`flashgp.choices`); "none"; "log" of positive targets; "yeo-johnson", with the power of the
            highest evidence. Of several outputs each has its own. What was chosen and why is an event of `report_`.
        optimise: False keeps every parameter as given.
        initial: as `flashgp.fit`.
        priors: as `flashgp.fit`.
        starts: as `flashgp.fit`.
        max_iterations: as `flashgp.fit`.
        time_limit: as `flashgp.fit`; the choice of the target's transform takes a tenth of it at most, and so does that
            of the kernel of what is left.
        missing: "error"; or "drop" to leave out training rows with a NaN, and to answer NaN for such rows of X in
            `predict` and `sample_y`, with a warning that says how many.
        unseen: a category that the fit did not see is an "error", or "new": unlike all known ones.
        dates: "dmy" or "mdy", the order of day and month in a frame's text such as 05/01/2000; None where columns tell
            it by a day above 12, as `TableModel.fit`.
        solver: "cholesky" or "cg"; None leaves it to the plan, as `GP.condition`.
        memory: budget like "8GiB"; None for what is free.
        device: "auto" for an accelerator when there is one, or a torch device.
        dtype: None or "float64"; "float32" factors in float32 and corrects the mean in float64 to `tolerance`.
        tolerance: of the mean, in standard deviations of an observation.
        jitter: as `GP.condition`.
        random_state: of the random starts, as in scikit-learn, or a numpy.random.Generator; None is the fixed seed of
            `flashgp.fit`, not numpy's global generator.
        deterministic: fit and answer with the same bits whatever the number of threads, as `GP.condition`.
        approximation: None for exact inference; "full_scale", "sparse" and "fourier" (a stationary kernel, whose terms
            have one to three columns each) for ones that are linear in the rows; "auto" for exact inference where it
            keeps to time_limit and memory, else an approximation, as `flashgp.fit`.
        inducing: of an approximation, how many points or "auto", as `flashgp.fit`.
        neighbours: of an approximation, as `flashgp.fit`.
        uncertainty: of the parameters, as `flashgp.fit`: "laplace", "nuts" or "auto" average predictions over draws of
            them. The default kernel of at most 500 rows, and 5 for each column at least, is then
            variance * Matern(2.5).

    Attributes:
        X_train_: as passed, columns of a frame as numbers; rows that were dropped or weigh 0 are left out.
        y_train_: as passed, of the rows of `X_train_`.
        gp_: the fitted prior, in standard units.
        kernel_: its kernel.
        posterior_: in standard units.
        log_marginal_likelihood_value_: nats, of y in standard units.
        report_: of the fit.
        history_: of the fit.
        encoding_: how columns of the frame became numbers; None for arrays and frames of numbers alone.
        scaling_: to and from standard units, with the transform of the target.
        n_features_in_: as in scikit-learn.
        feature_names_in_: as in scikit-learn.

    Example:
        >>> import numpy as np
        >>> import flashgp as fgp
        >>> X = np.linspace(0.0, 6.0, 30)[:, None]
        >>> model = fgp.GPRegressor().fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.predict([[1.0], [2.0]], return_std=True)
        >>> mean.round(2)
        array([0.84, 0.91])
    """

    units = "standard units; GPRegressor.predict answers in units of y"

    @usual_names_refused
    def __init__(
        self,
        kernel: Kernel | Literal["auto"] | None = None,
        *,
        mean: nn.Module | None = None,
        likelihood: Gaussian | None = None,
        standardise: Literal["both", "x", "y", "none"] = "both",
        target_transform: Literal["auto", "none", "log", "yeo-johnson"] = "auto",
        optimise: bool = True,
        initial: Literal["data", "given"] = "data",
        priors: Literal["weak", "given"] = "weak",
        starts: int | None = None,
        max_iterations: int = 200,
        time_limit: float | None = None,
        missing: Literal["error", "drop"] = "error",
        unseen: Literal["error", "new"] = "error",
        dates: Literal["dmy", "mdy"] | None = None,
        solver: str | None = None,
        memory: str | int | None = None,
        device: str | torch.device | None = "auto",
        dtype: str | torch.dtype | None = None,
        tolerance: float = 1e-3,
        jitter: float | None = None,
        random_state: RandomState = None,
        deterministic: bool = False,
        approximation: str | None = None,
        inducing: int | str = "auto",
        neighbours: int | str = "auto",
        uncertainty: Literal["laplace", "nuts", "auto"] | None = None,
    ) -> None:
        self._keep(locals())

    # -- learning -----------------------------------------------------------------------------------------------
    def _refit(self, X: Any, y: Any, sample_weight: Any, deadline: Deadline) -> "GPRegressor":
        _ = self._settings().asked_approximation
        X, y, weight, kept = training_rows(self, X, y, sample_weight, drop=self.missing == "drop")
        outputs = y.shape[1] if y.ndim == 2 else None
        gp = self._prior(X.shape[1], outputs, self.likelihood, len(X))
        likelihood = self._likelihood_of(gp, kept)
        plain = likelihood.row_weight is None
        likelihood, counts, weighing = weighed(likelihood, weight)
        self._weighted = plain and likelihood.row_weight is not None
        gp.likelihood, self._repeated = likelihood, counts is not None
        if (cells := observed(torch.tensor(y), outputs)) is not None:
            check_observed(gp, cells)
        names = [*self._names(X.shape[1]), *(["the target"] if outputs is None else
                                             [f"output {j}" for j in range(outputs)])]  # fmt: skip
        rows = TrainingRows(
            X.astype(np.float64, order="C"), np.array(y.reshape(len(y), -1)), names,  # frames may be read-only
            np.flatnonzero(kept), counts=counts,
            # Rows with a weight or a variance of their own differ in more than how often they count.
            countable=self._repeated or (likelihood.noise_variance is not None and likelihood.rows_alike),
        )  # fmt: skip
        fitted, gp = self._fit_rows(gp, rows, deadline, [weighing])
        if self._repeated:
            # That a weight is a repetition is the estimator's business: what users get is an ordinary GP.
            weights = _gaussian(fitted.posterior.gp).row_weight  # of the rows that the posterior has
            gp = GP(gp.kernel, gp.mean, _gaussian(gp).with_rows(row_weight=weights), gp.outputs)
            fitted = FittedTable(fitted.posterior.with_prior(gp), fitted.scalings, fitted.fit)
        self._set(fitted, gp)
        self.X_train_, self.y_train_ = np.array(X), np.array(y)
        return self

    def _in_units(self, likelihood: Gaussian, scalings: Sequence[Scaling]) -> Gaussian:
        if likelihood.row_variance is not None:
            likelihood.row_variance = likelihood.row_variance / _unit_of_variances(scalings)
        return likelihood

    # -- answers ------------------------------------------------------------------------------------------------
    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = False, return_cov: Literal[False] = False, latent: bool = False,
        variance: Literal["auto", "exact", "sampled"] = "auto", time_limit: float | None = None,
    ) -> Array: ...  # fmt: skip

    @overload
    def predict(
        self, X: Any, return_std: Literal[True], return_cov: Literal[False] = False, latent: bool = False,
        variance: Literal["auto", "exact", "sampled"] = "auto", time_limit: float | None = None,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = False, *, return_cov: Literal[True], latent: bool = False,
        variance: Literal["auto", "exact", "sampled"] = "auto", time_limit: float | None = None,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        variance: Literal["auto", "exact", "sampled"] = "auto",
        time_limit: float | None = None,
    ) -> Array | tuple[Array, Array]:
        """Mean of the prediction at X, and on request its standard deviation or joint covariance.

        Args:
            X: shape (n_test, d), finite.
            return_std: also the standard deviation of a new observation, shape (n_test,) or (n_test, p).
            return_cov: also the covariance of new observations, shape (n_test, n_test) or (n_test, n_test, p).
            latent: deviation or covariance of the function without observation noise.
            variance: where deviations come from, as `Posterior.predict`: "exact", "sampled", or "auto" by their price.
                Sampled ones are logged with their largest standard error ("flashgp.predict"); that of every point is
                `posterior_.predict(x_test, variance="sampled").variance_standard_error`, in standard units squared.
                A covariance is exact, and takes no "sampled".
            time_limit: seconds that deviations may take, as `Posterior.predict`.

        Returns:
            Shape (n_test,), or (n_test, p) when y had columns; float32 for float32 X, else float64.

        Raises:
            RuntimeError: for both return_std and return_cov.
            ValueError: for X that does not fit the training data, or a variance that does not exist.
        Cost: n n_test d for the mean, n^2 n_test flops for deviations, and n_test^2 numbers for a covariance.
        """
        if return_std and return_cov:
            raise RuntimeError(
                "`return_std` and `return_cov` must not both be True; the deviations are the roots of the "
                "covariance's diagonal"
            )
        if return_cov and variance == "sampled":
            raise DomainError(
                '`variance` must be "auto" or "exact" with return_cov=True, got "sampled", which gives no covariance; '
                "leave it out"
            )
        prediction, answers = self._answers(X, variance, time_limit)
        return answers.moments(prediction, latent, return_std, return_cov)

    def predict_distribution(
        self, X: Any, latent: bool = False, variance: Literal["auto", "exact", "sampled"] = "auto"
    ) -> WarpedNormal | tuple[WarpedNormal, ...]:
        """The distribution of a new observation at each row of X, in the units of y: quantiles, intervals, densities.

        Args:
            X: as `predict`.
            latent: as `predict`.
            variance: as `predict`.

        Returns:
            A `flashgp.target_transform.WarpedNormal` with arrays of shape (n_test,): mean, std, median, quantile(q),
            interval(level), log_prob(y). One per output when y had columns.

        Raises:
            ValueError: as `predict`.
        Cost: as `predict` with deviations.

        Example:
            >>> X = np.linspace(0.0, 6.0, 30)[:, None]
            >>> model = fgp.GPRegressor(target_transform="log").fit(X, np.exp(np.sin(X[:, 0])))
            >>> lower, upper = model.predict_distribution([[1.0]]).interval(0.95)
            >>> bool(0.0 < lower[0] < np.exp(np.sin(1.0)) < upper[0])
            True
        """
        prediction, answers = self._answers(X, variance)
        each = answers.distributions(prediction, latent)
        return each[0] if answers.outputs is None else each

    def sample_y(self, X: Any, n_samples: int = 1, random_state: RandomState = 0, latent: bool = False) -> Array:
        """Joint samples of new observations at X (of the function, with `latent`), in the units of y.

        Args:
            X: shape (n_test, d), finite.
            n_samples: how many.
            random_state: their seed, as in scikit-learn, or a numpy.random.Generator.
            latent: of the function without observation noise.

        Returns:
            Shape (n_test, n_samples), or (n_test, p, n_samples) when y had columns.
        Cost: n_test^3 / 3 flops.
        """
        seed = drawn_seed(random_state)
        prediction, answers = self._answers(X)
        drawn = prediction.sample(n_samples, observed=not latent, seed=seed)
        return np.ascontiguousarray(np.moveaxis(answers(drawn, Number.decode), 0, -1))

    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False
    ) -> float | tuple[float, npt.NDArray[np.float64]]:
        """log p(y | X, theta) of the training data in standard units (of T(y), with a transform), nats.

        Args:
            theta: shape (number of trainable values,): unconstrained values (logarithms of positive parameters) in the
                order of `gp_.named_parameters()`; None for the fitted ones.
            eval_gradient: also the gradient by theta, in the same order.

        Raises:
            NotFittedError: before `fit`.
            ShapeError: for another number of values.
        """
        if not hasattr(self, "posterior_"):
            raise NotFittedError(
                "`log_marginal_likelihood` needs a fitted GPRegressor, got one without data; call fit(X, y) first"
            )
        if theta is None and not eval_gradient:
            return float(self.log_marginal_likelihood_value_)
        trainable = [(name, p) for name, p in self.gp_.named_parameters() if p.requires_grad]
        counts = [p.numel() for _, p in trainable]
        if theta is None:
            theta = [v for _, p in trainable for v in p.detach().reshape(-1).tolist()]
        flat = torch.tensor(np.asarray(theta, dtype=np.float64), requires_grad=eval_gradient)
        if flat.shape != (sum(counts),):
            raise ShapeError(
                f"`theta` must have shape ({sum(counts)},), one value per trainable entry of gp_, got "
                f"{tuple(flat.shape)}; the order is that of gp_.named_parameters()"
            )
        named = {
            name: part.reshape(p.shape).to(p.device, p.dtype)
            for (name, p), part in zip(trainable, flat.split(counts), strict=True)
        }
        gp, x, y = self._distinct()
        value = gp.log_marginal_likelihood(x, y, theta=named, dtype=self._settings().compute_dtype, jitter=self.jitter)
        if not eval_gradient:
            return float(value)
        (gradient,) = torch.autograd.grad(value, flat)
        return float(value.detach()), gradient.numpy()

    # -- parts --------------------------------------------------------------------------------------------------
    def _answers(
        self, X: Any, variance: str = "auto", time_limit: float | None = None
    ) -> "tuple[Prediction, _Answers]":
        """The prediction at X in standard units, and what brings its numbers to the user."""
        prediction, placed, dtype = self._at(X, variance, time_limit)
        targets, outputs = [Number()], None
        if hasattr(self, "posterior_"):
            targets = [cast(Number, one.target) for one in self._fitted.scalings]
            outputs = self.gp_.outputs
        return prediction, _Answers(targets, outputs, dtype, placed)

    def _unfitted(self, columns: int) -> FittedTable:
        """The prior, in standard units."""
        _ = self._settings().asked_approximation
        empty = torch.zeros(0, columns, dtype=torch.float64)
        posterior = self._prior(columns, None, self.likelihood).condition(empty, empty[:, 0], device=self.device)
        return FittedTable(posterior, (Scaling((0.0,) * columns, (1.0,) * columns, Number()),))

    def _likelihood_of(self, gp: GP, kept: npt.NDArray[np.bool_]) -> Gaussian:
        """The likelihood of the rows that are kept. Raises: DomainError for what cannot stand beside each other."""
        likelihood = _gaussian(gp)
        if likelihood.row_variance is not None and self.target_transform not in ("auto", "none"):
            raise DomainError(
                '`target_transform` must be "auto" or "none" beside a row_variance, which is of y itself, got '
                f"{self.target_transform!r}; leave it out"
            )
        if kept.all():
            return likelihood
        likelihood.diagonal(len(kept), torch.device("cpu"))  # has it as many rows as X?
        return likelihood.rows(torch.from_numpy(np.flatnonzero(kept)))

    def _distinct(self) -> tuple[GP, Tensor, Tensor]:
        """gp_ and its data as rows that differ, with the marginal likelihood of all rows."""
        gp, post = self.gp_, self.posterior_
        x, y, likelihood = post.x, post.y, _gaussian(gp)
        if self._repeated:
            assert likelihood.row_weight is not None
            gp = GP(gp.kernel, gp.mean, repeated(likelihood, likelihood.row_weight), gp.outputs)
        if observed(y, gp.outputs) is None and post.replicates is not None:
            rows = join(gp, x, y, post.replicates.group)
            gp, x, y = GP(gp.kernel, gp.mean, rows.likelihood, gp.outputs), rows.x, rows.y
        return gp, x, y

    def _settings(self, seed: int = DEFAULT_SEED) -> TableSettings:
        """Its arguments, checked. Raises: DomainError."""
        if not (self.likelihood is None or isinstance(self.likelihood, Gaussian)):
            raise DomainError(
                "`likelihood` must be None or flashgp.likelihoods.Gaussian, since targets are taken to standard units, "
                f"got {type(self.likelihood).__name__}; fit classes by GPClassifier, or use TableModel(likelihood=)"
            )
        return super()._settings(seed)


@dataclass(frozen=True, eq=False)
class _Answers:
    """Numbers in standard units to what the user gets: units of y, dtype of X, NaN for rows without all values.

    Fields:
        targets: one for each output.
        outputs: columns of y; None where y is a vector.
        dtype: of X.
        placed: which of the rows passed were predicted.
    """

    targets: Sequence[Number]
    outputs: int | None
    dtype: npt.DTypeLike
    placed: Placed

    def __call__(self, values: Tensor, to: Callable[[Number, Any], Any]) -> Array:
        """Values (..., n) or (..., n, p), brought to units of each output."""
        array = values.detach().cpu().numpy()
        array = array if self.outputs is not None else array[..., None]
        return self._shaped([self.placed(to(one, array[..., j])) for j, one in enumerate(self.targets)])

    def moments(
        self, prediction: Prediction, latent: bool, return_std: bool, return_cov: bool
    ) -> Array | tuple[Array, Array]:
        """Mean, and on request deviation or covariance; of a transformed y by quadrature, eq. (M-142)."""
        warped = not all(target.linear for target in self.targets)
        each = self.distributions(prediction, latent) if warped or return_std else ()
        mean = self._shaped([one.mean for one in each]) if each else self(prediction.mean, Number.mean)
        if return_std:
            return mean, self._shaped([one.std for one in each])
        if not return_cov:
            return mean
        joint = prediction.covariance(observed=not latent).detach().cpu().double()
        outputs = self.outputs or 1  # which may share (n, n), or have (outputs, n, n)
        joints = (joint if joint.dim() == 3 else joint.expand(outputs, *joint.shape)).numpy()
        pairs = zip(joints, self.targets, strict=True)
        found = [self.placed(self.placed(one * target.scale**2).T).T for one, target in pairs]
        if warped:
            found = [one.covariance(joint) for one, joint in zip(each, found, strict=True)]
        return mean, self._shaped(found)

    def distributions(self, prediction: Prediction, latent: bool) -> tuple[WarpedNormal, ...]:
        """Distributions of y, one for each output, NaN for rows without all values."""
        variance = prediction.variance if latent else prediction.observation_variance
        means, spreads = (
            self.placed(values.detach().double().reshape(len(values), -1).T)
            for values in (prediction.mean, variance.sqrt())
        )
        return tuple(target.normal(*each) for target, *each in zip(self.targets, means, spreads, strict=True))

    def _shaped(self, columns: Sequence[Array]) -> Array:
        """Columns of the outputs the way the user wants them."""
        return (columns[0] if self.outputs is None else np.stack(columns, axis=-1)).astype(self.dtype)


def _unit_of_variances(scalings: Sequence[Scaling]) -> float:
    """Divisor of variances of rows in units of y squared. Raises: DomainError for outputs that differ."""
    scales = [scaling.target.sizes[1] for scaling in scalings]
    if len({*scales}) > 1:
        raise DomainError(
            "`likelihood` must have no row_variance for outputs that are standardised one by one, got scales "
            f"{', '.join(f'{value:.4g}' for value in scales[:5])}; pass standardise='x', or fit each output by itself"
        )
    return scales[0] ** 2


def _gaussian(gp: Prior) -> Gaussian:
    assert isinstance(gp.likelihood, Gaussian)
    return gp.likelihood
