"""A table made ready to fit: encoded, in standard units, with a model and its plan."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event
from flashgp.inference import plan as plans
from flashgp.inference.approximation import Approximation
from flashgp.inference.findings import odd_data
from flashgp.inference.gp import GP
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.replicates import equal_rows
from flashgp.inference.training.options import FitOptions
from flashgp.kernel_choice import KernelChoice, choose_kernel, table_candidates
from flashgp.kernel_expression import BuiltKernel, KernelColumns, build_kernel
from flashgp.kernels import Kernel
from flashgp.kernels.default import DEFAULT
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.plan import Plan
from flashgp.processes.agreement import decided_by_first
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares
from flashgp.standardise import ColumnScaling, Scaling, check_scales
from flashgp.table import EncodedTable, Encoding, Table
from flashgp.target_transform import TargetTransform
from flashgp.units import check_categories

from .over_ranks import PlannedFit, check_same_rows, planned_over_ranks, standard_rows_of_first
from .settings import TableSettings

_Numbers = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PreparedTable:
    """A table ready to fit.

    Fields:
        settings: of the model.
        encoding, data: of the columns, and the table as numbers.
        train, test: positions in data; test is None where nothing is held out.
        scaling: of the training rows, with the transform of the target.
        tensors: standardised training rows, (n, d) and (n,), float64.
        gp, options: the model, and how it is fitted, by which ranks.
        kernel_words: the expression, or the kernel in words.
        approximation, plan: of the fit; None and a Plan for exact inference.
        choices: which transform the target got and which covariance function was chosen, and why.
        notes: sentences for the user.
    """

    settings: TableSettings
    encoding: Encoding
    data: EncodedTable
    train: _Rows
    test: _Rows | None
    scaling: Scaling
    tensors: tuple[torch.Tensor, torch.Tensor]
    gp: GP
    options: FitOptions
    kernel_words: str
    approximation: Approximation | None
    plan: Plan | ApproximatePlan
    choices: tuple[Event, ...]
    notes: tuple[str, ...]

    @property
    def exact_plan(self) -> Plan | None:
        """The plan, where it is of exact inference."""
        return self.plan if isinstance(self.plan, Plan) else None

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.encoding.inputs]

    @property
    def own_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of `tensors` that this rank brings to the fit: all of them in one process."""
        group = self.options.group
        own = Shares.even(self.count, group.size).slice(group.rank)
        return self.tensors[0][own], self.tensors[1][own]

    @property
    def count(self) -> int:
        """Rows that are fitted."""
        return len(self.train)

    @property
    def used(self) -> int:
        """Rows that are fitted or held out."""
        return len(self.data.rows)

    @property
    def total(self) -> int:
        """Rows of the table."""
        return self.data.total

    @property
    def y(self) -> _Numbers:
        assert self.data.y is not None
        return self.data.y


def prepare(
    settings: TableSettings,
    table: Table,
    encoding: Encoding,
    data: EncodedTable,
    train: _Rows | None = None,
    test: _Rows | None = None,
    deadline: Deadline = NO_DEADLINE,
    group: Group = ALONE,
) -> PreparedTable:
    """Put the training rows into standard units, choose what is to be chosen, build the model, plan.

    Args:
        table: as read.
        encoding, data: learned from the table, and the table by it, with its target.
        train, test: positions in data; None for all rows, and for none.
        group: ranks that fit it together, each of which has read the whole table; rank 0 chooses.

    Raises: DomainError for what a column or the kernel does not allow; MemoryBudgetError; RankMismatchError where ranks
        have read other tables.
    """
    assert data.y is not None
    train = np.arange(len(data.rows)) if train is None else train
    check_same_rows(group, [column.name for column in encoding.inputs], x=data.x, y=data.y, rows_fitted=train)
    x, y = np.ascontiguousarray(data.x[train]), data.y[train]
    built, words, notes = kernel_of(settings, table, encoding, lambda: ColumnScaling.of(x))
    gp = GP(built.kernel)
    options = fit_options(settings, deadline, given=built.has_starts)
    if settings.target_transform == "log":
        TargetTransform("log").check(y, data.rows[train] + table.first_row, encoding.target)
    odd = odd_data(torch.from_numpy(x), torch.from_numpy(y), names_of(encoding), data.rows[train] + table.first_row)
    standard = standard_rows_of_first(group, gp, x, y[:, None], settings.target_transform, options)
    (scaling,) = standard.units.scalings()
    check_scales(scaling, names_of(encoding))
    choices = (*odd, *standard.events)
    if settings.kernel == "auto":
        gp, words, chosen, more = best_kernel(gp, words, encoding, (standard.x, standard.y), options, group)
        choices, notes = (*choices, *chosen), [*notes, *more]
    same = equal_rows(gp, standard.x, standard.y)
    rows = RowCounts(len(train), x.shape[1], None if same is None else int(same.max()) + 1)
    planned = _planned(group, gp, rows, settings, options)
    return PreparedTable(
        settings, encoding, data, train, test, scaling, (standard.x, standard.y), gp, replace(options, group=group),
        words, planned.approximation, planned.plan, (*choices, *planned.events),
        tuple(dict.fromkeys((*table.notes, *encoding.notes, *data.notes, *notes))),
    )  # fmt: skip


