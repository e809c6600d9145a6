"""Numbers that are none: parameters that overflow, modules that return nan, rows whose squared distance is infinite."""

import math

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.transforms import is_transformed
from flashgp.inference.prior import Prior

LARGEST = torch.finfo(torch.float64).max / 4.0  # a difference is up to twice the larger of two numbers


def check_extent(form: Form, rows: Rows, name: str) -> None:
    """Raises: DomainError naming the argument and the first row that is too far out. Cost: a look at every number."""
    for kind, feature in zip(form.statistics, rows.features, strict=True):
        if kind not in ("distance", "product") or not feature.numel() or _hidden(feature):
            continue
        far = feature.detach().double().abs().amax(-1)
        largest = float(far.max())
        if feature.shape[-1] * largest * largest > LARGEST:
            row = int((far == largest).nonzero()[0][-1])
            by, way = (
                ("divided by the lengthscale", "raise it")
                if kind == "distance"
                else ("times the root of the slope variance", "lower it")
            )
            raise DomainError(
                f"`{name}` {by} must have a square that float64 holds, got {largest:.3g} at row {row}; divide each "
                f"column by its standard deviation, or {way}"
            )


def check_rows(rows: Rows, name: str) -> None:
    """Raises: DomainError naming the first row that a kernel has no finite features for. Cost: as `check_extent`."""
    for tensor, dims in (*((f, 2) for f in rows.features), *((a, 1) for a in rows.scalars)):
        row = _first_not_finite(tensor, dims)
        if row is not None:
            raise DomainError(
                f"`{name}` must have finite features in the kernel, got what is none at row {row}; check what its "
                "module or function makes of that row, and their weights"
            )


def check_residual(residual: Tensor) -> None:
    """Raises: DomainError naming the first row whose y minus the mean, (*batch, n, p), is no number."""
    row = _first_not_finite(residual, 2)
    if row is not None:
        raise DomainError(
            f"`mean` must return finite numbers, got y minus the mean that is none at row {row}; check the module "
            "and its weights there"
        )


def _first_not_finite(values: Tensor, dims: int) -> int | None:
    """The row of the first number that is none, of a tensor whose rows stand so many dimensions from the end."""
    if _hidden(values) or not values.is_floating_point() or math.isfinite(float(values.detach().double().sum())):
        return None
    wrong = values.detach().isfinite().logical_not()
    return int(wrong.nonzero()[0][-dims]) if bool(wrong.any()) else None


def check_likelihood(prior: Prior, x: Tensor, y: Tensor, value: Tensor) -> None:
    """Raises: DomainError with the reason why a log likelihood is no number. Cost: where it is one, a look at it."""
    if _hidden(value) or bool(value.detach().isfinite().all()):
        return
    with torch.no_grad():
        rows = prior.kernel.rows(x)
        check_rows(rows, "x")
        check_extent(prior.kernel.form, rows, "x")
        check_residual(prior.residual(x, prior.sites(y).targets.nan_to_num(nan=0.0)))  # where cells are missing
    wrong = value.detach()[value.detach().isfinite().logical_not()]
    raise DomainError(
        f"`x` and `y` must have a log likelihood that float64 holds under this model, got {float(wrong[0])}; scale y, "
        "or check what the kernel makes of these rows"
    )


def check_answer(values: Tensor, name: str) -> None:
    """Raises: DomainError naming the first point at which a mean or variance (*batch, n_test, outputs) is none."""
    if _hidden(values) or math.isfinite(float(values.detach().sum())):  # sooner than to look at each number
        return
    wrong = ~values.detach().isfinite()
    if not bool(wrong.any()):  # the sum alone overflows
        return
    row = int(wrong.nonzero()[0][-2])
    raise DomainError(
        f"`{name}` must be points at which covariances are float64 numbers, got one without mean or variance at row "
        f"{row}; ask nearer to the training rows"
    )


def _hidden(values: Tensor) -> bool:
    return values.is_meta or is_transformed(values)
