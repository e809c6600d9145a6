"""Fits of tables: rows in standard units, the choices before a fit, and the fit, of arrays, tables and files alike.

`standard_rows` chooses the target's transform and learns the units, `best_kernel` chooses the covariance function,
`Prepared.fit` fits. Does not do: what columns are (`flashgp.table`), what follows a fit (`flashgp.fitted_table`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.choices import KernelChoice, choose_kernel, choose_transform, table_candidates
from flashgp.fitted_table import FittedTable, TableSettings
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event
from flashgp.inference.approximation import Approximation
from flashgp.inference.condition import condition
from flashgp.inference.data import Data
from flashgp.inference.findings import odd_data
from flashgp.inference.fit import fit_as
from flashgp.inference.gp import GP
from flashgp.inference.posterior import Posterior
from flashgp.inference.run import with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.training.history import Progress
from flashgp.inference.training.options import FitOptions
from flashgp.kernels import Constant, Kernel, Warped
from flashgp.kernels.default import TableKernel
from flashgp.processes.agreement import decided_by_first
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares
from flashgp.sources.source import RowSource
from flashgp.target_transform import TargetTransform
from flashgp.targets import NUMBER, Target
from flashgp.units import Scaling, learned_scalings, units_of_inputs

Numbers = npt.NDArray[np.float64]


# -- before the fit ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows to fit in their own units.

    Fields: x, (n, d), finite; y, (n, p), finite but for missing cells; names, of the columns and of the outputs behind
    them; numbers, of the rows, as whoever passed them counts; target, what y is called in an error; counts, (n,), how
    often each row counts, None for once; countable, whether equal rows may be joined.
    """

    x: Numbers
    y: Numbers
    names: Sequence[str]
    numbers: npt.NDArray[np.int64]
    target: str = "y"
    counts: Tensor | None = None
    countable: bool = True

    def findings(self, transform: str, gp: GP) -> list[Event]:
        """Odd data among the rows, of targets those that a Gaussian model takes for odd.

        Raises: DomainError for a logarithm of a target that has none, or a target that the likelihood does not allow,
            naming the row.
        """
        if transform == "log" and gp.likelihood.has_sites:
            for column in self.y.T:
                TargetTransform("log").check(column, self.numbers, self.target)
        for column in self.y.T if not gp.likelihood.has_sites else ():
            y, one = torch.from_numpy(column), gp.likelihood.underlying
            one.check_targets(one.encoded(y, self.target), rows=self.numbers.tolist(), name=self.target)
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        y, names = (y, self.names) if gp.likelihood.has_sites else (y[:, :0], self.names[: x.shape[1]])
        return odd_data(x, y, names, self.numbers)


@dataclass(frozen=True, eq=False)
class StandardRows:
    """Training rows as they are modelled.

    Fields: scalings, one for each output; x, (n, d), and y, (n,) or (n, p), in these units; events, which transforms
    were chosen and why.
    """

    scalings: tuple[Scaling, ...]
    x: Tensor
    y: Tensor
    events: tuple[Event, ...]


def standard_rows(
    gp: GP,
    rows: TrainingRows,
    wanted: str,
    options: FitOptions | None,
    *,
    target: Target = NUMBER,
    standardise: str = "both",
    group: Group = ALONE,
) -> StandardRows:
    """Choose the transform of every target, learn the units, and put the rows into them.

    Args:
        gp: the model in standard units; nothing in it changes.
        rows: all of them, on every rank.
        wanted: "auto", "none", "log" or "yeo-johnson", as `choose_transform` says; each output has its own.
        options: of the fit; None where parameters stay as they are.
        target: of every output, whose transform and units are found.
        standardise: "both", "x", "y" or "none".
        group: of which rank 0 chooses.

    Raises: DomainError as `choose_transform`, and for a transform of a target that takes none.
    Cost: that of `choose_transform` for each output, and O(n (d + p)).
    """
    transforms, events = decided_by_first(
        group,
        lambda: _chosen_transforms(gp, rows, wanted, options, standardise),
        lambda found: [[one.to_json() for one in each] for each in found],
        lambda data: (list(map(TargetTransform.from_json, data[0])), list(map(Event.from_json, data[1]))),
    )
    targets = [target.transformed(transform) for transform in transforms]
    pairs = list(zip(targets, rows.y.T, strict=True))
    y = np.stack([np.asarray(target.plain(column), np.float64) for target, column in pairs], axis=1)
    scalings = learned_scalings(gp, rows.x, y, targets, rows.counts, countable=rows.countable, standardise=standardise)
    z = torch.from_numpy(np.stack([one.y(column) for one, column in zip(scalings, rows.y.T, strict=True)], axis=1))
    several = gp.likelihood.has_sites and gp.outputs is not None  # columns; classes have one, of codes
    x = torch.from_numpy(scalings[0].x(rows.x))
    return StandardRows(scalings, x, z if several else z[:, 0], tuple(events))


