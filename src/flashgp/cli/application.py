"""The commands and their options. What they do is in fitting, predicting, updating, planning, tuning, doctoring,
benching and profiling.

Exit codes: 0 done (also when Ctrl-C ended a fit early and its best model was kept), 1 failed, 2 bad usage, 130
interrupted with nothing written.

A command imports what it runs when it runs, so that the others answer sooner.
"""

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal

import typer

import flashgp
from flashgp.foundations.errors import DomainError, FlashGPError
from flashgp.foundations.machine import parse_bytes
from flashgp.foundations.placement import Placement
from flashgp.planner.tuning import PARTS

from .console import Console
from .kernel_expression import GRAMMAR, KernelExpression, parse_kernel
from .placement import Cores, Numa, Threads, placed
from .profiling import Profiling, asked_for

__all__ = ["application", "main"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it

application = typer.Typer(
    name="flashgp",
    help="Exact Gaussian process regression on tables: fit, predict, update, plan, tune, doctor, bench, profile.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="CSV, CSV.gz or Parquet.", show_default=False)]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="What `flashgp fit --out` wrote.", show_default=False)
]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", metavar="COLUMN", help="A column not to use; may be repeated.")
]
MissingRows = Annotated[
    Literal["error", "drop"], typer.Option("--missing", help="Rows with missing values: refuse them or leave them out.")
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether the first row names the columns; decided if left out."),
]
Delimiter = Annotated[str | None, typer.Option("--delimiter", help="One character; decided if left out.")]
Decimal = Annotated[str | None, typer.Option("--decimal", help="Decimal mark, . or ,; decided if left out.")]
Kernel = Annotated[
    str | None,
    typer.Option(
        "--kernel", metavar="EXPR", help="Covariance function, such as 'Matern(nu=1.5) + Linear()'; see below."
    ),
]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Budget, such as 8GiB; what is free if left out.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Precision = Annotated[
    Literal["float64", "float32"] | None,
    typer.Option("--dtype", help="Of the n x n matrix: float64, or float32 refined in float64."),
]
Solver = Annotated[
    Literal["cholesky", "cg"] | None,
    typer.Option("--solver", help="What solves with the n x n matrix; decided if left out."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No text but warnings and errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]


@application.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    """Exact Gaussian process regression on tables: fit, predict, update, plan, tune, doctor, bench, profile."""
    if version:
        typer.echo(f"flashgp {flashgp.__version__}")
        raise typer.Exit


@application.command(epilog=GRAMMAR)
def fit(
    table: TableArgument,
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="COLUMN", help="What to predict: a name, or a position from 1.")
    ],
    kernel: Kernel = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Published split beside TABLE, from 0, or a mask file.")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option("--test-fraction", help="Share of rows to hold out at random.")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="MODEL", help="Model file to write.")] = None,
    report: Annotated[str | None, typer.Option("--report", metavar="FILE", help="HTML report to write.")] = None,
    memory: Memory = None,
    device: Device = "auto",
    dtype: Precision = None,
    solver: Solver = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random split and of random starts.")] = 0,
    starts: Annotated[
        int | None, typer.Option("--starts", min=1, help="Runs from different starts; decided if left out.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="SECONDS", help="Keep the best model after so long.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Of the mean, in standard deviations of an observation.")
    ] = 1e-3,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits whatever the number of threads; on one thread.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FILE", help="Makes an interrupted fit resumable.")
    ] = None,
    drop: Drop = None,
    missing: MissingRows = "error",
    header: Header = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    threads: Threads = None,
    cores: Cores = None,
    numa: Numa = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a Gaussian process to a table, score it, and write a model and a report.

    Columns of text become categories; inputs and target are standardised with the statistics of the rows fitted.
    Without --split or --test-fraction nothing is held out, and the scores are leave-one-out; where no factor fits there
    are none then.
    """
    if split is not None and test_fraction is not None:
        raise typer.BadParameter("give --split or --test-fraction, not both")
    if test_fraction is not None and not 0.0 < test_fraction < 1.0:
        raise typer.BadParameter("must lie strictly between 0 and 1", param_hint="--test-fraction")
    if time_limit is not None and not time_limit > 0.0:
        raise typer.BadParameter("must be positive", param_hint="--time-limit")
    if not tolerance > 0.0:
        raise typer.BadParameter("must be positive", param_hint="--tolerance")
    from .fitting import FitOptions, TableOptions, run_fit

    data = TableOptions(
        table,
        target,
        tuple(drop or ()),
        missing,
        header,
        delimiter,
        decimal,
        _kernel(kernel),
        _memory(memory),
        device,
        dtype,
        solver,
    )
    options = FitOptions(
        data,
        split,
        test_fraction,
        seed,
        out,
        report,
        starts,
        time_limit,
        tolerance,
        checkpoint,
        shlex.join(["flashgp", *sys.argv[1:]]),
        deterministic,
    )
    _run(lambda console: run_fit(options, console), placed(threads, cores, numa), as_json, quiet, debug)


@application.command()
def predict(
    model: ModelArgument,
    table: TableArgument,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Predictions: .csv, .csv.gz or .parquet.")],
    std: Annotated[bool, typer.Option("--std", help="Add the standard deviation of a new observation.")] = False,
    interval: Annotated[
        float | None, typer.Option("--interval", metavar="P", help="Add the central interval, such as 0.95.")
    ] = None,
    variance: Annotated[
        Literal["auto", "exact", "sampled"],
        typer.Option(
            "--variance", help="How deviations come without a factor: exact, from samples, or by their price."
        ),
    ] = "auto",
    unseen: Annotated[
        Literal["error", "new"],
        typer.Option("--unseen", help="A category not seen in the fit: refuse it, or take it as a new one."),
    ] = "error",
    missing: Annotated[
        Literal["error", "drop"] | None,
        typer.Option("--missing", help="Rows with missing inputs: refuse, or predict nan; as in the fit if left out."),
    ] = None,
    memory: Memory = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    threads: Threads = None,
    cores: Cores = None,
    numa: Numa = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict every row of a table: columns mean, std, lower, upper, in the order of the table.

    Where deviations come from samples, --std also adds std_error, the standard error of each; intervals leave it out.
    If the table also holds the target, the predictions are scored.
    """
    if interval is not None and not 0.0 < interval < 1.0:
        raise typer.BadParameter("must lie strictly between 0 and 1", param_hint="--interval")
    from .predicting import PredictOptions, run_predict

    options = PredictOptions(
        model, table, out, std, interval, unseen, missing, delimiter, decimal, variance, _memory(memory)
    )
    _run(lambda console: run_predict(options, console), placed(threads, cores, numa), as_json, quiet, debug)


