"""What estimators of arrays and frames share: a fit that leaves nothing behind where it fails, units, weights, answers.

What they are given becomes finite numbers (`flashgp.table.arrays`), which are fitted as tables are
(`flashgp.table_fit`). Frames go through scikit-learn and narwhals: neither pandas nor polars is imported.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state

from flashgp.fitted_table import FittedTable, TableSettings
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event
from flashgp.inference.gp import GP
from flashgp.inference.judgement.verdict import Verdict
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.importance import Importance, ImportanceSettings
from flashgp.inference.predict.prediction import Prediction
from flashgp.kernels.default import default_for
from flashgp.means import Linear as LinearMean
from flashgp.table import FrameEncoding, time_position
from flashgp.table.arrays import points
from flashgp.table_fit import Prepared, TrainingRows, best_kernel, check_kernel, fit_options, standard_rows
from flashgp.targets import NUMBER, Placed, Target
from flashgp.units import Scaling

Array = npt.NDArray[np.floating[Any]]
RandomState = int | np.random.RandomState | np.random.Generator | None

DEFAULT_SEED = 0
_OWN = ("kernel", "kernel_argument", "likelihood", "seed")
_SETTINGS = tuple(one.name for one in fields(TableSettings) if one.name not in _OWN)


class TableEstimator(BaseEstimator):
    """Base of the estimators; parameters and attributes are those of each."""

    units: ClassVar[str]  # of posterior_
    kernel: Any
    mean: Any
    likelihood: Any
    optimise: bool
    missing: str
    time_limit: float | None
    random_state: RandomState
    uncertainty: str | None = None
    _evidence: float | None = None
    _repeated = False
    _weighted = False

    def _keep(self, given: Mapping[str, Any]) -> None:
        """Keep the arguments of the constructor as they are."""
        for name, value in given.items():
            if name != "self":
                setattr(self, name, value)

    # -- learning -----------------------------------------------------------------------------------------------
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the parameters and condition on the data.

        Args:
            X: shape (n, d), an array or a frame.
            y: shape (n,) or (n, p).
            sample_weight: shape (n,), 0 or more: relative precisions, or counts where they are whole numbers that
                differ and begin at 1; rows of weight 0 are left out. None for rows that are alike.

        Returns:
            self.

        Raises:
            ShapeError: a ValueError, for data of shapes that do not fit.
            DomainError: a ValueError, for other data that do not fit.
            MemoryBudgetError: as `flashgp.fit`.
            NotPositiveDefiniteError: as `flashgp.fit`.
        Cost: as `flashgp.fit`, with n the number of distinct rows.
        """
        deadline, before = Deadline.after(self.time_limit), dict(self.__dict__)
        try:
            return self._refit(X, y, sample_weight, deadline)
        except BaseException:  # a posterior with the units of other data would answer wrongly
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    @abstractmethod
    def _refit(self, X: Any, y: Any, sample_weight: Any, deadline: Deadline) -> Self:
        """`fit`, which leaves attributes of two fits behind where it fails."""

    def _fit_rows(
        self,
        gp: GP,
        rows: TrainingRows,
        deadline: Deadline,
        told: Sequence[Event | None],
        *,
        target: Target = NUMBER,
    ) -> tuple[FittedTable, GP]:
        """The fitted table of training rows, and the fitted prior.

        Args: gp, in standard units; told, events of what came before; target, whose units are learned.
        """
        settings = self._settings(self._seed() if self.optimise else DEFAULT_SEED)
        asked = settings.asked_approximation
        choices = [*rows.findings(settings.target_transform, gp), *(event for event in told if event is not None)]
        trained = self.optimise and any(p.requires_grad for p in gp.parameters())
        options = fit_options(settings, deadline) if trained else None
        standard = standard_rows(
            gp, rows, settings.target_transform, options, target=target, standardise=settings.standardise
        )
        choices += standard.events
        gp.likelihood = self._in_units(gp.likelihood, standard.scalings)
        if self.kernel == "auto":
            inputs = None if self.encoding_ is None else self.encoding_.inputs
            time = time_position(inputs) if inputs is not None else 0 if rows.x.shape[1] == 1 else None
            gp, _, event = best_kernel(gp, tuple(self._categories), time, standard, options)
            choices.append(event)
        data = standard.x, standard.y
        fitted = Prepared(settings, gp, standard.scalings, data, options, asked, tuple(choices)).fit(
            self.units, deadline
        )
        posterior, self.history_, self.report_ = fitted.posterior, [], fitted.posterior.report
        if fitted.fit is not None:
            gp, self.history_, self.report_ = fitted.fit.gp, fitted.fit.history, fitted.fit.report
        self._learned: Posterior | None = posterior
        self._evidence = None
        if deadline.limit is None or not posterior.state.by_solves:  # else it takes passes over the pairs
            _ = self.log_marginal_likelihood_value_
        return fitted, gp

    def _in_units(self, likelihood: Any, scalings: Sequence[Scaling]) -> Any:
        """The likelihood with what it has in units of y taken to those of the fit."""
        return likelihood

    def _set(self, fitted: FittedTable, gp: GP) -> None:
        self._fitted, self.gp_, self.kernel_, self.posterior_ = fitted, gp, gp.kernel, fitted.posterior

    def restore(self, fitted: FittedTable, gp: GP, evidence: float | None, *, repeated: bool, weighted: bool) -> Self:
        """Become what a file says was fitted: fitted table and prior, log marginal likelihood (None for one to be
        computed), whether weights stand for repetitions and whether `fit` was given them; the encoding is the
        estimator's already."""
        self._repeated, self._weighted, self._evidence = repeated, weighted, evidence
        self._learned = fitted.posterior if evidence is None else None
        self.history_, self.report_ = [], fitted.posterior.report
        self._set(fitted, gp)
        return self

    @property
    def log_marginal_likelihood_value_(self) -> float:
        """The log marginal likelihood of y in standard units, nats.

        Without a factor it is estimated, and its standard error goes to `report_`: after a `fit` with a time limit when
        it is first asked for.

        Raises:
            NotFittedError: before `fit`.
        Cost: as `Posterior.log_marginal_likelihood`.
        """
        if not hasattr(self, "posterior_") and not hasattr(self, "_learned"):
            raise NotFittedError("call `fit` first: the log marginal likelihood is of training data")
        if self._learned is not None:
            posterior = self._learned
            self._evidence, self._learned = float(posterior.log_marginal_likelihood()), None
            if self.report_ is not posterior.report:  # without a factor the value has a standard error
                self.report_.standard_error = posterior.report.standard_error
                self.report_.events += [e for e in posterior.report.events if e not in self.report_.events]
        assert self._evidence is not None
        return self._evidence

    # -- answers ------------------------------------------------------------------------------------------------
    def importance(
        self,
        groups: Mapping[str, int | Sequence[int]] | None = None,
        *,
        rows: int | None = None,
        permutations: int | None = None,
        seed: int = 0,
    ) -> Importance:
        """Importance of the columns of X: the loss of accuracy of held-out training rows where one is permuted.

        Args:
            groups: names with the columns of X, from 0, that are permuted together, such as those of one category that
                was encoded before; every column by itself by default, under its name in a frame.
            rows: as `Posterior.importance`.
            permutations: as `Posterior.importance`.
            seed: as `Posterior.importance`.

        Returns:
            A `flashgp.Importance`, with `rmse` in units of y; of several outputs, of each.

        Raises:
            NotFittedError: before `fit`.
            DomainError: as `Posterior.importance`.
        Cost: as `Posterior.importance`.

        Example:
            >>> X = np.random.default_rng(0).uniform(size=(60, 2))
            >>> found = fgp.GPRegressor().fit(X, np.sin(6.0 * X[:, 0])).importance()
            >>> found.names[found.order[0]]
            'x1'
        """
        if not hasattr(self, "posterior_"):
            raise NotFittedError("call `fit` first: the importance is of a fitted model")
        if groups is None and hasattr(self, "feature_names_in_"):
            groups = {str(name): j for j, name in enumerate(self.feature_names_in_)}
        return self._fitted.importance(groups, ImportanceSettings(rows=rows, permutations=permutations, seed=seed))

    @property
    def scaling_(self) -> Scaling | tuple[Scaling, ...]:
        """Map of data to the standard units of `posterior_` and of answers back; one per output when y had columns."""
        return self._fitted.scalings[0] if self.gp_.outputs is None else self._fitted.scalings

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = self.missing == "drop"
        return tags

    @property
    def verdict_(self) -> Verdict:
        """How good the predictions are, by leave-one-out, in units of y, and what to check. Never raises.

        Cost: that of leave-one-out, when first asked for.
        """
        if not hasattr(self, "posterior_"):
            raise NotFittedError("call `fit` first: the verdict is on a fitted model")
        return self._fitted.verdict

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    @property
    def _categories(self) -> dict[int, str]:
        """Names of the columns of X that hold categories, by position."""
        encoding: FrameEncoding | None = getattr(self, "encoding_", None)
        return {} if encoding is None else encoding.categories

    # -- parts --------------------------------------------------------------------------------------------------
    def _at(self, X: Any, variance: str = "auto", time_limit: float | None = None) -> tuple[Prediction, Placed, Any]:
        """The prediction at X in standard units, which rows of X it is of, and their dtype."""
        X, present = points(self, X, drop=self.missing == "drop")
        count = len(X) if present is None else len(present)
        placed = Placed(np.arange(count) if present is None else np.flatnonzero(present), count)
        fitted = self._fitted if hasattr(self, "posterior_") else self._unfitted(X.shape[1])
        return fitted.predict(X, variance=variance, time_limit=time_limit), placed, X.dtype

    def _unfitted(self, columns: int) -> FittedTable:
        """What answers before `fit`. Raises: NotFittedError."""
        raise NotFittedError(f"call `fit` first: this {type(self).__name__} has no data")

    def _prior(self, columns: int, outputs: int | None, likelihood: Any, rows: int = 0) -> GP:
        """The GP to fit to so many rows, made of copies; copied together, so that a parameter they share stays shared.

        Raises: DomainError for what cannot stand beside each other.
        """
        kernel, mean, likelihood = copy.deepcopy((self.kernel, self.mean, likelihood))
        if kernel is None or kernel == "auto":
            drawn = self.uncertainty if self.optimise and kernel is None else None
            kernel = default_for(likelihood, rows, columns, drawn, self.approximation).build(
                columns, tuple(self._categories)
            )
        gp = GP(kernel, mean, likelihood, outputs)
        check_kernel(gp.kernel, self._categories, columns)
        if self._categories and isinstance(gp.mean, LinearMean):
            raise DomainError(
                f"`mean` must not be linear in codes of categories, got Linear beside {[*self._categories.values()]}; "
                "use flashgp.means.Constant() with a Linear kernel over the numbers"
            )
        return gp

    def _names(self, columns: int) -> list[str]:
        """Names of the columns of X."""
        if hasattr(self, "feature_names_in_"):
            return [str(name) for name in self.feature_names_in_]
        return [f"x{j + 1}" for j in range(columns)]

    def _settings(self, seed: int = DEFAULT_SEED) -> TableSettings:
        """Its arguments, checked. Raises: DomainError."""
        return TableSettings(seed=seed, **{name: getattr(self, name) for name in _SETTINGS if hasattr(self, name)})

    def _seed(self) -> int:
        return DEFAULT_SEED if self.random_state is None else drawn_seed(self.random_state)


def drawn_seed(random_state: RandomState) -> int:
    """A seed drawn from what scikit-learn or NumPy takes for one. Raises: DomainError."""
    most = np.iinfo(np.int32).max
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(most))
    try:
        return int(check_random_state(random_state).randint(most))
    except ValueError:
        raise DomainError(
            f"`random_state` must be a whole number from 0 to {2**32 - 1}, a numpy.random.Generator, a RandomState or "
            f"None, got {random_state!r}; for example 0"
        ) from None
