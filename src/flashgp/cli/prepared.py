"""A table of the command line made ready to fit, read, encoded, divided and said; and its plan, `flashgp plan`."""

from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.cli.console import Console
from flashgp.cli.options import FitArguments, PlanArguments, TableArguments
from flashgp.data.files import is_parquet, is_pattern
from flashgp.data.table_parts import ParquetParts
from flashgp.fitted_table import TableSettings
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.quantities import counted, readable_bytes, readable_seconds
from flashgp.inference import plan as plans
from flashgp.inference.gp import GP
from flashgp.kernels.default import DEFAULT
from flashgp.planner.choice import table_of
from flashgp.planner.plan import FACTORED, LOST_HINT, Plan
from flashgp.planner.products import ProductPlan
from flashgp.table import EncodedTable, Encoding, Table, read_split, read_table, split_last, split_rows
from flashgp.table_model.preparation import PreparedTable, prepare, prepare_rows

DTYPES = {None: None, "float64": torch.float64, "float32": torch.float32}
_METHODS = {
    "fourier": "Fourier series",
    "sparse": "approximation by inducing points, their collapsed bound",
    "full_scale": "full-scale approximation: inducing points and a block-Vecchia factor of the residual covariance",
}
_Rows = npt.NDArray[np.int64]


def prepare_table(options: FitArguments, console: Console, deadline: Deadline = NO_DEADLINE) -> PreparedTable:
    """Read, encode, split, prepare. Notes are said as they arise.

    Raises: FlashGPError for anything in the table or the arguments that does not work; MemoryBudgetError.
    """
    _check_device(options.device)
    _check_sizes(options)
    settings = TableSettings(
        options.kernel, options.target_transform, options.missing, options.starts, options.time_limit, options.solver,
        options.memory, options.device, options.dtype, options.tolerance, options.seed, options.deterministic,
        ("sparse" if is_pattern(options.table) else None) if options.approximation == "none" else options.approximation,
        *options.sizes, options.likelihood, "--kernel", uncertainty=options.uncertainty,
    )  # fmt: skip
    held_out = any(one is not None for one in (options.split, options.test_fraction, options.test_last))
    by_row_groups = console.group.size > 1 and options.approximation == "sparse" and is_parquet(options.table)
    if is_pattern(options.table) or (by_row_groups and not held_out):
        return _prepare_parts(options, settings, console, deadline)
    table = read_table(options.table, header=options.header, **options.text)
    encoding = Encoding.learn(
        table, options.target, options.drop or (), options.missing, options.dates, options.codes, settings.classes
    )
    data = encoding.apply(table, need_target=True)
    for text in dict.fromkeys((*table.notes, *encoding.notes, *data.notes)):
        console.note(text)
    split = _split(options, table, data, encoding, console)
    prepared = prepare(settings, table, encoding, data, split, deadline, console.group)
    _say_prepared(options, prepared, console)
    return prepared


def _prepare_parts(
    options: FitArguments, settings: TableSettings, console: Console, deadline: Deadline
) -> PreparedTable:
    """Parquet files that are read in passes; by several ranks their row groups are dealt out. Raises: FlashGPError."""
    group = console.group
    if is_pattern(options.table):
        _refuse_beside_pattern(options)
    parts = ParquetParts(options.table)
    note = f"{len(parts.paths):,} file{'s are' if len(parts.paths) > 1 else ' is'} read in passes"
    note += "" if group.size == 1 else f" by {group.size} processes"
    drop = tuple(options.drop or ())
    prepared = prepare_rows(settings, parts, (options.target, drop, options.codes), options.dates, deadline, group)
    _say_prepared(options, prepared, console)
    stand = "sums over them" if prepared.plan.approximation == "fourier" else "inducing points"
    console.note(f"{note}, and {stand} stand for the rows.")
    return prepared


