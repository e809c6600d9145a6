"""Checks of arrays and frames of users, once: to finite float64 arrays, missing rows dropped if asked.

Frames with columns of text, categories or dates are encoded as tables are (`flashgp.table`). Arrays, and frames of
numbers alone, go through scikit-learn's checks.

Weights of rows are relative precisions, eq. (M-251): an overall scale changes nothing, and equal weights mean nothing.
Whole numbers that differ and begin at 1 are counts, as scikit-learn has them: a row of weight w is w equal rows, eq.
(M-87).
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from flashgp.foundations.checks import first_inexact
from flashgp.foundations.errors import DomainError, ShapeError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.likelihoods import Gaussian
from flashgp.likelihoods.gaussian import repeated
from flashgp.table.columns import checked_names
from flashgp.table.inputs import FrameEncoding
from flashgp.table.reading import table_of

# Columns of a frame that are no numbers even if one could force them into one.
NOT_NUMBERS = (nw.String, nw.Categorical, nw.Enum, nw.Datetime, nw.Date, nw.Duration, nw.Time)
_LARGE = (nw.Int64, nw.UInt64, nw.Int128, nw.UInt128)
_LABELS = (str, bytes, bool, np.bool_)


def refuse_repeated_columns(frame: Any, name: str) -> None:
    """ShapeError naming two columns of one name."""
    if not isinstance(frame, Mapping) and hasattr(frame, "columns"):
        checked_names([str(column) for column in frame.columns], name)


def refuse_labels(y: Any) -> None:
    """DomainError for targets of text, categories or booleans; a column without any value is none of them."""
    native = nw.from_native(y, eager_only=True, pass_through=True, allow_series=True)
    if isinstance(native, nw.DataFrame | nw.Series):
        series = [native] if isinstance(native, nw.Series) else list(native.iter_columns())
        kinds = [column.dtype for column in series if column.null_count() < len(column)]
        label = next((kind for kind in kinds if isinstance(kind, (*NOT_NUMBERS, nw.Boolean))), None)
        found = None if label is None else "text" if label == nw.String else str(label)
        array = native.to_numpy() if found is None and nw.Object in kinds else np.empty(0)
    else:
        array, found = np.asarray(y) if not hasattr(y, "toarray") else np.empty(0), None
    if array.dtype.kind in "USb":
        found = "text" if array.dtype.kind in "US" else "booleans"
    elif array.dtype.kind == "O" and found is None:
        found = next(("text" if isinstance(v, str) else "booleans" for v in array.flat if isinstance(v, _LABELS)), None)
    if found is not None:
        raise DomainError(
            f"`y` must hold numbers, got {found}: these look like classes; use flashgp.GPClassifier, or encode "
            "an order as numbers"
        )


def refuse_inexact(values: Any, name: str) -> None:
    """DomainError naming the first whole number that float64 does not hold, and its column."""
    frame = nw.from_native(values, eager_only=True, pass_through=True, allow_series=True)
    columns: list[tuple[str, Any]] = []
    if isinstance(frame, nw.DataFrame):
        columns = [(f" and column {c.name!r}", c) for c in frame.iter_columns() if isinstance(c.dtype, _LARGE)]
    elif isinstance(frame, nw.Series):
        columns = [("", frame)] if isinstance(frame.dtype, _LARGE) else []
    elif not hasattr(values, "toarray"):
        columns = [("", np.asarray(values))]
    for where, column in columns:
        found = first_inexact(column.drop_nulls().to_numpy() if isinstance(column, nw.Series) else column)
        if found is not None:
            index, number = found
            where = where or (f" and column {index[1]}" if len(index) > 1 else "")
            raise DomainError(
                f"`{name}` must hold whole numbers that float64 holds, got {number} at row {index[0] if index else 0}"
                f"{where}, which it merges with its neighbours; subtract one number from the column, or leave it out"
            )


Array = npt.NDArray[np.float64]


def points(estimator: Any, X: Any, *, drop: bool) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.bool_] | None]:
    """Points to predict at, shape (n_test, d), finite, float64 or float32; n_test may be 0.

    Returns: the points; and with `drop`, when points with a NaN were left out (a warning says how many), which of the
        rows passed those are, else None.
    Raises: ValueError for points that do not fit the training data; DomainError naming row and column of a NaN, of a
        category that the training data have not, or a column that is missing.
    """
    array: npt.NDArray[np.floating]
    X = array_of_tensor(X)
    refuse_repeated_columns(X, "X")
    refuse_inexact(X, "X")
    encoding = getattr(estimator, "encoding_", None)
    if encoding is not None:
        array = encoding.numbers(table_of(X, "X"), estimator.unseen)
    else:
        if columns := _text_columns(X):
            raise DomainError(f"`X` must hold numbers as in `fit`, got column {columns}; fit to a frame that has them")
        array = validate_data(
            estimator, X, reset=False, dtype=[np.float64, np.float32], ensure_all_finite=False, ensure_min_samples=0
        )
    present = None
    if drop and (missing := np.isnan(array).any(axis=1)).any():
        warn(
            f"{missing.sum()} of {len(array)} rows have a missing value and get NaN, the first is row "
            f"{np.argmax(missing)}"
        )
        present = ~missing
        array = array[present]
    advice = "fill it in" if drop else 'fill it in, or pass missing="drop" to get NaN for such rows'
    _refuse_non_finite(array, "X", getattr(estimator, "feature_names_in_", None), advice)
    return array, present


def training_rows(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, drop: bool
) -> tuple[npt.NDArray[np.floating], Array, Array | None, npt.NDArray[np.bool_]]:
    """Training data, finite: X (n, d) float64 or float32, y (n,) or (n, p), weights (n,) or None, and which of the
    rows passed those are.

    Sets `encoding_` of the estimator: of a frame with columns that hold no numbers, else None. Rows of weight 0 are
    left out; with `drop`, so are rows with a NaN in X, y or the weight, and a warning says how many. Cells of one of
    several outputs may be NaN, where exact inference gives each its own rows. The arrays may be views of the caller's.
    Raises: ValueError as scikit-learn's checks do; ShapeError, DomainError naming the row and column.
    """
    X, y, sample_weight = array_of_tensor(X), array_of_tensor(y), array_of_tensor(sample_weight)
    for name, values in (("X", X), ("y", y)):
        refuse_repeated_columns(values, name)
    refuse_labels(y)
    for name, values in (("X", X), ("y", y)):
        refuse_inexact(values, name)
    of_y = {"dtype": np.float64, "ensure_all_finite": False, "ensure_2d": False}
    estimator.encoding_ = None
    if _text_columns(X):
        validate_data(estimator, X, y, skip_check_array=True)
        table = table_of(X, "X")
        estimator.encoding_ = FrameEncoding.learn(table, estimator.dates)
        X, y = estimator.encoding_.numbers(table), check_array(y, input_name="y", **of_y)
    else:
        of_x = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
        X, y = validate_data(estimator, X, y, validate_separately=(of_x, of_y))
    y = np.atleast_1d(y)
    check_consistent_length(X, y)
    weight = _weights(sample_weight, len(X))
    kept = np.ones(len(X), dtype=bool)
    cells = _takes_cells(estimator, y)
    if drop:
        kept = _without_missing(X, y, weight, cells=cells)
        X, y, weight = X[kept], y[kept], None if weight is None else weight[kept]
    advice = "fill it in" if drop else 'fill it in, or pass missing="drop" to leave such rows out'
    _refuse_non_finite(X, "X", getattr(estimator, "feature_names_in_", None), advice)
    if cells:
        if (empty := np.isnan(y).all(axis=1)).any():
            raise DomainError(f"`y` must have a value in every row, got none in row {np.argmax(empty)}; {advice}")
        _refuse_non_finite(np.nan_to_num(y, nan=0.0, posinf=np.inf, neginf=-np.inf), "y", None, advice)
    else:
        _refuse_non_finite(y, "y", None, advice)
    if weight is None:
        return X, y, None, kept
    _refuse_non_finite(weight, "sample_weight", None, advice)
    if bool((weight < 0).any()):
        row = int(np.argmax(weight < 0))
        raise DomainError(
            f"`sample_weight` must be 0 or more, got {weight[row]:g} at row {row}; a weight is the relative precision "
            "of a row, such as 1 / variance"
        )
    counted = weight > 0
    if not counted.any():
        raise DomainError(
            f"`sample_weight` must be positive for at least one row, got {len(weight)} zeros; "
            "a row of weight 0 is left out"
        )
    if not counted.all():
        X, y, weight = X[counted], y[counted], weight[counted]
        kept[kept] = counted
    return X, y, weight, kept


def array_of_tensor(values: Any) -> Any:
    """The numbers of a tensor, wherever it is and whether or not it has a gradient; everything else as it is."""
    if not isinstance(values, torch.Tensor):
        return values
    plain = values.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _weights(sample_weight: Any, n: int) -> Array | None:
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Real):
        sample_weight = np.full(n, sample_weight)
    weight = check_array(
        sample_weight, dtype=np.float64, ensure_2d=False, ensure_all_finite=False, input_name="sample_weight"
    )
    if weight.shape != (n,):
        raise ShapeError(
            f"`sample_weight` must have shape ({n},), one per row of X, got {weight.shape}; pass one column"
        )
    return weight


def _takes_cells(estimator: Any, y: Array) -> bool:
    """True if single cells of y may be missing: several outputs with noise of their own, and exact inference."""
    if y.ndim != 2 or y.shape[1] == 1 or estimator.approximation not in (None, "auto"):
        return False
    return not (estimator.likelihood is not None and estimator.likelihood.shared)


def _without_missing(
    X: npt.NDArray[np.floating], y: Array, weight: Array | None, *, cells: bool
) -> npt.NDArray[np.bool_]:
    """Mask of rows without NaN, or with `cells` with at least one target; a warning when there are others."""
    of_y = np.isnan(y).reshape(len(y), -1)
    missing = np.isnan(X).any(axis=1) | (of_y.all(axis=1) if cells else of_y.any(axis=1))
    if weight is not None:
        missing |= np.isnan(weight)
    dropped = int(missing.sum())
    if dropped:
        first = int(np.argmax(missing))
        if dropped == len(missing):
            raise DomainError(
                f"`X` and `y` must have at least one row without a missing value, got {len(missing)} rows that all "
                "have one; leave out the columns that are empty, or fill them in"
            )
        warn(f"{dropped} of {len(missing)} rows have a missing value and were dropped, the first is row {first}")
    return ~missing


def _refuse_non_finite(array: npt.NDArray[np.floating], name: str, columns: Any, advice: str) -> None:
    """DomainError naming the first row and column that holds a NaN or an infinity. Args: advice: for a NaN."""
    # The sum is finite unless an entry is not, or it overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(array))
    if not len(bad):
        return
    place = bad[0]
    value = array[tuple(place)]
    text = "NaN" if np.isnan(value) else "inf" if value > 0 else "-inf"
    where = f"row {place[0]}"
    if len(place) > 1:
        where += f" and column {place[1]}" + ("" if columns is None else f" ({str(columns[place[1]])!r})")
    others = f" ({len(bad)} such entries)" if len(bad) > 1 else ""
    advice = advice if np.isnan(value) else "correct it"
    raise DomainError(f"`{name}` must be finite, got {text} at {where}{others}; {advice}")


def _text_columns(X: Any) -> str:
    """The columns of a frame that hold no numbers, for a message; "" for none."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return ""
    names = [
        f"{name!r} ({dtype})"
        for name, dtype in frame.schema.items()
        if isinstance(dtype, NOT_NUMBERS) or (dtype == nw.Object and any(isinstance(v, str) for v in frame[name]))
    ]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def weighed(likelihood: Gaussian, weight: Array | None) -> tuple[Gaussian, torch.Tensor | None, Event | None]:
    """The likelihood of rows with weights (n,), positive; how often each row counts, (n,), None for once; what the
    weights were taken for.

    Raises: DomainError for weights that differ where there is no trained noise variance that they divide, or whose
        ratios float64 does not hold.
    """
    if weight is None:
        return likelihood, None, None
    least, most = float(weight.min()), float(weight.max())
    if least == most:
        return likelihood, None, None if least == 1.0 else Event(EventKind.WEIGHTS_EQUAL, weight=least)
    if likelihood.noise_variance is None:
        raise DomainError(
            "`sample_weight` needs a noise_variance, which it divides, got weights beside known variances of all rows; "
            "leave it out, or pass likelihood=Gaussian(row_variance=...) with a noise_variance"
        )
    if likelihood.rows_alike and least == 1.0 and bool((weight == np.floor(weight)).all()):
        counts = torch.from_numpy(weight)
        return repeated(likelihood, counts), counts, Event(EventKind.WEIGHTS_COUNTED, rows=len(weight), most=most)
    own = likelihood.row_weight
    relative = likelihood.weighted(
        torch.from_numpy(weight) if own is None else own * torch.from_numpy(weight), likelihood.row_variance
    )
    assert relative.row_weight is not None
    low, high = float(relative.row_weight.min()), float(relative.row_weight.max())
    return relative, None, Event(EventKind.WEIGHTS_RELATIVE, least=low, most=high)