@application.command()
def update(
    model: ModelArgument,
    rows: Annotated[
        str,
        typer.Argument(metavar="ROWS", help="New rows with the target: CSV, CSV.gz, Parquet.", show_default=False),
    ],
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="MODEL", help="The new model file; MODEL itself if left out.")
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", metavar="N", min=1, help="Keep the latest N rows; all if left out.")
    ] = None,
    refine: Annotated[
        int | None,
        typer.Option("--refine", metavar="STEPS", min=1, help="Then improve the hyperparameters by so many steps."),
    ] = None,
    missing: Annotated[
        Literal["error", "drop"] | None,
        typer.Option("--missing", help="Rows with missing values: refuse, or leave out; as in the fit if left out."),
    ] = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    threads: Threads = None,
    cores: Cores = None,
    numa: Numa = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Learn the rows of a table without fitting again: O(n^2) for each, hyperparameters and scaling as they are.

    Every row is predicted before it is learned, and the scores of that are shown. The model file is replaced once the
    new one is complete; a command that does not end leaves the old one as it was.
    """
    from .updating import UpdateOptions, run_update

    options = UpdateOptions(model, rows, out, window, refine, missing, delimiter, decimal)
    _run(lambda console: run_update(options, console), placed(threads, cores, numa), as_json, quiet, debug)


@application.command(epilog=GRAMMAR)
def plan(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table; or give --rows and --columns.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="COLUMN", help="What to predict from TABLE.")
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=0, help="Rows to fit, without a table.")] = None,
    columns: Annotated[int | None, typer.Option("--columns", min=1, help="Numeric inputs, without a table.")] = None,
    test_rows: Annotated[
        int | None, typer.Option("--test-rows", min=0, help="Also plan the prediction of so many rows.")
    ] = None,
    kernel: Kernel = None,
    memory: Memory = None,
    device: Device = "auto",
    dtype: Precision = None,
    solver: Solver = None,
    drop: Drop = None,
    missing: MissingRows = "error",
    header: Header = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    threads: Threads = None,
    cores: Cores = None,
    numa: Numa = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Bytes and seconds that a fit of a TABLE, or of so many rows and columns, would take; nothing is allocated.

    Every route is priced: the table shows those not chosen and why. `flashgp tune` measures the rates.
    """
    if table is None and (rows is None or columns is None):
        raise typer.BadParameter("give TABLE and --target, or --rows and --columns")
    if table is not None and (target is None or rows is not None or columns is not None):
        raise typer.BadParameter("with TABLE give --target, and neither --rows nor --columns")
    if table is None and kernel is not None:
        raise typer.BadParameter("--kernel names columns of a table; give TABLE and --target")
    from .fitting import TableOptions
    from .planning import run_plan

    data = None
    if table is not None and target is not None:
        data = TableOptions(
            table,
            target,
            tuple(drop or ()),
            missing,
            header,
            delimiter,
            decimal,
            _kernel(kernel),
            _memory(memory),
            device,
            dtype,
            solver,
        )
    _run(
        lambda console: run_plan(
            data, rows or 0, columns or 0, _memory(memory), device, dtype, console, test_rows, solver
        ),
        placed(threads, cores, numa),
        as_json,
        quiet,
        debug,
    )


