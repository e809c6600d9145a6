"""Weights, and other numbers of single training rows, of likelihoods whose sites are found by iteration."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.checks import as_float_tensor, check_finite
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.likelihoods.base import Likelihood


class RowNumbers(Likelihood):
    """A likelihood that has numbers of single training rows, or None.

    Class attributes: of_rows: names of weights and of such numbers, arguments of the constructor.
    """

    of_rows: tuple[str, ...] = ("row_weight",)
    row_weight: Tensor | None

    def __init__(self, row_weight: Any, **numbers: Any) -> None:
        super().__init__()
        for name, value in {"row_weight": row_weight, **numbers}.items():
            self.register_buffer(name, None if value is None else _numbers(value, name, name == "row_weight"))
        if self.row_weight is not None and len(self.row_weight) and not bool((self.row_weight > 0.0).any()):
            raise DomainError(
                f"`row_weight` must be positive somewhere, got {len(self.row_weight):,} zeros; leave it out"
            )

    def weight_of(self, y: Float[Tensor, "..."]) -> Float64[Tensor, "..."] | None:
        return self._of(y, "row_weight")

    def _of(self, y: Tensor, name: str) -> Tensor | None:
        value: Tensor | None = getattr(self, name)
        if value is None:
            return None
        count = y.shape[-1 if self.outputs is None else -2]
        if len(value) != count:
            raise ShapeError(
                f"`{name}` must have one entry per training row ({count}), got shape {tuple(value.shape)}; pass it for "
                "the rows you condition on"
            )
        return value.to(y.device)

    @property
    def rows_alike(self) -> bool:
        return all(getattr(self, name) is None for name in self.of_rows)

    @property
    def numbers_of_rows(self) -> tuple[str, ...]:
        return tuple(name for name in self.of_rows[1:] if getattr(self, name) is not None)

    def rows(self, index: Tensor) -> Self:
        return self._with_each(lambda values: values[index.to(values.device)])

    def by_rows(self, function: Callable[[Tensor], Tensor]) -> Self:
        return self._with_each(function)

    @property
    def row_tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.of_rows if getattr(self, name) is not None}

    @property
    def of_read(self) -> tuple[str, ...]:
        return type(self).of_rows

    def read(self, numbers: Mapping[str, Any], place: str) -> dict[str, Any]:
        found = super().read(numbers, place)
        of = f" of {place}" if place else ""
        return {name: _numbers(value, name + of, name == "row_weight") for name, value in found.items()}

    def with_rows(self, **numbers: Any) -> Self:
        found = self._with_each(lambda values: None)
        for name, value in numbers.items():
            setattr(found, name, _numbers(value, name, name == "row_weight"))
        return found

    def with_numbers(self, **numbers: Any) -> Self:
        self.refuse_unknown(numbers)
        return self.with_rows(**numbers)

    def refuse_unknown(self, numbers: Mapping[str, Any]) -> None:
        """Raises: DomainError for a number that its rows do not have."""
        unknown = sorted(numbers.keys() - {*self.of_read[1:]})
        if unknown:
            known = ", ".join(self.of_read[1:]) or "none"
            raise DomainError(f"`{unknown[0]}` is no number of rows of {self.name}, which has {known}; leave it out")

    def of_new_rows(self, n: int, more: int, row_variance: Any, row_weight: Any, numbers: Mapping[str, Any]) -> Self:
        if row_variance is not None:
            Likelihood.extended(self, n, more, row_variance)
        given = {name: value for name, value in numbers.items() if value is not None}
        new = self.with_numbers(**given)
        if row_weight is not None or self.row_weight is not None:
            new.row_weight = _numbers(torch.ones(more) if row_weight is None else row_weight, "row_weight", True)
        for name in self.of_rows:
            rows, before = getattr(new, name), getattr(self, name) is not None
            if rows is not None and len(rows) != more:
                raise ShapeError(
                    f"`{name}` must have one entry per new row ({more}), got shape {tuple(rows.shape)}; pass it for "
                    "the new rows only"
                )
            if name != "row_weight" and before != (rows is not None):
                got = f"that of the {n:,} before alone" if before else f"none of the {n:,} before"
                way = f"pass {name}= with them" if before else "condition on all rows again with that of all of them"
                raise DomainError(f"`{name}` must be known of all rows or of none, got {got}; {way}")
        return new

    def extended(self, n: int, more: int, row_variance: Any = None, row_weight: Any = None) -> Self:
        return self.followed_by(self.of_new_rows(n, more, row_variance, row_weight, {}), n, more)

    def followed_by(self, others: Likelihood, n: int, more: int) -> Self:
        longer = self._with_each(lambda values: values)
        for name in self.of_rows:
            parts = (getattr(self, name), n), (getattr(others, name), more)
            if any(part is not None for part, _ in parts):
                ones = [torch.ones(size, dtype=torch.float64) if part is None else part.cpu() for part, size in parts]
                setattr(longer, name, torch.cat(ones))
        return longer

    def _with_each(self, function: Callable[[Tensor], Tensor | None]) -> Self:
        """A copy with a function of each tensor of rows; parameters are shared."""
        same = copy.copy(self)
        same._modules, same._buffers = {**self._modules}, {**self._buffers}
        for name in self.of_rows:
            value = getattr(self, name)
            setattr(same, name, None if value is None else function(value))
        return same


def _numbers(value: Any, name: str, zero: bool) -> Float64[Tensor, "n"]:
    """Numbers of rows, positive or also 0. Raises: DomainError, ShapeError."""
    rows = as_float_tensor(value, name).detach().double().clone()
    if rows.dim() != 1:
        raise ShapeError(f"`{name}` must have shape (n,), got {tuple(rows.shape)}; pass one number for each row")
    check_finite(rows, name)
    wrong = rows < 0.0 if zero else rows <= 0.0
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise DomainError(
            f"`{name}` must be {'0 or more' if zero else 'positive'}, got {float(rows[row]):g} at row {row}; correct "
            "it, or leave that row out"
        )
    return rows
