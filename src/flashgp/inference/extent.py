"""Rows that lie so far apart that a squared distance or a product of two of them is no float64 number: refused."""

import math

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.transforms import is_transformed

__all__ = ["check_answer", "check_extent"]

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