@application.command()
def tune(
    profiles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROFILE]...", help="With --show: profile files, beside each other.", show_default=False
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the profile in use; measure nothing.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAMES", help=f"Measure these parts again, keep the rest: {', '.join(PARTS)}."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Logged seconds beside predicted ones; measure nothing.")
    ] = False,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Draw the profile: .png or .html.")
    ] = None,
    threads: Threads = None,
    cores: Cores = None,
    numa: Numa = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure this machine in seconds, so that plans predict with its own rates.

    The profile is kept in your configuration folder, one file per machine, and used by every plan from then on. What
    plans predicted and what runs then took is logged beside it (sizes and seconds only; FLASHGP_RUN_LOG=off for none).
    """
    if profiles and not show:
        raise typer.BadParameter("profile files are shown, not measured; give --show before them")
    if sum(map(bool, (show, only, check))) > 1:
        raise typer.BadParameter("give one of --show, --only and --check")
    if check and out is not None:
        raise typer.BadParameter("--check has no picture; give --out with --show, or without both")
    unknown = [name for text in only or () for name in text.split(",") if name.strip() not in PARTS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)} is none of {', '.join(PARTS)}", param_hint="--only")
    from .tuning import TuneOptions, run_tune

    options = TuneOptions(show, tuple(profiles or ()), tuple(only or ()), check, out)
    _run(lambda console: run_tune(options, console), placed(threads, cores, numa), as_json, quiet, debug)


@application.command()
def doctor(
    threads: Threads = None,
    cores: Cores = None,
    numa: Numa = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Look at this installation and this machine: what stands in the way of speed, and what to do about it.

    Versions, processor, cores and NUMA nodes, threads, memory, accelerator, precision, missing packages with what they
    cost in seconds, machine profile, cache. Lines marked ! are warnings. Nothing is changed, and the exit code is 0
    whatever is found.
    """
    from .doctoring import run_doctor

    _run(run_doctor, placed(threads, cores, numa), as_json, quiet, debug)


