"""Standard units: what columns are shifted and divided by, the transform of the target, and rows in these units.

One definition for `GPRegressor` and `TableModel`. `Units` are learned from training rows; `standard_rows` also chooses
the transform of each target. Does not do: the choice of a transform itself (`flashgp.target_choice`).
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event
from flashgp.inference.gp import GP
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.training.options import FitOptions
from flashgp.kernels import Constant, Kernel, Warped
from flashgp.standardise import ColumnScaling, Scaling
from flashgp.target_choice import choose_transform
from flashgp.target_transform import TargetTransform

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Units:
    """Fields: x, of every column of X; y, of every output after its transform; transforms, one for each output."""

    x: ColumnScaling
    y: ColumnScaling
    transforms: tuple[TargetTransform, ...]

    @classmethod
    def identity(cls, columns: int) -> "Units":
        """Those of an estimator without data, with one output."""
        return cls(ColumnScaling.identity(columns), ColumnScaling.identity(1), (TargetTransform(),))

    @classmethod
    def learn(
        cls,
        prior: Prior,
        x: _Numbers,
        y: _Numbers,
        transforms: tuple[TargetTransform, ...],
        counts: Tensor | None,
        *,
        countable: bool,
        standardise: str,
    ) -> "Units":
        """From the distinct rows: a weight and a repetition then agree to the last bit.

        Args:
            prior: whose kernel says which columns hold codes.
            x: shape (n, d).
            y: shape (n, p), of every output after its transform; NaN where a cell is missing.
            transforms: of the outputs.
            counts: shape (n,), how often each row counts; None for once.
            countable: whether equal rows may be joined.
            standardise: "both", "x", "y" or "none".
        """
        weight, within = None if counts is None else counts.numpy(), None
        missing = np.isnan(y).any()
        if countable and not missing:
            rows_x, rows_y = torch.from_numpy(x), torch.from_numpy(y if prior.outputs is not None else y[:, 0])
            group = equal_rows(prior, rows_x, rows_y)
            if group is not None:
                rows = join(prior, rows_x, rows_y, group)
                means = rows.y.reshape(len(rows.y), -1).numpy()
                squares = np.square(y - means[group.numpy()])
                within = (squares if weight is None else weight[:, None] * squares).sum(axis=0)
                assert rows.likelihood.counts is not None
                x, y, weight = rows.x.numpy(), means, rows.likelihood.counts.numpy()
        of_x = units_of_inputs(x, weight, prior.kernel, standardise)
        if standardise not in ("both", "y"):
            return cls(of_x, ColumnScaling.identity(y.shape[1]), transforms)
        of_y = ColumnScaling.of_present(y) if missing else ColumnScaling.of(y, weight, within)
        # A constant target says nothing about spread; its own size is the only scale there is.
        size = np.where(of_y.constant & (of_y.offset != 0), np.abs(of_y.offset), of_y.scale)
        return cls(of_x, ColumnScaling(of_y.offset, size, of_y.constant), transforms)

    @property
    def warped(self) -> bool:
        """Whether any output has a transform."""
        return not all(transform.identity for transform in self.transforms)

    def mean_of(self, mean: Tensor, std: Tensor) -> Tensor:
        """The mean of y where its standardised values are normal, eq. (M-142); float64, (..., p)."""
        each = (scaling.mean_of(mean[..., j], std[..., j]) for j, scaling in enumerate(self.scalings()))
        return torch.stack(list(each), dim=-1)

    def scalings(self) -> tuple[Scaling, ...]:
        """As values that print and are kept in files, one for each output."""
        shift, scale = tuple(self.x.offset.tolist()), tuple(self.x.scale.tolist())
        outputs = zip(self.y.offset.tolist(), self.y.scale.tolist(), self.transforms, strict=True)
        return tuple(Scaling(shift, scale, *output) for output in outputs)


def units_of_inputs(x: _Numbers, weight: _Numbers | None, kernel: Kernel, standardise: str) -> ColumnScaling:
    """Of the columns of X; those that hold integer codes for this kernel stay as they are."""
    if standardise not in ("both", "x"):
        return ColumnScaling.identity(x.shape[1])
    return ColumnScaling.of(x, weight).keeping(_code_columns(kernel, x.shape[1]))


def _code_columns(kernel: Kernel, columns: int) -> list[int]:
    """The columns of x that hold integer codes for this kernel."""
    if isinstance(kernel, Warped):
        return []  # what its parts see is the module's
    if kernel.parts:
        return sorted({c for part in kernel.parts for c in _code_columns(part, columns)})
    if "match" not in kernel.form.statistics:
        return []
    dims = getattr(kernel, "active_dims", None)
    return list(range(columns)) if dims is None else [c % columns for c in dims]


@dataclass(frozen=True, eq=False)
class StandardRows:
    """Training rows as they are modelled.

    Fields: units; x, (n, d), and y, (n,) or (n, p), in these units; events, which transforms were chosen and why.
    """

    units: Units
    x: Tensor
    y: Tensor
    events: tuple[Event, ...]


def standard_rows(
    gp: GP,
    x: _Numbers,
    y: _Numbers,
    wanted: str | TargetTransform,
    options: FitOptions | None,
    *,
    counts: Tensor | None = None,
    countable: bool = True,
    standardise: str = "both",
) -> StandardRows:
    """Choose the transform of every target, learn the units, and put the rows into them.

    Args:
        gp: the model in standard units; nothing in it changes.
        x: (n, d), finite.
        y: (n, p), finite but for missing cells, in their own units.
        wanted: "auto", "none", "log" or "yeo-johnson", as `choose_transform` says; each output has its own. Or the
            transform that has been chosen, of all of them.
        options: of the fit; None where parameters stay as they are.
        counts: (n,), how often each row counts; None for once.
        countable: whether equal rows may be joined.
        standardise: "both", "x", "y" or "none".

    Raises: DomainError as `choose_transform`.
    Cost: that of `choose_transform` for each output, and O(n (d + p)).
    """
    transforms: tuple[TargetTransform, ...] = (TargetTransform(),) * y.shape[1]
    events: list[Event] = []
    if isinstance(wanted, TargetTransform):
        transforms = (wanted,) * y.shape[1]
    elif wanted != "none":
        rows = torch.from_numpy(units_of_inputs(x, None, gp.kernel, standardise).apply(x))
        mean = gp.mean if gp.outputs is None else None  # of several outputs a mean may be made for all together
        units_of_y = standardise in ("both", "y")
        choices = []
        for left, column in zip(range(y.shape[1], 0, -1), y.T, strict=True):
            likelihood, present = gp.likelihood.output(y.shape[1] - left, live=False), ~np.isnan(column)
            if not present.all():
                likelihood = likelihood.rows(torch.from_numpy(np.flatnonzero(present)))
            one = GP(gp.kernel, mean, likelihood)
            fair = options and dataclasses.replace(options, deadline=options.deadline.share(1.0 / left))
            choices.append(choose_transform(wanted, one, rows[present], column[present], fair, standardise=units_of_y))
        transforms = tuple(choice.transform for choice in choices)
        events = [choice.event for choice in choices if choice.event is not None]
    if not all(transform.identity for transform in transforms):
        y = np.stack([transform.forward(column) for transform, column in zip(transforms, y.T, strict=True)], axis=1)
    units = Units.learn(gp, x, y, transforms, counts, countable=countable, standardise=standardise)
    z = torch.from_numpy(units.y.apply(y))
    return StandardRows(
        units, torch.from_numpy(units.x.apply(x)), z if gp.outputs is not None else z[:, 0], tuple(events)
    )


def check_categories(kernel: Kernel, categories: dict[int, str], columns: int) -> None:
    """Refuse a covariance function that would read codes of categories as numbers.

    Args:
        kernel: over `columns` inputs; what a Warped kernel does with codes is its module's business.
        categories: names of the columns of categories, by position.

    Raises: DomainError naming the kernel and the column.
    """
    if isinstance(kernel, Warped) or not categories:
        return
    for part in kernel.parts:
        check_categories(part, categories, columns)
    if kernel.parts or isinstance(kernel, Constant) or "match" in kernel.form.statistics:
        return
    dims = getattr(kernel, "active_dims", None)
    read = range(columns) if dims is None else [j % columns for j in dims]
    wrong = next((j for j in read if j in categories), None)
    if wrong is not None:
        name = type(kernel).__name__
        numbers = [j for j in range(columns) if j not in categories]
        raise DomainError(
            f"`kernel` must read categories with Categorical or Coregionalization, got {name} for column {wrong} "
            f"({categories[wrong]!r}), whose codes have no order; write {name}(active_dims={numbers}) * "
            f"Categorical(active_dims={sorted(categories)})"
        )