def _chosen_transforms(
    gp: GP, rows: TrainingRows, wanted: str, options: FitOptions | None, standardise: str
) -> tuple[list[TargetTransform], list[Event]]:
    """Transform of each output, and why."""
    outputs = rows.y.shape[1]
    if not gp.likelihood.has_sites and wanted not in ("auto", "none"):
        raise DomainError(
            f'`target_transform` must be "auto" or "none" beside {gp.likelihood.name}, which is a model of the target '
            f"itself, got {wanted!r}; leave it out"
        )
    if wanted == "none" or not gp.likelihood.has_sites:
        return [TargetTransform()] * outputs, []
    x = torch.from_numpy(units_of_inputs(rows.x, None, gp.kernel, standardise).apply(rows.x))
    mean = gp.mean if gp.outputs is None else None  # of several outputs a mean may be made for all together
    choices = []
    for left, column in zip(range(outputs, 0, -1), rows.y.T, strict=True):
        likelihood, present = gp.likelihood.output(outputs - left, live=False), ~np.isnan(column)
        if not present.all():
            likelihood = likelihood.rows(torch.from_numpy(np.flatnonzero(present)))
        fair = options and with_run(options, deadline=options.run.deadline.share(1.0 / left))
        one, units_of_y = GP(gp.kernel, mean, likelihood), standardise in ("both", "y")
        choices.append(choose_transform(wanted, one, x[present], column[present], fair, standardise=units_of_y))
    return [choice.transform for choice in choices], [choice.event for choice in choices if choice.event is not None]


def best_kernel(
    gp: GP, codes: Sequence[int], time: int | None, rows: StandardRows, options: FitOptions | None, group: Group = ALONE
) -> tuple[GP, TableKernel, Event]:
    """The model with the covariance function that kernel="auto" takes, that, and why. Of a group rank 0 chooses.

    Args: codes, columns of categories; time, that of time, None for none.
    """
    count, parts = rows.x.shape[-1], tuple(codes)
    candidates = table_candidates(rows.x, rows.y, time)

    def prior_of(candidate: TableKernel) -> GP:
        return GP(candidate.build(count, parts), gp.mean, gp.likelihood, gp.outputs)

    chosen = decided_by_first(
        group,
        lambda: choose_kernel(prior_of, rows.x, rows.y, options, candidates=candidates),
        lambda found: [candidates.index(found.kernel), found.event.to_json()],
        lambda data: KernelChoice(candidates[data[0]], Event.from_json(data[1])),
    )
    return prior_of(chosen.kernel), chosen.kernel, chosen.event


def check_kernel(kernel: Kernel, categories: Mapping[int, str], columns: int) -> None:
    """Refuse a covariance function of a batch of models, or that would read codes of categories as numbers.

    Args:
        kernel: over `columns` inputs; what a Warped kernel does with codes is its module's business.
        categories: names of the columns of categories, by position.

    Raises: ShapeError; DomainError naming the kernel and the column.
    """
    if kernel.batch_shape:
        raise ShapeError(
            f"`kernel` must describe one model, got parameters of batch shape {tuple(kernel.batch_shape)}; use "
            "flashgp.GP for a batch of models"
        )
    if isinstance(kernel, Warped) or not categories:
        return
    for part in kernel.parts:
        check_kernel(part, categories, columns)
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


# -- the fit -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Prepared:
    """Rows in standard units and the model that is fitted to them.

    Fields:
        settings: of the model.
        gp: the model, in standard units.
        scalings: to these units and back, one for each output.
        rows: x, (n, d), and y, (n,) or (n, p), float64, the same on every rank; or a source of them that is read.
        options: how parameters are fitted, by which ranks, until when; None where they stay as they are.
        approximation: None for exact inference.
        choices: what was found and chosen, and why.
    """

    settings: TableSettings
    gp: GP
    scalings: tuple[Scaling, ...]
    rows: tuple[Tensor, Tensor] | RowSource
    options: FitOptions | None
    approximation: Approximation | None
    choices: tuple[Event, ...]

    @property
    def read(self) -> bool:
        """True if rows are read and not held."""
        return isinstance(self.rows, RowSource)

    @property
    def scaling(self) -> Scaling:
        """Scaling of the only output."""
        (scaling,) = self.scalings
        return scaling

    def fit(
        self,
        units: str,
        deadline: Deadline,
        checkpoint: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> FittedTable:
        """The fitted table.

        Args: units, of the posterior in words; deadline, checkpoint, progress, as `flashgp.fit`.
        Raises: as `flashgp.fit`.
        """
        if self.options is None:
            data, how = Data.of(self.gp, *self.rows), _conditioning(self.settings, deadline)  # type: ignore[misc]
            posterior = Posterior(condition(self.gp, data, how, self.approximation))
            posterior.report.events[:0] = self.choices
            return FittedTable(posterior.in_units(units), self.scalings)
        options = replace(with_run(self.options, deadline=deadline), checkpoint=checkpoint, progress=progress)
        rows: Data | RowSource
        if isinstance(self.rows, RowSource):
            rows = self.rows
        else:
            x, y = self.rows
            own = Shares.even(len(x), options.run.group.size).slice(options.run.group.rank)
            rows = Data.of(self.gp, x[own], y[own])
        found = fit_as(self.gp, rows, options, self.approximation)
        found.report.events[:0] = self.choices
        found.posterior = found.posterior.in_units(units)
        return FittedTable(found.posterior, self.scalings, found)


def fit_options(settings: TableSettings, deadline: Deadline) -> FitOptions:
    """Options of the fit of the parameters."""
    return FitOptions(
        settings.starts, settings.initial, settings.priors, settings.max_iterations, settings.run(deadline),
        jitter=settings.jitter, solver=settings.solver, uncertainty=settings.uncertainty,
    )  # fmt: skip


def _conditioning(settings: TableSettings, deadline: Deadline) -> ConditionSettings:
    """Settings of conditioning for a model whose parameters stay as they are."""
    return ConditionSettings(settings.run(deadline), settings.solver, jitter=settings.jitter)