@application.command()
def bench(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="One of the names above.", show_default=False)],
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="N,N,...", help="Rows; the suite's own if left out.")
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option("--dtypes", metavar="DTYPE,...", help="float32, float64; of kernel-matrix also bfloat16, stored."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or auto for every device there is; several with commas.")
    ] = "auto",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed runs of each candidate.")] = 5,
    clocks: Annotated[
        str,
        typer.Option(
            "--clocks", help="Beside the wall clock: events (of a GPU), profiler, none, or all that there are."
        ),
    ] = "all",
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Whether peers that are installed take part.")
    ] = True,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of data, order and variations.")] = 0,
    out: Annotated[
        list[str] | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write a .json record, a .png or .html; may be repeated."),
    ] = None,
    threads: Threads = None,
    cores: Cores = None,
    numa: Numa = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare FlashGP with plain torch and other installed libraries on this machine.

    Every timed run is checked against a float64 reference at inputs of its own; a candidate that is wrong, unfinished
    or remembers is refused, with the reason. kernel-matrix: a covariance matrix, beside the construction of a closure
    that is sometimes timed in its place. online: append one row, then predict one point. linalg: factorisations by
    device. About a minute each at the suite's own sizes.
    """
    from flashgp.bench.suites import SUITES, Options

    from .benching import BenchOptions, run_bench

    if name not in SUITES:
        raise typer.BadParameter(f"must be one of {', '.join(SUITES)}, got {name!r}", param_hint="SUITE")
    try:
        rows = tuple(int(size) for size in _listed(sizes))
    except ValueError:
        raise typer.BadParameter(f"must be whole numbers with commas, got {sizes!r}", param_hint="--sizes") from None
    options = Options(
        sizes=rows,
        dtypes=_listed(dtypes),
        devices=_listed(device),
        repeats=repeats,
        clocks="all" if clocks == "all" else tuple(clock for clock in _listed(clocks) if clock != "none"),
        peers=peers,
        seed=seed,
    )
    asked = BenchOptions(name, options, tuple(out or ()))
    _run(lambda console: run_bench(asked, console), placed(threads, cores, numa), as_json, quiet, debug)


profile = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
application.add_typer(profile, name="profile")
profile.command("fit", epilog=GRAMMAR)(fit)
profile.command("predict")(predict)
profile.command("update")(update)


@profile.callback()
def profile_options(
    context: typer.Context,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Chrome trace to write: .json or .json.gz (ui.perfetto.dev)."),
    ] = None,
    coarse: Annotated[
        bool,
        typer.Option("--coarse", help="The table alone, without PyTorch's operations: for commands of many minutes."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run fit, predict or update, and say where the time went: products, factorisation, solves, transfers, idle.

    Options of profile come before the command: flashgp profile --trace trace.json fit TABLE --target y. The same
    ranges are in the trace, and NVTX ranges for Nsight Systems where there is CUDA; the device is waited for at the end
    of each, so that what it did is inside. A profile with operations takes about a kilobyte for each of them.
    """
    if coarse and trace is not None:
        raise typer.BadParameter("a trace is made of the operations that --coarse leaves out", param_hint="--trace")
    token = asked_for.set(Profiling(trace, coarse, as_json))
    context.call_on_close(lambda: asked_for.reset(token))


def main() -> None:
    """The entry point: reads sys.argv, ends by SystemExit with the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name is no reason to fail
    application()


def _kernel(text: str | None) -> KernelExpression | None:
    try:
        return None if text is None else parse_kernel(text)
    except DomainError as error:
        raise typer.BadParameter(str(error)) from None


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _memory(text: str | None) -> str | None:
    try:
        if text is not None:
            parse_bytes(text, "--memory")
    except DomainError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def _run(
    work: Callable[[Console], dict[str, Any]],
    place: AbstractContextManager[Placement | None],
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Do the work where it was placed; a failure that was foreseen is one clear message and exit code 1."""
    profiling = asked_for.get()
    if profiling is not None:
        as_json, work = as_json or profiling.json, profiling.around(work)
    console = Console(json=as_json, quiet=quiet)
    try:
        with console.listening(), place:
            result = work(console)
        console.finish(result)
    except KeyboardInterrupt as stop:
        console.error(KeyboardInterrupt(str(stop) or "interrupted; nothing was written"))
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has gone: no more of it, and no complaint when Python closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (FlashGPError, OSError) as error:
        if debug:
            raise
        console.error(error)
        raise typer.Exit(1) from None