def _refuse_beside_pattern(options: FitArguments) -> None:
    """Raises: DomainError for what is of one table that is held."""
    options.refuse_beside_pattern(options.table)
    given = {"--split": options.split, "--test-fraction": options.test_fraction, "--test-last": options.test_last,
             "--header": options.header}  # fmt: skip
    wrong = next((name for name, value in given.items() if value is not None), None)
    what = f"the pattern {options.table!r}, whose files are read"
    if wrong is not None:
        raise DomainError(f"`{wrong}` is of one table that is held, got it beside {what}; leave it out")
    if options.approximation == "full_scale":
        raise DomainError(
            f"`--approximation` full_scale needs one table that is held, got {what}; leave it out for inducing points, "
            "or name one file"
        )


def _say_prepared(options: FitArguments, prepared: PreparedTable, console: Console) -> None:
    for text in prepared.notes:
        if text not in console.notes:
            console.note(text)
    names, used, total, count = prepared.names, prepared.used, prepared.total, prepared.count
    split = "" if prepared.held_out is None else f": {count:,} to fit, {used - count:,} held out"
    rows = f"{used:,} of {total:,} rows{split}" if used < total else f"{counted(total, 'row')}{split}"
    inputs = counted(len(names), "input")
    about = dict(plan_summary(prepared))["time"].partition(",")[0]
    console.say(f"{options.table}: {prepared.encoding.target} from {inputs}, {rows}; {about} to fit")
    if options.verbose:
        console.pairs("model", [("inputs", _listed(names)), ("kernel", prepared.kernel_words)])


def plan_summary(prepared: PreparedTable) -> list[tuple[str, str]]:
    """A plan for people who did not ask for it; `flashgp plan` has the rest."""
    plan = prepared.plan
    if plan.approximation:
        how = f"{_METHODS[plan.approximation]}: {plan.sizes_text}"
    elif plan.route in FACTORED:
        how = f"Cholesky factor in {plan.dtype}" + (", corrected in float64" if plan.route == "refined" else "")
    else:
        matrix = "stored" if plan.route == "stored" else "computed again in every product"
        how = f"conjugate gradients, the covariance matrix {matrix}"
    rates = "" if plan.profile == "measured" else "; `flashgp tune` measures how fast this machine is"
    ranks = 1 if prepared.options is None else prepared.options.run.group.size
    return [
        ("method", f"{how}, on {plan.device}"),
        *([("processes", f"{ranks}: memory and time are those of each")] if ranks > 1 else []),
        ("memory", f"about {readable_bytes(plan.peak_bytes)} of {readable_bytes(plan.available_bytes)} available"),
        ("time", f"{_time_text(plan, prepared.settings.time_limit)}{rates}"),
        *([("fits up to", str(plan.largest_fit))] if plan.largest_fit else []),
        *([("accuracy lost", LOST_HINT[plan.approximation])] if plan.approximation else []),
    ]


def _time_text(plan: Plan, limit: float | None) -> str:
    """Time of the whole fit, no more than its limit, in words."""
    if not limit or plan.fit_seconds <= limit:
        return plan.fit_text
    return f"at most {readable_seconds(limit)}, the time limit"


def _check_sizes(options: FitArguments) -> None:
    """Raises: DomainError for sizes of an approximation that was not asked for."""
    if options.approximation != "none" or is_pattern(options.table):
        return
    for name, size in zip(("--inducing", "--neighbours"), options.sizes, strict=True):
        if size != "auto":
            raise DomainError(
                f"`{name}` is of an approximation, got {size} beside exact inference; pass --approximation auto too, "
                "or leave it out"
            )


def _check_device(device: str) -> None:
    try:
        wanted = "cpu" if device == "auto" else torch.device(device).type
    except RuntimeError as error:
        raise DomainError(f"`--device` must be auto, cpu or cuda, got {device!r} ({str(error)[:100]})") from None
    if wanted not in ("cpu", "cuda"):
        raise DomainError(f"`--device` must be auto, cpu or cuda, got {device!r}; float64 is computed on these")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(f"`--device` is {device!r}, but torch finds no CUDA device; use auto or cpu")


