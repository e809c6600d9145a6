"""GPClassifier: Gaussian process classification of arrays and frames behind scikit-learn's estimator contract.

Labels become codes of a Bernoulli likelihood, or of a Categorical one; probabilities come back. Its model files are
`flashgp.model_files`' matter.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import nn

from flashgp.estimator_base import Array, RandomState, TableEstimator
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.kernels import Kernel
from flashgp.likelihoods import Bernoulli, Categorical
from flashgp.scores import ClassAnswers
from flashgp.table.arrays import array_of_tensor, training_rows
from flashgp.table_fit import TrainingRows
from flashgp.targets import Classes, likelihood_of_classes
from flashgp.units import Scaling


class GPClassifier(ClassifierMixin, TableEstimator):
    """Gaussian process classification as a scikit-learn estimator.

    Of two classes a latent function f with a Gaussian process prior gives the second of `classes_` the probability
    Phi(f), or a logistic one; of more each class has a function, and their softmax is the probability. Inside, every
    column of X has mean 0 and standard deviation 1, or all together where they are in one unit, as in `GPRegressor`,
    which explains frames, categories and dates too; `kernel`, `gp_` and `posterior_` are in these units. Nothing passed
    in is ever changed.

    Args:
        kernel: as of `GPRegressor`, but for "auto".
        mean: of f, a flashgp mean or any nn.Module; None for a constant.
        likelihood: `flashgp.likelihoods.Bernoulli`, such as Bernoulli(link="logit"), or Categorical; None for the
            default of so many classes.
        class_weight: weights of the classes, which multiply those of their rows: None for 1; "balanced" for ones that
            make all count alike; or a dict from labels. Of more than two classes they are whole numbers.
        standardise: "x" or "none": whether X is put in standard units.
        optimise: False keeps every parameter as given.
        initial: as `flashgp.fit`.
        priors: as `flashgp.fit`.
        starts: as `flashgp.fit`.
        max_iterations: as `flashgp.fit`.
        time_limit: as `flashgp.fit`.
        missing: "error"; or "drop" to leave out training rows with a NaN or without a label, and to answer NaN (of
            labels None) for such rows of X, with a warning that says how many.
        unseen: as of `GPRegressor`.
        dates: as of `GPRegressor`.
        memory: budget like "8GiB"; None for what is free.
        device: "auto" for an accelerator when there is one, or a torch device.
        tolerance: of the mean, as `GP.condition`.
        jitter: as `GP.condition`.
        random_state: as of `GPRegressor`.
        deterministic: as of `GPRegressor`.
        approximation: as of `GPRegressor`.
        inducing: as of `GPRegressor`.
        neighbours: as of `GPRegressor`.

    Attributes:
        classes_: labels, sorted.
        gp_: the fitted prior, in units of standardised X.
        kernel_: its kernel.
        posterior_: of f, likewise.
        log_marginal_likelihood_value_: nats; a bound or an approximation, as the posterior's.
        report_: of the fit.
        history_: of the fit.
        X_train_: as passed, columns of a frame as numbers; rows that were dropped or weigh 0 are left out.
        y_train_: labels of the rows of `X_train_`.
        encoding_: as of `GPRegressor`.
        scaling_: of X, with the labels.
        n_features_in_: as in scikit-learn.
        feature_names_in_: as in scikit-learn.

    Example:
        >>> import numpy as np
        >>> import flashgp as fgp
        >>> X = np.linspace(0.0, 6.0, 40)[:, None]
        >>> model = fgp.GPClassifier().fit(X, np.where(np.sin(X[:, 0]) > 0.0, "up", "down"))
        >>> model.predict([[1.5], [4.5]]).tolist(), model.classes_.tolist()
        (['up', 'down'], ['down', 'up'])
        >>> model.predict_proba([[1.5]]).round(1).tolist()
        [[0.0, 1.0]]
    """

    units = "standardised X; GPClassifier.predict_proba answers for labels"

    @usual_names_refused
    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        mean: nn.Module | None = None,
        likelihood: Bernoulli | Categorical | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        standardise: Literal["x", "none"] = "x",
        optimise: bool = True,
        initial: Literal["data", "given"] = "data",
        priors: Literal["weak", "given"] = "weak",
        starts: int | None = None,
        max_iterations: int = 200,
        time_limit: float | None = None,
        missing: Literal["error", "drop"] = "error",
        unseen: Literal["error", "new"] = "error",
        dates: Literal["dmy", "mdy"] | None = None,
        memory: str | int | None = None,
        device: str | torch.device | None = "auto",
        tolerance: float = 1e-3,
        jitter: float | None = None,
        random_state: RandomState = None,
        deterministic: bool = False,
        approximation: str | None = None,
        inducing: int | str = "auto",
        neighbours: int | str = "auto",
    ) -> None:
        self._keep(locals())

    # -- learning -----------------------------------------------------------------------------------------------
    def _refit(self, X: Any, y: Any, sample_weight: Any, deadline: Deadline) -> "GPClassifier":
        if not (self.likelihood is None or isinstance(self.likelihood, Bernoulli | Categorical)):
            raise DomainError(
                "`likelihood` must be None, flashgp.likelihoods.Bernoulli or Categorical, got "
                f"{type(self.likelihood).__name__}; fit numbers by GPRegressor, or a flashgp.GP by flashgp.fit"
            )
        _ = self._settings().asked_approximation
        classes, codes = _coded(y, drop=self.missing == "drop")
        X, codes, weight, kept = training_rows(self, X, codes, sample_weight, drop=self.missing == "drop")
        _check_classes(classes, codes)
        gp = self._prior(X.shape[1], None, likelihood_of_classes(len(classes), self.likelihood))
        each, own = self._class_weights(classes, codes), getattr(gp.likelihood, "row_weight", None)
        parts = [part for part in (weight, each, None if own is None else own.numpy()[kept]) if part is not None]
        self._weighted = own is None
        table = np.column_stack([X.astype(np.float64), codes])
        table, first, weights = _distinct(table, np.prod(parts, axis=0) if parts else None)
        if weights is not None:
            gp.likelihood = gp.likelihood.with_rows()
            gp.likelihood.row_weight = torch.from_numpy(weights)
        rows = TrainingRows(
            table[:, :-1], table[:, -1:], [*self._names(X.shape[1]), "the target"], np.flatnonzero(kept)[first],
            counts=None if weights is None else torch.from_numpy(weights), countable=False,
        )  # fmt: skip
        self._set(*self._fit_rows(gp, rows, deadline, [], target=Classes(tuple(classes.tolist()))))
        self.classes_, self.X_train_, self.y_train_ = classes, np.array(X), classes[codes.astype(np.int64)]
        return self

    def _class_weights(self, classes: npt.NDArray[Any], codes: Array) -> Array | None:
        """Weights of the classes of rows, (n,). Raises: DomainError for weights that are none."""
        if self.class_weight is None:
            return None
        labels = classes[codes.astype(np.int64)]
        try:
            each = np.asarray(compute_class_weight(self.class_weight, classes=classes, y=labels), np.float64)
        except (ValueError, TypeError) as error:
            raise DomainError(
                f'`class_weight` must be None, "balanced" or a dict with a weight for each label, got '
                f"{self.class_weight!r}; {error}"
            ) from None
        wrong = next((k for k, value in enumerate(each) if not 0.0 < value < np.inf), None)
        if wrong is not None:
            raise DomainError(
                f"`class_weight` must be positive and finite, got {each[wrong]:g} for the class {classes[wrong]!r}; "
                "leave it out, or correct it"
            )
        return np.asarray(each[codes.astype(np.int64)])

    # -- answers ------------------------------------------------------------------------------------------------
    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable label at each row of X, (n_test,); None in rows that were left out.

        Args:
            X: shape (n_test, d), finite.

        Raises:
            NotFittedError: before `fit`.
            ValueError: for X that does not fit the training data.
        Cost: as `predict_proba`.
        """
        answers, _ = self._probabilities(X)
        return answers.label if not answers.predicted.all() else np.array(answers.label.tolist(), self.classes_.dtype)

    def predict_proba(self, X: Any) -> Array:
        """Probability of each class at each row of X, (n_test, classes), in the order of `classes_`.

        Args:
            X: as `predict`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: as `predict`.
        Cost: n^2 n_test flops, as variances of `Posterior.predict`.
        """
        answers, dtype = self._probabilities(X)
        return answers.probability.astype(dtype)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of `predict_proba`, exact where probabilities round to 0 or 1.

        Args:
            X: as `predict`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: as `predict`.
        """
        answers, dtype = self._probabilities(X)
        return answers.log_probability.astype(dtype)

    def decision_function(self, X: Any) -> Array:
        """Log odds of the second class at each row of X, (n_test,): positive where it is the more probable; of more
        than two classes their log probabilities, (n_test, classes).

        Args:
            X: as `predict`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: as `predict`.
        """
        answers, dtype = self._probabilities(X)
        logs = answers.log_probability
        return (logs if len(self.classes_) > 2 else np.diff(logs)[:, 0]).astype(dtype)

    @property
    def scaling_(self) -> Scaling:
        """Map of X to the units of `posterior_`, with the labels."""
        return self._fitted.scaling

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = True
        return tags

    # -- parts --------------------------------------------------------------------------------------------------
    def _probabilities(self, X: Any) -> tuple[ClassAnswers, Any]:
        """Answers at X, and its dtype."""
        prediction, placed, dtype = self._at(X)
        (scaling,) = self._fitted.scalings
        assert isinstance(scaling.target, Classes)
        with torch.no_grad():
            return scaling.target.answers(prediction.distribution, placed), dtype


def _coded(y: Any, *, drop: bool) -> tuple[npt.NDArray[Any], Array]:
    """Labels, sorted, and the position of each y among them, (n,), NaN where there is none and rows are dropped.

    Raises: DomainError naming the row without a label; ValueError as scikit-learn for what is no column of labels.
    """
    labels = column_or_1d(array_of_tensor(y), warn=True)
    given = np.array([one is not None and one == one for one in labels.tolist()], dtype=bool)
    if not given.all() and not drop:
        row = int(np.argmin(given))
        raise DomainError(
            f"`y` must have a label in every row, got {labels[row]} at row {row}; fill it in, or pass "
            'missing="drop" to leave such rows out'
        )
    found = labels[given]
    kinds = sorted({"text" if isinstance(one, str) else "others" for one in found.tolist()})
    if len(kinds) > 1:
        raise DomainError("`y` must have labels of one kind, got text and others; write all of them as text")
    if found.dtype == object and kinds == ["others"]:  # such as bool of a column that had gaps
        found = np.array(found.tolist())
    check_classification_targets(found)
    codes = np.full(len(labels), np.nan)
    classes, codes[given] = np.unique(found, return_inverse=True)
    return classes, codes


def _check_classes(classes: npt.NDArray[Any], codes: Array) -> None:
    """Raises: DomainError unless the rows are of two classes at least."""
    found = classes[np.unique(codes).astype(np.int64)].tolist()
    if len(found) < 2:
        raise DomainError(
            f"`y` must have rows of two classes whose weight is not 0, got 1 class, {found[0]!r}, in {len(codes)} "
            "rows; add rows of another class"
        )


def _distinct(
    table: npt.NDArray[np.float64], weight: Array | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.float64] | None]:
    """Rows that differ, (u, d + 1), the first of each among all, (u,), and weights, (u,), None for 1.

    Equal rows of one class are one row of their weights together, which says the same.
    """
    found, first, group = np.unique(table, axis=0, return_index=True, return_inverse=True)
    if weight is None and len(found) == len(table):
        return table, np.arange(len(table)), None
    return found, first, np.bincount(group.reshape(-1), weight, len(found)).astype(np.float64)