def names_of(encoding: Encoding) -> list[str]:
    """Of the inputs, and of the target behind them."""
    return [*(column.name for column in encoding.inputs), encoding.target]


def _planned(group: Group, gp: GP, rows: RowCounts, settings: TableSettings, options: FitOptions) -> PlannedFit:
    """How the fit goes. Raises: MemoryBudgetError."""
    if group.size > 1:
        return planned_over_ranks(group, gp, rows, settings, options)
    plan = plans.plan(
        gp, rows.n, rows.d, distinct=rows.distinct, memory=settings.memory, device=settings.device,
        dtype=settings.compute_dtype, solver=settings.solver, deterministic=settings.deterministic,
        time_limit=settings.time_limit or None, starts=options.stages.starts,
        approximation=settings.approximation, inducing=settings.inducing, neighbours=settings.neighbours,
    )  # fmt: skip
    return PlannedFit(settings.asked_approximation, plan)  # of "auto" the fit decides, in the time that is left then


def fit_options(settings: TableSettings, deadline: Deadline, *, given: bool) -> FitOptions:
    """How the model is fitted. Args: given, whether the kernel has values that the search begins at."""
    return FitOptions(
        starts=settings.starts, initial="given" if given else "data", tolerance=settings.tolerance,
        deadline=deadline, memory=settings.memory, device=settings.device, dtype=settings.compute_dtype,
        seed=settings.seed, deterministic=settings.deterministic, solver=settings.solver,
    )  # fmt: skip


def best_kernel(
    gp: GP,
    words: str,
    encoding: Encoding,
    rows: tuple[torch.Tensor, torch.Tensor],
    options: FitOptions,
    group: Group = ALONE,
) -> tuple[GP, str, tuple[Event, ...], tuple[str, ...]]:
    """The model with the covariance function that kernel="auto" chooses for standardised rows, it in words, the event
    of the choice and notes; the model as it was where all inputs are categories. Of a group rank 0 chooses."""
    count, codes = len(encoding.inputs), encoding.category_positions
    if len(codes) == count:
        return gp, words, (), ('all inputs are categories: the candidates of the kernel "auto" are the same then.',)
    candidates = table_candidates(*rows, encoding.time_position)
    chosen = decided_by_first(
        group, lambda: choose_kernel(lambda one: GP(one.build(count, codes)), *rows, options, candidates=candidates),
        lambda found: [candidates.index(found.kernel), found.event.to_json()],
        lambda data: KernelChoice(candidates[data[0]], Event.from_json(data[1])),
    )  # fmt: skip
    return GP(chosen.kernel.build(count, codes)), chosen.kernel.words(count, codes), (chosen.event,), ()


def kernel_of(
    settings: TableSettings, table: Table, encoding: Encoding, scales: Callable[[], ColumnScaling]
) -> tuple[BuiltKernel, str, list[str]]:
    """The covariance function for standardised inputs, in words, and what a user should know of it.

    Args: scales, of the inputs, asked for where an expression has lengthscales in their units.
    """
    names, codes = [column.name for column in encoding.inputs], encoding.category_positions
    if isinstance(settings.kernel, Kernel):
        if encoding.constant:
            raise DomainError(
                f"`kernel` counts its active_dims among the inputs, got columns that do not vary and are left out: "
                f"{', '.join(map(repr, encoding.constant))}; pass drop={list(encoding.constant)}"
            )
        kernel = copy.deepcopy(settings.kernel)
        if kernel.batch_shape:
            raise ShapeError(
                f"`kernel` must describe one model, got parameters of batch shape {tuple(kernel.batch_shape)}; use "
                "flashgp.GP for a batch of models"
            )
        check_categories(kernel, {j: names[j] for j in codes}, len(names))
        return BuiltKernel(kernel, has_starts=False), type(kernel).__name__, []
    if settings.expression is None:
        return BuiltKernel(DEFAULT.build(len(names), codes), has_starts=False), DEFAULT.words(len(names), codes), []
    each = scales().keeping(codes).scale.tolist()
    built = build_kernel(settings.expression, KernelColumns(encoding.inputs, table.names, each))
    unused = _unused(built, len(names))
    notes = [f"the kernel does not use {', '.join(repr(names[j]) for j in unused)}."] if unused else []
    return built, settings.expression.text, notes


def _unused(built: BuiltKernel, count: int) -> list[int]:
    used: set[int] = set()
    for leaf in built.kernel.leaves():
        dims: Any = getattr(leaf, "active_dims", None)
        if type(leaf).__name__ != "Constant":
            used.update(range(count) if dims is None else dims)
    return [j for j in range(count) if j not in used]