def _split(
    options: FitArguments, table: Table, data: EncodedTable, encoding: Encoding, console: Console
) -> tuple[_Rows, _Rows] | None:
    """Positions in the encoded rows of what is fitted and what is held out, None for all; of dates a note says what is
    scored."""
    time = encoding.time_position
    column = None if time is None else encoding.inputs[time]
    if options.test_last is not None:
        when = data.x[:, time] if time is not None else np.arange(len(data.rows), dtype=np.float64)
        by = f"latest by {column.name!r}" if column is not None else "last in the order of the table"
        train, test = split_last(when, options.test_last)
        console.note(f"held out are the {len(test):,} rows that are {by}: the scores are of a forecast.")
        return train, test
    if column is not None and column.kind == "date" and options.split is None:
        scored = "rows held out at random" if options.test_fraction is not None else "leave-one-out"
        console.note(
            f"{column.name!r} is time: {scored} scores how well rows between others are predicted; --test-last 0.2 "
            "scores a forecast."
        )
    if options.split is not None:
        is_test = read_split(options.split, table)[data.rows]  # rows of the file, of which some may have been dropped
        if is_test.all() or not is_test.any():
            raise DomainError(
                f"`--split` must leave rows on both sides, got {int(is_test.sum())} test rows among the "
                f"{len(is_test)} rows without missing values; choose another split"
            )
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if options.test_fraction is not None:
        return split_rows(len(data.rows), options.test_fraction, options.seed)
    return None


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def run_plan(options: PlanArguments, console: Console) -> dict[str, Any]:
    """The plan for a table, or for so many rows and numeric columns, with the routes that were not chosen.

    Returns: the plan as JSON values; with test_rows that of predicting so many rows under "prediction".
    Raises: MemoryBudgetError when it does not fit; FlashGPError for the table.
    """
    plan: Plan
    if options.table is not None and options.target is not None:
        if is_pattern(options.table) and options.test_rows is not None:
            raise DomainError(
                f"`--test-rows` is of exact inference, got it beside the pattern {options.table!r}, whose files are "
                "read; leave it out: the plan has 1,000 points"
            )
        shared = {field.name: getattr(options, field.name) for field in fields(TableArguments)}
        if shared["kernel"] == "auto":  # chosen by short fits, which a plan is not
            shared["kernel"] = None
            console.note("which kernel auto takes is decided in the fit; this is the plan of the default one.")
        asked: Any = options.approximation or "none"
        prepared = prepare_table(
            FitArguments(
                table=options.table, target=options.target, target_transform="none", time_limit=options.time_limit,
                approximation=asked, **shared,
            ),
            console,
        )  # fmt: skip
        gp, plan = prepared.gp, prepared.plan
    else:
        gp = GP(DEFAULT.build(options.columns or 1))
        plan = plans.plan(
            gp, options.rows or 0, options.columns or 1, memory=options.memory, device=options.device,
            dtype=DTYPES[options.dtype], solver=options.solver, time_limit=options.time_limit,
            approximation=options.approximation,
            inducing=options.sizes[0], neighbours=options.sizes[1],
        )  # fmt: skip
    _show("plan", plan, console)
    result = {"command": "plan", **asdict(plan)}
    if options.test_rows is not None and not plan.approximation:
        prediction = plans.plan(
            gp, plan.n, plan.d, n_test=options.test_rows, distinct=plan.distinct, memory=options.memory,
            device=options.device, conditioned=plan.route,
        )  # fmt: skip
        _show(f"prediction of {options.test_rows:,} rows", prediction, console)
        result["prediction"] = asdict(prediction)
    return result


def _show(title: str, plan: Plan | ProductPlan, console: Console) -> None:
    console.pairs(title, plan.lines())
    if plan.alternatives:
        head, *rows = table_of(plan.alternatives)
        console.table(head, rows, numeric=(4, 5))
