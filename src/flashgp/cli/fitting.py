"""`flashgp fit`: from a table to a model, its figures, a file and a report."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.foundations.errors import BackendUnavailableError, DomainError, FitInterrupted
from flashgp.foundations.report import readable_bytes, readable_seconds
from flashgp.inference.gp import GP
from flashgp.inference.plan import plan_for
from flashgp.inference.replicates import equal_rows
from flashgp.likelihoods import Gaussian
from flashgp.means import Constant
from flashgp.planner.plan import FACTORED, Plan
from flashgp.standardise import Scaling
from flashgp.table import EncodedTable, Encoding, Missing, Table, read_split, read_table, split_rows

from .console import Console
from .kernel_expression import BuiltKernel, KernelColumns, KernelExpression, build_kernel, default_kernel
from .model import TableModel
from .parameters import HEAD, NUMERIC, ParameterRow, parameter_rows
from .paths import require_distinct, require_writable
from .scores import Scores

if TYPE_CHECKING:
    from flashgp.inference.fit import Fit

__all__ = ["DTYPES", "FitOptions", "FitOutcome", "Prepared", "TableOptions", "prepare", "run_fit"]

DTYPES = {"float64": torch.float64, "float32": torch.float32}
# Of a report, what people are told beside time and figures of merit; the plan, said before, has the rest.
_HAPPENED = ("relative residual", "error bound", "standard error", "jitter", "peak memory", "compile seconds")
_Numbers = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableOptions:
    """How a table is read, and what of it is the model's."""

    table: str
    target: str
    drop: tuple[str, ...] = ()
    missing: Missing = "error"
    header: bool | None = None
    delimiter: str | None = None
    decimal: str | None = None
    kernel: KernelExpression | None = None
    memory: str | None = None
    device: str = "auto"
    dtype: str | None = None
    solver: str | None = None


@dataclass(frozen=True)
class FitOptions:
    """What `flashgp fit` was asked for."""

    data: TableOptions
    split: str | None = None
    test_fraction: float | None = None
    seed: int = 0
    out: str | None = None
    report: str | None = None
    starts: int | None = None
    time_limit: float | None = None
    tolerance: float = 1e-3
    checkpoint: str | None = None
    command: str = ""
    deterministic: bool = False


