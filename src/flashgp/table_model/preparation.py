"""A table made ready to fit: encoded, in standard units, with a model and its plan.

Of a table that is read and not held, three passes, and one more where the target is transformed: what the columns are
(`learn_encoding`), mean and spread of every column with a random sample, which chooses transform and kernel as all rows
would, and those of the target after its transform. Of a table that several ranks fit, rank 0 decides what one process
decides: the others wait, as each choice is of short fits to 300 rows, and ranks of one machine share its cores.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.data.standardised import StandardisedRows
from flashgp.data.table_parts import EncodedRows
from flashgp.fitted_table import TableSettings
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference import plan as plans
from flashgp.inference.approximation import Approximation, approximation_of_read, refuse_exact
from flashgp.inference.choice import Choice
from flashgp.inference.findings import counts_suggested
from flashgp.inference.gathered import agreed_memory, agreed_plan, tensor_mark
from flashgp.inference.gp import GP
from flashgp.inference.over_ranks import of_first, planned_over
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.replicates import equal_rows
from flashgp.inference.run import with_run
from flashgp.inference.streamed.rows import sample_rows
from flashgp.inference.training.options import FitOptions
from flashgp.kernel_expression import BuiltKernel, KernelColumns, build_kernel
from flashgp.kernels import Kernel
from flashgp.kernels.default import TableKernel, default_for
from flashgp.likelihoods import Gaussian, Likelihood, NegativeBinomial
from flashgp.planner.plan import Plan
from flashgp.processes.group import ALONE, Group
from flashgp.sources.group_survey import surveyed_over
from flashgp.sources.survey import Survey
from flashgp.table import EncodedTable, Encoding, Order, Table
from flashgp.table.parts import TableParts, learn_encoding
from flashgp.table_fit import (
    Prepared,
    StandardRows,
    TrainingRows,
    best_kernel,
    check_kernel,
    fit_options,
    standard_rows,
)
from flashgp.targets import Target, likelihood_of_classes, target_of
from flashgp.units import ColumnScaling, Scaling, check_scales, scaling_of_inputs

_Numbers = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]
_Planned = tuple[Approximation | None, Plan, tuple[Event, ...]]


@dataclass(frozen=True, eq=False)
class RowPlaces:
    """Numbers of rows in the table as its messages count. Fields: fitted, held_out, (n,) and (n_test,), from 1; of,
    what is counted: "line" of the file, or "row" where lines are not known."""

    fitted: _Rows
    held_out: _Rows
    of: str

    @staticmethod
    def in_table(table: Table, fitted: _Rows, held_out: _Rows) -> "RowPlaces":
        """Args: fitted, held_out, positions in the table, from 0."""
        if table.lines is None:
            return RowPlaces(fitted + table.first_row, held_out + table.first_row, "row")
        lines = np.asarray(table.lines)
        return RowPlaces(lines[fitted], lines[held_out], "line")


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedTable(Prepared):
    """A table ready to fit.

    Fields:
        encoding: of the columns.
        kernel_words: the expression, or the kernel in words.
        plan: of the fit.
        notes: sentences for the user.
        x, y: (n, d) and (n,), the rows that are fitted, of a table that is read a random sample of them, in its units.
        held_out: others, likewise; None where nothing is held out.
        places: of both in the table; None of rows that are read.
        count: rows that are fitted.
        total: rows of the table.
        choice_seconds: that the short fits took which chose the target's transform and the covariance function.
    """

    encoding: Encoding
    kernel_words: str
    plan: Plan
    notes: tuple[str, ...]
    x: _Numbers
    y: _Numbers
    held_out: tuple[_Numbers, _Numbers] | None
    places: RowPlaces | None
    count: int
    total: int
    choice_seconds: float = 0.0

    @property
    def exact_plan(self) -> Plan | None:
        """The plan, where it is of exact inference."""
        return None if self.plan.approximation else self.plan

    @property
    def names(self) -> list[str]:
        """Names of the inputs."""
        return [column.name for column in self.encoding.inputs]

    @property
    def used(self) -> int:
        """Rows that are fitted or held out."""
        return self.count + (0 if self.held_out is None else len(self.held_out[1]))


def prepare(
    settings: TableSettings,
    table: Table,
    encoding: Encoding,
    data: EncodedTable,
    split: tuple[_Rows, _Rows] | None = None,
    deadline: Deadline = NO_DEADLINE,
    group: Group = ALONE,
) -> PreparedTable:
    """Put the training rows into standard units, choose what is to be chosen, build the model, plan.

    Args:
        table: as read.
        encoding, data: learned from the table, and the table by it, with its target.
        split: positions in data that are fitted and held out; None to fit all.
        group: ranks that fit it together, each of which has read the whole table; rank 0 chooses.

    Raises: DomainError for what a column or the kernel does not allow; MemoryBudgetError; RankMismatchError where ranks
        have read other tables.
    """
    assert data.y is not None
    train, test = (np.arange(len(data.rows)), None) if split is None else split
    check_same_rows(group, [column.name for column in encoding.inputs], x=data.x, y=data.y, rows_fitted=train)
    x, y = np.ascontiguousarray(data.x[train]), data.y[train]
    likelihood, target, decided = _likelihood_of(settings, encoding, y)
    likelihood = _of_rows(likelihood, table.rows, data.rows[train], held_out=test is not None)
    drawn = settings.uncertainty if settings.kernel is None else None
    default = default_for(likelihood, len(x), x.shape[1], drawn, settings.approximation)
    built, words, notes = _kernel_of(
        settings, table, encoding, default, lambda: scaling_of_inputs(x, None, encoding.category_positions)
    )
    gp, options = GP(built.kernel, likelihood=likelihood), _options(settings, deadline, built)
    raw = TrainingRows(x, y[:, None], _names(encoding), data.rows[train] + table.first_row, encoding.target)
    odd = [*decided, *raw.findings(settings.target_transform, gp)]
    began = time.perf_counter()
    standard = standard_rows(gp, raw, settings.target_transform, options, target=target, group=group)
    check_scales(standard.scalings[0], raw.names)
    gp, words, chosen, more = _chosen_kernel(settings, gp, words, encoding, standard, options, group)
    choosing = time.perf_counter() - began
    same = equal_rows(gp, standard.x, standard.y)
    rows = RowCounts(len(train), x.shape[1], None if same is None else int(same.max()) + 1)
    approximation, plan, events = planned(group, gp, rows, settings, options)
    options = with_run(options, group=group)
    if approximation is None:  # the plan has memory, dtype and solver
        options = replace(with_run(options, memory=None, dtype=None), plan=plan, solver=None)
    return PreparedTable(
        settings, gp, standard.scalings, (standard.x, standard.y), options, approximation,
        (*odd, *standard.events, *chosen, *events), encoding=encoding, kernel_words=words, plan=plan,
        notes=tuple(dict.fromkeys((*table.notes, *encoding.notes, *data.notes, *notes, *more))),
        x=x, y=y, held_out=None if test is None else (data.x[test], data.y[test]),
        places=RowPlaces.in_table(table, data.rows[train], data.rows[[] if test is None else test]),
        count=len(y), total=data.total, choice_seconds=choosing,
    )  # fmt: skip


def prepare_rows(
    settings: TableSettings,
    parts: TableParts,
    columns: tuple[str, tuple[str, ...], tuple[str, ...]],
    dates: Order | None = None,
    deadline: Deadline = NO_DEADLINE,
    group: Group = ALONE,
) -> PreparedTable:
    """Prepare a table that is read.

    Args: parts, the table; columns, the target, those not to use, and those of categories, by name, or position from 1;
        dates, as `TableModel.fit`; group, whose ranks each read a part.
    Raises: DomainError for what a column or the kernel does not allow, naming file and column.
    Cost: three or four passes.
    """
    asked = approximation_of_read(settings.approximation, settings.inducing, settings.neighbours)
    single = None if settings.compute_dtype == torch.float64 else settings.compute_dtype
    refuse_exact(solver=settings.solver, dtype=single)
    total, parts = parts.count or 0, parts.shard(group)
    in_time = _InTime(parts, deadline)  # of the passes here; the fit keeps its own
    goal, drop, categorical = columns
    encoding, table = learn_encoding(in_time, goal, drop, settings.missing, dates, categorical, group, settings.classes)  # type: ignore[arg-type]
    raw = EncodedRows(in_time, encoding)
    survey = surveyed_over(group, raw, None, sample_rows(asked.most_inducing), settings.seed)
    moments = survey.x_moments
    of_x = ColumnScaling(moments.mean.numpy(), moments.scale.numpy(), np.zeros(survey.width, dtype=bool))
    of_x = of_x.keeping(encoding.category_positions)
    likelihood, target, decided = _likelihood_of(settings, encoding, survey.y.numpy())
    default = default_for(likelihood, approximation=settings.approximation)
    built, words, notes = _kernel_of(settings, table, encoding, default, lambda: of_x)
    gp, options = GP(built.kernel, likelihood=likelihood), _options(settings, deadline, built)
    # What follows is chosen by the sample, which all ranks have, on rank 0.
    x, y, wanted = survey.x.numpy(), survey.y.numpy(), settings.target_transform
    sample = TrainingRows(x, y[:, None], _names(encoding), np.arange(len(y)), encoding.target)
    values = table.columns[encoding.target_position].values  # of a summary: its range
    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    if wanted == "log" and least <= 0.0:  # in a row that the sample may not have
        raise DomainError(
            f"`{encoding.target}` must be positive for a logarithm of the target, got {least:g} in {parts.path!r}; use "
            "the transform yeo-johnson, or leave such rows out"
        )
    standard = standard_rows(gp, sample, wanted, options, target=target, group=group)
    if not np.isfinite(standard.scalings[0].target.plain(np.array(least))):
        notes.append("the target is not positive in every row: its logarithm, which the sample prefers, is not taken.")
        standard = standard_rows(gp, sample, "none", options, target=target)
    scaling = _scaling(raw, survey, of_x, standard.scalings[0].target, group)
    shift, _ = scaling.target.sizes
    if scaling.target.linear and least == most != 0.0:
        scaling = replace(scaling, target=scaling.target.in_units(shift, abs(shift)))  # as of one that is held
    check_scales(scaling, sample.names)
    gp, words, chosen, more = _chosen_kernel(settings, gp, words, encoding, standard, options, group)
    if survey.count < total:
        notes.append(f"{total - survey.count:,} of {total:,} rows have missing values and are left out.")
    extent = tuple(((moments.high - moments.low).numpy() / of_x.scale).tolist())
    rows = RowCounts(survey.count, survey.width, extent=extent)
    _, plan, _ = planned(group, gp, rows, settings, options, read=asked)
    return PreparedTable(
        settings, gp, (scaling,), StandardisedRows(EncodedRows(parts, encoding), scaling),
        with_run(options, group=group), asked,
        (*decided, *sample.findings("none", gp), *standard.events, *chosen),
        encoding=encoding, kernel_words=words, plan=plan,
        notes=(*encoding.notes, *notes, *more), x=x, y=y, held_out=None, places=None, count=survey.count,
        total=total or survey.count,
    )  # fmt: skip


def check_same_rows(group: Group, names: list[str], **numbers: npt.NDArray[Any]) -> None:
    """Raises: RankMismatchError, on every rank, where ranks have read other numbers. Args: names, of the columns."""
    if group.size > 1:
        marks = {name: tensor_mark(torch.from_numpy(np.ascontiguousarray(one))) for name, one in numbers.items()}
        group.compare(columns=names, **marks)


def planned(
    group: Group,
    gp: GP,
    rows: RowCounts,
    settings: TableSettings,
    options: FitOptions,
    read: Approximation | None = None,
) -> _Planned:
    """Choice of the fit: approximation, None for exact inference, plan, and why.

    In one process "auto" is left to the fit, which decides in the time that is left then. Several ranks do what each of
    them has room for, and rank 0 decides. Args: read, of rows that are read.
    Raises: MemoryBudgetError, on every rank.
    """
    asked, limit = read or settings.asked_approximation, settings.time_limit or None
    if group.size == 1 and read is None:
        plan = plans.plan(
            gp, rows.n, rows.d, distinct=rows.distinct, memory=settings.memory, device=settings.device,
            dtype=settings.compute_dtype, solver=settings.solver, deterministic=settings.deterministic,
            time_limit=limit, starts=options.stages.starts, approximation=settings.approximation,
            inducing=settings.inducing, neighbours=settings.neighbours,
        )  # fmt: skip
        return asked, plan, ()
    device = torch.device("cpu" if settings.device in (None, "auto") else settings.device)
    wanted = with_run(options, group=group).planning(
        memory=agreed_memory(settings.memory, device, group), dtype=settings.compute_dtype, solver=settings.solver
    )
    if asked is None:
        return None, agreed_plan(Choice(gp, rows, wanted).exact(), group), ()
    choice = Choice(gp, rows, wanted if read is None else replace(wanted, dtype=None, solver=None), limit)
    if read is not None and read.kind == "auto":
        _, plan, _, _ = of_first(group, read, lambda: choice.decided_of_read(read))
        return read, plan, ()  # which the fit decides by what it reads
    if asked.kind == "auto":
        approximation, taken, event = of_first(group, asked, lambda: choice.decided(asked))
        return approximation, taken, (event,)
    return asked, planned_over(group, lambda one: choice.approximate(one, read=read is not None), asked), ()


def _of_rows(likelihood: Likelihood, count: int, rows: _Rows, *, held_out: bool) -> Likelihood:
    """The likelihood of the rows that are fitted, of one that knows those of the whole table. Raises: ShapeError;
    DomainError for numbers that rows which are held out would be scored without."""
    for name, each in likelihood.row_tensors.items():
        if len(each) != count:
            raise ShapeError(
                f"`{name}` must have one entry for each of the table's {count} rows, got shape {tuple(each.shape)}; "
                "pass those of all, also where some are left out"
            )
    if held_out and likelihood.numbers_of_rows:
        raise DomainError(
            f"`likelihood` must have no {likelihood.numbers_of_rows[0]} where rows are held out, which are scored "
            "without; fit all rows, and take leave-one-out"
        )
    return likelihood if likelihood.rows_alike else likelihood.rows(torch.from_numpy(rows))


def _likelihood_of(
    settings: TableSettings, encoding: Encoding, y: _Numbers
) -> tuple[Likelihood, Target, tuple[Event, ...]]:
    """Likelihood and target of the training rows y, and what was found of them.

    Raises: DomainError for classes of which the rows have one alone.
    """
    asked, levels = copy.deepcopy(settings.asked_likelihood), encoding.target_levels
    known = settings.classes is not None
    if levels:
        present = np.unique(y).astype(np.int64)
        if len(present) < 2:
            raise DomainError(
                f"`target` {encoding.target!r} must have two classes in the rows that are fitted, got "
                f"{levels[present[0]]!r} alone in {len(y):,} rows; add rows of another class, or hold out others"
            )
        found = () if known else (Event(EventKind.CLASSES_FOUND, target=encoding.target, labels=levels),)
        likelihood = likelihood_of_classes(len(levels), asked or settings.likelihood)
        return likelihood, target_of(likelihood, levels), found
    counts = () if known else tuple(counts_suggested(encoding.target, y))
    if counts and settings.likelihood == "auto":
        asked = NegativeBinomial()
        counts = tuple(Event(EventKind.COUNTS_FOUND, **event.fields) for event in counts)
    likelihood = Gaussian() if asked is None else asked
    return likelihood, target_of(likelihood), counts


def _names(encoding: Encoding) -> list[str]:
    """Names of the inputs, and of the target behind them."""
    return [*(column.name for column in encoding.inputs), encoding.target]


def _options(settings: TableSettings, deadline: Deadline, built: BuiltKernel) -> FitOptions:
    options = fit_options(settings, deadline)
    return replace(options, initial="given") if built.has_starts else options


def _chosen_kernel(
    settings: TableSettings,
    gp: GP,
    words: str,
    encoding: Encoding,
    rows: StandardRows,
    options: FitOptions,
    group: Group,
) -> tuple[GP, str, tuple[Event, ...], tuple[str, ...]]:
    """The model with the kernel of kernel="auto", it in words, why and notes; as it was for others, and where all
    inputs are categories."""
    count, codes = len(encoding.inputs), encoding.category_positions
    if settings.kernel != "auto":
        return gp, words, (), ()
    if len(codes) == count:
        return gp, words, (), ('all inputs are categories: the candidates of the kernel "auto" are the same then.',)
    gp, kernel, event = best_kernel(gp, codes, encoding.time_position, rows, options, group)
    return gp, kernel.words(count, codes), (event,), ()


def _kernel_of(
    settings: TableSettings, table: Table, encoding: Encoding, default: TableKernel, scales: Callable[[], ColumnScaling]
) -> tuple[BuiltKernel, str, list[str]]:
    """The covariance function for standardised inputs, in words, and what a user should know of it.

    Args: default, without another one; scales, of the inputs, asked for where an expression has lengthscales in their
        units.
    """
    names, codes = [column.name for column in encoding.inputs], encoding.category_positions
    if isinstance(settings.kernel, Kernel):
        if encoding.constant:
            raise DomainError(
                f"`kernel` counts its active_dims among the inputs, got columns that do not vary and are left out: "
                f"{', '.join(map(repr, encoding.constant))}; pass drop={list(encoding.constant)}"
            )
        kernel = copy.deepcopy(settings.kernel)
        check_kernel(kernel, {j: names[j] for j in codes}, len(names))
        return BuiltKernel(kernel, has_starts=False), type(kernel).__name__, []
    if settings.expression is None:
        return BuiltKernel(default.build(len(names), codes), has_starts=False), default.words(len(names), codes), []
    each = scales().keeping(codes).scale.tolist()
    built = build_kernel(settings.expression, KernelColumns(encoding.inputs, table.names, each))
    used: set[int] = set()
    for leaf in built.kernel.leaves():
        dims: Any = getattr(leaf, "active_dims", None)
        if type(leaf).__name__ != "Constant":
            used.update(range(len(names)) if dims is None else dims)
    unused = [repr(name) for j, name in enumerate(names) if j not in used]
    notes = [f"the kernel does not use {', '.join(unused)}."] if unused else []
    return built, settings.expression.text, notes


def _scaling(raw: EncodedRows, survey: Survey, of_x: ColumnScaling, target: Target, group: Group) -> Scaling:
    """Scaling to standard units of all rows; another pass where the target is transformed."""
    of_y, shift, scale = survey.y_moments, tuple(of_x.offset.tolist()), tuple(of_x.scale.tolist())
    if target.transforms:
        transformed = StandardisedRows(raw, Scaling(shift, scale, target.in_units(0.0, 1.0)))
        of_y = surveyed_over(group, transformed, None, 1, 0).y_moments
    return Scaling(shift, scale, target.in_units(float(of_y.mean), float(of_y.scale)))


class _InTime(TableParts):
    """A table that is read within a deadline. Raises: DomainError where it passes before the end of a pass."""

    def __init__(self, parts: TableParts, deadline: Deadline) -> None:
        self.path, self.names, self.count, self.header = parts.path, parts.names, parts.count, parts.header
        self.deadline, self._parts = deadline, parts

    def parts(self) -> Iterator[Table]:
        rows = 0
        for part in self._parts.parts():
            if self.deadline.passed() and rows:
                raise DomainError(
                    f"`time_limit` must be long enough to read the table before the fit, got {self.deadline.limit:g} "
                    f"s, which were over after {rows:,} rows of {self.path!r}; allow more time, or name fewer files"
                )
            rows += part.rows
            yield part
