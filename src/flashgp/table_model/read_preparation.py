"""A table that is read and not held, made ready to fit: what its columns are, their units, a model.

Three passes, and one more where the target is transformed: what the columns are (`learn_encoding`), mean and spread of
every column with a random sample, which chooses transform and kernel as all rows would, and those of the target after
its transform.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from flashgp.data.table_parts import EncodedRows
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event
from flashgp.inference.approximate_plan import approximate_plan
from flashgp.inference.approximation import Approximation, approximation_of_read, refuse_exact
from flashgp.inference.findings import odd_data
from flashgp.inference.gp import GP
from flashgp.inference.over_ranks import planned_over
from flashgp.inference.plan_settings import PlanSettings, RowCounts
from flashgp.inference.streamed.rows import sample_rows
from flashgp.inference.training.options import FitOptions
from flashgp.planner.approximate import ApproximatePlan
from flashgp.processes.group import ALONE, Group
from flashgp.sources.group_survey import surveyed_over
from flashgp.sources.source import Batch, RowSource
from flashgp.sources.survey import Survey
from flashgp.standardise import ColumnScaling, Scaling, check_scales
from flashgp.table import Encoding, Order
from flashgp.table.columns import Table
from flashgp.table.parts import TableParts, learn_encoding
from flashgp.target_transform import TargetTransform
from flashgp.units import standard_rows

from .over_ranks import memory_of_each, standard_rows_of_first
from .preparation import best_kernel, fit_options, kernel_of, names_of
from .settings import TableSettings

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PreparedRows:
    """A table that is read, ready to fit.

    Fields: settings; encoding; scaling, of all rows; rows, the source in standard units; count of them; total, with
    those left out; x and y, (n, d) and (n,), a random sample of the rows in units of the table; gp, options and
    approximation, how it is fitted; kernel_words; plan, of the fit; choices, what was chosen and why; notes, sentences
    for the user.
    """

    settings: TableSettings
    encoding: Encoding
    scaling: Scaling
    rows: EncodedRows
    count: int
    total: int
    x: _Numbers
    y: _Numbers
    gp: GP
    options: FitOptions
    approximation: Approximation
    kernel_words: str
    plan: ApproximatePlan
    choices: tuple[Event, ...]
    notes: tuple[str, ...]

    test: ClassVar[None] = None
    exact_plan: ClassVar[None] = None

    @property
    def used(self) -> int:
        """Rows that are fitted: none are held out."""
        return self.count

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.encoding.inputs]


def prepare_rows(
    settings: TableSettings,
    parts: TableParts,
    target: str,
    drop: tuple[str, ...] = (),
    dates: Order | None = None,
    categorical: tuple[str, ...] = (),
    deadline: Deadline = NO_DEADLINE,
    group: Group = ALONE,
) -> PreparedRows:
    """Learn what the columns are, and put them into standard units.

    Args: parts, the table; target and drop, columns by name, or position from 1; dates, as `TableModel.fit`; group,
        whose ranks each read a part.
    Raises: DomainError for what a column or the kernel does not allow, naming file and column.
    Cost: three or four passes.
    """
    asked = approximation_of_read(settings.approximation, settings.inducing, settings.neighbours)
    single = None if settings.compute_dtype == torch.float64 else settings.compute_dtype
    refuse_exact(solver=settings.solver, dtype=single)
    total, parts = parts.count or 0, parts.dealt(group)
    in_time = _InTime(parts, deadline)  # of the passes here; the fit keeps its own
    encoding, table = learn_encoding(in_time, target, drop, settings.missing, dates, categorical, group)
    raw = EncodedRows(in_time, encoding)
    survey = surveyed_over(group, raw, None, sample_rows(asked.most_inducing), settings.seed)
    of_x = _units(survey).keeping(encoding.category_positions)
    built, words, notes = kernel_of(settings, table, encoding, lambda: of_x)
    options, gp = fit_options(settings, deadline, given=built.has_starts), GP(built.kernel)
    # What follows is chosen by the sample, which all ranks have, on rank 0.
    x, y = survey.x.numpy(), survey.y.numpy()
    wanted, least = settings.target_transform, _range(table, encoding)[0]
    if wanted == "log" and least <= 0.0:  # in a row that the sample may not have
        raise DomainError(
            f"`{encoding.target}` must be positive for a logarithm of the target, got {least:g} in {parts.path!r}; use "
            "the transform yeo-johnson, or leave such rows out"
        )
    standard = standard_rows_of_first(group, gp, x, y[:, None], wanted, options)
    if standard.units.transforms[0].kind == "log" and least <= 0.0:
        notes.append("the target is not positive in every row: its logarithm, which the sample prefers, is not taken.")
        standard = standard_rows(gp, x, y[:, None], "none", options)
    scaling = _scaling(raw, survey, of_x, standard.units.transforms[0], group)
    if scaling.transform.identity and _range(table, encoding)[0] == _range(table, encoding)[1] != 0.0:
        scaling = replace(scaling, y_scale=abs(scaling.y_shift))  # as of a constant target that is held
    check_scales(scaling, names_of(encoding))
    choices = (*odd_data(survey.x, survey.y, names_of(encoding)), *standard.events)
    if settings.kernel == "auto":
        rows = (standard.x, standard.y)
        gp, words, chosen, more = best_kernel(gp, words, encoding, rows, options, group)
        choices, notes = (*choices, *chosen), [*notes, *more]
    if survey.count < total:
        notes.append(f"{total - survey.count:,} of {total:,} rows have missing values and are left out.")
    wanted_of_plan = PlanSettings(
        memory_of_each(group, settings), settings.device, deterministic=settings.deterministic, stages=options.stages,
        ranks=group.size,
    )  # fmt: skip
    rows_read = RowCounts(survey.count, survey.width)
    plan = planned_over(
        group,
        lambda one: approximate_plan(gp, rows_read, one, wanted_of_plan, settings.time_limit or None, read=True), asked,
    )  # fmt: skip
    return PreparedRows(
        settings, encoding, scaling, EncodedRows(parts, encoding, scaling), survey.count, total or survey.count, x, y,
        gp, replace(options, group=group), asked, words, plan, choices, (*encoding.notes, *notes),
    )  # fmt: skip


def _range(table: Table, encoding: Encoding) -> tuple[float, float]:
    """The smallest and the largest value of the target, which the summary of a table has."""
    values = table.columns[encoding.target_position].values
    return float(np.nanmin(values)), float(np.nanmax(values))


def _units(survey: Survey) -> ColumnScaling:
    """Of the columns of x, all rows of them."""
    moments = survey.x_moments
    return ColumnScaling(moments.mean.numpy(), moments.scale.numpy(), np.zeros(survey.width, dtype=bool))


def _scaling(
    raw: EncodedRows, survey: Survey, of_x: ColumnScaling, transform: TargetTransform, group: Group
) -> Scaling:
    """To standard units of all rows; another pass where the target is transformed."""
    of_y = survey.y_moments
    if not transform.identity:
        of_y = surveyed_over(group, _Transformed(raw, transform), None, 1, 0).y_moments
    return Scaling(
        tuple(of_x.offset.tolist()), tuple(of_x.scale.tolist()), float(of_y.mean), float(of_y.scale), transform
    )


class _InTime(TableParts):
    """The same table, within a deadline. Raises: DomainError where it passes before the end of a pass."""

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


class _Transformed(RowSource):
    """Rows with a transform of the target."""

    def __init__(self, rows: EncodedRows, transform: TargetTransform) -> None:
        self.rows, self.transform = rows, transform

    @property
    def length(self) -> int | None:
        return self.rows.length

    def batches(self) -> Iterator[Batch]:
        for place, x, y, variance in self.rows.batches():
            yield place, x, np.asarray(self.transform.forward(y), np.float64), variance