@dataclass(frozen=True)
class Prepared:
    """A table ready to fit. Fields: table; encoding; data; train and test, positions in data (test None if nothing is
    held out); scaling of the training rows; gp; has_starts; plan."""

    table: Table
    encoding: Encoding
    data: EncodedTable
    train: _Rows
    test: _Rows | None
    scaling: Scaling
    gp: GP
    has_starts: bool
    plan: Plan

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.encoding.inputs]

    @property
    def y(self) -> _Numbers:
        assert self.data.y is not None
        return self.data.y

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Standardised training rows, (n, d) and (n,), float64."""
        return _standardised(self.scaling, self.data, self.train)


def _standardised(scaling: Scaling, data: EncodedTable, rows: _Rows) -> tuple[torch.Tensor, torch.Tensor]:
    assert data.y is not None
    x = np.ascontiguousarray(scaling.x(data.x[rows]))
    return torch.from_numpy(x), torch.from_numpy(scaling.y(data.y[rows]))


@dataclass(frozen=True)
class FitOutcome:
    """All that the report shows. Fields: options, prepared, fit, model; scores, and whether they are leave-one-out
    (None where no rows are held out and there is no factor); observed, mean and std of the rows scored, in units of
    the target; parameters; seconds; notes; warnings."""

    options: FitOptions
    prepared: Prepared
    fit: "Fit"
    model: TableModel
    scores: Scores | None
    left_out: bool
    observed: _Numbers
    mean: _Numbers
    std: _Numbers
    parameters: list[ParameterRow]
    seconds: float
    notes: list[str]
    warnings: list[str]


def run_fit(options: FitOptions, console: Console) -> dict[str, Any]:
    """Fit, score, write. Returns: the result as JSON values. Raises: FlashGPError, OSError."""
    began = time.perf_counter()
    _check_outputs(options)
    prepared = prepare(options.data, console, options)
    console.pairs("plan", prepared.plan.lines())
    if prepared.test is None and prepared.plan.route not in FACTORED:
        console.note("leave-one-out scores need a factor, which this plan has not: --test-fraction holds rows out.")
    from flashgp.inference.fit import fit

    x, y = prepared.tensors()
    try:
        with console.progress() as progress:
            result = fit(
                prepared.gp,
                x,
                y,
                starts=options.starts,
                initial="given" if prepared.has_starts else "data",
                time_limit=options.time_limit,
                tolerance=options.tolerance,
                device=options.data.device,
                plan=prepared.plan,
                seed=options.seed,
                deterministic=options.deterministic,
                checkpoint=options.checkpoint,
                progress=progress,
            )
    except FitInterrupted as stop:
        raise _interrupted(stop, prepared, options.checkpoint, console) from stop
    kernel = options.data.kernel
    model = TableModel(result.posterior, prepared.encoding, prepared.scaling, kernel.text if kernel else "")
    if result.interrupted:
        kept = "; the model is written as it is" if options.out else ""
        console.warn(f"the fit was cut short after {len(result.history)} evaluations: this is the best so far{kept}")
    if options.out is not None:
        model.save(options.out)  # before anything else can fail
    outcome = _outcome(options, prepared, result, model, began, console)
    _say(outcome, console)
    if options.report is not None:
        from flashgp.page import write_page

        from .fit_page import fit_page

        write_page(options.report, fit_page(outcome))
    for path in (options.out, options.report):
        if path is not None:
            console.say(f"wrote {path} ({readable_bytes(Path(path).stat().st_size)})")
    return _json(outcome)


def _interrupted(
    stop: FitInterrupted, prepared: Prepared, checkpoint: str | None, console: Console
) -> KeyboardInterrupt:
    """Says what was found before Ctrl-C, and how to go on."""
    assert isinstance(stop.gp, GP)
    rows = parameter_rows(stop.gp, prepared.names, prepared.scaling, prepared.encoding.target)
    console.say("parameters found")
    console.table(HEAD, [row.cells() for row in rows], NUMERIC)
    again = "with --checkpoint the same command would go on from there"
    if checkpoint is not None:
        again = f"the same command goes on from {checkpoint}"
    return KeyboardInterrupt(f"interrupted in the last solve, no model was written; {again}")


def prepare(data: TableOptions, console: Console, options: FitOptions | None = None) -> Prepared:
    """Read, encode, split, standardise, build the model, plan. Notes are said as they arise.

    Raises: FlashGPError for anything in the table or the arguments that does not work; MemoryBudgetError.
    """
    options = options or FitOptions(data)
    _check_device(data.device)
    table = read_table(data.table, header=data.header, delimiter=data.delimiter, decimal=data.decimal)
    encoding = Encoding.learn(table, data.target, data.drop, data.missing)
    encoded = encoding.apply(table, need_target=True)
    for text in dict.fromkeys((*table.notes, *encoding.notes, *encoded.notes)):
        console.note(text)
    train, test = _split(options, table, encoded)
    assert encoded.y is not None
    codes = encoding.category_positions
    scaling = Scaling.learn(encoded.x[train], encoded.y[train], skip=codes)
    names = [column.name for column in encoding.inputs]
    if data.kernel is None:
        built = BuiltKernel(default_kernel(len(names), codes), has_starts=False)
    else:
        levels = [len(column.levels) for column in encoding.inputs]
        built = build_kernel(data.kernel, KernelColumns(names, table.names, codes, levels, scaling))
        if unused := _unused(built, len(names)):
            console.note(f"the kernel does not use {', '.join(repr(names[j]) for j in unused)}.")
    gp = GP(built.kernel, Constant(), Gaussian(0.1))
    x, y = _standardised(scaling, encoded, train)
    group = equal_rows(gp, x, y)
    plan = plan_for(
        gp,
        len(train),
        len(names),
        distinct=None if group is None else int(group.max()) + 1,
        memory=data.memory,
        device=data.device,
        dtype=DTYPES[data.dtype] if data.dtype else None,
        solver=data.solver,
        deterministic=options.deterministic,
    )
    held = "" if test is None else f": {len(train):,} to fit, {len(test):,} held out"
    console.pairs(
        f"{data.table}: {encoding.target} from {len(names)} input{'s' if len(names) > 1 else ''}",
        [
            ("rows", f"{len(encoded.rows):,} of {table.rows:,}{held}" if held or len(encoded.rows) < table.rows
             else f"{table.rows:,}"),
            ("inputs", _listed(names)),
            ("kernel", data.kernel.text if data.kernel else describe_default(len(names), len(codes))),
        ],
    )  # fmt: skip
    return Prepared(table, encoding, encoded, train, test, scaling, gp, built.has_starts, plan)


def describe_default(count: int, codes: int) -> str:
    """The default kernel in words."""
    real = "Matern-5/2, a lengthscale per numeric column" if codes < count else ""
    return " times ".join(filter(None, (real, "Categorical, one per column of categories" if codes else "")))


def _check_outputs(options: FitOptions) -> None:
    """Everything that can be known before work starts."""
    require_distinct(
        {
            "TABLE": options.data.table,
            "--out": options.out,
            "--report": options.report,
            "--checkpoint": options.checkpoint,
        }
    )
    for argument, path in (("--out", options.out), ("--report", options.report), ("--checkpoint", options.checkpoint)):
        if path is not None:
            require_writable(path, argument)
    if options.report is not None:
        from flashgp.plots.axes import require_matplotlib

        require_matplotlib("--report")


def _check_device(device: str) -> None:
    try:
        wanted = "cpu" if device == "auto" else torch.device(device).type
    except RuntimeError as error:
        raise DomainError(f"`--device` must be auto, cpu or cuda, got {device!r} ({str(error)[:100]})") from None
    if wanted not in ("cpu", "cuda"):
        raise DomainError(f"`--device` must be auto, cpu or cuda, got {device!r}; float64 is computed on these")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(f"`--device` is {device!r}, but torch finds no CUDA device; use auto or cpu")


def _split(options: FitOptions, table: Table, data: EncodedTable) -> tuple[_Rows, _Rows | None]:
    """Positions in the encoded rows of what is fitted and what is held out."""
    if options.split is not None:
        _, held = read_split(options.split, table.rows, table_path=table.path)
        is_test = np.isin(data.rows, held)  # a split speaks of rows of the file, of which some may have been dropped
        if is_test.all() or not is_test.any():
            raise DomainError(
                f"`--split` must leave rows on both sides, got {int(is_test.sum())} test rows among the "
                f"{len(is_test)} rows without missing values; choose another split"
            )
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if options.test_fraction is not None:
        return split_rows(len(data.rows), options.test_fraction, options.seed)
    return np.arange(len(data.rows)), None


def _unused(built: BuiltKernel, count: int) -> list[int]:
    used: set[int] = set()
    for leaf in built.kernel.leaves():
        dims: Any = getattr(leaf, "active_dims", None)
        if type(leaf).__name__ != "Constant":
            used.update(range(count) if dims is None else dims)
    return [j for j in range(count) if j not in used]


def _outcome(
    options: FitOptions, prepared: Prepared, result: "Fit", model: TableModel, began: float, console: Console
) -> FitOutcome:
    scaling = prepared.scaling
    if prepared.test is not None:
        observed = prepared.y[prepared.test]
        mean, std = model.predict(prepared.data.x[prepared.test], options.data.memory)
    elif result.posterior.factor is None:
        observed = mean = std = np.empty(0)
    else:
        observed = prepared.y[prepared.train]
        left = result.posterior.leave_one_out()
        mean = scaling.mean(left.mean.cpu().double().numpy())
        std = scaling.std(left.variance.cpu().double().sqrt().numpy())
    return FitOutcome(
        options=options,
        prepared=prepared,
        fit=result,
        model=model,
        scores=Scores.of(observed, mean, std, scaling) if len(observed) else None,
        left_out=prepared.test is None,
        observed=observed,
        mean=mean,
        std=std,
        parameters=parameter_rows(result.gp, prepared.names, scaling, prepared.encoding.target),
        seconds=time.perf_counter() - began,
        notes=console.notes,
        warnings=console.warnings,
    )


def _say(outcome: FitOutcome, console: Console) -> None:
    report = outcome.fit.report
    seconds = readable_seconds(report.seconds or 0.0)
    console.pairs(
        f"fitted in {seconds}, {len(outcome.fit.history)} evaluations",
        [
            ("log marginal likelihood", f"{evidence_text(outcome)}, of the target in its units"),
            *((name, text) for name, text in report.lines() if name in _HAPPENED),
            ("whole command", f"{readable_seconds(outcome.seconds)}, with reading and predicting"),
            *(("event", str(event)) for event in report.events),
        ],
    )
    if outcome.scores is not None:
        where = "leave-one-out" if outcome.left_out else "held out"
        console.pairs(f"{where}, {outcome.scores.rows:,} rows", outcome.scores.lines(outcome.prepared.encoding.target))
    console.say("parameters")
    shown = outcome.parameters[:40]
    console.table(HEAD, [row.cells() for row in shown], NUMERIC)
    if len(shown) < len(outcome.parameters):
        console.say(f"  and {len(outcome.parameters) - len(shown):,} more")


def log_evidence(outcome: FitOutcome) -> float:
    """log p(y | x), nats, of y in its own units: each row's density moves by the scale."""
    post = outcome.fit.posterior
    standardised = float(post.log_marginal_likelihood())
    return standardised + post.count * float(outcome.prepared.scaling.log_density(0.0))


