"""A table made ready to fit: encoded, in standard units, with a model and its plan."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import Event
from flashgp.inference import plan as plans
from flashgp.inference.gp import GP
from flashgp.inference.replicates import equal_rows
from flashgp.inference.training.options import FitOptions
from flashgp.kernel_choice import choose_kernel
from flashgp.kernel_expression import BuiltKernel, KernelColumns, build_kernel
from flashgp.kernels import Kernel
from flashgp.kernels.default import DEFAULT
from flashgp.planner.approximate import ApproximatePlan
from flashgp.planner.plan import Plan
from flashgp.standardise import ColumnScaling, Scaling, check_scales
from flashgp.table import EncodedTable, Encoding, Table
from flashgp.target_transform import TargetTransform
from flashgp.units import check_categories, standard_rows

from .settings import TableSettings

__all__ = ["PreparedTable", "best_kernel", "fit_options", "kernel_of", "prepare"]

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
        gp, options: the model, and how it is fitted.
        kernel_words: the expression, or the kernel in words.
        plan: of the fit, exact or approximate.
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
) -> PreparedTable:
    """Put the training rows into standard units, choose what is to be chosen, build the model, plan.

    Args:
        table: as read.
        encoding, data: learned from the table, and the table by it, with its target.
        train, test: positions in data; None for all rows, and for none.

    Raises: DomainError for what a column or the kernel does not allow; MemoryBudgetError.
    """
    assert data.y is not None
    train = np.arange(len(data.rows)) if train is None else train
    x, y = np.ascontiguousarray(data.x[train]), data.y[train]
    built, words, notes = kernel_of(settings, table, encoding, lambda: ColumnScaling.of(x))
    gp = GP(built.kernel)
    options = fit_options(settings, deadline, given=built.has_starts)
    if settings.target_transform == "log":
        TargetTransform("log").check(y, data.rows[train] + table.first_row, encoding.target)
    standard = standard_rows(gp, x, y[:, None], settings.target_transform, options)
    (scaling,) = standard.units.scalings()
    check_scales(scaling, [*(column.name for column in encoding.inputs), encoding.target])
    choices = standard.events
    if settings.kernel == "auto":
        gp, words, chosen, more = best_kernel(gp, words, encoding, (standard.x, standard.y), options)
        choices, notes = (*choices, *chosen), [*notes, *more]
    group = equal_rows(gp, standard.x, standard.y)
    plan = plans.plan(
        gp, len(train), x.shape[1], distinct=None if group is None else int(group.max()) + 1,
        memory=settings.memory, device=settings.device, dtype=settings.compute_dtype, solver=settings.solver,
        deterministic=settings.deterministic, time_limit=settings.time_limit or None, starts=options.stages.starts,
        approximation=settings.approximation, inducing=settings.inducing, neighbours=settings.neighbours,
    )  # fmt: skip
    return PreparedTable(
        settings, encoding, data, train, test, scaling, (standard.x, standard.y), gp, options, words, plan, choices,
        tuple(dict.fromkeys((*table.notes, *encoding.notes, *data.notes, *notes))),
    )  # fmt: skip


def fit_options(settings: TableSettings, deadline: Deadline, *, given: bool) -> FitOptions:
    """How the model is fitted. Args: given, whether the kernel has values that the search begins at."""
    return FitOptions(
        starts=settings.starts, initial="given" if given else "data", tolerance=settings.tolerance,
        deadline=deadline, memory=settings.memory, device=settings.device, dtype=settings.compute_dtype,
        seed=settings.seed, deterministic=settings.deterministic, solver=settings.solver,
    )  # fmt: skip


def best_kernel(
    gp: GP, words: str, encoding: Encoding, rows: tuple[torch.Tensor, torch.Tensor], options: FitOptions
) -> tuple[GP, str, tuple[Event, ...], tuple[str, ...]]:
    """The model with the covariance function that kernel="auto" chooses for standardised rows, it in words, the event
    of the choice and notes; the model as it was where all inputs are categories."""
    count, codes = len(encoding.inputs), encoding.category_positions
    if len(codes) == count:
        return gp, words, (), ('all inputs are categories: the candidates of the kernel "auto" are the same then.',)
    chosen = choose_kernel(lambda one: GP(one.build(count, codes)), *rows, options)
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