def evidence_text(outcome: FitOutcome) -> str:
    """The same for people, with its standard error where there is no factor to compute it from."""
    value = f"{log_evidence(outcome):.6g} nats"
    error = outcome.fit.posterior.report.standard_error
    return value if error is None else f"{value} with a standard error of {error:.2g}"


def _json(outcome: FitOutcome) -> dict[str, Any]:
    from dataclasses import asdict

    import flashgp

    options, prepared, report = outcome.options, outcome.prepared, outcome.fit.report
    scores = None if outcome.scores is None else outcome.scores.to_json()
    return {
        "command": "fit",
        "version": flashgp.__version__,
        "table": options.data.table,
        "target": prepared.encoding.target,
        "inputs": prepared.names,
        "rows": prepared.table.rows,
        "rows_used": len(prepared.data.rows),
        "rows_fitted": len(prepared.train),
        "rows_held_out": 0 if prepared.test is None else len(prepared.test),
        "kernel": outcome.model.kernel or None,
        "seed": options.seed,
        "plan": asdict(prepared.plan),
        "log_marginal_likelihood": log_evidence(outcome),
        "log_marginal_likelihood_standard_error": outcome.fit.posterior.report.standard_error,
        "held_out": None if outcome.left_out else scores,
        "leave_one_out": scores if outcome.left_out else None,
        "parameters": [row.to_json() for row in outcome.parameters],
        "evaluations": len(outcome.fit.history),
        "fit_seconds": report.seconds,
        "peak_bytes": report.peak_bytes,
        "seconds": outcome.seconds,
        "events": [event.to_json() for event in report.events],
        "interrupted": outcome.fit.interrupted,
        "out": options.out,
        "report": options.report,
    }


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
